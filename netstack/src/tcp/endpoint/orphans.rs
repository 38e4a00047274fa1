//! Connections that their users have closed, and that still hold written bytes. No user will end them, so their number
//! is bounded, and they make room for other writers.

use super::slots::Owner;
use super::{Connection, Endpoint};
use crate::time::Instant;

/// Of so many, the one that has got nothing through for longest is ended.
const LOOKS: usize = 16;

impl Endpoint {
    /// The user has let go of a connection.
    pub(super) fn orphan(&mut self, now: Instant, index: u32) {
        let held = self.slots.get(index).is_some_and(Connection::holds_data);
        if !held || self.slots.owner(index) != Some(Owner::User) {
            return;
        }
        self.slots.set_owner(index, Owner::Orphan);
        while self.slots.orphans() > self.config.max_orphans && self.end_orphan(now) {}
    }

    /// A segment for a connection was taken in: if it holds nothing any more, it ends by itself.
    #[inline]
    pub(super) fn look_at_orphan(&mut self, index: u32) {
        if self.slots.owner(index) == Some(Owner::Orphan)
            && !self.slots.get(index).is_some_and(Connection::holds_data)
        {
            self.slots.set_owner(index, Owner::User);
        }
    }

    /// There is no memory for a connection's write: orphans give theirs up, until there will be
    /// some as soon as no frame refers to it.
    #[cold]
    pub(super) fn reclaim(&mut self, now: Instant) {
        while !self.shared.awaits_memory() && self.end_orphan(now) {}
    }

    /// Ends one of the next orphans in the order of slots; false if there is none.
    fn end_orphan(&mut self, now: Instant) -> bool {
        let Some(index) = self.slots.stalled_orphan(LOOKS) else { return false };
        self.counters.orphans_ended += 1;
        if let Some(end) = self.call(index, |connection, cx| connection.give_up(now, cx)) {
            self.dispose(now, index, end);
        }
        true
    }
}
