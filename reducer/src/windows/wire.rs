//! The part of a request that the header of all messages carries.

use super::api::{WindowAction, WindowId, WindowsConfig};
use crate::dtype::{DType, ReduceOp};
use crate::header::{Header, Identity, MatchKey, MessageKind, Shape};

/// A part of an access that is asked for with one message. Memory can hold its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    window: WindowId,
    action: WindowAction,
    dtype: DType,
    offset: u64,
    count: u64,
    bytes: usize,
}

impl Piece {
    /// The piece of a message that is about no element.
    pub(super) const EMPTY: Self = Self {
        window: WindowId(0),
        action: WindowAction::Put,
        dtype: DType::U8,
        offset: 0,
        count: 0,
        bytes: 0,
    };

    /// `count` elements from `offset` on; `None` if no memory could hold them.
    pub(super) fn new(
        window: WindowId,
        action: WindowAction,
        dtype: DType,
        offset: u64,
        count: u64,
    ) -> Option<Self> {
        let bytes = usize::try_from(count).ok()?.checked_mul(dtype.size())?;
        isize::try_from(bytes).ok()?;
        Some(Self { window, action, dtype, offset, count, bytes })
    }

    pub(super) fn window(&self) -> WindowId {
        self.window
    }

    pub(super) fn action(&self) -> WindowAction {
        self.action
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The first element.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Elements.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of the window that it is about.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its next elements: `bytes` behind the first `done` ones, cut off at its end. Both are whole elements.
    #[inline]
    pub(super) fn part(&self, done: usize, bytes: usize) -> Self {
        let size = self.dtype.size();
        let bytes = bytes.min(self.bytes.saturating_sub(done));
        Self { offset: self.offset + (done / size) as u64, count: (bytes / size) as u64, bytes, ..*self }
    }

    /// The header of a message about it, without a payload.
    pub(super) fn header(&self, config: &WindowsConfig, kind: MessageKind, seq: u64) -> Header {
        let Self { window, action, dtype, offset, count, .. } = *self;
        let (number, op) = match action {
            WindowAction::Put => (0, ReduceOp::Sum),
            WindowAction::Get => (1, ReduceOp::Sum),
            WindowAction::Accumulate(op) => (2, op),
            WindowAction::FetchAndOp(op) => (3, op),
            WindowAction::Swap => (4, ReduceOp::Sum),
            WindowAction::CompareAndSwap => (5, ReduceOp::Sum),
        };
        let key = MatchKey { group: config.group, epoch: config.epoch, seq };
        let none = Header::new(kind, config.rank, key);
        Header {
            identity: Identity::Registered {
                generation: offset as u32,
                tensor: (offset >> 32) as u32,
                instance: window.0,
            },
            shape: Shape { dtype, op, count, ..none.shape },
            round: number,
            ..none
        }
    }

    /// The piece that a request is about; `None` if it is no request, or no memory could hold the elements.
    pub(super) fn of(header: &Header) -> Option<Self> {
        let Identity::Registered { generation, tensor, instance } = header.identity else { return None };
        let Shape { dtype, op, count, .. } = header.shape;
        let action = match header.round {
            0 => WindowAction::Put,
            1 => WindowAction::Get,
            2 => WindowAction::Accumulate(op),
            3 => WindowAction::FetchAndOp(op),
            4 => WindowAction::Swap,
            5 => WindowAction::CompareAndSwap,
            _ => return None,
        };
        let offset = u64::from(generation) | u64::from(tensor) << 32;
        Self::new(WindowId(instance), action, dtype, offset, count)
    }
}
