//! Ranks of one node that run different operations: found in shared memory, where no message carries a header.
//!
//! Every rank announces each operation that it starts: number, shape, tensor. When an operation is done, its
//! announcement is held against those of the node's other ranks, so that no wrong result is ever handed out; while it
//! waits for long, the same comparison says what the others run instead. Small operations within one node have numbers
//! of their own (those of their cells), hence each announcement says how many of them came before it.

use std::sync::Arc;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{OpError, OpId, Request, Subject, View};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::memory::Kind;
use shouter_reducer::transport::Export;

use crate::channel::shm::{Announcement, NodeSegment};

/// An operation as this rank has started it, until its outcome has been taken.
pub(super) struct Open {
    pub(super) op: OpId,
    view: View,
    name: Arc<str>,
    step: u64,
    /// Where in the rank's arena the tensor lies, and its bytes, if it does.
    pub(super) shared: Option<(usize, usize)>,
    /// How the others open the tensor, if it lies in an accelerator's memory and they may.
    pub(super) export: Option<Export>,
}

impl Open {
    pub(super) fn new(request: &Request, node: Option<&NodeSegment>) -> Self {
        let view = View { identity: request.identity, shape: request.shape };
        let len = request.data.len();
        let shared = node
            .filter(|_| request.data.kind() == Kind::Shared)
            .and_then(|node| Some((node.locate(request.data.as_ptr(), len)?, len)));
        Self {
            op: OpId(0),
            view,
            name: request.name.clone(),
            step: request.step,
            shared,
            export: request.device.and_then(|device| device.export),
        }
    }

    /// Tells the other ranks of the node.
    #[inline]
    pub(super) fn announce(&self, node: &NodeSegment) {
        let announcement = Announcement {
            number: self.op.0 + 1,
            shape: pack(&self.view.shape),
            identity: pack_identity(&self.view.identity),
            tensor: match (self.shared, self.export) {
                (Some((offset, _)), _) => offset as u64 + 1,
                (None, Some(_)) => Announcement::EXPORTED,
                (None, None) => 0,
            },
            small_before: node.small_started(node.local()),
        };
        node.announce(announcement, self.export.as_ref());
    }

    /// Which local rank runs something else where this rank runs this, and what.
    fn differing(&self, node: &NodeSegment, local: u32) -> Option<View> {
        let number = self.op.0 + 1;
        if let Some(theirs) = node.announcement(local, number) {
            let same = theirs.shape == pack(&self.view.shape)
                && theirs.identity == pack_identity(&self.view.identity);
            return if same { None } else { unpack(theirs.shape, theirs.identity) };
        }
        if node.has_announced(local, number) {
            return None;
        }
        // It has not come so far. It runs something else if it has begun a small operation more than we had before.
        let ours = node.announcement(node.local(), number)?.small_before;
        let tag = node.cell(local, ours + 1).tag()?;
        // The tag is newer than an announcement would be.
        if node.has_announced(local, number) { None } else { unpack(tag, 0) }
    }

    /// The error that shows both views, if a rank of the node runs something else; `first` is the node's first rank.
    pub(super) fn mismatch(&self, node: &NodeSegment, first: Rank) -> Option<(Rank, OpError)> {
        let others = (0..node.ranks()).filter(|local| *local != node.local());
        let (local, found) = others.filter_map(|local| Some((local, self.differing(node, local)?))).next()?;
        let rank = Rank(first.0 + local);
        let subject = Subject {
            seq: self.op.0,
            collective: self.view.shape.collective,
            identity: self.view.identity,
            name: self.name.clone(),
            step: self.step,
        };
        let (subject, expected, found) = (Box::new(subject), Box::new(self.view), Box::new(found));
        Some((rank, OpError::Mismatch { subject, rank, expected, found }))
    }
}

/// What local rank `local` runs instead of this rank's small operation `number`, after `large` others: something with
/// an announcement, if it made that right after the same small operations.
pub(crate) fn instead_of_small(node: &NodeSegment, local: u32, number: u64, large: u64) -> Option<View> {
    let theirs = node.announcement(local, large + 1)?;
    if theirs.small_before + 1 != number || node.small_started(local) >= number {
        return None;
    }
    unpack(theirs.shape, theirs.identity)
}

/// A shape in one word, as the tags of small operations have it.
pub(crate) fn pack(shape: &Shape) -> u64 {
    shape.count << 16
        | (shape.collective as u64) << 8
        | u64::from(u8::from(shape.dtype)) << 4
        | u64::from(u8::from(shape.op))
}

/// A tensor in one word; what is outside the table is told apart by its shape alone.
fn pack_identity(identity: &Identity) -> u64 {
    match *identity {
        Identity::Registered { generation, tensor, instance } => {
            1 << 63
                | u64::from(generation & 0x7ff) << 52
                | u64::from(tensor & 0xf_ffff) << 32
                | u64::from(instance)
        }
        Identity::AdHoc(_) => 0,
    }
}

/// The shape and tensor that two words stand for.
pub(crate) fn unpack(shape: u64, identity: u64) -> Option<View> {
    let collective = [Collective::AllReduce, Collective::Broadcast, Collective::Barrier]
        .into_iter()
        .find(|collective| *collective as u64 == shape >> 8 & 0xff)?;
    let dtype = DType::try_from((shape >> 4 & 0xf) as u8).ok()?;
    let op = ReduceOp::try_from((shape & 0xf) as u8).ok()?;
    let shape = Shape { collective, dtype, op, count: shape >> 16 };
    let identity = match identity {
        0 => Identity::ad_hoc(&shape, Rank(0)),
        word => Identity::Registered {
            generation: (word >> 52 & 0x7ff) as u32,
            tensor: (word >> 32 & 0xf_ffff) as u32,
            instance: word as u32,
        },
    };
    Some(View { identity, shape })
}
