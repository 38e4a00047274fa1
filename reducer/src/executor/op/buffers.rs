//! The memory that an operation's steps work on.

use super::super::lanes::Lanes;
use crate::memory::{MemoryKind, Pooled, RegionOffset, Span, TensorRegion};
use crate::schedule::{Buffer, BufferOffset};
use std::sync::Arc;

/// The memory that an operation works on.
#[derive(Debug)]
pub(in crate::executor) struct OperationBuffers {
    data: TensorRegion,
    input: TensorRegion,
    /// The one of them that holds this rank's contribution.
    given: TensorRegion,
    slots: TensorRegion,
    pooled: Option<Pooled>,
    /// The contributions of all local ranks, where the operation works in place.
    peers: Vec<TensorRegion>,
    /// The tensor was exported to the other ranks of the node.
    exported: bool,
    /// Whether the others' could be opened, once that was tried.
    opened: Option<bool>,
    /// The node's shared memory, and the number of the first use of a lane there.
    lanes: Option<Arc<Lanes>>,
    lane_base: u64,
}

impl OperationBuffers {
    pub(super) const fn new() -> Self {
        Self {
            data: TensorRegion::empty(),
            input: TensorRegion::empty(),
            given: TensorRegion::empty(),
            slots: TensorRegion::empty(),
            pooled: None,
            peers: Vec::new(),
            exported: false,
            opened: None,
            lanes: None,
            lane_base: 0,
        }
    }

    /// The node's shared memory, for all operations from now on.
    pub(in crate::executor) fn attach(&mut self, lanes: Arc<Lanes>) {
        // Whether an operation works in place is known when it runs, which allocates nothing.
        self.peers.reserve(lanes.locals());
        self.lanes = Some(lanes);
    }

    pub(super) fn start(
        &mut self,
        (data, input, given): (TensorRegion, TensorRegion, TensorRegion),
        exported: bool,
        slots: Option<Pooled>,
    ) {
        (self.data, self.input, self.given) = (data, input, given);
        self.exported = exported;
        self.opened = None;
        self.peers.clear();
        self.slots = slots.as_ref().map_or(TensorRegion::empty(), Pooled::region);
        self.pooled = slots;
    }

    /// Lanes are numbered from there.
    pub(super) fn set_lanes(&mut self, lane_base: u64) {
        self.lane_base = lane_base;
    }

    /// Forgets all but the lanes; returns the slots.
    pub(super) fn vacate(&mut self) -> Option<Pooled> {
        for region in [&mut self.data, &mut self.input, &mut self.given, &mut self.slots] {
            *region = TensorRegion::empty();
        }
        self.peers.clear();
        self.pooled.take()
    }

    /// Whether other ranks of the node may be able to access this rank's contribution.
    pub(in crate::executor) fn is_shared(&self) -> bool {
        self.given.is_empty() || self.given.kind() == MemoryKind::Shared || self.exported
    }

    /// The region that holds this rank's contribution.
    pub(in crate::executor) fn given(&self) -> TensorRegion {
        self.given
    }

    /// Whether the other ranks' tensors could be opened, once that was tried.
    pub(in crate::executor) fn opened(&self) -> Option<bool> {
        self.opened
    }

    /// Takes the contributions of all local ranks, empty regions for those that cannot be accessed; whether all can be, with these bytes.
    pub(in crate::executor) fn set_peers(
        &mut self,
        peers: impl Iterator<Item = TensorRegion>,
        bytes: impl Iterator<Item = usize>,
    ) -> bool {
        self.peers.clear();
        self.peers.extend(peers);
        self.peers.iter().map(TensorRegion::len).eq(bytes)
    }

    /// It was tried to open the other ranks' tensors.
    pub(in crate::executor) fn set_opened(&mut self, all: bool) {
        self.opened = Some(all);
    }

    /// The lane of a chunk, of so many, and the number of its use, from 1.
    #[inline]
    pub(in crate::executor) fn lane(&self, chunk: u32, lanes: u32) -> (u32, u64) {
        let (use_, lanes) = (self.lane_base + u64::from(chunk), u64::from(lanes));
        ((use_ % lanes) as u32, use_ / lanes + 1)
    }

    /// Whether a buffer offset is in an accelerator's memory.
    #[inline]
    pub(in crate::executor) fn is_device(&self, place: BufferOffset) -> bool {
        match place.buffer {
            Buffer::Data | Buffer::Peer(_) => self.data.kind() == MemoryKind::Device,
            Buffer::Input => self.input.kind() == MemoryKind::Device,
            Buffer::Slot | Buffer::Stage(_) | Buffer::Node => false,
        }
    }

    /// The region and offset of a buffer offset of the operation.
    #[inline]
    pub(in crate::executor) fn resolve(&self, place: BufferOffset, chunk: u32) -> Option<RegionOffset> {
        let lanes = || Some((self.lanes.as_deref()?, self.lane_base + u64::from(chunk)));
        let region = match place.buffer {
            Buffer::Data => self.data,
            Buffer::Input => self.input,
            Buffer::Slot => self.slots,
            Buffer::Peer(local) => *self.peers.get(local as usize)?,
            Buffer::Stage(local) => lanes().and_then(|(lanes, lane_use)| lanes.stage(local, lane_use))?,
            Buffer::Node => lanes().and_then(|(lanes, lane_use)| lanes.result(lane_use))?,
        };
        Some((region, place.offset))
    }

    /// Where a message that is only placed may be written by the peer itself: in memory that outlives the operation. Slots of the
    /// host's are no such place, for no NIC knows them; those on a device are known.
    #[inline]
    pub(in crate::executor) fn landing(&self, into: BufferOffset, chunk: u32, len: usize) -> Option<Span> {
        if len == 0 {
            return None;
        }
        let (region, offset) = self.resolve(into, chunk)?;
        let known = match into.buffer {
            Buffer::Data | Buffer::Node => true,
            Buffer::Slot => region.kind() == MemoryKind::Device,
            Buffer::Input | Buffer::Stage(_) | Buffer::Peer(_) => false,
        };
        if !known {
            return None;
        }
        region.span(offset, len)
    }
}
