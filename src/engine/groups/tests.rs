use std::sync::Arc;

use shouter_reducer::executor::{AbortReason, Disposition, ExecutorConfig, Refusal};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Header, MatchKey, MessageKind};
use shouter_reducer::kernel::Kernels;

use super::*;
use crate::runtime::Clock;

/// The configuration of the group of all of so many ranks, on rank 0.
fn all(ranks: u32) -> ExecutorConfig {
    ExecutorConfig::new(Rank(0), Grid::new(ranks, 1).unwrap(), Kernels::detect())
}

fn members(ranks: &[u32]) -> Arc<Members> {
    Arc::new(Members::new(ranks.iter().copied().map(Rank).collect(), Rank(0)).unwrap())
}

fn make(groups: &mut Groups, ranks: &[u32]) -> (u32, Lineage) {
    let (GroupId(id), lineage) = groups.make(&Lineage::ALL, members(ranks), None, &all(8)).unwrap();
    (id, lineage)
}

/// A message of rank 1 to the group with this number.
fn message(id: u32) -> Header {
    let greeting = Lineage::ALL.message(Rank(1), Greeting::Made(1));
    Header { kind: MessageKind::Floor, key: MatchKey { group: id, epoch: 0, seq: 0 }, ..greeting }
}

/// Drops a group, and lets its place go.
fn close(groups: &mut Groups, id: u32) {
    groups.group(id).unwrap().leave(Clock.now(), false);
    // Its messages find no channel.
    groups.poll(Clock.now(), &mut UpChannels::default());
    assert!(groups.group(id).is_none());
}

#[test]
fn the_number_of_a_group_is_no_other_groups_later() {
    let mut groups = Groups::new();
    let mut seen = std::collections::HashSet::new();
    for round in 0..100 {
        let (id, lineage) = make(&mut groups, &[0, 1]);
        assert!(id != 0 && id != MatchKey::MAKING && seen.insert(id), "{id:#x}");
        assert_eq!(lineage.number, round);
        assert_eq!(groups.fragment(&message(id), &[]), Disposition::Consumed);
        close(&mut groups, id);
        let late = groups.fragment(&message(id), &[]);
        assert_eq!(late, Disposition::Refused(Refusal::OtherGroup));
        assert!(groups.is_empty() && groups.places.len() == 1);
    }
}

#[test]
fn ranks_that_are_no_members_are_not_heard() {
    let mut groups = Groups::new();
    let (id, _) = make(&mut groups, &[2, 0]);
    assert_eq!(groups.fragment(&message(id), &[]), Disposition::Refused(Refusal::Malformed));
}

#[test]
fn what_comes_before_its_group_is_kept_within_bounds() {
    let mut groups = Groups::new();
    let digest = Lineage::ALL.digest_of(members(&[0, 1]).ranks());
    let lineage = |number| Lineage { digest, number };
    let early = |groups: &mut Groups, number, greeting| {
        groups.fragment(&lineage(number).message(Rank(1), greeting), &[])
    };
    for number in 0..EARLY as u32 {
        // Twice is once.
        assert_eq!(early(&mut groups, number, Greeting::Made(number + 7)), Disposition::Consumed);
        assert_eq!(early(&mut groups, number, Greeting::Made(number + 7)), Disposition::Consumed);
    }
    let more = early(&mut groups, EARLY as u32, Greeting::Made(1));
    assert_eq!(more, Disposition::Refused(Refusal::NotReady));
    // Another rank has room of its own.
    let other = lineage(0).message(Rank(2), Greeting::Made(1));
    assert_eq!(groups.fragment(&other, &[]), Disposition::Consumed);
    // That one has left stays so.
    assert_eq!(early(&mut groups, 0, Greeting::Left(0)), Disposition::Consumed);
    assert_eq!(early(&mut groups, 0, Greeting::Made(7)), Disposition::Consumed);
    let (id, made) = make(&mut groups, &[0, 1]);
    assert_eq!(made, lineage(0));
    assert!(groups.group(id).unwrap().has_left());
    assert_eq!(early(&mut groups, EARLY as u32, Greeting::Made(1)), Disposition::Consumed);
    // Of a group that was left here nothing is kept.
    close(&mut groups, id);
    let kept = groups.early.len();
    assert_eq!(early(&mut groups, 0, Greeting::Made(7)), Disposition::Consumed);
    assert_eq!(groups.early.len(), kept);
}

#[test]
fn there_are_no_more_groups_than_owners_of_tokens() {
    let mut groups = Groups::new();
    for _ in 0..MAX_GROUPS {
        make(&mut groups, &[0]);
    }
    let refused = groups.make(&Lineage::ALL, members(&[0]), None, &all(8));
    assert_eq!(refused.map(|_| ()), Err(MakeError::TooMany));
    let last = *groups.by_lineage.values().next().unwrap();
    close(&mut groups, last);
    assert!(groups.make(&Lineage::ALL, members(&[0]), None, &all(8)).is_ok());
}

#[test]
fn a_group_ends_with_the_group_of_all_and_names_its_member() {
    let mut groups = Groups::new();
    let ((with, _), (without, _)) = (make(&mut groups, &[3, 0]), make(&mut groups, &[0, 1]));
    let cause = AbortCause { culprit: Rank(3), reason: AbortReason::Failed, seen: None };
    groups.end_with_all(&cause);
    let culprit =
        |groups: &Groups, id| groups.look(GroupId(id)).unwrap().executor().aborted().unwrap().culprit;
    assert_eq!(culprit(&groups, with), Rank(0));
    // No member: behind the numbers of those.
    assert_eq!(culprit(&groups, without), Rank(2 + 3));
}

#[test]
fn a_group_of_eight_takes_less_than_64_kib() {
    let (eight, config) = (members(&[0, 1, 2, 3, 4, 5, 6, 7]), all(8));
    let mut groups = Groups::new();
    make(&mut groups, &[0]);
    let before = allocated();
    groups.make(&Lineage::ALL, eight, None, &config).unwrap();
    let bytes = allocated() - before;
    assert!((1..64 << 10).contains(&bytes), "{bytes} bytes");
}

/// Bytes that this thread holds.
fn allocated() -> i64 {
    crate::allocations::bytes()
}
