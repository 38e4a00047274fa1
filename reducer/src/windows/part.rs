//! One rank's part of a window, and the actions on its elements.
//!
//! Where the ranks of a host share the memory, several of them act on it at once, each by itself: every element is then accessed by atomic
//! operations, whoever acts. A barrier stands before each action. So those of one rank take effect in their order, and all ranks see the
//! actions of two others in one order, as if one owner had made them all.

use super::api::{Denial, WindowAction};
use super::wire::Piece;
use crate::dtype::{DType, ReduceOp};
use crate::kernel::Kernels;
use crate::memory::{self, AtomicRegion, MemoryKind, RegionOffset, TensorRegion};
use core::sync::atomic::{Ordering, fence};

/// The largest element, in bytes.
const ELEMENT: usize = 16;

/// A rank's part of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    memory: TensorRegion,
    /// The same memory, where other ranks act on it, too.
    shared: Option<AtomicRegion>,
    dtype: DType,
}

impl Part {
    pub(super) fn new(memory: TensorRegion, dtype: DType) -> Self {
        let shared = (memory.kind() == MemoryKind::Shared).then(|| AtomicRegion::new(memory, dtype.size()));
        Self { memory, shared: shared.flatten(), dtype }
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether several ranks may act on it at once.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Applies a piece, and writes the elements that were there before to `before`, if it is asked for. All fields of the piece are checked.
    #[inline]
    pub(super) fn apply(
        &self,
        kernels: Kernels,
        piece: &Piece,
        given: &[u8],
        before: RegionOffset,
    ) -> Result<(), Denial> {
        let Self { memory, shared, dtype } = *self;
        let (action, len) = (piece.action(), piece.bytes());
        if dtype != piece.dtype() {
            return Err(Denial::Type);
        }
        let size = dtype.size();
        let begin = usize::try_from(piece.offset()).ok().and_then(|offset| offset.checked_mul(size));
        let at = begin.filter(|begin| memory.span(*begin, len).is_some()).ok_or(Denial::Range)?;
        if given.len() != action.bytes_given(len) {
            return Err(Denial::Operation);
        }
        match action {
            WindowAction::Accumulate(op) | WindowAction::FetchAndOp(op) => {
                let is_known = op != ReduceOp::Avg && op.check(dtype).is_ok();
                is_known.then_some(()).ok_or(Denial::Operation)?;
            }
            WindowAction::CompareAndSwap if len != size => return Err(Denial::Operation),
            _ => {}
        }
        let done = match shared {
            Some(shared) => apply_shared(&shared, (kernels, dtype), action, (at, len), given, before),
            None => apply_alone((memory, at), (kernels, dtype), action, len, given, before),
        };
        done.ok_or(Denial::Range)
    }
}

/// Acts on `len` bytes at `place`, where nobody else does.
fn apply_alone(
    place: RegionOffset,
    (kernels, dtype): (Kernels, DType),
    action: WindowAction,
    len: usize,
    given: &[u8],
    before: RegionOffset,
) -> Option<()> {
    if action.answers() {
        memory::copy(before, place, len)?;
    }
    match action {
        WindowAction::Get => Some(()),
        WindowAction::Put | WindowAction::Swap => memory::write(place, given),
        WindowAction::Accumulate(op) | WindowAction::FetchAndOp(op) => {
            memory::accumulate(kernels, dtype, op, place, given)
        }
        WindowAction::CompareAndSwap => {
            let mut current = [0; ELEMENT];
            let (expected, new) = given.split_at(len);
            let current = current.get_mut(..len)?;
            memory::read(place, current)?;
            if current == expected { memory::write(place, new) } else { Some(()) }
        }
    }
}

/// Acts on `len` bytes from `at` on, where others do, too.
fn apply_shared(
    memory: &AtomicRegion,
    (kernels, dtype): (Kernels, DType),
    action: WindowAction,
    (at, len): (usize, usize),
    given: &[u8],
    before: RegionOffset,
) -> Option<()> {
    fence(Ordering::SeqCst);
    let before = action.answers().then_some(before);
    match action {
        WindowAction::Get => memory.read(at, before?, len),
        WindowAction::Put => memory.write(at, given),
        WindowAction::Swap => memory.update(at, len, before, |now, from| {
            now.copy_from_slice(&given[from..from + now.len()]);
        }),
        WindowAction::Accumulate(op) | WindowAction::FetchAndOp(op) => {
            memory.update(at, len, before, |now, from| {
                kernels.accumulate(dtype, op, now, &given[from..from + now.len()]);
            })
        }
        WindowAction::CompareAndSwap => {
            let (expected, new) = given.split_at(len);
            memory.update(at, len, before, |now, _| {
                if now == expected {
                    now.copy_from_slice(new);
                }
            })
        }
    }
}
