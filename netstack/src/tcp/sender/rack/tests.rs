use super::*;
use crate::wire::tcp::SeqRange;

const RTT: Duration = Duration::from_millis(10);

/// Segments of ten numbers, one a millisecond.
fn board(segments: u32) -> Scoreboard {
    let mut board = Scoreboard::default();
    for index in 0..segments {
        board.push(Record {
            start: SeqNumber(index * 10),
            end: SeqNumber(index * 10 + 10),
            sent_at: at(index),
            stamp: Default::default(),
            segment_size: 10,
            sends: 1,
            sacked: false,
            lost: false,
            fin: false,
            path_mtu: false,
        });
    }
    board
}

fn at(millis: u32) -> Instant {
    Instant::from_nanos(u64::from(millis) * 1_000_000)
}

fn sack(rack: &mut Rack, board: &mut Scoreboard, now: Instant, first: u32, last: u32) {
    let range = SeqRange { start: SeqNumber(first * 10), end: SeqNumber(last * 10 + 10) };
    let fack = rack.fack();
    board.sack(range, |record| rack.on_delivered(now, record, fack, Some(RTT)));
}

fn detect(rack: &Rack, board: &mut Scoreboard, now: Instant) -> DetectedLosses {
    rack.detect(now, board, Some(RTT), Some(RTT), false)
}

#[test]
fn what_was_sent_later_and_arrived_dates_what_did_not() {
    let (mut rack, mut board) = (Rack::new(SeqNumber(0)), board(5));
    sack(&mut rack, &mut board, at(12), 2, 2);
    // The first was sent 2 ms earlier: its patience, 10 + 2.5 ms, ends at 12.5; the second's at 13.5.
    let found = detect(&rack, &mut board, at(12));
    assert_eq!((found.lost, found.again), (0, Some(at(13) + Duration::from_micros(500))));
    assert_eq!(detect(&rack, &mut board, at(13)).lost, 10);
    assert_eq!(detect(&rack, &mut board, at(14)).lost, 10);
    // Records sent after it are not judged.
    assert_eq!(detect(&rack, &mut board, at(1000)), DetectedLosses::default());
}

#[test]
fn three_above_a_hole_end_the_patience_unless_reordering_was_seen() {
    let (mut rack, mut board) = (Rack::new(SeqNumber(0)), board(8));
    sack(&mut rack, &mut board, at(14), 2, 4);
    assert_eq!(detect(&rack, &mut board, at(14)).lost, 20);
    let (mut rack, mut board) = (Rack::new(SeqNumber(0)), self::board(8));
    sack(&mut rack, &mut board, at(12), 2, 2);
    sack(&mut rack, &mut board, at(12), 0, 0);
    sack(&mut rack, &mut board, at(13), 3, 3);
    let found = detect(&rack, &mut board, at(13));
    assert_eq!(found.lost, 0, "the second may only be late");
    assert!(found.again.is_some());
}

#[test]
fn an_acknowledgement_too_soon_after_a_resend_is_of_the_original() {
    let (mut rack, mut board) = (Rack::new(SeqNumber(0)), board(3));
    board.lose_front(10);
    board.resent(SeqNumber(0)..SeqNumber(10), |record| record.sent_at = at(20));
    sack(&mut rack, &mut board, at(22), 0, 0);
    assert_eq!(rack.sent_at, Instant::ZERO);
    assert_eq!(detect(&rack, &mut board, at(500)).lost, 0);
}

#[test]
fn a_lost_resend_is_found_by_what_was_sent_after_it() {
    let (mut rack, mut board) = (Rack::new(SeqNumber(0)), board(30));
    board.lose_front(10);
    board.resent(SeqNumber(0)..SeqNumber(10), |record| record.sent_at = at(15));
    sack(&mut rack, &mut board, at(24), 1, 14);
    assert_eq!(detect(&rack, &mut board, at(24)).lost, 0);
    sack(&mut rack, &mut board, at(30), 15, 20);
    assert_eq!(detect(&rack, &mut board, at(30)).lost, 10);
}

#[test]
fn duplicates_widen_the_window_once_a_round_trip_and_for_a_while() {
    let mut rack = Rack::new(SeqNumber(0));
    let window = |rack: &Rack| rack.window(Some(RTT), Some(RTT), false);
    assert_eq!(window(&rack), RTT / 4);
    rack.on_duplicate(SeqNumber(0), SeqNumber(100));
    rack.on_duplicate(SeqNumber(50), SeqNumber(150));
    assert_eq!(window(&rack), RTT / 2);
    rack.on_duplicate(SeqNumber(100), SeqNumber(200));
    assert_eq!(window(&rack), RTT * 3 / 4);
    for _ in 0..20 {
        rack.on_duplicate(rack.round.unwrap(), rack.round.unwrap() + 10);
    }
    assert_eq!(window(&rack), RTT, "never above the smoothed round-trip time");
    for _ in 0..16 {
        rack.on_recovery_end();
    }
    assert_eq!(window(&rack), RTT / 4);
}
