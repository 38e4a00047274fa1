use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Identity, MatchKey, MessageKind, Shape};

use super::*;

fn header(kind: MessageKind, seq: u64, round: u32, offset: u64, len: u32) -> Header {
    Header {
        kind,
        src: Rank(1),
        key: MatchKey { group: 0, epoch: 0, seq },
        identity: Identity::AdHoc { root: Rank(0) },
        shape: Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 1 },
        round,
        offset,
        granule: 64,
        len,
    }
}

fn credit(windows: &mut CreditWindows, seq: u64, first: u32, rounds: u32, address: u64) {
    let window = CreditWindow { address, stride: 1000, len: 100, rkey: 7 };
    windows.open(&header(MessageKind::Credit, seq, first, 0, rounds), window);
}

fn find(windows: &mut CreditWindows, seq: u64, round: u32, offset: u64, len: u32) -> Option<u64> {
    let found = windows.find(&header(MessageKind::Data, seq, round, offset, len))?;
    assert_eq!(found.rkey, 7);
    Some(found.address)
}

#[test]
fn a_fragment_goes_where_its_credit_said_and_nowhere_else() {
    let mut windows = CreditWindows::default();
    credit(&mut windows, 3, 4, 2, 50_000);
    credit(&mut windows, 2, 0, 1, 90_000);
    credit(&mut windows, 3, 0, 1, 10_000);
    assert_eq!(find(&mut windows, 3, 5, 64, 36), Some(51_064));
    assert_eq!(find(&mut windows, 3, 6, 0, 64), None, "nobody asked for it");
    assert_eq!(find(&mut windows, 3, 1, 0, 64), None);
    assert_eq!(find(&mut windows, 4, 0, 0, 64), None);
    assert_eq!(find(&mut windows, 1, 0, 0, 64), None);
    assert_eq!(find(&mut windows, 3, 4, 64, 64), None, "longer than what was asked for");
    assert_eq!(find(&mut windows, 3, 4, u64::MAX, 64), None);
    assert_eq!(find(&mut windows, 3, 0, 0, 100), Some(10_000));
    assert_eq!(find(&mut windows, 2, 0, 0, 100), Some(90_000));
    // A window that was filled whole is forgotten, if earlier ones are.
    assert_eq!(windows.all.len(), 1);
    for (round, offset, len) in [(4, 0, 64), (4, 64, 36), (5, 0, 64)] {
        assert!(find(&mut windows, 3, round, offset, len).is_some());
    }
    assert!(windows.is_empty());
}

#[test]
fn no_number_of_a_peer_makes_an_address_overflow() {
    let mut windows = CreditWindows::default();
    let window = CreditWindow { address: u64::MAX - 10, stride: u64::MAX / 2, len: u32::MAX, rkey: 0 };
    windows.open(&header(MessageKind::Credit, 0, 0, 0, u32::MAX), window);
    assert_eq!(find_any(&mut windows, 0, 64), None);
    assert_eq!(find_any(&mut windows, 3, 0), None);
}

fn find_any(windows: &mut CreditWindows, round: u32, offset: u64) -> Option<Remote> {
    windows.find(&header(MessageKind::Data, 0, round, offset, 64))
}

#[test]
fn what_is_beyond_the_most_that_is_remembered_goes_by_the_slots() {
    let mut windows = CreditWindows::default();
    for round in 0..MOST as u32 + 5 {
        credit(&mut windows, 0, round, 1, 1 << 20);
    }
    assert_eq!(windows.all.len(), MOST);
    assert_eq!(find(&mut windows, 0, MOST as u32, 0, 64), None);
    assert!(find(&mut windows, 0, MOST as u32 - 1, 0, 64).is_some());
}
