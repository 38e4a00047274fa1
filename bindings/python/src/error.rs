//! The library's errors as exceptions of the package, defined in `shouter.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule};
use shouter::Error;

/// The exception's class.
fn class(error: &Error) -> &'static str {
    match error {
        Error::Config(_) => "ConfigError",
        Error::Join { .. } => "JoinError",
        Error::Device(_) => "DeviceError",
        Error::Argument(_) => "ArgumentError",
        Error::Mismatch { .. } => "Mismatch",
        Error::PeerFailed { .. } => "PeerFailed",
        Error::Deadline { .. } => "Deadline",
        Error::Closed { .. } => "Closed",
        Error::Timeout { .. } => "Timeout",
        Error::Accelerator { .. } => "AcceleratorError",
        Error::WouldBlock { .. } => "WouldBlock",
        _ => "InternalError",
    }
}

/// An error as the exception to raise.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).map_or_else(|why| why, PyErr::from_value)
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("rank", error.rank())?;
    fields.set_item("reason", error.reason().map(|reason| format!("{reason:?}").to_lowercase()))?;
    fields.set_item("missing", error.missing())?;
    fields.set_item("operation", error.operation().map(|operation| snake(&format!("{operation:?}"))))?;
    fields.set_item("tensor", error.tensor().map(|tensor| tensor.name.as_str()))?;
    fields.set_item("step", error.step())?;
    fields.set_item("after", error.after().map(|after| after.as_secs_f64()))?;
    if let Error::Mismatch { ours, theirs, .. } = error {
        fields.set_item("ours", ours.as_deref())?;
        fields.set_item("theirs", theirs.as_deref())?;
    }
    errors(py)?.getattr(class(error))?.call((error.to_string(),), Some(&fields))
}

/// The exception for an argument that the binding itself refuses.
pub(crate) fn argument(py: Python<'_>, why: impl Into<String>) -> PyErr {
    raised(py, &Error::Argument(why.into()))
}

fn errors(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("shouter.errors").map(Bound::unbind))?;
    Ok(module.bind(py))
}

/// The name in snake case: `AllReduce` as `all_reduce`.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The exception for a group that this process has closed.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    let raise =
        || errors(py)?.getattr("Closed")?.call1(("the group is closed; it was closed by this process",));
    raise().map_or_else(|why| why, PyErr::from_value)
}
