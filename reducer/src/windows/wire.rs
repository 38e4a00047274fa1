//! What a request says of itself, in the header that all messages have.

use super::api::{Action, WindowId, WindowsConfig};
use crate::dtype::{DType, ReduceOp};
use crate::header::{Collective, Header, Identity, MatchKey, MessageKind, Shape};

/// A part of an access that is asked for with one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) window: WindowId,
    pub(super) action: Action,
    pub(super) dtype: DType,
    /// The first element.
    pub(super) offset: u64,
    /// Elements.
    pub(super) count: u64,
}

impl Piece {
    /// The header of a message about it, without a payload.
    pub(super) fn header(&self, config: &WindowsConfig, kind: MessageKind, seq: u64) -> Header {
        let Self { window, action, dtype, offset, count } = *self;
        let (number, op) = match action {
            Action::Put => (0, ReduceOp::Sum),
            Action::Get => (1, ReduceOp::Sum),
            Action::Accumulate(op) => (2, op),
            Action::FetchAndOp(op) => (3, op),
            Action::Swap => (4, ReduceOp::Sum),
            Action::CompareAndSwap => (5, ReduceOp::Sum),
        };
        Header {
            kind,
            src: config.rank,
            key: MatchKey { group: config.group, epoch: config.epoch, seq },
            identity: Identity::Registered {
                generation: offset as u32,
                tensor: (offset >> 32) as u32,
                instance: window.0,
            },
            // The kind says what it is; no collective has such a one.
            shape: Shape { collective: Collective::Barrier, dtype, op, count },
            round: number,
            offset: 0,
            granule: 0,
            len: 0,
        }
    }

    /// What a request says; `None` if it is none.
    pub(super) fn of(header: &Header) -> Option<Self> {
        let Identity::Registered { generation, tensor, instance } = header.identity else { return None };
        let Shape { dtype, op, count, .. } = header.shape;
        let action = match header.round {
            0 => Action::Put,
            1 => Action::Get,
            2 => Action::Accumulate(op),
            3 => Action::FetchAndOp(op),
            4 => Action::Swap,
            5 => Action::CompareAndSwap,
            _ => return None,
        };
        let offset = u64::from(generation) | u64::from(tensor) << 32;
        Some(Self { window: WindowId(instance), action, dtype, offset, count })
    }

    /// Bytes of the window that it is about; `None` if no memory could hold them.
    pub(super) fn bytes(&self) -> Option<usize> {
        let bytes = usize::try_from(self.count).ok()?.checked_mul(self.dtype.size())?;
        isize::try_from(bytes).ok()?;
        Some(bytes)
    }
}
