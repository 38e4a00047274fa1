//! Streams, ours and the trainer's, and events, which report their progress.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};

use cudarc::driver::sys::{
    CUevent, CUevent_flags, CUstream, CUstream_flags, CUstreamCaptureStatus as CaptureStatus,
};

use super::{Context, CudaError, Entered};

/// A stream: our own, or one that the trainer owns.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: CUstream,
    /// Whether it ends with this value.
    owned: bool,
}

// SAFETY: the handle may be used by every thread; the driver synchronises by itself.
unsafe impl Send for Stream {}
// SAFETY: as for Send.
unsafe impl Sync for Stream {}

impl Stream {
    /// The handle of the calling thread's default stream (`cudaStreamPerThread`). A trainer that was compiled for it
    /// passes 2, not 0. Another thread that uses the handle means its own stream, so every call here that concerns it is
    /// made by the trainer's thread.
    pub const PER_THREAD: u64 = 2;

    /// A new stream that does not wait for the legacy default stream, nor holds it up.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let entered = context.enter()?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is writable.
        unsafe {
            entered.cuda().api.cuStreamCreate(&mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint)
        }
        .ok()?;
        Ok(Self { context: context.clone(), raw, owned: true })
    }

    /// The trainer's stream of this handle (`cudaStream_t`, `CUstream`); one of another context is refused. The default
    /// streams are those of `context`: 0 and 1 (`cudaStreamLegacy`) are the legacy one.
    ///
    /// # Errors
    /// The handle is of another context, or the driver's.
    ///
    /// # Safety
    /// The handle is 0, 1, 2 or that of a stream which is not destroyed before this value is dropped.
    pub unsafe fn borrow(context: &Context, handle: u64) -> Result<Self, CudaError> {
        let stream = Self { context: context.clone(), raw: handle as CUstream, owned: false };
        if handle > Self::PER_THREAD {
            let entered = context.enter()?;
            let mut owner = core::ptr::null_mut();
            // SAFETY: the stream is alive by the caller's promise; `owner` is writable.
            unsafe { entered.cuda().api.cuStreamGetCtx(stream.raw, &mut owner) }.ok()?;
            if owner as u64 != context.as_raw() {
                return Err(CudaError::ForeignStream { call: "cuStreamGetCtx" });
            }
        }
        Ok(stream)
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle (`CUstream`).
    pub fn as_raw(&self) -> u64 {
        self.raw as u64
    }

    /// The stream, as the driver's functions take it.
    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Whether all that was enqueued has ended.
    ///
    /// # Errors
    /// The driver's: work in the stream has failed.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let entered = self.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { entered.cuda().api.cuStreamQuery(self.raw) }.ready()
    }

    /// Whether it is being captured into a graph. A capture that was invalidated is an error, and so is asking the legacy
    /// stream while a stream that it waits for is captured; neither question changes the capture.
    pub(super) fn capturing(&self, entered: &Entered<'_>) -> Result<bool, CudaError> {
        let mut status = CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_int;
        // SAFETY: the stream is alive, `status` is writable.
        unsafe { entered.cuda().api.cuStreamIsCapturing(self.raw, &mut status) }.ok()?;
        if status == CaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED as c_int {
            return Err(CudaError::Capture { call: "cuStreamIsCapturing", code: 901 });
        }
        Ok(status == CaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as c_int)
    }

    /// Enqueues a copy of `bytes` bytes between device memory and page-locked host memory, either way, or within one.
    /// Ordinary host memory would make the caller wait.
    ///
    /// # Errors
    /// The driver's; nothing was enqueued.
    ///
    /// # Safety
    /// Both ranges are valid, do not overlap, and stay so until the stream has got past the copy; until then nothing
    /// writes the source or accesses the destination.
    pub unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), CudaError> {
        let entered = self.context.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { self.copy_in(&entered, dst, src, bytes) }
    }

    /// [`Self::copy`] in a context that is current already.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn copy_in(
        &self,
        entered: &Entered<'_>,
        dst: u64,
        src: u64,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { entered.cuda().api.cuMemcpyAsync(dst, src, bytes, self.raw) }.ok()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (true, Ok(entered)) = (self.owned, self.context.enter()) {
            // SAFETY: ours, and not used again; the driver lets what is enqueued end first, without making us wait.
            let _ = unsafe { entered.cuda().api.cuStreamDestroy_v2(self.raw) }.ok();
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct CudaEvent {
    context: Context,
    raw: CUevent,
}

// SAFETY: as for Stream.
unsafe impl Send for CudaEvent {}
// SAFETY: as for Stream.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// A new event, without timing.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint)
    }

    /// A new event that keeps the device's time ([`Self::seconds_since`]); it costs the stream a little more.
    ///
    /// # Errors
    /// The driver's.
    pub fn timing(context: &Context) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DEFAULT as c_uint)
    }

    fn with(context: &Context, flags: c_uint) -> Result<Self, CudaError> {
        let entered = context.enter()?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is writable.
        unsafe { entered.cuda().api.cuEventCreate(&mut raw, flags) }.ok()?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Records what has been enqueued in `stream` so far, in place of what was recorded before. A stream that is being
    /// captured is refused: the record would go into the graph, and a stream that waited for it would be captured too.
    ///
    /// # Errors
    /// [`CudaError::Capturing`], or the driver's.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let entered = self.context.enter()?;
        if stream.capturing(&entered)? {
            return Err(CudaError::Capturing);
        }
        self.record_in(&entered, stream)
    }

    /// [`Self::record`] in a context that is current already, of a stream that is not captured.
    pub(super) fn record_in(&self, entered: &Entered<'_>, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        unsafe { entered.cuda().api.cuEventRecord(self.raw, stream.raw) }.ok()
    }

    /// Whether what was last recorded has ended; true if nothing was.
    ///
    /// # Errors
    /// The driver's: work in the stream has failed.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.is_done_in(&self.context.enter()?)
    }

    pub(super) fn is_done_in(&self, entered: &Entered<'_>) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        unsafe { entered.cuda().api.cuEventQuery(self.raw) }.ready()
    }

    /// Seconds of the device's clock from what `start` was last recorded for to what this one was, to about half a
    /// microsecond. Both are of [`Self::timing`], were recorded, and are done; else it is an error.
    ///
    /// # Errors
    /// The driver's.
    pub fn seconds_since(&self, start: &Self) -> Result<f64, CudaError> {
        let entered = self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` is writable, the events are alive.
        unsafe { entered.cuda().api.cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) }.ok()?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: ours, and not used again; the driver keeps it for streams that wait for it.
            let _ = unsafe { entered.cuda().api.cuEventDestroy_v2(self.raw) }.ok();
        }
    }
}
