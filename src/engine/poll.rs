//! A whole poll of an engine: each part does what it can without waiting, and says when it has to be polled again.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::transport::Accelerator;

use super::{Engine, executor_time, liveness};
use crate::runtime::{Activity, Announce, Poller, Wakes};

/// The kinds of work that post to the channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Posting {
    /// Operations of the group of all ranks.
    #[default]
    Operations,
    /// Messages and windows of that group.
    Pairwise,
    /// Groups of some ranks.
    Groups,
}

impl Posting {
    #[inline]
    fn next(self) -> Self {
        match self {
            Self::Operations => Self::Pairwise,
            Self::Pairwise => Self::Groups,
            Self::Groups => Self::Operations,
        }
    }
}

impl Engine {
    /// Runs the operations that are under way; whether there was anything to do.
    #[inline]
    fn run_operations(&mut self, time: Duration) -> bool {
        // Nothing is begun in GPU memory of ranks that have given up, as this process may have been stopped meanwhile, and no operation
        // that has become late meanwhile names another culprit than they have. Other operations end when liveness looks, which
        // leaves time to see what the others run.
        if let Some(ended) = self.node.as_ref().and_then(|node| Some(liveness::ended(node, node.abort()?)))
            && (self.executor.next_deadline().is_some_and(|deadline| deadline <= time)
                || self.operations.has_exported())
        {
            self.follow(ended);
        }
        let Self { executor, up, node, staging, .. } = self;
        let (node, mut solo, mut accelerator) = (node.as_deref(), None, None);
        if let Some(staging) = staging {
            solo = staging.solo.as_ref();
            accelerator = Some(&mut *staging.accelerator as &mut dyn Accelerator);
        }
        let polled = match solo {
            Some(solo) => executor.poll(time, up, Some(solo), accelerator),
            None => executor.poll(time, up, node, accelerator),
        };
        polled.worked
    }

    /// Runs what posts to the channels; whether there was anything to do. The first kind finds the room that a channel has, and one that never ends
    /// must not keep it from the others: the kind behind the first that could do something begins the next poll.
    #[inline]
    fn run_in_turn(&mut self, now: Instant) -> bool {
        let (first, mut kind, mut busy) = (self.first, self.first, false);
        loop {
            let worked = match kind {
                Posting::Operations => {
                    self.operations.is_running() && self.run_operations(executor_time(now))
                }
                Posting::Pairwise => self.pairwise.poll(executor_time(now), &mut self.up),
                Posting::Groups => self.groups.poll(now, &mut self.up),
            };
            kind = kind.next();
            if worked && !busy {
                self.first = kind;
            }
            busy |= worked;
            if kind == first {
                return busy;
            }
        }
    }

    /// Starts submitted operations, as far as there is room.
    #[inline]
    fn admit(&mut self, now: Instant) {
        self.operations.admit(now, &mut self.executor, self.node.as_deref());
    }

    /// Reports the ends of submitted operations and of messages, once outcomes are not held back.
    #[inline]
    fn report(&mut self) -> bool {
        !self.ending.is_settling() && (self.pairwise.messages.report() | self.operations.report())
    }
}

impl Poller for Engine {
    #[inline]
    fn poll(&mut self, now: Instant) -> Activity {
        let mut busy = false;
        self.look_back(now);
        self.follow_siblings();
        if let Some((culprit, why)) = self.losses.take()
            && !self.liveness.departures_expected()
        {
            self.end(culprit, why);
        }
        busy |= self.run_tasks(now);
        self.admit(now);
        busy |= self.operations.take_change();
        let (up, mut inboxes) = self.up_and_inboxes();
        busy |= up.receive(now, &mut inboxes);
        if self.groups.has_departures() {
            self.take_departures();
        }
        while let Some(loss) = self.up.take_lost() {
            busy |= self.on_loss(now, loss);
        }
        if self.losses.inquiry.is_some() {
            busy |= self.conclude(now);
        }
        busy |= self.run_in_turn(now);
        if self.contacts.is_due(now) {
            self.make_contact(now);
        }
        let (up, mut inboxes) = self.up_and_inboxes();
        busy |= up.transmit(now, &mut inboxes);
        let departing = self.liveness.departures_expected()
            || !self.departures.is_empty()
            || self.executor.aborted().is_some();
        self.watch.look(now, &self.up, &mut self.executor, departing);
        busy |= self.operations.gather(&mut self.executor);
        if let Some(node) = &self.node
            && let Some((culprit, why)) = self.liveness.check(now, node)
        {
            self.end(culprit, why);
        }
        if let Some(rank) = self.executor.given_up() {
            self.await_abort_text(now, rank);
        }
        if self.operations.is_compare_due(now) {
            self.executor.compare(self.node.as_deref());
        }
        if !self.departures.is_empty() {
            self.end_operations_of_departed();
            self.end_requests_of_departed(now);
        }
        if let Some(seq) = self.liveness.dispute() {
            self.executor.diverge(seq, self.rank);
        }
        if self.executor.diverged().is_some() && self.executor.aborted().is_none() {
            let Self { ending, executor, node, up, departures, .. } = self;
            let is_connecting = up.is_connecting_to(&|rank| !departures.has_left(rank));
            ending.deliberate(now, executor, node.as_deref(), is_connecting, |vote| up.broadcast(vote));
        }
        if let Some(cause) = self.ending.take_cause(&self.executor) {
            self.flood_abort(now, &cause);
            busy = true;
        }
        if self.ending.is_settling() {
            // The channels were fenced.
            let (is_memory_free, are_notified) = (true, self.abort_is_acknowledged());
            let Self { ending, executor, up, departures, .. } = self;
            let culprit = executor.aborted().map(|cause| cause.culprit);
            let is_awaited = |rank| !departures.has_left(rank) && culprit != Some(rank);
            busy |= ending.settle(now, is_memory_free, are_notified, || up.is_connecting_to(&is_awaited));
        }
        busy |= self.report();
        let asks = self.executor.waits_for_accelerator() || self.tasks.ask();
        self.times.end(now, busy, asks, !self.up.is_empty());
        Activity::from_busy(busy)
    }

    #[inline]
    fn poll_again(&mut self, now: Instant) -> Activity {
        match self.glance(now) {
            Some(activity) => activity,
            None => self.poll(now),
        }
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let wakes = self.up.arm(announce);
        // Nothing announces what ranks of the host write to the memory that they share.
        if self.node.is_some() { wakes.with_polling() } else { wakes }
    }

    fn disarm(&mut self) {
        self.up.disarm();
    }

    fn is_at_rest(&self) -> bool {
        self.is_idle() && self.groups.are_idle()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let since_start = |deadline| Instant::ZERO + deadline;
        [
            self.executor.next_deadline().map(since_start),
            self.pairwise.next_deadline().map(since_start),
            self.up.next_deadline(),
            self.node.as_ref().map(|_| self.liveness.next_check()),
            self.operations.next_deadline(),
            self.groups.next_deadline(),
            self.contacts.next_look().filter(|_| self.pairwise.has_unended()),
            self.ending.next_deadline(),
            self.losses.next_deadline(self.times.polled_at(), self.ending.is_flooded()),
            self.times.ask_at(),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
