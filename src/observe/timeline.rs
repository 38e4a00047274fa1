//! When: the last events of a rank, as a trace for <https://ui.perfetto.dev>.
//!
//! ```text
//!   Timeline (a rank)      one process in the viewer, "rank 2 (host b)"
//!     "calls"              rows of that process: operations as their caller sees them
//!     "engine"             more rows: what they are made of, and what went wrong on the wire
//! ```
//!
//! | row | event | is |
//! |---|---|---|
//! | calls | `all-reduce` | from the call, or the push, to the end of the wait |
//! | engine | `wait for credit` | a message could go, but its receiver had not asked for it yet |
//! | engine | `send` | from a message's first fragment to the acknowledgement of its last |
//! | engine | `receive` | from a message's first fragment to its last |
//! | engine | `fold` | time in a reduction kernel; of a message that is reduced as it comes, one piece that ends with it |
//! | engine | `copy` | to a lane of the host or from it |
//! | engine | `resend`, `lost` | at this moment, `count` datagrams or segments were sent again, or declared lost |
//! | engine | `damaged` | at this moment, `count` datagrams had come with a wrong checksum |
//! | engine | `peer lost` | at this moment, a leader was given up |
//!
//! Each lane is a ring allocated when it is made; when full, the oldest event goes and is counted. Times are those of
//! [`Clock`](crate::runtime::Clock), which all processes of a host share, so their files line up as they are; files of several
//! hosts are lined up by the moment at which the ranks had joined.
//!
//! The format is Chrome's "Trace Event Format" (JSON object form): complete events (`ph: X`) and instants (`ph: i`) with
//! microseconds.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use shouter_netstack::time::Instant;

/// Names the kernel's present boot: processes that read the same have one CLOCK_MONOTONIC.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Rows that one lane may take in the viewer.
const ROWS_PER_LANE: u64 = 1000;

/// What an event is about; the viewer can filter by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// An operation as its caller sees it.
    #[default]
    Operation,
    /// Time in a reduction kernel, or in a copy within the host.
    Kernel,
    /// Messages, and what became of them.
    Network,
}

/// Something that took time, or happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// What it was: `all-reduce`, `resend`...
    pub name: &'static str,
    /// What it is about.
    pub category: Category,
    /// When it began.
    pub start: Instant,
    /// How long it took, in nanoseconds; `None` for what has no length.
    pub duration_ns: Option<u64>,
    /// The tensor's name, if it was for one.
    pub tensor: Option<Arc<str>>,
    /// The trainer's step.
    pub step: u64,
    /// The other rank, if it was with one.
    pub peer: Option<u32>,
    /// Bytes moved or reduced.
    pub bytes: Option<u64>,
    /// How many there were of it.
    pub count: Option<u64>,
}

/// A bounded ring of events.
#[derive(Clone, Debug)]
struct Lane {
    name: &'static str,
    capacity: usize,
    events: Vec<Event>,
    /// Where the next event goes once the ring is full.
    next: usize,
    overwritten: u64,
}

impl Lane {
    /// A lane for `capacity` events (120 bytes each), allocated now.
    fn new(name: &'static str, capacity: usize) -> Self {
        Self { name, capacity, events: Vec::with_capacity(capacity), next: 0, overwritten: 0 }
    }

    /// Keeps an event; the oldest goes if the ring is full.
    fn record(&mut self, event: Event) {
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

/// One rank's timeline.
///
/// ```
/// use shouter::observe::{Event, Timeline};
/// use shouter::runtime::Clock;
///
/// let timeline = Timeline::new(2, "host-b", 1 << 10);
/// timeline.call(Event { name: "all-reduce", start: Clock.now(), duration_ns: Some(1_500), ..Event::default() });
/// let json = timeline.to_json();
/// assert!(json.contains("rank 2 (host host-b)"));
/// ```
#[derive(Debug)]
pub struct Timeline {
    rank: u32,
    host: String,
    joined: OnceLock<Instant>,
    calls: Mutex<Lane>,
    engine: Mutex<Lane>,
}

impl Timeline {
    /// For `rank` on `host`, keeping the last `capacity` operations, and as many of the engine's events.
    pub fn new(rank: u32, host: impl Into<String>, capacity: usize) -> Self {
        let lane = |name| Mutex::new(Lane::new(name, capacity));
        Self {
            rank,
            host: host.into(),
            joined: OnceLock::new(),
            calls: lane("calls"),
            engine: lane("engine"),
        }
    }

    /// All ranks have met now: the moment by which files of different hosts are lined up. The first call counts.
    pub fn joined(&self, now: Instant) {
        let _ = self.joined.set(now);
    }

    /// Keeps what a caller did. Any thread may record; the lock is contended only if several do at the same time.
    pub fn call(&self, event: Event) {
        lock(&self.calls).record(event);
    }

    /// Keeps what the engine did.
    pub fn engine(&self, event: Event) {
        lock(&self.engine).record(event);
    }

    /// Writes the trace to `path`.
    ///
    /// # Errors
    ///
    /// [`TimelineError::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), TimelineError> {
        let file = File::create(path).map_err(TimelineError::io(path))?;
        let mut out = BufWriter::new(file);
        serde_json::to_writer(&mut out, &self.trace())
            .map_err(std::io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush())
            .map_err(TimelineError::io(path))
    }

    /// The trace as text.
    pub fn to_json(&self) -> String {
        // The trace has string keys and finite numbers only, so this cannot fail.
        serde_json::to_string(&self.trace()).unwrap_or_default()
    }

    fn trace(&self) -> Trace {
        let lanes = [lock(&self.calls).clone(), lock(&self.engine).clone()];
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
        for (index, lane) in (0..).zip(&lanes) {
            overwritten += lane.overwritten;
            self.add_lane(&mut lines, lane, index * ROWS_PER_LANE);
        }
        let other = OtherData {
            rank: self.rank,
            host: self.host.clone(),
            overwritten,
            clock: std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned(),
            joined_ns: self.joined.get().map(|joined| joined.as_nanos()),
        };
        Trace { lines, other }
    }

    /// Adds a lane's events by time, spread over as many rows as overlap: the viewer shows events of one row as
    /// nested calls, which operations that overlap are not.
    fn add_lane(&self, lines: &mut Vec<Line>, lane: &Lane, first_row: u64) {
        let mut events: Vec<&Event> = lane.events.iter().collect();
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
            ends[row] = start.saturating_add(event.duration_ns.unwrap_or(0));
            lines.push(Line::event(event, self.rank, first_row + row as u64));
        }
        for row in 0..ends.len() as u64 {
            let tid = first_row + row;
            let name = if row == 0 { lane.name.into() } else { format!("{} (overlap {row})", lane.name) };
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
    /// Whose clock the times are of: the boot of a host.
    clock: String,
    /// When all ranks had met, by that clock.
    joined_ns: Option<u64>,
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
    /// How wide an instant is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
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
    peer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
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
        Self { name, ph: "M", pid, tid, cat: None, ts: None, dur: None, s: None, args }
    }

    fn event(event: &Event, pid: u32, tid: u64) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let args = Args {
            tensor: event.tensor.as_deref().map(str::to_owned),
            step: Some(event.step),
            peer: event.peer,
            bytes: event.bytes,
            count: event.count,
            ..Args::default()
        };
        let instant = event.duration_ns.is_none();
        Self {
            name: event.name,
            ph: if instant { "i" } else { "X" },
            pid,
            tid,
            cat: Some(event.category),
            ts: Some(micros(event.start.as_nanos())),
            dur: event.duration_ns.map(micros),
            s: instant.then_some("t"),
            args,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
