//! A network for the tests of state machines, in one thread. It reorders, repeats, delays and refuses, all from one seed.
//!
//! Payloads are read when they are delivered, as a NIC would, and compared with the bytes that were posted: memory that is written before
//! its release fails here. The network may also be one-sided: it writes some payloads straight to the place that their receiver has named, as
//! soon as they are posted or as late as they are delivered.
#![allow(unsafe_code)]

use crate::executor::{Disposition, Refusal};
use crate::grid::Rank;
use crate::header::{HEADER_BYTES, Header, MessageKind};
use crate::memory::{self, MemoryKind, Span, TensorRegion};
use crate::transport::{Landing, SendError, SendToken, Transport};
use core::ptr::NonNull;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A cache line, in which elements of every type are aligned.
#[derive(Clone)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "memory for others")] [u8; 64]);

/// Memory with a region, and its bytes for the test to look at while nothing runs. It is the allocator's: tests make many of a few bytes,
/// for which mappings are slow.
pub(crate) struct Buffer {
    _owned: Vec<Line>,
    pub(crate) region: TensorRegion,
}

impl Buffer {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut owned = vec![Line([0; 64]); bytes.len().div_ceil(64)];
        let base = NonNull::new(owned.as_mut_ptr()).unwrap().cast();
        // SAFETY: tests keep all buffers until their state machines are gone, and nothing else refers to the lines.
        let region = unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, base, bytes.len(), 0) };
        memory::write((region, 0), bytes).unwrap();
        Self { _owned: owned, region }
    }

    /// The memory as a region of another kind.
    pub(crate) fn as_kind(&self, kind: MemoryKind) -> TensorRegion {
        let base = NonNull::new(self.region.as_ptr()).unwrap();
        // SAFETY: as in `new`; everything is in this process.
        unsafe { TensorRegion::from_raw_parts(kind, base, self.region.len(), 0) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        peek(self.region.span(0, self.region.len()).unwrap())
    }
}

/// The bytes of a range, of whichever kind.
pub(crate) fn peek(span: Span) -> Vec<u8> {
    // SAFETY: all memory of tests is the host's, and everything runs in this thread.
    unsafe { core::slice::from_raw_parts(span.as_ptr(), span.len()) }.to_vec()
}

/// Writes to a place, as a NIC does.
fn put(place: Span, bytes: &[u8]) {
    memory::write((*place.region(), place.offset()), bytes).unwrap();
}

/// A rank's state machine, as the network sees it.
pub(crate) trait Endpoint {
    /// A message has come.
    fn on_packet(&mut self, header: &Header, payload: &[u8]) -> Disposition;

    /// A message has come that the network has written to its place.
    fn on_placed(&mut self, _header: &Header, _place: Span, _payload: &[u8]) -> Disposition {
        unreachable!("the receiver has named no place")
    }

    /// The network refers no more to what was posted with this token.
    fn on_released(&mut self, token: SendToken);

    /// Whether there may be no room for this message.
    fn may_refuse(&self, _header: &Header) -> bool {
        true
    }
}

/// A message under way.
pub(crate) struct Packet {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) header: [u8; HEADER_BYTES],
    payload: Span,
    posted: Vec<u8>,
    token: SendToken,
    /// The network has copied it: it does not refer to the sender's memory.
    copy: bool,
    delivered: bool,
    /// The place that the network writes the bytes to, and whether it has.
    place: Option<(Span, bool)>,
}

/// The faults of the network, in percent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) duplicate: u32,
    pub(crate) full: u32,
    pub(crate) refuse: u32,
    pub(crate) in_order: bool,
}

pub(crate) struct Net {
    pub(crate) packets: Vec<Packet>,
    pub(crate) faults: Faults,
    /// The largest fragment to ranks with even numbers, and to those with odd ones.
    pub(crate) fragment: [usize; 2],
    /// Nothing is delivered.
    pub(crate) cut: bool,
    /// There is no room for messages to it.
    pub(crate) full_to: Option<Rank>,
    /// Messages with bytes that there is room for, if not for any number.
    pub(crate) room: Option<u32>,
    /// It takes and sends nothing any more.
    pub(crate) dead: Option<Rank>,
    /// Ranks that have torn their channels down.
    fenced: Vec<Rank>,
    /// The dead peer, once something was sent to it.
    lost: Option<Rank>,
    /// Places that receivers have named: (receiver, sender, credit message).
    landings: Vec<(Rank, Rank, Header, Landing)>,
    /// Messages that the network has written to their place.
    pub(crate) placed: usize,
    pub(crate) refused: Vec<Refusal>,
    /// Receivers have room for all that they must take.
    pub(crate) keeps_budgets: bool,
    /// Asserts that a rank may post such a message.
    check: fn(&Header, Span, SendToken),
    rng: SmallRng,
}

impl Net {
    pub(crate) fn new(seed: u64, faults: Faults, check: fn(&Header, Span, SendToken)) -> Self {
        Self {
            packets: vec![],
            faults,
            fragment: [128; 2],
            cut: false,
            full_to: None,
            room: None,
            dead: None,
            fenced: vec![],
            lost: None,
            landings: vec![],
            placed: 0,
            refused: vec![],
            keeps_budgets: true,
            check,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Bytes under way.
    pub(crate) fn posted_bytes(&self) -> usize {
        self.packets.iter().map(|packet| packet.posted.len()).sum()
    }

    /// The peer that was found to be gone, once.
    pub(crate) fn take_lost(&mut self) -> Option<Rank> {
        self.lost.take()
    }

    /// The place of a fragment, if its receiver has named one.
    fn place(&self, from: Rank, to: Rank, header: &Header) -> Option<Span> {
        let asked = |(receiver, sender, credit, _): &&(Rank, Rank, Header, Landing)| {
            let rounds = credit.round..credit.round + credit.len;
            (*receiver, *sender, credit.key) == (to, from, header.key) && rounds.contains(&header.round)
        };
        let (_, _, credit, Landing { first, stride }) = self.landings.iter().find(asked)?;
        let begin = first.offset() + stride * (header.round - credit.round) as usize;
        let whole = first.region().span(begin, first.len()).unwrap();
        whole.part(header.offset as usize, header.len as usize)
    }

    /// Delivers or acknowledges one packet between the ranks; whether there was one.
    pub(crate) fn step<E: Endpoint>(&mut self, rng: &mut SmallRng, ranks: &mut [E]) -> bool {
        if self.packets.is_empty() || self.cut {
            return false;
        }
        if !self.faults.in_order {
            return self.carry(rng.random_range(0..self.packets.len()), rng, ranks);
        }
        // As over connections: packets behind a message that was refused wait.
        let mut waits = vec![];
        for pick in 0..self.packets.len() {
            let link = (self.packets[pick].from, self.packets[pick].to);
            if !waits.contains(&link) {
                if self.carry(pick, rng, ranks) {
                    return true;
                }
                waits.push(link);
            }
        }
        false
    }

    /// Delivers or acknowledges this packet; false if it was refused and the network keeps the order, or if an end of it is dead.
    fn carry<E: Endpoint>(&mut self, pick: usize, rng: &mut SmallRng, ranks: &mut [E]) -> bool {
        let packet = &mut self.packets[pick];
        if self.dead.is_some_and(|dead| dead == packet.from || dead == packet.to) {
            return false;
        }
        if packet.delivered {
            let packet = self.packets.remove(pick);
            if !packet.copy {
                ranks[packet.from.0 as usize].on_released(packet.token);
            }
            return true;
        }
        // Bytes that were used may be overwritten by a one-sided peer, ahead of its release.
        if !packet.copy {
            assert!(peek(packet.payload) == packet.posted, "bytes changed between post and release");
        }
        if rng.random_range(0..100) < self.faults.refuse {
            return true;
        }
        let header = Header::parse(&packet.header).unwrap();
        let rank = &mut ranks[packet.to.0 as usize];
        let taken = match packet.place.take() {
            Some((place, written)) => {
                if !written {
                    put(place, &packet.posted);
                }
                self.placed += 1;
                rank.on_placed(&header, place, &packet.posted)
            }
            None => rank.on_packet(&header, &packet.posted),
        };
        if let Disposition::Refused(refusal) = taken {
            self.refused.push(refusal);
            if refusal.is_retryable() {
                assert!(rank.may_refuse(&header) || !self.keeps_budgets, "what goes unasked has room");
                return !self.faults.in_order;
            }
        }
        packet.delivered = true;
        if rng.random_range(0..100) < self.faults.duplicate {
            let posted = packet.posted.clone();
            let copy = Packet { posted, copy: true, delivered: false, place: None, ..*packet };
            self.packets.push(copy);
        }
        true
    }

    /// A rank tears its channels down: what it has posted is released, it posts nothing more, and no peer writes to its memory any more.
    pub(crate) fn fence<E: Endpoint>(&mut self, rank: Rank, endpoint: &mut E) {
        self.fenced.push(rank);
        self.release(rank, endpoint);
        self.landings.retain(|(receiver, ..)| *receiver != rank);
        self.packets.iter_mut().filter(|packet| packet.to == rank).for_each(|packet| packet.place = None);
    }

    /// Drops all messages from the dead rank and to it.
    pub(crate) fn bury(&mut self) {
        let dead = self.dead;
        self.packets.retain(|packet| dead.is_none_or(|dead| ![packet.from, packet.to].contains(&dead)));
    }

    /// Copies a message that a rank sends; false where it cannot be sent now.
    pub(crate) fn send_copy(&mut self, (from, to): (Rank, Rank), header: &Header, payload: Span) -> bool {
        let sent = Port(self, from).send(to, header, payload, SendToken::CONTROL).is_ok();
        self.packets.iter_mut().last().filter(|_| sent).into_iter().for_each(|packet| packet.copy = true);
        sent
    }

    /// Offers a message on its way from one rank to another, which may not be the oldest one; it has arrived where it is taken.
    pub(crate) fn offer(
        &mut self,
        rng: &mut SmallRng,
        (from, to): (Rank, Rank),
        take: impl FnOnce(&Header, &[u8]) -> bool,
    ) {
        let is_between =
            |packet: &&mut Packet| (packet.from, packet.to, packet.delivered) == (from, to, false);
        let mut all: Vec<_> = self.packets.iter_mut().filter(is_between).collect();
        let pick = if self.faults.in_order || all.is_empty() { 0 } else { rng.random_range(0..all.len()) };
        let Some(packet) = all.get_mut(pick) else { return };
        packet.delivered = take(&Header::parse(&packet.header).unwrap(), &packet.posted);
    }

    /// The network copies all that a rank has posted, and releases it.
    pub(crate) fn release<E: Endpoint>(&mut self, rank: Rank, endpoint: &mut E) {
        for packet in self.packets.iter_mut().filter(|packet| packet.from == rank && !packet.copy) {
            packet.copy = true;
            endpoint.on_released(packet.token);
        }
    }
}

/// The network as one rank sees it.
pub(crate) struct Port<'a>(pub(crate) &'a mut Net, pub(crate) Rank);

impl Transport for Port<'_> {
    fn max_fragment(&self, to: Rank) -> usize {
        self.0.fragment[to.0 as usize % 2]
    }

    fn send(&mut self, to: Rank, header: &Header, payload: Span, token: SendToken) -> Result<(), SendError> {
        let fragment = self.max_fragment(to);
        let Self(net, from) = self;
        (net.check)(header, payload, token);
        assert_ne!(to, *from, "what a rank does to itself needs no transport");
        assert!(payload.len() <= fragment);
        if net.fenced.contains(from) {
            return Err(SendError::PeerFailed);
        }
        if net.dead == Some(to) {
            net.lost = Some(to);
            return Err(SendError::PeerFailed);
        }
        if net.full_to == Some(to) || net.rng.random_range(0..100) < net.faults.full {
            return Err(SendError::Full);
        }
        if let (false, Some(room)) = (payload.is_empty(), &mut net.room) {
            *room = room.checked_sub(1).ok_or(SendError::Full)?;
        }
        let mut bytes = [0; HEADER_BYTES];
        header.encode(&mut bytes);
        assert_eq!(Header::parse(&bytes).as_ref(), Ok(header));
        let posted = peek(payload);
        let mut place = None;
        if header.kind == MessageKind::Data && net.rng.random_bool(0.7) {
            place = net.place(*from, to, header).map(|place| (place, net.rng.random()));
        }
        if let Some((place, true)) = place {
            put(place, &posted);
        }
        let (from, copy, delivered) = (*from, false, false);
        net.packets.push(Packet { from, to, header: bytes, payload, posted, token, copy, delivered, place });
        Ok(())
    }

    fn credit(&mut self, to: Rank, header: &Header, landing: Option<Landing>) -> Result<(), SendError> {
        self.send(to, header, Span::empty(), SendToken::CONTROL)?;
        self.0.landings.extend(landing.map(|landing| (self.1, to, *header, landing)));
        Ok(())
    }
}
