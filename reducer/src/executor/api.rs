//! The executor's public types: configuration, requests, results, errors and counters.

use super::divergence::Divergence;
use crate::grid::{Grid, Rank};
use crate::header::{Identity, Shape, View};
use crate::kernel::Kernels;
use crate::memory::TensorRegion;
use crate::schedule::{Buffer, Schedule};
use crate::transport::{AcceleratorError, DeviceTensor};
use core::fmt;
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

/// Why an executor cannot be made as configured.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExecutorError {
    /// Too many operations at once.
    #[error("{0} operations at once are too many; set max_operations to 1048576 or less")]
    Operations(usize),
    /// The rank is not of the grid.
    #[error("{rank} does not exist in a group of {ranks} ranks; number ranks from 0")]
    Rank {
        /// The rank.
        rank: Rank,
        /// Ranks of the group.
        ranks: u32,
    },
    /// The slots' memory cannot be allocated.
    #[error("{0} bytes of slots cannot be allocated; lower slot_pool_bytes")]
    SlotPool(usize),
    /// The node's memory is smaller than it says.
    #[error(
        "the node's memory does not have {lanes} lanes of {bytes} bytes; create it with the plan's numbers"
    )]
    Lanes {
        /// Lanes.
        lanes: u32,
        /// Bytes of each area.
        bytes: usize,
    },
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

/// Why an operation was not started. Its seq is not used up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StartError {
    /// Too many operations, or too many slots in use.
    #[error("{what} are all in use; poll until an operation completes, then start again")]
    Busy {
        /// The exhausted resource.
        what: &'static str,
    },
    /// The schedule needs more slots than the executor has in all.
    #[error(
        "the schedule needs {needed} bytes of slots and the executor has {budget}; raise slot_pool_bytes"
    )]
    SlotBudget {
        /// Bytes needed.
        needed: usize,
        /// Bytes available.
        budget: usize,
    },
    /// A region is not as long as this rank's part.
    #[error("{shape} of tensor \"{name}\" takes {needed} bytes and not {bytes}; check count and dtype")]
    Length {
        /// The tensor's name.
        name: Arc<str>,
        /// The operation.
        shape: Shape,
        /// Bytes of the rank's input, or output.
        needed: u64,
        /// Bytes of the region.
        bytes: usize,
    },
    /// The schedule was made for another shape, rank or grid.
    #[error("the schedule of tensor \"{name}\" was built for another {what}; build it for this one")]
    Schedule {
        /// The tensor's name.
        name: Arc<str>,
        /// What differs.
        what: &'static str,
    },
    /// The schedule uses memory shared within the node, and none fitting was attached.
    #[error("the schedule uses {lanes} shared lanes of {bytes} bytes; attach a node memory that has them")]
    NoNodeMemory {
        /// Lanes.
        lanes: u32,
        /// Bytes of each.
        bytes: usize,
    },
    /// The group is over.
    #[error("the group has ended: {0}")]
    Aborted(Arc<AbortCause>),
}

/// Why a group ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{culprit}: {reason}{}", SeenText(.seen))]
pub struct AbortCause {
    /// The rank that every survivor names.
    pub culprit: Rank,
    /// What happened to it.
    pub reason: AbortReason,
    /// How it showed on this rank, in the words of what noticed it. Other ranks are told the reason alone.
    pub seen: Option<Box<str>>,
}

/// What happened to the culprit of an abort.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AbortReason {
    /// No heartbeat came from it, or its connection is gone.
    #[error("the process is dead or unreachable; look at its log and host, then start the job again")]
    Failed,
    /// It left while others needed it.
    #[error(
        "it left the group before the others had ended their operations; look at its log, and call finalize on every rank before \
         its group is dropped"
    )]
    Aborted,
    /// An operation missed its deadline while waiting for it.
    #[error(
        "it did not take part in an operation before the deadline; check that it runs the same operations"
    )]
    Late,
    /// It runs other operations than other ranks; how, once that is known.
    #[error("{}; run the same operations in the same order on every rank", DivergenceText(_0))]
    Diverged(Option<Box<Divergence>>),
    /// Its accelerator failed under an operation.
    #[error("its accelerator failed; look at its log, and at the device (`nvidia-smi`)")]
    Accelerator,
    /// Its own port, device or address is gone; it reported this itself.
    #[error("it has lost its network port, device or address; look at its log, and at the links of its host")]
    Disconnected,
    /// It sent what no schedule of this plan sends.
    #[error("it sent a message that fits no schedule; run the same version and plan on all ranks")]
    Protocol,
    /// It found that the others have declared it dead.
    #[error(
        "it was stopped (by a debugger, SIGSTOP, a host that was suspended or out of memory) or cut off for longer than the \
         heartbeat time-out, and the other ranks have given it up; find what stopped it, or raise heartbeat_timeout, and start \
         the job again"
    )]
    Stopped,
    /// It has ended the group itself; why, once that is known.
    #[error("it has given up{}; look at its log", WordsText(_0))]
    GaveUp(Option<Box<str>>),
    /// Its heartbeats arrive, and what is sent to it does not.
    #[error(
        "it is alive, and messages to it do not arrive; see that all switches and ports on the way to it carry packets of the \
         configured MTU"
    )]
    Unreachable,
}

impl AbortCause {
    /// The cause as rank `own` reports it. A rank that learns that it has failed is alive and was only declared dead: it reports
    /// [`AbortReason::Stopped`].
    pub fn seen_by(own: Rank, culprit: Rank, reason: AbortReason) -> Self {
        let given_up = culprit == own && reason == AbortReason::Failed;
        Self { culprit, reason: if given_up { AbortReason::Stopped } else { reason }, seen: None }
    }
}

/// What this rank has seen, behind the reason.
struct SeenText<'a>(&'a Option<Box<str>>);

impl fmt::Display for SeenText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(seen) => write!(f, " (as this rank saw it: {seen})"),
            None => Ok(()),
        }
    }
}

/// The difference of a divergence's culprit, as far as it is known.
struct DivergenceText<'a>(&'a Option<Box<Divergence>>);

impl fmt::Display for DivergenceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(divergence) => divergence.fmt(f),
            None => f.write_str("it runs another operation"),
        }
    }
}

/// What a rank that has given up says.
struct WordsText<'a>(&'a Option<Box<str>>);

impl fmt::Display for WordsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(words) => write!(f, ": {words}"),
            None => Ok(()),
        }
    }
}

impl AbortReason {
    /// The reason as a number on the wire; 0 stands for none.
    pub fn code(&self) -> u32 {
        match self {
            Self::Failed => 1,
            Self::Aborted => 2,
            Self::Late => 3,
            Self::Diverged(_) => 4,
            Self::Protocol => 5,
            Self::Accelerator => 6,
            Self::Disconnected => 7,
            Self::Stopped => 8,
            Self::Unreachable => 9,
            Self::GaveUp(_) => 10,
        }
    }

    /// The reason of this number. An unknown number ends the group too, as [`Aborted`](Self::Aborted).
    pub fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Failed,
            3 => Self::Late,
            4 => Self::Diverged(None),
            5 => Self::Protocol,
            6 => Self::Accelerator,
            7 => Self::Disconnected,
            8 => Self::Stopped,
            9 => Self::Unreachable,
            10 => Self::GaveUp(None),
            _ => Self::Aborted,
        }
    }
}

/// Which operation an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpSubject {
    /// The operation's number.
    pub seq: u64,
    /// The operation.
    pub shape: Shape,
    /// The tensor.
    pub identity: Identity,
    /// The tensor's name.
    pub name: Arc<str>,
    /// The trainer's step.
    pub step: u64,
}

impl fmt::Display for OpSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, shape, identity, name, step } = self;
        match identity {
            Identity::Registered { .. } => {
                write!(f, "{} of \"{name}\" ({identity}; step {step}, seq {seq})", shape.collective)
            }
            Identity::AdHoc { .. } | Identity::Started { .. } => {
                let view = View { identity: *identity, shape: *shape };
                write!(f, "{view} (step {step}, seq {seq})")
            }
        }
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpError {
    /// The deadline passed.
    #[error(
        "{subject} missed its deadline, waiting for {}; check that they are alive and run the same operations, or \
         allow more time",
        Ranks(missing)
    )]
    Deadline {
        /// The operation.
        subject: Box<OpSubject>,
        /// The ranks that it waits for.
        missing: Vec<Rank>,
    },
    /// The accelerator that holds this rank's tensor failed.
    #[error("{subject}: {error}")]
    Accelerator {
        /// The operation.
        subject: Box<OpSubject>,
        /// The accelerator's error.
        error: AcceleratorError,
    },
    /// It failed, and an accelerator may still read or write the tensor.
    #[error("{error}; {rank}'s GPU may still use it: leave the tensor's memory as it is")]
    InUse {
        /// How it failed.
        error: Box<OpError>,
        /// The rank whose accelerator has not confirmed that it is idle.
        rank: Rank,
    },
    /// The group ended while the operation ran.
    #[error("{subject} was given up: {cause}")]
    Aborted {
        /// The operation.
        subject: Box<OpSubject>,
        /// Who and why.
        cause: Arc<AbortCause>,
    },
}

impl OpError {
    /// The operation.
    pub fn subject(&self) -> &OpSubject {
        match self {
            Self::Deadline { subject, .. }
            | Self::Accelerator { subject, .. }
            | Self::Aborted { subject, .. } => subject,
            Self::InUse { error, .. } => error.subject(),
        }
    }
}

struct Ranks<'a>(&'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("its own sends to be acknowledged");
        }
        for (i, rank) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{rank}")?;
        }
        Ok(())
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

impl Refusal {
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
