//! The connections of an endpoint: their slots, their owners, and the order in which they send.

use core::net::IpAddr;
use std::collections::VecDeque;

use super::super::api::ConnectionId;
use super::super::connection::{Connection, TransmitOutcome};
use super::timers::{Armed, Timers};
use crate::ip::peers::Peers;
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The user.
    User,
    /// A listener; the handshake is going on.
    HalfOpen(u32),
    /// A listener's accept queue.
    Queued,
    /// The endpoint alone: the user has closed it, and it still holds written data.
    Orphan,
}

/// One connection's place.
struct Slot {
    /// Of the connection that is here, or will be next.
    generation: u32,
    owner: Owner,
    /// Whether the index is in `ready`.
    ready: bool,
    armed: Armed,
    connection: Option<Box<Connection>>,
}

impl Slot {
    fn is_orphan(&self) -> bool {
        self.owner == Owner::Orphan && self.connection.is_some()
    }
}

/// A slab of boxes. A slot without a connection is in `free`, has no timer, and may still be in `ready`, where each slot is at most
/// once. `peers` counts the connections that are not half open, `orphans` those whose owner is [`Owner::Orphan`].
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Those with something to send, in round-robin order.
    ready: VecDeque<u32>,
    /// The hosts of connections whose handshake this side began, or is over.
    peers: Peers,
    orphans: usize,
    /// The orphan that was examined last when there were too many.
    hand: usize,
}

impl Slots {
    /// How many connections there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many of them are orphans.
    pub(super) fn orphans(&self) -> usize {
        self.orphans
    }

    /// Whether a connection that is not half open leads to `host`.
    pub(super) fn has_peer(&self, host: IpAddr) -> bool {
        self.peers.has(host)
    }

    /// The connection in a slot.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Connection> {
        self.slots.get(index as usize)?.connection.as_deref()
    }

    /// The connection in a slot, its name, and its owner.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<(ConnectionId, Owner, &mut Connection)> {
        let slot = self.slots.get_mut(index as usize)?;
        let connection = slot.connection.as_deref_mut()?;
        Some((ConnectionId { index, generation: slot.generation }, slot.owner, connection))
    }

    /// The user's connection of that name.
    #[inline]
    pub(super) fn of_user(&self, id: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(id.index as usize)?;
        let found = slot.generation == id.generation && slot.owner == Owner::User;
        slot.connection.as_deref().filter(|_| found)
    }

    /// The connection of that name, and its owner.
    pub(super) fn named(&self, id: ConnectionId) -> Option<(Owner, &Connection)> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        Some((slot.owner, slot.connection.as_deref()?))
    }

    /// The owner of the connection in a slot.
    #[inline]
    pub(super) fn owner(&self, index: u32) -> Option<Owner> {
        let slot = self.slots.get(index as usize)?;
        slot.connection.is_some().then_some(slot.owner)
    }

    /// The slots of a listener's half-open connections.
    pub(super) fn half_open(&self, listener: u32) -> impl Iterator<Item = u32> {
        let half_open =
            move |slot: &Slot| slot.owner == Owner::HalfOpen(listener) && slot.connection.is_some();
        self.slots.iter().enumerate().filter(move |(_, slot)| half_open(slot)).map(|(index, _)| index as u32)
    }

    /// Gives a connection a slot.
    pub(super) fn insert(&mut self, connection: Connection, owner: Owner) -> ConnectionId {
        if !matches!(owner, Owner::HalfOpen(_)) {
            self.peers.add(connection.remote().ip());
        }
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        let connection = Some(Box::new(connection));
        let generation = match self.slots.get_mut(index as usize) {
            Some(slot) => {
                (slot.owner, slot.connection) = (owner, connection);
                slot.generation
            }
            None => {
                if self.slots.len() == self.slots.capacity() {
                    // An eighth at a time: doubling would leave half of it unused.
                    self.slots.reserve_exact(self.slots.len() / 8 + 16);
                }
                self.slots.push(Slot { generation: 0, owner, ready: false, armed: Armed::NOT, connection });
                0
            }
        };
        ConnectionId { index, generation }
    }

    /// The connection in a slot has another owner from now on.
    pub(super) fn set_owner(&mut self, index: u32, owner: Owner) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(connection) = slot.connection.as_deref() else { return };
        if matches!(slot.owner, Owner::HalfOpen(_)) && !matches!(owner, Owner::HalfOpen(_)) {
            self.peers.add(connection.remote().ip());
        }
        self.orphans -= usize::from(slot.owner == Owner::Orphan);
        self.orphans += usize::from(owner == Owner::Orphan);
        slot.owner = owner;
    }

    /// Frees a slot; false if it was free.
    pub(super) fn remove(&mut self, index: u32, timers: &mut Timers) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        let Some(connection) = slot.connection.take() else { return false };
        if !matches!(slot.owner, Owner::HalfOpen(_)) {
            self.peers.remove(connection.remote().ip());
        }
        self.orphans -= usize::from(slot.owner == Owner::Orphan);
        timers.disarm(&mut slot.armed);
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        true
    }

    /// Stops a connection's timer.
    pub(super) fn disarm(&mut self, index: u32, timers: &mut Timers) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            timers.disarm(&mut slot.armed);
        }
    }

    /// A connection's timer has fired. Returns the connection's present deadline.
    pub(super) fn on_fired(&mut self, index: u32) -> Option<Instant> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.armed = Armed::NOT;
        slot.connection.as_deref()?.next_deadline()
    }

    //= RFC 9293 section 3.10.7.4, MUST-58, MUST-59: a segment that arrives only schedules the connection. What acknowledges all
    //= segments of a burst leaves with `transmit`, once these have been processed.
    /// Schedules a connection to send and arms its timer, if it needs either.
    #[inline]
    pub(super) fn settle(&mut self, now: Instant, index: u32, timers: &mut Timers) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(connection) = slot.connection.as_deref() else { return };
        if connection.is_over() {
            return;
        }
        if !slot.ready && connection.wants_transmit(now) {
            slot.ready = true;
            self.ready.push_back(index);
        }
        timers.arm(&mut slot.armed, index, connection.next_deadline());
    }

    /// The same after a write, which starts no timer by itself: if the connection is scheduled to send, its
    /// timer is armed then.
    #[inline]
    pub(super) fn settle_written(&mut self, now: Instant, index: u32, timers: &mut Timers) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(connection) = slot.connection.as_deref() else { return };
        if slot.ready || connection.is_over() {
            return;
        }
        if connection.wants_transmit(now) {
            slot.ready = true;
            self.ready.push_back(index);
        } else {
            timers.arm(&mut slot.armed, index, connection.next_deadline());
        }
    }

    /// How many have something to send.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// The next connection to send. [`Slots::transmitted`] has to follow.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// A connection has transmitted its quantum: it is ready again unless it is done.
    #[inline]
    pub(super) fn transmitted(&mut self, index: u32, outcome: TransmitOutcome, timers: &mut Timers) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        slot.ready = outcome != TransmitOutcome::Done;
        let connection = slot.connection.as_deref().filter(|connection| !connection.is_over());
        let deadline = connection.and_then(|connection| connection.next_deadline());
        timers.arm(&mut slot.armed, index, deadline);
        if slot.ready {
            self.ready.push_back(index);
        }
    }

    /// Of `looks` orphans, the next in the order of slots, the one that has got nothing through for longest.
    pub(super) fn stalled_orphan(&mut self, looks: usize) -> Option<u32> {
        let (mut found, mut looked) = (None, 0);
        for _ in 0..self.slots.len() {
            if looked == self.orphans.min(looks) {
                break;
            }
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = self.slots.get(self.hand).filter(|slot| slot.is_orphan());
            let Some(connection) = slot.and_then(|slot| slot.connection.as_deref()) else { continue };
            looked += 1;
            let since = connection.stalled_since();
            if found.is_none_or(|(longest, _)| since < longest) {
                found = Some((since, self.hand as u32));
            }
        }
        found.map(|(_, index)| index)
    }
}
