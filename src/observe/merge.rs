//! Several ranks' timelines, or dumps, in one file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{TimelineError, perfetto};

/// What [`merge`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Ranks.
    pub ranks: usize,
    /// Events, names not counted.
    pub events: usize,
    /// Events that the ranks' rings had lost before they were written.
    pub overwritten: u64,
}

/// Writes the events of all `files`, one of each rank, to `out`: one process a rank, ordered by time.
///
/// Times are those of the lowest rank's host. Ranks of one host have its clock; those of another are shifted so that the
/// moments at which all ranks had joined coincide, which is exact to about the time of a message between the hosts.
///
/// # Errors
///
/// If a file cannot be read or written, is not a timeline, or repeats a rank.
pub fn merge(files: &[PathBuf], out: &Path) -> Result<Merged, TimelineError> {
    let mut traces: BTreeMap<u64, (&Path, Trace)> = BTreeMap::new();
    for path in files {
        let trace = read(path)?;
        let rank = trace.rank;
        if let Some((first, _)) = traces.insert(rank, (path, trace)) {
            return Err(TimelineError::SameRank { rank, first: first.to_owned(), second: path.clone() });
        }
    }
    // The first of a host's ranks to learn that all have joined has the smallest delay.
    let mut joined: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, trace) in traces.values() {
        if let Some(at) = trace.joined_ns {
            joined.entry(&trace.clock).and_modify(|first| *first = at.min(*first)).or_insert(at);
        }
    }
    let reference = traces.values().next().and_then(|(_, trace)| joined.get(trace.clock.as_str()).copied());
    let shift = |clock: &str| match (reference, joined.get(clock)) {
        (Some(reference), Some(at)) => reference.saturating_sub(*at),
        _ => 0,
    };
    let shifts: Vec<i64> = traces.values().map(|(_, trace)| shift(&trace.clock)).collect();
    let overwritten = traces.values().map(|(_, trace)| trace.overwritten).sum();
    let (mut names, mut events) = (Vec::new(), Vec::new());
    let ranks = traces.len();
    for ((_, trace), shift) in traces.into_values().zip(shifts) {
        for mut event in trace.events {
            match event.get("ts").and_then(Value::as_f64) {
                None => names.push(event),
                Some(ts) => {
                    // In whole nanoseconds, so that shifting does not leave a tail of digits.
                    let nanos = ((ts * 1e3).round() as i64).saturating_add(shift);
                    event["ts"] = json!(nanos as f64 / 1e3);
                    events.push((nanos, event));
                }
            }
        }
    }
    events.sort_by_key(|(nanos, _)| *nanos);
    let merged = Merged { ranks, events: events.len(), overwritten };
    names.extend(events.into_iter().map(|(_, event)| event));
    let trace = json!({
        "displayTimeUnit": "ns",
        "otherData": { "ranks": merged.ranks, "overwritten": overwritten },
        "traceEvents": names,
    });
    let file = File::create(out).map_err(TimelineError::io(out))?;
    perfetto::write(file, &trace).map_err(TimelineError::io(out))?;
    Ok(merged)
}

struct Trace {
    rank: u64,
    overwritten: u64,
    /// Which clock its times are of.
    clock: String,
    joined_ns: Option<i64>,
    events: Vec<Value>,
}

fn read(path: &Path) -> Result<Trace, TimelineError> {
    let wrong = |why: &str| TimelineError::NotATimeline { path: path.to_owned(), why: why.to_owned() };
    let file = File::open(path).map_err(TimelineError::io(path))?;
    let mut trace: Map<String, Value> = serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        if error.is_io() { TimelineError::io(path)(error.into()) } else { wrong(&error.to_string()) }
    })?;
    let about = |key: &str| trace.get("otherData").and_then(|about| about.get(key));
    let rank = about("rank").and_then(Value::as_u64).ok_or_else(|| wrong("otherData.rank is missing"))?;
    let overwritten = about("overwritten").and_then(Value::as_u64).unwrap_or(0);
    let clock = about("clock").and_then(Value::as_str).unwrap_or_default().to_owned();
    let joined_ns = about("joined_ns").and_then(Value::as_i64);
    let Some(Value::Array(events)) = trace.remove("traceEvents") else {
        return Err(wrong("traceEvents is missing"));
    };
    if !events.iter().all(Value::is_object) {
        return Err(wrong("an entry of traceEvents is not an object"));
    }
    Ok(Trace { rank, overwritten, clock, joined_ns, events })
}
