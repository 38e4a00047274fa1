//! The engine of one rank: executor, up-grid channel, node memory and liveness, polled by the shard's driver.
//!
//! ```text
//!   Group --start--> executor --posts--> channel::up ---frames--> device
//!                        ^  \--flags, views--> node segment (shared memory)
//!                        '--fragments, releases-- channel::up
//! ```
//!
//! That is the group of all ranks. Groups of some of them have executors of their own, over the same channels (`groups`). Each has messages and
//! windows beside its collectives (`beside`).
//!
//! It neither blocks nor reads a clock (but after an error, when copies of an accelerator must have ended before memory goes back);
//! the runtime calls [`Engine::poll`] with the time.

mod beside;
pub(crate) mod divergence;
mod end;
mod glance;
pub(crate) mod groups;
pub(crate) mod liveness;
mod messages;
mod served;
pub(crate) mod submitted;
pub(crate) mod tasks;
mod trace;
mod windows;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{
    AbortCause, AbortReason, Completed, Counters, Disposition, Executor, ExecutorError, OpId, Request,
    StartError,
};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Header, Identity};
use shouter_reducer::memory::{Span, TensorRegion};
use shouter_reducer::recorder::Recorder;
use shouter_reducer::solo::Solo;
use shouter_reducer::transport::{Accelerator, NodeMemory, SendToken};

use crate::channel::Inbox;
use crate::channel::shm::NodeSegment;
use crate::channel::up::{Loss, Registry, UpChannels};
use crate::channel::verbs::{Digest, Fault};
use crate::group::watch::{Departure, Notice};
use crate::observe::Timeline;
use crate::observe::flight::{Labels, UNNAMED};
use crate::runtime::{Activity, Poller};
use beside::Beside;
use divergence::{Ballot, Open};
#[cfg(feature = "cuda")]
pub(crate) use end::COPIES_END;
use end::Leaving;
use groups::Groups;
use liveness::Liveness;
use submitted::Submitted;
use tasks::Tasks;
use trace::Watch;

/// Between two looks at what other ranks run, while an operation is under way.
pub(crate) const COMPARE_EVERY: Duration = Duration::from_millis(50);

/// Between two questions to an accelerator, where nothing else is to do.
const ASK_EVERY: Duration = Duration::from_micros(20);

/// The executor's notion of the same moment.
#[inline]
pub(crate) fn executor_time(now: Instant) -> Duration {
    now.saturating_since(Instant::ZERO)
}

/// What an engine is made of.
pub struct Parts {
    /// Runs the schedules.
    pub executor: Executor,
    /// This rank.
    pub rank: Rank,
    /// The channels to the other leaders, where this rank is one and there are others.
    pub up: UpChannels,
    /// The memory shared with this node's ranks, where there are several.
    pub node: Option<Arc<NodeSegment>>,
    /// A process of this node that shows no heartbeat for so long is dead.
    pub dead_after: Duration,
}

/// What an engine needs for tensors in an accelerator's memory.
pub struct Staging {
    /// Copies them.
    pub accelerator: Box<dyn Accelerator + Send>,
    /// The lanes, where this rank is alone on its node.
    pub solo: Option<Solo>,
    /// What the lanes lie in; it goes with the engine.
    pub memory: Box<dyn Any + Send>,
}

/// Where the channels hand what they receive: to the group that it belongs to, and there to the executor or to what is beside it.
struct Inboxes<'a> {
    executor: &'a mut Executor,
    beside: &'a mut Beside,
    groups: &'a mut Groups,
}

impl Inbox for Inboxes<'_> {
    #[inline]
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        match header.key.group {
            0 if Beside::takes(header) => self.beside.on_message(header, payload),
            0 => self.executor.on_fragment(header, payload),
            _ => self.groups.fragment(header, payload),
        }
    }

    #[inline]
    fn landing(&self, header: &Header) -> Option<Span> {
        self.executor.landing(header)
    }

    #[inline]
    fn placed(&mut self, header: &Header) -> Disposition {
        self.executor.on_placed(header)
    }

    #[inline]
    fn released(&mut self, token: SendToken) {
        match token.owner() {
            _ if token == SendToken::CONTROL => {}
            0 if Beside::has_posted(token) => self.beside.on_released(token),
            0 => self.executor.on_released(token),
            _ => self.groups.released(token),
        }
    }
}

/// Everything that one rank drives.
pub struct Engine {
    rank: Rank,
    up: UpChannels,
    node: Option<Arc<NodeSegment>>,
    liveness: Liveness,
    /// Operations started whose outcome has not been taken.
    open: Vec<Open>,
    /// Operations to be started that nobody waits for here.
    submitted: Submitted,
    finished: Vec<Completed>,
    started: u64,
    running: usize,
    flooded: bool,
    /// Outcomes are held back until the other hosts know that the group has ended, or until then.
    settling: Option<Instant>,
    /// Reports the end of the group over the group's control connection.
    notice: Option<Notice>,
    /// The last whole poll.
    polled_at: Instant,
    /// It has found nothing to do, and nothing was started since.
    rests: bool,
    dead_after: Duration,
    /// This rank was stopped for too long: until then, a peer that it loses may have dropped it for that reason.
    resumed: Option<Instant>,
    first: Rank,
    next_compare: Instant,
    /// When something last happened.
    last_busy: Instant,
    /// Dropped after the channels, which refer to its memory.
    staging: Option<Staging>,
    /// Dropped after the channels that send from its slots, and after the device that has page-locked them.
    executor: Executor,
    beside: Beside,
    groups: Groups,
    /// Once ranks have diverged.
    ballot: Option<Ballot>,
    /// The peers that the channel has lost, and why. The next poll handles them: its time shows whether this process was stopped in
    /// the midst of this one.
    suspect: Option<(Rank, AbortReason)>,
    /// How the first loss of a channel showed, and the rank that is to blame for it: for the texts of errors.
    seen: Option<(Rank, Box<str>)>,
    /// Until when the reason of a rank that has given up is waited for.
    reason_due: Option<Instant>,
    /// The ranks that have left in good order.
    left: Vec<Departure>,
    /// Ranks of the group beside this one.
    others: u32,
    /// Once this rank leaves.
    leaving: Option<Leaving>,
    /// When an accelerator is asked again whether it is done.
    ask_at: Option<Instant>,
    /// Reports the counters of the channel to other nodes to the timeline and the flight recorder.
    watch: Watch,
    /// What the program calls its operations outside the table.
    labels: Option<Arc<Labels>>,
    /// Dropped last: tasks wait for the parts above.
    tasks: Tasks,
}

impl Engine {
    /// An engine of these parts, which have been joined to their peers.
    pub fn new(parts: Parts, now: Instant) -> Self {
        let Parts { executor, rank, up, node, dead_after } = parts;
        let (grid, locals) = (executor.config().grid, executor.config().locals());
        let (ranks, local) = (grid.ranks(), grid.local_of(rank));
        let first = Rank(rank.0 - local);
        // From here on the others of the node may count this rank's silence.
        node.iter().for_each(|node| node.beat(local));
        Self {
            executor,
            beside: Beside::new(0, rank, ranks),
            groups: Groups::new(),
            rank,
            up,
            node,
            liveness: Liveness::new(first, local, locals, dead_after, now),
            open: Vec::with_capacity(64),
            submitted: Submitted::default(),
            finished: Vec::with_capacity(64),
            started: 0,
            running: 0,
            flooded: false,
            settling: None,
            notice: None,
            polled_at: now,
            rests: false,
            dead_after,
            resumed: None,
            first,
            next_compare: now,
            last_busy: now,
            staging: None,
            ballot: None,
            suspect: None,
            seen: None,
            reason_due: None,
            left: vec![],
            others: ranks.saturating_sub(1),
            leaving: None,
            ask_at: None,
            watch: Watch::new(now),
            labels: None,
            tasks: Tasks::default(),
        }
    }

    /// From now on the last events are kept, and put on the timeline, if there is one; the labels of operations, too. Those of groups of some
    /// ranks are kept apart. Before the first operation.
    pub(crate) fn record(
        &mut self,
        (recorder, labels): (Recorder, Arc<Labels>),
        of_groups: (Recorder, Arc<Labels>),
        timeline: Option<Arc<Timeline>>,
    ) {
        self.executor.attach_recorder(recorder);
        self.labels = Some(labels);
        self.groups.record(of_groups);
        if let Some(timeline) = timeline {
            self.watch.draw(timeline, &mut self.executor);
        }
    }

    /// Starts an operation. Its order among this rank's operations is its identity on all ranks.
    pub fn start(&mut self, now: Instant, request: Request) -> Result<OpId, StartError> {
        self.admit(now);
        if !self.submitted.is_empty() {
            return Err(StartError::Busy { what: "operations" });
        }
        let open = Open::new(&request, self.node.as_deref());
        self.open(now, request, open)
    }

    fn open(&mut self, now: Instant, request: Request, mut open: Open) -> Result<OpId, StartError> {
        self.executor.set_time(executor_time(now));
        let is_named = |request: &Request| {
            !matches!(request.identity, Identity::Registered { .. }) && *request.name != *UNNAMED
        };
        let label = self.labels.as_ref().filter(|_| is_named(&request)).map(|_| request.name.clone());
        let op = self.executor.start(request)?;
        open.op = op;
        if let Some((labels, label)) = self.labels.as_ref().zip(label) {
            labels.keep((0, op.0), label);
        }
        if self.running == 0 {
            self.next_compare = now + COMPARE_EVERY;
        }
        if let Some(node) = &self.node {
            open.announce(node);
        }
        self.started += 1;
        self.running += 1;
        self.open.push(open);
        Ok(op)
    }

    /// Takes the outcome of an operation, once it has ended.
    #[inline]
    pub fn take_finished(&mut self, op: OpId) -> Option<Completed> {
        if self.settling.is_some() {
            return None;
        }
        let at = self.finished.iter().position(|completed| completed.op == op)?;
        self.open.retain(|open| open.op != op);
        Some(self.finished.swap_remove(at))
    }

    /// Why the group ended, if it did.
    pub fn aborted(&self) -> Option<&AbortCause> {
        self.executor.aborted().map(|cause| &**cause)
    }

    /// From now on the end of the group is also reported by `notice`.
    pub fn report_to(&mut self, notice: Notice) {
        if self.flooded
            && let Some(cause) = self.executor.aborted()
        {
            end::notify(&notice, cause);
        }
        self.notice = Some(notice);
    }

    /// The process of a rank has ended, as its kernel or another rank says.
    pub fn lost(&mut self, now: Instant, rank: Rank) {
        if !self.liveness.departures_expected() {
            self.look_back(now);
            self.end(rank, AbortReason::Failed);
        }
    }

    /// Ends the group because of a rank. A cause that is known here already holds, and one that another rank of the node has
    /// written: the missing rank may have left for that reason.
    #[cold]
    fn end(&mut self, culprit: Rank, why: AbortReason) {
        if why == AbortReason::Failed && self.executor.diverged().is_some() {
            // After a divergence peers leave as soon as they know the votes, which this rank is about to.
            return;
        }
        if self.executor.given_up().is_some() && !matches!(why, AbortReason::GaveUp(_)) {
            // Peers close their connections for that reason while its words are awaited.
            return;
        }
        let given_up = why == AbortReason::Failed && self.resumed.is_some_and(|until| self.polled_at < until);
        let cause = match self.executor.aborted() {
            Some(cause) => (cause.culprit, cause.reason.clone()),
            None if given_up => (self.rank, AbortReason::Stopped),
            None => (culprit, why),
        };
        let (culprit, why) = match &self.node {
            Some(node) => liveness::agree(node, cause.0, cause.1),
            None => cause,
        };
        self.follow((culprit, why));
    }

    /// Notices a pause of this process itself.
    #[inline]
    fn look_back(&mut self, now: Instant) {
        let pause = now.saturating_since(self.polled_at);
        self.polled_at = now;
        self.executor.set_time(executor_time(now));
        // The others count from this rank's last heartbeat, which was before it was stopped.
        if pause > self.dead_after / 4 * 3 {
            tracing::warn!(
                rank = self.rank.0,
                ?pause,
                dead_after = ?self.dead_after,
                "this process was stopped for about the heartbeat time-out or longer"
            );
            self.resumed = Some(now + self.dead_after);
        }
    }

    /// The channels to other nodes.
    pub fn up(&self) -> &UpChannels {
        &self.up
    }

    /// What keeps the memory that a channel's device accesses directly; `None` if no channel makes use of it. What is registered there
    /// stays mapped until it is unregistered or the engine is dropped, and no operation is under way in what is unregistered.
    pub fn registry(&mut self) -> Option<&mut dyn Registry> {
        self.up.registry()
    }

    /// The same for memory of devices.
    pub fn device_registry(&mut self) -> Option<&mut dyn Registry> {
        self.up.device_registry()
    }

    /// From now on operations may work on a device's memory, with slots there, which the NIC knows. Once.
    pub fn attach_device(&mut self, digest: Box<dyn Digest + Send>, slots: TensorRegion) {
        if let Some(registry) = self.up.device_registry() {
            registry.attach_digest(digest);
        }
        self.executor.attach_device_slots(slots);
    }

    /// From now on tensors may lie in an accelerator's memory. Once.
    #[allow(unsafe_code)]
    pub fn attach(&mut self, staging: Staging) -> Result<(), ExecutorError> {
        if let Some(solo) = &staging.solo {
            self.executor.attach_node(solo)?;
            if let Some(registry) = self.up.registry() {
                for lane in 0..solo.lanes() {
                    for area in [solo.stage(0, lane), solo.result(lane)] {
                        // SAFETY: the memory of `staging` is dropped after the channel.
                        unsafe { registry.register(area) };
                    }
                }
            }
        }
        self.staging = Some(staging);
        Ok(())
    }

    /// What the executor has counted.
    pub fn counters(&self) -> Counters {
        self.executor.counters()
    }

    /// The executor's slots.
    pub fn slots(&self) -> TensorRegion {
        self.executor.slots()
    }

    /// Whether nothing is under way and all outcomes can be taken.
    pub fn is_idle(&self) -> bool {
        self.running == 0
            && !self.beside.is_running()
            && self.settling.is_none()
            && self.submitted.is_empty()
            && !self.has_tasks(None)
    }

    /// Operations started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Takes the tensors of operations under way back from the other ranks of the node, who may still write to them.
    fn fence_tensors(&self) {
        let Some(node) = &self.node else { return };
        for (offset, len) in self.open.iter().filter_map(|open| open.shared) {
            node.fence(offset, len);
        }
    }

    /// Takes the operations that have ended from the executor; whether there was one.
    #[inline]
    fn gather(&mut self) -> bool {
        let mut any = false;
        while let Some(completed) = self.executor.take_completed() {
            self.running -= 1;
            self.finished.push(completed);
            any = true;
        }
        any
    }
}

impl Poller for Engine {
    #[inline]
    fn poll(&mut self, now: Instant) -> Activity {
        let mut busy = false;
        let time = executor_time(now);
        self.look_back(now);
        if let Some((culprit, why)) = self.suspect.take()
            && !self.liveness.departures_expected()
        {
            self.end(culprit, why);
        }
        busy |= self.run_tasks(now);
        self.admit(now);
        busy |= self.submitted.take_change();
        let mut inboxes =
            Inboxes { executor: &mut self.executor, beside: &mut self.beside, groups: &mut self.groups };
        busy |= self.up.receive(now, &mut inboxes);
        if self.groups.has_departures() {
            self.take_departures();
        }
        while let Some(loss) = self.up.take_lost() {
            if self.liveness.departures_expected() {
                continue;
            }
            tracing::error!(rank = loss.rank.0, why = %loss.why, "a leader is lost");
            self.watch.lost(now, loss.rank, &mut self.executor);
            let has_left = self.left.iter().any(|departure| departure.rank == loss.rank.0);
            // The loss of an accelerator names some peer, which has nothing to do with it.
            let is_device = loss.why == Loss::Verbs(Fault::Accelerator);
            // Traffic on other paths goes on.
            let (grid, own, lost) = (self.executor.config().grid, self.rank, loss.rank);
            let is_behind = |rank| rank == lost || end::is_behind(&grid, own, lost, rank);
            let waits = || self.running != 0 || self.beside.waits_for(is_behind);
            if has_left && !is_device && !waits() {
                continue;
            }
            // A rank that has lost its own port or accelerator blames itself: the peer works.
            let cause = match &loss.why {
                _ if is_device => (self.rank, AbortReason::Accelerator),
                why if why.is_own() => (self.rank, AbortReason::Disconnected),
                _ if has_left => (loss.rank, AbortReason::Aborted),
                why => (loss.rank, why.reason()),
            };
            self.seen.get_or_insert_with(|| (cause.0, loss.why.to_string().into()));
            self.suspect.get_or_insert(cause);
            busy = true;
        }
        if self.running != 0 {
            // Nothing is begun in GPU memory of ranks that have given up, as this process may have been stopped meanwhile, and no operation
            // that has become late meanwhile names another culprit than they have. Other operations end when liveness looks, which
            // leaves time to see what the others run.
            if let Some(ended) =
                self.node.as_ref().and_then(|node| Some(liveness::ended(node, node.abort()?)))
                && (self.executor.next_deadline().is_some_and(|deadline| deadline <= time)
                    || self.open.iter().any(|open| open.export.is_some()))
            {
                self.follow(ended);
            }
            let Self { executor, up, node, staging, .. } = self;
            let (node, mut solo, mut accelerator) = (node.as_deref(), None, None);
            if let Some(staging) = staging {
                solo = staging.solo.as_ref();
                accelerator = Some(&mut *staging.accelerator as &mut dyn Accelerator);
            }
            busy |= match solo {
                Some(solo) => executor.poll(time, up, Some(solo), accelerator),
                None => executor.poll(time, up, node, accelerator),
            }
            .worked;
        }
        busy |= self.beside.poll(time, &mut self.up);
        if !self.groups.is_empty() {
            busy |= self.groups.poll(now, &mut self.up);
        }
        let mut inboxes =
            Inboxes { executor: &mut self.executor, beside: &mut self.beside, groups: &mut self.groups };
        busy |= self.up.transmit(now, &mut inboxes);
        self.watch.look(now, &self.up, &mut self.executor);
        busy |= self.gather();
        if let Some(node) = &self.node
            && let Some((culprit, why)) = self.liveness.check(now, node)
        {
            self.end(culprit, why);
        }
        if let Some(rank) = self.executor.given_up() {
            self.await_words(now, rank);
        }
        if self.running != 0 && now >= self.next_compare {
            self.next_compare = now + COMPARE_EVERY;
            self.executor.compare(self.node.as_deref());
        }
        if !self.left.is_empty() {
            self.look_for_deserted();
            self.look_for_deserters(now);
        }
        if let Some(seq) = self.liveness.dispute() {
            self.executor.diverge(seq, self.rank);
        }
        if self.executor.diverged().is_some() && self.executor.aborted().is_none() {
            self.deliberate(now);
        }
        if !self.flooded && self.executor.aborted().is_some() {
            self.flood_abort(now);
            busy = true;
        }
        if self.settling.is_some_and(|until| now >= until || self.abort_is_acknowledged()) {
            self.settling = None;
            busy = true;
        }
        busy |= self.report();
        self.ask_at = (self.executor.waits_for_accelerator() || self.tasks.ask).then(|| now + ASK_EVERY);
        if busy {
            self.last_busy = now;
        }
        self.rests = !busy && self.may_rest();
        Activity::from_busy(busy)
    }

    #[inline]
    fn poll_again(&mut self, now: Instant) -> Activity {
        match self.glance(now) {
            Some(activity) => activity,
            None => self.poll(now),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let executor = self.executor.next_deadline().map(|deadline| Instant::ZERO + deadline);
        let beside = self.beside.next_deadline().map(|deadline| Instant::ZERO + deadline);
        let up = self.up.next_deadline();
        let node = self.node.as_ref().map(|_| self.liveness.next_check());
        let ballot = self.ballot.as_ref().filter(|_| !self.flooded).map(|ballot| ballot.next);
        let suspect = self.suspect.as_ref().map(|_| self.polled_at);
        let compare = (self.running != 0).then_some(self.next_compare);
        let groups = self.groups.next_deadline();
        let held = self.submitted.next_deadline();
        let words = self.reason_due.filter(|_| !self.flooded);
        [
            executor,
            beside,
            up,
            node,
            self.settling,
            self.ask_at,
            ballot,
            suspect,
            compare,
            groups,
            held,
            words,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

#[cfg(test)]
mod tests;
