use core::slice;
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::device::dpdk::{DpdkDevice, DpdkPortConfig, Eal, EalConfig, Port};
use crate::device::{Device, Frame, TxBatch};
use crate::region::{Extent, Region};
use crate::time::Instant;

/// Registrations are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A port whose frames come back, with the very buffers that were sent.
fn open(device: &str) -> (DpdkDevice, PortMemory) {
    let eal = Eal::init(&EalConfig::default()).unwrap();
    let config = DpdkPortConfig { mtu: 9000, ..DpdkPortConfig::new(device.parse().unwrap()) };
    let port = Port::try_open(eal, &config).unwrap_or_else(|why| panic!("{why}"));
    let memory = port.memory();
    (port.into_devices().remove(0), memory)
}

/// Pages that a test writes to while a device may read them, as a NIC's sender must not.
struct Pages(NonNull<u8>, usize);

impl Pages {
    fn new(pages: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(pages * PAGE, PAGE).unwrap();
        // SAFETY: it has bytes. They are never freed.
        Self(NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap(), pages * PAGE)
    }

    fn fill(&self, value: u8) {
        // SAFETY: our own bytes.
        unsafe { self.0.write_bytes(value, self.1) };
    }

    fn extent(&self, offset: usize, len: u32) -> Extent {
        // SAFETY: they live for ever; what the test writes meanwhile is read by DPDK alone.
        unsafe { Region::from_raw_parts(self.0, self.1) }.extent(offset, len).unwrap()
    }

    fn register(
        &self,
        with: &PortMemory,
        offset: usize,
        len: usize,
    ) -> Result<PortRegistration, MemoryError> {
        assert!(offset + len <= self.1);
        // SAFETY: within the pages, which live for ever.
        unsafe { with.register(self.0.add(offset), len) }
    }
}

/// Sends one frame with this payload, writes 2 to all pages, and takes the frame back: the first byte of what came, which is 1 if it was
/// copied, its length, and the number of frames that were not.
fn echo(device: &mut DpdkDevice, pages: &Pages, extent: Extent) -> (u8, usize, u64) {
    let before = device.counters().tx_uncopied;
    pages.fill(1);
    let mut batch = TxBatch::with_capacity(4);
    assert!(batch.push(Frame::new(&[&[0xee; 14]], Some(extent)).unwrap()));
    assert_eq!(device.transmit(Instant::ZERO, &mut batch), 1);
    pages.fill(2);
    let mut came = vec![];
    device.receive(Instant::ZERO, 8, &mut |frame| {
        came = frame.to_vec();
    });
    assert_eq!(came[..14], [0xee; 14]);
    let payload = &came[14..];
    assert!(payload.iter().all(|byte| *byte == payload[0]));
    (payload[0], payload.len(), device.counters().tx_uncopied - before)
}

#[test]
fn lent_payload_in_registered_memory_is_sent_from_where_it_lies_and_no_other() {
    let _alone = alone();
    let (mut device, memory) = open("ring");
    let pages = Pages::new(8);
    let at = |offset, len| pages.extent(offset, len).lend();
    assert_eq!(echo(&mut device, &pages, at(PAGE, 3000)), (1, 3000, 0), "nothing is registered");
    // What is no whole page is not registered.
    let registration = pages.register(&memory, PAGE / 2, 4 * PAGE).unwrap();
    for (extent, found) in [
        (at(PAGE, 3000), (2, 3000, 1)),
        (at(2 * PAGE - 100, 2 * PAGE as u32), (2, 2 * PAGE, 1)),
        (at(4 * PAGE - 600, 600), (2, 600, 1)),
        (at(PAGE, 3000).keep(), (1, 3000, 0)),
        (at(PAGE, 100), (1, 100, 0)),
        (at(PAGE - 1, 3000), (1, 3000, 0)),
        (at(4 * PAGE - 600, 601), (1, 601, 0)),
        (at(6 * PAGE, 3000), (1, 3000, 0)),
    ] {
        assert_eq!(echo(&mut device, &pages, extent), found, "{extent:?}");
    }
    drop(registration);
    assert_eq!(echo(&mut device, &pages, at(PAGE, 3000)), (1, 3000, 0), "nothing is registered any more");
}

#[test]
fn what_is_not_registered_says_why() {
    let _alone = alone();
    let (device, memory) = open("ring");
    let pages = Pages::new(4);
    let registered = pages.register(&memory, 0, 2 * PAGE).unwrap();
    let refused = |offset, len| pages.register(&memory, offset, len).unwrap_err().to_string();
    assert!(refused(PAGE, 2 * PAGE).contains("registered already"));
    assert!(refused(2 * PAGE + 1, 2 * PAGE - 2).contains("no whole page"));
    // A second port reads the same.
    let (_second, of_second) = open("ring");
    let twice = pages.register(&of_second, 0, 2 * PAGE).unwrap();
    drop(registered);
    assert!(pages.register(&of_second, PAGE, PAGE).is_err());
    drop(twice);
    drop(pages.register(&memory, PAGE, 2 * PAGE).unwrap());
    let (_null, of_null) = open("null");
    assert!(pages.register(&of_null, 0, PAGE).unwrap_err().to_string().contains("does not read payload"));
    drop(device);
    assert!(refused(0, PAGE).contains("closed"));
}

/// Buffers in a ring refer to memory, and to the count that goes with it, when the port is taken down.
#[test]
fn a_port_goes_with_lent_frames_in_its_ring_and_ends_its_registrations() {
    let _alone = alone();
    let pages = Pages::new(2);
    for round in 0..3 {
        let (mut device, memory) = open("ring");
        let registration = pages.register(&memory, 0, 2 * PAGE).unwrap();
        let mut batch = TxBatch::with_capacity(64);
        while batch.room() > 0 {
            batch.push(Frame::new(&[&[0; 14]], Some(pages.extent(0, 2 * PAGE as u32).lend())).unwrap());
        }
        let sent = device.transmit(Instant::ZERO, &mut batch);
        assert!(sent > 8 && device.counters().tx_uncopied == sent as u64, "{sent}");
        match round {
            // While the ring refers to it.
            0 => drop((registration, device)),
            1 => drop((device, registration)),
            // For as long as the process lives, which the port does not.
            _ => core::mem::forget((drop(device), registration)),
        }
    }
    // SAFETY: nothing reads them any more.
    assert!(unsafe { slice::from_raw_parts(pages.0.as_ptr(), pages.1) }.iter().all(|byte| *byte == 0));
    let (_device, memory) = open("ring");
    pages.register(&memory, 0, PAGE).unwrap();
}
