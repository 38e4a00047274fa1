//! The interfaces that an executor uses: a [`Transport`] to the leaders of other nodes (the up
//! grid), a [`NodeMemory`] shared with the ranks of its own node (the sub grid), and an [`Accelerator`] that copies and folds
//! where the CPU cannot.
//!
//! All are polled and never block. A transport reports events through the executor's `on_...` methods: a received fragment while
//! its bytes are still in the receive buffer (or once they were placed in their destination), and a token once nothing refers to its
//! range any more.

use crate::dtype::{DType, ReduceOp};
use crate::grid::Rank;
use crate::header::{Header, View};
use crate::memory::{Span, TensorRegion};
use std::sync::Arc;
use thiserror::Error;

/// Identifies one posted fragment until the transport releases it.
///
/// ```text
///   bits 52..64  who has posted it, where several share a transport; an executor writes 0
///        32..52  the low bits of an operation's seq
///         0..32  a step of it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendToken(pub u64);

impl SendToken {
    /// The token of control messages, which carry no payload. Releasing it is allowed and means nothing.
    pub const CONTROL: Self = Self(u64::MAX);

    /// The class of the tokens of messages of their own (`p2p`): the high four of the low 32 bits, where a collective's token has its step.
    pub(crate) const P2P: u64 = 8 << 28;

    /// The class of the tokens of accesses to windows, and of answers to them.
    pub(crate) const WINDOW: u64 = 9 << 28;

    /// Whether it is of a message that a rank sends of itself, outside any collective.
    #[inline]
    pub fn is_p2p(self) -> bool {
        self.0 & 15 << 28 == Self::P2P
    }

    /// Whether it is of an access to a window, or of the answer to one.
    #[inline]
    pub fn is_window(self) -> bool {
        self.0 & 15 << 28 == Self::WINDOW
    }

    /// Owners are numbered below this.
    pub const OWNERS: u32 = (1 << 12) - 1;

    const OWNER_SHIFT: u32 = 52;

    /// The bits of an operation's seq: as many as tell the operations of an executor at one time apart.
    const SEQ: u64 = (1 << 20) - 1;

    /// The token of a step of an operation.
    #[inline]
    pub(crate) fn new(seq: u64, step: u32) -> Self {
        Self((seq & Self::SEQ) << 32 | u64::from(step))
    }

    /// The low bits of the operation's seq.
    #[inline]
    pub(crate) fn seq(self) -> u64 {
        self.0 >> 32 & Self::SEQ
    }

    /// Whether it may be one of operation `seq`.
    #[inline]
    pub(crate) fn is_of(self, seq: u64) -> bool {
        self.seq() == seq & Self::SEQ
    }

    /// The step.
    #[inline]
    pub(crate) fn step(self) -> u32 {
        self.0 as u32
    }

    /// The number of the owner that has posted it; 0 unless [`owned_by`](Self::owned_by) has said otherwise.
    #[inline]
    pub fn owner(self) -> u32 {
        (self.0 >> Self::OWNER_SHIFT) as u32
    }

    /// The same token of another owner, one of [`OWNERS`](Self::OWNERS). That of control messages stays what it is.
    #[inline]
    pub fn owned_by(self, owner: u32) -> Self {
        match self {
            Self::CONTROL => self,
            Self(token) => Self(token << 12 >> 12 | u64::from(owner) << Self::OWNER_SHIFT),
        }
    }
}

/// The payload of a fragment: a range of registered memory, unwritten from the post until the release. Empty for
/// control messages and for messages without bytes.
pub type PayloadRange = Span;

/// Where a peer may write the messages of a credit: message i fills as many bytes as `first` has, at i times `stride` bytes after it.
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    /// Where the first one goes.
    pub first: Span,
    /// Bytes from the beginning of one to that of the next; 0 if there is one.
    pub stride: usize,
}

/// Why a fragment was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// No room now; the executor offers the fragment again at its next poll.
    #[error("the send queue is full; poll again")]
    Full,
    /// The peer is gone. The executor goes on as if the queue were full: the transport reports the loss to its owner as well, which
    /// decides what becomes of the group.
    #[error("the peer has failed; look at what the transport reports of it")]
    PeerFailed,
}

/// Payload bytes per datagram to a rank that a transport does not know, whose sends are refused: the least of any.
pub const LEAST_FRAGMENT: usize = 64;

/// All up-grid peers of this rank. Datagrams are delivered at least once, in any order.
pub trait Transport {
    /// Payload bytes per datagram to this peer: a multiple of 64, at least [`LEAST_FRAGMENT`]. It may change between calls; a
    /// message keeps the value that it started with.
    fn max_fragment(&self, to: Rank) -> usize;

    /// Posts one datagram: the encoded header, then the payload. After `Ok` the range must stay as it is until the
    /// executor's `on_released(token)`; after an error nothing of it is kept.
    ///
    /// # Errors
    /// [`SendError::Full`] and [`SendError::PeerFailed`]: the executor tries again at its next poll.
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError>;

    /// Posts a credit message. Where a transport is one-sided, the peer's fragments may be written to the `landing` from then
    /// on, and be reported with `on_placed`; the default ignores it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn credit(&mut self, to: Rank, header: &Header, _landing: Option<Landing>) -> Result<(), SendError> {
        self.send(to, header, Span::empty(), SendToken::CONTROL)
    }

    /// Asks the transport to request an acknowledgement of what was posted last to this peer, since the executor waits for its
    /// release. A hint; the default does nothing.
    fn request_ack(&mut self, _to: Rank) {}
}

/// A rank's progress in the current use of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LaneFlag {
    /// The staging area holds the part of this rank's contribution that the others need.
    Staged = 0,
    /// This rank's slice of the node's result is folded.
    Reduced = 1,
    /// The result area holds what is to be copied out.
    Final = 2,
    /// This rank no longer reads the lane.
    Consumed = 3,
}

impl LaneFlag {
    /// Every flag, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Staged, Self::Reduced, Self::Final, Self::Consumed];
}

/// Where that lies which a local rank gives for an operation, as far as this rank knows.
#[derive(Clone, Copy, Debug)]
pub enum TensorView {
    /// The rank has not announced it, or runs another operation.
    Unknown,
    /// In the rank's private memory, or the rank does not read what others give where it lies.
    Private,
    /// In memory that the node shares: this region; empty where the rank gives nothing.
    Shared(TensorRegion),
    /// In an accelerator's memory, which this rank's accelerator may be able to open.
    Exported(ExportedTensor),
}

/// A tensor in an accelerator's memory, as other ranks of the node open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedTensor {
    /// Its device address in the process that it belongs to.
    pub address: u64,
    /// The handle that another process opens it with, in the accelerator's own format.
    pub handle: [u8; Self::HANDLE],
    /// Whether it belongs to this process.
    pub is_own: bool,
}

impl ExportedTensor {
    /// Bytes of a handle.
    pub const HANDLE: usize = 88;
}

/// Memory shared by the ranks of one node, cut into lanes. A lane is one staging area per local rank and one result
/// area, and four flags per local rank. A chunk of an operation uses one lane; the flags hold the number of the use,
/// which only grows, so nothing is ever reset.
pub trait NodeMemory {
    /// Whether a rank of the node has started operation `seq`; `None` where that is not known.
    fn has_started(&self, _local: u32, _seq: u64) -> Option<bool> {
        None
    }

    /// Whether all ranks of the node run the same as operation `seq`; `None` before all have started it. This rank has.
    fn agrees(&self, _seq: u64) -> Option<bool> {
        Some(true)
    }

    /// The operation that a local rank has announced as `seq`, as long as the announcement is kept.
    fn view(&self, _local: u32, _seq: u64) -> Option<View> {
        None
    }

    /// The location of a local rank's tensor of `len` bytes for operation `seq`. Once known, the answer never changes, and it is
    /// the same on all ranks. [`TensorView::Shared`] means also that the rank has handed the tensor over, and that its
    /// writes there can be seen; [`TensorView::Exported`] does not.
    fn tensor(&self, _local: u32, _seq: u64, _len: usize) -> TensorView {
        TensorView::Private
    }

    /// Announces whether this rank could open the tensors that the others have exported for operation `seq`.
    fn agree(&self, _seq: u64, _opened: bool) {}

    /// Whether a local rank could open the others' tensors, once it has announced that.
    fn has_agreed(&self, _local: u32, _seq: u64) -> Option<bool> {
        Some(false)
    }

    /// Lanes; the same on all ranks.
    fn lanes(&self) -> u32;

    /// Bytes of each area; a multiple of 64.
    fn lane_bytes(&self) -> usize;

    /// The staging area of a local rank. The answer never changes.
    fn stage(&self, local: u32, lane: u32) -> TensorRegion;

    /// The node's result area. The answer never changes.
    fn result(&self, lane: u32) -> TensorRegion;

    /// Sets this rank's flag with release ordering: a rank that observes the value sees every write before it. Flags
    /// start at zero.
    fn signal(&self, lane: u32, flag: LaneFlag, value: u64);

    /// Reads a local rank's flag with acquire ordering.
    fn observe(&self, local: u32, lane: u32, flag: LaneFlag) -> u64;
}

/// Identifies a copy or a fold that an accelerator has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceFence(pub u64);

/// Identifies a point in a stream of the trainer: a tensor's contents are ready once the accelerator has reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamEvent(pub u64);

/// The properties of a tensor in an accelerator's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// When the tensor's contents are ready; nothing starts before. `None` if they are ready now.
    pub ready_event: Option<StreamEvent>,
    /// How the node's other ranks open it, if they may.
    pub export: Option<ExportedTensor>,
}

/// An accelerator failed: its message, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AcceleratorError(pub Arc<str>);

/// A reduction for an accelerator: `destinations[..][i] = (sources[0][i] op sources[1][i] op ...) / divide_by`. All ranges have one length.
/// They are memory of accelerators, or page-locked memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFold<'a> {
    /// The elements.
    pub dtype: DType,
    /// How they are combined, in the order of the sources.
    pub op: ReduceOp,
    /// Where the result goes: one range or more, disjoint. Each may be exactly one of the sources.
    pub destinations: &'a [Span],
    /// The operands; at least one.
    pub sources: &'a [Span],
    /// The divisor of sums, for an average.
    pub divide_by: Option<u32>,
}

/// Copies between memory of an accelerator ([`MemoryKind::Device`](crate::memory::MemoryKind::Device)) and the host's, and folds there, in the
/// background.
pub trait Accelerator {
    /// Starts a copy between two ranges of one length. Neither may be modified until it is done.
    ///
    /// # Errors
    /// Nothing is copied then.
    fn copy(&mut self, into: Span, from: Span) -> Result<DeviceFence, AcceleratorError>;

    /// Makes another rank's tensor of `len` bytes accessible to this rank's [`fold`](Self::fold)s, until the group ends. `None` if
    /// that cannot be: then tensors are staged.
    fn open(&mut self, _tensor: &ExportedTensor, _len: usize) -> Option<TensorRegion> {
        None
    }

    /// Starts a fold. No range may be modified until it is done.
    ///
    /// # Errors
    /// Nothing is written then.
    fn fold(&mut self, fold: &DeviceFold<'_>) -> Result<DeviceFence, AcceleratorError>;

    /// Whether a copy or a fold is done, and its result can be seen by CPU and device. The answer stays true.
    ///
    /// # Errors
    /// It has failed; the device may be lost.
    fn is_done(&mut self, copy: DeviceFence) -> Result<bool, AcceleratorError>;

    /// Whether the trainer's stream has reached an event. Polled until it returns true, once, or an error.
    ///
    /// # Errors
    /// The device may be lost.
    fn is_reached(&mut self, event: StreamEvent) -> Result<bool, AcceleratorError>;

    /// Whether all copies and folds are done: the accelerator then accesses no memory.
    ///
    /// # Errors
    /// The device may be lost.
    fn is_idle(&mut self) -> Result<bool, AcceleratorError>;
}
