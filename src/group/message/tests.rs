use std::time::Duration;

use super::*;

#[test]
fn damaged_messages_are_refused_and_do_not_panic() {
    let mut hello = Hello::new(3, 8, 1, 2).unwrap();
    hello.node = Some(1);
    hello.plan = vec![("lanes".into(), 3), (String::new(), u64::MAX)];
    hello.table = vec![9; 100];
    hello.blob = b"blob".into();
    let missing = Missing { ranks: vec![2, 300], total: 70_000 };
    let member = Member { rank: 0, local_rank: 1, local_size: 2, node: 3, table: vec![1], blob: vec![] };
    let address = "[::1]:80".parse().unwrap();
    wire::tests::fuzz(&[
        Message::Hello(hello),
        Message::Waiting(missing.clone()),
        Message::Roster { epoch: 1, nonce: [7; 32], members: vec![member.clone(), member] },
        Message::Refused(Refusal::DuplicateRank { rank: 1, first: "this".into(), second: address }),
        Message::Refused(Refusal::Missing {
            missing: missing.clone(),
            seconds: 0.5,
            meeting: "host".into(),
            refused: String::new(),
        }),
        Message::Part { number: 3, tag: "tag".into(), bytes: vec![0; 40] },
        Message::Parts { number: 3, tag: "tag".into(), runs: vec![Run { ranks: 7, part: vec![1, 2] }] },
        Message::Failed(ExchangeError::Missing {
            tag: "tag".into(),
            missing,
            waited: Duration::from_millis(7),
        }),
        Message::Lost(u32::MAX),
        Message::Leave(None),
        Message::Leave(Some(u64::MAX)),
        Message::Left(Departure { rank: 1, started: 2 }),
    ]);
}
