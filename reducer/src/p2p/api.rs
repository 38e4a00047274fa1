//! The public types of messages: configuration, requests, results, errors and counters.

use crate::dtype::DType;
use crate::executor::AbortCause;
use crate::grid::Rank;
use crate::memory::TensorRegion;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use thiserror::Error;

/// The configuration of a [`Messenger`](super::Messenger). One serves one group in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct MessengerConfig {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the group.
    pub ranks: u32,
    /// The communicator.
    pub group: u32,
    /// Its membership version; messages of another one are refused.
    pub epoch: u32,
    /// Messages of up to so many bytes are sent before anybody asks for them; the same on all ranks. A quarter of `room_bytes` at most.
    pub eager_bytes: usize,
    /// Room for what a peer has sent and no receive has taken, in bytes, for each peer; the same on all ranks, since it limits what is sent
    /// unasked.
    pub room_bytes: usize,
    /// Room for copies of messages that are sent unasked, so that their sends end at once; in bytes, for all peers. Allocated at the first
    /// use.
    pub copy_bytes: usize,
    /// Sends and receives at once.
    pub max_operations: usize,
}

impl MessengerConfig {
    /// Usual sizes for a rank of a group of `ranks`.
    pub fn new(rank: Rank, ranks: u32) -> Self {
        Self {
            rank,
            ranks,
            group: 0,
            epoch: 0,
            eager_bytes: 16 << 10,
            room_bytes: 1 << 20,
            copy_bytes: 1 << 20,
            max_operations: 1 << 16,
        }
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// The receiver; it may be this rank.
    pub to: Rank,
    /// The tag, by which a receive finds the message.
    pub tag: u32,
    /// The elements' type; the receive must have the same.
    pub dtype: DType,
    /// The elements, which nobody writes until the send has ended.
    pub data: TensorRegion,
    /// The elements are not there yet: it has its place among the sends to this rank, and waits for
    /// [`release`](super::Messenger::release), as do those behind it.
    pub held: bool,
    /// The send ends only when a receive has taken the message; else it may end as soon as the elements are copied.
    pub synchronous: bool,
    /// When to give up; [`Duration::MAX`] to wait for ever.
    pub deadline: Duration,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// The sender; any rank if there is none.
    pub from: Option<Rank>,
    /// The message's tag; any if there is none.
    pub tag: Option<u32>,
    /// The elements' type.
    pub dtype: DType,
    /// Where they go, which nobody else touches until the receive has ended. The message may be shorter.
    pub into: TensorRegion,
    /// When to give up; [`Duration::MAX`] to wait for ever.
    pub deadline: Duration,
}

/// Identifies a send or a receive of a messenger. Numbers grow with each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// A message as a receive or a probe sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender; for a send the receiver.
    pub peer: Rank,
    /// Its tag.
    pub tag: u32,
    /// The elements' type.
    pub dtype: DType,
    /// The message's elements.
    pub count: u64,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A send.
    Send,
    /// A receive.
    Receive,
}

/// Which send or receive an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferSubject {
    /// Send or receive.
    pub direction: Direction,
    /// The rank that runs it.
    pub own: Rank,
    /// The other one; none for a receive from any rank.
    pub peer: Option<Rank>,
    /// The tag; none for a receive of any.
    pub tag: Option<u32>,
    /// The elements' type.
    pub dtype: DType,
    /// Elements: of the message, or that the receive has room for.
    pub count: u64,
}

impl fmt::Display for TransferSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, own, peer, tag, dtype, count } = self;
        match (direction, peer) {
            (Direction::Send, Some(peer)) => write!(f, "send of {count} x {dtype} from {own} to {peer}")?,
            (Direction::Receive, Some(peer)) => {
                write!(f, "receive of up to {count} x {dtype} from {peer} to {own}")?;
            }
            (_, None) => write!(f, "receive of up to {count} x {dtype} from any rank to {own}")?,
        }
        match tag {
            Some(tag) => write!(f, " with tag {tag}"),
            None => f.write_str(" with any tag"),
        }
    }
}

/// Why a send or a receive failed. The group goes on, unless it has been aborted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TransferError {
    /// The message and the receive that it was matched with do not fit. Both ranks learn of it; the message is gone.
    #[error("{}", mismatch_text(.subject, *.peer, *.dtype, *.count))]
    Mismatch {
        /// This rank's send or receive.
        subject: TransferSubject,
        /// The other rank.
        peer: Rank,
        /// Its type.
        dtype: DType,
        /// Its elements: of the message, or that the receive has room for.
        count: u64,
    },
    /// The deadline passed.
    #[error(
        "{subject} missed its deadline, waiting for {}; check that {} with this tag, or allow more time",
        .subject.awaited().0, .subject.awaited().1
    )]
    Deadline {
        /// The send or receive.
        subject: TransferSubject,
    },
    /// The other rank gave up when the two had been matched.
    #[error("{subject} was given up by {peer}, whose deadline passed first; allow more time there")]
    GivenUp {
        /// This rank's send or receive.
        subject: TransferSubject,
        /// The other rank.
        peer: Rank,
    },
    /// It was cancelled.
    #[error("{subject} was cancelled")]
    Cancelled {
        /// The receive.
        subject: TransferSubject,
    },
    /// The group ended meanwhile.
    #[error("{subject} was given up: {cause}")]
    Aborted {
        /// The send or receive.
        subject: TransferSubject,
        /// The culprit and the reason.
        cause: Arc<AbortCause>,
    },
}

impl TransferError {
    /// The send or receive.
    pub fn subject(&self) -> &TransferSubject {
        match self {
            Self::Mismatch { subject, .. }
            | Self::Deadline { subject }
            | Self::GivenUp { subject, .. }
            | Self::Cancelled { subject }
            | Self::Aborted { subject, .. } => subject,
        }
    }
}

/// The text of a mismatch, with both sizes.
fn mismatch_text(subject: &TransferSubject, peer: Rank, dtype: DType, count: u64) -> String {
    match subject.direction {
        Direction::Send => format!(
            "{subject}: the receive on {peer} is of up to {count} x {dtype}; give it the message's type, and room for all of it"
        ),
        Direction::Receive => format!(
            "{subject}: the message from {peer} is {count} x {dtype}; give the receive the message's type, and room for all of it"
        ),
    }
}

impl TransferSubject {
    /// The rank that the transfer waits for, and the text that says what that one should do.
    fn awaited(&self) -> (String, &'static str) {
        let peer = self.peer.map_or_else(|| "any rank".into(), |peer| peer.to_string());
        match self.direction {
            Direction::Send => (peer, "it receives from this rank"),
            Direction::Receive => (peer, "it sends to this rank"),
        }
    }
}

/// Why a send or a receive was not started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PostError {
    /// Too many at once.
    #[error("{max} sends and receives are under way; wait until one has ended, then start again")]
    Busy {
        /// The most.
        max: usize,
    },
    /// There is no such rank.
    #[error("{peer} does not exist in a group of {ranks} ranks; number ranks from 0")]
    Rank {
        /// The rank.
        peer: Rank,
        /// Ranks of the group.
        ranks: u32,
    },
    /// The memory is no whole number of elements, or too much, or an accelerator's.
    #[error("{bytes} bytes are no memory of the host with whole elements of {dtype}; check count and dtype")]
    Memory {
        /// Bytes of the region.
        bytes: usize,
        /// The elements' type.
        dtype: DType,
    },
    /// An earlier send to this rank, which had ended when its elements were copied, has failed since. Nothing was started: start again.
    #[error(
        "an earlier send to this rank has failed after it had returned: {0}. This send was not started: call it again"
    )]
    Earlier(Box<TransferError>),
    /// The group is over.
    #[error("the group has ended: {0}")]
    Aborted(Arc<AbortCause>),
}

/// The counters of a messenger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessageCounters {
    /// Messages that were sent unasked.
    pub eager: u64,
    /// Messages that were announced, and sent when they were asked for.
    pub announced: u64,
    /// Messages that came before their receive.
    pub early: u64,
    /// Fragments and messages about messages that had come before.
    pub duplicates: u64,
    /// Messages that make no sense.
    pub malformed: u64,
    /// Messages that found no room.
    pub not_ready: u64,
}
