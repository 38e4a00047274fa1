use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use super::{CAPACITY, MIN_IPV4, PathMtus, plateau_below};
use crate::time::Instant;

const FOUR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SIX: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));

fn secs(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn paths_only_get_narrower_until_they_are_forgotten() {
    let mut paths = PathMtus::new();
    assert!(paths.reduce(secs(0), FOUR, 1400, 1500));
    assert!(!paths.reduce(secs(1), FOUR, 1400, 1400), "no news");
    assert!(!paths.reduce(secs(1), FOUR, 1450, 1500), "never wider");
    assert!(!paths.reduce(secs(1), SIX, 1500, 1500));
    assert!(paths.reduce(secs(100), FOUR, 1300, 1400));
    assert_eq!((paths.get(FOUR), paths.get(SIX)), (Some(1300), None));
    assert!(!paths.poll(secs(699)));
    assert_eq!(paths.get(FOUR), Some(1300));
    assert!(paths.poll(secs(700)));
    assert_eq!((paths.get(FOUR), paths.next_deadline()), (None, None));
}

#[test]
fn what_cannot_be_is_not_believed() {
    let mut paths = PathMtus::new();
    assert!(paths.reduce(secs(0), SIX, 0, 1500));
    assert_eq!(paths.get(SIX), Some(1280), "the least MTU of IPv6");
    assert!(!paths.reduce(secs(0), SIX, 68, 1280));
    assert!(paths.reduce(secs(0), FOUR, 1, 1500));
    assert_eq!(paths.get(FOUR), Some(MIN_IPV4));
    assert!(!paths.reduce(secs(0), FOUR, 1, 68), "a port may have less");
}

#[test]
fn the_oldest_path_makes_room() {
    let mut paths = PathMtus::new();
    let host = |number: usize| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number as u32));
    for number in 0..CAPACITY + 10 {
        assert!(paths.reduce(secs(number as u64), host(number), 1400, 1500));
    }
    assert_eq!((paths.get(host(9)), paths.get(host(10))), (None, Some(1400)));
    assert_eq!(paths.entries.len(), CAPACITY);
    // It gets narrower, and displaces nobody.
    assert!(paths.reduce(secs(2000), host(10), 1300, 1400));
    assert_eq!(paths.entries.len(), CAPACITY);
}

#[test]
fn plateaus_of_rfc_1191() {
    for (len, plateau) in [(1500, 1492), (1492, 1006), (65_535, 32_000), (9000, 8166), (100, 68), (0, 68)] {
        assert_eq!(plateau_below(len), plateau, "{len}");
    }
}
