//! Buffers of typed elements, seen as the bytes that the reducer works on.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use num_complex::Complex;
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::float8::{F8E4M3, F8E5M2};
use shouter_reducer::memory::{MemoryKind, TensorRegion};

use crate::error::Error;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element of a tensor: [`f16`](crate::f16), [`bf16`](crate::bf16), `f32`, `f64`,
/// [`F8E4M3`], [`F8E5M2`], `i8` to `i64`, `u8` to `u64`, [`Complex`] of `f32` and of `f64`,
/// and [`Bool`].
///
/// ```
/// use shouter::{DType, Element};
///
/// assert_eq!(<f32 as Element>::DTYPE, DType::F32);
/// assert_eq!(<shouter::bf16 as Element>::DTYPE.size(), 2);
/// ```
pub trait Element: Copy + sealed::Sealed + 'static {
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
    half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64, Complex<f32> => Complex64, Complex<f64> => Complex128, Bool => Bool,
}

/// A truth value of a tensor: a byte, of which 0 is false and all others are true. Reductions write 0 or 1.
///
/// It is no `bool`, whose byte may be nothing but 0 and 1, while another rank may send any.
///
/// ```
/// use shouter::Bool;
///
/// let mut finished = [true, false].map(Bool::from);
/// finished[1] = true.into();
/// assert!(finished.iter().all(|flag| flag.get()));
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// Whether it is true.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

/// As truth values: all that are true are equal.
impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

impl fmt::Display for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

/// Refuses a reduction that the elements do not have.
#[inline]
pub(super) fn check(dtype: DType, op: ReduceOp) -> Result<(), Error> {
    op.check(dtype).map_err(|why| Error::Argument(why.to_string()))
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
        if !data.addr().is_multiple_of(dtype.align()) {
            return Err(Error::Argument(format!(
                "the buffer's address is no multiple of {} bytes, to which {dtype} is aligned",
                dtype.align()
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
