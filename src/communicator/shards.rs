//! Large all-reduces over several shards: each shard reduces a part of the tensor, on an engine, a channel and queues of its own. Each element
//! is folded over the same ranks in the same order whatever the part, so the bits are those of one shard.
//!
//! An operation ends when all its parts have, each of which its engine has fenced after an error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use shouter_reducer::executor::{OpError, Request};
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::schedule::{Problem, Schedule};

use super::Group;
use super::drive::{Failure as RunFailure, OperationFailure, RankEngine, Sibling};
use super::table::Entry;
use crate::engine::submitted::{Failure, Report};
use crate::error::Error;
use crate::runtime::{Driver, lock};

/// The least bytes of a part: a smaller tensor is one shard's, for what a part costs does not depend on its size.
const LEAST_PART: u64 = 64 << 10;

/// Parts begin at cache lines of the tensor, which hold whole elements of any type.
const LINE: u64 = 64;

/// The schedules of an operation: of all of it, or of each shard's part.
pub(super) enum Schedules {
    /// One shard has the whole.
    Whole(Arc<Schedule>),
    /// Each shard has a part.
    Parts(Arc<[Arc<Schedule>]>),
}

impl Schedules {
    /// The first shard's.
    pub(super) fn first(&self) -> &Arc<Schedule> {
        match self {
            Self::Whole(schedule) => schedule,
            Self::Parts(parts) => &parts[0],
        }
    }
}

/// The element at which part `index` of so many begins; the last one ends at the end.
fn begin_of(shape: &Shape, index: usize, parts: usize) -> u64 {
    if index == parts {
        return shape.count;
    }
    let line = LINE / shape.dtype.size() as u64;
    shape.count / parts as u64 / line * line * index as u64
}

/// The part of a shard.
fn part_of(shape: &Shape, index: usize, parts: usize) -> Shape {
    Shape { count: begin_of(shape, index + 1, parts) - begin_of(shape, index, parts), ..*shape }
}

impl Group {
    /// How many parts an operation has. All ranks find the same: it depends on the plan and the operation alone.
    fn parts(&self, problem: &Problem) -> usize {
        let shards = 1 + self.drive.siblings().len();
        let bytes = problem.shape.count.saturating_mul(problem.shape.dtype.size() as u64);
        let cut = problem.shape.collective == Collective::AllReduce && bytes >= LEAST_PART * shards as u64;
        if cut { shards } else { 1 }
    }

    /// Whether an operation is spread over shards.
    pub(super) fn is_spread(&self, problem: &Problem) -> bool {
        self.parts(problem) > 1
    }

    /// The same of a registered tensor; one of a bucket goes with the others of that.
    pub(super) fn is_spread_of(&self, entry: &Entry, problem: &Problem) -> bool {
        entry.member.is_none() && self.is_spread(problem)
    }

    /// The schedules of the parts of an operation that is spread.
    pub(super) fn part_schedules(&self, problem: &Problem) -> Result<Arc<[Arc<Schedule>]>, Error> {
        let parts = self.parts(problem);
        let schedule = |index| {
            let shape = part_of(&problem.shape, index, parts);
            self.tables.schedule(&Problem { shape, ..problem.clone() })
        };
        (0..parts).map(schedule).collect()
    }

    /// The schedules of an operation outside the table.
    pub(super) fn schedules(&self, problem: &Problem) -> Result<Schedules, Error> {
        match self.is_spread(problem) {
            true => self.part_schedules(problem).map(Schedules::Parts),
            false => self.tables.schedule(problem).map(Schedules::Whole),
        }
    }

    /// Refuses memory that shards do not reduce in parts: another rank's part would wait for ever.
    pub(super) fn check_spread(&self, whole: &Request) -> Result<(), Error> {
        let is_device = |region: &TensorRegion| region.kind() == MemoryKind::Device && !region.is_empty();
        match whole.device.is_some() || is_device(&whole.data) || is_device(&whole.input) {
            true => Err(Self::unspread(&whole.shape)),
            false => Ok(()),
        }
    }

    /// The error of an operation on a GPU's memory.
    pub(super) fn unspread(shape: &Shape) -> Error {
        Error::Argument(format!(
            "{shape} of a tensor in a GPU's memory is not spread over shards; set shards = 1 on all ranks"
        ))
    }

    /// Runs an operation that is spread to its end. `whole` is the request but for the schedule.
    pub(super) fn run_spread(
        &self,
        whole: &Request,
        schedules: &Arc<[Arc<Schedule>]>,
    ) -> Result<(), OperationFailure> {
        let end = Arc::new(Awaited {
            parts: PartEnds::new(schedules.len()),
            driver: self.drive.weak(),
            result: Mutex::default(),
        });
        let report: Arc<dyn Report> = end.clone();
        let own = self.submissions()?.clone();
        let (first, waiting) = (request_of(whole, schedules, 0), (own, report.clone()));
        let hand = move || waiting.0.push(&first, 0, &waiting.1, None).then_some(());
        hand().map_or_else(|| self.drive.until(hand, None), Ok)?;
        let ended = end.clone();
        let handed = self.hand_to_siblings(whole, schedules, &report);
        let result = handed.and_then(|()| self.drive.until(move || lock(&ended.result).take(), None));
        match result.inspect_err(|_| self.drive.await_stop(|| lock(&end.result).is_some()))? {
            Ok(()) => Ok(()),
            Err(Failure::Operation(why)) => Err(RunFailure::Failed(why)),
            Err(Failure::Start(why)) => Err(RunFailure::Start(why)),
            Err(_) => {
                Err(Error::closed(format!("{} was under way when its group was dropped", whole.shape)).into())
            }
        }
    }

    /// Wakes the shard that has the first part, and hands the others to their shards, when these have slots: the deadlines of operations under way
    /// bound the wait. After an error the operation has no end, and its memory may be in use until [`Drive::await_stop`](super::drive::Drive::await_stop).
    pub(super) fn hand_to_siblings(
        &self,
        whole: &Request,
        schedules: &Arc<[Arc<Schedule>]>,
        report: &Arc<dyn Report>,
    ) -> Result<(), Error> {
        self.drive.nudge()?;
        for (index, Sibling { drive, submissions }) in (1..).zip(self.drive.siblings()) {
            let request = request_of(whole, schedules, index);
            if !submissions.push(&request, 0, report, None) {
                let (submissions, report) = (submissions.clone(), report.clone());
                let handed = move || submissions.push(&request, 0, &report, None).then_some(());
                drive.until(handed, None)?;
            }
            drive.nudge()?;
        }
        Ok(())
    }
}

/// The request of a part. It says which part it is, so that no rank takes it for the whole of a smaller tensor.
pub(super) fn request_of(whole: &Request, schedules: &Arc<[Arc<Schedule>]>, index: usize) -> Request {
    let parts = schedules.len();
    let shape = part_of(&whole.shape, index, parts);
    let elem = shape.dtype.size() as u64;
    let (offset, len) = (begin_of(&whole.shape, index, parts) * elem, shape.count * elem);
    let cut =
        |region: &TensorRegion| region.sub(offset as usize, len as usize).unwrap_or_else(TensorRegion::empty);
    let identity = match whole.identity {
        Identity::AdHoc { .. } => Identity::part(index as u32),
        other => other,
    };
    let input = if whole.input.is_empty() { TensorRegion::empty() } else { cut(&whole.input) };
    Request {
        identity,
        shape,
        data: cut(&whole.data),
        input,
        schedule: schedules[index].clone(),
        ..whole.clone()
    }
}

/// The parts of an operation that have not ended.
pub(super) struct PartEnds {
    left: AtomicUsize,
    failure: Mutex<Option<Failure>>,
}

impl PartEnds {
    pub(super) fn new(parts: usize) -> Self {
        Self { left: AtomicUsize::new(parts), failure: Mutex::default() }
    }

    /// A part has ended. Returns how the operation has, when all have: the first failure, but a missed deadline says more than the end of
    /// the group by which it ends the other parts.
    pub(super) fn ended(&self, result: Result<(), Failure>) -> Option<Result<(), Failure>> {
        if let Err(why) = result {
            let mut failure = lock(&self.failure);
            let is_cause = matches!(why, Failure::Operation(OpError::Deadline { .. }));
            if failure.is_none() || is_cause {
                *failure = Some(why);
            }
        }
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        is_last.then(|| lock(&self.failure).take().map_or(Ok(()), Err))
    }
}

/// The end of an operation for which its caller waits.
struct Awaited {
    parts: PartEnds,
    driver: Weak<Driver<RankEngine>>,
    result: Mutex<Option<Result<(), Failure>>>,
}

impl Report for Awaited {
    fn released(&self) {}

    fn ended(self: Arc<Self>, result: Result<(), Failure>) {
        if let Some(result) = self.parts.ended(result) {
            *lock(&self.result) = Some(result);
            if let Some(driver) = self.driver.upgrade() {
                driver.recheck();
            }
        }
    }
}

#[cfg(test)]
mod tests;
