use shouter_reducer::dtype::{DType, ReduceOp};

use super::*;

mod cost;

#[test]
fn parts_cover_a_tensor_and_begin_at_cache_lines() {
    for dtype in [DType::U8, DType::F16, DType::F32, DType::F64, DType::Complex128] {
        for (count, parts) in [(1 << 20, 2), (100_003, 3), (65_537, 16)] {
            let shape = Shape { collective: Collective::AllReduce, dtype, op: ReduceOp::Sum, count };
            let mut at = 0;
            for index in 0..parts {
                assert_eq!(begin_of(&shape, index, parts), at);
                assert_eq!(at * dtype.size() as u64 % LINE, 0);
                at += part_of(&shape, index, parts).count;
            }
            assert_eq!(at, count);
        }
    }
}
