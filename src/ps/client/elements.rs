//! The elements of requests: sent from where they lie, or from a copy in memory that servers on this host can read.

use crate::ps::Error;
use crate::ps::link::Link;
use crate::ps::message::{Home, Slab};
use crate::ps::protocol::memory;
use crate::ps::shard::Shard;

/// What a request's elements are copied to, where they are: memory for those to one server.
pub(super) struct Room<'a> {
    pub(super) home: &'a Home,
    pub(super) link: &'a Link,
    pub(super) spare: &'a mut Option<Slab>,
}

impl Room<'_> {
    pub(super) fn memory(self, len: usize) -> Result<Slab, Error> {
        Ok(memory(self.home, || self.spare.take(), len)?)
    }

    /// A shard's rows of `whole`. They are sent from there if they lie in one piece, unless a server on this host could not read them there, but in
    /// a copy.
    pub(super) fn of_shard<'a>(
        self,
        shard: &Shard,
        whole: &'a [u8],
        row_bytes: usize,
    ) -> Result<Elements<'a>, Error> {
        let run = shard.run(row_bytes).map(|run| &whole[run]);
        if let Some(run) = run.filter(|run| !self.link.is_near || self.link.data.is_shared(run)) {
            return Ok(Elements::There(run));
        }
        let mut slab = self.memory(shard.len() * row_bytes)?;
        shard.gather(whole, row_bytes, slab.bytes_mut());
        Ok(Elements::Copied(slab))
    }
}

/// The elements of a request.
pub(super) enum Elements<'a> {
    There(&'a [u8]),
    Copied(Slab),
}

impl Elements<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::There(bytes) => bytes,
            Self::Copied(slab) => slab.bytes(),
        }
    }
}

/// Keeps memory for the next messages: the larger piece.
pub(super) fn keep(place: &mut Option<Slab>, slab: Slab) {
    if place.as_ref().is_none_or(|kept| kept.capacity() < slab.capacity()) {
        *place = Some(slab);
    }
}
