//! The types that cross the boundary, and the numbers of Rust's enums.
//!
//! Enums are passed as integers: a C caller may pass any number, and a Rust enum of an unknown value would be undefined
//! behaviour before the first check could run.

use std::ffi::c_char;

use shouter::{Collective, DType, ReduceOp};

/// The type of a tensor's elements: one of SHOUTER_F16 to SHOUTER_BOOL.
pub type Dtype = i32;

/// IEEE 754 binary16; sums are accumulated in float32.
pub const SHOUTER_F16: i32 = 0;
/// bfloat16, the upper half of a float32; sums are accumulated in float32.
pub const SHOUTER_BF16: i32 = 1;
/// IEEE 754 binary32.
pub const SHOUTER_F32: i32 = 2;
/// IEEE 754 binary64.
pub const SHOUTER_F64: i32 = 3;
/// Signed, 8 bits.
pub const SHOUTER_I8: i32 = 4;
/// Signed, 16 bits.
pub const SHOUTER_I16: i32 = 5;
/// Signed, 32 bits.
pub const SHOUTER_I32: i32 = 6;
/// Signed, 64 bits.
pub const SHOUTER_I64: i32 = 7;
/// Unsigned, 8 bits.
pub const SHOUTER_U8: i32 = 8;
/// Unsigned, 16 bits.
pub const SHOUTER_U16: i32 = 9;
/// Unsigned, 32 bits.
pub const SHOUTER_U32: i32 = 10;
/// Unsigned, 64 bits.
pub const SHOUTER_U64: i32 = 11;
/// OCP 8-bit float with 4 bits of exponent, a byte; sums are accumulated in float32. What is too large becomes NaN.
pub const SHOUTER_F8E4M3: i32 = 12;
/// OCP 8-bit float with 5 bits of exponent, a byte; sums are accumulated in float32. What is too large becomes an infinity.
pub const SHOUTER_F8E5M2: i32 = 13;
/// Two float32: the real part, then the imaginary part (`float _Complex`). An element is aligned to its parts.
pub const SHOUTER_COMPLEX64: i32 = 14;
/// Two float64: the real part, then the imaginary part (`double _Complex`). An element is aligned to its parts.
pub const SHOUTER_COMPLEX128: i32 = 15;
/// A truth value in a byte: 0 is false, all others are true. Reductions write 0 or 1; what is only moved stays as it is.
pub const SHOUTER_BOOL: i32 = 16;

/// How the ranks' elements become one: one of SHOUTER_SUM to SHOUTER_LXOR.
///
/// Integers have SUM to BXOR, floats SUM to AVG, complex numbers SUM, PROD and AVG, and truth values LAND, LOR and LXOR; another is
/// SHOUTER_ERROR_ARGUMENT.
pub type Op = i32;

/// The sum; integers wrap.
pub const SHOUTER_SUM: i32 = 0;
/// The least.
pub const SHOUTER_MIN: i32 = 1;
/// The greatest.
pub const SHOUTER_MAX: i32 = 2;
/// The product; integers wrap.
pub const SHOUTER_PROD: i32 = 3;
/// The mean: the sum divided by the number of ranks.
pub const SHOUTER_AVG: i32 = 4;
/// Each bit that all have.
pub const SHOUTER_BAND: i32 = 5;
/// Each bit that any has.
pub const SHOUTER_BOR: i32 = 6;
/// Each bit that an odd number of them have.
pub const SHOUTER_BXOR: i32 = 7;
/// Whether all are true.
pub const SHOUTER_LAND: i32 = 8;
/// Whether any is true.
pub const SHOUTER_LOR: i32 = 9;
/// Whether an odd number of them are true.
pub const SHOUTER_LXOR: i32 = 10;

/// A timeout in milliseconds that stands for the group's own deadline: 30 minutes, unless SHOUTER_DEADLINE says otherwise.
pub const SHOUTER_DEFAULT_TIMEOUT: i64 = -1;

/// A tensor that every rank will reduce, gather or move otherwise in each step: an entry of the tensor table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// For people and for agreement: every rank registers the same names in the same order. UTF-8, copied.
    pub name: *const c_char,
    /// What is done with it, the same on every rank: one of the kinds of shouter_operation_t.
    pub kind: i32,
    /// The root, the same on every rank; 0 where there is none.
    pub root: u32,
    /// Elements of the tensor, or of one rank's block, the same on every rank; 0 where there is a count for each rank.
    pub count: usize,
    /// SHOUTER_F32 and its like, the same on every rank.
    pub dtype: Dtype,
    /// SHOUTER_SUM and its like, the same on every rank; not looked at where nothing is reduced.
    pub op: Op,
    /// Elements for each rank in the input of a SCATTERV or a REDUCE_SCATTERV, the same list on every rank; of an ALLTOALLV what this rank gives
    /// to each. As many as the group has ranks; they are read during the call. NULL for all other kinds.
    pub input_counts: *const usize,
    /// Elements of each rank in the output of an ALLGATHERV or a GATHERV, the same list on every rank; of an ALLTOALLV what this rank takes from
    /// each. Likewise; NULL for all other kinds.
    pub output_counts: *const usize,
}

/// Elements that do not lie one behind the other: `count` blocks of `block` elements each, the first elements of which are `stride`
/// elements apart. A column of a matrix of 10 rows and 7 columns is {10, 1, 7}. What lies between the blocks is not touched.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Blocks; 0 is allowed.
    pub count: usize,
    /// Elements of a block, at least 1.
    pub block: usize,
    /// Elements from the beginning of a block to that of the next, at least as many as a block has.
    pub stride: usize,
}

/// The layout at an address; `None` for NULL.
///
/// # Safety
/// `layout` is NULL, or one may be read there.
#[allow(unsafe_code, reason = "a pointer from C; its validity is the caller's promise")]
pub(crate) unsafe fn layout(layout: *const Layout) -> Result<Option<shouter::Layout>, shouter::Error> {
    if !layout.is_aligned() {
        return Err(shouter::Error::Argument("the address of a shouter_layout_t is not aligned".into()));
    }
    // SAFETY: NULL, or aligned and the caller's promise.
    let layout = unsafe { layout.as_ref() };
    Ok(layout.map(|&Layout { count, block, stride }| shouter::Layout { count, block, stride }))
}

/// What this process has done since shouter_init.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Collectives completed.
    pub operations: u64,
    /// Bytes of this rank's tensors that were reduced.
    pub bytes_reduced: u64,
    /// Nanoseconds from push to completion, summed over the operations; operations that overlap each count.
    pub time_in_allreduce_ns: u64,
    /// Collectives that this host's ranks reduced straight from each other's tensors: in memory of shouter_alloc, or by GPUs. The
    /// tensors of others were staged.
    pub in_place: u64,
    /// Frames that left this host's port; counted by the rank that owns it (a host's first), as are all that follow.
    pub frames_sent: u64,
    /// Frames that came in at this host's port.
    pub frames_received: u64,
    /// Of the frames that left this host's port, those whose payload was read where it lay, and not copied into a buffer before.
    pub frames_uncopied: u64,
    /// Bytes that left this host's port, Ethernet headers included.
    pub bytes_sent: u64,
    /// Bytes that came in at this host's port, Ethernet headers included.
    pub bytes_received: u64,
    /// Datagrams sent again because their acknowledgement did not come.
    pub resent: u64,
    /// Datagrams dropped because their checksum was wrong; their senders sent them again.
    pub crc_dropped: u64,
    /// Datagrams of sealed sessions dropped because they had come before: the network, or someone in it, has repeated them.
    pub replayed: u64,
    /// Paths of RUD left out at present, because they lose what the others to the same host deliver.
    pub paths_out: u64,
    /// Ports of this host whose link is down at present.
    pub links_down: u64,
    /// Times that the link of a port of this host went down after it was up.
    pub link_losses: u64,
    /// Leaders of other hosts that this rank has a channel to: one is made at its first use.
    pub channels: u64,
}

/// The collective with this number in C.
pub(crate) fn collective(kind: i32) -> Result<Collective, shouter::Error> {
    let known = Collective::ALL.into_iter().find(|known| shouter::Operation::from(*known) as i32 == kind);
    known.ok_or_else(|| {
        shouter::Error::Argument(format!(
            "{kind} is no kind of operation; use SHOUTER_OPERATION_ALLREDUCE or another of shouter.h"
        ))
    })
}

/// The error of a library without CUDA.
#[cfg(not(feature = "cuda"))]
pub(crate) fn no_cuda() -> shouter::Error {
    shouter::Error::accelerator("this libshouter.a has no CUDA; build it with the feature cuda")
}

/// The element type with this number in C.
pub(crate) fn dtype(number: Dtype) -> Result<DType, shouter::Error> {
    let known = u8::try_from(number).ok().and_then(|n| DType::try_from(n).ok());
    known.ok_or_else(|| {
        shouter::Error::Argument(format!(
            "{number} is no element type; use SHOUTER_F32 or another of shouter.h"
        ))
    })
}

/// The reduction with this number in C.
pub(crate) fn op(number: Op) -> Result<ReduceOp, shouter::Error> {
    let known = u8::try_from(number).ok().and_then(|n| ReduceOp::try_from(n).ok());
    known.ok_or_else(|| {
        shouter::Error::Argument(format!("{number} is no reduction; use SHOUTER_SUM or another of shouter.h"))
    })
}

impl From<shouter::Stats> for Stats {
    fn from(stats: shouter::Stats) -> Self {
        Self {
            operations: stats.ops,
            bytes_reduced: stats.bytes_reduced,
            time_in_allreduce_ns: stats.time_in_allreduce_ns,
            in_place: stats.in_place,
            frames_sent: stats.frames_sent,
            frames_received: stats.frames_received,
            frames_uncopied: stats.frames_uncopied,
            bytes_sent: stats.bytes_sent,
            bytes_received: stats.bytes_received,
            resent: stats.resent,
            crc_dropped: stats.crc_dropped,
            replayed: stats.replayed,
            paths_out: stats.paths_out,
            links_down: stats.links_down,
            link_losses: stats.link_losses,
            channels: stats.channels,
        }
    }
}
