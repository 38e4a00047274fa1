//! The executor's public types: configuration, requests, results and counters here, errors and the causes of a group's end in files of their own.

mod abort;
mod error;

pub use self::abort::{AbortCause, AbortReason, Divergence};
pub use self::error::{ExecutorError, OpError, OpSubject, StartError};

use crate::grid::{Grid, Rank};
use crate::header::{Identity, MatchKey, Shape};
use crate::kernel::Kernels;
use crate::memory::TensorRegion;
use crate::schedule::{Buffer, Schedule};
use crate::transport::DeviceTensor;
use core::time::Duration;
use std::sync::Arc;
use thiserror::Error;

/// The configuration of an executor. One executor serves one group in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorConfig {
    /// This rank.
    pub rank: Rank,
    /// The group's ranks; the same on all of them.
    pub grid: Grid,
    /// The communicator.
    pub group: u32,
    /// Its membership version; messages of another one are refused.
    pub epoch: u32,
    /// The reductions to use.
    pub kernels: Kernels,
    /// The plan's eager_bytes: operations up to this size wait for no credit.
    pub eager_bytes: usize,
    /// Room for early messages, per peer, in bytes; the same on all ranks, since it limits how far ahead of a peer they send.
    pub eager_pool_bytes: usize,
    /// Room for the slots of all operations, in bytes.
    pub slot_pool_bytes: usize,
    /// Whether that room is only allocated for the first operation that has slots; then [`slots`](super::Executor::slots) are empty.
    pub lazy_slots: bool,
    /// Operations at once; rounded up to a power of two.
    pub max_operations: usize,
    /// Bytes to copy and reduce in one poll before it returns (at least one step is done).
    pub poll_bytes: usize,
    /// Whether credit messages carry the destination of what they grant, for a transport that can write there.
    pub one_sided: bool,
}

impl ExecutorConfig {
    /// Ranks of this rank's node.
    pub fn locals(&self) -> u32 {
        self.grid.locals(self.grid.node_of(self.rank))
    }

    /// Usual sizes for a rank of a grid.
    pub fn new(rank: Rank, grid: Grid, kernels: Kernels) -> Self {
        Self {
            rank,
            grid,
            group: 0,
            epoch: 0,
            kernels,
            eager_bytes: 16 << 10,
            eager_pool_bytes: 1 << 20,
            slot_pool_bytes: 64 << 20,
            lazy_slots: false,
            max_operations: 256,
            poll_bytes: 1 << 20,
            one_sided: false,
        }
    }
}

/// Identifies an operation of an executor: its seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// One collective to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The tensor; must be the same on all ranks.
    pub identity: Identity,
    /// Collective, element type, reduction, count; must be the same on all ranks.
    pub shape: Shape,
    /// The memory of the output, which is the input, too, for an all-reduce in place and a broadcast;
    /// [`output_bytes`](crate::schedule::Problem::output_bytes) long.
    pub data: TensorRegion,
    /// The memory of the input, where steps have one ([`Problem::has_input`](crate::schedule::Problem::has_input));
    /// [`input_bytes`](crate::schedule::Problem::input_bytes) long. It may be a part of the output, or the other way round.
    pub input: TensorRegion,
    /// This rank's steps, from [`Plan::schedule`](crate::plan::Plan::schedule).
    pub schedule: Arc<Schedule>,
    /// Lower is more urgent: the tensor's index in the table.
    pub priority: u32,
    /// When to give up; [`Duration::MAX`] to wait for ever.
    pub deadline: Duration,
    /// The tensor's name, for messages.
    pub name: Arc<str>,
    /// The trainer's step, for messages and traces.
    pub step: u64,
    /// When the caller gave it, for traces.
    pub pushed: Duration,
    /// Set if the tensor is in an accelerator's memory.
    pub device: Option<DeviceTensor>,
}

impl Request {
    /// The memory of what this rank gives; empty where it gives nothing.
    pub fn given(&self) -> TensorRegion {
        let problem = self.schedule.problem();
        match problem.given_in() {
            // Of a broadcast only the root gives what is there.
            _ if problem.input_bytes() == 0 => TensorRegion::empty(),
            Buffer::Input => self.input,
            _ => self.data,
        }
    }
}

/// An operation that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Which.
    pub op: OpId,
    /// How. On success the result is in place and no transport refers to the tensor's memory.
    pub result: Result<(), OpError>,
    /// Fragments and copies of the tensor itself that a transport or an accelerator may still refer to: 0 on success. After an
    /// error, fence them (and call [`fenced`](super::Executor::fenced)) before the memory is given back.
    pub outstanding: u32,
}

/// The result of delivering a message to the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It was used, copied, or is a duplicate: acknowledge it.
    Consumed,
    /// It was refused.
    Refused(Refusal),
}

/// Why a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No room for it yet: acknowledge the refusal, so that it is sent again later.
    #[error(
        "the operation has not started here and there is no room to keep the message; send it again later"
    )]
    NotReady,
    /// Another group's: hand it to that group's executor.
    #[error("the message belongs to another group; hand it to that group's executor")]
    OtherGroup,
    /// A message of an earlier or later membership: drop it.
    #[error("the message belongs to another epoch of the group; drop it")]
    OtherEpoch,
    /// The sender's view of the operation differs: the group ends.
    #[error("the sender runs another operation; the group ends")]
    Mismatch,
    /// It fits no step of the schedule: drop it, and count it.
    #[error("the message fits no step of the operation's schedule; drop it")]
    Malformed,
    /// The group is over: drop it.
    #[error("the group has ended; drop the message")]
    Aborted,
}

impl Disposition {
    /// Whether the message has to be offered again.
    #[inline]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Refused(why) if why.is_retryable())
    }
}

impl Refusal {
    /// Why the receiver of a membership refuses a message at its key alone.
    #[inline(always)]
    pub(crate) fn of_key(key: &MatchKey, group: u32, epoch: u32) -> Option<Self> {
        if key.group != group {
            return Some(Self::OtherGroup);
        }
        (key.epoch != epoch).then_some(Self::OtherEpoch)
    }

    /// Whether the sender should try again.
    pub fn is_retryable(self) -> bool {
        self == Self::NotReady
    }
}

/// The result of a poll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether any step, post or completion happened: if not, there is nothing to do until an event or a flag.
    pub worked: bool,
}

/// The counters of an executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fragments reduced or placed straight from the receive buffer.
    pub fragments: u64,
    /// Fragments that had been consumed before.
    pub duplicates: u64,
    /// Early messages that were kept.
    pub parked: u64,
    /// Early messages that found no room.
    pub not_ready: u64,
    /// Messages that fit no step.
    pub malformed: u64,
    /// Fragments posted.
    pub posted: u64,
    /// Operations whose tensors are accessed by all ranks of the node, and not staged.
    pub in_place: u64,
}
