//! Connections come and go: who dials, who is let in, who is lost.

use std::time::Duration;

use shouter_netstack::tcp::{Error, Failure};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::transport::SendToken;

use super::entrance::{self, Answer, CHALLENGE, Claim, HELLO, Nonce, WELCOME};
use super::lane::State;
use super::streams::{Event, Streams};
use super::{CONTROL, StreamChannel};
use crate::channel::Inbox;
use crate::channel::up::Loss;

/// Connections that have not shown yet that they belong to the group, at most, beside those that are expected: the oldest
/// goes.
pub(super) const STRANGERS: usize = 64;

/// How long a connection may take to show it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// Peers have at least so long to be connected.
pub(super) const SETUP: Duration = Duration::from_secs(10);

/// A peer whose connections for data were reset has so long to say why.
const DOUBT: Duration = Duration::from_millis(500);

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Accepted, and not yet believed.
    Stranger,
    /// A peer's.
    Lane { peer: usize, lane: usize },
}

/// A connection that was accepted and has not shown yet that it belongs to the group.
pub(super) struct Stranger<Id> {
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
    pub(super) fn on_event(&mut self, now: Instant, event: Event<S::Id>, inbox: &mut dyn Inbox) {
        match event {
            Event::Acceptable => self.admit(now),
            Event::Readable(id) => match self.places.get(&id) {
                Some(Place::Stranger) => self.hear_stranger(now, id, inbox),
                Some(&Place::Lane { peer, lane }) => self.hear(now, peer, lane, inbox),
                None => {}
            },
            // What was fenced is no longer the executor's.
            Event::Released(_, token) if !self.fenced => inbox.released(SendToken(token.0)),
            Event::Dropped(id, token) if self.places.contains_key(&id) => inbox.released(SendToken(token.0)),
            Event::Failed(id, failure) => self.gone(now, id, Ending::Failed(failure)),
            Event::Closed(id) => self.gone(now, id, Ending::Finished),
            Event::Released(..) | Event::Dropped(..) => {}
        }
    }

    /// Takes connections in, and challenges them.
    fn admit(&mut self, now: Instant) {
        while let Some(id) = self.streams.accept(now) {
            // Those who are expected may all come at once.
            if self.strangers.len() >= STRANGERS + self.awaited
                && let Some(oldest) = self.strangers.pop_front()
            {
                self.turn_away(now, oldest.id, "there are too many");
            }
            let challenge = self.secrets.nonce();
            let until = now + PATIENCE;
            // There is room for the first few bytes of a connection, or it is of no use.
            match self.streams.write(now, id, &entrance::challenge(&challenge)) {
                Ok(CHALLENGE) => {
                    self.places.insert(id, Place::Stranger);
                    self.strangers.push_back(Stranger { id, until, challenge, said: vec![] });
                    self.alarm.set(until);
                }
                _ => self.turn_away(now, id, "it took no challenge"),
            }
        }
    }

    /// Resets a connection that is nobody's.
    fn turn_away(&mut self, now: Instant, id: S::Id, why: &str) {
        self.places.remove(&id);
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

    /// Reads a stranger's hello; a peer's connection is used from then on.
    fn hear_stranger(&mut self, now: Instant, id: S::Id, inbox: &mut dyn Inbox) {
        let Some(at) = self.strangers.iter().position(|stranger| stranger.id == id) else { return };
        let Some(stranger) = self.strangers.get_mut(at) else { return };
        let heard = gather(now, &mut self.streams, id, &mut stranger.said, HELLO);
        if matches!(heard, Ok(false)) {
            return;
        }
        let Some(mut stranger) = self.strangers.remove(at) else { return };
        if heard.is_err() {
            return self.turn_away(now, id, "it ended before it said hello");
        }
        let hello = stranger.said.first_chunk::<HELLO>();
        let claim = hello.and_then(|hello| self.secrets.check_hello(&stranger.challenge, hello));
        let Some(claim) = claim.filter(|claim| claim.to == self.rank && claim.from > self.rank) else {
            return self.turn_away(now, id, "its proof is wrong");
        };
        let Some(index) = self.peers.index(claim.from) else {
            return self.turn_away(now, id, "it is no peer of this rank");
        };
        let at = claim.lane as usize;
        if claim.crc != self.settings.crc {
            let answer = self.secrets.answer(Answer::CrcDiffers, &stranger.challenge, &claim);
            let _ = self.streams.write(now, id, &answer);
            // A reset would take the answer along: it goes like one who says nothing.
            stranger.challenge = self.secrets.nonce();
            stranger.said.clear();
            self.strangers.push_back(stranger);
            return self.lose(now, index, crc_differs(claim.from, self.settings.crc));
        }
        let welcome = self.secrets.answer(Answer::Welcome, &stranger.challenge, &claim);
        let is_lost = self.peers.is_lost(index);
        let peer = self.peers.get_mut(index).filter(|_| !is_lost);
        match peer.and_then(|peer| peer.lanes.get_mut(at)) {
            Some(lane) if matches!(lane.state, State::Down(_)) => {
                lane.state = State::Up;
                lane.id = Some(id);
                self.awaited = self.awaited.saturating_sub(1);
                if self.awaited == 0 {
                    self.streams.stop_listening(now);
                }
                lane.write(now, &mut self.streams, &welcome);
                self.places.insert(id, Place::Lane { peer: index, lane: at });
                self.read(now, index, at, inbox);
            }
            _ => self.turn_away(now, id, "there was such a connection already"),
        }
    }

    /// Reads a peer's connection: the rest of its handshake, then its frames.
    fn hear(&mut self, now: Instant, index: usize, at: usize, inbox: &mut dyn Inbox) {
        let Some(to) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let (from, crc) = (self.rank, self.settings.crc);
        let Some(lane) = peer.lanes.get_mut(at) else { return };
        let Some(id) = lane.id else { return };
        let streams = &mut self.streams;
        let ended = loop {
            let total = match lane.state {
                State::Dialled => CHALLENGE,
                State::Greeted(..) => WELCOME,
                State::Up => return self.read(now, index, at, inbox),
                State::Down(_) | State::Over => return,
            };
            match gather(now, streams, id, &mut lane.greeting, total) {
                Ok(true) => {}
                Ok(false) => return,
                Err(ending) => break ending,
            }
            let said = std::mem::take(&mut lane.greeting);
            if let State::Greeted(challenge, claim) = lane.state {
                match self.secrets.check_answer(&challenge, &claim, &said) {
                    Some(Answer::Welcome) => lane.state = State::Up,
                    Some(Answer::CrcDiffers) => break Ending::CrcDiffers,
                    None => break Ending::Garbled,
                }
            } else {
                let Some(challenge) = entrance::check_challenge(&said) else { break Ending::Garbled };
                let claim = Claim { from, to, lane: at as u32, crc, nonce: self.secrets.nonce() };
                lane.write(now, streams, &self.secrets.hello(&challenge, &claim));
                lane.state = State::Greeted(challenge, claim);
            }
        };
        self.lane_ended(now, index, at, ended);
    }

    /// A connection is over, by the endpoint's word.
    fn gone(&mut self, now: Instant, id: S::Id, ending: Ending) {
        match self.places.get(&id) {
            Some(&Place::Lane { peer, lane }) => self.lane_ended(now, peer, lane, ending),
            Some(Place::Stranger) => {
                self.strangers.retain(|stranger| stranger.id != id);
                self.turn_away(now, id, "it ended before it said hello");
            }
            // It was let go of before.
            None => self.streams.abort(now, id),
        }
    }

    /// A peer's connection is over: it is dialled again if it never worked, else the peer may be lost.
    pub(super) fn lane_ended(&mut self, now: Instant, index: usize, at: usize, ending: Ending) {
        let Some(rank) = self.peers.rank(index) else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(lane) = peer.lanes.get_mut(at) else { return };
        let begun = matches!(lane.state, State::Dialled | State::Greeted(..));
        let again = State::Down(Some(now + PAUSE));
        if let Some(id) = lane.end(if begun { again } else { State::Over }) {
            self.places.remove(&id);
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
            // Who leaves in good order has said so; who stays and needs it still will miss it.
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
        for lane in &mut peer.lanes {
            if let Some(id) = lane.end(State::Over) {
                self.places.remove(&id);
                self.resent_before += self.streams.info(id).map_or(0, |info| info.retransmitted);
                self.streams.abort(now, id);
            }
        }
    }

    /// Dials who is to be dialled, and ends what has taken too long.
    pub(super) fn tend(&mut self, now: Instant) {
        while let Some(stranger) = self.strangers.front() {
            let (id, until) = (stranger.id, stranger.until);
            if until > now {
                self.alarm.set(until);
                break;
            }
            self.strangers.pop_front();
            self.turn_away(now, id, "it has not said hello in time");
        }
        for index in self.peers.indices() {
            self.tend_peer(now, index);
        }
    }

    fn tend_peer(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get(index).filter(|_| !self.peers.is_lost(index)) else { return };
        if let Some((at, failure)) = peer.suspect {
            if at <= now {
                return self.lose(now, index, Loss::Tcp(failure));
            }
            self.alarm.set(at);
        }
        let Some(peer) = self.peers.get(index) else { return };
        if peer.lanes.iter().all(|lane| matches!(lane.state, State::Up | State::Over)) {
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
            for (at, lane) in peer.lanes.iter_mut().enumerate() {
                let State::Down(Some(due)) = lane.state else { continue };
                if due > now {
                    wake = wake.into_iter().chain([due]).min();
                    continue;
                }
                match self.streams.connect(now, local, remote) {
                    Ok(id) => {
                        lane.id = Some(id);
                        lane.state = State::Dialled;
                        self.places.insert(id, Place::Lane { peer: index, lane: at });
                    }
                    Err(why) => {
                        tracing::debug!(%remote, %why, "a connection will be tried again");
                        lane.state = State::Down(Some(now + PAUSE));
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
