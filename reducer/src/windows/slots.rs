//! The places of accesses of this rank, and of answers to others, to which transports refer by the handles that tokens carry.

use crate::transport::SendToken;

/// Uses of a place that tokens tell apart. An access or answer that a token refers to keeps its place, so the transport gives back no
/// older one.
const USES: u64 = 1 << 20;

/// Tells answers from accesses in a token.
const ANSWER: u64 = 1 << 27;

/// Most places, of each kind.
pub(super) const PLACES: usize = 1 << 27;

/// A place, and which use of it: no two are the same, for requests outlive their accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    index: u32,
    uses: u64,
}

/// Whether a token of windows is of an answer.
pub(super) fn is_answer(token: SendToken) -> bool {
    token.0 & ANSWER != 0
}

impl Handle {
    /// The token of what an access sends, or of an answer.
    pub(super) fn token(self, answers: bool) -> SendToken {
        let kind = if answers { ANSWER } else { 0 };
        SendToken((self.uses % USES) << 32 | SendToken::WINDOW | kind | u64::from(self.index))
    }
}

/// Values by handle.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<(u64, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { places: vec![], free: vec![] }
    }
}

impl<T> Slots<T> {
    /// One more.
    pub(super) fn insert(&mut self, value: T) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(value);
        Handle { index, uses: place.0 }
    }

    /// The handle that a token of this kind stands for, if its place has not been given to another one.
    pub(super) fn handle_of(&self, SendToken(bits): SendToken) -> Option<Handle> {
        let index = (bits & (ANSWER - 1)) as u32;
        let (uses, _) = self.places.get(index as usize)?;
        (uses % USES == (bits >> 32) % USES).then_some(Handle { index, uses: *uses })
    }

    /// The value of a handle, if it is still there.
    #[inline]
    pub(super) fn get(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.places.get_mut(handle.index as usize)?;
        if place.0 == handle.uses { place.1.as_mut() } else { None }
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        let place = &mut self.places[handle.index as usize];
        place.0 += 1;
        self.free.push(handle.index);
        place.1.take()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        let places = (0u32..).zip(&self.places);
        places.filter_map(|(index, (uses, value))| Some((Handle { index, uses: *uses }, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_never_that_of_a_later_use() {
        let mut slots = Slots::default();
        let first = slots.insert(0);
        slots.remove(first);
        for use_of in 1..USES {
            let later = slots.insert(use_of);
            slots.remove(later);
        }
        let last = slots.insert(USES);
        assert_eq!((first.index, first.token(false)), (last.index, last.token(false)));
        assert_eq!(slots.handle_of(first.token(false)), Some(last));
        assert_eq!(slots.get(first), None);
    }
}
