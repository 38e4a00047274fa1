//! The lanes of a rank that is alone on its node: what a tensor that the CPU cannot touch is staged in.

use crate::memory::TensorRegion;
use crate::transport::{LaneFlag, NodeMemory};
use core::sync::atomic::{AtomicU64, Ordering};

/// Lanes without other ranks: a result area each, and this rank's flags.
#[derive(Debug)]
pub struct Solo {
    results: Box<[TensorRegion]>,
    bytes: usize,
    flags: Box<[[AtomicU64; LaneFlag::ALL.len()]]>,
}

impl Solo {
    /// Cuts `memory` into `lanes` lanes of `bytes` bytes; `None` if it is too short.
    pub fn new(memory: TensorRegion, lanes: u32, bytes: usize) -> Option<Self> {
        let results = (0..lanes as usize).map(|lane| memory.sub(lane.checked_mul(bytes)?, bytes));
        let results: Box<[TensorRegion]> = results.collect::<Option<_>>()?;
        let flags = results.iter().map(|_| Default::default()).collect();
        Some(Self { results, bytes, flags })
    }

    fn flag(&self, lane: u32, flag: LaneFlag) -> Option<&AtomicU64> {
        self.flags.get(lane as usize)?.get(flag as usize)
    }
}

impl NodeMemory for Solo {
    fn lanes(&self) -> u32 {
        self.results.len() as u32
    }

    fn lane_bytes(&self) -> usize {
        self.bytes
    }

    /// Nothing is staged apart from the result.
    fn stage(&self, _local: u32, lane: u32) -> TensorRegion {
        self.result(lane)
    }

    fn result(&self, lane: u32) -> TensorRegion {
        self.results.get(lane as usize).copied().unwrap_or(TensorRegion::empty())
    }

    fn signal(&self, lane: u32, flag: LaneFlag, value: u64) {
        if let Some(flag) = self.flag(lane, flag) {
            flag.store(value, Ordering::Release);
        }
    }

    fn observe(&self, local: u32, lane: u32, flag: LaneFlag) -> u64 {
        let flag = self.flag(lane, flag).filter(|_| local == 0);
        flag.map_or(0, |flag| flag.load(Ordering::Acquire))
    }
}
