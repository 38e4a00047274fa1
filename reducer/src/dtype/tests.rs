use super::*;

#[test]
fn numbers_and_names_lead_back_to_the_variant() {
    for &dtype in DType::ALL {
        assert_eq!(DType::try_from(u8::from(dtype)), Ok(dtype));
        assert_eq!(DType::parse(dtype.name()), Ok(dtype));
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
    for &op in ReduceOp::ALL {
        assert_eq!(ReduceOp::try_from(u8::from(op)), Ok(op));
        assert_eq!(ReduceOp::parse(op.name()), Ok(op));
    }
}

#[test]
fn the_wire_numbers_are_frozen() {
    let numbers: Vec<(u8, &str, usize)> =
        DType::ALL.iter().map(|&d| (u8::from(d), d.name(), d.size())).collect();
    assert_eq!(
        numbers,
        [
            (0, "f16", 2),
            (1, "bf16", 2),
            (2, "f32", 4),
            (3, "f64", 8),
            (4, "i8", 1),
            (5, "i16", 2),
            (6, "i32", 4),
            (7, "i64", 8),
            (8, "u8", 1),
            (9, "u16", 2),
            (10, "u32", 4),
            (11, "u64", 8),
        ]
    );
    let ops: Vec<(u8, &str)> = ReduceOp::ALL.iter().map(|&o| (u8::from(o), o.name())).collect();
    assert_eq!(ops, [(0, "sum"), (1, "min"), (2, "max"), (3, "prod"), (4, "avg")]);
}

#[test]
fn strangers_are_refused_by_name() {
    assert_eq!(DType::try_from(12), Err(DTypeError::Number(12)));
    assert_eq!(ReduceOp::try_from(255), Err(ReduceOpError::Number(255)));
    assert!(DType::parse("F32").unwrap_err().to_string().contains("\"F32\""));
    assert!(ReduceOp::parse("mean").unwrap_err().to_string().contains("avg"));
}
