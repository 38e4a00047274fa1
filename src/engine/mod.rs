//! The engine of one rank: executor, up-grid channel, node memory and liveness, polled by the shard's driver.
//!
//! ```text
//!   Group --start--> executor --posts--> channel::up ---frames--> device
//!                        ^  \--flags, views--> node segment (shared memory)
//!                        '--fragments, releases-- channel::up
//! ```
//!
//! That is the group of all ranks. Groups of some of them have executors of their own, over the same channels (`groups`). Besides its collectives
//! each has messages and windows, between two of its ranks at a time (`pairwise`).
//!
//! | part of an engine | owns |
//! |---|---|
//! | `operations` | the operations of a group, from their start until their outcome has been taken |
//! | `ending` | the vote on operations that ranks disagree about, the abort messages, the time until outcomes are given out |
//! | `pairwise` (of `requests`) | messages and windows of a group |
//! | `losses` | peers that the channels have lost |
//! | `inquiry` | the questions to other leaders before one that is silent is blamed |
//! | `shared_end` | the end of the group that the engines of a rank's shards have in common |
//! | `leaving` | ranks that leave in good order |
//! | `contacts` | the ranks that were told that requests wait for them |
//! | `times` | the times of polls |
//! | `liveness`, `trace`, `tasks`, `groups` | heartbeats; timeline and counts; copies for operations; groups of some ranks |
//!
//! It neither blocks nor reads a clock (but after an error, when copies of an accelerator must have ended before memory goes back);
//! the runtime calls [`poll`](crate::runtime::Poller::poll) with the time.

mod contacts;
pub(crate) mod divergence;
mod end;
mod ending;
mod glance;
pub(crate) mod groups;
mod inquiry;
mod leaving;
pub(crate) mod liveness;
mod losses;
pub(crate) mod members;
mod messages;
mod operations;
mod pairwise;
mod poll;
mod requests;
mod shared_end;
pub(crate) mod submitted;
pub(crate) mod tasks;
mod times;
mod trace;
mod windows;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{
    AbortCause, Completed, Counters, Disposition, Executor, ExecutorError, OpId, Request, StartError,
};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Header, View};
use shouter_reducer::memory::{Span, TensorRegion};
use shouter_reducer::recorder::Recorder;
use shouter_reducer::solo::Solo;
use shouter_reducer::transport::{Accelerator, NodeMemory, SendToken};

use crate::channel::Inbox;
use crate::channel::shm::NodeSegment;
use crate::channel::up::{Registry, UpChannels};
use crate::channel::verbs::Digest;
use crate::observe::Timeline;
use crate::observe::flight::Labels;
use contacts::Contacts;
#[cfg(feature = "cuda")]
pub(crate) use end::COPIES_END;
use ending::EndState;
use groups::Groups;
use leaving::Departures;
use liveness::Liveness;
use losses::Losses;
use operations::Operations;
use pairwise::Pairwise;
use poll::Posting;
pub(crate) use shared_end::SharedEnd;
use submitted::Submissions;
use tasks::Tasks;
use times::PollTimes;
use trace::Watch;

/// The executor's notion of the same moment.
#[inline]
pub(crate) fn executor_time(now: Instant) -> Duration {
    now.saturating_since(Instant::ZERO)
}

/// The parts that an engine is made of.
pub struct EngineParts {
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

/// Means for tensors in an accelerator's memory.
pub struct AcceleratorParts {
    /// Copies them.
    pub accelerator: Box<dyn Accelerator + Send>,
    /// The lanes, where this rank is alone on its node.
    pub solo: Option<Solo>,
    /// The memory of the lanes; it goes with the engine.
    pub memory: Box<dyn Any + Send>,
}

/// The receivers of all that the channels bring: each group has an executor, and messages and windows.
struct Inboxes<'a> {
    executor: &'a mut Executor,
    pairwise: &'a mut Pairwise,
    groups: &'a mut Groups,
}

impl Inbox for Inboxes<'_> {
    #[inline]
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        match header.key.group {
            0 if Pairwise::takes(header) => self.pairwise.on_message(header, payload),
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
            0 if Pairwise::has_posted(token) => self.pairwise.on_released(token),
            0 => self.executor.on_released(token),
            _ => self.groups.released(token),
        }
    }
}

/// Everything that one rank drives. The fields are dropped in the order of their declaration.
pub struct Engine {
    rank: Rank,
    /// Dropped before all memory that it refers to: that of the fields below, and that of the trainer, which reports of operations give back.
    up: UpChannels,
    node: Option<Arc<NodeSegment>>,
    liveness: Liveness,
    operations: Operations,
    ending: EndState,
    /// Where this rank has an engine for each of several shards.
    shared_end: Option<Arc<SharedEnd>>,
    losses: Losses,
    departures: Departures,
    contacts: Contacts,
    times: PollTimes,
    /// Dropped after the channels, which refer to its memory.
    staging: Option<AcceleratorParts>,
    /// Dropped after the channels that send from its slots, and after the device that has page-locked them.
    executor: Executor,
    /// Dropped after the channels that send from its memory.
    pairwise: Pairwise,
    /// Dropped after the channels, as the executor is.
    groups: Groups,
    /// What posts to the channels before the others in the next poll.
    first: Posting,
    /// Reports the counters of the channel to other nodes to the timeline and the flight recorder.
    watch: Watch,
    /// Dropped last: tasks wait for the parts above.
    tasks: Tasks,
}

impl Engine {
    /// An engine of these parts, which have been joined to their peers.
    pub fn new(parts: EngineParts, now: Instant) -> Self {
        let EngineParts { executor, rank, up, node, dead_after } = parts;
        let (grid, locals) = (executor.config().grid, executor.config().locals());
        let (ranks, local) = (grid.ranks(), grid.local_of(rank));
        let first = Rank(rank.0 - local);
        // From here on the others of the node may count this rank's silence.
        node.iter().for_each(|node| node.beat(local));
        Self {
            rank,
            up,
            node,
            liveness: Liveness::new(first, local, locals, dead_after, now),
            operations: Operations::with_capacity(64),
            ending: EndState::default(),
            shared_end: None,
            losses: Losses::default(),
            departures: Departures::new(ranks.saturating_sub(1)),
            contacts: Contacts::new(now, grid.nodes() > 1),
            times: PollTimes::new(dead_after, now),
            staging: None,
            executor,
            pairwise: Pairwise::new(0, rank, ranks),
            groups: Groups::new(),
            first: Posting::default(),
            watch: Watch::new(now),
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
        self.operations.label(labels, 0);
        self.groups.record(of_groups);
        if let Some(timeline) = timeline {
            self.watch.draw(timeline, &mut self.executor);
        }
    }

    /// It is the engine of a further shard: from now on the last events of the group of all are kept, and the first shard's engine warns of links.
    /// Before the first operation.
    pub(crate) fn record_beside(&mut self, recorder: Recorder) {
        self.watch.leave_links_to_another();
        self.executor.attach_recorder(recorder);
    }

    /// All ranks have joined.
    pub(crate) fn joined(&mut self) {
        self.up.joined();
    }

    /// Starts an operation. Its order among this rank's operations is its identity on all ranks.
    pub fn start(&mut self, now: Instant, request: Request) -> Result<OpId, StartError> {
        self.operations.start(now, &mut self.executor, self.node.as_deref(), request)
    }

    /// The queue of operations of the group of all that are started without waiting.
    pub(crate) fn submissions(&mut self) -> Arc<Submissions> {
        self.operations.queue()
    }

    /// Takes the outcome of an operation, once it has ended.
    #[inline]
    pub fn take_finished(&mut self, op: OpId) -> Option<Completed> {
        if self.ending.is_settling() {
            return None;
        }
        self.operations.take_finished(op)
    }

    /// Why the group ended, if it did.
    pub fn aborted(&self) -> Option<&AbortCause> {
        self.executor.aborted().map(|cause| &**cause)
    }

    /// The channels to other nodes.
    pub fn up(&self) -> &UpChannels {
        &self.up
    }

    /// The register of memory that a channel's device accesses directly; `None` if no channel makes use of it. Memory that is registered
    /// there stays mapped until it is unregistered or the engine is dropped, and no operation is under way in memory that is unregistered.
    pub fn registry(&mut self) -> Option<&mut dyn Registry> {
        self.up.registry()
    }

    /// The register of memory of devices; else as [`registry`](Self::registry).
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
    pub fn attach(&mut self, staging: AcceleratorParts) -> Result<(), ExecutorError> {
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

    /// The executor's counts.
    pub fn counters(&self) -> Counters {
        self.executor.counters()
    }

    /// The executor's slots.
    pub fn slots(&self) -> TensorRegion {
        self.executor.slots()
    }

    /// Whether nothing is under way and all outcomes can be taken.
    pub fn is_idle(&self) -> bool {
        !self.operations.is_running()
            && !self.pairwise.is_running()
            && !self.ending.is_settling()
            && self.operations.are_all_started()
            && !self.has_tasks(None)
    }

    /// What another rank has begun in the place of the next operation that starts here, as far as that is known.
    #[cold]
    pub(crate) fn begun_by(&self, rank: Rank) -> Option<View> {
        self.executor.begun_by(self.node.as_deref(), rank)
    }

    /// Operations started so far.
    pub(crate) fn started(&self) -> u64 {
        self.operations.started()
    }

    /// The channels, and the receivers of what they bring.
    #[inline]
    fn up_and_inboxes(&mut self) -> (&mut UpChannels, Inboxes<'_>) {
        let Self { up, executor, pairwise, groups, .. } = self;
        (up, Inboxes { executor, pairwise, groups })
    }
}

#[cfg(test)]
mod tests;
