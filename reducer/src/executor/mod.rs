//! Runs schedules: many operations at once, fragment by fragment, without a thread, a clock or a socket.
//!
//! An operation is a set of counters over its [`Schedule`](crate::schedule::Schedule): each step has the number of edges it still waits
//! for. The event that finishes a step (its own end, the last fragment of a message, an acknowledgement) counts down its
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
//! only after the peer has used what was sent, which `check` proves.

mod agreement;
mod api;
mod background;
mod budget;
mod control;
mod deadlines;
mod decide;
mod divergence;
mod ended;
mod lanes;
mod op;
mod park;
mod queues;
mod receive;
mod ring;
mod run;
mod scratch;
mod slots;
mod trace;
mod waits;

pub use self::api::{
    AbortCause, AbortReason, Completed, Counters, Disposition, Divergence, ExecutorConfig, ExecutorError,
    OpError, OpId, OpSubject, Progress, Refusal, Request, StartError,
};
pub use self::divergence::{Tally, Vote};

pub use self::trace::{Phase, PhaseRecord, Trace};

use self::agreement::Agreement;
use self::control::Control;
use self::deadlines::Deadlines;
use self::ended::Ended;
use self::lanes::LaneUses;
use self::op::{Op, OpState};
use self::park::Parking;
use self::queues::Queues;
use self::ring::Ring;
use self::scratch::Scratch;
use self::slots::Slots;
use self::waits::{LaneWaits, Locals};
use crate::header::{Header, Identity, MAX_COUNT, MatchKey, MessageKind};
use crate::memory::{self, TensorRegion};
use crate::recorder::{Record, RecordKind, Recorder, RegisteredTensor};
use crate::transport::{NodeMemory, SendToken};
use core::time::Duration;
use std::sync::Arc;

/// Runs the operations of one group in one epoch. Drop it only when its transports refer to nothing any more: it
/// owns the slots that they send from.
#[derive(Debug)]
pub struct Executor {
    config: ExecutorConfig,
    locals: Locals,
    ring: Ring,
    lanes: LaneUses,
    slots: Slots,
    parking: Parking,
    control: Control,
    ended: Ended,
    agreement: Agreement,
    deadlines: Deadlines,
    queues: Queues,
    waits: LaneWaits,
    scratch: Scratch,
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
    /// # Errors
    /// The grid, the rank or a size in the configuration cannot be.
    ///
    /// # Safety
    /// Ranges of memory go in and out without a lifetime, and the owner ensures the order. Ranges of the executor's own memory that it
    /// hands out (to transport and accelerator, by [`landing`](Self::landing), by [`slots`](Self::slots)) are not used any more when it is
    /// dropped: the others go first. The memory that its node and accelerator name stays for as long as it is polled.
    #[allow(unsafe_code)]
    pub unsafe fn new(config: ExecutorConfig) -> Result<Self, ExecutorError> {
        let operations = config.max_operations.checked_next_power_of_two().filter(|&n| n <= 1 << 20);
        let operations = operations.ok_or(ExecutorError::Operations(config.max_operations))?.max(1);
        if !config.grid.contains(config.rank) {
            return Err(ExecutorError::Rank { rank: config.rank, ranks: config.grid.ranks() });
        }
        let nodes = config.grid.nodes() as usize;
        let slots = Slots::new(config.slot_pool_bytes, config.lazy_slots);
        let slots = slots.ok_or(ExecutorError::SlotPool(config.slot_pool_bytes))?;
        let locals = Locals { count: config.locals(), own: config.grid.local_of(config.rank) };
        Ok(Self {
            config,
            locals,
            ring: Ring::new(operations),
            lanes: LaneUses::default(),
            slots,
            parking: Parking::new(nodes, config.eager_pool_bytes, operations),
            control: Control::new(nodes, &config),
            ended: Ended::new(operations),
            agreement: Agreement::new(config.rank),
            deadlines: Deadlines::new(),
            queues: Queues::new(nodes),
            waits: LaneWaits::default(),
            scratch: Scratch::default(),
            counters: Counters::default(),
        })
    }

    /// Reports the phases of operations to this trace. Call it before the first operation.
    pub fn attach_trace(&mut self, trace: Box<dyn Trace>) {
        self.control.attach_trace(trace);
    }

    /// Keeps the last events in this recorder. Call it before the first operation.
    pub fn attach_recorder(&mut self, recorder: Recorder) {
        self.control.attach_recorder(recorder);
    }

    /// Sets the time of the events recorded from now on: that of the current poll of the engine.
    #[inline]
    pub fn set_time(&mut self, now: Duration) {
        self.control.set_time(now);
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
                let op = self.ring.op(token.seq());
                (op.state() != OpState::Vacant && token.is_of(op.seq())).then_some(op)
            }
            None => {
                let waits = |op: &&Op| op.state() != OpState::Vacant && op.sends.unreleased() > 0;
                self.ring.iter().filter(waits).min_by_key(|op| op.seq())
            }
        };
        op.map(Op::name_and_step)
    }

    /// Gives the memory of all slots up for good: after an error, where an accelerator may still refer to it.
    pub fn leak_slots(&mut self) {
        self.slots.leak();
    }

    /// Gives room for the slots of operations that work on a device ([`Problem::direct`](crate::schedule::Problem::direct)):
    /// memory of that device, which stays allocated for as long as the executor has operations. Once.
    pub fn attach_device_slots(&mut self, memory: TensorRegion) {
        self.slots.attach(memory);
    }

    /// The memory of all slots. An accelerator copies from it if tensors of several ranks of a node are in its memory.
    pub fn slots(&self) -> TensorRegion {
        self.slots.on_host()
    }

    /// Makes the memory shared by the ranks of this node known, once and before the first operation that uses it.
    ///
    /// # Errors
    /// The memory is smaller than it says.
    pub fn attach_node<N: NodeMemory>(&mut self, node: &N) -> Result<(), ExecutorError> {
        self.ring.attach(self.lanes.attach(node, self.config.locals())?);
        self.waits.attach(node.lanes(), self.config.max_operations);
        Ok(())
    }

    /// Starts an operation. All ranks of the group start the same operations in the same order; that order is their
    /// seq. The memory belongs to the executor until the operation is reported complete.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong with the request, or that no place is free yet; the executor is as before.
    pub fn start(&mut self, request: Request) -> Result<OpId, StartError> {
        let seq = self.ring.next_seq();
        self.admit(&request).inspect_err(|error| {
            if let StartError::Aborted(cause) = error {
                let rank = Some(cause.culprit);
                self.control.note(Record { rank, seq, ..Record::of(RecordKind::Failed) });
            }
        })?;
        let slots = match request.schedule.slot_bytes() {
            0 => None,
            bytes => Some(self.slots.take(request.schedule.problem().works_on_device(), bytes)?),
        };
        let bytes = request.schedule.problem().bytes();
        let key = MatchKey { group: self.config.group, epoch: self.config.epoch, seq };
        let template = Header {
            identity: request.identity,
            shape: request.shape,
            ..Header::new(MessageKind::Data, self.config.rank, key)
        };
        self.deadlines.add(request.deadline);
        let tensor = match request.identity {
            Identity::Registered { generation, tensor, .. } => {
                u16::try_from(generation).ok().map(|generation| RegisteredTensor { generation, tensor })
            }
            Identity::AdHoc { .. } | Identity::Started { .. } => None,
        };
        self.control.note(Record {
            tensor,
            seq,
            value: request.step,
            bytes,
            ..Record::of(RecordKind::Started)
        });
        let credit = bytes > self.config.eager_bytes as u64;
        let cost = if credit { 0 } else { request.schedule.cost() };
        let positions = self.control.budget.begin(cost);
        self.ring.start(request, template, slots, (credit, positions), self.control.time());
        self.decide_private();
        Ok(OpId(seq))
    }

    fn admit(&self, request: &Request) -> Result<(), StartError> {
        if let Some(cause) = self.ended.cause() {
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
        if !problem.grid.has_nodes_of(&self.config.grid) {
            return differs("grid");
        }
        let input = if problem.has_input() { problem.input_bytes() } else { 0 };
        for (region, bytes) in [(&request.data, problem.output_bytes()), (&request.input, input)] {
            if shape.count > MAX_COUNT || bytes != region.len() as u64 {
                return Err(StartError::Length {
                    name: Arc::clone(&request.name),
                    shape: *shape,
                    needed: bytes,
                    bytes: region.len(),
                });
            }
            let is_device = region.kind() == memory::MemoryKind::Device;
            if !region.is_empty() && is_device != problem.access.is_device() {
                return differs("kind of memory");
            }
        }
        if schedule.lane_chunks() > 0 {
            let params = schedule.params();
            let (lanes, bytes) = (params.lanes, params.chunk_bytes_on(&problem.grid));
            if !self.lanes.fit(lanes, bytes) {
                return Err(StartError::NoNodeMemory { lanes, bytes });
            }
        }
        let budget = self.slots.capacity(problem.works_on_device());
        if schedule.slot_bytes() > budget {
            return Err(StartError::SlotBudget { needed: schedule.slot_bytes(), budget });
        }
        if !self.ring.has_room() {
            return Err(StartError::Busy { what: "operations" });
        }
        Ok(())
    }

    /// The configuration that it was made with.
    pub fn config(&self) -> &ExecutorConfig {
        &self.config
    }

    /// Operations that have not ended.
    pub fn running(&self) -> usize {
        self.ring.running().len()
    }

    /// Whether an operation waits for an accelerator: then a poll is worth it although no event comes.
    pub fn waits_for_accelerator(&self) -> bool {
        self.ring.all_due().any(|op| op.background.is_pending())
    }

    /// The counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
