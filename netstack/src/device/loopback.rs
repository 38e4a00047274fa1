//! Two devices in memory, back to back: each receives the frames that the other transmits.

use core::fmt;

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Capabilities, Device, DeviceCounters, Offload, RxChecksum, RxFrame, TxBatch};
use crate::time::Instant;
use crate::wire::{ethernet, vlan};

/// Bytes in front of the IP packet in the longest frame.
const LINK_HEADER: usize = ethernet::HEADER_LEN + vlan::TAG_LEN;

/// The sending end of one direction. Buffers go round between `waiting` and `spare`, and each ring has room for all of them.
struct Outgoing {
    waiting: Producer<(Vec<u8>, Offload)>,
    spare: Consumer<Vec<u8>>,
}

/// The receiving end of one direction.
struct Incoming {
    waiting: Consumer<(Vec<u8>, Offload)>,
    spare: Producer<Vec<u8>>,
}

/// One direction, with room for `capacity` frames of `frame_len` bytes.
fn direction(capacity: usize, frame_len: usize) -> (Outgoing, Incoming) {
    let (to, from) = RingBuffer::new(capacity);
    let (mut back, spare) = RingBuffer::new(capacity);
    while back.push(Vec::with_capacity(frame_len)).is_ok() {}
    (Outgoing { waiting: to, spare }, Incoming { waiting: from, spare: back })
}

/// One end of a pair of in-memory devices. The ends may be driven by different threads.
///
/// Frames are copied at transmit, so extents are never held. A full ring takes no more frames (back pressure, not
/// loss). Frames longer than the MTU allows are dropped and counted, as a switch would. With
/// [`Loopback::pair_with_offloads`] the ends trust each other as the ends of a vhost link do: super-segments pass whole,
/// checksums are left out, and the receiver learns so.
///
/// ```
/// use shouter_netstack::device::{Device, Frame, Loopback, TxBatch};
/// use shouter_netstack::time::Instant;
///
/// let (mut a, mut b) = Loopback::pair(1500, 16);
/// let mut batch = TxBatch::with_capacity(8);
/// batch.push(Frame::new(&[&b.mac(), &a.mac(), &[0x88, 0xb5], b"hello"], None).unwrap());
/// assert_eq!(a.transmit(Instant::ZERO, &mut batch), 1);
/// let mut seen = Vec::new();
/// b.receive(Instant::ZERO, 32, &mut |frame| seen.push(frame.head()[14..].to_vec()));
/// assert_eq!(seen, [b"hello"]);
/// ```
pub struct Loopback {
    capabilities: Capabilities,
    mac: [u8; 6],
    outgoing: Outgoing,
    incoming: Incoming,
    counters: DeviceCounters,
}

impl Loopback {
    /// Two connected devices with the given MTU and room for `capacity` frames in each direction. Their addresses
    /// are 02:00:00:00:00:01 and 02:00:00:00:00:02.
    pub fn pair(mtu: u16, capacity: usize) -> (Self, Self) {
        Self::connect(Capabilities::plain("loopback", mtu, capacity.clamp(1, 64) as u16), capacity)
    }

    /// The same with all offloads: checksums are not filled in, and super-segments of any length pass in one frame.
    pub fn pair_with_offloads(mtu: u16, capacity: usize) -> (Self, Self) {
        let capabilities = Capabilities::offloading("loopback", mtu, capacity.clamp(1, 64) as u16);
        Self::connect(capabilities, capacity)
    }

    fn connect(capabilities: Capabilities, capacity: usize) -> (Self, Self) {
        let frame_len = usize::from(capabilities.mtu) + LINK_HEADER;
        let (there, from_there) = direction(capacity, frame_len);
        let (back, from_back) = direction(capacity, frame_len);
        let end = |last, outgoing, incoming| Self {
            capabilities: capabilities.clone(),
            mac: [2, 0, 0, 0, 0, last],
            outgoing,
            incoming,
            counters: DeviceCounters::default(),
        };
        (end(1, there, from_back), end(2, back, from_there))
    }

    /// The same device under another address.
    #[must_use]
    pub fn with_mac(mut self, mac: [u8; 6]) -> Self {
        self.mac = mac;
        self
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback")
            .field("capabilities", &self.capabilities)
            .field("mac", &self.mac)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

// SAFETY: frames are read within `transmit`, which copies them, and stay in their batch until then.
#[allow(unsafe_code)]
unsafe impl Device for Loopback {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn link_up(&mut self) -> bool {
        !self.outgoing.waiting.is_abandoned()
    }

    fn transmit(&mut self, _now: Instant, batch: &mut TxBatch) -> usize {
        let capabilities = &self.capabilities;
        let longest = usize::from(capabilities.mtu) + LINK_HEADER;
        let Outgoing { waiting, spare } = &mut self.outgoing;
        let mut taken = 0;
        for frame in batch.frames() {
            let offload = frame.offload();
            let fits = if offload.is_none() {
                frame.len() <= longest
            } else {
                let ip_len = frame.len().saturating_sub(usize::from(offload.l3_offset));
                let splits = offload.segment_size > 0;
                (splits || frame.len() <= longest) && capabilities.can(offload, ip_len)
            };
            if !fits {
                self.counters.dropped += 1;
                taken += 1;
                continue;
            }
            let Ok(mut buffer) = spare.pop() else {
                break;
            };
            buffer.clear();
            buffer.extend_from_slice(frame.header());
            for extent in frame.extents() {
                buffer.extend_from_slice(extent.as_bytes());
            }
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += buffer.len() as u64;
            taken += usize::from(waiting.push((buffer, offload)).is_ok());
        }
        batch.consume(taken);
        taken
    }

    fn receive(&mut self, _now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let Incoming { waiting, spare } = &mut self.incoming;
        let mut count = 0;
        while count < budget
            && let Ok((buffer, offload)) = waiting.pop()
        {
            count += 1;
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += buffer.len() as u64;
            let checksum = if offload.is_none() { RxChecksum::Unknown } else { RxChecksum::Verified };
            sink(RxFrame::new(&buffer).described(checksum, offload.segment_size));
            // It came from there: there is room.
            spare.push(buffer).ok();
        }
        count
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
