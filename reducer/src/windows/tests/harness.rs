//! Windows in one thread, joined by a network that reorders, repeats, delays and refuses, from one seed. Payloads are read when they are
//! delivered, as a NIC would, and compared with what they were when they were posted.
#![allow(unsafe_code)]

use super::super::*;
use crate::header::HEADER_BYTES;
use crate::memory::{self, Owned, Span};
use crate::transport::SendError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

/// Memory with a region, and its elements for the test to look at.
pub(super) struct Buffer {
    _owned: Owned,
    pub(super) region: TensorRegion,
}

impl Buffer {
    pub(super) fn none() -> Self {
        words(&[])
    }

    pub(super) fn words(&self) -> Vec<u64> {
        let bytes = peek(self.region.span(0, self.region.len()).unwrap());
        bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

pub(super) fn words(words: &[u64]) -> Buffer {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let owned = Owned::new(bytes.len()).unwrap();
    // SAFETY: tests keep all buffers until nothing names them any more.
    let region = unsafe { owned.region() };
    memory::write((region, 0), &bytes).unwrap();
    Buffer { _owned: owned, region }
}

pub(super) fn word(word: u64) -> Buffer {
    words(&[word])
}

/// An access to the first elements of window 0, waited for without a deadline.
pub(super) fn access(action: Action, target: u32, data: &Buffer, into: &Buffer) -> AccessRequest {
    AccessRequest {
        window: WindowId(0),
        action,
        target: Rank(target),
        offset: 0,
        dtype: DType::U64,
        data: data.region,
        into: into.region,
        deadline: Duration::MAX,
        waited: true,
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
    /// Nothing refers to the sender's memory: the network has made a copy.
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
    pub(super) fragment: [usize; 2],
    /// Nothing is delivered.
    pub(super) cut: bool,
    /// There is no room for messages to it.
    pub(super) full_to: Option<Rank>,
    /// It is lost.
    pub(super) gone: Option<Rank>,
    rng: SmallRng,
}

impl Net {
    pub(super) fn posted_bytes(&self) -> usize {
        self.packets.iter().map(|packet| packet.posted.len()).sum()
    }
}

struct Port<'a>(&'a mut Net, Rank);

impl Transport for Port<'_> {
    /// Ranks with odd numbers have others than those with even ones.
    fn max_fragment(&self, to: Rank) -> usize {
        self.0.fragment[to.0 as usize % 2]
    }
    fn send(&mut self, to: Rank, header: &Header, payload: Span, token: SendToken) -> Result<(), SendError> {
        assert!(header.kind.is_window() && (token.is_window() || token == SendToken::CONTROL));
        assert_ne!(to, self.1, "what a rank does to itself needs no transport");
        assert!(payload.len() <= self.max_fragment(to) && payload.len() == header.len as usize);
        if self.0.gone == Some(to) {
            return Err(SendError::PeerFailed);
        }
        if self.0.full_to == Some(to) || self.0.rng.random_range(0..100) < self.0.faults.full {
            return Err(SendError::Full);
        }
        let mut bytes = [0; HEADER_BYTES];
        header.encode(&mut bytes);
        assert_eq!(Header::parse(&bytes).unwrap(), *header);
        let posted = peek(payload);
        let (from, copy, delivered) = (self.1, false, false);
        self.0.packets.push(Packet { from, to, header: bytes, payload, posted, token, copy, delivered });
        Ok(())
    }
}

/// The ranks of a group, with a window each, and the network between them.
pub(super) struct Group {
    pub(super) ranks: Vec<Windows>,
    pub(super) windows: Vec<Buffer>,
    pub(super) net: Net,
    pub(super) rng: SmallRng,
    pub(super) now: Duration,
    ended: Vec<HashMap<AccessId, Result<(), AccessError>>>,
    pub(super) refused: Vec<Refusal>,
}

impl Group {
    pub(super) fn new(
        seed: u64,
        ranks: u32,
        elements: u64,
        faults: Faults,
        change: impl Fn(&mut WindowsConfig),
    ) -> Self {
        let buffers: Vec<_> = (0..ranks).map(|_| words(&vec![0; elements as usize])).collect();
        let windows = |rank: u32| {
            let mut config = WindowsConfig::new(Rank(rank), ranks);
            change(&mut config);
            // SAFETY: nothing reads what windows name once they are gone.
            let mut windows = unsafe { Windows::new(config) };
            let id = windows.open(buffers[rank as usize].region, DType::U64).unwrap();
            windows.set_lengths(id, vec![elements; ranks as usize].into());
            windows
        };
        let rng = || SmallRng::seed_from_u64(seed);
        let net = Net {
            packets: vec![],
            faults,
            fragment: [128, 192],
            cut: false,
            full_to: None,
            gone: None,
            rng: rng(),
        };
        Self {
            ranks: (0..ranks).map(windows).collect(),
            windows: buffers,
            net,
            rng: rng(),
            now: Duration::ZERO,
            ended: vec![HashMap::new(); ranks as usize],
            refused: vec![],
        }
    }

    /// A rank has another window than the others were told.
    pub(super) fn reopen(&mut self, rank: u32, elements: usize, dtype: DType) {
        let at = rank as usize;
        self.ranks[at].close(WindowId(0));
        self.ranks[at].next_window = 0;
        let memory = self.windows[at].region.sub(0, elements * 8).unwrap();
        assert_eq!(self.ranks[at].open(memory, dtype), Ok(WindowId(0)));
    }

    pub(super) fn start(&mut self, rank: u32, request: AccessRequest) -> AccessId {
        self.ranks[rank as usize].start(request).unwrap()
    }

    /// Polls one rank; whether it did anything.
    pub(super) fn poll(&mut self, rank: usize) -> bool {
        self.now += Duration::from_micros(self.rng.random_range(0..50));
        let progress = self.ranks[rank].poll(self.now, &mut Port(&mut self.net, Rank(rank as u32)));
        let mut any = progress.worked;
        while let Some(AccessEnded { id, result }) = self.ranks[rank].take_ended() {
            assert!(self.ended[rank].insert(id, result).is_none(), "{id:?} of rank {rank} ended twice");
            any = true;
        }
        any
    }

    /// Delivers or acknowledges one packet; whether there was one.
    pub(super) fn network(&mut self) -> bool {
        if self.net.packets.is_empty() || self.net.cut {
            return false;
        }
        let pick =
            if self.net.faults.in_order { 0 } else { self.rng.random_range(0..self.net.packets.len()) };
        self.carry(pick);
        true
    }

    fn carry(&mut self, pick: usize) {
        let faults = self.net.faults;
        let packet = &mut self.net.packets[pick];
        if packet.delivered {
            let packet = self.net.packets.remove(pick);
            if !packet.copy {
                self.ranks[packet.from.0 as usize].on_released(packet.token);
            }
            return;
        }
        if !packet.copy {
            assert!(peek(packet.payload) == packet.posted, "bytes changed between post and release");
        }
        if self.rng.random_range(0..100) < faults.refuse {
            return;
        }
        let header = Header::parse(&packet.header).unwrap();
        let disposition = self.ranks[packet.to.0 as usize].on_message(&header, &packet.posted);
        if let Disposition::Refused(refusal) = disposition {
            self.refused.push(refusal);
            if refusal.is_retryable() {
                return;
            }
        }
        packet.delivered = true;
        if self.rng.random_range(0..100) < faults.duplicate {
            let Packet { from, to, header, payload, token, .. } = *packet;
            let posted = packet.posted.clone();
            let copy = Packet { from, to, header, payload, posted, token, copy: true, delivered: false };
            self.net.packets.push(copy);
        }
    }

    /// The network has copied what a rank has posted, and releases it.
    pub(super) fn release(&mut self, rank: u32) {
        for packet in self.net.packets.iter_mut().filter(|packet| packet.from == Rank(rank) && !packet.copy) {
            packet.copy = true;
            self.ranks[rank as usize].on_released(packet.token);
        }
    }

    /// Polls and delivers until nothing happens any more.
    pub(super) fn settle(&mut self) {
        loop {
            let mut any = false;
            for rank in 0..self.ranks.len() {
                any |= self.poll(rank);
            }
            while self.network() {
                any = true;
            }
            if !any && self.ranks.iter().all(|rank| !rank.has_work()) {
                return;
            }
        }
    }

    /// How an access has ended.
    pub(super) fn result(&self, rank: u32, id: AccessId) -> Option<&Result<(), AccessError>> {
        self.ended[rank as usize].get(&id)
    }

    /// Nothing is kept any more, and every message was taken well.
    pub(super) fn assert_given_back(&self, what: &str) {
        for windows in &self.ranks {
            assert_eq!((windows.running(), windows.under_way.len()), (0, 0), "{what}");
            assert_eq!(windows.answers.len(), 0, "{what}");
            assert!(windows.answering.is_empty() && windows.stalled.is_empty(), "{what}");
            assert!(windows.outbound.values().all(origin::Outbound::is_empty), "{what}");
            assert!(windows.inbound.values().all(target::Inbound::is_empty), "{what}");
            let pools = [&windows.copies, &windows.answer_room].into_iter().flatten();
            assert!(pools.into_iter().all(Pool::is_whole), "{what}");
            assert_eq!(windows.counters().malformed, 0, "{what}");
        }
        assert!(self.refused.is_empty(), "{what}: {:?}", self.refused);
    }
}
