//! Two endpoints, two application ends, and a link between them that loses, reorders, duplicates and flips bits:
//! in virtual time, from one seed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::LazyLock;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::region::{Extent, Region};
use crate::rud::*;
use crate::sim::{Link, LinkConfig, Packet};
use crate::time::Instant;

/// The application: it checks its messages, and can refuse them.
#[derive(Debug, Default)]
pub(super) struct App {
    /// Message number -> how often it was consumed.
    pub(super) consumed: HashMap<u64, u32>,
    pub(super) bytes: u64,
    pub(super) released: BTreeMap<u64, u32>,
    pub(super) failures: Vec<Failure>,
    pub(super) corrupt: u32,
    pub(super) refusals: u32,
    pub(super) refuse: f64,
    pub(super) rng: Option<SmallRng>,
    /// Message numbers in the order of arrival.
    pub(super) order: Vec<u64>,
    /// What was said of the path.
    pub(super) path_changes: Vec<usize>,
}

impl Sink for App {
    fn deliver(&mut self, _: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        let Some((number, rest)) = header.split_first_chunk::<8>() else {
            self.corrupt += 1;
            return Disposition::Consumed;
        };
        let number = u64::from_be_bytes(*number);
        if self.rng.as_mut().is_some_and(|rng| rng.random_bool(self.refuse)) {
            self.refusals += 1;
            return Disposition::Refused(RefusalReason::NotReady);
        }
        let intact = rest == expected_header(number).split_at(8).1 && payload == payload_of(number);
        self.corrupt += u32::from(!intact);
        self.bytes += payload.len() as u64;
        *self.consumed.entry(number).or_default() += 1;
        self.order.push(number);
        Disposition::Consumed
    }

    fn released(&mut self, _: SessionId, token: MessageToken) {
        *self.released.entry(token.0).or_default() += 1;
    }

    fn failed(&mut self, _: SessionId, why: Failure) {
        self.failures.push(why);
    }

    fn path_changed(&mut self, _: SessionId, bytes: usize) {
        self.path_changes.push(bytes);
    }
}

/// Message numbers name their content, so that both ends can check it.
pub(super) fn expected_header(number: u64) -> Vec<u8> {
    let len = 8 + (number % 57) as usize;
    let mut header = vec![number as u8; len];
    header[..8].copy_from_slice(&number.to_be_bytes());
    header
}

/// Messages from this number on are small.
pub(super) const SMALL: u64 = 1 << 32;

fn payload_len(number: u64) -> usize {
    if number >= SMALL {
        return (number % 190) as usize;
    }
    match number % 5 {
        0 => 0,
        1 => (number * 7919 % 1400) as usize,
        _ => 1400,
    }
}

/// A payload begins at one of so many bytes: then they repeat themselves.
const STARTS: usize = 2048;

/// Each payload is a part of these bytes.
static PAYLOADS: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..STARTS + 1400).map(|at| (at.wrapping_mul(0x9d) >> 3) as u8).collect());

fn payload_of(number: u64) -> &'static [u8] {
    &PAYLOADS[(number as usize).wrapping_mul(31) % STARTS..][..payload_len(number)]
}

/// The payload of a number, if it has one.
pub(super) fn extent_of(number: u64) -> Option<Extent> {
    static_extent(payload_of(number))
}

/// An extent over bytes that are never freed.
pub(super) fn extent_from(bytes: Vec<u8>) -> Option<Extent> {
    static_extent(bytes.leak())
}

fn static_extent(bytes: &'static [u8]) -> Option<Extent> {
    if bytes.is_empty() { None } else { Region::from_static(bytes).extent(0, bytes.len() as u32) }
}

/// One end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) endpoint: Endpoint,
    pub(super) id: SessionId,
    pub(super) app: App,
    pub(super) to_send: VecDeque<u64>,
    /// Whether the end runs at all.
    pub(super) alive: bool,
}

/// A datagram in flight.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) src_port: u16,
    pub(super) bytes: Vec<u8>,
}

impl Packet for Datagram {
    fn line_len(&self) -> u64 {
        self.bytes.len() as u64 + 66
    }

    fn corrupt(&mut self, rng: &mut SmallRng) {
        for _ in 0..rng.random_range(1..=3) {
            let bit = rng.random_range(0..self.bytes.len() * 8);
            self.bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Collects the datagrams that an endpoint emits.
#[derive(Debug, Default)]
pub(super) struct Collect {
    pub(super) out: Vec<(Destination, Vec<u8>)>,
    pub(super) room: usize,
}

impl Emit for Collect {
    fn room(&self) -> usize {
        self.room - self.out.len()
    }
    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool {
        if self.room() == 0 {
            return false;
        }
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(payload.as_ref().map_or(&[], |extent| extent.as_bytes()));
        self.out.push((*to, bytes));
        true
    }
}

pub(super) const IPS: [core::net::IpAddr; 2] = [
    core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1)),
    core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2)),
];
pub(super) const PORTS: [u16; 2] = [40_000, 50_000];

/// The parameters of end `end`; its peer's fit.
pub(super) fn params(end: usize, tags: [u64; 2]) -> SessionParams {
    SessionParams {
        local_tag: tags[end],
        remote_tag: tags[1 - end],
        remote_ip: IPS[1 - end],
        local_ip: IPS[end],
        remote_port: PORTS[1 - end],
        local_ports: (PORTS[end]..PORTS[end] + 4).collect(),
        max_datagram: 1504,
        seal: None,
    }
}

/// The same of a sealed session that takes as long messages.
pub(super) fn sealed_params(end: usize, tags: [u64; 2]) -> SessionParams {
    let secret = SealSecret::new(core::array::from_fn(|at| at as u8));
    let params = params(end, tags);
    SessionParams { max_datagram: params.max_datagram + SEAL_BYTES, seal: Some(secret), ..params }
}

/// Addresses and ports of the datagrams that end `to` receives.
pub(super) fn meta(to: usize, src_port: u16) -> DatagramMeta {
    DatagramMeta {
        src_ip: IPS[1 - to],
        dst_ip: IPS[to],
        src_port,
        dst_port: PORTS[to],
        congestion_experienced: false,
    }
}

pub(super) struct World {
    pub(super) ends: [End; 2],
    pub(super) now: u64,
    /// `links[i]` leads away from end `i`.
    pub(super) links: [Link<Datagram>; 2],
    /// Whether the network marks every datagram.
    pub(super) mark_all: bool,
    /// The paths, by number, whose datagrams are lost, from either end.
    pub(super) dead: Vec<u16>,
    /// The longest datagrams that pass from either end, in bytes, on the paths of `narrow`, or on all if it is empty.
    pub(super) carries: [usize; 2],
    pub(super) narrow: Vec<u16>,
    /// The paths that take longer than the link, from end 0, and by how many nanoseconds.
    pub(super) long: (Vec<u16>, u64),
    /// What is on them, and when it arrives.
    detour: VecDeque<(u64, Datagram)>,
    /// What the ends send, with the number of the end, where it is recorded.
    pub(super) recorded: Option<Vec<(usize, Datagram)>>,
}

impl World {
    pub(super) fn new(seed: u64, config: &Config, link: LinkConfig) -> Self {
        // Upper halves near the end of their range: the PSNs wrap early.
        let tags = [0xffff_ffc0_0000_0001, 0xffff_ff01_0000_0002];
        Self::with_tags(seed, config, link, tags)
    }

    pub(super) fn with_paths(seed: u64, link: LinkConfig, paths: u16) -> Self {
        let mut world = Self::new(seed, &Config::default(), link);
        for (index, end) in world.ends.iter_mut().enumerate() {
            end.endpoint.close(end.id);
            let params = SessionParams {
                local_ports: (PORTS[index]..PORTS[index] + paths).collect(),
                ..params(index, [1 << 40, 2 << 40])
            };
            end.id = end.endpoint.open(Instant::ZERO, params).unwrap();
        }
        world
    }

    /// Sealed sessions, whose first number is `first`.
    pub(super) fn sealed(seed: u64, config: &Config, link: LinkConfig, first: u64) -> Self {
        let mut world = Self::new(seed, config, link);
        for (index, end) in world.ends.iter_mut().enumerate() {
            end.endpoint.close(end.id);
            let params = sealed_params(index, [1 << 40, 2 << 40]);
            end.id = end.endpoint.open(Instant::ZERO, params).unwrap();
            end.endpoint.seal_mut(end.id).count_from(first);
        }
        world
    }

    /// Sessions that begin with their first use.
    pub(super) fn enlisted(seed: u64, config: &Config, link: LinkConfig) -> Self {
        let mut world = Self::new(seed, config, link);
        for (index, end) in world.ends.iter_mut().enumerate() {
            end.endpoint = Endpoint::new(config.clone());
            end.id = end.endpoint.enlist(params(index, [1 << 40, 2 << 40])).unwrap();
        }
        world
    }

    pub(super) fn with_tags(seed: u64, config: &Config, link: LinkConfig, tags: [u64; 2]) -> Self {
        let end = |index: usize| {
            let mut endpoint = Endpoint::new(config.clone());
            let id = endpoint.open(Instant::ZERO, params(index, tags)).unwrap();
            let app = App { rng: Some(SmallRng::seed_from_u64(seed ^ index as u64)), ..App::default() };
            End { endpoint, id, app, to_send: VecDeque::new(), alive: true }
        };
        Self {
            ends: [end(0), end(1)],
            now: 0,
            links: [0, 1].map(|i| Link::new(link, seed * 2 + i)),
            mark_all: false,
            dead: Vec::new(),
            carries: [usize::MAX; 2],
            narrow: Vec::new(),
            long: (Vec::new(), 0),
            detour: VecDeque::new(),
            recorded: None,
        }
    }

    /// One poll of each end, as a shard would do it, then time jumps to the next event. False if there is none.
    pub(super) fn step(&mut self) -> bool {
        let mut next = u64::MAX;
        for (to, end) in self.ends.iter_mut().enumerate() {
            let now = Instant::from_nanos(self.now);
            let mut arrived = Vec::new();
            while let Some(datagram) = self.links[1 - to].receive(now) {
                match to == 1 && self.long.0.contains(&(datagram.src_port - PORTS[0])) {
                    true => self.detour.push_back((self.now + self.long.1, datagram)),
                    false => arrived.push(datagram),
                }
            }
            while to == 1 && self.detour.front().is_some_and(|(at, _)| *at <= self.now) {
                arrived.extend(self.detour.pop_front().map(|(_, datagram)| datagram));
            }
            for datagram in arrived {
                if end.alive {
                    let congestion_experienced = self.mark_all;
                    let meta = DatagramMeta { congestion_experienced, ..meta(to, datagram.src_port) };
                    end.endpoint.on_datagram(now, &meta, &datagram.bytes, &mut end.app);
                }
            }
        }
        for (index, end) in self.ends.iter_mut().enumerate() {
            if !end.alive {
                continue;
            }
            let now = Instant::from_nanos(self.now);
            end.endpoint.on_timeout(now, &mut end.app);
            while let Some(number) = end.to_send.front().copied() {
                let header = expected_header(number);
                if end.endpoint.capacity(end.id) == 0 {
                    break;
                }
                end.endpoint.send(end.id, &header, extent_of(number), MessageToken(number)).unwrap();
                end.to_send.pop_front();
            }
            let mut collect = Collect { out: Vec::new(), room: 64 };
            end.endpoint.transmit(now, &mut collect);
            for (to, bytes) in collect.out {
                if let Some(recorded) = &mut self.recorded {
                    recorded.push((index, Datagram { src_port: to.src_port, bytes: bytes.clone() }));
                }
                let path = to.src_port - PORTS[index];
                let is_narrow = self.narrow.is_empty() || self.narrow.contains(&path);
                let passes = bytes.len() <= self.carries[index] || !is_narrow;
                if passes && !self.dead.contains(&path) {
                    self.links[index].send(now, Datagram { src_port: to.src_port, bytes });
                }
            }
            if end.endpoint.wants_transmit() {
                next = next.min(self.now + 1000);
            }
            if let Some(deadline) = end.endpoint.next_deadline() {
                next = next.min(deadline.as_nanos());
            }
        }
        for arrival in self.links.iter().filter_map(Link::next_arrival) {
            next = next.min(arrival.as_nanos());
        }
        if let Some((at, _)) = self.detour.front() {
            next = next.min(*at);
        }
        if next == u64::MAX {
            return false;
        }
        self.now = next.max(self.now + 1);
        true
    }

    /// As `step`, but no further than to `time`.
    pub(super) fn step_until(&mut self, time: u64) {
        let now = self.now;
        self.step();
        // Nothing happens before the time that it has jumped to.
        self.now = self.now.min(time.max(now));
    }

    /// Steps until both ends have sent everything and got every token back; panics at `deadline`.
    pub(super) fn run_to_completion(&mut self, deadline: u64, what: &str) {
        while self.ends.iter().any(|end| !end.to_send.is_empty() || !end.endpoint.is_idle(end.id)) {
            self.step();
            assert!(
                self.now < deadline,
                "{what}: not done at {} ns: {:?}",
                self.now,
                self.ends.each_ref().map(|end| end.endpoint.counters(end.id))
            );
        }
    }
}
