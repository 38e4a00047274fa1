//! The caller's buffers. They are copied in and out, so that no call borrows them while it waits. The kernel copies
//! them, so that an invalid pointer gives EFAULT, as on Linux.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use std::io;

use libc::{c_int, iovec};

use crate::errno::{Errno, Result};

/// The most bytes that one call reads or writes: the calls' contract allows a short read or write.
const MOST: usize = 1 << 26;

/// The largest number of pieces in a vector (UIO_MAXIOV).
const MAX_PIECES: usize = 1024;

const FAULT: Errno = Errno(libc::EFAULT);

/// A direction of [`transfer`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Copies `len` bytes between our memory and the caller's.
///
/// # Safety
/// `ours` has `len` bytes, which are not the caller's. Where the kernel does not lend itself to this, so has `theirs`.
unsafe fn transfer(ours: *mut c_void, theirs: *mut c_void, len: usize, direction: Direction) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if theirs.is_null() {
        return Err(FAULT);
    }
    let (local, remote) = (iovec { iov_base: ours, iov_len: len }, iovec { iov_base: theirs, iov_len: len });
    let (local, remote) = (&raw const local, &raw const remote);
    // SAFETY: the kernel checks both ranges; it writes to one that the caller says is there, or to nothing.
    let moved = unsafe {
        match direction {
            Direction::In => libc::process_vm_readv(libc::getpid(), local, 1, remote, 1, 0),
            Direction::Out => libc::process_vm_writev(libc::getpid(), local, 1, remote, 1, 0),
        }
    };
    match usize::try_from(moved) {
        Ok(moved) if moved == len => return Ok(()),
        Ok(_) => return Err(FAULT),
        Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => return Err(FAULT),
        // A sandbox may forbid it: then the pointer is trusted.
        Err(_) => {}
    }
    // SAFETY: as the caller says.
    unsafe {
        match direction {
            Direction::In => ptr::copy_nonoverlapping(theirs.cast::<u8>(), ours.cast::<u8>(), len),
            Direction::Out => ptr::copy_nonoverlapping(ours.cast::<u8>(), theirs.cast::<u8>(), len),
        }
    }
    Ok(())
}

/// The bytes of a buffer.
///
/// # Safety
/// `from` is null or has `len` bytes.
pub(super) unsafe fn copy_in(from: *const c_void, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len.min(MOST)];
    // SAFETY: `bytes` is that long and ours; the rest is as the caller says.
    unsafe { transfer(bytes.as_mut_ptr().cast(), from.cast_mut(), bytes.len(), Direction::In) }?;
    Ok(bytes)
}

/// Copies bytes into a buffer of `len`, from `offset` on, as many as fit.
///
/// # Safety
/// `to` is null or has room for `len` bytes.
pub(super) unsafe fn copy_out(bytes: &[u8], to: *mut c_void, offset: usize, len: usize) -> Result<()> {
    let count = bytes.len().min(len.saturating_sub(offset));
    let at = if to.is_null() { to } else { to.wrapping_byte_add(offset) };
    // SAFETY: `bytes` has `count`, and is only read; the rest is as the caller says.
    unsafe { transfer(bytes.as_ptr().cast_mut().cast(), at, count, Direction::Out) }
}

/// Writes a value through a pointer, if it is not null.
///
/// # Safety
/// `to` is null or has room for a `T`, aligned or not.
pub(super) unsafe fn put<T: Copy>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the value is ours and as long as its type, and is only read; the rest is as the caller says.
    unsafe { transfer((&raw const value).cast_mut().cast(), to.cast(), size_of::<T>(), Direction::Out) }
}

/// Reads a value through a pointer.
///
/// # Safety
/// `from` is null or has a `T`, aligned or not.
pub(super) unsafe fn get<T: Copy>(from: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the room is ours and as long as its type; the rest is as the caller says.
    unsafe { transfer(value.as_mut_ptr().cast(), from.cast_mut().cast(), size_of::<T>(), Direction::In) }?;
    // SAFETY: all of it was written, with bytes that the caller says are a `T`.
    Ok(unsafe { value.assume_init() })
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
    (0..count)
        .map(|index| unsafe { get(if from.is_null() { from } else { from.wrapping_add(index) }) })
        .collect()
}

/// The number of bytes that a call may read into a buffer of `len` bytes.
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

/// The total length of a vector.
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

/// Copies bytes into a vector, from `offset` on.
///
/// # Safety
/// Each piece is null or has room for its bytes.
pub(super) unsafe fn scatter(mut bytes: &[u8], pieces: &[iovec], mut offset: usize) -> Result<()> {
    for piece in pieces {
        let room = piece.iov_len.saturating_sub(offset);
        // SAFETY: as the caller says.
        unsafe { copy_out(bytes, piece.iov_base, offset, piece.iov_len) }?;
        bytes = bytes.get(room..).unwrap_or_default();
        offset = offset.saturating_sub(piece.iov_len);
    }
    Ok(())
}
