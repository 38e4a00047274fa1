use core::time::Duration;

use super::{Fault, FaultConfig, FaultConfigError};
use crate::device::{Device, Frame, Loopback, Offload, TxBatch};
use crate::scratch::Scratch;
use crate::time::Instant;

const FRAMES: usize = 4_000;

/// Sends numbered frames, each with an extent of 200 bytes, and returns those that arrive, in order.
fn run(config: FaultConfig) -> (Vec<Vec<u8>>, Fault<Loopback>) {
    let (a, mut b) = Loopback::pair(1500, 64);
    let mut a = Fault::new(a, config).unwrap();
    let mut payload = Scratch::new(1, 200);
    let (_slot, extent) = payload.store(&[&[0x5a; 200]]).unwrap();
    let mut batch = TxBatch::with_capacity(32);
    let mut got = Vec::new();
    let mut sent = 0u32;
    for step in 0..200_000 {
        let now = Instant::from_nanos(step * 1_000);
        while (sent as usize) < FRAMES && batch.room() > 0 {
            batch.push(Frame::new(&[&[0; 14], &sent.to_be_bytes()], Some(extent)).unwrap());
            sent += 1;
        }
        a.transmit(now, &mut batch);
        b.receive(now, 64, &mut |frame| got.push(frame.to_vec()));
        a.receive(now, 64, &mut |_| {});
        if sent as usize == FRAMES && batch.is_empty() && a.next_deadline().is_none() && !a.holds_extents() {
            break;
        }
    }
    b.receive(Instant::ZERO, 64, &mut |frame| got.push(frame.to_vec()));
    assert!(batch.is_empty() && a.next_deadline().is_none(), "frames left");
    (got, a)
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes([frame[14], frame[15], frame[16], frame[17]])
}

fn near(count: u64, rate: f64) {
    let expected = FRAMES as f64 * rate;
    let deviation = 5.0 * (expected * (1.0 - rate)).sqrt();
    assert!((count as f64 - expected).abs() < deviation, "{count} of {FRAMES}, expected about {expected}");
}

#[test]
fn without_faults_everything_arrives_in_order() {
    let (got, _) = run(FaultConfig::default());
    assert_eq!(got.iter().map(|f| number(f)).collect::<Vec<_>>(), (0..FRAMES as u32).collect::<Vec<_>>());
}

#[test]
fn loss_is_as_asked_and_repeats_with_the_seed() {
    let config = FaultConfig { seed: 7, loss: 0.1, ..FaultConfig::default() };
    let (got, device) = run(config.clone());
    near(device.fault_counters().lost, 0.1);
    assert_eq!(got.len() as u64, FRAMES as u64 - device.fault_counters().lost);
    assert_eq!(device.counters().dropped, device.fault_counters().lost);
    assert_eq!(run(config.clone()).0, got, "same seed");
    assert_ne!(run(FaultConfig { seed: 8, ..config }).0, got, "another seed");
}

#[test]
fn corrupted_frames_differ_and_the_source_does_not() {
    let (got, device) = run(FaultConfig { seed: 1, corrupt: 0.2, ..FaultConfig::default() });
    near(device.fault_counters().corrupted, 0.2);
    assert_eq!(got.len(), FRAMES);
    let mut broken = 0;
    for (i, frame) in got.iter().enumerate() {
        let clean = [&[0; 14][..], &(i as u32).to_be_bytes(), &[0x5a; 200]].concat();
        let flipped: u32 = frame.iter().zip(&clean).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!(flipped <= 3);
        broken += u64::from(flipped > 0);
    }
    // Two flips of the same bit cancel; that is rare.
    assert!(device.fault_counters().corrupted - broken < 10);
}

#[test]
fn frames_of_several_extents_are_altered_in_copies_too() {
    let (a, mut b) = Loopback::pair_with_offloads(1500, 64);
    let config = FaultConfig { seed: 5, corrupt: 1.0, ..FaultConfig::default() };
    let mut a = Fault::new(a, config).unwrap();
    let offered = a.capabilities();
    assert!(!offered.tx_tcp_checksum && !offered.tx_udp_checksum && offered.tso_max == 0);
    let mut payload = Scratch::new(1, 200);
    let (_slot, extent) = payload.store(&[&[0x5a; 200]]).unwrap();
    let extents = [extent.slice(0, 3).unwrap(), extent.slice(3, 100).unwrap(), extent.slice(0, 1).unwrap()];
    let mut batch = TxBatch::with_capacity(1);
    let (mut frames, mut different) = (0, 0);
    for _ in 0..64 {
        batch.push(Frame::with_extents(&[&[0; 20]], &extents, Offload::NONE).unwrap());
        a.transmit(Instant::ZERO, &mut batch);
        b.receive(Instant::ZERO, 1, &mut |frame| {
            let clean = [&[0; 20][..], &[0x5a; 104]].concat();
            assert_eq!(frame.len(), clean.len());
            frames += 1;
            different += u64::from(frame.head() != clean);
        });
    }
    assert_eq!(frames, 64);
    // Two flips of the same bit cancel; that is rare.
    assert!(different > 60, "{different} of 64");
    assert_eq!(extent.as_bytes(), [0x5a; 200], "the sender's memory is as it was");
}

#[test]
fn duplicates_reordering_and_delay() {
    let (got, device) = run(FaultConfig { seed: 2, duplicate: 0.1, ..FaultConfig::default() });
    near(device.fault_counters().duplicated, 0.1);
    assert_eq!(got.len() as u64, FRAMES as u64 + device.fault_counters().duplicated);

    let (got, device) = run(FaultConfig { seed: 3, reorder: 0.1, ..FaultConfig::default() });
    near(device.fault_counters().reordered, 0.1);
    let mut numbers: Vec<_> = got.iter().map(|f| number(f)).collect();
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..FRAMES as u32).collect::<Vec<_>>(), "nothing lost");

    let delay = Duration::from_micros(50);
    let (got, device) = run(FaultConfig { seed: 3, delay, held_frames: 64, ..FaultConfig::default() });
    assert_eq!(device.fault_counters().delayed, FRAMES as u64);
    assert_eq!(got.iter().map(|f| number(f)).collect::<Vec<_>>(), (0..FRAMES as u32).collect::<Vec<_>>());
}

#[test]
fn a_delayed_frame_is_not_early() {
    let (a, mut b) = Loopback::pair(1500, 4);
    let delay = Duration::from_micros(10);
    let mut a = Fault::new(a, FaultConfig { delay, ..FaultConfig::default() }).unwrap();
    let mut batch = TxBatch::with_capacity(1);
    batch.push(Frame::new(&[&[0; 60]], None).unwrap());
    assert_eq!(a.transmit(Instant::ZERO, &mut batch), 1);
    assert_eq!(a.next_deadline(), Some(Instant::from_nanos(10_000)));
    a.receive(Instant::from_nanos(9_999), 1, &mut |_| {});
    assert_eq!(b.receive(Instant::from_nanos(9_999), 1, &mut |_| {}), 0);
    a.receive(Instant::from_nanos(10_000), 1, &mut |_| {});
    assert_eq!(b.receive(Instant::from_nanos(10_000), 1, &mut |_| {}), 1);
}

#[test]
fn rates_are_probabilities() {
    for value in [-0.1, 1.1, f64::NAN] {
        let (a, _b) = Loopback::pair(1500, 1);
        let error = Fault::new(a, FaultConfig { reorder: value, ..FaultConfig::default() }).unwrap_err();
        assert!(matches!(error, FaultConfigError::Rate { name: "reorder", .. }), "{error}");
    }
    let (a, _b) = Loopback::pair(1500, 1);
    let config = FaultConfig { held_frames: 1, ..FaultConfig::default() };
    assert_eq!(Fault::new(a, config).unwrap_err(), FaultConfigError::NoRoom);
}
