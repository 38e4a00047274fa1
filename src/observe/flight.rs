//! The flight recorder: the last events of a rank, written when its group ends in error, or on request.
//!
//! ```text
//!   engine of each shard --records--> Recorder (4,096 events)  \
//!   small operations --records--> Recorder                   >  Flight --a dump--> shouter-JOB-rank0-PID.json
//! ```
//!
//! The recorders always run. Recording costs some nanoseconds an event; all else is done when a dump is written, from
//! copies, by the thread that meets the error or calls for the dump. So a dump can be written while an engine hangs.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use shouter_reducer::executor::AbortReason;
use shouter_reducer::recorder::{EVENTS, Record, RecordKind, Records, RegisteredTensor};

use super::files;
use super::perfetto::{Args, Category, Dump, Trace, TraceLine};
use super::timeline::TimelineError;
use crate::error::NamedTensor;
use crate::runtime::Clock;
use shouter_netstack::time::Instant;

/// Operations whose labels are kept: a recorder has two events of each at least.
const LABELS: usize = EVENTS / 2;

/// The track of the engine, whose operations may have labels.
pub(crate) const ENGINE: &str = "engine";

/// The track of the groups of some ranks, whose operations are called by labels only.
pub(crate) const GROUPS: &str = "groups of some ranks";

/// The track of a further shard's engine.
pub(crate) const SIBLINGS: &str = "engine of a further shard";

/// An operation: its group's number in the recorder, and its own number in the group.
pub(crate) type OperationRef = (u16, u64);

/// The labels of the last operations outside the table, by operation.
#[derive(Debug, Default)]
pub(crate) struct Labels(Mutex<VecDeque<(OperationRef, Arc<str>)>>);

impl Labels {
    pub(crate) fn keep(&self, place: OperationRef, label: Arc<str>) {
        let mut labels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if labels.len() >= LABELS {
            labels.pop_front();
        }
        labels.push_back((place, label));
    }

    fn by_place(&self) -> HashMap<OperationRef, Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The folder of a rank's dumps, and their facts about the rank.
#[derive(Debug)]
pub(crate) struct DumpTarget {
    pub(crate) folder: PathBuf,
    pub(crate) job: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) host: String,
}

/// Finds a tensor's number and name in the table of the group.
pub(crate) type NameOf = Box<dyn Fn(RegisteredTensor) -> Option<Arc<NamedTensor>> + Send + Sync>;

/// The flight recorder of a group.
pub(crate) struct Flight {
    target: DumpTarget,
    names: OnceLock<NameOf>,
    /// The recorders, by track of the dump: the engine of each shard, small operations, which bypass it, and groups of
    /// some ranks.
    tracks: Vec<(&'static str, Records)>,
    labels: Arc<Labels>,
    group_labels: Arc<Labels>,
    joined: OnceLock<Instant>,
    /// The dump of the group's end, or nothing if it could not be written.
    last: OnceLock<Option<PathBuf>>,
}

impl Flight {
    pub(crate) fn new(target: DumpTarget, tracks: Vec<(&'static str, Records)>) -> Self {
        Self {
            target,
            names: OnceLock::new(),
            tracks,
            labels: Arc::default(),
            group_labels: Arc::default(),
            joined: OnceLock::new(),
            last: OnceLock::new(),
        }
    }

    /// Where the engine keeps the labels of its operations.
    pub(crate) fn labels(&self) -> Arc<Labels> {
        self.labels.clone()
    }

    /// The same for those of groups of some ranks, registered ones among them.
    pub(crate) fn group_labels(&self) -> Arc<Labels> {
        self.group_labels.clone()
    }

    /// Dumps name tensors of the group of all as this does.
    pub(crate) fn name_tensors(&self, names: NameOf) {
        let _ = self.names.set(names);
    }

    /// All ranks have met now: the moment by which dumps of different hosts are lined up.
    pub(crate) fn joined(&self, now: Instant) {
        let _ = self.joined.set(now);
    }

    /// The group has ended in error: writes a dump, the first time, and returns where it is. A dump that cannot be written is a line
    /// in the log.
    pub(crate) fn ended(&self, cause: &str) -> Option<&Path> {
        let written = self.last.get_or_init(|| {
            let dump = self.dump(cause);
            dump.inspect_err(|why| tracing::warn!(%why, "the last events of this rank could not be written"))
                .ok()
        });
        written.as_deref()
    }

    /// Writes the recorded events to a new file.
    pub(crate) fn dump(&self, cause: &str) -> Result<PathBuf, TimelineError> {
        let DumpTarget { folder, job, rank, .. } = &self.target;
        files::write_new(folder, ("shouter", job, *rank), &self.trace(cause))
    }

    fn trace(&self, cause: &str) -> Trace {
        let DumpTarget { job, rank, size, host, .. } = &self.target;
        let (job, cause) = (job.clone(), cause.to_owned());
        let written_ns = Clock.now().as_nanos();
        let dump = Dump { job, size: *size, pid: std::process::id(), cause, written_ns };
        let mut trace = Trace::new(*rank, host, self.joined.get().copied(), Some(dump));
        for (name, records) in &self.tracks {
            let (records, before) = records.copy();
            let labels = match *name {
                ENGINE => self.labels.by_place(),
                GROUPS => self.group_labels.by_place(),
                _ => HashMap::new(),
            };
            trace.add(name, lines(&records, self.names.get(), &labels), before);
        }
        trace
    }
}

/// Events as the file has them. The end of an operation whose start is there, too, is drawn with its length.
fn lines(
    records: &[Record],
    names: Option<&NameOf>,
    labels: &HashMap<OperationRef, Arc<str>>,
) -> Vec<TraceLine> {
    // Only those of the group of all are in its table.
    let registered = |record: &Record| record.tensor.filter(|_| record.group == 0);
    let named = |record: &Record| names.zip(registered(record)).and_then(|(names, tensor)| names(tensor));
    let mut started: HashMap<OperationRef, &Record> = HashMap::new();
    let mut lines = Vec::with_capacity(records.len());
    for record in records {
        let mut args = Args { group: (record.group != 0).then_some(record.group), ..args(record) };
        let of_tensor = |args: &mut Args, record: &Record| {
            let tensor = named(record);
            args.tensor_id = tensor.as_ref().map(|tensor| tensor.id.0);
            let label = || {
                let label = labels.get(&place(record)).filter(|_| registered(record).is_none());
                label.map(|label| label.to_string())
            };
            args.tensor = tensor.map(|tensor| tensor.name.clone()).or_else(label);
        };
        let mut line = |start: Instant, length, args| {
            lines.push(TraceLine::new(record.what.name(), start, length, args).of(category(record.what)));
        };
        let at = instant(record);
        let start = match record.what {
            RecordKind::Started => {
                started.insert(place(record), record);
                of_tensor(&mut args, record);
                None
            }
            RecordKind::Done | RecordKind::Failed => started.remove(&place(record)),
            _ => None,
        };
        match start {
            Some(start) => {
                of_tensor(&mut args, start);
                (args.step, args.bytes) = (Some(start.value), Some(start.bytes));
                let length = record.at.saturating_sub(start.at).as_nanos() as u64;
                line(instant(start), Some(length), args);
            }
            None => line(at, None, args),
        }
    }
    lines
}

fn place(record: &Record) -> OperationRef {
    (record.group, record.seq)
}

fn instant(record: &Record) -> Instant {
    Instant::from_nanos(record.at.as_nanos() as u64)
}

fn args(record: &Record) -> Args {
    let Record { what, rank, seq, value, bytes, .. } = *record;
    let peer = rank.map(|rank| rank.0);
    let why = || Some(AbortReason::from_code(value as u32).to_string());
    let none = Args::default();
    match what {
        RecordKind::Started => Args { seq: Some(seq), step: Some(value), bytes: Some(bytes), ..none },
        RecordKind::Done => Args { seq: Some(seq), ..none },
        RecordKind::Failed => Args { seq: Some(seq), culprit: peer, ..none },
        RecordKind::Sent | RecordKind::Received | RecordKind::CreditWait => {
            Args { seq: Some(seq), peer, bytes: Some(bytes), ..none }
        }
        RecordKind::Diverged | RecordKind::Voted | RecordKind::VoteReceived => {
            Args { seq: Some(seq), peer, ..none }
        }
        RecordKind::AbortReceived => Args { peer, why: why(), ..none },
        RecordKind::Ended | RecordKind::AbortSent => Args { culprit: peer, why: why(), ..none },
        RecordKind::PeerLost => Args { peer, ..none },
        RecordKind::LinkLost => Args { count: Some(value), ..none },
        RecordKind::Resent | RecordKind::Lost | RecordKind::Damaged | RecordKind::Reconnected => {
            Args { peer, count: Some(value), ..none }
        }
    }
}

fn category(what: RecordKind) -> Category {
    match what {
        RecordKind::Started | RecordKind::Done | RecordKind::Failed => Category::Operation,
        _ => Category::Network,
    }
}

#[cfg(test)]
mod tests;
