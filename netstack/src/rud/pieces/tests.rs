use super::*;

/// The piece of `bytes` from `unit` on, as the payload of `psn`.
fn give(pieces: &mut Pieces, psn: u32, payload: &[u8], units: core::ops::Range<usize>) -> Piece {
    let (from, end) = (units.start * SPLIT_UNIT, (units.end * SPLIT_UNIT).min(payload.len()));
    let split = Split { unit: units.start as u16, total: payload.len() as u16 };
    pieces.take(Psn(psn), split, &payload[from..end])
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn a_message_is_whole_when_all_of_it_has_come_in_whatever_order_and_sizes() {
    let payload = payload(9_000);
    let mut pieces = Pieces::new(1 << 20);
    assert_eq!(give(&mut pieces, 5, &payload, 100..141), Piece::Kept);
    assert_eq!(give(&mut pieces, 5, &payload, 100..141), Piece::Kept, "again");
    assert_eq!(give(&mut pieces, 5, &payload, 0..17), Piece::Kept);
    // Sent again in longer ones.
    assert_eq!(give(&mut pieces, 5, &payload, 10..90), Piece::Kept);
    assert_eq!(give(&mut pieces, 5, &payload, 90..110), Piece::Whole(payload));
    assert!(pieces.are_none() && pieces.held == 0);
}

//= rud/spec.md section 4.2, RUD-9
//= rud/spec.md section 6.8, RUD-68
#[test]
fn pieces_that_make_no_sense_are_dropped() {
    let mut pieces = Pieces::new(1 << 20);
    let mut take = |unit, total, len| pieces.take(Psn(1), Split { unit, total }, &vec![1; len]);
    assert_eq!(take(0, 0, 0), Piece::Dropped);
    assert_eq!(take(0, 100, 101), Piece::Dropped);
    assert_eq!(take(2, 100, 10), Piece::Dropped);
    assert_eq!(take(u16::MAX, u16::MAX, 64), Piece::Dropped);
    assert_eq!(take(0, 200, 65), Piece::Dropped, "no whole units, and not the end");
    assert_eq!(take(0, 200, 64), Piece::Kept);
    assert_eq!(take(0, 199, 64), Piece::Kept, "of another length than before, in its place");
    assert_eq!(take(1, 200, 136), Piece::Kept);
    assert_eq!(take(0, 200, 64), Piece::Whole(vec![1; 200]));
    let mut longest = |unit, len| pieces.take(Psn(2), Split { unit, total: u16::MAX }, &vec![1; len]);
    assert_eq!((longest(1_023, 63), longest(0, 64 * 1_022)), (Piece::Kept, Piece::Kept));
    assert_eq!(longest(1_022, 64), Piece::Whole(vec![1; 65_535]));
}

//= rud/spec.md section 6.8, RUD-67
#[test]
fn the_youngest_give_way_and_the_oldest_is_always_taken() {
    let payload = payload(640);
    let mut pieces = Pieces::new(1_500);
    assert_eq!(give(&mut pieces, 7, &payload, 0..5), Piece::Kept);
    assert_eq!(give(&mut pieces, 8, &payload, 0..5), Piece::Kept);
    assert_eq!(give(&mut pieces, 9, &payload, 0..5), Piece::Dropped);
    assert_eq!(give(&mut pieces, 6, &payload, 0..5), Piece::Kept, "in the place of 8");
    assert_eq!(give(&mut pieces, 8, &payload, 5..10), Piece::Dropped);
    assert_eq!(give(&mut pieces, 6, &payload, 5..10), Piece::Whole(payload.clone()));
    pieces.forget(Psn(7));
    assert!(pieces.are_none() && pieces.held == 0);
    let long = vec![3; 65_000];
    assert_eq!(give(&mut pieces, 1, &long, 0..1_000), Piece::Kept, "longer than all the room");
}

//= rud/spec.md section 6.8, RUD-67
#[test]
fn pieces_of_settled_messages_are_forgotten() {
    let mut pieces = Pieces::new(1_500);
    (5..7).for_each(|psn| assert_eq!(give(&mut pieces, psn, &payload(640), 0..5), Piece::Kept));
    pieces.forget_before(Psn(6));
    assert_eq!((pieces.partial.len(), pieces.held), (1, 640));
    pieces.forget_before(Psn(7));
    assert!(pieces.are_none() && pieces.held == 0);
}
