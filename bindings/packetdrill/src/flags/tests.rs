use core::time::Duration;

use shouter_netstack::cc::Algorithm;

use super::Setup;

#[test]
fn no_flags_are_packetdrills_defaults() {
    let setup = Setup::parse(" \n").expect("nothing to object to");
    assert_eq!((setup.ipv4.octets(), setup.mtu), ([192, 168, 0, 1], 1500));
    assert_eq!(setup.ipv6.to_string(), "fd3d:a0b:17d6::1");
    assert!(setup.options.nagle && setup.options.sack && !setup.options.ecn);
}

#[test]
fn flags_are_taken_with_and_without_dashes() {
    let setup = Setup::parse(
        "--local_ip=10.1.2.3 --local_ip=fd00::7,mtu=1280 --congestion=reno --ecn=on --min_rto_us=5000 --remote_ip=1.2.3.4",
    )
    .expect("all are known");
    assert_eq!((setup.ipv4.octets(), setup.mtu), ([10, 1, 2, 3], 1280));
    assert_eq!(setup.ipv6.to_string(), "fd00::7");
    assert_eq!(setup.options.congestion, Algorithm::NewReno);
    assert_eq!(setup.options.min_rto, Duration::from_millis(5));
    assert!(setup.options.ecn);
}

#[test]
fn what_is_not_understood_is_named() {
    for word in ["--mtu", "--mtu=70000", "--ecn=perhaps", "--frobnicate=1", "--congestion=vegas", "x"] {
        let why = Setup::parse(&format!("--sack=on {word}")).expect_err(word);
        assert!(why.contains(word), "{why}");
    }
}
