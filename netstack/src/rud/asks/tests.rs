use super::*;

//= rud/spec.md section 6.7, RUD-58
#[test]
fn a_doubt_makes_probes_of_acknowledgements_and_the_next_tries_every_path() {
    let mut asks = Asks::new(3);
    asks.on_doubt(0, 0);
    assert!(asks.wants_ack(0, 2) && !asks.wants_ack(ONE_DOUBT, 2) && !asks.is_due());
    asks.on_doubt(ONE_DOUBT - 1, 0);
    assert!(!asks.is_due(), "the same doubt");
    for path in 0..3 {
        asks.on_sent(10, path, 0);
        assert!(!asks.wants_ack(10, path), "one at a time");
    }
    asks.on_doubt(ONE_DOUBT, ONE_DOUBT);
    for path in 0..3 {
        assert!(asks.is_due());
        asks.on_sent(20, path, 0);
        asks.on_due_sent();
    }
    assert!(!asks.is_due());
    let answered = asks.answered(5).unwrap();
    assert_eq!((answered.path, answered.sent_at), (1, 20));
    asks.on_doubt(2 * ONE_DOUBT, 2 * ONE_DOUBT);
    assert!(asks.wants_ack(2 * ONE_DOUBT, 1) && !asks.is_due(), "an answer has come since");
    asks.on_doubt(4 * ONE_DOUBT, 2 * ONE_DOUBT);
    assert!(asks.is_due(), "the peer has waited");
    let mut single = Asks::new(1);
    single.volley(0);
    single.on_doubt(0, 0);
    assert!(!single.wants_ack(0, 0) && !single.is_due(), "there is no choice");
}

//= rud/spec.md section 6.8, RUD-62
#[test]
fn what_later_ones_have_overtaken_is_lost_once() {
    let mut asks = Asks::new(3);
    for path in 0..3 {
        asks.on_sent(0, path, if path == 1 { 1_500 } else { 0 });
    }
    assert!(!asks.take_lost(5, 0), "nothing was answered");
    assert!(asks.answered(3).is_some() && asks.answered(3).is_none() && asks.answered(77).is_none());
    assert!(asks.take_lost(5, 0) && !asks.take_lost(5, 0));
    assert!(!asks.take_lost(5, 1), "a padded one says nothing");
    assert!(asks.answered(1).is_none(), "too late");
}

#[test]
fn probes_that_are_never_answered_take_no_memory() {
    let mut asks = Asks::new(3);
    (0..10_000).for_each(|i| asks.on_sent(i, (i % 3) as u16, 0));
    assert!(asks.asked.len() <= 10);
}
