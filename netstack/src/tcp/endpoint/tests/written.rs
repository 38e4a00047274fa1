//! A writer's hints about its bytes, and a reader that looks before it takes.

use core::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::pair::{Pair, address};
use crate::sim::{Link, LinkConfig, tests::delayed};
use crate::tcp::{Error, Options, Repair, TcpEvent};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn to_peek_takes_nothing() {
    let mut pair = Pair::new();
    let (a, b, _) = pair.open(None);
    let mut buffer = vec![0; 30_000];
    assert_eq!(pair.b.peek(b, &mut buffer), Err(Error::WouldBlock));
    // More than one block of memory.
    let bytes: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    assert_eq!(pair.a.write(pair.now, a, &bytes), Ok(bytes.len()));
    pair.pass(SECOND);
    let window = pair.b.info(b).unwrap().own_window;
    for len in [1, 300, 20_000, 30_000] {
        let count = pair.b.peek(b, &mut buffer[..len]).unwrap();
        assert_eq!(&buffer[..count], &bytes[..len.min(bytes.len())]);
    }
    let info = pair.b.info(b).unwrap();
    assert_eq!((info.readable, info.own_window), (bytes.len(), window));
    assert_eq!(pair.b.read(pair.now, b, &mut buffer), Ok(bytes.len()));
    // The end is seen as often as one looks, and later data is reported.
    assert_eq!(pair.b.peek(b, &mut buffer), Err(Error::WouldBlock));
    pair.events_b.clear();
    pair.a.shutdown(pair.now, a).unwrap();
    pair.pass(SECOND);
    assert_eq!(pair.events_b, [TcpEvent::Readable(b)]);
    assert_eq!(pair.b.peek(b, &mut buffer), Ok(0));
    assert_eq!(pair.b.peek(b, &mut buffer), Ok(0));
}

#[test]
fn a_listeners_options_are_those_of_the_connections_that_come() {
    let mut pair = Pair::new();
    let (_, before, listener) = pair.open(None);
    pair.b.modify_listener(listener, |options| options.max_segment = Some(700));
    let (client, after) = pair.connect(listener, None);
    assert_eq!(pair.b.options(before).unwrap().max_segment, None);
    assert_eq!(pair.b.options(after).unwrap().max_segment, Some(700));
    // The peer keeps to it: the option of its SYN counts no options, the payload of a segment does.
    assert!(pair.a.info(client).unwrap().mss <= 700);
    // One that was closed has none.
    pair.b.close_listener(pair.now, listener);
    pair.b.modify_listener(listener, |_| panic!("there is no such listener"));
    assert!(pair.b.listen(address("0.0.0.0:80"), 1, None).is_ok());
}

#[test]
fn a_limit_of_what_is_unsent_lets_writers_go_on_when_it_was_sent() {
    let options = Options { unsent_limit: Some(10_000), initial_window: 2, ..Options::internet() };
    let mut pair = Pair::new();
    let (a, b, _) = pair.open(Some(options));
    let bytes = vec![5; 400_000];
    assert_eq!(pair.a.write(pair.now, a, &bytes), Ok(10_000));
    assert_eq!(pair.a.write(pair.now, a, &bytes), Err(Error::WouldBlock));
    pair.events_a.clear();
    pair.poll();
    // Nothing is acknowledged yet, but two segments left; a third of the limit is not free.
    let info = pair.a.info(a).unwrap();
    assert!(info.unsent < 10_000 && info.unacknowledged == 10_000, "{info:?}");
    assert!(pair.run(SECOND, |pair| pair.events_a.contains(&TcpEvent::Writable(a))));
    assert!(pair.a.info(a).unwrap().unsent <= 7_500);
    assert!(pair.transfer(a, b, &bytes, 100 * SECOND).len() >= bytes.len());
}

#[test]
fn whatever_a_writer_says_all_arrives() {
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut pair = Pair::new();
        let lossy = LinkConfig { loss: 0.03, ..delayed(1_000_000) };
        (pair.there, pair.back) = (Link::new(lossy, seed), Link::new(lossy, seed + 1000));
        let options = Options {
            cork: random.random_bool(0.3),
            nagle: random.random_bool(0.5),
            pacing: random.random_bool(0.2),
            sack: random.random_bool(0.8),
            send_buffer: random.random_range(500..50_000),
            unsent_limit: random.random_bool(0.5).then(|| random.random_range(1..20_000)),
            ..Options::internet()
        };
        let (a, b, _) = pair.open(Some(options.clone()));
        let bytes: Vec<u8> = (0..60_000).map(|_| random.random()).collect();
        let (mut written, mut got) = (0, Vec::new());
        let mut buffer = [0; 5000];
        let done = pair.run(600 * SECOND, |pair| {
            while written < bytes.len() {
                let len = random.random_range(1..4000).min(bytes.len() - written);
                let part = &bytes[written..written + len];
                let taken = match random.random_range(0..4) {
                    0 => pair.a.write_more(pair.now, a, part),
                    _ => pair.a.write(pair.now, a, part),
                };
                match taken {
                    Ok(count) => written += count,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                if random.random_bool(0.3) {
                    pair.a.end_record(pair.now, a).unwrap();
                }
                if random.random_bool(0.1) {
                    pair.a.push(pair.now, a).unwrap();
                }
            }
            while let Ok(count @ 1..) = pair.b.read(pair.now, b, &mut buffer) {
                got.extend_from_slice(&buffer[..count]);
            }
            let sending = pair.a.sending(pair.now, a).unwrap();
            assert!(sending.sacked + sending.lost <= sending.out, "seed {seed}: {sending:?}");
            assert!(
                sending.window_limited + sending.buffer_limited <= sending.busy,
                "seed {seed}: {sending:?}"
            );
            got.len() == bytes.len()
        });
        assert!(done && got == bytes, "seed {seed}, {options:?}: {} of {} bytes", got.len(), written);
        pair.pass(5 * SECOND);
        let sending = pair.a.sending(pair.now, a).unwrap();
        assert_eq!((sending.repair, sending.out), (Repair::None, 0), "seed {seed}");
        let busy = sending.busy;
        pair.pass(SECOND);
        assert_eq!(pair.a.sending(pair.now, a).unwrap().busy, busy, "seed {seed}");
    }
}
