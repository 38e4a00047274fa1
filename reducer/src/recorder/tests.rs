use std::sync::atomic::AtomicBool;

use super::*;

fn event(number: u64) -> Record {
    Record {
        at: Duration::from_nanos(number),
        what: RecordKind::Sent,
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
