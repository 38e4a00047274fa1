//! Payloads that are sent from where they lie, and to where they belong if the peer has said where that is: which memory is
//! registered, and when it is given back.

use shouter_reducer::header::{Header, MessageKind};
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::transport::{Landing, PayloadRange, SendToken};

use super::digest::{Digest, OnDevice};
use super::fabric::{Export, Fabric, Reach, RegisterError, Registered, Registering, Remote, Source};
use super::fragments::ZeroCopyPayload;
use super::message::{self, CreditWindow, Head, Payload, Read, TRAILER};
use super::ranges::Ranges;
use super::{Control, VerbsChannel};
use crate::channel::sys::bytes_of;
use crate::channel::up::Registry;

/// The registered memory of this process, and the limit from which payloads are sent from there.
pub(super) struct RegisteredMemory {
    ranges: Ranges,
    /// Payloads with fewer bytes are copied.
    zero_copy_from: usize,
    /// A failed registration was logged.
    warned: bool,
}

impl RegisteredMemory {
    pub(super) fn new(zero_copy_from: usize) -> Self {
        Self { ranges: Ranges::default(), zero_copy_from: zero_copy_from.max(1), warned: false }
    }

    /// A span, if it begins `len` bytes of one registered range.
    #[inline]
    fn source(&mut self, span: &PayloadRange, len: usize) -> Option<Source> {
        let (key, offset) = self.ranges.find(span.as_ptr().addr(), len)?;
        Some(Source { key, offset, len: u32::try_from(span.len()).ok()? })
    }

    /// Whether memory can be registered: nothing of it is.
    fn takes(&self, memory: TensorRegion) -> bool {
        !memory.is_empty() && self.ranges.is_free(memory.as_ptr().addr(), memory.len())
    }

    fn insert(&mut self, memory: TensorRegion, key: usize) {
        self.ranges.insert(memory.as_ptr().addr(), memory.len(), key);
    }

    #[cold]
    fn warn_once(&mut self, why: &RegisterError) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(%why, "some memory is copied before it is sent; this is logged once");
        }
    }

    /// Ranges that are registered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Queues a payload to be written from where it lies, to the peer's slot or `into` its memory; false if it is not
    /// registered, or small. The CRC of a device's payload is `known`.
    #[inline]
    pub(super) fn send_zero_copy(
        &mut self,
        at: usize,
        header: &Header,
        (span, into): (PayloadRange, Option<Remote>),
        token: SendToken,
        known: Option<Read<'_>>,
    ) -> bool {
        if span.len() < self.memory.zero_copy_from && known.is_none() {
            return false;
        }
        let Some(source) = self.memory.source(&span, span.len()) else { return false };
        // That takes one more write.
        let into = into.filter(|_| self.fabric.has_room(at, 2));
        let read = known.or_else(|| bytes_of(&span).map(Read::Bytes));
        let (Some(connection), Some(read)) = (self.connections.get_mut(at), read) else { return false };
        let Some(slot) = connection.sender.slot() else { return false };
        let len = span.len() + TRAILER;
        let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..len) else { return false };
        let counts = (connection.sender.next(), connection.receiver.report());
        let kind = if into.is_some() { Payload::Placed(read) } else { Payload::ZeroCopy(read) };
        message::seal(bytes, kind, Head::New(header), counts, self.settings.crc);
        connection.sender.sent(len as u32, Some(ZeroCopyPayload { span, token }));
        match into {
            Some(into) => self.fabric.place(at, slot, source, into, len as u32),
            None => self.fabric.gather(at, slot, source, len as u32),
        }
        self.counts.zero_copy += 1;
        self.counts.placed += u64::from(into.is_some());
        true
    }

    /// The name of the places of a credit's messages for the peer, if they are registered and worth it.
    pub(super) fn window(&mut self, landing: Landing, count: u32) -> Option<CreditWindow> {
        let Landing { first, stride } = landing;
        let len = first.len();
        if len < self.memory.zero_copy_from && first.region().kind() != MemoryKind::Device {
            return None;
        }
        let all = stride.checked_mul(count.checked_sub(1)? as usize)?.checked_add(len)?;
        let Remote { address, rkey } = self.fabric.remote(self.memory.source(&first, all)?)?;
        Some(CreditWindow { address, stride: stride as u64, len: len as u32, rkey })
    }

    /// The address to which the peer wants a fragment written that goes out now; `None`: to its slots.
    #[inline]
    pub(super) fn destination(&mut self, index: usize, header: &Header) -> Option<Remote> {
        let peer = self
            .peers
            .get_mut(index)
            .filter(|peer| header.kind == MessageKind::Data && !peer.windows.is_empty())?;
        peer.windows.find(header)
    }

    /// Copies a zero-copy payload to its slot and releases its token.
    pub(super) fn take_in(&mut self, at: usize, slot: u32, zero_copy: Option<ZeroCopyPayload>) {
        let Some(ZeroCopyPayload { span, token }) = zero_copy else { return };
        if span.region().kind() == MemoryKind::Device {
            self.read_device(span, at, slot);
        }
        if let Some(bytes) = self.fabric.outgoing(at, slot).get_mut(..span.len() + TRAILER) {
            if let Some(payload) = bytes_of(&span) {
                bytes.split_at_mut(span.len()).0.copy_from_slice(payload);
            }
            message::reseal(bytes, self.settings.crc);
        }
        self.released.push(token);
    }
}

impl<F: Fabric, C: Control> Registry for VerbsChannel<F, C> {
    fn is_remote(&self) -> bool {
        true
    }

    #[allow(unsafe_code)]
    unsafe fn registering(&mut self, memory: TensorRegion) -> Option<Registering> {
        if self.fenced || !self.memory.takes(memory) {
            return None;
        }
        // SAFETY: passed on to the caller.
        let registering = unsafe { self.fabric.registering(memory) };
        registering.map_err(|why| self.memory.warn_once(&why)).ok()
    }

    fn adopt(&mut self, memory: TensorRegion, registered: Result<Registered, RegisterError>) -> bool {
        if self.fenced || !self.memory.takes(memory) {
            return false;
        }
        match registered.and_then(|registered| self.fabric.adopt(registered)) {
            Ok(key) => {
                tracing::debug!(
                    bytes = memory.len(),
                    "memory is registered; what it holds is sent without a copy"
                );
                self.memory.insert(memory, key);
                true
            }
            Err(why) => {
                self.memory.warn_once(&why);
                false
            }
        }
    }

    #[allow(unsafe_code)]
    unsafe fn register_device(
        &mut self,
        memory: TensorRegion,
        export: Option<Export>,
    ) -> Result<Reach, RegisterError> {
        if self.fenced || !self.memory.takes(memory) {
            return Err(RegisterError::Refused);
        }
        // SAFETY: passed on to the caller.
        let (key, reach) = unsafe { self.fabric.register_device(memory, export) }?;
        self.memory.insert(memory, key);
        Ok(reach)
    }

    fn unregister(&mut self, address: usize) -> Option<Registered> {
        self.fabric.unregister(self.memory.ranges.remove(address)?)
    }

    fn attach_digest(&mut self, digest: Box<dyn Digest + Send>) {
        self.device = Some(OnDevice::new(digest));
    }
}
