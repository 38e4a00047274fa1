//! Messages between two ranks of a host that begin and end in one call, over their rings.

use super::glance::{LARGE, Waiter, resting};
use super::*;

const WITHIN: Duration = Duration::from_secs(3 * DEAD_AFTER.as_secs());

/// Every length around the limits, sent and received in one call or by polls.
#[test]
fn a_message_of_any_length_comes_whole_by_all_four_ways() {
    let now = Clock.now();
    let [mut first, mut second] = resting(now);
    let pattern = |number: u32, at: usize| (at as u32 * 7 + number * 13) as u8;
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let all = (0..=80).chain(3_990..=4_110).flat_map(|len| ways.map(|way| (len, way)));
    let mut at_once = [0; 2];
    for ((len, (sends, receives)), number) in all.zip(0u32..) {
        // A whole poll, after which some may be spared.
        first.engine.poll(now);
        second.engine.poll(now);
        Waiter::bytes(&mut first.own)[..len]
            .iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = pattern(number, at));
        Waiter::bytes(&mut second.into)[..len].fill(0);
        let request = first.send_request(now, number, len);
        let sent = sends.then(|| first.engine.send_at_once(&request, WITHIN)).flatten();
        assert_eq!(sent.is_some(), sends && len < 4_096, "{len} bytes");
        if sent.is_none() {
            let id = first.send(now, number, len);
            assert!(first.status(id).is_some(), "{len} bytes are copied");
        }
        Waiter::bytes(&mut first.own)[..len].fill(0xee);
        let request = second.receive_request(now, number, LARGE);
        let status = receives.then(|| second.engine.receive_at_once(&request, 1)).flatten();
        at_once[0] += usize::from(sent.is_some());
        at_once[1] += usize::from(status.is_some());
        let status = status.unwrap_or_else(|| {
            let id = second.receive(now, number, LARGE);
            second.engine.poll(now);
            second.status(id).unwrap_or_else(|| panic!("{len} bytes have not come"))
        });
        assert_eq!((status.tag, status.count), (number, len as u64));
        let came = &Waiter::bytes(&mut second.into)[..len];
        assert!(came.iter().enumerate().all(|(at, byte)| *byte == pattern(number, at)), "{len} bytes");
    }
    assert_eq!([first, second].map(|mut waiter| waiter.engine.up.take_lost().is_none()), [true; 2]);
    assert!(at_once.iter().all(|count| *count > 200), "{at_once:?}");
}

/// A deadline that a stopped process could miss is kept by the clock, and between two whole polls only so many messages are exchanged.
#[test]
fn short_deadlines_and_every_so_many_messages_take_a_poll() {
    let now = Clock.now();
    let [mut first, mut second] = resting(now);
    let request = first.send_request(now, 1, 8);
    assert_eq!(first.engine.send_at_once(&request, 2 * DEAD_AFTER), None);
    first.engine.poll(now);
    let sent = (0..100).take_while(|_| first.engine.send_at_once(&request, WITHIN).is_some()).count();
    assert_eq!(sent, 32);
    let request = second.receive_request(now, 1, 8);
    second.engine.poll(now);
    // Those have come by that poll, in order.
    for _ in 0..sent {
        let id = second.receive(now, 1, 8);
        assert!(second.status(id).is_some());
    }
    assert_eq!(second.engine.receive_at_once(&request, 1), None);
    // No rank of this host, and the rank itself.
    first.engine.poll(now);
    for to in [Rank(0), Rank(9)] {
        let request = first.send_request(now, 1, 8);
        assert_eq!(
            first.engine.send_at_once(&shouter_reducer::p2p::SendRequest { to, ..request }, WITHIN),
            None
        );
    }
}
