//! Copies, past the caches where the tensor would not fit them anyway.

/// Bytes from which a copy goes past the caches. Ordinary stores read each line before they write it, and evict
/// what is of use; but a copy that still fits the last-level cache is dearer past it, for whoever reads it next.
/// Measured with the bench: at 16 MiB a little slower, at 32 MiB half as fast again.
#[cfg(target_arch = "x86_64")]
const PAST_THE_CACHES: usize = 32 << 20;

/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `bytes`; they do not overlap.
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if bytes >= PAST_THE_CACHES {
            return stream(dst, src, bytes);
        }
        dst.copy_from_nonoverlapping(src, bytes);
    }
}

/// As [`copy`], past the caches.
///
/// # Safety
///
/// As [`copy`]; at least one cache line.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::*;

    const LINE: usize = 64;
    let head = dst.align_offset(LINE).min(bytes);
    let end = head + (bytes - head) / LINE * LINE;
    // SAFETY: `head <= end <= bytes`, and every line starts in between at an aligned destination. The fence orders
    // these stores, which no later store waits for by itself, before whatever tells others of the copy.
    unsafe {
        dst.copy_from_nonoverlapping(src, head);
        for at in (head..end).step_by(LINE) {
            let line: [__m128i; 4] =
                std::array::from_fn(|i| _mm_loadu_si128(src.add(at).cast::<__m128i>().add(i)));
            for (i, part) in line.into_iter().enumerate() {
                _mm_stream_si128(dst.add(at).cast::<__m128i>().add(i), part);
            }
        }
        _mm_sfence();
        dst.add(end).copy_from_nonoverlapping(src.add(end), bytes - end);
    }
}
