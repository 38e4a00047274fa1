//! When: the last events of a rank, as a trace for <https://ui.perfetto.dev>.
//!
//! ```text
//!   Timeline (a rank)      one process in the viewer, "rank 2 (host b)"
//!     "calls"              tracks of that process: operations as their caller sees them
//!     "engine"             more tracks: what they are made of, and what went wrong on the wire
//! ```
//!
//! | track | event | is |
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
//! Each track is a ring allocated when it is made; when full, the oldest event goes and is counted. Times are those of
//! [`Clock`](crate::runtime::Clock), which all processes of a host share, so their files line up as they are; files of several
//! hosts are lined up by the moment at which the ranks had joined.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;

use super::perfetto::{self, Args, Trace, TraceLine};
use shouter_netstack::time::Instant;

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
pub struct TraceEvent {
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
struct Track {
    name: &'static str,
    capacity: usize,
    events: Vec<TraceEvent>,
    /// Where the next event goes once the ring is full.
    next: usize,
    overwritten: u64,
}

impl Track {
    /// A track for `capacity` events (120 bytes each), allocated now.
    fn new(name: &'static str, capacity: usize) -> Self {
        Self { name, capacity, events: Vec::with_capacity(capacity), next: 0, overwritten: 0 }
    }

    /// Keeps an event; the oldest goes if the ring is full.
    fn record(&mut self, event: TraceEvent) {
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
/// use shouter::observe::{TraceEvent, Timeline};
/// use shouter::runtime::Clock;
///
/// let timeline = Timeline::new(2, "host-b", 1 << 10);
/// timeline.call(TraceEvent { name: "all-reduce", start: Clock.now(), duration_ns: Some(1_500), ..TraceEvent::default() });
/// let json = timeline.to_json();
/// assert!(json.contains("rank 2 (host host-b)"));
/// ```
#[derive(Debug)]
pub struct Timeline {
    rank: u32,
    host: String,
    joined: OnceLock<Instant>,
    calls: Mutex<Track>,
    engine: Mutex<Track>,
}

impl Timeline {
    /// For `rank` on `host`, keeping the last `capacity` operations, and as many of the engine's events.
    pub fn new(rank: u32, host: impl Into<String>, capacity: usize) -> Self {
        let track = |name| Mutex::new(Track::new(name, capacity));
        Self {
            rank,
            host: host.into(),
            joined: OnceLock::new(),
            calls: track("calls"),
            engine: track("engine"),
        }
    }

    /// All ranks have met now: the moment by which files of different hosts are lined up. The first call counts.
    pub fn joined(&self, now: Instant) {
        let _ = self.joined.set(now);
    }

    /// Keeps what a caller did. Any thread may record; the lock is contended only if several do at the same time.
    pub fn call(&self, event: TraceEvent) {
        lock(&self.calls).record(event);
    }

    /// Keeps what the engine did.
    pub fn engine(&self, event: TraceEvent) {
        lock(&self.engine).record(event);
    }

    /// Writes the trace to `path`.
    ///
    /// # Errors
    ///
    /// [`TimelineError::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), TimelineError> {
        let file = File::create(path).map_err(TimelineError::io(path))?;
        perfetto::write(file, &self.trace()).map_err(TimelineError::io(path))
    }

    /// The trace as text.
    pub fn to_json(&self) -> String {
        // The trace has string keys and finite numbers only, so this cannot fail.
        serde_json::to_string(&self.trace()).unwrap_or_default()
    }

    fn trace(&self) -> Trace {
        let mut trace = Trace::new(self.rank, &self.host, self.joined.get().copied(), None);
        for track in [&self.calls, &self.engine] {
            let track = lock(track).clone();
            trace.add(track.name, track.events.iter().map(line).collect(), track.overwritten);
        }
        trace
    }
}

fn line(event: &TraceEvent) -> TraceLine {
    let args = Args {
        tensor: event.tensor.as_deref().map(str::to_owned),
        step: Some(event.step),
        peer: event.peer,
        bytes: event.bytes,
        count: event.count,
        ..Args::default()
    };
    TraceLine::new(event.name, event.start, event.duration_ns, args).of(event.category)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
