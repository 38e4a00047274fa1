//! Maps a pair of addresses to an index: open addressing over a keyed hash, eight bytes a slot.

#[cfg(test)]
mod tests;

/// No entry.
const EMPTY: u32 = u32::MAX;
/// Slots of an empty table, a power of two.
const LEAST: usize = 64;

/// One slot: half of the hash, to find its home position and to rule out most other keys, and the value.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    value: u32,
}

/// Maps hashes to values below [`u32::MAX`]; the caller decides whether a value is the one meant. Probing is linear,
/// and removal moves displaced values back, so that no tombstones pile up. It grows by doubling.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Bucket>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { slots: vec![Bucket { hash: 0, value: EMPTY }; LEAST], len: 0 }
    }

    /// How many values there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The slots from a hash's home on.
    #[inline]
    fn probe(&self, hash: u32) -> impl Iterator<Item = (usize, Bucket)> {
        let mask = self.mask();
        let home = hash as usize & mask;
        (0..=mask).map_while(move |step| {
            let at = (home + step) & mask;
            self.slots.get(at).map(|slot| (at, *slot))
        })
    }

    /// The value under `hash` that `is` accepts.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = hash as u32;
        for (_, slot) in self.probe(hash) {
            if slot.value == EMPTY {
                return None;
            }
            if slot.hash == hash && is(slot.value) {
                return Some(slot.value);
            }
        }
        None
    }

    /// Adds a value, which is not there yet.
    pub(super) fn insert(&mut self, hash: u64, value: u32) {
        // At most thirteen sixteenths full: a search takes three steps on average if it succeeds, fifteen if not, all
        // in a line or two of the cache; and it always ends.
        if (self.len + 1) * 16 > self.slots.len() * 13 {
            self.grow();
        }
        self.place(Bucket { hash: hash as u32, value });
        self.len += 1;
    }

    fn place(&mut self, slot: Bucket) {
        let free = self.probe(slot.hash).find(|(_, other)| other.value == EMPTY).map(|(at, _)| at);
        if let Some(place) = free.and_then(|at| self.slots.get_mut(at)) {
            *place = slot;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let empty = vec![Bucket { hash: 0, value: EMPTY }; self.slots.len() * 2];
        for slot in core::mem::replace(&mut self.slots, empty) {
            if slot.value != EMPTY {
                self.place(slot);
            }
        }
    }

    /// Removes a value; false if it is not there.
    pub(super) fn remove(&mut self, hash: u64, value: u32) -> bool {
        let hash = hash as u32;
        let found = self
            .probe(hash)
            .take_while(|(_, slot)| slot.value != EMPTY)
            .find(|(_, slot)| slot.value == value && slot.hash == hash);
        let Some((mut hole, _)) = found else {
            return false;
        };
        let mask = self.mask();
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(moved) = self.slots.get(at).copied() else { break };
            if moved.value == EMPTY {
                break;
            }
            // An entry may fill the hole unless its preferred bucket lies after the hole.
            let home = moved.hash as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(place) = self.slots.get_mut(hole) {
                    *place = moved;
                }
                hole = at;
            }
        }
        if let Some(place) = self.slots.get_mut(hole) {
            *place = Bucket { hash: 0, value: EMPTY };
        }
        self.len -= 1;
        true
    }
}
