use rand::SeedableRng;

use super::*;

#[test]
fn bits_mean_what_the_hardware_says() {
    let mut rng = SmallRng::seed_from_u64(5);
    for _ in 0..10_000 {
        let bits: u32 = rng.random();
        let (ours, theirs) = (Float::F32.value(bits.into()), f64::from(f32::from_bits(bits)));
        assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:#x}: {ours:e} {theirs:e}");
        let upper = f64::from(f32::from_bits(bits & 0xffff_0000));
        let ours = Float::BF16.value((bits >> 16).into());
        assert!(ours == upper || ours.is_nan() && upper.is_nan(), "{bits:#x}");
    }
    let cases =
        [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (1, 2f64.powi(-24)), (0x0400, 2f64.powi(-14))];
    for (bits, value) in cases {
        assert_eq!(Float::F16.value(bits), value);
    }
    assert_eq!(Float::F16.value(0xfc00), f64::NEG_INFINITY);
    assert_eq!([Float::F16, Float::BF16, Float::F32].map(Float::nan), [0x7e00, 0x7fc0, 0x7fc0_0000]);
}

#[test]
fn elements_are_laid_one_after_the_other() {
    let bytes = elements(DType::I16, 3, |index| 0xffff_0100 + index as u64);
    assert_eq!(bytes, [0, 1, 1, 1, 2, 1]);
    assert_eq!((at(DType::I16, &bytes, 2), at(DType::I16, &bytes, 3)), (0x102, 0));
    let mut rng = SmallRng::seed_from_u64(1);
    let special =
        (0..1000).filter(|_| Float::F16.value(element(&mut rng, DType::F16) & 0xffff).is_nan()).count();
    assert!((10..500).contains(&special), "{special}");
}
