//! Links and a switch, as a queue of events.

use core::time::Duration;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::device::{Capabilities, Device, DeviceCounters, RxFrame, TxBatch, segment};
use crate::time::Instant;
use crate::wire::ethernet::{self, Mac};
use crate::wire::vlan;

/// Preamble, start delimiter, frame check sequence and the gap between frames, in bytes: they take time on a link.
const LINE_OVERHEAD: u64 = 8 + 4 + 12;
/// The shortest frame without its check sequence.
const SHORTEST_FRAME: u64 = 60;

/// A link between a host and the switch, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second; 0 for no limit.
    pub bits_per_second: u64,
    /// Propagation time.
    pub delay: Duration,
    /// Frames that may wait for the line. On the host's side a full queue is back pressure, at the switch it is loss.
    pub queue_frames: usize,
    /// Probability that a frame is lost, from 0 to 1.
    pub loss: f64,
}

impl Default for LinkConfig {
    /// 100 Gb/s, 1 us, 256 frames, no loss.
    fn default() -> Self {
        Self {
            bits_per_second: 100_000_000_000,
            delay: Duration::from_micros(1),
            queue_frames: 256,
            loss: 0.0,
        }
    }
}

impl LinkConfig {
    /// How long the line is busy with a frame of `len` bytes.
    fn line_time(&self, len: usize) -> Duration {
        let bits = ((len as u64).max(SHORTEST_FRAME) + LINE_OVERHEAD) * 8;
        let nanos = u128::from(bits) * 1_000_000_000 / u128::from(self.bits_per_second.max(1));
        if self.bits_per_second == 0 { Duration::ZERO } else { Duration::from_nanos(nanos as u64) }
    }
}

/// What happened on a host's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames lost at random, both directions.
    pub lost: u64,
    /// Frames dropped at the switch because the queue towards the host was full.
    pub queue_drops: u64,
    /// Frames dropped because the link was cut.
    pub cut_drops: u64,
    /// The most frames that ever waited at the switch for this host.
    pub deepest_queue: usize,
}

/// A line in one direction: frames leave it one after the other.
#[derive(Debug, Default)]
struct Line {
    free_at: Instant,
    /// When each frame that was put on the line has left it, oldest first.
    leaving: VecDeque<Instant>,
}

impl Line {
    /// Forgets frames that have left.
    fn advance(&mut self, now: Instant) {
        while self.leaving.front().is_some_and(|at| *at <= now) {
            self.leaving.pop_front();
        }
    }

    /// Puts a frame on the line; returns when it has left.
    fn put(&mut self, now: Instant, takes: Duration) -> Instant {
        self.free_at = self.free_at.max(now) + takes;
        self.leaving.push_back(self.free_at);
        self.free_at
    }
}

#[derive(Debug)]
struct Host {
    link: LinkConfig,
    cut: bool,
    up: Line,
    down: Line,
    inbox: VecDeque<(Instant, Rc<[u8]>)>,
    counters: LinkCounters,
}

/// A frame that reaches the switch.
#[derive(Debug)]
struct Arrival {
    at: Instant,
    order: u64,
    from: usize,
    frame: Rc<[u8]>,
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

#[derive(Debug)]
struct Fabric {
    rng: SmallRng,
    hosts: Vec<Host>,
    by_mac: BTreeMap<Mac, usize>,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    order: u64,
}

impl Fabric {
    fn lose(&mut self, host: usize) -> bool {
        let host = &mut self.hosts[host];
        if host.cut {
            host.counters.cut_drops += 1;
            return true;
        }
        let lost = host.link.loss > 0.0 && self.rng.random::<f64>() < host.link.loss;
        host.counters.lost += u64::from(lost);
        lost
    }

    /// Lets the switch forward everything that has reached it.
    fn advance(&mut self, now: Instant) {
        while self.arrivals.peek().is_some_and(|Reverse(arrival)| arrival.at <= now) {
            let Some(Reverse(arrival)) = self.arrivals.pop() else {
                return;
            };
            let destination = ethernet::Frame::new(&arrival.frame).map(|frame| frame.destination());
            match destination.ok().and_then(|mac| self.by_mac.get(&mac)) {
                Some(&to) => self.forward(to, &arrival),
                // To all, or to a station that the switch does not know.
                None => {
                    for to in (0..self.hosts.len()).filter(|&to| to != arrival.from) {
                        self.forward(to, &arrival);
                    }
                }
            }
        }
    }

    fn forward(&mut self, to: usize, arrival: &Arrival) {
        if self.lose(to) {
            return;
        }
        let host = &mut self.hosts[to];
        host.down.advance(arrival.at);
        if host.down.leaving.len() >= host.link.queue_frames {
            host.counters.queue_drops += 1;
            return;
        }
        let left = host.down.put(arrival.at, host.link.line_time(arrival.frame.len()));
        host.counters.deepest_queue = host.counters.deepest_queue.max(host.down.leaving.len());
        host.inbox.push_back((left + host.link.delay, Rc::clone(&arrival.frame)));
    }

    fn send(&mut self, now: Instant, from: usize, frame: Rc<[u8]>) {
        let host = &mut self.hosts[from];
        let left = host.up.put(now, host.link.line_time(frame.len()));
        let at = left + host.link.delay;
        if !self.lose(from) {
            self.order += 1;
            self.arrivals.push(Reverse(Arrival { at, order: self.order, from, frame }));
        }
    }
}

/// A switch with hosts around it.
#[derive(Clone, Debug)]
pub struct Network {
    fabric: Rc<RefCell<Fabric>>,
}

impl Network {
    /// A network without hosts. What is lost follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            fabric: Rc::new(RefCell::new(Fabric {
                rng: SmallRng::seed_from_u64(seed),
                hosts: Vec::new(),
                by_mac: BTreeMap::new(),
                arrivals: BinaryHeap::new(),
                order: 0,
            })),
        }
    }

    /// Attaches a host; its address is 02:51 followed by its number, from 1.
    pub fn attach(&self, mtu: u16, link: LinkConfig) -> SimDevice {
        let mut fabric = self.fabric.borrow_mut();
        let index = fabric.hosts.len();
        let [a, b, c, d] = (index as u32 + 1).to_be_bytes();
        let mac = Mac([0x02, 0x51, a, b, c, d]);
        fabric.by_mac.insert(mac, index);
        fabric.hosts.push(Host {
            link,
            cut: false,
            up: Line::default(),
            down: Line::default(),
            inbox: VecDeque::new(),
            counters: LinkCounters::default(),
        });
        SimDevice {
            fabric: Rc::clone(&self.fabric),
            index,
            mac,
            capabilities: Capabilities::plain("simulated", mtu, 64),
            counters: DeviceCounters::default(),
        }
    }

    /// Cuts or mends the link of the host that was attached as number `host`, from 0. Frames on a cut link are
    /// lost; the host is not told. Of a host that there is not, nothing is changed.
    pub fn set_cut(&self, host: usize, cut: bool) {
        if let Some(host) = self.fabric.borrow_mut().hosts.get_mut(host) {
            host.cut = cut;
        }
    }

    /// What happened on a host's link.
    pub fn counters(&self, host: usize) -> LinkCounters {
        self.fabric.borrow().hosts.get(host).map_or_else(LinkCounters::default, |host| host.counters)
    }

    /// When something happens next in the network: a frame reaches the switch or a host, or a full line has room.
    pub fn next_event(&self, now: Instant) -> Option<Instant> {
        let fabric = self.fabric.borrow();
        let at_switch = fabric.arrivals.peek().map(|Reverse(arrival)| arrival.at);
        let at_hosts = fabric.hosts.iter().filter_map(|host| host.inbox.front().map(|(at, _)| *at)).min();
        let room = fabric
            .hosts
            .iter()
            .filter(|host| host.up.leaving.len() >= host.link.queue_frames)
            .filter_map(|host| host.up.leaving.iter().find(|at| **at > now).copied())
            .min();
        [at_switch, at_hosts, room].into_iter().flatten().min()
    }
}

/// A host's end of its link.
#[derive(Debug)]
pub struct SimDevice {
    fabric: Rc<RefCell<Fabric>>,
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

impl Device for SimDevice {
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
        let mut fabric = self.fabric.borrow_mut();
        fabric.hosts[self.index].up.advance(now);
        let mut taken = 0;
        for frame in batch.frames() {
            let host = &fabric.hosts[self.index];
            if host.up.leaving.len() >= host.link.queue_frames {
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
                        fabric.send(now, self.index, bytes.into());
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
            let mut fabric = self.fabric.borrow_mut();
            fabric.advance(now);
            let inbox = &mut fabric.hosts[self.index].inbox;
            if inbox.front().is_none_or(|(at, _)| *at > now) {
                return count;
            }
            let Some((_, frame)) = inbox.pop_front() else {
                return count;
            };
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
