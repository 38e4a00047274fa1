//! Jobs whose hosts are grouped by several levels: sums have the bits of their groups, whichever algorithm makes them.

use crate::ranks::{JOIN, Plan, job, parameter, play};
use shouter::config::{Builder, Levels};
use shouter::{Config, Error, Group, ReduceOp};

/// Elements of a tensor, or of a block: of one chunk, and of several.
const COUNTS: [usize; 4] = [1, 700, 20_011, 300_007];

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    play(&[("sums", sums), ("nothing", |_| Ok(()))], join);
}

/// Joins as the launcher says; the culprit has other levels.
fn join() -> Result<Group, Error> {
    let config = |why: shouter::config::ConfigError| Error::Config(why.to_string());
    let mut builder = Builder::from_process().map_err(config)?;
    if parameter("CULPRIT").is_some_and(|rank| std::env::var("SHOUTER_RANK") == Ok(rank)) {
        builder = builder.set("levels", "4,2").map_err(config)?;
    }
    let config: Config = builder.build().map_err(config)?;
    shouter::init(config)
}

/// A rank's contribution; its sums are not exact.
fn part(rank: u32, index: usize) -> f32 {
    (rank + 1) as f32 / (3 + index % 1000) as f32
}

/// The bits of a sum: over the ranks of each host, the hosts of each group, and the groups of each level.
fn sum(hosts: &[u32], levels: &[u32], index: usize) -> f32 {
    let added = |parts: &[f32]| parts.iter().copied().reduce(|a, b| a + b).unwrap();
    let mut ranks = 0..;
    let mut units: Vec<f32> = Vec::new();
    for &locals in hosts {
        let parts: Vec<_> = ranks.by_ref().take(locals as usize).map(|rank| part(rank, index)).collect();
        units.push(added(&parts));
    }
    for &size in levels {
        units = units.chunks(size as usize).map(added).collect();
    }
    added(&units)
}

fn sums(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    let hosts: Vec<u32> =
        parameter("HOSTS").unwrap().split(',').map(|ranks| ranks.parse().unwrap()).collect();
    let levels: Levels = std::env::var("SHOUTER_LEVELS").unwrap().parse().unwrap();
    // As many distinct sums as `part` has.
    let expected: Vec<_> = (0..1000).map(|index| sum(&hosts, levels.sizes(), index).to_bits()).collect();
    let is_right = |data: &[f32], first: usize| {
        (first..).zip(data).all(|(index, found)| found.to_bits() == expected[index % 1000])
    };
    for (number, count) in COUNTS.into_iter().enumerate() {
        let root = (number as u32 + 1) % size;
        let given: Vec<f32> = (0..count).map(|index| part(rank, index)).collect();
        let mut data = given.clone();
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(is_right(&data, 0), "all-reduce of {count}");
        let mut data = given;
        group.reduce(&mut data, ReduceOp::Sum, root)?;
        assert!(rank != root || is_right(&data, 0), "reduce of {count} to {root}");
        let data: Vec<f32> = (0..count * size as usize).map(|index| part(rank, index)).collect();
        let mut own = vec![0f32; count];
        group.reduce_scatter(&data, &mut own, ReduceOp::Sum)?;
        assert!(is_right(&own, rank as usize * count), "reduce-scatter of {count}");
    }
    group.barrier()
}

/// A job on hosts with these numbers of ranks, over sockets.
fn on(hosts: &str, levels: &str, scenario: &str) -> Plan {
    let ranks = hosts.split(',').map(|ranks| ranks.parse::<u32>().unwrap()).sum();
    let plan = job!(ranks, hosts, scenario).with("HOSTS", hosts).env("SHOUTER_LEVELS", levels);
    plan.args(&["--transport", "kernel"])
}

#[test]
fn sums_have_the_bits_of_the_levels_whatever_the_algorithm() {
    let eight = "1,1,1,1,1,1,1,1";
    for (hosts, levels) in
        [(eight, "2,2"), (eight, "3,2"), ("1,1,1,1,1,1,1", "2,2,2"), ("2,1,1,2,1", "2,2"), (eight, "1")]
    {
        // As the cost model chooses, and each by name at every size.
        for algorithm in ["", "hierarchical", "direct"] {
            let schedule = match algorithm {
                "" => String::new(),
                name => format!("all_reduce:{name},reduce:{name}"),
            };
            on(hosts, levels, "sums").env("SHOUTER_SCHEDULE", schedule).run().assert_success();
        }
    }
}

/// Else the test above could not tell them from each other.
#[test]
fn levels_show_in_the_bits() {
    let of =
        |levels: &[u32]| (0..1000).map(|index| sum(&[1; 8], levels, index).to_bits()).collect::<Vec<_>>();
    let all = [of(&[]), of(&[2, 2]), of(&[3, 2]), of(&[2])];
    for (number, one) in all.iter().enumerate() {
        assert!(all[..number].iter().all(|other| other != one), "{number}");
    }
}

#[test]
fn levels_that_differ_are_refused_with_the_level_on_every_rank() {
    for culprit in 0..3 {
        let state = on("1,1,1", "4", "nothing").with("CULPRIT", culprit).run();
        let (named, theirs, ours) = match culprit {
            0 => (vec![1, 2], "none", "2"),
            rank => (vec![rank], "2", "none"),
        };
        for rank in &state.ranks {
            assert_eq!(rank.code, Some(JOIN), "{state}");
            let says = |named: &u32| {
                rank.error().contains(&format!("levels[1]: rank {named} has {theirs} and rank 0 has {ours}"))
            };
            assert!(named.iter().any(says), "{}\n{state}", rank.error());
        }
    }
}
