//! Requests to the state machines of messages and windows: the engine polls a machine, keeps the outcomes of its requests until they are
//! taken, and finds requests that wait for a rank that has left.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::machine::{Ended, Machine};
use shouter_reducer::transport::{SendToken, Transport};

/// Messages of a rank that has left in good order arrive within this time.
pub(super) const ARRIVES: Duration = Duration::from_secs(1);

/// The callback for the end of a request. It gets `None` where the request was dropped: nothing refers to its memory then.
pub(super) struct Callback<O>(Option<Box<dyn FnOnce(Option<O>) + Send>>);

impl<O> Callback<O> {
    /// Has `callback` called once, by the thread that drives the engine: it must be quick.
    pub(super) fn new(callback: impl FnOnce(Option<O>) + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }

    fn call(mut self, outcome: O) {
        if let Some(callback) = self.0.take() {
            callback(Some(outcome));
        }
    }
}

impl<O> Drop for Callback<O> {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback(None);
        }
    }
}

/// A state machine of a group, and the outcomes of its requests that are not taken yet.
pub(super) struct Requests<M: Machine> {
    pub(super) machine: M,
    outcomes: BTreeMap<M::Id, M::Outcome>,
    /// The callbacks of requests whose outcomes are not taken.
    callbacks: BTreeMap<M::Id, Callback<M::Outcome>>,
    /// Callbacks to be called, with their outcomes.
    due: VecDeque<(Callback<M::Outcome>, M::Outcome)>,
    /// The ranks that have left, each with the time from which nothing of it is on its way any more.
    left: Vec<(Rank, Option<Instant>)>,
}

impl<M: Machine> Requests<M> {
    /// The requests to a machine, which has none yet.
    pub(super) fn new(machine: M) -> Self {
        let (outcomes, callbacks, due) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { machine, outcomes, callbacks, due, left: vec![] }
    }

    #[inline]
    pub(super) fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.machine.on_message(header, payload)
    }

    #[inline]
    pub(super) fn on_released(&mut self, token: SendToken) {
        self.machine.on_released(token);
    }

    /// Posts messages that find room, and notes ends; whether there was anything.
    #[inline]
    pub(super) fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        let is_due = self.machine.next_deadline().is_some_and(|deadline| deadline <= now);
        let mut busy = false;
        if is_due || self.machine.has_work() {
            busy = self.machine.poll(now, transport).worked;
        }
        busy | self.gather()
    }

    /// Posts messages that find room.
    #[inline]
    pub(super) fn post(&mut self, now: Duration, transport: &mut impl Transport) {
        if self.machine.has_work() {
            self.machine.poll(now, transport);
        }
    }

    #[inline]
    fn gather(&mut self) -> bool {
        let mut any = false;
        while let Some(Ended { id, result }) = self.machine.take_ended() {
            self.keep(id, result);
            any = true;
        }
        any
    }

    fn keep(&mut self, id: M::Id, outcome: M::Outcome) {
        match self.callbacks.remove(&id) {
            Some(callback) => self.due.push_back((callback, outcome)),
            None => drop(self.outcomes.insert(id, outcome)),
        }
    }

    /// The outcome of a request that has just been started goes to this callback, and is not taken.
    pub(super) fn call_back(&mut self, id: M::Id, callback: Callback<M::Outcome>) {
        self.callbacks.insert(id, callback);
    }

    /// Calls the callbacks that are due; whether there was one.
    #[inline]
    pub(super) fn report(&mut self) -> bool {
        let any = !self.due.is_empty();
        while let Some((callback, outcome)) = self.due.pop_front() {
            callback.call(outcome);
        }
        any
    }

    /// Takes the outcome of a request, once it has ended.
    #[inline]
    pub(super) fn take(&mut self, id: M::Id) -> Option<M::Outcome> {
        // It is the only one in nearly all cases, and needs no place then.
        while let Some(ended) = self.machine.take_ended() {
            if ended.id == id {
                return Some(ended.result);
            }
            self.keep(ended.id, ended.result);
        }
        self.outcomes.remove(&id)
    }

    /// Whether a request has not ended, or its callback was not called yet.
    #[inline]
    pub(super) fn are_running(&self) -> bool {
        self.machine.running() != 0 || !self.callbacks.is_empty() || !self.due.is_empty()
    }

    /// Whether a request waits for one of these ranks.
    #[cold]
    pub(super) fn wait_for(&self, ranks: impl Fn(Rank) -> bool) -> bool {
        self.machine.awaited(ranks).is_some()
    }

    /// Whether there is something to post.
    pub(super) fn has_work(&self) -> bool {
        self.machine.has_work()
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.machine.next_deadline()
    }

    /// The group ends.
    pub(super) fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.machine.abort(cause);
    }

    /// No channel refers to any memory any more.
    pub(super) fn fenced(&mut self) {
        self.machine.fenced();
        self.gather();
    }

    /// A rank has left in good order.
    pub(super) fn left(&mut self, rank: Rank) {
        self.left.push((rank, None));
    }

    /// A rank that has left, and that a request waits for in vain, or for a rank that is reached by it alone: `behind` says of a rank that
    /// has left and another one whether that is so.
    #[cold]
    pub(super) fn awaited_departed(
        &mut self,
        now: Instant,
        behind: impl Fn(Rank, Rank) -> bool,
    ) -> Option<Rank> {
        if !self.are_running() {
            return None;
        }
        for (_, until) in &mut self.left {
            until.get_or_insert(now + ARRIVES);
        }
        let has_passed = |until: Option<Instant>| until.is_some_and(|until| now >= until);
        let gone = || self.left.iter().filter(|(_, until)| has_passed(*until)).map(|(left, _)| *left);
        let gone_of = |rank: Rank| {
            let itself = gone().find(|left| *left == rank);
            itself.or_else(|| gone().find(|left| behind(*left, rank)))
        };
        self.machine.awaited(|rank| gone_of(rank).is_some()).and_then(gone_of)
    }
}
