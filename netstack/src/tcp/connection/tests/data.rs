//! Bytes in both directions: order, windows, acknowledgements.

use super::*;
use crate::cc::Algorithm;
use crate::wire::tcp::SeqRange;

/// Skips the quick acknowledgements of the beginning: data up to `16 * 1448` is received and read.
fn settle(rig: &mut Rig) -> u32 {
    for index in 0..16 {
        assert!(matches!(rig.data(index * 1448, 0, &[7; 1448]), Disposition::Keep));
        rig.read().expect("there is data");
        assert_eq!(rig.sent_one().header.ack, IRS + 1 + (index + 1) * 1448);
    }
    rig.events();
    16 * 1448
}

fn blocks(sent: &Sent) -> Vec<(u32, u32)> {
    let first = IRS + 1;
    let range = |range: &SeqRange| (range.start.0.wrapping_sub(first.0), range.end.0.wrapping_sub(first.0));
    sent.header.options.sack.as_slice().iter().map(range).collect()
}

#[test]
fn bytes_both_ways() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(0, 0, b"question"), Disposition::Keep));
    assert_eq!(rig.events(), [TcpEvent::Readable(ID)]);
    assert_eq!(rig.read().as_deref(), Ok(&b"question"[..]));
    assert_eq!(rig.read(), Err(Error::WouldBlock));
    assert_eq!(rig.write(b"answer"), Ok(6));
    let sent = rig.sent_one();
    assert_eq!(sent.payload, b"answer");
    assert_eq!((sent.header.seq, sent.header.ack), (ISS + 1, IRS + 9));
    assert!(matches!(rig.data(8, 6, &[]), Disposition::Keep));
    rig.sent_nothing();
    assert_eq!(rig.connection.info().unacknowledged, 0);
    assert_eq!(rig.connection.info().bytes_received, 8);
    assert_eq!(rig.pool.used(), 0);
}

#[test]
fn a_long_write_leaves_in_segments() {
    let mut rig = Rig::established(Options::internet());
    let bytes: Vec<u8> = (0..10_000_u32).map(|index| index as u8).collect();
    assert_eq!(rig.write(&bytes), Ok(10_000));
    let sent = rig.sent();
    assert_eq!(sent.iter().flat_map(|sent| sent.payload.clone()).collect::<Vec<_>>(), bytes);
    assert!(sent.iter().all(|sent| sent.payload.len() <= 1448 && sent.header.options.timestamps.is_some()));
}

#[test]
fn events_come_once_per_look() {
    let mut rig = Rig::established(Options::internet());
    for index in 0..3 {
        assert!(matches!(rig.data(index, 0, b"x"), Disposition::Keep));
    }
    assert_eq!(rig.events(), [TcpEvent::Readable(ID)]);
    assert_eq!(rig.read().as_deref(), Ok(&b"xxx"[..]));
    assert!(matches!(rig.data(3, 0, b"y"), Disposition::Keep));
    assert_eq!(rig.events(), [TcpEvent::Readable(ID)]);
}

#[test]
fn acknowledgements_wait_for_a_second_full_segment() {
    let mut rig = Rig::established(Options::internet());
    let at = settle(&mut rig);
    assert!(matches!(rig.data(at, 0, &[1; 1448]), Disposition::Keep));
    rig.sent_nothing();
    assert!(matches!(rig.data(at + 1448, 0, &[1; 1448]), Disposition::Keep));
    assert_eq!(rig.sent_one().header.ack, IRS + 1 + at + 2 * 1448);
    // One alone is acknowledged when the delay is over.
    assert!(matches!(rig.data(at + 2 * 1448, 0, &[1; 1448]), Disposition::Keep));
    rig.sent_nothing();
    let (time, _) = rig.wait();
    assert!(time <= Duration::from_millis(40) && time >= Duration::from_millis(5), "{time:?}");
    assert_eq!(rig.sent_one().header.ack, IRS + 1 + at + 3 * 1448);
}

#[test]
fn a_burst_in_order_costs_one_acknowledgement() {
    let mut rig = Rig::established(Options::internet());
    let at = settle(&mut rig);
    for index in 0..20 {
        assert!(matches!(rig.data(at + index * 1448, 0, &[1; 1448]), Disposition::Keep));
    }
    assert_eq!(rig.sent_one().header.ack, IRS + 1 + at + 20 * 1448);
}

#[test]
fn holes_are_reported_and_filled() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(10, 0, b"bbbbb"), Disposition::Keep));
    let sent = rig.sent_one();
    assert_eq!(sent.header.ack, IRS + 1);
    assert_eq!(blocks(&sent), [(10, 15)]);
    assert!(matches!(rig.data(30, 0, b"dd"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(30, 32), (10, 15)]);
    assert!(matches!(rig.data(20, 0, b"cc"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(20, 22), (30, 32), (10, 15)]);
    // The latest of four pushes the oldest out: three blocks have room beside timestamps.
    assert!(matches!(rig.data(40, 0, b"ee"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(40, 42), (20, 22), (30, 32)]);
    assert!(matches!(rig.data(15, 0, b"BBBBB"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(10, 22), (40, 42), (30, 32)]);
    assert_eq!(rig.read(), Err(Error::WouldBlock));
    assert!(matches!(rig.data(0, 0, b"aaaaaaaaaa"), Disposition::Keep));
    let sent = rig.sent_one();
    assert_eq!(sent.header.ack, IRS + 1 + 22);
    assert_eq!(blocks(&sent), [(40, 42), (30, 32)]);
    assert_eq!(rig.read().as_deref(), Ok(&b"aaaaaaaaaabbbbbBBBBBcc"[..]));
}

#[test]
fn what_came_first_stays() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(4, 0, b"FIRST"), Disposition::Keep));
    assert!(matches!(rig.data(2, 0, b"liars lie."), Disposition::Keep));
    assert!(matches!(rig.data(0, 0, b"0123456789ab"), Disposition::Keep));
    assert_eq!(rig.read().as_deref(), Ok(&b"01liFIRSTie."[..]));
}

#[test]
fn duplicates_are_reported_once() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(0, 0, b"abcdef"), Disposition::Keep));
    rig.sent_one();
    assert!(matches!(rig.data(0, 0, b"abcdef"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(0, 6)]);
    // Half old, half new.
    assert!(matches!(rig.data(3, 0, b"defghi"), Disposition::Keep));
    let sent = rig.sent_one();
    assert_eq!((sent.header.ack, blocks(&sent)), (IRS + 10, vec![(3, 6)]));
    // RFC 2883 section 4.2.2: a duplicate within a block has that block behind it.
    assert!(matches!(rig.data(20, 0, b"xxxxx"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(20, 25)]);
    assert!(matches!(rig.data(21, 0, b"xx"), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(21, 23), (20, 25)]);
}

#[test]
fn without_sack_every_duplicate_is_sent() {
    let peer = tcp::Options { sack_permitted: false, ..offers() };
    let mut rig = Rig::established_with(Options::internet(), peer, Flags::SYN.with(Flags::ACK));
    for index in 1..4 {
        assert!(matches!(rig.data(index * 10, 0, &[0; 10]), Disposition::Keep));
    }
    let sent = rig.sent();
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|sent| sent.header.ack == IRS + 1 && sent.header.options.sack.is_empty()));
}

#[test]
fn the_window_closes_and_opens_by_much() {
    let options = Options { receive_buffer: 8000, window_scaling: false, ..Options::internet() };
    let mut rig = Rig::established(options);
    for index in 0..8 {
        assert!(matches!(rig.data(index * 1000, 0, &[3; 1000]), Disposition::Keep));
        let header = rig.sent_one().header;
        assert_eq!(u32::from(header.window), 8000 - (index + 1) * 1000);
    }
    // A probe of one byte finds no room, and is answered.
    assert!(matches!(rig.data(8000, 0, b"p"), Disposition::Keep));
    let header = rig.sent_one().header;
    assert_eq!((header.ack, header.window), (IRS + 1 + 8000, 0));
    // A few bytes read: not worth telling (RFC 9293 section 3.8.6.2.2).
    let mut few = [0; 100];
    assert_eq!(rig.with(|c, now, cx| c.read(now, &mut few, cx)), Ok(100));
    rig.sent_nothing();
    let mut many = [0; 2000];
    assert_eq!(rig.with(|c, now, cx| c.read(now, &mut many, cx)), Ok(2000));
    let header = rig.sent_one().header;
    assert_eq!((header.ack, header.window), (IRS + 1 + 8000, 2100));
}

#[test]
fn the_right_edge_never_moves_left() {
    // A shift of 7, and segments whose lengths are no multiples of it.
    let mut rig = Rig::established(Options::internet());
    let mut edge = IRS + 1 + 65535;
    let mut at = 0;
    for len in [1_usize, 77, 128, 129, 500, 1000, 1447, 3, 1448, 90].into_iter().cycle().take(400) {
        let len = len.min((edge.distance(IRS + 1) - at) as usize);
        if len == 0 {
            break;
        }
        assert!(matches!(rig.data(at, 0, &vec![0; len]), Disposition::Keep));
        at += len as u32;
        assert_eq!(rig.connection.receiver.next(), IRS + 1 + at, "what was promised is taken");
        rig.connection.receiver.acknowledge_now();
        let header = rig.sent_one().header;
        let announced = header.ack + (u32::from(header.window) << 7);
        // RFC 7323 section 2.4: by less than a unit, near the end of the buffer.
        assert!(!(announced + 127).is_before(edge), "{edge:?} became {announced:?}");
        edge = edge.max(announced);
    }
    assert!((65535..65536 + 256).contains(&edge.distance(IRS + 1)));
    assert_eq!(at, edge.distance(IRS + 1), "the window is full in the end");
    // Nor while the reader keeps up.
    let mut rig = Rig::established(Options::internet());
    let (mut edge, mut at) = (IRS + 1, 0);
    for len in [1_usize, 77, 128, 129, 500, 1000, 1447, 3, 1448, 90].into_iter().cycle().take(400) {
        assert!(matches!(rig.data(at, 0, &vec![0; len]), Disposition::Keep));
        at += len as u32;
        assert_eq!(rig.read().map(|bytes| bytes.len()), Ok(len));
        rig.connection.receiver.acknowledge_now();
        let header = rig.sent_one().header;
        let announced = header.ack + (u32::from(header.window) << 7);
        assert!(!announced.is_before(edge), "{edge:?} became {announced:?}");
        edge = announced;
    }
}

#[test]
fn data_beyond_the_window_is_cut_off() {
    let options = Options { receive_buffer: 1000, window_scaling: false, ..Options::internet() };
    let mut rig = Rig::established(options);
    assert!(matches!(rig.data(500, 0, &[2; 1000]), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(500, 1000)]);
    assert!(matches!(rig.data(1000, 0, &[2; 10]), Disposition::Keep));
    assert_eq!(blocks(&rig.sent_one()), [(500, 1000)]);
    let header = rig.header(0, 0, Flags::ACK.with(Flags::FIN));
    assert!(matches!(rig.give(header, &[1; 1400]), Disposition::Keep));
    let header = rig.sent_one().header;
    assert_eq!((header.ack, header.window), (IRS + 1001, 0));
    assert_eq!(rig.state(), StateName::Established, "the FIN lies beyond the window");
}

#[test]
fn a_fin_out_of_order_waits() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.fin(5, 0), Disposition::Keep));
    assert_eq!(rig.state(), StateName::Established);
    assert_eq!(rig.sent_one().header.ack, IRS + 1);
    assert!(matches!(rig.data(0, 0, b"12345"), Disposition::Keep));
    assert_eq!(rig.state(), StateName::CloseWait);
    assert_eq!(rig.sent_one().header.ack, IRS + 7);
}

#[test]
fn the_buffer_grows_as_the_reader_keeps_up() {
    let mut rig = Rig::established(Options::internet());
    let before = rig.connection.receiver.capacity();
    let mut at = 0;
    let mut grown = false;
    for _ in 0..40 {
        let window = rig.connection.receiver.window();
        let end = at + window;
        while at < end {
            let len = (end - at).min(1448);
            assert!(matches!(rig.data(at, 0, &vec![0; len as usize]), Disposition::Keep));
            at += len;
            rig.read().expect("data");
        }
        rig.pass(Duration::from_millis(10));
        rig.sent();
        grown |= rig.connection.receiver.capacity() > before;
    }
    assert!(grown);
    assert_eq!(rig.connection.receiver.capacity(), 4 << 20);
    // A reader that does not read keeps the buffer as it was.
    let mut rig = Rig::established(Options::internet());
    for index in 0..40 {
        assert!(matches!(rig.data(index * 1448, 0, &[0; 1448]), Disposition::Keep));
        rig.pass(Duration::from_millis(1));
        rig.sent();
    }
    assert_eq!(rig.connection.receiver.capacity(), before);
}

#[test]
fn chunks_are_handed_out() {
    let mut rig = Rig::established(Options::internet());
    for index in 0..4 {
        assert!(matches!(rig.data(index * 1000, 0, &[index as u8; 1000]), Disposition::Keep));
    }
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = rig.with(|connection, now, cx| connection.read_chunk(now, cx)) {
        bytes.extend_from_slice(&chunk);
    }
    let wanted: Vec<u8> = (0..4_u8).flat_map(|index| vec![index; 1000]).collect();
    assert_eq!(bytes, wanted);
    assert_eq!(rig.pool.used(), 0);
    assert!(matches!(rig.fin(4000, 0), Disposition::Keep));
    assert!(matches!(rig.with(|connection, now, cx| connection.read_chunk(now, cx)), Ok(None)));
}

#[test]
fn marks_are_echoed_until_the_peer_has_reduced() {
    let options = Options { ecn: true, ..Options::internet() };
    let granted = Flags::SYN.with(Flags::ACK).with(Flags::ECE);
    let mut rig = Rig::established_with(options, offers(), granted);
    assert_eq!(rig.write(b"marked as able"), Ok(14));
    assert!(rig.sent_one().ect, "data may be marked (RFC 3168 section 6.1.2)");
    let give = |rig: &mut Rig, seq, flags, marked| {
        let header = rig.header(seq, 0, Flags::ACK.with(flags));
        let segment = Segment { congestion_experienced: marked, ..segment(header, b"data") };
        assert!(matches!(rig.give_segment(&segment), Disposition::Keep));
        let sent = rig.sent_one();
        assert!(!sent.ect, "acknowledgements are not");
        sent.header.flags.contains(Flags::ECE)
    };
    assert!(!give(&mut rig, 0, Flags(0), false));
    assert!(give(&mut rig, 4, Flags(0), true));
    assert!(give(&mut rig, 8, Flags(0), false));
    assert!(!give(&mut rig, 12, Flags::CWR, false));
    assert!(give(&mut rig, 16, Flags::CWR, true), "a mark on the segment that says CWR counts");
}

#[test]
fn dctcp_acknowledges_marked_and_unmarked_apart() {
    let options = Options { ecn: true, congestion: Algorithm::Dctcp, ..Options::internet() };
    let granted = Flags::SYN.with(Flags::ACK).with(Flags::ECE);
    let mut rig = Rig::established_with(options, offers(), granted);
    let give = |rig: &mut Rig, seq, marked| {
        let header = rig.header(seq, 0, Flags::ACK);
        let segment = Segment { congestion_experienced: marked, ..segment(header, &[0; 100]) };
        assert!(matches!(rig.give_segment(&segment), Disposition::Keep));
    };
    for (index, marked) in [false, false, true, true, true, false].into_iter().enumerate() {
        give(&mut rig, index as u32 * 100, marked);
    }
    let announced: Vec<_> = rig
        .sent()
        .iter()
        .map(|sent| (sent.header.ack.distance(IRS + 1), sent.header.flags.contains(Flags::ECE)))
        .collect();
    assert_eq!(announced, [(200, false), (500, true), (600, false)]);
}

#[test]
fn memory_is_bounded_for_all_connections_together() {
    let mut rig = Rig::established(Options::internet());
    rig.pool = Pool::new(16 << 10);
    let mut at = 0;
    for _ in 0..40 {
        assert!(matches!(rig.data(at, 0, &[1; 1448]), Disposition::Keep));
        at = rig.sent().last().map_or(at, |sent| sent.header.ack.distance(IRS + 1));
        assert!(rig.pool.used() <= 16 << 10, "{} bytes", rig.pool.used());
    }
    let wanted = at as usize;
    assert!(wanted > 4096);
    // Holes far away do not keep the next data in order from being taken.
    assert!(matches!(rig.data(at + 20_000, 0, &[1; 1448]), Disposition::Keep));
    let mut read = 0;
    while let Ok(bytes) = rig.read() {
        assert!(bytes.iter().all(|byte| *byte == 1));
        read += bytes.len();
    }
    assert_eq!(read, wanted);
    assert!(matches!(rig.data(at, 0, &[1; 1448]), Disposition::Keep));
    assert_eq!(rig.read().map(|bytes| bytes.len()), Ok(1448));
}

#[test]
fn an_idle_connection_is_small() {
    let size = core::mem::size_of::<Connection>();
    // Measured with what it points to by the endpoint's test of 100,000 connections.
    let (sender, receiver) = (
        core::mem::size_of::<crate::tcp::sender::Sender>(),
        core::mem::size_of::<crate::tcp::receiver::Receiver>(),
    );
    assert!(size <= 840, "{size} bytes, of which sender {sender}, receiver {receiver}");
}
