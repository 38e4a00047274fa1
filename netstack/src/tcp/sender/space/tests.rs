use super::*;

const FIRST: SeqNumber = SeqNumber(u32::MAX - 10);

fn space(window: u32) -> SendSpace {
    let mut space = SendSpace::new(FIRST);
    space.begin(window, SeqNumber(1));
    space
}

fn offers(space: &mut SendSpace, window: u32) {
    let ack = AckIn {
        ack: space.una(),
        seq: SeqNumber(1),
        window,
        sack: crate::wire::tcp::SackBlocks::NONE,
        rtt: None,
        echo: None,
        ece: false,
        has_data: false,
    };
    assert_ne!(space.update_window(&ack), Change::None);
}

#[test]
fn a_window_that_shrinks_below_what_was_sent_admits_nothing() {
    let mut space = space(100);
    assert_eq!(space.usable(), 100);
    space.on_sent(FIRST + 60, false, false);
    assert_eq!(space.usable(), 40);
    offers(&mut space, 50);
    assert_eq!((space.usable(), space.right_edge()), (0, FIRST + 50));
    space.acknowledge(FIRST + 60);
    assert_eq!((space.usable(), space.window().greatest()), (50, 100));
}

#[test]
fn the_number_of_a_window_probe_counts_once_it_is_taken_or_sent_again() {
    let mut space = space(0);
    space.on_probe_sent();
    assert_eq!((space.nxt(), space.max_sent()), (FIRST, FIRST + 1));
    space.on_probe_taken(false);
    assert_eq!((space.nxt(), space.max_sent(), space.fin_sent()), (FIRST + 1, FIRST + 1, false));
    space.on_probe_sent();
    space.on_sent(FIRST + 30, false, false);
    assert_eq!((space.nxt(), space.max_sent()), (FIRST + 30, FIRST + 30));
    // A probe can carry the FIN.
    space.finish();
    assert!(space.owes_fin());
    space.on_probe_sent();
    assert!(space.owes_fin());
    space.on_probe_taken(true);
    assert!(space.fin_sent() && space.is_finished() && !space.owes_fin() && !space.fin_acked());
    space.acknowledge(FIRST + 31);
    assert!(space.fin_acked());
    // A second call of the user changes nothing.
    space.finish();
    assert!(space.fin_sent());
}

#[test]
fn a_small_segment_is_out_until_it_is_acknowledged_however_far_the_numbers_go() {
    let mut space = space(u32::MAX >> 2);
    space.on_sent(FIRST + 5, false, true);
    assert!(space.small_is_out());
    let mut at = FIRST + 5;
    space.acknowledge(at);
    for _ in 0..6 {
        at += 1 << 30;
        space.on_sent(at, false, false);
        assert!(!space.small_is_out());
        space.acknowledge(at);
        assert!(!space.small_is_out());
    }
    space.on_sent(at + 5, false, true);
    space.abort();
    assert!(!space.small_is_out() && space.nxt() == space.una() && !space.is_finished());
}
