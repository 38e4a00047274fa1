//! One collective as called from Python: kinds, types and reductions by name, memory by address.

use pyo3::prelude::*;
use shouter::{
    BlockCounts, Collective, CollectiveCall, DType, Error, ReduceOp, Source, Staging, Tag, UnevenCall,
};

use crate::number::{Count, MessageTag, Rank};

/// Memory by address: the address and the number of bytes.
pub(crate) type Span = (usize, usize);

/// A send or a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) span: Span,
    pub(crate) dtype: DType,
    pub(crate) endpoint: Endpoint,
    /// The stream that it is ordered with, for GPU memory.
    pub(crate) stream: Option<u64>,
}

/// The destination of a message, or its allowed sources.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Endpoint {
    To { rank: u32, tag: u32, synchronous: bool },
    From { source: Source, tag: Tag },
}

/// One rank's part of a collective.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) kind: Collective,
    /// Empty if this rank gives nothing, and for a broadcast.
    pub(crate) input: Span,
    /// Empty if this rank gets nothing.
    pub(crate) output: Span,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
    pub(crate) factor: Option<f64>,
    pub(crate) counts: Counts,
    /// The stream that produces the input, for GPU memory.
    pub(crate) stream: Option<u64>,
}

/// The elements of each block of input and output, if they differ: empty on a rank without blocks, and for collectives
/// with one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) given: Vec<usize>,
    pub(crate) taken: Vec<usize>,
}

/// Counts: of the blocks of the input, and of those of the output.
pub(crate) type GivenCounts = (Option<Vec<usize>>, Option<Vec<usize>>);

/// The same from Python.
pub(crate) type CountArguments = (Option<Vec<Count>>, Option<Vec<Count>>);

/// The counts as numbers.
pub(crate) fn given_counts((given, taken): CountArguments) -> GivenCounts {
    let usizes = |counts: Vec<Count>| counts.into_iter().map(|count| count.0 as usize).collect();
    (given.map(usizes), taken.map(usizes))
}

impl Counts {
    /// The counts of this rank's part with this many elements of input and output; a side without counts is one block.
    pub(crate) fn of(
        kind: Collective,
        is_root: bool,
        (given, taken): GivenCounts,
        elements: (usize, usize),
    ) -> Self {
        if !kind.has_counts() {
            return Self::default();
        }
        let mut counts = Self {
            given: given.unwrap_or_else(|| vec![elements.0]),
            taken: taken.unwrap_or_else(|| vec![elements.1]),
        };
        match kind {
            Collective::GatherV if !is_root => counts.taken.clear(),
            Collective::ScatterV if !is_root => counts.given.clear(),
            _ => {}
        }
        counts
    }
}

/// The counts of a tensor to be registered, from Python: one for each rank; or those of what is given and taken.
pub(crate) type RegisteredCounts = (Option<Vec<Count>>, Option<Vec<Count>>, Option<Vec<Count>>);

/// The collective, the elements and the counts of a tensor to be registered. A kind with counts has the name of the one without.
///
/// # Errors
/// [`Error::Argument`] for a kind that is none, or that has no counts, and where there are neither elements nor counts.
pub(crate) fn registered_kind(
    name: &str,
    elements: Option<u64>,
    counts: RegisteredCounts,
) -> Result<(Collective, u64, BlockCounts), Error> {
    let wrong = |why: &str| Error::Argument(format!("{name}: {why}"));
    let numbers = |counts: Vec<Count>| counts.into_iter().map(|count| count.0).collect();
    let even = kind(name)?;
    if even.has_counts() {
        return Err(wrong("a kind with counts has the name of the one without"));
    }
    let counts = match counts {
        (None, None, None) => {
            let needed = if even == Collective::Barrier { Some(0) } else { None };
            let elements = elements.or(needed).ok_or_else(|| wrong("give elements, or counts"))?;
            return Ok((even, elements, BlockCounts::None));
        }
        (Some(counts), None, None) => BlockCounts::OfRanks(numbers(counts)),
        (None, Some(given), Some(taken)) => {
            BlockCounts::OfPairs { given: numbers(given), taken: numbers(taken) }
        }
        _ => return Err(wrong("give counts, or given and taken, or none of them")),
    };
    let counted = kind(&format!("{name}-v")).map_err(|_| wrong("it has no counts; give elements"))?;
    Ok((counted, elements.unwrap_or(0), counts))
}

/// The counts of the blocks of a registered tensor's input and output on this rank.
pub(crate) fn registered(kind: Collective, counts: &BlockCounts, rank: u32) -> GivenCounts {
    let usizes = |counts: &[u64]| counts.iter().map(|count| *count as usize).collect::<Vec<_>>();
    match counts {
        BlockCounts::None => (None, None),
        BlockCounts::OfPairs { given, taken } => (Some(usizes(given)), Some(usizes(taken))),
        BlockCounts::OfRanks(counts) => {
            let all = usizes(counts);
            let own = all.iter().skip(rank as usize).take(1).copied().collect();
            match kind.sides_of_all() {
                (false, _) => (Some(own), Some(all)),
                (true, _) => (Some(all), Some(own)),
            }
        }
    }
}

impl Endpoint {
    pub(crate) fn from(source: Option<Rank>, tag: Option<MessageTag>) -> Self {
        let source = source.map_or(Source::Any, |rank| Source::Rank(rank.0));
        Self::From { source, tag: tag.map_or(Tag::Any, |tag| Tag::Is(tag.0)) }
    }
}

/// This rank's block of a tensor with a block for each rank, in rank order; `size` is that of an element.
///
/// # Errors
/// [`Error::Argument`] if the counts do not determine its place.
pub(crate) fn own_block(
    kind: Collective,
    (at, bytes): Span,
    counts: Option<&[usize]>,
    size: usize,
    rank: u32,
) -> Result<Span, Error> {
    let lacking =
        || Error::Argument(format!("{kind}: counts has none for rank {rank}; give one for each rank"));
    let (before, from_own) =
        counts.unwrap_or_default().split_at_checked(rank as usize).ok_or_else(lacking)?;
    let own = from_own.first().ok_or_else(lacking)?.checked_mul(size);
    let before = before.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    let block = before.and_then(|before| before.checked_mul(size)).zip(own);
    let block = block.filter(|(before, own)| before.checked_add(*own).is_some_and(|end| end <= bytes));
    let (before, own) = block.ok_or_else(|| {
        let found = bytes / size;
        Error::Argument(format!(
            "{kind}: {found} elements do not reach to the end of rank {rank}'s block, as counts say"
        ))
    })?;
    Ok((at + before, own))
}

/// The kind of collective with a name such as "all-reduce".
pub(crate) fn kind(name: &str) -> Result<Collective, Error> {
    let known = Collective::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| {
        Error::Argument(format!("\"{name}\" is no collective; use \"all-reduce\" and its like"))
    })
}

/// The reduction with this name.
pub(crate) fn op(name: &str) -> Result<ReduceOp, Error> {
    ReduceOp::parse(name).map_err(|why| Error::Argument(why.to_string()))
}

/// The element type with this name.
pub(crate) fn dtype(name: &str) -> Result<DType, Error> {
    crate::element::by_name(name).ok_or_else(|| {
        Error::Argument(format!(
            "\"{name}\" is no element type; use \"float32\", \"bfloat16\" and their like"
        ))
    })
}

/// The element type with this name, if there is a name.
pub(crate) fn dtype_of(py: Python<'_>, name: Option<&str>) -> PyResult<Option<DType>> {
    name.map(dtype).transpose().map_err(|why| crate::error::raised(py, &why))
}

impl Call {
    /// The library's call of a collective with a count for each rank.
    ///
    /// # Errors
    /// [`Error::Argument`] for memory whose length differs from the counts.
    pub(crate) fn uneven(&self) -> Result<UnevenCall<'_>, Error> {
        let Self { kind, dtype, op, root, .. } = *self;
        let Counts { given, taken } = &self.counts;
        for (what, (_, bytes), counts) in [("input", self.input, given), ("output", self.output, taken)] {
            let needed = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
            let found = bytes / dtype.size();
            if needed != Some(found) {
                let needed = needed.map_or("more than fit in memory".into(), |needed| needed.to_string());
                let why = format!("{kind}: {what} has {found} elements, and its counts add up to {needed}");
                return Err(Error::Argument(why));
            }
        }
        let (input, output) = (self.input.0 as *const u8, self.output.0 as *mut u8);
        Ok(UnevenCall { collective: kind, input, output, given, taken, dtype, op, root })
    }

    /// The addresses of a registered tensor's input and output; a side without blocks on this rank is not looked at.
    ///
    /// # Errors
    /// As [`uneven`](Self::uneven).
    pub(crate) fn counted(mut self) -> Result<(*const u8, *mut u8), Error> {
        let Counts { given, taken } = &self.counts;
        for (span, counts) in [(&mut self.input, given), (&mut self.output, taken)] {
            if counts.is_empty() {
                *span = (0, 0);
            }
        }
        let call = self.uneven()?;
        Ok((call.input, call.output))
    }

    /// The call's factor and stream.
    pub(crate) fn staging(&self) -> Staging {
        Staging { factor: self.factor, cuda_stream: self.stream, ..Staging::default() }
    }

    /// The library's call, with its factor and stream.
    ///
    /// # Errors
    /// [`Error::Argument`] for memory of another length than the collective needs on this rank.
    pub(crate) fn checked(&self, rank: u32, size: u32) -> Result<(CollectiveCall, Staging), Error> {
        let Self { kind, dtype, op, root, .. } = *self;
        let (ranks, is_root) = (size as usize, rank == root);
        let (given, taken) = (self.input.1 / dtype.size(), self.output.1 / dtype.size());
        // Elements of a block, and the blocks of input and output.
        let (count, from, into) = match kind {
            Collective::Barrier => (0, 0, 0),
            Collective::Broadcast => (taken, 0, 1),
            Collective::AllReduce | Collective::Scan => (given, 1, 1),
            Collective::ExScan => (given, 1, usize::from(rank > 0)),
            Collective::Reduce => (given, 1, usize::from(is_root)),
            Collective::AllGather => (given, 1, ranks),
            Collective::Gather => (given, 1, if is_root { ranks } else { 0 }),
            Collective::Scatter => (taken, if is_root { ranks } else { 0 }, 1),
            Collective::ReduceScatter => (taken, ranks, 1),
            Collective::AllToAll => (given / ranks, ranks, ranks),
            _ => {
                let why = format!("{kind} has a count for each rank; give counts");
                return Err(Error::Argument(why));
            }
        };
        self.fits("input", given, count, from)?;
        self.fits("output", taken, count, into)?;
        let (input, output) = (self.input.0 as *const u8, self.output.0 as *mut u8);
        let call = CollectiveCall { collective: kind, input, output, count, dtype, op, root };
        Ok((call, self.staging()))
    }

    fn fits(&self, what: &str, found: usize, count: usize, blocks: usize) -> Result<(), Error> {
        if blocks == 0 || count.checked_mul(blocks) == Some(found) {
            return Ok(());
        }
        let needed = if blocks == 1 { format!("{count}") } else { format!("{blocks} x {count}") };
        Err(Error::Argument(format!("{}: {what} has {found} elements, and {needed} are needed", self.kind)))
    }
}
