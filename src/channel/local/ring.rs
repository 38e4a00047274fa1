//! A ring of messages in shared memory, from one rank to another.
//!
//! A message is an [entry] of whole cache lines, which never goes around the end of the ring: a word, the message's header, the payload. The word is
//! zero until the entry is complete.
//!
//! Three words order all accesses, each written by one side only:
//!
//! - The writer clears the word of the *next* entry, writes header and payload, then the entry's own word with release
//!   ordering. So a reader that has acquired a word sees the entry, and behind it a word that is zero or complete,
//!   never that of a lap ago.
//! - The reader stores how far it has read with release ordering, and reads nothing before that any more, in the arena neither. The
//!   writer acquires it before it overwrites those bytes. One line stays free for the cleared word.
//! - Room is given back in the order of the entries. Behind an entry that cannot be taken yet, the reader marks each payload in the arena
//!   that it has read, with release ordering, so that the writer can release it.
//! - A reader learns from the [bell](super::bell) that there is something to acquire.
//!
//! A message that cannot be taken yet stays where it is, and later ones are taken before it. Whatever the other side has written, this
//! side stays inside the ring, and returns [`Garbled`] for an invalid entry.

mod entry;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use shouter_reducer::header::{HEADER_BYTES, SHORT_HEADER_BYTES};
use shouter_reducer::memory::Span;

use crate::channel::shm::{NodeSegment, RING, Ring};
use entry::{COMPLETE, Form, IN_ARENA, LINE, READ, SHORT, SKIP, TO_MASK, TO_SHIFT, WORD};
pub(super) use entry::{MAX_PAYLOAD, SHORT_PAYLOAD};

/// Messages that are taken at a time, so that no ring keeps the others waiting.
const BURST: usize = 64;

/// The content of a ring can come from no writer or reader of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled;

/// The reason why a message was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// There is no room until the reader has read.
    Full,
    /// It is larger than a ring takes.
    TooLarge,
    /// The reader has written nonsense.
    Garbled,
}

/// The writing side.
#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    /// Bytes written since the beginning.
    tail: u64,
    /// Bytes read, as last seen by this side.
    head: u64,
}

impl Writer {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, tail: 0, head: 0 }
    }

    /// Writes a message; `to` is the destination plus one, where the leader is to send it on.
    #[inline]
    pub(super) fn push(
        &mut self,
        segment: &NodeSegment,
        to: u32,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
    ) -> Result<(), PushError> {
        if payload.len() > MAX_PAYLOAD || u64::from(to) > TO_MASK {
            return Err(PushError::TooLarge);
        }
        self.add(segment, header, payload, u64::from(to) << TO_SHIFT | payload.len() as u64)
    }

    /// Writes a message of up to [`SHORT_PAYLOAD`] bytes with the short form of its header: one cache line.
    #[inline]
    pub(super) fn push_short(
        &mut self,
        segment: &NodeSegment,
        header: &[u8; SHORT_HEADER_BYTES],
        payload: &[u8],
    ) -> Result<(), PushError> {
        if payload.len() > SHORT_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        self.add(segment, header, payload, SHORT | payload.len() as u64)
    }

    /// Writes a message whose payload of `len` bytes lies at `offset` in this rank's arena. It must not change before the reader
    /// [has read](Self::has_read) it.
    #[inline]
    pub(super) fn push_in_arena(
        &mut self,
        segment: &NodeSegment,
        header: &[u8; HEADER_BYTES],
        offset: usize,
        len: usize,
    ) -> Result<(), PushError> {
        if len > MAX_PAYLOAD {
            return Err(PushError::TooLarge);
        }
        self.add(segment, header, &(offset as u64).to_le_bytes(), IN_ARENA | len as u64)
    }

    /// Bytes written since the beginning.
    #[inline]
    pub(super) fn written(&self) -> u64 {
        self.tail
    }

    /// Whether the reader has read the payload in the arena of the entry that ends at `end`.
    ///
    /// # Errors
    /// [`Garbled`] where it cannot have read as far as it says.
    pub(super) fn has_read(&mut self, segment: &NodeSegment, end: u64) -> Result<bool, Garbled> {
        if end <= self.head || end <= self.read(segment)? {
            return Ok(true);
        }
        // The entry is still there.
        let at = (end - Form::InArena.entry(0) as u64) % RING as u64;
        Ok(segment.ring_word(self.ring, at as usize).load(Ordering::Acquire) & READ != 0)
    }

    /// Bytes that the reader has given back since the beginning.
    fn read(&mut self, segment: &NodeSegment) -> Result<u64, Garbled> {
        let head = segment.ring_head(self.ring).load(Ordering::Acquire);
        if head < self.head || head > self.tail {
            return Err(Garbled);
        }
        self.head = head;
        Ok(head)
    }

    /// Writes an entry that holds `bytes` behind the header. Its word is `word` and that it is complete.
    #[inline]
    fn add(
        &mut self,
        segment: &NodeSegment,
        header: &[u8],
        bytes: &[u8],
        word: u64,
    ) -> Result<(), PushError> {
        let size = (WORD + header.len() + bytes.len()).next_multiple_of(LINE);
        let (ring, at) = (self.ring, (self.tail % RING as u64) as usize);
        let skipped = if at + size > RING { RING - at } else { 0 };
        let tail = self.tail + (skipped + size) as u64;
        let has_room = |head: u64| tail + LINE as u64 - head <= RING as u64;
        if !has_room(self.head) && !has_room(self.read(segment).map_err(|Garbled| PushError::Garbled)?) {
            return Err(PushError::Full);
        }
        let begin = if skipped == 0 { at } else { 0 };
        let next = (tail % RING as u64) as usize;
        segment.ring_word(ring, next).store(0, Ordering::Relaxed);
        segment.ring_store(ring, begin + WORD, header);
        segment.ring_store(ring, begin + WORD + header.len(), bytes);
        segment.ring_word(ring, begin).store(COMPLETE | word, Ordering::Release);
        if skipped != 0 {
            segment.ring_word(ring, at).store(COMPLETE | SKIP, Ordering::Release);
        }
        self.tail = tail;
        Ok(())
    }
}

/// A message in a ring.
pub(super) struct RingMessage<'a> {
    /// The destination plus one, if the leader is to send it on.
    pub(super) to: u32,
    /// Its header, perhaps in the [short](Self::is_short) form.
    pub(super) header: &'a [u8],
    /// Its payload.
    pub(super) payload: &'a [u8],
    /// Names it to [`Reader::release`].
    pub(super) number: u32,
    form: Form,
    segment: &'a NodeSegment,
    ring: Ring,
    at: usize,
}

impl RingMessage<'_> {
    /// Whether the header has its short form.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.form == Form::Short
    }

    /// Header and payload as they lie in the ring; `None` where the payload lies in an arena, or the header is short.
    pub(super) fn whole(&self) -> Option<Span> {
        if self.form != Form::Whole {
            return None;
        }
        self.segment.ring_span(self.ring, self.at + WORD, HEADER_BYTES + self.payload.len())
    }
}

/// The outcome of offering a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// It is not needed any more.
    Taken,
    /// It is to be offered again.
    Later,
    /// It is sent from its place, and needed until it is [released](Reader::release).
    Sending,
    /// It makes no sense.
    Garbled,
}

/// An entry that was offered and is still needed, or lies behind one that is.
#[derive(Clone, Copy, Debug)]
struct Kept {
    at: usize,
    /// Bytes of the payload.
    len: usize,
    form: Form,
    to: u32,
    /// The beginning of the next entry, in bytes since the ring's beginning.
    end: u64,
    state: Offered,
}

/// The result of a look into a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// Whether a message was taken, or is sent from its place.
    pub(super) any: bool,
    /// Whether there may be more that nobody has looked at.
    pub(super) more: bool,
    /// Whether a message is to be offered again.
    pub(super) waits: bool,
}

/// The reading side.
#[derive(Debug)]
pub(super) struct Reader {
    ring: Ring,
    /// The next entry that nobody has looked at, in bytes since the beginning.
    cursor: u64,
    /// The bytes given back, likewise.
    head: u64,
    /// From there on: the entries up to the cursor.
    kept: VecDeque<Kept>,
    /// The number of the first of them.
    first: u32,
    is_broken: bool,
}

impl Reader {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, cursor: 0, head: 0, kept: VecDeque::new(), first: 0, is_broken: false }
    }

    /// Whether nothing that was offered is still needed.
    pub(super) fn is_settled(&self) -> bool {
        self.kept.is_empty()
    }

    /// The destinations, plus one, of the messages that are still to be sent on or released.
    pub(super) fn destinations(&self) -> impl Iterator<Item = u32> {
        self.kept.iter().filter(|kept| kept.state != Offered::Taken).map(|kept| kept.to)
    }

    /// Whether an entry is complete that nobody has looked at.
    #[inline]
    pub(super) fn has_entry(&self, segment: &NodeSegment) -> bool {
        let at = (self.cursor % RING as u64) as usize;
        segment.ring_word(self.ring, at).load(Ordering::Relaxed) != 0 && !self.is_broken
    }

    /// Offers kept messages again, then new ones.
    ///
    /// # Errors
    /// [`Garbled`] once; after that the ring is not looked at any more.
    pub(super) fn look(
        &mut self,
        segment: &NodeSegment,
        mut offer: impl FnMut(&RingMessage<'_>) -> Offered,
    ) -> Result<Looked, Garbled> {
        if self.is_broken {
            return Ok(Looked::default());
        }
        let looked = self.look_at_all(segment, &mut offer);
        self.is_broken = looked.is_err();
        looked
    }

    fn look_at_all(
        &mut self,
        segment: &NodeSegment,
        offer: &mut impl FnMut(&RingMessage<'_>) -> Offered,
    ) -> Result<Looked, Garbled> {
        let mut looked = Looked::default();
        for index in 0..self.kept.len() {
            let Some(&kept) = self.kept.get(index).filter(|kept| kept.state == Offered::Later) else {
                continue;
            };
            let state = self.offer(segment, &kept, index, offer)?;
            looked.any |= state != Offered::Later;
            self.mark(segment, &kept, state);
            if let Some(kept) = self.kept.get_mut(index) {
                kept.state = state;
            }
        }
        self.give_back(segment);
        looked.more = true;
        for _ in 0..BURST {
            let Some(mut next) = self.next(segment)? else {
                looked.more = false;
                break;
            };
            next.state = self.offer(segment, &next, self.kept.len(), offer)?;
            looked.any |= next.state != Offered::Later;
            self.cursor = next.end;
            if next.state == Offered::Taken && self.kept.is_empty() {
                self.first = self.first.wrapping_add(1);
                self.set_head(segment, next.end);
            } else {
                self.mark(segment, &next, next.state);
                self.kept.push_back(next);
            }
        }
        looked.waits = self.kept.iter().any(|kept| kept.state == Offered::Later);
        Ok(looked)
    }

    /// Offers the next message, where none is kept; whether it was taken. One that was not is offered by the next [`look`](Self::look).
    #[inline]
    pub(super) fn take_next(
        &mut self,
        segment: &NodeSegment,
        mut take: impl FnMut(&RingMessage<'_>) -> bool,
    ) -> bool {
        if self.is_broken || !self.kept.is_empty() {
            return false;
        }
        // What makes no sense stays for the next look, too.
        let Ok(Some(next)) = self.next(segment) else { return false };
        let take = &mut |message: &RingMessage<'_>| match take(message) {
            true => Offered::Taken,
            false => Offered::Later,
        };
        if next.form == Form::InArena || self.offer(segment, &next, 0, take) != Ok(Offered::Taken) {
            return false;
        }
        self.cursor = next.end;
        self.first = self.first.wrapping_add(1);
        self.set_head(segment, next.end);
        true
    }

    /// Reports to the writer that a payload in its arena was taken from an entry that is kept.
    fn mark(&self, segment: &NodeSegment, kept: &Kept, state: Offered) {
        if kept.form == Form::InArena && state == Offered::Taken {
            let word = COMPLETE | IN_ARENA | READ | kept.len as u64;
            segment.ring_word(self.ring, kept.at).store(word, Ordering::Release);
        }
    }

    fn offer(
        &self,
        segment: &NodeSegment,
        kept: &Kept,
        index: usize,
        offer: &mut impl FnMut(&RingMessage<'_>) -> Offered,
    ) -> Result<Offered, Garbled> {
        let &Kept { at, len, form, to, .. } = kept;
        let (head, behind) = form.bytes(len);
        let bytes = published(segment, self.ring, at + WORD, head + behind);
        let (header, mut payload) = bytes.ok_or(Garbled)?.split_at_checked(head).ok_or(Garbled)?;
        if form == Form::InArena {
            let offset = u64::from_le_bytes(*payload.first_chunk().ok_or(Garbled)?);
            payload = published_in_arena(segment, self.ring, offset, len).ok_or(Garbled)?;
        }
        let number = self.first.wrapping_add(index as u32);
        match offer(&RingMessage { to, header, payload, number, form, segment, ring: self.ring, at }) {
            Offered::Garbled => Err(Garbled),
            state => Ok(state),
        }
    }

    /// The entry at the cursor, once it is complete.
    #[inline]
    fn next(&mut self, segment: &NodeSegment) -> Result<Option<Kept>, Garbled> {
        loop {
            let at = (self.cursor % RING as u64) as usize;
            let word = segment.ring_word(self.ring, at).load(Ordering::Acquire);
            if word == 0 {
                return Ok(None);
            }
            if word & COMPLETE == 0 || word & SKIP != 0 && at == 0 {
                return Err(Garbled);
            }
            let (len, form) = (word as u32 as usize, Form::of(word).ok_or(Garbled)?);
            let (size, mut end) = (form.entry(len), self.cursor + (RING - at) as u64);
            if word & SKIP == 0 {
                if len > form.longest() || at + size > RING {
                    return Err(Garbled);
                }
                end = self.cursor + size as u64;
            }
            // A writer does not overwrite room that was not given back.
            if end - self.head > RING as u64 {
                return Err(Garbled);
            }
            if word & SKIP == 0 {
                let to = (word >> TO_SHIFT & TO_MASK) as u32;
                return Ok(Some(Kept { at, len, form, to, end, state: Offered::Later }));
            }
            self.cursor = end;
        }
    }

    /// A message that was sent from its place is not needed any more; its destination plus one, if there was one.
    pub(super) fn release(&mut self, segment: &NodeSegment, number: u32) -> Option<u32> {
        let index = number.wrapping_sub(self.first) as usize;
        let kept = self.kept.get_mut(index).filter(|kept| kept.state == Offered::Sending)?;
        kept.state = Offered::Taken;
        let to = kept.to;
        self.give_back(segment);
        Some(to)
    }

    /// Gives the room of messages that are not needed any more back.
    fn give_back(&mut self, segment: &NodeSegment) {
        let mut head = self.head;
        while let Some(kept) = self.kept.front().filter(|kept| kept.state == Offered::Taken) {
            head = kept.end;
            self.kept.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        if head != self.head {
            self.set_head(segment, head);
        }
    }

    #[inline]
    fn set_head(&mut self, segment: &NodeSegment, head: u64) {
        self.head = head;
        segment.ring_head(self.ring).store(head, Ordering::Release);
    }
}

/// A payload in the arena of a ring's writer.
#[allow(unsafe_code)]
fn published_in_arena(segment: &NodeSegment, ring: Ring, offset: u64, len: usize) -> Option<&[u8]> {
    // SAFETY: an entry that was acquired refers to it. The ring's head, which the reader moves only when no slice is left, is at or before
    // the entry, and the entry is not marked as read yet.
    unsafe { segment.writer_bytes(ring, usize::try_from(offset).ok()?, len) }
}

/// Bytes of an entry that its writer has completed.
#[allow(unsafe_code)]
fn published(segment: &NodeSegment, ring: Ring, at: usize, len: usize) -> Option<&[u8]> {
    // SAFETY: the entry's word was acquired, and the ring's head, which the reader moves only when no slice is left, is at or before
    // the entry.
    unsafe { segment.ring_bytes(ring, at, len) }
}

#[cfg(test)]
mod tests;
