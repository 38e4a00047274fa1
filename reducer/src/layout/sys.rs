//! Copies between blocks and contiguous memory, by address: the bytes between the blocks may be somebody else's, so no slice covers them.
#![allow(unsafe_code)]

use super::Layout;

/// Copies the elements of `layout` at `src`, of `size` bytes each, to `dst`, one behind the other; as many as `dst` has room for.
///
/// # Safety
/// The blocks at `src` that this reads are valid for reads, and nobody writes them meanwhile. `dst` is apart from them.
pub unsafe fn pack(layout: &Layout, size: usize, src: *const u8, dst: &mut [u8]) {
    let out = dst.as_mut_ptr();
    // SAFETY: `each` stays within `dst` and the blocks, which the caller vouches for.
    unsafe { each(layout, size, dst.len(), |at, strided, bytes| copy(src.add(strided), out.add(at), bytes)) }
}

/// Copies elements of `size` bytes, which lie one behind the other in `src`, to those of `layout` at `dst`, the first ones; as many as
/// `src` has. The bytes between the blocks are not touched.
///
/// # Safety
/// The blocks at `dst` that this writes are valid for writes, and nobody else touches them meanwhile. `src` is apart from them.
pub unsafe fn unpack(layout: &Layout, size: usize, src: &[u8], dst: *mut u8) {
    let from = src.as_ptr();
    // SAFETY: as in `pack`.
    unsafe { each(layout, size, src.len(), |at, strided, bytes| copy(from.add(at), dst.add(strided), bytes)) }
}

/// Calls `act` for each block with its bytes' place in contiguous memory, in the strided memory, and their number, up to `len` bytes in
/// all.
///
/// # Safety
/// The requirements of `act` hold for ranges within the first `len` bytes of the contiguous memory, and within the blocks.
#[inline(always)]
unsafe fn each(layout: &Layout, size: usize, len: usize, act: impl Fn(usize, usize, usize)) {
    if layout.count == 0 || size == 0 {
        return;
    }
    let block = layout.block * size;
    // The stride of a single block may be anything.
    let stride = if layout.count == 1 { block } else { layout.stride * size };
    let len = len.min(layout.count * block);
    if block == stride {
        act(0, 0, len);
        return;
    }
    let (whole, rest) = (len / block, len % block);
    // With a length that is known the copies are single moves.
    macro_rules! blocks {
        ($bytes:expr) => {
            for index in 0..whole {
                act(index * block, index * stride, $bytes);
            }
        };
    }
    match block {
        1 => blocks!(1),
        2 => blocks!(2),
        4 => blocks!(4),
        8 => blocks!(8),
        16 => blocks!(16),
        _ => blocks!(block),
    }
    if rest > 0 {
        act(whole * block, whole * stride, rest);
    }
}

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`] of bytes.
#[inline(always)]
unsafe fn copy(src: *const u8, dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}
