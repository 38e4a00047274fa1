use super::*;

/// PSNs that wrap.
const FIRST: Psn = Psn(u32::MAX - 99);

fn sent(count: u16) -> Sequence {
    let mut sequence = Sequence::new(FIRST);
    (0..count).for_each(|slot| sequence.assign(slot));
    sequence
}

//= rud/spec.md section 5.4, RUD-26
#[test]
fn each_psn_is_settled_once_and_the_base_follows() {
    let mut sequence = sent(200);
    assert_eq!(sequence.next(), Psn(100));
    assert_eq!(sequence.settle(FIRST.plus(2)), Some(2));
    sequence.advance();
    assert_eq!(sequence.base(), FIRST, "the first is open");
    let word = FIRST.plus(2).word_start();
    let bit = 1 << FIRST.plus(2).since(word);
    assert_eq!(sequence.unsettled(word, bit | bit << 1), bit << 1);
    // PSNs that the cumulative acknowledgement settles besides.
    let mut slots = vec![];
    while let Some(slot) = sequence.settle_before(FIRST.plus(5)) {
        slots.push(slot);
    }
    assert_eq!(slots, [0, 1, 3, 4]);
    assert_eq!(sequence.base(), FIRST.plus(5));
    for psn in (5..200).rev() {
        assert_eq!(sequence.settle(FIRST.plus(psn)), Some(psn as usize));
    }
    sequence.advance();
    assert_eq!((sequence.base(), sequence.next()), (Psn(100), Psn(100)));
}

//= rud/spec.md section 6.2, RUD-38, RUD-39
#[test]
fn what_was_never_sent_cannot_be_settled() {
    let mut sequence = sent(10);
    assert_eq!(sequence.settle(FIRST.plus(10)), None);
    assert_eq!(sequence.settle(FIRST.minus(1)), None);
    assert!(sequence.covers(FIRST) && sequence.covers(FIRST.plus(10)));
    assert!(!sequence.covers(FIRST.plus(11)) && !sequence.covers(FIRST.minus(1)));
}

//= rud/spec.md section 6.1, RUD-33
#[test]
fn the_room_ends_at_the_window_and_words_are_used_again() {
    let mut sequence = sent(MAX_WINDOW as u16);
    assert_eq!(sequence.room(), 0);
    assert_eq!(sequence.settle_before(FIRST.plus(1)), Some(0));
    assert_eq!(sequence.room(), 1);
    let settle_all = |sequence: &mut Sequence| {
        let next = sequence.next();
        let mut count = 0;
        while sequence.settle_before(next).is_some() {
            count += 1;
        }
        count
    };
    assert_eq!(settle_all(&mut sequence), MAX_WINDOW - 1);
    // Twice around the ring: bits of the last time mean nothing.
    for _ in 0..3 {
        (0..MAX_WINDOW as u16).for_each(|slot| sequence.assign(slot));
        assert_eq!(settle_all(&mut sequence), MAX_WINDOW);
    }
}
