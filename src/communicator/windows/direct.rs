//! Windows whose parts lie in memory that the host's ranks share: a rank accesses them itself, in the thread that calls.
//!
//! Which way accesses to a part go is decided when the window is made, by the owner: it says where the part lies. An access ends in its call,
//! so the way may change once, when the owner withdraws its part: later accesses are messages, which are behind the earlier ones. The owner
//! closes its part in the engine before it withdraws it, so those are denied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use shouter_reducer::dtype::DType;
use shouter_reducer::grid::Rank;
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::windows::{AccessRequest, DirectWindow};

use crate::channel::shm::{ExposedPiece, Exposure, NodeSegment, Place};
use crate::communicator::drive::{AccessFailure, Drive};
use crate::error::Error;
use crate::runtime::lock;

/// After so many steps of accesses the engine is polled, which serves others and finds out which ranks are dead.
const POLL_EVERY: u32 = 64;

/// The windows of a group with parts that ranks of this host access directly.
pub(in crate::communicator) struct DirectWindows {
    segment: Option<Arc<NodeSegment>>,
    windows: RwLock<BTreeMap<u32, Opened>>,
    /// Held by the thread that takes one out.
    closing: Mutex<()>,
    steps: AtomicU32,
}

/// One of them.
struct Opened {
    mapped: Arc<Mapped>,
    /// This rank's part.
    exposure: Option<Exposure>,
}

/// What accesses to it need. One under way may outlast the window here.
struct Mapped {
    window: DirectWindow,
    /// The parts of all ranks.
    parts: Box<[Option<MappedPart>]>,
    /// The group has ended.
    is_over: Arc<AtomicBool>,
}

struct MappedPart {
    piece: ExposedPiece,
    /// Its owner has withdrawn it.
    is_withdrawn: AtomicBool,
}

/// Another rank's part, as it was announced.
pub(super) struct Announced {
    /// The rank's number on this host; none of a rank of another one.
    pub(super) local: Option<u32>,
    pub(super) place: Place,
}

impl DirectWindows {
    /// Without windows; `segment` is the memory that this host's ranks share.
    pub(in crate::communicator) fn new(segment: Option<Arc<NodeSegment>>) -> Self {
        Self { segment, windows: RwLock::default(), closing: Mutex::new(()), steps: AtomicU32::new(0) }
    }

    /// Those of another group of the same ranks, or of some of them.
    pub(in crate::communicator) fn of_group(&self) -> Self {
        Self::new(self.segment.clone())
    }

    /// Whether memory lies where the host's other ranks see it.
    pub(super) fn is_shared(&self, address: *const u8, len: usize) -> bool {
        self.segment.as_ref().is_some_and(|segment| segment.locate(address, len).is_some())
    }

    /// Lets the host's other ranks access this rank's part of a new window; `None` where they cannot.
    pub(super) fn expose(&self, memory: &TensorRegion, dtype: DType) -> Option<Exposure> {
        let segment = self.segment.as_ref().filter(|_| DirectWindow::takes(*memory, dtype))?;
        Exposure::new(segment, memory)
    }

    /// All ranks have said where their parts lie.
    pub(super) fn insert(
        &self,
        id: u32,
        window: DirectWindow,
        exposure: Option<Exposure>,
        announced: impl Iterator<Item = Announced>,
        is_over: Arc<AtomicBool>,
    ) {
        let part = |(rank, announced): (u32, Announced)| {
            let (segment, local) = (self.segment.as_ref()?, announced.local?);
            let piece = ExposedPiece::new(segment, local, announced.place, window.bytes_of(Rank(rank)))?;
            Some(MappedPart { piece, is_withdrawn: AtomicBool::new(false) })
        };
        let parts: Box<[_]> = (0..).zip(announced).map(part).collect();
        if exposure.is_some() || parts.iter().any(Option::is_some) {
            let mut windows = self.windows.write().unwrap_or_else(PoisonError::into_inner);
            windows.insert(id, Opened { mapped: Arc::new(Mapped { window, parts, is_over }), exposure });
        }
    }

    /// Makes an access, if it goes this way.
    #[inline]
    pub(super) fn access(&self, drive: &Drive, request: &AccessRequest) -> Option<Result<(), AccessFailure>> {
        let mut steps = 0;
        let outcome = self.run(request, &mut steps)?;
        let before = self.steps.fetch_add(steps, Ordering::Relaxed);
        if before % POLL_EVERY + steps >= POLL_EVERY && !drive.is_dedicated() {
            // Whatever has become of the engine, the access was made.
            let _ = drive.nudge();
        }
        Some(outcome)
    }

    #[inline]
    fn run(&self, request: &AccessRequest, steps: &mut u32) -> Option<Result<(), AccessFailure>> {
        let mapped = self.mapped(request.window.0)?;
        let part = mapped.parts.get(request.target.0 as usize)?.as_ref()?;
        let mut access = match mapped.window.start(request) {
            Ok(access) => access,
            Err(refused) => return Some(Err(AccessFailure::Start(refused))),
        };
        loop {
            // The engine says why the group has ended, and the target that it has closed its part.
            if mapped.is_over.load(Ordering::Acquire) || part.is_withdrawn.load(Ordering::Relaxed) {
                return None;
            }
            let Some(inside) = part.piece.enter() else {
                part.is_withdrawn.store(true, Ordering::Relaxed);
                return None;
            };
            let stepped = mapped.window.step(&mut access, inside.memory());
            drop(inside);
            *steps += 1;
            match stepped {
                Ok(false) => {}
                Ok(true) => return Some(Ok(())),
                Err(error) => return Some(Err(AccessFailure::Failed(error))),
            }
        }
    }

    /// Whether all accesses of a window to a target, or to all, are of those that end in their calls.
    pub(super) fn is_flushed(&self, window: u32, target: Option<u32>) -> bool {
        let Some(mapped) = self.mapped(window) else { return false };
        let is_direct = |(rank, part): (u32, &Option<MappedPart>)| {
            let is_direct = part.as_ref().is_some_and(|part| !part.is_withdrawn.load(Ordering::Relaxed));
            is_direct
                || mapped.window.bytes_of(Rank(rank)) == 0
                || target.is_some_and(|target| target != rank)
        };
        !mapped.is_over.load(Ordering::Acquire) && (0..).zip(&mapped.parts).all(is_direct)
    }

    /// A window, which is locked no longer than it takes to find it: an access may take seconds.
    #[inline]
    fn mapped(&self, id: u32) -> Option<Arc<Mapped>> {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        windows.get(&id).map(|opened| opened.mapped.clone())
    }

    /// Takes a window out, and waits until no rank is inside this rank's part, this one included. Another thread that takes out the same
    /// window waits, too.
    ///
    /// # Errors
    /// As [`withdraw`].
    pub(super) fn remove(&self, drive: &Drive, id: u32) -> Result<(), Error> {
        let _closing = lock(&self.closing);
        let removed = self.windows.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        removed.and_then(|opened| opened.exposure).map_or(Ok(()), |exposure| withdraw(drive, exposure))
    }

    /// The windows that were not taken out.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

/// Takes a part back, and waits until no rank is inside.
///
/// # Errors
/// The engine cannot be driven. The part was taken away from the ranks that were still inside.
pub(super) fn withdraw(drive: &Drive, mut exposure: Exposure) -> Result<(), Error> {
    exposure.withdraw();
    if exposure.is_at_rest() {
        return Ok(());
    }
    // A rank that stays inside is stopped: the group ends when its heartbeats have been missed for long enough.
    let waited = Arc::new(Mutex::new(exposure));
    let exposure = waited.clone();
    let is_back = move |engine: &mut crate::engine::Engine| {
        let mut exposure = lock(&exposure);
        if !exposure.is_at_rest() {
            engine.aborted_in(None)?;
            exposure.fence();
        }
        Some(())
    };
    let driven = drive.until_of(is_back, None);
    // The driver may drop the condition later.
    lock(&waited).end();
    driven
}

#[cfg(test)]
mod tests;
