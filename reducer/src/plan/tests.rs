use super::*;
use crate::dtype::{DType, ReduceOp};
use crate::header::Collective;

#[test]
fn a_plan_survives_the_wire_and_its_digest_tells_differences() {
    let plan = Plan { forced: Some(Algorithm::Ring), leaf_size: 3, ..Plan::default() };
    assert_eq!(Plan::from_bytes(&plan.to_bytes()), Ok(plan));
    assert_ne!(plan.digest(), Plan::default().digest());
    assert_eq!(Plan::from_bytes(&[0; 3]), Err(PlanError::Length(3)));
    for at in 0..Plan::BYTES {
        let mut bytes = plan.to_bytes();
        bytes[at] ^= 0xff;
        if let Ok(other) = Plan::from_bytes(&bytes) {
            assert!(other.check().is_ok());
        }
    }
}

#[test]
fn unusable_numbers_are_refused() {
    for plan in [
        Plan { lanes: 0, ..Plan::default() },
        Plan { chunk_bytes: 100, ..Plan::default() },
        Plan { eager_bytes: u64::MAX, ..Plan::default() },
    ] {
        assert!(matches!(Plan::from_bytes(&plan.to_bytes()), Err(PlanError::Value { .. })), "{plan:?}");
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
