//! Which steps an operation runs: those for tensors that all ranks of the node can access, if all of them can, else the
//! usual ones, which stage.
//!
//! Ranks announce the location of what they give when they start the operation. If all is in memory that the node shares, all run in
//! place. If all are in accelerators' memory, each rank announces also whether it could open the others' tensors; all must. So all
//! ranks decide alike. Lanes are numbered by their use in earlier operations, so operations are decided in order.

use super::Executor;
use super::agreement::NodeAgreement;
use super::op::Op;
use crate::memory::TensorRegion;
use crate::schedule::Problem;
use crate::transport::{Accelerator, NodeMemory, TensorView};

impl Executor {
    /// Decides the operations that need no information from other ranks.
    pub(super) fn decide_private(&mut self) {
        while let Some(seq) = self.ring.undecided() {
            let op = self.ring.op(seq);
            if op.seq() == seq && op.is_undecided() && may_be_in_place(op) {
                return;
            }
            self.ring.decided();
            self.choose(seq, false);
        }
    }

    /// Decides all operations that can be decided; returns whether there was one.
    #[cold]
    pub(super) fn decide<N: NodeMemory>(
        &mut self,
        node: Option<&N>,
        accelerator: &mut Option<&mut dyn Accelerator>,
    ) -> bool {
        let mut worked = false;
        while let Some(seq) = self.ring.undecided() {
            if self.agreement.is_disputed(seq) {
                break;
            }
            let Some(in_place) = self.views(seq, node, accelerator) else { break };
            self.ring.decided();
            self.choose(seq, in_place);
            self.decide_private();
            worked = true;
        }
        worked
    }

    /// Finds the tensors of all local ranks. Returns whether all ranks can access all of them, or `None` if that is not known yet.
    fn views<N: NodeMemory>(
        &mut self,
        seq: u64,
        node: Option<&N>,
        accelerator: &mut Option<&mut dyn Accelerator>,
    ) -> Option<bool> {
        let Some(node) = node else { return Some(false) };
        match self.agreement.reaches(node, seq) {
            NodeAgreement::Same => {}
            NodeAgreement::Unknown => return None,
            NodeAgreement::Differs(seq) => {
                self.found_on_node(node, seq);
                return None;
            }
        }
        let grid = self.config.grid;
        let (me, locals) = (grid.local_of(self.config.rank), 0..self.config.locals());
        let op = self.ring.op(seq);
        if op.buffers.opened().is_none() {
            let Some(problem) = op.schedule().map(|schedule| schedule.problem().clone()) else {
                return Some(false);
            };
            let given = op.buffers.given();
            let bytes = |local| given_by(&problem, local);
            let views = self.scratch.views(locals.clone().map(|l| node.tensor(l, seq, bytes(l))))?;
            let exported = views.iter().all(|view| matches!(view, TensorView::Exported(_)));
            let peer = |(local, &view): (u32, &TensorView)| match (view, &mut *accelerator) {
                (TensorView::Shared(region), _) => region,
                (TensorView::Exported(_), _) if exported && local == me => given,
                (TensorView::Exported(export), Some(accelerator)) if exported => {
                    accelerator.open(&export, bytes(local)).unwrap_or(TensorRegion::empty())
                }
                _ => TensorRegion::empty(),
            };
            // A rank that gives nothing may yet have to stage what it gets.
            let open = !views.iter().any(|view| matches!(view, TensorView::Private));
            let peers = locals.clone().zip(views).map(peer);
            let all = self.ring.edit(seq, |op| {
                let all = op.buffers.set_peers(peers, locals.clone().map(bytes)) && open;
                if exported {
                    op.buffers.set_opened(all);
                }
                all
            });
            if !exported {
                return Some(all);
            }
            node.agree(seq, all);
        }
        locals.map(|local| node.has_agreed(local, seq)).try_fold(true, |all, one| Some(all & one?))
    }

    /// Begins an operation with the staged steps or those in place. An operation that has failed meanwhile uses no lane: the
    /// group has ended then, and the use of lanes with it.
    fn choose(&mut self, seq: u64, in_place: bool) {
        let op = self.ring.op(seq);
        if !op.is_undecided() || op.seq() != seq {
            return;
        }
        let Some(staged) = op.schedule().cloned() else { return };
        let schedule = match &staged.in_place {
            Some(views) if in_place => {
                self.counters.in_place += 1;
                views.clone()
            }
            _ => staged,
        };
        let lane_base = self.lanes.take(schedule.lane_chunks());
        self.ring.edit(seq, |op| op.choose(schedule, lane_base, &mut self.control));
        self.replay(seq);
        self.finish_if_done(seq);
    }
}

/// Whether other ranks can be able to access what this rank gives for an operation, and there are steps for that.
fn may_be_in_place(op: &Op) -> bool {
    op.schedule().is_some_and(|schedule| schedule.in_place.is_some()) && op.buffers.is_shared()
}

/// Bytes that a local rank gives.
fn given_by(problem: &Problem, local: u32) -> usize {
    let rank = problem.grid.rank_at(problem.node(), local);
    Problem { rank, ..problem.clone() }.input_bytes() as usize
}
