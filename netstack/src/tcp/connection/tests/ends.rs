//! Closing: in order, at once, halfway, by force, by silence.

use super::*;
use crate::tcp::{Failure, KeepAlive};

fn failed(rig: &mut Rig, failure: Failure) {
    assert_eq!(rig.events(), [TcpEvent::Failed(ID, failure)]);
}

#[test]
fn this_side_closes_first() {
    let mut rig = Rig::established(Options::internet());
    assert_eq!(rig.write(b"bye"), Ok(3));
    assert!(matches!(rig.close(), Disposition::Keep));
    assert_eq!(rig.state(), StateName::FinWait1);
    let sent = rig.sent_one();
    assert_eq!(sent.payload, b"bye");
    assert!(sent.header.flags.contains(Flags::FIN));
    assert!(matches!(rig.data(0, 4, &[]), Disposition::Keep));
    assert_eq!(rig.state(), StateName::FinWait2);
    let Disposition::TimeWait(record, Some(answer)) = rig.fin(0, 4) else { panic!("no TIME-WAIT") };
    assert_eq!((answer.seq, answer.ack, answer.flags), (ISS + 5, IRS + 2, Flags::ACK));
    assert_eq!((record.snd_nxt, record.rcv_nxt), (ISS + 5, IRS + 2));
    assert_eq!(record.ts_recent, rig.peer_clock);
    assert_eq!(record.duration, Duration::from_secs(60));
    assert_eq!(rig.state(), StateName::TimeWait);
    assert_eq!(rig.events(), [], "the user has let go");
    assert_eq!(rig.pool.used(), 0);
}

#[test]
fn the_peer_closes_first() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.fin(0, 0), Disposition::Keep));
    assert_eq!(rig.state(), StateName::CloseWait);
    assert_eq!(rig.events(), [TcpEvent::Readable(ID)]);
    assert_eq!(rig.sent_one().header.ack, IRS + 2);
    assert_eq!(rig.read().as_deref(), Ok(&b""[..]));
    // Half-closed: this side may go on.
    assert_eq!(rig.write(b"still here"), Ok(10));
    assert_eq!(rig.sent_one().payload, b"still here");
    rig.shutdown();
    assert_eq!(rig.state(), StateName::LastAck);
    assert!(rig.sent_one().header.flags.contains(Flags::FIN));
    assert!(matches!(rig.data(1, 11, &[]), Disposition::Remove));
    assert_eq!(rig.events(), [TcpEvent::Closed(ID)]);
    assert_eq!(rig.state(), StateName::Closed);
    assert_eq!(rig.read().as_deref(), Ok(&b""[..]));
}

#[test]
fn both_close_at_once() {
    let mut rig = Rig::established(Options::internet());
    rig.shutdown();
    assert!(rig.sent_one().header.flags.contains(Flags::FIN));
    assert!(matches!(rig.fin(0, 0), Disposition::Keep));
    assert_eq!(rig.state(), StateName::Closing);
    assert_eq!(rig.sent_one().header.ack, IRS + 2);
    let Disposition::TimeWait(record, None) = rig.data(1, 1, &[]) else { panic!("no TIME-WAIT") };
    assert_eq!((record.snd_nxt, record.rcv_nxt), (ISS + 2, IRS + 2));
    assert_eq!(rig.events(), [TcpEvent::Readable(ID), TcpEvent::Closed(ID)]);
}

#[test]
fn a_fin_that_acknowledges_ours_skips_closing() {
    let mut rig = Rig::established(Options::internet());
    rig.shutdown();
    rig.sent_one();
    assert!(matches!(rig.fin(0, 1), Disposition::TimeWait(_, Some(_))));
}

#[test]
fn a_half_closed_side_reads_on() {
    let mut rig = Rig::established(Options::internet());
    rig.shutdown();
    assert_eq!(rig.sent_one().header.flags, Flags::ACK.with(Flags::FIN));
    assert!(matches!(rig.data(0, 1, b"more"), Disposition::Keep));
    assert_eq!(rig.state(), StateName::FinWait2);
    assert_eq!(rig.read().as_deref(), Ok(&b"more"[..]));
    assert_eq!(rig.sent_one().header.ack, IRS + 5);
    assert!(matches!(rig.data(4, 1, b"last"), Disposition::Keep));
    assert!(matches!(rig.fin(8, 1), Disposition::TimeWait(_, Some(_))));
    // What was received stays readable.
    assert_eq!(rig.read().as_deref(), Ok(&b"last"[..]));
    assert_eq!(rig.read().as_deref(), Ok(&b""[..]));
    assert!(matches!(rig.close(), Disposition::Remove));
}

#[test]
fn data_after_close_is_reset() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.close(), Disposition::Keep));
    rig.sent_one();
    assert!(matches!(rig.data(0, 1, &[]), Disposition::Keep));
    let Disposition::Reset(reset) = rig.data(0, 1, b"too late") else { panic!("no reset") };
    assert_eq!((reset.seq, reset.flags), (ISS + 2, Flags::RST.with(Flags::ACK)));
    assert!(rig.connection.is_over());
}

#[test]
fn closing_with_data_unread_resets() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(0, 0, b"unread"), Disposition::Keep));
    let Disposition::Reset(reset) = rig.close() else { panic!("no reset") };
    assert_eq!((reset.seq, reset.ack), (ISS + 1, IRS + 7));
    assert_eq!(rig.pool.used(), 0);
}

#[test]
fn abort_resets_where_the_peer_may_still_care() {
    let mut rig = Rig::established(Options::internet());
    assert_eq!(rig.write(b"lost"), Ok(4));
    assert!(matches!(rig.abort(), Disposition::Reset(reset) if reset.flags.contains(Flags::RST)));
    let mut rig = Rig::established(Options::internet());
    rig.shutdown();
    rig.sent_one();
    assert!(matches!(rig.fin(0, 0), Disposition::Keep));
    assert!(matches!(rig.abort(), Disposition::Remove));
}

#[test]
fn fin_wait_2_ends_once_the_user_has_closed() {
    let mut rig = Rig::established(Options::internet());
    rig.shutdown();
    rig.sent_one();
    assert!(matches!(rig.data(0, 1, &[]), Disposition::Keep));
    // The sender gives its memory back after a while.
    assert!(rig.wait().0 <= Duration::from_secs(1));
    assert_eq!(rig.connection.next_deadline(), None, "a half-closed connection may stay so");
    assert!(matches!(rig.close(), Disposition::Keep));
    let (time, disposition) = rig.wait();
    assert_eq!(time, Options::internet().fin_wait_2);
    assert!(matches!(disposition, Disposition::Remove));
}

#[test]
fn resets_are_believed_with_the_next_number_only() {
    let mut rig = Rig::established(Options::internet());
    for seq in [1, 100, 60_000] {
        let header = rig.header(seq, 0, Flags::RST);
        assert!(matches!(rig.give(header, &[]), Disposition::Keep));
        let challenge = rig.sent_one().header;
        assert_eq!((challenge.seq, challenge.ack, challenge.flags), (ISS + 1, IRS + 1, Flags::ACK));
    }
    for seq in [u32::MAX, 70_000, 1 << 31] {
        let header = rig.header(seq, 0, Flags::RST);
        assert!(matches!(rig.give(header, &[]), Disposition::Keep));
        rig.sent_nothing();
    }
    assert!(matches!(rig.data(0, 0, b"data"), Disposition::Keep));
    let header = Header { options: tcp::Options::default(), ..rig.header(4, 0, Flags::RST) };
    assert!(matches!(rig.give(header, &[]), Disposition::Remove));
    let failure = Failure::Reset { remote: open().remote };
    assert_eq!(rig.events(), [TcpEvent::Readable(ID), TcpEvent::Failed(ID, failure)]);
    assert_eq!(rig.read(), Err(Error::Failed(failure)));
    assert_eq!(rig.pool.used(), 0);
}

#[test]
fn a_reset_while_closing_is_no_failure() {
    let mut rig = Rig::established(Options::internet());
    rig.shutdown();
    rig.sent_one();
    assert!(matches!(rig.fin(0, 0), Disposition::Keep));
    let reset = rig.header(1, 0, Flags::RST);
    assert!(matches!(rig.give(reset, &[]), Disposition::Remove));
    assert_eq!(rig.events(), [TcpEvent::Readable(ID), TcpEvent::Closed(ID)]);
}

#[test]
fn keep_alive_asks_and_gives_up() {
    let keep_alive = KeepAlive { idle: Duration::from_secs(60), interval: Duration::from_secs(5), probes: 2 };
    let mut rig = Rig::established(Options { keep_alive: Some(keep_alive), ..Options::internet() });
    assert_eq!(rig.wait().0, Duration::from_secs(60));
    let probe = rig.sent_one().header;
    assert_eq!((probe.seq, probe.ack, probe.flags), (ISS, IRS + 1, Flags::ACK));
    // An answer starts the silence anew.
    assert!(matches!(rig.data(0, 0, &[]), Disposition::Keep));
    assert_eq!(rig.wait().0, Duration::from_secs(60));
    rig.sent_one();
    assert_eq!(rig.wait().0, Duration::from_secs(5));
    rig.sent_one();
    let (time, disposition) = rig.wait();
    assert_eq!(time, Duration::from_secs(5));
    assert!(matches!(disposition, Disposition::Reset(_)));
    failed(&mut rig, Failure::TimedOut { remote: open().remote, after: Duration::from_secs(70) });
}

#[test]
fn a_keep_alive_of_the_peer_is_answered() {
    let mut rig = Rig::established(Options::internet());
    let probe = rig.header(u32::MAX, 0, Flags::ACK);
    assert!(matches!(rig.give(probe, &[]), Disposition::Keep));
    assert_eq!(rig.sent_one().header.ack, IRS + 1);
    assert!(matches!(rig.give(probe, b"x"), Disposition::Keep));
    assert_eq!(rig.sent_one().header.ack, IRS + 1);
    assert_eq!(rig.read(), Err(Error::WouldBlock));
}

#[test]
fn the_user_timeout_ends_what_is_not_acknowledged() {
    let timeout = Duration::from_secs(7);
    let mut rig = Rig::established(Options { user_timeout: Some(timeout), ..Options::internet() });
    let began = rig.now;
    assert_eq!(rig.write(b"anyone?"), Ok(7));
    rig.sent_one();
    for _ in 0..50 {
        let (_, disposition) = rig.wait();
        rig.sent();
        if let Disposition::Remove = disposition {
            break;
        }
    }
    assert_eq!(rig.now.saturating_since(began), timeout);
    failed(&mut rig, Failure::TimedOut { remote: open().remote, after: timeout });
}

#[test]
fn tokens_come_back_when_a_connection_ends() {
    let mut rig = Rig::established(Options::internet());
    let region = crate::region::Region::from_static(crate::region::RegionId(9), b"from the caller's memory");
    let extent = region.extent(0, 24).expect("within");
    let written = rig.with(|connection, _, cx| connection.write_extent(extent, ReleaseToken(5), cx));
    assert_eq!(written, Ok(()));
    assert_eq!(rig.sent_one().payload, b"from the caller's memory");
    assert!(matches!(rig.abort(), Disposition::Reset(_)));
    assert_eq!(rig.events(), [TcpEvent::Dropped(ID, ReleaseToken(5))]);
}
