//! Messengers in one thread, joined by a network that reorders, repeats, delays and refuses, from one seed. Payloads are read when they are
//! delivered, as a NIC would, and compared with what they were when they were posted.
#![allow(unsafe_code)]

use super::super::*;
use crate::dtype::DType;
use crate::header::HEADER_BYTES;
use crate::memory::{self, Owned, Span};
use crate::transport::{SendError, SendToken};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

/// Memory with a region, and its bytes for the test to look at.
pub(super) struct Buffer {
    _owned: Owned,
    pub(super) region: TensorRegion,
}

impl Buffer {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let owned = Owned::new(bytes.len()).unwrap();
        // SAFETY: tests keep all buffers until their messengers are gone.
        let region = unsafe { owned.region() };
        memory::write((region, 0), bytes).unwrap();
        Self { _owned: owned, region }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        peek(self.region.span(0, self.region.len()).unwrap())
    }
}

fn peek(span: Span) -> Vec<u8> {
    // SAFETY: everything runs in this thread.
    unsafe { span.as_bytes() }.unwrap().to_vec()
}

struct Packet {
    from: Rank,
    to: Rank,
    header: [u8; HEADER_BYTES],
    payload: Span,
    posted: Vec<u8>,
    token: SendToken,
    /// A copy that the network made: nothing refers to the sender's memory.
    copy: bool,
    delivered: bool,
}

/// How bad the network is, in percent.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) duplicate: u32,
    pub(super) full: u32,
    pub(super) refuse: u32,
    pub(super) in_order: bool,
}

pub(super) struct Net {
    packets: Vec<Packet>,
    pub(super) faults: Faults,
    pub(super) fragment: usize,
    pub(super) dead: Option<Rank>,
    rng: SmallRng,
}

struct Port<'a>(&'a mut Net, Rank);

impl Transport for Port<'_> {
    fn max_fragment(&self, _to: Rank) -> usize {
        self.0.fragment
    }
    fn send(&mut self, to: Rank, header: &Header, payload: Span, token: SendToken) -> Result<(), SendError> {
        assert!(header.kind.is_p2p() && (token.is_p2p() || token == SendToken::CONTROL));
        assert_ne!(to, self.1, "what a rank sends itself needs no transport");
        if self.0.dead == Some(to) {
            return Err(SendError::PeerFailed);
        }
        if self.0.rng.random_range(0..100) < self.0.faults.full {
            return Err(SendError::Full);
        }
        let mut bytes = [0; HEADER_BYTES];
        header.encode(&mut bytes);
        let posted = peek(payload);
        let (from, copy, delivered) = (self.1, false, false);
        self.0.packets.push(Packet { from, to, header: bytes, payload, posted, token, copy, delivered });
        Ok(())
    }
}

/// The ranks of a group and the network between them.
pub(super) struct Group {
    pub(super) ranks: Vec<Messenger>,
    pub(super) net: Net,
    pub(super) rng: SmallRng,
    pub(super) now: Duration,
    pub(super) ended: Vec<HashMap<TransferId, Result<Status, TransferError>>>,
    pub(super) refused: Vec<Refusal>,
}

impl Group {
    pub(super) fn new(seed: u64, ranks: u32, faults: Faults, change: impl Fn(&mut MessengerConfig)) -> Self {
        let messenger = |rank| {
            let mut config = MessengerConfig::new(Rank(rank), ranks);
            change(&mut config);
            // SAFETY: nothing reads what messengers name once they are gone.
            unsafe { Messenger::new(config) }
        };
        let rng = || SmallRng::seed_from_u64(seed);
        let net = Net { packets: vec![], faults, fragment: 128, dead: None, rng: rng() };
        Self {
            ranks: (0..ranks).map(messenger).collect(),
            net,
            rng: rng(),
            now: Duration::ZERO,
            ended: vec![HashMap::new(); ranks as usize],
            refused: vec![],
        }
    }

    /// Sends the elements of a buffer from one rank to another.
    pub(super) fn send(&mut self, from: u32, to: u32, tag: u32, buffer: &Buffer) -> TransferId {
        self.try_send(from, send(to, tag, buffer)).unwrap()
    }

    pub(super) fn try_send(&mut self, from: u32, request: SendRequest) -> Result<TransferId, PostError> {
        self.ranks[from as usize].start_send(request)
    }

    pub(super) fn receive(
        &mut self,
        on: u32,
        from: Option<u32>,
        tag: Option<u32>,
        buffer: &Buffer,
    ) -> TransferId {
        self.ranks[on as usize].start_receive(receive(from, tag, buffer)).unwrap()
    }

    /// Polls one rank; whether it did anything.
    pub(super) fn poll(&mut self, rank: usize) -> bool {
        self.now += Duration::from_micros(self.rng.random_range(0..50));
        let progress = self.ranks[rank].poll(self.now, &mut Port(&mut self.net, Rank(rank as u32)));
        self.take(rank) || progress.worked
    }

    fn take(&mut self, rank: usize) -> bool {
        let mut any = false;
        while let Some(Ended { id, result }) = self.ranks[rank].take_ended() {
            assert!(self.ended[rank].insert(id, result).is_none(), "{id:?} of rank {rank} ended twice");
            any = true;
        }
        any
    }

    /// Delivers or acknowledges one packet; whether there was one.
    pub(super) fn network(&mut self) -> bool {
        if self.net.packets.is_empty() {
            return false;
        }
        if !self.net.faults.in_order {
            let pick = self.rng.random_range(0..self.net.packets.len());
            return self.carry(pick);
        }
        let mut waits = vec![];
        for pick in 0..self.net.packets.len() {
            let link = (self.net.packets[pick].from, self.net.packets[pick].to);
            if !waits.contains(&link) {
                if self.carry(pick) {
                    return true;
                }
                waits.push(link);
            }
        }
        false
    }

    fn carry(&mut self, pick: usize) -> bool {
        let faults = self.net.faults;
        let packet = &mut self.net.packets[pick];
        if self.net.dead.is_some_and(|dead| dead == packet.from || dead == packet.to) {
            return false;
        }
        if !packet.copy && !packet.delivered {
            assert!(peek(packet.payload) == packet.posted, "bytes changed between post and release");
        }
        if packet.delivered {
            let packet = self.net.packets.remove(pick);
            if !packet.copy {
                self.ranks[packet.from.0 as usize].on_released(packet.token);
            }
            return true;
        }
        if self.rng.random_range(0..100) < faults.refuse {
            return true;
        }
        let header = Header::parse(&packet.header).unwrap();
        if let Disposition::Refused(refusal) =
            self.ranks[packet.to.0 as usize].on_message(&header, &packet.posted)
        {
            self.refused.push(refusal);
            if refusal.is_retryable() {
                return !faults.in_order;
            }
        }
        packet.delivered = true;
        if self.rng.random_range(0..100) < faults.duplicate {
            let Packet { from, to, header, payload, token, .. } = *packet;
            let posted = packet.posted.clone();
            let copy = Packet { from, to, header, payload, posted, token, copy: true, delivered: false };
            self.net.packets.push(copy);
        }
        true
    }

    /// Polls and delivers until nothing happens any more.
    pub(super) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let mut any = false;
            for rank in 0..self.ranks.len() {
                any |= self.poll(rank);
            }
            while self.network() {
                any = true;
            }
            if self.net.packets.is_empty() && self.ranks.iter().all(|rank| !rank.has_work()) && !any {
                // What is told later is told now.
                self.now += Duration::from_millis(1);
                idle += 1;
            } else {
                idle = if any { 0 } else { idle + usize::from(self.net.dead.is_some()) };
            }
        }
    }

    /// How a transfer has ended.
    pub(super) fn result(&self, rank: u32, id: TransferId) -> Option<&Result<Status, TransferError>> {
        self.ended[rank as usize].get(&id)
    }

    /// Nothing is kept any more, and every message was taken well.
    pub(super) fn assert_given_back(&self, what: &str) {
        for messenger in &self.ranks {
            assert_eq!(messenger.running(), 0, "{what}");
            assert_eq!(messenger.sends.iter().count(), 0, "{what}");
            assert!(messenger.any.is_empty(), "{what}");
            for (rank, peer) in messenger.peers.iter() {
                let room = messenger.desk.config.room_bytes;
                assert_eq!(peer.out.room(room), room, "{what}: what {rank} may keep");
                assert_eq!(peer.out.records().count() + peer.out.queue.len(), 0, "{what}");
                assert!(peer.inbound.live.is_empty() && peer.inbound.waiting.is_empty(), "{what}");
                assert_eq!((peer.inbound.held, peer.inbound.posted.len()), (0, 0), "{what}");
            }
            assert_eq!(messenger.counters().malformed, 0, "{what}");
        }
        assert!(self.refused.is_empty(), "{what}: {:?}", self.refused);
    }
}

/// A send that may end early.
pub(super) fn send(to: u32, tag: u32, buffer: &Buffer) -> SendRequest {
    let data = buffer.region;
    let (dtype, deadline) = (DType::U8, Duration::MAX);
    SendRequest { to: Rank(to), tag, dtype, data, held: false, synchronous: false, deadline }
}

pub(super) fn receive(from: Option<u32>, tag: Option<u32>, buffer: &Buffer) -> ReceiveRequest {
    let into = buffer.region;
    ReceiveRequest { from: from.map(Rank), tag, dtype: DType::U8, into, deadline: Duration::MAX }
}
