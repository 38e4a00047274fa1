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

#[test]
fn the_size_picks_the_algorithm() {
    let plan = Plan::default();
    let (pair, grid) = (Grid::new(2, 1, 1).unwrap(), Grid::new(4, 1, 1).unwrap());
    assert_eq!(plan.algorithm(&pair, 4), Algorithm::Direct);
    assert_eq!(plan.algorithm(&pair, plan.direct_bytes), Algorithm::Direct);
    assert_eq!(plan.algorithm(&pair, plan.direct_bytes + 1), Algorithm::Hierarchical);
    assert_eq!(plan.algorithm(&grid, plan.direct_bytes), Algorithm::Hierarchical);
    let forced = Plan { forced: Some(Algorithm::Ring), ..plan };
    assert_eq!(forced.algorithm(&pair, 4), Algorithm::Ring);
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 4 };
    let schedule = plan.schedule(&grid, Rank(1), &shape, Rank(0)).unwrap();
    assert_eq!(schedule.sources().count(), 3);
}
