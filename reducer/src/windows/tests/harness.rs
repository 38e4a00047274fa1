//! Windows over a simulated network.
#![allow(unsafe_code)]

use super::super::*;
use crate::memory::MemoryKind;
pub(super) use crate::simulation::{Buffer, Faults};
use crate::simulation::{Endpoint, Net, Port};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

impl Endpoint for Windows {
    fn on_packet(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_message(header, payload)
    }
    fn on_released(&mut self, token: SendToken) {
        Machine::on_released(self, token);
    }
}

impl Buffer {
    pub(super) fn none() -> Self {
        words(&[])
    }

    pub(super) fn words(&self) -> Vec<u64> {
        self.bytes().chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

pub(super) fn words(words: &[u64]) -> Buffer {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Buffer::new(&bytes)
}

pub(super) fn word(word: u64) -> Buffer {
    words(&[word])
}

/// An access to the first elements of window 0, waited for without a deadline.
pub(super) fn access(action: WindowAction, target: u32, data: &Buffer, into: &Buffer) -> AccessRequest {
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

/// The ranks of a group, with a window each, and the network between them.
pub(super) struct Group {
    pub(super) ranks: Vec<Windows>,
    pub(super) windows: Vec<Buffer>,
    pub(super) net: Net,
    pub(super) rng: SmallRng,
    pub(super) now: Duration,
    ended: Vec<HashMap<AccessId, Result<(), AccessError>>>,
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
            // The parts of some ranks are shared with others, which makes no difference here.
            let kind = if (seed + u64::from(rank)).is_multiple_of(2) {
                MemoryKind::Host
            } else {
                MemoryKind::Shared
            };
            let id = windows.open(buffers[rank as usize].as_kind(kind), DType::U64).unwrap();
            windows.set_lengths(id, vec![elements; ranks as usize].into());
            windows
        };
        // Ranks with odd numbers have another length of fragments than those with even ones.
        let mut net = Net::new(seed, faults, |header, payload, token| {
            assert!(header.kind.is_window() && (token.is_window() || token == SendToken::CONTROL));
            assert_eq!(payload.len(), header.len as usize);
        });
        net.fragment = [128, 192];
        Self {
            ranks: (0..ranks).map(windows).collect(),
            windows: buffers,
            net,
            rng: SmallRng::seed_from_u64(seed),
            now: Duration::ZERO,
            ended: vec![HashMap::new(); ranks as usize],
        }
    }

    /// A rank has another window than the others were told.
    pub(super) fn reopen(&mut self, rank: u32, elements: usize, dtype: DType) {
        let at = rank as usize;
        self.ranks[at].close(WindowId(0));
        self.ranks[at].exposed.renumber();
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
        while let Some(Ended { id, result }) = self.ranks[rank].take_ended() {
            assert!(self.ended[rank].insert(id, result).is_none(), "{id:?} of rank {rank} ended twice");
            any = true;
        }
        any
    }

    /// Delivers or acknowledges one packet; whether there was one.
    pub(super) fn network(&mut self) -> bool {
        self.net.step(&mut self.rng, &mut self.ranks)
    }

    /// The network has copied what a rank has posted, and releases it.
    pub(super) fn release(&mut self, rank: u32) {
        self.net.release(Rank(rank), &mut self.ranks[rank as usize]);
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
            assert!(windows.origin.is_empty() && windows.target.is_empty(), "{what}: {windows:?}");
            assert_eq!(windows.counters().malformed, 0, "{what}");
        }
        assert!(self.net.refused.is_empty(), "{what}: {:?}", self.net.refused);
    }
}
