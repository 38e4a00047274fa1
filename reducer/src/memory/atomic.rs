//! Memory that several processes access at once, each element atomically.
//!
//! All accesses to a region go by the same cells, so that operations of two widths never meet at a byte: the aligned 8-byte words that lie
//! wholly inside, and the single elements before and behind those. Nothing beside the region is touched, and an element lies in one cell. The
//! order of operations is the caller's.
#![allow(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::{MemoryKind, RegionOffset, TensorRegion};

/// Bytes of a word.
const WORD: usize = 8;

/// Cells that are changed together: they are computed with one call.
const BLOCK: usize = 64;

/// A region of elements of up to 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRegion {
    region: TensorRegion,
    /// Bytes of an element.
    size: usize,
    /// The whole words: offsets of the first one's begin and the last one's end.
    words: (usize, usize),
}

/// The bytes that an access is about, in cells of one width.
#[derive(Clone, Copy)]
struct Run {
    /// The first cell.
    cells: *mut u8,
    /// Bytes of the first cell that are not meant.
    skip: usize,
    len: usize,
    /// Where they begin in the access.
    at: usize,
}

/// An unsigned integer as wide as a cell.
trait Cell: Copy + Eq {
    const ZERO: Self;
    const BYTES: usize = size_of::<Self>();

    /// # Safety
    /// The address is aligned, and valid for atomic accesses of this width alone.
    unsafe fn load(at: *mut Self) -> Self;

    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn store(at: *mut Self, value: Self);

    /// Writes `new` where `old` is; what is there instead.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn exchange(at: *mut Self, old: Self, new: Self) -> Result<Self, Self>;
}

macro_rules! cells {
    ($($word:ty: $atomic:ident)+) => {$(
        impl Cell for $word {
            const ZERO: Self = 0;

            #[inline(always)]
            unsafe fn load(at: *mut Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $atomic::from_ptr(at) }.load(Ordering::Relaxed)
            }

            #[inline(always)]
            unsafe fn store(at: *mut Self, value: Self) {
                // SAFETY: the caller's promise.
                unsafe { $atomic::from_ptr(at) }.store(value, Ordering::Relaxed);
            }

            #[inline(always)]
            unsafe fn exchange(at: *mut Self, old: Self, new: Self) -> Result<Self, Self> {
                // SAFETY: the caller's promise.
                let cell = unsafe { $atomic::from_ptr(at) };
                cell.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
            }
        }
    )+};
}
cells! { u8: AtomicU8 u16: AtomicU16 u32: AtomicU32 u64: AtomicU64 }

/// Does something with each run of an access, with the cells' type as `$cell`.
macro_rules! for_runs {
    ($self:ident, $at:expr, $len:expr, $run:ident, $cell:ident => $act:expr) => {
        for (width, $run) in $self.runs($at, $len)?.into_iter().flatten() {
            // SAFETY: the run lies inside the region, which is valid for reads and writes by the promise of
            // `TensorRegion::from_raw_parts`; all who access it meanwhile do so by these cells. Other memory of an access was
            // checked to be as long.
            unsafe {
                match width {
                    1 => {
                        type $cell = u8;
                        $act
                    }
                    2 => {
                        type $cell = u16;
                        $act
                    }
                    4 => {
                        type $cell = u32;
                        $act
                    }
                    _ => {
                        type $cell = u64;
                        $act
                    }
                }
            }
        }
    };
}

impl AtomicRegion {
    /// A region of elements of `size` bytes; `None` where those have no cells: they are wider than a word, not aligned to their size, or an
    /// accelerator's.
    pub(crate) fn new(region: TensorRegion, size: usize) -> Option<Self> {
        let (begin, len) = (region.as_ptr().addr(), region.len());
        let has_cells = matches!(size, 1 | 2 | 4 | WORD) && region.kind() != MemoryKind::Device;
        if !has_cells || !begin.is_multiple_of(size) || !len.is_multiple_of(size) {
            return None;
        }
        let (first, end) = (begin.checked_next_multiple_of(WORD)?, (begin + len) / WORD * WORD);
        let words = if first < end { (first - begin, end - begin) } else { (len, len) };
        Some(Self { region, size, words })
    }

    /// The runs of `len` bytes from `at` on, both of whole elements, and their cells' widths; `None` if they do not lie inside.
    #[inline]
    fn runs(&self, at: usize, len: usize) -> Option<[Option<(usize, Run)>; 3]> {
        let base = self.region.host_at(0, self.region.len())?;
        let end = at.checked_add(len).filter(|end| *end <= self.region.len())?;
        let (first, last) = self.words;
        let run = |width: usize, part: Range<usize>| {
            let (from, to) = (part.start.max(at), part.end.min(end));
            (from < to).then(|| {
                let skip = (from - part.start) % width;
                // Inside the region, whose address `base` is.
                let cells = base.wrapping_add(from - skip);
                (width, Run { cells, skip, len: to - from, at: from - at })
            })
        };
        let (size, all) = (self.size, self.region.len());
        Some([run(size, 0..first), run(WORD, first..last), run(size, last..all)])
    }

    /// Reads `len` bytes from `at` on.
    #[inline]
    pub(crate) fn read(&self, at: usize, into: RegionOffset, len: usize) -> Option<()> {
        let into = into.0.host_at(into.1, len)?;
        for_runs!(self, at, len, run, C => read::<C>(&run, into.add(run.at)));
        Some(())
    }

    /// Writes bytes from `at` on.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Option<()> {
        for_runs!(self, at, bytes.len(), run, C => write::<C>(&run, &bytes[run.at..run.at + run.len]));
        Some(())
    }

    /// Changes `len` bytes from `at` on, and writes their former values to `before`, if that is given. `change` is given the values of some
    /// of them, whole elements, and their offset in the access; it may be asked again for the same ones.
    #[inline]
    pub(crate) fn update(
        &self,
        at: usize,
        len: usize,
        before: Option<RegionOffset>,
        mut change: impl FnMut(&mut [u8], usize),
    ) -> Option<()> {
        let before = match before {
            Some((region, offset)) => Some(region.host_at(offset, len)?),
            None => None,
        };
        for_runs!(self, at, len, run, C => match run.skip + run.len <= C::BYTES {
            true => update::<C, 1>(&run, before, &mut change),
            false => update::<C, BLOCK>(&run, before, &mut change),
        });
        Some(())
    }
}

impl Run {
    /// The bytes of the first cell alone, if it is not wholly meant; those of whole cells; those of the last one, if that is not.
    #[inline(always)]
    fn split<C: Cell>(&self) -> (usize, usize, usize) {
        let first = if self.skip == 0 { 0 } else { (C::BYTES - self.skip).min(self.len) };
        let last = (self.len - first) % C::BYTES;
        (first, self.len - first - last, last)
    }
}

/// The bytes of cells.
#[inline(always)]
fn bytes<C: Cell>(cells: &mut [C]) -> &mut [u8] {
    // SAFETY: integers have no padding, and any bytes are integers.
    unsafe { core::slice::from_raw_parts_mut(cells.as_mut_ptr().cast(), size_of_val(cells)) }
}

/// # Safety
/// The cells of the run are valid, and all who access them meanwhile do so by operations of this width; `into` is valid for writes of its
/// bytes.
#[inline(always)]
unsafe fn read<C: Cell>(run: &Run, into: *mut u8) {
    let (first, whole, last) = run.split::<C>();
    let mut cell = run.cells.cast::<C>();
    // SAFETY: the caller's promise: the cells are those of the run, and as many bytes are written.
    unsafe {
        let part = |cell: *mut C, skip: usize, at: usize, len: usize| {
            let mut value = [C::load(cell)];
            core::ptr::copy_nonoverlapping(bytes(&mut value).as_ptr().add(skip), into.add(at), len);
        };
        if first > 0 {
            part(cell, run.skip, 0, first);
            cell = cell.add(1);
        }
        let to = into.add(first).cast::<C>();
        for i in 0..whole / C::BYTES {
            to.add(i).write_unaligned(C::load(cell.add(i)));
        }
        if last > 0 {
            part(cell.add(whole / C::BYTES), 0, first + whole, last);
        }
    }
}

/// # Safety
/// The cells of the run are valid, and all who access them meanwhile do so by operations of this width; there are as many bytes.
#[inline(always)]
unsafe fn write<C: Cell>(run: &Run, from: &[u8]) {
    let (first, whole, last) = run.split::<C>();
    // SAFETY: the caller's promise; the parts are parts of the run.
    unsafe {
        let part = |at: usize, skip: usize, len: usize| {
            let cells = run.cells.add(run.skip + at - skip);
            update::<C, 1>(&Run { cells, skip, len, at }, None, &mut |now: &mut [u8], at: usize| {
                now.copy_from_slice(&from[at..at + now.len()]);
            });
        };
        if first > 0 {
            part(0, run.skip, first);
        }
        let (cells, source) =
            (run.cells.add(run.skip + first).cast::<C>(), from.as_ptr().add(first).cast::<C>());
        for i in 0..whole / C::BYTES {
            C::store(cells.add(i), source.add(i).read_unaligned());
        }
        if last > 0 {
            part(first + whole, 0, last);
        }
    }
}

/// # Safety
/// The cells of the run are valid, and all who access them meanwhile do so by operations of this width; `before` is valid for writes of the
/// access's bytes.
#[inline(always)]
unsafe fn update<C: Cell, const N: usize>(
    run: &Run,
    before: Option<*mut u8>,
    change: &mut impl FnMut(&mut [u8], usize),
) {
    let (mut cell, mut skip, mut done) = (run.cells.cast::<C>(), run.skip, 0);
    while done < run.len {
        let cells = (skip + run.len - done).div_ceil(C::BYTES).min(N);
        let len = (cells * C::BYTES - skip).min(run.len - done);
        let at = run.at + done;
        let mut old = [C::ZERO; N];
        for (i, old) in old.iter_mut().enumerate().take(cells) {
            // SAFETY: one of the run's cells.
            *old = unsafe { C::load(cell.add(i)) };
        }
        let mut new = old;
        change(&mut bytes(&mut new)[skip..skip + len], at);
        for i in 0..cells {
            // A value that stays was read, and need not be written.
            while new[i] != old[i] {
                // SAFETY: as above.
                let Err(now) = (unsafe { C::exchange(cell.add(i), old[i], new[i]) }) else { break };
                (old[i], new[i]) = (now, now);
                let (from, to) = ((i * C::BYTES).max(skip), ((i + 1) * C::BYTES).min(skip + len));
                change(&mut bytes(&mut new)[from..to], at + from - skip);
            }
        }
        if let Some(before) = before {
            let old = &bytes(&mut old)[skip..skip + len];
            // SAFETY: the bytes of the access from `at` on, as the caller promises.
            unsafe { core::ptr::copy_nonoverlapping(old.as_ptr(), before.add(at), len) };
        }
        // SAFETY: the next cell of the run, or the end.
        cell = unsafe { cell.add(cells) };
        (skip, done) = (0, done + len);
    }
}
