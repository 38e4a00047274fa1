use core::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::super::super::connection::Open;
use super::super::super::options::Options;
use super::*;
use crate::wire::tcp::SeqNumber;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const NOW: Instant = Instant::from_nanos(1_000_000);

/// A connection with a SYN to send.
fn connection() -> Connection {
    let open = Open {
        local: SocketAddr::from(([10, 0, 0, 1], 7)),
        remote: SocketAddr::from((HOST, 9)),
        iss: SeqNumber(0),
        timestamp_offset: 0,
        mtu: 1500,
    };
    Connection::connect(NOW, &open, Arc::new(Options::internet()))
}

fn slots() -> (Slots, Timers) {
    (Slots::default(), Timers::new())
}

#[test]
fn a_slot_waits_at_most_once_even_when_it_is_reused() {
    let (mut slots, mut timers) = slots();
    let id = slots.insert(connection(), Owner::User);
    slots.settle(NOW, id.index, &mut timers);
    slots.settle(NOW, id.index, &mut timers);
    assert_eq!(slots.waiting(), 1);
    assert!(slots.remove(id.index, &mut timers));
    assert!(!slots.remove(id.index, &mut timers));
    assert_eq!(slots.len(), 0);

    let next = slots.insert(connection(), Owner::User);
    assert_eq!(next.index, id.index);
    assert!(slots.named(id).is_none() && slots.named(next).is_some());
    slots.settle(NOW, next.index, &mut timers);
    assert_eq!(slots.waiting(), 1);

    assert_eq!(slots.next_ready(), Some(next.index));
    slots.transmitted(next.index, TransmitOutcome::More, &mut timers);
    assert_eq!((slots.next_ready(), slots.next_ready()), (Some(next.index), None));
    slots.transmitted(next.index, TransmitOutcome::Done, &mut timers);
    assert_eq!(slots.waiting(), 0);
    slots.settle(NOW, next.index, &mut timers);
    assert_eq!(slots.waiting(), 1);
}

#[test]
fn a_host_counts_while_a_connection_to_it_is_not_half_open() {
    let (mut slots, mut timers) = slots();
    let half_open = slots.insert(connection(), Owner::HalfOpen(3)).index;
    let refused = slots.insert(connection(), Owner::HalfOpen(3)).index;
    assert!(!slots.has_peer(HOST.into()));
    assert!(slots.half_open(3).eq([half_open, refused]) && slots.half_open(0).next().is_none());
    slots.set_owner(half_open, Owner::Queued);
    slots.set_owner(half_open, Owner::User);
    assert!(slots.has_peer(HOST.into()));
    slots.remove(refused, &mut timers);
    assert!(slots.has_peer(HOST.into()));
    slots.remove(half_open, &mut timers);
    assert!(!slots.has_peer(HOST.into()));
}

#[test]
fn orphans_are_counted_and_looked_at_in_turn() {
    let (mut slots, mut timers) = slots();
    let all: Vec<u32> = (0..4).map(|_| slots.insert(connection(), Owner::User).index).collect();
    assert_eq!((slots.orphans(), slots.stalled_orphan(16)), (0, None));
    slots.set_owner(all[1], Owner::Orphan);
    slots.set_owner(all[3], Owner::Orphan);
    assert_eq!(slots.orphans(), 2);
    assert_eq!([1, 1, 1].map(|looks| slots.stalled_orphan(looks)), [Some(1), Some(3), Some(1)]);
    slots.set_owner(all[1], Owner::User);
    slots.remove(all[3], &mut timers);
    assert_eq!((slots.orphans(), slots.stalled_orphan(16)), (0, None));
}
