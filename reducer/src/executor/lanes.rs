//! The node's shared memory, as regions, and the count of what operations have used of it.

use super::api::ExecutorError;
use crate::memory::TensorRegion;
use crate::transport::NodeMemory;
use std::sync::Arc;

/// The node's shared memory, as regions.
#[derive(Debug)]
pub(super) struct Lanes {
    count: u32,
    bytes: usize,
    /// By local rank, then lane.
    stage: Vec<TensorRegion>,
    result: Vec<TensorRegion>,
}

impl Lanes {
    fn of<N: NodeMemory>(node: &N, locals: u32) -> Result<Self, ExecutorError> {
        let (count, bytes) = (node.lanes(), node.lane_bytes());
        let stage: Vec<_> =
            (0..locals).flat_map(|local| (0..count).map(move |lane| node.stage(local, lane))).collect();
        let result: Vec<_> = (0..count).map(|lane| node.result(lane)).collect();
        if count == 0 || stage.iter().chain(&result).any(|region| region.len() < bytes) {
            return Err(ExecutorError::Lanes { lanes: count, bytes });
        }
        Ok(Self { count, bytes, stage, result })
    }

    /// The staging area of a local rank in the lane of this use.
    #[inline]
    pub(super) fn stage(&self, local: u32, lane_use: u64) -> Option<TensorRegion> {
        self.stage.get(local as usize * self.count as usize + self.lane(lane_use)).copied()
    }

    /// The result area in the lane of this use.
    #[inline]
    pub(super) fn result(&self, lane_use: u64) -> Option<TensorRegion> {
        self.result.get(self.lane(lane_use)).copied()
    }

    /// Ranks of the node.
    pub(super) fn locals(&self) -> usize {
        self.stage.len() / (self.count.max(1) as usize)
    }

    #[inline]
    fn lane(&self, lane_use: u64) -> usize {
        (lane_use % u64::from(self.count)) as usize
    }
}

/// The lanes, once attached, and how often operations have used them.
#[derive(Debug, Default)]
pub(super) struct LaneUses {
    lanes: Option<Arc<Lanes>>,
    /// Uses so far, the same on all ranks of the node.
    used: u64,
}

impl LaneUses {
    /// Makes the node's memory known; there are so many ranks.
    pub(super) fn attach<N: NodeMemory>(
        &mut self,
        node: &N,
        locals: u32,
    ) -> Result<&Arc<Lanes>, ExecutorError> {
        Ok(self.lanes.insert(Arc::new(Lanes::of(node, locals)?)))
    }

    /// Whether there are just as many lanes, of so many bytes or more.
    pub(super) fn fit(&self, lanes: u32, bytes: usize) -> bool {
        self.lanes.as_ref().is_some_and(|have| have.count == lanes && have.bytes >= bytes)
    }

    /// Takes so many further uses; returns the number of the first.
    pub(super) fn take(&mut self, uses: u32) -> u64 {
        let first = self.used;
        self.used += u64::from(uses);
        first
    }
}
