//! Memory of received bytes: blocks of a few sizes, their common limit, and chunks for readers.

use core::fmt;
use core::ops::Deref;
use std::collections::VecDeque;
use std::sync::Arc;

/// Capacities of blocks in bytes. A small message takes little; a long run takes large blocks, none of which is more
/// than a small multiple of the run's length.
const CLASSES: [usize; 5] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];

/// Free blocks kept of each class.
const KEPT: usize = 32;

/// The memory of received bytes of all connections of an endpoint: its limit and its free blocks.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: usize,
    used: usize,
    free: [Vec<Vec<u8>>; CLASSES.len()],
    /// Blocks of the largest class that readers have, oldest first: when the reader has dropped its chunks, the block
    /// comes back here. Without that, a fast reader would have the system map and clear fresh pages all the time.
    with_readers: VecDeque<Arc<Vec<u8>>>,
}

impl Pool {
    /// At most `limit` bytes of blocks hold received data.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: 0, free: Default::default(), with_readers: VecDeque::new() }
    }

    /// Bytes of blocks in use; chunks that were handed out do not count.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether windows should no longer open: less than an eighth of the limit is left.
    pub(crate) fn is_tight(&self) -> bool {
        self.used > self.limit - self.limit / 8
    }

    /// An empty block for at least `want` bytes if a class has them, else of the largest class; near the limit, the
    /// largest that is below it. `None` if there is none, unless `force`.
    #[inline]
    pub(super) fn take(&mut self, want: usize, force: bool) -> Option<Vec<u8>> {
        let left = self.limit.saturating_sub(self.used);
        let [smallest, ..] = CLASSES;
        if want <= smallest
            && smallest <= left
            && let Some(block) = self.free.first_mut().and_then(Vec::pop)
        {
            // A small message after another.
            self.used = self.used.saturating_add(block.capacity());
            return Some(block);
        }
        self.take_any(want, left, force)
    }

    /// The same of any class, where `left` bytes are left to the limit.
    fn take_any(&mut self, want: usize, left: usize, force: bool) -> Option<Vec<u8>> {
        let wanted = CLASSES.iter().position(|&size| size >= want).unwrap_or(CLASSES.len() - 1);
        let fitting = CLASSES.iter().take(wanted + 1).rposition(|&size| size <= left);
        let class = fitting.or(force.then_some(wanted))?;
        let size = CLASSES.get(class).copied()?;
        let kept = self.free.get_mut(class).and_then(Vec::pop);
        let returned =
            || if class == CLASSES.len() - 1 { Self::returned(&mut self.with_readers) } else { None };
        let block = kept.or_else(returned).unwrap_or_else(|| Vec::with_capacity(size));
        self.used = self.used.saturating_add(block.capacity());
        Some(block)
    }

    /// Takes a block back.
    pub(super) fn give(&mut self, mut block: Vec<u8>) {
        self.used = self.used.saturating_sub(block.capacity());
        let class = CLASSES.iter().position(|&size| size == block.capacity());
        if let Some(free) = class.and_then(|class| self.free.get_mut(class))
            && free.len() < KEPT
        {
            block.clear();
            free.push(block);
        }
    }

    /// A block leaves with its bytes.
    fn leave(&mut self, block: Vec<u8>) -> Arc<Vec<u8>> {
        self.used = self.used.saturating_sub(block.capacity());
        let largest = CLASSES.last() == Some(&block.capacity());
        let block = Arc::new(block);
        if largest {
            if self.with_readers.len() >= KEPT {
                self.with_readers.pop_front();
            }
            self.with_readers.push_back(Arc::clone(&block));
        }
        block
    }

    /// A block whose reader is done with it.
    fn returned(with_readers: &mut VecDeque<Arc<Vec<u8>>>) -> Option<Vec<u8>> {
        let oldest = with_readers.pop_front()?;
        match Arc::try_unwrap(oldest) {
            Ok(mut block) => {
                block.clear();
                Some(block)
            }
            // A reader still holds it, perhaps for long: the others are tried first.
            Err(block) => {
                with_readers.push_back(block);
                None
            }
        }
    }
}

/// A block with unread bytes from `start` on.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Blocks are shorter than 2^32 bytes.
    start: u32,
}

impl Block {
    /// A block of the pool, without bytes.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }

    /// The unread bytes.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        self.bytes.get(self.start as usize..).unwrap_or_default()
    }

    /// Bytes that can be appended.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// Appends the bytes that fit; returns their number.
    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        let fits = bytes.len().min(self.room());
        self.bytes.extend_from_slice(bytes.get(..fits).unwrap_or_default());
        fits
    }

    /// Skips the first `count` unread bytes.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start as usize).saturating_add(count).min(self.bytes.len()) as u32;
    }

    /// Whether all was read.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        self.start as usize >= self.bytes.len()
    }

    /// Whether there is memory behind it at all.
    #[inline]
    pub(super) fn is_backed(&self) -> bool {
        self.bytes.capacity() > 0
    }

    /// Gives its memory back.
    #[inline]
    pub(super) fn free(self, pool: &mut Pool) {
        if self.is_backed() {
            pool.give(self.bytes);
        }
    }

    /// Hands its unread bytes out. Few bytes in a large block are copied, so that the reader does not keep the block
    /// for them.
    pub(super) fn into_chunk(self, pool: &mut Pool) -> Chunk {
        if self.unread().len() * 4 < self.bytes.capacity() {
            let bytes = self.unread().to_vec();
            self.free(pool);
            return Chunk::from(bytes);
        }
        let (start, end) = (self.start as usize, self.bytes.len());
        Chunk { bytes: pool.leave(self.bytes), start, end }
    }
}

/// Received bytes, owned by the reader. Clones share the memory.
#[derive(Clone, Default)]
pub struct Chunk {
    bytes: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { bytes: Arc::new(bytes), start: 0, end }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.as_bytes().len())
    }
}
