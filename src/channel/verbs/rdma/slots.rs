//! The slots of all connections, in two registered buffers: fragments are sent from one, and peers write theirs into the other.

use shouter_netstack::verbs::{Access, Buffer, Context, Sge, VerbsError};

use super::super::fabric::Sizes;

/// Each buffer has a window of slots for each connection, one connection behind the other.
pub(super) struct Slots {
    outgoing: Buffer,
    incoming: Buffer,
    sizes: Sizes,
}

impl Slots {
    /// Registers the slots of so many connections.
    pub(super) fn register(context: &Context, connections: usize, sizes: Sizes) -> Result<Self, VerbsError> {
        let bytes = connections * sizes.window as usize * sizes.slot_bytes as usize;
        let outgoing = context.register_owned(bytes, Access::LOCAL_READ)?;
        let incoming = context.register_owned(bytes, Access::REMOTE_WRITE)?;
        Ok(Self { outgoing, incoming, sizes })
    }

    #[inline]
    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The offset of a slot in its buffer.
    #[inline]
    fn offset(&self, connection: usize, slot: u32) -> usize {
        (connection * self.sizes.window as usize + slot as usize) * self.sizes.slot_bytes as usize
    }

    #[inline]
    pub(super) fn outgoing(&mut self, connection: usize, slot: u32) -> &mut [u8] {
        let (offset, len) = (self.offset(connection, slot), self.sizes.slot_bytes as usize);
        self.outgoing.bytes_mut(offset, len).unwrap_or_default()
    }

    /// A slot that a peer names, empty if it has none such.
    #[inline]
    pub(super) fn incoming(&self, connection: usize, slot: u32) -> &[u8] {
        let (offset, len) = (self.offset(connection, slot), self.sizes.slot_bytes as usize);
        let slot = (slot < self.sizes.window).then(|| self.incoming.bytes(offset, len));
        slot.flatten().unwrap_or_default()
    }

    /// `len` bytes of a slot from `from` on, to be sent.
    #[inline]
    pub(super) fn sge(&self, connection: usize, slot: u32, from: usize, len: usize) -> Option<Sge<'_>> {
        self.outgoing.sge(self.offset(connection, slot) + from, len)
    }

    /// Where the peer of a connection writes, and the key for it.
    pub(super) fn remote(&self, connection: usize) -> (u64, u32) {
        let region = self.incoming.region();
        (region.address() + self.offset(connection, 0) as u64, region.rkey())
    }
}
