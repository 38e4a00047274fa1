//! Groups for Python.

mod operations;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shouter::{Error, TensorSpec};

use crate::buffer::{Buffer, Kept};
use crate::call::{self, Call, CountArguments, Counts, Endpoint, RegisteredCounts};
use crate::error::{argument, raised};
use crate::memory::Memory;
use crate::named::Agreement;
use crate::number::{
    Bytes, Color, Deadline, Elements, Factor, MessageTag, OrderKey, Rank, Root, Step, TensorNumber,
};
use crate::sys;
use crate::wait::aside;
use crate::work::{Returns, Work, is_in_callback, sweep};

/// A tensor to be registered, from Python: name, kind, elements, type, reduction, root and counts.
type GivenTensor = (String, String, Option<Elements>, String, String, Root, RegisteredCounts);

/// One rank's membership in a group: the base of `shouter.Group`.
#[pyclass(frozen, weakref, module = "shouter._core")]
pub(crate) struct Group {
    /// None after it was closed.
    group: Mutex<Option<Arc<shouter::Group>>>,
    registered: Mutex<HashMap<u32, TensorSpec>>,
    /// Its number in programs of XLA, once one names it.
    number: OnceLock<i64>,
    /// Where it has named operations.
    agreement: Mutex<Option<Agreement>>,
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

/// A group in use by a call; another thread may close it meanwhile. The last user's drop ends its operations.
pub(crate) struct Live(Option<Arc<shouter::Group>>);

impl std::ops::Deref for Live {
    type Target = shouter::Group;

    fn deref(&self) -> &shouter::Group {
        // It is present until the drop.
        self.0.as_ref().expect("a group that is used is there")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop_detached(self.0.take().and_then(Arc::into_inner));
    }
}

/// Drops a group, or what holds one, without the interpreter's lock, which callbacks need: they run until it is dropped.
pub(crate) fn drop_detached<T: Send>(value: Option<T>) {
    let Some(value) = value else { return };
    let mut value = Some(value);
    Python::try_attach(|py| py.detach(|| drop(value.take())));
}

/// A deadline in seconds.
fn deadline_of(py: Python<'_>, seconds: Option<Deadline>) -> PyResult<Option<Duration>> {
    let deadline = seconds.map(|seconds| Duration::try_from_secs_f64(seconds.0)).transpose();
    deadline.map_err(|why| argument(py, format!("deadline: {why}")))
}

/// Locks a mutex whose content is valid even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            registered: Mutex::default(),
            number: OnceLock::new(),
            agreement: Mutex::default(),
            group: Mutex::new(Some(Arc::new(group))),
        }
    }

    pub(crate) fn live(&self, py: Python<'_>) -> PyResult<Live> {
        let live = lock(&self.group).clone();
        live.map(|group| Live(Some(group))).ok_or_else(|| crate::error::closed(py))
    }

    fn take(&self) -> Option<Arc<shouter::Group>> {
        lock(&self.group).take()
    }
}

#[pymethods]
impl Group {
    /// Waits for a handle as a blocking call does: see [`Work::block`].
    #[staticmethod]
    fn block(work: &Bound<'_, Work>) -> PyResult<Option<Py<PyAny>>> {
        work.get().block(work.py())
    }

    /// Runs a collective on arrays, and waits for it.
    #[pyo3(signature = (kind, input=None, output=None, op="sum", root=Root(0), dtype=None, counts=(None, None)))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn run(
        &self,
        py: Python<'_>,
        kind: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: Root,
        dtype: Option<&str>,
        counts: CountArguments,
    ) -> PyResult<()> {
        let kind = call::kind(kind).map_err(|why| raised(py, &why))?;
        let (call, kept) =
            self.call(kind, (input, output), (op, root.0), (dtype, call::given_counts(counts)), py)?;
        self.complete(py, &call, kept)
    }

    /// Starts a collective on arrays; the handle's `wait` returns `result`.
    #[pyo3(signature = (kind, input=None, output=None, op="sum", root=Root(0), dtype=None, counts=(None, None), result=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn begin_run(
        &self,
        py: Python<'_>,
        kind: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: Root,
        dtype: Option<&str>,
        counts: CountArguments,
        result: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let kind = call::kind(kind).map_err(|why| raised(py, &why))?;
        let (call, kept) =
            self.call(kind, (input, output), (op, root.0), (dtype, call::given_counts(counts)), py)?;
        Ok(Work::new(self.begin(py, &call)?, kept, result))
    }

    /// Starts a collective on memory by address: as `begin_run`, for callers that know where their elements are. `keep`
    /// is kept until the operation has ended. With a `stream` the memory is a GPU's. With `wait` the call returns after
    /// the end, without a handle.
    #[pyo3(signature = (kind, address_in=0, bytes_in=0, address_out=0, bytes_out=0, dtype="uint8", op="sum", root=Root(0),
                        factor=None, counts=(None, None), keep=None, stream=None, wait=false))]
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
        root: Root,
        factor: Option<Factor>,
        counts: CountArguments,
        keep: Option<Py<PyAny>>,
        stream: Option<u64>,
        wait: bool,
    ) -> PyResult<Option<Work>> {
        let parsed = || Ok((call::kind(kind)?, call::dtype(dtype)?, call::op(op)?));
        let (kind, dtype, op) = parsed().map_err(|why: Error| raised(py, &why))?;
        let (input, output) = ((address_in, bytes_in), (address_out, bytes_out));
        let elements = (bytes_in / dtype.size(), bytes_out / dtype.size());
        let counts = Counts::of(kind, self.rank == root.0, call::given_counts(counts), elements);
        let factor = factor.map(|factor| factor.0);
        let call = Call { kind, input, output, dtype, op, root: root.0, factor, counts, stream };
        let kept = keep.into_iter().map(Kept::Object).collect();
        if wait {
            return self.complete(py, &call, kept).map(|()| None);
        }
        Ok(Some(Work::new(self.begin(py, &call)?, kept, None)))
    }

    /// Starts a send of an array's elements.
    #[pyo3(signature = (array, to, tag=MessageTag(0), dtype=None, synchronous=false))]
    fn send(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        to: Rank,
        tag: MessageTag,
        dtype: Option<&str>,
        synchronous: bool,
    ) -> PyResult<Work> {
        let buffer = Buffer::of(array, "the array", call::dtype_of(py, dtype)?)?;
        self.messages(py, [(buffer, Endpoint::To { rank: to.0, tag: tag.0, synchronous })], Returns::Nothing)
    }

    /// Starts a receive into an array; the handle's `wait` returns a `Status`.
    #[pyo3(signature = (array, source=None, tag=None, dtype=None))]
    fn recv(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        source: Option<Rank>,
        tag: Option<MessageTag>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        let buffer = Buffer::of(array, "the array", call::dtype_of(py, dtype)?)?;
        let buffer = buffer.writable(py, "the array")?;
        self.messages(py, [(buffer, Endpoint::from(source, tag))], Returns::Status)
    }

    /// Starts a send and a receive at once; the handle's `wait` returns the `Status` of the received message.
    #[pyo3(signature = (array, to, into, source=None, tag=MessageTag(0), receive_tag=None, dtype=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn sendrecv(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        to: Rank,
        into: &Bound<'_, PyAny>,
        source: Option<Rank>,
        tag: MessageTag,
        receive_tag: Option<MessageTag>,
        dtype: Option<&str>,
    ) -> PyResult<Work> {
        let dtype = call::dtype_of(py, dtype)?;
        let into = Buffer::of(into, "the output", dtype)?.writable(py, "the output")?;
        let from = Buffer::of(array, "the input", dtype)?;
        let send = Endpoint::To { rank: to.0, tag: tag.0, synchronous: false };
        self.messages(py, [(into, Endpoint::from(source, receive_tag)), (from, send)], Returns::Status)
    }

    /// Starts a send of the elements at an address, as `start` does.
    #[pyo3(signature = (address, bytes, dtype, to, tag=MessageTag(0), synchronous=false, keep=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn start_send(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        dtype: &str,
        to: Rank,
        tag: MessageTag,
        synchronous: bool,
        keep: Option<Py<PyAny>>,
        stream: Option<u64>,
    ) -> PyResult<Work> {
        self.message_at(
            py,
            (address, bytes),
            dtype,
            Endpoint::To { rank: to.0, tag: tag.0, synchronous },
            keep,
            stream,
        )
    }

    /// Starts a receive into memory at an address; the handle's `wait` returns a `Status`.
    #[pyo3(signature = (address, bytes, dtype, source=None, tag=None, keep=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn start_recv(
        &self,
        py: Python<'_>,
        address: usize,
        bytes: usize,
        dtype: &str,
        source: Option<Rank>,
        tag: Option<MessageTag>,
        keep: Option<Py<PyAny>>,
        stream: Option<u64>,
    ) -> PyResult<Work> {
        self.message_at(py, (address, bytes), dtype, Endpoint::from(source, tag), keep, stream)
    }

    /// Agrees with all ranks on tensors: each has a name, a kind, a count, a type, a reduction and a root, and the counts of its blocks where
    /// they differ. Returns their numbers.
    fn register(&self, py: Python<'_>, tensors: Vec<GivenTensor>) -> PyResult<Vec<u32>> {
        let spec = |(name, kind, elements, dtype, op, root, counts): GivenTensor| {
            let (collective, count, counts) =
                call::registered_kind(&kind, elements.map(|elements| elements.0), counts)?;
            let (dtype, op) = (call::dtype(&dtype)?, call::op(&op)?);
            Ok(TensorSpec { name, collective, dtype, count, op, root: root.0, counts })
        };
        let specs = tensors.into_iter().map(spec).collect::<Result<Vec<_>, Error>>();
        let specs = specs.map_err(|error| raised(py, &error))?;
        let group = self.live(py)?;
        let (ids, specs) = aside(py, move || group.register(&specs).map(|ids| (ids, specs)))?;
        let ids: Vec<u32> = ids.into_iter().map(|id| id.0).collect();
        lock(&self.registered).extend(ids.iter().copied().zip(specs));
        Ok(ids)
    }

    /// Starts the operation of a registered tensor.
    #[pyo3(signature = (tensor, input=None, output=None, result=None))]
    fn push(
        &self,
        py: Python<'_>,
        tensor: TensorNumber,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        result: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let spec = lock(&self.registered).get(&tensor.0).cloned();
        let Some(TensorSpec { collective, dtype, count, root, counts, .. }) = spec else {
            return Err(argument(py, format!("no tensor was registered with the number {}", tensor.0)));
        };
        let counts = call::registered(collective, &counts, self.rank);
        let buffers = Self::buffers(py, (input, output), Some(dtype))?;
        let (call, kept) = self.call_on(collective, buffers, ("sum", root), counts, py)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let work = self.started(py, |group| sys::push(group, shouter::TensorId(tensor.0), &call, count))?;
        Ok(Work::new(work, kept, result))
    }

    /// The trainer's step, for errors and timelines.
    fn set_step(&self, py: Python<'_>, step: Step) -> PyResult<()> {
        self.live(py)?.set_step(step.0);
        Ok(())
    }

    /// Names the following operations that are not registered, for timelines and dumps.
    fn set_label(&self, py: Python<'_>, label: &str) -> PyResult<()> {
        self.live(py)?.set_label(label);
        Ok(())
    }

    /// The number in the job of a rank of this group.
    fn job_rank(&self, py: Python<'_>, rank: Rank) -> PyResult<u32> {
        let found = self.live(py)?.job_rank(rank.0);
        found
            .ok_or_else(|| argument(py, format!("rank {} is no rank of this group of {}", rank.0, self.size)))
    }

    /// Programs of XLA that name no group use this one from now on.
    fn use_in_programs(&self, py: Python<'_>) -> PyResult<()> {
        let live = self.live(py)?;
        live.0.as_ref().into_iter().for_each(crate::xla::set_world);
        Ok(())
    }

    /// The number by which programs of XLA name this group.
    fn number(&self, py: Python<'_>) -> PyResult<i64> {
        let live = self.live(py)?;
        let number = live.0.as_ref().map(|group| *self.number.get_or_init(|| crate::xla::add(group)));
        // It is there until the drop.
        number.ok_or_else(|| crate::error::closed(py))
    }

    /// The number by which kernels of TensorFlow submit named operations: from now on the group has no others.
    fn named(&self, py: Python<'_>) -> PyResult<i64> {
        let live = self.live(py)?;
        let number = self.number(py)?;
        let mut agreement = lock(&self.agreement);
        if let (None, Some(group)) = (&*agreement, &live.0) {
            *agreement = Some(Agreement::open(number, group).map_err(|why| raised(py, &why))?);
        }
        Ok(number)
    }

    /// The names or addresses by which the ranks have met rank 0.
    fn rank0_addresses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.live(py)?.rank0_addresses().map(str::to_owned).collect())
    }

    /// The channels that carry the data, and the reasons for the choice.
    fn transport(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.live(py)?.transport().to_string())
    }

    /// This rank's counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let group = self.live(py)?;
        let stats = py.detach(|| group.stats());
        let counts = PyDict::new(py);
        for (name, count) in [
            ("operations", stats.ops),
            ("bytes_reduced", stats.bytes_reduced),
            ("time_in_operations_ns", stats.time_in_allreduce_ns),
            ("in_place", stats.in_place),
            ("frames_sent", stats.frames_sent),
            ("frames_received", stats.frames_received),
            ("frames_uncopied", stats.frames_uncopied),
            ("bytes_sent", stats.bytes_sent),
            ("bytes_received", stats.bytes_received),
            ("resent", stats.resent),
            ("crc_dropped", stats.crc_dropped),
            ("replayed", stats.replayed),
            ("paths_out", stats.paths_out),
            ("links_down", stats.links_down),
            ("link_losses", stats.link_losses),
            ("channels", stats.channels),
        ] {
            counts.set_item(name, count)?;
        }
        Ok(counts)
    }

    /// Writes this rank's operations as a trace.
    fn write_timeline(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let group = self.live(py)?;
        py.detach(|| group.write_timeline(&path)).map_err(|error| raised(py, &error))
    }

    /// Writes the last events of this rank to a new file, and returns its path.
    fn dump(&self, py: Python<'_>) -> PyResult<PathBuf> {
        let group = self.live(py)?;
        py.detach(|| group.dump()).map_err(|error| raised(py, &error))
    }

    /// Makes groups of the ranks with the same color, with a deadline of their own, in seconds, if given.
    #[pyo3(signature = (color, key, deadline=None))]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<Color>,
        key: OrderKey,
        deadline: Option<Deadline>,
    ) -> PyResult<Option<Self>> {
        let deadline = deadline_of(py, deadline)?;
        let (color, key) = (color.map(|color| color.0), key.0);
        let group = self.live(py)?;
        let make = move || match deadline {
            Some(deadline) => group.split_within(color, key, deadline),
            None => group.split(color, key),
        };
        Ok(aside(py, make)?.map(Self::new))
    }

    /// Makes a group of these ranks, with a deadline of its own, in seconds, if given.
    #[pyo3(signature = (ranks, deadline=None))]
    fn group(&self, py: Python<'_>, ranks: Vec<Rank>, deadline: Option<Deadline>) -> PyResult<Self> {
        let deadline = deadline_of(py, deadline)?;
        let ranks: Vec<u32> = ranks.into_iter().map(|rank| rank.0).collect();
        let group = self.live(py)?;
        let make = move || match deadline {
            Some(deadline) => group.group_within(&ranks, deadline),
            None => group.group(&ranks),
        };
        aside(py, make).map(Self::new)
    }

    /// Zeroed memory that the ranks of the host share.
    fn alloc(&self, py: Python<'_>, bytes: Bytes) -> PyResult<Memory> {
        let group = self.live(py)?;
        let made = py.detach(|| group.alloc::<u8>(bytes.0));
        made.map(Memory::new).map_err(|error| raised(py, &error))
    }

    /// Whether this process has closed the group.
    #[getter]
    fn is_closed(&self) -> bool {
        lock(&self.group).is_none()
    }

    /// Leaves the group together with all other ranks. It waits for callbacks, so it is refused in one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if is_in_callback() && !self.is_closed() {
            return Err(argument(
                py,
                "close waits for the callbacks of operations, and this is one; close after it",
            ));
        }
        let Some(mut group) = self.take() else { return Ok(()) };
        let only = loop {
            match Arc::try_unwrap(group) {
                Ok(only) => break only,
                // Another thread is in a call.
                Err(shared) => group = shared,
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            if let Err(raised) = py.check_signals() {
                *lock(&self.group) = Some(group);
                return Err(raised);
            }
        };
        let left = aside(py, move || only.finalize());
        sweep();
        left
    }

    /// Ends the job with a reason for its other ranks, and leaves.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        if let Some(group) = self.take() {
            let told = py.detach(|| {
                let told = group.abort(why);
                drop(group);
                told
            });
            sweep();
            told.map_err(|error| raised(py, &error))?;
        }
        Ok(())
    }

    /// Leaves the group without notice: its operations end, and name this rank as the culprit on the others.
    fn leave(&self, py: Python<'_>) {
        if let Some(group) = self.take() {
            py.detach(|| drop(group));
            sweep();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop_detached(self.take().and_then(Arc::into_inner));
    }
}
