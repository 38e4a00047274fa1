//! The tail of what is on the wire: the probe that asks what has arrived, and what follows from its answer.

use super::*;
use crate::wire::rud::{DatagramKind, Header};

/// A round trip of `pair`'s ends in these tests, in nanoseconds.
const ROUND_TRIP: u64 = 100_000;

/// Datagrams with where they go.
type Sent = Vec<(Destination, Vec<u8>)>;

/// Gives `sent` to an endpoint, which is end `to`.
fn receive(endpoint: &mut Endpoint, to: usize, now: u64, sent: &Sent, sink: &mut impl Sink) {
    for (at, bytes) in sent {
        endpoint.on_datagram(Instant::from_nanos(now), &meta(to, at.src_port), bytes, sink);
    }
}

/// The kind of each datagram, and whether it asks for an acknowledgement.
fn kinds(sent: &Sent) -> Vec<(DatagramKind, bool)> {
    sent.iter().map(|(_, bytes)| Header::parse(bytes).unwrap()).map(|h| (h.kind, h.ack_request)).collect()
}

/// A first end that has measured the path and sends two messages at the time returned; they have left, and are returned as well.
fn measured() -> ([(Endpoint, SessionId); 2], u64, Sent, Journal) {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    let mut journal = Journal::default();
    let mut now = 0;
    for number in 0..8 {
        now += MS;
        a.send(a_id, &[1], None, MessageToken(number)).unwrap();
        a.request_ack(a_id);
        let sent = transmit(&mut a, now);
        receive(&mut b, 1, now + ROUND_TRIP / 2, &sent, &mut journal);
        let answer = transmit(&mut b, now + ROUND_TRIP / 2);
        receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
    }
    now += MS;
    a.set_bundles(a_id, false);
    (8..10).for_each(|number| a.send(a_id, &[1], None, MessageToken(number)).unwrap());
    let sent = transmit(&mut a, now);
    assert_eq!((sent.len(), a.counters(a_id).acked), (2, 8));
    ([(a, a_id), (b, b_id)], now, sent, journal)
}

//= rud/spec.md section 6.4, RUD-46, RUD-105
#[test]
fn a_peer_that_looks_late_is_sent_nothing_twice() {
    let ([(mut a, a_id), (mut b, b_id)], sent_at, sent, mut journal) = measured();
    let (now, probe) = wait(&mut a, &mut journal);
    assert!(now >= sent_at + 2 * ROUND_TRIP);
    assert_eq!(kinds(&probe), [(DatagramKind::Probe, true)]);
    assert_ne!(probe[0].0.src_port, sent[1].0.src_port, "another path than that of the last datagram");
    // The peer finds all three in one look.
    receive(&mut b, 1, now + MS, &sent, &mut journal);
    receive(&mut b, 1, now + MS, &probe, &mut journal);
    let answer = transmit(&mut b, now + MS);
    assert_eq!(kinds(&answer), [(DatagramKind::Answer, false)], "it acknowledges as well");
    receive(&mut a, 0, now + MS + ROUND_TRIP / 2, &answer, &mut journal);
    let (ours, theirs) = (a.counters(a_id), b.counters(b_id));
    assert_eq!((ours.acked, ours.probes, ours.resent, ours.lost), (10, 1, 0, 0));
    assert_eq!((theirs.received, theirs.duplicates), (10, 0));
    assert!(a.is_idle(a_id) && transmit(&mut a, now + 2 * MS).is_empty());
    // How long it took is measured: the next probe is more patient.
    assert!(ours.srtt.as_nanos() as u64 > ROUND_TRIP);
}

//= rud/spec.md section 6.4, RUD-106
#[test]
fn a_tail_that_was_lost_is_sent_again_when_the_answer_to_a_probe_has_come() {
    for lost in [&[0][..], &[1], &[0, 1]] {
        let ([(mut a, a_id), (mut b, b_id)], _, mut sent, mut journal) = measured();
        let before: Vec<u16> = sent.iter().map(|(at, _)| at.src_port).collect();
        let mut number = 0..;
        sent.retain(|_| number.next().is_some_and(|number| !lost.contains(&number)));
        let (mut now, probe) = wait(&mut a, &mut journal);
        receive(&mut b, 1, now, &sent, &mut journal);
        receive(&mut b, 1, now + ROUND_TRIP / 2, &probe, &mut journal);
        let answer = transmit(&mut b, now + ROUND_TRIP / 2);
        now += ROUND_TRIP;
        receive(&mut a, 0, now, &answer, &mut journal);
        let mut again = transmit(&mut a, now);
        // With nothing for so long the peer asks as well whether what it sends arrives.
        again.retain(|(_, bytes)| has_message(bytes));
        assert_eq!(kinds(&again), vec![(DatagramKind::Data, true); lost.len()], "{lost:?}");
        for ((to, _), number) in again.iter().zip(lost) {
            assert_ne!(to.src_port, before[*number], "another path");
        }
        receive(&mut b, 1, now + ROUND_TRIP / 2, &again, &mut journal);
        let answer = transmit(&mut b, now + ROUND_TRIP / 2);
        receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
        let (ours, theirs) = (a.counters(a_id), b.counters(b_id));
        assert_eq!((ours.acked, ours.lost, ours.spurious, ours.timeouts), (10, lost.len() as u64, 0, 0));
        assert_eq!((theirs.received, theirs.duplicates), (10, 0));
    }
}

//= rud/spec.md section 6.7, RUD-58
#[test]
fn a_probe_for_what_was_acknowledged_shows_that_acknowledgements_get_lost() {
    for lost in [false, true] {
        let ([(mut a, a_id), (mut b, _)], sent_at, sent, mut journal) = measured();
        let mut now = sent_at + ROUND_TRIP / 2;
        receive(&mut b, 1, now, &sent, &mut journal);
        b.on_timeout(Instant::from_nanos(now + 20_000), &mut journal);
        let acknowledgement = transmit(&mut b, now + 20_000);
        assert_eq!(kinds(&acknowledgement), [(DatagramKind::Ack, false)]);
        if !lost {
            receive(&mut a, 0, now + ROUND_TRIP, &acknowledgement, &mut journal);
            assert!(a.is_idle(a_id));
        } else {
            let probe;
            (now, probe) = wait(&mut a, &mut journal);
            receive(&mut b, 1, now + ROUND_TRIP / 2, &probe, &mut journal);
            let answer = transmit(&mut b, now + ROUND_TRIP / 2);
            assert_eq!(kinds(&answer), [(DatagramKind::Answer, false)]);
            receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
            assert_eq!((a.is_idle(a_id), a.counters(a_id).resent), (true, 0));
        }
        // The next acknowledgement asks whether it arrives, if one seems to have got lost.
        now += 3 * ROUND_TRIP;
        a.send(a_id, &[1], None, MessageToken(10)).unwrap();
        a.request_ack(a_id);
        let more = transmit(&mut a, now);
        receive(&mut b, 1, now + ROUND_TRIP / 2, &more, &mut journal);
        let kind = if lost { DatagramKind::Probe } else { DatagramKind::Ack };
        assert_eq!(kinds(&transmit(&mut b, now + ROUND_TRIP / 2)), [(kind, false)]);
    }
}
