use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use proptest::prelude::*;

use super::{Config, FragmentPayload, Key, Reassembly, ReassemblyOutcome};
use crate::time::Instant;
use crate::wire::ip::Ecn;

fn key(identification: u32) -> Key {
    Key {
        port: 0,
        source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        destination: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        protocol: 17,
        identification,
    }
}

fn piece(offset: u16, more: bool, payload: &[u8]) -> FragmentPayload<'_> {
    FragmentPayload { offset, more, protocol: 17, ecn: Ecn::Ect0, payload, packet: b"header" }
}

fn secs(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn whole(outcome: ReassemblyOutcome) -> Vec<u8> {
    match outcome {
        ReassemblyOutcome::Whole(datagram) => datagram.payload,
        other => panic!("not whole: {other:?}"),
    }
}

#[test]
fn pieces_in_any_order_with_duplicates() {
    let mut all = Reassembly::new(Config::default());
    let bytes: Vec<u8> = (0..40).collect();
    let put = |all: &mut Reassembly, at: usize, len: usize| {
        all.insert(secs(0), key(1), &piece(at as u16, at + len < 40, &bytes[at..at + len]))
    };
    for (at, len) in [(32, 8), (8, 8), (8, 8), (32, 8), (16, 16)] {
        assert_eq!(put(&mut all, at, len), ReassemblyOutcome::Waiting);
    }
    assert_eq!(whole(put(&mut all, 0, 8)), bytes);
    assert_eq!((all.bytes(), all.datagrams()), (0, 0));
}

#[test]
fn what_one_fragment_met_the_datagram_met() {
    let mut all = Reassembly::new(Config::default());
    let marked = FragmentPayload { ecn: Ecn::Ce, ..piece(0, true, &[1; 8]) };
    all.insert(secs(0), key(1), &marked);
    match all.insert(secs(0), key(1), &piece(8, false, &[2])) {
        ReassemblyOutcome::Whole(datagram) => {
            assert_eq!(
                (datagram.ecn, datagram.protocol, &datagram.packet[..]),
                (Ecn::Ce, 17, &b"header"[..])
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn overlaps_spoil_the_datagram_until_it_expires() {
    // Each pair overlaps, disagrees about the end, or goes beyond it.
    let pairs: [[(u16, bool, usize, u8); 2]; 6] = [
        [(0, true, 16, 1), (8, true, 16, 1)],
        [(8, true, 16, 1), (0, true, 16, 1)],
        [(8, true, 8, 1), (8, true, 8, 2)],
        [(16, false, 8, 1), (8, false, 8, 1)],
        [(16, false, 8, 1), (32, true, 8, 1)],
        [(32, true, 8, 1), (16, false, 8, 1)],
    ];
    for pair in pairs {
        let mut all = Reassembly::new(Config::default());
        let [first, second] = pair.map(|(offset, more, len, fill)| (offset, more, vec![fill; len]));
        assert_eq!(
            all.insert(secs(0), key(1), &piece(first.0, first.1, &first.2)),
            ReassemblyOutcome::Waiting
        );
        let outcome = all.insert(secs(0), key(1), &piece(second.0, second.1, &second.2));
        assert_eq!(outcome, ReassemblyOutcome::Overlap, "{pair:?}");
        for (offset, more) in [(0, true), (64, false)] {
            let outcome = all.insert(secs(1), key(1), &piece(offset, more, &[0; 64]));
            assert_eq!(outcome, ReassemblyOutcome::Overlap, "{pair:?}: those to come are dropped too");
        }
        assert!(all.bytes() < 200, "their bytes are not kept");
        assert_eq!(all.poll(secs(30)).map(|expired| expired.packet), Some(None), "no error is sent");
        assert_eq!(all.poll(secs(30)), None);
        assert_eq!(all.insert(secs(31), key(1), &piece(0, true, &[0; 8])), ReassemblyOutcome::Waiting);
    }
}

#[test]
fn lengths_that_cannot_be() {
    let mut all = Reassembly::new(Config::default());
    assert_eq!(all.insert(secs(0), key(1), &piece(0, true, &[0; 9])), ReassemblyOutcome::BadLength);
    assert_eq!(all.insert(secs(0), key(1), &piece(8, false, &[])), ReassemblyOutcome::BadLength);
    assert_eq!(all.insert(secs(0), key(1), &piece(65_528, false, &[0; 8])), ReassemblyOutcome::TooLong);
    assert_eq!(all.datagrams(), 0);
    assert_eq!(all.insert(secs(0), key(1), &piece(65_528, false, &[0; 7])), ReassemblyOutcome::Waiting);
}

#[test]
fn datagrams_expire_and_say_how_they_began() {
    let mut all = Reassembly::new(Config::default());
    all.insert(secs(0), key(1), &piece(0, true, &[0; 8]));
    all.insert(secs(1), key(2), &piece(8, true, &[0; 8]));
    let six = Key { source: Ipv6Addr::LOCALHOST.into(), ..key(3) };
    all.insert(secs(2), six, &piece(0, true, &[0; 8]));
    // A later fragment does not prolong it.
    all.insert(secs(20), key(1), &piece(8, true, &[0; 8]));
    assert_eq!(all.next_deadline(), Some(secs(30)));
    assert_eq!(all.poll(secs(29)), None);
    let mut expired = Vec::new();
    while let Some(late) = all.poll(secs(31)) {
        expired.push((late.key.identification, late.packet));
    }
    assert_eq!(expired, [(1, Some(b"header".to_vec())), (2, None)]);
    assert_eq!(all.next_deadline(), Some(secs(62)));
    assert_eq!(all.poll(secs(62)).map(|late| late.key), Some(six));
    assert_eq!(all.poll(secs(62)), None);
    assert_eq!((all.bytes(), all.next_deadline()), (0, None));
}

#[test]
fn fragments_that_never_become_whole_do_not_grow_it() {
    let config = Config { bytes: 10_000, datagrams: 8, ..Config::default() };
    let mut all = Reassembly::new(config);
    for number in 0..10_000u32 {
        // One datagram of many small pieces among many of one.
        all.insert(secs(0), key(7), &piece((number % 4000) as u16 * 16, true, &[0; 8]));
        all.insert(secs(0), key(1000 + number), &piece(8, true, &[0; 1000]));
        assert!(all.bytes() <= 10_000 && all.datagrams() <= 8, "{} bytes", all.bytes());
    }
    assert!(all.evicted() > 9_000);
    assert_eq!(all.insert(secs(0), key(9), &piece(8, false, &[1; 8])), ReassemblyOutcome::Waiting);
    assert_eq!(
        whole(all.insert(secs(0), key(9), &piece(0, true, &[0; 8]))).len(),
        16,
        "newcomers get through"
    );
    while all.poll(secs(100)).is_some() {}
    assert_eq!((all.bytes(), all.datagrams()), (0, 0));
}

proptest! {
    /// Cut anywhere, in any order: whole exactly once, and the same as before. With any noise in between, nothing
    /// leaks.
    #[test]
    fn any_cut_in_any_order_is_put_together(
        units in 1usize..60, tail in 1usize..9, cuts in proptest::collection::vec(1usize..60, 0..10),
        order in any::<u64>(), noise in proptest::collection::vec((0u16..100, any::<bool>(), 1usize..40), 0..20),
    ) {
        let len = units * 8 + tail;
        let bytes: Vec<u8> = (0..len).map(|i| (i * 37) as u8).collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(units) * 8).chain([0, len]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let mut state = order | 1;
        for i in (1..pieces.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            pieces.swap(i, (state >> 33) as usize % (i + 1));
        }
        let mut all = Reassembly::new(Config::default());
        for (offset, more, len) in &noise {
            let outcome = all.insert(secs(0), key(2), &piece(offset * 8, *more, &vec![0; *len]));
            prop_assert!(!matches!(outcome, ReassemblyOutcome::Whole(datagram) if datagram.payload.is_empty()));
        }
        for (index, &(from, to)) in pieces.iter().enumerate() {
            let outcome = all.insert(secs(0), key(1), &piece(from as u16, to < len, &bytes[from..to]));
            if index + 1 < pieces.len() {
                prop_assert_eq!(outcome, ReassemblyOutcome::Waiting);
            } else {
                prop_assert_eq!(whole(outcome), bytes.clone());
            }
        }
        while all.poll(secs(100)).is_some() {}
        prop_assert_eq!((all.bytes(), all.datagrams()), (0, 0));
    }
}
