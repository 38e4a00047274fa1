//! A rank's record of its work, for people: a timeline, a flight recorder, and counters.
//!
//! * A [`Timeline`] answers *when*: where configured, it keeps the times of each operation's parts in a preallocated
//!   ring.
//! * The flight recorder answers *what was going on* when a group has failed: it always keeps the last events of each
//!   shard ([`Recorder`](shouter_reducer::recorder::Recorder)).
//! * Counters ([`MetricsTarget`]) answer *how much*, for Prometheus.
//!
//! Timelines and dumps of the flight recorder are files of one format, which <https://ui.perfetto.dev> opens.
//! [`merge()`] makes one file of those of several ranks; [`explain()`] finds in the dumps of a job's ranks which was
//! late or at fault. Nothing formats or makes a system call until a file is to be written.

mod explain;
mod files;
pub(crate) mod flight;
mod merge;
pub(crate) mod metrics;
mod perfetto;
mod read;
pub(crate) mod signal;
mod timeline;

pub use explain::{Explanation, OpenOperation, RankState, explain};
pub use merge::{Merged, merge};
pub use metrics::MetricsTarget;
pub use perfetto::Category;
pub use timeline::{Row, Timeline, TimelineError, TraceEvent};
pub(crate) use timeline::{TimelineFile, UNNAMED};
