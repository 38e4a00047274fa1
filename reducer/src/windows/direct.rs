//! Accesses that a rank makes itself, to parts that lie in memory which it shares with their owners: no message is sent, and the owner takes no
//! part. The owner uses the same operations on such a part ([`Part`]), for its own accesses and for the requests of other hosts' ranks.

use super::api::{AccessError, AccessRefused, AccessRequest, AccessSubject, Denial};
use super::check::{check, subject_of};
use super::part::Part;
use super::wire::Piece;
use crate::dtype::DType;
use crate::grid::Rank;
use crate::kernel::Kernels;
use crate::memory::{self, TensorRegion};

/// Bytes of a step.
const STEP: usize = 8 << 10;
/// Data up to so many bytes need little room.
const SMALL: usize = 64;

/// The ends and the type of a window's parts, as accesses to them are checked.
#[derive(Debug)]
pub struct DirectWindow {
    rank: Rank,
    dtype: DType,
    lengths: Box<[u64]>,
    kernels: Kernels,
}

/// An access under way.
#[derive(Debug)]
pub struct DirectAccess {
    piece: Piece,
    target: Rank,
    data: TensorRegion,
    into: TensorRegion,
    /// Bytes of the window that were accessed.
    done: usize,
}

impl DirectWindow {
    /// A window of elements of `dtype`, as rank `rank` accesses it; each rank's part has so many.
    pub fn new(rank: Rank, dtype: DType, lengths: Box<[u64]>) -> Self {
        Self { rank, dtype, lengths, kernels: Kernels::detect() }
    }

    /// Whether a part in this memory can be accessed by several ranks at once: the host's ranks share it, and its elements have up to 8 bytes
    /// and are aligned to their size.
    pub fn takes(memory: TensorRegion, dtype: DType) -> bool {
        Part::new(memory, dtype).is_shared()
    }

    /// Bytes of a rank's part; none of a rank that does not exist.
    pub fn bytes_of(&self, target: Rank) -> usize {
        let count = self.lengths.get(target.0 as usize).copied().unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(self.dtype.size())
    }

    /// Begins an access, as [`Windows::start`](super::Windows::start) does.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn start(&self, request: &AccessRequest) -> Result<DirectAccess, AccessRefused> {
        let &AccessRequest { target, data, into, .. } = request;
        let piece = check(self.rank, self.lengths.len() as u32, Some((self.dtype, &self.lengths)), request)?;
        Ok(DirectAccess { piece, target, data, into, done: 0 })
    }

    /// Makes a part of an access, which takes some microseconds at most, in the target's `part`. True when there is no more.
    ///
    /// # Errors
    /// [`AccessError::Denied`], where `part` is not the one that the window was made with.
    #[inline]
    pub fn step(&self, access: &mut DirectAccess, part: TensorRegion) -> Result<bool, AccessError> {
        let denied = |why| AccessError::Denied { subject: self.subject(access), why };
        let part = Part::new(part, self.dtype);
        if !part.is_shared() {
            return Err(denied(Denial::Window));
        }
        let piece = access.piece.part(access.done, STEP);
        let given = piece.action().bytes_given(piece.bytes());
        let applied = match given <= SMALL {
            true => self.apply::<SMALL>(access, &part, &piece, given),
            false => self.apply::<STEP>(access, &part, &piece, given),
        };
        applied.map_err(denied)?;
        access.done += piece.bytes();
        Ok(access.done == access.piece.bytes())
    }

    /// Applies a piece of an access with so many bytes of data.
    #[inline]
    fn apply<const ROOM: usize>(
        &self,
        access: &DirectAccess,
        part: &Part,
        piece: &Piece,
        given: usize,
    ) -> Result<(), Denial> {
        let mut room = [0; ROOM];
        let data = room.get_mut(..given).ok_or(Denial::Operation)?;
        if given > 0 {
            memory::read((access.data, access.done), data).ok_or(Denial::Operation)?;
        }
        part.apply(self.kernels, piece, data, (access.into, access.done))
    }

    fn subject(&self, access: &DirectAccess) -> AccessSubject {
        subject_of(&access.piece, self.rank, access.target)
    }
}
