//! Requirements of the specification that no other test breaks, and its test vectors.

use super::*;
use crate::wire::rud::{BLOCK_LEN, Block, DatagramKind, Header, Held, Psn, SPLIT_LEN, Split};

/// The datagrams of the specification's test vectors, in their order.
pub(super) fn vectors() -> Vec<Vec<u8>> {
    let fences = include_str!("../spec.md").split("```vector\n").skip(1);
    let digits = fences.map(|text| text.split("```").next().unwrap().replace('\n', ""));
    let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    digits.map(|hex| (0..hex.len()).step_by(2).map(|at| byte(&hex, at)).collect()).collect()
}

/// A datagram from end 0 to end 1 at its port 40,000, with a right CRC and right lengths.
pub(super) fn dressed(header: Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut fixed = [0; HEADER];
    Header { body_len: body.len() as u8, payload_len: payload.len() as u16, ..header }.emit(&mut fixed);
    let addresses = crc::addresses(link::IPS[0], link::IPS[1]);
    crc::seal(&mut fixed, body, addresses, (40_000, link::PORTS[1]), crate::crc::crc32c(payload));
    [&fixed[..], body, payload].concat()
}

/// The first datagram to end 1, of an end that has received nothing.
const FIRST: Header = Header {
    kind: DatagramKind::Data,
    ack_request: false,
    body_len: 0,
    payload_len: 0,
    tag: TAGS[1],
    psn: Psn(1),
    base_lag: 0,
    cumulative: Psn(1),
    sack_word: 0,
    sack: 0,
    marks: 0,
    network_marks: false,
    held: Held::new(0, false),
};

//= rud/spec.md section 3.2, RUD-4
//= rud/spec.md section 4.5, RUD-15
#[test]
fn it_makes_and_takes_the_datagram_of_the_specification() {
    let [(mut a, a_id), (mut b, _)] = [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(wide());
        let id = endpoint.open(Instant::ZERO, params(end, TAGS)).unwrap();
        (endpoint, id)
    });
    let expected = &vectors()[0];
    a.send(a_id, b"abc", extent_from(b"hello".to_vec()), MessageToken(1)).unwrap();
    let (to, bytes) = transmit(&mut a, 0).remove(0);
    assert_eq!((to.src_port, to.dst_port, &bytes), (40_000, 50_000, expected));
    let mut journal = Journal::default();
    b.on_datagram(Instant::ZERO, &meta(1, 40_000), expected, &mut journal);
    assert_eq!(journal.0, [format!("deliver {:?} 5", b"abc")]);
}

//= rud/spec.md section 3.3, RUD-5
#[test]
fn a_peer_sends_from_whatever_port_it_likes() {
    for port in [1, 33_333, 65_535] {
        let [_, (mut b, _)] = pair();
        let mut a = Endpoint::new(wide());
        let one_port = SessionParams { local_ports: [port].into(), ..params(0, TAGS) };
        let id = a.open(Instant::ZERO, one_port).unwrap();
        a.send(id, &[1], None, MessageToken(1)).unwrap();
        let mut journal = Journal::default();
        for (to, bytes) in transmit(&mut a, 0) {
            assert_eq!(to.src_port, port);
            b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &bytes, &mut journal);
        }
        assert_eq!(journal.0, ["deliver [1] 0"]);
    }
}

//= rud/spec.md section 5.5, RUD-27
//= rud/spec.md section 5.2, RUD-19
#[test]
fn a_request_a_duplicate_and_a_refusal_are_acknowledged_at_once() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    let mut send = |asks: bool| {
        a.send(a_id, &[1], None, MessageToken(1)).unwrap();
        if asks {
            a.request_ack(a_id);
        }
        transmit(&mut a, 0).remove(0)
    };
    let (to, plain) = send(false);
    let right = meta(1, to.src_port);
    b.on_datagram(Instant::ZERO, &right, &plain, &mut journal);
    assert_eq!(transmit(&mut b, 0).len(), 0, "it can wait");
    b.on_datagram(Instant::ZERO, &right, &plain, &mut journal);
    assert_eq!((transmit(&mut b, 0).len(), journal.0.len()), (1, 1), "a duplicate");
    let (to, asking) = send(true);
    b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &asking, &mut journal);
    assert_eq!(transmit(&mut b, 0).len(), 1, "it asks");
    let (to, refused) = send(false);
    b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &refused, &mut api::NoSink);
    assert_eq!(transmit(&mut b, 0).len(), 1, "a refusal");
}

//= rud/spec.md section 5.5, RUD-29
#[test]
fn as_many_acknowledgements_go_as_it_takes_to_report_all() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    a.set_bundles(a_id, false);
    (0..900).for_each(|number| a.send(a_id, &[], None, MessageToken(number)).unwrap());
    let sent: Vec<_> = (0..10).flat_map(|_| transmit(&mut a, 0)).collect();
    assert_eq!(sent.len(), 900);
    // Every other one is lost: 15 words have something to report, and a datagram has room for four.
    for (to, bytes) in sent.iter().step_by(2) {
        b.on_datagram(Instant::ZERO, &meta(1, to.src_port), bytes, &mut journal);
    }
    for (to, bytes) in transmit(&mut b, 0) {
        a.on_datagram(Instant::ZERO, &meta(0, to.src_port), &bytes, &mut journal);
    }
    assert_eq!(a.counters(a_id).acked, 450);
}

//= rud/spec.md section 6.1, RUD-34
#[test]
fn no_more_is_on_the_wire_than_the_window_and_window_bytes_allow() {
    let on_wire = |config: Config| {
        let mut endpoint = Endpoint::new(config);
        let id = endpoint.open(Instant::ZERO, params(0, TAGS)).unwrap();
        for number in 0..50 {
            endpoint.send(id, &[], extent_from(vec![1; 1_400]), MessageToken(number)).unwrap();
        }
        transmit(&mut endpoint, 0).iter().filter(|(_, bytes)| has_message(bytes)).count()
    };
    assert_eq!(on_wire(Config::default()), 10);
    assert_eq!(on_wire(Config { window_bytes: 10_000, ..wide() }), 8);
}

//= rud/spec.md section 6.2, RUD-41
#[test]
fn a_verdict_that_does_not_fit_its_bundle_is_ignored() {
    let [_, (mut b, b_id)] = pair();
    let mut journal = Journal::default();
    (0..3).for_each(|number| b.send(b_id, &[number], None, MessageToken(number.into())).unwrap());
    assert_eq!(transmit(&mut b, 0).len(), 1, "a bundle");
    let mut judge = |b: &mut Endpoint, received: u64, refused: u64| {
        let mut body = [0; BLOCK_LEN];
        Block { word: Block::BUNDLE | 1, received, refused }.emit(&mut body);
        let verdict = dressed(Header { kind: DatagramKind::Ack, ..FIRST }, &body, &[]);
        b.on_datagram(Instant::ZERO, &meta(1, 40_000), &verdict, &mut journal);
        (journal.0.len(), b.counters(b_id).refused_by_peer)
    };
    let wrong = [(0, 0), (0b111, 0), (0b011, 0), (0b001, 0b010), (0b011, 0b110), (0b1011, 0b100)];
    for (consumed, refused) in wrong {
        assert_eq!(judge(&mut b, consumed, refused), (0, 0), "{consumed:b} {refused:b}");
    }
    assert_eq!(judge(&mut b, 0b101, 0b010), (2, 1));
    assert_eq!(judge(&mut b, 0b101, 0b010), (2, 1), "settled");
}

//= rud/spec.md section 6.3, RUD-45
#[test]
fn an_acknowledgement_right_after_a_resend_says_nothing_of_what_was_sent_between() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    a.set_bundles(a_id, false);
    let at = Instant::from_nanos;
    let mut now = 0;
    // A round trip takes 100 us, and the variance is small.
    for number in 0..8 {
        now += MS;
        a.send(a_id, &[], None, MessageToken(number)).unwrap();
        a.request_ack(a_id);
        let (to, bytes) = transmit(&mut a, now).remove(0);
        b.on_datagram(at(now + 50_000), &meta(1, to.src_port), &bytes, &mut journal);
        let (to, bytes) = transmit(&mut b, now + 50_000).remove(0);
        a.on_datagram(at(now + 100_000), &meta(0, to.src_port), &bytes, &mut journal);
    }
    now += MS;
    (8..11).for_each(|number| a.send(a_id, &[], None, MessageToken(number)).unwrap());
    let three = transmit(&mut a, now);
    assert_eq!(three.len(), 3);
    // The third arrives first, and the second so late that it is sent again, as the first is, before its acknowledgement comes.
    let mut acknowledgements = vec![];
    for (sent, arrival) in [(&three[2], 50_000), (&three[1], 75_000)] {
        b.on_datagram(at(now + arrival), &meta(1, sent.0.src_port), &sent.1, &mut journal);
        b.on_timeout(at(now + arrival + 20_000), &mut journal);
        acknowledgements.push(transmit(&mut b, now + arrival + 20_000).remove(0));
    }
    let [first, second] = [0, 1].map(|index| &acknowledgements[index]);
    a.on_datagram(at(now + 120_000), &meta(0, first.0.src_port), &first.1, &mut journal);
    a.on_timeout(at(now + 146_000), &mut journal);
    assert_eq!((transmit(&mut a, now + 146_000).len(), a.counters(a_id).lost), (2, 2));
    a.on_datagram(at(now + 150_000), &meta(0, second.0.src_port), &second.1, &mut journal);
    // It is not known that what was sent again in between is lost once more.
    a.on_timeout(at(now + 200_000), &mut journal);
    let counters = a.counters(a_id);
    assert_eq!((counters.acked, counters.spurious, counters.lost), (10, 1, 2));
}

//= rud/spec.md section 6.5, RUD-47, RUD-49
#[test]
fn what_the_answer_to_a_probe_does_not_acknowledge_is_sent_again_at_once() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    a.send(a_id, &[], None, MessageToken(1)).unwrap();
    // All data is lost: when it is first sent, in a tail-loss probe's place, and after the time-out.
    let mut probes = vec![];
    for now in [0, 2 * MS, 9 * MS] {
        a.on_timeout(Instant::from_nanos(now), &mut journal);
        let (data, others): (Vec<_>, Vec<_>) =
            transmit(&mut a, now).into_iter().partition(|(_, bytes)| has_message(bytes));
        assert_eq!(data.len(), 1);
        probes = others;
    }
    assert_eq!((a.counters(a_id).timeouts, probes.len()), (1, 4), "each path is probed");
    for (to, bytes) in probes {
        b.on_datagram(Instant::from_nanos(9_050_000), &meta(1, to.src_port), &bytes, &mut journal);
    }
    let now = Instant::from_nanos(9_100_000);
    for (to, bytes) in transmit(&mut b, 9_050_000) {
        a.on_datagram(now, &meta(0, to.src_port), &bytes, &mut journal);
    }
    assert!(transmit(&mut a, now.as_nanos()).iter().any(|(_, bytes)| has_message(bytes)));
    assert_eq!(a.counters(a_id).timeouts, 1);
}

//= rud/spec.md section 6.8, RUD-68
#[test]
fn a_piece_of_a_message_that_is_too_long_is_dropped() {
    let [_, (mut b, b_id)] = pair();
    let longest = params(1, TAGS).max_datagram - HEADER;
    for (total, dropped) in [(longest, 0), (longest + 1, 1)] {
        let mut body = [0; SPLIT_LEN];
        Split { unit: 0, total: total as u16 }.emit(&mut body);
        let piece = dressed(Header { kind: DatagramKind::Piece, ..FIRST }, &body, &[1; 64]);
        b.on_datagram(Instant::ZERO, &meta(1, 40_000), &piece, &mut Journal::default());
        assert_eq!(b.counters(b_id).pieces_dropped, dropped, "{total} bytes");
    }
}

//= rud/spec.md section 7.2, RUD-76
#[test]
fn only_an_undamaged_datagram_counts_as_marked() {
    let [_, (mut b, b_id)] = pair();
    let marked = DatagramMeta { congestion_experienced: true, ..meta(1, 40_000) };
    let mut datagram = dressed(FIRST, &[1], &[2; 10]);
    for (flip, marks) in [(1, 0), (1, 1)] {
        datagram[HEADER + 5] ^= flip;
        b.on_datagram(Instant::ZERO, &marked, &datagram, &mut Journal::default());
        assert_eq!(b.counters(b_id).marks_received, marks);
    }
}

//= rud/spec.md section 7.2, RUD-108
#[test]
fn who_hears_of_marks_tells_all_peers() {
    for sealed in [false, true] {
        let [(mut a, a_id), (mut b, b_id)] = if sealed { sealed::sealed_pair() } else { pair() };
        let other = a.open(Instant::ZERO, params(0, [5 << 32, 6 << 32])).unwrap();
        let [(mut shard, of_shard), (mut stranger, of_stranger)] = [7, 9].map(|tag| {
            let mut end = Endpoint::new(Config::default());
            let id = end.open(Instant::ZERO, params(0, [tag << 32, (tag + 1) << 32])).unwrap();
            (end, id)
        });
        shard.share_network_with(&a);
        let mut journal = Journal::default();
        // What an end sends, and whether all of it says that the network marks. It is in clear, of a sealed datagram too.
        let send = |end: &mut Endpoint, id| {
            end.send(id, b"m", None, MessageToken(1)).unwrap();
            end.request_ack(id);
            let sent = transmit(end, 0);
            let told = sent.iter().filter(|(_, bytes)| bytes[34] & 0x80 != 0).count();
            assert!(told == 0 || told == sent.len(), "{told} of {}", sent.len());
            let data = sent.into_iter().rfind(|(_, bytes)| bytes[4] & 7 == DatagramKind::Data as u8);
            (data.unwrap(), told != 0)
        };
        let ((to, bytes), told) = send(&mut a, a_id);
        assert!(!told);
        let marked = DatagramMeta { congestion_experienced: true, ..meta(1, to.src_port) };
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            b.on_datagram(Instant::ZERO, &marked, &damaged, &mut journal);
        }
        b.on_datagram(Instant::ZERO, &DatagramMeta { src_ip: marked.dst_ip, ..marked }, &bytes, &mut journal);
        assert!(!send(&mut b, b_id).1, "by what it has dropped");
        b.on_datagram(Instant::ZERO, &marked, &bytes, &mut journal);
        // Its acknowledgement is the first that says so.
        let sent = transmit(&mut b, 0);
        assert!(!sent.is_empty() && sent.iter().all(|(_, bytes)| bytes[34] & 0x80 != 0));
        let ((to, bytes), told) = send(&mut b, b_id);
        assert!(told);
        assert!(!send(&mut a, other).1 && !send(&mut shard, of_shard).1);
        a.on_datagram(Instant::ZERO, &meta(0, to.src_port), &bytes, &mut journal);
        assert!(send(&mut a, a_id).1 && send(&mut a, other).1, "what it was told, it tells in all sessions");
        assert!(send(&mut shard, of_shard).1, "and so does another end that shares it");
        assert!(!send(&mut stranger, of_stranger).1);
    }
}
