//! Glances: polls that look at the rings alone, while a whole poll looks at everything. Nearly all that a rank finds while it waits for
//! messages from the ranks of its host comes by the rings that they share.
//!
//! Of the polls of a thread that waits, one that follows a poll which found nothing to do is a glance, and so is each one after it, until
//! something has come, or until the last whole poll is a microsecond old. A start is sent without a whole poll, if the last one is not older
//! than 20 us. So nothing depends on a glance: a whole poll sees a microsecond later what a glance does not see.

use shouter_netstack::time::Instant;

use super::groups::GroupId;
use super::{Engine, executor_time};
use crate::runtime::{Activity, Poller};

impl Engine {
    /// Looks at the rings alone; `None` where a whole poll is due.
    #[inline]
    pub(super) fn glance(&mut self, now: Instant) -> Option<Activity> {
        let wait_for_lanes = self.operations.is_running() || self.groups.wait_for_lanes();
        if wait_for_lanes || self.times.is_whole_poll_due(now) {
            return None;
        }
        let (up, mut inboxes) = self.up_and_inboxes();
        let any = up.receive(now, &mut inboxes);
        if any {
            // The caller may not poll again: messages that have come are answered, and callbacks that are due are called.
            if self.pairwise.has_work() || self.pairwise.is_running() || self.groups.have_work() {
                return Some(self.poll(now).or(Activity::Busy));
            }
            self.times.found(now);
        }
        Some(Activity::from_busy(any))
    }

    /// Sends the messages of operations that were started just now.
    pub(crate) fn post(&mut self, group: Option<GroupId>, now: Instant) {
        if !self.up.is_empty() || self.times.is_poll_due_to_post(now) {
            self.poll(now);
            return;
        }
        match group {
            None => self.pairwise.messages.post(executor_time(now), &mut self.up),
            Some(id) => self.groups.post(id, now, &mut self.up),
        }
        // Messages that lie in a ring by now need not be kept.
        let (up, mut inboxes) = self.up_and_inboxes();
        up.transmit(now, &mut inboxes);
        self.times.posted(!self.pairwise.has_work());
    }

    /// The time of the last whole poll.
    pub(crate) fn polled_at(&self) -> Instant {
        self.times.polled_at()
    }
}
