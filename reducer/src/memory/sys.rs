//! The pointer operations of regions. Every function checks its ranges; it cannot check the promise that
//! [`TensorRegion::from_raw_parts`] asks for.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use memmap2::MmapMut;

use super::MemoryKind;
use crate::dtype::{DType, ReduceOp};
use crate::kernel::Kernels;

/// A registered range of memory: an address, a length, and the kind. Copies of it say nothing about how long the memory stays; the
/// promise of [`from_raw_parts`](Self::from_raw_parts) does, for all of them.
///
/// ```compile_fail,E0133
/// use shouter_reducer::memory::{MemoryKind, TensorRegion};
///
/// let mut bytes = [0u8; 64];
/// let base = std::ptr::NonNull::from(&mut bytes).cast();
/// TensorRegion::from_raw_parts(MemoryKind::Host, base, 64, 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TensorRegion {
    base: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    generation: u32,
}

// SAFETY: a TensorRegion is an address and a length; the promise of `from_raw_parts` holds for every thread.
unsafe impl Send for TensorRegion {}
// SAFETY: as for Send; a shared TensorRegion gives no access that an owned one does not.
unsafe impl Sync for TensorRegion {}

impl TensorRegion {
    /// Registers `len` bytes at `base`. `generation` distinguishes registrations of the same address.
    ///
    /// # Safety
    /// The memory is readable and writable until no operation names the region any more (each has been reported
    /// complete, with nothing outstanding, or its transport has been fenced), and until then whatever else reads or
    /// writes it (the trainer, other processes) keeps to the order of the operations' schedules. Memory of kind
    /// `Host`, `Shared` and `Pinned` can be accessed by the CPU.
    pub unsafe fn from_raw_parts(kind: MemoryKind, base: NonNull<u8>, len: usize, generation: u32) -> Self {
        Self { base, len, kind, generation }
    }

    /// A region without bytes.
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0, kind: MemoryKind::Host, generation: 0 }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Distinguishes registrations of the same address.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// `len` bytes from `offset`; `None` if they do not lie inside the region.
    pub fn span(&self, offset: usize, len: usize) -> Option<Span> {
        self.at(offset, len)?;
        Some(Span { region: *self, offset, len })
    }

    /// The region of `len` bytes from `offset`; `None` if they do not lie inside this one.
    pub fn sub(&self, offset: usize, len: usize) -> Option<TensorRegion> {
        let base = NonNull::new(self.at(offset, len)?)?;
        Some(TensorRegion { base, len, ..*self })
    }

    /// This region and the next as one; `None` unless they touch, in memory that the host's ranks share: that is one mapping, in
    /// which an address of the one reaches the other.
    pub(crate) fn joined(&self, next: &TensorRegion) -> Option<TensorRegion> {
        let are_shared = self.kind == MemoryKind::Shared && next.kind == MemoryKind::Shared;
        let touch = self.base.addr().get() + self.len == next.base.addr().get();
        let whole = TensorRegion { len: self.len + next.len, ..*self };
        (are_shared && touch && self.generation == next.generation).then_some(whole)
    }

    /// The address of a range that lies inside the region and that the CPU can access.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: offset <= self.len, so the pointer stays inside (or one past) the region.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }

    #[inline]
    pub(super) fn host_at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if self.kind == MemoryKind::Device {
            return None;
        }
        self.at(offset, len)
    }
}

/// A range of a region, checked when it was made. A range that was handed to a transport stays unwritten until the
/// transport has released its token.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    region: TensorRegion,
    offset: usize,
    len: usize,
}

impl Span {
    /// No bytes.
    pub const fn empty() -> Self {
        Self { region: TensorRegion::empty(), offset: 0, len: 0 }
    }

    /// The region that the range lies in.
    pub fn region(&self) -> &TensorRegion {
        &self.region
    }

    /// Bytes from the region's start.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` of the range; `None` if they do not lie inside it.
    pub fn part(&self, offset: usize, len: usize) -> Option<Span> {
        let inside = offset.checked_add(len)? <= self.len;
        inside.then(|| Span { offset: self.offset + offset, len, ..*self })
    }

    /// The address, for a device that chains the memory instead of copying it.
    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: the range was checked to lie inside the region.
        unsafe { self.region.base.as_ptr().add(self.offset) }
    }

    /// The bytes; `None` for memory that the CPU cannot access.
    ///
    /// ```compile_fail,E0133
    /// shouter_reducer::memory::Span::empty().as_bytes();
    /// ```
    ///
    /// # Safety
    /// As long as the slice is used, the memory is valid and nothing writes to it. Both hold for a posted range until its token is
    /// released, and for a landing from the peer's report that it has written there until `on_placed` returns.
    pub unsafe fn as_bytes(&self) -> Option<&[u8]> {
        let at = self.region.host_at(self.offset, self.len)?;
        // SAFETY: the range was checked to lie inside the region; the rest is the caller's promise.
        Some(unsafe { core::slice::from_raw_parts(at, self.len) })
    }
}

/// A place in memory that a step works on.
pub(crate) type RegionOffset = (TensorRegion, usize);

/// Copies `len` bytes; `None` if a range does not lie inside its region. The ranges may touch, but not overlap.
#[inline]
pub(crate) fn copy(into: RegionOffset, from: RegionOffset, len: usize) -> Option<()> {
    let (dst, src) = (into.0.host_at(into.1, len)?, from.0.host_at(from.1, len)?);
    // SAFETY: both ranges were checked; their memory is valid by the promise of `TensorRegion::from_raw_parts`. `copy`
    // allows overlap, so no further promise is needed.
    unsafe { core::ptr::copy(src, dst, len) };
    Some(())
}

/// Copies borrowed bytes into a region; `None` if they do not fit.
#[inline]
pub(crate) fn write(into: RegionOffset, bytes: &[u8]) -> Option<()> {
    let dst = into.0.host_at(into.1, bytes.len())?;
    // SAFETY: as for `copy`.
    unsafe { core::ptr::copy(bytes.as_ptr(), dst, bytes.len()) };
    Some(())
}

/// Copies bytes out of a region; `None` if there are not so many.
#[inline]
pub(crate) fn read(from: RegionOffset, bytes: &mut [u8]) -> Option<()> {
    let src = from.0.host_at(from.1, bytes.len())?;
    // SAFETY: as for `copy`.
    unsafe { core::ptr::copy(src, bytes.as_mut_ptr(), bytes.len()) };
    Some(())
}

/// `dst = dst op bytes`, element by element; `None` if the bytes do not fit.
#[inline]
pub(crate) fn accumulate(
    kernels: Kernels,
    dtype: DType,
    op: ReduceOp,
    into: RegionOffset,
    bytes: &[u8],
) -> Option<()> {
    let dst = into.0.host_at(into.1, bytes.len())?;
    // SAFETY: the range is valid for reads and writes, and while a step of the schedule works on it no other access
    // touches it: the promise of `TensorRegion::from_raw_parts`. `bytes` is a receive buffer outside every region.
    let dst = unsafe { core::slice::from_raw_parts_mut(dst, bytes.len()) };
    kernels.accumulate(dtype, op, dst, bytes);
    Some(())
}

/// Folds `len` bytes of each source in order, to every destination; sums are divided by `divide_by` first, if given. `None` if there is
/// none of either, or one does not lie inside its region. `scratch` is room for the addresses, so that nothing is allocated.
#[inline]
pub(crate) fn fold(
    kernels: Kernels,
    (dtype, op): (DType, ReduceOp),
    into: impl Iterator<Item = Option<RegionOffset>>,
    sources: impl Iterator<Item = Option<RegionOffset>>,
    (len, divide_by): (usize, Option<u32>),
    scratch: &mut Addresses,
) -> Option<()> {
    let address = |at: Option<RegionOffset>| at.and_then(|(region, offset)| region.host_at(offset, len));
    let Addresses { into: to, sources: from } = scratch;
    to.clear();
    from.clear();
    for spot in into {
        to.push(address(spot)?);
    }
    for spot in sources {
        from.push(address(spot)?.cast_const());
    }
    let (&first, mut rest) = to.split_first().filter(|_| !from.is_empty())?;
    // SAFETY: every range was checked. The schedule lets no one write them while the step runs, a source either is a
    // destination itself or overlaps none, and destinations do not overlap (proved by `check`).
    unsafe {
        match (divide_by, rest.split_first()) {
            (None, Some((&second, others))) => {
                kernels.fold_raw2(dtype, op, first, second, from, len);
                rest = others;
            }
            (None, None) => kernels.fold_raw(dtype, op, first, from, len),
            (Some(n), _) => {
                kernels.fold_raw(dtype, op, first, from, len);
                kernels.finish_avg(dtype, core::slice::from_raw_parts_mut(first, len), n);
            }
        }
        rest.iter().for_each(|&other| core::ptr::copy(first, other, len));
    }
    Some(())
}

/// Divides `len` bytes of sums by `n`.
#[inline]
pub(crate) fn finish_avg(kernels: Kernels, dtype: DType, at: RegionOffset, len: usize, n: u32) -> Option<()> {
    let dst = at.0.host_at(at.1, len)?;
    // SAFETY: as for `accumulate`.
    let dst = unsafe { core::slice::from_raw_parts_mut(dst, len) };
    kernels.finish_avg(dtype, dst, n);
    Some(())
}

/// Room for the addresses of a fold.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    into: Vec<*mut u8>,
    sources: Vec<*const u8>,
}

// SAFETY: the addresses are only looked at inside `fold`, which fills the vectors first.
unsafe impl Send for Addresses {}

/// Zeroed memory of this process, aligned to a page. Pages that are never touched cost nothing: it is mapped for itself, for an allocator
/// clears large pieces that it has had before.
#[derive(Debug)]
pub struct Owned {
    pages: MmapMut,
    /// The first byte.
    base: NonNull<u8>,
}

// SAFETY: the pages belong to the value, as a Box's would.
unsafe impl Send for Owned {}
// SAFETY: `&Owned` gives only the address, through an unsafe function.
unsafe impl Sync for Owned {}

impl Owned {
    /// `len` zeroed bytes; `None` if there is not so much memory.
    pub fn new(len: usize) -> Option<Self> {
        let mut pages = MmapMut::map_anon(len).ok()?;
        Some(Self { base: NonNull::new(pages.as_mut_ptr())?, pages })
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.pages.len()
    }

    /// The memory as a region.
    ///
    /// # Safety
    /// As for [`TensorRegion::from_raw_parts`]; in particular the value outlives every operation that names the region.
    pub unsafe fn region(&self) -> TensorRegion {
        // SAFETY: passed on to the caller.
        unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, self.base, self.bytes(), 0) }
    }
}

/// A piece of the pool; goes back with [`Pool::put`].
#[derive(Debug)]
pub(crate) struct Pooled {
    region: TensorRegion,
    offset: usize,
}

impl Pooled {
    pub(crate) fn region(&self) -> TensorRegion {
        self.region
    }
}

/// The memory that a pool cuts into pieces.
#[derive(Debug)]
enum PoolMemory {
    Own(Owned),
    /// So many bytes, to be allocated when the first piece is taken.
    Later(usize),
    /// Memory of another owner, such as a device's.
    Borrowed(TensorRegion),
}

/// Memory for slots: pieces of one allocation, first fit, neighbours merged when they come back.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: PoolMemory,
    /// Free ranges (offset, length), by offset.
    free: Vec<(usize, usize)>,
}

impl Pool {
    /// Pieces start on a cache line.
    const ALIGN: usize = 64;

    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(Self::ALIGN)?;
        Some(Self { memory: PoolMemory::Own(Owned::new(bytes)?), free: vec![(0, bytes)] })
    }

    /// A pool of so many bytes, which are allocated when the first piece is taken.
    pub(crate) fn lazy(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(Self::ALIGN)?;
        Some(Self { memory: PoolMemory::Later(bytes), free: vec![(0, bytes)] })
    }

    /// Pieces of a region, which stays valid for as long as operations use them.
    pub(crate) fn of(region: TensorRegion) -> Self {
        let bytes = region.len() / Self::ALIGN * Self::ALIGN;
        Self { memory: PoolMemory::Borrowed(region), free: vec![(0, bytes)] }
    }

    /// Bytes in all.
    pub(crate) fn capacity(&self) -> usize {
        match self.memory {
            PoolMemory::Later(bytes) => bytes,
            _ => self.whole().len(),
        }
    }

    /// Whether its memory has still to be allocated: also where that has failed.
    pub(crate) fn is_unallocated(&self) -> bool {
        matches!(self.memory, PoolMemory::Later(_))
    }

    /// Whether every piece has come back.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        self.free.iter().map(|(_, len)| len).sum::<usize>() == self.capacity()
    }

    /// Has nothing to give from now on; memory of its own is never freed.
    pub(crate) fn leak(&mut self) {
        core::mem::forget(core::mem::replace(&mut self.memory, PoolMemory::Borrowed(TensorRegion::empty())));
        self.free.clear();
    }

    /// All of it; empty before it is allocated.
    pub(crate) fn whole(&self) -> TensorRegion {
        match &self.memory {
            // SAFETY: the pool outlives its pieces' operations (the executor owns it and says when it may be dropped).
            PoolMemory::Own(memory) => unsafe { memory.region() },
            PoolMemory::Later(_) => TensorRegion::empty(),
            PoolMemory::Borrowed(region) => *region,
        }
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Option<Pooled> {
        let bytes = bytes.checked_next_multiple_of(Self::ALIGN)?;
        let at = self.free.iter().position(|&(_, len)| len >= bytes)?;
        if let PoolMemory::Later(all) = self.memory {
            self.memory = PoolMemory::Own(Owned::new(all)?);
        }
        let (offset, len) = self.free[at];
        if len == bytes {
            self.free.remove(at);
        } else {
            self.free[at] = (offset + bytes, len - bytes);
        }
        // Pieces do not overlap.
        let region = self.whole().sub(offset, bytes)?;
        Some(Pooled { region, offset })
    }

    pub(crate) fn put(&mut self, piece: Pooled) {
        let (start, len) = (piece.offset, piece.region.len());
        if len == 0 {
            return;
        }
        let at = self.free.partition_point(|&(offset, _)| offset < start);
        self.free.insert(at, (start, len));
        if at + 1 < self.free.len() && start + len == self.free[at + 1].0 {
            self.free[at].1 += self.free[at + 1].1;
            self.free.remove(at + 1);
        }
        if at > 0 && self.free[at - 1].0 + self.free[at - 1].1 == start {
            self.free[at - 1].1 += self.free[at].1;
            self.free.remove(at);
        }
    }
}
