//! What a tensor's elements are, and how two of them become one.
//!
//! Both enums travel in message headers and in the tensor table's digest, so their numbers are part of the
//! protocol: a new kind takes a new number, and no number is ever given to something else.

use thiserror::Error;

/// Why a number or a word names no [`DType`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DTypeError {
    /// A number that this version of the protocol does not know.
    #[error("{0} is no element type that this version knows; do all ranks run the same version?")]
    Number(u8),
    /// A word that names no element type.
    #[error("\"{0}\" is no element type; use one of f16, bf16, f32, f64, i8 to i64, u8 to u64")]
    Name(String),
}

/// Why a number or a word names no [`ReduceOp`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReduceOpError {
    /// A number that this version of the protocol does not know.
    #[error("{0} is no reduction that this version knows; do all ranks run the same version?")]
    Number(u8),
    /// A word that names no reduction.
    #[error("\"{0}\" is no reduction; use one of sum, min, max, prod, avg")]
    Name(String),
}

/// Defines an enum whose variants have a number on the wire and a name for people.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident, $error:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $word:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    }
}

wire_enum! {
    /// How the ranks' elements become one. The exact arithmetic is that of `kernel`.
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
    }
}

impl DType {
    /// Whether folds are done in a wider type and rounded at their end, so that a fold of folds may have other bits than one of all.
    pub const fn is_folded_wider(self, op: ReduceOp) -> bool {
        matches!(self, Self::F16 | Self::Bf16) && !matches!(op, ReduceOp::Min | ReduceOp::Max)
    }

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

#[cfg(test)]
mod tests;
