//! Work of an accelerator in the background: copies and folds are started, and polled for completion in later polls.

use super::Executor;
use super::api::{AbortReason, OpError};
use super::op::Op;
use super::run::{StepContext, StepOutcome};
use crate::memory::RegionOffset;
use crate::schedule::BufferOffset;
use crate::transport::{
    Accelerator, AcceleratorError, DeviceFence, DeviceFold, NodeMemory, StreamEvent, Transport,
};

/// The work of an accelerator for an operation.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// The tensor's contents are ready once this event is reached; `None` afterwards.
    ready_event: Option<StreamEvent>,
    /// Copies and folds that are not known to be done, with their steps.
    started: Vec<(u32, DeviceFence)>,
}

impl Background {
    pub(super) fn start(&mut self, ready_event: Option<StreamEvent>) {
        self.ready_event = ready_event;
        self.started.clear();
    }

    /// Whether an accelerator has to be polled.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.ready_event.is_some() || !self.started.is_empty()
    }

    /// Copies and folds that are not known to be done.
    pub(super) fn copies(&self) -> usize {
        self.started.len()
    }

    /// The accelerator touches nothing any more.
    pub(super) fn fenced(&mut self) {
        self.started.clear();
    }

    /// Whether the tensor's contents are ready.
    fn is_reached(&mut self, accelerator: &mut dyn Accelerator) -> Result<bool, AcceleratorError> {
        if let Some(ready_event) = self.ready_event {
            if !accelerator.is_reached(ready_event)? {
                return Ok(false);
            }
            self.ready_event = None;
        }
        Ok(true)
    }

    /// The next step that is done, from the one at a place on, which moves on to what was not asked about.
    fn take_done(
        &mut self,
        index: &mut usize,
        accelerator: &mut dyn Accelerator,
    ) -> Result<Option<u32>, AcceleratorError> {
        while let Some(&(step, fence)) = self.started.get(*index) {
            if accelerator.is_done(fence)? {
                self.started.remove(*index);
                return Ok(Some(step));
            }
            *index += 1;
        }
        Ok(None)
    }
}

impl Executor {
    /// Ends the steps whose copies are done; whether there was one. `None` while the tensor's contents are not ready.
    #[cold]
    pub(super) fn ask(
        &mut self,
        seq: u64,
        accelerator: &mut Option<&mut dyn Accelerator>,
    ) -> Result<Option<bool>, AcceleratorError> {
        let Some(accelerator) = accelerator else { return Ok(None) };
        let control = &mut self.control;
        let asked = self.ring.edit(seq, |op| -> Result<_, AcceleratorError> {
            if !op.background.is_reached(*accelerator)? {
                return Ok(None);
            }
            let (mut index, mut came) = (0, false);
            while let Some(step) = op.background.take_done(&mut index, *accelerator)? {
                op.ended_in_background(step, control);
                op.done(step, control);
                came = true;
            }
            Ok(Some(came))
        })?;
        self.finish_if_done(seq);
        Ok(asked)
    }

    /// The operation fails with the accelerator's error, and ends the group.
    pub(super) fn accelerator_failed(&mut self, seq: u64, error: AcceleratorError) {
        self.fail(seq, |subject| OpError::Accelerator { subject, error });
        self.abort(self.config.rank, AbortReason::Accelerator);
    }
}

impl<T: Transport, N: NodeMemory> StepContext<'_, '_, T, N> {
    /// Lets the accelerator copy in the background.
    #[cold]
    pub(super) fn copy_in_background(
        &mut self,
        op: &mut Op,
        step: u32,
        into: RegionOffset,
        from: RegionOffset,
        len: usize,
    ) -> StepOutcome {
        let (Some(into), Some(from)) = (into.0.span(into.1, len), from.0.span(from.1, len)) else {
            return StepOutcome::Broken;
        };
        let Some(accelerator) = self.accelerator else { return StepOutcome::Broken };
        let started = accelerator.copy(into, from);
        self.started(op, step, started)
    }

    /// Starts a fold on the accelerator, which runs in the background.
    #[cold]
    pub(super) fn fold_in_background(
        &mut self,
        op: &mut Op,
        (step, chunk): (u32, u32),
        (into, sources): (&[BufferOffset], &[BufferOffset]),
        len: usize,
        divide_by: Option<u32>,
    ) -> StepOutcome {
        let Some(accelerator) = self.accelerator else { return StepOutcome::Broken };
        let resolve = |&place: &BufferOffset| {
            op.buffers.resolve(place, chunk).and_then(|(region, at)| region.span(at, len))
        };
        let Some(spans) = self.scratch.spans(into.iter().chain(sources).map(resolve)) else {
            return StepOutcome::Broken;
        };
        let (destinations, sources) = spans.split_at(into.len());
        let (dtype, reduction) = (op.dtype(), op.reduction());
        let started =
            accelerator.fold(&DeviceFold { dtype, op: reduction, destinations, sources, divide_by });
        self.started(op, step, started)
    }

    /// Records that the accelerator has started the work of a step.
    fn started(
        &mut self,
        op: &mut Op,
        step: u32,
        started: Result<DeviceFence, AcceleratorError>,
    ) -> StepOutcome {
        match started {
            Ok(fence) => {
                op.marks.begin(step, self.control.now());
                op.background.started.push((step, fence));
                StepOutcome::Posted
            }
            Err(error) => {
                self.accelerator_failed(error);
                StepOutcome::NotYet
            }
        }
    }
}
