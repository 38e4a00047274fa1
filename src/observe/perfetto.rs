//! The file format of timelines and dumps: Chrome's "Trace Event Format" (JSON object form), which <https://ui.perfetto.dev> opens.
//!
//! A rank is a process, and each of its tracks a thread. There are complete events (`ph: X`) and instants (`ph: i`), with microseconds of
//! the host's clock; `otherData` says which clock that is, so that files of several ranks can be put on one time axis.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::runtime::{Clock, Instant};

/// Names the kernel's present boot: processes that read the same have one CLOCK_MONOTONIC.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Tracks that one kind of event may take in the viewer.
pub(super) const TRACKS: u64 = 1000;

/// The subject of an event; the viewer can filter by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// An operation as its caller sees it.
    #[default]
    Operation,
    /// Time in a reduction kernel, or in a copy within the host.
    Kernel,
    /// Messages, and faults on the wire.
    Network,
}

/// A file in the making.
#[derive(Serialize)]
pub(super) struct Trace {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    about: About,
    #[serde(rename = "traceEvents")]
    lines: Vec<TraceLine>,
    /// The first number of the next tracks.
    #[serde(skip)]
    next_track: u64,
}

/// The rank of a trace, and its clock.
#[derive(Serialize)]
struct About {
    rank: u32,
    host: String,
    /// Earlier events that are not in the file.
    overwritten: u64,
    /// The clock of the times: the boot of a host.
    clock: String,
    /// The zero of that clock, in nanoseconds of UTC since 1970.
    clock_zero_unix_ns: u64,
    /// When all ranks had met, by that clock.
    joined_ns: Option<u64>,
    #[serde(flatten)]
    dump: Option<Dump>,
}

/// The further facts of a dump.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Dump {
    /// The job's name.
    pub(super) job: String,
    /// Ranks of the group.
    pub(super) size: u32,
    /// This process.
    pub(super) pid: u32,
    /// Why it was written.
    pub(super) cause: String,
    /// When it was written, by the host's clock.
    pub(super) written_ns: u64,
}

/// One entry of `traceEvents`.
#[derive(Serialize)]
pub(super) struct TraceLine {
    name: Cow<'static, str>,
    ph: &'static str,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<Category>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// How wide an instant is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Args,
    #[serde(skip)]
    start: Instant,
    #[serde(skip)]
    end: u64,
}

/// The facts of an event besides its name and time.
#[derive(Default, Serialize)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) labels: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sort_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tensor_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) culprit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
}

impl Trace {
    /// A trace without events.
    pub(super) fn new(rank: u32, host: &str, joined: Option<Instant>, dump: Option<Dump>) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let about = About {
            rank,
            host: host.to_owned(),
            overwritten: 0,
            clock: std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned(),
            clock_zero_unix_ns: (unix as u64).saturating_sub(Clock.now().as_nanos()),
            joined_ns: joined.map(Instant::as_nanos),
            dump,
        };
        let mut trace = Self { unit: "ns", about, lines: Vec::new(), next_track: 0 };
        let named = |name| Args { name: Some(name), ..Args::default() };
        trace.meta("process_name", 0, named(format!("rank {rank} (host {host})")));
        trace.meta("process_sort_index", 0, Args { sort_index: Some(rank.into()), ..Args::default() });
        if let Some(dump) = &trace.about.dump {
            let labels = Some(dump.cause.clone());
            trace.meta("process_labels", 0, Args { labels, ..Args::default() });
        }
        trace
    }

    /// Adds events by time, before which `overwritten` others have been, spread over as many tracks as overlap: the viewer shows events of
    /// one track as nested calls, which operations that overlap are not.
    pub(super) fn add(&mut self, name: &str, mut events: Vec<TraceLine>, overwritten: u64) {
        let first_track = self.next_track;
        self.next_track += TRACKS;
        self.about.overwritten += overwritten;
        events.sort_by_key(|event| event.start);
        let mut ends: Vec<u64> = Vec::new();
        for mut event in events {
            let start = event.start.as_nanos();
            let track = ends.iter().position(|end| *end <= start).unwrap_or_else(|| {
                if (ends.len() as u64) < TRACKS {
                    ends.push(0);
                }
                ends.len() - 1
            });
            ends[track] = event.end;
            (event.pid, event.tid) = (self.about.rank, first_track + track as u64);
            self.lines.push(event);
        }
        for track in 0..ends.len() as u64 {
            let tid = first_track + track;
            let name = if track == 0 { name.into() } else { format!("{name} (overlap {track})") };
            self.meta("thread_name", tid, Args { name: Some(name), ..Args::default() });
            self.meta("thread_sort_index", tid, Args { sort_index: Some(tid), ..Args::default() });
        }
    }

    fn meta(&mut self, name: &'static str, tid: u64, args: Args) {
        let line = TraceLine {
            ph: "M",
            cat: None,
            ts: None,
            s: None,
            ..TraceLine::new(name, Instant::ZERO, None, args)
        };
        self.lines.push(TraceLine { pid: self.about.rank, tid, ..line });
    }
}

impl TraceLine {
    /// An event that began then and took so many nanoseconds; an instant, if it has no length.
    pub(super) fn new(
        name: impl Into<Cow<'static, str>>,
        start: Instant,
        duration_ns: Option<u64>,
        args: Args,
    ) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Self {
            name: name.into(),
            ph: if duration_ns.is_some() { "X" } else { "i" },
            pid: 0,
            tid: 0,
            cat: Some(Category::default()),
            ts: Some(micros(start.as_nanos())),
            dur: duration_ns.map(micros),
            s: duration_ns.is_none().then_some("t"),
            args,
            start,
            end: start.as_nanos().saturating_add(duration_ns.unwrap_or(0)),
        }
    }

    /// The event with this category.
    pub(super) fn of(self, category: Category) -> Self {
        Self { cat: Some(category), ..self }
    }
}

/// Writes a trace to a file, or to what else there is in its place.
pub(super) fn write(file: impl Write, trace: &impl Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    serde_json::to_writer(&mut out, trace)?;
    out.write_all(b"\n")?;
    out.flush()
}
