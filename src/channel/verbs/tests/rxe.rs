//! The same over real queue pairs, where the host has two RDMA devices with a route between them: scripts/vm-lab makes
//! such a host.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use shouter_netstack::verbs::{Context, DeviceInfo, Gid, devices, route};

use super::super::rdma::{Port, Rdma};
use super::*;
use crate::runtime::Clock;

/// As in the real channel, but with few and small slots, so that they go round often.
const SMALL: Sizes = Sizes { window: 8, slot_bytes: 4096 };

fn two_devices() -> Option<[(DeviceInfo, Gid); 2]> {
    let found = devices().unwrap_or_default();
    for a in &found {
        for b in found.iter().filter(|b| b.name != a.name) {
            let (Some(pa), Some(pb)) = (a.ports.first(), b.ports.first()) else { continue };
            let raw = |gids: &[Gid]| gids.iter().map(|gid| gid.raw).collect::<Vec<_>>();
            let there = route(&pa.gids, &raw(&pb.gids)).ok().flatten();
            let back = route(&pb.gids, &raw(&pa.gids)).ok().flatten();
            if let (Some((ga, _)), Some((gb, _))) = (there, back) {
                return Some([(a.clone(), ga), (b.clone(), gb)]);
            }
        }
    }
    None
}

fn real() -> Option<Pair<Rdma>> {
    let (hub, _) = hub(1, CONNECTIONS.into(), SMALL);
    let mut pair = leaders(hub, ends()?, alike(true));
    pair.now = Clock.now();
    Some(pair)
}

/// The ends of connections between two devices.
fn ends() -> Option<[Rdma; 2]> {
    let Some(found) = two_devices() else {
        println!("skipped: no two RDMA devices with a route between them");
        return None;
    };
    Some(found.map(|(device, gid)| {
        let port = &device.ports[0];
        let port = Port {
            number: port.number,
            lid: port.lid,
            mtu: port.active_mtu,
            ethernet: true,
            gids: vec![gid],
        };
        let context = Context::open(&device.name).unwrap();
        Rdma::new(context, port, (1, CONNECTIONS.into()), SMALL, 1 << 24, SmallRng::seed_from_u64(7)).unwrap()
    }))
}

#[test]
fn payloads_of_devices_survive_damage_and_failures_over_real_queue_pairs() {
    let Some(ends) = ends() else { return };
    let (hub, _) = hub(1, CONNECTIONS.into(), SMALL);
    let both = device::over(hub, ends, (1, true, MemoryKind::Device, 0.05));
    device::damaged_and_cut(both, Clock.now());
}

#[test]
fn sums_are_right_over_real_queue_pairs() {
    let Some(mut pair) = real() else { return };
    reduce(&mut pair, 0, false);
    for leader in &pair.leaders {
        assert_eq!((leader.channel.crc_dropped(), leader.channel.counts.zero_copy), (0, 0));
    }
}

#[test]
fn sums_are_right_from_registered_memory() {
    let Some(mut pair) = real() else { return };
    reduce(&mut pair, 0, true);
    for leader in &pair.leaders {
        assert_eq!(leader.channel.crc_dropped(), 0);
        let (zero_copy, placed) = (leader.channel.counts.zero_copy, leader.channel.counts.placed);
        assert!(
            zero_copy > 50 && placed > 25 && placed < zero_copy,
            "{zero_copy} fragments were zero_copy, {placed} placed"
        );
    }
}

#[test]
fn queue_pairs_that_fail_under_way_are_set_up_again() {
    let Some(mut pair) = real() else { return };
    const COUNT: i32 = 800_000;
    for rank in 0..2 {
        assert!(
            pair.leaders[rank].start_registered(rank as u32, (0..COUNT).map(|i| i + rank as i32).collect())
        );
    }
    let (mut cut, mut finished, mut last) = (0, 0, 0);
    for step in 0..2_000_000 {
        assert_eq!(pair.step().len(), 0);
        let leader = &mut pair.leaders[1 - cut % 2].channel;
        let busy = |connection: &connections::Connection| {
            connection.link.is_up() && connection.sender.in_flight() > 0
        };
        if step - last >= 10
            && cut < 12
            && let Some(connection) = leader.connections.iter().position(busy)
        {
            // As if the device had given it up.
            leader.broken(pair.now, connection, Fault::RetryExceeded);
            (cut, last) = (cut + 1, step);
        }
        let done = pair.leaders.each_mut().map(|leader| leader.executor.take_completed());
        for done in done.into_iter().flatten() {
            assert_eq!(done.result, Ok(()));
            finished += 1;
        }
        if finished == 2 {
            break;
        }
    }
    assert_eq!((finished, cut), (2, 12));
    let sums: Vec<i32> = (0..COUNT).map(|i| 2 * i + 1).collect();
    for leader in &pair.leaders {
        assert!(leader.data[0] == sums);
    }
    let resent: u64 = pair.leaders.iter().map(|leader| leader.channel.resent()).sum();
    assert!(resent > 0, "nothing was under way when queue pairs were closed");
}
