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

    /// Each setter waits until its mark was taken: so none makes good what another one lost.
    #[test]
    fn no_mark_is_lost_while_others_are_taken() {
        const ROUNDS: u64 = 5_000;
        // In words of their own.
        let places = [0, 64];
        let marks = Arc::new(Marks::new(128));
        let seen = places.map(|_| AtomicU64::new(0));
        let is_over = AtomicBool::new(false);
        // A mark that is lost leaves its setter behind for ever.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let reached = std::thread::scope(|scope| {
            let setters = [0, 1].map(|at| {
                let (mark, seen) = (Mark::new(marks.clone(), places[at]), &seen[at]);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        mark.set();
                        while seen.load(Ordering::SeqCst) < round {
                            if std::time::Instant::now() > until {
                                return round - 1;
                            }
                            std::thread::yield_now();
                        }
                    }
                    ROUNDS
                })
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    marks.take(|place| {
                        seen[place as usize / 64].fetch_add(1, Ordering::SeqCst);
                    });
                    std::thread::yield_now();
                }
            });
            let reached = setters.map(|setter| setter.join().unwrap());
            is_over.store(true, Ordering::SeqCst);
            reached
        });
        assert_eq!(reached, [ROUNDS; 2]);
    }
}
