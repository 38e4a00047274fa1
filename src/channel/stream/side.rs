//! What a connection for control messages carries beside the executor's: messages of the channel's owner, heartbeats,
//! and the farewell.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;

use super::connection::{self, ConnectionState, MAX_SIDE};
use super::streams::Streams;
use super::{CONTROL, StreamChannel};
use crate::channel::up::Loss;

/// Side messages that may wait to be sent to a peer.
const SIDES_QUEUED: usize = 64;

/// Side messages of a peer that may wait to be taken: its connections are not read while there are as many.
pub(super) const SIDES_KEPT: usize = 64;

impl<S: Streams> StreamChannel<S> {
    /// Sends a message of up to [`MAX_SIDE`] bytes to the owner of the peer's channel: in order, and only to an
    /// authenticated peer. False if there is no such peer (any more), too many wait, or it is too long.
    pub fn send_side(&mut self, to: Rank, bytes: &[u8]) -> bool {
        let crc = self.settings.crc;
        let Some(index) = self.peers.present(to) else { return false };
        let Some(peer) = self.peers.get_mut(index) else { return false };
        let fits = bytes.len() <= MAX_SIDE && peer.sides_out.len() < SIDES_QUEUED;
        if fits {
            peer.sides_out.push_back(connection::side_frame(bytes, crc));
        }
        fits
    }

    /// The next side message that has come, and from whom. To be called until there is none after every
    /// [`receive`](Self::receive): a peer is not read while 64 of its messages wait.
    pub fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.peers.iter_mut().find_map(|(rank, peer)| Some((rank, peer.sides_in.pop_front()?)))
    }

    /// Between two heartbeats.
    fn heartbeat_interval(&self) -> Duration {
        (self.settings.dead_after / 8).clamp(Duration::from_millis(1), Duration::from_secs(1))
    }

    /// Sends heartbeats, and looks for silent peers: a kernel acknowledges even for a stopped process.
    #[cold]
    pub(super) fn look_after(&mut self, now: Instant) {
        let due = self.heartbeat_at.unwrap_or(now);
        // After a pause of our own (this process was stopped, say) the others get their full time again.
        let paused = now.saturating_since(due) > self.settings.dead_after / 2;
        self.heartbeat_at = Some(now + self.heartbeat_interval());
        let sign = connection::sign(false, self.settings.crc);
        let mut silent = vec![];
        for (index, peer) in self.peers.all_present_mut() {
            let is_up = peer
                .connections
                .get(CONTROL)
                .is_some_and(|connection| connection.state == ConnectionState::Up);
            if is_up && peer.control.is_empty() {
                peer.control.push_back(sign);
            }
            // Until it is up, the time to connect counts; a connection that is left unread may hold anything.
            if !is_up || paused || peer.unread.contains(&CONTROL) {
                peer.heard = now;
            } else if now.saturating_since(peer.heard) > self.settings.dead_after {
                silent.push((index, Loss::Silent { remote: peer.remote, after: now - peer.heard }));
            }
        }
        for (index, why) in silent {
            self.lose(now, index, why);
        }
    }
}
