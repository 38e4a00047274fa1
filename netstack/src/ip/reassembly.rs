//! Datagrams from their fragments, of IPv4 (RFC 791 section 3.2, RFC 815) and IPv6 (RFC 8200 section 4.5).
//!
//! Fragments are kept, copied, until their datagram is whole, or too old, or displaced by newer ones. Bytes and
//! datagrams are bounded, so fragments that never become whole cannot exhaust memory. Fragments that overlap are an
//! attack or a fault, and spoil their datagram.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::time::{Instant, earliest};
use crate::wire::ip::Ecn;

#[cfg(test)]
mod tests;

/// The longest payload of a datagram.
const MAX_LEN: usize = 65_535;

/// Bytes that a fragment counts besides its own.
const OVERHEAD: usize = 64;

/// Limits and times.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that may wait, over all datagrams, with the cost of keeping them.
    pub bytes: usize,
    /// Datagrams that may wait.
    pub datagrams: usize,
    /// How long an IPv4 datagram may take from its first fragment that arrives.
    pub timeout_ipv4: Duration,
    /// The same for IPv6.
    pub timeout_ipv6: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bytes: 1 << 20,
            datagrams: 64,
            // RFC 1122 section 3.3.2 recommends 60 to 120 s; 16-bit identifications come round sooner, so hosts take
            // 30.
            timeout_ipv4: Duration::from_secs(30),
            //= RFC 8200 section 4.5: abandoned 60 s after the first fragment arrived.
            timeout_ipv6: Duration::from_secs(60),
        }
    }
}

/// The fields that fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The port that they came by.
    pub port: usize,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// The protocol in IPv4; zero in IPv6, where it does not count.
    pub protocol: u8,
    /// The sender's number for the datagram.
    pub identification: u32,
}

/// One fragment.
#[derive(Clone, Copy, Debug)]
pub struct FragmentPayload<'a> {
    /// Its offset in the datagram, in bytes.
    pub offset: u16,
    /// Whether it is not the last one.
    pub more: bool,
    /// The datagram's protocol; that of the first fragment counts.
    pub protocol: u8,
    /// The fragment's ECN bits.
    pub ecn: Ecn,
    /// Its bytes.
    pub payload: &'a [u8],
    /// How its packet begins, to be quoted in an error.
    pub packet: &'a [u8],
}

/// A datagram that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The protocol.
    pub protocol: u8,
    /// Congestion experienced if one of its fragments did.
    pub ecn: Ecn,
    /// The bytes behind the IP header, or behind the IPv6 extension headers that each fragment has.
    pub payload: Vec<u8>,
    /// How its first fragment's packet began.
    pub packet: Vec<u8>,
}

/// The outcome of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReassemblyOutcome {
    /// More fragments are missing, or it was there already.
    Waiting,
    /// It was the last one that was missing.
    Whole(Datagram),
    /// It and others of the datagram overlap, or disagree about its length: all of them are dropped, and those to come.
    Overlap,
    /// A fragment that is not the last has a length that is no multiple of eight, or none at all.
    BadLength,
    /// The datagram would be longer than any can be.
    TooLong,
}

/// A datagram that did not become whole in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Its key.
    pub key: Key,
    /// How its first fragment's packet began, if that fragment came.
    pub packet: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Entry {
    until: Instant,
    /// Counts the datagrams, to find the oldest.
    number: u64,
    /// By offset, without overlap.
    pieces: Vec<(u16, Vec<u8>)>,
    /// Bytes of all pieces.
    len: usize,
    /// The datagram's length, once the last fragment has come.
    total: Option<usize>,
    protocol: u8,
    ecn: Ecn,
    packet: Option<Vec<u8>>,
    /// Fragments overlapped: further ones are dropped.
    spoilt: bool,
}

impl Entry {
    fn cost(&self) -> usize {
        let packet = self.packet.as_ref().map_or(0, Vec::len);
        self.len + packet + OVERHEAD * (self.pieces.len() + 1)
    }
}

/// The datagrams that are not whole yet.
#[derive(Debug)]
pub struct Reassembly {
    config: Config,
    // Ordered, so that a simulation replays exactly.
    entries: BTreeMap<Key, Entry>,
    bytes: usize,
    number: u64,
    evicted: u64,
    deadline: Option<Instant>,
}

impl Reassembly {
    /// Nothing waits yet.
    pub fn new(config: Config) -> Self {
        Self { config, entries: BTreeMap::new(), bytes: 0, number: 0, evicted: 0, deadline: None }
    }

    /// Bytes that are kept at present, with the cost of keeping them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Datagrams that wait at present.
    pub fn datagrams(&self) -> usize {
        self.entries.len()
    }

    /// Datagrams that newer ones displaced.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Takes in a fragment.
    pub fn insert(&mut self, now: Instant, key: Key, piece: &FragmentPayload<'_>) -> ReassemblyOutcome {
        let len = piece.payload.len();
        //= RFC 8200 section 4.5: the length of a fragment that is not the last is a multiple of eight.
        if len == 0 || (piece.more && !len.is_multiple_of(8)) {
            return ReassemblyOutcome::BadLength;
        }
        let end = usize::from(piece.offset) + len;
        if end > MAX_LEN {
            return ReassemblyOutcome::TooLong;
        }
        if !self.entries.contains_key(&key) {
            self.add(now, key);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return ReassemblyOutcome::Waiting;
        };
        if entry.spoilt {
            return ReassemblyOutcome::Overlap;
        }
        let before = entry.cost();
        let outcome = entry.insert(piece, end);
        let whole = entry.total == Some(entry.len) && outcome == ReassemblyOutcome::Waiting;
        self.bytes = (self.bytes + entry.cost()).saturating_sub(before);
        if whole && let Some(entry) = self.remove(&key) {
            return ReassemblyOutcome::Whole(entry.assemble());
        }
        while self.bytes > self.config.bytes && self.evict() {}
        outcome
    }

    /// When to call [`Reassembly::poll`] next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Takes out a datagram that took too long. Call it until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Expired> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        let late = self.entries.iter().find(|(_, entry)| entry.until <= now).map(|(&key, _)| key);
        let Some(key) = late else {
            self.deadline = self.entries.values().map(|entry| entry.until).min();
            return None;
        };
        let entry = self.remove(&key)?;
        Some(Expired { key, packet: entry.packet.filter(|_| !entry.spoilt) })
    }

    fn add(&mut self, now: Instant, key: Key) {
        while self.entries.len() >= self.config.datagrams.max(1) && self.evict() {}
        let timeout = if key.source.is_ipv4() { self.config.timeout_ipv4 } else { self.config.timeout_ipv6 };
        let until = now + timeout;
        let entry = Entry { until, number: self.number, protocol: key.protocol, ..Entry::default() };
        self.number += 1;
        self.bytes += entry.cost();
        self.deadline = earliest(self.deadline, Some(until));
        self.entries.insert(key, entry);
    }

    fn evict(&mut self) -> bool {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.number).map(|(&key, _)| key);
        let Some(key) = oldest else {
            return false;
        };
        self.evicted += 1;
        self.remove(&key).is_some()
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.bytes = self.bytes.saturating_sub(entry.cost());
        Some(entry)
    }
}

impl Entry {
    fn insert(&mut self, piece: &FragmentPayload<'_>, end: usize) -> ReassemblyOutcome {
        let offset = usize::from(piece.offset);
        let total = if piece.more { self.total } else { Some(end) };
        let agreed = self.total.is_none_or(|known| total == Some(known));
        let last_end = self.pieces.last().map_or(0, |(at, bytes)| usize::from(*at) + bytes.len());
        if !agreed || total.is_some_and(|total| end.max(last_end) > total) {
            return self.spoil();
        }
        let index = self.pieces.partition_point(|(at, _)| *at < piece.offset);
        let after = self.pieces.get(index);
        //= RFC 8200 section 4.5: an exact duplicate may be ignored.
        if after.is_some_and(|(at, bytes)| *at == piece.offset && bytes == piece.payload) {
            return ReassemblyOutcome::Waiting;
        }
        let before = index.checked_sub(1).and_then(|index| self.pieces.get(index));
        //= RFC 5722 section 4: if any fragments overlap, the whole datagram is silently discarded; of IPv4 too here.
        if after.is_some_and(|(at, _)| usize::from(*at) < end)
            || before.is_some_and(|(at, bytes)| usize::from(*at) + bytes.len() > offset)
        {
            return self.spoil();
        }
        self.total = total;
        self.len += piece.payload.len();
        self.pieces.insert(index, (piece.offset, piece.payload.to_vec()));
        if piece.offset == 0 {
            //= RFC 8200 section 4.5: the next header is that of the first fragment, whatever the others say.
            self.protocol = piece.protocol;
            self.packet = Some(piece.packet.to_vec());
        }
        self.ecn = match (self.ecn, piece.ecn) {
            //= RFC 3168 section 5.3: congestion that one fragment met, the datagram met.
            (Ecn::Ce, _) | (_, Ecn::Ce) => Ecn::Ce,
            _ => piece.ecn,
        };
        ReassemblyOutcome::Waiting
    }

    fn spoil(&mut self) -> ReassemblyOutcome {
        self.spoilt = true;
        self.pieces = Vec::new();
        self.packet = None;
        self.len = 0;
        ReassemblyOutcome::Overlap
    }

    fn assemble(self) -> Datagram {
        let mut payload = Vec::with_capacity(self.len);
        self.pieces.iter().for_each(|(_, bytes)| payload.extend_from_slice(bytes));
        Datagram { protocol: self.protocol, ecn: self.ecn, payload, packet: self.packet.unwrap_or_default() }
    }
}
