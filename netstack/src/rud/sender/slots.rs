//! The slots of a sender's messages, and the lists through them: free, queued, sent, lost.

use crate::rud::api::MessageToken;
use crate::wire::rud::Psn;

/// No slot: no endpoint has so many.
pub(super) const NIL: u16 = u16::MAX;

/// The state of a slot's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    Queued,
    Sent,
    Lost,
    Refused,
}

/// The part of a message that every acknowledgement touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) sent_at: u64,
    pub(super) token: MessageToken,
    pub(super) serial: u32,
    pub(super) psn: Psn,
    pub(super) prev: u16,
    pub(super) next: u16,
    pub(super) bytes: u16,
    pub(super) tries: u8,
    pub(super) state: SlotState,
}

/// A list through the slots; the links are in the slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) head: u16,
    pub(super) tail: u16,
    pub(super) len: u32,
}

/// A list of nothing.
pub(super) const EMPTY: List = List { head: NIL, tail: NIL, len: 0 };

/// Adds a slot that is in no list at the end.
#[inline]
pub(super) fn append(slots: &mut [Slot], list: &mut List, at: usize) {
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
pub(super) fn prepend(slots: &mut [Slot], list: &mut List, at: usize) {
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
pub(super) fn unlink(slots: &mut [Slot], list: &mut List, at: usize) {
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
