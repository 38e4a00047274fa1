//! The calls of the library that take memory by address.
#![allow(
    unsafe_code,
    reason = "memory of Python's objects, which their owners keep for as long as an operation is under way"
)]

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use shouter::{Error, Group, Tensor, Work};

use crate::call::Call;

/// Starts a collective.
///
/// The memory that the call names stays valid until the operation has ended: [`crate::work::Flight`] keeps what owns it until then.
/// Python has no rule against a second thread that writes there; what comes of it is what the elements are.
pub(crate) fn start(group: &Group, call: &Call) -> Result<Work, Error> {
    let (call, staging) = call.checked(group.rank(), group.size())?;
    // SAFETY: see above.
    unsafe { group.start_staged(&call, &staging) }
}

/// Memory of the library, whose content is Python's to read and write.
pub(crate) struct Bytes {
    /// Kept for the memory's sake; the address was taken once, from the only reference.
    tensor: Tensor<u8>,
    at: *mut u8,
}

// SAFETY: plain bytes; who may touch them when is the business of Python's code, as for any array.
unsafe impl Send for Bytes {}
// SAFETY: as for Send.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub(crate) fn new(mut tensor: Tensor<u8>) -> Self {
        let at = tensor.as_mut_ptr();
        Self { tensor, at }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.tensor.is_shared()
    }

    pub(crate) fn len(&self) -> usize {
        self.tensor.len()
    }

    /// Exports them as the buffer of their owner.
    ///
    /// # Safety
    /// `view` is what Python gives to `__getbuffer__`; the owner keeps this for as long as it lives itself.
    pub(crate) unsafe fn export(
        &self,
        owner: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let len = isize::try_from(self.len()).map_err(|why| PyBufferError::new_err(why.to_string()))?;
        // SAFETY: the memory lives as long as the owner, to which the view gets a reference; the view is the caller's promise.
        match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), self.at.cast(), len, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(owner.py())),
        }
    }
}
