//! The messages of a connection for control beside the executor's: those of the channel's owner, heartbeats, and the
//! farewell.

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;

use super::connection::{self, Connection, MAX_SIDE};
use super::streams::Streams;
use super::{CONTROL, StreamChannel};
use crate::channel::loss::Loss;

impl<S: Streams> StreamChannel<S> {
    /// Sends a message of up to [`MAX_SIDE`] bytes to the owner of the peer's channel: in order, and only to an
    /// authenticated peer. False if there is no such peer (any more), too many wait, or it is too long.
    pub fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool {
        let crc = self.settings.crc;
        let Some(index) = self.meet(to) else { return false };
        let Some(peer) = self.peers.get_mut(index) else { return false };
        bytes.len() <= MAX_SIDE && peer.outbox.post_side(|| connection::side_frame(bytes, crc))
    }

    /// The next received side message, and its sender. To be called until there is none after every
    /// [`receive`](Self::receive): a peer is not read while 64 of its messages wait.
    pub fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.peers.iter_mut().find_map(|(rank, peer)| Some((rank, peer.backlog.take_side()?)))
    }

    /// Sends heartbeats, and looks for silent peers: a kernel acknowledges even for a stopped process.
    #[cold]
    pub(super) fn look_after(&mut self, now: Instant) {
        // After a pause of our own (this process was stopped, say) the others get their full time again.
        let paused = self.heartbeat.send(now);
        let sign = connection::sign(false, self.settings.crc);
        let mut silent = vec![];
        for (index, peer) in self.peers.all_present_mut() {
            let is_up = peer.connections.get(CONTROL).is_some_and(Connection::is_up);
            if is_up {
                peer.outbox.beat(sign);
            }
            let silence = peer.standing.silence(now);
            // Until it is up, the time to connect counts; a connection that is left unread may hold anything.
            if !is_up || paused || peer.backlog.is_unread(CONTROL) {
                peer.standing.on_heard(now);
            } else if silence > self.settings.dead_after {
                silent.push((index, Loss::Silent { remote: peer.remote, after: silence }));
            }
        }
        for (index, why) in silent {
            self.lose(now, index, why);
        }
    }
}
