//! Whole stacks in the simulator: RUD messages between two to eight hosts over links that lose, reorder, duplicate
//! and damage frames arrive exactly, once each, and their memory is released, for a thousand seeds.
//!
//! A failure names its seed; `SHOUTER_SEED=<seed> cargo test -p shouter-netstack --test faults` replays that one.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::device::{Fault, FaultConfig};
use shouter_netstack::region::Region;
use shouter_netstack::rud::{
    self, Disposition, Failure, MessageToken, RefusalReason, SessionId, SessionParams, Sink,
};
use shouter_netstack::sim::{LinkConfig, Node, Sim, SimDevice};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;

const RUD_PORT: u16 = 4791;
const MTU: u16 = 1500;

static SOURCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = SmallRng::seed_from_u64(0x5eed);
    (0..65_536).map(|_| rng.random()).collect()
});

/// A message's header, from which the receiver can compute the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    from: u16,
    to: u16,
    number: u32,
    offset: u32,
    len: u32,
}

impl Message {
    fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..2].copy_from_slice(&self.from.to_be_bytes());
        out[2..4].copy_from_slice(&self.to.to_be_bytes());
        out[4..8].copy_from_slice(&self.number.to_be_bytes());
        out[8..12].copy_from_slice(&self.offset.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        Self {
            from: (word(0) >> 16) as u16,
            to: word(0) as u16,
            number: word(4),
            offset: word(8),
            len: word(12),
        }
    }
}

/// Checks every delivery, and refuses one in eight at first.
struct Checker {
    seed: u64,
    host: u16,
    rng: SmallRng,
    got: BTreeMap<Message, u32>,
    released: Vec<u64>,
    refused: u64,
}

impl Sink for Checker {
    fn deliver(&mut self, _: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        let message = Message::decode(header);
        assert_eq!(message.to, self.host, "seed {}: {message:?} at host {}", self.seed, self.host);
        let expected = &SOURCE[message.offset as usize..][..message.len as usize];
        assert!(payload == expected, "seed {}: {message:?} was damaged", self.seed);
        if self.rng.random_ratio(1, 8) {
            self.refused += 1;
            return Disposition::Refused(RefusalReason::NotReady);
        }
        let count = self.got.entry(message).or_default();
        *count += 1;
        assert_eq!(*count, 1, "seed {}: {message:?} was delivered twice", self.seed);
        Disposition::Consumed
    }

    fn released(&mut self, _: SessionId, token: MessageToken) {
        self.released.push(token.0);
    }

    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("seed {}: a session of host {} failed: {why}", self.seed, self.host);
    }
}

struct Host {
    stack: Stack<Fault<SimDevice>>,
    sink: Checker,
    /// Messages that still wait to be sent, with their sessions.
    unsent: Vec<(SessionId, Message)>,
    tokens: u64,
}

impl Host {
    fn is_done(&self, expected: usize) -> bool {
        self.unsent.is_empty()
            && self.sink.released.len() as u64 == self.tokens
            && self.sink.got.len() == expected
    }
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        let region = Region::from_static(SOURCE.as_slice());
        while let Some(&(session, message)) = self.unsent.last() {
            let extent = region.extent(message.offset as usize, message.len);
            let token = MessageToken(self.tokens);
            match self.stack.rud_mut().send(session, &message.encode(), extent, token) {
                Ok(()) => {
                    self.tokens += 1;
                    self.unsent.pop();
                }
                Err(rud::SendError::Full) => break,
                Err(error) => panic!("seed {}: {error}", self.sink.seed),
            }
        }
        self.stack.poll_with(now, &mut self.sink);
        self.stack.next_deadline()
    }
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

fn tag(from: usize, to: usize) -> u64 {
    ((from as u64 + 1) << 32) | (to as u64 + 1)
}

/// Totals over runs, to see that the faults took place.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    messages: u64,
    refused: u64,
    lost: u64,
    corrupted: u64,
    duplicated: u64,
    reordered: u64,
    dropped_checks: u64,
    crc_dropped: u64,
    end: Duration,
}

fn run(seed: u64) -> Totals {
    let mut rng = SmallRng::seed_from_u64(seed);
    let count = rng.random_range(2..=8usize);
    let mut sim = Sim::new(seed);
    let link = LinkConfig {
        bits_per_second: 10_000_000_000,
        delay: Duration::from_micros(rng.random_range(0..20)),
        queue_frames: 64,
        ..LinkConfig::default()
    };
    let per_pair = rng.random_range(1..=24usize) / (count - 1) + 1;
    let mut hosts: Vec<Host> = (0..count)
        .map(|host| {
            let faults = FaultConfig {
                seed: rng.random(),
                loss: 0.05,
                corrupt: 0.02,
                duplicate: 0.03,
                reorder: 0.1,
                reorder_delay: Duration::from_micros(50),
                ..FaultConfig::default()
            };
            let device = Fault::new(sim.network().attach(MTU, link), faults).unwrap();
            let mut config = StackConfig::new(seed).with_rud(RUD_PORT);
            // Lost ARP frames cost their repetition's interval: a short one keeps the runs short.
            config.neighbours.request_interval = Duration::from_millis(1);
            config.neighbours.requests = 20;
            let mut stack = Stack::new(config);
            stack.add_port(device, PortConfig::new(address(host), 24, MTU)).unwrap();
            let sink = Checker {
                seed,
                host: host as u16,
                rng: SmallRng::seed_from_u64(rng.random()),
                got: BTreeMap::new(),
                released: Vec::new(),
                refused: 0,
            };
            Host { stack, sink, unsent: Vec::new(), tokens: 0 }
        })
        .collect();
    for (from, host) in hosts.iter_mut().enumerate() {
        for to in (0..count).filter(|&to| to != from) {
            let max_datagram = host.stack.max_rud_datagram(address(to)).unwrap();
            let max_payload = max_datagram - shouter_netstack::wire::rud::HEADER_LEN - 16;
            let params = SessionParams {
                local_tag: tag(to, from),
                remote_tag: tag(from, to),
                remote_ip: address(to).into(),
                local_ip: address(from).into(),
                remote_port: RUD_PORT,
                local_ports: (50_000..50_001 + (seed % 4) as u16).collect(),
                max_datagram,
                seal: None,
            };
            let session = host.stack.rud_mut().open(Instant::ZERO, params).unwrap();
            for number in 0..per_pair {
                let len =
                    if rng.random() { rng.random_range(0..=max_payload) } else { rng.random_range(0..64) };
                let message = Message {
                    from: from as u16,
                    to: to as u16,
                    number: number as u32,
                    offset: rng.random_range(0..=SOURCE.len() - len) as u32,
                    len: len as u32,
                };
                host.unsent.push((session, message));
            }
        }
    }
    let expected = per_pair * (count - 1);
    let limit = Instant::ZERO + Duration::from_secs(8);
    let done = sim.run_until(&mut hosts, limit, |hosts| hosts.iter().all(|host| host.is_done(expected)));
    let mut totals = Totals { end: sim.now() - Instant::ZERO, ..Totals::default() };
    for (number, host) in hosts.iter().enumerate() {
        let state = (host.sink.got.len(), host.sink.released.len(), host.unsent.len());
        assert!(
            done,
            "seed {seed}: host {number} of {count} has got, released, unsent {state:?}, of {expected}; {:?}",
            host.stack.counters()
        );
        let mut released = host.sink.released.clone();
        released.sort_unstable();
        assert!(released.iter().copied().eq(0..host.tokens), "seed {seed}: each token is released once");
        let port = host.stack.addresses().next().unwrap().0;
        let faults = host.stack.device(port).unwrap().fault_counters();
        let counters = host.stack.counters();
        totals.messages += host.sink.got.len() as u64;
        totals.refused += host.sink.refused;
        totals.lost += faults.lost;
        totals.corrupted += faults.corrupted;
        totals.duplicated += faults.duplicated;
        totals.reordered += faults.reordered;
        totals.dropped_checks += counters.rx_ipv4_checksum + counters.rx_udp_checksum;
        totals.crc_dropped += host.stack.rud().endpoint_counters().crc_dropped;
    }
    totals
}

#[test]
fn messages_arrive_exactly_over_a_thousand_seeds() {
    let seeds = match std::env::var("SHOUTER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..1000u64,
    };
    let many = seeds.end - seeds.start > 1;
    let mut totals = Totals::default();
    for seed in seeds {
        let run = run(seed);
        totals.messages += run.messages;
        totals.refused += run.refused;
        totals.lost += run.lost;
        totals.corrupted += run.corrupted;
        totals.duplicated += run.duplicated;
        totals.reordered += run.reordered;
        totals.dropped_checks += run.dropped_checks;
        totals.crc_dropped += run.crc_dropped;
    }
    println!("{totals:?}");
    if many {
        for (what, count) in [
            ("lost", totals.lost),
            ("corrupted", totals.corrupted),
            ("duplicated", totals.duplicated),
            ("reordered", totals.reordered),
            ("refused", totals.refused),
            ("dropped for a checksum", totals.dropped_checks),
            ("dropped for a CRC", totals.crc_dropped),
        ] {
            assert!(count > 100, "only {count} {what}: the faults did not take place");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
