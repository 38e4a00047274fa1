//! Received frames: messages go to the executor, those that come too early are kept, and other frames to their own
//! receivers.

use shouter_netstack::time::Instant;
use shouter_reducer::header::Header;

use super::connection::{BadFrame, Frame};
use super::session::ConnectionEnd;
use super::streams::Streams;
use super::{Peer, StreamChannel};
use crate::channel::Inbox;

impl<S: Streams> StreamChannel<S> {
    /// Hands on the messages that came too early, then reads the connections that were left unread for them.
    pub(super) fn take_up(&mut self, now: Instant, inbox: &mut dyn Inbox) {
        for index in self.peers.indices() {
            let Some(peer) = self.peers.get_mut(index) else { return };
            if peer.backlog.is_empty() {
                continue;
            }
            peer.backlog.offer_again(inbox);
            for connection in peer.backlog.take_unread() {
                self.read(now, index, connection, inbox);
            }
        }
    }

    /// Reads a connection to its end.
    pub(super) fn read(&mut self, now: Instant, index: usize, at: usize, inbox: &mut dyn Inbox) {
        let Some(rank) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Peer { connections, backlog, standing, .. } = peer;
        let Some(connection) = connections.get_mut(at).filter(|connection| connection.is_up()) else {
            return;
        };
        let Some(id) = connection.id() else { return };
        let (strays, crc) = (&mut self.strays, self.settings.crc);
        let failure = loop {
            if !backlog.has_room(at) {
                return backlog.leave_unread(at);
            }
            match self.live.streams_mut().read_chunk(now, id) {
                Ok(Some(chunk)) => {
                    standing.on_heard(now);
                    let fed = connection.feed(&chunk, crc, |frame| match frame {
                        Frame::Message(head, payload) => match Header::parse(head) {
                            Ok(header) if header.src == rank => backlog.offer(header, payload, inbox),
                            stray => crate::channel::stray(strays, Some(rank), stray.err()),
                        },
                        Frame::Side(bytes) => backlog.push_side(bytes),
                        Frame::Alive => {}
                        Frame::Farewell => standing.said_farewell(),
                    });
                    match fed {
                        Ok(()) => {}
                        Err(BadFrame::Nonsense) => break ConnectionEnd::Garbled,
                        Err(BadFrame::Corrupted) => break ConnectionEnd::Corrupted,
                    }
                }
                Ok(None) => break ConnectionEnd::Finished,
                // A failure comes as an event.
                Err(_) => return,
            }
        };
        self.connection_ended(now, index, at, failure);
    }
}
