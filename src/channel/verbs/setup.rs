//! Set-up of a connection, at first and after a failure: both ends offer a queue pair over the control connection, connect it,
//! and report that it is ready.
//!
//! ```text
//!   Offer(epoch, address, taken) -->        <-- Offer(epoch, address, taken)
//!   connect                                     connect
//!   Ready(epoch) -->                        <-- Ready(epoch)
//! ```
//!
//! A connection's epoch counts its queue pairs. The end that sees one fail closes it (nothing of it is in flight
//! afterwards) and offers the next; the other end closes its own when it receives the offer. An offer gives the
//! fragments taken, so the rest is posted again, none twice, none left out.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shouter_netstack::time::Instant;

use super::fabric::{Fabric, Fault, QueuePairAddress, Sizes};
use super::fragments::{MAX_WINDOW, RefusalReason, Taken};
use super::link::{LinkState, PAUSE};
use super::{Control, VerbsChannel};
use crate::channel::loss::Loss;
use crate::wire;

/// A fragment that the peer had no room for is sent again after so long.
const NOT_READY: Duration = Duration::from_micros(100);

/// Set-up messages on the control connection.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum SetupMessage {
    Offer(Offer),
    Ready { connection: u32, epoch: u32 },
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Offer {
    connection: u32,
    epoch: u32,
    connections: u32,
    crc: bool,
    sizes: Sizes,
    address: QueuePairAddress,
    taken: u64,
    refused: u64,
}

impl<F: Fabric, C: Control> VerbsChannel<F, C> {
    /// Handles a set-up message from the control connection.
    pub(super) fn on_side(&mut self, now: Instant, index: usize, bytes: &[u8]) {
        let connections = self.connections.of_peer(index);
        let connection_of = |connection: u32| connections.clone().nth(connection as usize);
        let heard = match wire::decode(bytes) {
            Ok(SetupMessage::Offer(offer)) => match connection_of(offer.connection) {
                Some(at) => self.on_offer(now, at, &offer),
                None => Err(Fault::Settings),
            },
            Ok(SetupMessage::Ready { connection, epoch }) => match connection_of(connection) {
                Some(at) => {
                    self.on_ready(at, epoch);
                    Ok(())
                }
                None => Err(Fault::Settings),
            },
            Err(_) => Err(Fault::Protocol),
        };
        if let Err(why) = heard {
            self.lose(index, why);
        }
    }

    fn on_offer(&mut self, now: Instant, at: usize, offer: &Offer) -> Result<(), Fault> {
        let sizes = self.fabric.sizes();
        if (offer.connections as usize, offer.crc, offer.sizes)
            != (self.connections.per_peer(), self.settings.crc, sizes)
        {
            return Err(Fault::Settings);
        }
        let Some(connection) = self.connections.get_mut(at) else { return Err(Fault::Protocol) };
        if connection.link.is_over() || offer.epoch < connection.link.epoch() {
            return Ok(());
        }
        if offer.epoch > connection.link.epoch() {
            tracing::debug!(connection = at, epoch = offer.epoch, "the peer has closed a queue pair");
            connection.link.follow(now, offer.epoch);
            self.fabric.close(at);
            self.offer(at)?;
        } else if matches!(connection.link.state(), LinkState::Down(_)) {
            self.offer(at)?;
        }
        let Some(connection) = self.connections.get_mut(at) else { return Err(Fault::Protocol) };
        if connection.link.state() != LinkState::Offered {
            return Ok(());
        }
        let taken = Taken { count: offer.taken, refused: offer.refused };
        let mut returned = [None; MAX_WINDOW as usize];
        let mut places = returned.iter_mut();
        let released = &mut self.released;
        connection
            .sender
            .resume(
                taken,
                |token| released.push(token),
                |fragment| {
                    if let Some(place) = places.next() {
                        *place = Some(fragment);
                    }
                },
            )
            .map_err(|_| Fault::Protocol)?;
        for fragment in returned.into_iter().flatten() {
            self.keep(now, at, fragment);
        }
        if let Err(why) = self.fabric.connect(at, &offer.address) {
            tracing::debug!(connection = at, %why, "a queue pair was not connected; another will be tried");
            self.broken(now, at, why);
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(at) else { return Err(Fault::Protocol) };
        connection.link.connected();
        let epoch = connection.link.epoch();
        let ready = SetupMessage::Ready { connection: self.connections.split(at).1 as u32, epoch };
        self.send_setup(at, &ready)
    }

    fn on_ready(&mut self, at: usize, epoch: u32) {
        let Some(connection) = self.connections.get_mut(at) else { return };
        if !connection.link.ready(epoch, connection.sender.acked()) {
            return;
        }
        if epoch > 0 {
            tracing::info!(connection = at, epoch, "a queue pair was set up again");
        }
        // A queue pair fails rarely: this may allocate.
        let again: Vec<_> = connection.sender.outstanding().collect();
        for (slot, len, zero_copy) in again {
            self.take_in(at, slot, zero_copy);
            self.fabric.write(at, slot, len);
            self.counts.resent += 1;
        }
    }

    /// Makes a queue pair and offers it to the peer.
    fn offer(&mut self, at: usize) -> Result<(), Fault> {
        let address = self.fabric.open(at)?;
        let Some(connection) = self.connections.get_mut(at) else { return Err(Fault::Protocol) };
        connection.link.offered();
        let (epoch, taken) = (connection.link.epoch(), connection.receiver.taken());
        connection.receiver.resume();
        let offer = Offer {
            connection: self.connections.split(at).1 as u32,
            epoch,
            connections: self.connections.per_peer() as u32,
            crc: self.settings.crc,
            sizes: self.fabric.sizes(),
            address,
            taken: taken.count,
            refused: taken.refused,
        };
        self.send_setup(at, &SetupMessage::Offer(offer))
    }

    fn send_setup(&mut self, at: usize, message: &SetupMessage) -> Result<(), Fault> {
        let Some(rank) = self.peers.rank(self.connections.split(at).0) else { return Ok(()) };
        let bytes = wire::encode(message).map_err(|_| Fault::Unencodable)?;
        self.control.enqueue(rank, bytes);
        Ok(())
    }

    /// A queue pair has failed: closes it, and offers another in a while.
    pub(super) fn broken(&mut self, now: Instant, at: usize, why: Fault) {
        let (index, of_peer) = self.connections.split(at);
        let Some(connection) = self.connections.get_mut(at).filter(|connection| !connection.link.is_over())
        else {
            return;
        };
        let (due, worked) = connection.link.broke(now, why);
        if worked {
            let rank = self.peers.rank(index);
            tracing::warn!(?rank, connection = of_peer, %why, "a queue pair has failed; it is set up again");
        }
        self.fabric.close(at);
        if why == Fault::RemoteAccess
            && let Some(peer) = self.peers.get_mut(index)
        {
            // The peer's key may be invalid by now: its fragments go to the slots instead.
            peer.windows.clear();
        }
        self.alarm.set(due);
    }

    /// Keeps a refused fragment until it is sent again.
    pub(super) fn keep(&mut self, now: Instant, at: usize, fragment: super::fragments::Returned) {
        self.take_in(at, fragment.slot, fragment.zero_copy);
        let Some(bytes) = self.fabric.outgoing(at, fragment.slot).get(..fragment.len as usize) else {
            // It was longer than its slot.
            return self.broken(now, at, Fault::Protocol);
        };
        let bytes = bytes.into();
        let (due, refusals) = match fragment.why {
            RefusalReason::Damaged => (now, fragment.refusals),
            // Each retry waits longer: a peer that goes on refusing is not sent to all the time.
            RefusalReason::NotReady => {
                let wait = NOT_READY.saturating_mul(1 << fragment.refusals.min(30));
                (now + wait, fragment.refusals.saturating_add(1))
            }
        };
        if let Some(peer) = self.peers.get_mut(self.connections.split(at).0) {
            peer.retries.insert(due, bytes, refusals);
        }
        self.alarm.set(due);
    }

    /// Offers queue pairs, gives up peers whose connections are down for too long, and sends refused fragments again.
    pub(super) fn poll_timers(&mut self, now: Instant) {
        for index in self.peers.indices() {
            if self.peers.is_lost(index) {
                continue;
            }
            let (Some(rank), Some(peer)) = (self.peers.rank(index), self.peers.get_mut(index)) else {
                continue;
            };
            if !peer.greeted {
                if self.control.is_connected(rank) {
                    peer.greeted = true;
                } else if now >= self.ready_until {
                    self.lose(index, Fault::RetryExceeded);
                    continue;
                } else {
                    self.alarm.set(now + PAUSE);
                    continue;
                }
            }
            if let Err(why) =
                self.connections.of_peer(index).try_for_each(|at| self.check_connection(now, at))
            {
                self.lose(index, why);
            }
            self.retry(now, index);
        }
    }

    fn check_connection(&mut self, now: Instant, at: usize) -> Result<(), Fault> {
        let Some(connection) = self.connections.get_mut(at) else { return Ok(()) };
        connection.link.settle(connection.sender.in_flight(), connection.sender.acked());
        if let Some(again) = connection.link.check(now, self.settings.dead_after)? {
            self.alarm.set(again);
        }
        match connection.link.state() {
            LinkState::Down(Some(due)) if due > now => self.alarm.set(due),
            LinkState::Down(_) => self.offer(at)?,
            _ => {}
        }
        Ok(())
    }

    /// A peer cannot be reached any more.
    pub(super) fn lose(&mut self, index: usize, why: Fault) {
        let Some(peer) = self.peers.lose(index, Loss::Verbs(why)) else { return };
        peer.retries.clear();
        self.end_connections(index);
    }

    /// Ends all queue pairs to a peer.
    pub(super) fn end_connections(&mut self, index: usize) {
        if let Some(rank) = self.peers.rank(index) {
            self.control.forget(rank);
        }
        self.forget_device(Some(index));
        for at in self.connections.of_peer(index) {
            self.fabric.close(at);
            if let Some(connection) = self.connections.get_mut(at) {
                connection.link.end();
                connection.sender.abandon();
            }
        }
    }
}

#[cfg(test)]
mod tests;
