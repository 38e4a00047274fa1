use core::net::Ipv6Addr;

use proptest::prelude::*;

use super::{
    Advertisement, Echo, EchoKind, ErrorKind, Message, Solicitation, emit_echo, emit_error, multicast_mac,
    solicited_node,
};
use crate::wire::Malformed;
use crate::wire::ethernet::Mac;

const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x1234, 0x5678);
const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

#[test]
fn groups_have_their_addresses() {
    let group = solicited_node(A);
    assert_eq!(group.to_string(), "ff02::1:ff34:5678");
    assert_eq!(multicast_mac(group), Mac([0x33, 0x33, 0xff, 0x34, 0x56, 0x78]));
}

#[test]
fn solicitations_and_advertisements() {
    let group = solicited_node(B);
    let question = Solicitation { target: B, source: Some(MAC) };
    let bytes = question.emit(A, group);
    assert_eq!(Message::parse(A, group, &bytes), Ok(Message::Solicitation(question)));
    let any = Ipv6Addr::UNSPECIFIED;
    let probe = Solicitation { target: B, source: None };
    let bytes = probe.emit(any, group);
    assert_eq!(Message::parse(any, group, &bytes[..probe.len()]), Ok(Message::Solicitation(probe)));
    let bytes = probe.emit(any, B);
    assert_eq!(Message::parse(any, B, &bytes[..24]), Err(Malformed::Unsupported), "a probe goes to a group");
    let bytes = question.emit(any, group);
    assert_eq!(Message::parse(any, group, &bytes), Err(Malformed::Unsupported), "a probe has no station");

    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut answer =
        Advertisement { target: B, station: Some(MAC), router: false, solicited: true, overriding: true };
    assert_eq!(Message::parse(B, A, &answer.emit(B, A)), Ok(Message::Advertisement(answer)));
    assert_eq!(Message::parse(B, all, &answer.emit(B, all)), Err(Malformed::Unsupported));
    answer.solicited = false;
    assert_eq!(Message::parse(B, all, &answer.emit(B, all)), Ok(Message::Advertisement(answer)));
    answer.target = all;
    assert_eq!(
        Message::parse(B, A, &answer.emit(B, A)),
        Err(Malformed::Unsupported),
        "no station is a group"
    );
    let group_mac = Advertisement { target: B, station: Some(Mac::BROADCAST), ..answer };
    assert_eq!(Message::parse(B, A, &group_mac.emit(B, A)), Err(Malformed::Unsupported));
}

proptest! {
    #[test]
    fn echo_and_errors_survive_the_round_trip(
        ids: (u16, u16), data in proptest::collection::vec(any::<u8>(), 0..64), code: u8, pointer: u32, mtu: u16,
        flip in 0usize..64,
    ) {
        for kind in [EchoKind::Request, EchoKind::Reply] {
            let echo = Echo { kind, identifier: ids.0, sequence: ids.1, data: &data };
            let mut bytes = [&emit_echo(A, B, &echo)[..], &data].concat();
            prop_assert_eq!(Message::parse(A, B, &bytes), Ok(Message::Echo(echo)));
            let at = flip % bytes.len();
            bytes[at] ^= 4;
            prop_assert_eq!(Message::parse(A, B, &bytes), Err(Malformed::Checksum));
        }
        for kind in [
            ErrorKind::Unreachable { code },
            ErrorKind::PacketTooBig { mtu },
            ErrorKind::TimeExceeded { code },
            ErrorKind::ParameterProblem { code, pointer },
        ] {
            let bytes = [&emit_error(A, B, kind, &data)[..], &data].concat();
            prop_assert_eq!(Message::parse(A, B, &bytes), Ok(Message::Error { kind, quoted: &data }));
        }
    }

    /// Random messages with a checksum that is right.
    #[test]
    fn no_message_makes_the_parser_panic(
        kind in proptest::sample::select(vec![1u8, 2, 3, 4, 128, 129, 133, 135, 136]),
        mut bytes in proptest::collection::vec(any::<u8>(), 8..80),
    ) {
        (bytes[0], bytes[1]) = (kind, bytes[1] & 1);
        bytes[2..4].fill(0);
        let sum = super::pseudo_header(A, B, bytes.len()).over(&bytes).finish();
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        prop_assert_ne!(Message::parse(A, B, &bytes), Err(Malformed::Checksum));
    }
}
