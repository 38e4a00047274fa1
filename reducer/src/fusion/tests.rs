//! Which tensors share a bucket, and when it goes.

use std::time::Duration;

use super::*;
use crate::dtype::{DType, ReduceOp};
use crate::executor::Request;
use crate::grid::{Grid, Rank};
use crate::memory::TensorRegion;
use crate::schedule::Problem;

fn plan(below: u64, bytes: u64) -> Plan {
    Plan { fuse_below: below, fuse_bytes: bytes, ..Plan::default() }
}

fn spec(name: &str, dtype: DType, count: u64) -> TensorSpec {
    TensorSpec::all_reduce(name, dtype, count, ReduceOp::Sum)
}

/// The members of each bucket.
fn members(plan: &Plan, specs: &[TensorSpec]) -> Vec<Vec<u32>> {
    layouts(plan, specs).into_iter().map(|layout| layout.tensors).collect()
}

#[test]
fn buckets_follow_from_the_table_and_the_plan() {
    let f32 = |name, count| spec(name, DType::F32, count);
    let specs = [
        f32("a", 10),
        f32("large", 1000),
        f32("b", 20),
        spec("c", DType::F16, 8),
        TensorSpec { collective: Collective::Broadcast, ..f32("broadcast", 4) },
        TensorSpec { op: ReduceOp::Max, ..f32("max", 4) },
        f32("empty", 0),
        f32("d", 30),
        spec("e", DType::F16, 8),
        f32("at the limit", 64),
    ];
    assert_eq!(members(&plan(0, 1 << 20), &specs), Vec::<Vec<u32>>::new());
    assert_eq!(members(&plan(256, 1 << 20), &specs), [vec![0, 2, 7], vec![3, 8]]);
    assert_eq!(members(&plan(257, 1 << 20), &specs), [vec![0, 2, 7, 9], vec![3, 8]]);
    // As many as fit, and none is alone.
    assert_eq!(members(&plan(256, 120), &specs), [vec![0, 2], vec![3, 8]]);
    assert_eq!(members(&plan(256, 119), &specs), [vec![3, 8]]);
    let layout = &layouts(&plan(257, 1 << 20), &specs)[0];
    assert_eq!((layout.bytes(), layout.shape.count), (4 * 124, 124));
    assert_eq!(
        (0..5).map(|at| layout.place(at)).collect::<Vec<_>>(),
        [Some((0, 40)), Some((40, 80)), Some((120, 120)), Some((240, 256)), None]
    );
}

#[test]
fn nothing_is_fused_where_the_plan_names_an_algorithm_of_another_order() {
    let specs = [spec("a", DType::F32, 10), spec("b", DType::F32, 10)];
    for (algorithm, buckets) in [("ring", 0), ("recursive_doubling", 0), ("direct", 1), ("hierarchical", 1)] {
        let overrides = format!("all_reduce:{algorithm}").parse().unwrap();
        let plan = Plan { overrides, ..plan(256, 1 << 20) };
        assert_eq!(members(&plan, &specs).len(), buckets, "{algorithm}");
    }
}

#[test]
fn a_bucket_is_named_by_its_members() {
    let names: Vec<String> = (0..20).map(|number| format!("t{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(list(&names[..2]), "t0 + t1");
    assert!(list(&names[..17]).ends_with(" + t15 + t16"));
    assert_eq!(list(&names), "t0 + t1 + t2 + t3 + t4 + t5 + t6 + t7 + 11 more + t19");
}

/// The bucket of a table of three tensors, "a" to "c".
fn bucket(generation: u32) -> Arc<Bucket> {
    let plan = plan(256, 1 << 20);
    let specs = ["a", "b", "c"].map(|name| spec(name, DType::F32, 4));
    let layout = layouts(&plan, &specs).swap_remove(0);
    let grid = Grid::new(1, 1).unwrap();
    let problem = Problem::new(grid, Rank(0), &layout.shape, Rank(0));
    let schedule = Arc::new(plan.schedule_for(&problem).unwrap());
    Arc::new(Bucket::new(layout, generation, 3, &specs, schedule).unwrap())
}

fn push(queue: &mut FusionQueue<u32>, bucket: &Arc<Bucket>, index: usize, deadline: u64) {
    let request = Request {
        identity: Identity::AdHoc { root: Rank(0) },
        shape: bucket.layout.shape,
        data: TensorRegion::empty(),
        input: TensorRegion::empty(),
        schedule: bucket.schedule.clone(),
        priority: 0,
        deadline: Duration::from_secs(deadline),
        name: Arc::from("t"),
        step: 0,
        pushed: Duration::ZERO,
        device: None,
    };
    queue.push(&Member { bucket: bucket.clone(), index }, request, index as u32);
}

#[test]
fn what_is_held_past_a_deadline_is_given_up_and_nothing_else() {
    let (mut queue, buckets) = (FusionQueue::default(), [bucket(0), bucket(1)]);
    push(&mut queue, &buckets[0], 1, 5);
    push(&mut queue, &buckets[1], 0, 7);
    push(&mut queue, &buckets[1], 2, 9);
    let given_up = |queue: &mut FusionQueue<u32>, now| {
        let mut told = vec![];
        queue.give_up(Duration::from_secs(now), |reports, missing| {
            told.push((reports.collect::<Vec<u32>>(), missing.to_string()));
        });
        told
    };
    assert_eq!(given_up(&mut queue, 4), []);
    assert_eq!((queue.held(), queue.until()), (3, Duration::from_secs(5)));
    assert_eq!(given_up(&mut queue, 5), [(vec![1], "a + c".to_owned())]);
    assert_eq!((queue.held(), queue.until()), (2, Duration::from_secs(7)));
    assert_eq!(given_up(&mut queue, 8), [(vec![0, 2], "b".to_owned())]);
    assert_eq!((queue.held(), queue.until(), queue.ready()), (0, Duration::MAX, 0));
}

#[test]
fn the_memory_of_earlier_tables_is_given_back() {
    let (mut queue, buckets) = (FusionQueue::default(), [bucket(0), bucket(1)]);
    let own = |bucket| Arc::strong_count(bucket) - 1;
    for (at, kept) in [(0, [1, 0]), (1, [0, 1]), (0, [1, 1]), (1, [1, 1])] {
        push(&mut queue, &buckets[at], 0, 5);
        queue.flush();
        assert_eq!(queue.take().map(|ready| ready.request.priority), Some(0));
        assert_eq!([own(&buckets[0]), own(&buckets[1])], kept);
    }
}
