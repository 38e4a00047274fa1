//! The start of a group's operations: checks their arguments, and keeps the owners of their memory.

use pyo3::prelude::*;
use shouter::{Collective, DType, Error};

use super::Group;
use crate::buffer::{Buffer, Kept};
use crate::call::{self, Call, Counts, Endpoint, GivenCounts, Message, Span};
use crate::error::{argument, raised};
use crate::sys;
use crate::wait::SLICE;
use crate::work::{Flight, Returns, Work, sweep};

impl Group {
    /// A collective on arrays, and the owners of their memory.
    pub(super) fn call(
        &self,
        kind: Collective,
        (input, output): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
        (op, root): (&str, u32),
        (dtype, counts): (Option<&str>, GivenCounts),
        py: Python<'_>,
    ) -> PyResult<(Call, Vec<Kept>)> {
        let buffers = Self::buffers(py, (input, output), call::dtype_of(py, dtype)?)?;
        self.call_on(kind, buffers, (op, root), counts, py)
    }

    /// The memory of arrays, the output's to be written to.
    pub(super) fn buffers(
        py: Python<'_>,
        (input, output): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
        dtype: Option<DType>,
    ) -> PyResult<(Option<Buffer>, Option<Buffer>)> {
        let given = input.map(|array| Buffer::of(array, "the input", dtype)).transpose()?;
        let taken = output.map(|array| Buffer::of(array, "the output", dtype)?.writable(py, "the output"));
        Ok((given, taken.transpose()?))
    }

    /// The same on memory.
    pub(super) fn call_on(
        &self,
        kind: Collective,
        (given, taken): (Option<Buffer>, Option<Buffer>),
        (op, root): (&str, u32),
        counts: GivenCounts,
        py: Python<'_>,
    ) -> PyResult<(Call, Vec<Kept>)> {
        let op = call::op(op).map_err(|why| raised(py, &why))?;
        let dtype = match (&given, &taken) {
            (Some(given), Some(taken)) if given.dtype != taken.dtype => {
                let (from, into) = (given.dtype, taken.dtype);
                return Err(argument(
                    py,
                    format!("{kind}: the input is of {from}, and the output of {into}"),
                ));
            }
            (Some(one), _) | (None, Some(one)) => one.dtype,
            // A block of no elements needs no array.
            (None, None) if kind == Collective::Barrier || kind.has_counts() => DType::U8,
            (None, None) => return Err(argument(py, format!("{kind}: no array is given; give one"))),
        };
        let span = |buffer: &Option<Buffer>| buffer.as_ref().map_or((0, 0), |found| (found.at, found.bytes));
        let (mut from, mut into) = (span(&given), span(&taken));
        if kind == Collective::Broadcast && given.is_some() && taken.is_some() && from != into {
            return Err(argument(py, format!("{kind}: it is in place; give one array, without out=")));
        }
        let counted = (&counts.0, &counts.1, dtype.size());
        self.in_place(kind, root, (&mut from, &mut into), counted, py, given.as_ref())?;
        let elements = (from.1 / dtype.size(), into.1 / dtype.size());
        let counts = Counts::of(kind, self.rank == root, counts, elements);
        let stream = match (&given, &taken) {
            (Some(given), Some(taken)) if given.stream.is_some() != taken.stream.is_some() => {
                return Err(argument(
                    py,
                    format!(
                        "{kind}: of input and output one is in memory of a GPU; give both there, or none"
                    ),
                ));
            }
            (Some(one), _) | (None, Some(one)) => one.stream,
            (None, None) => None,
        };
        let call = Call { kind, input: from, output: into, dtype, op, root, factor: None, counts, stream };
        Ok((call, given.into_iter().chain(taken).map(|buffer| buffer.kept).collect()))
    }

    /// If input or output is missing, it is the other one, or this rank's block of it.
    fn in_place(
        &self,
        kind: Collective,
        root: u32,
        (from, into): (&mut Span, &mut Span),
        (counts_in, counts_out, size): (&Option<Vec<usize>>, &Option<Vec<usize>>, usize),
        py: Python<'_>,
        given: Option<&Buffer>,
    ) -> PyResult<()> {
        let own = |(at, bytes): Span| {
            let block = bytes / self.size as usize;
            (at + block * self.rank as usize, block)
        };
        let counted = |whole: Span, counts: &Option<Vec<usize>>| {
            call::own_block(kind, whole, counts.as_deref(), size, self.rank).map_err(|why| raised(py, &why))
        };
        let has_all = !kind.has_root() || self.rank == root;
        let written = match (kind, *from, *into) {
            (Collective::Broadcast, _, (0, _)) => {
                *into = std::mem::take(from);
                true
            }
            (
                Collective::AllReduce
                | Collective::Reduce
                | Collective::Scan
                | Collective::ExScan
                | Collective::AllToAll
                | Collective::AllToAllV,
                _,
                (0, _),
            ) if has_all => {
                *into = *from;
                true
            }
            (Collective::ReduceScatter | Collective::Scatter, _, (0, _)) if has_all => {
                *into = own(*from);
                true
            }
            (Collective::ReduceScatterV | Collective::ScatterV, _, (0, _)) if has_all => {
                *into = counted(*from, counts_in)?;
                true
            }
            (Collective::AllGatherV | Collective::GatherV, (0, _), _) if has_all && given.is_none() => {
                *from = counted(*into, counts_out)?;
                false
            }
            (Collective::AllGather | Collective::Gather, (0, _), _) if has_all => {
                *from = own(*into);
                false
            }
            _ => false,
        };
        match given {
            Some(given) if written && given.is_readonly => {
                Err(argument(py, "the array is read-only, and the result would be written to it; give out="))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn begin(&self, py: Python<'_>, call: &Call) -> PyResult<shouter::Work> {
        self.started(py, |group| sys::start(group, call))
    }

    /// Runs a collective, and waits for it.
    pub(super) fn complete(&self, py: Python<'_>, call: &Call, kept: Vec<Kept>) -> PyResult<()> {
        sweep();
        let group = self.live(py)?;
        let tried = py.detach(|| {
            let work = sys::start(&group, call)?;
            let ended = work.wait(Some(SLICE));
            Ok((work, ended))
        });
        // Released here, so that another thread that closes the group ends the operation.
        drop(group);
        match tried {
            Ok((work, Err(Error::Timeout { .. }))) => {
                let work = Work::new(work, kept, None);
                py.check_signals()?;
                work.block(py).map(drop)
            }
            Ok((work, ended)) => {
                Flight::new(work, kept).end(&ended);
                ended.map_err(|error| raised(py, &error))
            }
            Err(Error::WouldBlock { .. }) => Work::new(self.begin(py, call)?, kept, None).block(py).map(drop),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Starts an operation when there is room for one more.
    pub(super) fn started(
        &self,
        py: Python<'_>,
        start: impl Fn(&shouter::Group) -> Result<shouter::Work, Error> + Sync,
    ) -> PyResult<shouter::Work> {
        sweep();
        loop {
            // Fetched anew each time: another thread may end the group meanwhile.
            let group = self.live(py)?;
            match py.detach(|| start(&group)) {
                Err(Error::WouldBlock { .. }) => py.check_signals()?,
                started => return started.map_err(|error| raised(py, &error)),
            }
        }
    }

    pub(super) fn messages<const N: usize>(
        &self,
        py: Python<'_>,
        messages: [(Buffer, Endpoint); N],
        returns: Returns,
    ) -> PyResult<Work> {
        let at = |(buffer, endpoint): &(Buffer, Endpoint)| Message {
            span: (buffer.at, buffer.bytes),
            dtype: buffer.dtype,
            endpoint: *endpoint,
            stream: buffer.stream,
        };
        let posted = messages.each_ref().map(at);
        let work = self.started(py, |group| sys::start_messages(group, &posted))?;
        Ok(Work::new(work, messages.into_iter().map(|(buffer, _)| buffer.kept).collect(), returns))
    }

    pub(super) fn message_at(
        &self,
        py: Python<'_>,
        span: Span,
        dtype: &str,
        endpoint: Endpoint,
        keep: Option<Py<PyAny>>,
        stream: Option<u64>,
    ) -> PyResult<Work> {
        let dtype = call::dtype(dtype).map_err(|why| raised(py, &why))?;
        let message = Message { span, dtype, endpoint, stream };
        let work = self.started(py, |group| sys::start_messages(group, &[message]))?;
        let returns =
            if matches!(endpoint, Endpoint::From { .. }) { Returns::Status } else { Returns::Nothing };
        Ok(Work::new(work, keep.into_iter().map(Kept::Object).collect(), returns))
    }
}
