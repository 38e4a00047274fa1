//! A rank's counters for Prometheus: over HTTP, or in a file for the node exporter's textfile collector.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/> has the format. A thread reads the counters for each
//! request, or every ten seconds; it ends with the group.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus::{Counter, Gauge, Opts, Registry, TextEncoder};

use crate::log;
use crate::runtime::fork_generation;
use crate::whole;
use http::Http;

mod http;

/// The interval between two versions of the file.
const EVERY: Duration = Duration::from_secs(10);

/// What stands for the rank in the name of a file.
const RANK: &str = "%r";

/// Where the counters go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsTarget {
    /// A file, written anew every ten seconds and at the end. Scrapers never see half of one.
    File(PathBuf),
    /// `GET /metrics` at this address; the port is the base of those of the host's ranks, by local rank.
    Http(SocketAddr),
}

impl MetricsTarget {
    /// A path with a slash, or an address with a port.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.contains('/') {
            return Some(Self::File(text.into()));
        }
        let (host, port) = text.rsplit_once(':')?;
        let host = if host == "localhost" { "127.0.0.1" } else { host };
        let host: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
        let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self::Http(SocketAddr::new(host, port)))
    }

    /// Whether each rank of a host has a target of its own.
    pub(crate) fn tells_ranks_apart(&self) -> bool {
        match self {
            Self::File(path) => path.to_string_lossy().contains(RANK),
            Self::Http(_) => true,
        }
    }

    /// The target of one rank: a path has its rank for `%r`, a port is the first rank's plus the local rank.
    fn of_rank(&self, of: &MetricsOf) -> io::Result<Self> {
        match self {
            Self::File(path) => {
                let path = path.to_string_lossy().replace(RANK, &of.rank.to_string());
                Ok(Self::File(path.into()))
            }
            Self::Http(address) => {
                let local_rank = u16::try_from(of.local_rank).ok();
                let port = local_rank.and_then(|rank| address.port().checked_add(rank));
                let port = port.ok_or_else(|| {
                    let rank = of.local_rank;
                    io::Error::other(format!("{address}: local rank {rank} would have a port above 65535"))
                })?;
                Ok(Self::Http(SocketAddr::new(address.ip(), port)))
            }
        }
    }
}

impl fmt::Display for MetricsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Http(address) => address.fmt(f),
        }
    }
}

/// The rank that the counters are of.
#[derive(Clone, Debug)]
pub(crate) struct MetricsOf {
    pub(crate) job: String,
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) host: String,
}

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) kind: MetricKind,
    /// Its name, without the prefix `shouter_`.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) value: f64,
}

/// Reads the counters.
pub(crate) type Count = Box<dyn Fn() -> Vec<Metric> + Send>;

/// Shows a rank's counters while it lives.
pub(crate) struct Exporter {
    forks: u32,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

enum Stop {
    File(Sender<()>),
    Http(Arc<Http>),
}

impl Exporter {
    /// Starts to show them.
    ///
    /// # Errors
    /// If the file cannot be written, or the port cannot be opened.
    pub(crate) fn start(target: &MetricsTarget, of: MetricsOf, count: Count) -> io::Result<Self> {
        let target = target.of_rank(&of)?;
        Self::show(&target, of, count).map_err(|why| io::Error::new(why.kind(), format!("{target}: {why}")))
    }

    fn show(target: &MetricsTarget, of: MetricsOf, count: Count) -> io::Result<Self> {
        let text = move || text(&of, &count());
        const NAME: &str = "shouter-metrics";
        let (stop, thread) = match target.clone() {
            MetricsTarget::File(path) => {
                write(&path, &text()?)?;
                let (stop, stopped) = mpsc::channel();
                let body = move || {
                    loop {
                        let ended = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
                        if let Err(why) = text().and_then(|text| write(&path, &text)) {
                            tracing::warn!(?path, %why, "the counters could not be written");
                        }
                        if ended {
                            return;
                        }
                    }
                };
                (Stop::File(stop), log::spawn(NAME, body)?)
            }
            MetricsTarget::Http(address) => {
                let http = Arc::new(Http::open(address)?);
                let served = http.clone();
                (Stop::Http(http), log::spawn(NAME, move || served.answer_all(&text))?)
            }
        };
        Ok(Self { forks: fork_generation(), stop, thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().filter(|_| fork_generation() == self.forks) else {
            // The thread is the parent's.
            return;
        };
        match &self.stop {
            // The thread waits for this, or has ended.
            Stop::File(stop) => drop(stop.send(())),
            Stop::Http(http) => http.stop(thread.thread()),
        }
        // It has no panic of its own to report.
        let _ = thread.join();
    }
}

fn text(of: &MetricsOf, metrics: &[Metric]) -> io::Result<String> {
    let labels = [("job", of.job.clone()), ("rank", of.rank.to_string()), ("host", of.host.clone())];
    let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let text = || {
        let registry = Registry::new_custom(Some("shouter".into()), Some(labels))?;
        for Metric { kind, name, help, value } in metrics {
            let options = Opts::new(*name, *help);
            match kind {
                MetricKind::Counter => {
                    let counter = Counter::with_opts(options)?;
                    counter.inc_by(*value);
                    registry.register(Box::new(counter))?;
                }
                MetricKind::Gauge => {
                    let gauge = Gauge::with_opts(options)?;
                    gauge.set(*value);
                    registry.register(Box::new(gauge))?;
                }
            }
        }
        TextEncoder::new().encode_to_string(&registry.gather())
    };
    text().map_err(io::Error::other)
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    whole::replace(path, 0o666, |file| file.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests;
