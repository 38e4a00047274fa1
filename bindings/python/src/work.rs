//! Started operations.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use shouter::Error;

use crate::buffer::Kept;
use crate::error::raised;
use crate::number::Timeout;
use crate::wait::{SLICE, in_slices};

/// Operations whose handles are gone, with the owners of their memory.
static ORPHANS: Mutex<Vec<Flight>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread runs a callback of [`Work::add_done_callback`].
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether a callback of [`Work::add_done_callback`] has made this call.
pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// An operation and the owners of its memory, which keep it in place.
pub(crate) struct Flight {
    work: shouter::Work,
    kept: Vec<Kept>,
}

impl Flight {
    pub(crate) fn new(work: shouter::Work, kept: Vec<Kept>) -> Self {
        Self { work, kept }
    }

    /// Releases the memory after this result: never if a device may still use it.
    pub(crate) fn end(self, result: &Result<(), Error>) {
        let kept = self.kept;
        match result {
            Err(Error::Internal(_)) => std::mem::forget(kept),
            Err(error) if error.in_use_by().is_some() => std::mem::forget(kept),
            _ => drop(kept),
        }
    }
}

/// Releases the owners of the memory of ended operations whose handles are gone.
pub(crate) fn sweep() {
    let mut ended = Vec::new();
    {
        let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
        for at in (0..orphans.len()).rev() {
            if let Some(result) = orphans[at].work.test() {
                ended.push((orphans.swap_remove(at), result));
            }
        }
    }
    // An owner's destructor may be Python code, which may call this again.
    for (flight, result) in ended {
        flight.end(&result);
    }
}

/// An operation that was started: `shouter.Work`.
#[pyclass(frozen, weakref, module = "shouter._core")]
pub(crate) struct Work {
    work: shouter::Work,
    flight: Mutex<Option<Flight>>,
    returns: Returns,
}

/// The result of the blocking call.
pub(crate) enum Returns {
    Nothing,
    Array(Py<PyAny>),
    /// The status of the first message: its sender, its tag and its elements.
    Status,
}

impl From<Option<Py<PyAny>>> for Returns {
    fn from(array: Option<Py<PyAny>>) -> Self {
        array.map_or(Self::Nothing, Self::Array)
    }
}

impl Work {
    pub(crate) fn new(work: shouter::Work, kept: Vec<Kept>, returns: impl Into<Returns>) -> Self {
        let flight = Mutex::new(Some(Flight::new(work.clone(), kept)));
        Self { work, flight, returns: returns.into() }
    }

    fn settle(&self, result: &Result<(), Error>) {
        let flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(flight) = flight {
            flight.end(result);
        }
    }

    /// Waits for a blocking call. If a signal's handler raises, an unmatched receive is cancelled; any other operation
    /// goes on.
    pub(crate) fn block(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.wait(py, None).inspect_err(|_| {
            // The signal's exception is the one to be raised.
            let _ = self.cancel_receive();
        })
    }

    /// Cancels a receive that no message was matched with; whether there was one. Then its memory is free.
    fn cancel_receive(&self) -> Result<bool, Error> {
        let cancelled = self.work.cancel()?;
        if cancelled {
            // It has ended now.
            let ended = self.work.wait(Some(SLICE));
            self.settle(&ended);
        }
        Ok(cancelled)
    }

    /// Waits until the operation has ended.
    fn finish(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let timed_out = |why| if matches!(why, Error::Timeout { .. }) { Ok(why) } else { Err(why) };
        let result = in_slices(py, seconds, |slice| self.work.wait(Some(slice)), timed_out)?;
        self.settle(&result);
        result.map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl Work {
    /// Waits until the operation has ended, for `timeout` seconds at most, and returns the result of the blocking call.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Option<Py<PyAny>>> {
        self.finish(py, timeout.map(|timeout| timeout.0))?;
        match &self.returns {
            Returns::Nothing => Ok(None),
            Returns::Array(array) => Ok(Some(array.clone_ref(py))),
            Returns::Status => {
                let statuses = self.work.statuses();
                let Some(first) = statuses.first() else { return Ok(None) };
                let status = (first.rank, first.tag, first.count);
                py.import("shouter._group")?.getattr("Status")?.call1(status).map(|made| Some(made.unbind()))
            }
        }
    }

    /// Whether the operation has ended, successfully or not.
    fn done(&self, py: Python<'_>) -> bool {
        let ended = py.detach(|| self.work.test());
        if let Some(result) = &ended {
            self.settle(result);
        }
        ended.is_some()
    }

    /// The exception with which the operation has ended; None if it succeeded, or has not ended.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let ended = py.detach(|| self.work.test());
        ended.and_then(Result::err).map(|error| raised(py, &error))
    }

    /// Cancels a started receive that no message was matched with: it ends with `ArgumentError`. False where it was too late, and for other
    /// kinds, which go on.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.cancel_receive()).map_err(|error| raised(py, &error))
    }

    /// Calls `callback` with this handle on a thread of the library when the operation has ended; soon, if it has.
    fn add_done_callback(slf: Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        let work = slf.get().work.clone();
        let handle = slf.unbind();
        let call = move |_| {
            Python::try_attach(|py| {
                // A callback that drops a group runs those of that group inside it.
                let outer = IN_CALLBACK.replace(true);
                if let Err(error) = callback.call1(py, (&handle,)) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
                drop((callback, handle));
                IN_CALLBACK.set(outer);
            });
        };
        py.detach(|| work.on_done(call)).map_err(|error| raised(py, &error))
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let awaiting = slf.py().import("shouter._await")?.call_method1("ended", (slf,))?;
        awaiting.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        format!("<shouter.{:?}>", self.work)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let flight = self.flight.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(flight) = flight else { return };
        match flight.work.test() {
            Some(result) => flight.end(&result),
            None => ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push(flight),
        }
    }
}
