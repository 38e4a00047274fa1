//! Collectives other than the all-reduce in place, outside the tensor table.
//!
//! Every rank calls the same one in the same order, with the same counts, type, reduction and root. Buffers are in rank order: the
//! block of rank *r* is the *r*-th.

use std::sync::atomic::Ordering;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, MAX_COUNT, Shape};
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::schedule::{Placement, Problem};

use super::element::{Buffer, Element, from_slice, with_bytes};
use super::small::Part;
use super::{Group, Memory};
use crate::error::Error;
use crate::runtime::Clock;

/// One rank's part of a collective, by addresses: what [`Group::run_collective`] runs.
///
/// | collective | input | output |
/// |---|---|---|
/// | all-reduce | `count` elements | `count`, reduced over all ranks |
/// | reduce | `count` | `count` on the root, else none |
/// | broadcast | in the output, on the root | `count` |
/// | all-gather | `count` | `count` for each rank |
/// | gather | `count` | `count` for each rank, on the root, else none |
/// | scatter | `count` for each rank, on the root, else none | `count` |
/// | reduce-scatter | `count` for each rank | `count`, reduced over all ranks |
/// | all-to-all | `count` for each rank | `count` from each rank |
/// | barrier | none | none; the other fields are not looked at |
///
/// Both may be the same memory: where one has a block for each rank and the other one block, that is the rank's own block of it. They
/// may not overlap otherwise. An address of no elements is not looked at.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall {
    /// Which.
    pub collective: Collective,
    /// The input.
    pub input: *const u8,
    /// The output.
    pub output: *mut u8,
    /// Elements of the tensor, or of one rank's block; the same on all ranks.
    pub count: usize,
    /// The elements' type; the same on all ranks.
    pub dtype: DType,
    /// The reduction, where there is one; the same on all ranks.
    pub op: ReduceOp,
    /// The root, where there is one; the same on all ranks.
    pub root: u32,
}

impl Group {
    /// Gives `data` of rank `root` to all ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank; else as [`all_reduce`](Self::all_reduce).
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), Error> {
        let output = with_bytes(data, |data| data);
        self.typed::<T>(Collective::Broadcast, (Buffer::empty(), output), data.len(), ReduceOp::Sum, root)
    }

    /// Reduces `data` with that of all ranks into that of rank `root`; the others keep theirs.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank; else as [`all_reduce`](Self::all_reduce).
    pub fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: u32) -> Result<(), Error> {
        let data = with_bytes(data, |data| data);
        let output = if root == self.rank() { data } else { Buffer::empty() };
        self.typed::<T>(Collective::Reduce, (data, output), data.len() / size_of::<T>(), op, root)
    }

    /// Reduces `input` with that of all ranks into `output`, which is as long.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// let (loss, mut mean) = ([0.25f32], [0.0]);
    /// group.all_reduce_into(&loss, &mut mean, shouter::ReduceOp::Avg)?;
    /// assert_eq!(mean, loss);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for slices of different lengths; else as [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let count = self.length("output", output.len(), input.len(), 1)?;
        let buffers = (from_slice(input), with_bytes(output, |data| data));
        self.typed::<T>(Collective::AllReduce, buffers, count, op, 0)
    }

    /// Gives all ranks the `input` of each, one behind the other in `output`, which is [`size`](Self::size) times as long.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// let mut losses = vec![0f32; group.size() as usize];
    /// group.all_gather(&[0.25], &mut losses)?;
    /// assert_eq!(losses[group.rank() as usize], 0.25);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an output of another length; else as [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let count = self.length("output", output.len(), input.len(), self.size())?;
        let buffers = (from_slice(input), with_bytes(output, |data| data));
        self.typed::<T>(Collective::AllGather, buffers, count, ReduceOp::Sum, 0)
    }

    /// Gives rank `root` the `input` of each rank, one behind the other in its `output`, which is [`size`](Self::size) times as long. The
    /// others' `output` is not used and may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank, or an output of another length there; else as [`all_reduce`](Self::all_reduce).
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<(), Error> {
        let mut into = Buffer::empty();
        if root == self.rank() {
            self.length("output", output.len(), input.len(), self.size())?;
            into = with_bytes(output, |data| data);
        }
        self.typed::<T>(Collective::Gather, (from_slice(input), into), input.len(), ReduceOp::Sum, root)
    }

    /// Gives each rank its block of the `input` of rank `root`, which is [`size`](Self::size) times as long as `output`. The others' `input`
    /// is not used and may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank, or an input of another length there; else as [`all_reduce`](Self::all_reduce).
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<(), Error> {
        let mut from = Buffer::empty();
        if root == self.rank() {
            self.length("input", input.len(), output.len(), self.size())?;
            from = from_slice(input);
        }
        let count = output.len();
        let into = with_bytes(output, |data| data);
        self.typed::<T>(Collective::Scatter, (from, into), count, ReduceOp::Sum, root)
    }

    /// Reduces `input` over all ranks and gives each rank its block of it in `output`; `input` is [`size`](Self::size) times as long.
    ///
    /// # Errors
    /// [`Error::Argument`] for an input of another length; else as [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let count = self.length("input", input.len(), output.len(), self.size())?;
        let buffers = (from_slice(input), with_bytes(output, |data| data));
        self.typed::<T>(Collective::ReduceScatter, buffers, count, op, 0)
    }

    /// Gives each rank its block of `input`, and puts what this rank gets from each into `output`, both with a block of equal length for
    /// each rank.
    ///
    /// # Errors
    /// [`Error::Argument`] for slices of different lengths, or that are no whole number of blocks; else as
    /// [`all_reduce`](Self::all_reduce).
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.length("output", output.len(), input.len(), 1)?;
        let count = input.len() / self.size() as usize;
        self.length("input", input.len(), count, self.size())?;
        let buffers = (from_slice(input), with_bytes(output, |data| data));
        self.typed::<T>(Collective::AllToAll, buffers, count, ReduceOp::Sum, 0)
    }

    /// Runs any collective, on memory that is given by address.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that cannot be one, for input and output that overlap, and for a root that is no rank; else as [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// Until it returns, the input is valid for reads of what the [table](CollectiveCall) says, and nobody else writes it; the output is
    /// valid for reads and writes, and nobody else touches it.
    #[allow(unsafe_code)]
    pub unsafe fn run_collective(&self, call: &CollectiveCall) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        let (problem, input, output) = unsafe { self.part(call) }?;
        self.run_part(&problem, input, output)
    }

    /// A call's memory, and what is done with it.
    ///
    /// # Safety
    /// As for [`run_collective`](Self::run_collective), until the operation has ended.
    #[allow(unsafe_code)]
    pub(super) unsafe fn part(&self, call: &CollectiveCall) -> Result<(Problem, Buffer, Buffer), Error> {
        let CollectiveCall { collective, input, output, count, dtype, op, root } = *call;
        let shape = self.shape(collective, count, dtype, op)?;
        let problem = self.tables.problem(&shape, self.root(collective, root)?);
        // SAFETY: passed on to the caller.
        let (input, output) = unsafe { addressed(&problem, input, output) }?;
        let placement = placement(&problem, input, output)?;
        Ok((Problem { placement, ..problem }, input, output))
    }

    fn typed<T: Element>(
        &self,
        collective: Collective,
        (input, output): (Buffer, Buffer),
        count: usize,
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(collective, count, T::DTYPE, op)?;
        let problem = self.tables.problem(&shape, self.root(collective, root)?);
        let placement = placement(&problem, input, output)?;
        self.run_part(&Problem { placement, ..problem }, input, output)
    }

    /// Runs this rank's part of an operation outside the table to its end.
    #[inline]
    pub(super) fn run_part(&self, problem: &Problem, input: Buffer, output: Buffer) -> Result<(), Error> {
        self.drive.check_process()?;
        let shape = &problem.shape;
        let begin = Clock.now();
        let bytes = input.len().max(output.len());
        if let Some(cells) = self.cells_for(largest(problem)) {
            let is_root = problem.rank == problem.root;
            let input = match shape.collective {
                Collective::Broadcast if is_root => output,
                _ => input,
            };
            cells.run(
                self,
                begin,
                &Part { problem: *problem, input, output },
                self.step.load(Ordering::Relaxed),
            )?;
            self.finished(begin, shape.collective, &self.ad_hoc, bytes);
            return Ok(());
        }
        self.run(begin, problem, self.memory(problem, input, output), None)?;
        self.finished(begin, shape.collective, &self.ad_hoc, bytes);
        Ok(())
    }

    /// The memory of an operation.
    pub(super) fn memory(&self, problem: &Problem, input: Buffer, output: Buffer) -> Memory {
        let input = if problem.has_input() { self.region(input) } else { TensorRegion::empty() };
        Memory { output: self.region(output), input }
    }

    pub(super) fn shape(
        &self,
        collective: Collective,
        count: usize,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Shape, Error> {
        if collective == Collective::Barrier {
            return Ok(Shape { collective, dtype: DType::U8, op: ReduceOp::Sum, count: 0 });
        }
        let blocks = if collective.is_blocked() { self.size() } else { 1 };
        let bytes = count.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_mul(blocks as usize));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) || count as u64 > MAX_COUNT {
            return Err(Error::Argument(format!(
                "{collective} of {blocks} x {count} elements of {} bytes does not fit in memory",
                dtype.size()
            )));
        }
        let op = if collective.reduces() { op } else { ReduceOp::Sum };
        Ok(Shape { collective, dtype, op, count: count as u64 })
    }

    pub(super) fn root(&self, collective: Collective, root: u32) -> Result<Rank, Error> {
        if collective.has_root() && root >= self.size() {
            return Err(Error::Argument(format!(
                "root {root} of a {collective} is no rank of this group; they are 0 to {}",
                self.size() - 1
            )));
        }
        Ok(Rank(root))
    }

    /// Elements of a block, where `found` elements are to be so many blocks.
    fn length(&self, what: &str, found: usize, block: usize, blocks: u32) -> Result<usize, Error> {
        if block.checked_mul(blocks as usize) == Some(found) {
            return Ok(block);
        }
        Err(Error::Argument(format!("{what} has {found} elements, and {blocks} x {block} are needed")))
    }
}

/// A rank's input and output at these addresses.
///
/// # Safety
/// As for [`Group::run_collective`], until the operation has ended.
#[allow(unsafe_code)]
pub(super) unsafe fn addressed(
    problem: &Problem,
    input: *const u8,
    output: *mut u8,
) -> Result<(Buffer, Buffer), Error> {
    let Shape { collective, dtype, .. } = problem.shape;
    let in_blocks = |bytes: u64| bytes as usize / dtype.size();
    let given = if collective == Collective::Broadcast { 0 } else { in_blocks(problem.input_bytes()) };
    let buffer = |address: *mut u8, count: usize| match count {
        0 => Ok(Buffer::empty()),
        // SAFETY: the caller's promise; an input is only read.
        _ => unsafe { Buffer::from_raw(address, count, dtype) },
    };
    Ok((buffer(input.cast_mut(), given)?, buffer(output, in_blocks(problem.output_bytes()))?))
}

/// What a rank publishes at most in a cell, in bytes: the same on all ranks.
#[inline]
pub(super) fn largest(problem: &Problem) -> usize {
    let largest = match problem.shape.collective {
        Collective::Scatter | Collective::ReduceScatter | Collective::AllToAll => problem.bytes(),
        _ => problem.block_bytes(),
    };
    largest as usize
}

/// Whether input and output are in place; they may not overlap otherwise.
pub(super) fn placement(problem: &Problem, input: Buffer, output: Buffer) -> Result<Placement, Error> {
    if !problem.has_input() && problem.shape.collective != Collective::AllReduce {
        return Ok(Placement::InPlace);
    }
    let range = |buffer: Buffer| {
        let start = buffer.as_ptr().addr();
        start..start + buffer.len()
    };
    let (from, into) = (range(input), range(output));
    if from.is_empty() || into.is_empty() || from.end <= into.start || into.end <= from.start {
        return Ok(Placement::Separate);
    }
    let (at_input, at_output) = problem.in_place();
    if from.start.wrapping_sub(at_input as usize) == into.start.wrapping_sub(at_output as usize) {
        return Ok(Placement::InPlace);
    }
    Err(Error::Argument(format!(
        "input and output of {} overlap; give memory that is apart, or the same (with one block: the rank's own block of it)",
        problem.shape
    )))
}
