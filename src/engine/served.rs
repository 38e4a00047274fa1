//! What the engine does alike for the state machines beside executors: polls one, keeps how its requests have ended until somebody
//! takes that, and finds out which of them wait for a rank that has left.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::transport::{SendToken, Transport};

/// What a rank that has left in good order has sent arrives within this time.
pub(super) const ARRIVES: Duration = Duration::from_secs(1);

/// A state machine that posts messages, and whose requests end.
pub(super) trait Machine {
    /// Names a request.
    type Id: Copy + Ord;
    /// How a request has ended.
    type Outcome;

    fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition;
    fn on_released(&mut self, token: SendToken);
    /// Returns whether there was anything to do.
    fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool;
    fn take_ended(&mut self) -> Option<(Self::Id, Self::Outcome)>;
    /// Requests that have not ended.
    fn running(&self) -> usize;
    /// Whether there is something to post.
    fn has_work(&self) -> bool;
    fn next_deadline(&self) -> Option<Duration>;
    /// One of these ranks that a request waits for.
    fn deserter(&self, ranks: impl Fn(Rank) -> bool) -> Option<Rank>;
    fn abort(&mut self, cause: &Arc<AbortCause>);
    fn fenced(&mut self);
}

/// The callback for the end of a request. It gets `None` where the request was dropped: nothing refers to its memory then.
pub(crate) struct Completion<O>(Option<Box<dyn FnOnce(Option<O>) + Send>>);

impl<O> Completion<O> {
    /// Has `tell` called once, by the thread that drives the engine: it must be quick.
    pub(crate) fn new(tell: impl FnOnce(Option<O>) + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    fn tell(mut self, outcome: O) {
        if let Some(tell) = self.0.take() {
            tell(Some(outcome));
        }
    }
}

impl<O> Drop for Completion<O> {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(None);
        }
    }
}

/// A state machine of a group, and the outcomes that are not collected yet.
pub(super) struct Served<M: Machine> {
    pub(super) machine: M,
    ended: BTreeMap<M::Id, M::Outcome>,
    /// The callbacks of requests whose outcomes are not collected.
    told: BTreeMap<M::Id, Completion<M::Outcome>>,
    /// Callbacks to be called, with their outcomes.
    due: VecDeque<(Completion<M::Outcome>, M::Outcome)>,
    /// The ranks that have left, and when nothing of theirs is on its way any more.
    left: Vec<(Rank, Option<Instant>)>,
}

impl<M: Machine> Served<M> {
    pub(super) fn around(machine: M) -> Self {
        let (ended, told, due) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { machine, ended, told, due, left: vec![] }
    }

    #[inline]
    pub(super) fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.machine.on_message(header, payload)
    }

    #[inline]
    pub(super) fn on_released(&mut self, token: SendToken) {
        self.machine.on_released(token);
    }

    /// Posts what finds room, and notes what has ended; whether there was anything.
    #[inline]
    pub(super) fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        let is_due = self.machine.next_deadline().is_some_and(|deadline| deadline <= now);
        let mut busy = false;
        if is_due || self.machine.has_work() {
            busy = self.machine.poll(now, transport);
        }
        busy | self.gather()
    }

    /// Posts what finds room.
    #[inline]
    pub(super) fn post(&mut self, now: Duration, transport: &mut impl Transport) {
        if self.machine.has_work() {
            self.machine.poll(now, transport);
        }
    }

    #[inline]
    fn gather(&mut self) -> bool {
        let mut any = false;
        while let Some((id, outcome)) = self.machine.take_ended() {
            self.keep(id, outcome);
            any = true;
        }
        any
    }

    fn keep(&mut self, id: M::Id, outcome: M::Outcome) {
        match self.told.remove(&id) {
            Some(told) => self.due.push_back((told, outcome)),
            None => drop(self.ended.insert(id, outcome)),
        }
    }

    /// The outcome of a request that has just been started goes to this one, and is not taken.
    pub(super) fn tell_of(&mut self, id: M::Id, told: Completion<M::Outcome>) {
        self.told.insert(id, told);
    }

    /// Tells of the ends that are due; whether there was one.
    #[inline]
    pub(super) fn tell(&mut self) -> bool {
        let any = !self.due.is_empty();
        while let Some((told, outcome)) = self.due.pop_front() {
            told.tell(outcome);
        }
        any
    }

    /// Takes how a request has ended, once it has.
    #[inline]
    pub(super) fn take(&mut self, id: M::Id) -> Option<M::Outcome> {
        // It is the only one in nearly all cases, and needs no place then.
        while let Some((ended, outcome)) = self.machine.take_ended() {
            if ended == id {
                return Some(outcome);
            }
            self.keep(ended, outcome);
        }
        self.ended.remove(&id)
    }

    /// Whether a request has not ended, or its end is not told yet.
    #[inline]
    pub(super) fn are_running(&self) -> bool {
        self.machine.running() != 0 || !self.told.is_empty() || !self.due.is_empty()
    }

    /// Whether a request waits for one of these ranks.
    #[cold]
    pub(super) fn wait_for(&self, ranks: impl Fn(Rank) -> bool) -> bool {
        self.machine.deserter(ranks).is_some()
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
    pub(super) fn deserter(&mut self, now: Instant, behind: impl Fn(Rank, Rank) -> bool) -> Option<Rank> {
        if !self.are_running() {
            return None;
        }
        for (_, until) in &mut self.left {
            until.get_or_insert(now + ARRIVES);
        }
        let has_passed = |until: Option<Instant>| until.is_some_and(|until| now >= until);
        let gone = || self.left.iter().filter(|(_, until)| has_passed(*until)).map(|(left, _)| *left);
        let whom = |rank: Rank| {
            let itself = gone().find(|left| *left == rank);
            itself.or_else(|| gone().find(|left| behind(*left, rank)))
        };
        self.machine.deserter(|rank| whom(rank).is_some()).and_then(whom)
    }
}
