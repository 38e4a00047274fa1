//! The code that the tests share.

use core::ffi::c_int;
use core::ptr::NonNull;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUstreamWaitValue_flags, cuCtxGetCurrent, cuStreamWaitValue32_v2,
    cuStreamWriteValue32_v2, culib,
};

use super::super::*;
use crate::memory::{MemoryKind, TensorRegion};

/// The first device's primary context, for one test of the process at a time: addresses that one frees are another's next.
/// `None`, and a line of text, where there is no device. The guard is bound first, and so dropped last.
pub(crate) fn device() -> Option<(MutexGuard<'static, ()>, &'static Cuda, Context)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Cuda::probe() {
        Ok(cuda) => Some((alone, cuda, Context::primary(cuda, 0).expect("device 0 has a primary context"))),
        Err(_) => {
            println!("skipped: no CUDA device");
            None
        }
    }
}

/// Runs one of these tests in a process of its own; whether it passed, and its output.
pub(super) fn again(test: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("cuda::tests::{test}"), "--nocapture"])
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), output_text.into_owned())
}

/// Asks until it is so, for 20 seconds.
pub(super) fn until<E: core::fmt::Display>(what: &str, mut is_so: impl FnMut() -> Result<bool, E>) {
    for _ in 0..20_000 {
        if is_so().unwrap_or_else(|error| panic!("{what}: {error}")) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not within 20 seconds");
}

/// That it is not so, and does not become so while nothing else happens. A wrong answer may be missed, never made up.
pub(super) fn stays_false<E: core::fmt::Display>(what: &str, mut is_so: impl FnMut() -> Result<bool, E>) {
    for _ in 0..20 {
        assert!(!is_so().unwrap_or_else(|error| panic!("{what}: {error}")), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Enqueues a write of a 32-bit word.
///
/// # Safety
/// `address` is the device's address of a word, a multiple of 4, that is valid until the stream has got past this.
pub(super) unsafe fn write_value(stream: &Stream, address: u64, value: u32) {
    let _entered = stream.context().enter().unwrap();
    // SAFETY: passed on to the caller.
    assert_eq!(unsafe { cuStreamWriteValue32_v2(stream.raw(), address, value, 0) } as u32, 0);
}

/// Makes what is enqueued later wait until a 32-bit word is at least `value`.
///
/// # Safety
/// As for [`write_value`].
unsafe fn wait_value(stream: &Stream, address: u64, value: u32) {
    let _entered = stream.context().enter().unwrap();
    let at_least = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: passed on to the caller.
    assert_eq!(unsafe { cuStreamWaitValue32_v2(stream.raw(), address, value, at_least) } as u32, 0);
}

/// A word in mapped memory that holds a stream up until it is opened. It is dropped, and so opened, before any memory of the
/// test: freeing memory waits for the streams.
pub(super) struct Gate(Pinned);

impl Gate {
    pub(super) fn new(context: &Context) -> Self {
        Self(Pinned::new(context, 64).unwrap())
    }

    /// Holds up what is enqueued in `stream` from now on.
    pub(super) fn hold(&self, stream: &Stream) {
        // SAFETY: the word is mapped for the device, and is freed when the gate is open.
        unsafe { wait_value(stream, self.0.device_address(), 1) };
    }

    pub(super) fn open(&self) {
        // SAFETY: the allocation is aligned to a page; only the stream reads the word.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().as_ptr().cast()) }.store(1, Ordering::SeqCst);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl Copier {
    /// Starts a copy between two addresses.
    ///
    /// # Safety
    /// Both ranges are valid, do not overlap, and stay so until the fence is done; nothing else accesses them until then.
    pub(super) unsafe fn copy(&mut self, into: u64, from: u64, bytes: usize) -> Result<CopyFence, CudaError> {
        let [into, from] = [into, from].map(|address| {
            let kind = match self.context().cuda().classify(address)?.kind {
                PointerKind::Device | PointerKind::Managed => MemoryKind::Device,
                PointerKind::Pinned | PointerKind::Unknown => MemoryKind::Host,
            };
            let base = NonNull::new(address as *mut u8).unwrap();
            // SAFETY: passed on to the caller.
            Ok(unsafe { TensorRegion::from_raw_parts(kind, base, bytes, 0) }.span(0, bytes).unwrap())
        });
        self.copy_span(into?, from?)
    }
}

/// Fills pinned memory that no copy uses.
pub(super) fn fill(pinned: &Pinned, bytes: &[u8]) {
    assert!(bytes.len() <= pinned.len());
    // SAFETY: it is as long as that, and no copy is under way.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.as_ptr().as_ptr(), bytes.len()) };
}

/// The bytes of pinned memory that no copy writes.
pub(super) fn bytes(pinned: &Pinned, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= pinned.len());
    // SAFETY: inside the allocation, which is initialised; no copy is under way.
    unsafe { core::slice::from_raw_parts(pinned.as_ptr().as_ptr().add(offset), len) }.to_vec()
}

/// A second context on the first device, which is not its primary one, and its end.
pub(crate) struct Foreign(pub(crate) CUcontext);

impl Foreign {
    /// The context, which is not left current.
    pub(crate) fn new(cuda: &Cuda) -> Self {
        // SAFETY: the signature is that of the driver's manual.
        let create = unsafe {
            culib().get::<unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> c_int>(b"cuCtxCreate_v2")
        };
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is writable.
        assert_eq!(unsafe { create.expect("cuCtxCreate_v2")(&mut raw, 0, 0) }, 0);
        let mut popped = core::ptr::null_mut();
        // SAFETY: `popped` is writable.
        unsafe { cuda.api.cuCtxPopCurrent_v2(&mut popped) }.ok().unwrap();
        assert_eq!(popped, raw);
        Self(raw)
    }

    /// As the trainer's.
    pub(crate) fn context(&self, cuda: &'static Cuda) -> Context {
        Context::existing(cuda, self.0, cuda.device(0).unwrap(), 0).unwrap()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: made in `new`; nothing of it is used any more.
        unsafe { cudarc::driver::sys::cuCtxDestroy_v2(self.0) };
    }
}

/// The thread's current context, as the driver names it.
pub(super) fn current() -> CUcontext {
    let mut raw = core::ptr::null_mut();
    // SAFETY: `raw` is writable.
    assert_eq!(unsafe { cuCtxGetCurrent(&mut raw) } as u32, 0);
    raw
}

/// Sets the thread's capture mode, and gives the former one.
pub(super) fn exchange(cuda: &Cuda, mut mode: c_int) -> c_int {
    // SAFETY: `mode` is writable.
    unsafe { cuda.api.cuThreadExchangeStreamCaptureMode(&mut mode) }.ok().unwrap();
    mode
}
