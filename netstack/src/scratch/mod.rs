//! The stack's own payload memory: a fixed number of slots, each as long as the largest packet.
//!
//! Protocols normally send from the caller's regions. Data that the stack itself must keep (a datagram given as bytes,
//! a packet that waits for its neighbour's address, a frame that the fault device holds back) is copied into a slot, so
//! that every frame can go through the same transmit batch.

mod sys;

pub(crate) use sys::Memory as Bytes;

use crate::region::Extent;

/// A slot in use; give it back with [`Scratch::release`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// Slots of equal length.
///
/// The owner releases a slot only when no frame that refers to it is left in a batch or a device, and drops the
/// `Scratch` after these.
#[derive(Debug)]
pub(crate) struct Scratch {
    memory: sys::Memory,
    slot_len: usize,
    free: Vec<u32>,
}

impl Scratch {
    /// `slots` slots of `slot_len` bytes.
    pub(crate) fn new(slots: u16, slot_len: usize) -> Self {
        Self {
            memory: sys::Memory::new(usize::from(slots) * slot_len),
            slot_len,
            free: (0..u32::from(slots)).rev().collect(),
        }
    }

    /// How many slots are free.
    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    /// Copies the concatenated `parts` into a slot. `None` if no slot is free or they do not fit.
    pub(crate) fn store(&mut self, parts: &[&[u8]]) -> Option<(Slot, Extent)> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.slot_len {
            return None;
        }
        let index = self.free.pop()?;
        let start = index as usize * self.slot_len;
        let mut at = start;
        for part in parts {
            self.memory.write(at, part);
            at += part.len();
        }
        match self.memory.extent(start, len) {
            Some(extent) => Some((Slot(index), extent)),
            None => {
                self.free.push(index);
                None
            }
        }
    }

    /// A slot of which `write` has filled `len` bytes, which are zero or left over before. `None`, and it was not called, if no slot is free or
    /// they do not fit.
    #[cfg(feature = "rud")]
    pub(crate) fn fill(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Option<(Slot, Extent)> {
        if len > self.slot_len {
            return None;
        }
        let index = self.free.pop()?;
        let start = index as usize * self.slot_len;
        self.memory.with(start, len, write);
        match self.memory.extent(start, len) {
            Some(extent) => Some((Slot(index), extent)),
            None => {
                self.free.push(index);
                None
            }
        }
    }

    /// Inverts one bit of a slot's bytes.
    pub(crate) fn flip_bit(&mut self, slot: &Slot, bit: usize) {
        if bit / 8 < self.slot_len {
            self.memory.flip(slot.0 as usize * self.slot_len + bit / 8, 1 << (bit % 8));
        }
    }

    /// Makes the slot free again.
    pub(crate) fn release(&mut self, slot: Slot) {
        self.free.push(slot.0);
    }
}
