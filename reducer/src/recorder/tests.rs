use std::sync::atomic::AtomicBool;

use super::*;

fn event(number: u64) -> Record {
    Record {
        at: Duration::from_nanos(number),
        what: RecordKind::Sent,
        group: 0,
        rank: Some(Rank(7)),
        tensor: None,
        seq: number,
        value: !number,
        bytes: number * 3,
    }
}

#[test]
fn the_last_events_are_kept_and_those_before_them_counted() {
    let mut recorder = Recorder::new();
    let records = recorder.records();
    assert_eq!(records.copy(), (vec![], 0));
    (0..3).for_each(|number| recorder.record(event(number)));
    assert_eq!(records.copy(), ((0..3).map(event).collect(), 0));
    let last = 3 * EVENTS as u64 + 5;
    (3..last).for_each(|number| recorder.record(event(number)));
    let first = last - EVENTS as u64;
    assert_eq!(records.copy(), ((first..last).map(event).collect(), first));
}

#[test]
fn groups_of_some_ranks_share_a_ring_and_have_the_ranks_of_the_job() {
    let mut all = Recorder::new();
    let mut some = all.of_group(u16::MAX, [4, 7].map(Rank).into());
    let sent = |rank| Record { rank: Some(Rank(rank)), seq: (1 << 48) - 1, ..event(1) };
    all.record(sent(1));
    some.record(sent(1));
    // No member: behind the numbers of those.
    some.record(sent(2 + 5));
    let of = |group, rank| Record { group, ..sent(rank) };
    assert_eq!(all.records().copy(), (vec![sent(1), of(u16::MAX, 7), of(u16::MAX, 5)], 0));
}

#[test]
fn every_kind_of_event_comes_back() {
    let mut recorder = Recorder::new();
    let of = |&what: &RecordKind| match what {
        RecordKind::Started => Record {
            what,
            tensor: Some(RegisteredTensor { generation: 7, tensor: 3 }),
            value: 9,
            ..Record::default()
        },
        _ => Record { what, rank: Some(Rank(2)), ..event(1) },
    };
    RecordKind::ALL.iter().map(of).for_each(|record| recorder.record(record));
    recorder.record(Record { what: RecordKind::Failed, ..Record::default() });
    let (copied, _) = recorder.records().copy();
    assert_eq!(copied[..RecordKind::ALL.len()], RecordKind::ALL.iter().map(of).collect::<Vec<_>>());
    assert_eq!(copied.last().unwrap().rank, None);
}

/// A reader at the side sees whole events only, one after the other.
#[test]
fn a_copy_holds_no_half_written_event() {
    let mut recorder = Recorder::new();
    let records = recorder.records();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                recorder.record(event(number));
                number += 1;
            }
        });
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            let (copied, first) = records.copy();
            assert!(copied.len() <= EVENTS);
            for (number, record) in (first..).zip(copied) {
                assert_eq!(record, event(number));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
