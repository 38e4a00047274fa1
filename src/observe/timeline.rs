//! Timelines: the last events of a rank, as a trace for <https://ui.perfetto.dev>.
//!
//! ```text
//!   Timeline (a rank)      one process in the viewer, "rank 2 (host b)"
//!     "calls"              tracks of that process: operations as their caller sees them
//!     "queue", "wire", "fold", "wait"    more tracks: what they spend their time on, named after their tensors
//!     "engine"             what they are made of besides, and what went wrong on the wire
//! ```
//!
//! | track | event | is |
//! |---|---|---|
//! | calls | `all-reduce` | from the call, or the push, to the operation's end; `why` it has failed, if it has |
//! | queue | the tensor | from the call, or the push, until something was done for it, or there was nothing to do before others came |
//! | wire | the tensor | from the first fragment that went between hosts to the last that was received |
//! | fold | the tensor | time in a reduction kernel; of a message that is reduced as it comes, one piece that ends with it |
//! | wait | the tensor | a caller was blocked, in the call or in a wait for it |
//! | engine | `wait for credit` | a message could go, but its receiver had not asked for it yet |
//! | engine | `send` | from a message's first fragment to the acknowledgement of its last |
//! | engine | `receive` | from a message's first fragment to its last |
//! | engine | `copy` | to a lane of the host or from it |
//! | engine | `resend`, `lost` | at this moment, `count` datagrams or segments were sent again, or declared lost |
//! | engine | `damaged` | at this moment, `count` datagrams had come with a wrong checksum or seal |
//! | engine | `peer lost` | at this moment, a leader was given up |
//!
//! An event with neither a tensor's name nor a label is named after its collective. A track without an event is not in
//! the file.
//!
//! Each track is a ring allocated when it is made; when full, the oldest event goes and is counted. Times are those of
//! [`Clock`](crate::runtime::Clock), which all processes of a host share, so their files line up as they are; files of several
//! hosts are lined up by the moment at which the ranks had joined.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::files;
use super::perfetto::{self, Args, Category, Trace, TraceLine};
use crate::runtime::lock;
use crate::whole;
use shouter_netstack::time::Instant;

/// The name of operations outside the table that have no label.
pub(crate) const UNNAMED: &str = "ad hoc";

/// Waits for one operation that follow each other so soon are one.
const SLICES: Duration = Duration::from_millis(10);

/// The tracks of a rank, as they lie one above the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Operations as their callers see them.
    Calls,
    /// Tensors that wait for their start.
    Queue,
    /// Tensors on the way between hosts.
    Wire,
    /// Tensors in reduction kernels.
    Fold,
    /// Tensors for which callers are blocked.
    Wait,
    /// Messages, copies, and faults on the wire.
    Engine,
}

impl Row {
    /// All of them.
    const ALL: [Self; 6] = [Self::Calls, Self::Queue, Self::Wire, Self::Fold, Self::Wait, Self::Engine];

    fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Queue => "queue",
            Self::Wire => "wire",
            Self::Fold => "fold",
            Self::Wait => "wait",
            Self::Engine => "engine",
        }
    }

    /// Whether its events are called by their tensors: they are all of one kind.
    fn is_of_one_kind(self) -> bool {
        !matches!(self, Self::Calls | Self::Engine)
    }
}

/// Something that took time, or happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceEvent {
    /// The event's name: `all-reduce`, `resend`...
    pub name: &'static str,
    /// The event's subject.
    pub category: Category,
    /// When it began.
    pub start: Instant,
    /// How long it took, in nanoseconds; `None` for an event without a length.
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
    /// Why it has failed, if it has.
    pub error: Option<Arc<str>>,
}

/// A bounded ring of events.
#[derive(Clone, Debug)]
struct Track {
    capacity: usize,
    events: VecDeque<TraceEvent>,
    overwritten: u64,
    /// The last event is of a wait for the operation that began then, which had not ended when the wait had.
    open: Option<Instant>,
}

impl Track {
    /// A track for `capacity` events, allocated now.
    fn new(capacity: usize) -> Self {
        Self { capacity, events: VecDeque::with_capacity(capacity), overwritten: 0, open: None }
    }

    /// The last wait, if its operation had not ended: when that began, when the wait ended, and the event.
    fn last(&mut self) -> Option<(Instant, Instant, &mut TraceEvent)> {
        let began = self.open?;
        let last = self.events.back_mut()?;
        Some((began, last.start + Duration::from_nanos(last.duration_ns.unwrap_or(0)), last))
    }

    /// Keeps an event; the oldest goes if the ring is full.
    fn record(&mut self, event: TraceEvent) {
        if self.events.len() == self.capacity {
            if self.events.pop_front().is_none() {
                return;
            }
            self.overwritten += 1;
        }
        self.events.push_back(event);
    }
}

/// Why a timeline could not be written or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimelineError {
    /// The file could not be read or written.
    #[error("{path}: {error}; check the folder, its permissions and the room on the disk")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The file to write is there.
    #[error(
        "{path} is there already, and is not overwritten; name a new file in front of those of the ranks"
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a trace of ours.
    #[error("{path} is not a timeline: {why}; give the files that the ranks wrote")]
    NotATimeline {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Two files are of the same rank.
    #[error(
        "{first} and {second} are both of rank {rank}; give one file a rank: those of one run, as from a folder of its own"
    )]
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
/// use shouter::observe::{Row, TraceEvent, Timeline};
/// use shouter::runtime::Clock;
///
/// let timeline = Timeline::new(2, "host-b", 1 << 10);
/// let event = TraceEvent { name: "all-reduce", start: Clock.now(), duration_ns: Some(1_500), ..TraceEvent::default() };
/// timeline.record(Row::Calls, event);
/// let path = std::env::temp_dir().join(format!("shouter-timeline-{}.json", std::process::id()));
/// timeline.write(&path)?;
/// assert!(std::fs::read_to_string(&path)?.contains("rank 2 (host host-b)"));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Timeline {
    rank: u32,
    host: String,
    joined: OnceLock<Instant>,
    /// In the order of [`Row::ALL`].
    tracks: [Mutex<Track>; Row::ALL.len()],
}

impl Timeline {
    /// For `rank` on `host`, keeping the last `capacity` events of each track.
    pub fn new(rank: u32, host: impl Into<String>, capacity: usize) -> Self {
        let tracks = Row::ALL.map(|_| Mutex::new(Track::new(capacity)));
        Self { rank, host: host.into(), joined: OnceLock::new(), tracks }
    }

    /// All ranks have met now: the moment by which files of different hosts are lined up. The first call counts.
    pub fn joined(&self, now: Instant) {
        let _ = self.joined.set(now);
    }

    /// Keeps an event. Any thread may record; the lock is contended only if several do at the same time.
    pub fn record(&self, row: Row, event: TraceEvent) {
        lock(&self.tracks[row as usize]).record(event);
    }

    /// Keeps a wait for the operation that began then, and is over or not. The next wait for it goes on where this one
    /// ended, if it comes soon: a caller that looks for signals waits in slices.
    pub fn blocked(&self, began: Instant, is_over: bool, event: TraceEvent) {
        let mut track = lock(&self.tracks[Row::Wait as usize]);
        let end = event.start + Duration::from_nanos(event.duration_ns.unwrap_or(0));
        match track.last().filter(|(of, last_end, _)| *of == began && event.start <= *last_end + SLICES) {
            Some((_, _, last)) => last.duration_ns = Some((end - last.start).as_nanos() as u64),
            None => track.record(event),
        }
        track.open = (!is_over).then_some(began);
    }

    /// Writes the trace to `path`. A file there is replaced, a device or a pipe is written to.
    ///
    /// # Errors
    ///
    /// [`TimelineError::Io`] if it cannot be written whole: then a file that was there is as before.
    pub fn write(&self, path: &Path) -> Result<(), TimelineError> {
        let trace = self.trace();
        let written = if path.exists() && !path.is_file() {
            OpenOptions::new().write(true).open(path).and_then(|open| perfetto::write(open, &trace))
        } else {
            whole::replace(path, 0o666, |file| perfetto::write(file, &trace))
        };
        written.map_err(TimelineError::io(path))
    }

    fn trace(&self) -> Trace {
        let mut trace = Trace::new(self.rank, &self.host, self.joined.get().copied(), None);
        for (row, track) in Row::ALL.into_iter().zip(&self.tracks) {
            let track = lock(track).clone();
            trace.add(
                row.name(),
                track.events.iter().map(|event| line(row, event)).collect(),
                track.overwritten,
            );
        }
        trace
    }
}

/// The file to which a rank's timeline goes when its process leaves the job.
#[derive(Debug)]
pub(crate) struct TimelineFile {
    timeline: Arc<Timeline>,
    folder: PathBuf,
    job: String,
}

impl TimelineFile {
    /// Makes the folder where it is missing. One that cannot be made is a line in the log.
    pub(crate) fn new(timeline: Arc<Timeline>, folder: &Path, job: &str) -> Self {
        // The program may go to another folder meanwhile.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        if let Err(why) = std::fs::create_dir_all(&folder) {
            tracing::warn!(?folder, %why, "the folder of the key timeline cannot be made; no timeline will be written to it");
        }
        Self { timeline, folder, job: job.to_owned() }
    }

    /// Writes the timeline to a new file. One that cannot be written is a line in the log.
    pub(crate) fn write(&self) {
        let Self { timeline, folder, job } = self;
        match files::write_new(folder, ("timeline", job, timeline.rank), &timeline.trace()) {
            Ok(path) => tracing::info!(?path, "the timeline was written"),
            Err(why) => tracing::warn!(%why, "the timeline of this rank could not be written"),
        }
    }
}

fn line(row: Row, event: &TraceEvent) -> TraceLine {
    let args = Args {
        tensor: event.tensor.as_deref().map(str::to_owned),
        step: Some(event.step),
        peer: event.peer,
        bytes: event.bytes,
        count: event.count,
        why: event.error.as_deref().map(str::to_owned),
        ..Args::default()
    };
    let tensor = args.tensor.clone().filter(|tensor| row.is_of_one_kind() && tensor != UNNAMED);
    let name = tensor.map_or(Cow::Borrowed(event.name), Cow::Owned);
    TraceLine::new(name, event.start, event.duration_ns, args).of(event.category)
}

#[cfg(test)]
mod tests;
