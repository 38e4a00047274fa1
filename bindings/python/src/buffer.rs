//! The memory of arrays: its address, length and element type; nothing is copied.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use shouter::DType;

use crate::dlpack::ManagedTensor;
use crate::element;
use crate::error::argument;

/// An array's elements, contiguous, for as long as this lives.
pub(crate) struct Buffer {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) dtype: DType,
    /// The type that the memory itself has, where it is one of the library's.
    own: Option<DType>,
    pub(crate) is_readonly: bool,
    /// The stream that produces the elements, for GPU memory.
    pub(crate) stream: Option<u64>,
    /// The owner, which keeps the memory in place.
    pub(crate) kept: Kept,
}

/// The owner of memory, which keeps it in place: an export of an object's buffer, or an object.
#[expect(dead_code, reason = "held, not looked at")]
pub(crate) enum Kept {
    Export(PyUntypedBuffer),
    Managed(ManagedTensor),
    Object(Py<PyAny>),
}

impl Buffer {
    /// The elements of `array`, of their own type, or of `dtype` if given, as which they may be taken.
    pub(crate) fn of(array: &Bound<'_, PyAny>, what: &str, dtype: Option<DType>) -> PyResult<Self> {
        let found = Self::found(array, what, dtype)?;
        dtype.map_or(Ok(()), |dtype| found.is_taken_as(array.py(), what, dtype))?;
        Ok(found)
    }

    fn found(array: &Bound<'_, PyAny>, what: &str, dtype: Option<DType>) -> PyResult<Self> {
        let py = array.py();
        match PyUntypedBuffer::get(array) {
            Ok(export) => Self::exported(py, export, what, dtype),
            Err(why) => match PyMemoryView::from(array) {
                Ok(view) => Self::viewed(&view, what, dtype),
                Err(_) => match array.getattr_opt("__cuda_array_interface__")? {
                    Some(described) => Self::on_gpu(array, &described, what, dtype),
                    None => Self::unexported(array, what, dtype, &why),
                },
            },
        }
    }

    /// An array whose buffer has no strides, or no shape: one element of no dimension.
    fn viewed(view: &Bound<'_, PyMemoryView>, what: &str, dtype: Option<DType>) -> PyResult<Self> {
        let py = view.py();
        if let Ok(export) = PyUntypedBuffer::get(view) {
            return Self::exported(py, export, what, dtype);
        }
        let (format, bytes): (String, usize) =
            (view.getattr("format")?.extract()?, view.getattr("itemsize")?.extract()?);
        let own = element::by_format(format.as_bytes(), bytes);
        let Some(dtype) = dtype.or(own) else { return Err(no_type(py, what, &format)) };
        let export = PyUntypedBuffer::get(&view.call_method1("cast", ("B",))?)?;
        Ok(Self { own, ..Self::exported(py, export, what, Some(dtype))? })
    }

    fn exported(py: Python<'_>, export: PyUntypedBuffer, what: &str, dtype: Option<DType>) -> PyResult<Self> {
        if !export.is_c_contiguous() {
            let why =
                format!("{what} is not contiguous in C's order; copy it, as by numpy.ascontiguousarray");
            return Err(argument(py, why));
        }
        let own = element::by_format(export.format().to_bytes(), export.item_size());
        let Some(dtype) = dtype.or(own) else {
            return Err(no_type(py, what, &export.format().to_string_lossy()));
        };
        let bytes = export.len_bytes();
        if !bytes.is_multiple_of(dtype.size()) {
            return Err(argument(py, format!("{what} has {bytes} bytes, which is no number of {dtype}")));
        }
        let (at, is_readonly) = (export.buf_ptr().addr(), export.readonly());
        Ok(Self { at, bytes, dtype, own, is_readonly, stream: None, kept: Kept::Export(export) })
    }

    /// An array without a buffer format in NumPy (bfloat16 and 8-bit floats of ml_dtypes), or one that is lent by
    /// DLPack.
    fn unexported(array: &Bound<'_, PyAny>, what: &str, dtype: Option<DType>, why: &PyErr) -> PyResult<Self> {
        let py = array.py();
        if array.hasattr("__array_interface__")? {
            let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
            let own = element::by_name(&name);
            if let Some(dtype) = dtype.or(own) {
                let bits = ["u1", "u2", "u4", "u8"][dtype.size().trailing_zeros().min(3) as usize];
                let export = PyUntypedBuffer::get(&array.call_method1("view", (bits,))?)?;
                return Ok(Self { own, ..Self::exported(py, export, what, Some(dtype))? });
            }
            return Err(argument(
                py,
                format!("{what} has elements of type {name}, which is none of the library's"),
            ));
        }
        if array.hasattr("__dlpack__")? {
            return Self::of_dlpack(py, ManagedTensor::of(array, what)?, what, dtype);
        }
        let class = array.get_type().name()?;
        Err(argument(
            py,
            format!(
                "{what} is a {class}, which has no buffer ({why}); give a NumPy array, or an object with the buffer protocol"
            ),
        ))
    }

    /// An array in GPU memory: <https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.
    fn on_gpu(
        array: &Bound<'_, PyAny>,
        described: &Bound<'_, PyAny>,
        what: &str,
        dtype: Option<DType>,
    ) -> PyResult<Self> {
        let py = array.py();
        let (at, is_readonly): (usize, bool) = described.get_item("data")?.extract()?;
        let shape: Vec<usize> = described.get_item("shape")?.extract()?;
        let typestr: String = described.get_item("typestr")?.extract()?;
        let get = |key: &str| described.call_method1("get", (key,));
        let strides: Option<Vec<usize>> = get("strides")?.extract()?;
        let stream: Option<u64> = get("stream")?.extract()?;
        let size = typestr.get(2..).and_then(|bytes| bytes.parse::<usize>().ok());
        let own = size.and_then(|size| element::by_typestr(&typestr, size));
        let Some((size, dtype)) = size.zip(dtype.or(own)) else {
            return Err(no_type(py, what, &typestr));
        };
        let compact = shape.iter().rev().scan(size, |stride, length| {
            let own = *stride;
            *stride = own.saturating_mul(*length);
            Some((own, *length))
        });
        let bytes =
            shape.iter().try_fold(size, |bytes, length| bytes.checked_mul(*length)).unwrap_or(usize::MAX);
        let fits = |strides: &Vec<usize>| {
            compact
                .clone()
                .zip(strides.iter().rev())
                .all(|((own, length), stride)| length == 1 || own == *stride)
        };
        if bytes > 0 && !strides.as_ref().is_none_or(fits) {
            return Err(argument(py, format!("{what} is not contiguous in C's order; copy it")));
        }
        if !bytes.is_multiple_of(dtype.size()) {
            return Err(argument(py, format!("{what} has {bytes} bytes, which is no number of {dtype}")));
        }
        let kept = Kept::Object(array.clone().unbind());
        Ok(Self { at, bytes, dtype, own, is_readonly, stream: Some(stream.unwrap_or(0)), kept })
    }

    fn of_dlpack(py: Python<'_>, tensor: ManagedTensor, what: &str, dtype: Option<DType>) -> PyResult<Self> {
        let ManagedTensor { at, bytes, is_readonly, .. } = tensor;
        let own = tensor.dtype;
        let Some(dtype) = dtype.or(own) else {
            return Err(argument(
                py,
                format!("{what} has elements of a type that the library has not; convert it, or give dtype="),
            ));
        };
        Ok(Self { at, bytes, dtype, own, is_readonly, stream: None, kept: Kept::Managed(tensor) })
    }

    /// Refuses elements of another type than `dtype`. Bytes may be anything, and 16-bit words bfloat16, of which the buffer protocol
    /// knows nothing.
    fn is_taken_as(&self, py: Python<'_>, what: &str, dtype: DType) -> PyResult<()> {
        let is_known = !matches!(dtype, DType::Bf16 | DType::F8E4M3 | DType::F8E5M2);
        match self.own {
            None if !is_known => Ok(()),
            Some(own) if own == dtype || own == DType::U8 => Ok(()),
            Some(DType::U16) if dtype == DType::Bf16 => Ok(()),
            own => {
                let found = own.map_or("another type".into(), |own| own.to_string());
                Err(argument(
                    py,
                    format!("{what} is of {found}, and is to be of {dtype}; convert it, as by .astype"),
                ))
            }
        }
    }

    /// The same buffer, refused if it is read-only.
    pub(crate) fn writable(self, py: Python<'_>, what: &str) -> PyResult<Self> {
        match self.is_readonly {
            true => Err(argument(py, format!("{what} is read-only; give memory that can be written to"))),
            false => Ok(self),
        }
    }
}

fn no_type(py: Python<'_>, what: &str, format: &str) -> PyErr {
    argument(
        py,
        format!(
            "{what} has elements of the format \"{format}\", which is no type of the library; convert it, or give dtype="
        ),
    )
}
