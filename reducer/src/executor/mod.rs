//! Runs schedules: many operations at once, fragment by fragment, without a thread, a clock or a socket.
//!
//! An operation is a set of counters over its [`Schedule`](crate::schedule::Schedule): each step has the number of edges it still waits
//! for. Whatever finishes a step (the step itself, the last fragment of a message, an acknowledgement) counts down its
//! successors, and those at zero become *ready*. [`poll`](Executor::poll) runs ready steps, the lowest first, so that
//! a chunk runs to its end before the next one begins where it can; operations go by priority.
//!
//! ```text
//!   start ---> ring of operations, indexed by seq <--- on_fragment, on_released
//!                 |  ready steps, by priority               |
//!   poll -------> copy, fold, send, signal, look at flags   reduce or place straight from the receive buffer
//!                 and at the copies of an accelerator
//!                 |
//!   take_completed: ready (all steps done) and free (no transport refers to the tensor)
//! ```
//!
//! **Credit.** A message of an operation larger than `eager_bytes` is sent only when its receiver has granted it,
//! which it does as soon as the receiving step is ready. Messages of smaller operations go out at once, as far ahead of the receiver as its
//! budget (`budget.rs`) reaches, and beyond that when it asks, too; one that is early is kept in a bounded pool, per peer.
//!
//! **Exactly once.** Every message keeps a bit per fragment; a fragment that comes again is acknowledged and ignored,
//! whatever the transport remembers. A message for an operation that has ended can only be such a repetition.
//!
//! **One-sided transports.** A credit message carries the destination of each message that is only placed
//! ([`Landing`](crate::transport::Landing)). The peer's NIC may write it there, and [`on_placed`](Executor::on_placed) says that it
//! has; until then the contents of the range are not used. A range may be overwritten so while a send from it is not released:
//! only after the peer has used what was sent, which [`check`](crate::check) proves.

mod api;
mod background;
mod budget;
mod control;
mod decide;
mod divergence;
mod op;
mod park;
mod receive;
mod run;
mod trace;

pub use self::api::{
    AbortCause, AbortReason, Completed, Counters, Disposition, ExecutorConfig, ExecutorError, OpError, OpId,
    OpSubject, Progress, Refusal, Request, StartError,
};
pub use self::divergence::{Divergence, Tally, Vote};

pub use self::trace::{Phase, PhaseRecord, Trace};

use self::control::Control;
use self::divergence::Agreement;
use self::op::{Op, OpState, Steps};
use self::park::Parking;
use crate::grid::Rank;
use crate::header::{GRANULE_UNIT, Header, Identity, MAX_COUNT, MatchKey, MessageKind};
use crate::memory::{self, Addresses, Pool, Span, TensorRegion};
use crate::recorder::{Record, RecordKind, Recorder};
use crate::transport::{NodeMemory, SendToken, TensorView};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

/// The node's shared memory, as regions.
#[derive(Debug)]
struct Lanes {
    count: u32,
    bytes: usize,
    /// By local rank, then lane.
    stage: Vec<TensorRegion>,
    result: Vec<TensorRegion>,
}

/// Room for the slots of operations.
#[derive(Debug)]
struct Slots {
    host: Pool,
    /// On a device, for operations that work there.
    device: Option<Pool>,
}

impl Slots {
    fn of(&self, on_device: bool) -> Option<&Pool> {
        if on_device { self.device.as_ref() } else { Some(&self.host) }
    }

    fn of_mut(&mut self, on_device: bool) -> Option<&mut Pool> {
        if on_device { self.device.as_mut() } else { Some(&mut self.host) }
    }
}

/// Runs the operations of one group in one epoch. Drop it only when its transports refer to nothing any more: it
/// owns the slots that they send from.
#[derive(Debug)]
pub struct Executor {
    config: ExecutorConfig,
    /// Operation `seq` lives at `seq & mask`.
    ops: Vec<Op>,
    mask: u64,
    next_seq: u64,
    /// Lane uses so far, the same on all ranks of the node.
    lane_base: u64,
    /// Operations whose steps are not chosen yet, in their order.
    undecided: VecDeque<u64>,
    /// Running operations as (priority, seq), the most urgent first.
    order: Vec<(u32, u64)>,
    lanes: Option<Arc<Lanes>>,
    slots: Slots,
    parking: Parking,
    control: Control,
    completed: VecDeque<Completed>,
    aborted: Option<Arc<AbortCause>>,
    /// Of operations that have ended.
    spare: Vec<Steps>,
    agreement: Agreement,
    /// The votes on what ranks disagree about, if they do.
    tally: Option<Tally>,
    /// The rank reported as the culprit if no votes arrive.
    suspect: Rank,
    scratch: Addresses,
    spans: Vec<Span>,
    /// The locations of the tensors of the node's ranks, for the operation being examined.
    views: Vec<TensorView>,
    /// By node: the last poll in which its send queue was full.
    blocked: Vec<u64>,
    polls: u64,
    /// No running operation's deadline is earlier.
    earliest: Duration,
    counters: Counters,
}

impl Executor {
    /// An executor without operations. Allocates all that it needs in steady state, apart from what depends on the
    /// schedules.
    ///
    /// ```compile_fail,E0133
    /// use shouter_reducer::executor::{Executor, ExecutorConfig};
    ///
    /// fn executor(config: ExecutorConfig) {
    ///     Executor::new(config);
    /// }
    /// ```
    ///
    /// # Safety
    /// Ranges of memory go in and out without a lifetime, and it is the owner who keeps order. What the executor hands out of its own
    /// memory (to transport and accelerator, by [`landing`](Self::landing), by [`slots`](Self::slots)) is not used any more when it is
    /// dropped: the others go first. What its node and accelerator name stays for as long as it is polled.
    #[allow(unsafe_code)]
    pub unsafe fn new(config: ExecutorConfig) -> Result<Self, ExecutorError> {
        let operations = config.max_operations.checked_next_power_of_two().filter(|&n| n <= 1 << 20);
        let operations = operations.ok_or(ExecutorError::Operations(config.max_operations))?.max(1);
        if !config.grid.contains(config.rank) {
            return Err(ExecutorError::Rank { rank: config.rank, ranks: config.grid.ranks() });
        }
        let nodes = config.grid.nodes() as usize;
        let host =
            Pool::new(config.slot_pool_bytes).ok_or(ExecutorError::SlotPool(config.slot_pool_bytes))?;
        Ok(Self {
            config,
            ops: (0..operations).map(|_| Op::vacant()).collect(),
            mask: operations as u64 - 1,
            next_seq: 0,
            lane_base: 0,
            undecided: VecDeque::new(),
            order: Vec::with_capacity(operations),
            lanes: None,
            slots: Slots { host, device: None },
            parking: Parking::new(nodes, config.eager_pool_bytes, operations),
            control: Control::new(nodes, &config),
            completed: VecDeque::with_capacity(operations),
            aborted: None,
            spare: Vec::with_capacity(operations),
            agreement: Agreement::default(),
            tally: None,
            suspect: config.rank,
            scratch: Addresses::default(),
            spans: Vec::new(),
            views: Vec::new(),
            blocked: vec![0; nodes],
            polls: 0,
            earliest: Duration::MAX,
            counters: Counters::default(),
        })
    }

    /// Reports the phases of operations to this trace. Call it before the first operation.
    pub fn attach_trace(&mut self, trace: Box<dyn Trace>) {
        self.control.trace = Some(trace);
    }

    /// Keeps the last events in this recorder. Call it before the first operation.
    pub fn attach_recorder(&mut self, recorder: Recorder) {
        self.control.recorder = Some(recorder);
    }

    /// Sets the time of the events recorded from now on: that of the current poll of the engine.
    #[inline]
    pub fn set_time(&mut self, now: Duration) {
        self.control.now = now;
    }

    /// Records an event of the current poll, if a recorder is attached.
    pub fn note(&mut self, record: Record) {
        self.control.note(record);
    }

    /// The name of an operation that is on the wire, and the trainer's step: that of this token, or else the oldest of those
    /// that wait for a release.
    pub fn on_the_wire(&self, token: Option<SendToken>) -> Option<(Arc<str>, u64)> {
        let op = match token {
            Some(token) => {
                let seq = (token.0 >> 32) as u32;
                let op = &self.ops[(u64::from(seq) & self.mask) as usize];
                (op.state() != OpState::Vacant && op.seq() as u32 == seq).then_some(op)
            }
            None => {
                let waits = |op: &&Op| op.state() != OpState::Vacant && op.sends.unreleased() > 0;
                self.ops.iter().filter(waits).min_by_key(|op| op.seq())
            }
        };
        op.map(Op::called)
    }

    /// Gives the memory of all slots up for good: after an error, where an accelerator may still refer to it.
    pub fn leak_slots(&mut self) {
        self.slots.host.leak();
        self.slots.device.iter_mut().for_each(Pool::leak);
    }

    /// Gives room for the slots of operations that work on a device ([`Problem::direct`](crate::schedule::Problem::direct)):
    /// memory of that device, which stays allocated for as long as the executor has operations. Once.
    pub fn attach_device_slots(&mut self, memory: TensorRegion) {
        self.slots.device = Some(Pool::of(memory));
    }

    /// The memory of all slots. An accelerator copies from it if tensors of several ranks of a node are in its memory.
    pub fn slots(&self) -> TensorRegion {
        self.slots.host.whole()
    }

    /// Makes the memory shared by the ranks of this node known, once and before the first operation that uses it.
    pub fn attach_node<N: NodeMemory>(&mut self, node: &N) -> Result<(), ExecutorError> {
        let (count, bytes, locals) = (node.lanes(), node.lane_bytes(), self.config.grid.per_node());
        let stage: Vec<_> =
            (0..locals).flat_map(|local| (0..count).map(move |lane| node.stage(local, lane))).collect();
        let result: Vec<_> = (0..count).map(|lane| node.result(lane)).collect();
        if count == 0 || stage.iter().chain(&result).any(|region| region.len() < bytes) {
            return Err(ExecutorError::Lanes { lanes: count, bytes });
        }
        let lanes = Arc::new(Lanes { count, bytes, stage, result });
        self.ops.iter_mut().for_each(|op| op.buffers.attach(Arc::clone(&lanes)));
        self.lanes = Some(lanes);
        Ok(())
    }

    /// Starts an operation. All ranks of the group start the same operations in the same order; that order is their
    /// seq. The memory belongs to the executor until the operation is reported complete.
    pub fn start(&mut self, request: Request) -> Result<OpId, StartError> {
        self.admit(&request)?;
        let seq = self.next_seq;
        let slots = match request.schedule.slot_bytes() {
            0 => None,
            bytes => {
                let pool = self.slots.of_mut(request.schedule.problem().works_on_device());
                Some(pool.and_then(|pool| pool.take(bytes)).ok_or(StartError::Busy { what: "slots" })?)
            }
        };
        self.next_seq += 1;
        let at = (seq & self.mask) as usize;
        let bytes = request.schedule.problem().bytes();
        let key = MatchKey { group: self.config.group, epoch: self.config.epoch, seq };
        let template = Header {
            kind: MessageKind::Data,
            src: self.config.rank,
            key,
            identity: request.identity,
            shape: request.shape,
            round: 0,
            offset: 0,
            granule: 0,
            len: 0,
        };
        self.earliest = self.earliest.min(request.deadline);
        let tensor = match request.identity {
            Identity::Registered { tensor, .. } => Some(tensor),
            Identity::AdHoc(_) => None,
        };
        self.control.note(Record {
            tensor,
            seq,
            value: request.step,
            bytes,
            ..Record::of(RecordKind::Started)
        });
        let entry = (request.priority, seq);
        let place = self.order.partition_point(|&other| other < entry);
        self.order.insert(place, entry);
        let credit = bytes > self.config.eager_bytes as u64;
        let cost = if credit { 0 } else { request.schedule.cost() };
        let positions = self.control.budget.begin(cost);
        let steps = self.spare.pop().unwrap_or_default();
        self.ops[at].start(request, template, slots, (credit, positions), steps);
        self.undecided.push_back(seq);
        self.decide_private();
        Ok(OpId(seq))
    }

    fn admit(&self, request: &Request) -> Result<(), StartError> {
        if let Some(cause) = &self.aborted {
            return Err(StartError::Aborted(Arc::clone(cause)));
        }
        let (shape, schedule) = (&request.shape, &request.schedule);
        let problem = schedule.problem();
        let differs = |what| Err(StartError::Schedule { name: Arc::clone(&request.name), what });
        if problem.shape != *shape {
            return differs("shape");
        }
        if problem.rank != self.config.rank || problem.grid.ranks() != self.config.grid.ranks() {
            return differs("rank or group");
        }
        if problem.grid.per_node() != self.config.grid.per_node() {
            return differs("grid");
        }
        let needed = shape.count.checked_mul(shape.dtype.size() as u64);
        if shape.count > MAX_COUNT || needed != Some(request.data.len() as u64) {
            return Err(StartError::Length {
                name: Arc::clone(&request.name),
                count: shape.count,
                dtype: shape.dtype,
                bytes: request.data.len(),
            });
        }
        if (request.data.kind() == memory::MemoryKind::Device) != problem.access.is_device() {
            return differs("kind of memory");
        }
        if schedule.lane_chunks() > 0 {
            let params = schedule.params();
            let (lanes, bytes) = (params.lanes, params.chunk_bytes_on(&problem.grid));
            if self.lanes.as_ref().is_none_or(|have| have.count != lanes || have.bytes < bytes) {
                return Err(StartError::NoNodeMemory { lanes, bytes });
            }
        }
        let budget = self.slots.of(problem.works_on_device()).map_or(0, Pool::capacity);
        if schedule.slot_bytes() > budget {
            return Err(StartError::SlotBudget { needed: schedule.slot_bytes(), budget });
        }
        if self.ops[(self.next_seq & self.mask) as usize].state() != OpState::Vacant {
            return Err(StartError::Busy { what: "operations" });
        }
        Ok(())
    }

    /// Nothing refers to a posted fragment any more.
    pub fn on_released(&mut self, token: SendToken) {
        let (seq, step) = ((token.0 >> 32) as u32, token.0 as u32);
        let at = (u64::from(seq) & self.mask) as usize;
        let op = &mut self.ops[at];
        if token == SendToken::CONTROL || op.state() == OpState::Vacant || op.seq() as u32 != seq {
            return;
        }
        op.released(step, &mut self.control);
        self.finish_if_done(at);
        self.vacate_if_free(at);
    }

    /// Ends the group on this rank: all operations fail, and no other can start. The first cause stays. The caller notifies the
    /// other ranks.
    pub fn abort(&mut self, culprit: Rank, why: AbortReason) {
        // After a divergence peers leave as soon as they know the votes, which this rank waits for.
        if self.tally.is_some() && why == AbortReason::Failed {
            return;
        }
        let own = self.config.rank;
        if self.aborted.is_none() {
            self.control.note(Record {
                rank: Some(culprit),
                value: why.code().into(),
                ..Record::of(RecordKind::Ended)
            });
        }
        let cause = self.aborted.get_or_insert_with(|| Arc::new(AbortCause::seen_by(own, culprit, why)));
        let cause = Arc::clone(cause);
        while let Some(&(_, seq)) = self.order.first() {
            let cause = Arc::clone(&cause);
            self.fail((seq & self.mask) as usize, |subject| OpError::Aborted { subject, cause });
        }
    }

    /// Why the group has ended, if it has.
    pub fn aborted(&self) -> Option<&Arc<AbortCause>> {
        self.aborted.as_ref()
    }

    /// After an error: transports and accelerators refer to nothing of this executor any more, and will not.
    pub fn fenced(&mut self) {
        for at in 0..self.ops.len() {
            if self.ops[at].state() == OpState::Lingering {
                self.ops[at].fenced();
                self.vacate_if_free(at);
            }
        }
    }

    /// The next operation that has ended, in the order in which they ended.
    pub fn take_completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// When [`poll`](Self::poll) must be called at the latest; `None` if no operation has a deadline. It may be
    /// earlier than needed.
    pub fn next_deadline(&self) -> Option<Duration> {
        (self.earliest < Duration::MAX).then_some(self.earliest)
    }

    /// Operations that have not ended.
    pub fn running(&self) -> usize {
        self.order.len()
    }

    /// Whether an operation waits for an accelerator: then a poll is worth it although no event comes.
    pub fn waits_for_accelerator(&self) -> bool {
        self.order.iter().any(|&(_, seq)| self.ops[(seq & self.mask) as usize].background.asks())
    }

    /// The counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn finish_if_done(&mut self, at: usize) {
        if self.ops[at].steps.are_done() {
            self.end(at, |_| Ok(()));
        }
    }

    fn fail(&mut self, at: usize, error: impl FnOnce(Box<OpSubject>) -> OpError) {
        self.end(at, |op| Err(error(op.subject())));
    }

    /// Ends an operation, if it runs.
    fn end(&mut self, at: usize, result: impl FnOnce(&Op) -> Result<(), OpError>) {
        let op = &mut self.ops[at];
        if !op.end() {
            return;
        }
        let (result, entry, outstanding) = (result(op), op.entry(), op.outstanding());
        let (small, early) = (!op.sends.wait_for_credit(), !op.early.is_empty());
        if let Ok(place) = self.order.binary_search(&entry) {
            self.order.remove(place);
        }
        if self.order.is_empty() {
            self.earliest = Duration::MAX;
        }
        if early {
            self.drop_parked(at, entry.1);
        }
        if small {
            self.raise_floor(at);
        }
        let (what, rank) = match &result {
            Ok(()) => (RecordKind::Done, None),
            Err(_) => (RecordKind::Failed, self.aborted.as_ref().map(|cause| cause.culprit)),
        };
        self.control.note(Record { rank, seq: entry.1, ..Record::of(what) });
        self.completed.push_back(Completed { op: OpId(entry.1), result, outstanding });
        self.vacate_if_free(at);
    }

    fn vacate_if_free(&mut self, at: usize) {
        let op = &mut self.ops[at];
        if !op.is_free() {
            return;
        }
        let (slots, steps) = op.vacate();
        self.spare.push(steps);
        if let Some(slots) = slots {
            let on_device = slots.region().kind() == memory::MemoryKind::Device;
            if let Some(pool) = self.slots.of_mut(on_device) {
                pool.put(slots);
            }
        }
    }
}

/// The fragments of messages to a peer: a multiple of the unit that a header can carry.
fn granule(max_fragment: usize) -> u32 {
    let granule = max_fragment.clamp(GRANULE_UNIT, crate::header::MAX_GRANULE);
    (granule / GRANULE_UNIT * GRANULE_UNIT) as u32
}

#[cfg(test)]
mod tests;
