use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Grid;
use shouter_reducer::header::Collective;
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::Problem;

use super::super::table::Tables;
use super::*;

#[test]
fn a_thousand_shapes_keep_as_many_schedules_as_are_kept() {
    let (plan, grid) = (Plan::default(), Grid::new(2, 2).unwrap());
    let part = |count| ScheduleKey {
        grid,
        rank: Rank(0),
        shape: Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count },
        root: Rank(0),
        access: Access::Host,
        placement: Placement::InPlace,
        counts: None,
    };
    let mut schedules = Schedules::default();
    for count in 0..1000 {
        // One is used again and again.
        for count in [7, count] {
            let key = part(count);
            if schedules.get(&key).is_none() {
                let built = plan.schedule(&grid, Rank(0), &key.shape, Rank(0)).unwrap();
                schedules.insert(key, Arc::new(built));
            }
        }
    }
    assert_eq!(schedules.kept.len(), KEPT);
    let mut is_kept = |count| schedules.get(&part(count)).is_some();
    assert_eq!([7, 999, 900].map(&mut is_kept), [true, true, false]);
}

#[test]
fn counts_that_change_in_each_step_do_not_drive_the_others_out() {
    let (plan, grid) = (Plan::default(), Grid::new(2, 2).unwrap());
    let shape = |collective| Shape { collective, dtype: DType::F32, op: ReduceOp::Sum, count: 9 };
    let equal = Problem::new(grid, Rank(0), &shape(Collective::AllGather), Rank(0));
    let uneven = |step| {
        let counts = Arc::new(Counts::of_blocks(vec![step, 9]).unwrap());
        Problem::new(grid, Rank(0), &shape(Collective::AllGatherV), Rank(0)).with_counts(counts)
    };
    let key = |problem: &Problem| ScheduleKey {
        grid,
        rank: Rank(0),
        shape: problem.shape,
        root: problem.root,
        access: problem.access,
        placement: problem.placement,
        counts: problem.counts.clone(),
    };
    let mut schedules = Schedules::default();
    for problem in [equal.clone()].into_iter().chain((0..1000).map(uneven)) {
        let built = plan.schedule_for(&problem).unwrap();
        schedules.insert(key(&problem), Arc::new(built));
    }
    assert_eq!(schedules.kept.len(), 1 + KEPT_UNEVEN);
    let mut is_kept = |problem: &Problem| schedules.get(&key(problem)).is_some();
    assert_eq!([equal, uneven(999), uneven(900)].map(|problem| is_kept(&problem)), [true, true, false]);
}

#[test]
fn a_group_finds_the_schedules_of_an_earlier_one_with_as_many_ranks() {
    let known = Known::default();
    let tables =
        |rank, ranks| Tables::new(Rank(rank), Grid::new(ranks, 1).unwrap(), Plan::default(), known.clone());
    let schedule = |tables: &Tables, count| {
        let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
        tables.schedule(&tables.problem(&shape, Rank(0))).unwrap()
    };
    let first = schedule(&tables(1, 2), 9);
    assert!(Arc::ptr_eq(&first, &schedule(&tables(1, 2), 9)));
    // Another rank, another number of ranks, another shape.
    for other in [schedule(&tables(0, 2), 9), schedule(&tables(1, 3), 9), schedule(&tables(1, 2), 10)] {
        assert!(!Arc::ptr_eq(&first, &other));
    }
    // One that uses many shapes keeps what it uses, whatever the others use meanwhile.
    let (one, other) = (tables(1, 2), tables(1, 2));
    let kept = schedule(&one, 9);
    (10..1000).for_each(|count| drop(schedule(&other, count)));
    assert!(Arc::ptr_eq(&kept, &schedule(&one, 9)));
}
