//! The calling thread's floating-point mode, set aside while a kernel runs.
//!
//! A trainer may have set its threads to flush subnormals to zero (`torch.set_flush_denormal`), to another rounding
//! mode, or to trap. Kernels run on such threads, and must still give the bits that every other rank gives.

/// While this lives, the thread computes as IEEE 754 has it by default: to nearest even, no flushing, no traps.
/// Almost always it does so already, and then this costs one store and a comparison.
pub(super) struct FloatEnv {
    /// The control word to put back; `None` where nothing was changed.
    saved: Option<Word>,
}

impl FloatEnv {
    #[inline]
    pub(super) fn ieee() -> Self {
        let word = read();
        if word & CONTROL == DEFAULT {
            return Self { saved: None };
        }
        write(DEFAULT);
        Self { saved: Some(word) }
    }
}

impl Drop for FloatEnv {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.saved {
            write(word);
        }
    }
}

pub(super) use arch::Word;
use arch::{CONTROL, DEFAULT, read, write};

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;

    /// MXCSR.
    pub(in super::super) type Word = u32;
    /// Everything but the sticky exception flags: flush to zero, rounding, exception masks, subnormals as zeros.
    pub(super) const CONTROL: Word = 0xffc0;
    /// All exceptions masked, nothing else set.
    pub(super) const DEFAULT: Word = 0x1f80;

    #[inline]
    pub(super) fn read() -> Word {
        let mut word = 0;
        // SAFETY: stores four bytes, the control word, into `word`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) }
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is the default or one that `read` has given, so no reserved bit is set. The compiler
        // moves no load or store across, and the kernels' arithmetic lies between their loads and stores.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) }
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use std::arch::asm;

    /// FPCR.
    pub(in super::super) type Word = u64;
    /// Alternative half precision, default NaN, flush to zero, rounding, flush f16, traps, FEAT_AFP's bits.
    pub(super) const CONTROL: Word = 0x07c8_9f07;
    /// Nothing set.
    pub(super) const DEFAULT: Word = 0;

    #[inline]
    pub(super) fn read() -> Word {
        let word;
        // SAFETY: reads a register that user code may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) }
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is the default or one that `read` has given. The compiler moves no load or store
        // across, and the kernels' arithmetic lies between their loads and stores.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod arch {
    /// No mode that could be changed is known here.
    pub(in super::super) type Word = u32;
    pub(super) const CONTROL: Word = 0;
    pub(super) const DEFAULT: Word = 0;

    pub(super) fn read() -> Word {
        DEFAULT
    }

    pub(super) fn write(_: Word) {}
}
