//! A hierarchical timer wheel: insert and cancel in constant time, however many timers run.
//!
//! Time is cut into ticks of 1,024 ns. Level 0 has a slot for each of the next 64 ticks, level 1 a slot for each of
//! the next 64 spans of 64 ticks, and so on (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987):
//!
//! ```text
//!   level 0   |.|.|x|.|.|.| ...  64 slots of 1 us         a timer sits at the level of the highest
//!   level 1   |  x  |     | ...  64 slots of 65 us        group of six bits in which its tick differs
//!   level 2   |           | ...  64 slots of 4.2 ms       from the present one; when the wheel advances
//!   ...                          8 levels: nine years     to its slot, it moves down, or fires
//! ```
//!
//! A 64-bit map per level says which slots are in use, so that the next deadline is found with a few instructions.
//! Timers live in one slab and are linked through indices; nothing allocates once the slab has grown.

use crate::time::Instant;

#[cfg(test)]
mod tests;

/// Nanoseconds per tick, as a power of two.
const TICK_SHIFT: u32 = 10;
/// Slots per level, as a power of two.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 8;
/// The farthest that a timer can be from the present, in ticks; later ones wait there and are looked at again. One
/// top slot less than a whole revolution, so that no timer lands in the slot that is being worked off.
const HORIZON: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - (1 << (SLOT_BITS * (LEVELS as u32 - 1)));
/// No entry.
const NIL: u32 = u32::MAX;

/// Names a timer, to cancel it. A key of a timer that fired or was cancelled names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

impl TimerKey {
    /// Names no timer.
    pub const NONE: Self = Self { index: u32::MAX, generation: 0 };
}

#[derive(Debug)]
struct Entry<T> {
    value: Option<T>,
    /// The first tick at which the deadline has passed.
    tick: u64,
    previous: u32,
    next: u32,
    generation: u32,
    /// Level and slot, to find the list's head when it is cancelled.
    level: u8,
    slot: u8,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Level {
    in_use: u64,
    slots: [List; SLOTS],
}

/// Timers that each carry a `T`.
#[derive(Debug)]
pub struct Wheel<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// Ticks that have been worked off.
    elapsed: u64,
    levels: Box<[Level; LEVELS]>,
    /// Nothing is due before, unless a timer was started since: zero then.
    idle_until: Instant,
}

impl<T> Wheel<T> {
    /// A wheel that stands at `now`.
    pub fn new(now: Instant) -> Self {
        Self::with_capacity(now, 0)
    }

    /// A wheel that stands at `now` and holds `capacity` timers without allocating.
    pub fn with_capacity(now: Instant, capacity: usize) -> Self {
        let levels =
            core::array::from_fn(|_| Level { in_use: 0, slots: [List { first: NIL, last: NIL }; SLOTS] });
        Self {
            entries: Vec::with_capacity(capacity),
            free: NIL,
            len: 0,
            elapsed: now.as_nanos() >> TICK_SHIFT,
            levels: Box::new(levels),
            idle_until: Instant::ZERO,
        }
    }

    /// How many timers run.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer runs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Starts a timer that fires at the first [`Wheel::expire`] at or after `deadline`, rounded up to a tick.
    pub fn insert(&mut self, deadline: Instant, value: T) -> TimerKey {
        let tick = deadline.as_nanos().div_ceil(1 << TICK_SHIFT);
        let index = if self.free == NIL {
            let index = self.entries.len() as u32;
            self.entries.push(Entry {
                value: Some(value),
                tick,
                previous: NIL,
                next: NIL,
                generation: 0,
                level: 0,
                slot: 0,
            });
            index
        } else {
            let index = self.free;
            let entry = &mut self.entries[index as usize];
            self.free = entry.next;
            entry.value = Some(value);
            entry.tick = tick;
            index
        };
        self.len += 1;
        self.idle_until = Instant::ZERO;
        self.link(index);
        TimerKey { index, generation: self.entries[index as usize].generation }
    }

    /// Stops a timer and returns its value; `None` if it has fired or was cancelled before.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation || entry.value.is_none() {
            return None;
        }
        self.unlink(key.index);
        self.release(key.index)
    }

    /// Whether the timer still runs.
    pub fn contains(&self, key: TimerKey) -> bool {
        self.entries
            .get(key.index as usize)
            .is_some_and(|entry| entry.generation == key.generation && entry.value.is_some())
    }

    /// Advances the wheel to `now` and hands the value of each expired timer to `fire`, in the order of their ticks.
    /// Returns how many fired.
    pub fn expire(&mut self, now: Instant, mut fire: impl FnMut(T)) -> usize {
        let now = now.as_nanos() >> TICK_SHIFT;
        let mut fired = 0;
        while let Some((level, slot, start)) = self.next_slot() {
            if start > now {
                break;
            }
            self.elapsed = self.elapsed.max(start);
            let head = &mut self.levels[level];
            head.in_use &= !(1 << slot);
            let mut index = head.slots[slot].first;
            head.slots[slot] = List { first: NIL, last: NIL };
            while index != NIL {
                let entry = &self.entries[index as usize];
                let next = entry.next;
                if entry.tick <= self.elapsed {
                    if let Some(value) = self.release(index) {
                        fire(value);
                        fired += 1;
                    }
                } else {
                    self.link(index);
                }
                index = next;
            }
        }
        self.elapsed = self.elapsed.max(now);
        fired
    }

    /// When to call [`Wheel::expire`] next; never later than the earliest timer. For a timer more than 64 ticks
    /// away it may be earlier: the call then moves the timer down and the answer becomes exact.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let (_, _, start) = self.next_slot()?;
        Some(Instant::from_nanos(start.saturating_mul(1 << TICK_SHIFT)))
    }

    /// Whether [`Wheel::next_deadline`] has come; cheaper to ask again and again.
    #[inline]
    pub fn is_due(&mut self, now: Instant) -> bool {
        if now < self.idle_until {
            return false;
        }
        self.idle_until = self.next_deadline().unwrap_or(Instant::from_nanos(u64::MAX));
        self.idle_until <= now
    }

    /// The earliest slot in use and the tick at which it begins. Lower levels come before higher ones.
    #[inline]
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        if self.len == 0 {
            return None;
        }
        for (level, head) in self.levels.iter().enumerate() {
            if head.in_use == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let position = (self.elapsed >> shift) as u32 % SLOTS as u32;
            // The first slot in use from the present position on, around the wheel.
            let ahead = head.in_use.rotate_right(position).trailing_zeros();
            let slot = (position + ahead) % SLOTS as u32;
            let revolution = self.elapsed >> shift >> SLOT_BITS << SLOT_BITS;
            let mut start = (revolution + u64::from(slot)) << shift;
            if slot < position {
                // Only the top level wraps around: a timer past the end of its revolution.
                start = start.saturating_add(1 << (shift + SLOT_BITS));
            }
            return Some((level, slot as usize, start));
        }
        None
    }

    /// Appends an entry to the slot of its tick.
    fn link(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        // A timer in the past fires at the present tick; one beyond the horizon is looked at again there.
        let tick = entry.tick.clamp(self.elapsed, self.elapsed.saturating_add(HORIZON));
        let differing = (tick ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (tick >> (SLOT_BITS * level)) as usize % SLOTS;
        let list = self.levels[level as usize].slots[slot];
        let entry = &mut self.entries[index as usize];
        (entry.level, entry.slot) = (level as u8, slot as u8);
        (entry.previous, entry.next) = (list.last, NIL);
        if list.last == NIL {
            self.levels[level as usize].slots[slot].first = index;
        } else {
            self.entries[list.last as usize].next = index;
        }
        let head = &mut self.levels[level as usize];
        head.slots[slot].last = index;
        head.in_use |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        let (previous, next) = (entry.previous, entry.next);
        let (level, slot) = (usize::from(entry.level), usize::from(entry.slot));
        if previous == NIL {
            self.levels[level].slots[slot].first = next;
        } else {
            self.entries[previous as usize].next = next;
        }
        if next == NIL {
            self.levels[level].slots[slot].last = previous;
        } else {
            self.entries[next as usize].previous = previous;
        }
        if self.levels[level].slots[slot].first == NIL {
            self.levels[level].in_use &= !(1 << slot);
        }
    }

    /// Puts an unlinked entry on the free list.
    fn release(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        let value = entry.value.take();
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        value
    }
}
