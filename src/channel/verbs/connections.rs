//! The connections to all peers, and which of them have acknowledgements to send.

use std::ops::Range;

use super::fabric::Fabric;
use super::fragments::{FragmentState, Receiver, Sender};
use super::link::Link;
use super::message::Notification;

/// A connection to a peer: its current queue pair and both directions' state.
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Whether it is in [`Connections::pending_reports`].
    report_pending: bool,
}

/// The connections of all peers, one peer's behind the other's.
pub(super) struct Connections {
    all: Vec<Connection>,
    per_peer: usize,
    /// Connections that may have acknowledgements or refusals to send, each once.
    pending_reports: Vec<usize>,
    /// A peer has requested an acknowledgement.
    asked: bool,
}

impl Connections {
    /// So many connections to each of so many peers.
    pub(super) fn new(peers: usize, per_peer: usize, window: u32) -> Self {
        let connection = |_| Connection {
            link: Link::new(),
            sender: Sender::new(window),
            receiver: Receiver::new(window),
            report_pending: false,
        };
        let count = peers * per_peer;
        Self {
            all: (0..count).map(connection).collect(),
            per_peer,
            pending_reports: Vec::with_capacity(count),
            asked: false,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Connection> {
        self.all.get_mut(at)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Connection> {
        self.all.iter()
    }

    /// Connections of each peer.
    pub(super) fn per_peer(&self) -> usize {
        self.per_peer
    }

    /// The connections of a peer.
    #[inline]
    pub(super) fn of_peer(&self, index: usize) -> Range<usize> {
        index * self.per_peer..(index + 1) * self.per_peer
    }

    /// The peer of a connection, and the connection's number among that peer's.
    #[inline]
    pub(super) fn split(&self, at: usize) -> (usize, usize) {
        (at / self.per_peer, at % self.per_peer)
    }

    /// The connection of a peer that takes the next fragment: the one with the fewest out, which leaves so many slots free.
    #[inline]
    pub(super) fn pick(&self, index: usize, spare: u64, fabric: &impl Fabric) -> Option<usize> {
        let range = self.of_peer(index);
        let connections = self.all.get(range.clone())?.iter().zip(range);
        let usable = connections.filter(|(connection, at)| {
            connection.link.is_up() && connection.sender.has_slots(1 + spare) && fabric.has_room(*at, 1)
        });
        usable.min_by_key(|(connection, _)| connection.sender.in_flight()).map(|(_, at)| at)
    }

    /// The peer requests an acknowledgement of this connection's next fragment.
    #[inline]
    pub(super) fn ask(&mut self, at: usize) {
        if let Some(connection) = self.all.get_mut(at) {
            connection.receiver.ask();
            self.asked = true;
        }
    }

    /// Whether a peer has requested an acknowledgement since the last call.
    #[inline]
    pub(super) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// The next fragment of a connection has come.
    #[inline]
    pub(super) fn came(&mut self, at: usize, state: FragmentState) {
        if let Some(connection) = self.all.get_mut(at) {
            connection.receiver.came(state);
            self.note(at);
        }
    }

    /// Sets the state of a fragment received earlier on a connection.
    pub(super) fn settle(&mut self, at: usize, number: u64, state: FragmentState) {
        if let Some(connection) = self.all.get_mut(at) {
            connection.receiver.settle(number, state);
            self.asked |= connection.receiver.is_asked();
            self.note(at);
        }
    }

    /// Marks a connection as having acknowledgements or refusals to send.
    #[inline]
    fn note(&mut self, at: usize) {
        if let Some(connection) = self.all.get_mut(at)
            && !std::mem::replace(&mut connection.report_pending, true)
        {
            self.pending_reports.push(at);
        }
    }

    /// Sends the acknowledgements and refusals that are due. If `idle`, all that are pending are due.
    pub(super) fn report(&mut self, fabric: &mut impl Fabric, idle: bool) {
        let Self { all, pending_reports, .. } = self;
        pending_reports.retain(|&at| {
            let Some(connection) = all.get_mut(at) else { return false };
            if connection.link.is_up() {
                while let Some(notification) = connection.receiver.refusal()
                    && fabric.has_room(at, 1)
                {
                    fabric.send_immediate(at, notification.encode());
                    connection.receiver.refusal_said();
                }
                if connection.receiver.due(idle) && fabric.has_room(at, 1) {
                    fabric
                        .send_immediate(at, Notification::Ack(connection.receiver.report() as u32).encode());
                }
            }
            connection.report_pending = !connection.link.is_over() && connection.receiver.due(true);
            connection.report_pending
        });
    }
}
