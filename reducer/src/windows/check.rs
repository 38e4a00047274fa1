//! Whether an access may start.

use super::api::{AccessRefused, AccessRequest, AccessSubject, WindowAction};
use super::wire::Piece;
use crate::dtype::{DType, ReduceOp};
use crate::grid::Rank;
use crate::header::MAX_COUNT;
use crate::memory::{MemoryKind, TensorRegion};

/// An access, for errors.
pub(super) fn subject_of(piece: &Piece, own: Rank, target: Rank) -> AccessSubject {
    AccessSubject {
        action: piece.action(),
        own,
        target,
        window: piece.window(),
        offset: piece.offset(),
        dtype: piece.dtype(),
        count: piece.count(),
    }
}

/// The elements that a request of rank `own` of `ranks` is about, if the group has such a window, and the window such elements: `extents` are
/// their type, and how many each rank has.
pub(super) fn check(
    own: Rank,
    ranks: u32,
    extents: Option<(DType, &[u64])>,
    request: &AccessRequest,
) -> Result<Piece, AccessRefused> {
    let &AccessRequest { window, action, target, offset, dtype, data, into, .. } = request;
    let (given, taken) = (data.len(), into.len());
    let bytes = match action {
        WindowAction::CompareAndSwap => dtype.size(),
        WindowAction::Get => taken,
        _ => given,
    };
    let fits = given == action.bytes_given(bytes) && taken == if action.answers() { bytes } else { 0 };
    let count = (bytes / dtype.size()) as u64;
    let is_whole = bytes.is_multiple_of(dtype.size()) && count <= MAX_COUNT;
    let on_device = |region: &TensorRegion| region.kind() == MemoryKind::Device && !region.is_empty();
    let memory = AccessRefused::Memory { action, dtype, given, taken };
    if !fits || !is_whole || on_device(&data) || on_device(&into) {
        return Err(memory);
    }
    let piece = Piece::new(window, action, dtype, offset, count).ok_or(memory)?;
    if target.0 >= ranks {
        return Err(AccessRefused::Rank { target, ranks });
    }
    let (type_of_window, lengths) = extents.ok_or(AccessRefused::Window { window })?;
    let subject = subject_of(&piece, own, target);
    if type_of_window != dtype {
        return Err(AccessRefused::Type { subject, dtype: type_of_window });
    }
    let len = lengths.get(target.0 as usize).copied().unwrap_or(0);
    if offset.checked_add(count).is_none_or(|end| end > len) {
        return Err(AccessRefused::Range { subject, len });
    }
    match action {
        WindowAction::Accumulate(ReduceOp::Avg) | WindowAction::FetchAndOp(ReduceOp::Avg) => {
            let why = "a window does not know how many ranks will take part; use sum, and divide";
            return Err(AccessRefused::Operation { subject, why });
        }
        WindowAction::Accumulate(op) | WindowAction::FetchAndOp(op) => op.check(dtype)?,
        WindowAction::CompareAndSwap if !is_comparable(dtype) => {
            let why = "only integers and truth values are compared and swapped; use a window of unsigned integers of that size";
            return Err(AccessRefused::Operation { subject, why });
        }
        _ => {}
    }
    Ok(piece)
}

/// Whether the type has bits that a compare-and-swap may compare.
fn is_comparable(dtype: DType) -> bool {
    ReduceOp::Bxor.is_of(dtype) || ReduceOp::Lxor.is_of(dtype)
}
