//! The sending half of a session: messages by PSN, what is out, what is lost, what was refused.
//!
//! ```text
//!            una                            next
//!             |                               |
//!   ring   . .|S . S S L S . S S . . S L S S S|         PSN -> slot; S sent, L lost, '.' settled
//!
//!   slots  queued -> first transmission -> sent <-> lost      each state a list through the slots
//!             ^                             |
//!             '------- back-off <------- refused              acknowledged: back to the free ones
//! ```
//!
//! A message occupies a slot from `push` to its acknowledgement; it gets its PSN when it is first sent. The list of
//! sent slots is in order of transmission, so that neither detection of losses nor acknowledgement looks at a
//! datagram that it does not change. Free slots are a stack: those in use stay few and in cache.

mod slots;

use std::collections::VecDeque;

use super::api::MessageToken;
use super::recovery::NEVER;
use crate::device::FramesOut;
use crate::region::Extent;
use crate::wire::rud::{MAX_BODY, MAX_WINDOW, Psn, WORDS};
use slots::{EMPTY, List, NIL, Slot, SlotState, append, prepend, unlink};

const RING: usize = 64 * WORDS as usize;

/// What only a transmission touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// The upper layer's header; `header_len` bytes count.
    pub(super) header: [u8; MAX_BODY],
    /// Bytes of `header` in use.
    pub(super) header_len: u8,
    /// How often the peer has refused it.
    refusals: u8,
    /// The payload.
    pub(super) extent: Option<Extent>,
    /// Its sender waits for the acknowledgement.
    pub(super) request_ack: bool,
    /// CRC of the payload, once it was computed.
    pub(super) payload_crc: Option<u32>,
}

/// A refused message, and when it is queued again.
#[derive(Debug)]
struct Retry {
    slot: u16,
    due: u64,
}

/// What to send next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    /// The message's slot.
    pub(super) slot: u16,
    /// The PSN to send it under.
    pub(super) psn: Psn,
    /// Whether it was sent under that PSN before.
    pub(super) again: bool,
}

/// What one received datagram acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    /// Datagrams acknowledged as consumed.
    pub(super) count: u32,
    /// Datagrams refused.
    pub(super) refused: u32,
    /// Datagrams that had been held for lost and were not.
    pub(super) spurious: u32,
    /// When the most recently sent one was sent, of those sent only once; `NEVER` if there is none.
    pub(super) clean_sent_at: u64,
    /// Whether the two below hold.
    pub(super) newest: bool,
    /// When the most recently sent one was sent.
    pub(super) newest_sent_at: u64,
    /// Its serial number.
    pub(super) newest_serial: u32,
}

impl Acked {
    /// Nothing yet.
    pub(super) const NOTHING: Self = Self {
        count: 0,
        refused: 0,
        spurious: 0,
        clean_sent_at: NEVER,
        newest: false,
        newest_sent_at: 0,
        newest_serial: 0,
    };
}

/// What `Sender` needs to judge an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckContext {
    /// Now.
    pub(super) now: u64,
    /// Smallest round-trip time seen.
    pub(super) min_rtt: u64,
    /// What a round trip takes at least as things are.
    pub(super) round_trip: u64,
    /// First back-off after a refusal.
    pub(super) refusal_backoff: u64,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sender {
    slots: Box<[Slot]>,
    messages: Box<[Message]>,
    /// The slot of each PSN between `una` and `next` that is not settled.
    ring: Box<[u16; RING]>,
    /// One bit a PSN: settled.
    settled: [u64; WORDS as usize],
    una: Psn,
    next: Psn,
    free: List,
    queued: List,
    sent: List,
    lost: List,
    /// In the order of their time.
    retries: VecDeque<Retry>,
    flight_bytes: usize,
    serial: u32,
    /// Which frames may still be read, and the acknowledged messages that wait for them.
    frames_out: FramesOut,
    held: Vec<MessageToken>,
}

impl Sender {
    /// An empty sender whose first PSN is `first`, for up to `capacity` messages (at most `MAX_WINDOW`).
    pub(super) fn new(first: Psn, capacity: u32) -> Self {
        let slot = Slot {
            sent_at: 0,
            token: MessageToken(0),
            serial: 0,
            psn: first,
            prev: NIL,
            next: NIL,
            bytes: 0,
            tries: 0,
            state: SlotState::Free,
        };
        let message = Message {
            header: [0; MAX_BODY],
            header_len: 0,
            refusals: 0,
            request_ack: false,
            extent: None,
            payload_crc: None,
        };
        let mut slots = vec![slot; capacity as usize].into_boxed_slice();
        let mut free = EMPTY;
        for at in 0..slots.len() {
            append(&mut slots, &mut free, at);
        }
        Self {
            slots,
            messages: vec![message; capacity as usize].into_boxed_slice(),
            ring: Box::new([NIL; RING]),
            settled: [0; WORDS as usize],
            una: first,
            next: first,
            free,
            queued: EMPTY,
            sent: EMPTY,
            lost: EMPTY,
            retries: VecDeque::new(),
            flight_bytes: 0,
            serial: 1,
            frames_out: FramesOut::None,
            held: Vec::new(),
        }
    }

    pub(super) fn set_frames_out(&mut self, out: FramesOut) {
        self.frames_out = out;
    }

    /// Whether releases wait for frames.
    pub(super) fn holds_releases(&self) -> bool {
        !self.held.is_empty()
    }

    /// No frame is out any more.
    pub(super) fn release_held(&mut self, release: impl FnMut(MessageToken)) {
        self.held.drain(..).for_each(release);
    }

    /// Lowest PSN that is not settled.
    #[inline]
    pub(super) fn base(&self) -> Psn {
        self.una
    }

    /// Next PSN that will be sent for the first time.
    #[inline]
    pub(super) fn next(&self) -> Psn {
        self.next
    }

    /// Messages that `push` would take.
    #[inline]
    pub(super) fn capacity(&self) -> u32 {
        self.free.len
    }

    /// Whether no message is queued or unacknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len as usize == self.slots.len()
    }

    /// Whether everything that was sent is settled.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.next == self.una
    }

    /// Datagrams on the wire.
    #[inline]
    pub(super) fn flight(&self) -> u32 {
        self.sent.len
    }

    /// Payload bytes on the wire.
    #[inline]
    pub(super) fn flight_bytes(&self) -> usize {
        self.flight_bytes
    }

    /// Whether `pick` would find something.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.lost.len != 0 || self.queued.len != 0 && self.next.since(self.una) < MAX_WINDOW
    }

    /// When the next refused message is queued again; `NEVER` if there is none.
    #[inline]
    pub(super) fn retry_at(&self) -> u64 {
        self.retries.front().map_or(NEVER, |retry| retry.due)
    }

    /// When and as which transmission the oldest datagram on the wire was sent.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(u64, u32)> {
        self.slots.get(self.sent.head as usize).map(|slot| (slot.sent_at, slot.serial))
    }

    /// Header and payload bytes of the oldest datagram on the wire.
    pub(super) fn oldest_bytes(&self) -> usize {
        let at = self.sent.head as usize;
        self.slots.get(at).map_or(0, |slot| slot.bytes as usize + self.messages[at].header_len as usize)
    }

    /// Queues a message; `header` has at most 64 bytes, the payload at most 65,535. False if no slot is free.
    #[inline]
    pub(super) fn push(&mut self, header: &[u8], extent: Option<Extent>, token: MessageToken) -> bool {
        let at = self.free.head as usize;
        if self.free.len == 0 {
            return false;
        }
        unlink(&mut self.slots, &mut self.free, at);
        let slot = &mut self.slots[at];
        slot.token = token;
        slot.bytes = extent.map_or(0, |extent| extent.len() as u16);
        slot.tries = 0;
        slot.state = SlotState::Queued;
        append(&mut self.slots, &mut self.queued, at);
        let message = &mut self.messages[at];
        message.header[..header.len()].copy_from_slice(header);
        message.header_len = header.len() as u8;
        message.refusals = 0;
        message.request_ack = false;
        message.extent = extent;
        message.payload_crc = None;
        true
    }

    /// The message queued last asks for its acknowledgement at once, if it has not been sent yet.
    #[inline]
    pub(super) fn request_ack(&mut self) {
        if let Some(message) = self.messages.get_mut(self.queued.tail as usize) {
            message.request_ack = true;
        }
    }

    /// Queues refused messages whose back-off is over.
    #[inline]
    pub(super) fn requeue(&mut self, now: u64) {
        while self.retry_at() <= now {
            let Some(retry) = self.retries.pop_front() else { return };
            let at = retry.slot as usize;
            self.slots[at].tries = 0;
            self.slots[at].state = SlotState::Queued;
            append(&mut self.slots, &mut self.queued, at);
        }
    }

    /// What to send next: the oldest lost datagram with its PSN, otherwise the oldest queued one, which gets the
    /// next PSN if that is not too far ahead.
    #[inline]
    pub(super) fn pick(&self) -> Option<Pick> {
        if let Some(slot) = self.slots.get(self.lost.head as usize) {
            return Some(Pick { slot: self.lost.head, psn: slot.psn, again: true });
        }
        //= rud/spec.md section 6.1
        // A PSN is never further than the window from the lowest unsettled one.
        (self.queued.len != 0 && self.next.since(self.una) < MAX_WINDOW).then_some(Pick {
            slot: self.queued.head,
            psn: self.next,
            again: false,
        })
    }

    /// Whether nothing can follow the picked datagram until something is acknowledged.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        self.queued.len + self.lost.len <= 1 && self.free.len == 0
            || self.next.since(self.una) + 1 >= MAX_WINDOW
    }

    /// The message in `slot`.
    #[inline]
    pub(super) fn message(&mut self, slot: u16) -> &mut Message {
        &mut self.messages[slot as usize]
    }

    /// What was picked was sent.
    #[inline]
    pub(super) fn on_sent(&mut self, now: u64, pick: Pick) {
        let at = pick.slot as usize;
        if pick.again {
            unlink(&mut self.slots, &mut self.lost, at);
        } else {
            unlink(&mut self.slots, &mut self.queued, at);
            let index = ring_index(pick.psn);
            self.ring[index] = pick.slot;
            // The first PSN of a word takes over the word of 4,096 PSNs ago, which is settled.
            let keep = if index.is_multiple_of(64) { 0 } else { !(1 << (index % 64)) };
            self.settled[index / 64] &= keep;
            self.next = pick.psn.plus(1);
        }
        let slot = &mut self.slots[at];
        slot.psn = pick.psn;
        slot.sent_at = now;
        slot.serial = self.serial;
        slot.tries = slot.tries.saturating_add(1);
        slot.state = SlotState::Sent;
        self.serial = self.serial.wrapping_add(1);
        self.flight_bytes += slot.bytes as usize;
        append(&mut self.slots, &mut self.sent, at);
    }

    /// Whose message a slot holds.
    pub(super) fn token(&self, at: u16) -> Option<MessageToken> {
        self.slots.get(at as usize).map(|slot| slot.token)
    }

    /// Moves the oldest datagram on the wire to the lost ones.
    pub(super) fn lose_oldest(&mut self) {
        if self.sent.len != 0 {
            let at = self.sent.head as usize;
            self.take_from_wire(at);
            append(&mut self.slots, &mut self.lost, at);
        }
    }

    /// Moves the most recently sent datagram to the front of the lost ones, to be sent again as a probe.
    pub(super) fn probe(&mut self) {
        if self.sent.len != 0 {
            let at = self.sent.tail as usize;
            self.take_from_wire(at);
            prepend(&mut self.slots, &mut self.lost, at);
        }
    }

    /// Lets go of all payload: what is sent from now on, or sent again, is the header alone.
    pub(super) fn forget_payloads(&mut self) {
        for (slot, message) in self.slots.iter_mut().zip(&mut self.messages) {
            slot.bytes = 0;
            message.extent = None;
            message.payload_crc = None;
        }
        self.flight_bytes = 0;
    }

    fn take_from_wire(&mut self, at: usize) {
        unlink(&mut self.slots, &mut self.sent, at);
        self.flight_bytes -= self.slots[at].bytes as usize;
        self.slots[at].state = SlotState::Lost;
    }

    /// Every PSN before `cumulative` has been consumed.
    #[inline]
    pub(super) fn on_cumulative(
        &mut self,
        context: &AckContext,
        cumulative: Psn,
        acked: &mut Acked,
        release: &mut impl FnMut(MessageToken),
    ) {
        //= rud/spec.md section 6.2
        // An acknowledgement of what was never sent is ignored.
        if cumulative.since(self.una) > self.next.since(self.una) {
            return;
        }
        while self.una != cumulative {
            let index = ring_index(self.una);
            // Settled PSNs between are skipped; each is looked at once in its life.
            if self.settled[index / 64] >> (index % 64) & 1 == 0 {
                self.settle(context, index, acked, release);
            }
            self.una = self.una.plus(1);
        }
        self.skip_settled();
    }

    /// The word that starts at `start`: which of its PSNs have been consumed, which refused.
    #[inline]
    pub(super) fn on_word(
        &mut self,
        context: &AckContext,
        start: Psn,
        received: u64,
        refused: u64,
        acked: &mut Acked,
        release: &mut impl FnMut(MessageToken),
    ) {
        let known = self.settled[ring_index(start) / 64];
        if (received | refused) & !known == 0 {
            return;
        }
        let mut news = received & !known;
        while news != 0 {
            let psn = start.plus(news.trailing_zeros());
            news &= news - 1;
            if self.is_out(psn) {
                self.settle(context, ring_index(psn), acked, release);
            }
        }
        let mut news = refused & !received & !known;
        while news != 0 {
            let psn = start.plus(news.trailing_zeros());
            news &= news - 1;
            if self.is_out(psn) {
                self.refuse(context, ring_index(psn), acked);
            }
        }
        self.skip_settled();
    }

    /// Whether `psn` lies between the lowest unsettled PSN and the next one.
    #[inline]
    fn is_out(&self, psn: Psn) -> bool {
        psn.since(self.una) < self.next.since(self.una)
    }

    /// The unsettled PSN at `index` of the ring was consumed.
    #[inline]
    fn settle(
        &mut self,
        context: &AckContext,
        index: usize,
        acked: &mut Acked,
        release: &mut impl FnMut(MessageToken),
    ) {
        let at = self.take_off(context, index, acked);
        acked.count += 1;
        self.slots[at].state = SlotState::Free;
        prepend(&mut self.slots, &mut self.free, at);
        if self.frames_out == FramesOut::None || !self.hold(at) {
            release(self.slots[at].token);
        }
    }

    /// Keeps a release back if a frame may refer to the message. A frame that only waits is another one than that which was
    /// acknowledged: the message was sent again.
    #[cold]
    fn hold(&mut self, at: usize) -> bool {
        let slot = &self.slots[at];
        let hold = self.frames_out == FramesOut::Held || slot.tries > 1;
        if hold {
            self.held.push(slot.token);
        }
        hold
    }

    /// The unsettled PSN at `index` of the ring was refused.
    fn refuse(&mut self, context: &AckContext, index: usize, acked: &mut Acked) {
        //= rud/spec.md section 6.6
        // The PSN is settled; the message waits, and then takes a new one.
        let at = self.take_off(context, index, acked);
        acked.refused += 1;
        self.slots[at].state = SlotState::Refused;
        let refusals = &mut self.messages[at].refusals;
        let backoff = context.refusal_backoff.saturating_mul(1 << (*refusals).min(32));
        *refusals = refusals.saturating_add(1);
        let due = context.now.saturating_add(backoff);
        let place = self.retries.partition_point(|other| other.due <= due);
        self.retries.insert(place, Retry { slot: at as u16, due });
    }

    /// Settles the PSN at `index` of the ring, takes its slot out of its list, and notes what the acknowledgement
    /// says of time. Returns the slot.
    #[inline]
    fn take_off(&mut self, context: &AckContext, index: usize, acked: &mut Acked) -> usize {
        self.settled[index / 64] |= 1 << (index % 64);
        let at = self.ring[index] as usize;
        let slot = self.slots[at];
        let lost = slot.state == SlotState::Lost;
        if lost {
            unlink(&mut self.slots, &mut self.lost, at);
        } else {
            unlink(&mut self.slots, &mut self.sent, at);
            self.flight_bytes -= slot.bytes as usize;
        }
        //= rud/spec.md section 6.3
        // An acknowledgement sooner after a resend than a round trip takes may be that of an earlier transmission;
        // sooner than half the smallest round trip, it must be.
        if lost || slot.tries > 1 {
            let elapsed = context.now.saturating_sub(slot.sent_at);
            if lost || elapsed < context.round_trip {
                acked.spurious += u32::from(lost || elapsed < context.min_rtt / 2);
                return at;
            }
        }
        if slot.tries == 1 && (acked.clean_sent_at == NEVER || slot.sent_at > acked.clean_sent_at) {
            acked.clean_sent_at = slot.sent_at;
        }
        if !acked.newest || (slot.serial.wrapping_sub(acked.newest_serial) as i32) > 0 {
            acked.newest = true;
            acked.newest_sent_at = slot.sent_at;
            acked.newest_serial = slot.serial;
        }
        at
    }

    /// Moves `una` over settled PSNs.
    #[inline]
    fn skip_settled(&mut self) {
        while self.una != self.next {
            let index = ring_index(self.una);
            let run = (self.settled[index / 64] >> (index % 64)).trailing_ones();
            if run == 0 {
                return;
            }
            self.una = self.una.plus(run.min(self.next.since(self.una)));
        }
    }
}

#[inline]
fn ring_index(psn: Psn) -> usize {
    psn.0 as usize % RING
}
