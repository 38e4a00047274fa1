//! Memory of written bytes until they are acknowledged: blocks that all connections of an endpoint share.
//!
//! A connection that has nothing to send holds nothing. Written bytes go behind each other into the current block,
//! whichever connection they are of, so that many small writes of many connections share one block, and the long
//! writes of one connection are contiguous. A block is used again when all of it has been acknowledged and no frame
//! refers to it any more ([`Memory::on_frames_released`]).

use crate::region::{Extent, SharedBytes};
use crate::scratch::Bytes;

#[cfg(test)]
mod tests;

/// Bytes of a block: a super-segment of the greatest length fits.
const BLOCK: usize = 64 << 10;

/// Bytes that a small write reserves, so that the next ones of the same connection follow on the same extent.
const RESERVE: usize = 256;

/// Bytes of the current block that are written before its beginning is used again.
const CACHED: usize = 4 << 10;

/// Free blocks that are kept for the next burst.
const SPARE: usize = 64;

/// A run of bytes of one connection in one block. Give it back with [`Memory::release`].
#[derive(Debug)]
pub(crate) struct Allocation {
    block: u32,
    start: u32,
    len: u32,
    capacity: u32,
}

#[derive(Debug)]
struct Block {
    /// `None`: given back to the system.
    bytes: Option<Bytes>,
    /// Bytes handed out from the front.
    used: usize,
    /// Runs over it.
    runs: u32,
}

/// Memory that rests until frames have left.
#[derive(Debug, Default)]
struct Resting {
    /// Blocks whose runs were all released.
    blocks: Vec<u32>,
    /// Bytes that were sent from where they are.
    shared: Vec<SharedBytes>,
}

impl Resting {
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.shared.is_empty()
    }
}

/// The blocks.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: Vec<Block>,
    /// The block that is being filled.
    current: Option<u32>,
    /// Blocks without bytes.
    vacant: Vec<u32>,
    /// Blocks to fill next.
    free: Vec<u32>,
    /// Memory that was released, but which a frame may still refer to: of the time before the last mark, and since then.
    resting: [Resting; 2],
    /// Whether some rests, or the current block could be filled from its beginning and a part of it would leave the cache.
    awaits: bool,
    /// How many blocks may exist.
    limit: usize,
    /// How many do.
    held: usize,
}

impl Memory {
    /// At most `limit` bytes, in whole blocks (at least one).
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: (limit / BLOCK).max(1), ..Self::default() }
    }

    /// Whether nothing more can be written for want of blocks.
    pub(crate) fn is_full(&self) -> bool {
        let room = |index: u32| self.blocks.get(index as usize).is_some_and(|block| block.used < BLOCK);
        self.held >= self.limit && self.free.is_empty() && !self.current.is_some_and(room)
    }

    /// Bytes of the blocks that exist.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held * BLOCK
    }

    /// Copies the beginning of `bytes`: behind the bytes of `last` if there is room, else into a new run. Returns the
    /// new run, if there is one, and how many bytes were taken; zero if the limit is reached.
    pub(crate) fn append(
        &mut self,
        last: Option<&mut Allocation>,
        bytes: &[u8],
    ) -> (Option<Allocation>, usize) {
        if let Some(run) = last {
            let behind = (run.start + run.capacity) as usize;
            let mut room = (run.capacity - run.len) as usize;
            // The connection that wrote last in the current block may continue there.
            if self.current == Some(run.block)
                && let Some(block) = self.blocks.get_mut(run.block as usize)
                && block.used == behind
            {
                let more = bytes.len().saturating_sub(room).min(BLOCK - behind.min(BLOCK));
                block.used += more;
                run.capacity += more as u32;
                room += more;
            }
            let taken = self.fill(run, bytes, room);
            if taken > 0 {
                return (None, taken);
            }
        }
        let Some(index) = self.block() else { return (None, 0) };
        let Some(block) = self.blocks.get_mut(index as usize) else { return (None, 0) };
        let capacity = bytes.len().max(RESERVE).min(BLOCK - block.used.min(BLOCK));
        let mut run =
            Allocation { block: index, start: block.used as u32, len: 0, capacity: capacity as u32 };
        block.used += capacity;
        block.runs += 1;
        if self.awaits {
            self.awaits = self.rests();
        }
        let taken = self.fill(&mut run, bytes, capacity);
        (Some(run), taken)
    }

    fn fill(&mut self, run: &mut Allocation, bytes: &[u8], room: usize) -> usize {
        let part = bytes.get(..room).unwrap_or(bytes);
        let memory = self.blocks.get_mut(run.block as usize).and_then(|block| block.bytes.as_mut());
        let Some(memory) = memory else { return 0 };
        // Nobody refers to these bytes yet: extents end where the run's bytes end.
        memory.write((run.start + run.len) as usize, part);
        run.len += part.len() as u32;
        part.len()
    }

    /// The current block, with room.
    fn block(&mut self) -> Option<u32> {
        if let Some(index) = self.current {
            match self.blocks.get(index as usize) {
                Some(block) if block.used < BLOCK => return Some(index),
                Some(block) if block.runs == 0 => self.rest(index),
                _ => {}
            }
            self.current = None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.held >= self.limit => return None,
            None => {
                let block = Block { bytes: Some(Bytes::new(BLOCK)), used: 0, runs: 0 };
                self.held += 1;
                match self.vacant.pop() {
                    Some(index) => {
                        *self.blocks.get_mut(index as usize)? = block;
                        index
                    }
                    None => {
                        self.blocks.push(block);
                        u32::try_from(self.blocks.len() - 1).ok()?
                    }
                }
            }
        };
        self.current = Some(index);
        Some(index)
    }

    /// All bytes of a run, as they are now.
    pub(crate) fn extent(&self, run: &Allocation) -> Extent {
        let memory = self.blocks.get(run.block as usize).and_then(|block| block.bytes.as_ref());
        memory.and_then(|memory| memory.extent(run.start as usize, run.len as usize)).unwrap_or(Extent::EMPTY)
    }

    /// The bytes of a run are acknowledged, or will never be sent.
    pub(crate) fn release(&mut self, run: Allocation) {
        let Some(block) = self.blocks.get_mut(run.block as usize) else { return };
        block.runs -= 1;
        if block.runs == 0 {
            if self.current != Some(run.block) {
                self.rest(run.block);
            } else if block.used >= CACHED {
                self.awaits = true;
            }
        }
    }

    fn rest(&mut self, index: u32) {
        self.resting[1].blocks.push(index);
        self.awaits = true;
    }

    /// The same for bytes that were sent from where they are.
    pub(crate) fn release_shared(&mut self, bytes: SharedBytes) {
        self.resting[1].shared.push(bytes);
        self.awaits = true;
    }

    /// Whether there are blocks that could be filled again if no frame referred to them, and it is worth while: of the
    /// current one a part stays in the cache as well as its beginning does. The same of shared bytes that could be freed.
    #[inline]
    pub(crate) fn awaits_frames(&self) -> bool {
        self.awaits
    }

    /// No frame that was emitted so far is in a batch or a device: released blocks may be filled again.
    #[inline]
    pub(crate) fn on_frames_released(&mut self) {
        if let Some(block) = self.current.and_then(|index| self.blocks.get_mut(index as usize))
            && block.runs == 0
        {
            block.used = 0;
        }
        if self.awaits {
            (0..2).for_each(|age| self.wake(age));
            self.awaits = false;
        }
    }

    fn rests(&self) -> bool {
        self.resting.iter().any(|resting| !resting.is_empty())
    }

    /// No frame that was emitted before the last mark is in a batch or a device; and here is the next mark. So memory comes back
    /// although frames wait all the time.
    pub(crate) fn on_mark(&mut self) {
        self.wake(0);
        self.resting.swap(0, 1);
        let current = self.current.and_then(|index| self.blocks.get(index as usize));
        self.awaits = self.rests() || current.is_some_and(|block| block.runs == 0 && block.used >= CACHED);
    }

    /// Blocks that rested may be filled again, and shared bytes go.
    fn wake(&mut self, age: usize) {
        let Some(Resting { blocks, shared }) = self.resting.get_mut(age) else { return };
        shared.clear();
        for index in blocks.drain(..) {
            let Some(block) = self.blocks.get_mut(index as usize) else { continue };
            block.used = 0;
            if self.free.len() < SPARE {
                self.free.push(index);
            } else {
                block.bytes = None;
                self.vacant.push(index);
                self.held -= 1;
            }
        }
    }
}
