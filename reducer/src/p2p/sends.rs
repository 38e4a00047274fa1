//! The sends of a rank, by handles that tokens carry.

use super::api::{Direction, Status, TransferError, TransferId, TransferSubject};
use super::wire::Envelope;
use crate::grid::Rank;
use crate::memory::{Pooled, TensorRegion};
use crate::transport::SendToken;
use core::time::Duration;

/// How far a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// It has no number yet: the peer has no room for it.
    Queued,
    /// The peer knows of it, and has not asked for it.
    Announced,
    /// Its fragments are being posted.
    Posting,
    /// All that is to be posted is.
    Posted,
}

/// A message that is being sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The caller's operation, until it has ended.
    pub(super) id: Option<TransferId>,
    pub(super) to: Rank,
    pub(super) envelope: Envelope,
    /// The elements: the caller's, or a copy.
    pub(super) data: TensorRegion,
    /// The room of the copy.
    pub(super) copy: Option<Pooled>,
    pub(super) synchronous: bool,
    /// Its elements are not there yet.
    pub(super) held: bool,
    pub(super) deadline: Duration,
    pub(super) state: SendState,
    /// Bytes of each fragment but the last; 0 before the first is posted.
    pub(super) granule: u32,
    /// Bytes that are posted.
    pub(super) sent: usize,
    /// Fragments that the transport has not released.
    pub(super) unreleased: u32,
    /// How it will end, if that is known before its memory is released.
    pub(super) failure: Option<TransferError>,
}

impl Outgoing {
    /// The send, as this rank's errors describe it.
    pub(super) fn subject(&self, own: Rank) -> TransferSubject {
        subject_of(&self.envelope, own, self.to)
    }

    /// The status of the send, once it has ended well.
    pub(super) fn status(&self) -> Status {
        let Envelope { tag, dtype, count, .. } = self.envelope;
        Status { peer: self.to, tag, dtype, count }
    }
}

/// A send as errors name it.
pub(super) fn subject_of(envelope: &Envelope, own: Rank, to: Rank) -> TransferSubject {
    let &Envelope { tag, dtype, count, .. } = envelope;
    TransferSubject { direction: Direction::Send, own, peer: Some(to), tag: Some(tag), dtype, count }
}

/// Places are numbered below this.
pub(super) const PLACES: u64 = 1 << 28;

/// So many uses of a place are told apart: the token's high bits say whose it is where several share a transport.
const USES: u32 = 1 << 20;

/// Names a send until it is removed: its place, and above that the number of the place's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(u64);

impl Handle {
    /// Of a send that has ended: no place has so high a number.
    pub(super) const ENDED: Self = Self(SendToken::P2P | (PLACES - 1));

    /// The token of its fragments.
    #[inline]
    pub(super) fn token(self) -> SendToken {
        SendToken(self.0)
    }

    /// The send that a token is of.
    #[inline]
    pub(super) fn of(token: SendToken) -> Option<Self> {
        token.is_p2p().then_some(Self(token.0))
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 & (PLACES - 1)) as usize
    }
}

/// All sends that have not ended, or whose copies are not released.
#[derive(Debug, Default)]
pub(super) struct Sends {
    /// With the number of the use, which tells handles of one place apart.
    places: Vec<(u32, Option<Outgoing>)>,
    free: Vec<u32>,
}

impl Sends {
    /// One more.
    pub(super) fn insert(&mut self, send: Outgoing) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(send);
        Handle(u64::from(place.0) << 32 | SendToken::P2P | u64::from(index))
    }

    /// The send of a handle, if it is still there.
    #[inline]
    pub(super) fn get(&mut self, handle: Handle) -> Option<&mut Outgoing> {
        let place = self.places.get_mut(handle.index())?;
        if place.0 == (handle.0 >> 32) as u32 % USES { place.1.as_mut() } else { None }
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Outgoing> {
        self.get(handle)?;
        let place = &mut self.places[handle.index()];
        place.0 = (place.0 + 1) % USES;
        self.free.push(handle.index() as u32);
        place.1.take()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Handle, &Outgoing)> {
        let handle = |index: usize, uses: u32| Handle(u64::from(uses) << 32 | SendToken::P2P | index as u64);
        let places = self.places.iter().enumerate();
        places.filter_map(move |(index, (uses, send))| Some((handle(index, *uses), send.as_ref()?)))
    }

    /// The message of this number to a peer.
    pub(super) fn find(&self, to: Rank, seq: u64) -> Option<Handle> {
        let numbered = |send: &Outgoing| send.state != SendState::Queued;
        let is = |send: &Outgoing| send.to == to && send.envelope.seq == seq && numbered(send);
        self.iter().find(|(_, send)| is(send)).map(|(handle, _)| handle)
    }
}
