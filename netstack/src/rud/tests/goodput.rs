//! Goodput under loss, as a share of the link: a table in virtual time, committed as `goodput.txt`, so that a change
//! shows in the diff. `BLESS=1 cargo test -p shouter-netstack --lib goodput` writes it anew.

use std::fmt::Write as _;

use super::link::World;
use crate::sim::{LinkConfig, tests::delayed};

/// Time in which the sender has found the paths that have died, and in which the window is open again after that, in nanoseconds.
const UNTIL_KNOWN: u64 = 150_000_000;
const UNTIL_OPEN: u64 = 20_000_000;

/// What is wrong with some paths.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// They carry nothing, from some time on.
    Dead,
    /// They take so many microseconds longer from the sender; as with a queue of others.
    Long(u64),
}

/// Payload bits per second that one end receives in 40 round-trip times, after 40 others, or some time after `some` paths have
/// failed.
fn goodput(loss: f64, rtt_us: u64, paths: u16, (some, fault): (&[u16], Fault)) -> f64 {
    let link = LinkConfig { bits_per_second: 100_000_000_000, loss, ..delayed(rtt_us * 500) };
    let mut world = World::with_paths(7, link, paths);
    // Numbers of this form have full payloads.
    let mut numbers = (0u64..).map(|i| i * 5 + 2);
    let span = 40 * rtt_us * 1000;
    let mut run = |world: &mut World, until: u64| {
        while world.now < until {
            let waiting = world.ends[0].to_send.len();
            world.ends[0].to_send.extend(numbers.by_ref().take(256usize.saturating_sub(waiting)));
            world.step();
        }
    };
    if let Fault::Long(by) = fault {
        world.long = (some.to_vec(), by * 1000);
    }
    run(&mut world, span);
    if fault != Fault::Dead {
        let open = world.now + UNTIL_OPEN;
        run(&mut world, open);
    } else if !some.is_empty() {
        world.dead.extend(some);
        let late = world.now + UNTIL_KNOWN;
        // The other end may not miss the acknowledgements that get lost, as later ones say the same.
        let known = |world: &World| {
            let end = &world.ends[0];
            usize::from(end.endpoint.counters(end.id).paths_out) >= some.len()
        };
        while !known(&world) {
            assert!(world.now < late, "{some:?} are not known at {rtt_us} us");
            let soon = world.now + span;
            run(&mut world, soon);
        }
        let open = world.now + UNTIL_OPEN;
        run(&mut world, open);
    }
    let (start, before) = (world.now, world.ends[1].app.bytes);
    run(&mut world, start + span);
    assert_eq!(world.ends[1].app.corrupt, 0);
    (world.ends[1].app.bytes - before) as f64 * 8.0 / (world.now - start) as f64
}

#[test]
fn the_goodput_table_is_as_committed() {
    let mut table = String::from(
        "Gbit/s of payload over a 100 Gbit/s link, 1400-byte payloads, one direction, window of 960 datagrams\n\
         loss     rtt 10 us   rtt 50 us  rtt 200 us\n",
    );
    for loss in [0.0, 0.001, 0.01, 0.05, 0.1, 0.2] {
        write!(table, "{:>5.1}%", loss * 100.0).unwrap();
        for rtt_us in [10, 50, 200] {
            write!(table, "{:>12.1}", goodput(loss, rtt_us, 4, (&[], Fault::Dead))).unwrap();
        }
        table.push('\n');
    }
    let nine: Vec<u16> = (0..10).filter(|path| *path != 4).collect();
    for dead in [&[6][..], &[1, 3, 5, 7, 9], &[0, 1, 3, 5, 6, 8, 9], &nine] {
        write!(table, "{} of 10 paths dead", dead.len()).unwrap();
        for rtt_us in [10, 50, 200] {
            write!(table, "{:>12.1}", goodput(0.0, rtt_us, 10, (dead, Fault::Dead))).unwrap();
        }
        table.push('\n');
    }
    for count in [1, 6, 32] {
        // Spread over all numbers, as a hash does it.
        let dead: Vec<u16> = (0..64).map(|path| path * 7 % 64).take(count).collect();
        write!(table, "{count} of 64 paths dead").unwrap();
        for rtt_us in [10, 50, 200] {
            write!(table, "{:>12.1}", goodput(0.0, rtt_us, 64, (&dead, Fault::Dead))).unwrap();
        }
        table.push('\n');
    }
    for (long, of, by) in [(15, 16, 30), (8, 16, 30), (3, 4, 30), (9, 10, 100)] {
        let paths: Vec<u16> = (of - long..of).collect();
        write!(table, "{long} of {of} paths {by} us longer").unwrap();
        for rtt_us in [10, 50, 200] {
            write!(table, "{:>12.1}", goodput(0.0, rtt_us, of, (&paths, Fault::Long(by)))).unwrap();
        }
        table.push('\n');
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rud/tests/goodput.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(table, committed, "goodput changed: if it is meant, write the table anew with BLESS=1");
}
