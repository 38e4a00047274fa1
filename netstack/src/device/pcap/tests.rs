use core::time::Duration;
use std::io;

use super::Pcap;
use crate::device::{Device, Frame, Loopback, Offload, TxBatch};
use crate::scratch::Scratch;
use crate::time::Instant;

/// The frames and their time stamps in a capture.
fn frames(file: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_3c4d);
    assert_eq!((word(4), word(20)), (0x0004_0002, 1), "version 2.4, Ethernet");
    let mut at = 24;
    let mut out = Vec::new();
    while at < file.len() {
        let len = word(at + 8) as usize;
        assert_eq!(len, word(at + 12) as usize);
        out.push((Duration::new(word(at).into(), word(at + 4)), file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    out
}

#[test]
fn records_both_directions_with_nanoseconds() {
    let (a, mut b) = Loopback::pair(1500, 2);
    let mut a = Pcap::new(a, Vec::new(), Duration::from_secs(5));
    let mut scratch = Scratch::new(1, 100);
    let (_slot, extent) = scratch.store(&[b"payload"]).unwrap();
    let mut batch = TxBatch::with_capacity(4);
    for _ in 0..3 {
        let parts = [extent.slice(0, 3).unwrap(), extent.slice(3, 4).unwrap()];
        batch.push(Frame::with_extents(&[b"header of a frame "], &parts, Offload::NONE).unwrap());
    }
    let now = Instant::from_nanos(1_000_000_007);
    assert_eq!(a.transmit(now, &mut batch), 2, "the ring holds two");
    let mut answer = TxBatch::with_capacity(1);
    answer.push(Frame::new(&[&[9; 60]], None).unwrap());
    b.transmit(now, &mut answer);
    assert_eq!(a.receive(now, 8, &mut |frame| assert_eq!(frame.head(), [9; 60])), 1);
    assert_eq!((a.recorded(), a.error().is_none()), (3, true));

    let time = Duration::new(6, 7);
    let sent = b"header of a frame payload".to_vec();
    let (_, file) = a.into_parts();
    assert_eq!(frames(&file), [(time, sent.clone()), (time, sent), (time, vec![9; 60])]);
}

/// A disk that is full after some bytes.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_stops_the_recording_and_not_the_traffic() {
    let (a, mut b) = Loopback::pair(1500, 8);
    let mut a = Pcap::new(a, Full(24 + 16 + 60), Duration::ZERO);
    let mut batch = TxBatch::with_capacity(4);
    for _ in 0..3 {
        batch.push(Frame::new(&[&[1; 60]], None).unwrap());
    }
    assert_eq!(a.transmit(Instant::ZERO, &mut batch), 3);
    assert_eq!(b.receive(Instant::ZERO, 8, &mut |_| {}), 3);
    assert_eq!(a.recorded(), 1);
    assert_eq!(a.error().unwrap().kind(), io::ErrorKind::StorageFull);
}
