//! The end of every request that is handed over is reported, also when the engine is dropped.

use std::sync::Mutex;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::fusion::{self, Bucket};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::Problem;
use shouter_reducer::table::TensorSpec;

use super::*;

/// Keeps the queue, as handles of fused tensors do.
struct Handle {
    _queue: Arc<Submissions>,
    ends: Mutex<Vec<Result<(), Failure>>>,
}

impl Report for Handle {
    fn released(&self) {}

    fn ended(self: Arc<Self>, result: Result<(), Failure>) {
        self.ends.lock().unwrap().push(result);
    }
}

fn request() -> Request {
    let (plan, grid) = (Plan::default(), Grid::new(1, 1).unwrap());
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 1 };
    Request {
        identity: Identity::AdHoc { root: Rank(0) },
        shape,
        data: TensorRegion::empty(),
        input: TensorRegion::empty(),
        schedule: Arc::new(plan.schedule_for(&Problem::new(grid, Rank(0), &shape, Rank(0))).unwrap()),
        priority: 0,
        deadline: Duration::MAX,
        name: Arc::from("t"),
        step: 0,
        pushed: Duration::ZERO,
        device: None,
    }
}

#[test]
fn what_is_in_the_queue_is_gone_with_the_engine_and_when_this_rank_leaves() {
    for leaves in [false, true] {
        let mut submitted = Submitted::default();
        let queue = submitted.queue().clone();
        let handle = Arc::new(Handle { _queue: queue.clone(), ends: Mutex::default() });
        let report: Arc<dyn Report> = handle.clone();
        let hand = || assert!(queue.push(&request(), 0, &report, None));
        let heard =
            || handle.ends.lock().unwrap().iter().filter(|end| matches!(end, Err(Failure::Gone))).count();
        hand();
        if leaves {
            submitted.leave();
            assert_eq!((heard(), queue.are_all_started()), (1, true));
            hand();
            assert!(submitted.next().is_none() && submitted.is_empty());
        } else {
            drop(submitted);
        }
        assert_eq!(heard(), 1 + usize::from(leaves));
        assert!(queue.are_all_started());
    }
}

/// A member of a bucket of two.
fn member() -> Member {
    let plan = Plan { fuse_below: 4096, ..Plan::default() };
    let specs = ["a", "b"].map(|name| TensorSpec::all_reduce(name, DType::F32, 4, ReduceOp::Sum));
    let layout = fusion::layouts(&plan, &specs).remove(0);
    Member { bucket: Arc::new(Bucket::new(layout, 0, 2, &specs, request().schedule).unwrap()), index: 0 }
}

#[test]
fn what_is_taken_and_held_is_a_change_as_well_which_a_caller_may_wait_for() {
    let mut submitted = Submitted::default();
    let queue = submitted.queue().clone();
    let handle: Arc<dyn Report> = Arc::new(Handle { _queue: queue.clone(), ends: Mutex::default() });
    assert!(queue.push(&request(), 0, &handle, Some(&member())));
    assert!(!queue.are_all_started() && !submitted.take_change());
    assert!(submitted.next().is_none(), "it is held for the other");
    assert!(queue.are_all_started() && submitted.take_change());
    assert!(!submitted.take_change());
    submitted.give_up(Instant::ZERO + Duration::from_secs(1));
    assert!(submitted.take_change(), "who waits for its end may go on");
}
