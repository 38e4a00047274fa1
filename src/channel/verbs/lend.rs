//! Payloads that are sent from where they lie: which memory is registered, and when it is given back.

use shouter_reducer::header::HEADER_BYTES;
use shouter_reducer::memory::Region;
use shouter_reducer::transport::{PayloadRange, Token};

use super::fabric::{Fabric, Source};
use super::lane::Lent;
use super::message::{self, TRAILER};
use super::{Control, VerbsChannel};

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Queues a payload to be written from where it lies; false if it is not registered, or small.
    #[inline]
    pub(super) fn lend(
        &mut self,
        at: usize,
        header: &[u8; HEADER_BYTES],
        span: PayloadRange,
        token: Token,
    ) -> bool {
        if span.len() < self.lend_from {
            return false;
        }
        let Some((key, offset)) = self.ranges.find(span.as_ptr().addr(), span.len()) else { return false };
        let (Some(lane), Some(payload)) = (self.all.get_mut(at), span.as_bytes()) else { return false };
        let Some(slot) = lane.sender.slot() else { return false };
        let len = span.len() + TRAILER;
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..len) else { return false };
        let counts = (lane.sender.next(), lane.receiver.tell());
        message::seal(bytes, Some(payload), header, counts, self.crc);
        lane.sender.sent(len as u32, Some(Lent { span, token }));
        self.fabric.gather(at, slot, Source { key, offset, len: span.len() as u32 }, len as u32);
        self.lent += 1;
        true
    }

    /// Copies a payload that was lent to its slot, where it would have been otherwise, and gives it back.
    pub(super) fn take_in(&mut self, at: usize, slot: u32, lent: Option<Lent>) {
        let Some(Lent { span, token }) = lent else { return };
        let payload = span.as_bytes().unwrap_or_default();
        if let Some(place) = self.fabric.outgoing(at, slot).get_mut(..payload.len()) {
            place.copy_from_slice(payload);
        }
        self.released.push(token);
    }

    /// Makes memory known to the device, so that nothing of it is copied to be sent; false, which is logged once, if that
    /// cannot be, or if some of it is known already: then all goes on as without. A call for the device, so no part of any
    /// step.
    ///
    /// # Safety
    /// The memory stays mapped until [`unregister`](Self::unregister), or until the channel is dropped.
    #[allow(unsafe_code)]
    pub unsafe fn register(&mut self, memory: Region) -> bool {
        let base = memory.as_ptr().addr();
        if self.fenced || memory.is_empty() || !self.ranges.is_free(base, memory.len()) {
            return false;
        }
        // SAFETY: passed on to the caller.
        match unsafe { self.fabric.register(memory) } {
            Ok(key) => {
                tracing::debug!(
                    bytes = memory.len(),
                    "memory is registered; what it holds is sent without a copy"
                );
                self.ranges.insert(base, memory.len(), key);
                true
            }
            Err(why) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::warn!(%why, "some memory is copied before it is sent; this is said once");
                }
                false
            }
        }
    }

    /// Takes back the registration of memory that begins at `address`, if there is one. Nothing may be under way from there.
    pub fn unregister(&mut self, address: usize) {
        if let Some(key) = self.ranges.remove(address) {
            self.fabric.unregister(key);
        }
    }

    /// Ranges that are registered.
    pub fn registered(&self) -> usize {
        self.ranges.len()
    }

    /// Fragments that were sent without a copy.
    pub fn lent(&self) -> u64 {
        self.lent
    }
}
