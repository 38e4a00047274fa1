use core::net::SocketAddr;
use core::time::Duration;

use super::*;
use crate::wire::tcp::{Flags, Options, Timestamps};

fn pair() -> (SocketAddr, SocketAddr) {
    ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:50000".parse().unwrap())
}

fn ack_of(cookie: SeqNumber, peer: SeqNumber, echo: Option<u32>) -> Header {
    Header {
        seq: peer + 1,
        ack: cookie + 1,
        flags: Flags::ACK,
        options: Options { timestamps: echo.map(|echo| Timestamps { value: 1, echo }), ..Options::default() },
        ..Header::default()
    }
}

#[test]
fn a_cookie_comes_back_with_what_it_took() {
    let secret = Secret::new(&[7; 32]);
    let (local, remote) = pair();
    let start = Instant::ZERO + Duration::from_secs(1_000_000);
    for (mss, class) in [(0, 88), (88, 88), (535, 88), (536, 536), (1459, 1440), (1460, 1460), (65535, 8940)]
    {
        for peer in [SeqNumber(0), SeqNumber(u32::MAX), SeqNumber(12345)] {
            let cookie = make(&secret, start, &local, &remote, peer, mss);
            for (scale, sack, ecn) in [(Some(0), true, true), (Some(14), false, true), (None, true, false)] {
                let syn = Header {
                    options: Options { window_scale: scale, sack_permitted: sack, ..Options::default() },
                    ..Header::default()
                };
                for clock in [0, 63, 64, 100, u32::MAX] {
                    let value = timestamp(clock, &syn, true, ecn, true);
                    assert!(clock.wrapping_sub(value) < 128, "{clock} {value}");
                    let negotiated =
                        open(&secret, start, &local, &remote, &ack_of(cookie, peer, Some(value)));
                    let negotiated = negotiated.expect("a good cookie");
                    assert_eq!((negotiated.mss, negotiated.timestamps), (class, true));
                    assert_eq!(
                        (negotiated.window_scale, negotiated.sack, negotiated.ecn),
                        (scale, sack, ecn)
                    );
                }
            }
            let bare = open(&secret, start, &local, &remote, &ack_of(cookie, peer, None)).unwrap();
            assert_eq!((bare.window_scale, bare.sack, bare.timestamps), (None, false, false));
        }
    }
}

#[test]
fn a_cookie_that_is_old_or_of_others_is_refused() {
    let secret = Secret::new(&[7; 32]);
    let (local, remote) = pair();
    let start = Instant::ZERO + Duration::from_secs(64 * 1000);
    let peer = SeqNumber(99);
    let cookie = make(&secret, start, &local, &remote, peer, 1460);
    let good = ack_of(cookie, peer, None);
    let at = |seconds| open(&secret, start + Duration::from_secs(seconds), &local, &remote, &good).is_some();
    assert_eq!([at(0), at(127), at(128), at(64 * 4)], [true, true, false, false]);
    assert!(open(&Secret::new(&[8; 32]), start, &local, &remote, &good).is_none(), "another key");
    assert!(open(&secret, start, &remote, &local, &good).is_none(), "another pair");
    let guessed = (0..100_000u32)
        .filter(|n| {
            open(&secret, start, &local, &remote, &ack_of(SeqNumber(n * 40_009), peer, None)).is_some()
        })
        .count();
    assert_eq!(guessed, 0, "one guess in 2^28 is right");
}
