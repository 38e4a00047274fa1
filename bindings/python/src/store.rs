//! A key/value store in Python, such as torch's, through which a job is joined.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shouter::StoreError;

/// The time between two queries of a store whose `get` does not wait.
const PAUSE: Duration = Duration::from_millis(10);

/// An object with `set(key, bytes)` and `get(key) -> bytes`, and perhaps `wait([key], timedelta)`. A `get` that does
/// not wait returns None for a missing key, or raises KeyError.
pub(crate) struct Store(pub(crate) Py<PyAny>);

impl Store {
    fn look(&self, key: &str, timeout: Duration) -> PyResult<Option<Vec<u8>>> {
        Python::attach(|py| {
            let store = self.0.bind(py);
            if store.hasattr("wait")? {
                store.call_method1("wait", ([key], timeout))?;
            }
            match store.call_method1("get", (key,)) {
                Ok(value) if value.is_none() => Ok(None),
                Ok(value) => value.extract().map(Some),
                Err(why) if why.is_instance_of::<PyKeyError>(py) => Ok(None),
                Err(why) => Err(why),
            }
        })
    }
}

impl shouter::Store for Store {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Python::attach(|py| self.0.call_method1(py, "set", (key, PyBytes::new(py, value))).map(drop))?;
        Ok(())
    }

    fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(value) = self.look(key, left)? {
                return Ok(value);
            }
            if left.is_zero() {
                return Err(format!("{key} is not in the store after {timeout:?}").into());
            }
            thread::sleep(PAUSE.min(left));
        }
    }
}
