//! The lanes of a rank that is alone on its node: a tensor that the CPU cannot touch is staged there.

use crate::memory::TensorRegion;
use crate::transport::{LaneFlag, NodeMemory};
use core::sync::atomic::{AtomicU64, Ordering};

/// Lanes without other ranks: a staging and a result area each, and this rank's flags.
#[derive(Debug)]
pub struct Solo {
    /// Of each lane.
    areas: Box<[[TensorRegion; 2]]>,
    bytes: usize,
    flags: Box<[[AtomicU64; LaneFlag::ALL.len()]]>,
}

impl Solo {
    /// Bytes of memory that so many lanes of `bytes` bytes take.
    pub fn memory_bytes(lanes: u32, bytes: usize) -> usize {
        2 * lanes as usize * bytes
    }

    /// Cuts `memory` into `lanes` lanes of `bytes` bytes; `None` if it has fewer than [`memory_bytes`](Self::memory_bytes).
    pub fn new(memory: TensorRegion, lanes: u32, bytes: usize) -> Option<Self> {
        let area = |index: usize| memory.sub(index.checked_mul(bytes)?, bytes);
        let areas = (0..lanes as usize).map(|lane| Some([area(2 * lane)?, area(2 * lane + 1)?]));
        let areas: Box<[_]> = areas.collect::<Option<_>>()?;
        let flags = areas.iter().map(|_| Default::default()).collect();
        Some(Self { areas, bytes, flags })
    }

    fn area(&self, lane: u32, which: usize) -> TensorRegion {
        self.areas.get(lane as usize).map_or(TensorRegion::empty(), |areas| areas[which])
    }

    fn flag(&self, lane: u32, flag: LaneFlag) -> Option<&AtomicU64> {
        self.flags.get(lane as usize)?.get(flag as usize)
    }
}

impl NodeMemory for Solo {
    fn lanes(&self) -> u32 {
        self.areas.len() as u32
    }

    fn lane_bytes(&self) -> usize {
        self.bytes
    }

    fn stage(&self, _local: u32, lane: u32) -> TensorRegion {
        self.area(lane, 0)
    }

    fn result(&self, lane: u32) -> TensorRegion {
        self.area(lane, 1)
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
