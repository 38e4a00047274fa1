//! Collectives whose blocks differ: a count for each rank, or for each pair of ranks, zero allowed.
//!
//! Where all ranks have all counts, a digest of them is compared as part of the operation. Else ranks exchange them
//! first: one round, in which each rank also sends a digest of the counts that it expects. So either all ranks find the
//! counts right, or all gather those that differ and return the same error before a block has been written; then the group
//! goes on. Of pairs of ranks on several hosts, a rank learns the counts of its host and the sums of all others. On one host, blocks that
//! are small enough travel with the counts. A registered tensor has learnt them before ([`register`](super::register)).

mod learn;
mod started;

use std::sync::Arc;

use shouter_reducer::counts::Counts;
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Shape};
use shouter_reducer::schedule::{Placement, Problem};

use super::Group;
use super::collectives::placement_at;
use super::element::{Buffer, Element, check, from_slice, with_bytes};
use super::small::{Part, Telling};
use super::staging::{Ended, OnHost, Side, Staged, Staging};
use super::table::Tables;
use crate::error::Error;
use crate::runtime::{Clock, Instant};
pub(super) use learn::Told;
use learn::{Learned, Learning, Round};
pub(super) use started::Followed;

/// One rank's part of a collective whose blocks differ, by addresses, for [`Group::run_uneven`] and
/// [`Group::start_uneven`].
///
/// | collective | `given`: elements of each block of the input | `taken`: elements of each block of the output |
/// |---|---|---|
/// | all-gather-v | this rank's | each rank's; the same on all ranks |
/// | gather-v | this rank's | each rank's, on the root; else none |
/// | scatter-v | each rank's, on the root; else none | this rank's |
/// | reduce-scatter-v | each rank's; the same on all ranks | this rank's |
/// | all-to-all-v | for each rank | from each rank |
///
/// Blocks lie in rank order, one behind the other. A rank takes as many elements as the other gives it: ranks whose
/// counts differ get [`Error::Mismatch`]. Input and output may be the same memory as for a
/// [`CollectiveCall`](super::CollectiveCall); for an all-to-all-v where this rank gives each rank as much as it takes
/// from it. A registered tensor ([`TensorSpec`](crate::TensorSpec)) has its counts from then on, and no push exchanges any.
#[derive(Clone, Copy, Debug)]
pub struct UnevenCall<'a> {
    /// The collective.
    pub collective: Collective,
    /// The address of the input, aligned to its elements.
    pub input: *const u8,
    /// The address of the output, aligned to its elements.
    pub output: *mut u8,
    /// Elements of each block of the input.
    pub given: &'a [usize],
    /// Elements of each block of the output.
    pub taken: &'a [usize],
    /// The elements' type; the same on all ranks.
    pub dtype: DType,
    /// The reduction, where there is one; the same on all ranks.
    pub op: ReduceOp,
    /// The number of the root, where there is one; the same on all ranks.
    pub root: u32,
}

impl UnevenCall<'_> {
    /// Refuses staging that these collectives do not have.
    fn check(&self, staging: &Staging) -> Result<(), Error> {
        let Self { collective, op, dtype, .. } = *self;
        if staging.cuda_stream.is_some() {
            staging.check_on_gpu()?;
        }
        if staging.factor.is_some() {
            Group::check_factor(collective, op, dtype)?;
        }
        Ok(())
    }

    fn blocks(&self) -> RankBlocks<'_> {
        let Self { collective, given, taken, dtype, op, root, .. } = *self;
        RankBlocks { op, root, ..RankBlocks::new(collective, given, taken, dtype) }
    }

    /// Input and output, staged where that is asked for; on a GPU they are staged later.
    ///
    /// # Safety
    /// As for [`Group::run_uneven`], until the operation has ended.
    #[allow(unsafe_code)]
    unsafe fn memory(&self, staging: &Staging) -> Result<(Buffer, Buffer, Option<Staged>), Error> {
        let blocks = self.blocks();
        let (given, taken) = (blocks.sum(self.given)?, blocks.sum(self.taken)?);
        let on_host = OnHost {
            what: &self.collective,
            dtype: self.dtype,
            input: Side { address: self.input.cast_mut(), count: given, layout: staging.input },
            output: Side { address: self.output, count: taken, layout: staging.output },
            factor: staging.factor.filter(|_| staging.cuda_stream.is_none()),
            is_given_in_output: false,
        };
        // SAFETY: passed on to the caller.
        unsafe { on_host.stage(None) }
    }
}

impl Group {
    /// As [`all_gather`](Self::all_gather), with `counts` elements of each rank: `input` has this rank's, `output` those of all.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // Rank 0 has one element, rank 1 has two...
    /// let counts: Vec<usize> = (1..=group.size() as usize).collect();
    /// let mine = vec![group.rank(); counts[group.rank() as usize]];
    /// let mut all = vec![0; counts.iter().sum()];
    /// group.all_gather_v(&mine, &mut all, &counts)?;
    /// assert_eq!(*all.last().unwrap(), group.size() - 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for slices that are not as long as the counts say, or not one count for each rank; else as
    /// [`all_reduce`](Self::all_reduce).
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        let given = [input.len()];
        let part = RankBlocks::new(Collective::AllGatherV, &given, counts, T::DTYPE);
        self.uneven(part, (from_slice(input), with_bytes(output, |data| data)))
    }

    /// As [`gather`](Self::gather), with `counts` elements of each rank, which only the root has to know.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // Rank 0 has one line to say, rank 1 has two...
    /// let counts: Vec<usize> = (1..=group.size() as usize).collect();
    /// let mine = vec![group.rank(); group.rank() as usize + 1];
    /// let mut all = vec![0; if group.rank() == 0 { counts.iter().sum() } else { 0 }];
    /// group.gather_v(&mine, &mut all, &counts, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank, or an output there that is not as long as the counts say; [`Error::Mismatch`] on
    /// every rank if one gives another number of elements than the root takes from it, after which the group goes on; else as
    /// [`all_reduce`](Self::all_reduce).
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<(), Error> {
        let (given, is_root) = ([input.len()], self.rank() == root);
        let (counts, output) = if is_root { (counts, output) } else { (&[][..], &mut [][..]) };
        let part = RankBlocks { root, ..RankBlocks::new(Collective::GatherV, &given, counts, T::DTYPE) };
        self.uneven(part, (from_slice(input), with_bytes(output, |data| data)))
    }

    /// As [`scatter`](Self::scatter), with `counts` elements for each rank, which only the root has to know.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // Rank 0 gives itself one element, rank 1 two...
    /// let counts: Vec<usize> = (1..=group.size() as usize).collect();
    /// let all: Vec<u64> = (0..counts.iter().sum::<usize>() as u64).collect();
    /// let mut mine = vec![0; group.rank() as usize + 1];
    /// group.scatter_v(&all, &counts, &mut mine, 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a root that is no rank, or an input there that is not as long as the counts say; [`Error::Mismatch`] on
    /// every rank if one takes another number of elements than the root gives it, after which the group goes on; else as
    /// [`all_reduce`](Self::all_reduce).
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let (taken, is_root) = ([output.len()], self.rank() == root);
        let (counts, input) = if is_root { (counts, input) } else { (&[][..], &[][..]) };
        let part = RankBlocks { root, ..RankBlocks::new(Collective::ScatterV, counts, &taken, T::DTYPE) };
        self.uneven(part, (from_slice(input), with_bytes(output, |data| data)))
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with `counts` elements for each rank: `input` has those for all, `output` this rank's.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // The shards of a gradient of 1,000 elements: the last rank has what is left over.
    /// let (size, rank) = (group.size() as usize, group.rank() as usize);
    /// let mut counts = vec![1000 / size; size];
    /// counts[size - 1] += 1000 % size;
    /// let (gradient, mut shard) = (vec![1f32; 1000], vec![0.0; counts[rank]]);
    /// group.reduce_scatter_v(&gradient, &mut shard, &counts, shouter::ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v).
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let taken = [output.len()];
        let part = RankBlocks { op, ..RankBlocks::new(Collective::ReduceScatterV, counts, &taken, T::DTYPE) };
        self.uneven(part, (from_slice(input), with_bytes(output, |data| data)))
    }

    /// As [`all_to_all`](Self::all_to_all), with `given` elements for each rank in `input`, and `taken` from each in `output`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// let group = shouter::init(config)?;
    /// // How many tokens go to each rank's experts, and, after an exchange of that, how many come from each.
    /// let given = vec![3usize; group.size() as usize];
    /// let mut taken = vec![0u64; given.len()];
    /// group.all_to_all(&given.iter().map(|&count| count as u64).collect::<Vec<_>>(), &mut taken)?;
    /// let taken: Vec<usize> = taken.into_iter().map(|count| count as usize).collect();
    /// let tokens = vec![1f32; given.iter().sum()];
    /// let mut received = vec![0f32; taken.iter().sum()];
    /// group.all_to_all_v(&tokens, &given, &mut received, &taken)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for slices that are not as long as the counts say, or not one count for each rank; [`Error::Mismatch`] on every
    /// rank if one gives another number of elements than another one takes from it, after which the group goes on; else as
    /// [`all_reduce`](Self::all_reduce).
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        given: &[usize],
        output: &mut [T],
        taken: &[usize],
    ) -> Result<(), Error> {
        let part = RankBlocks::new(Collective::AllToAllV, given, taken, T::DTYPE);
        self.uneven(part, (from_slice(input), with_bytes(output, |data| data)))
    }

    /// Runs a collective whose blocks differ, on memory that is given by address, on the host or, with a stream, on a GPU. A sum may have a
    /// factor, and the elements of all blocks in one a layout.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that cannot be one, for input and output that overlap, for a root that is no rank, for counts that
    /// are not as many as there are blocks, or too large, and for a collective without counts; else as [`all_to_all_v`](Self::all_to_all_v)
    /// and [`run_staged`](Self::run_staged).
    ///
    /// # Safety
    /// Until it returns, the input is valid for reads of as many elements as `given` adds up to, and nobody else writes it; the output is
    /// valid for reads and writes of as many as `taken` does, and nobody else touches it. With a layout that is so of its blocks, and the gaps
    /// between them are not touched. For memory of a GPU as for [`all_reduce_cuda`](Self::all_reduce_cuda).
    #[allow(unsafe_code)]
    pub unsafe fn run_uneven(&self, call: &UnevenCall<'_>, staging: &Staging) -> Result<(), Error> {
        call.check(staging)?;
        // SAFETY: the caller's promise.
        let (input, output, staged) = unsafe { call.memory(staging) }?;
        let rest = staging.cuda_stream.map_or_else(Staging::default, |_| *staging);
        let result = self.uneven_staged(&call.blocks(), (input, output), &rest);
        if let Some(staged) = staged {
            staged.end(Ended::of(&result));
        }
        result
    }

    fn uneven(&self, blocks: RankBlocks<'_>, buffers: (Buffer, Buffer)) -> Result<(), Error> {
        self.uneven_staged(&blocks, buffers, &Staging::default())
    }

    /// Runs a collective on buffers, which are compared with the counts.
    #[allow(unsafe_code)]
    pub(super) fn uneven_staged(
        &self,
        blocks: &RankBlocks<'_>,
        (input, output): (Buffer, Buffer),
        staging: &Staging,
    ) -> Result<(), Error> {
        let (frame, on_host) = (self.frame(blocks, (input, output))?, staging.cuda_stream.is_none());
        let mut learns_since = None;
        let counts = match blocks.known() {
            Some(counts) => counts?,
            None => {
                let begin = *learns_since.insert(Clock.now());
                match self.exchange_or_learn(begin, blocks, &frame, (input, output), on_host)? {
                    Some(counts) => counts,
                    None => {
                        return self.ended(begin, blocks.collective, input.len().max(output.len()), Ok(()));
                    }
                }
            }
        };
        let problem = frame.problem(&self.tables, counts);
        let at = (input.as_ptr(), output.as_ptr().cast_mut());
        if let Some(stream) = staging.cuda_stream {
            let begin = learns_since.unwrap_or_else(|| Clock.now());
            // SAFETY: buffers are valid for the call, and as long as the counts say.
            return unsafe { self.run_problem_on_gpu(begin, problem, at, (staging, stream)) };
        }
        // SAFETY: as above.
        let (problem, input, output, staged) = unsafe { self.staged(problem, at, staging, None) }?;
        if let (None, None) = (&learns_since, &staged) {
            return self.run_part(&problem, input, output);
        }
        let begin = learns_since.unwrap_or_else(|| Clock.now());
        let result = self.run_uncounted(begin, &problem, input, output);
        if let Some(staged) = staged {
            staged.end(Ended::of(&result));
        }
        self.ended(begin, blocks.collective, input.len().max(output.len()), result)
    }

    /// This rank's part but for the counts of all, as far as it can see.
    fn frame(&self, blocks: &RankBlocks<'_>, buffers: (Buffer, Buffer)) -> Result<UncountedPart, Error> {
        let RankBlocks { collective, dtype, op, root, .. } = *blocks;
        self.drive.check_process()?;
        let root = self.root(collective, root)?;
        let placement = self.check_blocks(blocks, root, buffers)?;
        let op = if collective.reduces() { op } else { ReduceOp::Sum };
        Ok(UncountedPart { shape: Shape { collective, dtype, op, count: 0 }, root, placement })
    }

    /// The errors that this rank can find by itself; and whether input and output are in place.
    fn check_blocks(
        &self,
        blocks: &RankBlocks<'_>,
        root: Rank,
        (input, output): (Buffer, Buffer),
    ) -> Result<Placement, Error> {
        let RankBlocks { collective, given, taken, dtype, .. } = *blocks;
        let (ranks, me, is_root) = (self.size() as usize, self.rank() as usize, root == self.rank);
        if !collective.has_counts() {
            return Err(blocks.argument("it has one count; call Group::run_collective".into()));
        }
        let of_side = |is_of_all: bool| match is_of_all {
            false => 1,
            true if is_root || !collective.has_root() => ranks,
            true => 0,
        };
        let (of_input, of_output) = collective.sides_of_all();
        let (from, into) = (of_side(of_input), of_side(of_output));
        if collective.reduces() {
            check(dtype, blocks.op)?;
        }
        for (what, counts, needed) in [("input", given, from), ("output", taken, into)] {
            if counts.len() != needed {
                let found = counts.len();
                return Err(
                    blocks.argument(format!("{found} counts for the {what}, and {needed} are needed"))
                );
            }
        }
        for (what, counts, buffer) in [("input", given, input), ("output", taken, output)] {
            let (needed, found) = (blocks.sum(counts)?, buffer.len() / dtype.size());
            if found != needed {
                let text = format!("{what} has {found} elements, and the counts add up to {needed}");
                return Err(blocks.argument(text));
            }
        }
        // Where this rank has its own block among those of all, its length is given twice.
        let own = if from == 1 && into == ranks { Some((given[0], taken[me])) } else { None };
        let own = if into == 1 && from == ranks { Some((taken[0], given[me])) } else { own };
        if let Some((block, count)) = own.filter(|(block, count)| block != count) {
            let text = format!("this rank's block has {block} elements, and its count is {count}");
            return Err(blocks.argument(text));
        }
        placement_at(&collective, (input, output), || {
            let bytes = |counts: &[usize]| {
                counts.get(..me).map_or(0, |before| before.iter().sum::<usize>() * dtype.size()) as u64
            };
            match (of_input, of_output) {
                (true, true) => (given == taken).then_some((0, 0)),
                (false, _) => Some((bytes(taken), 0)),
                (true, false) => Some((0, bytes(given))),
            }
        })
    }

    /// The counts of all, in rounds in which ranks tell each other.
    pub(super) fn learn(&self, begin: Instant, blocks: &RankBlocks<'_>, root: Rank) -> Result<Counts, Error> {
        let (learning, round) = self.learning(blocks, root)?;
        self.rounds(begin, blocks, learning, Learned::Round(round))
    }

    /// The same, or `None` if the blocks were exchanged with the counts.
    fn exchange_or_learn(
        &self,
        begin: Instant,
        blocks: &RankBlocks<'_>,
        frame: &UncountedPart,
        (input, output): (Buffer, Buffer),
        on_host: bool,
    ) -> Result<Option<Counts>, Error> {
        let words = Told::by(blocks, frame.root == self.rank);
        let Some(cells) = self.cells_for(size_of_val(&*words)) else {
            return self.learn(begin, blocks, frame.root).map(Some);
        };
        let problem = frame.uncounted(&self.tables);
        let part = Part::new(&problem, input, output);
        let (told, exchanged) =
            cells.tell(self, Some(begin), Telling { part, words, on_host }, self.annotations.step())?;
        if exchanged {
            return Ok(None);
        }
        let (mut learning, _) = self.learning(blocks, frame.root)?;
        let learned = learning.heard_first(&told);
        self.rounds(begin, blocks, learning, learned).map(Some)
    }

    fn learning(&self, blocks: &RankBlocks<'_>, root: Rank) -> Result<(Learning, Round), Error> {
        Learning::new(blocks, self.rank, &self.grid, root).map_err(|why| blocks.argument(why.to_string()))
    }

    /// The rounds from here on.
    fn rounds(
        &self,
        begin: Instant,
        blocks: &RankBlocks<'_>,
        mut learning: Learning,
        mut learned: Learned,
    ) -> Result<Counts, Error> {
        loop {
            match learned {
                Learned::Counts(counts) => return counts.map_err(|why| blocks.argument(why.to_string())),
                Learned::Differ(found) => {
                    let step = self.annotations.step();
                    return Err(learn::differ(self.rank, blocks.collective, step, found));
                }
                Learned::Round(mut round) => {
                    let problem = learning.problem(&self.tables, &round);
                    let (mine, all) = round.buffers();
                    let told = self.run_uncounted(begin, &problem, mine, all);
                    told.map_err(|error| error.within(blocks.collective))?;
                    learned = learning.heard(round);
                }
            }
        }
    }
}

/// One rank's part but for the counts of all.
#[derive(Clone, Copy)]
struct UncountedPart {
    /// With no count.
    shape: Shape,
    root: Rank,
    placement: Placement,
}

impl UncountedPart {
    /// It as it is compared before the counts are known.
    fn uncounted(&self, tables: &Tables) -> Problem {
        Problem { counts_of: Some(self.shape.collective), ..tables.problem(&self.shape, self.root) }
    }

    fn problem(&self, tables: &Tables, counts: Counts) -> Problem {
        let problem = tables.problem(&self.shape, self.root).with_counts(Arc::new(counts));
        Problem { placement: self.placement, ..problem }
    }
}

/// One rank's blocks.
#[derive(Clone, Copy)]
pub(super) struct RankBlocks<'a> {
    collective: Collective,
    given: &'a [usize],
    taken: &'a [usize],
    dtype: DType,
    op: ReduceOp,
    root: u32,
}

impl<'a> RankBlocks<'a> {
    pub(super) fn new(collective: Collective, given: &'a [usize], taken: &'a [usize], dtype: DType) -> Self {
        Self { collective, given, taken, dtype, op: ReduceOp::Sum, root: 0 }
    }

    /// The counts of all, where each rank has them.
    fn known(&self) -> Option<Result<Counts, Error>> {
        let counts = match self.collective.sides_of_all() {
            _ if self.collective.has_root() => return None,
            (false, true) => self.taken,
            (true, false) => self.given,
            _ => return None,
        };
        Some(Counts::of_blocks(words(counts).collect()).map_err(|why| self.argument(why.to_string())))
    }

    /// The sum of counts, of which there is as much memory.
    fn sum(&self, counts: &[usize]) -> Result<usize, Error> {
        let sum = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        let bytes = sum.and_then(|sum| sum.checked_mul(self.dtype.size()));
        let fits = bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok());
        sum.filter(|_| fits).ok_or_else(|| self.argument("the counts' sum does not fit in memory".into()))
    }

    fn argument(&self, why: String) -> Error {
        Error::Argument(format!("{}: {why}", self.collective))
    }
}

fn words(counts: &[usize]) -> impl Iterator<Item = u64> + '_ {
    counts.iter().map(|&count| count as u64)
}
