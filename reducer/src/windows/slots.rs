//! What transports refer to, by handles that tokens carry: accesses of this rank, and answers to others.

use crate::transport::SendToken;

/// Uses of a place that its handles tell apart.
const USES: u32 = 1 << 20;

/// Tells answers from accesses in a token.
const ANSWER: u64 = 1 << 27;

/// Most places, of each kind.
pub(super) const PLACES: usize = 1 << 27;

/// A place, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    index: u32,
    uses: u32,
}

impl Handle {
    /// The token of what an access sends, or of an answer.
    pub(super) fn token(self, answers: bool) -> SendToken {
        let kind = if answers { ANSWER } else { 0 };
        SendToken(u64::from(self.uses) << 32 | SendToken::WINDOW | kind | u64::from(self.index))
    }

    /// What a token stands for, and whether that is an answer; `None` for tokens of others.
    pub(super) fn of(token: SendToken) -> Option<(Self, bool)> {
        let SendToken(bits) = token;
        let index = (bits & (ANSWER - 1)) as u32;
        let handle = Self { index, uses: (bits >> 32) as u32 % USES };
        token.is_window().then_some((handle, bits & ANSWER != 0))
    }
}

/// Values by handle.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
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

    /// One that is still there.
    #[inline]
    pub(super) fn get(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.places.get_mut(handle.index as usize)?;
        if place.0 == handle.uses { place.1.as_mut() } else { None }
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        let place = &mut self.places[handle.index as usize];
        place.0 = (place.0 + 1) % USES;
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
