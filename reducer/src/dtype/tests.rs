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
            (12, "f8e4m3", 1),
            (13, "f8e5m2", 1),
            (14, "complex64", 8),
            (15, "complex128", 16),
            (16, "bool", 1),
        ]
    );
    let ops: Vec<(u8, &str)> = ReduceOp::ALL.iter().map(|&o| (u8::from(o), o.name())).collect();
    let names = ["sum", "min", "max", "prod", "avg", "band", "bor", "bxor", "land", "lor", "lxor"];
    assert_eq!(ops, (0..).zip(names).collect::<Vec<_>>());
}

#[test]
fn unknown_numbers_and_names_are_refused() {
    assert_eq!(DType::try_from(17), Err(DTypeError::Number(17)));
    assert_eq!(ReduceOp::try_from(255), Err(ReduceOpError::Number(255)));
    assert!(DType::parse("F32").unwrap_err().to_string().contains("\"F32\""));
    assert!(ReduceOp::parse("mean").unwrap_err().to_string().contains("avg"));
}

#[test]
fn every_pair_of_type_and_reduction_is_had_or_refused_by_name() {
    const NUMBERS: &[&str] = &["sum", "min", "max", "prod", "avg"];
    const INTEGERS: &[&str] = &["sum", "min", "max", "prod", "avg", "band", "bor", "bxor"];
    for &dtype in DType::ALL {
        let due = match dtype.name() {
            "f16" | "bf16" | "f32" | "f64" | "f8e4m3" | "f8e5m2" => NUMBERS,
            "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" => INTEGERS,
            "complex64" | "complex128" => &["sum", "prod", "avg"],
            "bool" => &["land", "lor", "lxor"],
            other => panic!("{other} is not listed"),
        };
        for &op in ReduceOp::ALL {
            match op.check(dtype) {
                Ok(()) => assert!(due.contains(&op.name()), "{op} of {dtype}"),
                Err(why) => {
                    assert!(!due.contains(&op.name()), "{op} of {dtype}");
                    let text = why.to_string();
                    assert!(text.starts_with(&format!("there is no {op} of {dtype}: ")), "{text}");
                    // It names what there is.
                    assert!(due.iter().all(|name| text.contains(name)), "{text}");
                    assert!(text.contains("; reduce "), "{text}");
                }
            }
        }
    }
}
