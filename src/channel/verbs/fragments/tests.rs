use super::*;

#[allow(clippy::unnecessary_wraps)]
fn zero_copy(token: u64) -> Option<ZeroCopyPayload> {
    Some(ZeroCopyPayload { span: Span::empty(), token: SendToken(token) })
}

fn tokens(sender: &mut Sender, low: u64) -> Vec<u64> {
    let mut released = vec![];
    sender.acknowledged(low as u32, 32, |token| released.push(token.0)).unwrap();
    released
}

#[test]
fn the_window_bounds_what_is_out_and_acknowledgements_release_in_order() {
    let mut sender = Sender::new(4);
    for n in 0..4 {
        assert_eq!(sender.slot(), Some(n as u32));
        sender.sent(100, zero_copy(n));
    }
    assert_eq!(sender.slot(), None);
    assert_eq!(tokens(&mut sender, 3), [0, 1, 2]);
    assert_eq!(sender.slot(), Some(0));
    assert_eq!(tokens(&mut sender, 3), [] as [u64; 0]);
    assert_eq!(tokens(&mut sender, 2), [] as [u64; 0], "an old count is no news");
    assert_eq!(sender.acknowledged(9, 32, |_| ()), Err(InvalidAck));
    assert_eq!(sender.in_flight(), 1);
}

#[test]
fn counts_go_round() {
    let mut sender = Sender::new(2);
    for n in 0..10u64 {
        sender.sent(1, None);
        sender.acknowledged((n + 1) as u32 & 7, 3, |_| ()).unwrap();
    }
    assert_eq!(sender.acked(), 10);
}

#[test]
fn a_refused_fragment_comes_back_once() {
    let mut sender = Sender::new(8);
    (0..3).for_each(|n| sender.sent(10 + n, zero_copy(n.into())));
    let back = sender.refused(1, RefusalReason::NotReady).unwrap();
    assert_eq!((back.slot, back.len, back.zero_copy.unwrap().token), (1, 11, SendToken(1)));
    assert_eq!(sender.refused(1, RefusalReason::NotReady).unwrap_err(), InvalidAck);
    assert_eq!(sender.refused(5, RefusalReason::Damaged).unwrap_err(), InvalidAck);
    assert_eq!(tokens(&mut sender, 3), [0, 2], "what came back is not released");
}

#[test]
fn after_a_failure_the_taken_are_released_the_refused_come_back_and_the_rest_is_posted_again() {
    let mut sender = Sender::new(8);
    (0..6).for_each(|n| sender.sent(n, zero_copy(n.into())));
    // The peer has taken 0 to 3; it refused 1, as reported before, and 2, whose refusal was lost.
    sender.refused(1, RefusalReason::Damaged).unwrap();
    let (mut released, mut back) = (vec![], vec![]);
    let taken = Taken { count: 4, refused: 0b0110 };
    sender.resume(taken, |token| released.push(token.0), |fragment| back.push(fragment.slot)).unwrap();
    assert_eq!((released, back), (vec![0, 3], vec![2]));
    let again = |sender: &mut Sender| -> Vec<_> {
        sender
            .outstanding()
            .map(|(slot, len, zero_copy)| (slot, len, zero_copy.map(|zero_copy| zero_copy.token.0)))
            .collect()
    };
    assert_eq!(again(&mut sender), [(4, 4, Some(4)), (5, 5, Some(5))]);
    assert_eq!(again(&mut sender), [(4, 4, None), (5, 5, None)], "it is zero_copy no more");
    let nonsense = Taken { count: 7, refused: 0 };
    assert_eq!(sender.resume(nonsense, |_| (), |_| ()), Err(InvalidAck));
    let nonsense = Taken { count: 3, refused: 0 };
    assert_eq!(sender.resume(nonsense, |_| (), |_| ()), Err(InvalidAck));
}

#[test]
fn no_count_overtakes_a_refusal() {
    let mut receiver = Receiver::new(8);
    receiver.came(FragmentState::Settled(None));
    receiver.came(FragmentState::Settled(Some(RefusalReason::Damaged)));
    receiver.came(FragmentState::Settled(None));
    assert_eq!(receiver.report(), 0, "the refusal goes first");
    assert_eq!(receiver.refusal(), Some(Notification::Refused(RefusalReason::Damaged, 1)));
    receiver.refusal_said();
    assert!(receiver.due(false), "a quarter of the window and more waits");
    assert_eq!(receiver.report(), 3);
    assert!(!receiver.due(true));
    assert_eq!(receiver.taken(), Taken { count: 3, refused: 0b010 });
}

#[test]
fn who_asks_is_told_at_once() {
    let mut receiver = Receiver::new(32);
    receiver.came(FragmentState::Settled(None));
    assert!(!receiver.due(false));
    receiver.ask();
    assert!(receiver.due(false));
    assert_eq!(receiver.report(), 1);
    receiver.came(FragmentState::Settled(None));
    assert!(!receiver.due(false), "it asked about the one before");
}

#[test]
fn words_are_read_as_they_were_written() {
    for word in [
        Notification::Ack(5),
        Notification::Refused(RefusalReason::Damaged, 1 << 29),
        Notification::Refused(RefusalReason::NotReady, 0),
    ] {
        assert_eq!(Notification::decode(word.encode()), Some(word));
    }
    assert_eq!(Notification::decode(u32::MAX), None);
    assert_eq!(widen(0x1_0000_0005, 2, 30), 0x1_4000_0002);
    assert_eq!(widen(7, 7, 32), 7);
}

#[test]
fn what_is_not_settled_holds_back_the_count_and_nothing_else() {
    let mut receiver = Receiver::new(8);
    receiver.came(FragmentState::Settled(None));
    receiver.came(FragmentState::Open);
    receiver.came(FragmentState::Settled(None));
    assert_eq!((receiver.next(), receiver.taken().count), (3, 1));
    assert!(receiver.expects(3) && receiver.is_next(3));
    receiver.came(FragmentState::Open);
    receiver.settle(3, FragmentState::Settled(None));
    assert_eq!(receiver.taken().count, 1, "the second is open yet");
    receiver.settle(1, FragmentState::Settled(Some(RefusalReason::Damaged)));
    assert_eq!(receiver.taken(), Taken { count: 4, refused: 0b100 });
    assert_eq!(receiver.refusal(), Some(Notification::Refused(RefusalReason::Damaged, 1)));
}

#[test]
fn what_came_behind_an_open_one_is_known_when_it_comes_again() {
    let mut receiver = Receiver::new(8);
    receiver.came(FragmentState::Open);
    receiver.came(FragmentState::Settled(None));
    receiver.came(FragmentState::Settled(Some(RefusalReason::NotReady)));
    receiver.resume();
    assert_eq!((receiver.next(), receiver.taken().count), (0, 0));
    assert_eq!(receiver.known(), Some(FragmentState::Open));
    // By its slot, where it is sound at once.
    receiver.came(FragmentState::Settled(None));
    assert_eq!(receiver.taken(), Taken { count: 3, refused: 0b1 });
    // The peer has no report of that yet, and sends the others again.
    assert_eq!(receiver.known(), Some(FragmentState::Settled(None)));
    receiver.came(FragmentState::Settled(None));
    receiver.came(FragmentState::Settled(None));
    assert_eq!((receiver.next(), receiver.known()), (3, None));
    receiver.came(FragmentState::Settled(None));
    assert_eq!(receiver.taken().count, 4);
}
