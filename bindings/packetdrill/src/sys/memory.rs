//! The caller's buffers. They are copied in and out, so that nothing of the caller's is borrowed while a call waits.

use core::ffi::c_void;
use core::ptr;

use libc::{c_int, iovec};

use crate::errno::{Errno, Result};

/// Bytes that one call reads or writes at most: a short read or write is within the calls' contract.
const MOST: usize = 1 << 26;

/// Pieces that a vector has at most (UIO_MAXIOV).
const MAX_PIECES: usize = 1024;

const FAULT: Errno = Errno(libc::EFAULT);

/// The bytes of a buffer.
///
/// # Safety
/// `from` is null or has `len` bytes.
pub(super) unsafe fn copy_in(from: *const c_void, len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if from.is_null() {
        return Err(FAULT);
    }
    // SAFETY: not null, and the caller says that these bytes are there.
    Ok(unsafe { core::slice::from_raw_parts(from.cast::<u8>(), len.min(MOST)) }.to_vec())
}

/// Puts bytes into a buffer, as many as it has room for.
///
/// # Safety
/// `to` is null or has room for `len` bytes.
pub(super) unsafe fn copy_out(bytes: &[u8], to: *mut c_void, len: usize) -> Result<()> {
    let count = bytes.len().min(len);
    if count == 0 {
        return Ok(());
    }
    if to.is_null() {
        return Err(FAULT);
    }
    // SAFETY: not null, room for `count` bytes as the caller says; our bytes are not the caller's.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), count) };
    Ok(())
}

/// Writes a value through a pointer, if there is one.
///
/// # Safety
/// `to` is null or has room for a `T`, aligned or not.
pub(super) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the caller says that there is room.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads a value through a pointer.
///
/// # Safety
/// `from` is null or has a `T`, aligned or not.
pub(super) unsafe fn get<T: Copy>(from: *const T) -> Result<T> {
    if from.is_null() {
        return Err(FAULT);
    }
    // SAFETY: not null, and the caller says that a value is there.
    Ok(unsafe { from.read_unaligned() })
}

/// The elements of an array.
///
/// # Safety
/// `from` is null or has `count` elements, aligned or not.
pub(super) unsafe fn all<T: Copy>(from: *const T, count: usize, most: usize) -> Result<Vec<T>> {
    if count > most {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: element `index` is within the caller's array.
    (0..count).map(|index| unsafe { get(if from.is_null() { from } else { from.add(index) }) }).collect()
}

/// How much a call may read into a buffer of `len` bytes.
pub(super) fn limit(len: usize) -> usize {
    len.min(MOST)
}

/// The pieces of a vector.
///
/// # Safety
/// `vector` is null or has `count` elements.
pub(super) unsafe fn pieces(vector: *const iovec, count: c_int) -> Result<Vec<iovec>> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: as the caller says.
    unsafe { all(vector, count, MAX_PIECES) }
}

/// Bytes that a vector has room for.
pub(super) fn room(pieces: &[iovec]) -> usize {
    limit(pieces.iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.iov_len)))
}

/// The bytes of a vector.
///
/// # Safety
/// Each piece is null or has its bytes.
pub(super) unsafe fn gather(pieces: &[iovec]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for piece in pieces {
        // SAFETY: as the caller says.
        all.extend(unsafe { copy_in(piece.iov_base, piece.iov_len.min(MOST - all.len())) }?);
    }
    Ok(all)
}

/// Puts bytes into a vector.
///
/// # Safety
/// Each piece is null or has room for its bytes.
pub(super) unsafe fn scatter(mut bytes: &[u8], pieces: &[iovec]) -> Result<()> {
    for piece in pieces {
        // SAFETY: as the caller says.
        unsafe { copy_out(bytes, piece.iov_base, piece.iov_len) }?;
        bytes = bytes.get(piece.iov_len..).unwrap_or_default();
    }
    Ok(())
}
