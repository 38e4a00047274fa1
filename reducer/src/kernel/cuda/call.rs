//! Which kernel does a piece of work, with which grid and which arguments. Everything is checked here, before the
//! driver sees it: a kernel that touches a wrong address ends the whole context, the trainer's work included.

use thiserror::Error;

use super::crc::{self, POWERS, Powers};
use crate::dtype::{DType, ReduceOp};

/// The most sources that one reduction takes.
pub const MAX_SOURCES: usize = 64;

/// Threads of a block, in all kernels.
pub(super) const THREADS: u32 = 256;
/// Blocks of a grid for each multiprocessor, at most; what is left is for the kernels' own loops.
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
    /// Too few or too many sources.
    #[error("a reduction takes 1 to {MAX_SOURCES} sources, not {0}; reduce more in several steps, of f32")]
    Sources(usize),
    /// The destination overlaps a source but is not exactly it.
    #[error(
        "the destination at {dst:#x} overlaps the source at {src:#x}; it may be a source, or apart from all"
    )]
    Overlap {
        /// Device address of the destination.
        dst: u64,
        /// Device address of the source.
        src: u64,
    },
    /// No kernel converts between these types.
    #[error("no kernel converts {from} to {to}; there are f32 to f16 and bf16, and back")]
    Conversion {
        /// The type given.
        from: DType,
        /// The type wanted.
        to: DType,
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
    Reduce(ReduceOp, DType),
    Divide(DType),
    Pack,
    Unpack,
    Convert(DType, DType),
    Crc32c,
}

/// The reductions that have kernels of their own; an average is a sum that is divided afterwards.
const REDUCTIONS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];
const CONVERSIONS: [(DType, DType); 4] = [
    (DType::F32, DType::F16),
    (DType::F32, DType::Bf16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::F32),
];

impl Kernel {
    /// Every kernel, once.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let reductions =
            REDUCTIONS.iter().flat_map(|&op| DType::ALL.iter().map(move |&d| Self::Reduce(op, d)));
        let divisions = DType::ALL.iter().map(|&dtype| Self::Divide(dtype));
        let conversions = CONVERSIONS.iter().map(|&(from, to)| Self::Convert(from, to));
        reductions.chain(divisions).chain(conversions).chain([Self::Pack, Self::Unpack, Self::Crc32c])
    }

    /// Its place in [`all`](Self::all).
    pub(super) fn index(self) -> usize {
        let dtypes = DType::ALL.len();
        let divisions = REDUCTIONS.len() * dtypes;
        let conversions = divisions + dtypes;
        let others = conversions + CONVERSIONS.len();
        // An average is a sum, the first; only conversions that exist are ever made.
        let place = |found: Option<usize>| found.unwrap_or(0);
        match self {
            Self::Reduce(op, dtype) => {
                place(REDUCTIONS.iter().position(|&o| o == op)) * dtypes + dtype as usize
            }
            Self::Divide(dtype) => divisions + dtype as usize,
            Self::Convert(from, to) => conversions + place(CONVERSIONS.iter().position(|&c| c == (from, to))),
            Self::Pack => others,
            Self::Unpack => others + 1,
            Self::Crc32c => others + 2,
        }
    }

    /// The function's name in the compiled image.
    pub(super) fn name(self) -> String {
        match self {
            Self::Reduce(ReduceOp::Avg, dtype) => format!("reduce_sum_{dtype}"),
            Self::Reduce(op, dtype) => format!("reduce_{op}_{dtype}"),
            Self::Divide(dtype) => format!("divide_{dtype}"),
            Self::Pack => "pack".into(),
            Self::Unpack => "unpack".into(),
            Self::Convert(from, to) => format!("convert_{from}_{to}"),
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

/// As `ReduceArgs` in reduce.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReduceArgs {
    count: u64,
    dst: u64,
    sources_len: u32,
    alike: u32,
    sources: [u64; MAX_SOURCES],
}

/// As `DivideArgs` in reduce.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DivideArgs {
    count: u64,
    dst: u64,
    n: u32,
}

/// One of the tensors that are packed into a buffer, or unpacked from it. Tables of them lie in memory that the
/// device can read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Device address of the tensor.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it lies in the buffer, in bytes. Multiples of 16 are the fastest.
    pub offset: u64,
}

/// As `PackArgs` in pack.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PackArgs {
    pieces: u64,
    buffer: u64,
    pieces_len: u32,
}

/// As `ConvertArgs` in convert.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvertArgs {
    count: u64,
    dst: u64,
    src: u64,
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

/// Blocks for `vectors` of 16 bytes, one a thread and turn.
fn blocks(vectors: u64, processors: u32) -> u32 {
    vectors.div_ceil(u64::from(THREADS)).clamp(1, u64::from(most_blocks(processors))) as u32
}

/// `dst = sources[0] op sources[1] op ...`, `count` elements; `None` where there are none.
pub(super) fn reduce(
    op: ReduceOp,
    dtype: DType,
    dst: u64,
    sources: &[u64],
    count: u64,
    processors: u32,
) -> Result<Option<Call<ReduceArgs>>, CallError> {
    let size = dtype.size() as u64;
    if sources.is_empty() || sources.len() > MAX_SOURCES {
        return Err(CallError::Sources(sources.len()));
    }
    if count == 0 {
        return Ok(None);
    }
    check("the destination", dst, count, size, size)?;
    let mut all = [0; MAX_SOURCES];
    for (slot, &src) in all.iter_mut().zip(sources) {
        check("a source", src, count, size, size)?;
        if src != dst && src.abs_diff(dst) < count * size {
            return Err(CallError::Overlap { dst, src });
        }
        *slot = src;
    }
    let alike = sources.iter().all(|src| src % 16 == dst % 16);
    let units = if alike { (count * size).div_ceil(16) } else { count };
    Ok(Some(Call {
        kernel: Kernel::Reduce(if op == ReduceOp::Avg { ReduceOp::Sum } else { op }, dtype),
        grid: [blocks(units, processors), 1],
        args: ReduceArgs { count, dst, sources_len: sources.len() as u32, alike: alike.into(), sources: all },
    }))
}

/// `dst[i] = dst[i] / n`; an `n` of 0 is taken for 1, as on the host.
pub(super) fn divide(
    dtype: DType,
    dst: u64,
    count: u64,
    n: u32,
    processors: u32,
) -> Result<Option<Call<DivideArgs>>, CallError> {
    let size = dtype.size() as u64;
    if count == 0 {
        return Ok(None);
    }
    check("the destination", dst, count, size, size)?;
    Ok(Some(Call {
        kernel: Kernel::Divide(dtype),
        grid: [blocks((count * size).div_ceil(16), processors), 1],
        args: DivideArgs { count, dst, n: n.max(1) },
    }))
}

/// Many tensors into one buffer, or (`unpack`) back. The table's entries are not checked.
pub(super) fn pack(
    unpack: bool,
    pieces: u64,
    pieces_len: u32,
    largest: u64,
    buffer: u64,
    processors: u32,
) -> Result<Option<Call<PackArgs>>, CallError> {
    if pieces_len == 0 {
        return Ok(None);
    }
    check("the table of pieces", pieces, u64::from(pieces_len), size_of::<Piece>() as u64, 8)?;
    check("the buffer", buffer, largest, 1, 1)?;
    let rows = pieces_len.min(MAX_ROWS);
    // Blocks that the largest piece can use, as long as all of them together are not too many.
    let share = most_blocks(processors).div_ceil(rows);
    Ok(Some(Call {
        kernel: if unpack { Kernel::Unpack } else { Kernel::Pack },
        grid: [blocks(largest.div_ceil(16), processors).min(share), rows],
        args: PackArgs { pieces, buffer, pieces_len },
    }))
}

/// `dst[i] = src[i]` in another type.
pub(super) fn convert(
    to: DType,
    dst: u64,
    from: DType,
    src: u64,
    count: u64,
    processors: u32,
) -> Result<Option<Call<ConvertArgs>>, CallError> {
    if !CONVERSIONS.contains(&(from, to)) {
        return Err(CallError::Conversion { from, to });
    }
    if count == 0 {
        return Ok(None);
    }
    let (to_size, from_size) = (to.size() as u64, from.size() as u64);
    check("the destination", dst, count, to_size, to_size)?;
    check("the source", src, count, from_size, from_size)?;
    if dst < src + count * from_size && src < dst + count * to_size {
        return Err(CallError::Overlap { dst, src });
    }
    Ok(Some(Call {
        kernel: Kernel::Convert(from, to),
        grid: [blocks(count.div_ceil(4), processors), 1],
        args: ConvertArgs { count, dst, src },
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
