//! Buffers of typed elements, seen as the bytes that the reducer works on.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use shouter_reducer::dtype::DType;
use shouter_reducer::memory::{MemoryKind, TensorRegion};

use crate::error::Error;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element of a tensor: [`f16`](crate::f16), [`bf16`](crate::bf16), `f32`, `f64`, and `i8` to `i64` and `u8` to
/// `u64`.
///
/// ```
/// use shouter::{DType, Element};
///
/// assert_eq!(<f32 as Element>::DTYPE, DType::F32);
/// assert_eq!(<shouter::bf16 as Element>::DTYPE.size(), 2);
/// ```
pub trait Element: Copy + sealed::Sealed {
    /// Its type on the wire.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => { $(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )* };
}

elements! {
    half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

/// A trainer's buffer: bytes that are this call's alone, for as long as the call or the operation lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    base: NonNull<u8>,
    len: usize,
}

impl Buffer {
    /// No bytes.
    pub(super) fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// `count` elements at `data`.
    ///
    /// # Safety
    /// `data` is valid for reads and writes of them, and nobody else touches them while the buffer is in use.
    pub(super) unsafe fn from_raw(data: *mut u8, count: usize, dtype: DType) -> Result<Self, Error> {
        if !data.addr().is_multiple_of(dtype.size()) {
            return Err(Error::Argument(format!(
                "the buffer's address is not aligned to its elements' {} bytes",
                dtype.size()
            )));
        }
        let len = count.checked_mul(dtype.size()).filter(|len| isize::try_from(*len).is_ok());
        let len = len.ok_or_else(|| {
            Error::Argument(format!("{count} elements of {} bytes do not fit in memory", dtype.size()))
        })?;
        match NonNull::new(data) {
            Some(base) => Ok(Self { base, len }),
            None if len == 0 => Ok(Self::empty()),
            None => Err(Error::Argument("the buffer's address is NULL".into())),
        }
    }

    /// Length in bytes.
    pub(super) fn len(self) -> usize {
        self.len
    }

    /// The address.
    pub(super) fn as_ptr(self) -> *const u8 {
        self.base.as_ptr()
    }

    /// The bytes as the reducer's memory.
    pub(super) fn region(self, kind: MemoryKind) -> TensorRegion {
        // SAFETY: the promise of `from_raw` (or the mutable borrow in `with_bytes`) covers the operation, after which
        // the region is not used.
        unsafe { TensorRegion::from_raw_parts(kind, self.base, self.len, 0) }
    }

    /// The bytes, to be read.
    pub(super) fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: as for `as_mut_slice`; a slice to write of the same bytes is made only after this one was used.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The bytes.
    pub(super) fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        // SAFETY: as for `region`; the callers in this module's parent hold one slice at a time, within the call.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// The elements' bytes, which are only read, while the slice is borrowed.
pub(super) fn from_slice<T: Element>(data: &[T]) -> Buffer {
    Buffer { base: NonNull::from(data).cast(), len: size_of_val(data) }
}

/// Lends the elements' bytes to `f`, which is done with them when it returns.
#[inline]
pub(super) fn with_bytes<T: Element, R>(data: &mut [T], f: impl FnOnce(Buffer) -> R) -> R {
    let len = size_of_val(data);
    let base = NonNull::from(data).cast();
    f(Buffer { base, len })
}
