//! Memory of a rank's arena that the node's other ranks access by themselves, until the owner withdraws it.
//!
//! ```text
//!   owner    version + 1: odd, exposed ...... version + 1: even, withdrawn -> waits for each rank that is inside: its count is odd
//!   others   count + 1: odd, inside -> the version is the one that was announced? -> accesses -> count + 1: even
//! ```
//!
//! A rank announces that it is inside before it looks at the version, and the owner withdraws before it looks at the counts: so either the
//! rank sees the withdrawal, or the owner sees the rank. A count that has changed is a later access, which sees the withdrawal. A process that
//! has ended is inside no more. One that is stopped inside is waited for until the group ends; then the owner's pages become its own.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use shouter_reducer::memory::TensorRegion;

use super::layout::EXPOSURES;
use super::segment::NodeSegment;
use crate::runtime::lock;

/// A piece of this rank's arena that the node's other ranks may access. Its memory may be used otherwise once it was
/// [withdrawn](Self::withdraw) and [is at rest](Self::is_at_rest), or was [fenced](Self::fence), or has [ended](Self::end).
#[derive(Debug)]
pub(crate) struct Exposure {
    segment: Arc<NodeSegment>,
    offset: usize,
    len: usize,
    slot: u32,
    version: u64,
    /// Once it was withdrawn: the ranks that have been inside since then, and their counts.
    inside: Option<Vec<(u32, u64)>>,
}

/// How other ranks find an exposed piece: two words.
pub(crate) type Place = [u64; 2];

/// Bits of a version in the second word of a [`Place`]: the slot follows. Versions are compared as far.
const VERSION_BITS: u32 = 48;

impl Exposure {
    /// Exposes `memory`, of this rank's arena; `None` if it lies elsewhere, or too much is exposed.
    pub(crate) fn new(segment: &Arc<NodeSegment>, memory: &TensorRegion) -> Option<Self> {
        let (address, len) = (memory.as_ptr(), memory.len());
        let offset = segment.locate(address, len).filter(|_| len > 0)?;
        let mut taken = lock(&segment.exposed);
        let slot = (0..EXPOSURES as u32).find(|slot| !taken.contains(slot))?;
        taken.insert(slot);
        drop(taken);
        let word = segment.word(segment.layout.exposure(segment.local(), slot));
        let version = word.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Self { segment: segment.clone(), offset, len, slot, version, inside: None })
    }

    /// Where the other ranks find it.
    pub(crate) fn place(&self) -> Place {
        let version = self.version & ((1 << VERSION_BITS) - 1);
        [self.offset as u64 + 1, version | u64::from(self.slot) << VERSION_BITS]
    }

    /// Lets no rank begin another access.
    pub(crate) fn withdraw(&mut self) {
        if self.inside.is_some() {
            return;
        }
        let segment = &self.segment;
        let word = segment.word(segment.layout.exposure(segment.local(), self.slot));
        word.store(self.version + 1, Ordering::SeqCst);
        let counts = (0..segment.ranks()).map(|local| (local, segment.accesses(local)));
        self.inside = Some(counts.filter(|(_, count)| count % 2 == 1).collect());
    }

    /// Whether it was withdrawn, and no rank is inside any more.
    pub(crate) fn is_at_rest(&mut self) -> bool {
        let (segment, Some(inside)) = (&self.segment, &mut self.inside) else { return false };
        inside.retain(|(local, count)| segment.accesses(*local) == *count && !segment.is_gone(*local));
        inside.is_empty()
    }

    /// After the group has ended: takes the memory away from those that are still inside.
    pub(crate) fn fence(&mut self) {
        self.withdraw();
        self.segment.fence(self.offset, self.len);
        self.inside = Some(vec![]);
    }

    /// Withdraws it without a wait: where a rank is still inside, the memory is taken away from it.
    pub(crate) fn end(&mut self) {
        self.withdraw();
        if !self.is_at_rest() {
            self.fence();
        }
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        // A forked child does not have it.
        if self.segment.is_here() {
            self.end();
            lock(&self.segment.exposed).remove(&self.slot);
        }
    }
}

/// A piece that a rank of the node has exposed.
#[derive(Debug)]
pub(crate) struct ExposedPiece {
    segment: Arc<NodeSegment>,
    memory: TensorRegion,
    local: u32,
    slot: u32,
    version: u64,
}

/// An access to an exposed piece, which stays where it is until this is dropped.
pub(crate) struct Inside<'a> {
    piece: &'a ExposedPiece,
    count: u64,
    _others: MutexGuard<'a, ()>,
}

impl ExposedPiece {
    /// The piece of `len` bytes that a local rank has exposed at this place; `None` if there is none.
    pub(crate) fn new(segment: &Arc<NodeSegment>, local: u32, place: Place, len: usize) -> Option<Self> {
        let offset = usize::try_from(place[0].checked_sub(1)?).ok()?;
        let (slot, version) = ((place[1] >> VERSION_BITS) as u32, place[1] & ((1 << VERSION_BITS) - 1));
        segment.layout.exposure(local, slot)?;
        let memory = segment.arena_region(local, offset, len)?;
        Some(Self { segment: segment.clone(), memory, local, slot, version })
    }

    /// Begins an access; `None` once the owner has withdrawn the piece.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let segment = &*self.segment;
        let others = lock(&segment.accessing);
        let own = segment.word(segment.layout.accesses(segment.local()));
        let count = own.load(Ordering::Relaxed) + 1;
        own.swap(count, Ordering::SeqCst);
        let inside = Inside { piece: self, count, _others: others };
        let version = segment.word(segment.layout.exposure(self.local, self.slot)).load(Ordering::SeqCst);
        (version & ((1 << VERSION_BITS) - 1) == self.version).then_some(inside)
    }
}

impl Inside<'_> {
    /// The piece's memory, until this is dropped.
    #[inline]
    pub(crate) fn memory(&self) -> TensorRegion {
        self.piece.memory
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        let segment = &self.piece.segment;
        let own = segment.word(segment.layout.accesses(segment.local()));
        own.store(self.count + 1, Ordering::Release);
    }
}

impl NodeSegment {
    /// Accesses of a local rank to exposed pieces, begun and ended ones counted each: odd while it is inside one.
    fn accesses(&self, local: u32) -> u64 {
        self.word(self.layout.accesses(local)).load(Ordering::SeqCst)
    }
}
