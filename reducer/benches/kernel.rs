//! Reduction kernels, and how near they come to what memory can do.
//!
//! `cargo bench -p shouter-reducer --bench kernel` measures every element type and reduction at 256 KiB, then
//! prints for f32 sums of 4 KiB to 64 MiB the ratio to a plain stream over the same memory: loads, an exclusive
//! or, and a store, in vectors of the same width. Kernel and stream alternate, and the ratio is the median over
//! the pairs, so that what else happens on the machine meets both alike; that of the best times stands beside it,
//! for machines so busy that neighbours in time meet different weather. `-- ratio` prints that part alone.
#![allow(unsafe_code, missing_docs)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::kernel::{Kernels, Level};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A tensor's memory, at a page boundary, all of it touched.
struct Tensor {
    start: *mut u8,
    layout: Layout,
}

impl Tensor {
    /// Elements of `dtype` that stay ordinary numbers through many folds: zeros and ones.
    fn new(dtype: DType, bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.next_multiple_of(4096), 4096).expect("a sane size");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: just allocated with this size.
        unsafe { start.write_bytes(0, layout.size()) }
        let one: &[u8] = match dtype {
            DType::F16 => &[0x00, 0x3c],
            DType::Bf16 => &[0x80, 0x3f],
            DType::F32 => &[0, 0, 0x80, 0x3f],
            DType::F64 => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
            _ => &[1],
        };
        let mut tensor = Self { start, layout };
        for slot in tensor.bytes(bytes).chunks_exact_mut(dtype.size()).step_by(2) {
            slot[..one.len()].copy_from_slice(one);
        }
        tensor
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.layout.size());
        // SAFETY: valid and initialised for the layout's size, borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start, len) }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// `dst[i] = a[i] ^ b[i]` in the vectors that `level` has: what memory can do, two reads and a write.
///
/// # Safety
///
/// All are valid for `bytes`, a multiple of 256; the CPU has the level.
unsafe fn stream(level: Level, dst: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => stream_avx512(dst, a, b, bytes),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => stream_avx2(dst, a, b, bytes),
            _ => {
                for i in (0..bytes).step_by(16) {
                    let x = a.add(i).cast::<u128>().read_unaligned();
                    let y = b.add(i).cast::<u128>().read_unaligned();
                    dst.add(i).cast::<u128>().write_unaligned(x ^ y);
                }
            }
        }
    }
}

/// The streams' loops, four vectors per iteration.
#[cfg(target_arch = "x86_64")]
macro_rules! streams {
    ($($name:ident $feature:literal $width:literal $load:ident $xor:ident $store:ident)+) => {$(
        /// # Safety
        ///
        /// As [`stream`].
        #[target_feature(enable = $feature)]
        unsafe fn $name(dst: *mut u8, a: *const u8, b: *const u8, bytes: usize) {
            use std::arch::x86_64::*;
            let mut i = 0;
            while i < bytes {
                for vector in 0..4 {
                    let at = i + vector * $width;
                    // SAFETY: `bytes` is a multiple of four vectors.
                    unsafe {
                        let x = $xor($load(a.add(at).cast()), $load(b.add(at).cast()));
                        $store(dst.add(at).cast(), x);
                    }
                }
                i += 4 * $width;
            }
        }
    )+};
}
#[cfg(target_arch = "x86_64")]
streams! {
    stream_avx2 "avx2" 32 _mm256_loadu_si256 _mm256_xor_si256 _mm256_storeu_si256
    stream_avx512 "avx512f" 64 _mm512_loadu_si512 _mm512_xor_si512 _mm512_storeu_si512
}

fn every_kernel(criterion: &mut Criterion) {
    let bytes = 256 * KIB;
    for &level in Level::ALL {
        let Some(kernels) = Kernels::with_level(level) else { continue };
        let mut group = criterion.benchmark_group(format!("kernel/{level:?}/256KiB"));
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        group.sample_size(20).warm_up_time(Duration::from_millis(50));
        group.measurement_time(Duration::from_millis(200));
        for &dtype in DType::ALL {
            let (mut dst, mut src) = (Tensor::new(dtype, bytes), Tensor::new(dtype, bytes));
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod] {
                group.bench_function(BenchmarkId::new(dtype.name(), op.name()), |bencher| {
                    bencher.iter(|| kernels.accumulate(dtype, op, dst.bytes(bytes), src.bytes(bytes)));
                });
            }
        }
        group.finish();
    }
}

/// Seconds per call of `f`, over enough calls to time.
fn time(bytes: usize, mut f: impl FnMut()) -> f64 {
    let calls = (4 * MIB / bytes).max(1);
    let start = Instant::now();
    for _ in 0..calls {
        f();
    }
    start.elapsed().as_secs_f64() / calls as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Times two alternating, and prints one line. `traffic` is bytes moved per call.
fn compare(what: &str, bytes: usize, traffic: usize, mut kernel: impl FnMut(), mut plain: impl FnMut()) {
    let pairs = if bytes >= 16 * MIB { 31 } else { 101 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    kernel();
    plain();
    for pair in 0..pairs {
        // Each goes first every other time: what the first leaves in the caches, the second finds.
        if pair % 2 == 0 {
            ours.push(time(bytes, &mut kernel));
            theirs.push(time(bytes, &mut plain));
        } else {
            theirs.push(time(bytes, &mut plain));
            ours.push(time(bytes, &mut kernel));
        }
    }
    let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours).collect());
    let least = |seconds: &[f64]| seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let best = least(&theirs) / least(&ours);
    let rate = |seconds: Vec<f64>| traffic as f64 / median(seconds) / 1e9;
    let size = if bytes < MIB { format!("{} KiB", bytes / KIB) } else { format!("{} MiB", bytes / MIB) };
    println!(
        "{what:<42} {size:>8}  {:6.1} GB/s  plain {:6.1} GB/s  ratio {ratio:.2}, of the best {best:.2}",
        rate(ours),
        rate(theirs),
    );
}

fn ratios(kernels: Kernels) {
    let level = kernels.level();
    println!("{level:?}: medians over alternating pairs; GB/s of memory traffic, reads and writes");
    let largest = 64 * MIB;
    let [mut a, mut b, c] = [0; 3].map(|_| Tensor::new(DType::F32, largest));
    for bytes in (0..8).map(|i| (4 * KIB) << (2 * i)) {
        let (dst, src) = (a.start, b.start);
        compare(
            "f32 sum, a += b; stream a ^= b",
            bytes,
            3 * bytes,
            || kernels.accumulate(DType::F32, ReduceOp::Sum, a.bytes(bytes), b.bytes(bytes)),
            // SAFETY: two tensors of at least `bytes`.
            || unsafe { stream(level, black_box(dst), dst, src, bytes) },
        );
    }
    for bytes in (0..8).map(|i| (4 * KIB) << (2 * i)) {
        compare(
            "f32 sum, c = a + b; stream c = a ^ b",
            bytes,
            3 * bytes,
            // SAFETY: three tensors of at least `bytes`.
            || unsafe {
                kernels.fold_raw(DType::F32, ReduceOp::Sum, c.start, &[a.start, b.start], bytes);
            },
            // SAFETY: as above.
            || unsafe { stream(level, black_box(c.start), a.start, b.start, bytes) },
        );
    }
    let piece = 256 * KIB;
    let (dst, src) = (c.start, b.start);
    for shift in [4, 12] {
        compare(
            &format!("f32 sum, a += b, {shift} bytes off; stream on"),
            piece,
            3 * piece,
            || {
                let dst = &mut a.bytes(piece + 64)[shift..][..piece];
                kernels.accumulate(
                    DType::F32,
                    ReduceOp::Sum,
                    dst,
                    &b.bytes(piece + 64)[2 * shift..][..piece],
                );
            },
            // SAFETY: two tensors of at least `piece`.
            || unsafe { stream(level, black_box(dst), dst, src, piece) },
        );
    }
    // The stream needs one pass per pair of sources, so more sources in one pass go beyond a ratio of 1.
    for k in [3, 4, 8] {
        let size = largest / k;
        for bytes in [256 * KIB / k, size].map(|bytes| bytes / 4096 * 4096) {
            let sources: Vec<*const u8> =
                // SAFETY: `k` pieces of `size` make at most `largest`.
                (0..k).map(|i| unsafe { a.start.add(i * size).cast_const() }).collect();
            compare(
                &format!("f32 sum of {k} in one pass; stream pairwise"),
                bytes,
                (k + 1) * bytes,
                // SAFETY: `k` sources and a destination of at least `bytes`.
                || unsafe { kernels.fold_raw(DType::F32, ReduceOp::Sum, c.start, &sources, bytes) },
                // SAFETY: as above.
                || unsafe {
                    stream(level, black_box(c.start), sources[0], sources[1], bytes);
                    for &source in &sources[2..] {
                        stream(level, black_box(c.start), c.start, source, bytes);
                    }
                },
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ratio_only = arguments.iter().any(|a| a == "ratio");
    let testing = !arguments.iter().any(|a| a == "--bench");
    if !ratio_only {
        let mut criterion = Criterion::default().configure_from_args();
        every_kernel(&mut criterion);
        criterion.final_summary();
    }
    if !testing {
        ratios(Kernels::detect());
    }
}
