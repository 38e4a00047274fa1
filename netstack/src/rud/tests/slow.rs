//! Goodput between hosts that look at the network rarely, take long for a datagram, or whose NICs hold datagrams for as long as they please: a table in
//! virtual time, committed as `slow.txt`. `BLESS=1 cargo test -p shouter-netstack --lib slow` writes it anew.

use std::collections::VecDeque;
use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::link::{Collect, Datagram, World, expected_header, extent_of, meta};
use super::*;
use crate::region::Extent;

const US: u64 = 1_000;

/// A message with a full payload.
const FULL: u64 = 2;

/// Datagrams that a host reads in one look, and that it may send in one.
const BUDGET: usize = 64;

/// How slow both hosts and their NICs are. Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Slow {
    /// From the end of a look to the next look; in fact anything up to twice as much.
    pause: u64,
    /// What it takes to read a datagram, or to send one.
    work: u64,
    /// The NIC hands over what has come at times that are anything up to twice as far apart.
    nic: u64,
}

/// One host.
struct Host {
    slow: Slow,
    rng: SmallRng,
    next_look: u64,
    next_nic: u64,
    /// What the NIC has handed over.
    ring: VecDeque<Datagram>,
    /// Whether the look before left some.
    more: bool,
    payload: Option<Extent>,
}

impl Host {
    fn new(slow: Slow, seed: u64) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Self {
            slow,
            rng,
            next_look: 0,
            next_nic: 0,
            ring: VecDeque::new(),
            more: false,
            payload: extent_of(FULL),
        }
    }

    fn around(&mut self, time: u64) -> u64 {
        if time == 0 { 0 } else { self.rng.random_range(0..2 * time) }
    }
}

/// Both hosts until `until`; the first `senders` of them always have something to send.
fn run(world: &mut World, hosts: &mut [Host; 2], senders: usize, until: u64) {
    while world.now < until {
        let index = usize::from(hosts[1].next_look < hosts[0].next_look);
        let mut clock = hosts[index].next_look;
        world.now = clock;
        let host = &mut hosts[index];
        let end = &mut world.ends[index];
        // The NIC.
        while host.next_nic <= clock {
            let at = Instant::from_nanos(host.next_nic);
            while let Some(datagram) = world.links[1 - index].receive(at) {
                host.ring.push_back(datagram);
            }
            let wait = host.around(host.slow.nic).max(US);
            host.next_nic += wait;
        }
        let now = Instant::from_nanos(clock);
        end.endpoint.on_poll(now, host.more);
        let count = host.ring.len().min(BUDGET);
        host.more = count == BUDGET;
        for datagram in host.ring.drain(..count) {
            end.endpoint.on_datagram(now, &meta(index, datagram.src_port), &datagram.bytes, &mut end.app);
            clock += host.slow.work;
        }
        end.endpoint.on_timeout(now, &mut end.app);
        while index < senders && end.endpoint.capacity(end.id) != 0 {
            end.endpoint.send(end.id, &expected_header(FULL), host.payload, MessageToken(FULL)).unwrap();
        }
        let mut collect = Collect { out: Vec::new(), room: BUDGET };
        end.endpoint.transmit(now, &mut collect);
        for (to, bytes) in collect.out {
            clock += host.slow.work;
            world.links[index].send(Instant::from_nanos(clock), Datagram { src_port: to.src_port, bytes });
        }
        host.next_look = clock + host.around(host.slow.pause).max(US);
    }
}

/// Payload bits per nanosecond that the second end receives in the second half of 600 ms.
fn goodput(slow: Slow, senders: usize) -> f64 {
    let link = LinkConfig { bits_per_second: 10_000_000_000, ..delayed(5_000) };
    let mut world = World::with_paths(7, link, 4);
    let mut hosts = [Host::new(slow, 3), Host::new(slow, 4)];
    run(&mut world, &mut hosts, senders, 300_000 * US);
    let (start, before) = (world.now, world.ends[1].app.bytes);
    run(&mut world, &mut hosts, senders, 600_000 * US);
    assert_eq!(world.ends[1].app.corrupt, 0);
    (world.ends[1].app.bytes - before) as f64 * 8.0 / (world.now - start) as f64
}

#[test]
fn the_table_of_slow_hosts_is_as_committed() {
    let mut table = String::from(
        "Mbit/s of payload over a 10 Gbit/s link, 1400-byte payloads, between hosts that take `work` for each datagram, pause up to\n\
         twice `pause` between looks, and have NICs that hand over what has come up to twice `nic` apart; all in microseconds.\n\
         one: one direction; both: each of the two.\n\
         work   nic pause      one     both\n",
    );
    for work in [1, 20, 100] {
        for nic in [0, 200, 1000] {
            for pause in [1, 50, 200, 1000] {
                let slow = Slow { pause: pause * US, work: work * US, nic: nic * US };
                write!(table, "{work:>4} {nic:>5} {pause:>5}").unwrap();
                for senders in [1, 2] {
                    write!(table, "{:>9.1}", goodput(slow, senders) * 1e3).unwrap();
                }
                table.push('\n');
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rud/tests/slow.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(table, committed, "goodput changed: if it is meant, write the table anew with BLESS=1");
}

/// The figures of the table in docs/benchmarks.md, and the one in the text behind it.
#[test]
fn the_documentation_has_the_figures_of_the_table() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let table = std::fs::read_to_string(format!("{folder}/src/rud/tests/slow.txt")).unwrap();
    // A package of this crate alone has no documentation beside it.
    let Ok(text) = std::fs::read_to_string(format!("{folder}/../docs/benchmarks.md")) else { return };
    let (_, section) = text.split_once("\n## RUD between slow hosts\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let figures = |work: &str, nic: &str, pause: &str| {
        let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.starts_with(&[work, nic, pause])).unwrap();
        [row[3], row[4]].map(|figure| figure.parse::<f64>().unwrap())
    };
    // The documentation says up to how much a host pauses and a NIC waits: twice as much.
    for (row, nic) in [("| 0.4 ms apart |", "200"), ("| 2 ms apart |", "1000")] {
        let row = section.lines().find(|line| line.starts_with(row)).unwrap();
        let shown = row.trim_end_matches([' ', '|']).rsplit(' ').next().unwrap();
        assert_eq!(shown, format!("{:.0}", figures("1", nic, "50")[0]), "{row}");
    }
    let weak = format!(
        "{:.1} Mbit/s with work of 20 us, pauses of 50 and NICs of 200",
        figures("20", "200", "50")[1]
    );
    assert!(section.contains(&weak), "{weak}");
}
