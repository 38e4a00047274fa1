//! Small all-reduces within one node: a straight line, not a schedule.
//!
//! Each rank publishes its elements in its own cell and folds everybody's in rank order, so all end with the same
//! bits. Two cells a rank suffice: nobody publishes operation n + 1 before it has read all of operation n, so whoever
//! writes a cell again has seen everybody finish with it. Up to 40 bytes travel in one cache line with the sequence
//! word: the latency is that of one line going from core to core.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::executor::{AbortCause, Why};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Shape;
use shouter_reducer::kernel::Kernels;

use super::Group;
use super::element::Buffer;
use super::stats::lock;
use crate::channel::shm::{Abort, CELL_PAYLOAD, Cell, NodeSegment};
use crate::engine::divergence::{instead_of_small, pack, unpack};
use crate::error::Error;
use crate::runtime::{Activity, Backoff, Clock, DriveError, IdlePolicy, Instant, fork_generation};

/// Operations up to this many bytes are small.
pub(super) const CELL_BYTES: usize = CELL_PAYLOAD;

/// Turns of waiting between two looks at everything else: the engine, the end of the group, the deadline.
const LOOK_EVERY: u32 = 256;

/// Who waits for longer looks at what the other runs instead.
const SLOW: Duration = Duration::from_millis(50);

/// The cells of a node whose ranks are the whole group.
pub(super) struct Cells {
    segment: Arc<NodeSegment>,
    kernels: Kernels,
    idle: IdlePolicy,
    forks: u32,
    /// Small operations so far.
    number: Mutex<u64>,
}

impl Cells {
    pub(super) fn new(segment: Arc<NodeSegment>, kernels: Kernels, idle: IdlePolicy) -> Self {
        Self { segment, kernels, idle, forks: fork_generation(), number: Mutex::new(0) }
    }

    /// Reduces `data` over all ranks of the node.
    pub(super) fn all_reduce(
        &self,
        group: &Group,
        begin: Instant,
        shape: &Shape,
        data: Buffer,
        step: u64,
    ) -> Result<(), Error> {
        if fork_generation() != self.forks {
            // The shared memory is not mapped in a forked child.
            return Err(Error::Closed(DriveError::Forked.to_string()));
        }
        let mut number = lock(&self.number);
        let tag = pack(shape);
        if let Some(abort) = self.segment.abort() {
            // Cells are safe to write again only as long as everybody has read those before.
            for local in 0..self.segment.ranks() {
                if let Some(theirs) =
                    self.segment.cell(local, *number + 1).tag().filter(|theirs| *theirs != tag)
                {
                    return Err(differs(shape, step, local, theirs));
                }
            }
            return Err(Error::Closed(format!(
                "{shape} of \"{}\" was not started: {}",
                group.ad_hoc,
                cause(group, abort)
            )));
        }
        *number += 1;
        let mine = self.segment.local();
        let data = data.as_mut_slice();
        if !self.segment.cell(mine, *number).publish(tag, data) {
            return Err(Error::Internal(format!("{} bytes do not fit a cell", data.len())));
        }
        for local in 0..self.segment.ranks() {
            let cell = self.segment.cell(local, *number);
            let bytes = self.wait(group, &cell, local, begin, shape, step, data.len())?;
            if local == 0 {
                // The own contribution is safe in its cell: the tensor is where the fold happens.
                data.copy_from_slice(bytes);
            } else {
                self.kernels.accumulate(shape.dtype, shape.op, data, bytes);
            }
        }
        if shape.op == ReduceOp::Avg {
            self.kernels.finish_avg(shape.dtype, data, self.segment.ranks());
        }
        Ok(())
    }

    /// Waits for a rank's contribution, driving the engine now and then.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn wait<'a>(
        &self,
        group: &Group,
        cell: &Cell<'a>,
        local: u32,
        begin: Instant,
        shape: &Shape,
        step: u64,
        len: usize,
    ) -> Result<&'a [u8], Error> {
        let mut idle = Backoff::new(self.idle);
        let mut turns = 0u32;
        loop {
            if let Some((tag, bytes)) = cell.read(len) {
                if tag != pack(shape) {
                    self.segment.set_abort(local, Why::Diverged.code() as u8);
                    return Err(differs(shape, step, local, tag));
                }
                return Ok(bytes);
            }
            turns = turns.wrapping_add(1);
            let parked = idle.wait(Activity::Idle, None);
            if (parked || turns.is_multiple_of(LOOK_EVERY))
                && let Err(error) = self.look_around(group, local, begin, shape, step)
                // What was published in the meantime counts, though its rank may have left since.
                && cell.read(len).is_none()
            {
                return Err(error);
            }
        }
    }

    #[cold]
    fn look_around(
        &self,
        group: &Group,
        local: u32,
        begin: Instant,
        shape: &Shape,
        step: u64,
    ) -> Result<(), Error> {
        group.drive.turn()?;
        let waited = Clock.now() - begin;
        let aborted = self.segment.abort();
        let name = &group.ad_hoc;
        if waited > SLOW || aborted.is_some() {
            let (segment, number) = (self.segment.clone(), self.segment.small_started(self.segment.local()));
            let found = group
                .drive
                .with(move |engine| instead_of_small(&segment, local, number, engine.started()))?;
            if let Some(found) = found {
                return Err(Error::Mismatch(format!(
                    "{shape} at step {step}: rank {local} runs {found}; run the same operations in the same order on \
                     every rank"
                )));
            }
        }
        if let Some(abort) = aborted {
            return Err(Error::PeerFailed(format!(
                "{shape} of \"{name}\" at step {step} was given up: {}",
                cause(group, abort)
            )));
        }
        if waited > group.deadline {
            // Else the others would blame this rank, which leaves.
            self.segment.set_abort(local, Why::Late.code() as u8);
            return Err(Error::Deadline(format!(
                "{shape} of \"{name}\" at step {step} waits for rank {local} since {waited:?}; check that it runs the same operations, \
                 or give operations more time (SHOUTER_DEADLINE)"
            )));
        }
        Ok(())
    }
}

/// Why the group has ended.
fn cause(group: &Group, abort: Abort) -> AbortCause {
    AbortCause::seen_by(group.rank, Rank(abort.culprit), Why::from_code(abort.reason.into()))
}

/// Another rank runs something else in the same place.
#[cold]
fn differs(shape: &Shape, step: u64, local: u32, tag: u64) -> Error {
    let theirs = unpack(tag, 0).map_or_else(|| "something unknown".into(), |view| view.shape.to_string());
    Error::Mismatch(format!(
        "{shape} at step {step}: rank {local} runs {theirs}; run the same operations in the same order on every rank"
    ))
}
