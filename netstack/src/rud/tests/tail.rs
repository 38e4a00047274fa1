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

/// Ends of which the first has measured the path, and a time after that.
fn measured(paths: u16) -> ([(Endpoint, SessionId); 2], u64, Journal) {
    let [(mut a, a_id), (mut b, b_id)] = [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(wide());
        let params = params(end, TAGS);
        let first = params.local_ports[0];
        let params = SessionParams { local_ports: (first..first + paths).collect(), ..params };
        let id = endpoint.open(Instant::ZERO, params).unwrap();
        transmit(&mut endpoint, 0);
        (endpoint, id)
    });
    let mut journal = Journal::default();
    for number in 0..8 {
        let now = MS * number;
        a.send(a_id, &[1], None, MessageToken(number)).unwrap();
        a.request_ack(a_id);
        let sent = transmit(&mut a, now);
        receive(&mut b, 1, now + ROUND_TRIP / 2, &sent, &mut journal);
        let answer = transmit(&mut b, now + ROUND_TRIP / 2);
        receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
    }
    assert_eq!(a.counters(a_id).acked, 8);
    a.set_bundles(a_id, false);
    ([(a, a_id), (b, b_id)], 8 * MS, journal)
}

/// Sends so many messages.
fn send(a: &mut Endpoint, id: SessionId, now: u64, count: u64) -> Sent {
    (0..count).for_each(|number| a.send(id, &[1], None, MessageToken(8 + number)).unwrap());
    let mut collect = Collect { out: Vec::new(), room: 1000 };
    a.transmit(Instant::from_nanos(now), &mut collect);
    collect.out
}

//= rud/spec.md section 6.4, RUD-46, RUD-105
#[test]
fn a_peer_that_looks_late_is_sent_nothing_twice() {
    for (paths, late) in [(4, MS), (64, 3 * MS)] {
        let ([(mut a, a_id), (mut b, b_id)], sent_at, mut journal) = measured(paths);
        b.on_poll(Instant::from_nanos(sent_at), false);
        let sent = send(&mut a, a_id, sent_at, 2);
        let (now, probe) = wait(&mut a, &mut journal);
        assert!(now >= sent_at + 2 * ROUND_TRIP);
        assert_eq!(kinds(&probe), [(DatagramKind::Probe, true)]);
        assert_ne!(probe[0].0.src_port, sent[1].0.src_port, "another path than that of the last datagram");
        // The peer finds all three in one look.
        let now = sent_at + late;
        b.on_poll(Instant::from_nanos(now), false);
        receive(&mut b, 1, now, &sent, &mut journal);
        receive(&mut b, 1, now, &probe, &mut journal);
        let answer = transmit(&mut b, now);
        assert_eq!(kinds(&answer), [(DatagramKind::Answer, false)], "it acknowledges as well");
        receive(&mut a, 0, now + ROUND_TRIP / 2, &answer, &mut journal);
        let (ours, theirs) = (a.counters(a_id), b.counters(b_id));
        assert_eq!((ours.acked, ours.probes, ours.resent, ours.lost), (10, 1, 0, 0));
        assert_eq!((theirs.received, theirs.duplicates), (10, 0));
        assert!(a.is_idle(a_id) && transmit(&mut a, now + MS).is_empty());
        // How long it took is measured: the next probe is more patient.
        assert!(ours.srtt.as_nanos() as u64 > ROUND_TRIP);
    }
}

//= rud/spec.md section 6.4, RUD-46
#[test]
fn a_peer_that_may_not_have_begun_is_sent_data_again() {
    let [(mut a, a_id), (mut b, b_id)] = [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(Config::default());
        let id = endpoint.enlist(params(end, TAGS)).unwrap();
        (endpoint, id)
    });
    let mut journal = Journal::default();
    let lost = send(&mut a, a_id, 0, 3);
    assert!(!lost.is_empty());
    let (now, again) = wait(&mut a, &mut journal);
    assert!(again.iter().all(|(_, bytes)| has_message(bytes)));
    receive(&mut b, 1, now + ROUND_TRIP / 2, &again, &mut journal);
    let answer = transmit(&mut b, now + ROUND_TRIP / 2);
    receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
    let ours = a.counters(a_id);
    assert!(ours.acked > 0 && (ours.timeouts, ours.probes) == (0, 0));
    assert!(b.counters(b_id).received > 0 && now < 2 * MS);
}

//= rud/spec.md section 6.3, RUD-42
#[test]
fn data_in_the_place_of_a_probe_makes_nothing_else_lost_that_is_acknowledged_one_by_one() {
    let ends = [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(Config { ack_every: 1, ..wide() });
        let id = endpoint.open(Instant::ZERO, params(end, TAGS)).unwrap();
        transmit(&mut endpoint, 0);
        (endpoint, id)
    });
    let [(mut a, a_id), (mut b, b_id)] = ends;
    let mut journal = Journal::default();
    a.set_bundles(a_id, false);
    let sent = send(&mut a, a_id, 0, 10);
    assert_eq!(sent.len(), 10);
    let (mut now, again) = wait(&mut a, &mut journal);
    assert_eq!((again.len(), &again[0].1[16..20]), (1, &sent[9].1[16..20]), "the youngest");
    // The peer takes 100 us for each.
    for datagram in sent.into_iter().chain(again) {
        now += 100_000;
        receive(&mut b, 1, now, &vec![datagram], &mut journal);
        let acknowledgement = transmit(&mut b, now);
        receive(&mut a, 0, now + 1_000, &acknowledgement, &mut journal);
        a.on_timeout(Instant::from_nanos(now + 50_000), &mut journal);
        transmit(&mut a, now + 50_000);
    }
    let (ours, theirs) = (a.counters(a_id), b.counters(b_id));
    assert_eq!((ours.acked, ours.resent, ours.lost, ours.timeouts), (10, 1, 0, 0));
    assert_eq!((theirs.received, theirs.duplicates), (10, 1));
}

//= rud/spec.md section 6.4
#[test]
fn an_acknowledgement_drops_a_probe_that_found_no_room() {
    let ([(mut a, a_id), (mut b, _)], sent_at, mut journal) = measured(4);
    let sent = send(&mut a, a_id, sent_at, 1);
    let now = sent_at + 3 * ROUND_TRIP;
    a.on_timeout(Instant::from_nanos(now), &mut journal);
    a.transmit(Instant::from_nanos(now), &mut Collect { out: Vec::new(), room: 0 });
    assert!(a.wants_transmit());
    receive(&mut b, 1, now, &sent, &mut journal);
    let (now, acknowledgement) = wait(&mut b, &mut journal);
    receive(&mut a, 0, now, &acknowledgement, &mut journal);
    assert!(a.is_idle(a_id));
    let next = send(&mut a, a_id, now, 1);
    assert_eq!((next.len(), a.counters(a_id).probes), (1, 0));
}

/// While the probe waits for its answer, the time-out would be next; the answer says that the peer lives.
#[test]
fn what_is_sent_behind_a_probe_is_probed_as_soon_when_that_is_answered() {
    let ([(mut a, a_id), (mut b, _)], sent_at, mut journal) = measured(4);
    let sent = send(&mut a, a_id, sent_at, 1);
    let (at, probe) = wait(&mut a, &mut journal);
    assert_eq!(send(&mut a, a_id, at + 20_000, 1).len(), 1, "and it is lost");
    receive(&mut b, 1, at, &sent, &mut journal);
    receive(&mut b, 1, at + ROUND_TRIP / 2, &probe, &mut journal);
    let answer = transmit(&mut b, at + ROUND_TRIP / 2);
    receive(&mut a, 0, at + ROUND_TRIP, &answer, &mut journal);
    assert_eq!(a.counters(a_id).acked, 9);
    let (next, probe) = wait(&mut a, &mut journal);
    assert_eq!(kinds(&probe), [(DatagramKind::Probe, true)]);
    assert!(next < at + 8 * ROUND_TRIP, "{} us", (next - at) / 1000);
}

//= rud/spec.md section 4.3, RUD-13
//= rud/spec.md section 5.5, RUD-107
#[test]
fn an_answer_comes_behind_all_that_has_arrived() {
    // The first of 600 is lost; the acknowledgements of the others wait for room, or are lost.
    for lost in [false, true] {
        let ([(mut a, a_id), (mut b, _)], sent_at, mut journal) = measured(4);
        let sent = send(&mut a, a_id, sent_at, 600);
        let (now, probe) = wait(&mut a, &mut journal);
        receive(&mut b, 1, now, &sent[1..].to_vec(), &mut journal);
        if lost {
            transmit(&mut b, now);
        }
        receive(&mut b, 1, now + ROUND_TRIP / 2, &probe, &mut journal);
        let answers = transmit(&mut b, now + ROUND_TRIP / 2);
        assert_eq!(kinds(&answers).last(), Some(&(DatagramKind::Answer, false)));
        for answer in answers {
            receive(&mut a, 0, now + ROUND_TRIP, &vec![answer], &mut journal);
            assert!(a.counters(a_id).lost <= 1);
        }
        let ours = a.counters(a_id);
        assert_eq!((ours.acked, ours.lost, ours.spurious), (8 + 599, 1, 0), "{lost}");
    }
}

//= rud/spec.md section 5.5, RUD-107
#[test]
fn an_answer_repeats_refusals() {
    struct Refuse;
    impl Sink for Refuse {
        fn deliver(&mut self, _: SessionId, _: &[u8], _: &[u8]) -> Disposition {
            Disposition::Refused(RefusalReason::NotReady)
        }
        fn released(&mut self, _: SessionId, _: MessageToken) {}
        fn failed(&mut self, _: SessionId, _: Failure) {}
    }
    let ([(mut a, a_id), (mut b, _)], sent_at, mut journal) = measured(4);
    let sent = send(&mut a, a_id, sent_at, 1);
    receive(&mut b, 1, sent_at + ROUND_TRIP / 2, &sent, &mut Refuse);
    assert_eq!(transmit(&mut b, sent_at + ROUND_TRIP / 2).len(), 1, "and it is lost");
    let (now, probe) = wait(&mut a, &mut journal);
    receive(&mut b, 1, now + ROUND_TRIP / 2, &probe, &mut journal);
    let answer = transmit(&mut b, now + ROUND_TRIP / 2);
    receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
    assert_eq!((a.counters(a_id).refused_by_peer, a.counters(a_id).lost), (1, 0));
}

//= rud/spec.md section 6.3, RUD-43
#[test]
fn what_leaves_with_a_probe_may_be_overtaken_by_it_also_after_a_time_out() {
    for backed_off in [false, true] {
        let ([(mut a, a_id), (mut b, _)], mut now, mut journal) = measured(4);
        if backed_off {
            send(&mut a, a_id, now, 1);
            while a.counters(a_id).timeouts == 0 {
                wait(&mut a, &mut journal);
            }
            // What is sent again after the next arrives, alone, and measures nothing.
            let (at, mut again) = wait(&mut a, &mut journal);
            again.retain(|(_, bytes)| has_message(bytes));
            receive(&mut b, 1, at, &again, &mut journal);
            let answer = transmit(&mut b, at);
            receive(&mut a, 0, at + ROUND_TRIP, &answer, &mut journal);
            now = at + 20 * MS;
        }
        let mut first = send(&mut a, a_id, now, 1);
        let before = a.counters(a_id);
        let (data, probe): (Sent, Sent) = loop {
            now = a.next_deadline().unwrap().as_nanos();
            a.on_timeout(Instant::from_nanos(now), &mut journal);
            let sent = send(&mut a, a_id, now, 1);
            if a.counters(a_id).probes > before.probes {
                break sent.into_iter().partition(|(_, bytes)| has_message(bytes));
            }
            first.extend(sent);
        };
        receive(&mut b, 1, now, &first, &mut journal);
        receive(&mut b, 1, now + ROUND_TRIP / 2, &probe, &mut journal);
        let answer = transmit(&mut b, now + ROUND_TRIP / 2);
        receive(&mut b, 1, now + ROUND_TRIP / 2 + 2_000, &data, &mut journal);
        receive(&mut a, 0, now + ROUND_TRIP, &answer, &mut journal);
        assert_eq!(a.counters(a_id).lost, before.lost, "{backed_off}");
    }
}

//= rud/spec.md section 6.4, RUD-106
#[test]
fn a_tail_that_was_lost_is_sent_again_when_the_answer_to_a_probe_has_come() {
    for lost in [&[0][..], &[1], &[0, 1]] {
        let ([(mut a, a_id), (mut b, b_id)], sent_at, mut journal) = measured(4);
        let mut sent = send(&mut a, a_id, sent_at, 2);
        let before: Vec<u16> = sent.iter().map(|(at, _)| at.src_port).collect();
        let mut number = 0..;
        sent.retain(|_| number.next().is_some_and(|number| !lost.contains(&number)));
        let (mut now, probe) = wait(&mut a, &mut journal);
        receive(&mut b, 1, now, &sent, &mut journal);
        receive(&mut b, 1, now + ROUND_TRIP / 2, &probe, &mut journal);
        let answer = transmit(&mut b, now + ROUND_TRIP / 2);
        now += ROUND_TRIP;
        receive(&mut a, 0, now, &answer, &mut journal);
        let again = transmit(&mut a, now);
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
        let ([(mut a, a_id), (mut b, _)], sent_at, mut journal) = measured(4);
        let sent = send(&mut a, a_id, sent_at, 2);
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
