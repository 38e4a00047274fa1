//! A group of some ranks on this rank: an executor of its own, so an order, numbers, deadlines and an end of its own, and messages and
//! windows beside that.
//!
//! Each member is a node of its own for the executor: its messages go over the channels and nothing of it lies in memory that ranks share. It
//! polls no clock, holds no thread and no socket; what it keeps for a member is a few dozen bytes.
//!
//! An error ends it on all members, by messages among them, and nothing else. The channels go on, so unlike at the end of the group of
//! all no payload is taken back from them: an operation's outcome is held back until every fragment that was posted of the
//! trainer's memory is acknowledged. A member that lives acknowledges all that comes, also after the end; one that does not
//! ends the group of all.

use std::collections::VecDeque;
use std::sync::Arc;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{
    AbortReason, Completed, Disposition, Executor, OpId, Refusal, Request, StartError,
};
use shouter_reducer::fusion::Ends;
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Header, MessageKind};
use shouter_reducer::recorder::Recorder;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::lineage::{Greeting, Lineage};
use super::members::Members;
use super::route::{Peer, Route};
use crate::channel::shm::NodeSegment;
use crate::channel::up::UpChannels;
use crate::engine::beside::Beside;
use crate::engine::divergence::{LOOK_EVERY, VERDICT, VIEWS};
use crate::engine::end::{FLOOD, abort_header, is_behind};
use crate::engine::served::ARRIVES;
use crate::engine::submitted::{Due, Failure, Submissions, Submitted};
use crate::engine::trace::Phases;
use crate::engine::{COMPARE_EVERY, executor_time};
use crate::observe::Timeline;
use crate::observe::flight::{Labels, UNNAMED};

/// A control message that waits to be posted.
struct Waiting {
    /// A member.
    to: Rank,
    header: Header,
}

/// The vote on an operation that members disagree about.
struct Ballot {
    begun: Instant,
    voted: Option<u64>,
    next: Instant,
}

/// A group of some ranks.
pub(super) struct Subgroup {
    id: u32,
    owner: u32,
    lineage: Lineage,
    members: Arc<Members>,
    /// Which rank of the job is on which host.
    job: Grid,
    executor: Executor,
    beside: Beside,
    peers: Box<[Peer]>,
    /// Members that are to be told this rank's number.
    ungreeted: Vec<Rank>,
    waiting: VecDeque<Waiting>,
    started: u64,
    under_way: Vec<OpId>,
    /// Operations to be started without a caller that waits.
    submitted: Submitted,
    /// The callbacks of such operations that were started.
    dues: Vec<(OpId, Ends<Due>)>,
    finished: Vec<Completed>,
    /// A member has left, or a rank by which members are reached.
    has_left: bool,
    /// Such ranks, as errors name them, and when nothing that they have sent on is on its way any more.
    cut: Vec<(Rank, Option<Instant>)>,
    flooded: bool,
    /// Outcomes are held back until nothing refers to the trainer's memory; the members are told of the end until then at least.
    settling: Option<Instant>,
    ballot: Option<Ballot>,
    /// This rank has left; the group goes when nothing refers to it, and its members know.
    closing: Option<Instant>,
    next_compare: Instant,
    /// What the program calls its operations.
    labels: Option<Arc<Labels>>,
}

impl Subgroup {
    pub(super) fn new(
        (id, owner): (u32, u32),
        lineage: Lineage,
        (members, job): (Arc<Members>, Grid),
        executor: Executor,
    ) -> Self {
        let peers = vec![Peer::default(); members.size() as usize].into();
        Self {
            id,
            owner,
            lineage,
            beside: Beside::new(id, members.own(), members.size()),
            members,
            job,
            executor,
            peers,
            ungreeted: vec![],
            waiting: VecDeque::new(),
            started: 0,
            under_way: vec![],
            submitted: Submitted::default(),
            dues: vec![],
            finished: vec![],
            has_left: false,
            cut: vec![],
            flooded: false,
            settling: None,
            ballot: None,
            closing: None,
            next_compare: Instant::ZERO,
            labels: None,
        }
    }

    /// Puts what happens on the timeline, too. Before the first operation.
    pub(super) fn draw(&mut self, timeline: Arc<Timeline>) {
        let phases = Phases::of_some(timeline, self.job, self.members.clone());
        self.executor.attach_trace(Box::new(phases));
    }

    /// Keeps the last events, and what the program calls its operations. Before the first one.
    pub(super) fn record(&mut self, recorder: &Recorder, labels: Arc<Labels>) {
        self.executor.attach_recorder(recorder.of_group(self.in_records(), self.members.ranks().clone()));
        self.labels = Some(labels);
    }

    /// What records call it: places are taken anew, and sixteen groups in a row have different numbers.
    fn in_records(&self) -> u16 {
        self.id as u16
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn lineage(&self) -> Lineage {
        self.lineage
    }

    pub(super) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Its messages and windows.
    pub(super) fn beside(&mut self) -> &mut Beside {
        &mut self.beside
    }

    /// Whether outcomes are held back.
    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    /// Whether it has ended in error, and its members are told.
    #[cfg(feature = "cuda")]
    pub(super) fn is_flooded(&self) -> bool {
        self.flooded
    }

    /// It ends because of this rank.
    #[cfg(feature = "cuda")]
    pub(super) fn fail(&mut self, why: AbortReason) {
        self.executor.abort(self.members.own(), why);
    }

    /// The queue of operations that are started without waiting.
    pub(super) fn submissions(&mut self) -> Arc<Submissions> {
        self.submitted.queue().clone()
    }

    /// Starts an operation: the next one of this group.
    pub(super) fn start(&mut self, now: Instant, request: Request) -> Result<OpId, StartError> {
        self.admit(now);
        if !self.submitted.is_empty() {
            return Err(StartError::Busy { what: "operations" });
        }
        self.begin(now, request)
    }

    /// Starts what waits to be started, as far as there is room.
    fn admit(&mut self, now: Instant) {
        if executor_time(now) >= self.submitted.held_until() {
            self.submitted.give_up(now);
        }
        while let Some(next) = self.submitted.next() {
            match self.begin(now, next.request.clone()) {
                Ok(op) => {
                    self.submitted.started(&next.ends);
                    self.dues.push((op, next.ends));
                }
                Err(StartError::Busy { .. }) => {
                    self.submitted.put_back(next);
                    break;
                }
                Err(why) => self.submitted.refused(next.ends, why),
            }
        }
    }

    /// Reports the ends of started operations and messages, once outcomes are not held back.
    fn report(&mut self) -> bool {
        if self.settling.is_some() {
            return false;
        }
        let told = self.beside.messages.tell();
        if self.dues.is_empty() {
            return told;
        }
        let before = self.dues.len();
        let Self { dues, finished, submitted, .. } = self;
        finished.retain(|completed| {
            let Some(at) = dues.iter().position(|(op, _)| *op == completed.op) else { return true };
            submitted.report(dues.swap_remove(at).1, completed.result.clone().map_err(Failure::Operation));
            false
        });
        told | (self.dues.len() < before)
    }

    fn begin(&mut self, now: Instant, request: Request) -> Result<OpId, StartError> {
        self.executor.set_time(executor_time(now));
        if self.under_way.is_empty() {
            self.next_compare = now + COMPARE_EVERY;
        }
        let label = self.labels.as_ref().filter(|_| *request.name != *UNNAMED).map(|_| request.name.clone());
        let op = self.executor.start(request)?;
        if let Some((labels, label)) = self.labels.as_ref().zip(label) {
            labels.keep((self.in_records(), op.0), label);
        }
        self.started += 1;
        self.under_way.push(op);
        Ok(op)
    }

    /// Takes the outcome of an operation, once it has ended.
    pub(super) fn take_finished(&mut self, op: OpId) -> Option<Completed> {
        if self.settling.is_some() {
            return None;
        }
        let at = self.finished.iter().position(|completed| completed.op == op)?;
        Some(self.finished.swap_remove(at))
    }

    /// Whether nothing is under way and all outcomes can be taken.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
            && !self.beside.is_running()
            && self.settling.is_none()
            && self.submitted.is_empty()
    }

    /// Takes a message to this group.
    #[inline]
    pub(super) fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        let Some(src) = self.members.number(header.src) else {
            return Disposition::Refused(Refusal::Malformed);
        };
        let header = Header { src, ..*header };
        match self.closing {
            // Members may still ask for what was sent before this rank left.
            _ if Beside::takes(&header) => self.beside.on_message(&header, payload),
            None => self.executor.on_fragment(&header, payload),
            Some(_) => Disposition::Refused(Refusal::Aborted),
        }
    }

    /// Nothing refers to a posted fragment any more.
    #[inline]
    pub(super) fn released(&mut self, token: SendToken) {
        let token = token.owned_by(0);
        match Beside::has_posted(token) {
            true => self.beside.on_released(token),
            false => self.executor.on_released(token),
        }
    }

    /// What a rank of the job says of the group.
    pub(super) fn greeted(&mut self, rank: Rank, greeting: Greeting) {
        let Some(number) = self.members.number(rank) else { return };
        let Some(peer) = self.peers.get_mut(number.0 as usize) else { return };
        match greeting {
            Greeting::Made(id) => {
                peer.id = Some(id);
                if !peer.greeted {
                    self.ungreeted.push(number);
                }
            }
            Greeting::Left(started) => {
                if peer.left.replace(started).is_none() {
                    self.beside.left(number);
                }
                self.has_left = true;
            }
        }
    }

    /// A rank has left the job: a member that may never have made the group, or a leader that others are reached by.
    pub(super) fn departed(&mut self, rank: Rank) {
        let (job, own) = (self.job, self.members.rank(self.members.own()).unwrap_or_default());
        let is_there = self.members.number(rank).is_some_and(|number| !self.has_said_farewell(number));
        if is_there || self.members.ranks().iter().any(|member| is_behind(&job, own, rank, *member)) {
            let name = self.members.name(rank);
            self.cut.push((name, None));
            self.beside.left(name);
            self.has_left = true;
        }
    }

    /// Whether a member has left the group.
    fn has_said_farewell(&self, number: Rank) -> bool {
        self.peers.get(number.0 as usize).is_some_and(|peer| peer.left.is_some())
    }

    /// Whether a poll can do something.
    #[inline]
    fn is_active(&self) -> bool {
        let ended = self.executor.aborted().is_some();
        !self.under_way.is_empty()
            || !self.waiting.is_empty()
            || !self.ungreeted.is_empty()
            || !self.submitted.is_empty()
            || self.beside.has_work()
            || self.beside.is_running()
            || self.beside.next_deadline().is_some()
            || self.submitted.next_deadline().is_some()
            || self.settling.is_some()
            || ended != self.flooded
            || !ended && self.executor.diverged().is_some()
    }

    /// One poll; whether it did something.
    pub(super) fn poll(&mut self, now: Instant, up: &mut UpChannels) -> bool {
        if !self.is_active() {
            return false;
        }
        let mut busy = self.greet(up);
        self.admit(now);
        busy |= self.submitted.take_change();
        let time = executor_time(now);
        let is_running = !self.under_way.is_empty();
        let (executor, beside, mut route) = self.parts(up);
        if is_running {
            executor.set_time(time);
            busy |= executor.poll(time, &mut route, None::<&NodeSegment>, None).worked;
        }
        busy |= beside.poll(time, &mut route);
        busy |= self.gather();
        if !self.under_way.is_empty() && now >= self.next_compare {
            self.next_compare = now + COMPARE_EVERY;
            self.executor.compare(None::<&NodeSegment>);
        }
        if self.has_left {
            self.look_for_deserted(now);
        }
        if self.executor.diverged().is_some() && self.executor.aborted().is_none() {
            self.deliberate(now);
        }
        if !self.flooded && self.executor.aborted().is_some() {
            self.flood_abort(now);
            busy = true;
        }
        busy |= self.send_waiting(up);
        if let Some(until) = self.settling {
            let late = now >= until;
            // Ends are told after that.
            self.settling = match self.executor.is_quiesced()
                && !self.beside.has_unended()
                && (late || self.waiting.is_empty())
            {
                true => None,
                false if late => Some(now + FLOOD),
                false => Some(until),
            };
            busy |= self.settling.is_none();
        }
        busy | self.report()
    }

    /// When the next poll is needed although nothing may arrive.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let executor = self.executor.next_deadline().map(|deadline| Instant::ZERO + deadline);
        let beside = self.beside.next_deadline().map(|deadline| Instant::ZERO + deadline);
        let ballot = self.ballot.as_ref().filter(|_| !self.flooded).map(|ballot| ballot.next);
        let compare = (!self.under_way.is_empty()).then_some(self.next_compare);
        let held = self.submitted.next_deadline();
        [executor, beside, ballot, self.settling, self.closing, compare, held].into_iter().flatten().min()
    }

    /// What has messages for the members, and the way to those.
    fn parts<'a>(&'a mut self, up: &'a mut UpChannels) -> (&'a mut Executor, &'a mut Beside, Route<'a>) {
        let Self { executor, beside, members, peers, lineage, id, owner, .. } = self;
        (executor, beside, Route { up, members, peers, lineage: *lineage, id: *id, owner: *owner })
    }

    /// Answers members that have said their number.
    fn greet(&mut self, up: &mut UpChannels) -> bool {
        let mut ungreeted = std::mem::take(&mut self.ungreeted);
        let asked = ungreeted.len();
        let (_, _, mut route) = self.parts(up);
        ungreeted.retain(|&number| {
            let known = route.peers.get(number.0 as usize).is_none_or(|peer| peer.greeted);
            !known && route.greet(number) == Err(SendError::Full)
        });
        let worked = ungreeted.len() < asked;
        self.ungreeted = ungreeted;
        worked
    }

    fn gather(&mut self) -> bool {
        let mut any = false;
        while let Some(completed) = self.executor.take_completed() {
            self.under_way.retain(|op| *op != completed.op);
            self.finished.push(completed);
            any = true;
        }
        any
    }

    /// Ends the group when its oldest operation is one in which a member that has left takes no part, or when a message or an access waits
    /// for such a member.
    #[cold]
    fn look_for_deserted(&mut self, now: Instant) {
        if self.closing.is_some() || self.executor.aborted().is_some() || self.executor.diverged().is_some() {
            return;
        }
        let oldest = self.under_way.iter().min();
        let absent = |peer: &Peer| oldest.is_some_and(|op| peer.left.is_some_and(|started| started <= op.0));
        let number = self.peers.iter().position(absent).map(|number| Rank(number as u32));
        let number = number.or_else(|| {
            // What was sent before may be enough: the leave message has the number of operations that were started.
            let cut = if oldest.is_some() { &mut self.cut[..] } else { &mut [] };
            let peers = &self.peers;
            let is_there = |name: Rank| peers.get(name.0 as usize).is_none_or(|peer| peer.left.is_none());
            let mut passed = cut
                .iter_mut()
                .filter(|(name, _)| is_there(*name))
                .filter_map(|(name, until)| (now >= *until.get_or_insert(now + ARRIVES)).then_some(*name));
            passed.next()
        });
        let (job, members) = (self.job, &*self.members);
        let rank = |number| members.named(number).0;
        let behind = |left, number| is_behind(&job, rank(members.own()), rank(left), rank(number));
        if let Some(number) = number.or_else(|| self.beside.deserter(now, behind)) {
            self.executor.abort(number, AbortReason::Aborted);
        }
    }

    /// While members disagree about an operation: votes, and ends the group when the votes of all are in, or late.
    #[cold]
    fn deliberate(&mut self, now: Instant) {
        let Some(seq) = self.executor.diverged() else { return };
        let ballot = self.ballot.get_or_insert(Ballot { begun: now, voted: None, next: now });
        ballot.next = now + LOOK_EVERY;
        let late = now >= ballot.begun + VERDICT;
        let known = self.executor.own(None::<&NodeSegment>, seq).is_some();
        if ballot.voted != Some(seq) && (known || late || now >= ballot.begun + VIEWS) {
            ballot.voted = Some(seq);
            for vote in self.executor.vote(None::<&NodeSegment>) {
                self.tell_all(&vote);
            }
        }
        let voted = self.ballot.as_ref().is_some_and(|ballot| ballot.voted == Some(seq));
        if late || voted && self.executor.has_all_votes() {
            self.executor.conclude(None::<&NodeSegment>);
        }
    }

    /// Tells all members that the group has ended, once.
    #[cold]
    fn flood_abort(&mut self, now: Instant) {
        let Some(cause) = self.executor.aborted().cloned() else { return };
        self.flooded = true;
        self.submitted.close();
        self.beside.abort(&cause);
        let culprit = self.members.named(cause.culprit).0;
        tracing::error!(%culprit, why = %cause.reason, ranks = self.members.size(), "a group of some ranks has ended");
        let seq = self.executor.diverged().unwrap_or(0);
        self.tell_all(&abort_header(self.members.own(), &cause, seq));
        self.gather();
        self.settling = Some(now + FLOOD);
    }

    /// A control message to all members but those that have left.
    fn tell_all(&mut self, header: &Header) {
        let own = self.members.own();
        let numbers = (0..).map(Rank).zip(&self.peers);
        let there = numbers.filter(|(number, peer)| *number != own && peer.left.is_none());
        self.waiting.extend(there.map(|(to, _)| Waiting { to, header: *header }));
    }

    /// Posts the control messages that find room.
    fn send_waiting(&mut self, up: &mut UpChannels) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let before = waiting.len();
        let (_, _, mut route) = self.parts(up);
        waiting.retain(|Waiting { to, header }| {
            let nothing = PayloadRange::empty();
            let sent = match (header.kind, route.members.rank(*to)) {
                // It names the group by its lineage, so it needs no number of the receiver's.
                (MessageKind::Member, Some(rank)) => route.up.send(rank, header, nothing, SendToken::CONTROL),
                _ => route.send(*to, header, nothing, SendToken::CONTROL),
            };
            sent == Err(SendError::Full)
        });
        let worked = waiting.len() < before;
        self.waiting = waiting;
        worked
    }

    /// The group of all has ended because of a rank of the job, and so does this one. The channels refer to no memory any more.
    pub(super) fn end_with_all(&mut self, culprit: Rank, why: AbortReason, seen: Option<Box<str>>) {
        self.executor.abort_seen(self.members.name(culprit), why, seen);
        if self.executor.aborted().is_none() {
            // Members disagree, and no more votes will come.
            self.executor.conclude(None::<&NodeSegment>);
        }
        self.gather();
        self.executor.fenced();
        if let Some(cause) = self.executor.aborted().cloned() {
            self.beside.abort(&cause);
            self.beside.fenced();
        }
        // Each member hears it from the group of all.
        self.flooded = true;
        self.waiting.clear();
        self.settling = None;
        self.submitted.close();
        self.report();
    }

    /// This rank leaves the group: in good order where every operation has ended here, else as the member that all others name.
    /// With `is_busy` copies for operations are under way.
    pub(super) fn leave(&mut self, now: Instant, is_busy: bool) {
        self.admit(now);
        let is_running = !self.under_way.is_empty() || !self.submitted.is_empty() || self.beside.is_running();
        if is_running || is_busy {
            self.executor.abort(self.members.own(), AbortReason::Aborted);
        }
        if !self.flooded && self.executor.aborted().is_some() {
            self.flood_abort(now);
        }
        let rank = self.members.rank(self.members.own()).unwrap_or_default();
        match self.executor.aborted() {
            None => {
                self.submitted.leave();
                self.tell_all(&self.lineage.message(rank, Greeting::Left(self.started)));
            }
            Some(_) => {
                // Who has not made the group yet hears of its end so.
                let left = self.lineage.message(rank, Greeting::Left(0));
                let peers = &self.peers;
                let waiting = self.waiting.iter_mut();
                waiting
                    .filter(|waiting| peers.get(waiting.to.0 as usize).is_some_and(|peer| peer.id.is_none()))
                    .for_each(|waiting| waiting.header = left);
            }
        }
        // Their memory is the caller's again.
        self.beside.windows.machine.close_all();
        self.closing = Some(now + FLOOD);
    }

    /// Whether nothing refers to the memory of its operations, and the ends of those that were started are reported.
    pub(super) fn is_quiesced(&self) -> bool {
        self.executor.is_quiesced()
            && !self.beside.is_running()
            && self.submitted.is_empty()
            && self.dues.is_empty()
    }

    /// Whether a member has left.
    #[cfg(test)]
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether this rank has left and nothing is left to do. What it has to say is dropped after a while; messages that were sent before
    /// have until their deadline, as long as their receivers are there.
    pub(super) fn is_closed(&mut self, now: Instant) -> bool {
        let Some(until) = self.closing else { return false };
        let late = now >= until;
        if late {
            self.waiting.clear();
            self.closing = Some(now + FLOOD);
        }
        let (peers, cut) = (&self.peers, &self.cut);
        let is_there = |number: Rank| {
            peers.get(number.0 as usize).is_some_and(|peer| peer.left.is_none())
                && cut.iter().all(|(name, _)| *name != number)
        };
        self.is_quiesced()
            && self.waiting.is_empty()
            && self.beside.is_quiesced()
            && (late || !self.beside.has_work())
            && !self.beside.messages.machine.has_unacknowledged(is_there)
    }
}
