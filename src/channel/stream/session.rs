//! The life cycle of connections: dialling, accepting, authentication and loss.

use std::time::Duration;

use shouter_netstack::tcp::{Error, Failure};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::transport::SendToken;

use super::connection::ConnectionState;
use super::handshake::{self, Answer, CHALLENGE, Claim, HELLO, Nonce, WELCOME};
use super::streams::{StreamEvent, Streams};
use super::{CONTROL, StreamChannel};
use crate::channel::Inbox;
use crate::channel::up::Loss;

/// The most connections that have not authenticated themselves, beside those that are expected. Beyond it the oldest is
/// refused.
pub(super) const MAX_UNAUTHENTICATED: usize = 64;

/// How long authentication may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// Peers have at least so long to be connected.
pub(super) const SETUP: Duration = Duration::from_secs(10);

/// How long the abort message of a peer may take after its data connections were reset.
const DOUBT: Duration = Duration::from_millis(500);

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// Accepted; the peer has not authenticated itself yet.
    Unauthenticated,
    /// One of a peer's connections.
    Peer { peer: usize, connection: usize },
}

/// An accepted connection whose peer has not authenticated itself yet.
pub(super) struct UnauthenticatedPeer<Id> {
    id: Id,
    until: Instant,
    challenge: Nonce,
    said: Vec<u8>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// The peer will send no more.
    Finished,
    /// What came makes no frames.
    Garbled,
    /// A frame's CRC is wrong.
    Corrupted,
    /// The peer belongs to the group, and has the CRC otherwise.
    CrcDiffers,
    /// TCP gave it up.
    Failed(Failure),
}

impl<S: Streams> StreamChannel<S> {
    pub(super) fn on_event(&mut self, now: Instant, event: StreamEvent<S::Id>, inbox: &mut dyn Inbox) {
        match event {
            StreamEvent::Acceptable => self.admit(now),
            StreamEvent::Readable(id) => match self.roles.get(&id) {
                Some(ConnectionRole::Unauthenticated) => self.receive_hello(now, id, inbox),
                Some(&ConnectionRole::Peer { peer, connection }) => {
                    self.receive_frames(now, peer, connection, inbox)
                }
                None => {}
            },
            // What was fenced is no longer the executor's.
            StreamEvent::Released(_, token) if !self.fenced => inbox.released(SendToken(token.0)),
            StreamEvent::Dropped(id, token) if self.roles.contains_key(&id) => {
                inbox.released(SendToken(token.0))
            }
            StreamEvent::Failed(id, failure) => self.on_ended(now, id, Ending::Failed(failure)),
            StreamEvent::Closed(id) => self.on_ended(now, id, Ending::Finished),
            StreamEvent::Released(..) | StreamEvent::Dropped(..) => {}
        }
    }

    /// Takes connections in, and challenges them.
    fn admit(&mut self, now: Instant) {
        while let Some(id) = self.streams.accept(now) {
            // All expected peers may connect at once.
            if self.unauthenticated.len() >= MAX_UNAUTHENTICATED + self.awaited
                && let Some(oldest) = self.unauthenticated.pop_front()
            {
                self.turn_away(now, oldest.id, "there are too many");
            }
            let challenge = self.secrets.nonce();
            let until = now + PATIENCE;
            // There is room for the first few bytes of a connection, or it is of no use.
            match self.streams.write(now, id, &handshake::challenge(&challenge)) {
                Ok(CHALLENGE) => {
                    self.roles.insert(id, ConnectionRole::Unauthenticated);
                    self.unauthenticated.push_back(UnauthenticatedPeer {
                        id,
                        until,
                        challenge,
                        said: vec![],
                    });
                    self.alarm.set(until);
                }
                _ => self.turn_away(now, id, "it took no challenge"),
            }
        }
    }

    /// Refuses a connection with a reset.
    fn turn_away(&mut self, now: Instant, id: S::Id, why: &str) {
        self.roles.remove(&id);
        if self.refused == 0 {
            let remote = self.streams.info(id).map(|info| info.remote);
            tracing::warn!(
                ?remote,
                why,
                "a connection that is none of the group's was refused; more are only counted"
            );
        }
        self.refused += 1;
        self.streams.abort(now, id);
    }

    /// Reads an unauthenticated peer's hello; a peer's connection is used from then on.
    fn receive_hello(&mut self, now: Instant, id: S::Id, inbox: &mut dyn Inbox) {
        let Some(at) = self.unauthenticated.iter().position(|candidate| candidate.id == id) else { return };
        let Some(candidate) = self.unauthenticated.get_mut(at) else { return };
        let heard = gather(now, &mut self.streams, id, &mut candidate.said, HELLO);
        if matches!(heard, Ok(false)) {
            return;
        }
        let Some(mut candidate) = self.unauthenticated.remove(at) else { return };
        if heard.is_err() {
            return self.turn_away(now, id, "it ended before it said hello");
        }
        let hello = candidate.said.first_chunk::<HELLO>();
        let claim = hello.and_then(|hello| self.secrets.check_hello(&candidate.challenge, hello));
        let Some(claim) = claim.filter(|claim| claim.to == self.rank && claim.from > self.rank) else {
            return self.turn_away(now, id, "its proof is wrong");
        };
        let Some(index) = self.peers.index(claim.from) else {
            return self.turn_away(now, id, "it is no peer of this rank");
        };
        let at = claim.connection as usize;
        if claim.crc != self.settings.crc {
            let answer = self.secrets.answer(Answer::CrcDiffers, &candidate.challenge, &claim);
            let _ = self.streams.write(now, id, &answer);
            // A reset could discard the answer, so the connection stays until its hello times out.
            candidate.challenge = self.secrets.nonce();
            candidate.said.clear();
            self.unauthenticated.push_back(candidate);
            return self.lose(now, index, crc_differs(claim.from, self.settings.crc));
        }
        let welcome = self.secrets.answer(Answer::Welcome, &candidate.challenge, &claim);
        let is_lost = self.peers.is_lost(index);
        let peer = self.peers.get_mut(index).filter(|_| !is_lost);
        match peer.and_then(|peer| peer.connections.get_mut(at)) {
            Some(connection) if matches!(connection.state, ConnectionState::Down(_)) => {
                connection.state = ConnectionState::Up;
                connection.id = Some(id);
                self.awaited = self.awaited.saturating_sub(1);
                if self.awaited == 0 {
                    self.streams.stop_listening(now);
                }
                connection.write(now, &mut self.streams, &welcome);
                self.roles.insert(id, ConnectionRole::Peer { peer: index, connection: at });
                self.read(now, index, at, inbox);
            }
            _ => self.turn_away(now, id, "there was such a connection already"),
        }
    }

    /// Reads a peer's connection: the rest of its handshake, then its frames.
    fn receive_frames(&mut self, now: Instant, index: usize, at: usize, inbox: &mut dyn Inbox) {
        let Some(to) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let (from, crc) = (self.rank, self.settings.crc);
        let Some(connection) = peer.connections.get_mut(at) else { return };
        let Some(id) = connection.id else { return };
        let streams = &mut self.streams;
        let ended = loop {
            let total = match connection.state {
                ConnectionState::Dialled => CHALLENGE,
                ConnectionState::Greeted(..) => WELCOME,
                ConnectionState::Up => return self.read(now, index, at, inbox),
                ConnectionState::Down(_) | ConnectionState::Over => return,
            };
            match gather(now, streams, id, &mut connection.greeting, total) {
                Ok(true) => {}
                Ok(false) => return,
                Err(ending) => break ending,
            }
            let said = std::mem::take(&mut connection.greeting);
            if let ConnectionState::Greeted(challenge, claim) = connection.state {
                match self.secrets.check_answer(&challenge, &claim, &said) {
                    Some(Answer::Welcome) => connection.state = ConnectionState::Up,
                    Some(Answer::CrcDiffers) => break Ending::CrcDiffers,
                    None => break Ending::Garbled,
                }
            } else {
                let Some(challenge) = handshake::check_challenge(&said) else { break Ending::Garbled };
                let claim = Claim { from, to, connection: at as u32, crc, nonce: self.secrets.nonce() };
                connection.write(now, streams, &self.secrets.hello(&challenge, &claim));
                connection.state = ConnectionState::Greeted(challenge, claim);
            }
        };
        self.connection_ended(now, index, at, ended);
    }

    /// The provider has reported the end of a connection.
    fn on_ended(&mut self, now: Instant, id: S::Id, ending: Ending) {
        match self.roles.get(&id) {
            Some(&ConnectionRole::Peer { peer, connection }) => {
                self.connection_ended(now, peer, connection, ending)
            }
            Some(ConnectionRole::Unauthenticated) => {
                self.unauthenticated.retain(|candidate| candidate.id != id);
                self.turn_away(now, id, "it ended before it said hello");
            }
            // It was let go of before.
            None => self.streams.abort(now, id),
        }
    }

    /// A peer's connection is over: it is dialled again if it never worked, else the peer may be lost.
    pub(super) fn connection_ended(&mut self, now: Instant, index: usize, at: usize, ending: Ending) {
        let Some(rank) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(connection) = peer.connections.get_mut(at) else { return };
        let begun = matches!(connection.state, ConnectionState::Dialled | ConnectionState::Greeted(..));
        let again = ConnectionState::Down(Some(now + PAUSE));
        if let Some(id) = connection.end(if begun { again } else { ConnectionState::Over }) {
            self.roles.remove(&id);
            self.resent_before += self.streams.info(id).map_or(0, |info| info.retransmitted);
            self.streams.abort(now, id);
        }
        let remote = peer.remote;
        if begun && !matches!(ending, Ending::CrcDiffers) {
            return self.alarm.set(now + PAUSE);
        }
        let why = match ending {
            Ending::Finished => Loss::Tcp(Failure::Reset { remote }),
            Ending::Failed(failure) => Loss::Tcp(failure),
            Ending::Garbled => Loss::Garbled { remote },
            Ending::Corrupted => Loss::Corrupted { remote },
            Ending::CrcDiffers => crc_differs(rank, self.settings.crc),
        };
        match why {
            // The peer has announced a graceful close; it counts as lost only if it is still needed later.
            Loss::Tcp(failure) if peer.leaving => {
                let until = now + self.settings.dead_after;
                peer.suspect.get_or_insert((until, failure));
                self.alarm.set(until);
            }
            Loss::Tcp(failure @ Failure::Reset { .. }) if at != CONTROL => {
                if !self.fenced {
                    peer.suspect.get_or_insert((now + DOUBT, failure));
                    self.alarm.set(now + DOUBT);
                }
            }
            why => self.lose(now, index, why),
        }
    }

    /// A peer cannot be reached any more.
    pub(super) fn lose(&mut self, now: Instant, index: usize, why: Loss) {
        let Some(peer) = self.peers.lose(index, why) else { return };
        peer.suspect = None;
        peer.queue.clear();
        peer.queued = 0;
        peer.control.clear();
        peer.sides_out.clear();
        for connection in &mut peer.connections {
            if let Some(id) = connection.end(ConnectionState::Over) {
                self.roles.remove(&id);
                self.resent_before += self.streams.info(id).map_or(0, |info| info.retransmitted);
                self.streams.abort(now, id);
            }
        }
    }

    /// Dials due connections, and ends those whose handshake or connection attempt has timed out.
    pub(super) fn poll_timers(&mut self, now: Instant) {
        while let Some(candidate) = self.unauthenticated.front() {
            let (id, until) = (candidate.id, candidate.until);
            if until > now {
                self.alarm.set(until);
                break;
            }
            self.unauthenticated.pop_front();
            self.turn_away(now, id, "it has not said hello in time");
        }
        for index in self.peers.indices() {
            self.poll_peer_timers(now, index);
        }
    }

    fn poll_peer_timers(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get(index).filter(|_| !self.peers.is_lost(index)) else { return };
        if let Some((at, failure)) = peer.suspect {
            if at <= now {
                return self.lose(now, index, Loss::Tcp(failure));
            }
            self.alarm.set(at);
        }
        let Some(peer) = self.peers.get(index) else { return };
        if peer
            .connections
            .iter()
            .all(|connection| matches!(connection.state, ConnectionState::Up | ConnectionState::Over))
        {
            return;
        }
        if now >= self.ready_until {
            let remote = peer.remote;
            let waited = self.settings.dead_after.max(SETUP);
            return self.lose(now, index, Loss::Unconnected { remote, waited });
        }
        self.alarm.set(self.ready_until);
        let mut wake = None;
        if let Some(peer) = self.peers.get_mut(index) {
            let (local, remote) = (peer.local_ip.into(), peer.remote);
            for (at, connection) in peer.connections.iter_mut().enumerate() {
                let ConnectionState::Down(Some(due)) = connection.state else { continue };
                if due > now {
                    wake = wake.into_iter().chain([due]).min();
                    continue;
                }
                match self.streams.connect(now, local, remote) {
                    Ok(id) => {
                        connection.id = Some(id);
                        connection.state = ConnectionState::Dialled;
                        self.roles.insert(id, ConnectionRole::Peer { peer: index, connection: at });
                    }
                    Err(why) => {
                        tracing::debug!(%remote, %why, "a connection will be tried again");
                        connection.state = ConnectionState::Down(Some(now + PAUSE));
                        wake = wake.into_iter().chain([now + PAUSE]).min();
                    }
                }
            }
        }
        if let Some(at) = wake {
            self.alarm.set(at);
        }
    }
}

/// The peer's frames carry a CRC and ours none, or the other way round.
fn crc_differs(rank: Rank, ours: bool) -> Loss {
    Loss::CrcDiffers { rank, ours: if ours { "on" } else { "off" } }
}

/// Reads until `into` has `total` bytes, not more; false if they are not all there yet.
fn gather<S: Streams>(
    now: Instant,
    streams: &mut S,
    id: S::Id,
    into: &mut Vec<u8>,
    total: usize,
) -> Result<bool, Ending> {
    let mut buffer = [0; HELLO];
    loop {
        let missing = total.saturating_sub(into.len()).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..missing).filter(|buffer| !buffer.is_empty()) else {
            return Ok(true);
        };
        match streams.read(now, id, buffer) {
            Ok(0) => return Err(Ending::Finished),
            Ok(count) => into.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(Error::Failed(failure)) => return Err(Ending::Failed(failure)),
            Err(_) => return Ok(false),
        }
    }
}
