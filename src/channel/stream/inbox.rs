//! Received frames: messages go to the executor, those that come too early are kept, and what is not the executor's goes
//! its own way.

use shouter_netstack::time::Instant;
use shouter_reducer::executor::Disposition;
use shouter_reducer::header::Header;

use super::connection::{BadFrame, ConnectionState, Frame, HEAD};
use super::session::Ending;
use super::side::SIDES_KEPT;
use super::streams::Streams;
use super::{ASIDE, Aside, CONTROL, Peer, StreamChannel};
use crate::channel::Inbox;

impl<S: Streams> StreamChannel<S> {
    /// Hands on what came too early and what was left unread for it.
    pub(super) fn take_up(&mut self, now: Instant, inbox: &mut dyn Inbox) {
        for index in self.peers.indices() {
            let Some(peer) = self.peers.get_mut(index) else { return };
            if peer.aside.is_empty() && peer.unread.is_empty() {
                continue;
            }
            for _ in 0..peer.aside.len() {
                let Some(aside) = peer.aside.pop_front() else { break };
                if is_early(inbox.fragment(&aside.header, &aside.payload)) {
                    peer.aside.push_back(aside);
                } else {
                    peer.aside_bytes = peer.aside_bytes.saturating_sub(aside.payload.len() + HEAD);
                }
            }
            for connection in std::mem::take(&mut peer.unread) {
                self.read(now, index, connection, inbox);
            }
        }
    }

    /// Reads a connection to its end.
    pub(super) fn read(&mut self, now: Instant, index: usize, at: usize, inbox: &mut dyn Inbox) {
        let Some(rank) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Peer { connections, aside, aside_bytes, unread, sides_in, heard, leaving, .. } = peer;
        let Some(connection) = connections.get_mut(at) else { return };
        let Some(id) = connection.id.filter(|_| connection.state == ConnectionState::Up) else { return };
        let (strays, crc) = (&mut self.strays, self.settings.crc);
        // Control messages come through when fragments have to wait: the abort message is among them.
        let aside_limit = if at == CONTROL { 2 * ASIDE } else { ASIDE };
        let room = *aside_bytes <= aside_limit;
        let mut message = |head: &[u8], payload: &[u8]| match Header::parse(head) {
            Ok(header) if header.src == rank => {
                if is_early(inbox.fragment(&header, payload)) {
                    *aside_bytes += payload.len() + HEAD;
                    aside.push_back(Aside { header, payload: payload.into() });
                }
                *aside_bytes <= aside_limit
            }
            stray => {
                crate::channel::stray(strays, Some(rank), stray.err());
                true
            }
        };
        let mut more = room;
        let failure = loop {
            if !more || sides_in.len() >= SIDES_KEPT {
                if !unread.contains(&at) {
                    unread.push(at);
                }
                return;
            }
            match self.streams.read_chunk(now, id) {
                Ok(Some(chunk)) => {
                    *heard = now;
                    let fed = connection.frames.feed(&chunk, crc, |frame| match frame {
                        Frame::Message(head, payload) => more = message(head, payload),
                        Frame::Side(bytes) => sides_in.push_back(bytes.to_vec()),
                        Frame::Alive => {}
                        Frame::Farewell => *leaving = true,
                    });
                    match fed {
                        Ok(()) => {}
                        Err(BadFrame::Nonsense) => break Ending::Garbled,
                        Err(BadFrame::Corrupted) => break Ending::Corrupted,
                    }
                }
                Ok(None) => break Ending::Finished,
                // A failure comes as an event.
                Err(_) => return,
            }
        };
        self.connection_ended(now, index, at, failure);
    }
}

/// Whether a message has to be offered again.
fn is_early(disposition: Disposition) -> bool {
    matches!(disposition, Disposition::Refused(why) if why.is_retryable())
}
