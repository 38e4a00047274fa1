//! Opening: actively, passively, at once, by cookie, in vain.

use super::super::{CookieOptions, IcmpKind};
use super::*;
use crate::tcp::Failure;
use crate::wire::tcp::UserTimeout;

const SYN_ACK: Flags = Flags(0x12);

#[test]
fn active_open_offers_all_and_acknowledges_the_answer() {
    let mut rig = Rig::connect(Options::internet());
    let syn = rig.sent_one().header;
    assert_eq!((syn.seq, syn.ack, syn.flags, syn.window), (ISS, SeqNumber(0), Flags::SYN, 65535));
    assert_eq!(syn.options.mss, Some(1460));
    // 4 MiB needs a shift of 7.
    assert_eq!(syn.options.window_scale, Some(7));
    assert!(syn.options.sack_permitted);
    // The clock is at 1000 ms, from an offset of 5000.
    assert_eq!(syn.options.timestamps, Some(Timestamps { value: 6000, echo: 0 }));
    rig.sent_nothing();

    rig.pass(Duration::from_millis(30));
    let answer = Header { ack: ISS + 1, flags: SYN_ACK, ..super::syn() };
    assert!(matches!(rig.give(answer, &[]), Disposition::Keep));
    let ack = rig.sent_one().header;
    assert_eq!((ack.seq, ack.ack, ack.flags), (ISS + 1, IRS + 1, Flags::ACK));
    assert_eq!(ack.options.timestamps, Some(Timestamps { value: 6030, echo: 70_000 }));
    assert_eq!(ack.window, 512, "65535 bytes were promised, in units of 128");
    assert_eq!(rig.events(), [TcpEvent::Connected(ID)]);
    let info = rig.connection.info();
    assert_eq!(info.window_shifts, Some((7, 7)));
    assert!(info.sack && info.timestamps && !info.ecn);
    assert_eq!(info.mss, 1448);
    assert_eq!(info.srtt, Some(Duration::from_millis(30)));
}

#[test]
fn passive_open_answers_offers_only() {
    let bare = Header { options: tcp::Options { mss: Some(1000), ..tcp::Options::default() }, ..syn() };
    let mut rig = Rig::accept(Options::internet(), bare);
    let sent = rig.sent_one().header;
    assert_eq!((sent.seq, sent.ack, sent.flags), (ISS, IRS + 1, SYN_ACK));
    assert_eq!(sent.options, tcp::Options { mss: Some(1460), ..tcp::Options::default() });
    let opened = rig.data(0, 0, &[]);
    assert!(matches!(opened, Disposition::Opened), "{opened:?}");
    assert_eq!(rig.state(), StateName::Established);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.connection.info().mss, 1000);
    assert_eq!(rig.connection.info().window_shifts, None);
    rig.sent_nothing();
}

#[test]
fn the_last_acknowledgement_may_carry_data_and_a_fin() {
    let mut rig = Rig::accept(Options::internet(), syn());
    let sent = rig.sent_one().header;
    assert_eq!(sent.options.timestamps.map(|stamps| stamps.echo), Some(70_000));
    let header = rig.header(0, 0, Flags::ACK.with(Flags::FIN));
    assert!(matches!(rig.give(header, b"all"), Disposition::Opened));
    assert_eq!(rig.state(), StateName::CloseWait);
    assert_eq!(rig.read().as_deref(), Ok(&b"all"[..]));
    assert_eq!(rig.read().as_deref(), Ok(&b""[..]));
    assert_eq!(rig.sent_one().header.ack, IRS + 5);
}

#[test]
fn a_repeated_syn_is_answered_by_the_syn_ack() {
    let mut rig = Rig::accept(Options::internet(), syn());
    rig.sent_one();
    assert!(matches!(rig.give(syn(), &[]), Disposition::Keep));
    assert_eq!(rig.sent_one().header.flags, SYN_ACK);
    assert!(matches!(rig.data(0, 0, &[]), Disposition::Opened));
}

#[test]
fn syn_ack_comes_again_and_stops_in_the_end() {
    let options = Options { syn_retries: 2, ..Options::internet() };
    let mut rig = Rig::accept(options, syn());
    assert_eq!(rig.sent_one().header.flags, SYN_ACK);
    for seconds in [1, 2] {
        let (time, disposition) = rig.wait();
        assert_eq!(time, Duration::from_secs(seconds));
        assert!(matches!(disposition, Disposition::Keep));
        assert_eq!(rig.sent_one().header.flags, SYN_ACK);
    }
    let (time, disposition) = rig.wait();
    assert_eq!(time, Duration::from_secs(4));
    assert!(matches!(disposition, Disposition::Remove));
    assert!(rig.connection.is_over());
    assert_eq!(rig.connection.next_deadline(), None);
}

#[test]
fn syn_backs_off_and_fails() {
    let mut rig = Rig::connect(Options { syn_retries: 3, ecn: true, ..Options::internet() });
    let asking = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
    assert_eq!(rig.sent_one().header.flags, asking);
    for seconds in [1, 2, 4] {
        assert_eq!(rig.wait().0, Duration::from_secs(seconds));
        // RFC 3168 section 6.1.1.1: the next one does not ask for ECN.
        assert_eq!(rig.sent_one().header.flags, Flags::SYN);
    }
    assert!(matches!(rig.wait(), (_, Disposition::Remove)));
    let failure = Failure::TimedOut { remote: open().remote, after: Duration::from_secs(15) };
    assert_eq!(rig.events(), [TcpEvent::Failed(ID, failure)]);
    assert_eq!(rig.read(), Err(Error::Failed(failure)));
    assert_eq!(rig.write(b"x"), Err(Error::Failed(failure)));
}

#[test]
fn no_room_is_not_sent() {
    let mut rig = Rig::connect(Options::internet());
    rig.wire.answer = Emitted::NoRoom;
    assert_eq!(rig.transmit(), TransmitOutcome::Blocked);
    assert!(rig.connection.wants_transmit(rig.now));
    assert_eq!(rig.connection.next_deadline(), None);
    rig.wire.answer = Emitted::Sent;
    assert_eq!(rig.sent_one().header.flags, Flags::SYN);
}

#[test]
fn without_a_route_the_attempt_ends_as_unreachable() {
    let mut rig = Rig::connect(Options { syn_retries: 0, ..Options::internet() });
    rig.wire.answer = Emitted::NoRoute;
    rig.sent_nothing();
    assert!(matches!(rig.wait(), (_, Disposition::Remove)));
    assert_eq!(rig.events(), [TcpEvent::Failed(ID, Failure::Unreachable { remote: open().remote })]);
}

#[test]
fn a_reset_refuses_only_if_it_acknowledges_the_syn() {
    let mut rig = Rig::connect(Options::internet());
    rig.sent_one();
    let reset = Header { flags: Flags::RST, options: tcp::Options::default(), ..syn() };
    assert!(matches!(rig.give(reset, &[]), Disposition::Keep));
    let wrong = Header { flags: Flags::RST.with(Flags::ACK), ack: ISS, ..reset };
    assert!(matches!(rig.give(wrong, &[]), Disposition::Keep));
    assert_eq!(rig.state(), StateName::SynSent);
    let right = Header { ack: ISS + 1, ..wrong };
    assert!(matches!(rig.give(right, &[]), Disposition::Remove));
    assert_eq!(rig.events(), [TcpEvent::Failed(ID, Failure::Refused { remote: open().remote })]);
}

#[test]
fn a_wrong_acknowledgement_in_syn_sent_is_reset() {
    let mut rig = Rig::connect(Options::internet());
    rig.sent_one();
    for ack in [ISS, ISS + 2, ISS - 1] {
        let answer = Header { flags: SYN_ACK, ack, ..syn() };
        let Disposition::Answer(reset) = rig.give(answer, &[]) else { panic!("no answer to {ack:?}") };
        assert_eq!((reset.seq, reset.flags), (ack, Flags::RST));
    }
    let stray = Header { flags: Flags::ACK, ack: ISS + 1, ..syn() };
    assert!(matches!(rig.give(stray, &[]), Disposition::Keep));
    assert_eq!(rig.state(), StateName::SynSent);
    rig.sent_nothing();
}

#[test]
fn both_sides_open_at_once() {
    let mut rig = Rig::connect(Options::internet());
    rig.sent_one();
    rig.peer_clock = Some(70_000);
    assert!(matches!(rig.give(syn(), &[]), Disposition::Keep));
    assert_eq!(rig.state(), StateName::SynReceived);
    let answer = rig.sent_one().header;
    assert_eq!((answer.seq, answer.ack, answer.flags), (ISS, IRS + 1, SYN_ACK));
    let theirs = Header { flags: SYN_ACK, ack: ISS + 1, ..syn() };
    assert!(matches!(rig.give(theirs, &[]), Disposition::Keep));
    assert_eq!(rig.state(), StateName::Established);
    assert_eq!(rig.events(), [TcpEvent::Connected(ID)]);
    assert!(matches!(rig.data(0, 0, b"hello"), Disposition::Keep));
    assert_eq!(rig.read().as_deref(), Ok(&b"hello"[..]));
}

#[test]
fn a_wrong_acknowledgement_in_syn_received_is_reset() {
    let mut rig = Rig::accept(Options::internet(), syn());
    rig.sent_one();
    let Disposition::Answer(reset) = rig.data(0, 1, &[]) else { panic!("no reset") };
    assert_eq!((reset.seq, reset.flags), (ISS + 2, Flags::RST));
    assert_eq!(rig.state(), StateName::SynReceived);
    let reset = rig.header(0, 0, Flags::RST);
    assert!(matches!(rig.give(reset, &[]), Disposition::Remove));
}

#[test]
fn a_cookie_gives_the_same_connection() {
    let negotiated =
        CookieOptions { mss: 1440, window_scale: Some(7), sack: true, ecn: false, timestamps: true };
    let ack = Header {
        seq: IRS + 1,
        ack: ISS + 1,
        flags: Flags::ACK,
        options: tcp::Options {
            timestamps: Some(Timestamps { value: 70_001, echo: 6000 }),
            ..tcp::Options::default()
        },
        ..syn()
    };
    let options = Arc::new(Options::internet());
    let mut rig =
        Rig::around(Connection::from_cookie(start(), &open(), options, &negotiated, &segment(ack, &[])));
    rig.peer_clock = Some(70_001);
    rig.sent_nothing();
    rig.now += Duration::from_millis(25);
    assert!(matches!(rig.give(ack, b"GET"), Disposition::Opened));
    let info = rig.connection.info();
    assert_eq!(info.mss, 1428);
    assert_eq!(info.window_shifts, Some((7, 7)));
    assert_eq!(info.srtt, Some(Duration::from_millis(25)));
    assert_eq!(rig.read().as_deref(), Ok(&b"GET"[..]));
}

#[test]
fn closing_an_attempt_ends_it_silently() {
    let mut rig = Rig::connect(Options::internet());
    rig.sent_one();
    assert!(matches!(rig.close(), Disposition::Remove));
    rig.sent_nothing();
    assert_eq!(rig.events(), []);
}

#[test]
fn what_was_written_and_shut_before_follows_the_handshake() {
    let mut rig = Rig::connect(Options::internet());
    rig.sent_one();
    assert_eq!(rig.write(b"early"), Ok(5));
    rig.shutdown();
    assert_eq!(rig.write(b"late"), Err(Error::Shut));
    rig.sent_nothing();
    rig.peer_clock = Some(70_000);
    let answer = Header { ack: ISS + 1, flags: SYN_ACK, ..syn() };
    assert!(matches!(rig.give(answer, &[]), Disposition::Keep));
    assert_eq!(rig.state(), StateName::FinWait1);
    let sent = rig.sent_one();
    assert_eq!(sent.payload, b"early");
    assert!(sent.header.flags.contains(Flags::FIN.with(Flags::ACK)));
}

#[test]
fn icmp_errors_end_attempts_only() {
    let mut rig = Rig::connect(Options::internet());
    rig.sent_one();
    let icmp = |rig: &mut Rig, kind, quoted| rig.with(|c, now, cx| c.on_icmp(now, kind, quoted, cx));
    assert!(matches!(icmp(&mut rig, IcmpKind::Refused, ISS + 1), Disposition::Keep));
    assert!(matches!(icmp(&mut rig, IcmpKind::Unreachable, ISS), Disposition::Keep));
    assert!(matches!(icmp(&mut rig, IcmpKind::Refused, ISS), Disposition::Remove));
    assert_eq!(rig.events(), [TcpEvent::Failed(ID, Failure::Refused { remote: open().remote })]);

    let mut rig = Rig::established(Options::internet());
    assert_eq!(rig.write(b"x"), Ok(1));
    rig.sent_one();
    assert!(matches!(icmp(&mut rig, IcmpKind::Refused, ISS + 1), Disposition::Keep));
    assert_eq!(rig.state(), StateName::Established);
}

#[test]
fn no_icmp_error_takes_segments_below_the_configured_least() {
    for (least, payload) in [(552, 500), (1000, 948)] {
        let options = Options { min_path_mtu: least, ..Options::internet() };
        let mut rig = Rig::established(options);
        assert_eq!(rig.write(&[7; 1000]), Ok(1000));
        rig.sent_one();
        let kept = rig.with(|c, now, cx| c.on_icmp(now, IcmpKind::TooBig(68), ISS + 1, cx));
        assert!(matches!(kept, Disposition::Keep));
        assert_eq!(rig.connection.info().mss, payload);
    }
}

#[test]
fn ecn_is_agreed_upon_in_both_roles() {
    let options = Options { ecn: true, ..Options::internet() };
    let rig = Rig::established_with(options.clone(), offers(), SYN_ACK.with(Flags::ECE));
    assert!(rig.connection.info().ecn);
    // A SYN-ACK that reflects all bits grants nothing (RFC 3168 section 6.1.1).
    let rig = Rig::established_with(options.clone(), offers(), SYN_ACK.with(Flags::ECE).with(Flags::CWR));
    assert!(!rig.connection.info().ecn);
    let asking = Header { flags: Flags::SYN.with(Flags::ECE).with(Flags::CWR), ..syn() };
    let mut rig = Rig::accept(options, asking);
    assert_eq!(rig.sent_one().header.flags, SYN_ACK.with(Flags::ECE));
    let mut rig = Rig::accept(Options::internet(), asking);
    assert_eq!(rig.sent_one().header.flags, SYN_ACK);
}

#[test]
fn the_user_timeout_is_announced() {
    let options = Options { user_timeout: Some(Duration::from_secs(30)), ..Options::internet() };
    let mut rig = Rig::connect(options);
    assert_eq!(rig.sent_one().header.options.user_timeout, Some(UserTimeout { seconds: 30 }));
}
