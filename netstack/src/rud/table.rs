//! Maps a session tag to a session's index: open addressing, one probe nearly always, no allocation after `new`.

#[cfg(test)]
mod tests;

/// Maps tags to indices. Zero is no tag.
#[derive(Debug)]
pub(super) struct TagTable {
    slots: Box<[(u64, u16)]>,
    shift: u32,
}

impl TagTable {
    /// A table for up to `max` tags: at most half full, so that a probe ends soon.
    pub(super) fn new(max: usize) -> Self {
        let size = (max.max(1) * 2).next_power_of_two();
        Self { slots: vec![(0, 0); size].into_boxed_slice(), shift: 64 - size.trailing_zeros() }
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        // Fibonacci hashing: the tags are random, so this only guards against a careless choice of them.
        (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The index stored for `tag`.
    #[inline]
    pub(super) fn get(&self, tag: u64) -> Option<u16> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(tag);
        if tag == 0 {
            return None;
        }
        loop {
            let (stored, index) = self.slots[at & mask];
            if stored == tag {
                return Some(index);
            }
            if stored == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Stores `tag`, which is not zero and not there yet; there are at most `max` tags.
    pub(super) fn insert(&mut self, tag: u64, index: u16) {
        let mask = self.slots.len() - 1;
        let mut at = self.home(tag) & mask;
        while self.slots[at].0 != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = (tag, index);
    }

    /// Removes `tag`, and moves back the entries that it had displaced.
    pub(super) fn remove(&mut self, tag: u64) {
        let mask = self.slots.len() - 1;
        let mut hole = self.home(tag) & mask;
        while self.slots[hole].0 != tag {
            if self.slots[hole].0 == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (moved, _) = self.slots[at];
            if moved == 0 {
                break;
            }
            // An entry may move into the hole unless its preferred bucket lies between the hole and itself.
            let distance = at.wrapping_sub(self.home(moved)) & mask;
            if distance >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (0, 0);
    }
}
