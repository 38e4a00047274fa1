//! Bundles: small messages that wait at the same time share a datagram (spec.md section 6.9), and with it a slot and a PSN.
//!
//! A message is copied into a bundle when it joins one. The first message of a bundle is an ordinary one until the second comes.

use super::settle::may_be_read;
use super::slots::Transmission;
use super::{AckContext, Acked, OnSettled, Sender};
use crate::region::Extent;
use crate::rud::api::{MessageToken, SMALL_MESSAGE};
use crate::scratch::Bytes;
use crate::wire::rud::{Bundled, MAX_BODY, MAX_BUNDLED, Psn, RECORD_LEN};

/// The messages of one datagram. What lies in `bytes` is not written again while a frame may refer to it.
#[derive(Debug)]
struct Bundle {
    bytes: Bytes,
    len: usize,
    tokens: Vec<MessageToken>,
}

/// The bundles of a sender, by their numbers. There are as many as were in use at once since the sender was idle.
#[derive(Debug)]
pub(super) struct Bundles {
    /// The longest payload of one, in bytes.
    most: usize,
    /// Whether messages share datagrams.
    used: bool,
    all: Vec<Bundle>,
    free: Vec<u32>,
    /// Settled ones that a frame may still refer to.
    resting: Vec<u32>,
}

impl Bundles {
    /// With a payload of up to `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { most, used: true, all: Vec::new(), free: Vec::new(), resting: Vec::new() }
    }

    /// Whether messages queued from now on share datagrams. Those that do already still do.
    pub(super) fn set_used(&mut self, used: bool) {
        self.used = used;
    }

    /// Whether a message of so many bytes, header and payload, may share a datagram, and goes before large ones.
    #[inline]
    pub(super) fn is_small(&self, bytes: usize) -> bool {
        bytes <= SMALL_MESSAGE && self.used
    }

    /// An empty bundle.
    fn take(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            return number;
        }
        let bytes = Bytes::new(self.most);
        self.all.push(Bundle { bytes, len: 0, tokens: Vec::with_capacity(MAX_BUNDLED) });
        (self.all.len() - 1) as u32
    }

    /// Adds a message. There is room for it.
    #[inline]
    fn add(&mut self, number: u32, header: &[u8], payload: &[u8], token: MessageToken) {
        let bundle = &mut self.all[number as usize];
        bundle.bytes.write(bundle.len, &[header.len() as u8, payload.len() as u8]);
        bundle.bytes.write(bundle.len + RECORD_LEN, header);
        bundle.bytes.write(bundle.len + RECORD_LEN + header.len(), payload);
        bundle.len += RECORD_LEN + header.len() + payload.len();
        bundle.tokens.push(token);
    }

    #[inline]
    fn payload(&self, number: u32) -> Option<Extent> {
        let bundle = &self.all[number as usize];
        bundle.bytes.extent(0, bundle.len)
    }

    #[inline]
    pub(super) fn tokens(&self, number: u32) -> &[MessageToken] {
        &self.all[number as usize].tokens
    }

    /// The messages of a bundle are settled, or lie in another one.
    #[inline]
    fn give_back(&mut self, number: u32, may_be_read: bool) {
        let bundle = &mut self.all[number as usize];
        bundle.len = 0;
        bundle.tokens.clear();
        if may_be_read { &mut self.resting } else { &mut self.free }.push(number);
    }

    /// No frame refers to any that was given back.
    pub(super) fn on_frames_gone(&mut self) {
        self.free.append(&mut self.resting);
    }

    /// Whether a frame may refer to any that was given back.
    pub(super) fn are_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Frees the memory of all, if none is in use, and no frame may refer to one.
    pub(super) fn free_memory(&mut self) {
        if self.free.len() == self.all.len() {
            (self.all, self.free, self.resting) = (Vec::new(), Vec::new(), Vec::new());
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The memory of all, for frames that may still refer to it.
    pub(super) fn into_memory(self) -> impl Iterator<Item = Bytes> {
        self.all.into_iter().map(|bundle| bundle.bytes)
    }
}

impl Sender {
    /// Whether a small message of so many bytes, header and payload, shares the datagram of the one in slot `at`, which is queued.
    #[inline]
    pub(super) fn fits_behind(&self, at: usize, bytes: usize) -> bool {
        let message = &self.messages[at];
        let before = match self.slots.bundle(at) {
            Some(number) if self.bundles.tokens(number).len() == MAX_BUNDLED => return false,
            Some(number) => self.bundles.all[number as usize].len,
            None => RECORD_LEN + usize::from(self.slots.bytes(at)) + usize::from(message.body_len()),
        };
        //= rud/spec.md section 6.9, RUD-69, RUD-71
        // None joins those that were refused: it would wait with them.
        before + RECORD_LEN + bytes <= self.bundles.most && message.is_new()
    }

    /// Puts a message behind the one in slot `at`, where it fits.
    #[inline]
    pub(super) fn join(
        &mut self,
        at: usize,
        len: u8,
        write: impl FnOnce(&mut [u8; MAX_BODY]),
        payload: Option<Extent>,
        token: MessageToken,
    ) {
        let number = match self.slots.bundle(at) {
            Some(number) => number,
            None => self.begin_bundle(at),
        };
        let mut header = [0; MAX_BODY];
        write(&mut header);
        let payload = payload.as_ref().map_or(&[][..], Extent::as_bytes);
        self.bundles.add(number, &header[..usize::from(len).min(MAX_BODY)], payload, token);
        self.become_bundle(at, number);
        self.slots.set_newest(at);
    }

    /// The message in slot `at` becomes the first of a bundle.
    fn begin_bundle(&mut self, at: usize) -> u32 {
        let number = self.bundles.take();
        let message = &self.messages[at];
        let payload = message.extent();
        let payload = payload.as_ref().map_or(&[][..], Extent::as_bytes);
        self.bundles.add(number, message.header(), payload, self.slots.token(at));
        number
    }

    /// What is in slot `at`, and not on the wire, is this bundle from now on.
    #[inline]
    fn become_bundle(&mut self, at: usize, number: u32) {
        let payload = self.bundles.payload(number);
        self.slots.set_bundle(at, number, payload.map_or(0, |extent| extent.len() as u16));
        self.messages[at].become_bundle(payload);
    }

    /// The messages of a bundle were consumed.
    #[inline(never)]
    pub(super) fn bundle_consumed(
        &mut self,
        context: &AckContext<'_>,
        number: u32,
        sent: &Transmission,
        on: &mut impl OnSettled,
    ) {
        // They are copies: no frame refers to the memory of the user.
        self.bundles.tokens(number).iter().for_each(|token| on.released(*token));
        self.bundles.give_back(number, may_be_read(context.frames_out, sent));
    }

    /// Of the bundle `psn` the peer has consumed and refused these messages. It says so of all of them, or of none.
    #[cold]
    pub(in crate::rud) fn on_bundle(
        &mut self,
        context: &AckContext<'_>,
        psn: Psn,
        consumed: u64,
        refused: u64,
        acked: &mut Acked,
        on: &mut impl OnSettled,
    ) {
        let Some(at) = self.sequence.slot_of(psn) else { return };
        let Some(number) = self.slots.bundle(at) else { return };
        let others = MAX_BUNDLED - self.bundles.tokens(number).len();
        let all = u64::MAX.checked_shr(others as u32).unwrap_or(0);
        //= rud/spec.md section 6.2, RUD-41
        if consumed & refused != 0 || consumed | refused != all || refused == 0 {
            return;
        }
        self.sequence.settle(psn);
        self.sequence.advance();
        //= rud/spec.md section 6.9, RUD-71
        // What was refused makes a new bundle, with a new PSN: the old one is settled.
        let sent = self.slots.take_off(at);
        if acked.take_in(context, &sent) {
            on.delivered(at);
        }
        let rest = self.bundles.take();
        let payload = self.bundles.payload(number);
        let messages = Bundled::new(payload.as_ref().map_or(&[], Extent::as_bytes));
        for (i, (header, bytes)) in messages.enumerate() {
            let Some(token) = self.bundles.tokens(number).get(i).copied() else { break };
            if refused >> i & 1 != 0 {
                self.bundles.add(rest, header, bytes, token);
            } else {
                on.released(token);
            }
        }
        self.bundles.give_back(number, may_be_read(context.frames_out, &sent));
        self.become_bundle(at, rest);
        self.wait(context.now, at, refused.count_ones(), acked);
    }
}
