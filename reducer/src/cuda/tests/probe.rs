use super::super::*;
use super::harness::*;

#[test]
fn a_probe_says_what_is_missing_and_never_panics() {
    // SAFETY: as in `sys`.
    let library = unsafe { cudarc::driver::sys::is_culib_present() };
    match Cuda::probe() {
        Ok(cuda) => {
            assert!(library);
            assert!(cuda.version() >= (12, 0));
            assert!(!cuda.devices().unwrap().is_empty());
        }
        Err(Absent::NoDriver) => assert!(!library),
        Err(why) => {
            assert!(library);
            assert!(why.to_string().contains("nvidia-smi") || why.to_string().contains("install"), "{why}");
        }
    }
    assert_eq!(Cuda::probe().is_ok(), Cuda::probe().is_ok());
}

#[test]
fn reasons_name_versions_and_remedies() {
    let old = Absent::TooOld { found: 11_080, needed: OLDEST }.to_string();
    assert!(old.contains("CUDA 11.8;") && old.contains("CUDA 12.0 or later"), "{old}");
    assert!(Absent::NoDriver.to_string().contains("libcuda.so.1"));
    assert!(Absent::Incomplete { symbol: "cuInit" }.to_string().contains("cuInit"));
}

#[test]
fn results_become_typed_errors() {
    let error = |call, code| CudaError::new(call, code, || "NAME".into());
    assert_eq!(error("cuMemAlloc_v2", 2), CudaError::OutOfMemory { call: "cuMemAlloc_v2" });
    assert_eq!(error("cuMemcpyAsync", 1), CudaError::Refused { call: "cuMemcpyAsync" });
    assert_eq!(error("cuEventRecord", 400), CudaError::ForeignStream { call: "cuEventRecord" });
    assert_eq!(
        error("cuDevicePrimaryCtxRetain", 46),
        CudaError::Exclusive { call: "cuDevicePrimaryCtxRetain" }
    );
    assert_eq!(error("cuInit", 3), CudaError::Forked { call: "cuInit" });
    assert!(matches!(error("cuStreamQuery", 709), CudaError::ContextGone { .. }));
    assert!(matches!(error("cuStreamQuery", 46), CudaError::DeviceLost { .. }));
    assert!(matches!(error("cuStreamQuery", 214), CudaError::DeviceLost { .. }));
    assert!(matches!(error("cuStreamQuery", 719), CudaError::ContextBroken { .. }));
    assert!(matches!(error("cuStreamQuery", 901), CudaError::Capture { .. }));
    assert!(matches!(error("cuIpcOpenMemHandle_v2", 201), CudaError::IpcRefused { .. }));
    assert!(matches!(error("cuMemGetHandleForAddressRange", 801), CudaError::NoDmabuf { .. }));
    // Numbers that this version does not know are errors, too.
    let unknown = error("cuStreamQuery", 123_456);
    assert_eq!(unknown, CudaError::Other { call: "cuStreamQuery", code: 123_456, name: "NAME".into() });
    for code in 1..1000 {
        let text = error("cuStreamQuery", code).to_string();
        assert!(text.contains(';'), "a remedy is missing: {text}");
    }
}

#[test]
fn devices_tell_what_they_are() {
    let Some((_alone, cuda, _)) = device() else { return };
    let devices = cuda.devices().unwrap();
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(device.ordinal as usize, ordinal);
        assert!(!device.name.is_empty() && device.memory > 0 && device.capability.0 >= 3, "{device:?}");
        assert!(devices[..ordinal].iter().all(|other| other.uuid != device.uuid));
        assert!(cuda.peer_access(device.ordinal, device.ordinal).unwrap());
        for peer in &devices[..ordinal] {
            cuda.peer_access(device.ordinal, peer.ordinal).unwrap();
        }
    }
    assert!(cuda.peer_access(0, devices.len() as i32).is_err());
    assert!(Context::primary(cuda, devices.len() as i32).is_err());
}

#[test]
fn shards_may_have_them() {
    fn moves<T: Send>() {}
    fn is_shared<T: Sync>() {}
    moves::<Copier>();
    moves::<PeerMemory>();
    is_shared::<Context>();
    is_shared::<CudaEvent>();
    is_shared::<Pinned>();
}
