//! RUD's sessions on a fat tree in virtual time: permutation traffic over one path and many, switches and cables that fail, incast.
//!
//! Every message arrives once, with its own bytes, or the run panics; what a run measured is a line of `table.txt`, which is
//! committed. 32 hosts, and with `SHOUTER_TEST_LONG=1` also 128. `BLESS=1 SHOUTER_TEST_LONG=1 cargo test --release
//! -p shouter-netstack --test fabric` writes the lines anew.

mod fair;
mod network;
mod topology;
mod world;

use core::time::Duration;
use std::sync::Mutex;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use network::{Fault, Part};
use topology::FatTree;
use world::{LINE_LEN, MTU, OPENED, RATE, RTT, World};

const MS: Duration = Duration::from_millis(1);
const SEED: u64 = 7;
/// What a session has unless it is configured (`channel_num`).
const PATHS: u16 = 64;
/// Few, so that many links have far more of them than others.
const FEW: u16 = 10;

/// Whether all rows are to be simulated.
fn is_long() -> bool {
    std::env::var_os("SHOUTER_TEST_LONG").is_some()
}

/// The trees that are simulated.
fn trees() -> &'static [FatTree] {
    let all = &[FatTree::SMALL, FatTree::LARGE];
    if is_long() { all } else { &all[..1] }
}

/// The numbers of paths over which sessions spread.
fn spreads() -> &'static [u16] {
    let all = &[PATHS, FEW];
    if is_long() { all } else { &all[..1] }
}

/// Compares a line with that of the committed table that begins with `name`.
fn check(tree: FatTree, name: &str, figures: &str) {
    static TABLE: Mutex<()> = Mutex::new(());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fabric/table.txt");
    let name = format!("{:>3} hosts, {name:<34}", tree.size());
    let line = format!("{name}{figures}");
    println!("{line}");
    let _table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let committed = std::fs::read_to_string(path).expect("table.txt");
    let found = committed.lines().find(|line| line.starts_with(&name)).unwrap_or_default();
    if std::env::var_os("BLESS").is_some() {
        let table = if found.is_empty() {
            format!("{committed}{line}\n")
        } else {
            committed.replace(&format!("{found}\n"), &format!("{line}\n"))
        };
        return std::fs::write(path, table).expect("table.txt");
    }
    assert_eq!(line, found, "if the change is meant, write the line anew with BLESS=1");
}

/// Pairs of a random permutation of all hosts, none of them in one pod.
fn permutation(tree: FatTree, seed: u64) -> Vec<(usize, usize)> {
    let size = tree.size();
    let mut to: Vec<_> = (0..size).map(|host| (host + size / 2) % size).collect();
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..100 * size {
        let [a, b] = [(); 2].map(|()| rng.random_range(0..size));
        if tree.pod(a) != tree.pod(to[b]) && tree.pod(b) != tree.pod(to[a]) {
            to.swap(a, b);
        }
    }
    to.into_iter().enumerate().collect()
}

/// Shares of the bisection: what all hosts received, by what their links would carry.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// In the millisecond before the fault.
    before: f64,
    /// In the two that begin a millisecond after it.
    after: f64,
    /// What the hashes allow then.
    fair: f64,
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

fn least(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(f64::INFINITY, f64::min)
}

/// What each flow delivers in the next `time`, by what a link would carry.
fn rates(world: &mut World, time: Duration) -> Vec<f64> {
    let before = world.arrived();
    world.run(time);
    let line = RATE as f64 * time.as_secs_f64() / (8 * LINE_LEN) as f64;
    world.arrived().iter().zip(before).map(|(after, before)| (after - before) as f64 / line).collect()
}

/// Permutation traffic; 2 ms after its begin something may fail. All messages have arrived in the end.
fn permute(tree: FatTree, name: &str, paths: u16, fault: Option<(Part, Fault)>) -> (Shares, World) {
    let mut world = World::new(tree, &permutation(tree, SEED), paths, SEED);
    world.send_each(u64::MAX / 2);
    world.run(MS);
    let before = mean(&rates(&mut world, MS));
    if let Some((part, fault)) = fault {
        world.network.fail(world.now, part, fault);
    }
    let first = mean(&rates(&mut world, MS));
    let fair = world.fair_rates(paths);
    let last = rates(&mut world, 2 * MS);
    let shares = Shares { before, after: mean(&last), fair: mean(&fair) };
    world.stop();
    world.complete(1000 * MS);
    let figures = format!(
        "{:>7.3}{:>7.3}{before:>8.3}{first:>8.3}{:>8.3}{:>8.3}{:>8.3}%{:>7}{:>9}{:>9}",
        shares.fair,
        least(&fair),
        shares.after,
        least(&last),
        100.0 * world.sum(|c| c.resent) as f64 / world.sum(|c| c.sent) as f64,
        world.sum(|c| c.timeouts),
        world.network.counters().queue_drops + world.network.counters().cut_drops,
        world.dropped_damaged(),
    );
    check(tree, name, &figures);
    (shares, world)
}

#[test]
fn permutation_traffic_without_faults() {
    for tree in trees() {
        permute(*tree, "one path", 1, None);
        for paths in spreads() {
            permute(*tree, &format!("{paths} paths"), *paths, None);
        }
        if is_long() {
            permute(*tree, "256 paths", 256, None);
        }
    }
}

/// Sessions that leave queues, as they have several paths, take nothing from those that cannot.
#[test]
fn sessions_of_one_path_are_not_starved_by_those_of_ten() {
    let tree = FatTree::SMALL;
    let mut world = World::mixed(tree, &permutation(tree, SEED), [1, FEW], SEED);
    world.send_each(u64::MAX / 2);
    world.run(4 * MS);
    let last = rates(&mut world, 2 * MS);
    world.stop();
    world.complete(1000 * MS);
    let of = |first: usize| last.iter().copied().skip(first).step_by(2).collect::<Vec<_>>();
    let [one, ten] = [of(0), of(1)];
    let figures = format!("{:>7.3}{:>7.3}{:>8.3}{:>7.3}", mean(&one), least(&one), mean(&ten), least(&ten));
    check(tree, "one path and 10 paths in turns", &figures);
    assert!(least(&one) > 0.2 && least(&ten) > 0.2, "{figures}");
}

#[test]
fn a_core_switch_dies() {
    for tree in trees() {
        let cores = tree.aggregations * tree.cores;
        let dies = Some((Part::Switch(tree.core(1, 0)), Fault::Dead));
        if is_long() {
            let (shares, _) = permute(*tree, "10 paths, a core switch dies", FEW, dies);
            assert!(shares.after > 0.97 * shares.fair, "{shares:?}");
        }
        let (shares, _) = permute(*tree, "64 paths, a core switch dies", PATHS, dies);
        assert!(shares.after > 0.97 * shares.before * (cores - 1) as f64 / cores as f64, "{shares:?}");
    }
}

/// A cable between an aggregation switch and a core switch.
fn cable(tree: FatTree) -> Part {
    Part::Cable(tree.topology().cable(tree.aggregation(1, 1), tree.core(1, 0)))
}

#[test]
fn a_cable_flaps() {
    for tree in trees() {
        let flaps = Fault::Flaps(Duration::from_micros(300));
        for paths in spreads() {
            permute(*tree, &format!("{paths} paths, a cable flaps"), *paths, Some((cable(*tree), flaps)));
        }
    }
}

#[test]
fn a_cable_is_slow() {
    for tree in trees() {
        let slow = Fault::Slow(RATE / 10);
        for paths in spreads() {
            permute(*tree, &format!("{paths} paths, a cable at 10 Gb/s"), *paths, Some((cable(*tree), slow)));
        }
    }
}

#[test]
fn a_switch_corrupts() {
    for tree in trees() {
        let corrupts = (Part::Switch(tree.aggregation(1, 1)), Fault::Corrupts(0.01));
        for paths in spreads() {
            let name = format!("{paths} paths, a switch corrupts 1%");
            let (_, mut world) = permute(*tree, &name, *paths, Some(corrupts));
            // What is under way arrives. None got through, and no other was held for one.
            world.run(MS);
            assert_eq!(world.network.counters().corrupted, world.dropped_damaged());
            assert!(world.dropped_damaged() > 100);
        }
    }
}

#[test]
fn incast_on_the_tree() {
    for tree in trees() {
        let senders = (tree.size() - 1).min(64);
        // From all pods.
        let pairs: Vec<_> = (0..senders).map(|n| (1 + n * (tree.size() - 1) / senders, 0)).collect();
        let mut world = World::new(*tree, &pairs, PATHS, SEED);
        let each = 200_000_000 / LINE_LEN / senders as u64;
        world.send_each(each);
        world.run(RTT + Duration::from_micros(1));
        world.measured = Some(0);
        let (from, before) = (world.now, world.arrived().iter().sum::<u64>());
        // As long as all have something to send.
        while world.flows.iter().all(|flow| flow.done.is_none()) {
            world.run(RTT);
        }
        let (time, arrived) = (world.now - from, world.arrived().iter().sum::<u64>() - before);
        let used = (arrived * LINE_LEN * 8) as f64 / time.as_secs_f64() / RATE as f64;
        world.complete(1000 * MS);
        let mut ends: Vec<_> = world.flows.iter().filter_map(|flow| flow.done).collect();
        ends.sort();
        let ideal = (each * senders as u64 * LINE_LEN * 8) as f64 / RATE as f64 + RTT.as_secs_f64();
        let completion = (ends[(senders * 99).div_ceil(100) - 1] - OPENED).as_secs_f64() / ideal;
        let bdp = RATE as f64 / 8.0 * RTT.as_secs_f64();
        let long = world.queue.iter().filter(|bytes| **bytes as f64 > 2.0 * bdp).count();
        world.queue.sort_unstable();
        let queue = world.queue[world.queue.len() * 99 / 100] as f64 / bdp;
        let drops = world.network.counters().queue_drops;
        let figures = format!("{used:>7.3}{completion:>7.3}{queue:>8.3}{long:>8}{drops:>8}");
        check(*tree, &format!("incast of {senders}, MTU {MTU}"), &figures);
        assert!(used > 0.95 && completion < 1.5 && queue < 2.0, "{figures}");
    }
}

/// A flow over two full links, each shared with one other flow: half of a link each would be fair.
#[test]
fn a_flow_over_two_full_links() {
    let tree = FatTree { pods: 1, edges: 2, hosts: 4, aggregations: 1, cores: 1 };
    // The first shares the way up with the second, and the receiver's port with the third.
    let mut world = World::new(tree, &[(0, 4), (1, 5), (6, 4)], PATHS, SEED);
    let fair = world.fair_rates(PATHS);
    world.send_each(u64::MAX / 2);
    world.run(2 * MS);
    let last = rates(&mut world, 8 * MS);
    world.stop();
    world.complete(1000 * MS);
    let figures = fair.iter().chain(&last).map(|rate| format!("{rate:>7.3}")).collect::<String>();
    check(tree, "a flow over two full links", &figures);
}

/// Parts of all kinds fail in one run: whatever arrives, arrives once, and all does.
#[test]
fn random_faults_lose_and_repeat_nothing() {
    let seeds =
        std::env::var("SHOUTER_SEEDS").map_or(20, |seeds| seeds.parse().expect("SHOUTER_SEEDS is a number"));
    let tree = FatTree::SMALL;
    for seed in 0..seeds {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(tree, &permutation(tree, seed), PATHS, seed);
        let mut part = |cables: bool| {
            let above = rng.random_range(0..tree.aggregations);
            let aggregation = tree.aggregation(rng.random_range(0..tree.pods), above);
            let core = tree.core(above, rng.random_range(0..tree.cores));
            match rng.random_range(0..2) {
                0 if cables => Part::Cable(tree.topology().cable(aggregation, core)),
                0 => Part::Switch(aggregation),
                _ => Part::Switch(core),
            }
        };
        let parts = [part(true), part(true), part(false)];
        // One is dead or flaps, as at most half of a session's paths may be lost.
        let dead = if rng.random() {
            Fault::Dead
        } else {
            Fault::Flaps(Duration::from_micros(rng.random_range(20..2000)))
        };
        let slow = Fault::Slow(rng.random_range(RATE / 100..RATE / 2));
        let corrupts = Fault::Corrupts(rng.random_range(0.0..0.1));
        let faults: Vec<_> = parts.into_iter().zip([dead, slow, corrupts]).collect();
        for (part, fault) in &faults {
            world.network.fail(OPENED + Duration::from_micros(rng.random_range(0..200)), *part, *fault);
        }
        println!("seed {seed}: {faults:?}");
        world.send_each(2000);
        world.complete(5000 * MS);
    }
}
