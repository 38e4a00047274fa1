//! Waits without the interpreter's lock, in slices between which signals are checked.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use shouter::Error;
use shouter::config::LONGEST_WAIT;

use crate::error::raised;

/// The longest time before a signal such as Ctrl-C is noticed.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The end of a wait of this many seconds, if it has one.
pub(crate) fn until(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let duration = match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => duration.min(LONGEST_WAIT),
        Err(_) if seconds > 0.0 => LONGEST_WAIT,
        Err(_) => {
            let why = format!("a timeout of {seconds} s; use None, or 0 or more seconds");
            return Err(crate::error::argument(py, why));
        }
    };
    Ok(Some(Instant::now() + duration))
}

/// The next slice of a wait until then; `None` after its end.
pub(crate) fn slice(until: Option<Instant>) -> Option<Duration> {
    let Some(until) = until else { return Some(SLICE) };
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left.min(SLICE))
}

/// Waits for `seconds` at most in slices, between which signals are checked; a time-out of zero checks once. `timed_out` takes the group's
/// time-out out of an error, if it is one.
pub(crate) fn in_slices<E: Send>(
    py: Python<'_>,
    seconds: Option<f64>,
    wait: impl Fn(Duration) -> Result<(), E> + Sync,
    timed_out: fn(E) -> Result<Error, E>,
) -> PyResult<Result<(), E>> {
    let until = until(py, seconds)?;
    let mut late = None;
    loop {
        let next = match (slice(until), late.take()) {
            (Some(next), _) => next,
            (None, None) => Duration::ZERO,
            (None, Some(late)) => {
                let all = Duration::from_secs_f64(seconds.unwrap_or_default());
                return Err(raised(py, &Error::waited(late, all)));
            }
        };
        match py.detach(|| wait(next)).map_err(timed_out) {
            Ok(()) => return Ok(Ok(())),
            Err(Err(other)) => return Ok(Err(other)),
            Err(Ok(why)) => {
                py.check_signals()?;
                late = Some(why);
            }
        }
    }
}

/// Runs a call that cannot be waited for in slices on a thread of its own. If a signal's handler raises, the call goes
/// on there with the values that it owns.
pub(crate) fn aside<R: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> PyResult<R> {
    aside_as(py, call, raised)
}

/// The same, with errors of another type, and how they are raised.
pub(crate) fn aside_as<R: Send + 'static, E: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<R, E> + Send + 'static,
    raise: fn(Python<'_>, &E) -> PyErr,
) -> PyResult<R> {
    let (tell, told) = mpsc::channel();
    let body = move || {
        // The receiver may be gone.
        let _ = tell.send(call());
    };
    let started = thread::Builder::new().name("shouter-call".into()).spawn(body);
    started.map_err(|why| raised(py, &Error::Device(format!("no thread: {why}; look at the pids limit"))))?;
    // A receiver belongs to one thread: it is moved along.
    let mut told = told;
    loop {
        let (receiver, next) = py.detach(move || {
            let next = told.recv_timeout(SLICE);
            (told, next)
        });
        told = receiver;
        match next {
            Ok(result) => return result.map_err(|error| raise(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(raised(py, &Error::Internal("a call panicked".into())));
            }
        }
    }
}
