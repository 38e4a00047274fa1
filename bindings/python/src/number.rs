//! Numbers among the arguments of calls. One that its type cannot hold is an `ArgumentError` that names the argument; what is no number of
//! this kind is a `TypeError`, as in all of Python.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::error::argument;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($type:ty): $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $type);

        impl<'py> FromPyObject<'_, 'py> for $name {
            type Error = PyErr;

            fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
                given.extract().map(Self).map_err(|why: PyErr| refused(why, &given, $what, |what| match what {
                    "root" | "rank" => "ranks count from 0 to the group's size - 1".to_owned(),
                    _ => format!("it is a whole number from {} to {}", <$type>::MIN, <$type>::MAX),
                }))
            }
        }
    )*};
}

numbers! {
    /// The root of a collective.
    Root(u32): "root";
    /// A rank of a group.
    Rank(u32): "rank";
    /// The tag of a message.
    MessageTag(u32): "tag";
    /// The number that `register` gave to a tensor.
    TensorNumber(u32): "tensor";
    /// The elements of a registered tensor.
    Elements(u64): "elements";
    /// The elements of a block.
    Count(u64): "count";
    /// A length of memory.
    Bytes(usize): "number of bytes";
    /// The trainer's step.
    Step(u64): "step";
    /// The group that a rank of a split goes to.
    Color(u32): "color";
    /// A rank's place in the order of a split.
    OrderKey(i64): "key";
    /// A TCP port.
    Port(u16): "port";
    /// By how many pushes a trainer may be ahead.
    Pushes(u64): "number of pushes";
    /// A row of a parameter.
    Row(u64): "index in rows";
}

macro_rules! fractions {
    ($($(#[$doc:meta])* $name:ident: $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) f64);

        impl<'py> FromPyObject<'_, 'py> for $name {
            type Error = PyErr;

            fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
                let range = |_: &str| format!("it is a number of at most {:e}", f64::MAX);
                given.extract().map(Self).map_err(|why: PyErr| refused(why, &given, $what, range))
            }
        }
    )*};
}

fractions! {
    /// The seconds that a wait lasts at most.
    Timeout: "timeout";
    /// The seconds within which operations end.
    Deadline: "deadline";
    /// What elements are multiplied by.
    Factor: "factor";
    /// A number of an optimizer.
    Parameter: "number of an optimizer";
}

/// The error for a number out of range; any other is left as it is.
fn refused(why: PyErr, given: &Bound<'_, PyAny>, what: &str, range: impl FnOnce(&str) -> String) -> PyErr {
    /// Digits of a number that are shown.
    const SHOWN: usize = 40;

    let py = given.py();
    if !why.is_instance_of::<PyOverflowError>(py) {
        return why;
    }
    // Python refuses to print integers of thousands of digits.
    let shown = match given.str().map(|text| text.to_string()) {
        Ok(text) if text.len() <= SHOWN => text,
        Ok(text) => {
            let first: String = text.chars().take(SHOWN / 2).collect();
            format!("{first}... of {} digits", text.len())
        }
        Err(_) => "of thousands of digits".to_owned(),
    };
    argument(py, format!("{what} {shown}: {}", range(what)))
}
