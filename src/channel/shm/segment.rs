//! The node segment: typed access to the memory that the ranks of a node share.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::io::Errno;
use shouter_reducer::header::View;
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::transport::{ExportedTensor, LaneFlag, NodeMemory, TensorView};

use super::arena::Arena;
use super::layout::{ANNOUNCEMENT, LANE_BYTES_AT, LANES_AT, MAGIC_AT, RANKS_AT, SegmentLayout, SegmentShape};
use super::sys::{self, Mapping, Watch};
use super::view::{unpack, unpack_small};

mod end;
mod part;
pub(crate) use end::{Abort, shortened};
use part::{PartUse, Parts};

/// "shouter" and the layout's version.
const MAGIC: u64 = u64::from_le_bytes(*b"shouter\x09");

/// A flag in the number of an announcement that is being written.
const UNFINISHED: u64 = 1 << 63;

/// A heartbeat count that only a rank that has left shows (and beats on from, if its helper is late).
const LEFT: u64 = 1 << 63;

/// Offsets in an announcement, in bytes: whether the rank could open the others' tensors; its own one's device address,
/// and handle.
const AGREED_AT: usize = 40;
const ADDRESS_AT: usize = 48;
const HANDLE_AT: usize = 56;
const _: () =
    assert!(HANDLE_AT + ExportedTensor::HANDLE <= ANNOUNCEMENT && ExportedTensor::HANDLE.is_multiple_of(8));

/// Why a segment cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The shape is too large to be mapped.
    #[error("{ranks} ranks with {lanes} lanes of {lane_bytes} bytes do not fit in memory; use smaller lanes")]
    TooLarge {
        /// Ranks of the node.
        ranks: u32,
        /// Lanes.
        lanes: u32,
        /// Bytes of a lane's areas.
        lane_bytes: usize,
    },
    /// The operating system refused.
    #[error("shared memory of {bytes} bytes: {why}; {remedy}")]
    System {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error.
        why: io::Error,
        /// The limit, as far as it is known.
        remedy: String,
    },
    /// Another version or shape.
    #[error("the host's shared memory is of another version or plan; run the same on all ranks of the host")]
    Foreign,
}

/// A rank's announcement of an operation that it has started: its number, a packed shape, and an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Number of the rank's operation, from 1.
    pub(crate) number: u64,
    /// The operation's shape, packed by the comparing side.
    pub(crate) shape: u64,
    /// The tensor's identity, packed likewise.
    pub(crate) identity: u64,
    /// The tensor's offset in the rank's arena plus one; 0 where it lies elsewhere; [`Self::EXPORTED`] where it is
    /// exported.
    pub(crate) tensor: u64,
    /// Small operations that the rank had started before: its numbers and those of the cells are two sequences.
    pub(crate) small_before: u64,
}

impl Announcement {
    /// The tensor lies in an accelerator's memory, and the others may open it.
    pub(crate) const EXPORTED: u64 = u64::MAX;
}

/// The memory that the ranks of one node share.
#[derive(Debug)]
pub struct NodeSegment {
    pub(super) mapping: Mapping,
    pub(super) layout: SegmentLayout,
    local: u32,
    /// The ranges of this rank's arena that are handed out.
    pub(super) arena: Mutex<Arena>,
    /// The numbers of the pieces of it that the other ranks may access.
    pub(super) exposed: Mutex<BTreeSet<u32>>,
    /// Held by the thread of this process that accesses a piece that a rank of the node has exposed.
    pub(super) accessing: Mutex<()>,
    fenced: AtomicBool,
    /// The last small operation that this rank has published.
    pub(super) published: AtomicU64,
    /// Its parts that are in use here.
    parts: Arc<Parts>,
    /// Of a part: it is in use as long as this.
    _use: Option<PartUse>,
    /// A watch on each process, opened when its id is first needed.
    watches: Vec<OnceLock<Watch>>,
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping").finish_non_exhaustive()
    }
}

impl NodeSegment {
    /// Makes the segment; local rank 0 does.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn create(shape: SegmentShape) -> Result<Self, SegmentError> {
        let layout = layout(shape)?;
        let mapping = Mapping::create(layout.total()).map_err(|why| system(&layout, why))?;
        let this = Self::new(mapping, layout, 0);
        this.word(Some(RANKS_AT)).store(shape.ranks.into(), Ordering::Relaxed);
        this.word(Some(LANES_AT)).store(shape.lanes.into(), Ordering::Relaxed);
        this.word(Some(LANE_BYTES_AT)).store(shape.lane_bytes as u64, Ordering::Relaxed);
        this.word(Some(MAGIC_AT)).store(MAGIC, Ordering::Release);
        this.arrive();
        Ok(this)
    }

    /// Maps the segment that local rank 0 has passed, as local rank `local`.
    ///
    /// # Errors
    /// If it is of another shape or version, or cannot be mapped.
    pub fn attach(fd: OwnedFd, shape: SegmentShape, local: u32) -> Result<Self, SegmentError> {
        let layout = layout(shape)?;
        let mapping = Mapping::attach(fd, layout.total()).map_err(|why| system(&layout, why))?;
        let this = Self::new(mapping, layout, local);
        let found = [MAGIC_AT, RANKS_AT, LANES_AT, LANE_BYTES_AT]
            .map(|at| this.word(Some(at)).load(Ordering::Acquire));
        if found != [MAGIC, shape.ranks.into(), shape.lanes.into(), shape.lane_bytes as u64]
            || local >= shape.ranks
        {
            return Err(SegmentError::Foreign);
        }
        this.arrive();
        Ok(this)
    }

    fn new(mapping: Mapping, layout: SegmentLayout, local: u32) -> Self {
        let watches = (0..layout.shape().ranks).map(|_| OnceLock::new()).collect();
        let (arena, exposed, accessing) = Default::default();
        let (fenced, published, parts, _use) = Default::default();
        Self { mapping, layout, local, arena, exposed, accessing, fenced, published, watches, parts, _use }
    }

    /// The descriptor, to be passed on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    /// All lanes, areas and results, in one piece.
    #[cfg(feature = "cuda")]
    pub(crate) fn lanes_memory(&self) -> TensorRegion {
        let (at, len) = self.layout.lanes();
        self.mapping.region(at, len).unwrap_or(TensorRegion::empty())
    }

    /// Whether the memory is this process's, and not only that of the one that it was forked from.
    pub(super) fn is_here(&self) -> bool {
        self.mapping.is_here()
    }

    /// This process's number on the node.
    pub(crate) fn local(&self) -> u32 {
        self.local
    }

    /// Ranks of the node.
    pub(crate) fn ranks(&self) -> u32 {
        self.layout.shape().ranks
    }

    /// A 64-bit word of the segment. Offsets come from the layout, which keeps them inside. For a rank or lane that does not exist
    /// this returns an unused word.
    #[inline]
    pub(super) fn word(&self, offset: Option<usize>) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        offset.and_then(|at| self.mapping.word(at)).unwrap_or(&NOWHERE)
    }

    /// Writes this process's id.
    fn arrive(&self) {
        let at = self.layout.life(self.local).map(|at| at + 8);
        let namespace = self.layout.life(self.local).map(|at| at + 16);
        self.word(namespace).store(pid_namespace(), Ordering::Release);
        self.word(at).store(std::process::id().into(), Ordering::Release);
    }

    /// One more heartbeat of a local rank: this one's.
    pub(crate) fn beat(&self, local: u32) {
        self.word(self.layout.life(local)).fetch_add(1, Ordering::Relaxed);
    }

    /// Announces that this rank closes gracefully, so that others do not count it as dead.
    pub(crate) fn leave(&self) {
        self.word(self.layout.life(self.local)).store(LEFT, Ordering::Release);
        self.word(self.layout.life(self.local).map(|at| at + 8)).store(0, Ordering::Release);
    }

    /// Whether a local rank has left in good order; all its earlier writes are seen after this.
    pub(crate) fn has_left(&self, local: u32) -> bool {
        self.word(self.layout.life(local)).load(Ordering::Acquire) >= LEFT
    }

    /// Heartbeats of a local rank so far: none until it has an engine.
    pub(crate) fn heartbeat(&self, local: u32) -> u64 {
        self.word(self.layout.life(local)).load(Ordering::Relaxed)
    }

    /// Whether the process of a local rank has ended for certain. False if the kernel does not report it.
    pub(crate) fn is_gone(&self, local: u32) -> bool {
        let Some(watch) = self.watches.get(local as usize) else { return false };
        let pid = self.word(self.layout.life(local).map(|at| at + 8)).load(Ordering::Acquire);
        let namespace = self.word(self.layout.life(local).map(|at| at + 16)).load(Ordering::Acquire);
        // Elsewhere the number belongs to another process, or to none.
        if pid == 0
            || namespace == 0
            || namespace != self.word(self.layout.life(self.local).map(|at| at + 16)).load(Ordering::Relaxed)
        {
            return false;
        }
        match watch.get_or_init(|| sys::watch(pid)) {
            Watch::Process(fd) => sys::has_ended(fd.as_fd()),
            Watch::Ended => true,
            Watch::Blind => false,
        }
    }

    /// Announces the operation that this rank starts, and the handle of its tensor, if that is exported.
    #[inline]
    pub(crate) fn announce(&self, announcement: Announcement, export: Option<&ExportedTensor>) {
        let Some(at) = self.layout.announcement(self.local, announcement.number) else { return };
        self.word(Some(at)).store(announcement.number | UNFINISHED, Ordering::Relaxed);
        if let Some(export) = export {
            self.word(Some(at + ADDRESS_AT)).store(export.address, Ordering::Release);
            let (words, _) = export.handle.as_chunks();
            for (at, word) in (at + HANDLE_AT..).step_by(8).zip(words) {
                self.word(Some(at)).store(u64::from_ne_bytes(*word), Ordering::Release);
            }
        }
        self.word(Some(at + 8)).store(announcement.shape, Ordering::Release);
        self.word(Some(at + 16)).store(announcement.identity, Ordering::Release);
        self.word(Some(at + 24)).store(announcement.small_before, Ordering::Release);
        self.word(Some(at + 32)).store(announcement.tensor, Ordering::Release);
        self.word(Some(at)).store(announcement.number, Ordering::Release);
    }

    /// Whether a local rank has announced its operation `number`, or one long after it.
    pub(crate) fn has_announced(&self, local: u32, number: u64) -> bool {
        let word = self.word(self.layout.announcement(local, number)).load(Ordering::Acquire);
        word & !UNFINISHED >= number
    }

    /// A local rank's announcement of its operation `number`; `None` before it is made, or when it was overwritten.
    pub(crate) fn announcement(&self, local: u32, number: u64) -> Option<Announcement> {
        let at = self.layout.announcement(local, number)?;
        let read = |offset: usize, order| self.word(Some(at + offset)).load(order);
        if read(0, Ordering::Acquire) != number {
            return None;
        }
        let [shape, identity, small_before, tensor] = [8, 16, 24, 32].map(|at| read(at, Ordering::Acquire));
        let same = read(0, Ordering::Acquire) == number;
        same.then_some(Announcement { number, shape, identity, tensor, small_before })
    }

    /// The handle of a local rank's tensor of operation `number`; only while that is announced as exported.
    fn export(&self, local: u32, number: u64) -> Option<ExportedTensor> {
        let at = self.layout.announcement(local, number)?;
        let word = |at| self.word(Some(at)).load(Ordering::Acquire);
        let mut handle = [0; ExportedTensor::HANDLE];
        for (at, to) in (at + HANDLE_AT..).step_by(8).zip(handle.as_chunks_mut().0) {
            *to = word(at).to_ne_bytes();
        }
        let process = |local| [8, 16].map(|at| self.layout.life(local).map_or(0, |life| word(life + at)));
        // If the kernel does not report namespaces, equal numbers may be different processes.
        let known = |process: [u64; 2]| !process.contains(&0);
        let is_own = process(local) == process(self.local) && known(process(local));
        let export = ExportedTensor { address: word(at + ADDRESS_AT), handle, is_own };
        (word(at) == number).then_some(export)
    }

    /// After the group has ended: announces that no accelerator of this rank touches any tensor.
    pub(crate) fn set_at_rest(&self) {
        self.word(self.layout.life(self.local).map(|at| at + 24)).store(1, Ordering::Release);
    }

    /// Whether no accelerator of a local rank touches any tensor: the rank has announced it, or its process has ended.
    pub(crate) fn is_quiesced(&self, local: u32) -> bool {
        self.word(self.layout.life(local).map(|at| at + 24)).load(Ordering::Acquire) == 1
            || self.is_gone(local)
    }

    /// Bytes of each rank's arena: the memory of its shared tensors.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.layout.arena_bytes()
    }

    /// The address of `len` bytes of this rank's arena.
    pub(super) fn arena_at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.arena_region(self.local, offset, len).and_then(|region| NonNull::new(region.as_ptr()))
    }

    pub(super) fn arena_region(&self, local: u32, offset: usize, len: usize) -> Option<TensorRegion> {
        self.mapping.region(self.arena_begin(local, offset, len)?, len)
    }

    /// The offset in the segment of `len` bytes of a local rank's arena.
    pub(super) fn arena_begin(&self, local: u32, offset: usize, len: usize) -> Option<usize> {
        offset.checked_add(len).filter(|end| *end <= self.layout.arena_bytes())?;
        self.layout.arena(local)?.checked_add(offset)
    }

    /// The offset in this rank's arena of `len` bytes at `address`; `None` if they lie elsewhere, or are no longer
    /// shared.
    pub(crate) fn locate(&self, address: *const u8, len: usize) -> Option<usize> {
        let arena = self.arena_at(0, self.layout.arena_bytes())?;
        let offset = address.addr().checked_sub(arena.addr().get())?;
        let inside = offset.checked_add(len)? <= self.layout.arena_bytes();
        (inside && !self.is_fenced()).then_some(offset)
    }

    /// Gives the pages of a piece of this rank's arena back; they read as zero again.
    pub(super) fn empty(&self, offset: usize, len: usize) {
        if !self.is_fenced()
            && let Some(at) = self.layout.arena(self.local)
            && let Err(error) = self.mapping.empty(at + offset, len)
        {
            tracing::warn!(%error, "shared memory was not given back");
        }
    }

    /// Takes a piece of this rank's arena away from the other ranks, contents included: their later writes do not
    /// arrive here. After this no tensor of this rank is shared any more.
    pub(crate) fn fence(&self, offset: usize, len: usize) {
        self.fenced.store(true, Ordering::Release);
        if let Some(at) = self.layout.arena(self.local)
            && let Err(error) = self.mapping.make_private(at.saturating_add(offset), len)
        {
            tracing::error!(%error, "a tensor could not be taken back from the other ranks of the host");
        }
    }

    /// Whether the group has ended, and tensors are no longer shared.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }
}

/// Identifies the pid namespace of this process; 0 if the kernel does not report it.
fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

fn layout(shape: SegmentShape) -> Result<SegmentLayout, SegmentError> {
    let SegmentShape { ranks, lanes, lane_bytes, .. } = shape;
    SegmentLayout::new(shape).ok_or(SegmentError::TooLarge { ranks, lanes, lane_bytes })
}

fn system(layout: &SegmentLayout, why: io::Error) -> SegmentError {
    let remedy = match (Errno::from_io_error(&why), sys::address_limit(), sys::file_limit()) {
        (Some(Errno::NOMEM), Some(limit), _) => {
            format!(
                "this process may have {limit} bytes of address space in all: raise RLIMIT_AS (ulimit -v)"
            )
        }
        (Some(Errno::FBIG), _, Some(limit)) => {
            format!("this process may make files of {limit} bytes: raise RLIMIT_FSIZE (ulimit -f)")
        }
        (Some(Errno::MFILE), ..) => {
            "this process has too many files open: raise RLIMIT_NOFILE (ulimit -n)".into()
        }
        _ => "look at the memory limit of the container (memfd counts)".into(),
    };
    SegmentError::System { bytes: layout.total(), why, remedy }
}

impl NodeMemory for NodeSegment {
    #[inline]
    fn agrees(&self, seq: u64) -> Option<bool> {
        let mine = self.announcement(self.local, seq + 1)?;
        for local in (0..self.ranks()).filter(|&local| local != self.local) {
            let theirs = self.announcement(local, seq + 1)?;
            if (theirs.shape, theirs.identity) != (mine.shape, mine.identity) {
                return Some(false);
            }
        }
        Some(true)
    }

    fn view(&self, local: u32, seq: u64) -> Option<View> {
        let number = seq + 1;
        if let Some(announcement) = self.announcement(local, number) {
            return unpack(announcement.shape, announcement.identity);
        }
        if self.has_announced(local, number) {
            return None;
        }
        // It has not come so far. It runs another operation if it has begun a small one more than another rank had
        // before.
        let before = (0..self.ranks()).find_map(|local| self.announcement(local, number))?.small_before;
        let tag = self.cell(local, before + 1).tag()?;
        // The tag is newer than an announcement would be.
        if self.has_announced(local, number) { None } else { unpack_small(tag.operation) }
    }

    fn has_started(&self, local: u32, seq: u64) -> Option<bool> {
        Some(self.has_announced(local, seq + 1))
    }

    #[inline]
    fn tensor(&self, local: u32, seq: u64, len: usize) -> TensorView {
        let (ours, theirs) = (self.announcement(self.local, seq + 1), self.announcement(local, seq + 1));
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return TensorView::Unknown };
        if (ours.shape, ours.identity) != (theirs.shape, theirs.identity) {
            // The rank that compares the announcements ends the group.
            return TensorView::Unknown;
        }
        if theirs.tensor == Announcement::EXPORTED {
            return self.export(local, seq + 1).map_or(TensorView::Unknown, TensorView::Exported);
        }
        let offset = theirs.tensor.checked_sub(1).and_then(|offset| usize::try_from(offset).ok());
        let region = offset.and_then(|offset| self.arena_region(local, offset, len));
        region.map_or(TensorView::Private, TensorView::Shared)
    }

    fn agree(&self, seq: u64, opened: bool) {
        let at = self.layout.announcement(self.local, seq + 1).map(|at| at + AGREED_AT);
        self.word(at).store((seq + 1) << 1 | u64::from(opened), Ordering::Release);
    }

    fn has_agreed(&self, local: u32, seq: u64) -> Option<bool> {
        let at = self.layout.announcement(local, seq + 1).map(|at| at + AGREED_AT);
        let word = self.word(at).load(Ordering::Acquire);
        (word >> 1 == seq + 1).then_some(word & 1 == 1)
    }

    fn lanes(&self) -> u32 {
        self.layout.shape().lanes
    }

    fn lane_bytes(&self) -> usize {
        self.layout.shape().lane_bytes
    }

    fn stage(&self, local: u32, lane: u32) -> TensorRegion {
        let area = self.layout.area(local, lane).filter(|_| local < self.ranks());
        area.and_then(|at| self.mapping.region(at, self.lane_bytes())).unwrap_or(TensorRegion::empty())
    }

    fn result(&self, lane: u32) -> TensorRegion {
        let area = self.layout.area(self.ranks(), lane);
        area.and_then(|at| self.mapping.region(at, self.lane_bytes())).unwrap_or(TensorRegion::empty())
    }

    #[inline]
    fn signal(&self, lane: u32, flag: LaneFlag, value: u64) {
        self.word(self.layout.flag(self.local, lane, flag as u8)).store(value, Ordering::Release);
    }

    #[inline]
    fn observe(&self, local: u32, lane: u32, flag: LaneFlag) -> u64 {
        self.word(self.layout.flag(local, lane, flag as u8)).load(Ordering::Acquire)
    }
}
