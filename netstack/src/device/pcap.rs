//! A device that records all frames that pass through it, in both directions, as a packet capture.
//!
//! The format is the classic libpcap file with nanosecond time stamps (draft-ietf-opsawg-pcap); Wireshark and
//! tcpdump open it. The writer is the caller's: a file, a pipe, a vector.
//!
//! Frames are recorded as they pass: with a device that has offloads a super-segment is one record, and a checksum that is
//! left to the device is zero in it.

use core::fmt;
use core::time::Duration;
use std::io;

use super::{Announce, Capabilities, Device, DeviceCounters, Frame, RxFrame, TxBatch, Wakes};
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// Magic number of files with nanosecond time stamps, in the writer's byte order (ours is always little-endian).
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// Larger than any frame, so nothing is cut.
const SNAP_LEN: u32 = 262_144;

/// Wraps a device and records its traffic.
///
/// Transmitted frames are recorded when the inner device takes them: frames that a `Fault` outside of it drops are
/// absent, frames that a `Fault` inside of it drops are there. If the writer fails, recording stops, traffic goes on,
/// and [`Pcap::error`] says why.
///
/// ```
/// use core::time::Duration;
/// use shouter_netstack::device::{Loopback, Pcap};
/// use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
/// use shouter_netstack::time::Instant;
///
/// let (device, _peer) = Loopback::pair(1500, 64);
/// // In place of the vector a file: std::fs::File::create("port.pcap")?
/// let device = Pcap::new(device, Vec::new(), Duration::ZERO);
/// let mut stack = Stack::new(StackConfig::new(1));
/// let port = stack.add_port(device, PortConfig::new([10, 0, 0, 1].into(), 24, 1500))?;
/// stack.ping(Instant::ZERO, [10, 0, 0, 2], 1, 1, b"hello")?;
/// stack.poll(Instant::ZERO);
/// let pcap = stack.device(port).unwrap();
/// assert!(pcap.recorded() > 0 && pcap.error().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pcap<D, W> {
    inner: D,
    writer: W,
    /// Added to time stamps, to turn the driver's time into time since 1970.
    epoch: Duration,
    error: Option<io::Error>,
    offered: Vec<Frame>,
    recorded: u64,
}

impl<D: Device, W: io::Write> Pcap<D, W> {
    /// Records the frames of `inner` to `writer`. `epoch` is the time since 1970 at [`Instant::ZERO`]; zero is fine
    /// where absolute time does not matter.
    pub fn new(inner: D, mut writer: W, epoch: Duration) -> Self {
        let mut header = [0; 24];
        header[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&SNAP_LEN.to_le_bytes());
        header[20..].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        let error = writer.write_all(&header).err();
        Self { inner, writer, epoch, error, offered: Vec::new(), recorded: 0 }
    }

    /// Why recording stopped, if it did.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// How many frames were recorded.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// The wrapped device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Flushes the writer and gives back the device and the writer.
    pub fn into_parts(mut self) -> (D, W) {
        // A failed flush shows at the writer, which the caller now holds.
        let _ = self.writer.flush();
        (self.inner, self.writer)
    }
}

/// Writes one record; after the first failure it does nothing.
fn record<'a>(
    writer: &mut impl io::Write,
    error: &mut Option<io::Error>,
    recorded: &mut u64,
    time: Duration,
    len: usize,
    mut pieces: impl Iterator<Item = &'a [u8]>,
) {
    if error.is_some() {
        return;
    }
    let len = len as u32;
    let mut header = [0; 16];
    header[..4].copy_from_slice(&(time.as_secs() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&time.subsec_nanos().to_le_bytes());
    header[8..12].copy_from_slice(&len.to_le_bytes());
    header[12..].copy_from_slice(&len.to_le_bytes());
    let written =
        writer.write_all(&header).and_then(|()| pieces.try_for_each(|piece| writer.write_all(piece)));
    match written {
        Ok(()) => *recorded += 1,
        Err(failure) => *error = Some(failure),
    }
}

impl<D: fmt::Debug, W> fmt::Debug for Pcap<D, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pcap")
            .field("inner", &self.inner)
            .field("recorded", &self.recorded)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

// SAFETY: frames are written to the file within `transmit`; all else is the inner device's.
#[allow(unsafe_code)]
unsafe impl<D: Device, W: io::Write> Device for Pcap<D, W> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn link_up(&mut self) -> bool {
        self.inner.link_up()
    }

    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        // The batch drops the frames that the device takes; extents stay readable until this returns.
        self.offered.clear();
        self.offered.extend_from_slice(batch.frames());
        let taken = self.inner.transmit(now, batch);
        let time = Duration::from_nanos(now.as_nanos()).saturating_add(self.epoch);
        for frame in self.offered.iter().take(taken) {
            record(&mut self.writer, &mut self.error, &mut self.recorded, time, frame.len(), frame.pieces());
        }
        self.offered.clear();
        taken
    }

    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let Self { inner, writer, epoch, error, recorded, .. } = self;
        let time = Duration::from_nanos(now.as_nanos()).saturating_add(*epoch);
        inner.receive(now, budget, &mut |frame| {
            record(writer, error, recorded, time, frame.len(), frame.pieces());
            sink(frame);
        })
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    fn holds_extents(&self) -> bool {
        self.inner.holds_extents()
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        self.inner.arm(announce)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn drop_waiting(&mut self) {
        self.inner.drop_waiting();
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
