mod at_once;
mod harness;
mod random;

use super::*;
use crate::dtype::DType;
use crate::executor::AbortReason;
use harness::{Buffer, Faults, Group, receive, send};

fn quiet(ranks: u32) -> Group {
    Group::new(1, ranks, Faults { in_order: true, ..Faults::default() }, |_| {})
}

fn status(peer: u32, tag: u32, count: u64) -> Result<Status, TransferError> {
    Ok(Status { peer: Rank(peer), tag, dtype: DType::U8, count })
}

#[test]
fn a_small_message_ends_at_once_and_waits_for_its_receive() {
    let mut group = quiet(2);
    let (data, into) = (Buffer::new(&[7; 100]), Buffer::new(&[0; 120]));
    let sent = group.send(0, 1, 5, &data);
    group.poll(0);
    assert_eq!(group.result(0, sent), Some(&status(1, 5, 100)));
    crate::memory::write((data.region, 0), &[0; 100]).unwrap();
    group.settle();
    assert_eq!(group.ranks[1].probe(None, None), Some(status(0, 5, 100).unwrap()));
    assert_eq!(group.ranks[1].probe(Some(Rank(0)), Some(6)), None);
    let received = group.receive(1, None, None, &into);
    group.settle();
    assert_eq!(group.result(1, received), Some(&status(0, 5, 100)));
    assert_eq!(into.bytes(), [[7; 100].as_slice(), &[0; 20]].concat());
    group.assert_given_back("a small message");
}

#[test]
fn a_large_message_stays_with_its_sender_until_it_is_asked_for() {
    let mut group = quiet(2);
    let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let (data, into) = (Buffer::new(&bytes), Buffer::new(&vec![0; bytes.len()]));
    let sent = group.send(0, 1, 5, &data);
    group.settle();
    assert_eq!(group.result(0, sent), None);
    assert_eq!(group.ranks[1].peers.get(Rank(0)).unwrap().inbound.held(), peer::OVERHEAD);
    assert_eq!(group.ranks[1].probe(None, Some(5)), Some(status(0, 5, 100_000).unwrap()));
    let received = group.receive(1, Some(0), Some(5), &into);
    group.settle();
    assert_eq!(group.result(0, sent), Some(&status(1, 5, 100_000)));
    assert_eq!(group.result(1, received), Some(&status(0, 5, 100_000)));
    assert!(into.bytes() == bytes);
    group.assert_given_back("a large message");
}

#[test]
fn a_synchronous_send_ends_when_a_receive_has_taken_the_message() {
    let mut group = quiet(2);
    let (data, into) = (Buffer::new(&[7; 3]), Buffer::new(&[0; 3]));
    let sent = group.try_send(0, SendRequest { synchronous: true, ..send(1, 5, &data) }).unwrap();
    group.settle();
    assert_eq!(group.result(0, sent), None);
    group.receive(1, Some(0), Some(5), &into);
    group.settle();
    assert_eq!(group.result(0, sent), Some(&status(1, 5, 3)));
    assert_eq!(into.bytes(), [7; 3]);
}

#[test]
fn both_ranks_learn_that_a_receive_is_too_short_and_go_on() {
    for (len, synchronous) in [(100, true), (50_000, false), (100, false)] {
        let mut group = quiet(2);
        let (data, into) = (Buffer::new(&vec![7; len]), Buffer::new(&[0; 60]));
        let sent = group.try_send(0, SendRequest { synchronous, ..send(1, 5, &data) }).unwrap();
        group.settle();
        let received = group.receive(1, None, Some(5), &into);
        group.settle();
        let error = group.result(1, received).unwrap().clone().unwrap_err().to_string();
        assert!(
            error.contains("up to 60 x u8") && error.contains(&format!("rank 0 is {len} x u8")),
            "{error}"
        );
        let error = match group.result(0, sent).unwrap() {
            Err(error) => error.to_string(),
            // It was copied. The next send to that rank says what became of it.
            Ok(_) => group.try_send(0, send(1, 5, &into)).unwrap_err().to_string(),
        };
        assert!(error.contains(&format!("send of {len} x u8 from rank 0 to rank 1 with tag 5")), "{error}");
        assert!(error.contains("up to 60 x u8"), "{error}");
        assert_eq!(into.bytes(), [0; 60]);
        group.send(0, 1, 6, &into);
        let again = group.receive(1, Some(0), None, &into);
        group.settle();
        assert_eq!(group.result(1, again), Some(&status(0, 6, 60)));
        group.assert_given_back("a receive that is too short");
    }
}

#[test]
fn types_must_be_the_same() {
    let mut group = quiet(2);
    let (data, into) = (Buffer::new(&[7; 8]), Buffer::new(&[0; 8]));
    let sent = group.try_send(0, SendRequest { dtype: DType::F32, synchronous: true, ..send(1, 5, &data) });
    let received = group.receive(1, Some(0), Some(5), &into);
    group.settle();
    let dtype = |result: Option<&Result<Status, TransferError>>| match result {
        Some(Err(TransferError::Mismatch { dtype, count, .. })) => Some((*dtype, *count)),
        _ => None,
    };
    assert_eq!(dtype(group.result(0, sent.unwrap())), Some((DType::U8, 8)));
    assert_eq!(dtype(group.result(1, received)), Some((DType::F32, 2)));
}

#[test]
fn a_send_that_is_held_holds_up_those_behind_it_to_its_rank() {
    let mut group = quiet(3);
    let [first, second] = [1, 2].map(|value| Buffer::new(&[value; 8]));
    let into = [0; 3].map(|value| Buffer::new(&[value; 8]));
    let ranks = [1, 1, 2];
    let held = group.try_send(0, SendRequest { held: true, ..send(1, 5, &first) }).unwrap();
    let behind = group.send(0, 1, 5, &second);
    let aside = group.send(0, 2, 5, &second);
    let mut received = vec![];
    for (rank, into) in ranks.into_iter().zip(&into) {
        received.push(group.receive(rank, Some(0), Some(5), into));
    }
    group.settle();
    assert!(group.result(0, held).is_none() && group.result(0, behind).is_none());
    assert!(group.result(0, aside).is_some() && group.result(2, received[2]).is_some());
    assert!(group.result(1, received[0]).is_none());
    group.ranks[0].release(Rank(1), held);
    group.settle();
    assert!(group.result(0, held).is_some() && group.result(0, behind).is_some());
    assert_eq!(group.result(1, received[1]), Some(&status(0, 5, 8)));
    assert_eq!([into[0].bytes()[0], into[1].bytes()[0]], [1, 2], "none overtakes another");
    // A deadline ends one that is never released, and those behind it go on.
    let deadline = Duration::from_secs(3);
    let late = group.try_send(0, SendRequest { held: true, deadline, ..send(1, 6, &first) }).unwrap();
    let behind = group.send(0, 1, 6, &second);
    group.now = deadline;
    group.settle();
    assert!(matches!(group.result(0, late), Some(Err(TransferError::Deadline { .. }))));
    assert!(group.result(0, behind).is_some());
}

#[test]
fn a_rank_sends_to_itself() {
    let mut group = quiet(1);
    for len in [0, 5, 100_000] {
        let (data, into) = (Buffer::new(&vec![9; len]), Buffer::new(&vec![0; len]));
        let sent = group.send(0, 0, 1, &data);
        group.settle();
        assert_eq!(group.result(0, sent).is_some(), len < 100_000);
        let received = group.receive(0, None, Some(1), &into);
        group.settle();
        assert_eq!(group.result(0, sent), Some(&status(0, 1, len as u64)));
        assert_eq!(group.result(0, received), Some(&status(0, 1, len as u64)));
        assert!(into.bytes() == data.bytes());
        let late = SendRequest { deadline: group.now, synchronous: true, ..send(0, 2, &data) };
        let late = group.try_send(0, late).unwrap();
        group.settle();
        assert!(matches!(group.result(0, late), Some(Err(TransferError::Deadline { .. }))));
        assert_eq!(group.ranks[0].probe(None, None), None);
    }
    group.assert_given_back("messages to itself");
}

#[test]
fn a_deadline_names_the_pair_and_the_tag() {
    for (len, synchronous) in [(10, true), (50_000, false), (10, false)] {
        let mut group = quiet(3);
        let (data, into) = (Buffer::new(&vec![7; len]), Buffer::new(&vec![0; len]));
        let deadline = Duration::from_secs(3);
        let request = SendRequest { synchronous, deadline, ..send(2, 77, &data) };
        let sent = group.try_send(1, request).unwrap();
        let request = ReceiveRequest { deadline, ..receive(Some(0), Some(8), &into) };
        let received = group.ranks[1].start_receive(request).unwrap();
        group.settle();
        assert!(group.ranks[1].next_deadline().unwrap() <= deadline);
        group.now = deadline;
        group.settle();
        let error = match group.result(1, sent).unwrap() {
            Err(error) => error.to_string(),
            Ok(_) => group.ranks[1].take_late().unwrap().to_string(),
        };
        assert!(error.contains("from rank 1 to rank 2 with tag 77 missed its deadline"), "{error}");
        let error = group.result(1, received).unwrap().clone().unwrap_err().to_string();
        assert!(error.contains("from rank 0 to rank 1 with tag 8 missed its deadline"), "{error}");
        // The message that was given up is gone, and the next one comes.
        assert_eq!(group.ranks[2].probe(None, None), None);
        group.send(1, 2, 77, &into);
        let next = group.receive(2, None, Some(77), &data);
        group.settle();
        assert_eq!(group.result(2, next), Some(&status(1, 77, len as u64)));
        group.assert_given_back("deadlines");
    }
}

#[test]
fn a_receive_that_no_message_was_matched_with_can_be_cancelled() {
    let mut group = quiet(2);
    let (data, into) = (Buffer::new(&vec![7; 50_000]), Buffer::new(&vec![0; 50_000]));
    let ids: Vec<_> =
        [None, Some(0)].into_iter().map(|from| group.receive(1, from, Some(1), &into)).collect();
    for id in &ids {
        assert!(group.ranks[1].cancel(*id));
        assert!(!group.ranks[1].cancel(*id));
        group.poll(1);
        assert!(matches!(group.result(1, *id), Some(Err(TransferError::Cancelled { .. }))));
    }
    group.send(0, 1, 1, &data);
    group.settle();
    let matched = group.receive(1, None, Some(1), &into);
    assert!(!group.ranks[1].cancel(matched));
    group.settle();
    assert_eq!(group.result(1, matched), Some(&status(0, 1, 50_000)));
}

#[test]
fn the_room_of_a_receiver_is_never_exceeded_and_large_messages_pass_small_ones() {
    let mut group = Group::new(1, 2, Faults::default(), |config| config.room_bytes = 64 << 10);
    let (small, large) = (Buffer::new(&[1; 1000]), Buffer::new(&vec![2; 100_000]));
    let sent: Vec<_> = (0..200).map(|_| group.send(0, 1, 1, &small)).collect();
    group.settle();
    let held = group.ranks[1].peers.get(Rank(0)).unwrap().inbound.held();
    assert!(held <= 64 << 10 && held > 32 << 10, "{held}");
    assert!(sent.iter().any(|id| group.result(0, *id).is_none()));
    let big = group.send(0, 1, 2, &large);
    group.settle();
    let into: Vec<_> = (0..200).map(|_| Buffer::new(&[0; 1000])).collect();
    let end = Buffer::new(&vec![0; 100_000]);
    let last = group.receive(1, Some(0), Some(2), &end);
    for into in &into {
        group.receive(1, None, Some(1), into);
        group.settle();
    }
    assert_eq!(group.result(0, big), Some(&status(1, 2, 100_000)));
    assert_eq!(group.result(1, last), Some(&status(0, 2, 100_000)));
    assert!(into.iter().all(|into| into.bytes() == [1; 1000]) && end.bytes() == large.bytes());
    group.assert_given_back("a room that was full");
}

#[test]
fn the_end_of_the_group_ends_all_by_name() {
    let mut group = quiet(3);
    let (small, large) = (Buffer::new(&[1; 10]), Buffer::new(&vec![2; 100_000]));
    let into: Vec<_> = (0..2).map(|_| Buffer::new(&vec![0; 100_000])).collect();
    group.net.dead = Some(Rank(1));
    let ids = [
        group.send(0, 1, 1, &large),
        group.receive(0, Some(1), Some(1), &into[0]),
        group.receive(0, None, None, &into[1]),
    ];
    group.send(0, 1, 1, &small);
    group.settle();
    let cause = Arc::new(AbortCause { culprit: Rank(1), reason: AbortReason::Failed, seen: None });
    group.ranks[0].abort(&cause);
    group.ranks[0].fenced();
    group.poll(0);
    for id in ids {
        let error = group.result(0, id).unwrap().clone().unwrap_err();
        assert!(error.to_string().contains("was given up: rank 1: the process is dead"), "{error}");
    }
    assert_eq!((group.ranks[0].running(), group.ranks[0].sends.iter().count()), (0, 0));
    assert!(matches!(group.try_send(0, send(1, 1, &small)), Err(PostError::Aborted(_))));
    assert!(!group.ranks[0].has_work());
}

#[test]
fn wrong_arguments_start_nothing() {
    let mut group = quiet(2);
    let buffer = Buffer::new(&[0; 6]);
    let rank = group.try_send(0, send(2, 0, &buffer));
    assert!(matches!(rank, Err(PostError::Rank { peer: Rank(2), ranks: 2 })));
    let memory = group.try_send(0, SendRequest { dtype: DType::F32, ..send(1, 0, &buffer) });
    assert!(matches!(memory, Err(PostError::Memory { bytes: 6, .. })));
    assert!(group.ranks[0].start_receive(receive(Some(9), None, &buffer)).is_err());
    let mut group = Group::new(1, 2, Faults::default(), |config| config.max_operations = 1);
    group.receive(0, None, None, &buffer);
    assert!(matches!(group.try_send(0, send(1, 0, &buffer)), Err(PostError::Busy { max: 1 })));
}
