//! Floating-point formats by their two widths, and random elements: the check's own computation, not the kernels'.

use rand::Rng;
use rand::rngs::SmallRng;
use shouter::DType;

/// A format of IEEE 754 (or bfloat16, which is one in all but name).
#[derive(Clone, Copy, Debug)]
pub(super) struct Float {
    exponent: u32,
    /// Bits of the significand that are stored.
    pub(super) fraction: u32,
}

impl Float {
    /// binary16.
    pub(super) const F16: Self = Self { exponent: 5, fraction: 10 };
    /// bfloat16.
    pub(super) const BF16: Self = Self { exponent: 8, fraction: 7 };
    /// binary32.
    pub(super) const F32: Self = Self { exponent: 8, fraction: 23 };
    /// binary64.
    pub(super) const F64: Self = Self { exponent: 11, fraction: 52 };

    /// E5M2.
    const F8E5M2: Self = Self { exponent: 5, fraction: 2 };

    /// The format of an element type; `None` for integers and for E4M3, where random bytes are enough.
    fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::F16),
            DType::Bf16 => Some(Self::BF16),
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::F8E5M2 => Some(Self::F8E5M2),
            _ => None,
        }
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The sign's bit.
    pub(super) fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    /// Positive infinity.
    pub(super) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// The canonical NaN: positive, quiet, without payload.
    pub(super) fn nan(self) -> u64 {
        self.infinity() | 1 << (self.fraction - 1)
    }

    /// The number with these bits.
    pub(super) fn value(self, bits: u64) -> f64 {
        if self.fraction == Self::F64.fraction {
            return f64::from_bits(bits);
        }
        let sign = if bits & self.sign() == 0 { 1.0 } else { -1.0 };
        let magnitude = bits & (self.sign() - 1);
        match magnitude {
            nan if nan > self.infinity() => f64::NAN,
            infinity if infinity == self.infinity() => sign * f64::INFINITY,
            finite => sign * self.step(finite),
        }
    }

    /// A magnitude as a number; infinity as the next power of two.
    fn step(self, magnitude: u64) -> f64 {
        let fraction = magnitude & ((1 << self.fraction) - 1);
        let (exponent, whole) = match magnitude >> self.fraction {
            0 => (1, fraction),
            exponent => (exponent as i32, fraction | 1 << self.fraction),
        };
        whole as f64 * 2f64.powi(exponent - self.bias() - self.fraction as i32)
    }

    /// A finite number of either sign, from 2^`least` to 2^(`most` + 1).
    pub(super) fn ordinary(self, rng: &mut SmallRng, least: i32, most: i32) -> u64 {
        let exponent = (rng.random_range(least..=most) + self.bias()) as u64;
        let rest = rng.random::<u64>() & (self.sign() | ((1 << self.fraction) - 1));
        rest | exponent << self.fraction
    }

    /// Zeros, infinities, NaNs of all kinds, the largest and the smallest numbers.
    fn special(self, rng: &mut SmallRng) -> u64 {
        let infinity = self.infinity();
        let magnitudes = [
            0,
            1,
            (1 << self.fraction) - 1,
            1 << self.fraction,
            infinity - 1,
            infinity,
            infinity + 1,
            self.nan() + 1,
        ];
        magnitudes[rng.random_range(0..magnitudes.len())] | if rng.random() { self.sign() } else { 0 }
    }
}

/// A random element: any bits; of floats half are ordinary numbers, and some of the rest special.
fn element(rng: &mut SmallRng, dtype: DType) -> u64 {
    let Some(float) = Float::of(dtype) else { return rng.random() };
    match rng.random_range(0..8) {
        0 => float.special(rng),
        1..4 => rng.random::<u64>() & (float.sign() | (float.sign() - 1)),
        _ => float.ordinary(rng, -4, 4),
    }
}

/// `count` random elements as bytes.
pub(super) fn random(rng: &mut SmallRng, dtype: DType, count: usize) -> Vec<u8> {
    let (part, parts) = match dtype {
        DType::Complex64 => (DType::F32, 2),
        DType::Complex128 => (DType::F64, 2),
        whole => (whole, 1),
    };
    elements(part, parts * count, |_| element(rng, part))
}

/// `count` elements as bytes.
pub(super) fn elements(dtype: DType, count: usize, mut next: impl FnMut(usize) -> u64) -> Vec<u8> {
    (0..count).flat_map(|index| next(index).to_le_bytes().into_iter().take(dtype.size())).collect()
}

/// Element `index` of such bytes; 0 beyond them.
pub(super) fn at(dtype: DType, bytes: &[u8], index: usize) -> u64 {
    let mut wide = [0; 8];
    let size = dtype.size();
    if let Some(found) = bytes.get(index * size..(index + 1) * size) {
        wide[..size].copy_from_slice(found);
    }
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests;
