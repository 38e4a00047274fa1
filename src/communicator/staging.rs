//! Operations on other memory than the caller's: inputs that are multiplied by a factor or packed from blocks before, outputs that are
//! unpacked into blocks after.
//!
//! The staging area belongs to the operation. It has as many bytes as the input and the output that go through it, is freed when the
//! operation has ended, and never freed where a device may still use it. A registered tensor keeps its own for the next start. Schedules,
//! transports and other ranks see contiguous host memory like any other. For tensors on a GPU it is filled and emptied by copies that the
//! engine waits for ([`device`]).
#![allow(unsafe_code)]

mod area;
pub(super) mod device;

use std::fmt::Display;
use std::sync::Arc;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::header::Collective;
use shouter_reducer::kernel::Kernels;
use shouter_reducer::layout::{Layout, pack};
use shouter_reducer::memory::Owned;
use shouter_reducer::schedule::Problem;

use super::collectives::{addressed, is_given_in_output, placement, published, raw};
use super::element::Buffer;
use super::outcomes::Outcomes;
use super::table::Entry;
use super::{CollectiveCall, Group, Work};
use crate::error::{Error, TensorId};
use crate::runtime::{Clock, Instant};
use area::Unpack;
pub(super) use area::{Ended, Staged};

/// The work on the input of a collective before it, and on its output after it, in a staging area of the operation's
/// own. Ranks may differ in it: none of it is compared, and ranks exchange the same number of elements of the same
/// type.
///
/// It takes memory: as much again as the input where that has a factor or a layout, and as the output where that has a layout. Input and
/// output may overlap as they like where either of them is staged. An operation that fails leaves an output with a layout as it was.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shouter::config::{Builder, Environment};
/// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
/// # let group = shouter::init(config)?;
/// use shouter::{Collective, CollectiveCall, DType, Layout, ReduceOp, Staging};
///
/// // The second column of a matrix of two columns, from rank 0 to all.
/// let mut matrix = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let call = CollectiveCall {
///     collective: Collective::Broadcast,
///     input: std::ptr::null(),
///     output: matrix[1..].as_mut_ptr().cast(),
///     count: 3,
///     dtype: DType::F32,
///     op: ReduceOp::Sum,
///     root: 0,
/// };
/// let column = Layout { count: 3, block: 1, stride: 2 };
/// // SAFETY: the column is in the matrix.
/// let work = unsafe { group.start_staged(&call, &Staging { output: Some(column), ..Staging::default() }) }?;
/// work.wait(None)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Staging {
    /// Each element of this rank's input is multiplied by it first, for sums of floats and of complex numbers. It is rounded to the type
    /// that sums are accumulated in (f32 for floats of up to 32 bits and complex numbers of them, else f64), and the product to the
    /// element's type; then products are summed as elements are.
    pub factor: Option<f64>,
    /// The layout of the input's elements, those of all blocks in one. Not looked at where this rank has no input.
    pub input: Option<Layout>,
    /// The layout of the output's elements; a broadcast's root has its elements there, too. Not looked at where this
    /// rank has no output.
    pub output: Option<Layout>,
    /// Input and output are in the memory of an NVIDIA GPU, and this is a stream of it (a `cudaStream_t`; 0 is the default stream): the input is
    /// read, and the output written, after the work that the stream holds at the call. When the operation has ended the
    /// result is there for any stream. Layouts are refused then. See [`all_reduce_cuda`](Group::all_reduce_cuda) for
    /// the further conditions on the memory.
    pub cuda_stream: Option<u64>,
}

impl Staging {
    /// Nothing but memory of a GPU.
    pub fn on_cuda(stream: u64) -> Self {
        Self { cuda_stream: Some(stream), ..Self::default() }
    }

    /// The stream of memory of a GPU, where no other staging is requested.
    fn plain_stream(&self) -> Option<u64> {
        self.cuda_stream.filter(|_| *self == Self::on_cuda(self.cuda_stream.unwrap_or(0)))
    }

    /// Refuses staging that does not exist for memory of a GPU.
    pub(super) fn check_on_gpu(&self) -> Result<(), Error> {
        if self.input.is_some() || self.output.is_some() {
            return Err(argument(
                "memory of a GPU has no layouts; pack and unpack the elements on their stream",
            ));
        }
        Ok(())
    }

    /// Nothing but a factor.
    pub(super) fn factor(factor: f64) -> Self {
        Self { factor: Some(factor), ..Self::default() }
    }

    fn is_none(&self) -> bool {
        self.factor.is_none() && self.input.is_none() && self.output.is_none() && self.cuda_stream.is_none()
    }
}

/// One side of an operation: the number of elements, and the memory.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) address: *mut u8,
    pub(super) count: usize,
    pub(super) layout: Option<Layout>,
}

impl Side {
    /// The caller's memory, with the gaps between its blocks.
    ///
    /// # Safety
    /// As for [`Buffer::from_raw`].
    unsafe fn buffer(&self, what: &str, dtype: DType) -> Result<Buffer, Error> {
        let mut count = self.count;
        if let Some(layout) = self.layout.filter(|_| self.count > 0) {
            layout.check(self.count, dtype.size()).map_err(argument)?;
            count = layout.span().map_err(argument)?;
        }
        // SAFETY: passed on to the caller.
        unsafe { raw(what, self.address, count, dtype) }
    }
}

/// Input and output of an operation on the host, which may be staged.
pub(super) struct OnHost<'a> {
    /// What is staged, for errors.
    pub(super) what: &'a dyn Display,
    pub(super) dtype: DType,
    pub(super) input: Side,
    pub(super) output: Side,
    pub(super) factor: Option<f64>,
    /// The output has what is given, and keeps it: a broadcast's root.
    pub(super) is_given_in_output: bool,
}

impl OnHost<'_> {
    /// The caller's memory, or staged, with the input in it.
    ///
    /// # Safety
    /// As for [`Group::run_staged`], until the operation has ended.
    pub(super) unsafe fn stage(
        &self,
        keeper: Option<&Arc<Entry>>,
    ) -> Result<(Buffer, Buffer, Option<Staged>), Error> {
        let Self { what, dtype, input: from, output: into, factor, .. } = *self;
        let (given, size) = (from.count, dtype.size());
        // SAFETY: the caller's promise; an input is only read.
        let (input, output) =
            unsafe { (from.buffer("the input", dtype)?, into.buffer("the output", dtype)?) };
        let stages_input = given > 0 && (from.layout.is_some() || factor.is_some());
        let stages_output = into.count > 0 && into.layout.is_some();
        if !stages_input && !stages_output {
            return Ok((input, output, None));
        }
        let behind = if stages_input { room(given, size) } else { Some(0) };
        let bytes = behind.zip(if stages_output { room(into.count, size) } else { Some(0) });
        let memory = bytes.and_then(|(input, output)| input.checked_add(output)).and_then(|bytes| {
            let kept = keeper.and_then(|keeper| keeper.kept(bytes));
            kept.or_else(|| Owned::new(bytes))
        });
        let memory = memory.ok_or_else(|| argument(format!("there is no memory to stage {what}")))?;
        let base = memory.as_ptr().as_ptr();
        let mut staged = Staged::new(memory, None, keeper.cloned());
        let mut buffers = (input, output);
        if stages_input {
            // SAFETY: so many elements fit the memory, which is this operation's alone.
            buffers.0 = unsafe { Buffer::from_raw(base, given, dtype) }?;
            // SAFETY: the caller's promise of the input, which is checked above.
            unsafe { fill(buffers.0, dtype, input, &from, factor) };
        }
        if stages_output && let Some(layout) = into.layout {
            let at = base.wrapping_add(behind.unwrap_or(0));
            // SAFETY: as above, behind the input.
            buffers.1 = unsafe { Buffer::from_raw(at, into.count, dtype) }?;
            if self.is_given_in_output {
                // SAFETY: a root's elements are in the output. It keeps them as they are.
                unsafe { pack(&layout, size, into.address, buffers.1.as_mut_slice()) };
            } else {
                staged.output = Some(Unpack { layout, size, from: buffers.1, into: into.address });
            }
        }
        Ok((buffers.0, buffers.1, Some(staged)))
    }
}

/// Input and output of an operation on a GPU: addresses, and numbers of elements.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a build without CUDA looks at none of it"))]
pub(super) struct Sides {
    pub(super) input: (*const u8, usize),
    pub(super) output: (*mut u8, usize),
    pub(super) dtype: DType,
    /// They have one place in the staging area, too.
    pub(super) is_one: bool,
}

impl Sides {
    /// Those of this rank's part of a collective. The data of a broadcast's root is the input here.
    fn of(problem: &Problem, input: *const u8, output: *mut u8) -> Self {
        let dtype = problem.shape.dtype;
        let elements = |bytes: u64| bytes as usize / dtype.size();
        let (given, taken) = (elements(problem.input_bytes()), elements(problem.output_bytes()));
        if problem.shape.collective == Collective::Broadcast {
            return match is_given_in_output(problem) {
                true => Self { input: (output, taken), output: (output, 0), dtype, is_one: false },
                false => Self { input: (output, 0), output: (output, taken), dtype, is_one: false },
            };
        }
        let is_one = problem.shape.collective == Collective::AllReduce && input == output.cast_const();
        Self { input: (input, given), output: (output, taken), dtype, is_one }
    }
}

fn argument(why: impl Display) -> Error {
    Error::Argument(why.to_string())
}

/// Bytes of elements in a staging area: the next ones begin on a cache line.
fn room(count: usize, size: usize) -> Option<usize> {
    count.checked_mul(size)?.checked_next_multiple_of(64)
}

/// Staging areas of a message's elements, which lie at `address` in blocks.
///
/// # Safety
/// `address` is valid for reads of the blocks of what is sent, or for writes of those of what is received, until the message has been.
pub(super) unsafe fn stage_message(
    address: *mut u8,
    layout: Layout,
    dtype: DType,
    is_sent: bool,
) -> Result<(Staged, Buffer), Error> {
    let count = layout.elements().map_err(argument)?;
    layout.check(count, dtype.size()).map_err(argument)?;
    let memory = room(count, dtype.size()).and_then(Owned::new);
    let memory = memory.ok_or_else(|| argument(format!("there is no memory to stage {layout}")))?;
    // SAFETY: so many elements fit the memory, which is this operation's alone.
    let staged = unsafe { Buffer::from_raw(memory.as_ptr().as_ptr(), count, dtype) }?;
    let mut output = None;
    if is_sent {
        // SAFETY: the caller's promise.
        unsafe { pack(&layout, dtype.size(), address, staged.as_mut_slice()) };
    } else {
        output = Some(Unpack { layout, size: dtype.size(), from: staged, into: address });
    }
    Ok((Staged::new(memory, output, None), staged))
}

impl Group {
    /// As [`run_collective`](Self::run_collective), with a factor or layouts.
    ///
    /// # Errors
    /// [`Error::Argument`] for a factor of an operation that is no sum, or of a type that has none; for a layout with
    /// blocks of nothing, with blocks that overlap, that does not fit in memory, or that has another number of elements
    /// than the collective; else as [`run_collective`](Self::run_collective).
    ///
    /// # Safety
    /// As for [`run_collective`](Self::run_collective), of the blocks where there is a layout; the gaps between them are not touched.
    pub unsafe fn run_staged(&self, call: &CollectiveCall, staging: &Staging) -> Result<(), Error> {
        if let Some(stream) = staging.plain_stream().filter(|_| !self.is_of_some()) {
            // SAFETY: passed on to the caller.
            return unsafe { self.run_collective_cuda(call, stream) };
        }
        let problem = self.problem_of(call)?;
        // SAFETY: passed on to the caller.
        unsafe { self.run_problem_staged(problem, (call.input, call.output), staging) }
    }

    /// As [`start`](Self::start), with a factor or layouts.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`run_staged`](Self::run_staged).
    ///
    /// # Safety
    /// As for [`start`](Self::start), of the blocks where there is a layout; the gaps between them are not touched. The input may be
    /// changed at once where it is staged.
    pub unsafe fn start_staged(&self, call: &CollectiveCall, staging: &Staging) -> Result<Work, Error> {
        self.drive.check_process()?;
        if let Some(stream) = staging.plain_stream().filter(|_| !self.is_of_some()) {
            // SAFETY: passed on to the caller.
            return unsafe { self.start_collective_cuda(call, stream) };
        }
        let problem = self.problem_of(call)?;
        // SAFETY: passed on to the caller.
        unsafe { self.start_problem_staged(Clock.now(), problem, (call.input, call.output), staging) }
    }

    /// # Safety
    /// As for [`start_staged`](Self::start_staged).
    pub(super) unsafe fn start_problem_staged(
        &self,
        begin: Instant,
        problem: Problem,
        at: (*const u8, *mut u8),
        staging: &Staging,
    ) -> Result<Work, Error> {
        // SAFETY: passed on to the caller.
        let (problem, input, output, staged) = unsafe { self.staged(problem, at, staging, None) }?;
        let memory = self.memory(&problem, input, output);
        self.start_memory(begin, problem, memory, None, staged)
    }

    /// Whether this is a group of some ranks of the job.
    fn is_of_some(&self) -> bool {
        self.subset.is_some()
    }

    /// As [`push_into`](Self::push_into), with a factor or layouts. From its second start on this allocates nothing, where no other
    /// operation of the tensor is under way and the staging is the same.
    ///
    /// # Errors
    /// As [`push_into`](Self::push_into) and [`run_staged`](Self::run_staged).
    ///
    /// # Safety
    /// As for [`start_staged`](Self::start_staged), with the elements that were registered.
    pub unsafe fn push_staged(
        &self,
        tensor: TensorId,
        input: *const u8,
        output: *mut u8,
        staging: &Staging,
    ) -> Result<Work, Error> {
        self.drive.check_process()?;
        let entry = self.tables.entry(tensor)?;
        let is_plain =
            input == output.cast_const() && entry.problem.shape.collective == Collective::AllReduce;
        if let Some(stream) = staging.plain_stream().filter(|_| is_plain && !self.is_of_some()) {
            // SAFETY: passed on to the caller.
            return unsafe { self.push_cuda(tensor, output.addr() as u64, stream) };
        }
        // SAFETY: passed on to the caller.
        unsafe { self.push_entry(entry, input, output, staging) }
    }

    /// Runs this rank's part of a collective, in place as made by the tables, with its memory at these addresses.
    ///
    /// # Safety
    /// As for [`run_staged`](Self::run_staged).
    pub(super) unsafe fn run_problem_staged(
        &self,
        problem: Problem,
        at: (*const u8, *mut u8),
        staging: &Staging,
    ) -> Result<(), Error> {
        if let Some(stream) = staging.cuda_stream {
            // SAFETY: passed on to the caller.
            return unsafe { self.run_problem_on_gpu(Clock.now(), problem, at, (staging, stream)) };
        }
        // SAFETY: passed on to the caller.
        let (problem, input, output, staged) = unsafe { self.staged(problem, at, staging, None) }?;
        let result = self.run_part(&problem, input, output);
        if let Some(staged) = staged {
            staged.end(Ended::of(&result));
        }
        result
    }

    /// Runs this rank's part of a collective with its memory at these addresses on a GPU: by the cells, as ranks do that have theirs on the
    /// host, or as a start and a wait.
    ///
    /// # Safety
    /// As for [`run_staged`](Self::run_staged).
    pub(super) unsafe fn run_problem_on_gpu(
        &self,
        begin: Instant,
        problem: Problem,
        at: (*const u8, *mut u8),
        (staging, stream): (&Staging, u64),
    ) -> Result<(), Error> {
        if self.cells_for(published(&problem)).is_none() {
            // SAFETY: passed on to the caller, who gets the memory back when this has ended.
            return unsafe { self.start_problem_staged(begin, problem, at, staging) }?.wait(None);
        }
        if staging.factor.is_some() {
            Self::check_factor(problem.shape.collective, problem.shape.op, problem.shape.dtype)?;
        }
        staging.check_on_gpu()?;
        // SAFETY: passed on to the caller; addresses are not accessed here.
        let (input, output) = unsafe { addressed(&problem, at.0, at.1) }?;
        // SAFETY: passed on to the caller.
        unsafe { self.run_small_on_gpu(&problem, (input, output), (staging.factor, stream)) }
    }

    /// The memory of input and output of this rank's part: the caller's, or staged, with the input in it.
    ///
    /// # Safety
    /// As for [`run_staged`](Self::run_staged), until the operation has ended.
    pub(super) unsafe fn staged(
        &self,
        problem: Problem,
        (input, output): (*const u8, *mut u8),
        staging: &Staging,
        keeper: Option<&Arc<Entry>>,
    ) -> Result<(Problem, Buffer, Buffer, Option<Staged>), Error> {
        let Problem { shape, .. } = problem;
        let placed = |problem: Problem, input, output| -> Result<Problem, Error> {
            let placement = placement(&problem, input, output)?;
            Ok(Problem { placement, ..problem })
        };
        if staging.is_none() {
            // SAFETY: passed on to the caller.
            let (input, output) = unsafe { addressed(&problem, input, output) }?;
            return Ok((placed(problem, input, output)?, input, output, None));
        }
        if staging.factor.is_some() {
            Self::check_factor(shape.collective, shape.op, shape.dtype)?;
        }
        if let Some(stream) = staging.cuda_stream {
            staging.check_on_gpu()?;
            let sides = Sides::of(&problem, input, output);
            let (tensor, step) = (keeper.map(|entry| &**entry), self.annotations.step());
            let call = (self.outcomes.call_of(&shape, tensor, step), Outcomes::subject(&shape, tensor));
            // SAFETY: passed on to the caller.
            let (input, output, staged) = unsafe { self.stage_sides(sides, (staging, stream), call) }?;
            if is_given_in_output(&problem) {
                return Ok((problem, Buffer::empty(), input, staged));
            }
            return Ok((placed(problem, input, output)?, input, output, staged));
        }
        let size = shape.dtype.size();
        let is_broadcast = shape.collective == Collective::Broadcast;
        let given = if is_broadcast { 0 } else { problem.input_bytes() as usize / size };
        let on_host = OnHost {
            what: &shape,
            dtype: shape.dtype,
            input: Side { address: input.cast_mut(), count: given, layout: staging.input },
            output: Side {
                address: output,
                count: problem.output_bytes() as usize / size,
                layout: staging.output,
            },
            factor: staging.factor,
            is_given_in_output: is_broadcast && problem.rank == problem.root,
        };
        // SAFETY: passed on to the caller.
        let (input, output, staged) = unsafe { on_host.stage(keeper) }?;
        Ok((placed(problem, input, output)?, input, output, staged))
    }

    /// Refuses factors of operations that are no sum, and of types that have none.
    pub(super) fn check_factor(collective: Collective, op: ReduceOp, dtype: DType) -> Result<(), Error> {
        if !collective.reduces() || op != ReduceOp::Sum {
            let what =
                if collective.reduces() { format!("{op} of {collective}") } else { collective.to_string() };
            return Err(argument(format!("{what} has no factor; sums have one")));
        }
        Kernels::detect().check_factor(dtype).map_err(argument)
    }
}

/// Writes the input's elements to a staging area.
///
/// # Safety
/// The input is valid for reads of its elements.
unsafe fn fill(staged: Buffer, dtype: DType, input: Buffer, from: &Side, factor: Option<f64>) {
    let kernels = Kernels::detect();
    match (from.layout, factor) {
        (None, None) => {}
        (None, Some(factor)) => kernels.scale(dtype, staged.as_mut_slice(), input.as_slice(), factor),
        (Some(layout), factor) => {
            // SAFETY: the caller's promise.
            unsafe { pack(&layout, dtype.size(), from.address, staged.as_mut_slice()) };
            if let Some(factor) = factor {
                kernels.scale_in_place(dtype, staged.as_mut_slice(), factor);
            }
        }
    }
}

#[cfg(test)]
mod tests;
