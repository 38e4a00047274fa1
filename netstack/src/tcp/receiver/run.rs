//! A run of received bytes without holes, in blocks of the pool.

use std::collections::VecDeque;

use super::pool::{Block, Chunk, Pool};
use crate::tcp::Payload;

/// A part of a segment's payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut<'a> {
    payload: Payload<'a>,
    from: usize,
    len: usize,
}

impl<'a> Cut<'a> {
    /// The bytes from `from` up to `to`, as far as the payload has them.
    pub(super) fn new(payload: Payload<'a>, from: usize, to: usize) -> Self {
        Self { payload, from, len: to.min(payload.len()).saturating_sub(from) }
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes, if they are in one piece.
    #[inline]
    fn single(&self) -> Option<&'a [u8]> {
        if self.payload.rest.is_empty() {
            self.payload.head.get(self.from..self.from + self.len)
        } else {
            None
        }
    }

    /// The pieces, in order.
    fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        let (mut skip, mut left) = (self.from, self.len);
        self.payload.pieces().filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let taken = left.min(piece.len() - skipped);
            left -= taken;
            piece.get(skipped..skipped + taken).filter(|piece| !piece.is_empty())
        })
    }
}

/// Bytes in order: full blocks, and one that is being filled.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Before the tail; there are none most of the time.
    #[allow(clippy::box_collection)]
    full: Option<Box<VecDeque<Block>>>,
    tail: Block,
    len: u32,
}

impl Run {
    /// Unread bytes.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Appends as much of `cut` as the pool's limit allows (all of it with `force`), and returns how many bytes that
    /// was.
    #[inline]
    pub(super) fn append(&mut self, cut: &Cut<'_>, pool: &mut Pool, force: bool) -> u32 {
        let all = cut.len();
        if let Some(piece) = cut.single() {
            let done = self.append_piece(piece, all, pool, force);
            return self.grown(done);
        }
        let mut done = 0;
        for piece in cut.pieces() {
            let took = self.append_piece(piece, all - done, pool, force);
            done += took;
            if took < piece.len() {
                break;
            }
        }
        self.grown(done)
    }

    /// Appends a piece, of which there are `left` bytes and more that follow; returns how many found room.
    #[inline]
    fn append_piece(&mut self, piece: &[u8], left: usize, pool: &mut Pool, force: bool) -> usize {
        let (mut rest, mut done) = (piece, 0);
        while !rest.is_empty() {
            if self.tail.room() == 0 {
                let want = (left - done).max(2 * self.len as usize);
                let Some(block) = pool.take(want, force) else { break };
                self.push(Block::new(block), pool);
            }
            let fitted = self.tail.append(rest);
            done += fitted;
            rest = rest.get(fitted..).unwrap_or_default();
        }
        done
    }

    fn grown(&mut self, by: usize) -> u32 {
        // A cut is part of one segment, which is shorter than 2^32 bytes.
        let by = by as u32;
        self.len = self.len.saturating_add(by);
        by
    }

    /// Makes `block` the tail.
    #[inline]
    fn push(&mut self, block: Block, pool: &mut Pool) {
        let before = core::mem::replace(&mut self.tail, block);
        if before.is_drained() {
            before.free(pool);
        } else {
            self.full.get_or_insert_default().push_back(before);
        }
    }

    /// Appends the run that follows. Blocks are moved; those whose bytes fit into the tail are copied, so that many
    /// small runs do not end as many blocks with little in each.
    pub(super) fn join(&mut self, next: Self, pool: &mut Pool) {
        let Self { full, tail, len } = next;
        for block in full.into_iter().flat_map(|full| *full).chain([tail]) {
            if block.unread().len() <= self.tail.room() {
                self.tail.append(block.unread());
                block.free(pool);
            } else {
                self.push(block, pool);
            }
        }
        self.len = self.len.saturating_add(len);
    }

    /// Copies the first bytes out; returns how many.
    pub(super) fn read(&mut self, mut buffer: &mut [u8], pool: &mut Pool) -> usize {
        let mut total = 0;
        while !buffer.is_empty() && self.len > 0 {
            let block = self.full.as_mut().and_then(|full| full.front_mut()).unwrap_or(&mut self.tail);
            let unread = block.unread();
            let count = unread.len().min(buffer.len());
            let (Some(from), Some((into, rest))) = (unread.get(..count), buffer.split_at_mut_checked(count))
            else {
                break;
            };
            into.copy_from_slice(from);
            buffer = rest;
            total += count;
            self.len = self.len.saturating_sub(count as u32);
            if count == unread.len() {
                self.drop_first(pool);
            } else {
                block.consume(count);
            }
        }
        total
    }

    /// Copies the first bytes out and keeps them; returns how many.
    pub(super) fn peek(&self, buffer: &mut [u8]) -> usize {
        let mut total = 0;
        for block in self.full.iter().flat_map(|full| full.iter()).chain([&self.tail]) {
            let room = buffer.get_mut(total..).unwrap_or_default();
            let count = room.len().min(block.unread().len());
            for (into, from) in room.iter_mut().zip(block.unread()) {
                *into = *from;
            }
            total += count;
        }
        total
    }

    /// Hands out the first bytes without a copy.
    pub(super) fn read_chunk(&mut self, pool: &mut Pool) -> Option<Chunk> {
        let block = self.take_first();
        if block.is_drained() {
            block.free(pool);
            return None;
        }
        self.len = self.len.saturating_sub(block.unread().len() as u32);
        Some(block.into_chunk(pool))
    }

    fn take_first(&mut self) -> Block {
        let Some(full) = &mut self.full else { return core::mem::take(&mut self.tail) };
        let block = full.pop_front().unwrap_or_default();
        if full.is_empty() {
            // An idle run holds no memory.
            self.full = None;
        }
        block
    }

    fn drop_first(&mut self, pool: &mut Pool) {
        self.take_first().free(pool);
    }

    /// Drops all bytes.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for block in self.full.take().into_iter().flat_map(|full| *full) {
            block.free(pool);
        }
        core::mem::take(&mut self.tail).free(pool);
        self.len = 0;
    }
}
