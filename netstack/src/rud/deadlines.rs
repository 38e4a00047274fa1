//! When sessions are due: one time for each, in a heap that knows where each session's is.

use super::recovery::NEVER;

#[cfg(test)]
mod tests;

/// No place in the heap: no endpoint has so many sessions.
const NOWHERE: u16 = u16::MAX;

/// A binary heap of times, the earliest first, with at most one a session; `places` has each session's place in it, or
/// [`NOWHERE`].
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: Vec<(u64, u16)>,
    places: Vec<u16>,
}

impl Deadlines {
    /// The earliest time and its session; `NEVER` without sessions.
    #[inline]
    pub(super) fn first(&self) -> (u64, u16) {
        self.heap.first().copied().unwrap_or((NEVER, NOWHERE))
    }

    /// The session's time becomes `time`, if that is earlier or it has none.
    #[inline]
    pub(super) fn bring_forward(&mut self, session: u16, time: u64) {
        match self.places.get(usize::from(session)) {
            Some(&place) if place != NOWHERE => {
                if time < self.heap[usize::from(place)].0 {
                    self.heap[usize::from(place)].0 = time;
                    self.rise(place.into());
                }
            }
            _ => self.add(session, time),
        }
    }

    #[cold]
    fn add(&mut self, session: u16, time: u64) {
        if self.places.len() <= usize::from(session) {
            self.places.resize(usize::from(session) + 1, NOWHERE);
        }
        self.places[usize::from(session)] = self.heap.len() as u16;
        self.heap.push((time, session));
        self.rise(self.heap.len() - 1);
    }

    /// The earliest time becomes `time`, which is later.
    pub(super) fn put_off_first(&mut self, time: u64) {
        if let Some(first) = self.heap.first_mut() {
            first.0 = time;
            self.sink();
        }
    }

    /// Moves an entry up to its place.
    fn rise(&mut self, mut at: usize) {
        while at != 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].0 <= self.heap[at].0 {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    /// Moves the first entry down to its place.
    fn sink(&mut self) {
        let mut at = 0;
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else { return };
            if self.heap[at].0 <= self.heap[least].0 {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            self.places[usize::from(self.heap[at].1)] = at as u16;
        }
    }
}
