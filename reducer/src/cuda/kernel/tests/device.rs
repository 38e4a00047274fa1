//! The kernels on a device, real or simulated (scripts/lib/cuda-sim), against the host's.

use std::sync::MutexGuard;
use std::time::Duration;

use super::*;
use crate::cuda::kernel::{Architecture, CudaKernels, Image, LaunchError, Origin, compile};
use crate::cuda::tests::harness::{Foreign, device};
use crate::cuda::{Context, CudaError, DeviceBuffer, Pinned, Stream};

/// Bytes of the longest tensor here.
const LONGEST: usize = 1 << 20;

/// The first device, a stream, the kernels, and page-locked memory to copy through.
struct Device {
    context: Context,
    stream: Stream,
    kernels: CudaKernels,
    staging: Pinned,
}

impl Device {
    /// `None`, and why, where there is none. The guard is bound first, and so dropped last.
    fn get() -> Option<(MutexGuard<'static, ()>, Self)> {
        let (alone, cuda, context) = device()?;
        let (major, minor) = cuda.devices().unwrap()[0].capability;
        let image = match compile(Architecture { major, minor }) {
            Ok(image) => image,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let stream = Stream::new(&context).unwrap();
        let kernels = CudaKernels::load(&context, &image).unwrap();
        let staging = Pinned::new(&context, LONGEST).unwrap();
        Some((alone, Self { context, stream, kernels, staging }))
    }

    /// Waits for all that was put on the stream.
    fn wait(&self) {
        // A minute, once it is clear that it takes long.
        for look in 0..70_000u32 {
            if self.stream.is_done().unwrap() {
                return;
            }
            if look < 10_000 {
                std::thread::yield_now()
            } else {
                std::thread::sleep(Duration::from_millis(1))
            }
        }
        panic!("the stream does not end");
    }

    /// Device memory that holds `bytes`, `shift` bytes behind its start.
    fn hold(&self, bytes: &[u8], shift: usize) -> Held {
        let memory = DeviceBuffer::new(&self.context, bytes.len() + shift + 16).unwrap();
        let held = Held { at: memory.address() + shift as u64, len: bytes.len(), _memory: memory };
        assert!(bytes.len() <= LONGEST);
        self.wait();
        // SAFETY: both are as long as that, and no copy is under way; then the copy is waited for.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.staging.as_ptr().as_ptr(), bytes.len());
            self.stream.copy(held.at, self.staging.device_address(), bytes.len()).unwrap();
        }
        self.wait();
        held
    }

    /// The bytes of `held` when the stream has done all that was put on it.
    fn read(&self, held: &Held) -> Vec<u8> {
        // SAFETY: both are as long as that, and the copy is waited for before anybody else uses them.
        unsafe { self.stream.copy(self.staging.device_address(), held.at, held.len) }.unwrap();
        self.wait();
        // SAFETY: as long as that, initialised, and no copy is under way.
        unsafe { std::slice::from_raw_parts(self.staging.as_ptr().as_ptr(), held.len) }.to_vec()
    }
}

/// Device memory.
struct Held {
    at: u64,
    len: usize,
    _memory: DeviceBuffer,
}

fn bytes_of(dtype: DType, elements: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() * dtype.size());
    elements.iter().for_each(|element| bytes.extend_from_slice(&element.to_le_bytes()[..dtype.size()]));
    bytes
}

/// One after the other, for a context is loaded with the kernels once.
#[test]
fn a_device_gives_the_bits_of_the_host() {
    let Some((_alone, device)) = Device::get() else { return };
    folds(&device);
    mapped(&device);
    quotients(&device);
    pieces(&device);
    crcs(&device);
    refusals(&device);
}

fn folds(device: &Device) {
    let mut rng = SmallRng::seed_from_u64(88);
    for dtype in scalars() {
        for op in ReduceOp::ALL.iter().copied().filter(|op| op.is_of(dtype)) {
            for (k, count, in_place, apart) in [
                (2, 3003, &[][..], 1),
                (2, 70_001, &[1], 0),
                (2, 3003, &[0, 1], 0),
                (3, 777, &[0, 1, 2], 2),
                (8, 3003, &[0], 1),
                (5, 77, &[], 5),
                (1, 1003, &[], 2),
            ] {
                for (shift, divide_by) in [(0, None), (dtype.size(), Some(k as u32)), (0, Some(0))] {
                    let divide_by = divide_by.filter(|_| is_divided(dtype, op));
                    let columns: Vec<Vec<u8>> =
                        (0..k).map(|_| bytes_of(dtype, &random(&mut rng, dtype, count))).collect();
                    let expected = on_host(dtype, op, &columns, divide_by);
                    let held: Vec<Held> = columns.iter().map(|c| device.hold(c, shift)).collect();
                    let others: Vec<Held> = (0..apart).map(|_| device.hold(&columns[0], 0)).collect();
                    let sources: Vec<u64> = held.iter().map(|h| h.at).collect();
                    let written = || in_place.iter().map(|&i: &usize| &held[i]).chain(&others);
                    let destinations: Vec<u64> = written().map(|h| h.at).collect();
                    let (destinations, sources, count) = (&destinations[..], &sources[..], count as u64);
                    let fold = Fold { dtype, op, destinations, sources, count, divide_by };
                    // SAFETY: all of it is held until the stream was waited for.
                    unsafe { device.kernels.fold(&device.stream, &fold) }.unwrap();
                    for (i, target) in written().enumerate() {
                        let right = device.read(target) == expected;
                        assert!(right, "{dtype} {op} of {k} times {count}, destination {i}, {divide_by:?}");
                    }
                }
            }
        }
    }
}

/// The result of the host's kernels for the same columns.
fn on_host(dtype: DType, op: ReduceOp, columns: &[Vec<u8>], divide_by: Option<u32>) -> Vec<u8> {
    let mut result = vec![0; columns[0].len()];
    let pointers: Vec<*const u8> = columns.iter().map(|c| c.as_ptr()).collect();
    // SAFETY: all are as long as the destination, which is apart.
    unsafe { Kernels::detect().fold_raw(dtype, op, result.as_mut_ptr(), &pointers, result.len()) }
    if let Some(n) = divide_by {
        Kernels::detect().finish_avg(dtype, &mut result, n);
    }
    result
}

/// Mapped memory of the host is written as the device's own is.
fn mapped(device: &Device) {
    let columns = [[1.5f32; 500], [2.25; 500]].map(|c| c.iter().flat_map(|x| x.to_le_bytes()).collect());
    let expected = on_host(DType::F32, ReduceOp::Sum, &columns, None);
    let [a, b] = columns.map(|column: Vec<u8>| device.hold(&column, 0));
    let host = Pinned::new(&device.context, expected.len()).unwrap();
    let destinations = &[a.at, host.device_address()];
    let (dtype, op, sources) = (DType::F32, ReduceOp::Sum, &[a.at, b.at]);
    let fold = Fold { dtype, op, destinations, sources, count: 500, divide_by: None };
    // SAFETY: all of it is held until the stream was waited for.
    unsafe { device.kernels.fold(&device.stream, &fold) }.unwrap();
    device.wait();
    // SAFETY: as long as that, initialised, and nothing is under way.
    let got = unsafe { std::slice::from_raw_parts(host.as_ptr().as_ptr(), expected.len()) };
    assert!(got == expected && device.read(&a) == expected);
}

fn quotients(device: &Device) {
    let mut rng = SmallRng::seed_from_u64(89);
    for dtype in scalars().filter(|dtype| ReduceOp::Avg.is_of(*dtype)) {
        let column = [bytes_of(dtype, &random(&mut rng, dtype, 3003))];
        let held = device.hold(&column[0], dtype.size());
        let (op, tensor) = (ReduceOp::Sum, &[held.at]);
        let fold = Fold { dtype, op, destinations: tensor, sources: tensor, count: 3003, divide_by: Some(3) };
        // SAFETY: as many elements are held until the stream was waited for.
        unsafe { device.kernels.fold(&device.stream, &fold) }.unwrap();
        let mut expected = column[0].clone();
        Kernels::detect().finish_avg(dtype, &mut expected, 3);
        assert!(device.read(&held) == expected, "{dtype}");
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
        let (stream, kernels) = (&device.stream, &device.kernels);
        kernels.pack(stream, Packing::Pack, buffer.at, out.at, 100, 5000).unwrap();
        kernels.pack(stream, Packing::Unpack, buffer.at, back.at, 100, 5000).unwrap();
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
            device.kernels.crc32c(&device.stream, held.at, bytes, fragment, results.at).unwrap();
        }
        assert!(device.read(&results) == expected, "fragments of {fragment}");
    }
}

fn refusals(device: &Device) {
    let held = device.hold(&[0; 64], 0);
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    let fold = |destinations: &[u64], stream: &Stream| {
        let fold = Fold { dtype, op, destinations, sources: &[held.at], count: 4, divide_by: None };
        // SAFETY: held until the stream was waited for.
        unsafe { device.kernels.fold(stream, &fold) }
    };
    let error = fold(&[held.at + 2], &device.stream);
    assert!(matches!(error, Err(LaunchError::Call(CallError::Misaligned { .. }))), "{error:?}");
    // Another thread, which has no context, may do the same.
    std::thread::scope(|scope| {
        scope.spawn(|| fold(&[held.at], &device.stream)).join().unwrap().unwrap();
    });
    let cuda = device.context.cuda();
    let foreign = Foreign::new(cuda);
    // SAFETY: the context is alive, and taken off below.
    unsafe { cuda.api.cuCtxPushCurrent_v2(foreign.0) }.ok().unwrap();
    let stream = Stream::new(&foreign.context(cuda)).unwrap();
    let refused = LaunchError::Driver(CudaError::ForeignStream { call: "cuLaunchKernel" });
    assert_eq!(fold(&[held.at], &stream), Err(refused));
    // The kernels enter their own context.
    fold(&[held.at], &device.stream).unwrap();
    drop(stream);
    let mut popped = std::ptr::null_mut();
    // SAFETY: takes off what was put on above.
    unsafe { cuda.api.cuCtxPopCurrent_v2(&mut popped) }.ok().unwrap();
    device.wait();
}

#[test]
fn an_image_that_is_none_is_refused() {
    let image = Image::from_bytes(b"no image".to_vec());
    assert_eq!(image.origin(), Origin::Given);
    let Some((_alone, _, context)) = device() else { return };
    let error = CudaKernels::load(&context, &image).unwrap_err();
    assert!(matches!(error, CudaError::Image { call: "cuModuleLoadData", .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("CUDA_ERROR_") && text.contains("compile it for this GPU"), "{text}");
}
