//! A trainer's GPU memory and stream, for tests of ranks with a real or simulated GPU.
#![allow(unsafe_code)]

use cudarc::driver::sys::{CUstream, CUstreamWaitValue_flags, cuStreamWaitValue32_v2};
use shouter::{DType, Error, Group, ReduceOp};
use shouter_reducer::cuda::{Context, Cuda, DeviceBuffer, Pinned, Stream};

use super::{State, parameter};

/// Sets the simulated driver's fault of one rank to `BROKEN`.
pub(crate) fn broken() {
    if let Some(sim) = parameter("BROKEN")
        && std::env::var("SHOUTER_RANK").ok() == Some(parameter("CULPRIT").unwrap_or("0".into()))
    {
        // SAFETY: no other thread of this process is running tests or reads the environment.
        unsafe { std::env::set_var("CUDA_SIM", sim) };
    }
}

/// A group of all ranks in reverse order: for the library, a group of some ranks.
pub(crate) fn of_some(group: &Group) -> Result<Group, Error> {
    group.group(&(0..group.size()).rev().collect::<Vec<_>>())
}

/// Whether there is a device; prints the reason if not.
pub(crate) fn device() -> bool {
    match Cuda::probe() {
        Ok(_) => true,
        Err(why) => {
            println!("skipped: no CUDA device ({why})");
            false
        }
    }
}

/// Whether the driver is the simulated one.
pub(crate) fn simulated() -> bool {
    let devices = Cuda::probe().ok().and_then(|cuda| cuda.devices().ok()).unwrap_or_default();
    let simulated = devices.first().is_some_and(|device| device.name.starts_with("Simulated"));
    if !simulated {
        println!("skipped: failures are not asked of a real device");
    }
    simulated
}

/// Makes work that is enqueued later wait until a 32-bit word is 1.
///
/// # Safety
/// `address` is the device's address of a word, a multiple of 4, that is valid until the stream has got past this.
pub(crate) unsafe fn wait_value(stream: &Stream, address: u64) {
    let _entered = stream.context().enter().unwrap();
    let equal = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
    // SAFETY: passed on to the caller.
    let code = unsafe { cuStreamWaitValue32_v2(stream.as_raw() as CUstream, address, 1, equal) };
    assert_eq!(code as u32, 0);
}

/// A trainer's GPU: memory, and a stream for its work.
pub(crate) struct Trainer {
    pub(crate) stream: Stream,
    device: DeviceBuffer,
    pub(crate) host: Pinned,
}

impl Trainer {
    pub(crate) fn new(group: &Group, bytes: usize) -> Self {
        let cuda = Cuda::probe().unwrap();
        let devices = cuda.devices().unwrap();
        let device = &devices[group.local_rank() as usize % devices.len()];
        let context = Context::primary(cuda, device.ordinal).unwrap();
        Self {
            stream: Stream::new(&context).unwrap(),
            device: DeviceBuffer::new(&context, bytes).unwrap(),
            host: Pinned::new(&context, bytes).unwrap(),
        }
    }

    pub(crate) fn address(&self, at: usize) -> u64 {
        self.device.address() + at as u64
    }

    pub(crate) fn wait(&self) {
        while !self.stream.is_done().unwrap() {
            std::thread::yield_now();
        }
    }

    pub(crate) fn host(&mut self) -> &mut [u8] {
        self.wait();
        // SAFETY: the copies that touch it have ended.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr().as_ptr(), self.host.len()) }
    }

    /// Enqueues a copy of bytes to the device, without waiting for it.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.host()[at..at + bytes.len()].copy_from_slice(bytes);
        let host = self.host.device_address() + at as u64;
        // SAFETY: inside of both, and `host` waits before it is written again.
        unsafe { self.stream.copy(self.address(at), host, bytes.len()) }.unwrap();
    }

    pub(crate) fn get(&mut self, at: usize, bytes: usize) -> Vec<u8> {
        let host = self.host.device_address() + at as u64;
        // SAFETY: as in `put`.
        unsafe { self.stream.copy(host, self.address(at), bytes) }.unwrap();
        self.host()[at..at + bytes].to_vec()
    }

    pub(crate) fn reduce(
        &self,
        group: &Group,
        at: usize,
        count: usize,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), Error> {
        // SAFETY: inside of the device's memory, which the stream alone has touched.
        unsafe { group.all_reduce_cuda(self.address(at), count, dtype, op, self.stream.as_raw()) }
    }
}

/// Whether this rank's tensors are on a GPU: bits of `ON`, by rank.
pub(crate) fn on_gpu(group: &Group) -> bool {
    parameter("ON").is_none_or(|bits| bits.parse::<u32>().unwrap() >> group.rank() & 1 == 1)
}

/// Checks that all other ranks name `culprit`, and no other rank, with one of these codes and all these words.
pub(crate) fn named(state: &State, culprit: usize, codes: &[i32], words: &[&str]) {
    for (rank, other) in state.ranks.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
        let error = other.error();
        assert!(
            other.code.is_some_and(|code| codes.contains(&code)),
            "rank {rank}: {:?}\n{state}",
            other.code
        );
        let named: Vec<usize> =
            (0..state.ranks.len()).filter(|named| error.contains(&format!("rank {named}"))).collect();
        assert!(
            named == [culprit] && words.iter().any(|word| error.contains(word)),
            "rank {rank}: {error}\n{state}"
        );
    }
}
