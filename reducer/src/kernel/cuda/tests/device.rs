//! The kernels on a device, real or simulated (scripts/lib/cuda-sim), against the host's.

use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUresult, CUstream};

use super::*;
use crate::kernel::cuda::{Architecture, CudaKernels, Image, LaunchError, compile_with_cache};

/// The first device with its primary context current, a stream, and the kernels.
struct Device {
    stream: CUstream,
    image: Image,
    kernels: CudaKernels,
}

fn ok(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

impl Device {
    /// `None`, and why, where there is none.
    fn get() -> Option<Self> {
        let mut number: CUdevice = 0;
        // SAFETY: loads the driver, if there is one; the number is valid for writes.
        let found = unsafe {
            sys::is_culib_present()
                && sys::cuInit(0) == CUresult::CUDA_SUCCESS
                && sys::cuDeviceGet(&mut number, 0) == CUresult::CUDA_SUCCESS
        };
        if !found {
            println!("skipped: no CUDA device");
            return None;
        }
        let mut context: CUcontext = ptr::null_mut();
        let mut stream: CUstream = ptr::null_mut();
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: valid for writes.
            ok(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, number) });
            value as u32
        };
        let architecture = Architecture {
            major: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            minor: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        };
        let image = match compile_with_cache(architecture, None) {
            Ok(image) => image,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        // SAFETY: the device's own context, retained until the process ends; both are valid for writes.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, number));
            ok(sys::cuCtxSetCurrent(context));
            ok(sys::cuStreamCreate(&mut stream, 1));
        }
        let kernels = CudaKernels::load(&image).unwrap();
        Some(Self { stream, image, kernels })
    }

    /// Device memory that holds `bytes`, `shift` bytes behind its start.
    fn hold(&self, bytes: &[u8], shift: usize) -> Held {
        let mut held = Held { base: 0, at: 0, len: bytes.len() };
        // SAFETY: as long as that, and a little longer.
        unsafe {
            ok(sys::cuMemAlloc_v2(&mut held.base, bytes.len() + shift + 16));
            held.at = held.base + shift as u64;
            ok(sys::cuMemcpyHtoDAsync_v2(held.at, bytes.as_ptr().cast(), bytes.len(), self.stream));
            ok(sys::cuStreamSynchronize(self.stream));
        }
        held
    }

    /// What is there when the stream has done all that was put on it.
    fn read(&self, held: &Held) -> Vec<u8> {
        let mut bytes = vec![0; held.len];
        // SAFETY: both are as long as that.
        unsafe {
            ok(sys::cuStreamSynchronize(self.stream));
            ok(sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), held.at, held.len, self.stream));
            ok(sys::cuStreamSynchronize(self.stream));
        }
        bytes
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing runs on the stream any more. The context stays, as the kernels are still loaded in it.
        unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// Device memory.
struct Held {
    base: u64,
    at: u64,
    len: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: allocated by `hold`, and the stream was waited for.
        unsafe { sys::cuMemFree_v2(self.base) };
    }
}

fn bytes_of(dtype: DType, elements: &[u64]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_le_bytes()[..dtype.size()].to_vec()).collect()
}

/// One after the other, for a context is loaded with the kernels once.
#[test]
fn a_device_gives_the_bits_of_the_host() {
    let Some(device) = Device::get() else { return };
    reductions(&device);
    conversions(&device);
    pieces(&device);
    crcs(&device);
    refusals(&device);
}

fn reductions(device: &Device) {
    let (kernels, host) = (&device.kernels, Kernels::detect());
    let mut rng = SmallRng::seed_from_u64(88);
    for &dtype in DType::ALL {
        for op in FOLDS {
            for (k, count, into) in [(2, 3003, None), (2, 70_001, Some(1)), (8, 3003, Some(0)), (5, 77, None)]
            {
                let columns: Vec<Vec<u8>> =
                    (0..k).map(|_| bytes_of(dtype, &random(&mut rng, dtype, count))).collect();
                let mut expected = vec![0; columns[0].len()];
                let pointers: Vec<*const u8> = columns.iter().map(|c| c.as_ptr()).collect();
                // SAFETY: all are as long as the destination, which is apart.
                unsafe { host.fold_raw(dtype, op, expected.as_mut_ptr(), &pointers, expected.len()) }
                host.finish_avg(dtype, &mut expected, 3);
                for shift in [0, dtype.size()] {
                    let held: Vec<Held> = columns.iter().map(|c| device.hold(c, shift)).collect();
                    let out = device.hold(&columns[0], 0);
                    let target = into.map_or(&out, |i: usize| &held[i]);
                    let sources: Vec<u64> = held.iter().map(|h| h.at).collect();
                    // SAFETY: all of it is held until the stream was waited for.
                    unsafe {
                        kernels.reduce(device.stream, dtype, op, target.at, &sources, count as u64).unwrap();
                        kernels.finish_avg(device.stream, dtype, target.at, count as u64, 3).unwrap();
                    }
                    assert!(
                        device.read(target) == expected,
                        "{dtype} {op} of {k} times {count} into {into:?}"
                    );
                }
            }
        }
    }
}

fn conversions(device: &Device) {
    let all = bytes_of(DType::F16, &(0..=0xffff).collect::<Vec<_>>());
    for narrow in [DType::F16, DType::Bf16] {
        let (from, wide, back) =
            (device.hold(&all, 0), device.hold(&[0; 4 << 16], 0), device.hold(&[0; 2 << 16], 2));
        // SAFETY: each has 2^16 elements of its type, held until the stream was waited for.
        unsafe {
            let (stream, kernels) = (device.stream, &device.kernels);
            kernels.convert(stream, DType::F32, wide.at, narrow, from.at, 1 << 16).unwrap();
            kernels.convert(stream, narrow, back.at, DType::F32, wide.at, 1 << 16).unwrap();
        }
        // There and back changes nothing but NaNs, as reducing one source does on the host.
        let mut expected = all.clone();
        let p = expected.as_mut_ptr();
        // SAFETY: in place.
        unsafe { Kernels::detect().fold_raw(narrow, ReduceOp::Sum, p, &[p.cast_const()], expected.len()) }
        assert!(device.read(&back) == expected, "{narrow} to f32 and back");
    }
}

fn pieces(device: &Device) {
    let mut rng = SmallRng::seed_from_u64(12);
    let tensors: Vec<Vec<u8>> =
        (0..100).map(|i| (0..1 + i * 37 % 5000).map(|_| rng.random()).collect()).collect();
    let held: Vec<Held> = tensors.iter().enumerate().map(|(i, t)| device.hold(t, i % 16)).collect();
    let blank: Vec<Held> = tensors.iter().map(|t| device.hold(&vec![0; t.len()], 0)).collect();
    let table = |held: &[Held]| {
        let mut offset = 0;
        let mut bytes = Vec::new();
        for held in held {
            for word in [held.at, held.len as u64, offset] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            offset += held.len as u64;
        }
        device.hold(&bytes, 0)
    };
    let all = tensors.concat();
    let buffer = device.hold(&vec![0; all.len()], 0);
    let (out, back) = (table(&held), table(&blank));
    // SAFETY: the tables name memory that is held until the stream was waited for.
    unsafe {
        let (stream, kernels) = (device.stream, &device.kernels);
        kernels.pack(stream, buffer.at, out.at, 100, 5000).unwrap();
        kernels.unpack(stream, buffer.at, back.at, 100, 5000).unwrap();
    }
    assert!(device.read(&buffer) == all);
    for (tensor, held) in tensors.iter().zip(&blank) {
        assert!(device.read(held) == *tensor);
    }
}

fn crcs(device: &Device) {
    let mut rng = SmallRng::seed_from_u64(13);
    let data: Vec<u8> = (0..1 << 20).map(|_| rng.random()).collect();
    let held = device.hold(&data, 3);
    for fragment in [8192, 8961, 1 << 20] {
        let expected: Vec<u8> = data.chunks(fragment).flat_map(|c| crc_by_bits(c).to_le_bytes()).collect();
        let results = device.hold(&vec![0x5a; expected.len()], 0);
        // SAFETY: a result for each fragment, held until the stream was waited for.
        unsafe {
            let (bytes, fragment) = (data.len() as u64, fragment as u64);
            device.kernels.crc32c(device.stream, held.at, bytes, fragment, results.at).unwrap();
        }
        assert!(device.read(&results) == expected, "fragments of {fragment}");
    }
}

fn refusals(device: &Device) {
    let held = device.hold(&[0; 64], 0);
    // SAFETY: refused before anything is launched.
    let error = unsafe {
        device.kernels.reduce(device.stream, DType::F32, ReduceOp::Sum, held.at + 2, &[held.at], 4)
    };
    assert!(matches!(error, Err(LaunchError::Call(CallError::Misaligned { .. }))), "{error:?}");
    let image = device.image.clone();
    let alone = std::thread::spawn(move || CudaKernels::load(&image).map(|_| ()));
    assert_eq!(alone.join().unwrap(), Err(LaunchError::NoContext));
    let error = CudaKernels::load(&Image::from_bytes(b"no image".to_vec())).unwrap_err();
    assert!(matches!(error, LaunchError::Driver { call: "cuModuleLoadData", .. }), "{error}");
    assert!(!error.to_string().contains("()"), "the driver's words are missing: {error}");
}
