//! Sends and receives that end in one call, among others that do not, over a network with faults.

use super::harness::{Buffer, Faults, Group, receive, send};
use super::*;
use crate::executor::AbortReason;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const BAD: Faults = Faults { duplicate: 15, full: 20, refuse: 10, in_order: false };

/// The contents of a message by its number.
fn contents(number: usize) -> Vec<u8> {
    let len = [0, 1, 8, 64, 120, 128, 129, 700][number % 8];
    (0..len).map(|at| (at * 7 + number * 13) as u8).collect()
}

/// One rank sends, and the other has a receive at a time: the messages come in order, whichever way each side takes. Returns how many sends
/// and receives have ended in their calls.
fn run_seed(seed: u64) -> [usize; 2] {
    const MESSAGES: usize = 100;
    let mut rng = SmallRng::seed_from_u64(seed);
    let faults = if rng.random() { BAD } else { Faults { in_order: true, ..Faults::default() } };
    let mut group = Group::new(seed, 2, faults, |config| config.room_bytes = 16 << 10);
    let ahead = [1, 2, 50][rng.random_range(0..3)];
    let (mut sent, mut received, mut ended_at_once) = (0, 0, [0; 2]);
    let (mut waits, mut buffers): (Option<(TransferId, Buffer)>, Vec<Buffer>) = (None, vec![]);
    let came = |number: usize, status: Status, buffer: &Buffer| {
        let expected = contents(number);
        assert_eq!((status.peer, status.tag, status.count), (Rank(0), 5, expected.len() as u64));
        assert!(buffer.bytes()[..expected.len()] == expected, "seed {seed}: message {number}");
    };
    while received < MESSAGES {
        match rng.random_range(0..8) {
            0 | 1 if sent < MESSAGES.min(received + ahead) => {
                let buffer = Buffer::new(&contents(sent));
                let request = send(1, 5, &buffer);
                match rng.random::<bool>().then(|| group.send_at_once(0, &request)).flatten() {
                    Some(_) => {
                        ended_at_once[0] += 1;
                        // The memory is the sender's again.
                        memory_overwritten(&buffer);
                    }
                    None => drop(group.try_send(0, request).unwrap()),
                }
                buffers.push(buffer);
                sent += 1;
            }
            2..5 if waits.is_none() => {
                let buffer = Buffer::new(&[0; 700]);
                let request = receive(Some(0), Some(5), &buffer);
                match rng.random::<bool>().then(|| group.receive_at_once(1, &request)).flatten() {
                    Some(status) => {
                        came(received, status, &buffer);
                        ended_at_once[1] += 1;
                        received += 1;
                    }
                    None if rng.random() => {
                        waits = Some((group.ranks[1].start_receive(request).unwrap(), buffer));
                    }
                    None => {}
                }
            }
            5 | 6 => drop(group.poll(rng.random_range(0..2))),
            _ => drop(group.network()),
        }
        if let Some((id, buffer)) = &waits
            && let Some(result) = group.result(1, *id)
        {
            came(received, result.clone().unwrap(), buffer);
            received += 1;
            buffers.extend(waits.take().map(|(_, buffer)| buffer));
        }
    }
    group.settle();
    group.assert_given_back(&format!("seed {seed}"));
    ended_at_once
}

fn memory_overwritten(buffer: &Buffer) {
    crate::memory::write((buffer.region, 0), &vec![0xee; buffer.region.len()]).unwrap();
}

#[test]
fn what_ends_in_its_call_keeps_its_place_among_all_others() {
    let sums = (0..500).map(run_seed).fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
    assert!(sums.iter().all(|sum| *sum > 2000), "{sums:?}");
}

#[test]
fn a_late_failure_is_told_before_anything_is_sent_at_once() {
    let mut group = super::quiet(2);
    let (data, short) = (Buffer::new(&[7; 100]), Buffer::new(&[0; 8]));
    let request = send(1, 5, &data);
    assert!(group.send_at_once(0, &request).is_some());
    let received = group.receive(1, Some(0), Some(5), &short);
    group.settle();
    assert!(matches!(group.result(1, received), Some(Err(TransferError::Mismatch { .. }))));
    assert_eq!(group.send_at_once(0, &request), None);
    assert!(matches!(group.try_send(0, request), Err(PostError::Earlier(_))));
    // And once without a receive before its deadline.
    let late = SendRequest { deadline: group.now + Duration::from_millis(5), ..request };
    assert!(group.send_at_once(0, &late).is_some());
    group.settle();
    group.now += Duration::from_millis(5);
    group.settle();
    assert_eq!(group.send_at_once(0, &request), None);
    let told = group.ranks[0].take_late();
    assert!(matches!(told, Some(TransferError::Deadline { .. })), "{told:?}");
    group.assert_given_back("late failures");
}

#[test]
fn what_does_not_fit_or_is_not_next_is_left_to_polls() {
    let mut group = super::quiet(2);
    let (data, into) = (Buffer::new(&[7; 100]), Buffer::new(&[0; 100]));
    // To a rank itself or beyond the last one, larger than a fragment, synchronous, and not there yet.
    let plain = send(1, 5, &data);
    let big = Buffer::new(&[1; 200]);
    let refused = [
        send(0, 5, &data),
        send(7, 5, &data),
        send(1, 5, &big),
        SendRequest { synchronous: true, ..plain },
        SendRequest { held: true, ..plain },
    ];
    for request in refused {
        assert_eq!(group.send_at_once(0, &request), None, "{request:?}");
    }
    assert!(group.send_at_once(0, &plain).is_some());
    let ask = receive(Some(0), Some(5), &into);
    let small = Buffer::new(&[0; 8]);
    let others = [
        ReceiveRequest { tag: Some(6), ..ask },
        ReceiveRequest { dtype: DType::F32, ..ask },
        ReceiveRequest { from: None, ..ask },
        receive(Some(0), Some(5), &small),
    ];
    for request in others {
        assert_eq!(group.receive_at_once(1, &request), None, "{request:?}");
    }
    assert_eq!(group.receive_at_once(1, &ask), Some(status(0, 5, 100).unwrap()));
    assert_eq!(into.bytes(), [7; 100]);
    // It came once.
    assert_eq!(group.receive_at_once(1, &ask), None);
    // A group that has ended.
    let cause = AbortCause { culprit: Rank(1), reason: AbortReason::Failed, seen: None };
    group.ranks[0].abort(&Arc::new(cause));
    assert_eq!(group.send_at_once(0, &plain), None);
}

#[test]
fn whatever_length_is_sent_at_once_has_a_header_that_is_read() {
    for fragment in [64, 128, 4032, 4096] {
        for len in (0..=140).chain(4000..=4100) {
            let mut group = super::quiet(2);
            group.net.fragment = [fragment; 2];
            let (data, into) = (Buffer::new(&vec![7; len]), Buffer::new(&vec![0; len]));
            // The network parses the header of each message that it is given.
            let sent = group.send_at_once(0, &send(1, 5, &data)).is_some();
            assert_eq!(sent, len <= fragment, "{len} bytes, {fragment} at a time");
            if sent {
                let received = group.receive_at_once(1, &receive(Some(0), Some(5), &into));
                assert_eq!(received, Some(status(0, 5, len as u64).unwrap()));
                assert!(into.bytes() == data.bytes());
            }
        }
    }
}
