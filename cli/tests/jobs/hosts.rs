//! Jobs whose hosts have different numbers of ranks: every collective over every transport, messages, windows, groups of some ranks, deaths.

use crate::ranks::{job, join, names_only, parameter, play};
use shouter::{Error, Exchange, Group, ReduceOp};

/// Ranks of each host.
const HOSTS: [&str; 3] = ["3,1", "1,3", "2,1,1"];

const TRANSPORTS: [&str; 3] = ["auto", "tcp", "kernel"];

/// Elements of a tensor, or of a block.
const COUNTS: [usize; 3] = [1, 700, 20_011];

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    play(&[("collectives", collectives), ("beside", beside), ("die", die), ("nothing", |_| Ok(()))], join);
}

/// The ranks of each host, as given by the test.
fn hosts() -> Vec<u32> {
    parameter("HOSTS").unwrap().split(',').map(|ranks| ranks.parse().unwrap()).collect()
}

/// A rank's contribution; its sums are not exact.
fn part(rank: u32, index: usize) -> f32 {
    (rank + 1) as f32 / (3 + index % 1000) as f32
}

/// The bits of a sum: over the ranks of each host in their order, then over the hosts.
fn sum(index: usize) -> f32 {
    let mut ranks = 0..;
    let of_host = |locals: u32| {
        ranks.by_ref().take(locals as usize).map(|rank| part(rank, index)).reduce(|a, b| a + b).unwrap()
    };
    hosts().into_iter().map(of_host).reduce(|a, b| a + b).unwrap()
}

fn number(from: u32, to: u32, index: usize) -> u64 {
    u64::from(from) << 40 | u64::from(to) << 32 | index as u64
}

/// The block of one rank for another one.
fn block(from: u32, to: u32, count: usize) -> Vec<u64> {
    (0..count).map(|index| number(from, to, index)).collect()
}

/// The blocks of a rank for all, of these lengths.
fn blocks(from: u32, counts: &[usize]) -> Vec<u64> {
    (0..).zip(counts).flat_map(|(to, &count)| block(from, to, count)).collect()
}

/// The blocks of all ranks for one, of these lengths.
fn taken(to: u32, counts: &[usize]) -> Vec<u64> {
    (0..).zip(counts).flat_map(|(from, &count)| block(from, to, count)).collect()
}

fn collectives(group: &Group) -> Result<(), Error> {
    let (rank, size, all) = (group.rank(), group.size(), group.size() as usize);
    let host = hosts()[group.node() as usize];
    assert_eq!((group.local_size(), group.nodes()), (host, hosts().len() as u32));
    for (number, count) in COUNTS.into_iter().enumerate() {
        let root = (number as u32 + 1) % size;
        group.barrier()?;
        let mut data: Vec<f32> = (0..count).map(|index| part(rank, index)).collect();
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!((0..count).all(|index| data[index].to_bits() == sum(index).to_bits()), "sums of {count}");
        let mut data: Vec<f32> = (0..count).map(|index| part(rank, index)).collect();
        group.reduce(&mut data, ReduceOp::Sum, root)?;
        assert!(rank != root || (0..count).all(|index| data[index].to_bits() == sum(index).to_bits()));
        let mut data: Vec<f32> = (0..count * all).map(|index| part(rank, index)).collect();
        let mut own = vec![0f32; count];
        group.reduce_scatter(&data, &mut own, ReduceOp::Sum)?;
        let first = rank as usize * count;
        assert!(
            (0..count).all(|index| own[index].to_bits() == sum(first + index).to_bits()),
            "own of {count}"
        );
        data.truncate(count);
        group.scan(&data, &mut own, ReduceOp::Max)?;
        let highest = |ranks: u32, index| (0..ranks).map(|rank| part(rank, index)).reduce(f32::max).unwrap();
        assert!((0..count).all(|index| own[index] == highest(rank + 1, index)), "scan of {count}");
        group.exscan(&data, &mut own, ReduceOp::Max)?;
        assert!(rank == 0 || (0..count).all(|index| own[index] == highest(rank, index)), "exscan of {count}");
        let mut data = if rank == root { block(root, 0, count) } else { vec![0; count] };
        group.broadcast(&mut data, root)?;
        assert_eq!(data, block(root, 0, count));
        moves(group, count, root)?;
        moves_of_different_lengths(group, count, root)?;
    }
    Ok(())
}

fn moves(group: &Group, count: usize, root: u32) -> Result<(), Error> {
    let (rank, all) = (group.rank(), group.size() as usize);
    let (equal, is_root) = (vec![count; all], rank == root);
    let own = block(rank, 7, count);
    let mut data = vec![0; count * all];
    group.all_gather(&own, &mut data)?;
    assert_eq!(data, taken(7, &equal));
    let mut data = vec![0; if is_root { count * all } else { 0 }];
    group.gather(&own, &mut data, root)?;
    assert!(!is_root || data == taken(7, &equal));
    let mut own = vec![0; count];
    group.scatter(&if is_root { blocks(root, &equal) } else { vec![] }, &mut own, root)?;
    assert_eq!(own, block(root, rank, count));
    let mut data = vec![0; count * all];
    group.all_to_all(&blocks(rank, &equal), &mut data)?;
    assert_eq!(data, taken(rank, &equal));
    // In place, on this rank alone or on all.
    let mut data = blocks(rank, &equal);
    let given = data.clone();
    group.all_to_all(&given, &mut data)?;
    assert_eq!(data, taken(rank, &equal));
    Ok(())
}

fn moves_of_different_lengths(group: &Group, count: usize, root: u32) -> Result<(), Error> {
    let (rank, all) = (group.rank(), group.size() as usize);
    // Rank 0 has no elements.
    let counts: Vec<_> = (0..all).map(|rank| rank * count / 3).collect();
    let (total, mine, is_root) = (counts.iter().sum(), counts[rank as usize], rank == root);
    let own = block(rank, 7, mine);
    let mut data = vec![0; total];
    group.all_gather_v(&own, &mut data, &counts)?;
    assert_eq!(data, taken(7, &counts));
    let mut data = vec![0; if is_root { total } else { 0 }];
    group.gather_v(&own, &mut data, if is_root { &counts } else { &[] }, root)?;
    assert!(!is_root || data == taken(7, &counts));
    let mut own = vec![0; mine];
    let (given, of_root) = if is_root { (blocks(root, &counts), &counts[..]) } else { (vec![], &[][..]) };
    group.scatter_v(&given, of_root, &mut own, root)?;
    assert_eq!(own, block(root, rank, mine));
    let data: Vec<f32> = (0..total).map(|index| part(rank, index)).collect();
    let mut own = vec![0f32; mine];
    group.reduce_scatter_v(&data, &mut own, &counts, ReduceOp::Sum)?;
    let first: usize = counts[..rank as usize].iter().sum();
    assert!((0..mine).all(|index| own[index].to_bits() == sum(first + index).to_bits()), "own of {counts:?}");
    // Each rank receives its own count from every rank.
    let from_each = vec![mine; all];
    let mut data = vec![0; mine * all];
    group.all_to_all_v(&blocks(rank, &counts), &counts, &mut data, &from_each)?;
    assert_eq!(data, taken(rank, &from_each));
    Ok(())
}

/// Messages between all pairs, windows, groups of some ranks, and started collectives.
fn beside(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    for count in [1, 30_000] {
        let given: Vec<_> = (0..size).map(|to| block(rank, to, count)).collect();
        let mut data = vec![vec![0; count]; size as usize];
        let sends = (0..).zip(&given).map(|(to, block)| Exchange::send(block, to, 3));
        let receives = (0..).zip(&mut data).map(|(from, into)| Exchange::receive(into, from, 3));
        let mut exchanges: Vec<_> = sends.chain(receives).collect();
        group.batch(&mut exchanges).into_iter().try_for_each(|ended| ended.map(drop))?;
        drop(exchanges);
        assert!(
            (0..).zip(&data).all(|(from, into)| *into == block(from, rank, count)),
            "messages of {count}"
        );
    }
    let window = group.window(vec![0u64; size as usize])?;
    (0..size).try_for_each(|to| window.put(&[number(rank, to, 0)], to, rank.into()))?;
    window.fence()?;
    assert_eq!(window.free()?, (0..size).map(|from| number(from, rank, 0)).collect::<Vec<_>>());
    // The members of each are on several hosts.
    let half = group.split(Some(rank % 2), 0)?.expect("every rank has a color");
    let mut data = [u64::from(rank) + 1; 5000];
    half.all_reduce(&mut data, ReduceOp::Sum)?;
    let members = (0..u64::from(size)).filter(|member| member % 2 == u64::from(rank % 2));
    let sum: u64 = members.map(|member| member + 1).sum();
    assert_eq!(data, [sum; 5000]);
    half.finalize()?;
    group.barrier()
}

/// One rank ends before its part.
fn die(group: &Group) -> Result<(), Error> {
    group.barrier()?;
    if parameter("CULPRIT").unwrap().parse() == Ok(group.rank()) {
        std::process::exit(1);
    }
    let mut data = vec![1f32; 100_000];
    group.all_reduce(&mut data, ReduceOp::Sum).and_then(|()| group.barrier())
}

/// A job on hosts with these numbers of ranks.
fn on(hosts: &str, transport: &str, scenario: &str) -> crate::ranks::Plan {
    let ranks = hosts.split(',').map(|ranks| ranks.parse::<u32>().unwrap()).sum();
    let plan = job!(ranks, hosts, scenario).with("HOSTS", hosts);
    if transport == "auto" { plan } else { plan.args(&["--transport", transport]) }
}

#[test]
fn every_collective_is_exact_and_sums_have_the_bits_of_their_hosts() {
    for hosts in HOSTS {
        for transport in TRANSPORTS {
            on(hosts, transport, "collectives").run().assert_success();
        }
    }
}

#[test]
fn messages_windows_and_groups_reach_every_rank() {
    for (hosts, transport) in HOSTS.into_iter().zip(TRANSPORTS) {
        on(hosts, transport, "beside").run().assert_success();
    }
}

/// The culprit is on the host with one rank, or on the other one.
#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    for (culprit, transport) in [(3, "auto"), (1, "kernel")] {
        let state = on("3,1", transport, "die").with("CULPRIT", culprit).run();
        for (_, survivor) in (0..).zip(&state.ranks).filter(|(rank, _)| *rank != culprit) {
            assert!(survivor.lost_its_group(), "{state}");
            assert!(names_only(survivor.error(), culprit), "{state}");
        }
    }
}

#[test]
fn an_algorithm_that_needs_equal_hosts_is_refused_by_name_on_every_rank() {
    let state =
        on("2,1", "kernel", "nothing").env("SHOUTER_SCHEDULE", "all_reduce:ring,all_gather:ring").run();
    for rank in &state.ranks {
        let said = rank.error();
        assert!(said.contains("all_gather:ring") && said.contains("different numbers"), "{said}\n{state}");
        assert!(!said.contains("all_reduce:ring"), "an all-reduce forwards no blocks: {said}");
    }
    // Algorithms that do not forward blocks serve such hosts.
    let schedule =
        "all_reduce:bruck,all_to_all:pairwise,broadcast:chain,reduce:binomial,barrier:dissemination";
    on("2,1", "kernel", "collectives").env("SHOUTER_SCHEDULE", schedule).run().assert_success();
}
