//! The wire between the hosts: it damages 1 in 100 of its datagrams, in ways that are counted.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

use super::super::link::Datagram;
use crate::wire::rud::{HEADER_LEN, SEAL_LEN};

/// What becomes of a datagram, or comes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One bit is flipped.
    Bit,
    /// Two to six bits anywhere are.
    Bits,
    /// So are the first and the last of 2 to 64 bits in a row, and any between them.
    Burst,
    /// Its beginning, and the end of another one.
    Splice,
    /// It ends early.
    Truncation,
    /// Up to 64 bytes follow it.
    Extension,
    /// One of the session comes again.
    Replay,
    /// The same of the epoch before: of a session that is not sealed, from before the PSNs wrapped.
    EarlierEpoch,
    /// One comes of a session between the same ends that was closed.
    EarlierSession,
    /// The same with the tag of the session that took its place.
    EarlierSessionNewTag,
    /// One of a session between other ends comes here.
    OtherSession,
    /// One of any other direction of a session comes with the tag of this one.
    OtherSessionNewTag,
}

impl Kind {
    pub(super) const ALL: [Self; 12] = [
        Self::Bit,
        Self::Bits,
        Self::Burst,
        Self::Splice,
        Self::Truncation,
        Self::Extension,
        Self::Replay,
        Self::EarlierEpoch,
        Self::EarlierSession,
        Self::EarlierSessionNewTag,
        Self::OtherSession,
        Self::OtherSessionNewTag,
    ];

    /// Whether the datagram itself arrives, too.
    fn is_beside(self) -> bool {
        self as usize >= Self::Replay as usize
    }

    /// Whether it was sent on this session, and nothing of it was changed.
    fn is_again(self) -> bool {
        matches!(self, Self::Replay | Self::EarlierEpoch)
    }
}

/// How often each kind took place, on sessions that are not sealed and on those that are.
pub(super) type Applied = [[u64; 2]; Kind::ALL.len()];

/// How many datagrams of a direction are kept from its beginning, and as many of those after them.
const KEPT: usize = 128;
/// How many are kept of the sessions before.
const KEPT_EARLIER: usize = 8 * KEPT;
/// Later datagrams of which one is kept.
const KEEP_EVERY: u64 = 16;

#[derive(Debug)]
pub(super) struct Arrival {
    at: u64,
    pub(super) datagram: Datagram,
    /// Whether it is as it was sent, for the first time.
    pub(super) intact: bool,
}

/// One direction of a session.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) sealed: bool,
    /// Of its datagrams.
    pub(super) tag: u64,
    delay: u64,
    on_the_way: VecDeque<Arrival>,
    arrived: u64,
    /// The epoch of the one that arrived last, as in [`epoch`].
    epoch: u8,
    first: Vec<Datagram>,
    later: Vec<Datagram>,
    earlier: Vec<Datagram>,
}

impl Lane {
    fn epoch_of(&self, datagram: &Datagram) -> u8 {
        // The upper byte of the number, or of the PSN, has the same epochs of 2^24.
        datagram.bytes[if self.sealed { 0 } else { 16 }]
    }

    /// One that has arrived in this session.
    fn any(&self, rng: &mut SmallRng) -> Option<&Datagram> {
        let of = if rng.random() { &self.first } else { &self.later };
        of.choose(rng)
    }

    /// Remembers a datagram that has arrived as it was sent: it can come again.
    fn keep(&mut self, datagram: &Datagram, rng: &mut SmallRng) {
        self.arrived += 1;
        self.epoch = self.epoch_of(datagram);
        let Self { first, later, .. } = self;
        if first.len() < KEPT {
            first.push(datagram.clone());
        } else if !self.arrived.is_multiple_of(KEEP_EVERY) {
            // One of those before it stands for it.
        } else if later.len() < KEPT {
            later.push(datagram.clone());
        } else {
            later[rng.random_range(0..KEPT)].clone_from(datagram);
        }
    }

    /// The session is opened anew, with this tag.
    pub(super) fn reopen(&mut self, tag: u64) {
        self.tag = tag;
        self.arrived = 0;
        self.earlier.append(&mut self.first);
        self.earlier.append(&mut self.later);
        let surplus = self.earlier.len().saturating_sub(KEPT_EARLIER);
        self.earlier.drain(..surplus);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.on_the_way.is_empty()
    }
}

pub(super) struct Wire {
    pub(super) lanes: Vec<Lane>,
    pub(super) rng: SmallRng,
    /// Datagrams that were sent.
    pub(super) sent: u64,
    pub(super) applied: Applied,
    /// Datagrams, of those that arrived, that a receiver has to drop and count: all but those that were sent so on a session that is
    /// not sealed. Such a one that comes again has no effect that is counted at one place: it is a duplicate, or acknowledges nothing new.
    pub(super) wrong: u64,
    spare: Vec<Vec<u8>>,
}

impl Wire {
    /// Lanes between these ends, sealed or not.
    pub(super) fn new(seed: u64, lanes: impl Iterator<Item = (usize, usize, bool)>) -> Self {
        let lane = |(number, (from, to, sealed))| Lane {
            from,
            to,
            sealed,
            tag: 0,
            delay: 5_000 + 1_000 * number as u64,
            on_the_way: VecDeque::new(),
            arrived: 0,
            epoch: 0,
            first: vec![],
            later: vec![],
            earlier: vec![],
        };
        Self {
            lanes: (0..).zip(lanes).map(lane).collect(),
            rng: SmallRng::seed_from_u64(seed),
            sent: 0,
            applied: [[0; 2]; Kind::ALL.len()],
            wrong: 0,
            spare: vec![],
        }
    }

    /// Sends a datagram of the two parts.
    pub(super) fn send(&mut self, now: u64, lane: usize, src_port: u16, parts: [&[u8]; 2]) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let datagram = Datagram { src_port, bytes };
        self.sent += 1;
        let at = now + self.lanes[lane].delay;
        if !self.rng.random_ratio(1, 100) {
            return self.push(lane, Arrival { at, datagram, intact: true });
        }
        // Some kinds need what has not been sent yet.
        let (kind, other) = loop {
            let kind = Kind::ALL[self.rng.random_range(0..Kind::ALL.len())];
            if let Some(other) = self.damaged(kind, lane, &datagram) {
                break (kind, other);
            }
        };
        let sealed = self.lanes[lane].sealed;
        self.applied[kind as usize][usize::from(sealed)] += 1;
        self.wrong += u64::from(sealed || !kind.is_again());
        if kind.is_beside() {
            self.push(lane, Arrival { at, datagram, intact: true });
        }
        self.push(lane, Arrival { at, datagram: other, intact: false });
    }

    fn push(&mut self, lane: usize, arrival: Arrival) {
        self.lanes[lane].on_the_way.push_back(arrival);
    }

    /// The next one that has arrived.
    pub(super) fn receive(&mut self, now: u64, lane: usize) -> Option<Arrival> {
        self.lanes[lane].on_the_way.pop_front_if(|arrival| arrival.at <= now)
    }

    /// The receiver has had it.
    pub(super) fn recycle(&mut self, lane: usize, arrival: Arrival) {
        let Arrival { datagram, intact, .. } = arrival;
        if intact {
            self.lanes[lane].keep(&datagram, &mut self.rng);
        }
        let mut bytes = datagram.bytes;
        bytes.clear();
        self.spare.push(bytes);
    }

    pub(super) fn next_arrival(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| Some(lane.on_the_way.front()?.at)).min()
    }

    /// What comes of `datagram`, or beside it: never what was sent as it is, but for a replay. `None` where there is nothing to take it from.
    fn damaged(&mut self, kind: Kind, lane: usize, datagram: &Datagram) -> Option<Datagram> {
        let Self { lanes, rng, .. } = self;
        let own = &lanes[lane];
        let mut wrong = datagram.clone();
        let bytes = &mut wrong.bytes;
        let bits = bytes.len() * 8;
        let mut flip = |bit: usize| bytes[bit / 8] ^= 0x80 >> (bit % 8);
        match kind {
            Kind::Bit => flip(rng.random_range(0..bits)),
            Kind::Bits => {
                for _ in 0..rng.random_range(2..=6) {
                    flip(rng.random_range(0..bits));
                }
                // All were flipped back.
                if *bytes == datagram.bytes {
                    return None;
                }
            }
            Kind::Burst => {
                let len = rng.random_range(2..=64);
                let first = rng.random_range(0..=bits - len);
                flip(first);
                flip(first + len - 1);
                (first + 1..first + len - 1).filter(|_| rng.random()).for_each(flip);
            }
            Kind::Splice => {
                let other = &lanes[rng.random_range(0..lanes.len())].any(rng)?.bytes;
                let cut = rng.random_range(1..bytes.len());
                let from = if rng.random() { cut } else { rng.random_range(0..other.len()) };
                bytes.truncate(cut);
                bytes.extend_from_slice(other.get(from..)?);
                if rng.random() {
                    fit(bytes);
                }
                if *bytes == datagram.bytes || bytes == other {
                    return None;
                }
            }
            Kind::Truncation => {
                bytes.truncate(rng.random_range(0..bytes.len()));
                if rng.random() {
                    fit(bytes);
                }
            }
            Kind::Extension => {
                let len = bytes.len();
                bytes.resize(len + rng.random_range(1..=64), 0);
                if rng.random() {
                    rng.fill_bytes(&mut bytes[len..]);
                }
                if rng.random() {
                    fit(bytes);
                }
            }
            Kind::Replay => return own.any(rng).cloned(),
            Kind::EarlierEpoch => {
                return own.first.choose(rng).filter(|old| own.epoch_of(old) != own.epoch).cloned();
            }
            Kind::EarlierSession => return own.earlier.choose(rng).cloned(),
            Kind::EarlierSessionNewTag => {
                wrong.clone_from(own.earlier.choose(rng)?);
                wrong.bytes[8..16].copy_from_slice(&own.tag.to_be_bytes());
            }
            Kind::OtherSession => {
                let other = &lanes[rng.random_range(0..lanes.len())];
                if (other.from, other.to) == (own.from, own.to) {
                    return None;
                }
                bytes.clone_from(&other.any(rng)?.bytes);
            }
            Kind::OtherSessionNewTag => {
                let other = rng.random_range(0..lanes.len());
                if other == lane {
                    return None;
                }
                bytes.clone_from(&lanes[other].any(rng)?.bytes);
                bytes[8..16].copy_from_slice(&own.tag.to_be_bytes());
            }
        }
        Some(wrong)
    }
}

/// Lets the header's lengths hold for the datagram, if they can: so that its form does not give it away.
fn fit(bytes: &mut [u8]) {
    if bytes.len() < HEADER_LEN {
        return;
    }
    let seal = if bytes[4] & 8 == 0 { 0 } else { SEAL_LEN };
    let body = usize::from(bytes[5] & 0x7f);
    if let Some(payload) = bytes.len().checked_sub(HEADER_LEN + body + seal) {
        bytes[6..8].copy_from_slice(&(payload as u16).to_be_bytes());
    }
}
