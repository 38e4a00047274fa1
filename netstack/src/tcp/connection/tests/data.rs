//! Reception by a connection: windows, memory, chunks.

use super::*;

#[test]
fn the_right_edge_never_moves_left() {
    // A shift of 7, and segments whose lengths are no multiples of it.
    let mut rig = Rig::established(true);
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
        let header = rig.sent_one().parsed();
        let announced = header.ack + (u32::from(header.window) << 7);
        // RFC 7323 section 2.4: by less than a unit, near the end of the buffer.
        assert!(!(announced + 127).is_before(edge), "{edge:?} became {announced:?}");
        edge = edge.max(announced);
    }
    assert!((65535..65536 + 256).contains(&edge.distance(IRS + 1)));
    assert_eq!(at, edge.distance(IRS + 1), "the window is full in the end");
    // Nor while the reader keeps up.
    let mut rig = Rig::established(true);
    let (mut edge, mut at) = (IRS + 1, 0);
    for len in [1_usize, 77, 128, 129, 500, 1000, 1447, 3, 1448, 90].into_iter().cycle().take(400) {
        assert!(matches!(rig.data(at, 0, &vec![0; len]), Disposition::Keep));
        at += len as u32;
        assert_eq!(rig.read().map(|bytes| bytes.len()), Ok(len));
        rig.connection.receiver.acknowledge_now();
        let header = rig.sent_one().parsed();
        let announced = header.ack + (u32::from(header.window) << 7);
        assert!(!announced.is_before(edge), "{edge:?} became {announced:?}");
        edge = announced;
    }
}

#[test]
fn the_buffer_grows_as_the_reader_keeps_up() {
    let mut rig = Rig::established(true);
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
    let mut rig = Rig::established(true);
    for index in 0..40 {
        assert!(matches!(rig.data(index * 1448, 0, &[0; 1448]), Disposition::Keep));
        rig.pass(Duration::from_millis(1));
        rig.sent();
    }
    assert_eq!(rig.connection.receiver.capacity(), before);
}

#[test]
fn chunks_are_handed_out() {
    let mut rig = Rig::established(true);
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
fn memory_is_bounded_for_all_connections_together() {
    let mut rig = Rig::established(true);
    rig.pool = Pool::new(16 << 10);
    let mut at = 0;
    for _ in 0..40 {
        assert!(matches!(rig.data(at, 0, &[1; 1448]), Disposition::Keep));
        at = rig.sent().last().map_or(at, |sent| sent.parsed().ack.distance(IRS + 1));
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
    // Its heap memory is measured by the endpoint's test of 100,000 connections.
    let (sender, receiver) = (
        core::mem::size_of::<crate::tcp::sender::Sender>(),
        core::mem::size_of::<crate::tcp::receiver::Receiver>(),
    );
    assert!(size <= 840, "{size} bytes, of which sender {sender}, receiver {receiver}");
}
