//! Marks of the groups that other threads have handed operations to: an engine looks at one word, however many groups there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a word.
const BITS: u32 = u64::BITS;

/// A bit for each place of a group. Any thread sets them; the engine takes them.
pub(crate) struct Marks {
    words: Box<[AtomicU64]>,
    /// A bit for each word that may have one.
    any: AtomicU64,
}

impl Marks {
    /// For so many places: 4,096 at most, those behind have no marks.
    pub(crate) fn new(places: usize) -> Self {
        let words = places.div_ceil(BITS as usize).min(BITS as usize);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), any: AtomicU64::new(0) }
    }

    /// Sets the mark of a place.
    fn set(&self, place: u32) {
        let (word, bit) = (place / BITS, place % BITS);
        let Some(bits) = self.words.get(word as usize) else { return };
        // In this order: who finds the word marked finds the bit, or the word is marked again.
        bits.fetch_or(1 << bit, Ordering::SeqCst);
        self.any.fetch_or(1 << word, Ordering::SeqCst);
    }

    /// Whether no mark is set.
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.any.load(Ordering::SeqCst) == 0
    }

    /// Takes all marks.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        if self.are_none() {
            return;
        }
        for word in ones(self.any.swap(0, Ordering::SeqCst)) {
            let Some(bits) = self.words.get(word as usize) else { continue };
            ones(bits.swap(0, Ordering::SeqCst)).for_each(|bit| each(word * BITS + bit));
        }
    }
}

/// The places of the bits that are one.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(lowest)
    })
}

/// The mark of one place.
#[derive(Clone)]
pub(crate) struct Mark {
    marks: Arc<Marks>,
    place: u32,
}

impl Mark {
    /// That of a place among these.
    pub(crate) fn new(marks: Arc<Marks>, place: u32) -> Self {
        Self { marks, place }
    }

    /// Sets it: the next poll of the engine visits the group.
    #[inline]
    pub(super) fn set(&self) {
        self.marks.set(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn taken(marks: &Marks) -> Vec<u32> {
        let mut taken = vec![];
        marks.take(|place| taken.push(place));
        taken
    }

    #[test]
    fn marks_are_taken_once_in_order_of_places() {
        let marks = Arc::new(Marks::new(4000));
        assert!(marks.are_none() && taken(&marks).is_empty());
        for place in [3999, 64, 0, 63, 64] {
            Mark::new(marks.clone(), place).set();
        }
        assert!(!marks.are_none());
        assert_eq!(taken(&marks), [0, 63, 64, 3999]);
        assert!(marks.are_none() && taken(&marks).is_empty());
        // There is no such place.
        Mark::new(marks.clone(), 5000).set();
        assert!(taken(&marks).is_empty());
    }

    #[test]
    fn no_mark_is_lost_while_others_are_taken() {
        let marks = Arc::new(Marks::new(128));
        let handed: Vec<AtomicU64> = (0..128).map(|_| AtomicU64::new(0)).collect();
        let is_over = AtomicBool::new(false);
        const ROUNDS: u64 = 2000;
        let seen = std::thread::scope(|scope| {
            for half in 0..2 {
                let (marks, handed) = (marks.clone(), &handed);
                scope.spawn(move || {
                    for place in (0..ROUNDS).flat_map(|_| half * 64..half * 64 + 64) {
                        handed[place as usize].fetch_add(1, Ordering::SeqCst);
                        Mark::new(marks.clone(), place).set();
                    }
                });
            }
            let taker = scope.spawn(|| {
                let mut seen = vec![0; 128];
                while seen.iter().any(|count| *count < ROUNDS) && !is_over.load(Ordering::SeqCst) {
                    marks.take(|place| {
                        seen[place as usize] = handed[place as usize].load(Ordering::SeqCst);
                    });
                    std::thread::yield_now();
                }
                seen
            });
            // A mark that is lost leaves the taker behind for ever.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !taker.is_finished() && std::time::Instant::now() < until {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
            taker.join().unwrap()
        });
        assert!(seen.iter().all(|count| *count == ROUNDS), "{seen:?}");
    }
}
