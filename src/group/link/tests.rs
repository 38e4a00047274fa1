use std::thread;

use super::round::runs;
use super::*;
use crate::group::message::Run;
use crate::group::tests::{Job, SOON};
use crate::wire::Malformed;

fn links(size: u32) -> Vec<ControlLink> {
    Job::new(size).links()
}

/// Runs `body` on every rank at once, and returns the results and the links.
fn on_all<T: Send>(
    links: Vec<ControlLink>,
    body: impl Fn(u32, &mut ControlLink) -> T + Sync,
) -> (Vec<T>, Vec<ControlLink>) {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..)
            .zip(links)
            .map(|(rank, mut link)| {
                scope.spawn(move || {
                    let result = body(rank, &mut link);
                    (result, link)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).unzip()
    })
}

#[test]
fn everybody_gets_the_bytes_of_all() {
    let (results, _) = on_all(links(4), |rank, link| {
        let mut rounds = Vec::new();
        for round in 0..20 {
            let ours = vec![rank as u8; (rank as usize * 1000 + round) % 3001];
            rounds.push(link.all_gather(&format!("round {round}"), &ours, SOON).unwrap());
        }
        link.barrier("end", SOON).unwrap();
        rounds
    });
    assert!(results.iter().all(|rounds| *rounds == results[0]));
    for (round, parts) in results[0].iter().enumerate() {
        for (rank, part) in parts.iter().enumerate() {
            assert_eq!(*part, vec![rank as u8; (rank * 1000 + round) % 3001]);
        }
    }
}

#[test]
fn everybody_gets_the_column_of_the_ranks_that_take_part() {
    // Rank 2 takes no part.
    let rows: [&[u8]; 4] = [&[1, 2, 3], &[4, 5, 6], &[], &[7, 8, 9]];
    let (results, links) = on_all(links(4), |rank, link| link.transpose("ways", rows[rank as usize], SOON));
    assert_eq!(results, [Ok(vec![1, 4, 7]), Ok(vec![2, 5, 8]), Ok(vec![]), Ok(vec![3, 6, 9])]);
    // All get the error of a row that is too short.
    let (results, _) =
        on_all(links, |rank, link| link.transpose("ways", if rank == 2 { &[] } else { &[1, 2] }, SOON));
    assert!(results.iter().all(|result| matches!(result, Err(ExchangeError::Malformed { rank: 0, .. }))));
    assert_eq!(ControlLink::alone().transpose("ways", &[7], SOON), Ok(vec![7]));
}

#[test]
fn large_parts_do_not_block_each_other() {
    let large = 3 << 20;
    let (results, _) = on_all(links(3), |rank, link| {
        let parts = link.all_gather("large", &vec![rank as u8; large], SOON).unwrap();
        parts
            .iter()
            .enumerate()
            .all(|(rank, part)| part.len() == large && part.iter().all(|b| *b == rank as u8))
    });
    assert_eq!(results, [true; 3]);
}

#[test]
fn those_who_do_not_come_are_named_on_every_rank() {
    let (results, _) = on_all(links(4), |rank, link| {
        if rank >= 2 {
            // They stay in the job and are elsewhere.
            thread::sleep(Duration::from_millis(1500));
            return None;
        }
        Some(link.all_gather("the table", b"x", Duration::from_millis(700)).unwrap_err())
    });
    for error in results.into_iter().flatten() {
        let text = error.to_string();
        assert!(text.contains("ranks 2, 3 did not come to the exchange of the table within 700ms"), "{text}");
    }
}

#[test]
fn rank_0_is_named_when_it_is_the_one_that_does_not_come() {
    let (results, _) = on_all(links(3), |rank, link| {
        if rank == 0 {
            thread::sleep(Duration::from_millis(1500));
            return None;
        }
        Some(link.all_gather("the plan", b"x", Duration::from_millis(300)).unwrap_err())
    });
    for error in results.into_iter().flatten() {
        assert!(error.to_string().starts_with("rank 0 did not come to the exchange of the plan"), "{error}");
    }
}

#[test]
fn a_rank_that_is_gone_is_named_on_every_rank_and_the_link_stays_closed() {
    let mut links = links(4);
    drop(links.pop());
    let (results, links) =
        on_all(links, |_, link| link.all_gather("the table", b"x", SOON).expect_err("rank 3 is gone"));
    for error in &results {
        assert!(matches!(error, ExchangeError::Left { rank: 3, .. }), "{error}");
    }
    let (again, _) = on_all(links, |_, link| link.barrier("again", SOON).unwrap_err());
    assert_eq!(again, results);
}

#[test]
fn a_rank_that_ends_between_exchanges_is_named_by_those_who_look() {
    let mut links = links(4);
    let until = Instant::now() + SOON;
    assert_eq!(links.iter_mut().map(|link| link.check("memory")).collect::<Vec<_>>(), vec![Ok(()); 4]);
    drop(links.pop());
    for link in &mut links {
        let error = loop {
            match link.check("memory") {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < until),
            }
        };
        assert!(matches!(error, ExchangeError::Left { rank: 3, .. }), "{error}");
    }
}

#[test]
fn all_hear_why_a_rank_gives_up() {
    // By itself, and because of another one, which it has found dead.
    for (gives_up, culprit) in [(0, None), (2, None), (0, Some(1)), (2, Some(0))] {
        let (results, _) = on_all(links(3), |rank, link| {
            if rank == gives_up {
                link.give_up(culprit, "no port");
                return None;
            }
            Some(link.all_gather("ways", b"x", SOON).unwrap_err())
        });
        let expected = ExchangeError::GaveUp { rank: culprit.unwrap_or(gives_up), why: "no port".into() };
        assert_eq!(results.into_iter().flatten().collect::<Vec<_>>(), vec![expected; 2]);
    }
}

#[test]
fn a_rank_that_makes_another_call_is_named_with_both_views() {
    let (results, _) = on_all(links(3), |rank, link| {
        let tag = if rank == 2 { "tensor table 1" } else { "plan" };
        link.all_gather(tag, b"x", SOON).unwrap_err()
    });
    for error in results {
        let text = error.to_string();
        let expected =
            "rank 2 exchanges tensor table 1 (exchange 0) where rank 0 exchanges plan (exchange 0)";
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn a_part_that_is_too_large_is_refused_before_it_is_sent() {
    let mut link = ControlLink::alone();
    let error = link.all_gather("x", &vec![0; MAX_PART + 1], SOON).unwrap_err();
    assert!(matches!(error, ExchangeError::TooLarge { limit: MAX_PART, .. }), "{error}");
    assert!(link.all_gather("x", &[], SOON).is_ok(), "nothing was sent, so nothing is broken");
}

#[test]
fn a_tag_is_cut_between_characters() {
    let long = "ä".repeat(200);
    assert_eq!(shortened(&long).len(), 256);
    assert_eq!(shortened(&format!("x{long}")).len(), 255);
}

#[test]
fn equal_parts_are_handed_out_once_and_never_to_more_ranks_than_there_are() {
    let mut parts = vec![vec![7; 32]; 10_000];
    parts[5000] = vec![8; 32];
    let once = runs(&parts);
    assert_eq!(once.len(), 3);
    assert_eq!(expand(once.clone(), 9_999), Err(Malformed));
    assert_eq!(expand(once.clone(), 10_001), Err(Malformed));
    assert_eq!(expand(once, 10_000), Ok(parts));
    // More than memory should hold.
    for (ranks, len) in [(u32::MAX, 1), (4, 1), (3, 100 << 20)] {
        assert_eq!(expand(vec![Run { ranks, part: vec![0; len] }], 3), Err(Malformed));
    }
}

/// A rank that leaves reads nothing any more; later messages to it reset the connection, behind its leave message.
#[test]
fn who_has_left_is_not_broken_by_a_message_to_it() {
    for says in [true, false] {
        let mut links = links(2);
        let mut one = links.pop().unwrap();
        let zero = &mut links[0];
        // Not read, so the connection is reset when it closes.
        zero.announce_lost(1);
        if says {
            one.leave(Some(3));
        }
        drop(one);
        zero.leave(None);
        zero.pump();
        let left = if says { vec![Departure { rank: 1, started: 3 }] } else { vec![] };
        assert_eq!(zero.take_left(), left);
        assert_eq!((zero.broken().count(), zero.lost()), (usize::from(!says), None));
    }
}

/// A rank that has learnt that rank 0 leaves closes without a message, and resets the connection where it has unread
/// data.
#[test]
fn who_goes_after_rank_0_has_left_is_not_reported_as_broken() {
    let mut links = links(2);
    let one = links.pop().unwrap();
    let zero = &mut links[0];
    zero.leave(Some(3));
    // Not read, so the connection is reset.
    drop(one);
    zero.pump();
    assert_eq!((zero.broken().count(), zero.lost()), (0, None));
    assert!(zero.conns().all(|(_, conn)| matches!(conn.state(), ConnState::Broken(_))));
}
