//! The CUDA C text. The files include nothing: they are joined here, the one that all others need first.

/// The whole program.
pub(super) const PROGRAM: &str = concat!(
    include_str!("source/number.cuh"),
    include_str!("source/fold.cu"),
    include_str!("source/pack.cu"),
    include_str!("source/crc.cu"),
);

/// The program's name in the compiler's messages.
pub(super) const NAME: &str = "shouter.cu";
