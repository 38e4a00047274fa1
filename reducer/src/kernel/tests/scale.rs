//! Products with a real factor, against the definition: the factor rounded to the accumulation type, the product to the element's.

use super::*;

/// Factors of all kinds: exact, rounded on the way to f32, subnormal there, too large for it, none.
const FACTORS: [f64; 12] =
    [1.0, -1.0, 0.0, -0.5, 1.0 / 3.0, 0.1, 1e-40, 1e40, -1e-310, f64::INFINITY, f64::NAN, 1.0 + f64::EPSILON];

/// One product, in bits.
fn oracle(dtype: DType, bits: u64, factor: f64) -> u64 {
    if let Some(format) = float8(dtype) {
        return format.nearest(f64::from(format.value(bits as u8) as f32 * factor as f32)).into();
    }
    match dtype {
        DType::F16 => narrow_f16(f16::from_bits(bits as u16).to_f32_const() * factor as f32),
        DType::Bf16 => narrow_bf16(bf16::from_bits(bits as u16).to_f32() * factor as f32),
        DType::F32 => narrow_f32(f32::from_bits(bits as u32) * factor as f32),
        DType::F64 => narrow_f64(f64::from_bits(bits) * factor),
        _ => panic!("{dtype} has no factor"),
    }
}

fn check(kernels: Kernels, dtype: DType, part: DType, elements: &[u64], factor: f64, shift: usize) {
    let due: Vec<u64> = elements.iter().map(|&bits| oracle(part, bits, factor)).collect();
    let mut src = Laid::new(part, elements, shift);
    let mut dst = Laid::new(part, &vec![0; elements.len()], shift / 2);
    let len = elements.len() * part.size();
    // SAFETY: both are so long, and apart.
    let (from, into) = unsafe {
        (std::slice::from_raw_parts(src.ptr(), len), std::slice::from_raw_parts_mut(dst.ptr(), len))
    };
    kernels.scale(dtype, into, from, factor);
    // SAFETY: the source is so long.
    kernels.scale_in_place(dtype, unsafe { std::slice::from_raw_parts_mut(src.ptr(), len) }, factor);
    for found in [dst, src] {
        let found = found.elements(part);
        let wrong = (0..due.len()).find(|&i| found[i] != due[i]);
        let say = |i: usize| format!("{:#x} gave {:#x}, not {:#x}", elements[i], found[i], due[i]);
        assert_eq!(wrong.map(say), None, "{:?} {dtype} x {factor}", kernels.level());
    }
}

#[test]
fn every_level_gives_the_product_of_the_definition() {
    let mut rng = SmallRng::seed_from_u64(7);
    for kernels in levels() {
        for dtype in DType::ALL.iter().copied().filter(|dtype| kernels.check_factor(*dtype).is_ok()) {
            let part = match dtype {
                DType::Complex64 => DType::F32,
                DType::Complex128 => DType::F64,
                other => other,
            };
            for factor in FACTORS {
                for count in [0, 1, 2, 7, 31, 64, 513] {
                    let elements = random(&mut rng, part, count * dtype.size() / part.size());
                    check(kernels, dtype, part, &elements, factor, count % 13);
                }
            }
        }
    }
}

#[test]
fn floats_and_complex_numbers_have_factors_and_nothing_else_has() {
    for kernels in levels() {
        for &dtype in DType::ALL {
            let has = is_float(dtype) || matches!(dtype, DType::Complex64 | DType::Complex128);
            assert_eq!(kernels.check_factor(dtype).is_ok(), has, "{dtype}");
        }
        let refused = kernels.check_factor(DType::I32).unwrap_err().to_string();
        assert!(
            refused.contains("i32") && refused.contains("multiply them where they are made"),
            "{refused}"
        );
    }
}
