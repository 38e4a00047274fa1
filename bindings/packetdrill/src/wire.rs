//! The device under the stack: a queue of IP packets in each direction. Ethernet headers are added to incoming packets
//! and removed from outgoing ones, so that scripts see only IP packets.

use std::collections::VecDeque;

use shouter_netstack::device::{Capabilities, Device, DeviceCounters, RxFrame, TxBatch};
use shouter_netstack::time::Instant;

/// The stack's MAC address.
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The MAC address of the only other station: the router to all hosts.
pub(crate) const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Bytes of an Ethernet header.
const LINK_HEADER: usize = 14;

/// The largest number of waiting outgoing packets; more are dropped, which affects only scripts that do not read them.
const MAX_WAITING: usize = 1 << 16;

/// A packet that left the stack.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) packet: Vec<u8>,
}

/// Whether a frame carries an IP packet other than neighbour discovery's (RFC 4861 section 4: ICMPv6 types 133 to 137).
fn is_for_scripts(frame: &[u8]) -> bool {
    match frame.get(12..LINK_HEADER) {
        Some([0x08, 0x00]) => true,
        Some([0x86, 0xdd]) => {
            let is_icmp = frame.get(LINK_HEADER + 6) == Some(&58);
            !(is_icmp && matches!(frame.get(LINK_HEADER + 40), Some(133..=137)))
        }
        _ => false,
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Wire {
    capabilities: Capabilities,
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Sent>,
    counters: DeviceCounters,
}

impl Wire {
    pub(crate) fn new(mtu: u16) -> Self {
        Self {
            capabilities: Capabilities::plain("packetdrill", mtu, 64),
            incoming: VecDeque::new(),
            outgoing: VecDeque::new(),
            counters: DeviceCounters::default(),
        }
    }

    /// Gives the stack an IP packet; false if it is not one.
    pub(crate) fn inject(&mut self, packet: &[u8]) -> bool {
        let ether_type: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
            Some(4) => [0x08, 0x00],
            Some(6) => [0x86, 0xdd],
            _ => return false,
        };
        self.incoming.push_back([&OURS, &ROUTER, ether_type.as_slice(), packet].concat());
        true
    }

    /// Takes the oldest packet that left.
    pub(crate) fn take(&mut self) -> Option<Sent> {
        self.outgoing.pop_front()
    }
}

// SAFETY: frames are read within `transmit`, which copies them, and stay in their batch until then.
#[allow(unsafe_code)]
unsafe impl Device for Wire {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        OURS
    }

    fn link_up(&mut self) -> bool {
        true
    }

    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        let count = batch.frames().len();
        for frame in batch.frames() {
            let bytes: Vec<u8> = frame.pieces().flatten().copied().collect();
            let longest = usize::from(self.capabilities.mtu) + LINK_HEADER;
            // Scripts do not see the link's own packets.
            if !is_for_scripts(&bytes)
                || bytes.len() > longest
                || !frame.offload().is_none()
                || self.outgoing.len() >= MAX_WAITING
            {
                self.counters.dropped += 1;
                continue;
            }
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += bytes.len() as u64;
            self.outgoing
                .push_back(Sent { at: now, packet: bytes.get(LINK_HEADER..).unwrap_or_default().to_vec() });
        }
        batch.consume(count);
        count
    }

    fn receive(&mut self, _: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let count = budget.min(self.incoming.len());
        for frame in self.incoming.drain(..count) {
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
            sink(RxFrame::new(&frame));
        }
        count
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
