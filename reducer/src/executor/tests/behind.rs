//! Operations in which a rank asks nothing of the others of its node, one after the other.

use super::collectives::Tensors;
use super::harness::{ANNOUNCEMENTS, Buffer, Faults, Group, shape};
use super::*;
use crate::schedule::build;
use std::sync::Arc;

const RANKS: u32 = 3;

/// A rank's part of a collective from rank 0, in its own memory.
fn request(group: &Group, collective: Collective, algorithm: Algorithm, tensors: &Tensors) -> Request {
    let (problem, [data, input]) = (&tensors.problem, tensors.regions());
    let schedule = Arc::new(build(algorithm, problem, &group.params).unwrap());
    let nothing = Shape { collective, ..shape(DType::I64, ReduceOp::Sum, 0) };
    let request = group.request(problem.rank, algorithm, nothing, &Buffer::new(&[]));
    Request { shape: problem.shape, data, input, schedule, ..request }
}

fn tensors(grid: Grid, rank: u32, collective: Collective) -> Tensors {
    let count = if collective == Collective::Barrier { 0 } else { 4 };
    let shape = Shape { collective, ..shape(DType::I64, ReduceOp::Sum, count) };
    let problem = Problem::new(grid, Rank(rank), &shape, Rank(0));
    let problem = if problem.has_input() { problem.separate() } else { problem };
    let given = i64::from(rank + 1).to_le_bytes().repeat(problem.input_bytes() as usize / 8);
    Tensors::new(problem, &given)
}

/// Runs it, while no engine sees a reason to compare.
fn run(group: &mut Group, parts: Vec<Request>, what: Collective) {
    let wanted = group.completed[0].len() + 1;
    for (rank, part) in parts.into_iter().enumerate() {
        group.start(rank, part).unwrap();
    }
    for _ in 0..100 {
        (0..RANKS as usize).for_each(|rank| _ = group.poll(rank));
        if group.completed.iter().all(|completed| completed.len() == wanted) {
            return;
        }
    }
    panic!("operation {wanted} does not end, in a row of {what}");
}

/// A scan's first rank, a broadcast's root, and the others of a reduce go on without the others. What they have announced is overwritten
/// before it is compared for the sum.
#[test]
fn ranks_agree_after_more_operations_than_are_announced() {
    let grid = Grid::new(RANKS, RANKS).unwrap();
    for collective in Collective::ALL.into_iter().filter(|one| !one.has_counts()) {
        let mut group = Group::new(5, grid, Faults::default(), |_| {});
        for algorithm in Algorithm::ALL.into_iter().filter(|one| one.applies_to(collective)) {
            let all: Vec<_> = (0..RANKS).map(|rank| tensors(grid, rank, collective)).collect();
            for _ in 0..ANNOUNCEMENTS + 10 {
                let part = |own| request(&group, collective, algorithm, own);
                let parts = all.iter().map(part).collect();
                run(&mut group, parts, collective);
            }
            let sum = |rank| tensors(grid, rank, Collective::AllReduce);
            let sums: Vec<_> = (0..RANKS).map(sum).collect();
            let part = |own| request(&group, Collective::AllReduce, Algorithm::Direct, own);
            let parts = sums.iter().map(part).collect();
            run(&mut group, parts, collective);
            let right = i64::to_le_bytes(6).repeat(4);
            assert!(sums.iter().all(|sum| sum.result() == right), "{collective} by {algorithm:?}");
        }
        group.drain();
        assert!(group.completed.iter().flatten().all(|completed| completed.result.is_ok()));
    }
}
