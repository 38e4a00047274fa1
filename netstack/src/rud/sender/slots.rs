//! The slots of a sender's messages, and the lists through them: free, queued, sent, lost.

use super::sequence::NIL;
use crate::rud::api::MessageToken;
use crate::wire::rud::Psn;

/// The bit in `marks` of a datagram that was sent and counts as lost.
const LOST: u8 = 1;
/// The bit of a bundle, whose number stands in place of the token.
const BUNDLE: u8 = 2;
/// The bit of small messages, which go first.
const SMALL_MARK: u8 = 4;

/// So many small datagrams in a row leave while large ones wait.
const MOST_SMALL: u32 = 8;

/// The part of a message that every acknowledgement touches.
#[derive(Clone, Copy, Debug)]
struct Slot {
    sent_at: u64,
    token: MessageToken,
    serial: u32,
    psn: Psn,
    prev: u16,
    next: u16,
    bytes: u16,
    tries: u8,
    marks: u8,
}

/// A list through the slots; the links are in the slots.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u16,
    tail: u16,
    len: u32,
}

const EMPTY: List = List { head: NIL, tail: NIL, len: 0 };

/// The state of a datagram when its PSN was settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transmission {
    /// When it was sent last.
    pub(super) sent_at: u64,
    /// The number of that transmission.
    pub(super) serial: u32,
    /// How often it was sent under its PSN, or begun to be.
    pub(super) tries: u8,
    /// Whether it was held for lost.
    pub(super) lost: bool,
    /// Its payload bytes.
    pub(super) bytes: u16,
    /// The bundle that its payload is, if it is one.
    pub(super) bundle: Option<u32>,
    /// The token of its message, if it is not.
    pub(super) token: MessageToken,
}

/// All slots. Each is in the list of its state, and in none while it is refused or was [taken off](Self::take_off).
///
/// `sent` is in order of transmission, and `flight_bytes` the sum of its `bytes`. The free slots are a stack, which has neither `prev` nor tail: those in use stay
/// few and in cache. Their memory is allocated when the first is taken, and freed when the sender is idle: a session that only receives, or
/// rests, needs none.
#[derive(Debug)]
pub(super) struct Slots {
    count: u32,
    all: Box<[Slot]>,
    free: List,
    queued: List,
    /// Queued small messages.
    small: List,
    sent: List,
    lost: List,
    flight_bytes: usize,
    /// Slots with small messages, whatever their state.
    small_used: u32,
    /// The number of the next transmission.
    serial: u32,
    /// The slot that was queued last, unless it was sent since.
    newest: u16,
    /// Small datagrams that were sent since the last large one, while there was one.
    small_sent: u32,
}

impl Slots {
    /// `count` free slots; no endpoint has 65,535.
    pub(super) fn new(count: u32) -> Self {
        let free = List { len: count, ..EMPTY };
        let all = Box::default();
        let (queued, small, sent, lost) = (EMPTY, EMPTY, EMPTY, EMPTY);
        Self {
            count,
            all,
            free,
            queued,
            small,
            sent,
            lost,
            flight_bytes: 0,
            small_used: 0,
            serial: 1,
            newest: NIL,
            small_sent: 0,
        }
    }

    /// Allocates the slots; the first free one, if there was none before.
    #[cold]
    fn allocate(&mut self) -> Option<u16> {
        if !self.all.is_empty() {
            return None;
        }
        let slot = Slot {
            sent_at: 0,
            token: MessageToken(0),
            serial: 0,
            psn: Psn(0),
            prev: NIL,
            next: NIL,
            bytes: 0,
            tries: 0,
            marks: 0,
        };
        self.all = vec![slot; self.count as usize].into_boxed_slice();
        self.free = EMPTY;
        for at in 0..self.all.len() {
            append(&mut self.all, &mut self.free, at);
        }
        (self.free.len != 0).then_some(self.free.head)
    }

    /// Frees the memory of all, none of which is in use.
    pub(super) fn free_memory(&mut self) {
        self.all = Box::default();
        self.free = List { len: self.count, ..EMPTY };
    }

    /// Free slots.
    #[inline]
    pub(super) fn free(&self) -> u32 {
        self.free.len
    }

    /// Slots with small messages, and with large ones, whatever their state.
    #[inline]
    pub(super) fn used(&self) -> (u32, u32) {
        (self.small_used, self.count - self.free.len - self.small_used)
    }

    /// Whether all are free.
    pub(super) fn are_free(&self) -> bool {
        self.free.len == self.count
    }

    /// Slots in which messages are queued.
    #[inline]
    pub(super) fn queued(&self) -> u32 {
        self.queued.len + self.small.len
    }

    /// Slots in which large messages are queued.
    #[inline]
    pub(super) fn queued_large(&self) -> u32 {
        self.queued.len
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

    /// Lost datagrams.
    #[inline]
    pub(super) fn lost(&self) -> u32 {
        self.lost.len
    }

    /// The lost datagram to be sent again first.
    #[inline]
    pub(super) fn first_lost(&self) -> Option<u16> {
        (self.lost.head != NIL).then_some(self.lost.head)
    }

    /// The PSN under which a slot's message was sent.
    #[inline]
    pub(super) fn psn(&self, at: usize) -> Psn {
        self.all[at].psn
    }

    /// The queued slot that is sent next.
    #[inline]
    pub(super) fn first_queued(&self) -> Option<u16> {
        //= rud/spec.md section 6.10, RUD-72
        // Small messages go first, and yet cannot hold up large ones for ever.
        let list = match self.small.len {
            0 => &self.queued,
            _ if self.queued.len != 0 && self.small_sent >= MOST_SMALL => &self.queued,
            _ => &self.small,
        };
        (list.head != NIL).then_some(list.head)
    }

    /// The slot of the large message that was queued last, if the message in slot `at` is small and goes before it.
    #[inline]
    pub(super) fn last_behind(&self, at: usize) -> Option<usize> {
        let overtakes = self.all[at].marks & SMALL_MARK != 0 && self.queued.len != 0;
        overtakes.then_some(usize::from(self.queued.tail))
    }

    /// The slot of the small message that was queued last.
    #[inline]
    pub(super) fn last_small(&self) -> Option<usize> {
        (self.small.len != 0).then_some(self.small.tail.into())
    }

    /// The slot that was queued last, if it was not sent.
    #[inline]
    pub(super) fn newest(&self) -> Option<usize> {
        (self.newest != NIL).then_some(self.newest.into())
    }

    /// A message has joined the one in this slot, which is queued.
    #[inline]
    pub(super) fn set_newest(&mut self, at: usize) {
        self.newest = at as u16;
    }

    /// When and as which transmission the oldest datagram on the wire was sent.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(u64, u32)> {
        self.all.get(self.sent.head as usize).map(|slot| (slot.sent_at, slot.serial))
    }

    /// The slots of the datagrams on the wire, the oldest first.
    pub(super) fn on_wire(&self) -> impl Iterator<Item = usize> {
        let slot = |at: u16| self.all.get(usize::from(at)).map(|_| at);
        core::iter::successors(slot(self.sent.head), move |at| slot(self.all[usize::from(*at)].next))
            .map(usize::from)
    }

    /// When a slot's message was sent last.
    #[inline]
    pub(super) fn sent_at(&self, at: usize) -> u64 {
        self.all[at].sent_at
    }

    /// Payload bytes of a slot's message.
    pub(super) fn bytes(&self, at: usize) -> u16 {
        self.all[at].bytes
    }

    /// The token of a slot's message.
    #[inline]
    pub(super) fn token(&self, at: usize) -> MessageToken {
        self.all[at].token
    }

    /// Queues a message with so many bytes of payload, a small one or not, in a free slot.
    #[inline]
    pub(super) fn queue(&mut self, token: MessageToken, bytes: u16, is_small: bool) -> Option<usize> {
        let first = if self.free.head == NIL { self.allocate()? } else { self.free.head };
        let at = usize::from(first);
        let slot = &mut self.all[at];
        (self.free.head, self.free.len) = (slot.next, self.free.len - 1);
        slot.token = token;
        slot.bytes = bytes;
        slot.tries = 0;
        slot.marks = if is_small { SMALL_MARK } else { 0 };
        self.small_used += u32::from(is_small);
        self.newest = first;
        append(&mut self.all, if is_small { &mut self.small } else { &mut self.queued }, at);
        Some(at)
    }

    /// Queues a refused message again.
    #[inline]
    pub(super) fn requeue(&mut self, at: usize) {
        self.all[at].tries = 0;
        let is_small = self.all[at].marks & SMALL_MARK != 0;
        append(&mut self.all, if is_small { &mut self.small } else { &mut self.queued }, at);
    }

    /// The first of the queued or the lost datagrams was sent under `psn`.
    #[inline(always)]
    pub(super) fn on_sent(&mut self, now: u64, at: usize, psn: Psn) {
        let serial = self.next_serial();
        let slot = &mut self.all[at];
        let from = match slot.marks & (LOST | SMALL_MARK) {
            0 => {
                self.small_sent = 0;
                &mut self.queued
            }
            SMALL_MARK => {
                self.small_sent = if self.queued.len == 0 { 0 } else { self.small_sent + 1 };
                &mut self.small
            }
            _ => &mut self.lost,
        };
        if self.newest == at as u16 {
            self.newest = NIL;
        }
        debug_assert_eq!(usize::from(from.head), at);
        from.head = slot.next;
        from.len -= 1;
        let behind = from.head;
        if behind == NIL {
            from.tail = NIL;
        }
        slot.psn = psn;
        slot.sent_at = now;
        slot.serial = serial;
        slot.tries = slot.tries.saturating_add(1);
        slot.marks &= !LOST;
        self.flight_bytes += slot.bytes as usize;
        if let Some(first) = self.all.get_mut(usize::from(behind)) {
            first.prev = NIL;
        }
        append(&mut self.all, &mut self.sent, at);
    }

    /// Frames of another transmission of a lost datagram have gone out: an acknowledgement may be of that or of one before.
    pub(super) fn on_begun(&mut self, at: usize) {
        self.all[at].tries = self.all[at].tries.saturating_add(1);
    }

    /// Moves the oldest datagram on the wire to the end of the lost ones; its payload bytes.
    pub(super) fn lose_oldest(&mut self) -> u16 {
        if self.sent.len == 0 {
            return 0;
        }
        let at = self.sent.head as usize;
        self.take_from_wire(at);
        append(&mut self.all, &mut self.lost, at);
        self.all[at].bytes
    }

    /// Moves the most recently sent datagram to the front of the lost ones.
    pub(super) fn lose_youngest(&mut self) {
        if self.sent.len != 0 {
            let at = self.sent.tail as usize;
            self.take_from_wire(at);
            prepend(&mut self.all, &mut self.lost, at);
        }
    }

    /// The most recently sent datagram on the wire.
    pub(super) fn youngest(&self) -> Option<u16> {
        (self.sent.len != 0).then_some(self.sent.tail)
    }

    /// The serial number of a transmission that is not of a datagram here.
    pub(super) fn next_serial(&mut self) -> u32 {
        let serial = self.serial;
        self.serial = serial.wrapping_add(1);
        serial
    }

    fn take_from_wire(&mut self, at: usize) {
        unlink(&mut self.all, &mut self.sent, at);
        self.flight_bytes -= self.all[at].bytes as usize;
        self.all[at].marks |= LOST;
    }

    /// Takes a datagram that was sent and is settled now out of its list. It is [freed](Self::free_up) or
    /// [refused](Self::refuse) next.
    #[inline]
    pub(super) fn take_off(&mut self, at: usize) -> Transmission {
        let Slot { sent_at, serial, tries, bytes, marks, token, .. } = self.all[at];
        let lost = marks & LOST != 0;
        if lost {
            unlink(&mut self.all, &mut self.lost, at);
        } else {
            unlink(&mut self.all, &mut self.sent, at);
            self.flight_bytes -= bytes as usize;
        }
        let bundle = (marks & BUNDLE != 0).then_some(token.0 as u32);
        Transmission { sent_at, serial, tries, lost, bytes, bundle, token }
    }

    /// The message of a slot that was taken off is finished.
    #[inline]
    pub(super) fn free_up(&mut self, at: usize) {
        let slot = &mut self.all[at];
        self.small_used -= u32::from(slot.marks & SMALL_MARK != 0);
        slot.next = self.free.head;
        (self.free.head, self.free.len) = (at as u16, self.free.len + 1);
    }

    /// The message of a slot that was taken off waits, to be [queued again](Self::requeue).
    pub(super) fn refuse(&mut self, at: usize) {
        self.all[at].marks &= !LOST;
    }

    /// The bundle in a slot, if there is one.
    #[inline]
    pub(super) fn bundle(&self, at: usize) -> Option<u32> {
        let Slot { marks, token, .. } = self.all[at];
        (marks & BUNDLE != 0).then_some(token.0 as u32)
    }

    /// What is in a slot, and not on the wire, is this bundle of `bytes` from now on.
    #[inline]
    pub(super) fn set_bundle(&mut self, at: usize, number: u32, bytes: u16) {
        let slot = &mut self.all[at];
        slot.marks |= BUNDLE | SMALL_MARK;
        slot.token = MessageToken(number.into());
        slot.bytes = bytes;
    }

    /// No message has a payload any more, but for bundles.
    pub(super) fn forget_bytes(&mut self) {
        self.all.iter_mut().filter(|slot| slot.marks & BUNDLE == 0).for_each(|slot| slot.bytes = 0);
        self.flight_bytes = self.on_wire().map(|at| usize::from(self.bytes(at))).sum();
    }
}

/// Adds a slot that is in no list at the end.
#[inline]
fn append(slots: &mut [Slot], list: &mut List, at: usize) {
    slots[at].prev = list.tail;
    slots[at].next = NIL;
    match slots.get_mut(list.tail as usize) {
        Some(last) => last.next = at as u16,
        None => list.head = at as u16,
    }
    list.tail = at as u16;
    list.len += 1;
}

/// Adds a slot that is in no list at the front.
#[inline]
fn prepend(slots: &mut [Slot], list: &mut List, at: usize) {
    slots[at].prev = NIL;
    slots[at].next = list.head;
    match slots.get_mut(list.head as usize) {
        Some(first) => first.prev = at as u16,
        None => list.tail = at as u16,
    }
    list.head = at as u16;
    list.len += 1;
}

/// Takes a slot out of the list that it is in.
#[inline]
fn unlink(slots: &mut [Slot], list: &mut List, at: usize) {
    let Slot { prev, next, .. } = slots[at];
    match slots.get_mut(prev as usize) {
        Some(before) => before.next = next,
        None => list.head = next,
    }
    match slots.get_mut(next as usize) {
        Some(after) => after.prev = prev,
        None => list.tail = prev,
    }
    list.len -= 1;
}
