//! The part of a message between two ranks that the header of all messages carries.

use super::api::MessengerConfig;
use crate::dtype::DType;
use crate::grid::Rank;
use crate::header::{Header, Identity, MatchKey, MessageKind, Shape};

/// The reason of [`MessageKind::Refused`]: message and receive do not fit.
pub(super) const DOES_NOT_FIT: u32 = 0;

/// The reason of [`MessageKind::Refused`]: the receive was given up.
pub(super) const GIVEN_UP: u32 = 1;

/// The identity of a message for its two ranks: its number among those from the one to the other, and the fields that receives ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) seq: u64,
    pub(super) tag: u32,
    pub(super) dtype: DType,
    /// Elements.
    pub(super) count: u64,
}

impl Envelope {
    /// The header of a message about it, without a payload.
    pub(super) fn header(&self, config: &MessengerConfig, kind: MessageKind) -> Header {
        let Self { seq, tag, dtype, count } = *self;
        let key = MatchKey { group: config.group, epoch: config.epoch, seq };
        let none = Header::new(kind, config.rank, key);
        let identity = Identity::AdHoc { root: Rank(tag) };
        Header { identity, shape: Shape { dtype, count, ..none.shape }, ..none }
    }

    /// The envelope in a header; `None` if it is of no message.
    pub(super) fn of(header: &Header) -> Option<Self> {
        let Identity::AdHoc { root: Rank(tag) } = header.identity else { return None };
        let Shape { dtype, count, .. } = header.shape;
        Some(Self { seq: header.key.seq, tag, dtype, count })
    }

    /// The message's bytes; `None` if no memory could hold them.
    pub(super) fn bytes(&self) -> Option<usize> {
        let bytes = usize::try_from(self.count).ok()?.checked_mul(self.dtype.size())?;
        isize::try_from(bytes).ok()?;
        Some(bytes)
    }
}
