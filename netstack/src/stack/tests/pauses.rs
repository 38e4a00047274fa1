//! A host that does not run for a while reads what has come meanwhile before it takes anything for lost.

use super::*;

/// Two stacks with a session, of which the first reads `budget` frames a poll.
fn pair(budget: usize) -> (Pair, [SessionId; 2]) {
    let mut pair = Pair::new(config(A), config(B));
    pair.a.ports[0].iface.rx_budget = budget;
    let ids = [session(&mut pair.a, A, B, (1, 2)), session(&mut pair.b, B, A, (2, 1))];
    (pair, ids)
}

//= rud/spec.md section 6.3, RUD-100
#[test]
fn a_pause_with_more_frames_than_a_poll_reads_is_no_loss() {
    let (mut pair, [at_a, at_b]) = pair(2);
    let send = |stack: &mut Stack<Loopback>, id, count: u64| {
        for token in 0..count {
            stack.rud_mut().send(id, b"header", region().extent(0, 1_000), MessageToken(token)).unwrap();
        }
    };
    send(&mut pair.a, at_a, 1);
    send(&mut pair.b, at_b, 1);
    pair.steps(2_000);
    assert_eq!((pair.sink_a.released.len(), pair.sink_b.released.len()), (1, 1));

    // The peer's data stands before its acknowledgements, in more frames than a poll reads.
    send(&mut pair.b, at_b, 8);
    send(&mut pair.a, at_a, 4);
    pair.b.poll_with(pair.now(), &mut pair.sink_b);
    pair.a.transmit(pair.now());
    for _ in 0..200 {
        pair.b.poll_with(pair.now(), &mut pair.sink_b);
        pair.now += 1;
    }
    assert_eq!(pair.sink_b.got.len(), 5);
    pair.now += 50_000;
    pair.steps(200);
    let rud::Counters { lost, timeouts, probes, resent, .. } = pair.a.rud().counters(at_a);
    assert_eq!(pair.sink_a.got.len(), 9);
    assert_eq!((lost, timeouts, probes, resent), (0, 0, 0, 0));
}
