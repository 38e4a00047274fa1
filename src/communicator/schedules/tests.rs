use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Grid;
use shouter_reducer::header::Collective;
use shouter_reducer::plan::Plan;

use super::*;

#[test]
fn a_thousand_shapes_keep_as_many_schedules_as_are_kept() {
    let (plan, grid) = (Plan::default(), Grid::new(2, 2, 8).unwrap());
    let part = |count| ScheduleKey {
        shape: Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count },
        root: Rank(0),
        access: Access::Host,
        placement: Placement::InPlace,
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
