use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::super::*;
use super::harness::*;
use crate::memory::{MemoryKind, Owned, TensorRegion};

const ROOM: usize = 1 << 20;

#[test]
fn random_bytes_survive_both_ways_at_odd_sizes_and_offsets() {
    let Some((_alone, _, context)) = device() else { return };
    let mut copier = Copier::new(&context).unwrap();
    let (source, sink) = (Pinned::new(&context, ROOM).unwrap(), Pinned::new(&context, ROOM).unwrap());
    let buffer = DeviceBuffer::new(&context, ROOM).unwrap();
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let len = if seed < 8 { seed as usize } else { random.random_range(1..ROOM / 2) };
        let [from, on, to] = [(); 3].map(|()| random.random_range(0..ROOM / 2));
        let mut sent = vec![0; ROOM];
        random.fill_bytes(&mut sent);
        fill(&source, &sent);
        fill(&sink, &vec![0xa5; ROOM]);
        let host = |pinned: &Pinned, offset: usize| pinned.as_ptr().as_ptr() as u64 + offset as u64;
        let device = buffer.address() + on as u64;
        // SAFETY: every range lies inside its allocation; all outlive the wait below.
        let out = unsafe { copier.copy(device, host(&source, from), len) }.unwrap();
        until("the copy out", || copier.is_done(out));
        // SAFETY: as above; the copy out has ended.
        let back = unsafe { copier.copy(host(&sink, to), device, len) }.unwrap();
        until("the copies", || copier.is_done(back));
        assert!(copier.is_done(out).unwrap());
        assert_eq!(bytes(&sink, to, len), sent[from..from + len], "seed {seed}");
        assert!(bytes(&sink, 0, to).iter().all(|&byte| byte == 0xa5), "seed {seed}: bytes before");
        let end = to + len;
        assert!(bytes(&sink, end, ROOM - end).iter().all(|&byte| byte == 0xa5), "seed {seed}: bytes behind");
    }
}

#[test]
fn more_copies_than_the_ring_has_events_all_end() {
    let Some((_alone, _, context)) = device() else { return };
    let mut copier = Copier::new(&context).unwrap();
    let pinned = Pinned::new(&context, 4096).unwrap();
    let buffer = DeviceBuffer::new(&context, 4096).unwrap();
    let gate = Gate::new(&context);
    gate.hold(copier.stream(CopyDirection::Out));
    let fences: Vec<_> = (0..900u64)
        .map(|n| {
            let offset = n * 4 % 4096;
            // SAFETY: inside both allocations, which outlive the wait.
            unsafe { copier.copy(buffer.address() + offset, pinned.as_ptr().as_ptr() as u64 + offset, 4) }
                .unwrap()
        })
        .collect();
    stays_false("a copy behind the gate", || copier.is_done(fences[0]));
    assert_eq!(copier.pending().unwrap(), 900);
    gate.open();
    until::<CudaError>("all copies", || Ok(copier.pending()? == 0));
    assert!(fences.iter().all(|&fence| copier.is_done(fence).unwrap()));
}

#[test]
fn spans_know_their_direction() {
    let Some((_alone, _, context)) = device() else { return };
    let mut copier = Copier::new(&context).unwrap();
    let pinned = Pinned::new(&context, 64).unwrap();
    let buffer = DeviceBuffer::new(&context, 64).unwrap();
    fill(&pinned, &[7; 32]);
    let base = core::ptr::NonNull::new(buffer.address() as *mut u8).unwrap();
    // SAFETY: both outlive the copies; nothing else accesses them.
    let (host, device) =
        unsafe { (pinned.region(0), TensorRegion::from_raw_parts(MemoryKind::Device, base, 64, 0)) };
    let out = copier.copy_span(device.span(3, 32).unwrap(), host.span(0, 32).unwrap()).unwrap();
    until("the copy out", || copier.is_done(out));
    let back = copier.copy_span(host.span(32, 32).unwrap(), device.span(3, 32).unwrap()).unwrap();
    until("the copies", || copier.is_done(back));
    assert_eq!(bytes(&pinned, 32, 32), [7; 32]);
    let differ = copier.copy_span(host.span(0, 31).unwrap(), device.span(0, 32).unwrap()).unwrap_err();
    assert!(matches!(differ, CudaError::Range { .. }), "{differ}");
    let memory = Owned::new(32).unwrap();
    // SAFETY: nothing is done with it but to refuse it.
    let ordinary = unsafe { memory.region() };
    let refused = copier.copy_span(ordinary.span(0, 32).unwrap(), device.span(0, 32).unwrap()).unwrap_err();
    assert_eq!(refused, CudaError::NotPinned { address: ordinary.as_ptr() as u64 });
}
