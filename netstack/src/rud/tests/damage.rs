//! Messages of sessions between three hosts over a wire that damages 1 in 100 datagrams, in virtual time: none is delivered wrong.
//!
//! A million datagrams, and with `SHOUTER_TEST_LONG=1` a hundred million. Every damaged one is dropped, and counted: the test compares the
//! numbers. What CRC32C cannot tell from a right datagram would fail it: of a million damaged ones of sessions that are not
//! sealed that is expected of 2.3e-4, for the CRC has 32 bits, and it finds every damage within 32 bits in a row. (Of sealed ones it is
//! expected of one in 2^128.)

mod wire;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::*;
use crate::region::{Extent, Region};
use crate::wire::rud::{HEADER_LEN, SEAL_LEN};
use wire::{Applied, Kind, Wire};

/// The hosts of each session, of which a pair has one that is sealed and one that is not.
const ENDS: [[usize; 2]; 6] = [[0, 1], [0, 1], [1, 2], [1, 2], [2, 0], [2, 0]];
const HOSTS: usize = 3;
const PORT: u16 = 4791;
/// Path 0 of direction 0; each direction has [`PATHS`].
const FIRST_PORT: u16 = 50_000;
const PATHS: u16 = 4;
/// A message's header: the name of its session and direction, and its number.
const MESSAGE_HEADER: usize = 16;
const LONGEST: usize = 300;
/// PSNs, and numbers of sealed datagrams, before the first epoch of a session ends.
const BEFORE_EPOCH: u32 = 2_000;

/// What payloads are taken from: a place for each message.
static PATTERN: LazyLock<&'static [u8]> = LazyLock::new(|| {
    let mut bytes = vec![0; (1 << 20) + LONGEST];
    SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
    bytes.leak()
});

/// Where the payload of a message lies in the pattern, and how long it is.
fn payload_of(name: u64, number: u64) -> (usize, usize) {
    let mixed = (name << 32 ^ number).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 44) as usize, 64 + (mixed as u32 as usize) % (LONGEST - 63))
}

fn header_of(name: u64, number: u64) -> [u8; MESSAGE_HEADER] {
    let mut header = [0; MESSAGE_HEADER];
    header[..8].copy_from_slice(&name.to_be_bytes());
    header[8..].copy_from_slice(&number.to_be_bytes());
    header
}

/// Numbers, each at most once.
#[derive(Debug, Default)]
struct Once {
    bits: Vec<u64>,
    count: u64,
}

impl Once {
    fn has(&self, number: u64) -> bool {
        self.bits.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// False if it is there already.
    fn insert(&mut self, number: u64) -> bool {
        let new = !self.has(number);
        let word = (number / 64) as usize;
        self.bits.resize(self.bits.len().max(word + 1), 0);
        self.bits[word] |= 1 << (number % 64);
        self.count += u64::from(new);
        new
    }
}

/// The messages of one direction of a session.
#[derive(Debug, Default)]
struct Flow {
    /// Of this direction of this session; no other has it.
    name: u64,
    sent: u64,
    wanted: u64,
    delivered: Once,
    released: Once,
}

/// The upper layer of one host. Sessions are numbered as in [`ENDS`]; direction `2 s + e` is that from end `e` of session `s`.
struct Checks<'a> {
    seed: u64,
    host: usize,
    flows: &'a mut [Flow],
    /// The id of each session at both ends.
    ids: &'a [[SessionId; 2]; ENDS.len()],
}

impl Checks<'_> {
    /// The direction from this host.
    fn direction(&self, id: SessionId) -> usize {
        let here = |session: &usize| {
            (0..2).find(|end| ENDS[*session][*end] == self.host && self.ids[*session][*end] == id)
        };
        (0..ENDS.len())
            .find_map(|session| Some(2 * session + here(&session)?))
            .expect("a session that is open")
    }
}

impl Sink for Checks<'_> {
    fn deliver(&mut self, id: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        let (seed, direction) = (self.seed, self.direction(id) ^ 1);
        let flow = &mut self.flows[direction];
        let number = header.last_chunk().map_or(u64::MAX, |number| u64::from_be_bytes(*number));
        assert!(number < flow.sent && header == header_of(flow.name, number), "seed {seed}: {header:?}");
        let (at, len) = payload_of(flow.name, number);
        assert!(
            payload == &PATTERN[at..at + len],
            "seed {seed}: message {number} of {:#x} is wrong",
            flow.name
        );
        assert!(
            flow.delivered.insert(number),
            "seed {seed}: message {number} of {:#x} comes again",
            flow.name
        );
        Disposition::Consumed
    }

    fn released(&mut self, id: SessionId, token: MessageToken) {
        let (seed, number, direction) = (self.seed, token.0, self.direction(id));
        let flow = &mut self.flows[direction];
        assert!(
            flow.delivered.has(number),
            "seed {seed}: message {number} is released and was not delivered"
        );
        assert!(flow.released.insert(number), "seed {seed}: message {number} is released twice");
    }

    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("seed {}: {why}", self.seed);
    }
}

/// Puts what an endpoint emits on the wire.
struct Line<'a> {
    now: u64,
    room: usize,
    wire: &'a mut Wire,
}

impl Emit for Line<'_> {
    fn room(&self) -> usize {
        self.room
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool {
        if self.room == 0 {
            return false;
        }
        self.room -= 1;
        let lane = usize::from((to.src_port - FIRST_PORT) / PATHS);
        let payload = payload.as_ref().map_or(&[][..], |extent| extent.as_bytes());
        self.wire.send(self.now, lane, to.src_port, [header, payload]);
        true
    }
}

fn address(host: usize) -> core::net::IpAddr {
    core::net::Ipv4Addr::new(10, 0, 0, host as u8 + 1).into()
}

struct Damaging {
    seed: u64,
    now: u64,
    wire: Wire,
    endpoints: [Endpoint; HOSTS],
    flows: Vec<Flow>,
    ids: [[SessionId; 2]; ENDS.len()],
    /// Sessions that were opened.
    opened: u64,
    delivered: u64,
    /// No session is opened anew any more.
    ending: bool,
}

impl Damaging {
    fn new(seed: u64) -> Self {
        let lanes = (0..2 * ENDS.len()).map(|direction| {
            let ends = ENDS[direction / 2];
            (ends[direction % 2], ends[1 - direction % 2], direction / 2 % 2 == 1)
        });
        let mut this = Self {
            seed,
            now: 0,
            wire: Wire::new(seed, lanes),
            endpoints: core::array::from_fn(|_| Endpoint::new(Config::default())),
            flows: (0..2 * ENDS.len()).map(|_| Flow::default()).collect(),
            ids: [[SessionId::new(0, 0); 2]; ENDS.len()],
            opened: 0,
            delivered: 0,
            ending: false,
        };
        (0..ENDS.len()).for_each(|session| this.open(session));
        this
    }

    /// Opens a session, with tags that no other has had.
    fn open(&mut self, session: usize) {
        self.opened += 1;
        let tags = [0, 1].map(|end| {
            let lower = (2 * self.opened as u32 + end).wrapping_mul(0x9e37_79b1);
            u64::from(u32::MAX - BEFORE_EPOCH) << 32 | u64::from(lower)
        });
        // Before the second epoch, one like any other, and the one in which the lower half of the numbers begins anew.
        let first = [1, 41, 256][self.opened as usize % 3] * (1 << 24) - u64::from(BEFORE_EPOCH);
        let sealed = self.wire.lanes[2 * session].sealed;
        let secret = core::array::from_fn(|at| (self.opened >> (at % 8 * 8)) as u8 ^ at as u8);
        for end in 0..2 {
            let direction = 2 * session + end;
            let (here, there) = (ENDS[session][end], ENDS[session][1 - end]);
            let first_port = FIRST_PORT + PATHS * direction as u16;
            let endpoint = &mut self.endpoints[here];
            let params = SessionParams {
                local_tag: tags[end],
                remote_tag: tags[1 - end],
                remote_ip: address(there),
                local_ip: address(here),
                remote_port: PORT,
                local_ports: (first_port..first_port + PATHS).collect(),
                max_datagram: HEADER_LEN + MESSAGE_HEADER + LONGEST + if sealed { SEAL_LEN } else { 0 },
                seal: sealed.then(|| SealSecret::new(secret)),
            };
            let id = endpoint.open(Instant::from_nanos(self.now), params).unwrap();
            if sealed {
                endpoint.seal_mut(id).count_from(first);
            }
            self.ids[session][end] = id;
            self.wire.lanes[direction].reopen(tags[1 - end]);
            let wanted = self.wire.rng.random_range(10_000..40_000);
            self.flows[direction] = Flow { name: 2 * self.opened + end as u64, wanted, ..Flow::default() };
        }
    }

    /// Takes in what has arrived, lets all hosts send, and goes on to the next event.
    fn step(&mut self) {
        let Self { seed, now, wire, endpoints, flows, ids, .. } = self;
        let seed = *seed;
        let at = Instant::from_nanos(*now);
        for lane in 0..wire.lanes.len() {
            while let Some(arrival) = wire.receive(*now, lane) {
                let (from, host) = (wire.lanes[lane].from, wire.lanes[lane].to);
                let meta = DatagramMeta {
                    src_ip: address(from),
                    dst_ip: address(host),
                    src_port: arrival.datagram.src_port,
                    dst_port: PORT,
                    congestion_experienced: false,
                };
                let bytes = &arrival.datagram.bytes;
                endpoints[host].on_datagram(at, &meta, bytes, &mut Checks { seed, host, flows, ids });
                wire.recycle(lane, arrival);
            }
        }
        for (direction, flow) in (0..).zip(flows.iter_mut()) {
            let (session, end) = (direction / 2, direction % 2);
            let (endpoint, id) = (&mut endpoints[ENDS[session][end]], ids[session][end]);
            while flow.sent < flow.wanted && endpoint.capacity(id) > 0 {
                let (at, len) = payload_of(flow.name, flow.sent);
                let payload = Region::from_static(&PATTERN).extent(at, len as u32);
                endpoint
                    .send(id, &header_of(flow.name, flow.sent), payload, MessageToken(flow.sent))
                    .unwrap();
                flow.sent += 1;
            }
        }
        let mut next = u64::MAX;
        for (host, endpoint) in (0..).zip(endpoints.iter_mut()) {
            endpoint.on_timeout(at, &mut Checks { seed, host, flows, ids });
            endpoint.transmit(at, &mut Line { now: *now, room: 64, wire });
            let due = endpoint.next_deadline().map_or(u64::MAX, Instant::as_nanos);
            next = next.min(if endpoint.wants_transmit() { 0 } else { due });
        }
        next = next.min(wire.next_arrival().unwrap_or(u64::MAX));
        // A host looks every 2 us at most.
        self.now = next.max(*now + 2_000);
    }

    /// Whether a session has delivered all of its messages, and nothing of it is on the way.
    fn rests(&self, session: usize) -> bool {
        (0..2).all(|end| {
            let (direction, endpoint) = (2 * session + end, &self.endpoints[ENDS[session][end]]);
            let flow = &self.flows[direction];
            flow.sent == flow.wanted
                && endpoint.is_idle(self.ids[session][end])
                && self.wire.lanes[direction].is_empty()
        })
    }

    /// Closes the sessions that rest, and opens others in their place; both of a pair of hosts together, so that both kinds have as many
    /// messages.
    fn reopen(&mut self) {
        for pair in (0..ENDS.len()).step_by(2) {
            if !self.rests(pair) || !self.rests(pair + 1) {
                continue;
            }
            for flow in &mut self.flows[2 * pair..2 * pair + 4] {
                let counts = (flow.delivered.count, flow.released.count);
                assert_eq!(counts, (flow.sent, flow.sent), "seed {}: {:#x}", self.seed, flow.name);
                self.delivered += flow.sent;
                *flow = Flow::default();
            }
            for session in [pair, pair + 1] {
                if !self.ending {
                    (0..2).for_each(|end| self.endpoints[ENDS[session][end]].close(self.ids[session][end]));
                    self.open(session);
                }
            }
        }
    }

    /// Datagrams that were dropped, and counted once.
    fn dropped(&self) -> u64 {
        let of = |endpoint: &Endpoint| {
            let counters = endpoint.endpoint_counters();
            counters.malformed
                + counters.unknown_session
                + counters.wrong_address
                + counters.crc_dropped
                + counters.replayed
        };
        self.endpoints.iter().map(of).sum()
    }
}

/// What a run has had.
#[derive(Debug, Default)]
struct Totals {
    datagrams: u64,
    messages: u64,
    sessions: u64,
    applied: Applied,
}

/// Sends so many datagrams, and until their messages have arrived.
fn run(seed: u64, datagrams: u64) -> Totals {
    let mut world = Damaging::new(seed);
    while !world.ending || !(0..ENDS.len()).all(|session| world.rests(session)) {
        world.step();
        world.reopen();
        if !world.ending && world.wire.sent >= datagrams {
            world.ending = true;
            world.flows.iter_mut().for_each(|flow| flow.wanted = flow.sent);
        }
        assert!(world.wire.sent < 2 * datagrams, "seed {seed}: it comes to no end");
    }
    world.reopen();
    assert_eq!(world.dropped(), world.wire.wrong, "seed {seed}: damaged datagrams that had an effect");
    let Wire { sent, applied, .. } = world.wire;
    Totals { datagrams: sent, messages: world.delivered, sessions: world.opened, applied }
}

/// Replay one of the long test's: `SEED=3 SHOUTER_TEST_LONG=1 cargo test --release -p shouter-netstack --lib one_in_a_hundred`.
#[test]
fn of_one_in_a_hundred_damaged_datagrams_none_is_delivered() {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let (seeds, datagrams) =
        if std::env::var_os("SHOUTER_TEST_LONG").is_some() { (20, 5_000_000) } else { (1, 1_000_000) };
    let seeds = only.map_or(0..seeds, |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mine = core::iter::from_fn(|| {
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| seeds.contains(seed))
        });
        mine.map(|seed| run(seed, datagrams)).collect::<Vec<_>>()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runs: Vec<Totals> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: &dyn Fn(&Totals) -> u64| runs.iter().map(of).sum::<u64>();
    let mut damaged = [0; 2];
    for kind in Kind::ALL {
        let [plain, sealed] = [0, 1].map(|sealed| sum(&|run| run.applied[kind as usize][sealed]));
        println!("{:>10} {:>10}  {kind:?}", plain, sealed);
        assert!(plain > 100 && sealed > 100, "{kind:?} did not take place");
        damaged = [damaged[0] + plain, damaged[1] + sealed];
    }
    let datagrams = sum(&|run| run.datagrams);
    println!(
        "{:>10} {:>10}  of {datagrams} datagrams, {} messages, {} sessions; CRC32C is expected to miss {:.1e}",
        damaged[0],
        damaged[1],
        sum(&|run| run.messages),
        sum(&|run| run.sessions),
        damaged[0] as f64 / 2f64.powi(32)
    );
    let share = (damaged[0] + damaged[1]) as f64 / datagrams as f64;
    assert!((0.009..0.011).contains(&share), "{share}");
}
