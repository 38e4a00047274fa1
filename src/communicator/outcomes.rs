//! The ends of operations, for their readers: errors with the tensors' names, counts, the timeline. It outlives the
//! group for the sake of handles that do.

use std::sync::{Arc, Weak};
use std::time::Duration;

use shouter_reducer::grid::Rank;

use super::drive::{RankEngine, drive_error};
use super::notify::Notifier;
use super::stats::Tally;
use super::table::Tables;
use crate::channel::shm::NodeSegment;
use crate::engine::groups::GroupId;
use crate::engine::members::Members;
use crate::error::Error;
use crate::observe::flight::Flight;
use crate::observe::{Row, Timeline, TraceEvent};
use crate::runtime::{AwaitedEnds, Clock, DriveError, Driver, Instant, fork_generation};

/// The part of a group that its handles use.
pub(super) struct Outcomes {
    pub(super) rank: Rank,
    /// The group in the engine, and its members; `None` for the group of all.
    pub(super) group: Option<GroupId>,
    pub(super) members: Option<Arc<Members>>,
    pub(super) deadline: Duration,
    pub(super) tables: Arc<Tables>,
    pub(super) tally: Tally,
    pub(super) timeline: Option<Arc<Timeline>>,
    pub(super) flight: Arc<Flight>,
    pub(super) node: Option<Weak<NodeSegment>>,
    pub(super) driver: Weak<Driver<RankEngine>>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) awaited_ends: Arc<AwaitedEnds>,
    /// Tells the process that joined from its forked children.
    pub(super) forks: u32,
}

impl Outcomes {
    /// Refuses a forked child, before it waits for a lock that a thread of its parent's may have held.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        if fork_generation() == self.forks {
            return Ok(());
        }
        Err(drive_error(DriveError::Forked))
    }

    /// The driver of the engine, until the group is dropped.
    pub(super) fn driver(&self) -> Option<Arc<Driver<RankEngine>>> {
        self.driver.upgrade()
    }

    /// Small operations of this rank so far.
    pub(super) fn small_before(&self) -> u64 {
        let node = self.node.as_ref().and_then(Weak::upgrade);
        node.map_or(0, |node| node.small_published())
    }

    /// An operation has brought its result, and goes to these tracks of the timeline.
    #[inline]
    pub(super) fn finished(&self, rows: &[Row], call: &Span<'_>) {
        let end = Clock.now();
        self.tally.finished(call.begin, end, call.bytes);
        self.draw(rows, call, end, None);
    }

    /// An operation has failed.
    #[cold]
    pub(super) fn failed(&self, rows: &[Row], call: &Span<'_>, why: &Error) {
        self.draw(rows, call, Clock.now(), Some(why));
    }

    /// Puts an operation on the timeline, if there is one.
    #[inline]
    pub(super) fn draw(&self, rows: &[Row], call: &Span<'_>, end: Instant, why: Option<&Error>) {
        let Some(timeline) = &self.timeline else { return };
        let error = why.map(|why| why.to_string().into());
        for row in rows {
            timeline.record(*row, TraceEvent { error: error.clone(), ..call.until(end) });
        }
    }
}

/// An operation as the timeline has it.
pub(super) struct Span<'a> {
    /// When it was called or pushed.
    pub(super) begin: Instant,
    /// `all-reduce`...
    pub(super) what: &'static str,
    pub(super) name: &'a Arc<str>,
    pub(super) bytes: usize,
    pub(super) step: u64,
}

impl Span<'_> {
    pub(super) fn until(&self, end: Instant) -> TraceEvent {
        TraceEvent {
            name: self.what,
            start: self.begin,
            duration_ns: Some(end.as_nanos().saturating_sub(self.begin.as_nanos())),
            tensor: Some(self.name.clone()),
            step: self.step,
            bytes: Some(self.bytes as u64),
            ..TraceEvent::default()
        }
    }
}
