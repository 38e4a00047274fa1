//! Several ranks' timelines, or dumps, in one file.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::read::{self, Trace};
use super::{TimelineError, files};

/// The counts of a [`merge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Ranks.
    pub ranks: usize,
    /// Events, names not counted.
    pub events: usize,
    /// Events that the ranks' rings had lost before they were written.
    pub overwritten: u64,
}

/// Writes the events of the files in `ranks`, one of each rank, to the new file `out`: one process a rank, ordered by time.
///
/// Times are those of the lowest rank's host. Ranks of one host have its clock; those of another are shifted so that the
/// moments at which all ranks had joined coincide, which is exact to about the time of a message between the hosts.
///
/// # Errors
///
/// If a file cannot be read or written, is not a timeline, or repeats a rank, and if `out` is there already. Where it cannot be written whole
/// it is removed.
pub fn merge(ranks: &[PathBuf], out: &Path) -> Result<Merged, TimelineError> {
    let traces = read::all(ranks)?;
    let shifts = read::shifts(&traces);
    let overwritten = traces.iter().map(|trace| trace.overwritten).sum();
    let (mut names, mut events) = (Vec::new(), Vec::new());
    let ranks = traces.len();
    for (Trace { events: own, .. }, shift) in traces.into_iter().zip(shifts) {
        for mut event in own {
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
    // One of `ranks` may be named in its place, as by a pattern of the shell.
    let file = File::create_new(out).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => TimelineError::Exists { path: out.into() },
        _ => TimelineError::Io { path: out.into(), error },
    })?;
    files::write(file, out, &trace)?;
    Ok(merged)
}
