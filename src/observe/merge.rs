//! Several ranks' timelines in one file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::TimelineError;

/// One rank's file.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where it is.
    pub path: PathBuf,
    /// What to add to its times to get those of the host whose clock the result follows, in nanoseconds. Zero for
    /// ranks of that host: processes of one host share CLOCK_MONOTONIC.
    pub offset_ns: i64,
}

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

/// Writes the events of all `parts` to `out`: one process a rank, ordered by time.
///
/// # Errors
///
/// If a file cannot be read or written, is not a timeline, or repeats a rank.
pub fn merge(parts: &[Part], out: &Path) -> Result<Merged, TimelineError> {
    let mut ranks: BTreeMap<u64, &Path> = BTreeMap::new();
    let mut names = Vec::new();
    let mut events: Vec<(i64, Value)> = Vec::new();
    let mut overwritten = 0;
    for part in parts {
        let trace = read(&part.path)?;
        if let Some(first) = ranks.insert(trace.rank, &part.path) {
            let (first, second) = (first.to_owned(), part.path.clone());
            return Err(TimelineError::SameRank { rank: trace.rank, first, second });
        }
        overwritten += trace.overwritten;
        for mut event in trace.events {
            match event.get("ts").and_then(Value::as_f64) {
                None => names.push(event),
                Some(ts) => {
                    // In whole nanoseconds, so that shifting does not leave a tail of digits.
                    let nanos = ((ts * 1e3).round() as i64).saturating_add(part.offset_ns);
                    event["ts"] = json!(nanos as f64 / 1e3);
                    events.push((nanos, event));
                }
            }
        }
    }
    events.sort_by_key(|(nanos, _)| *nanos);
    let merged = Merged { ranks: ranks.len(), events: events.len(), overwritten };
    names.extend(events.into_iter().map(|(_, event)| event));
    let trace = json!({
        "displayTimeUnit": "ns",
        "otherData": { "ranks": merged.ranks, "overwritten": overwritten },
        "traceEvents": names,
    });
    let file = File::create(out).map_err(TimelineError::io(out))?;
    let mut writer = BufWriter::new(file);
    serde_json::to_writer(&mut writer, &trace)
        .map_err(std::io::Error::from)
        .and_then(|()| writer.write_all(b"\n"))
        .and_then(|()| writer.flush())
        .map_err(TimelineError::io(out))?;
    Ok(merged)
}

struct Trace {
    rank: u64,
    overwritten: u64,
    events: Vec<Value>,
}

fn read(path: &Path) -> Result<Trace, TimelineError> {
    let wrong = |why: &str| TimelineError::NotATimeline { path: path.to_owned(), why: why.to_owned() };
    let file = File::open(path).map_err(TimelineError::io(path))?;
    let mut trace: Map<String, Value> = serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        if error.is_io() { TimelineError::io(path)(error.into()) } else { wrong(&error.to_string()) }
    })?;
    let about = |key: &str| trace.get("otherData").and_then(|about| about.get(key)).and_then(Value::as_u64);
    let rank = about("rank").ok_or_else(|| wrong("otherData.rank is missing"))?;
    let overwritten = about("overwritten").unwrap_or(0);
    let Some(Value::Array(events)) = trace.remove("traceEvents") else {
        return Err(wrong("traceEvents is missing"));
    };
    if !events.iter().all(Value::is_object) {
        return Err(wrong("an entry of traceEvents is not an object"));
    }
    Ok(Trace { rank, overwritten, events })
}
