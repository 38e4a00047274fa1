use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream as Plain};

use shouter_netstack::region::Region;

use super::*;
use crate::runtime::Clock;

const DEAD_AFTER: Duration = Duration::from_secs(5);

/// A provider with one accepted connection, and its other end.
fn accepted() -> (KernelStreams, SocketId, Plain) {
    let mut streams = KernelStreams::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), DEAD_AFTER).unwrap();
    let other = Plain::connect(streams.local_addr()).unwrap();
    until(&mut streams, |event, _| event == StreamEvent::Acceptable);
    let id = streams.accept(Clock.now()).unwrap();
    (streams, id, other)
}

/// Polls until `condition` holds of an event, or of its absence.
fn until(
    streams: &mut KernelStreams,
    mut condition: impl FnMut(StreamEvent<SocketId>, &mut KernelStreams) -> bool,
) {
    let end = Clock.now() + Duration::from_secs(20);
    loop {
        let now = Clock.now();
        assert!(now < end, "it has not come");
        streams.receive(now);
        while let Some(event) = streams.next_event() {
            if condition(event, streams) {
                return;
            }
        }
        streams.transmit(now);
        std::thread::yield_now();
    }
}

fn extent(len: u32) -> Extent {
    let bytes: &'static [u8] = Vec::leak(vec![7; len as usize]);
    Region::from_static(bytes).extent(0, len).unwrap()
}

#[test]
fn bytes_and_extents_arrive_in_order_and_extents_are_free_once_copied() {
    let (mut streams, id, mut other) = accepted();
    let now = Clock.now();
    assert_eq!(streams.write(now, id, b"head").unwrap(), 4);
    streams.write_extent(now, id, extent(5000), ReleaseToken(1)).unwrap();
    assert_eq!(streams.write(now, id, b"tail").unwrap(), 4);
    streams.write_extent(now, id, extent(10), ReleaseToken(2)).unwrap();
    assert!(streams.next_event().is_none(), "nothing is free before the kernel has it");
    assert_eq!(streams.info(id).unwrap().unsent, 5018);
    assert!(streams.transmit(now));
    let released: Vec<_> = std::iter::from_fn(|| streams.next_event()).collect();
    assert_eq!(
        released,
        [StreamEvent::Released(id, ReleaseToken(1)), StreamEvent::Released(id, ReleaseToken(2))]
    );
    let mut got = vec![0; 5018];
    other.read_exact(&mut got).unwrap();
    assert_eq!((&got[..4], &got[5004..5008]), (&b"head"[..], &b"tail"[..]));
    assert!(got[4..5004].iter().chain(&got[5008..]).all(|&byte| byte == 7));
    // The kernel is polled for acknowledgements, until everything is acknowledged.
    let end = now + Duration::from_secs(20);
    while streams.next_deadline().is_some() {
        assert!(Clock.now() < end, "not acknowledged");
        streams.transmit(Clock.now());
    }
    let info = streams.info(id).unwrap();
    assert_eq!((info.unacknowledged, info.acknowledged), (0, 5018));
}

#[test]
fn who_does_not_read_stops_the_writer_and_loses_nothing() {
    let (mut streams, id, mut other) = accepted();
    let now = Clock.now();
    let mut written = 0u64;
    while streams.info(id).unwrap().writable > 0 {
        streams.write_extent(now, id, extent(32_000), ReleaseToken(written)).unwrap();
        written += 32_000;
        streams.transmit(now);
    }
    assert!(written < 1 << 30, "the kernel takes any amount");
    while streams.write(now, id, &[7; 4000]).is_ok_and(|count| {
        written += count as u64;
        true
    }) {}
    assert_eq!(streams.write(now, id, b"more"), Err(Error::WouldBlock));
    let reader = std::thread::spawn(move || {
        let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
        while read < written {
            let count = other.read(&mut buffer).unwrap();
            assert!(count > 0 && buffer[..count].iter().all(|&byte| byte == 7));
            read += count as u64;
        }
        other
    });
    let end = now + Duration::from_secs(20);
    while streams.info(id).unwrap().acknowledged < written {
        let now = Clock.now();
        assert!(now < end, "{:?} of {written}", streams.info(id));
        streams.receive(now);
        streams.transmit(now);
        while streams.next_event().is_some() {}
    }
    drop(reader.join().unwrap());
    assert!(streams.info(id).unwrap().writable > 0);
}

#[test]
fn who_has_no_room_for_long_is_not_gone() {
    let dead_after = Duration::from_secs(1);
    let mut streams = KernelStreams::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), dead_after).unwrap();
    let mut other = Plain::connect(streams.local_addr()).unwrap();
    until(&mut streams, |event, _| event == StreamEvent::Acceptable);
    let id = streams.accept(Clock.now()).unwrap();
    let mut written = 0;
    while let Ok(count) = streams.write(Clock.now(), id, &[7; 32_000]) {
        written += count;
        streams.transmit(Clock.now());
    }
    // The kernel probes for room after 0.2, 0.4, 0.8 and 1.6 seconds: for longer than `dead_after` nothing comes.
    let end = Clock.now() + Duration::from_secs(4);
    let step = |streams: &mut KernelStreams| {
        streams.receive(Clock.now());
        streams.transmit(Clock.now());
        while let Some(event) = streams.next_event() {
            assert!(!matches!(event, StreamEvent::Failed(..)), "{event:?}");
        }
    };
    while Clock.now() < end {
        step(&mut streams);
        std::thread::sleep(Duration::from_millis(1));
    }
    // And all of it arrives.
    let reader = std::thread::spawn(move || {
        let mut left = vec![0; written];
        other.read_exact(&mut left).map(|()| other)
    });
    while !reader.is_finished() {
        step(&mut streams);
        std::thread::yield_now();
    }
    reader.join().unwrap().unwrap();
}

#[test]
fn a_long_read_goes_on_in_the_next_poll() {
    let (mut streams, id, mut other) = accepted();
    let writer = std::thread::spawn(move || {
        other.write_all(&vec![3; 8 << 20]).unwrap();
        other
    });
    let (mut total, mut most) = (0, 0);
    until(&mut streams, |event, streams| {
        let mut bytes = 0;
        if event == StreamEvent::Readable(id) {
            while let Ok(Some(chunk)) = streams.read_chunk(Clock.now(), id) {
                bytes += chunk.len();
            }
        }
        most = most.max(bytes);
        total += bytes;
        total == 8 << 20
    });
    assert!(most <= BUDGET + BUFFER, "{most} bytes in one poll");
    drop(writer.join().unwrap());
    // The end is reported even where nothing more is to be read.
    until(&mut streams, |event, streams| {
        event == StreamEvent::Readable(id) && matches!(streams.read_chunk(Clock.now(), id), Ok(None))
    });
}

#[test]
fn an_aborted_connection_is_reset_and_its_id_finds_nothing() {
    let (mut streams, id, mut other) = accepted();
    let now = Clock.now();
    streams.write_extent(now, id, extent(32_000), ReleaseToken(1)).unwrap();
    streams.abort(now, id);
    let reset = other.read(&mut [0; 10]).unwrap_err();
    assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    assert!(!streams.transmit(now), "nothing of it is left");
    assert_eq!(streams.write(now, id, b"x"), Err(Error::Unknown));
    assert!(streams.info(id).is_none() && streams.next_event().is_none());
    // The slot is used again, and the old name still finds nothing.
    let _other = Plain::connect(streams.local_addr()).unwrap();
    until(&mut streams, |event, _| event == StreamEvent::Acceptable);
    let next = streams.accept(Clock.now()).unwrap();
    assert_eq!((next.index, streams.info(id)), (id.index, None));
}

#[test]
fn nobody_there_is_a_refusal() {
    let mut streams = KernelStreams::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), DEAD_AFTER).unwrap();
    let gone = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let id = streams.connect(Clock.now(), gone.ip(), gone).unwrap();
    until(&mut streams, |event, _| event == StreamEvent::Failed(id, Failure::Refused { remote: gone }));
    assert!(matches!(streams.read(Clock.now(), id, &mut [0; 8]), Err(Error::Failed(_))));
}
