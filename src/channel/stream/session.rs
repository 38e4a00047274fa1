//! The life cycle of connections: dialling, accepting, authentication and loss.

use std::time::Duration;

use shouter_netstack::tcp::{Error, Failure};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::transport::SendToken;

use super::connection::{Connection, ConnectionState};
use super::handshake::{self, Answer, CHALLENGE, Claim, HELLO, WELCOME};
use super::live::ConnectionRole;
use super::probe::TRIAL;
use super::streams::{StreamEvent, Streams};
use super::{CONTROL, StreamChannel};
use crate::channel::Inbox;
use crate::channel::loss::Loss;

/// The pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// Peers have at least so long to be connected while the job comes together...
pub(super) const SETUP: Duration = Duration::from_secs(10);

/// ...and so long afterwards: the first segments of a connection may be lost.
pub(super) const LEAST: Duration = Duration::from_secs(2);

/// How long the abort message of a peer may take after its data connections were reset.
const DOUBT: Duration = Duration::from_millis(500);

/// How a connection ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionEnd {
    /// The peer will send no more.
    Finished,
    /// The received bytes make no frames.
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
            StreamEvent::Readable(id) => match self.live.role(id) {
                Some(ConnectionRole::Unauthenticated) => self.receive_hello(now, id, inbox),
                Some(ConnectionRole::Peer { peer, connection }) => {
                    self.receive_frames(now, peer, connection, inbox)
                }
                Some(ConnectionRole::Trial) => self.on_trial(now, id),
                None => {}
            },
            // After the fence payloads are no longer the executor's.
            StreamEvent::Released(_, token) if !self.fenced => inbox.released(SendToken(token.0)),
            StreamEvent::Dropped(id, token) if self.live.role(id).is_some() => {
                inbox.released(SendToken(token.0))
            }
            StreamEvent::Failed(id, failure) => self.on_ended(now, id, ConnectionEnd::Failed(failure)),
            StreamEvent::Closed(id) => self.on_ended(now, id, ConnectionEnd::Finished),
            StreamEvent::Released(..) | StreamEvent::Dropped(..) => {}
        }
    }

    /// Takes connections in, as many as one poll may, and challenges them.
    pub(super) fn admit(&mut self, now: Instant) {
        while self.admission.takes_one_more() {
            let Some(id) = self.live.streams_mut().accept(now) else { return };
            // Several, once the job has come together.
            while let Some(oldest) = self.admission.crowded_out() {
                self.turn_away(now, oldest, "there are too many");
            }
            let challenge = self.secrets.nonce();
            // There is room for the first few bytes of a connection, or it is of no use.
            match self.live.streams_mut().write(now, id, &handshake::challenge(&challenge)) {
                Ok(CHALLENGE) => {
                    self.live.assign(id, ConnectionRole::Unauthenticated);
                    self.alarm.set(self.admission.admit(now, id, challenge));
                }
                _ => self.turn_away(now, id, "it took no challenge"),
            }
        }
    }

    /// Refuses a connection with a reset.
    fn turn_away(&mut self, now: Instant, id: S::Id, why: &str) {
        if self.admission.refuse(id) {
            let remote = self.live.streams().info(id).map(|info| info.remote);
            tracing::warn!(
                ?remote,
                why,
                "a connection that is none of the group's was refused; more are only counted"
            );
        }
        self.live.close(now, id);
    }

    /// Closes a connection of a member of the group that is not used: there is another one, or the peer is lost.
    fn give_way(&mut self, now: Instant, id: S::Id) {
        self.admission.forget(id);
        self.live.close(now, id);
    }

    /// A candidate has closed its connection. A dial that gives way does so before it says anything, so only others are strangers.
    fn ended_early(&mut self, now: Instant, id: S::Id) {
        match self.admission.get_mut(id).is_some_and(|candidate| candidate.said.is_empty()) {
            true => self.give_way(now, id),
            false => self.turn_away(now, id, "it ended before it said hello"),
        }
    }

    /// Answers a connection that is not used for more. A reset could discard the answer, so it stays until the other side closes it, or as a
    /// candidate that says nothing.
    fn answer(&mut self, now: Instant, id: S::Id, answer: &[u8; WELCOME]) {
        let challenge = self.secrets.nonce();
        if let Some(candidate) = self.admission.get_mut(id) {
            candidate.challenge = challenge;
            candidate.said.clear();
        }
        let _ = self.live.streams_mut().write(now, id, answer);
    }

    /// One of the connections with peers exists. When all do, no other is accepted.
    fn connection_made(&mut self, now: Instant) {
        if self.admission.made() {
            self.live.streams_mut().stop_listening(now);
        }
    }

    /// Reads an unauthenticated peer's hello; a peer's connection is used from then on.
    fn receive_hello(&mut self, now: Instant, id: S::Id, inbox: &mut dyn Inbox) {
        let Some(candidate) = self.admission.get_mut(id) else { return };
        match gather(now, self.live.streams_mut(), id, &mut candidate.said, HELLO) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return self.ended_early(now, id),
        }
        let challenge = candidate.challenge;
        let hello = candidate.said.first_chunk::<HELLO>();
        let claim = hello.and_then(|hello| self.secrets.check_hello(&challenge, hello));
        let Some(claim) = claim.filter(|claim| claim.to == self.rank) else {
            return self.turn_away(now, id, "its proof is wrong");
        };
        if self.directory.get(claim.from).is_none() {
            return self.turn_away(now, id, "it is no peer of this rank");
        }
        if claim.connection == TRIAL && claim.crc == self.settings.crc {
            self.trials.heard(claim.from);
            let welcome = self.secrets.answer(Answer::Welcome, &challenge, &claim);
            return self.answer(now, id, &welcome);
        }
        let Some(index) = self.introduce(now, claim.from) else { return self.give_way(now, id) };
        let at = claim.connection as usize;
        if claim.crc != self.settings.crc {
            let answer = self.secrets.answer(Answer::CrcDiffers, &challenge, &claim);
            self.answer(now, id, &answer);
            return self.lose(now, index, crc_differs(claim.from, self.settings.crc));
        }
        let is_lost = self.peers.is_lost(index);
        let peer = self.peers.get_mut(index).filter(|_| !is_lost);
        let connection = peer.and_then(|peer| peer.connections.get_mut(at));
        let gives_way = |state| match state {
            ConnectionState::Down(_) | ConnectionState::Dialled => true,
            // Both have said hello: the higher rank's is welcomed.
            ConnectionState::Greeted(..) => claim.from > self.rank,
            ConnectionState::Up | ConnectionState::Over => false,
        };
        let Some(connection) = connection.filter(|connection| gives_way(connection.state())) else {
            return self.give_way(now, id);
        };
        #[cfg(test)]
        match connection.state() {
            ConnectionState::Dialled => self.ties[0] += 1,
            ConnectionState::Greeted(..) => self.ties[1] += 1,
            _ => {}
        }
        if let Some(own) = connection.end(ConnectionState::Down(None)) {
            self.live.close(now, own);
        }
        connection.accepted(id);
        self.admission.forget(id);
        let welcome = self.secrets.answer(Answer::Welcome, &challenge, &claim);
        connection.write(now, self.live.streams_mut(), &welcome);
        self.live.assign(id, ConnectionRole::Peer { peer: index, connection: at });
        self.connection_made(now);
        self.read(now, index, at, inbox);
    }

    /// Reads a peer's connection: the rest of its handshake, then its frames.
    fn receive_frames(&mut self, now: Instant, index: usize, at: usize, inbox: &mut dyn Inbox) {
        let Some(to) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let (from, crc) = (self.rank, self.settings.crc);
        let Some(connection) = peer.connections.get_mut(at) else { return };
        let Some(id) = connection.id() else { return };
        let streams = self.live.streams_mut();
        let ended = loop {
            let total = match connection.state() {
                ConnectionState::Dialled => CHALLENGE,
                ConnectionState::Greeted(..) => WELCOME,
                ConnectionState::Up => return self.read(now, index, at, inbox),
                ConnectionState::Down(_) | ConnectionState::Over => return,
            };
            match gather(now, streams, id, connection.greeting(), total) {
                Ok(true) => {}
                Ok(false) => return,
                Err(ending) => break ending,
            }
            let said = std::mem::take(connection.greeting());
            if let ConnectionState::Greeted(challenge, claim) = connection.state() {
                match self.secrets.check_answer(&challenge, &claim, &said) {
                    Some(Answer::Welcome) => {
                        connection.welcomed();
                        self.connection_made(now);
                        return self.read(now, index, at, inbox);
                    }
                    Some(Answer::CrcDiffers) => break ConnectionEnd::CrcDiffers,
                    None => break ConnectionEnd::Garbled,
                }
            } else {
                let Some(challenge) = handshake::check_challenge(&said) else { break ConnectionEnd::Garbled };
                let claim = Claim { from, to, connection: at as u32, crc, nonce: self.secrets.nonce() };
                connection.write(now, streams, &self.secrets.hello(&challenge, &claim));
                connection.greeted(challenge, claim);
            }
        };
        self.connection_ended(now, index, at, ended);
    }

    /// The provider has reported the end of a connection.
    fn on_ended(&mut self, now: Instant, id: S::Id, ending: ConnectionEnd) {
        match self.live.role(id) {
            Some(ConnectionRole::Peer { peer, connection }) => {
                self.connection_ended(now, peer, connection, ending)
            }
            Some(ConnectionRole::Unauthenticated) => self.ended_early(now, id),
            Some(ConnectionRole::Trial) => self.trial_ended(now, id),
            // It was let go of before.
            None => self.live.close(now, id),
        }
    }

    /// A peer's connection is over: it is dialled again if it never worked, else the peer may be lost.
    pub(super) fn connection_ended(&mut self, now: Instant, index: usize, at: usize, ending: ConnectionEnd) {
        let Some(rank) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(connection) = peer.connections.get_mut(at) else { return };
        let begun = matches!(connection.state(), ConnectionState::Dialled | ConnectionState::Greeted(..));
        let again = ConnectionState::Down(Some(now + PAUSE));
        if let Some(id) = connection.end(if begun { again } else { ConnectionState::Over }) {
            self.live.close(now, id);
        }
        peer.is_deaf = matches!(ending, ConnectionEnd::Failed(Failure::Refused { .. }));
        let remote = peer.remote;
        if begun && !matches!(ending, ConnectionEnd::CrcDiffers) {
            return self.alarm.set(now + PAUSE);
        }
        let why = match ending {
            ConnectionEnd::Finished => Loss::Tcp(Failure::Reset { remote }),
            ConnectionEnd::Failed(failure) => Loss::Tcp(failure),
            ConnectionEnd::Garbled => Loss::Garbled { remote },
            ConnectionEnd::Corrupted => Loss::Corrupted { remote },
            ConnectionEnd::CrcDiffers => crc_differs(rank, self.settings.crc),
        };
        match why {
            // The peer has announced a graceful close; it counts as lost only if it is still needed later.
            Loss::Tcp(failure) if peer.standing.is_leaving() => {
                let until = now + self.settings.dead_after;
                peer.standing.doubt(until, failure);
                self.alarm.set(until);
            }
            Loss::Tcp(failure @ Failure::Reset { .. }) if at != CONTROL => {
                if !self.fenced {
                    peer.standing.doubt(now + DOUBT, failure);
                    self.alarm.set(now + DOUBT);
                }
            }
            why => self.lose(now, index, why),
        }
    }

    /// A peer cannot be reached any more.
    pub(super) fn lose(&mut self, now: Instant, index: usize, why: Loss) {
        let Some(peer) = self.peers.lose(index, why) else { return };
        peer.standing.settle();
        peer.outbox.clear();
        self.close_from(now, index, CONTROL);
    }

    /// Dials due connections, and ends those whose handshake or connection attempt has timed out.
    pub(super) fn poll_timers(&mut self, now: Instant) {
        while let Some((id, until)) = self.admission.next_due() {
            if until > now {
                self.alarm.set(until);
                break;
            }
            self.turn_away(now, id, "it has not said hello in time");
        }
        for index in self.peers.indices() {
            self.poll_peer_timers(now, index);
        }
    }

    /// The same for one peer.
    pub(super) fn poll_peer_timers(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get(index).filter(|_| !self.peers.is_lost(index)) else { return };
        if let Some((at, failure)) = peer.standing.doubted() {
            if at <= now {
                return self.lose(now, index, Loss::Tcp(failure));
            }
            self.alarm.set(at);
        }
        let Some(peer) = self.peers.get(index) else { return };
        let is_pending = |connection: &Connection<S::Id>| {
            !matches!(connection.state(), ConnectionState::Up | ConnectionState::Over)
        };
        let (control, data) = peer.connections.split_at(peer.connections.len().min(CONTROL + 1));
        let control_until = control.iter().any(is_pending).then_some(peer.control_until);
        let data_until = peer.data_until.filter(|_| data.iter().any(is_pending));
        let Some(until) = control_until.into_iter().chain(data_until).min() else { return };
        if now >= until {
            let (remote, waited) = (peer.remote, self.patience);
            let why = match peer.refused {
                Some(errno) => Loss::Unopened { remote, waited, errno },
                None => Loss::Unconnected { remote, waited },
            };
            return self.lose(now, index, why);
        }
        self.alarm.set(until);
        let mut wake = None;
        if let Some(peer) = self.peers.get_mut(index) {
            let (local, remote) = (peer.local_ip.into(), peer.remote);
            for (at, connection) in peer.connections.iter_mut().enumerate() {
                let ConnectionState::Down(Some(due)) = connection.state() else { continue };
                if due > now {
                    wake = wake.into_iter().chain([due]).min();
                    continue;
                }
                match self.live.streams_mut().connect(now, local, remote) {
                    Ok(id) => {
                        peer.refused = None;
                        connection.dialled(id);
                        self.live.assign(id, ConnectionRole::Peer { peer: index, connection: at });
                    }
                    Err(why) => {
                        tracing::debug!(%remote, %why, "a connection will be tried again");
                        peer.refused = why.errno();
                        connection.redial(now + PAUSE);
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
pub(super) fn gather<S: Streams>(
    now: Instant,
    streams: &mut S,
    id: S::Id,
    into: &mut Vec<u8>,
    total: usize,
) -> Result<bool, ConnectionEnd> {
    let mut buffer = [0; HELLO];
    loop {
        let missing = total.saturating_sub(into.len()).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..missing).filter(|buffer| !buffer.is_empty()) else {
            return Ok(true);
        };
        match streams.read(now, id, buffer) {
            Ok(0) => return Err(ConnectionEnd::Finished),
            Ok(count) => into.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(Error::Failed(failure)) => return Err(ConnectionEnd::Failed(failure)),
            Err(_) => return Ok(false),
        }
    }
}
