//! Reads the files that ranks have written: timelines and dumps, which have one format (`perfetto.rs`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::TimelineError;

/// A rank's file.
pub(super) struct Trace {
    pub(super) path: PathBuf,
    pub(super) rank: u64,
    pub(super) host: String,
    /// Events that had made room for later ones before it was written.
    pub(super) overwritten: u64,
    /// The clock of its times.
    clock: String,
    joined_ns: Option<i64>,
    /// Present in dumps only.
    pub(super) dump: Option<DumpAbout>,
    pub(super) events: Vec<Value>,
}

/// The part that only dumps have.
pub(super) struct DumpAbout {
    pub(super) job: String,
    /// Ranks of the group.
    pub(super) size: u64,
    /// Why it was written.
    pub(super) cause: String,
    /// When, by the clock of its times.
    pub(super) written_ns: Option<i64>,
}

/// The files of several ranks, by rank.
pub(super) fn all(files: &[PathBuf]) -> Result<Vec<Trace>, TimelineError> {
    let mut traces: BTreeMap<u64, Trace> = BTreeMap::new();
    for path in files {
        let trace = read(path)?;
        let rank = trace.rank;
        if let Some(Trace { path: first, .. }) = traces.insert(rank, trace) {
            return Err(TimelineError::SameRank { rank, first, second: path.clone() });
        }
    }
    Ok(traces.into_values().collect())
}

/// The nanoseconds to add to the times of each file, so that all are of the first one's clock. Ranks of one host have
/// one clock; those of another are shifted so that the moments at which all ranks had joined coincide, which is exact
/// to about the time of a message.
pub(super) fn shifts(traces: &[Trace]) -> Vec<i64> {
    // The first of a host's ranks to learn that all have joined has the smallest delay.
    let mut joined: BTreeMap<&str, i64> = BTreeMap::new();
    for trace in traces {
        if let Some(at) = trace.joined_ns {
            joined.entry(&trace.clock).and_modify(|first| *first = at.min(*first)).or_insert(at);
        }
    }
    let reference = traces.first().and_then(|trace| joined.get(trace.clock.as_str()).copied());
    let shift = |trace: &Trace| match (reference, joined.get(trace.clock.as_str())) {
        (Some(reference), Some(at)) => reference.saturating_sub(*at),
        _ => 0,
    };
    traces.iter().map(shift).collect()
}

fn read(path: &Path) -> Result<Trace, TimelineError> {
    let wrong = |why: &str| TimelineError::NotATimeline { path: path.to_owned(), why: why.to_owned() };
    let file = File::open(path).map_err(TimelineError::io(path))?;
    let mut trace: Map<String, Value> = serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        if error.is_io() { TimelineError::io(path)(error.into()) } else { wrong(&error.to_string()) }
    })?;
    let about = |key: &str| trace.get("otherData").and_then(|about| about.get(key));
    let number = |key: &str| about(key).and_then(Value::as_u64);
    let text = |key: &str| about(key).and_then(Value::as_str);
    let rank = number("rank").ok_or_else(|| wrong("otherData.rank is missing"))?;
    let overwritten = number("overwritten").unwrap_or(0);
    let clock = text("clock").unwrap_or_default().to_owned();
    let host = text("host").unwrap_or_default().to_owned();
    let joined_ns = about("joined_ns").and_then(Value::as_i64);
    let dump = match (text("job"), number("size"), text("cause")) {
        (Some(job), Some(size), Some(cause)) => {
            let written_ns = about("written_ns").and_then(Value::as_i64);
            Some(DumpAbout { job: job.to_owned(), size, cause: cause.to_owned(), written_ns })
        }
        _ => None,
    };
    let Some(Value::Array(events)) = trace.remove("traceEvents") else {
        return Err(wrong("traceEvents is missing"));
    };
    if !events.iter().all(Value::is_object) {
        return Err(wrong("an entry of traceEvents is not an object"));
    }
    Ok(Trace { path: path.to_owned(), rank, host, overwritten, clock, joined_ns, dump, events })
}
