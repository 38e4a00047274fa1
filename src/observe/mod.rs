//! What a rank did, for people: a timeline, and a flight recorder.
//!
//! * A [`Timeline`] answers *when*: where one is asked for, it keeps what each operation spends its time on in a preallocated ring.
//! * The flight recorder answers *what was going on* when a group has failed: it always keeps the last events of each shard
//!   ([`Recorder`](shouter_reducer::recorder::Recorder)).
//! * Counters ([`MetricsTarget`]) answer *how much*, for Prometheus.
//!
//! Timelines and dumps of the flight recorder are files of one format, which <https://ui.perfetto.dev> opens; [`merge()`] makes one of those
//! of several ranks, and [`explain()`] says from the dumps of a job's ranks who was late or at fault. Nothing formats or makes a system call until it is asked to write.

mod explain;
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
pub use timeline::{Category, Row, Timeline, TimelineError, TraceEvent};
