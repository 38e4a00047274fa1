//! Every number of both formats against the specification's fields, and roundings against a search for the nearest number.

use super::*;

/// A format as the specification's table 1 describes it, and its conversions.
pub(crate) struct Format {
    fraction: i32,
    bias: i32,
    /// The magnitude of the largest number.
    largest: u8,
    infinity: Option<u8>,
    nan: u8,
    to_f32: fn(u8) -> f32,
    from_f32: fn(f32) -> u8,
}

pub(crate) const E4M3: Format = Format {
    fraction: 3,
    bias: 7,
    largest: 0x7e,
    infinity: None,
    nan: 0x7f,
    to_f32: |bits| F8E4M3::from_bits(bits).to_f32(),
    from_f32: |x| F8E4M3::from_f32(x).to_bits(),
};

pub(crate) const E5M2: Format = Format {
    fraction: 2,
    bias: 15,
    largest: 0x7b,
    infinity: Some(0x7c),
    nan: 0x7e,
    to_f32: |bits| F8E5M2::from_bits(bits).to_f32(),
    from_f32: |x| F8E5M2::from_f32(x).to_bits(),
};

impl Format {
    /// The value of the bits, computed from the fields.
    pub(crate) fn value(&self, bits: u8) -> f64 {
        let magnitude = bits & 0x7f;
        let sign = if bits >= 0x80 { -1.0 } else { 1.0 };
        match magnitude {
            infinity if Some(infinity) == self.infinity => sign * f64::INFINITY,
            nan if nan > self.largest => f64::NAN,
            _ => sign * self.step(magnitude),
        }
    }

    /// A magnitude as a number; the one behind the largest as if exponents had no end.
    fn step(&self, magnitude: u8) -> f64 {
        let hidden = 1 << self.fraction;
        let (exponent, field) = (i32::from(magnitude) / hidden, i32::from(magnitude) % hidden);
        let (exponent, whole) = if exponent == 0 { (1, field) } else { (exponent, field + hidden) };
        f64::from(whole) * 2f64.powi(exponent - self.bias - self.fraction)
    }

    /// The nearest magnitude, found among all of them; of two the even one.
    pub(crate) fn nearest(&self, x: f64) -> u8 {
        if x.is_nan() {
            return self.nan;
        }
        // All that is far beyond the largest is alike; in f64 it would be as far from all of them.
        let absolute = x.abs().min(1e6);
        let away = |&magnitude: &u8| (self.step(magnitude) - absolute, magnitude % 2);
        let candidates = 0..=self.largest + 1;
        let nearest = candidates.min_by(|a, b| {
            let ((a, a_odd), (b, b_odd)) = (away(a), away(b));
            a.abs().total_cmp(&b.abs()).then(a_odd.cmp(&b_odd))
        });
        let nearest = nearest.unwrap();
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        match self.infinity {
            None if nearest > self.largest => self.nan,
            Some(infinity) if nearest > self.largest => infinity | sign,
            _ => nearest | sign,
        }
    }
}

#[test]
fn every_number_is_what_its_fields_say() {
    for format in [E4M3, E5M2] {
        for bits in 0..=255u8 {
            let (found, due) = (f64::from((format.to_f32)(bits)), format.value(bits));
            assert!(found.to_bits() == due.to_bits() || found.is_nan() && due.is_nan(), "{bits:#x}");
            let canonical = if due.is_nan() { format.nan } else { bits };
            assert_eq!((format.from_f32)((format.to_f32)(bits)), canonical, "{bits:#x} and back");
        }
    }
    // The specification's table 1.
    let of = |format: Format| [format.largest, 1 << format.fraction, 1].map(|bits| (format.to_f32)(bits));
    assert_eq!(of(E4M3), [448.0, 2f32.powi(-6), 2f32.powi(-9)]);
    assert_eq!(of(E5M2), [57344.0, 2f32.powi(-14), 2f32.powi(-16)]);
}

#[test]
fn everything_rounds_to_the_nearest_number() {
    for format in [E4M3, E5M2] {
        let mut inputs: Vec<u32> = (0..=u32::MAX).step_by(99_991).collect();
        for magnitude in 0..=format.largest + 1 {
            // A number, the middle between it and the next, and the values beside both.
            let [number, middle] = [
                format.step(magnitude),
                (format.step(magnitude) + format.step(magnitude.saturating_add(1).min(format.largest + 1)))
                    / 2.0,
            ]
            .map(|x| (x as f32).to_bits());
            for bits in [number, middle] {
                inputs.extend([bits.wrapping_sub(1), bits, bits + 1].map(|bits| bits & 0x7fff_ffff));
            }
        }
        inputs.extend([0, 1, 0x7f80_0000, 0x7f80_0001, 0x7fc0_0000, 0x7f7f_ffff, 0x3f80_0000]);
        for bits in inputs.into_iter().flat_map(|bits| [bits, bits | 1 << 31]) {
            let x = f32::from_bits(bits);
            assert_eq!((format.from_f32)(x), format.nearest(f64::from(x)), "{x:e} ({bits:#x})");
        }
    }
}

#[test]
fn what_is_too_large_is_not_saturated() {
    for (x, e4m3, e5m2) in [
        (464.0, 0x7e, 0x5f), // halfway from 448 to 480, which would be even
        (464.1, 0x7f, 0x5f),
        (61439.9, 0x7f, 0x7b),
        (61440.0, 0x7f, 0x7c), // halfway from 57,344 to 65,536
        (f32::INFINITY, 0x7f, 0x7c),
        (f32::NEG_INFINITY, 0x7f, 0xfc),
        (-f32::NAN, 0x7f, 0x7e),
    ] {
        assert_eq!((F8E4M3::from_f32(x).to_bits(), F8E5M2::from_f32(x).to_bits()), (e4m3, e5m2), "{x}");
    }
}
