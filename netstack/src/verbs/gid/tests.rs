use super::*;

fn gid(index: u8, address: &str, kind: GidKind, netdev: &str) -> Gid {
    Gid { index, raw: raw(address), kind, netdev: Some(netdev.to_owned()) }
}

fn raw(address: &str) -> [u8; 16] {
    match address.parse().unwrap() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[test]
fn a_gid_is_ipv4_or_ipv6() {
    let v4 = gid(0, "10.9.0.1", GidKind::RoceV2, "va");
    assert_eq!(v4.ipv4(), Some(Ipv4Addr::new(10, 9, 0, 1)));
    assert_eq!(v4.ipv6(), None);
    let v6 = gid(0, "2001:db8::1", GidKind::RoceV2, "va");
    assert_eq!(v6.ipv4(), None);
    assert_eq!(v6.ipv6(), Some("2001:db8::1".parse().unwrap()));
}

#[test]
fn kinds_have_the_numbers_of_the_interface() {
    let kinds = [GidKind::Ib, GidKind::RoceV1, GidKind::RoceV2, GidKind::Unknown(3)];
    for (number, kind) in (0..).zip(kinds) {
        assert_eq!(GidKind::of(number), kind);
    }
}

#[test]
fn only_global_addresses_are_routed() {
    for address in ["10.9.0.1", "2001:db8::1", "fd00::1", "127.0.0.1"] {
        assert_eq!(routable(&raw(address)), Some(address.parse().unwrap()));
    }
    for address in ["fe80::1", "169.254.1.1", "0.0.0.0", "::", "ff02::1"] {
        assert_eq!(routable(&raw(address)), None, "{address}");
    }
}

#[test]
fn a_question_names_both_ends_and_the_interface() {
    let bytes = question("10.9.0.1".parse().unwrap(), "10.9.0.2".parse().unwrap(), 5).unwrap();
    assert_eq!(bytes.len(), 16 + 12 + 3 * 8);
    assert_eq!(bytes[..4], 52_u32.to_ne_bytes());
    assert_eq!(bytes[16..20], [2, 32, 32, 0]);
    assert_eq!(bytes[32..36], [10, 9, 0, 2]);
    assert_eq!(bytes[40..44], [10, 9, 0, 1]);
    assert_eq!(bytes[48..52], 5_u32.to_ne_bytes());
    assert_eq!(question("10.9.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap(), 5), None);
}

#[test]
fn an_answer_is_a_route_or_nothing() {
    let mut reply = vec![0; 28];
    reply[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
    reply[17] = 24;
    reply[23] = RTN_UNICAST;
    assert_eq!(prefix_of(&reply), Some(24));
    for unreachable in [0, 6, 7, 8] {
        reply[23] = unreachable;
        assert_eq!(prefix_of(&reply), None);
    }
    reply[23] = RTN_LOCAL;
    reply[4..6].copy_from_slice(&2_u16.to_ne_bytes());
    assert_eq!(prefix_of(&reply), None, "an error");
    for len in 0..28 {
        assert_eq!(prefix_of(&reply[..len]), None);
    }
}

/// The loopback interface stands in for an adapter's: this needs no device and no rights.
#[test]
fn the_kernel_is_asked_per_interface() {
    let lo = "lo";
    if sys::interface_index(lo).is_none() {
        println!("skipped: no loopback interface");
        return;
    }
    let ours = [
        gid(0, "127.0.0.1", GidKind::RoceV1, lo),
        gid(1, "fe80::1", GidKind::RoceV2, lo),
        gid(2, "127.0.0.1", GidKind::RoceV2, "no-such-if"),
        gid(3, "127.0.0.1", GidKind::RoceV2, lo),
    ];
    let theirs = [raw("192.0.2.1"), raw("127.0.0.9")];
    match route(&ours, &theirs) {
        Ok(chosen) => assert_eq!(chosen, Some((ours[3].clone(), theirs[1]))),
        Err(error) => println!("skipped: {error}"),
    }
    // The default route leads through another interface, and lo has none to there.
    if let Ok(chosen) = route(&ours, &theirs[..1]) {
        assert_eq!(chosen, None);
    }
}

#[test]
fn the_kernel_is_asked_for_ipv6_too() {
    let ours = [gid(0, "127.0.0.1", GidKind::RoceV2, "lo"), gid(1, "::1", GidKind::RoceV2, "lo")];
    if !std::path::Path::new("/proc/sys/net/ipv6/conf/lo/disable_ipv6").exists()
        || std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|all| !all.contains(" lo"))
    {
        println!("skipped: no IPv6 on the loopback interface");
        return;
    }
    match route(&ours, &[raw("2001:db8::1"), raw("::1")]) {
        Ok(chosen) => assert_eq!(chosen, Some((ours[1].clone(), raw("::1")))),
        Err(error) => println!("skipped: {error}"),
    }
}
