use core::net::Ipv6Addr;

use proptest::prelude::*;

use super::{Chain, Fragment, HEADER_LEN, Packet, Problem, Repr, walk};
use crate::wire::Malformed;
use crate::wire::ip::Protocol;

const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Hop-by-hop options with PadN; a routing header without segments left; destination options with Pad1.
const HOPS: [u8; 8] = [43, 0, 1, 4, 0, 0, 0, 0];
const ROUTE: [u8; 8] = [60, 0, 4, 0, 0, 0, 0, 0];
const OPTIONS: [u8; 8] = [17, 0, 0, 0, 0, 1, 1, 0];

fn chain(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn end(protocol: u8, protocol_at: usize, payload: &[u8], payload_at: usize) -> Result<Chain<'_>, Problem> {
    Ok(Chain { protocol, protocol_at, payload, payload_at, fragment: None })
}

#[test]
fn headers_that_are_known_are_skipped() {
    assert_eq!(walk(17, b"udp", HEADER_LEN, false), end(17, 6, b"udp", 40));
    let bytes = chain(&[&HOPS, &ROUTE, &OPTIONS, b"udp"]);
    assert_eq!(walk(0, &bytes, HEADER_LEN, false), end(17, 56, b"udp", 64));
    assert_eq!(walk(253, b"x", HEADER_LEN, false), end(253, 6, b"x", 40), "the caller's to judge");
}

#[test]
fn invalid_headers_are_dropped_or_reported() {
    let problem = |code, pointer| Err(Problem::Parameter { code, pointer });
    assert_eq!(walk(59, b"", HEADER_LEN, false), Err(Problem::Drop), "nothing follows");
    let bytes = chain(&[&[0, 0, 4, 0, 0, 0, 0, 0], &HOPS]);
    assert_eq!(walk(43, &bytes, HEADER_LEN, false), problem(1, 40), "hop-by-hop options come first");
    assert_eq!(walk(43, &[17, 0, 0, 1, 0, 0, 0, 0], HEADER_LEN, false), problem(0, 42), "source routes");
    let option = |kind| [17, 0, 1, 0, kind, 1, 9, 0];
    assert_eq!(walk(60, &option(0x05), HEADER_LEN, false), end(17, 40, b"", 48));
    assert_eq!(walk(60, &option(0x45), HEADER_LEN, false), Err(Problem::Drop));
    assert_eq!(walk(60, &option(0x85), HEADER_LEN, true), problem(2, 44));
    assert_eq!(walk(60, &option(0xc5), HEADER_LEN, false), problem(2, 44));
    assert_eq!(walk(60, &option(0xc5), HEADER_LEN, true), Err(Problem::Drop), "not about groups");
    assert_eq!(walk(60, &[17, 0, 1, 9, 0, 0, 0, 0], HEADER_LEN, false), Err(Problem::Truncated));
    for len in 0..8 {
        for next in [0, 43, 44, 60] {
            assert_eq!(walk(next, &OPTIONS[..len], HEADER_LEN, false), Err(Problem::Truncated));
        }
    }
    let endless = [60, 0, 1, 4, 0, 0, 0, 0].repeat(9);
    assert_eq!(walk(60, &endless, HEADER_LEN, false), Err(Problem::Drop));
}

#[test]
fn fragments_are_found_and_whole_ones_skipped() {
    let bytes = [17, 0, 0x05, 0xa9, 1, 2, 3, 4, 7, 7];
    let fragment = Some(Fragment { identification: 0x0102_0304, offset: 0x5a8, more: true });
    let expected = Chain { protocol: 17, protocol_at: 40, payload: &[7, 7], payload_at: 48, fragment };
    assert_eq!(walk(44, &bytes, HEADER_LEN, false), Ok(expected));
    let atomic = [60, 0, 0, 0, 1, 2, 3, 4];
    let bytes = chain(&[&atomic, &OPTIONS, b"udp"]);
    assert_eq!(walk(44, &bytes, HEADER_LEN, false), end(17, 48, b"udp", 56));
}

#[test]
fn lies_about_lengths_and_versions() {
    let repr = Repr::new(A, B, Protocol::Udp, 4).unwrap();
    let mut bytes = [&repr.emit()[..], &[1, 2, 3, 4, 0xee]].concat();
    let packet = Packet::new(&bytes).unwrap();
    assert_eq!(packet.payload(), [1, 2, 3, 4], "padding is trimmed");
    assert_eq!(Repr::parse(&packet), Ok(repr));
    assert_eq!(Packet::new(&bytes[..43]).unwrap_err(), Malformed::Truncated);
    assert_eq!(Packet::quoted(&bytes[..43]).unwrap().payload(), [1, 2, 3]);
    assert_eq!(Packet::with_rest(&bytes[..42], 2).unwrap().payload(), [1, 2]);
    assert_eq!(Packet::with_rest(&bytes[..42], 3).unwrap_err(), Malformed::Length);
    bytes[0] = 0x40;
    assert_eq!(Packet::new(&bytes).unwrap_err(), Malformed::Unsupported);
    assert!(Repr::new(A, B, Protocol::Udp, 65_536).is_none());
}

proptest! {
    #[test]
    fn headers_survive_the_round_trip(
        a: u128, b: u128, next: u8, class: u8, data in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut repr = Repr::new(a.into(), b.into(), next.into(), data.len()).unwrap();
        repr.traffic_class = class;
        let bytes = [&repr.emit()[..], &data].concat();
        let packet = Packet::new(&bytes).unwrap();
        prop_assert_eq!(Repr::parse(&packet), Ok(repr));
        prop_assert_eq!((packet.payload(), packet.next_header()), (&data[..], next));
    }

    #[test]
    fn no_chain_makes_the_walk_panic(
        next in proptest::sample::select(vec![0u8, 17, 43, 44, 59, 60]),
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        links in proptest::collection::vec((0usize..14, proptest::sample::select(vec![0u8, 6, 43, 44, 60])), 0..8),
        to_group: bool,
    ) {
        for (unit, kind) in links {
            if let Some(link) = bytes.get_mut(unit * 8..unit * 8 + 2) {
                link.copy_from_slice(&[kind, 0]);
            }
        }
        if let Ok(chain) = walk(next, &bytes, HEADER_LEN, to_group) {
            prop_assert_eq!(chain.payload_at + chain.payload.len(), HEADER_LEN + bytes.len());
            prop_assert!(chain.protocol_at < chain.payload_at);
        }
    }

    #[test]
    fn no_bytes_make_a_view_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), rest in 0usize..70_000) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = 0x60 | *first & 0x0f;
        }
        if let Ok(packet) = Packet::with_rest(&bytes, rest) {
            let _ = (packet.source(), packet.destination(), packet.hop_limit(), packet.traffic_class());
            let _ = Repr::parse(&packet);
        }
    }
}
