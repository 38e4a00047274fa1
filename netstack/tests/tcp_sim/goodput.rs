//! Tables that are committed, so that a change shows in the diff.
//! `BLESS=1 cargo test -p shouter-netstack --test tcp_sim table` writes them anew.

use core::time::Duration;
use std::fmt::Write as _;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::sim::LinkConfig;
use shouter_netstack::tcp::Options;

use super::network::clean;
use super::world::{World, ms};

pub(crate) const ALL: [Algorithm; 4] =
    [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Bbr];

/// Options for one algorithm; DCTCP has its marks.
pub(crate) fn options(congestion: Algorithm) -> Options {
    Options { congestion, ecn: congestion == Algorithm::Dctcp, ..Options::internet() }
}

/// A path of `rtt`, with loss both ways.
pub(crate) fn path(bits_per_second: u64, rtt: Duration, loss: f64) -> [LinkConfig; 2] {
    let link = LinkConfig { loss, ..clean(bits_per_second, rtt / 2) };
    // Marks as RFC 8257 has them in mind: early, for a controller that answers by degrees.
    [LinkConfig { mark_above: 40, ..link }, link]
}

/// Payload bits per second that arrive in `span` after as long a start.
pub(crate) fn goodput(world: &mut World, start: u64, span: u64) -> f64 {
    world.run_to(ms(start));
    let before: u64 = world.hosts[1].apps.iter().map(|app| app.read).sum();
    world.run_to(ms(start + span));
    let after: u64 = world.hosts[1].apps.iter().map(|app| app.read).sum();
    (after - before) as f64 * 8.0 / (span as f64 / 1e3)
}

pub(crate) fn check(name: &str, table: &str) {
    let path = format!("{}/tests/tcp_sim/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(table, committed, "{name} changed: if it is meant, write the table anew with BLESS=1");
}

#[test]
fn the_goodput_table_is_as_committed() {
    let mut table = String::from(
        "Mbit/s of payload over 200 Mbit/s, queue of 256 packets, MTU 1500, loss both ways; DCTCP with marks above 40\n\
         \x20  rtt   loss     NewReno       Cubic       Dctcp         Bbr\n",
    );
    for (rtt, span) in [(1, 1000), (10, 2000), (100, 6000)] {
        for loss in [0.0, 0.001, 0.01, 0.05] {
            write!(table, "{rtt:>3} ms {:>5.1}%", loss * 100.0).unwrap();
            for algorithm in ALL {
                let links = path(200_000_000, Duration::from_millis(rtt), loss);
                let mut world = World::new(11, &options(algorithm), links);
                world.connect(u64::MAX >> 8, None);
                write!(table, "{:>12.2}", goodput(&mut world, span, span) / 1e6).unwrap();
            }
            table.push('\n');
        }
    }
    check("goodput.txt", &table);
}

#[test]
fn the_table_of_fairness_is_as_committed() {
    let mut table = String::from(
        "Two flows over 100 Mbit/s, 10 ms, queue of 64 packets, the second 2 s later; seconds 10 to 20, Mbit/s\n\
         \x20               first     second      Jain\n",
    );
    let pairs = [
        (Algorithm::NewReno, Algorithm::NewReno),
        (Algorithm::Cubic, Algorithm::Cubic),
        (Algorithm::Dctcp, Algorithm::Dctcp),
        (Algorithm::Bbr, Algorithm::Bbr),
        (Algorithm::NewReno, Algorithm::Cubic),
        (Algorithm::Cubic, Algorithm::Bbr),
    ];
    for (first, second) in pairs {
        let mut links = path(100_000_000, Duration::from_millis(10), 0.0);
        links[0].queue_frames = 64;
        links[1].jitter = Duration::from_micros(60);
        let listening = options(first);
        let mut world = World::new(12, &listening, links);
        world.connect(u64::MAX >> 8, Some(options(first)));
        world.run_to(ms(2000));
        world.connect(u64::MAX >> 8, Some(options(second)));
        world.run_to(ms(10_000));
        let before = [world.received(0), world.received(1)];
        world.run_to(ms(20_000));
        let [a, b] = [0, 1].map(|i| (world.received(i) - before[i]) as f64 * 8.0 / 10e6);
        let jain = (a + b) * (a + b) / (2.0 * (a * a + b * b));
        let pair = format!("{first:?}, {second:?}");
        writeln!(table, "{pair:<18}{a:>8.2}   {b:>8.2}    {jain:>6.3}").unwrap();
        if first == second {
            assert!(jain > 0.9, "{pair}: {a} and {b}");
        }
        assert!(a + b > 85.0, "{pair}: {a} and {b}");
    }
    check("fairness.txt", &table);
}

#[test]
fn the_table_of_blackouts_is_as_committed() {
    let mut table = String::from(
        "How long after a cut is mended the first new byte arrives, and until the former rate is reached again, in ms;\n\
         50 Mbit/s, 20 ms\n\
         \x20   cut       NewReno         Cubic         Dctcp           Bbr\n",
    );
    for cut in [100, 1000, 10_000] {
        write!(table, "{cut:>5} ms").unwrap();
        for algorithm in ALL {
            let mut world =
                World::new(13, &options(algorithm), path(50_000_000, Duration::from_millis(20), 0.0));
            world.connect(u64::MAX >> 8, None);
            let rate = goodput(&mut world, 2000, 1000);
            for link in &mut world.links {
                link.cut = true;
            }
            world.run_to(ms(3000 + cut));
            for link in &mut world.links {
                link.cut = false;
            }
            let mended = world.now;
            let before = world.received(0);
            assert!(world.run_until(mended + Duration::from_secs(60), |world| world.received(0) > before));
            let first = world.now - mended;
            // Slots of 100 ms, until one has 80% of the rate.
            let again = loop {
                let (from, at) = (world.received(0), world.now);
                world.run_to(at + Duration::from_millis(100));
                let got = (world.received(0) - from) as f64 * 8.0 / 0.1;
                if got >= 0.8 * rate {
                    break world.now - mended;
                }
                let waiting = world.now - mended;
                assert!(waiting < Duration::from_secs(60), "{algorithm:?}: {got} of {rate}");
            };
            write!(table, "{:>8}{:>6}", first.as_millis(), again.as_millis()).unwrap();
        }
        table.push('\n');
    }
    check("blackout.txt", &table);
}
