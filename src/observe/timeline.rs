//! When: the last events of a rank, as a trace for <https://ui.perfetto.dev>.
//!
//! ```text
//!   Timeline (a rank)            one process in the viewer, "rank 2 (host b)"
//!     its own lane, "calls"      rows of that process: a caller's operations
//!     Lane of shard 0            more rows, one writer each and no lock
//! ```
//!
//! A lane is a ring allocated when it is made; when full, the oldest event goes and is counted. Times are those of
//! [`Clock`](crate::runtime::Clock), which all processes of a host share, so their files line up as they are.
//!
//! The format is Chrome's "Trace Event Format" (JSON object form): complete events (`ph: X`) with microseconds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use crate::runtime::Instant;

/// Rows that one lane may take in the viewer.
const ROWS_PER_LANE: u64 = 1000;

/// What an event is about; the viewer can filter by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// An operation as its caller sees it.
    #[default]
    Operation,
    /// One round of a schedule.
    Round,
    /// Time in a reduction kernel.
    Kernel,
    /// Frames and sessions.
    Network,
    /// Joining, leaving, liveness.
    Group,
}

/// Something that took time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// What it was: `allreduce`, `resend`...
    pub name: &'static str,
    /// What it is about.
    pub category: Category,
    /// When it began.
    pub start: Instant,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The tensor it was for, if any.
    pub tensor: Option<u32>,
    /// The trainer's step.
    pub step: u64,
    /// Bytes moved or reduced.
    pub bytes: u64,
}

/// A bounded ring of events with one writer.
#[derive(Clone, Debug)]
pub struct Lane {
    name: String,
    capacity: usize,
    events: Vec<Event>,
    /// Where the next event goes once the ring is full.
    next: usize,
    overwritten: u64,
}

impl Lane {
    /// A lane for `capacity` events (64 bytes each), allocated now; with 0 it records nothing.
    pub fn new(name: impl Into<String>, capacity: usize) -> Self {
        Self { name: name.into(), capacity, events: Vec::with_capacity(capacity), next: 0, overwritten: 0 }
    }

    /// Whether events are kept.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.capacity != 0
    }

    /// Keeps an event; the oldest goes if the ring is full.
    #[inline]
    pub fn record(&mut self, event: Event) {
        if self.events.len() < self.capacity {
            self.events.push(event);
        } else if let Some(oldest) = self.events.get_mut(self.next) {
            *oldest = event;
            self.next += 1;
            if self.next == self.capacity {
                self.next = 0;
            }
            self.overwritten += 1;
        }
    }

    /// Events that were lost because newer ones needed their place.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// The events in the order in which they were recorded.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        let (newer, older) = self.events.split_at(self.next);
        older.iter().chain(newer)
    }
}

/// Why a timeline could not be written or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimelineError {
    /// The file could not be read or written.
    #[error("{path}: {error}; check the folder, its permissions and the room on the disk")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The file is not a trace of ours.
    #[error("{path} is not a timeline: {why}; give the files that the ranks wrote")]
    NotATimeline {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Two files are of the same rank.
    #[error("{first} and {second} are both of rank {rank}; give one file a rank")]
    SameRank {
        /// The rank.
        rank: u64,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

impl TimelineError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }
}

/// One rank's timeline: a lane for its calling threads, and the names that make a trace readable.
///
/// ```
/// use shouter::observe::Timeline;
/// use shouter::runtime::Clock;
///
/// let timeline = Timeline::new(2, "host-b", 1 << 10);
/// let begin = Clock.now();
/// timeline.record("allreduce", begin, Clock.now(), 0, 4096);
/// let json = timeline.to_json(&[]);
/// assert!(json.contains("rank 2 (host host-b)"));
/// ```
#[derive(Debug)]
pub struct Timeline {
    rank: u32,
    host: String,
    calls: Mutex<Lane>,
    tensors: Mutex<BTreeMap<u32, String>>,
}

impl Timeline {
    /// For `rank` on `host`, keeping the last `capacity` operations.
    pub fn new(rank: u32, host: impl Into<String>, capacity: usize) -> Self {
        Self {
            rank,
            host: host.into(),
            calls: Mutex::new(Lane::new("calls", capacity)),
            tensors: Mutex::new(BTreeMap::new()),
        }
    }

    /// Keeps an operation from `begin` to `end`. Any thread may record; the lock is contended only if several do at
    /// the same time.
    #[inline]
    pub fn record(&self, name: &'static str, begin: Instant, end: Instant, step: u64, bytes: u64) {
        let duration_ns = end.as_nanos().saturating_sub(begin.as_nanos());
        self.record_event(Event { name, start: begin, duration_ns, step, bytes, ..Event::default() });
    }

    /// Keeps an event with everything that is known of it.
    #[inline]
    pub fn record_event(&self, event: Event) {
        lock(&self.calls).record(event);
    }

    /// Events of the calling threads that were lost to newer ones.
    pub fn overwritten(&self) -> u64 {
        lock(&self.calls).overwritten()
    }

    /// Gives a tensor the name that the trace shows.
    pub fn name_tensor(&self, tensor: u32, name: impl Into<String>) {
        lock(&self.tensors).insert(tensor, name.into());
    }

    /// Writes the trace to `path`.
    ///
    /// # Errors
    ///
    /// [`TimelineError::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), TimelineError> {
        self.write_with(path, &[])
    }

    /// As [`Timeline::write`], with the lanes of shards added.
    ///
    /// # Errors
    ///
    /// [`TimelineError::Io`] if the file cannot be written.
    pub fn write_with(&self, path: &Path, lanes: &[&Lane]) -> Result<(), TimelineError> {
        let file = File::create(path).map_err(TimelineError::io(path))?;
        let mut out = BufWriter::new(file);
        serde_json::to_writer(&mut out, &self.trace(lanes))
            .map_err(std::io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush())
            .map_err(TimelineError::io(path))
    }

    /// The trace as text.
    pub fn to_json(&self, lanes: &[&Lane]) -> String {
        // The trace has string keys and finite numbers only, so this cannot fail.
        serde_json::to_string(&self.trace(lanes)).unwrap_or_default()
    }

    fn trace(&self, lanes: &[&Lane]) -> Trace {
        let calls = lock(&self.calls).clone();
        let tensors = lock(&self.tensors).clone();
        let all: Vec<&Lane> = std::iter::once(&calls).chain(lanes.iter().copied()).collect();
        let mut lines = vec![
            Line::meta(
                "process_name",
                self.rank,
                0,
                Args::name(format!("rank {} (host {})", self.rank, self.host)),
            ),
            Line::meta("process_sort_index", self.rank, 0, Args::sort_index(u64::from(self.rank))),
        ];
        let mut overwritten = 0;
        for (index, lane) in all.into_iter().enumerate() {
            overwritten += lane.overwritten;
            self.add_lane(&mut lines, lane, index as u64 * ROWS_PER_LANE, &tensors);
        }
        let other =
            OtherData { rank: self.rank, host: self.host.clone(), overwritten, clock: "CLOCK_MONOTONIC" };
        Trace { lines, other }
    }

    /// Adds a lane's events by time, spread over as many rows as overlap: the viewer shows events of one row as
    /// nested calls, which operations that overlap are not.
    fn add_lane(&self, lines: &mut Vec<Line>, lane: &Lane, first_row: u64, tensors: &BTreeMap<u32, String>) {
        let mut events: Vec<&Event> = lane.events().collect();
        events.sort_by_key(|event| event.start);
        let mut ends: Vec<u64> = Vec::new();
        for event in events {
            let start = event.start.as_nanos();
            let row = ends.iter().position(|end| *end <= start).unwrap_or_else(|| {
                if (ends.len() as u64) < ROWS_PER_LANE {
                    ends.push(0);
                }
                ends.len() - 1
            });
            ends[row] = start.saturating_add(event.duration_ns);
            lines.push(Line::event(event, self.rank, first_row + row as u64, tensors));
        }
        for row in 0..ends.len() as u64 {
            let tid = first_row + row;
            let name = if row == 0 { lane.name.clone() } else { format!("{} (overlap {row})", lane.name) };
            lines.push(Line::meta("thread_name", self.rank, tid, Args::name(name)));
            lines.push(Line::meta("thread_sort_index", self.rank, tid, Args::sort_index(tid)));
        }
    }
}

struct Trace {
    lines: Vec<Line>,
    other: OtherData,
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        struct Lines<'a>(&'a [Line]);
        impl Serialize for Lines<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut sequence = serializer.serialize_seq(Some(self.0.len()))?;
                for line in self.0 {
                    sequence.serialize_element(line)?;
                }
                sequence.end()
            }
        }
        let mut object = serializer.serialize_struct("Trace", 3)?;
        object.serialize_field("displayTimeUnit", "ns")?;
        object.serialize_field("otherData", &self.other)?;
        object.serialize_field("traceEvents", &Lines(&self.lines))?;
        object.end()
    }
}

#[derive(Serialize)]
struct OtherData {
    rank: u32,
    host: String,
    overwritten: u64,
    clock: &'static str,
}

/// One entry of `traceEvents`.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    ph: &'static str,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<Category>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: Args,
}

#[derive(Default, Serialize)]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl Args {
    fn name(name: String) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    fn sort_index(index: u64) -> Self {
        Self { sort_index: Some(index), ..Self::default() }
    }
}

impl Line {
    fn meta(name: &'static str, pid: u32, tid: u64, args: Args) -> Self {
        Self { name, ph: "M", pid, tid, cat: None, ts: None, dur: None, args }
    }

    fn event(event: &Event, pid: u32, tid: u64, tensors: &BTreeMap<u32, String>) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let tensor =
            event.tensor.map(|id| tensors.get(&id).cloned().unwrap_or_else(|| format!("tensor {id}")));
        let args = Args { tensor, step: Some(event.step), bytes: Some(event.bytes), ..Args::default() };
        Self {
            name: event.name,
            ph: "X",
            pid,
            tid,
            cat: Some(event.category),
            ts: Some(micros(event.start.as_nanos())),
            dur: Some(micros(event.duration_ns)),
            args,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
