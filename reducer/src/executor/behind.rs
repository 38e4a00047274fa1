//! What an accelerator does in the background: copies and folds are started, and asked about in later turns.

use super::Executor;
use super::api::{OpError, Why};
use super::op::Op;
use super::run::{Context, Ran};
use crate::memory::Spot;
use crate::schedule::Place;
use crate::transport::{Accelerator, AcceleratorError, Fence, Fold, NodeMemory, Transport};

impl Executor {
    /// Ends the steps whose copies are done; whether there was one. `None` while what the tensor holds is not there.
    #[cold]
    pub(super) fn ask(
        &mut self,
        at: usize,
        accelerator: &mut Option<&mut dyn Accelerator>,
    ) -> Result<Option<bool>, AcceleratorError> {
        let op = &mut self.ops[at];
        let (mut index, mut came, Some(accelerator)) = (0, false, accelerator) else { return Ok(None) };
        if let Some(moment) = op.moment {
            if !accelerator.has_come(moment)? {
                return Ok(None);
            }
            op.moment = None;
        }
        while let Some(&(step, fence)) = op.copies.get(index) {
            if accelerator.is_done(fence)? {
                op.copies.remove(index);
                op.ended_behind(step, &mut self.control);
                op.done(step, &mut self.control);
                came = true;
            } else {
                index += 1;
            }
        }
        self.finish_if_done(at);
        Ok(Some(came))
    }

    /// The operation ends with what the accelerator says, and the group with it.
    pub(super) fn accelerator_failed(&mut self, at: usize, error: AcceleratorError) {
        let subject = self.ops[at].subject();
        self.fail(at, OpError::Accelerator { subject, error });
        self.abort(self.config.rank, Why::Accelerator);
    }
}

impl<T: Transport, N: NodeMemory> Context<'_, '_, T, N> {
    /// Lets the accelerator copy in the background.
    #[cold]
    pub(super) fn copy_behind(&mut self, op: &mut Op, step: u32, into: Spot, from: Spot, len: usize) -> Ran {
        let (Some(into), Some(from)) = (into.0.span(into.1, len), from.0.span(from.1, len)) else {
            return Ran::Broken;
        };
        let Some(accelerator) = self.accelerator else { return Ran::Broken };
        let started = accelerator.copy(into, from);
        self.behind(op, step, started)
    }

    /// Lets the accelerator fold in the background.
    #[cold]
    pub(super) fn fold_behind(
        &mut self,
        op: &mut Op,
        (step, chunk): (u32, u32),
        (into, sources): (&[Place], &[Place]),
        len: usize,
        divide_by: Option<u32>,
    ) -> Ran {
        self.spans.clear();
        for &place in into.iter().chain(sources) {
            let Some(span) = op.spot(place, chunk).and_then(|(region, at)| region.span(at, len)) else {
                return Ran::Broken;
            };
            self.spans.push(span);
        }
        let Some(accelerator) = self.accelerator else { return Ran::Broken };
        let (destinations, sources) = self.spans.split_at(into.len());
        let dtype = op.template.shape.dtype;
        let started = accelerator.fold(&Fold { dtype, op: op.fold, destinations, sources, divide_by });
        self.behind(op, step, started)
    }

    /// What an accelerator does for a step ends it.
    fn behind(&mut self, op: &mut Op, step: u32, started: Result<Fence, AcceleratorError>) -> Ran {
        match started {
            Ok(fence) => {
                op.begins(step, self.control);
                op.copies.push((step, fence));
                Ran::Posted
            }
            Err(error) => {
                self.broken = Some(error);
                Ran::NotYet
            }
        }
    }
}
