//! Which steps an operation runs: those for tensors in memory that the node shares, if all local ranks' tensors lie
//! there, else the usual ones, which stage.
//!
//! Ranks say where their tensors lie when they start the operation. What they have said decides, the same on all of
//! them. Lanes are numbered by what operations use of them, so operations are decided in their order.

use super::Executor;
use crate::memory::{Kind, Region};
use crate::transport::{NodeMemory, TensorView};

impl Executor {
    /// Decides what needs no word of another rank.
    pub(super) fn decide_private(&mut self) {
        while let Some(&seq) = self.undecided.front() {
            let op = &self.ops[(seq & self.mask) as usize];
            let in_place = op.schedule.as_ref().is_some_and(|schedule| schedule.in_place.is_some());
            if op.template.key.seq == seq && op.undecided && in_place && op.data.kind() == Kind::Shared {
                return;
            }
            self.undecided.pop_front();
            self.choose(seq, false);
        }
    }

    /// Decides all operations that can be decided; returns whether there was one.
    #[cold]
    pub(super) fn decide<N: NodeMemory>(&mut self, node: Option<&N>) -> bool {
        let mut worked = false;
        while let Some(&seq) = self.undecided.front() {
            let at = (seq & self.mask) as usize;
            let Some(in_place) = self.views(at, seq, node) else { break };
            self.undecided.pop_front();
            self.choose(seq, in_place);
            self.decide_private();
            worked = true;
        }
        worked
    }

    /// Notes where all local ranks' tensors lie: whether all are shared, or `None` if it is too early to say.
    fn views<N: NodeMemory>(&mut self, at: usize, seq: u64, node: Option<&N>) -> Option<bool> {
        let op = &mut self.ops[at];
        op.peers.clear();
        let Some(node) = node else { return Some(false) };
        for local in 0..self.config.grid.per_node() {
            match node.tensor(local, seq, op.data.len()) {
                TensorView::Unknown => return None,
                TensorView::Private => op.peers.push(Region::empty()),
                TensorView::Shared(region) => op.peers.push(region),
            }
        }
        Some(op.peers.iter().all(|region| region.len() == op.data.len()))
    }

    /// Begins an operation with these steps or those. One that has been given up meanwhile uses no lane: then the group
    /// has ended, and lanes with it.
    fn choose(&mut self, seq: u64, in_place: bool) {
        let at = (seq & self.mask) as usize;
        let op = &mut self.ops[at];
        if !op.undecided || op.template.key.seq != seq {
            return;
        }
        let Some(staged) = op.schedule.take() else { return };
        let schedule = match &staged.in_place {
            Some(views) if in_place => views.clone(),
            _ => staged,
        };
        let lane_base = self.lane_base;
        self.lane_base += u64::from(schedule.lane_chunks());
        op.choose(schedule, lane_base, &mut self.control);
        self.replay(at);
        self.finish_if_done(at);
    }
}
