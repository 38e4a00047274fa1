//! What collectives must give. The simulation of whole engines (`tests/simulated_collectives.rs`) includes this file, too: names come from
//! the module above.

use super::{Collective, Counts, Grid, Problem, Rank, ReduceOp};
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;

/// Element by element, by the definition. The problem has the counts of all ranks.
pub(crate) fn expected(problem: &Problem, inputs: &[Vec<i64>]) -> Vec<i64> {
    let ranks = inputs.len();
    let (rank, root) = (problem.rank.0 as usize, problem.root.0 as usize);
    let block = problem.shape.count as usize;
    let reduced_over = |ranks: std::ops::Range<usize>, at: usize| {
        let column = inputs[ranks].iter().map(|input| input[at]);
        match problem.shape.op {
            ReduceOp::Max => column.max().unwrap(),
            ReduceOp::Avg => column.sum::<i64>() / inputs.len() as i64,
            _ => column.sum(),
        }
    };
    let reduced = |at: usize| reduced_over(0..ranks, at);
    // The block of a rank in what another one gives.
    let block_of = |from: usize, of: usize| {
        let Some(counts) = &problem.counts else { return of * block..(of + 1) * block };
        let given: Vec<_> = counts.given_by(Rank(from as u32)).map(|count| count as usize).collect();
        let start: usize = given[..of].iter().sum();
        start..start + given[of]
    };
    let is_root = rank == root;
    match problem.shape.collective.base() {
        Collective::AllReduce => (0..block).map(reduced).collect(),
        Collective::Reduce if is_root => (0..block).map(reduced).collect(),
        Collective::ReduceScatter => block_of(0, rank).map(reduced).collect(),
        Collective::Broadcast => inputs[root].clone(),
        Collective::AllGather => inputs.concat(),
        Collective::Gather if is_root => inputs.concat(),
        Collective::Scatter => inputs[root][block_of(root, rank)].to_vec(),
        Collective::AllToAll => {
            (0..ranks).flat_map(|from| &inputs[from][block_of(from, rank)]).copied().collect()
        }
        Collective::Scan => (0..block).map(|at| reduced_over(0..rank + 1, at)).collect(),
        Collective::ExScan if rank > 0 => (0..block).map(|at| reduced_over(0..rank, at)).collect(),
        _ => Vec::new(),
    }
}

/// Counts that differ, some of them zero.
pub(crate) fn counts(rng: &mut SmallRng, collective: Collective, grid: Grid) -> Arc<Counts> {
    let ranks = grid.ranks();
    let most = [0, 3, 70, 200][rng.random_range(0..4)];
    let mut some = |number: u32| (0..number).map(|_| rng.random_range(0..3) * most / 2).collect();
    Arc::new(match collective {
        Collective::AllToAllV => Counts::of_matrix(&grid, some(ranks * ranks)).unwrap(),
        _ => Counts::of_blocks(some(ranks)).unwrap(),
    })
}
