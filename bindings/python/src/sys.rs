//! The calls of the library that take memory by address.
#![allow(
    unsafe_code,
    reason = "memory of Python's objects, which their owners keep for as long as an operation is under way"
)]

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use shouter::{Error, Exchange, Group, Tensor, TensorId, Work};

use crate::buffer::Buffer;
use crate::call::{Call, Endpoint, Message};

/// Starts a collective.
///
/// The call's memory stays valid until the operation has ended: [`crate::work::Flight`] keeps its owner until then.
/// Python does not forbid a second thread to write there; the elements are then undefined.
pub(crate) fn start(group: &Group, call: &Call) -> Result<Work, Error> {
    if call.kind.has_counts() {
        let staging = call.staging();
        // SAFETY: see above; the library refuses what is no memory of a GPU.
        return unsafe { group.start_uneven_staged(&call.uneven()?, &staging) };
    }
    let (call, staging) = call.checked(group.rank(), group.size())?;
    // SAFETY: see above.
    unsafe { group.start_staged(&call, &staging) }
}

/// Starts the operation of a registered tensor of `count` elements, or with the call's counts, as [`start`] does.
pub(crate) fn push(group: &Group, tensor: TensorId, call: &Call, count: usize) -> Result<Work, Error> {
    if call.kind.has_counts() {
        let (input, output) = call.clone().counted()?;
        // SAFETY: see `start`; the memory is as long as the registered counts say.
        return unsafe { group.push_staged(tensor, input, output, &call.staging()) };
    }
    let (call, staging) = call.checked(group.rank(), group.size())?;
    if call.count != count {
        let found = call.count;
        return Err(Error::Argument(format!(
            "{}: {found} elements, and the tensor was registered with {count}",
            call.collective
        )));
    }
    // SAFETY: see `start`; the memory is as long as the tensor was registered.
    unsafe { group.push_staged(tensor, call.input, call.output, &staging) }
}

/// Starts sends and receives, as one operation. Their memory is kept until it has ended, as for [`start`].
pub(crate) fn start_messages(group: &Group, messages: &[Message]) -> Result<Work, Error> {
    let exchange = |message: &Message| {
        let &Message { span: (at, bytes), dtype, endpoint, stream } = message;
        let count = bytes / dtype.size();
        // SAFETY: see `start`.
        unsafe {
            let exchange = match endpoint {
                Endpoint::To { rank, tag, synchronous } => {
                    let sent = Exchange::send_raw(at as *const u8, count, dtype, rank, tag)?;
                    if synchronous { sent.synchronous() } else { sent }
                }
                Endpoint::From { source, tag } => {
                    Exchange::receive_raw(at as *mut u8, count, dtype, source, tag)?
                }
            };
            Ok(match stream {
                Some(stream) => exchange.on_cuda(stream),
                None => exchange,
            })
        }
    };
    let exchanges = messages.iter().map(exchange).collect::<Result<Vec<_>, Error>>()?;
    // SAFETY: see `start`.
    unsafe { group.start_messages(&exchanges) }
}

/// The bytes of an array in the host's memory.
pub(crate) fn given(buffer: &Buffer) -> &[u8] {
    if buffer.bytes == 0 || buffer.stream.is_some() {
        return &[];
    }
    // SAFETY: the buffer keeps its owner, and so the memory. Python does not forbid a second thread to write there; the elements are then
    // undefined, and each is read once.
    unsafe { std::slice::from_raw_parts(buffer.at as *const u8, buffer.bytes) }
}

/// The same of an array that is written.
pub(crate) fn taken(buffer: &mut Buffer) -> &mut [u8] {
    if buffer.bytes == 0 || buffer.stream.is_some() || buffer.is_readonly {
        return &mut [];
    }
    // SAFETY: as for `given`.
    unsafe { std::slice::from_raw_parts_mut(buffer.at as *mut u8, buffer.bytes) }
}

/// Memory of the library, whose content is Python's to read and write.
pub(crate) struct Bytes {
    /// Keeps the memory alive; the address was taken once, from the only reference.
    tensor: Tensor<u8>,
    at: *mut u8,
}

// SAFETY: plain bytes; Python's code decides which threads touch them when, as for any array.
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
