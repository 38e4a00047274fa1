//! Memory that the ranks of a host share, as an object with a buffer.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use shouter::Tensor;

/// Zeroed bytes, aligned to a page, for the arrays of `shouter.empty`.
#[pyclass(frozen, weakref, module = "shouter._core")]
pub(crate) struct Memory {
    pub(crate) tensor: crate::sys::Bytes,
}

impl Memory {
    pub(crate) fn new(tensor: Tensor<u8>) -> Self {
        Self { tensor: crate::sys::Bytes::new(tensor) }
    }
}

#[pymethods]
impl Memory {
    /// Whether the other ranks of the host share it.
    #[getter]
    fn is_shared(&self) -> bool {
        self.tensor.is_shared()
    }

    fn __len__(&self) -> usize {
        self.tensor.len()
    }

    /// # Safety
    /// Python calls it with a view to fill in.
    #[allow(unsafe_code, reason = "the buffer protocol")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: Python's view; the memory goes with its owner.
        unsafe { slf.get().tensor.export(slf.as_any(), view, flags) }
    }
}
