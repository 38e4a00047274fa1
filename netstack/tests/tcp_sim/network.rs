//! One direction of a path: a line with a queue before it, and what goes wrong on it.

use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{Destination, Emit, Emitted, Path};
use shouter_netstack::time::Instant;

/// Ethernet, IP, preamble, check sequence and gap: what a segment costs on the line beside itself, in bytes.
const OVERHEAD: u64 = 20 + 14 + 8 + 4 + 12;

#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) bits_per_second: u64,
    pub(crate) delay: Duration,
    /// Packets that may wait.
    pub(crate) queue: usize,
    /// Packets above which those that may be are marked.
    pub(crate) mark_above: usize,
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    /// How many are held up, and for how long at most.
    pub(crate) reorder: f64,
    pub(crate) reorder_by: Duration,
    /// What a packet takes longer on the line, at most; they stay in order. It breaks the lockstep in which flows of
    /// a simulation without chance would stay.
    pub(crate) jitter: Duration,
    pub(crate) mtu: u16,
    /// Bytes that one call may hand over, to be cut into segments.
    pub(crate) super_segment: u32,
}

impl Link {
    /// A clean line.
    pub(crate) fn new(bits_per_second: u64, delay: Duration) -> Self {
        Self {
            bits_per_second,
            delay,
            queue: 256,
            mark_above: usize::MAX,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            jitter: Duration::ZERO,
            mtu: 1500,
            super_segment: 64 * 1024,
        }
    }

    fn line_time(&self, len: usize) -> Duration {
        Duration::from_nanos((len as u64 + OVERHEAD) * 8 * 1_000_000_000 / self.bits_per_second)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) header: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) ect: bool,
    pub(crate) marked: bool,
}

impl Packet {
    pub(crate) fn seq(&self) -> u32 {
        u32::from_be_bytes(self.header[4..8].try_into().unwrap())
    }
}

#[derive(Debug)]
struct Arrival {
    at: Instant,
    order: u64,
    packet: Packet,
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Arrival {}
impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Decides about each packet before anything else does: false loses it.
pub(crate) type Rule = Box<dyn FnMut(Instant, &Packet) -> bool>;

/// What happened to packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) overflowed: u64,
    pub(crate) marked: u64,
    pub(crate) reordered: u64,
}

pub(crate) struct Direction {
    pub(crate) link: Link,
    pub(crate) cut: bool,
    pub(crate) rule: Option<Rule>,
    pub(crate) tally: Tally,
    rng: SmallRng,
    free_at: Instant,
    /// When the packets on the line and before it have left it.
    leaving: std::collections::VecDeque<Instant>,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    order: u64,
}

impl Direction {
    pub(crate) fn new(link: Link, seed: u64) -> Self {
        Self {
            link,
            cut: false,
            rule: None,
            tally: Tally::default(),
            rng: SmallRng::seed_from_u64(seed),
            free_at: Instant::ZERO,
            leaving: Default::default(),
            arrivals: BinaryHeap::new(),
            order: 0,
        }
    }

    fn roll(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random::<f64>() < probability
    }

    pub(crate) fn send(&mut self, now: Instant, mut packet: Packet) {
        self.tally.sent += 1;
        if self.rule.as_mut().is_some_and(|rule| !rule(now, &packet)) || self.cut || self.roll(self.link.loss)
        {
            self.tally.lost += 1;
            return;
        }
        while self.leaving.front().is_some_and(|at| *at <= now) {
            self.leaving.pop_front();
        }
        if self.leaving.len() >= self.link.queue {
            self.tally.overflowed += 1;
            return;
        }
        if packet.ect && self.leaving.len() > self.link.mark_above {
            packet.marked = true;
            self.tally.marked += 1;
        }
        let len = packet.header.len() + packet.payload.len();
        self.free_at = self.free_at.max(now) + self.link.line_time(len);
        if !self.link.jitter.is_zero() {
            self.free_at += self.link.jitter.mul_f64(self.rng.random());
        }
        self.leaving.push_back(self.free_at);
        let copies = if self.roll(self.link.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let mut at = self.free_at + self.link.delay;
            if self.roll(self.link.reorder) {
                self.tally.reordered += 1;
                at += self.link.reorder_by.mul_f64(self.rng.random());
            }
            self.order += 1;
            self.arrivals.push(Reverse(Arrival { at, order: self.order, packet: packet.clone() }));
        }
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.arrivals.peek().map(|Reverse(arrival)| arrival.at)
    }

    pub(crate) fn receive(&mut self, now: Instant) -> Option<Packet> {
        if self.next_arrival()? > now {
            return None;
        }
        self.arrivals.pop().map(|Reverse(arrival)| arrival.packet)
    }
}

/// What an endpoint sends through: cuts super-segments as a device would.
pub(crate) struct Outlet<'a> {
    pub(crate) now: Instant,
    pub(crate) way: &'a mut Direction,
}

impl Emit for Outlet<'_> {
    fn path(&mut self, _: IpAddr, _: IpAddr) -> Option<Path> {
        Some(Path {
            mtu: self.way.link.mtu,
            max_payload: self.way.link.super_segment,
            max_extents: 4,
            max_segments: u32::MAX,
        })
    }

    fn source(&mut self, _: IpAddr) -> Option<IpAddr> {
        None
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted {
        const FIN: u8 = 1;
        const PSH: u8 = 8;
        const CWR: u8 = 128;
        let bytes = payload.iter().map(Extent::as_bytes).collect::<Vec<_>>().concat();
        assert!(bytes.len() <= self.way.link.super_segment as usize);
        let size = if segment_size == 0 { bytes.len() } else { usize::from(segment_size) }.max(1);
        let count = bytes.len().div_ceil(size).max(1);
        for i in 0..count {
            let part = bytes[i * size..bytes.len().min((i + 1) * size)].to_vec();
            let mut header = header.to_vec();
            let seq = u32::from_be_bytes(header[4..8].try_into().unwrap()).wrapping_add((i * size) as u32);
            header[4..8].copy_from_slice(&seq.to_be_bytes());
            if i + 1 < count {
                header[13] &= !(FIN | PSH);
            }
            if i > 0 {
                header[13] &= !CWR;
            }
            assert!(header.len() + part.len() + 20 <= usize::from(self.way.link.mtu), "larger than the MTU");
            let packet = Packet {
                source: to.local,
                destination: to.remote,
                header,
                payload: part,
                ect: to.ect,
                marked: false,
            };
            self.way.send(self.now, packet);
        }
        Emitted::Sent
    }
}
