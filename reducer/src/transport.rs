//! The seams through which an executor meets the world: a [`Transport`] to the leaders of other nodes (the up
//! grid), a [`NodeMemory`] shared with the ranks of its own node (the sub grid), and an [`Accelerator`] that copies and folds
//! where the CPU cannot.
//!
//! All are polled and never block. What a transport has to tell comes back through the executor's `on_...` methods:
//! a fragment while its bytes are still in the receive buffer (or that it lies where it belongs), a token once nothing refers to
//! its range any more.

use crate::dtype::{DType, ReduceOp};
use crate::grid::Rank;
use crate::header::{Header, View};
use crate::memory::{Region, Span};
use std::sync::Arc;
use thiserror::Error;

/// Names one posted fragment until the transport releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl Token {
    /// The token of control messages, which carry no payload. Releasing it is allowed and means nothing.
    pub const CONTROL: Self = Self(u64::MAX);
}

/// The payload of a fragment: a range of registered memory, unwritten from the post until the release. Empty for
/// control messages and for messages without bytes.
pub type PayloadRange = Span;

/// Where messages may go that a receiver asks for: message i of a credit fills as many bytes as `first` has, i times `stride`
/// bytes behind it.
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
    /// The peer is gone. The executor goes on as if the queue were full: the transport reports the loss to its owner as well, who
    /// decides what becomes of the group.
    #[error("the peer has failed; look at what the transport reports of it")]
    PeerFailed,
}

/// All up-grid peers of this rank. Datagrams are delivered at least once, in any order.
pub trait Transport {
    /// Payload bytes per datagram to this peer: a multiple of 64, at least 64. It may change between calls; a
    /// message keeps the value that it started with.
    fn max_fragment(&self, to: Rank) -> usize;

    /// Posts one datagram: the encoded header, then the payload. After `Ok` the range must stay as it is until the
    /// executor's `on_released(token)`; after an error nothing of it is kept.
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: Token,
    ) -> Result<(), SendError>;

    /// Posts a credit message. Where a transport is one-sided, the peer's fragments may be written to the `landing` from then
    /// on, and be told by `on_placed`; the default makes no use of it.
    fn credit(&mut self, to: Rank, header: &Header, _landing: Option<Landing>) -> Result<(), SendError> {
        self.send(to, header, Span::empty(), Token::CONTROL)
    }

    /// The release of what was posted last to this peer is waited for: the transport should ask for its acknowledgement
    /// at once. A wish; the default does nothing.
    fn request_ack(&mut self, _to: Rank) {}
}

/// How far a rank has come with a lane's present use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Flag {
    /// What the others need of this rank's contribution lies in its staging area.
    Staged = 0,
    /// This rank's slice of the node's result is folded.
    Reduced = 1,
    /// The result area holds what is to be copied out.
    Final = 2,
    /// This rank reads nothing of the lane any more.
    Consumed = 3,
}

impl Flag {
    /// Every flag, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Staged, Self::Reduced, Self::Final, Self::Consumed];
}

/// Where a local rank's tensor of an operation lies, as far as this rank knows.
#[derive(Clone, Copy, Debug)]
pub enum TensorView {
    /// It has not said, or runs another operation.
    Unknown,
    /// In memory of its own.
    Private,
    /// In memory that the node shares: here, as long as the tensor is.
    Shared(Region),
    /// In an accelerator's memory, which this rank's accelerator may be able to open.
    Exported(Export),
}

/// A tensor in an accelerator's memory, as other ranks of the node find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its device address in the process that it belongs to.
    pub address: u64,
    /// What another process opens it by. The accelerator's own form.
    pub handle: [u8; Self::HANDLE],
    /// Whether it belongs to this process.
    pub is_own: bool,
}

impl Export {
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

    /// What a local rank runs as operation `seq`, where it has said so and that is still known.
    fn view(&self, _local: u32, _seq: u64) -> Option<View> {
        None
    }

    /// Where a local rank's tensor of `len` bytes for operation `seq` lies. Once known, the answer never changes, and it is
    /// the same on all ranks. [`TensorView::Shared`] means also that the rank has handed the tensor over, and that what it
    /// wrote there can be seen; [`TensorView::Exported`] does not.
    fn tensor(&self, _local: u32, _seq: u64, _len: usize) -> TensorView {
        TensorView::Private
    }

    /// Says whether this rank could open what the others have exported for operation `seq`.
    fn agree(&self, _seq: u64, _opened: bool) {}

    /// What a local rank has said so, once it has.
    fn has_agreed(&self, _local: u32, _seq: u64) -> Option<bool> {
        Some(false)
    }

    /// Lanes; the same on all ranks.
    fn lanes(&self) -> u32;

    /// Bytes of each area; a multiple of 64.
    fn lane_bytes(&self) -> usize;

    /// The staging area of a local rank. The answer never changes.
    fn stage(&self, local: u32, lane: u32) -> Region;

    /// The node's result area. The answer never changes.
    fn result(&self, lane: u32) -> Region;

    /// Sets this rank's flag with release ordering: whoever observes the value sees every write before it. Flags
    /// start at zero.
    fn signal(&self, lane: u32, flag: Flag, value: u64);

    /// Reads a local rank's flag with acquire ordering.
    fn observe(&self, local: u32, lane: u32, flag: Flag) -> u64;
}

/// Names a copy or a fold that an accelerator has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub u64);

/// Names a point of the trainer's own work on an accelerator: what a tensor holds is there when that has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment(pub u64);

/// What else there is to know of a tensor in an accelerator's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// When what the tensor holds is there: nothing is begun before. `None` for at once.
    pub moment: Option<Moment>,
    /// How the node's other ranks find it, if they may open it.
    pub export: Option<Export>,
}

/// An accelerator did not do what it was asked; what it says, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AcceleratorError(pub Arc<str>);

/// A reduction for an accelerator: `destinations[..][i] = (sources[0][i] op sources[1][i] op ...) / divide_by`. All ranges have one length.
/// They are memory of accelerators, or page-locked memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct Fold<'a> {
    /// The elements.
    pub dtype: DType,
    /// How they are combined, in the order of the sources.
    pub op: ReduceOp,
    /// Where the result goes: one place or more, apart from each other. Each may be exactly one of the sources.
    pub destinations: &'a [Span],
    /// What is combined; at least one.
    pub sources: &'a [Span],
    /// What sums are divided by, for an average.
    pub divide_by: Option<u32>,
}

/// Copies between memory of an accelerator ([`Kind::Device`](crate::memory::Kind::Device)) and the host's, and folds there, in the
/// background.
pub trait Accelerator {
    /// Starts a copy between two ranges of one length. Both stay as they are until it is done.
    ///
    /// # Errors
    /// Nothing is copied then.
    fn copy(&mut self, into: Span, from: Span) -> Result<Fence, AcceleratorError>;

    /// Makes another rank's tensor of `len` bytes accessible to this rank's [`fold`](Self::fold)s, until the group ends. `None` if
    /// that cannot be: then tensors are staged.
    fn open(&mut self, _tensor: &Export, _len: usize) -> Option<Region> {
        None
    }

    /// Starts a fold. All ranges stay as they are until it is done.
    ///
    /// # Errors
    /// Nothing is written then.
    fn fold(&mut self, fold: &Fold<'_>) -> Result<Fence, AcceleratorError>;

    /// Whether a copy or a fold is done, and what it wrote can be seen by CPU and device. The answer stays true.
    ///
    /// # Errors
    /// It has failed; the device may be lost.
    fn is_done(&mut self, copy: Fence) -> Result<bool, AcceleratorError>;

    /// Whether the trainer's work has reached a moment. Asked until it is true, once, or an error.
    ///
    /// # Errors
    /// The device may be lost.
    fn has_come(&mut self, moment: Moment) -> Result<bool, AcceleratorError>;

    /// Whether all copies and folds are done: then nothing of it touches any memory.
    ///
    /// # Errors
    /// The device may be lost.
    fn is_idle(&mut self) -> Result<bool, AcceleratorError>;
}
