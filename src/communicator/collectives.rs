//! Collectives other than the all-reduce in place, outside the tensor table.
//!
//! Every rank calls the same one in the same order, with the same counts, type, reduction and root. Buffers are in rank order: the
//! block of rank *r* is the *r*-th.

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, MAX_COUNT, Shape};
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::schedule::{Placement, Problem};

use super::element::{Buffer, Element, check, from_slice, with_bytes};
use super::small::Part;
use super::staging::Staging;
use super::{Group, Memory};
use crate::error::Error;
use crate::runtime::{Clock, Instant};

/// One rank's part of a collective, by addresses, for [`Group::run_collective`].
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
/// | scan | `count` | `count`, reduced over the ranks up to this one |
/// | exscan | `count` | `count`, reduced over the ranks before this one; none on rank 0, where it stays as it is |
/// | barrier | none | none; the other fields are not looked at |
///
/// Both may be the same memory: where one has a block for each rank and the other one block, that is the rank's own block of it. They
/// may not overlap otherwise. An address of no elements is not looked at.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveCall {
    /// The collective.
    pub collective: Collective,
    /// The address of the input, aligned to its elements.
    pub input: *const u8,
    /// The address of the output, aligned to its elements.
    pub output: *mut u8,
    /// Elements of the tensor, or of one rank's block; the same on all ranks.
    pub count: usize,
    /// The elements' type; the same on all ranks.
    pub dtype: DType,
    /// The reduction, where there is one; the same on all ranks.
    pub op: ReduceOp,
    /// The number of the root, where there is one; the same on all ranks.
    pub root: u32,
}

#[cfg(feature = "cuda")]
impl CollectiveCall {
    /// An all-reduce in place at an address of a GPU.
    pub(super) fn all_reduce(data: u64, count: usize, dtype: DType, op: ReduceOp) -> Self {
        let output = std::ptr::without_provenance_mut(data as usize);
        Self { collective: Collective::AllReduce, input: output, output, count, dtype, op, root: 0 }
    }
}

impl Group {
    /// Gives `data` of rank `root` to all ranks.
    ///
    /// As in every collective, a rank that has its result, or takes none, may return before the others have called it: a broadcast's root,
    /// the other ranks of a reduce or gather, the first ranks of a scan. Where one of those calls something else then, or has ended, the
    /// error is that of one of this rank's next calls, of [`finalize`](Self::finalize) at the latest. To wait for all there is
    /// [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank; else as [`all_reduce`](Self::all_reduce).
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), Error> {
        let output = with_bytes(data, |data| data);
        self.typed::<T>(Collective::Broadcast, (Buffer::empty(), output), data.len(), ReduceOp::Sum, root)
    }

    /// Reduces `data` with that of all ranks into that of rank `root`; the others keep theirs, and may return
    /// [before](Self::broadcast) all have come.
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
        self.slices(Collective::AllReduce, input, output, op, 0)
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
        self.slices(Collective::AllGather, input, output, ReduceOp::Sum, 0)
    }

    /// Gives rank `root` the `input` of each rank, one behind the other in its `output`, which is [`size`](Self::size) times as long. The
    /// others' `output` is not used and may be empty; they may return [before](Self::broadcast) all have come.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank, or an output of another length there; else as [`all_reduce`](Self::all_reduce).
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<(), Error> {
        self.slices(Collective::Gather, input, output, ReduceOp::Sum, root)
    }

    /// Gives each rank its block of the `input` of rank `root`, which is [`size`](Self::size) times as long as `output`. The others' `input`
    /// is not used and may be empty. The root may return [before](Self::broadcast) all have come.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank, or an input of another length there; else as [`all_reduce`](Self::all_reduce).
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: u32) -> Result<(), Error> {
        self.slices(Collective::Scatter, input, output, ReduceOp::Sum, root)
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
        self.slices(Collective::ReduceScatter, input, output, op, 0)
    }

    /// Gives each rank its block of `input`, and puts what this rank gets from each into `output`, both with a block of equal length for
    /// each rank.
    ///
    /// # Errors
    /// [`Error::Argument`] for slices of different lengths, or that are no whole number of blocks; else as
    /// [`all_reduce`](Self::all_reduce).
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.slices(Collective::AllToAll, input, output, ReduceOp::Sum, 0)
    }

    /// Reduces `input` over the ranks up to this one, in rank order, into `output`, which is as long: each rank has another result.
    ///
    /// The bits are those of one fold in rank order, on any number of hosts: floating-point sums of 16 bits are rounded once. A rank may
    /// return [before](Self::broadcast) those behind it have come.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // Where the samples of this rank end, if those of all lie one behind another.
    /// let (samples, mut end) = ([500u64], [0]);
    /// group.scan(&samples, &mut end, shouter::ReduceOp::Sum)?;
    /// assert_eq!(end, [500]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for slices of different lengths, and for [`ReduceOp::Avg`]; else as [`all_reduce`](Self::all_reduce).
    pub fn scan<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.slices(Collective::Scan, input, output, op, 0)
    }

    /// As [`scan`](Self::scan), over the ranks before this one. Rank 0 has none: its `output` stays as it is.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // Where the samples of this rank begin, if those of all lie one behind another.
    /// let (samples, mut begin) = ([500u64], [0]);
    /// group.exscan(&samples, &mut begin, shouter::ReduceOp::Sum)?;
    /// assert_eq!(begin[0], 500 * u64::from(group.rank()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub fn exscan<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.slices(Collective::ExScan, input, output, op, 0)
    }

    /// Runs a collective on slices as long as it needs them; one that this rank has no part in may have any length.
    fn slices<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let count = self.count_of(collective, root, (input.len(), output.len()))?;
        self.typed::<T>(collective, (from_slice(input), with_bytes(output, |data| data)), count, op, root)
    }

    /// Elements of the tensor, or of one rank's block, where this rank has so many in input and output.
    pub(super) fn count_of(
        &self,
        collective: Collective,
        root: u32,
        (input, output): (usize, usize),
    ) -> Result<usize, Error> {
        let (ranks, is_root) = (self.size(), root == self.rank());
        match collective {
            Collective::AllReduce | Collective::Scan | Collective::ExScan => {
                self.length("output", output, input, 1)
            }
            Collective::Gather if !is_root => Ok(input),
            Collective::AllGather | Collective::Gather => self.length("output", output, input, ranks),
            Collective::Scatter if !is_root => Ok(output),
            Collective::ReduceScatter | Collective::Scatter => self.length("input", input, output, ranks),
            Collective::AllToAll => {
                self.length("output", output, input, 1)?;
                self.length("input", input, input / ranks as usize, ranks)
            }
            _ => Ok(output),
        }
    }

    /// Runs any collective on memory that is given by address, but those with a count for each rank ([`run_uneven`](Self::run_uneven)).
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that cannot be one, for input and output that overlap, for a root that is no rank, for the average
    /// of a scan, and for a collective that has several counts; else as [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// Until it returns, the input is valid for reads of as many elements as the [table](CollectiveCall) says, and nobody else writes it;
    /// the output is valid for reads and writes of as many, and nobody else touches it.
    #[allow(unsafe_code)]
    pub unsafe fn run_collective(&self, call: &CollectiveCall) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.run_staged(call, &Staging::default()) }
    }

    /// This rank's part of a collective, in place.
    pub(super) fn problem_of(&self, call: &CollectiveCall) -> Result<Problem, Error> {
        let CollectiveCall { collective, count, dtype, op, root, .. } = *call;
        let shape = self.even_shape(collective, count, dtype, op)?;
        Ok(self.tables.problem(&shape, self.root(collective, root)?))
    }

    /// This rank's part of a collective, and the memory of input and output.
    ///
    /// # Safety
    /// As for [`run_collective`](Self::run_collective), until the operation has ended.
    #[cfg(feature = "cuda")]
    #[allow(unsafe_code)]
    pub(super) unsafe fn part(&self, call: &CollectiveCall) -> Result<(Problem, Buffer, Buffer), Error> {
        let (problem, CollectiveCall { input, output, .. }) = (self.problem_of(call)?, *call);
        // SAFETY: passed on to the caller.
        let (input, output) = unsafe { addressed(&problem, input, output) }?;
        let placement = placement(&problem, input, output)?;
        Ok((Problem { placement, ..problem }, input, output))
    }

    pub(super) fn typed<T: Element>(
        &self,
        collective: Collective,
        (input, output): (Buffer, Buffer),
        count: usize,
        op: ReduceOp,
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(collective, count, T::DTYPE, op)?;
        let problem = self.tables.problem(&shape, self.root(collective, root)?);
        // A rank may have no part in one of them, whatever the caller has given.
        let input = if problem.input_bytes() == 0 { Buffer::empty() } else { input };
        let output = if problem.output_bytes() == 0 { Buffer::empty() } else { output };
        let placement = placement(&problem, input, output)?;
        self.run_part(&Problem { placement, ..problem }, input, output)
    }

    /// Runs this rank's part of an operation outside the table to its end.
    #[inline]
    pub(super) fn run_part(&self, problem: &Problem, input: Buffer, output: Buffer) -> Result<(), Error> {
        let bytes = input.len().max(output.len());
        if let (Some(cells), None) = (self.cells_for(published(problem)), &self.outcomes.timeline) {
            self.drive.check_process()?;
            // Where it runs it is counted, too.
            let part = part(problem, input, output).counted(bytes);
            return cells.run(self, None, &part, self.annotations.step());
        }
        let begin = Clock.now();
        let result = self.run_uncounted(begin, problem, input, output);
        self.ended(begin, problem.shape.collective, bytes, result)
    }

    /// As [`run_part`](Self::run_part), for a part of a call that is counted as a whole.
    #[inline]
    pub(super) fn run_uncounted(
        &self,
        begin: Instant,
        problem: &Problem,
        input: Buffer,
        output: Buffer,
    ) -> Result<(), Error> {
        self.drive.check_process()?;
        if let Some(cells) = self.cells_for(published(problem)) {
            return cells.run(self, Some(begin), &part(problem, input, output), self.annotations.step());
        }
        self.run(begin, problem, self.memory(problem, input, output), None)
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
        if collective.reduces() {
            check(dtype, op)?;
        }
        Self::check_op(collective, op)?;
        Ok(Shape { collective, dtype, op, count: count as u64 })
    }

    /// The shape of a collective that has one count.
    pub(super) fn even_shape(
        &self,
        collective: Collective,
        count: usize,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<Shape, Error> {
        let shape = self.shape(collective, count, dtype, op)?;
        if collective.has_counts() {
            let text = format!(
                "{collective} has a count for each rank; call Group::start_uneven, or Group::run_uneven, which waits; or register it"
            );
            return Err(Error::Argument(text));
        }
        Ok(shape)
    }

    /// A scan has as many averages as ranks, each over another number of them.
    fn check_op(collective: Collective, op: ReduceOp) -> Result<(), Error> {
        match collective.is_scan() && op == ReduceOp::Avg {
            true => Err(Error::Argument(format!(
                "{collective} has no {op}; use sum, and divide by the ranks so far"
            ))),
            false => Ok(()),
        }
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

/// Bytes that a rank publishes at most, where all are on one host: the same on all ranks; no number where the tag of a cell has no room for the
/// count.
pub(super) fn published(problem: &Problem) -> usize {
    if problem.shape.count > u16::MAX.into() {
        return usize::MAX;
    }
    usize::try_from(problem.published_bytes()).unwrap_or(usize::MAX)
}

/// This rank's part of a small operation.
#[inline]
fn part(problem: &Problem, input: Buffer, output: Buffer) -> Part<'_> {
    let input = if is_given_in_output(problem) { output } else { input };
    Part::new(problem, input, output)
}

/// Whether this rank's input lies in the output: a broadcast's root.
pub(super) fn is_given_in_output(problem: &Problem) -> bool {
    problem.shape.collective == Collective::Broadcast && problem.rank == problem.root
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
    // SAFETY: the caller's promise; an input is only read.
    let input = unsafe { raw("the input", input.cast_mut(), given, dtype) }?;
    // SAFETY: the caller's promise.
    let output = unsafe { raw("the output", output, in_blocks(problem.output_bytes()), dtype) }?;
    Ok((input, output))
}

/// A buffer at an address, which is not looked at for no elements. Errors say which it is: `what`.
///
/// # Safety
/// As for [`Buffer::from_raw`].
#[allow(unsafe_code)]
pub(super) unsafe fn raw(what: &str, address: *mut u8, count: usize, dtype: DType) -> Result<Buffer, Error> {
    if count == 0 {
        return Ok(Buffer::empty());
    }
    // SAFETY: the caller's promise.
    unsafe { Buffer::from_raw(address, count, dtype) }.map_err(|error| match error {
        Error::Argument(why) => Error::Argument(format!("{what}: {why}")),
        other => other,
    })
}

/// Whether input and output are in place; they may not overlap otherwise.
pub(super) fn placement(problem: &Problem, input: Buffer, output: Buffer) -> Result<Placement, Error> {
    if !problem.has_input() && problem.shape.collective != Collective::AllReduce {
        return Ok(Placement::InPlace);
    }
    placement_at(&problem.shape, (input, output), || problem.fits_in_place().then(|| problem.in_place()))
}

/// The same where input and output are in place if they begin at these bytes of one tensor; if they can be.
pub(super) fn placement_at(
    what: &dyn std::fmt::Display,
    (input, output): (Buffer, Buffer),
    starts: impl FnOnce() -> Option<(u64, u64)>,
) -> Result<Placement, Error> {
    let range = |buffer: Buffer| {
        let start = buffer.as_ptr().addr();
        start..start + buffer.len()
    };
    let (from, into) = (range(input), range(output));
    if from.is_empty() || into.is_empty() || from.end <= into.start || into.end <= from.start {
        return Ok(Placement::Separate);
    }
    let starts = starts();
    if let Some((at_input, at_output)) = starts
        && from.start.wrapping_sub(at_input as usize) == into.start.wrapping_sub(at_output as usize)
    {
        return Ok(Placement::InPlace);
    }
    let remedy = match starts {
        Some(_) => "or the same (with one block: the rank's own block of it)",
        None => "for this rank gives other counts than it takes",
    };
    Err(Error::Argument(format!("input and output of {what} overlap; give memory that is apart, {remedy}")))
}
