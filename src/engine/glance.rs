//! What spares a rank whole polls, each of which looks at everything: while it waits for messages from the ranks of its host, nearly all
//! that it finds comes by the rings that they share.
//!
//! Of the polls of a thread that waits, one that follows a poll which found nothing to do looks at the rings alone, and so does each one
//! after it, until something has come, or until the last whole poll is [`WHOLE_EVERY`] old. What is started is sent without one, if the last
//! is not older than [`POSTED_FOR`]. So nothing depends on a glance: what it does not see, a whole poll sees a microsecond later.

use std::time::Duration;

use shouter_netstack::time::Instant;

use super::groups::GroupId;
use super::{Engine, Inboxes, executor_time};
use crate::runtime::{Activity, Poller};

/// Between two whole polls while a rank waits.
const WHOLE_EVERY: Duration = Duration::from_micros(1);

/// For so long behind a whole poll, what is started is sent without another one.
const POSTED_FOR: Duration = Duration::from_micros(20);

impl Engine {
    /// Looks at the rings alone; `None` where a whole poll is due.
    #[inline]
    pub(super) fn glance(&mut self, now: Instant) -> Option<Activity> {
        if !self.rests || self.running != 0 || now.saturating_since(self.polled_at) >= WHOLE_EVERY {
            return None;
        }
        let mut inboxes =
            Inboxes { executor: &mut self.executor, beside: &mut self.beside, groups: &mut self.groups };
        let any = self.up.receive(now, &mut inboxes);
        if any {
            // The caller may not poll again: what has come is answered, and who is told of an end hears of it.
            if self.beside.has_work() || self.beside.is_running() || !self.groups.is_empty() {
                return Some(self.poll(now).or(Activity::Busy));
            }
            self.last_busy = now;
            self.rests = false;
        }
        Some(Activity::from_busy(any))
    }

    /// After a whole poll: whether only messages of this host bring something to do.
    #[inline]
    pub(super) fn may_rest(&self) -> bool {
        self.up.is_empty() && self.ask_at.is_none()
    }

    /// Sends what was started just now.
    pub(crate) fn post(&mut self, group: Option<GroupId>, now: Instant) {
        if !self.may_rest() || now.saturating_since(self.polled_at) >= POSTED_FOR {
            self.poll(now);
            return;
        }
        match group {
            None => self.beside.messages.post(executor_time(now), &mut self.up),
            Some(id) => self.groups.post(id, now, &mut self.up),
        }
        // What lies in a ring by now need not be kept.
        let mut inboxes =
            Inboxes { executor: &mut self.executor, beside: &mut self.beside, groups: &mut self.groups };
        self.up.transmit(now, &mut inboxes);
        self.rests = !self.beside.has_work();
    }

    /// The time of the last whole poll.
    pub(crate) fn polled_at(&self) -> Instant {
        self.polled_at
    }
}
