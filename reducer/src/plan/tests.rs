use super::*;
use crate::dtype::{DType, ReduceOp};
use crate::header::Collective;

#[test]
fn every_difference_shows_by_name() {
    let plan = Plan::default();
    let others = [
        ("channel_num", Plan { channel_num: 3, ..plan }),
        ("algorithm", Plan { forced: Some(Algorithm::Ring), ..plan }),
        ("leaf_size", Plan { leaf_size: 3, ..plan }),
        ("eager_bytes", Plan { eager_bytes: 3, ..plan }),
        ("direct_bytes", Plan { direct_bytes: 3, ..plan }),
        ("chunk_bytes", Plan { chunk_bytes: 3, ..plan }),
        ("lanes", Plan { lanes: 3, ..plan }),
        ("lane_bytes", Plan { lane_bytes: 3, ..plan }),
        ("depth", Plan { depth: 3, ..plan }),
    ];
    for (name, other) in others {
        let differing: Vec<_> =
            plan.fields().into_iter().zip(other.fields()).filter(|(a, b)| a != b).collect();
        assert_eq!(differing.iter().map(|(field, _)| field.0).collect::<Vec<_>>(), [name]);
    }
}

fn problem(collective: Collective, nodes: u32, bytes: u64) -> Problem {
    let grid = Grid::new(nodes, 1, 8).unwrap();
    let shape = Shape { collective, dtype: DType::U8, op: ReduceOp::Sum, count: bytes };
    Problem::new(grid, Rank(1), &shape, Rank(0))
}

#[test]
fn the_size_picks_the_algorithm() {
    let plan = Plan::default();
    let all_reduce = |nodes, bytes| plan.algorithm(&problem(Collective::AllReduce, nodes, bytes));
    assert_eq!(all_reduce(2, 4), Algorithm::Direct);
    assert_eq!(all_reduce(2, plan.direct_bytes), Algorithm::Direct);
    assert_eq!(all_reduce(2, plan.direct_bytes + 1), Algorithm::Hierarchical);
    assert_eq!(all_reduce(4, plan.direct_bytes), Algorithm::Hierarchical);
    let forced = Plan { forced: Some(Algorithm::Ring), ..plan };
    assert_eq!(forced.algorithm(&problem(Collective::AllReduce, 2, 4)), Algorithm::Ring);
    assert_eq!(forced.algorithm(&problem(Collective::Broadcast, 2, 4)), Algorithm::Direct);
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 4 };
    let schedule = plan.schedule(&Grid::new(4, 1, 1).unwrap(), Rank(1), &shape, Rank(0)).unwrap();
    assert_eq!(schedule.sources().count(), 3);
}

#[test]
fn many_nodes_take_rounds_and_large_tensors_chunks() {
    let plan = Plan::default();
    let (small, large) = (8, 64 << 20);
    for (collective, few, many, big) in [
        (Collective::AllReduce, Algorithm::Direct, Algorithm::Bruck, Algorithm::Hierarchical),
        (Collective::Reduce, Algorithm::Direct, Algorithm::Binomial, Algorithm::Hierarchical),
        (Collective::Broadcast, Algorithm::Direct, Algorithm::Binomial, Algorithm::Chain),
        (Collective::AllGather, Algorithm::Direct, Algorithm::Bruck, Algorithm::Ring),
        (Collective::Gather, Algorithm::Direct, Algorithm::Binomial, Algorithm::Direct),
        (Collective::Scatter, Algorithm::Direct, Algorithm::Binomial, Algorithm::Direct),
        (Collective::ReduceScatter, Algorithm::Direct, Algorithm::Direct, Algorithm::Direct),
        (Collective::AllToAll, Algorithm::Direct, Algorithm::Bruck, Algorithm::Pairwise),
        (Collective::Barrier, Algorithm::Direct, Algorithm::Dissemination, Algorithm::Dissemination),
    ] {
        assert_eq!(plan.algorithm(&problem(collective, 4, small)), few, "{collective}");
        assert_eq!(plan.algorithm(&problem(collective, 33, small)), many, "{collective}");
        assert_eq!(plan.algorithm(&problem(collective, 33, large)), big, "{collective}");
    }
    // Two nodes have one way only, and a chunk is not worth a long chain.
    assert_eq!(plan.algorithm(&problem(Collective::Broadcast, 2, large)), Algorithm::Binomial);
    assert_eq!(plan.algorithm(&problem(Collective::Broadcast, 33, plan.chunk_bytes)), Algorithm::Binomial);
}
