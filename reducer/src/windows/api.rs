//! The public types of windows: configuration, accesses, errors and counters.

use crate::dtype::{DType, NoReduction, ReduceOp};
use crate::executor::AbortCause;
use crate::grid::Rank;
use crate::memory::TensorRegion;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use thiserror::Error;

/// The configuration of [`Windows`](super::Windows). One serves one group in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct WindowsConfig {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the group.
    pub ranks: u32,
    /// The communicator.
    pub group: u32,
    /// Its membership version; messages of another one are refused.
    pub epoch: u32,
    /// Bytes that one rank's requests to one target may take, on the way, held there, or on the way back; the same on all ranks.
    pub in_flight_bytes: usize,
    /// Room for copies of what small accesses write, so that they end at once for the caller; in bytes, for all targets. Allocated at the
    /// first use.
    pub copy_bytes: usize,
    /// Accesses that write up to so many bytes are copied, where there is room.
    pub copied_bytes: usize,
    /// Room for what other ranks have asked for, in bytes, for all of them. Allocated at the first use.
    pub answer_bytes: usize,
    /// Accesses at once.
    pub max_accesses: usize,
}

impl WindowsConfig {
    /// Usual sizes for a rank of a group of `ranks`.
    pub fn new(rank: Rank, ranks: u32) -> Self {
        Self {
            rank,
            ranks,
            group: 0,
            epoch: 0,
            in_flight_bytes: 1 << 20,
            copy_bytes: 1 << 20,
            copied_bytes: 4 << 10,
            answer_bytes: 4 << 20,
            max_accesses: 1 << 16,
        }
    }
}

/// A window's number in its group; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowId(pub u32);

impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window {}", self.0)
    }
}

/// Identifies an access. Numbers grow with each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessId(pub u64);

/// What an access does to the target's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowAction {
    /// Writes them.
    Put,
    /// Reads them.
    Get,
    /// Reduces the origin's elements into them.
    Accumulate(ReduceOp),
    /// Reduces the origin's elements into them, and gives their values before.
    FetchAndOp(ReduceOp),
    /// Writes them, and gives their values before.
    Swap,
    /// Writes one element where it has the expected bits, and gives its value before.
    CompareAndSwap,
}

impl WindowAction {
    /// Whether something comes back.
    pub(super) fn answers(self) -> bool {
        !matches!(self, Self::Put | Self::Accumulate(_))
    }

    /// Bytes that go to the target for this many that are accessed there.
    pub(super) fn bytes_given(self, bytes: usize) -> usize {
        match self {
            Self::Get => 0,
            Self::CompareAndSwap => 2 * bytes,
            _ => bytes,
        }
    }
}

impl fmt::Display for WindowAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put => f.write_str("put"),
            Self::Get => f.write_str("get"),
            Self::Accumulate(op) => write!(f, "accumulate {op}"),
            Self::FetchAndOp(op) => write!(f, "fetch-and-{op}"),
            Self::Swap => f.write_str("fetch-and-replace"),
            Self::CompareAndSwap => f.write_str("compare-and-swap"),
        }
    }
}

/// An access to a window of another rank, or of this one.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequest {
    /// The window.
    pub window: WindowId,
    /// The action.
    pub action: WindowAction,
    /// The rank whose memory it is.
    pub target: Rank,
    /// The first element there.
    pub offset: u64,
    /// The elements' type: the window's.
    pub dtype: DType,
    /// The elements that go there; two for a compare-and-swap, the expected one and the new one; empty for a get. Nobody writes them until
    /// the access has ended.
    pub data: TensorRegion,
    /// The buffer for the result; empty for a put or an accumulate. Nobody else touches it until the access has ended.
    pub into: TensorRegion,
    /// When to give up; [`Duration::MAX`] to wait for ever.
    pub deadline: Duration,
    /// The caller takes its end; else its failure is told by [`take_late`](super::Windows::take_late).
    pub waited: bool,
}

/// Which access an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessSubject {
    /// The action.
    pub action: WindowAction,
    /// The rank that makes it.
    pub own: Rank,
    /// The rank whose memory it is.
    pub target: Rank,
    /// The window.
    pub window: WindowId,
    /// The first element.
    pub offset: u64,
    /// The elements' type.
    pub dtype: DType,
    /// Elements.
    pub count: u64,
}

impl fmt::Display for AccessSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, own, target, window, offset, dtype, count } = self;
        write!(f, "{action} by {own} of {count} x {dtype} from element {offset} of {window} of {target}")
    }
}

/// Why a target does not do what it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(u32)]
pub enum Denial {
    /// It has no such window.
    #[error("it has freed the window")]
    Window = 0,
    /// The range is not in the window.
    #[error("the range is not within its part of the window")]
    Range = 1,
    /// The window has elements of another type.
    #[error("its part of the window has elements of another type")]
    Type = 2,
    /// There is no such reduction of the type.
    #[error("it knows no such operation on this type")]
    Operation = 3,
}

impl Denial {
    /// The denial of this number.
    pub(super) fn from_code(code: u32) -> Option<Self> {
        [Self::Window, Self::Range, Self::Type, Self::Operation].into_iter().find(|why| *why as u32 == code)
    }
}

/// Why an access failed. Changes already made in the target's memory remain. The group goes on, unless it has been aborted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The target refuses it.
    #[error("{subject}: {} says that {why}; check that all ranks use the window alike, and free it together", .subject.target)]
    Denied {
        /// The access.
        subject: AccessSubject,
        /// Why.
        why: Denial,
    },
    /// The deadline passed. It may take effect later.
    #[error(
        "{subject} missed its deadline, waiting for {}; check that it runs, and calls the group or has mode=dedicated, or allow more time",
        .subject.target
    )]
    Deadline {
        /// The access.
        subject: AccessSubject,
    },
    /// The group ended meanwhile.
    #[error("{subject} was given up: {cause}")]
    Aborted {
        /// The access.
        subject: AccessSubject,
        /// The culprit and the reason.
        cause: Arc<AbortCause>,
    },
}

impl AccessError {
    /// The access.
    pub fn subject(&self) -> &AccessSubject {
        match self {
            Self::Denied { subject, .. } | Self::Deadline { subject } | Self::Aborted { subject, .. } => {
                subject
            }
        }
    }
}

/// Why an access was not started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AccessRefused {
    /// Too many at once.
    #[error("{max} accesses are under way; flush, then start again")]
    Busy {
        /// The most.
        max: usize,
    },
    /// There is no such rank.
    #[error("{target} does not exist in a group of {ranks} ranks; number ranks from 0")]
    Rank {
        /// The rank.
        target: Rank,
        /// Ranks of the group.
        ranks: u32,
    },
    /// There is no such window.
    #[error("{window} does not exist, or has been freed")]
    Window {
        /// Its number.
        window: WindowId,
    },
    /// The range is not in the target's part of the window.
    #[error("{subject}: that rank's part has {len} elements; access what lies within it")]
    Range {
        /// The access.
        subject: AccessSubject,
        /// Elements there.
        len: u64,
    },
    /// The window has elements of another type.
    #[error("{subject}: the window has elements of {dtype}; use its type")]
    Type {
        /// The access.
        subject: AccessSubject,
        /// Its type.
        dtype: DType,
    },
    /// The type has no such reduction.
    #[error(transparent)]
    Reduction(#[from] NoReduction),
    /// The operation is not one of windows.
    #[error("{subject}: {why}")]
    Operation {
        /// The access.
        subject: AccessSubject,
        /// The reason, and the call to use instead.
        why: &'static str,
    },
    /// The memory is no whole number of elements, has another size than the result, or is an accelerator's.
    #[error(
        "{given} bytes to give and {taken} to take are no memory of the host for a {action} of {dtype}; check counts and dtype"
    )]
    Memory {
        /// The action.
        action: WindowAction,
        /// The elements' type.
        dtype: DType,
        /// Bytes that go there.
        given: usize,
        /// Bytes that come back.
        taken: usize,
    },
    /// The group is over.
    #[error("the group has ended: {0}")]
    Aborted(Arc<AbortCause>),
}

/// Why a window was not made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WindowRefused {
    /// The memory is no whole number of elements, not aligned to them, or an accelerator's.
    #[error(
        "{bytes} bytes at {address:#x} are no memory of the host with whole, aligned elements of {dtype}; check address, count and dtype"
    )]
    Memory {
        /// Bytes of the region.
        bytes: usize,
        /// Its address.
        address: usize,
        /// The elements' type.
        dtype: DType,
    },
    /// The group is over.
    #[error("the group has ended: {0}")]
    Aborted(Arc<AbortCause>),
}

/// The counters of windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowCounters {
    /// Requests of other ranks that were served.
    pub served: u64,
    /// Requests that came before an earlier one, or found no room for the answer.
    pub held: u64,
    /// Requests that were refused.
    pub denied: u64,
    /// Messages that had come before.
    pub duplicates: u64,
    /// Messages that make no sense.
    pub malformed: u64,
    /// Messages that found no room.
    pub not_ready: u64,
}
