//! Tensors that another library lends by DLPack: <https://dmlc.github.io/dlpack/latest/>.
#![allow(unsafe_code, reason = "DLPack's structures; each block says why they are there")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use shouter::DType;

use crate::element;
use crate::error::argument;

/// The device types of memory that a CPU can access: its own, and page-locked for CUDA or ROCm.
const CPU: [i32; 3] = [1, 3, 11];

/// A flag of a versioned tensor: it must not be written to.
const READ_ONLY: u64 = 1;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: (i32, i32),
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Gives a tensor back; the argument is the structure that has this field.
type Delete = Option<unsafe extern "C" fn(*mut c_void)>;

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    delete: Delete,
}

#[repr(C)]
struct Versioned {
    version: (u32, u32),
    context: *mut c_void,
    delete: Delete,
    flags: u64,
    tensor: Tensor,
}

/// A borrowed tensor, returned to its owner on drop.
pub(crate) struct ManagedTensor {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) dtype: Option<DType>,
    pub(crate) is_readonly: bool,
    owner: NonNull<c_void>,
    delete: Delete,
}

// SAFETY: the deleter takes the interpreter's lock where it needs it, as DLPack demands; nothing else looks at the owner.
unsafe impl Send for ManagedTensor {}
// SAFETY: as for Send.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// The tensor of an object with `__dlpack__`, in contiguous memory of this host.
    pub(crate) fn of(array: &Bound<'_, PyAny>, what: &str) -> PyResult<Self> {
        let py = array.py();
        let (device, _): (i32, i32) = array.call_method0("__dlpack_device__")?.extract()?;
        if !CPU.contains(&device) {
            let why = format!("{what} is on a device (DLPack's type {device}); give memory of the host");
            return Err(argument(py, why));
        }
        let newest = PyDict::new(py);
        newest.set_item("max_version", (1, 0))?;
        let capsule = array.call_method("__dlpack__", (), Some(&newest));
        let capsule =
            capsule.or_else(|why| match why.is_instance_of::<pyo3::exceptions::PyTypeError>(py) {
                true => array.call_method0("__dlpack__"),
                false => Err(why),
            })?;
        let tensor = Self::taken(&capsule.cast_into::<PyCapsule>()?)?;
        tensor.ok_or_else(|| argument(py, format!("{what} is not contiguous in C's order; copy it")))
    }

    /// The tensor of a capsule; `None` if its elements are not contiguous.
    fn taken(capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<Self>> {
        let versioned = take::<Versioned>(capsule, c"dltensor_versioned", c"used_dltensor_versioned")?;
        let (tensor, owner, delete, is_readonly) = match versioned {
            Some(owner) => {
                // SAFETY: a live tensor, as the capsule's name says; this owns it now.
                let lent = unsafe { owner.as_ref() };
                (&lent.tensor, owner.cast(), lent.delete, lent.flags & READ_ONLY != 0)
            }
            None => {
                let owner = take::<Managed>(capsule, c"dltensor", c"used_dltensor")?;
                let used = || argument(capsule.py(), "__dlpack__ gave a capsule that was used before");
                let owner = owner.ok_or_else(used)?;
                // SAFETY: as above.
                let lent = unsafe { owner.as_ref() };
                (&lent.tensor, owner.cast(), lent.delete, false)
            }
        };
        let mut whole = Self { at: 0, bytes: 0, dtype: None, is_readonly, owner, delete };
        let dimensions = usize::try_from(tensor.dimensions)
            .map_err(|_| argument(capsule.py(), "__dlpack__ gave a tensor with fewer than 0 dimensions"))?;
        // SAFETY: so many numbers are there, or a null pointer (strides of a compact tensor; shapes of no dimension).
        let (shape, strides) =
            unsafe { (numbers(tensor.shape, dimensions), numbers(tensor.strides, dimensions)) };
        let mut needed = 1;
        for (&length, &stride) in shape.iter().zip(strides).rev() {
            if length != 1 && stride != needed && !shape.contains(&0) {
                return Ok(None);
            }
            needed *= length;
        }
        let elements: i64 = shape.iter().product();
        let (at, bits) = (tensor.data.addr() + tensor.byte_offset as usize, usize::from(tensor.bits));
        let bytes = usize::try_from(elements)
            .map_err(|_| argument(capsule.py(), "__dlpack__ gave a tensor with fewer than 0 elements"))?
            * bits.div_ceil(8);
        let dtype = if tensor.lanes == 1 { element::by_dlpack(tensor.code, tensor.bits) } else { None };
        (whole.at, whole.bytes, whole.dtype) = (at, bytes, dtype);
        Ok(Some(whole))
    }
}

/// The content of a capsule of this name, which now belongs to the caller.
fn take<T>(capsule: &Bound<'_, PyCapsule>, name: &CStr, used: &'static CStr) -> PyResult<Option<NonNull<T>>> {
    if !capsule.is_valid_checked(Some(name)) {
        return Ok(None);
    }
    let found = capsule.pointer_checked(Some(name))?;
    // SAFETY: a capsule, and a name that is static.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } {
        0 => Ok(Some(found.cast())),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// # Safety
/// `at` is null, or has so many numbers for as long as the result is used.
unsafe fn numbers<'a>(at: *const i64, count: usize) -> &'a [i64] {
    // SAFETY: the caller's promise.
    if at.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(at, count) } }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        Python::try_attach(|_| {
            if let Some(delete) = self.delete {
                // SAFETY: each owner is given back once, with the interpreter's lock held.
                unsafe { delete(self.owner.as_ptr()) };
            }
        });
    }
}
