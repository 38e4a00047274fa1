//! The provider's connections, and the role of each.

use std::collections::HashMap;

use shouter_netstack::time::Instant;

use super::streams::Streams;

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// Accepted; the peer has not authenticated itself yet.
    Unauthenticated,
    /// Opened by this side to try the way to a peer.
    Trial,
    /// One of a peer's connections.
    Peer { peer: usize, connection: usize },
}

/// The provider, and the roles of its open connections. A connection without a role was let go of.
pub(super) struct Live<S: Streams> {
    streams: S,
    roles: HashMap<S::Id, ConnectionRole>,
    /// Resends of peers' connections that are closed.
    resent: u64,
}

impl<S: Streams> Live<S> {
    pub(super) fn new(streams: S) -> Self {
        Self { streams, roles: HashMap::new(), resent: 0 }
    }

    #[inline]
    pub(super) fn streams(&self) -> &S {
        &self.streams
    }

    #[inline]
    pub(super) fn streams_mut(&mut self) -> &mut S {
        &mut self.streams
    }

    /// Connections that have a role.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.roles.len()
    }

    /// The role of a connection; `None` if it was let go of.
    #[inline]
    pub(super) fn role(&self, id: S::Id) -> Option<ConnectionRole> {
        self.roles.get(&id).copied()
    }

    /// A connection is for this from now on.
    pub(super) fn assign(&mut self, id: S::Id, role: ConnectionRole) {
        self.roles.insert(id, role);
    }

    /// Closes a connection with a reset, and lets go of it.
    pub(super) fn close(&mut self, now: Instant, id: S::Id) {
        if let Some(ConnectionRole::Peer { .. }) = self.roles.remove(&id) {
            self.resent += self.streams.info(id).map_or(0, |info| info.retransmitted);
        }
        self.streams.abort(now, id);
    }

    /// Segments sent again on closed connections and on these.
    pub(super) fn resent(&self, open: impl Iterator<Item = S::Id>) -> u64 {
        let infos = open.filter_map(|id| self.streams.info(id));
        self.resent + infos.map(|info| info.retransmitted).sum::<u64>()
    }
}
