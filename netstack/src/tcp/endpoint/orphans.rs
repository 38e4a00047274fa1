//! Connections that their users have closed, and that still hold what was written. No user will end them, so their number
//! is bounded, and they make room for those who write.

use super::{Connection, ConnectionOwner, Endpoint};
use crate::time::Instant;

/// Of so many, the one that has got nothing through for longest is ended.
const LOOKS: usize = 16;

impl Endpoint {
    /// The user has let go of a connection.
    pub(super) fn orphan(&mut self, now: Instant, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let held = slot.connection.as_deref().is_some_and(Connection::holds_data);
        if !held || slot.owner != ConnectionOwner::User {
            return;
        }
        slot.owner = ConnectionOwner::Orphan;
        self.orphans += 1;
        while self.orphans > self.config.max_orphans && self.end_orphan(now) {}
    }

    /// A segment for a connection was taken in: if it holds nothing any more, it ends by itself.
    #[inline]
    pub(super) fn look_at_orphan(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if slot.owner == ConnectionOwner::Orphan
            && !slot.connection.as_deref().is_some_and(Connection::holds_data)
        {
            slot.owner = ConnectionOwner::User;
            self.orphans -= 1;
        }
    }

    /// There is no memory for a connection's write: orphans give theirs up, until there will be
    /// some as soon as no frame refers to it.
    #[cold]
    pub(super) fn reclaim(&mut self, now: Instant) {
        while !self.shared.memory.awaits_frames() && self.end_orphan(now) {}
    }

    /// Ends one of the next orphans in the order of slots; false if there is none.
    fn end_orphan(&mut self, now: Instant) -> bool {
        let (mut found, mut looked) = (None, 0);
        for _ in 0..self.slots.len() {
            if looked == self.orphans.min(LOOKS) {
                break;
            }
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = self.slots.get(self.hand).filter(|slot| slot.owner == ConnectionOwner::Orphan);
            let Some(connection) = slot.and_then(|slot| slot.connection.as_deref()) else { continue };
            looked += 1;
            let since = connection.stalled_since();
            if found.is_none_or(|(longest, _)| since < longest) {
                found = Some((since, self.hand as u32));
            }
        }
        let Some((_, index)) = found else { return false };
        self.counters.orphans_ended += 1;
        if let Some(end) = self.call(index, |connection, cx| connection.give_up(now, cx)) {
            self.dispose(now, index, end);
        }
        true
    }
}
