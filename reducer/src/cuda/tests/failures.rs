//! Every call of the driver fails once, in a process of its own, and nothing panics. The simulated driver only.

use core::ptr::NonNull;

use super::super::sys::Api;
use super::super::*;
use super::harness::*;
use crate::cuda::kernel::{Architecture, CudaKernels, Fold, Image, LaunchError, compile_with_cache};
use crate::dtype::{DType, ReduceOp};

/// Asks the child of these tests to run a session.
const SESSION: &str = "SHOUTER_TEST_CUDA_SESSION";
/// The settings of the simulated driver.
const SIM: &str = "CUDA_SIM";

/// Whether the driver is the simulated one, which can be set to fail.
fn simulated() -> bool {
    let Some((_alone, cuda, _)) = device() else { return false };
    let simulated = cuda.devices().unwrap()[0].name.contains("imulated");
    if !simulated {
        println!("skipped: a real device does not fail on demand");
    }
    simulated
}

/// The kernels, compiled once and kept beside the test's program.
fn kernels(cuda: &Cuda) -> Result<Image, CudaError> {
    let (major, minor) = cuda.devices()?[0].capability;
    let folder = std::env::current_exe().unwrap().with_file_name("cuda-kernels");
    let image = compile_with_cache(Architecture { major, minor }, Some(&folder));
    Ok(image.expect("there is an NVRTC where there is a simulated driver"))
}

/// The outcome of a session while the driver does as `sim` says.
fn session_with(sim: &str) -> String {
    let (success, output_text) = again("failures::a_session", &[(SESSION, "1"), (SIM, sim)]);
    let line = output_text.lines().find_map(|line| line.split_once("session: "));
    let (_, line) = line.unwrap_or_else(|| panic!("{sim}: nothing came of it: {output_text}"));
    assert!(success, "{sim}: {output_text}");
    line.into()
}

/// The child. It uses all there is, and says how it ended.
#[test]
fn a_session() {
    if std::env::var_os(SESSION).is_none() {
        return;
    }
    let cuda = match Cuda::probe() {
        Ok(cuda) => cuda,
        Err(why) => return println!("session: {why:?}: {why}"),
    };
    // A driver that fails to take a context off leaves it on, and one that is lost says nothing.
    let left = std::env::var(SIM).is_ok_and(|sim| sim.contains("cuCtx") || sim.contains("lost"));
    let before = if left { core::ptr::null_mut() } else { current() };
    match work(cuda) {
        Ok(()) => println!("session: well"),
        Err(error) => println!("session: {error:?}: {error}"),
    }
    assert!(left || current() == before, "the context is not the one before");
}

fn work(cuda: &'static Cuda) -> Result<(), CudaError> {
    cuda.devices()?;
    let context = Context::primary(cuda, 0)?;
    let buffer = DeviceBuffer::new(&context, 8192)?;
    let pinned = Pinned::new(&context, 4096)?;
    let mut memory = vec![0u8; 8192];
    let base = NonNull::from(memory.as_mut_slice()).cast();
    // SAFETY: the vector outlives the registration.
    let registered = unsafe { Registered::new(&context, base, memory.len()) }?;
    let found = cuda.classify_range(buffer.address(), 8192)?;
    let context = Context::of(cuda, &found)?;
    let stream = Stream::new(&context)?;
    // SAFETY: the stream is dropped after this.
    let trainer = unsafe { Stream::borrow(&context, stream.as_raw()) }?;
    launch(&context, &stream, &buffer)?;
    let mut copier = Copier::new(&context)?;
    let marks = [CudaEvent::timing(&context)?, CudaEvent::timing(&context)?];
    marks.iter().try_for_each(|mark| mark.record(&trainer))?;
    let copied = copy(&mut copier, &trainer, (&pinned, &buffer));
    // Memory goes when the copies have ended; a driver that is lost never says so.
    for _ in 0..200 {
        match copier.pending() {
            Ok(0) => break,
            _ => std::thread::sleep(core::time::Duration::from_millis(1)),
        }
    }
    copied?;
    marks[1].seconds_since(&marks[0])?;
    Dmabuf::export(&context, buffer.address(), 4096, 4096)?;
    context.flush_nic_writes()?;
    let memory = MemoryHandle::export(&context, &found)?;
    // Of this very process, so it is refused if nothing worse happens.
    match PeerMemory::new(&context).open(&memory) {
        Err(error) if !matches!(error, CudaError::IpcRefused { code: 201, .. }) => return Err(error),
        _ => {}
    }
    drop(registered);
    Ok(())
}

/// Loads the kernels and puts a fold and a checksum on the stream, of the buffer's bytes.
fn launch(context: &Context, stream: &Stream, buffer: &DeviceBuffer) -> Result<(), CudaError> {
    let kernels = CudaKernels::load(context, &kernels(context.cuda())?)?;
    let (dtype, op, destinations) = (DType::U8, ReduceOp::Sum, &[buffer.address()]);
    let fold =
        Fold { dtype, op, destinations, sources: &[buffer.address() + 4096], count: 4096, divide_by: None };
    // SAFETY: all lies in the buffer, and the kernels are unloaded when the stream has come to its end.
    let launched = unsafe {
        kernels
            .fold(stream, &fold)
            .and_then(|()| kernels.crc32c(stream, buffer.address(), 4096, 4096, buffer.address() + 4096))
    };
    for _ in 0..20_000 {
        if stream.is_done()? {
            return launched.map_err(|error| match error {
                LaunchError::Driver(error) => error,
                LaunchError::Call(error) => panic!("{error}"),
            });
        }
        std::thread::sleep(core::time::Duration::from_millis(1));
    }
    panic!("a kernel did not end within 20 seconds");
}

fn copy(
    copier: &mut Copier,
    trainer: &Stream,
    (to, from): (&Pinned, &DeviceBuffer),
) -> Result<(), CudaError> {
    let event = copier.event()?;
    event.record(trainer)?;
    copier.expect(event);
    // SAFETY: both have 4096 bytes, and the caller waits.
    let fence = unsafe { copier.copy(to.as_ptr().as_ptr() as u64, from.address(), 4096) }?;
    for _ in 0..20_000 {
        if copier.is_done(fence)? && trainer.is_done()? {
            return Ok(());
        }
        std::thread::sleep(core::time::Duration::from_millis(1));
    }
    panic!("a copy did not end within 20 seconds");
}

#[test]
fn each_call_may_fail_once() {
    if !simulated() {
        return;
    }
    assert_eq!(session_with("delay_us=10"), "well");
    for name in Api::NAMES {
        let plain = name.trim_end_matches("_v2");
        let came = session_with(&format!("fail={plain}:1:CUDA_ERROR_OUT_OF_MEMORY"));
        // These calls may fail without an error: those for names and properties, and those after the work is done.
        let silent = ["GetErrorName", "DeviceGetAttribute", "PCIBusId", "CanAccessPeer", "PrimaryCtxRelease"];
        let late = ["Destroy", "Free", "Unregister", "Close", "Unload", "PopCurrent"];
        if silent.iter().chain(&late).any(|part| name.contains(part)) {
            continue;
        }
        assert!(came.contains("OutOfMemory {") && came.contains(name), "{name}: {came}");
    }
}

#[test]
fn failures_have_names() {
    if !simulated() {
        return;
    }
    let cases = [
        ("driver=11040", "the NVIDIA driver knows CUDA 11.4; install one for CUDA 12.0"),
        ("devices=0", "the NVIDIA driver finds no device"),
        ("fail=cuInit:1:999", "the NVIDIA driver does not start"),
        ("compute_mode=2", "Prohibited"),
        ("fail=cuDevicePrimaryCtxRetain:1:46", "Exclusive"),
        ("fail=cuMemAlloc:1:2", "OutOfMemory"),
        ("fail=cuEventRecord:1:lost", "DeviceLost"),
        ("fail=cuEventQuery:1:719", "ContextBroken"),
        ("fail=cuMemcpyAsync:1:1", "Refused"),
        ("fail=cuStreamIsCapturing:1:906", "Capture"),
        ("fail=cuIpcGetMemHandle:1:801", "NoIpcHandle"),
        ("fail=cuIpcOpenMemHandle:1:1", "IpcRefused"),
        ("fail=cuModuleLoadData:1:209", "Image"),
        ("fail=cuModuleGetFunction:9:500", "Image"),
        ("fail=cuLaunchKernel:1:701", "Other"),
        ("fail=cuLaunchKernel:2:4711", "an unknown error"),
    ];
    for (sim, expected) in cases {
        let came = session_with(sim);
        assert!(came.contains(expected), "{sim}: {came}");
    }
}
