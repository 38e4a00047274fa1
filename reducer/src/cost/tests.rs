use super::*;
use crate::plan::{Plan, Choices};

const SIZES: [u64; 9] = [4, 64, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30];

fn shape(collective: Collective, bytes: u64) -> Shape {
    Shape { collective, dtype: DType::F32, op: ReduceOp::Sum, count: bytes / 4 }
}

/// Ranks, and ranks on each host.
fn grids() -> impl Iterator<Item = Grid> {
    let sizes = [(2, 1), (3, 1), (8, 1), (13, 1), (32, 1), (2, 2), (4, 4), (4, 2), (16, 8), (64, 8), (256, 1), (1024, 8)];
    sizes.into_iter().map(|(ranks, per_node)| Grid::new(ranks, per_node, 8).unwrap())
}

#[test]
fn print_table() {
    for grid in grids() {
        for collective in Collective::ALL {
            for bytes in SIZES {
                let model = Plan::default().model();
                let shape = shape(collective, bytes);
                let begin = std::time::Instant::now();
                let all: Vec<_> = serving(collective).iter().map(|&a| (a.name(), model.predict(a, &grid, &shape).map(|t| t.to_string()))).collect();
                println!("{}x{} {collective} {bytes}: {all:?} bound {} in {:?}", grid.nodes(), grid.per_node(), model.lower_bound(&grid, &shape), begin.elapsed());
            }
        }
    }
}
