//! What a rank did, for people: a log, counters, a timeline, and a flight recorder.
//!
//! * [`Counters`] answer *how much*: frames, bytes, losses, and the latency of operations as a histogram. They are plain
//!   numbers owned by whoever counts; a [`Snapshot`] is taken when somebody asks.
//! * A [`Timeline`] answers *when*: it keeps the last so many events in a preallocated ring and writes them as a trace that
//!   <https://ui.perfetto.dev> opens. Recording costs some nanoseconds when on and a comparison when off.
//! * A [`FlightRecorder`] answers *what was going on* when something failed: the last operations with their states, and
//!   the last notable events, as text or JSON.
//!
//! None of these formats, allocates or makes a system call until it is asked to write. The [`log`] says at once what is worth
//! a line.

mod counters;
mod flight;
pub mod log;
mod merge;
mod timeline;

pub use counters::{Counters, Latency, LatencySummary, OpCounters, Snapshot};
pub use flight::{FlightDump, FlightRecorder, Note, OpState, Operation, Ticket};
pub use merge::{Merged, merge};
pub use timeline::{Category, Event, Timeline, TimelineError};
