//! A switch, with a link to each host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use rand::rngs::SmallRng;

use super::link::{Link, LinkConfig, LinkCounters, Packet};
use crate::device::{Capabilities, Device, DeviceCounters, RxFrame, TxBatch, segment};
use crate::time::Instant;
use crate::wire::ethernet::{self, Mac};
use crate::wire::ip::Ecn;
use crate::wire::{checksum, ipv4, ipv6, vlan};

/// Preamble, start delimiter, frame check sequence and the gap between frames, in bytes: they take time on a link.
const LINE_OVERHEAD: u64 = 8 + 4 + 12;
/// The shortest frame without its check sequence.
const SHORTEST_FRAME: u64 = 60;

/// A frame in flight.
#[derive(Clone, Debug)]
struct Carried(Arc<[u8]>);

impl Packet for Carried {
    fn line_len(&self) -> u64 {
        (self.0.len() as u64).max(SHORTEST_FRAME) + LINE_OVERHEAD
    }

    /// Marks only an untagged IP packet whose sender takes part in ECN.
    fn mark(&mut self) -> bool {
        let mut bytes = self.0.to_vec();
        let marked = match bytes.get_mut(ethernet::HEADER_LEN - 2..) {
            Some([0x08, 0x00, ip @ ..]) if ip.len() >= ipv4::HEADER_LEN && Ecn::of(ip[1]) != Ecn::NotEct => {
                let word = |ip: &[u8], at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
                let (sum, old) = (word(ip, 10), word(ip, 0));
                ip[1] |= Ecn::Ce.bits();
                let sum = checksum::update(sum, old, word(ip, 0));
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                true
            }
            Some([0x86, 0xdd, ip @ ..])
                if ip.len() >= ipv6::HEADER_LEN && Ecn::of(ip[1] >> 4) != Ecn::NotEct =>
            {
                ip[1] |= Ecn::Ce.bits() << 4;
                true
            }
            _ => false,
        };
        if marked {
            self.0 = bytes.into();
        }
        marked
    }

    fn corrupt(&mut self, rng: &mut SmallRng) {
        let mut bytes = self.0.to_vec();
        let bit = rng.random_range(0..bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.0 = bytes.into();
    }
}

#[derive(Debug)]
struct Host {
    up: Link<Carried>,
    down: Link<Carried>,
}

#[derive(Debug)]
struct Fabric {
    seed: u64,
    hosts: Vec<Host>,
    by_mac: BTreeMap<Mac, usize>,
}

impl Fabric {
    /// The host whose frame reaches the switch first, and when.
    fn first_at_switch(&self) -> Option<(Instant, usize)> {
        let arrivals = self.hosts.iter().enumerate();
        arrivals.filter_map(|(from, host)| Some((host.up.next_arrival()?, from))).min()
    }

    /// Lets the switch forward everything that has reached it.
    fn advance(&mut self, now: Instant) {
        while let Some((at, from)) = self.first_at_switch().filter(|(at, _)| *at <= now) {
            let Some(Carried(frame)) = self.hosts[from].up.receive(at) else { return };
            let destination = ethernet::Frame::new(&frame).map(|frame| frame.destination());
            match destination.ok().and_then(|mac| self.by_mac.get(&mac)) {
                Some(&to) => self.hosts[to].down.send(at, Carried(frame)),
                // To all, or to a station that the switch does not know.
                None => {
                    for (to, host) in self.hosts.iter_mut().enumerate() {
                        if to != from {
                            host.down.send(at, Carried(Arc::clone(&frame)));
                        }
                    }
                }
            }
        }
    }
}

/// The state stays whole after a panic elsewhere.
fn lock(fabric: &Mutex<Fabric>) -> MutexGuard<'_, Fabric> {
    fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A switch with hosts around it.
#[derive(Clone, Debug)]
pub struct Network {
    fabric: Arc<Mutex<Fabric>>,
}

impl Network {
    /// A network without hosts. Losses follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { fabric: Arc::new(Mutex::new(Fabric { seed, hosts: Vec::new(), by_mac: BTreeMap::new() })) }
    }

    /// Attaches a host by a link that is the same in both directions; its address is 02:51 followed by its number, from 1.
    /// A full queue on the host's side is back pressure, at the switch it is loss.
    pub fn attach(&self, mtu: u16, link: LinkConfig) -> SimDevice {
        self.attach_to_port(mtu, link, link)
    }

    /// The same by a link with other properties from the switch's port to the host, as its buffer (see
    /// [`LinkConfig::queue_bytes`] and [`LinkConfig::mark_above_bytes`]) than from the host.
    pub fn attach_to_port(&self, mtu: u16, link: LinkConfig, port: LinkConfig) -> SimDevice {
        let mut fabric = lock(&self.fabric);
        let index = fabric.hosts.len();
        let [a, b, c, d] = (index as u32 + 1).to_be_bytes();
        let mac = Mac([0x02, 0x51, a, b, c, d]);
        fabric.by_mac.insert(mac, index);
        let seed = fabric.seed.wrapping_mul(1 << 16).wrapping_add(2 * index as u64);
        fabric.hosts.push(Host { up: Link::new(link, seed), down: Link::new(port, seed + 1) });
        SimDevice {
            fabric: Arc::clone(&self.fabric),
            index,
            mac,
            capabilities: Capabilities::plain("simulated", mtu, 64),
            counters: DeviceCounters::default(),
        }
    }

    /// Cuts or mends the link of the host that was attached as number `host`, from 0. Frames on a cut link are
    /// lost, those in flight too; the host is not notified. An unknown host changes nothing.
    pub fn set_cut(&self, host: usize, cut: bool) {
        self.set_cut_each(host, [cut; 2]);
    }

    /// The same for each direction by itself: from the host, and to it.
    pub fn set_cut_each(&self, host: usize, cut: [bool; 2]) {
        if let Some(host) = lock(&self.fabric).hosts.get_mut(host) {
            for (link, cut) in [&mut host.up, &mut host.down].into_iter().zip(cut) {
                link.cut = cut;
                link.retain(|_| !cut);
            }
        }
    }

    /// Counters of a host's link: from it, and to it.
    pub fn counters(&self, host: usize) -> [LinkCounters; 2] {
        let fabric = lock(&self.fabric);
        fabric
            .hosts
            .get(host)
            .map_or_else(Default::default, |host| [host.up.counters(), host.down.counters()])
    }

    /// When something happens next in the network: a frame reaches the switch or a host, or a full line has room.
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let events = |host: &Host| [host.up.next_arrival(), host.down.next_arrival(), host.up.room_at(now)];
        lock(&self.fabric).hosts.iter().flat_map(events).flatten().min()
    }
}

/// A host's end of its link.
#[derive(Debug)]
pub struct SimDevice {
    fabric: Arc<Mutex<Fabric>>,
    index: usize,
    mac: Mac,
    capabilities: Capabilities,
    counters: DeviceCounters,
}

impl SimDevice {
    /// The same with a NIC that fills in transport checksums and splits super-segments, as they leave the host.
    #[must_use]
    pub fn with_offloads(mut self) -> Self {
        self.capabilities.tx_tcp_checksum = true;
        self.capabilities.tx_udp_checksum = true;
        self.capabilities.tso_max = u32::from(u16::MAX);
        self
    }

    /// The host's number in the network, from 0.
    pub fn host(&self) -> usize {
        self.index
    }
}

// SAFETY: frames are read within `transmit`, which copies them, and stay in their batch until then.
#[allow(unsafe_code)]
unsafe impl Device for SimDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        self.mac.0
    }

    fn link_up(&mut self) -> bool {
        true
    }

    /// Reads the payload of each frame now, as a NIC does.
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        let longest = usize::from(self.capabilities.mtu) + ethernet::HEADER_LEN + vlan::TAG_LEN;
        let mut fabric = lock(&self.fabric);
        let up = &mut fabric.hosts[self.index].up;
        let mut taken = 0;
        for frame in batch.frames() {
            if !up.has_room(now) {
                break;
            }
            taken += 1;
            let ip_len = frame.len().saturating_sub(ethernet::HEADER_LEN);
            if !self.capabilities.can(frame.offload(), ip_len) {
                self.counters.dropped += 1;
                continue;
            }
            for sent in segment::segments(frame) {
                match segment::fill_checksum(sent).filter(|sent| sent.len() <= longest) {
                    Some(sent) => {
                        let mut bytes = Vec::with_capacity(sent.len());
                        sent.pieces().for_each(|piece| bytes.extend_from_slice(piece));
                        self.counters.tx_frames += 1;
                        self.counters.tx_bytes += bytes.len() as u64;
                        up.send_unlimited(now, Carried(bytes.into()));
                    }
                    None => self.counters.dropped += 1,
                }
            }
        }
        batch.consume(taken);
        taken
    }

    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        for count in 0..budget {
            let mut fabric = lock(&self.fabric);
            fabric.advance(now);
            let Some(Carried(frame)) = fabric.hosts[self.index].down.receive(now) else { return count };
            // Not borrowed while the sink runs.
            drop(fabric);
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
            sink(RxFrame::new(&frame));
        }
        budget
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}
