use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

//= rud/spec.md section 5.2, RUD-19
#[test]
fn in_order_arrivals_leave_nothing_to_report_but_the_floor() {
    let mut receiver = Receiver::new(Psn(u32::MAX - 100));
    for i in 0..10_000 {
        let psn = Psn(u32::MAX - 100).plus(i);
        assert_eq!(receiver.classify(psn), Arrival::New);
        receiver.consumed(psn);
        assert_eq!(receiver.floor(), psn.plus(1));
        assert!(!receiver.ack_pending());
        assert_eq!(receiver.classify(psn), Arrival::Duplicate);
    }
}

//= rud/spec.md section 5.4, RUD-24
//= rud/spec.md section 5.3, RUD-22
//= rud/spec.md section 5.5, RUD-30
#[test]
fn a_refusal_holds_the_floor_until_the_sender_knows() {
    let mut receiver = Receiver::new(Psn(60));
    receiver.consumed(Psn(60));
    receiver.refused(Psn(61));
    for psn in 62..200 {
        receiver.consumed(Psn(psn));
    }
    assert_eq!(receiver.floor(), Psn(61));
    assert_eq!(receiver.classify(Psn(61)), Arrival::Duplicate);
    let mut blocks = [Block::default(); MAX_BLOCKS];
    let (_, count) = receiver.report(&mut blocks);
    assert!(blocks[..count].contains(&Block { word: 0, received: 0b1101 << 60, refused: 1 << 61 }));
    // The report is lost; a resend of the PSN brings it back.
    receiver.duplicate(Psn(61));
    let (_, count) = receiver.report(&mut blocks);
    assert!(blocks[..count].iter().any(|block| block.refused == 1 << 61));
    assert!(receiver.base(Psn(62)));
    assert_eq!(receiver.floor(), Psn(200));
    assert_eq!(receiver.classify(Psn(61)), Arrival::Duplicate);
}

//= rud/spec.md section 5.5, RUD-31
#[test]
fn a_duplicate_makes_its_own_word_unreported_and_no_other() {
    let mut receiver = Receiver::new(Psn(0));
    // The first is missing.
    (64..640).for_each(|psn| receiver.consumed(Psn(psn)));
    let mut blocks = [Block::default(); MAX_BLOCKS];
    while receiver.ack_pending() {
        receiver.report(&mut blocks);
    }
    receiver.duplicate(Psn(200));
    assert!(receiver.ack_pending());
    let ((word, sack), count) = receiver.report(&mut blocks);
    assert_eq!((word, sack, count), (3, u64::MAX, MAX_BLOCKS), "others have what room is left");
    assert!(!receiver.ack_pending());
}

//= rud/spec.md section 5.2, RUD-20
//= rud/spec.md section 5.4, RUD-25
#[test]
fn the_window_ends() {
    let mut receiver = Receiver::new(Psn(5));
    assert_eq!(receiver.classify(Psn(5 + MAX_WINDOW)), Arrival::OutOfWindow);
    assert_eq!(receiver.classify(Psn(5 + MAX_WINDOW - 1)), Arrival::New);
    assert_eq!(receiver.classify(Psn(4)), Arrival::Duplicate);
    assert!(!receiver.base(Psn(5 + MAX_WINDOW + 1)));
    assert_eq!(receiver.floor(), Psn(5));
    assert!(receiver.base(Psn(5 + MAX_WINDOW)));
    assert_eq!(receiver.floor(), Psn(5 + MAX_WINDOW));
}

proptest! {
    /// Against a plain set: arrivals in any order within the window, with refusals; every report is true, and the
    /// reports together with the floor are complete.
    //= rud/spec.md section 4.3, RUD-11
    //= rud/spec.md section 5.5, RUD-29
    #[test]
    fn agrees_with_a_set(
        first in prop_oneof![Just(u32::MAX - 50), any::<u32>()],
        arrivals in proptest::collection::vec((0u32..600, 0u8..10), 1..600),
    ) {
        let first = Psn(first);
        let mut receiver = Receiver::new(first);
        let (mut consumed, mut refused) = (HashSet::new(), HashSet::new());
        let mut blocks = [Block::default(); MAX_BLOCKS];
        let mut known = HashSet::new();
        for (offset, dice) in arrivals {
            let psn = first.plus(offset);
            let seen = consumed.contains(&psn.0) || refused.contains(&psn.0);
            let arrival = receiver.classify(psn);
            prop_assert_eq!(arrival, if seen { Arrival::Duplicate } else { Arrival::New });
            match arrival {
                Arrival::New if dice == 0 => { receiver.refused(psn); refused.insert(psn.0); }
                Arrival::New => { receiver.consumed(psn); consumed.insert(psn.0); }
                _ => receiver.duplicate(psn),
            }
            while receiver.ack_pending() {
                let (sack, count) = receiver.report(&mut blocks);
                let header = Block { word: sack.0, received: sack.1, refused: 0 };
                for block in blocks[..count].iter().chain([&header]) {
                    let start = receiver.floor().word_start().plus(u32::from(block.word) * 64);
                    for i in (0..64).map(|i| start.plus(i)) {
                        if block.received >> (i.0 % 64) & 1 == 1 {
                            prop_assert!(consumed.contains(&i.0));
                            known.insert(i.0);
                        }
                        if block.refused >> (i.0 % 64) & 1 == 1 {
                            prop_assert!(refused.contains(&i.0));
                            known.insert(i.0);
                        }
                    }
                }
            }
        }
        let mut floor = first;
        while consumed.contains(&floor.0) {
            floor = floor.plus(1);
        }
        prop_assert_eq!(receiver.floor(), floor);
        for psn in consumed.iter().chain(&refused) {
            prop_assert!(Psn(*psn).is_before(floor) || known.contains(psn));
        }
    }
}

//= rud/spec.md section 5.5, RUD-29
#[test]
fn a_report_that_was_not_sent_is_made_again_and_no_other_with_it() {
    let mut receiver = Receiver::new(Psn(10));
    // The first is missing; words of arrivals, a refusal among them, and a bundle of which a message was refused.
    (64..1000).filter(|psn| ![100, 130].contains(psn)).for_each(|psn| receiver.consumed(Psn(psn)));
    receiver.refused(Psn(100));
    receiver.mixed(Psn(130), 0b01, 0b10);
    let mut first = [Block::default(); MAX_BLOCKS];
    let (first_sack, first_count) = receiver.report(&mut first);
    receiver.take_back(first_sack.0, &first[..first_count]);
    let mut reports = vec![];
    while receiver.ack_pending() {
        let mut blocks = [Block::default(); MAX_BLOCKS];
        let fits = receiver.fits_one_report();
        let (sack, count) = receiver.report(&mut blocks);
        assert_eq!(fits, !receiver.ack_pending());
        reports.push((sack, blocks[..count].to_vec()));
        assert!(reports.len() < 10);
    }
    assert_eq!(reports[0], (first_sack, first[..first_count].to_vec()));
    // One that is taken back later brings back what it had, and not what others had before.
    let (sack, blocks) = reports.pop().unwrap();
    receiver.take_back(sack.0, &blocks);
    let mut again = [Block::default(); MAX_BLOCKS];
    receiver.report(&mut again);
    assert!(!receiver.ack_pending());
    // A floor without arrivals behind it has nothing to report.
    let mut empty = Receiver::new(Psn(10));
    empty.take_back(0, &[]);
    assert!(!empty.ack_pending());
}
