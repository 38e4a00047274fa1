use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SIZE: u32 = 100;

fn record(start: u32, len: u32) -> Record {
    Record {
        start: SeqNumber(start),
        end: SeqNumber(start) + len,
        sent_at: Instant::ZERO,
        stamp: Default::default(),
        segment_size: SIZE as u16,
        sends: 1,
        sacked: false,
        lost: false,
        fin: false,
        path_mtu: false,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u8),
    Sack(u16, u16),
    Acknowledge(u16),
    Lose(u8),
    Resend(u8),
    Renege,
    Unlose,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..12u8).prop_map(Step::Send),
        6 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Step::Sack(a, b)),
        2 => any::<u16>().prop_map(Step::Acknowledge),
        2 => any::<u8>().prop_map(Step::Lose),
        3 => (1..5u8).prop_map(Step::Resend),
        1 => Just(Step::Renege),
        1 => Just(Step::Unlose),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// Against a model that has a flag per sequence number. Everything that was sent is of whole segments, and
    /// acknowledgements are too, as those of a peer are; parts of segments in blocks are left out.
    #[test]
    fn it_agrees_with_a_flag_per_number(steps in steps(), start: u32) {
        let mut board = Scoreboard::default();
        let (mut una, mut nxt) = (0u32, 0u32);
        // Per segment: delivered by a block.
        let mut sacked = BTreeSet::new();
        let seq = |at: u32| SeqNumber(start) + at;
        for step in steps {
            match step {
                Step::Send(segments) => {
                    let len = u32::from(segments) * SIZE;
                    board.push(Record { start: seq(nxt), end: seq(nxt + len), ..record(0, 1) });
                    nxt += len;
                }
                Step::Sack(a, b) => {
                    let out = nxt - una;
                    let (a, b) = (una + u32::from(a) % (out + 1), una + u32::from(b) % (out + 1));
                    let (a, b) = (a.min(b), a.max(b));
                    if a < b {
                        let mut fresh = 0;
                        board.sack(SeqRange { start: seq(a), end: seq(b) }, |record| fresh += record.len());
                        let whole = (a.div_ceil(SIZE)..b / SIZE).filter(|segment| sacked.insert(*segment));
                        prop_assert_eq!(fresh, whole.count() as u32 * SIZE);
                    }
                }
                Step::Acknowledge(part) => {
                    let ack = una + (nxt - una) / SIZE * u32::from(part) / u32::from(u16::MAX) * SIZE;
                    let mut fresh = 0;
                    board.acknowledge(seq(ack), |record| fresh += record.len());
                    let before = (una / SIZE..ack / SIZE).filter(|segment| sacked.remove(segment)).count() as u32;
                    prop_assert_eq!(fresh, ack - una - before * SIZE);
                    una = ack;
                }
                Step::Lose(every) => {
                    board.lose(|record| Some(record.start.0 % (u32::from(every) + 1) != 1));
                }
                Step::Resend(segments) => {
                    if let Some(lost) = board.next_lost().copied() {
                        let end = lost.start + lost.len().min(u32::from(segments) * SIZE);
                        let (lost_before, flying) = (board.lost(), board.in_flight());
                        board.resent(lost.start..end, |record| record.sent_at = Instant::from_nanos(1));
                        prop_assert_eq!(board.lost(), lost_before - end.distance(lost.start));
                        prop_assert_eq!(board.in_flight(), flying + end.distance(lost.start));
                    }
                }
                Step::Renege => {
                    board.renege();
                    sacked.clear();
                }
                Step::Unlose => {
                    board.unlose();
                    prop_assert_eq!(board.lost(), 0);
                }
            }
            board.check();
            prop_assert_eq!(board.sacked(), sacked.len() as u32 * SIZE);
            prop_assert_eq!(board.in_flight() + board.sacked() + board.lost(), nxt - una);
            // No record is less than a segment.
            prop_assert!(board.records().count() as u32 <= (nxt - una) / SIZE);
        }
    }
}

#[test]
fn known_blocks_are_not_walked_again() {
    let mut board = Scoreboard::default();
    for at in 0..100 {
        board.push(record(at * SIZE, SIZE));
    }
    let block = |start, end| SeqRange { start: SeqNumber(start * SIZE), end: SeqNumber(end * SIZE) };
    board.sack(block(10, 50), |_| {});
    assert_eq!(board.seen.without(block(10, 60)), block(50, 60));
    assert_eq!(board.seen.without(block(5, 60)), block(5, 60));
    board.acknowledge(SeqNumber(50 * SIZE), |_| {});
    assert_eq!(board.seen.without(block(50, 60)), block(50, 60));
}

#[test]
fn the_front_is_lost_in_part() {
    let mut board = Scoreboard::default();
    board.push(record(0, 1000));
    assert_eq!(board.lose_front(SIZE), SIZE);
    assert_eq!(board.lose_front(SIZE), 0);
    assert_eq!((board.lost(), board.in_flight()), (100, 900));
    board.check();
}

#[test]
fn one_segment_is_distinguished_from_more() {
    let mut board = Scoreboard::default();
    assert!(board.at_most_one());
    board.push(record(0, 100));
    assert!(board.at_most_one());
    board.push(record(100, 50));
    assert!(!board.at_most_one());
    board.acknowledge(SeqNumber(150), |_| {});
    board.push(record(150, 251));
    assert!(!board.at_most_one());
}
