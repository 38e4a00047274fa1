//! The first use of a peer. Until then it costs its address; then its connections are made.
//!
//! Either side may be the first. The side that uses a peer first dials the connection for control messages, and those for data when it has
//! some. The other side learns of that by an authenticated hello, and waits for the rest. Where both sides dial one connection
//! at a time, one dial gives way, and both sides agree which one: a dial whose hello is not sent gives way to any hello, and of two hellos that
//! of the higher rank is welcomed. Messages wait in the outbox meanwhile, so none depends on which dial it was.

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;

use super::backlog::Backlog;
use super::connection::{self, Connection, ConnectionState};
use super::outbox::Outbox;
use super::standing::Standing;
use super::streams::Streams;
use super::{CONTROL, Peer, StreamChannel};
use crate::channel::up::PeerAddress;

/// The leaders that a channel leads to, by rank.
#[derive(Debug)]
pub(super) struct Directory(Box<[PeerAddress]>);

impl Directory {
    pub(super) fn new(peers: &[PeerAddress]) -> Self {
        let mut all: Box<[PeerAddress]> = peers.into();
        all.sort_unstable_by_key(|peer| peer.rank);
        Self(all)
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&PeerAddress> {
        let at = self.0.binary_search_by_key(&rank, |peer| peer.rank).ok()?;
        self.0.get(at)
    }

    /// The one at a place of their order.
    pub(super) fn at(&self, at: usize) -> Option<&PeerAddress> {
        self.0.get(at)
    }
}

impl<S: Streams> StreamChannel<S> {
    /// A peer that is to be used from now on: its index, if it is one and not lost. The first time the connection for control messages is
    /// dialled.
    #[cold]
    pub(super) fn meet(&mut self, rank: Rank) -> Option<usize> {
        if let Some(index) = self.peers.index(rank) {
            return Some(index).filter(|index| !self.peers.is_lost(*index));
        }
        let index = self.introduce(self.now, rank)?;
        let peer = self.peers.get_mut(index)?;
        if let Some(connection) = peer.connections.get_mut(CONTROL) {
            connection.redial(self.now);
        }
        self.poll_peer_timers(self.now, index);
        Some(index)
    }

    /// The same for all peers: to a channel whose owner needs them from the beginning, and for what all have to hear.
    pub fn meet_all(&mut self) {
        let mut at = 0;
        while let Some(peer) = self.directory.at(at) {
            self.meet(peer.rank);
            at += 1;
        }
    }

    /// Makes the state of a peer, if it is one: its connections are dialled by the other side, or when that is asked for.
    pub(super) fn introduce(&mut self, now: Instant, rank: Rank) -> Option<usize> {
        if let Some(index) = self.peers.index(rank) {
            return Some(index);
        }
        let address = self.directory.get(rank)?;
        let connections = usize::from(self.settings.connections) + 1;
        // After the fence no payload goes out any more.
        let first = |at| {
            if self.fenced && at != CONTROL { ConnectionState::Over } else { ConnectionState::Down(None) }
        };
        let until = now + self.patience;
        let mut outbox = Outbox::default();
        if self.departed {
            outbox.announce(connection::sign(true, self.settings.crc));
        }
        let peer = Peer {
            local_ip: address.local_ip,
            remote: (address.ip, address.port).into(),
            connections: (0..connections).map(|at| Connection::new(first(at))).collect(),
            control_until: until,
            data_until: None,
            refused: None,
            is_deaf: false,
            outbox,
            backlog: Backlog::default(),
            standing: Standing::new(now),
        };
        self.alarm.set(until);
        Some(self.peers.add(rank, peer))
    }

    /// This side has data for a peer for the first time: the connections that the peer has not made yet are dialled.
    #[cold]
    pub(super) fn want_data(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.data_until = Some(self.now + self.patience);
        for connection in peer.connections.iter_mut().skip(CONTROL + 1) {
            if connection.state() == ConnectionState::Down(None) {
                connection.redial(self.now);
            }
        }
        self.poll_peer_timers(self.now, index);
    }
}
