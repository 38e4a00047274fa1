use super::super::{PortConfig, Stack, StackConfig};
use crate::device::{
    Capabilities, Device, DeviceCounters, Fault, FaultConfig, Frame, Loopback, Offload, RxChecksum, RxFrame,
    Transport, TxBatch, segment,
};
use crate::region::Region;
use crate::time::Instant;
use crate::wire::ip::{Ecn, IpHeader, Protocol};

const NOW: Instant = Instant::ZERO;
const TCP_HEADER: [u8; 20] = [1, 2, 3, 4, 0, 0, 0, 9, 0, 0, 0, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0];

/// A super-segment of `len` bytes of payload, in segments of 1000.
fn super_segment(len: usize) -> Frame {
    let payload: &'static [u8] = (0..len).map(|i| (i * 7 + i / 256) as u8).collect::<Vec<_>>().leak();
    let ip = IpHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::Tcp, 20 + len, Ecn::NotEct)
        .unwrap();
    let offload = Offload { transport: Transport::Tcp, l3_offset: 14, l4_offset: 34, segment_size: 1000 };
    let link = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let extent = Region::from_static(payload).extent(0, len as u32).unwrap();
    Frame::with_extents(&[&link, ip.as_bytes(), &TCP_HEADER], &[extent], offload).unwrap()
}

/// A received frame, kept.
type Kept = (Vec<u8>, RxChecksum, u16);

fn drain(wire: &mut impl Device) -> Vec<Kept> {
    let mut kept = Vec::new();
    wire.receive(NOW, 1000, &mut |frame: RxFrame<'_>| {
        kept.push((frame.to_vec(), frame.checksum, frame.segment_size));
    });
    kept
}

fn stack_of<D: Device>(device: D, tx_frames: usize) -> Stack<D> {
    let mut config = StackConfig::new(1);
    config.tx_frames = tx_frames;
    let mut stack = Stack::new(config);
    stack.add_port(device, PortConfig::new([10, 0, 0, 1].into(), 24, 1500)).unwrap();
    stack
}

/// The frames that a device without offloads would get.
fn in_software(frame: &Frame) -> Vec<Kept> {
    segment::segments(frame)
        .map(|segment| {
            let segment = segment::fill_checksum(segment).unwrap();
            (segment.pieces().collect::<Vec<_>>().concat(), RxChecksum::Unknown, 0)
        })
        .collect()
}

#[test]
fn a_device_with_offloads_gets_the_frame_as_it_is() {
    let (device, mut wire) = Loopback::pair_with_offloads(1500, 256);
    let mut stack = stack_of(device, 256);
    let frame = super_segment(60_000);
    assert!(stack.ports[0].push_offloaded(frame));
    stack.ports[0].flush(NOW);
    let whole = frame.pieces().collect::<Vec<_>>().concat();
    assert_eq!(drain(&mut wire), [(whole, RxChecksum::Verified, 1000)]);
}

#[test]
fn a_device_without_offloads_gets_finished_segments() {
    let (device, mut wire) = Loopback::pair(1500, 256);
    let mut stack = stack_of(device, 256);
    let frame = super_segment(60_000);
    assert!(stack.ports[0].push_offloaded(frame));
    stack.ports[0].flush(NOW);
    assert_eq!(drain(&mut wire), in_software(&frame));
    // So does one behind faults, even if it has offloads itself.
    let (device, mut wire) = Loopback::pair_with_offloads(1500, 256);
    let faults = FaultConfig { loss: 1e-12, ..FaultConfig::default() };
    let mut stack = stack_of(Fault::new(device, faults).unwrap(), 256);
    assert!(stack.ports[0].push_offloaded(frame));
    while stack.ports[0].flush(NOW) > 0 {}
    assert_eq!(drain(&mut wire), in_software(&frame));
}

/// A device that fills in checksums and splits nothing.
struct Checksums {
    capabilities: Capabilities,
    taken: Vec<Frame>,
}

// SAFETY: frames are read within `transmit`, which copies them, and stay in their batch until then.
#[allow(unsafe_code)]
unsafe impl Device for Checksums {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> usize {
        let taken = batch.frames().len();
        self.taken.extend_from_slice(batch.frames());
        batch.consume(taken);
        taken
    }
    fn receive(&mut self, _: Instant, _: usize, _: &mut impl FnMut(RxFrame<'_>)) -> usize {
        0
    }
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

#[test]
fn a_device_that_only_fills_in_checksums_gets_segments_without() {
    let capabilities = Capabilities { tx_tcp_checksum: true, ..Capabilities::plain("test", 1500, 32) };
    let mut stack = stack_of(Checksums { capabilities, taken: Vec::new() }, 256);
    let frame = super_segment(2500);
    assert!(stack.ports[0].push_offloaded(frame));
    stack.ports[0].flush(NOW);
    let made: Vec<(usize, Offload)> =
        stack.ports[0].device.taken.iter().map(|frame| (frame.len(), frame.offload())).collect();
    let whole = Offload { segment_size: 0, ..frame.offload() };
    assert_eq!(made, [(1054, whole), (1054, whole), (554, whole)]);
}

#[test]
fn a_super_segment_that_does_not_fit_is_not_begun() {
    let (device, mut wire) = Loopback::pair(1500, 256);
    let mut stack = stack_of(device, 20);
    let port = &mut stack.ports[0];
    assert_eq!(port.super_segment_max(1040), 10 * 1040);
    let frame = super_segment(9000);
    assert!(port.room_for(&frame) && port.push_offloaded(frame) && port.push_offloaded(frame));
    assert!(!port.room_for(&frame) && !port.push_offloaded(frame));
    let last = super_segment(2000);
    assert!(port.room_for(&last) && port.push_offloaded(last));
    assert_eq!(port.flush(NOW), 20);
    assert_eq!(drain(&mut wire), [in_software(&frame), in_software(&frame), in_software(&last)].concat());
}
