//! The types of a tensor's elements, and the reductions that make one element of two.
//!
//! Both enums travel in message headers, so their numbers are part of the
//! protocol: a new kind takes a new number, and no number is ever given to something else.

use thiserror::Error;

/// Why a number or a word names no [`DType`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DTypeError {
    /// A number that this version of the protocol does not know.
    #[error("{0} is no element type that this version knows; do all ranks run the same version?")]
    Number(u8),
    /// A word that names no element type.
    #[error(
        "\"{0}\" is no element type; use one of f16, bf16, f32, f64, f8e4m3, f8e5m2, i8 to i64, u8 to u64, complex64, complex128, bool"
    )]
    Name(String),
}

/// Why a number or a word names no [`ReduceOp`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReduceOpError {
    /// A number that this version of the protocol does not know.
    #[error("{0} is no reduction that this version knows; do all ranks run the same version?")]
    Number(u8),
    /// A word that names no reduction.
    #[error("\"{0}\" is no reduction; use one of sum, min, max, prod, avg, band, bor, bxor, land, lor, lxor")]
    Name(String),
}

/// A reduction that an element type does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there is no {op} of {dtype}: {}", .dtype.reductions())]
pub struct NoReduction {
    /// The type.
    pub dtype: DType,
    /// The reduction.
    pub op: ReduceOp,
}

/// Defines an enum whose variants have a number on the wire and a name for people.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident, $error:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $word:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant = $number,)+ }

        impl $name {
            /// Every variant, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name for people, as [`parse`](Self::parse) takes it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// The variant of this name, in lower case.
            ///
            /// # Errors
            /// The word is no such name; the error lists them.
            pub fn parse(word: &str) -> Result<Self, $error> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($error::Name(word.to_owned())),
                }
            }
        }

        impl TryFrom<u8> for $name {
            type Error = $error;

            fn try_from(number: u8) -> Result<Self, $error> {
                match number {
                    $($number => Ok(Self::$variant),)+
                    _ => Err($error::Number(number)),
                }
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                value as u8
            }
        }

        impl std::str::FromStr for $name {
            type Err = $error;

            fn from_str(word: &str) -> Result<Self, $error> {
                Self::parse(word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

wire_enum! {
    /// The type of a tensor's elements, in the host's byte order (little endian on every supported host).
    DType, DTypeError {
        /// IEEE 754 binary16: 11 bits of significand, 5 of exponent.
        F16 = 0, "f16";
        /// The upper half of a binary32: 8 bits of significand, 8 of exponent.
        Bf16 = 1, "bf16";
        /// IEEE 754 binary32.
        F32 = 2, "f32";
        /// IEEE 754 binary64.
        F64 = 3, "f64";
        /// Signed, 8 bits.
        I8 = 4, "i8";
        /// Signed, 16 bits.
        I16 = 5, "i16";
        /// Signed, 32 bits.
        I32 = 6, "i32";
        /// Signed, 64 bits.
        I64 = 7, "i64";
        /// Unsigned, 8 bits.
        U8 = 8, "u8";
        /// Unsigned, 16 bits.
        U16 = 9, "u16";
        /// Unsigned, 32 bits.
        U32 = 10, "u32";
        /// Unsigned, 64 bits.
        U64 = 11, "u64";
        /// OCP E4M3: 4 bits of significand, 4 of exponent; numbers that are too large become NaN. See [`float8`](crate::float8).
        F8E4M3 = 12, "f8e4m3";
        /// OCP E5M2: 3 bits of significand, 5 of exponent. See [`float8`](crate::float8).
        F8E5M2 = 13, "f8e5m2";
        /// Two binary32: the real part, then the imaginary part.
        Complex64 = 14, "complex64";
        /// Two binary64: the real part, then the imaginary part.
        Complex128 = 15, "complex128";
        /// A truth value in a byte: 0 is false, all others are true. Reductions write 0 or 1; bytes that are only moved stay as they are.
        Bool = 16, "bool";
    }
}

wire_enum! {
    /// How the ranks' elements become one. The exact arithmetic is that of `kernel`; [`check`](ReduceOp::check) tells which
    /// types have which.
    ReduceOp, ReduceOpError {
        /// The sum; integers wrap.
        Sum = 0, "sum";
        /// The least; a NaN anywhere gives NaN, and -0 is less than +0.
        Min = 1, "min";
        /// The greatest; a NaN anywhere gives NaN, and +0 is greater than -0.
        Max = 2, "max";
        /// The product; integers wrap.
        Prod = 3, "prod";
        /// The sum, divided at the end by the number of ranks; integers truncate toward zero.
        Avg = 4, "avg";
        /// Each bit of an integer that all have.
        Band = 5, "band";
        /// Each bit of an integer that any has.
        Bor = 6, "bor";
        /// Each bit of an integer that an odd number of them have.
        Bxor = 7, "bxor";
        /// Whether all truth values are true.
        Land = 8, "land";
        /// Whether any truth value is true.
        Lor = 9, "lor";
        /// Whether an odd number of truth values are true.
        Lxor = 10, "lxor";
    }
}

/// The class of an element type, as far as reductions care.
enum Class {
    Float,
    Integer,
    Complex,
    Truth,
}

impl DType {
    /// Whether folds are done in a wider type and rounded at their end, so that a fold of folds may have other bits than one of all.
    pub const fn is_folded_wider(self, op: ReduceOp) -> bool {
        matches!(self, Self::F16 | Self::Bf16) && !matches!(op, ReduceOp::Min | ReduceOp::Max)
    }

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// The alignment of an element's address, in bytes: its size, or that of a complex number's parts.
    pub const fn align(self) -> usize {
        match self {
            Self::Complex64 | Self::Complex128 => self.size() / 2,
            _ => self.size(),
        }
    }

    const fn class(self) -> Class {
        match self {
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::F8E4M3 | Self::F8E5M2 => Class::Float,
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => Class::Integer,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Class::Integer,
            Self::Complex64 | Self::Complex128 => Class::Complex,
            Self::Bool => Class::Truth,
        }
    }

    /// The reductions that the type has, and what to do where another is wanted.
    const fn reductions(self) -> &'static str {
        match self.class() {
            Class::Float => {
                "floats have sum, min, max, prod and avg; reduce their bits as unsigned integers of that size"
            }
            Class::Integer => {
                "integers have sum, min, max, prod, avg, band, bor and bxor; reduce truth values as bool"
            }
            Class::Complex => {
                "complex numbers have sum, prod and avg; reduce their parts as twice as many floats"
            }
            Class::Truth => "truth values have land, lor and lxor; reduce the bytes as u8",
        }
    }
}

impl ReduceOp {
    /// Whether elements of this type can be reduced so: numbers are added, averaged and multiplied, those that have an order have a least
    /// and a greatest; integers have bits, and truth values logic.
    pub const fn is_of(self, dtype: DType) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Avg => !matches!(dtype.class(), Class::Truth),
            Self::Min | Self::Max => matches!(dtype.class(), Class::Float | Class::Integer),
            Self::Band | Self::Bor | Self::Bxor => matches!(dtype.class(), Class::Integer),
            Self::Land | Self::Lor | Self::Lxor => matches!(dtype.class(), Class::Truth),
        }
    }

    /// Refuses a reduction that makes no sense, such as the least of complex numbers; the error names those that the type has.
    ///
    /// # Errors
    /// [`NoReduction`] names both, and the reductions that the type has.
    pub const fn check(self, dtype: DType) -> Result<(), NoReduction> {
        if self.is_of(dtype) { Ok(()) } else { Err(NoReduction { dtype, op: self }) }
    }

    /// The type as which elements of `dtype` are folded, to the same bits: complex numbers are added part by part, and bits are bits in
    /// any integer.
    pub(crate) const fn folds_as(self, dtype: DType) -> DType {
        match (self, dtype) {
            (Self::Sum | Self::Avg, DType::Complex64) => DType::F32,
            (Self::Sum | Self::Avg, DType::Complex128) => DType::F64,
            (Self::Band | Self::Bor | Self::Bxor, _) => DType::U8,
            _ => dtype,
        }
    }
}

#[cfg(test)]
mod tests;
