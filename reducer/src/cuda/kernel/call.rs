//! Which kernel does a piece of work, with which grid and which arguments. Everything is checked here, before the
//! driver sees it: a kernel that touches a wrong address ends the whole context, the trainer's work included.

use thiserror::Error;

use super::crc::{self, POWERS, Powers};
use crate::dtype::{DType, NoReduction, ReduceOp};

/// The most sources that one fold takes.
pub const MAX_SOURCES: usize = 64;
/// The most destinations that one fold writes.
pub const MAX_DESTINATIONS: usize = 64;

/// Threads of a block, in all kernels.
pub(super) const THREADS: u32 = 256;
/// Blocks of a grid for each multiprocessor, at most; the kernels' own loops do the rest.
const BLOCKS_PER_PROCESSOR: u32 = 16;
/// Columns and rows of blocks that a grid may have.
const MAX_COLUMNS: u32 = i32::MAX as u32;
const MAX_ROWS: u32 = 65_535;
/// Rows of a CRC for which another block is worth its table.
const CRC_ROWS: u64 = 8;

/// Why a kernel cannot be called like that.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// A null pointer.
    #[error("{what} is null; pass the address of device memory")]
    Null {
        /// Which argument.
        what: &'static str,
    },
    /// An address at which no element can lie.
    #[error(
        "{what} at {address:#x} is no multiple of {align} bytes; GPUs access elements only where they are aligned"
    )]
    Misaligned {
        /// Which argument.
        what: &'static str,
        /// Its device address.
        address: u64,
        /// Bytes.
        align: u64,
    },
    /// A range beyond the end of all addresses.
    #[error("{what} at {address:#x} would reach beyond the last address; is the count right?")]
    TooLong {
        /// Which argument.
        what: &'static str,
        /// Its device address.
        address: u64,
    },
    /// A reduction that the type does not have.
    #[error(transparent)]
    NoReduction(#[from] NoReduction),
    /// A division of what is no sum.
    #[error("{op} of {dtype} is not divided; only numbers that are added, or compared, are")]
    NoDivision {
        /// The type.
        dtype: DType,
        /// The reduction.
        op: ReduceOp,
    },
    /// Too few or too many sources.
    #[error("a fold takes 1 to {MAX_SOURCES} sources, not {0}; reduce more in several steps, of f32")]
    Sources(usize),
    /// Too few or too many destinations.
    #[error("a fold writes 1 to {MAX_DESTINATIONS} destinations, not {0}; copy the result to the others")]
    Destinations(usize),
    /// A destination overlaps a source but is not exactly it.
    #[error(
        "the destination at {dst:#x} overlaps the source at {src:#x}; it may be a source, or apart from all"
    )]
    Overlap {
        /// Device address of the destination.
        dst: u64,
        /// Device address of the source.
        src: u64,
    },
    /// Two destinations overlap.
    #[error(
        "the destinations at {one:#x} and {other:#x} overlap; each is written once, apart from the others"
    )]
    Destination {
        /// Device address of one.
        one: u64,
        /// Device address of the other.
        other: u64,
    },
    /// Fragments of no bytes, or more than 2^32 of them.
    #[error("{bytes} bytes cannot be cut into fragments of {fragment}; take larger ones")]
    Fragments {
        /// Bytes of the whole range.
        bytes: u64,
        /// Bytes of each fragment.
        fragment: u64,
    },
}

/// A kernel of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The reduction, the elements' type, and whether the result is divided then.
    Fold(ReduceOp, DType, bool),
    Move(Packing),
    Crc32c,
}

/// The types of real numbers, and the operations that all of them have kernels for; an average folds as a sum.
const NUMBERS: &[DType] = DType::ALL.split_at(DType::Complex64 as usize).0;
const FOLDS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];

/// The other kernels: these never divide.
const OTHERS: [Kernel; 11] = [
    Kernel::Fold(ReduceOp::Prod, DType::Complex64, false),
    Kernel::Fold(ReduceOp::Prod, DType::Complex128, false),
    Kernel::Fold(ReduceOp::Band, DType::U8, false),
    Kernel::Fold(ReduceOp::Bor, DType::U8, false),
    Kernel::Fold(ReduceOp::Bxor, DType::U8, false),
    Kernel::Fold(ReduceOp::Land, DType::Bool, false),
    Kernel::Fold(ReduceOp::Lor, DType::Bool, false),
    Kernel::Fold(ReduceOp::Lxor, DType::Bool, false),
    Kernel::Move(Packing::Pack),
    Kernel::Move(Packing::Unpack),
    Kernel::Crc32c,
];

impl Kernel {
    /// Every kernel, once.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let folds = [false, true].into_iter().flat_map(|divided| {
            FOLDS.iter().flat_map(move |&op| NUMBERS.iter().map(move |&d| Self::Fold(op, d, divided)))
        });
        folds.chain(OTHERS)
    }

    /// Its place in [`all`](Self::all); `None` for a fold that has no kernel.
    pub(super) fn index(self) -> Option<usize> {
        let folds = FOLDS.len() * NUMBERS.len();
        if let Self::Fold(op, dtype, divided) = self
            && let Some(op) = FOLDS.iter().position(|&o| o == op)
            && (dtype as usize) < NUMBERS.len()
        {
            return Some(usize::from(divided) * folds + op * NUMBERS.len() + dtype as usize);
        }
        OTHERS.iter().position(|&other| other == self).map(|at| 2 * folds + at)
    }

    /// The function's name in the compiled image.
    pub(super) fn name(self) -> String {
        match self {
            Self::Fold(op, dtype, false) => format!("fold_{op}_{dtype}"),
            Self::Fold(op, dtype, true) => format!("fold_{op}_{dtype}_divided"),
            Self::Move(Packing::Pack) => "pack".into(),
            Self::Move(Packing::Unpack) => "unpack".into(),
            Self::Crc32c => "crc32c".into(),
        }
    }
}

/// One call: a kernel, its grid of blocks (x, y) of [`THREADS`] threads, and its one argument.
#[derive(Debug)]
pub(super) struct Call<A> {
    pub(super) kernel: Kernel,
    pub(super) grid: [u32; 2],
    pub(super) args: A,
}

/// One pass over several tensors: every `destinations[i] = sources[0][i] op sources[1][i] op ...`, folded in that order,
/// and divided then if that is asked for. It is fastest where all addresses are alike modulo 16.
#[derive(Clone, Copy, Debug)]
pub struct Fold<'a> {
    /// The type of all elements.
    pub dtype: DType,
    /// The reduction that folds them; an average folds as a sum, and is not divided by itself.
    pub op: ReduceOp,
    /// Device addresses of 1 to [`MAX_DESTINATIONS`] tensors. Each is exactly one of the sources or apart from all of
    /// them, and apart from the other destinations.
    pub destinations: &'a [u64],
    /// Device addresses of 1 to [`MAX_SOURCES`] tensors.
    pub sources: &'a [u64],
    /// Elements of each tensor.
    pub count: u64,
    /// Divides the folded values, which were rounded to their type: the bits of
    /// [`Kernels::finish_avg`](crate::kernel::Kernels::finish_avg) on the host. 0 is taken for 1. Bits, truth values and products of
    /// complex numbers are not divided.
    pub divide_by: Option<u32>,
}

/// As `FoldArgs` in fold.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldArgs {
    count: u64,
    sources_len: u32,
    destinations_len: u32,
    alike: u32,
    n: u32,
    sources: [u64; MAX_SOURCES],
    destinations: [u64; MAX_DESTINATIONS],
}

/// One of the tensors that are packed into a buffer, or unpacked from it. Tables of them lie in memory that the
/// device can read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedPiece {
    /// Device address of the tensor.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it lies in the buffer, in bytes. Multiples of 16 are the fastest.
    pub offset: u64,
}

/// The direction in which tensors are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// From where they are into the buffer.
    Pack,
    /// From the buffer to where they belong.
    Unpack,
}

/// As `PackArgs` in pack.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PackArgs {
    pieces: u64,
    buffer: u64,
    pieces_len: u32,
}

/// As `CrcArgs` in crc.cu.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CrcArgs {
    address: u64,
    bytes: u64,
    fragment: u64,
    results: u64,
    /// How many results there are.
    pub(super) fragments: u32,
    rows: u32,
    powers: Powers,
}

/// Checks that `count` elements of `size` bytes can lie at `address`.
fn check(what: &'static str, address: u64, count: u64, size: u64, align: u64) -> Result<(), CallError> {
    if address == 0 {
        return Err(CallError::Null { what });
    }
    if !address.is_multiple_of(align) {
        return Err(CallError::Misaligned { what, address, align });
    }
    count
        .checked_mul(size)
        .and_then(|bytes| address.checked_add(bytes))
        .map(|_| ())
        .ok_or(CallError::TooLong { what, address })
}

/// Blocks of a grid, at most.
fn most_blocks(processors: u32) -> u32 {
    processors.max(1).saturating_mul(BLOCKS_PER_PROCESSOR).min(MAX_COLUMNS)
}

/// Blocks for `vectors` of 16 bytes, one per thread and iteration.
fn blocks(vectors: u64, processors: u32) -> u32 {
    vectors.div_ceil(u64::from(THREADS)).clamp(1, u64::from(most_blocks(processors))) as u32
}

/// A fold; `None` where there are no elements.
pub(super) fn fold(fold: &Fold<'_>, processors: u32) -> Result<Option<Call<FoldArgs>>, CallError> {
    let Fold { dtype, op, destinations, sources, count, divide_by } = *fold;
    op.check(dtype)?;
    if sources.is_empty() || sources.len() > MAX_SOURCES {
        return Err(CallError::Sources(sources.len()));
    }
    if destinations.is_empty() || destinations.len() > MAX_DESTINATIONS {
        return Err(CallError::Destinations(destinations.len()));
    }
    if count == 0 {
        return Ok(None);
    }
    let unit = op.folds_as(dtype);
    let (size, align) = (unit.size() as u64, unit.align() as u64);
    let count = count
        .checked_mul(dtype.size() as u64 / size)
        .ok_or(CallError::TooLong { what: "a source", address: sources[0] })?;
    let n = divide_by.unwrap_or(1).max(1);
    let op = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
    // Dividing by one changes nothing: the folded value is rounded, and its NaNs are canonical.
    let kernel = Kernel::Fold(op, unit, n > 1);
    if kernel.index().is_none() {
        return Err(CallError::NoDivision { dtype, op });
    }
    let mut args = FoldArgs {
        count,
        sources_len: sources.len() as u32,
        destinations_len: destinations.len() as u32,
        alike: 0,
        n,
        sources: [0; MAX_SOURCES],
        destinations: [0; MAX_DESTINATIONS],
    };
    for (slot, &src) in args.sources.iter_mut().zip(sources) {
        check("a source", src, count, size, align)?;
        *slot = src;
    }
    for (i, (slot, &dst)) in args.destinations.iter_mut().zip(destinations).enumerate() {
        check("a destination", dst, count, size, align)?;
        let meets = |other: &&u64| other.abs_diff(dst) < count * size;
        if let Some(&src) = sources.iter().find(|src| **src != dst && meets(src)) {
            return Err(CallError::Overlap { dst, src });
        }
        if let Some(&one) = destinations.iter().take(i).find(meets) {
            return Err(CallError::Destination { one, other: dst });
        }
        *slot = dst;
    }
    let mut all = sources.iter().chain(destinations);
    let first = args.destinations[0];
    let alike = first.is_multiple_of(size) && all.all(|address| address % 16 == first % 16);
    args.alike = alike.into();
    let units = if alike { (count * size).div_ceil(16) } else { count };
    Ok(Some(Call { kernel, grid: [blocks(units, processors), 1], args }))
}

/// Many tensors into one buffer, or back. The table's entries are not checked.
pub(super) fn pack(
    way: Packing,
    pieces: u64,
    pieces_len: u32,
    largest: u64,
    buffer: u64,
    processors: u32,
) -> Result<Option<Call<PackArgs>>, CallError> {
    if pieces_len == 0 {
        return Ok(None);
    }
    check("the table of pieces", pieces, u64::from(pieces_len), size_of::<PackedPiece>() as u64, 8)?;
    check("the buffer", buffer, largest, 1, 1)?;
    let rows = pieces_len.min(MAX_ROWS);
    // Blocks that the largest piece can use, as long as all of them together are not too many.
    let share = most_blocks(processors).div_ceil(rows);
    Ok(Some(Call {
        kernel: Kernel::Move(way),
        grid: [blocks(largest.div_ceil(16), processors).min(share), rows],
        args: PackArgs { pieces, buffer, pieces_len },
    }))
}

/// The CRC32C of each fragment of `bytes` from `address` on, XORed into `results`.
pub(super) fn crc32c(
    address: u64,
    bytes: u64,
    fragment: u64,
    results: u64,
    processors: u32,
) -> Result<Option<Call<CrcArgs>>, CallError> {
    if bytes == 0 {
        return Ok(None);
    }
    let fragments = bytes.checked_div(fragment).map(|_| bytes.div_ceil(fragment));
    let fragments = fragments.and_then(|n| u32::try_from(n).ok()).filter(|_| bytes < 1 << 47);
    let fragments = fragments.ok_or(CallError::Fragments { bytes, fragment })?;
    check("the range", address, bytes, 1, 1)?;
    check("the results", results, fragments.into(), 4, 4)?;
    let all_rows = fragment.min(bytes).div_ceil(crc::ROW);
    let most = most_blocks(processors);
    let share = most.div_ceil(fragments);
    let rows = all_rows.div_ceil(all_rows.div_ceil(CRC_ROWS).min(share.into()));
    let columns = all_rows.div_ceil(rows) as u32;
    Ok(Some(Call {
        kernel: Kernel::Crc32c,
        grid: [columns, fragments.min(most.div_ceil(columns)).min(MAX_ROWS)],
        args: CrcArgs { address, bytes, fragment, results, fragments, rows: rows as u32, powers: POWERS },
    }))
}
