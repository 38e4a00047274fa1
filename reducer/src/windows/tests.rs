mod fuzz;
mod harness;
mod part;
mod random;

use super::*;
use crate::dtype::ReduceOp;
use crate::executor::AbortReason;
use crate::memory;
use harness::{Buffer, Faults, Group, access, word, words};

fn quiet(ranks: u32, elements: u64) -> Group {
    Group::new(1, ranks, elements, Faults { in_order: true, ..Faults::default() }, |_| {})
}

#[test]
fn a_put_is_read_back_from_another_rank_and_from_this_one() {
    for target in [0, 1] {
        let mut group = quiet(2, 100_000);
        let given: Vec<u64> = (0..90_000).collect();
        let (data, into) = (words(&given), words(&vec![0; 90_000]));
        let put = group.start(
            0,
            AccessRequest { offset: 7, ..access(WindowAction::Put, target, &data, &Buffer::none()) },
        );
        let get = group.start(
            0,
            AccessRequest { offset: 7, ..access(WindowAction::Get, target, &Buffer::none(), &into) },
        );
        group.settle();
        assert_eq!(group.result(0, put), Some(&Ok(())));
        assert_eq!(group.result(0, get), Some(&Ok(())));
        assert!(into.words() == given, "a get sees the put that was started before it");
        assert!(group.windows[target as usize].words()[7..90_007] == given);
        group.assert_given_back("put and get");
    }
}

#[test]
fn a_small_put_ends_at_once_and_a_flush_says_when_it_has_taken_effect() {
    let mut group = quiet(2, 10);
    let data = word(5);
    let put = group.start(0, access(WindowAction::Put, 1, &data, &Buffer::none()));
    group.poll(0);
    assert_eq!(group.result(0, put), Some(&Ok(())));
    assert!(
        !group.ranks[0].is_flushed(WindowId(0), None)
            && !group.ranks[0].is_flushed(WindowId(0), Some(Rank(1)))
    );
    assert!(
        group.ranks[0].is_flushed(WindowId(0), Some(Rank(0))) && group.ranks[0].is_flushed(WindowId(1), None)
    );
    memory::write((data.region, 0), &[0; 8]).unwrap();
    group.settle();
    assert!(group.ranks[0].is_flushed(WindowId(0), None));
    assert_eq!(group.windows[1].words()[0], 5, "the copy is what was there at the start");
}

#[test]
fn each_action_does_what_it_says() {
    for target in [0, 1] {
        let mut group = quiet(2, 4);
        let mut now = 10u64;
        memory::write((group.windows[target as usize].region, 8), &now.to_le_bytes()).unwrap();
        let sum = |now: u64, given: u64| now + given;
        type Effect = fn(u64, u64) -> u64;
        let cases: [(WindowAction, u64, Effect); 8] = [
            (WindowAction::FetchAndOp(ReduceOp::Sum), 5, sum),
            (WindowAction::FetchAndOp(ReduceOp::Min), 7, u64::min),
            (WindowAction::FetchAndOp(ReduceOp::Max), 21, u64::max),
            (WindowAction::FetchAndOp(ReduceOp::Prod), 2, |now, given| now * given),
            (WindowAction::FetchAndOp(ReduceOp::Band), 14, |now, given| now & given),
            (WindowAction::FetchAndOp(ReduceOp::Bor), 3, |now, given| now | given),
            (WindowAction::FetchAndOp(ReduceOp::Bxor), 6, |now, given| now ^ given),
            (WindowAction::Swap, 99, |_, given| given),
        ];
        for (action, given, expected) in cases {
            let (data, into) = (word(given), word(0));
            let id = group.start(0, AccessRequest { offset: 1, ..access(action, target, &data, &into) });
            group.settle();
            assert_eq!(group.result(0, id), Some(&Ok(())), "{action}");
            assert_eq!(into.words(), [now], "{action}: what was there before");
            now = expected(now, given);
            assert_eq!(group.windows[target as usize].words(), [0, now, 0, 0], "{action}");
        }
        for (expected, new) in [(98, 1), (99, 2), (2, 3)] {
            let (data, into) = (words(&[expected, new]), word(0));
            let id = group.start(
                0,
                AccessRequest { offset: 1, ..access(WindowAction::CompareAndSwap, target, &data, &into) },
            );
            group.settle();
            assert_eq!((group.result(0, id), into.words()), (Some(&Ok(())), vec![now]));
            now = if now == expected { new } else { now };
            assert_eq!(group.windows[target as usize].words(), [0, now, 0, 0]);
        }
        group.assert_given_back("actions");
    }
}

#[test]
fn wrong_arguments_start_nothing() {
    let mut group = quiet(2, 10);
    let (one, two, none) = (word(1), words(&[1, 2]), Buffer::none());
    let put = access(WindowAction::Put, 1, &one, &none);
    let mut refused = |request: AccessRequest| group.ranks[0].start(request).unwrap_err();
    assert!(matches!(
        refused(AccessRequest { target: Rank(2), ..put }),
        AccessRefused::Rank { ranks: 2, .. }
    ));
    assert!(matches!(refused(AccessRequest { window: WindowId(9), ..put }), AccessRefused::Window { .. }));
    for offset in [10, u64::MAX] {
        let error = refused(AccessRequest { offset, ..put });
        assert!(matches!(error, AccessRefused::Range { len: 10, .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("put by rank 0 of 1 x u64 from element {offset} of window 0 of rank 1"))
        );
    }
    assert!(matches!(refused(AccessRequest { dtype: DType::I64, ..put }), AccessRefused::Type { .. }));
    let lor = access(WindowAction::Accumulate(ReduceOp::Lor), 1, &one, &none);
    assert!(matches!(refused(lor), AccessRefused::Reduction(_)));
    let avg = access(WindowAction::FetchAndOp(ReduceOp::Avg), 1, &one, &one);
    assert!(matches!(refused(avg), AccessRefused::Operation { .. }));
    for (action, data, into) in [
        (WindowAction::Put, &one, &one),
        (WindowAction::Get, &one, &one),
        (WindowAction::Swap, &one, &two),
        (WindowAction::CompareAndSwap, &one, &one),
        (WindowAction::CompareAndSwap, &two, &two),
    ] {
        let error = refused(access(action, 1, data, into));
        assert!(matches!(error, AccessRefused::Memory { .. }), "{action}: {error}");
    }
    let seven = TensorRegion::sub(&one.region, 0, 7).unwrap();
    assert!(matches!(refused(AccessRequest { data: seven, ..put }), AccessRefused::Memory { .. }));
    let shifted = two.region.sub(4, 8).unwrap();
    assert!(matches!(group.ranks[0].open(shifted, DType::U64), Err(WindowRefused::Memory { .. })));
    assert!(matches!(group.ranks[0].open(seven, DType::U64), Err(WindowRefused::Memory { .. })));
    // A float has several zeroes.
    let id = group.ranks[0].open(one.region, DType::F64).unwrap();
    group.ranks[0].set_lengths(id, [1, 1].into());
    let swap = AccessRequest {
        window: id,
        dtype: DType::F64,
        ..access(WindowAction::CompareAndSwap, 0, &two, &one)
    };
    assert!(matches!(group.ranks[0].start(swap), Err(AccessRefused::Operation { .. })));
    let mut group = Group::new(1, 2, 10, Faults::default(), |config| config.max_accesses = 1);
    group.start(0, put);
    assert!(matches!(group.ranks[0].start(put), Err(AccessRefused::Busy { max: 1 })));
    group.settle();
    group.assert_given_back("wrong arguments");
}

/// The target checks all again: its window may be another one than the origin was told.
#[test]
fn the_target_denies_what_does_not_fit_its_own_window() {
    let (data, none) = (words(&[1, 2]), Buffer::none());
    type Change = fn(&mut Group);
    let changes: [(Change, Denial); 3] = [
        (|group| assert!(group.ranks[1].close(WindowId(0))), Denial::Window),
        (|group| group.reopen(1, 1, DType::U64), Denial::Range),
        (|group| group.reopen(1, 16, DType::I64), Denial::Type),
    ];
    for (change, why) in changes {
        for (action, into) in [(WindowAction::Put, &none), (WindowAction::Swap, &data)] {
            let mut group = quiet(3, 16);
            change(&mut group);
            let small = group.start(0, access(action, 1, &data, into));
            let large = words(&[3; 8]);
            let waits = AccessRequest { waited: false, ..access(WindowAction::Put, 1, &large, &none) };
            group.start(0, waits);
            group.settle();
            let error = match group.result(0, small) {
                Some(Err(error)) => error.clone(),
                // It was copied: the next flush reports it.
                _ => group.ranks[0].take_late(WindowId(0), Some(Rank(1))).unwrap(),
            };
            assert!(matches!(&error, AccessError::Denied { why: is, .. } if *is == why), "{error}");
            assert!(error.to_string().contains("of window 0 of rank 1: rank 1 says"), "{error}");
            assert!(group.ranks[0].is_flushed(WindowId(0), None));
            let _ = group.ranks[0].take_late(WindowId(0), None);
            // Others go on.
            let other = group.start(0, access(WindowAction::Put, 2, &data, &none));
            group.settle();
            assert_eq!(group.result(0, other), Some(&Ok(())));
            assert_eq!(group.windows[2].words()[..2], [1, 2]);
            group.assert_given_back("denials");
        }
    }
}

#[test]
fn no_put_is_taken_for_done_before_its_denial_has_come() {
    // The count of what was applied overtakes the denial.
    for seed in 0..200 {
        let mut group = Group::new(
            seed,
            2,
            16,
            Faults { duplicate: 20, full: 20, refuse: 10, in_order: false },
            |config| {
                config.copied_bytes = 0;
            },
        );
        group.reopen(1, 1, DType::U64);
        let (one, two, none) = (word(1), words(&[2, 3]), Buffer::none());
        let good = group.start(0, access(WindowAction::Put, 1, &one, &none));
        let bad = group.start(0, access(WindowAction::Put, 1, &two, &none));
        let last = group.start(0, access(WindowAction::Put, 1, &one, &none));
        group.settle();
        assert_eq!((group.result(0, good), group.result(0, last)), (Some(&Ok(())), Some(&Ok(()))));
        assert!(
            matches!(group.result(0, bad), Some(Err(AccessError::Denied { why: Denial::Range, .. }))),
            "seed {seed}"
        );
        group.assert_given_back("a denial that is overtaken");
    }
}

/// A message of a rank about one element, whatever that rank does itself.
fn say(
    group: &mut Group,
    from: u32,
    to: u32,
    kind: MessageKind,
    number: (u64, u32),
    len: usize,
) -> Disposition {
    let (seq, round) = number;
    let (window, dtype) = (WindowId(0), DType::U64);
    let count = (len / 8).max(1) as u64;
    let piece = wire::Piece::new(window, WindowAction::Put, dtype, 0, count).unwrap();
    let header = piece.header(&WindowsConfig::new(Rank(from), 3), kind, seq);
    let given = if kind == MessageKind::Access && round == 0 { vec![1; len] } else { vec![] };
    let header = Header { round, granule: 64 * 1024, len: given.len() as u32, ..header };
    group.ranks[to as usize].on_message(&header, &given)
}

#[test]
fn a_denial_of_a_later_request_does_not_stand_for_one_that_is_delayed() {
    let mut group = Group::new(1, 2, 16, Faults::default(), |config| config.copied_bytes = 0);
    group.net.cut = true;
    let (data, none) = (word(1), Buffer::none());
    let puts: Vec<_> = (0..20).map(|_| group.start(0, access(WindowAction::Put, 1, &data, &none))).collect();
    group.poll(0);
    group.release(0);
    let hear = |group: &mut Group, kind, seq, round| {
        assert_eq!(say(group, 1, 0, kind, (seq, round), 0), Disposition::Consumed);
        group.poll(0);
    };
    let denied = Denial::Window as u32;
    for seq in (0..10).filter(|seq| *seq != 5) {
        hear(&mut group, MessageKind::Denied, seq, denied);
    }
    hear(&mut group, MessageKind::Applied, 10, 10);
    hear(&mut group, MessageKind::Denied, 10, denied);
    hear(&mut group, MessageKind::Denied, 10, denied);
    assert_eq!(group.result(0, puts[5]), None, "its denial has not come");
    for seq in 11..20 {
        hear(&mut group, MessageKind::Denied, seq, denied);
    }
    hear(&mut group, MessageKind::Applied, 20, 20);
    assert_eq!(group.result(0, puts[5]), None, "its denial has not come");
    hear(&mut group, MessageKind::Denied, 5, denied);
    for put in puts {
        let result = group.result(0, put);
        assert!(matches!(result, Some(Err(AccessError::Denied { .. }))), "{put:?}: {result:?}");
    }
    group.assert_given_back("a denial that is delayed");
}

#[test]
fn what_is_kept_of_denials_is_bounded() {
    let mut group = quiet(2, 16);
    assert!(group.ranks[1].close(WindowId(0)));
    (group.net.cut, group.net.full_to) = (true, Some(Rank(0)));
    for seq in 0..4 * REQUESTS as u64 {
        say(&mut group, 0, 1, MessageKind::Access, (seq, 0), 8);
        group.poll(1);
    }
    assert_eq!(group.ranks[1].target.denials(), REQUESTS, "rank 0 takes none");
    assert!(!group.ranks[1].target.may_resume());
    group.net.full_to = None;
    while group.ranks[1].has_work() {
        group.poll(1);
    }
    assert_eq!(group.ranks[1].counters().denied, 2 * REQUESTS as u64 + 1, "those that were held");
    assert!(group.ranks[1].target.is_empty());
}

#[test]
fn an_origin_that_takes_no_answers_leaves_room_for_others() {
    let mut group = Group::new(1, 3, 1024, Faults { in_order: true, ..Faults::default() }, |config| {
        (config.in_flight_bytes, config.answer_bytes) = (8 << 10, 16 << 10);
    });
    group.net.full_to = Some(Rank(0));
    for seq in 0..16 {
        assert_eq!(say(&mut group, 0, 1, MessageKind::Access, (seq, 1), 1 << 10), Disposition::Consumed);
    }
    assert_eq!(group.ranks[1].counters().served, 8);
    let (none, into) = (Buffer::none(), words(&[9; 1024]));
    let get = group.start(2, access(WindowAction::Get, 1, &none, &into));
    for _ in 0..1000 {
        for rank in [1, 2] {
            group.poll(rank);
        }
        while group.network() {}
    }
    assert_eq!((group.result(2, get), into.words()), (Some(&Ok(())), vec![0; 1024]));
    // It takes them now. It has not asked for them, as the test has.
    group.net.full_to = None;
    while group.ranks[1].has_work() {
        group.poll(1);
        while group.network() {}
    }
    assert_eq!(group.ranks[1].counters().served, 16 + (1024u64 * 8).div_ceil(192));
    assert!(group.ranks[1].target.is_empty());
}

#[test]
fn answers_to_a_rank_that_is_gone_keep_no_room() {
    for seed in 0..50 {
        let faults = Faults { full: 50, in_order: true, ..Faults::default() };
        let mut group = Group::new(seed, 2, 1000, faults, |_| {});
        let (none, into) = (Buffer::none(), words(&[0; 1000]));
        group.start(0, access(WindowAction::Get, 1, &none, &into));
        for _ in 0..20 {
            group.poll(0);
        }
        while group.network() {}
        group.poll(1);
        group.net.dead = Some(Rank(0));
        group.poll(1);
        assert!(group.ranks[1].counters().served > 0 && !group.ranks[1].has_work(), "seed {seed}");
        group.release(1);
        assert!(group.ranks[1].target.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_deadline_names_the_target_and_what_comes_later_changes_nothing() {
    let mut group = quiet(2, 100);
    let (large, into, none) = (words(&vec![1; 100]), word(77), Buffer::none());
    let deadline = Duration::from_secs(3);
    group.net.cut = true;
    let put = group
        .start(0, AccessRequest { deadline, waited: false, ..access(WindowAction::Put, 1, &large, &none) });
    let get = group.start(0, AccessRequest { deadline, ..access(WindowAction::Get, 1, &none, &into) });
    let (new, old) = (word(1), word(78));
    let swap = group.start(0, AccessRequest { deadline, ..access(WindowAction::Swap, 1, &new, &old) });
    group.poll(0);
    assert!(group.ranks[0].next_deadline().unwrap() <= deadline);
    group.now = deadline;
    group.poll(0);
    for id in [get, swap] {
        let error = group.result(0, id).unwrap().clone().unwrap_err().to_string();
        assert!(
            error.contains(" by rank 0 of 1 x u64 from element 0 of window 0 of rank 1 missed its deadline"),
            "{error}"
        );
    }
    // The transport still refers to what the others give: to a copy, and to the caller's memory.
    assert!(group.ranks[0].running() == 2 && group.ranks[0].take_late(WindowId(0), None).is_none());
    group.release(0);
    assert_eq!(group.ranks[0].running(), 0);
    let late = group.ranks[0].take_late(WindowId(0), None).unwrap().to_string();
    assert!(late.contains("put by rank 0 of 100 x u64") && !late.contains("seq"), "{late} {put:?}");
    group.net.cut = false;
    group.settle();
    assert_eq!(
        (into.words(), old.words()),
        (vec![77], vec![78]),
        "an answer that comes later finds no access"
    );
    assert_eq!(group.windows[1].words(), [1; 100], "and yet the put took effect");
    group.assert_given_back("deadlines");
}

#[test]
fn the_end_of_the_group_ends_all_by_name() {
    let mut group = quiet(3, 100);
    let (large, into, none) = (words(&vec![1; 100]), word(0), Buffer::none());
    group.net.cut = true;
    let ids = [
        group.start(0, access(WindowAction::Swap, 1, &large, &words(&vec![0; 100]))),
        group.start(0, access(WindowAction::Get, 2, &none, &into)),
    ];
    group.poll(0);
    assert_eq!(group.ranks[0].awaited(|rank| rank == Rank(2)), Some(Rank(2)));
    let cause = Arc::new(AbortCause { culprit: Rank(1), reason: AbortReason::Failed, seen: None });
    group.ranks[0].abort(&cause);
    group.ranks[0].fenced();
    group.poll(0);
    for id in ids {
        let error = group.result(0, id).unwrap().clone().unwrap_err();
        assert!(error.to_string().contains("was given up: rank 1: the process is dead"), "{error}");
    }
    assert_eq!(group.ranks[0].running(), 0);
    assert!(matches!(
        group.ranks[0].start(access(WindowAction::Get, 1, &none, &into)),
        Err(AccessRefused::Aborted(_))
    ));
    assert!(matches!(group.ranks[0].open(into.region, DType::U64), Err(WindowRefused::Aborted(_))));
    assert!(!group.ranks[0].has_work());
}

#[test]
fn what_is_in_flight_and_held_is_bounded() {
    let mut group = Group::new(3, 2, 10_000, Faults::default(), |config| {
        (config.in_flight_bytes, config.answer_bytes) = (8 << 10, 8 << 10);
    });
    let (data, none) = (words(&vec![1; 10_000]), Buffer::none());
    let into: Vec<_> = (0..4).map(|_| words(&vec![0; 10_000])).collect();
    group.start(0, access(WindowAction::Put, 1, &data, &none));
    let gets: Vec<_> =
        into.iter().map(|into| group.start(0, access(WindowAction::Get, 1, &none, into))).collect();
    group.poll(0);
    assert!(
        group.net.posted_bytes() <= 8 << 10 && group.net.posted_bytes() > 2 << 10,
        "{}",
        group.net.posted_bytes()
    );
    group.settle();
    assert!(gets.iter().all(|get| group.result(0, *get) == Some(&Ok(()))));
    assert!(into.iter().all(|into| into.words() == data.words()));
    group.assert_given_back("bounds");
}
