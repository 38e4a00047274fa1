//! The sending half of a session: messages by PSN; queued, sent, lost, and refused ones.
//!
//! ```text
//!            base                           next
//!             |                               |
//!   ring   . .|S . S S L S . S S . . S L S S S|         PSN -> slot; S sent, L lost, '.' settled
//!
//!   slots  queued -> first transmission -> sent <-> lost      each state a list through the slots
//!             ^                             |
//!             '------- back-off <------- refused              acknowledged: back to the free ones
//! ```
//!
//! A message occupies a slot from `push` to its acknowledgement, small ones together; it gets its PSN when it is first sent. The list of
//! sent slots is in order of transmission, so that neither detection of losses nor acknowledgement looks at a
//! datagram that it does not change.

mod bundles;
mod message;
mod sequence;
mod settle;
mod slots;

use std::collections::VecDeque;

use super::api::{Config, MessageToken};
use super::nanos;
use super::recovery::NEVER;
use crate::region::Extent;
use crate::scratch::Bytes;
use crate::wire::rud::{MAX_BODY, Psn};
use bundles::Bundles;
use message::Message;
use sequence::Sequence;
pub(super) use settle::{AckContext, Acked, OnSettled};
use slots::Slots;

/// A refused message, and when it is queued again.
#[derive(Debug)]
struct Retry {
    slot: u16,
    due: u64,
}

/// The datagram to send next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    /// The message's slot.
    pub(super) slot: u16,
    /// Whether it was sent before, and keeps its PSN.
    pub(super) again: bool,
}

/// The sending half. A slot's message is in `messages` at the slot's index; the slot of a PSN that is not settled is in `slots`
/// as sent or lost, that of a retry as refused.
#[derive(Debug)]
pub(super) struct Sender {
    slots: Slots,
    /// As many as there are slots, from the first that is queued until the sender is idle.
    messages: Box<[Message]>,
    /// Slots that messages of one kind may take, large ones or small ones.
    most: u32,
    sequence: Sequence,
    /// In the order of their time.
    retries: VecDeque<Retry>,
    /// The first back-off after a refusal.
    refusal_backoff: u64,
    /// Acknowledged messages that wait to be released, for a device may still read their memory.
    held: Vec<MessageToken>,
    bundles: Bundles,
}

/// Slots that are left for small messages, where large ones may take so many; and the other way round.
const fn reserved(large: u32) -> u32 {
    //= rud/spec.md section 6.10, RUD-73
    // What is queued already keeps neither kind out.
    large / 16 + 1
}

/// Slots of a sender.
pub(super) fn slots(config: &Config) -> u32 {
    config.window_packets + reserved(config.window_packets)
}

impl Sender {
    /// An empty sender whose first PSN is `first`, and whose bundles have at most `most_bundled` bytes of payload.
    pub(super) fn new(first: Psn, config: &Config, most_bundled: usize) -> Self {
        Self {
            slots: Slots::new(slots(config)),
            messages: Box::default(),
            most: config.window_packets,
            sequence: Sequence::new(first),
            retries: VecDeque::new(),
            refusal_backoff: nanos(config.refusal_backoff),
            held: Vec::new(),
            bundles: Bundles::new(most_bundled),
        }
    }

    /// Whether acknowledged messages, or memory of this sender's own, wait for frames.
    pub(super) fn waits_for_frames(&self) -> bool {
        !self.held.is_empty() || self.bundles.are_resting()
    }

    /// Nothing was sent for long: memory that is not in use is given back, the slots among it. The next message allocates it again.
    pub(super) fn on_idle(&mut self) {
        if self.is_empty() {
            self.bundles.free_memory();
            self.slots.free_memory();
            self.messages = Box::default();
        }
    }

    /// Releases the acknowledged messages that waited for frames: none is out any more.
    pub(super) fn release_held(&mut self, release: impl FnMut(MessageToken)) {
        self.held.drain(..).for_each(release);
        self.bundles.on_frames_gone();
    }

    /// Whether small messages that are queued from now on share datagrams.
    pub(super) fn set_bundles(&mut self, used: bool) {
        self.bundles.set_used(used);
    }

    /// Bundles that there is memory for.
    #[cfg(test)]
    pub(super) fn bundles(&self) -> usize {
        self.bundles.len()
    }

    /// The memory that frames may refer to and that is this sender's own.
    pub(super) fn into_memory(self) -> impl Iterator<Item = Bytes> {
        self.bundles.into_memory()
    }

    /// Lowest PSN that is not settled.
    #[inline]
    pub(super) fn base(&self) -> Psn {
        self.sequence.base()
    }

    /// Next PSN that will be sent for the first time.
    #[inline]
    pub(super) fn next(&self) -> Psn {
        self.sequence.next()
    }

    /// Large messages that `push` would take; small ones may find more room.
    #[inline]
    pub(super) fn capacity(&self) -> u32 {
        self.slots.free().min(self.most.saturating_sub(self.slots.used().1))
    }

    /// Large messages that wait to be sent for the first time, or again because the peer has refused them.
    #[inline]
    pub(super) fn queued_large(&self) -> u32 {
        self.slots.queued_large()
    }

    /// Whether no message is queued or unacknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.are_free()
    }

    /// Whether everything that was sent is settled.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.sequence.next() == self.sequence.base()
    }

    /// Datagrams on the wire.
    #[inline]
    pub(super) fn flight(&self) -> u32 {
        self.slots.flight()
    }

    /// Payload bytes on the wire.
    #[inline]
    pub(super) fn flight_bytes(&self) -> usize {
        self.slots.flight_bytes()
    }

    /// Whether `pick` would find something.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.slots.lost() != 0 || self.slots.queued() != 0 && self.sequence.room() != 0
    }

    /// When the next refused message is queued again; `NEVER` if there is none.
    #[inline]
    pub(super) fn retry_at(&self) -> u64 {
        self.retries.front().map_or(NEVER, |retry| retry.due)
    }

    /// When and as which transmission the oldest datagram on the wire was sent.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(u64, u32)> {
        self.slots.oldest()
    }

    /// Header and payload bytes of the oldest datagram on the wire.
    pub(super) fn oldest_bytes(&self) -> usize {
        self.slots.on_wire().next().map_or(0, |at| self.message_bytes(at))
    }

    /// The slots of the datagrams on the wire that were sent before `until`.
    #[inline]
    pub(super) fn sent_before(&self, until: u64) -> impl Iterator<Item = usize> {
        self.slots.on_wire().take_while(move |at| self.slots.sent_at(*at) < until)
    }

    /// Header and payload bytes of the longest datagram on the wire.
    pub(super) fn longest_bytes(&self) -> usize {
        self.slots.on_wire().map(|at| self.message_bytes(at)).max().unwrap_or(0)
    }

    fn message_bytes(&self, at: usize) -> usize {
        usize::from(self.slots.bytes(at)) + usize::from(self.messages[at].body_len())
    }

    /// Queues a message whose header of `len` bytes, at most 64, `write` puts in its place; the payload has at most 65,535. A small one joins
    /// the one queued before it. False if no slot is free.
    #[inline]
    pub(super) fn push(
        &mut self,
        len: u8,
        write: impl FnOnce(&mut [u8; MAX_BODY]),
        payload: Option<Extent>,
        token: MessageToken,
    ) -> bool {
        let bytes = payload.map_or(0, |extent| extent.len() as u16);
        let len_bytes = usize::from(len) + usize::from(bytes);
        //= rud/spec.md section 6.9, RUD-70
        let is_small = self.bundles.is_small(len_bytes);
        if is_small
            && let Some(last) = self.slots.last_small()
            && self.fits_behind(last, len_bytes)
        {
            self.join(last, len, write, payload, token);
            return true;
        }
        let is_full = match is_small {
            // As long as there is the room that is left for large ones, small ones do not have more than theirs.
            true => self.slots.free() <= reserved(self.most) && self.slots.used().0 >= self.most,
            false => self.capacity() == 0,
        };
        if is_full {
            return false;
        }
        let Some(at) = self.slots.queue(token, bytes, is_small) else { return false };
        if self.messages.is_empty() {
            self.allocate();
        }
        self.messages[at].renew(len, write, payload);
        true
    }

    #[cold]
    fn allocate(&mut self) {
        self.messages = vec![Message::NONE; (self.most + reserved(self.most)) as usize].into_boxed_slice();
    }

    /// The message queued last requests its acknowledgement at once, if it has not been sent yet. If it goes before large ones, the last of
    /// these asks as well.
    #[inline]
    pub(super) fn request_ack(&mut self) {
        if let Some(at) = self.slots.newest() {
            self.messages[at].ask_for_ack();
            if let Some(behind) = self.slots.last_behind(at) {
                self.messages[behind].ask_for_ack();
            }
        }
    }

    /// Queues refused messages whose back-off is over.
    #[inline]
    pub(super) fn requeue(&mut self, now: u64) {
        while self.retry_at() <= now {
            let Some(retry) = self.retries.pop_front() else { return };
            self.slots.requeue(retry.slot.into());
        }
    }

    /// The datagram to send next: the oldest lost one with its PSN, otherwise the first queued one, which gets the
    /// next PSN if that is not too far ahead.
    #[inline]
    pub(super) fn pick(&self) -> Option<Pick> {
        //= rud/spec.md section 6.1, RUD-32, RUD-35
        if let Some(slot) = self.slots.first_lost() {
            return Some(Pick { slot, again: true });
        }
        let slot = self.slots.first_queued()?;
        (self.sequence.room() != 0).then_some(Pick { slot, again: false })
    }

    /// The PSN to send the picked datagram under.
    #[inline]
    pub(super) fn psn(&self, pick: Pick) -> Psn {
        if pick.again { self.slots.psn(pick.slot.into()) } else { self.sequence.next() }
    }

    /// Whether nothing can follow the picked datagram until something is acknowledged.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        let is_full = || self.slots.free() == 0 || self.slots.used().1 >= self.most;
        self.slots.queued() + self.slots.lost() <= 1 && is_full() || self.sequence.room() <= 1
    }

    /// Whether something waits behind the picked datagram.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.slots.queued() + self.slots.lost() > 1
    }

    /// The message in `slot`.
    #[inline]
    pub(super) fn message_mut(&mut self, slot: u16) -> &mut Message {
        &mut self.messages[slot as usize]
    }

    /// The token of the message in `slot`, or of the first of a bundle.
    pub(super) fn token(&self, slot: u16) -> MessageToken {
        let first = |number| self.bundles.tokens(number).first().copied();
        self.slots.bundle(slot.into()).and_then(first).unwrap_or_else(|| self.slots.token(slot.into()))
    }

    /// The picked datagram was sent under `psn`.
    #[inline]
    pub(super) fn on_sent(&mut self, now: u64, pick: Pick, psn: Psn) {
        self.slots.on_sent(now, pick.slot.into(), psn);
        if !pick.again {
            self.sequence.assign(pick.slot);
        }
    }

    /// The picked datagram went out in part. What is sent for the first time is acknowledged after its last frame at the earliest.
    pub(super) fn on_sent_in_part(&mut self, pick: Pick) {
        if pick.again {
            self.slots.on_begun(pick.slot.into());
        }
    }

    /// Moves the oldest datagram on the wire to the lost ones; its payload bytes.
    pub(super) fn lose_oldest(&mut self) -> u16 {
        self.slots.lose_oldest()
    }

    /// Moves the most recently sent datagram to the front of the lost ones, to be sent again in a probe's place.
    pub(super) fn lose_youngest(&mut self) {
        self.slots.lose_youngest();
    }

    /// The slot of the most recently sent datagram that is on the wire.
    pub(super) fn youngest(&self) -> Option<u16> {
        self.slots.youngest()
    }

    /// The serial number of a transmission that has no slot.
    pub(super) fn next_serial(&mut self) -> u32 {
        self.slots.next_serial()
    }

    /// Drops all payload of the user's: from now on messages are sent, or sent again, as headers alone. Those in bundles are copies.
    pub(super) fn forget_payloads(&mut self) {
        for (at, message) in self.messages.iter_mut().enumerate() {
            if self.slots.bundle(at).is_none() {
                message.forget_payload();
            }
        }
        self.slots.forget_bytes();
    }
}
