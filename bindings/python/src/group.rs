//! Groups, and the collectives that they run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use shouter::{Collective, Error};

use crate::buffer::{Buffer, Kept};
use crate::call::{self, Call, Span};
use crate::error::{argument, raised};
use crate::memory::Memory;
use crate::sys;
use crate::wait::aside;
use crate::work::{Work, sweep};

/// One rank's membership in a group: what `shouter.Group` is made of.
#[pyclass(frozen, weakref, module = "shouter._core")]
pub(crate) struct Group {
    /// None after it was closed.
    group: Mutex<Option<Arc<shouter::Group>>>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    size: u32,
    #[pyo3(get)]
    local_rank: u32,
    #[pyo3(get)]
    local_size: u32,
    #[pyo3(get)]
    node: u32,
    #[pyo3(get)]
    nodes: u32,
}

impl Group {
    pub(crate) fn new(group: shouter::Group) -> Self {
        Self {
            rank: group.rank(),
            size: group.size(),
            local_rank: group.local_rank(),
            local_size: group.local_size(),
            node: group.node(),
            nodes: group.nodes(),
            group: Mutex::new(Some(Arc::new(group))),
        }
    }

    fn live(&self, py: Python<'_>) -> PyResult<Arc<shouter::Group>> {
        let live = self.group.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.ok_or_else(|| crate::error::closed(py))
    }

    fn take(&self) -> Option<Arc<shouter::Group>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A collective on arrays, and what keeps them.
    fn call(
        &self,
        kind: Collective,
        (input, output): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
        (op, root): (&str, u32),
        dtype: Option<&str>,
        py: Python<'_>,
    ) -> PyResult<(Call, Vec<Kept>)> {
        let dtype = call::dtype_of(py, dtype)?;
        let given = input.map(|array| Buffer::of(array, "the input", dtype)).transpose()?;
        let taken = output.map(|array| Buffer::of(array, "the output", dtype)?.writable(py, "the output"));
        let taken = taken.transpose()?;
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
            (None, None) => shouter::DType::U8,
        };
        let span = |buffer: &Option<Buffer>| buffer.as_ref().map_or((0, 0), |found| (found.at, found.bytes));
        let (mut from, mut into) = (span(&given), span(&taken));
        self.in_place(kind, root, (&mut from, &mut into), py, given.as_ref())?;
        let call = Call { kind, input: from, output: into, dtype, op, root, factor: None };
        Ok((call, given.into_iter().chain(taken).map(|buffer| buffer.kept).collect()))
    }

    /// Where one of input and output is not given, it is the other one, or this rank's block of it.
    fn in_place(
        &self,
        kind: Collective,
        root: u32,
        (from, into): (&mut Span, &mut Span),
        py: Python<'_>,
        given: Option<&Buffer>,
    ) -> PyResult<()> {
        let own = |(at, bytes): Span| {
            let block = bytes / self.size as usize;
            (at + block * self.rank as usize, block)
        };
        let is_root = self.rank == root;
        let written = match (kind, *from, *into) {
            (Collective::Broadcast | Collective::Barrier, ..) => false,
            (
                Collective::AllReduce | Collective::Scan | Collective::ExScan | Collective::AllToAll,
                _,
                (0, _),
            ) => {
                *into = *from;
                true
            }
            (Collective::Reduce, _, (0, _)) if is_root => {
                *into = *from;
                true
            }
            (Collective::ReduceScatter, _, (0, _)) => {
                *into = own(*from);
                true
            }
            (Collective::Scatter, _, (0, _)) if is_root => {
                *into = own(*from);
                true
            }
            (Collective::AllGather, (0, _), _) => {
                *from = own(*into);
                false
            }
            (Collective::Gather, (0, _), _) if is_root => {
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

    fn begin(&self, py: Python<'_>, call: &Call) -> PyResult<shouter::Work> {
        sweep();
        let group = self.live(py)?;
        loop {
            match py.detach(|| sys::start(&group, call)) {
                Err(Error::WouldBlock { .. }) => py.check_signals()?,
                started => return started.map_err(|error| raised(py, &error)),
            }
        }
    }
}

#[pymethods]
impl Group {
    /// Runs a collective on arrays, and waits for it.
    #[pyo3(signature = (kind, input=None, output=None, op="sum", root=0, dtype=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn run(
        &self,
        py: Python<'_>,
        kind: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: u32,
        dtype: Option<&str>,
    ) -> PyResult<()> {
        let kind = call::kind(kind).map_err(|why| raised(py, &why))?;
        let (call, kept) = self.call(kind, (input, output), (op, root), dtype, py)?;
        Work::new(self.begin(py, &call)?, kept, None).finish(py, None)
    }

    /// Starts a collective on arrays; the handle's `wait` returns `result`.
    #[pyo3(signature = (kind, input=None, output=None, op="sum", root=0, dtype=None, result=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn begin_run(
        &self,
        py: Python<'_>,
        kind: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: u32,
        dtype: Option<&str>,
        result: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let kind = call::kind(kind).map_err(|why| raised(py, &why))?;
        let (call, kept) = self.call(kind, (input, output), (op, root), dtype, py)?;
        Ok(Work::new(self.begin(py, &call)?, kept, result))
    }

    /// Starts a collective on memory by address: as `begin_run`, for callers that know where their elements are. What `keep` holds is kept
    /// until the operation has ended.
    #[pyo3(signature = (kind, address_in=0, bytes_in=0, address_out=0, bytes_out=0, dtype="uint8", op="sum", root=0,
                        factor=None, keep=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn start(
        &self,
        py: Python<'_>,
        kind: &str,
        address_in: usize,
        bytes_in: usize,
        address_out: usize,
        bytes_out: usize,
        dtype: &str,
        op: &str,
        root: u32,
        factor: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let parsed = || Ok((call::kind(kind)?, call::dtype(dtype)?, call::op(op)?));
        let (kind, dtype, op) = parsed().map_err(|why: Error| raised(py, &why))?;
        let (input, output) = ((address_in, bytes_in), (address_out, bytes_out));
        let call = Call { kind, input, output, dtype, op, root, factor };
        let work = self.begin(py, &call)?;
        Ok(Work::new(work, keep.into_iter().map(Kept::Object).collect(), None))
    }

    /// Makes groups of the ranks with the same color.
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        let group = self.live(py)?;
        Ok(aside(py, move || group.split(color, key))?.map(Self::new))
    }

    /// Makes a group of these ranks.
    fn group(&self, py: Python<'_>, ranks: Vec<u32>) -> PyResult<Self> {
        let group = self.live(py)?;
        aside(py, move || group.group(&ranks)).map(Self::new)
    }

    /// Zeroed memory that the ranks of the host share.
    fn alloc(&self, py: Python<'_>, bytes: usize) -> PyResult<Memory> {
        let group = self.live(py)?;
        let made = py.detach(|| group.alloc::<u8>(bytes));
        made.map(Memory::new).map_err(|error| raised(py, &error))
    }

    /// Whether the group was closed here.
    #[getter]
    fn is_closed(&self) -> bool {
        self.group.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Leaves the group together with all its other ranks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut group) = self.take() else { return Ok(()) };
        let only = loop {
            match Arc::try_unwrap(group) {
                Ok(only) => break only,
                // Another thread is in a call.
                Err(shared) => group = shared,
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            if let Err(raised) = py.check_signals() {
                *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Some(group);
                return Err(raised);
            }
        };
        let left = aside(py, move || only.finalize());
        sweep();
        left
    }

    /// Leaves the group without a word: its operations under way end, for the others with this rank as the culprit.
    fn leave(&self, py: Python<'_>) {
        if let Some(group) = self.take() {
            py.detach(|| drop(group));
            sweep();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.take() else { return };
        // Callbacks run until it is gone, and need the interpreter.
        let mut group = Some(group);
        Python::try_attach(|py| py.detach(|| drop(group.take())));
    }
}
