//! What is handed over is heard of, whatever becomes of the engine.

use std::sync::Mutex;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::Problem;

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
    let (plan, grid) = (Plan::default(), Grid::new(1, 1, Plan::default().leaf_size).unwrap());
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
