//! The parameter server for Python: the base of `shouter.ps`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use shouter::config::LONGEST_WAIT;
use shouter::ps::{Actors, Array, Client, Error, Lost, Mode, Optimizer, Plan, Server, Sharding};

use crate::buffer::Buffer;
use crate::element;
use crate::error::argument;
use crate::group::{Group, drop_detached};
use crate::number::{Deadline, Parameter, Pushes, Row, Step, Timeout};
use crate::sys;
use crate::wait::{aside_as, in_slices};

/// The exception's class in `shouter.ps`.
fn class(error: &Error) -> &'static str {
    match error {
        Error::UnknownActor { .. } => "UnknownActor",
        Error::NotSet { .. } => "NotSet",
        Error::Shape { .. } => "WrongShape",
        Error::Type { .. } => "WrongType",
        Error::Rows { .. } => "WrongRows",
        Error::Stale { .. } => "Stale",
        Error::NoMemory { .. } => "NoMemory",
        Error::ServerLost { .. } => "ServerLost",
        Error::TrainerLost { .. } => "TrainerLost",
        Error::Checkpoint { .. } => "CheckpointError",
        Error::ShutDown { .. } => "ShutDown",
        Error::NoMessage { .. } => "NoMessage",
        Error::Protocol { .. } => "ProtocolError",
        _ => "PlanError",
    }
}

/// An error as the exception to raise.
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    if let Error::Group(error) = error {
        return crate::error::raised(py, error);
    }
    let raise = || {
        let fields = PyDict::new(py);
        fields.set_item("rank", error.rank())?;
        fields.set_item("step", error.step())?;
        fields.set_item("actor", error.actor())?;
        fields.set_item("parameter", error.parameter())?;
        py.import("shouter.ps")?.getattr(class(error))?.call((error.to_string(),), Some(&fields))
    };
    raise().map_or_else(|why: PyErr| why, PyErr::from_value)
}

/// Runs a call on a thread of its own, so that signals are seen.
fn run<R: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> PyResult<R> {
    aside_as(py, call, raised)
}

fn seconds(py: Python<'_>, what: &str, seconds: f64) -> PyResult<Duration> {
    let duration =
        Duration::try_from_secs_f64(seconds).map_err(|why| argument(py, format!("{what}: {why}")))?;
    Ok(duration.min(LONGEST_WAIT))
}

/// A plan's fields, as `shouter.ps.Plan` has them. Numbers are read from the objects later, since errors of fields become a `TypeError`.
#[derive(FromPyObject)]
pub(crate) struct GivenPlan {
    servers: Vec<String>,
    trainers: Vec<String>,
    /// A name, or a number of pushes.
    mode: Py<PyAny>,
    sharding: String,
    average: bool,
    lost: String,
    /// Seconds.
    deadline: Py<PyAny>,
}

impl GivenPlan {
    fn plan(self, py: Python<'_>) -> PyResult<Plan> {
        let unknown =
            |what: &str, found: &str, known: &str| argument(py, format!("{what} \"{found}\"; give {known}"));
        let mut plan = Plan::new(&self.servers, &self.trainers);
        plan.mode = match self.mode.extract::<String>(py).as_deref() {
            Ok("synchronous") => Mode::Synchronous,
            Ok("asynchronous") => Mode::Asynchronous,
            Ok(other) => {
                return Err(unknown("mode", other, "synchronous, asynchronous, or a number of pushes"));
            }
            Err(_) => Mode::Bounded(self.mode.extract::<Pushes>(py)?.0),
        };
        plan.sharding = match self.sharding.as_str() {
            "contiguous" => Sharding::Contiguous,
            "hashed" => Sharding::Hashed,
            other => return Err(unknown("sharding", other, "contiguous or hashed")),
        };
        plan.lost = match self.lost.as_str() {
            "end" => Lost::End,
            "drop" => Lost::Drop,
            other => return Err(unknown("lost", other, "end or drop")),
        };
        plan.average = self.average;
        plan.deadline = seconds(py, "deadline", self.deadline.extract::<Deadline>(py)?.0)?;
        Ok(plan)
    }
}

/// What holds a group: dropped without the interpreter's lock.
struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> std::ops::Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // It is present until the drop.
        self.0.as_ref().expect("what is used is there")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        drop_detached(self.0.take());
    }
}

/// The ranks of a group under names: the base of `shouter.ps.Actors`.
#[pyclass(frozen, module = "shouter._core")]
pub(crate) struct PsActors(Detached<Arc<Actors>>);

#[pymethods]
impl PsActors {
    /// Every rank of the group makes one, with its own name or all the same list of names.
    #[new]
    #[pyo3(signature = (group, name=None, names=None))]
    fn new(
        py: Python<'_>,
        group: &Group,
        name: Option<String>,
        names: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let live = group.live(py)?;
        let meet = move || match (name, names) {
            (Some(name), None) => Actors::meet(&live, &name),
            (None, Some(names)) => {
                Actors::configured(&live, &names.iter().map(String::as_str).collect::<Vec<_>>())
            }
            _ => Err(shouter::Error::Argument("actors: give either name= or names=".into()).into()),
        };
        Ok(Self(Detached::new(Arc::new(run(py, meet)?))))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn names(&self) -> Vec<&str> {
        self.0.names().collect()
    }

    fn rank(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.0.rank(name).map_err(|error| raised(py, &error))
    }

    fn isend(
        &self,
        py: Python<'_>,
        to: &str,
        name: &str,
        step: Step,
        array: &Bound<'_, PyAny>,
        shape: Vec<u64>,
    ) -> PyResult<PsSending> {
        let given = Buffer::of(array, "array", None)?;
        let sent = py.detach(|| {
            let data = Array::from_bytes(sys::given(&given), given.dtype, &shape)?;
            self.0.isend(to, name, step.0, data)
        });
        sent.map(|sent| PsSending(Detached::new(sent))).map_err(|error| raised(py, &error))
    }

    /// Whether a message of an actor, or of any, has come.
    fn is_there(&self, py: Python<'_>, source: Option<&str>) -> PyResult<bool> {
        let look = || self.0.irecv(source)?.is_there();
        py.detach(look).map_err(|error| raised(py, &error))
    }

    /// The next message of an actor, or of any: sender, name, type, shape, step, and the bytes of its elements.
    #[expect(clippy::type_complexity, reason = "Python's tuple")]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        source: Option<String>,
        timeout: Timeout,
    ) -> PyResult<(String, String, &'static str, Vec<u64>, u64, Bound<'py, PyBytes>)> {
        let timeout = seconds(py, "timeout", timeout.0)?;
        let actors = (*self.0).clone();
        let found = run(py, move || actors.irecv(source.as_deref())?.wait(timeout))?;
        let meta = found.meta();
        let bytes = PyBytes::new(py, found.bytes());
        Ok((
            found.from().to_owned(),
            meta.name.clone(),
            element::name(meta.dtype),
            meta.shape.clone(),
            meta.step,
            bytes,
        ))
    }
}

/// A message on its way.
#[pyclass(frozen, module = "shouter._core")]
pub(crate) struct PsSending(Detached<shouter::ps::Sending>);

#[pymethods]
impl PsSending {
    fn done(&self) -> bool {
        self.0.is_done()
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        let timed_out = |why| match why {
            Error::Group(why @ shouter::Error::Timeout { .. }) => Ok(why),
            other => Err(other),
        };
        let timeout = timeout.map(|timeout| timeout.0);
        let ended = in_slices(py, timeout, |slice| self.0.wait(Some(slice)), timed_out)?;
        ended.map_err(|error| raised(py, &error))
    }
}

/// Serves parameters until all clients have left; returns who has shut the servers down, and who was dropped.
#[pyfunction]
pub(crate) fn ps_serve(
    py: Python<'_>,
    actors: &PsActors,
    plan: GivenPlan,
) -> PyResult<(Option<String>, Vec<String>)> {
    let (actors, plan) = ((*actors.0).clone(), plan.plan(py)?);
    let served = run(py, move || Server::connect(&actors, plan)?.serve())?;
    Ok((served.shut_down_by, served.dropped))
}

/// An optimizer's name, and its numbers.
type GivenOptimizer = (String, Vec<Parameter>);

fn optimizer(py: Python<'_>, (name, numbers): &GivenOptimizer) -> PyResult<Optimizer> {
    let numbers: Vec<f64> = numbers.iter().map(|number| number.0).collect();
    match (name.as_str(), &numbers[..]) {
        ("SGD", &[rate]) => Ok(Optimizer::Sgd { rate }),
        ("Momentum", &[rate, momentum]) => Ok(Optimizer::Momentum { rate, momentum }),
        ("Adagrad", &[rate, epsilon]) => Ok(Optimizer::Adagrad { rate, epsilon }),
        ("Adam", &[rate, beta1, beta2, epsilon]) => Ok(Optimizer::Adam { rate, beta1, beta2, epsilon }),
        _ => Err(argument(py, format!("{name} is no optimizer; give SGD, Momentum, Adagrad or Adam"))),
    }
}

/// The base of `shouter.ps.Client`.
#[pyclass(frozen, module = "shouter._core")]
pub(crate) struct PsClient(Detached<Arc<Mutex<Option<Client>>>>);

impl PsClient {
    /// Runs a call with the client, on a thread of its own.
    fn with<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Client) -> Result<R, Error> + Send + 'static,
    ) -> PyResult<R> {
        let client = (*self.0).clone();
        run(py, move || match client.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(client) => call(client),
            None => Err(shouter::Error::Argument("the client has left; connect a new one".into()).into()),
        })
    }
}

#[pymethods]
impl PsClient {
    #[new]
    fn new(py: Python<'_>, actors: &PsActors, plan: GivenPlan) -> PyResult<Self> {
        let (actors, plan) = ((*actors.0).clone(), plan.plan(py)?);
        let client = run(py, move || Client::connect(&actors, plan))?;
        Ok(Self(Detached::new(Arc::new(Mutex::new(Some(client))))))
    }

    fn set_step(&self, py: Python<'_>, step: Step) -> PyResult<()> {
        self.with(py, move |client| {
            client.set_step(step.0);
            Ok(())
        })
    }

    fn set(
        &self,
        py: Python<'_>,
        name: String,
        array: &Bound<'_, PyAny>,
        shape: Vec<u64>,
        given: GivenOptimizer,
    ) -> PyResult<()> {
        let (value, optimizer) = (Buffer::of(array, "value", None)?, optimizer(py, &given)?);
        self.with(py, move |client| {
            client.set(&name, Array::from_bytes(sys::given(&value), value.dtype, &shape)?, optimizer)
        })
    }

    fn push(&self, py: Python<'_>, name: String, array: &Bound<'_, PyAny>, shape: Vec<u64>) -> PyResult<()> {
        let gradient = Buffer::of(array, "gradient", None)?;
        self.with(py, move |client| {
            client.push(&name, Array::from_bytes(sys::given(&gradient), gradient.dtype, &shape)?)
        })
    }

    fn push_rows(
        &self,
        py: Python<'_>,
        name: String,
        rows: Vec<Row>,
        array: &Bound<'_, PyAny>,
        shape: Vec<u64>,
    ) -> PyResult<()> {
        let values = Buffer::of(array, "values", None)?;
        let rows: Vec<u64> = rows.into_iter().map(|row| row.0).collect();
        self.with(py, move |client| {
            client.push_rows(&name, &rows, Array::from_bytes(sys::given(&values), values.dtype, &shape)?)
        })
    }

    /// Returns the number of updates.
    fn pull(&self, py: Python<'_>, name: String, out: &Bound<'_, PyAny>, shape: Vec<u64>) -> PyResult<u64> {
        let mut into = Buffer::of(out, "out", None)?.writable(py, "out")?;
        self.with(py, move |client| {
            let dtype = into.dtype;
            client.pull_into(&name, (dtype, Some(&shape)), sys::taken(&mut into))
        })
    }

    /// The type's name and the shape.
    fn describe(&self, py: Python<'_>, name: String) -> PyResult<(&'static str, Vec<u64>)> {
        let (dtype, shape) = self.with(py, move |client| client.describe(&name))?;
        Ok((element::name(dtype), shape))
    }

    fn wait_for_all(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::wait_for_all)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::reset)
    }

    fn save(&self, py: Python<'_>, folder: String) -> PyResult<()> {
        self.with(py, move |client| client.save(&folder))
    }

    fn restore(&self, py: Python<'_>, folder: String) -> PyResult<()> {
        self.with(py, move |client| client.restore(&folder))
    }

    fn members(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, Client::members)
    }

    fn shut_down(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::shut_down)
    }

    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let client = (*self.0).clone();
        run(py, move || match client.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(client) => client.leave(),
            None => Ok(()),
        })
    }
}
