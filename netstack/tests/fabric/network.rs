//! Links and switches in virtual time: forwarding by a hash (ECMP), queues with marks, and parts that fail.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use rand::Rng;
use rand::rngs::SmallRng;
use shouter_netstack::region::Extent;
use shouter_netstack::sim::{Link, LinkConfig, LinkCounters, Packet};
use shouter_netstack::time::Instant;

use super::topology::Topology;

/// A frame's bytes on the line beside the UDP payload: Ethernet, IPv4 and UDP headers, preamble, check sequence, gap.
pub(crate) const OVERHEAD: usize = 14 + 20 + 8 + 8 + 4 + 12;
/// The longest header of a RUD datagram: 40 bytes and 64 of the message's.
const LONGEST_HEADER: usize = 104;

/// A UDP datagram under way. The payload's bytes stay where the sender has them: links and switches move this record.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) marked: bool,
    header: [u8; LONGEST_HEADER],
    header_len: usize,
    payload: Option<Extent>,
    /// Bits of header and payload that were flipped on the way.
    flipped: Vec<usize>,
}

impl Datagram {
    pub(crate) fn new(
        (from, to): (usize, usize),
        (src_port, dst_port): (u16, u16),
        bytes: &[u8],
        payload: Option<Extent>,
    ) -> Self {
        let mut header = [0; LONGEST_HEADER];
        header[..bytes.len()].copy_from_slice(bytes);
        let (marked, flipped) = (false, Vec::new());
        Self { from, to, src_port, dst_port, marked, header, header_len: bytes.len(), payload, flipped }
    }

    fn len(&self) -> usize {
        self.header_len + self.payload.map_or(0, |payload| payload.len())
    }

    /// Puts its bytes, as they arrive, into `buffer`.
    pub(crate) fn assemble(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(&self.header[..self.header_len]);
        if let Some(payload) = self.payload {
            buffer.extend_from_slice(payload.as_bytes());
        }
        self.flipped.iter().for_each(|bit| buffer[bit / 8] ^= 1 << (bit % 8));
    }
}

/// A link carries the address of a datagram.
#[derive(Clone, Debug)]
pub(crate) struct Carried(pub(crate) Box<Datagram>);

impl Packet for Carried {
    fn line_len(&self) -> u64 {
        (self.0.len() + OVERHEAD) as u64
    }

    fn mark(&mut self) -> bool {
        self.0.marked = true;
        true
    }

    /// One to three bits in a row, of the source port and the RUD datagram; the checks of Ethernet and IP have passed, as with a
    /// switch that damages what it has in memory and computes a new check sequence.
    fn corrupt(&mut self, rng: &mut SmallRng) {
        let flipped = rng.random_range(1..=3);
        let first = rng.random_range(0..=16 + self.0.len() * 8 - flipped);
        for bit in first..first + flipped {
            match bit.checked_sub(16) {
                Some(bit) => self.0.flipped.push(bit),
                None => self.0.src_port ^= 1 << bit,
            }
        }
    }
}

/// What may fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// All links to and from a node.
    Switch(usize),
    /// Both directions of a cable.
    Cable(usize),
}

/// How it fails. Nobody is told of it: switches go on forwarding to what is dead.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Everything on it is lost from now on.
    Dead,
    /// It is dead for so long, works for as long, and so on.
    Flaps(Duration),
    /// It has so many bits per second.
    Slow(u64),
    /// It flips bits of so large a share of what passes: a cable's both ways, of a switch what it sends.
    Corrupts(f64),
}

/// Links between nodes, and what is on them.
#[derive(Debug)]
pub(crate) struct Network {
    topology: Topology,
    routes: Vec<Vec<Vec<usize>>>,
    links: Vec<Link<Carried>>,
    /// Where each link leads.
    ends: Vec<usize>,
    /// Each link's next arrival, and the events for them; an event with another time is stale.
    due: Vec<Instant>,
    arrivals: BinaryHeap<Reverse<(Instant, usize)>>,
    faults: Vec<(Instant, Part, Fault)>,
    seed: u64,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

impl Network {
    /// `line` is a host's link to its switch, `port` every link from a switch.
    pub(crate) fn new(topology: Topology, line: LinkConfig, port: LinkConfig, seed: u64) -> Self {
        let hosts = topology.hosts;
        let directed: Vec<[usize; 2]> = topology.cables.iter().flat_map(|&[a, b]| [[a, b], [b, a]]).collect();
        let link = |(number, [from, _]): (usize, &[usize; 2])| {
            Link::new(if *from < hosts { line } else { port }, mix(seed.wrapping_add(number as u64)))
        };
        Self {
            routes: topology.routes(),
            links: directed.iter().enumerate().map(link).collect(),
            ends: directed.iter().map(|[_, to]| *to).collect(),
            due: vec![NEVER; directed.len()],
            arrivals: BinaryHeap::new(),
            faults: Vec::new(),
            seed,
            topology,
        }
    }

    /// The number of links.
    pub(crate) fn links(&self) -> usize {
        self.links.len()
    }

    /// Bits per second that a link carries now.
    pub(crate) fn capacity(&self, link: usize) -> u64 {
        if self.links[link].cut { 0 } else { self.links[link].config.bits_per_second }
    }

    /// The links that a datagram takes between two hosts.
    pub(crate) fn way(&self, hosts: (usize, usize), ports: (u16, u16)) -> Vec<usize> {
        let datagram = Datagram::new(hosts, ports, &[], None);
        let mut way = vec![2 * hosts.0];
        while let Some(node) = way.last().map(|link| self.ends[*link]).filter(|node| *node != hosts.1) {
            way.push(self.choose(node, &datagram));
        }
        way
    }

    /// A host's link to its switch.
    pub(crate) fn line(&mut self, host: usize) -> &mut Link<Carried> {
        &mut self.links[2 * host]
    }

    /// The switch's link to a host.
    pub(crate) fn port(&mut self, host: usize) -> &mut Link<Carried> {
        &mut self.links[2 * host + 1]
    }

    /// The sums of all links: queue drops, drops of what is dead, marks, corrupted.
    pub(crate) fn counters(&self) -> LinkCounters {
        self.links.iter().map(Link::counters).fold(LinkCounters::default(), |sum, each| LinkCounters {
            queue_drops: sum.queue_drops + each.queue_drops,
            cut_drops: sum.cut_drops + each.cut_drops,
            marked: sum.marked + each.marked,
            corrupted: sum.corrupted + each.corrupted,
            ..sum
        })
    }

    /// Lets a part fail at `at`.
    pub(crate) fn fail(&mut self, at: Instant, part: Part, fault: Fault) {
        self.faults.push((at, part, fault));
        self.faults.sort_by_key(|(at, ..)| Reverse(*at));
    }

    /// From a host, whose line has room.
    pub(crate) fn send(&mut self, now: Instant, datagram: Datagram) {
        self.put(now, 2 * datagram.from, Carried(Box::new(datagram)));
    }

    fn put(&mut self, now: Instant, link: usize, carried: Carried) {
        self.links[link].send(now, carried);
        self.watch(link);
    }

    /// Keeps an event for a link's next arrival.
    fn watch(&mut self, link: usize) {
        let next = self.links[link].next_arrival().unwrap_or(NEVER);
        if next != self.due[link] {
            self.due[link] = next;
            if next != NEVER {
                self.arrivals.push(Reverse((next, link)));
            }
        }
    }

    /// When something happens next.
    pub(crate) fn next_event(&self) -> Instant {
        let arrival = self.arrivals.peek().map_or(NEVER, |Reverse((at, _))| *at);
        self.faults.last().map_or(arrival, |(at, ..)| arrival.min(*at))
    }

    /// Does what happens next, at `now`; a datagram that has reached its host.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Carried> {
        if let Some((_, part, fault)) = self.faults.pop_if(|(at, ..)| *at <= now) {
            self.apply(now, part, fault);
            return None;
        }
        let Reverse((at, link)) = self.arrivals.pop()?;
        if self.due[link] != at {
            return None;
        }
        let Carried(datagram) = self.links[link].receive(at)?;
        self.watch(link);
        let node = self.ends[link];
        if node < self.topology.hosts {
            return Some(Carried(datagram));
        }
        let next = self.choose(node, &datagram);
        self.put(at, next, Carried(datagram));
        None
    }

    /// The link to the next node, by a hash of addresses and ports (ECMP, RFC 2992); each switch has another hash.
    fn choose(&self, node: usize, datagram: &Datagram) -> usize {
        let links = &self.routes[node][datagram.to];
        if let [link] = links[..] {
            return link;
        }
        let addresses = (datagram.from as u64) << 16 | datagram.to as u64;
        let ports = u64::from(datagram.src_port) << 16 | u64::from(datagram.dst_port);
        let salt = mix(self.seed ^ (node as u64 + 1) << 32);
        let hash = mix(salt ^ mix(addresses << 32 | ports));
        links[((u128::from(hash) * links.len() as u128) >> 64) as usize]
    }

    fn apply(&mut self, now: Instant, part: Part, fault: Fault) {
        let links: Vec<_> = match part {
            Part::Cable(cable) => vec![2 * cable, 2 * cable + 1],
            Part::Switch(node) => {
                let at_node =
                    self.topology.cables.iter().enumerate().filter(|(_, ends)| ends.contains(&node));
                at_node.flat_map(|(cable, _)| [2 * cable, 2 * cable + 1]).collect()
            }
        };
        for link in links {
            let state = &mut self.links[link];
            match fault {
                Fault::Dead => state.cut = true,
                Fault::Flaps(_) => state.cut = !state.cut,
                Fault::Slow(rate) => state.config.bits_per_second = rate,
                Fault::Corrupts(share) => {
                    let enters = matches!(part, Part::Switch(node) if self.ends[link] == node);
                    state.config.corrupt = if enters { 0.0 } else { share };
                }
            }
            if state.cut {
                state.retain(|_| false);
            }
            self.watch(link);
        }
        if let Fault::Flaps(period) = fault {
            self.fail(now + period, part, fault);
        }
    }
}
