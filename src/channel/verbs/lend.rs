//! Payloads that are sent from where they lie, and to where they belong if the peer has said where that is: which memory is
//! registered, and when it is given back.

use shouter_reducer::header::{HEADER_BYTES, Header, Kind};
use shouter_reducer::memory::{Kind as MemoryKind, Region};
use shouter_reducer::transport::{Landing, PayloadRange, Token};

use super::fabric::{Fabric, RegisterError, Registered, Registering, Remote, Source};
use super::lane::Lent;
use super::message::{self, Payload, Read, TRAILER, Window};
use super::{Control, VerbsChannel};
use crate::channel::sys::bytes_of;

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Queues a payload to be written from where it lies, to the peer's slot or `into` its memory; false if it is not
    /// registered, or small. That of a device's is `known` by its CRC.
    #[inline]
    pub(super) fn lend(
        &mut self,
        at: usize,
        header: &[u8; HEADER_BYTES],
        (span, into): (PayloadRange, Option<Remote>),
        token: Token,
        known: Option<Read<'_>>,
    ) -> bool {
        if span.len() < self.lend_from && known.is_none() {
            return false;
        }
        let Some((key, offset)) = self.ranges.find(span.as_ptr().addr(), span.len()) else { return false };
        // That takes a write more.
        let into = into.filter(|_| self.fabric.has_room(at, 2));
        let read = known.or_else(|| bytes_of(&span).map(Read::Bytes));
        let (Some(lane), Some(read)) = (self.all.get_mut(at), read) else { return false };
        let Some(slot) = lane.sender.slot() else { return false };
        let len = span.len() + TRAILER;
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..len) else { return false };
        let counts = (lane.sender.next(), lane.receiver.tell());
        let kind = if into.is_some() { Payload::Placed(read) } else { Payload::Lent(read) };
        message::seal(bytes, kind, header, counts, self.crc);
        lane.sender.sent(len as u32, Some(Lent { span, token }));
        let source = Source { key, offset, len: span.len() as u32 };
        match into {
            Some(into) => self.fabric.place(at, slot, source, into, len as u32),
            None => self.fabric.gather(at, slot, source, len as u32),
        }
        self.lent += 1;
        self.placed += u64::from(into.is_some());
        true
    }

    /// How the peer may name the places of a credit's messages, if they are registered and worth it.
    pub(super) fn window(&mut self, landing: Landing, count: u32) -> Option<Window> {
        let Landing { first, stride } = landing;
        let len = first.len();
        if len < self.lend_from && first.region().kind() != MemoryKind::Device {
            return None;
        }
        let all = stride.checked_mul(count.checked_sub(1)? as usize)?.checked_add(len)?;
        let (key, offset) = self.ranges.find(first.as_ptr().addr(), all)?;
        let Remote { address, rkey } =
            self.fabric.remote(Source { key, offset, len: u32::try_from(len).ok()? })?;
        Some(Window { address, stride: stride as u64, len: len as u32, rkey })
    }

    /// Where the peer wants a fragment to be written that goes out now; `None` to its slots.
    #[inline]
    pub(super) fn destination(&mut self, index: usize, header: &Header) -> Option<Remote> {
        let peer =
            self.peers.get_mut(index).filter(|peer| header.kind == Kind::Data && !peer.windows.is_empty())?;
        peer.windows.find(header)
    }

    /// Copies a payload that was lent to its slot, where it would have been otherwise, and gives it back.
    pub(super) fn take_in(&mut self, at: usize, slot: u32, lent: Option<Lent>) {
        let Some(Lent { span, token }) = lent else { return };
        if span.region().kind() == MemoryKind::Device {
            self.read_device(span, at, slot);
        }
        if let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..span.len() + TRAILER) {
            if let Some(payload) = bytes_of(&span) {
                bytes.split_at_mut(span.len()).0.copy_from_slice(payload);
            }
            message::reseal(bytes, self.crc);
        }
        self.released.push(token);
    }

    /// What makes memory known to the device, so that nothing of it is copied to be sent, nor what is only placed there by a peer
    /// whose memory is known as well, once the channel has [adopted](Self::adopt) what comes of it. It may take seconds, in which the
    /// channel has its turns. `None` if that cannot be, which is logged once, or if some of it is known already: then all goes on as
    /// without.
    ///
    /// # Safety
    /// The memory stays mapped until what comes of this is dropped: by [`unregister`](Self::unregister)'s caller, or with the channel.
    #[allow(unsafe_code)]
    pub unsafe fn registering(&mut self, memory: Region) -> Option<Registering> {
        if !self.may_know(memory) {
            return None;
        }
        // SAFETY: passed on to the caller.
        let registering = unsafe { self.fabric.registering(memory) };
        registering.map_err(|why| self.complain(&why)).ok()
    }

    /// Takes what came of [`registering`](Self::registering); whether the memory is known from now on.
    pub fn adopt(&mut self, memory: Region, registered: Result<Registered, RegisterError>) -> bool {
        if !self.may_know(memory) {
            return false;
        }
        match registered.and_then(|registered| self.fabric.adopt(registered)) {
            Ok(key) => {
                tracing::debug!(
                    bytes = memory.len(),
                    "memory is registered; what it holds is sent without a copy"
                );
                self.ranges.insert(memory.as_ptr().addr(), memory.len(), key);
                true
            }
            Err(why) => {
                self.complain(&why);
                false
            }
        }
    }

    /// Whether memory can be made known: nothing of it is, and the group has not ended.
    fn may_know(&self, memory: Region) -> bool {
        let free = self.ranges.is_free(memory.as_ptr().addr(), memory.len());
        free && !self.fenced && !memory.is_empty()
    }

    #[cold]
    fn complain(&mut self, why: &RegisterError) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%why, "some memory is copied before it is sent; this is said once");
        }
    }

    /// Takes back the registration of memory that begins at `address`, if there is one; it ends with the drop of what is returned, which
    /// may take long. Nothing may be under way from there.
    pub fn unregister(&mut self, address: usize) -> Option<Registered> {
        self.fabric.unregister(self.ranges.remove(address)?)
    }

    /// Ranges that are registered.
    pub fn registered(&self) -> usize {
        self.ranges.len()
    }

    /// Fragments that were written to where they belong.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// Fragments that were sent without a copy.
    pub fn lent(&self) -> u64 {
        self.lent
    }
}
