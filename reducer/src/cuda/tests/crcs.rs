//! CRCs of device memory against the host's, and the copies that are waited for.

use core::ptr::NonNull;

use super::harness::device;
use crate::cuda::kernel::{Architecture, CudaKernels, compile};
use crate::cuda::{CudaCrcs, CudaError, DeviceBuffer, NicWrites};
use crate::memory::{MemoryKind, TensorRegion};
use core::time::Duration;

const BYTES: usize = 1 << 20;

/// CRC32C, bit by bit (RFC 3720 section 12.1).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn crcs_are_the_hosts_and_copies_arrive() {
    let Some((_alone, cuda, context)) = device() else { return };
    let (major, minor) = cuda.devices().unwrap()[0].capability;
    let image = match compile(Architecture { major, minor }) {
        Ok(image) => image,
        Err(error) => return println!("skipped: {error}"),
    };
    let kernels = CudaKernels::load(&context, &image).unwrap();
    let mut crcs = CudaCrcs::new(&context, kernels.into()).unwrap();
    let buffer = DeviceBuffer::new(&context, BYTES).unwrap();
    let base = NonNull::new(buffer.address() as *mut u8).unwrap();
    // SAFETY: kept to the end of the test, which asks until all is answered.
    let region = unsafe { TensorRegion::from_raw_parts(MemoryKind::Device, base, BYTES, 0) };
    let span = |at: usize, len: usize| region.span(at, len).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 255) as u8).collect();
    let (never, now) = (Duration::MAX, || Duration::from_nanos(0));
    crcs.write(&span(0, BYTES), &bytes, never, now).unwrap();
    let mut back = vec![0; 100_000];
    crcs.read(&span(3, 100_000), &mut back, never, now).unwrap();
    assert!(back == bytes[3..100_003]);

    let answer = |crcs: &mut CudaCrcs, question| {
        for _ in 0..50_000_000 {
            if let Some(crc) = crcs.answer(question).unwrap() {
                return crc;
            }
        }
        panic!("no answer to {question}");
    };
    // Neighbours of one length with a shorter one at the end, others, and so many that places are used again.
    let mut ranges: Vec<(usize, usize)> = (0..5).map(|i| (i * 4096, 4096)).collect();
    ranges.extend([(5 * 4096, 100), (5 * 4096 + 100, 100), (1, 1), (999, 65536), (0, 4096)]);
    ranges.extend((0..1200).map(|i| (i * 64, 64 + i % 3)));
    let mut open = std::collections::VecDeque::new();
    for (index, &(at, len)) in ranges.iter().enumerate() {
        let question = loop {
            match crcs.ask(&span(at, len)) {
                Some(question) => break question,
                // Full: the oldest goes first.
                None => {
                    let (question, at, len): (u64, usize, usize) = open.pop_front().unwrap();
                    assert_eq!(answer(&mut crcs, question), crc32c(&bytes[at..at + len]), "{len} at {at}");
                }
            }
        };
        if index % 7 == 6 {
            crcs.forget(question);
        } else {
            open.push_back((question, at, len));
        }
        if index % 100 == 99 {
            let (question, at, len) = open.pop_front().unwrap();
            assert_eq!(answer(&mut crcs, question), crc32c(&bytes[at..at + len]), "{len} at {at}");
            assert_eq!(crcs.answer(question).unwrap(), None, "an answer is given once");
        }
    }
    for (question, at, len) in open {
        assert_eq!(answer(&mut crcs, question), crc32c(&bytes[at..at + len]), "{len} at {at}");
    }
    while !crcs.is_idle().unwrap() {}
    if context.nic_writes() != NicWrites::Unknown {
        crcs.settle_writes().unwrap();
    }
    // The clock stands beyond the deadline: unless the copy is done at the first question, it is given up for good.
    let late = crcs.read(&span(0, 1 << 16), &mut back[..1 << 16], Duration::from_nanos(0), now);
    match late {
        Ok(()) => {}
        Err(error) => {
            assert!(matches!(error, CudaError::Deadline { .. }), "{error}");
            let again = crcs.read(&span(0, 1), &mut back[..1], never, now);
            assert!(matches!(again, Err(CudaError::Deadline { .. })));
        }
    }
}
