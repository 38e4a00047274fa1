use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::group::conn::{Conn, ReadStatus, Trusted};
use crate::group::handshake::{Acceptor, Answer, Connector, OPENING_LEN, PROOF_LEN, VERDICT_LEN, VERSION};
use crate::group::sys;
use crate::group::tests::{Job, SOON, refusal, roster};
use crate::key::Key;

/// Reads until the other side closes, and returns how much came.
fn until_closed(mut stream: TcpStream) -> usize {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    bytes.len()
}

#[test]
fn every_rank_gets_the_same_roster() {
    let job = Job::new(5);
    let ranks: Vec<_> = (0..5).map(|rank| job.join(rank)).collect();
    let rosters: Vec<Roster> = ranks.into_iter().map(roster).collect();
    assert!(rosters.iter().all(|other| *other == rosters[0]));
    assert_eq!((rosters[0].epoch, rosters[0].job.as_str(), rosters[0].nodes()), (1, "test", 1));
    for (rank, member) in rosters[0].members.iter().enumerate() {
        assert_eq!((member.rank, member.local_rank), (rank as u32, rank as u32));
        assert_eq!(member.blob, format!("blob of {rank}").into_bytes());
    }
}

#[test]
fn the_secret_is_new_at_each_start() {
    let secrets: Vec<_> = (0..2)
        .map(|_| {
            let job = Job::new(2);
            let (zero, one) = (job.join(0), job.join(1));
            let (zero, one) = (roster(zero), roster(one));
            assert_eq!(zero.session_secret, one.session_secret);
            zero.session_secret
        })
        .collect();
    assert_ne!(secrets[0], secrets[1]);
}

#[test]
fn a_rank_alone_meets_nobody() {
    let mut job = Job::new(1);
    job.config.listener = None;
    let (roster, mut link) = join(&job.config, job.hello(0)).unwrap();
    assert_eq!((roster.members.len(), roster.nodes()), (1, 1));
    assert_eq!(link.all_gather("x", b"y", Duration::from_secs(1)).unwrap(), [b"y"]);
}

#[test]
fn ranks_may_come_before_rank_0_listens() {
    let mut job = Job::new(3);
    job.config.listener = None;
    let early: Vec<_> = (1..3).map(|rank| job.join(rank)).collect();
    let zero = job.join(0);
    let zero = roster(zero);
    assert!(early.into_iter().all(|rank| roster(rank) == zero));
}

#[test]
fn connections_without_the_key_are_refused_and_the_job_goes_on() {
    let job = Job::new(2);
    let zero = job.join(0);

    // A port scan: connections that close at once.
    for _ in 0..50 {
        drop(job.connect());
    }
    // Another protocol.
    let mut http = job.connect();
    http.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(until_closed(http), 0);
    // A megabyte of bytes from a generator.
    let mut noise = job.connect();
    let bytes: Vec<u8> = (0u32..1 << 18).flat_map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    assert_eq!(bytes.len(), 1 << 20);
    // The other side closes in the middle of it.
    let _ = noise.write_all(&bytes);
    assert_eq!(until_closed(noise), 0);
    // The right first bytes, then noise where a proof should be.
    let mut liar = job.connect();
    liar.write_all(b"SHOUTER\x01").unwrap();
    liar.write_all(&bytes[..36 + 64]).unwrap();
    assert!(until_closed(liar) > 0, "it is told no more than an opening and a refusal");
    // Another key.
    let wrong_key = job.join_as(job.hello(1), |config| {
        config.key = Key::from_secret([8; 32]);
        config.deadline = Duration::from_millis(500);
    });
    let error = wrong_key.join().unwrap().err().unwrap();
    assert!(matches!(error, JoinError::WrongKey { rank: 1, .. }), "{error}");
    assert!(error.to_string().contains("SHOUTER_KEY"), "{error}");
    // Another job with the same key.
    let other_job = job.join_as(job.hello(1), |config| config.job = "other".into());
    let told = refusal(other_job);
    assert_eq!(told, Refusal::AnotherJob { job: "test".into() });
    assert!(told.to_string().contains("SHOUTER_JOB"));

    let one = job.join(1);
    assert_eq!(roster(zero), roster(one));
}

#[test]
fn silent_connections_do_not_delay_the_join() {
    let job = Job::new(3);
    let zero = job.join(0);
    // More than there are slots, some silent, some with half an opening.
    let silent: Vec<TcpStream> = (0..100)
        .map(|i| {
            let mut stream = job.connect();
            if i % 2 == 0 {
                stream.write_all(b"SHOUT").unwrap();
            }
            stream
        })
        .collect();
    let begun = Instant::now();
    let (one, two) = (job.join(1), job.join(2));
    let zero = roster(zero);
    assert_eq!(zero, roster(one));
    assert_eq!(zero, roster(two));
    assert!(begun.elapsed() < Duration::from_secs(4), "their five seconds were waited for");
    drop(silent);
}

#[test]
fn ranks_that_do_not_come_are_named_on_every_rank() {
    let job = Job::new(4).within(Duration::from_millis(1500));
    let (zero, one) = (job.join(0), job.join(1));
    for refusal in [refusal(zero), refusal(one)] {
        let Refusal::Missing { missing, .. } = &refusal else { panic!("{refusal}") };
        assert_eq!(*missing, Missing { ranks: vec![2, 3], total: 2 });
        let text = refusal.to_string();
        assert!(
            text.contains("ranks 2, 3 did not arrive within 1.5 s: check that they were started"),
            "{text}"
        );
        assert!(text.contains(&format!("127.0.0.1 port {}", job.config.port)), "{text}");
    }
}

#[test]
fn an_error_for_missing_ranks_tells_who_was_refused() {
    let job = Job::new(2).within(Duration::from_secs(1));
    let zero = job.join(0);
    let wrong_key = job.join_as(job.hello(1), |config| config.key = Key::from_secret([8; 32]));
    assert!(wrong_key.join().unwrap().is_err());
    let text = refusal(zero).to_string();
    assert!(text.contains("connections refused meanwhile: "), "{text}");
    assert!(text.contains("the last from 127.0.0.1"), "{text}");
    assert!(text.contains("it has another key"), "{text}");
}

#[test]
fn an_unreachable_rank_0_is_named_with_its_address() {
    let mut job = Job::new(2).within(Duration::from_millis(300));
    job.config.listener = None;
    let error = join(&job.config, job.hello(1)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, JoinError::Unreachable { rank: 1, .. }), "{text}");
    for part in ["127.0.0.1", &job.config.port.to_string(), "refused", "SHOUTER_ADDR", "firewall"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_name_that_does_not_resolve_is_named() {
    let mut job = Job::new(2).within(Duration::from_millis(300));
    job.config.host = "no such host".into();
    job.config.listener = None;
    for rank in 0..2 {
        let begun = Instant::now();
        let text = join(&job.config, job.hello(rank)).unwrap_err().to_string();
        assert!(text.contains("`no such host` of rank 0's host cannot be resolved"), "{text}");
        for part in ["tried for 0.3 s", "SHOUTER_ADDR", "/etc/hosts"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(begun.elapsed() >= job.config.deadline, "it was not tried until the deadline");
    }
}

/// A rank that waits for rank 0 meets others on its port: one of another job with another key, and another program.
#[test]
fn a_waiting_rank_tries_again_after_others_had_the_port() {
    let mut job = Job::new(2);
    let waiting = job.join_as(job.hello(1), |config| config.listener = None);
    // They have the port at first.
    let mut other = job.clone().within(Duration::from_millis(300));
    other.config.key = Key::from_secret([8; 32]);
    job.config.listener = None;
    let refused = refusal(other.join(0)).to_string();
    assert!(refused.contains("it has another key"), "the rank did not meet it: {refused}");
    drop(other);
    let program = TcpListener::bind((Ipv4Addr::LOCALHOST, job.config.port)).unwrap();
    let mut met = program.accept().unwrap().0;
    met.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    drop((met, program));
    let zero = job.join(0);
    assert_eq!(roster(zero), roster(waiting));
}

#[test]
fn who_comes_late_hears_why_the_job_has_ended() {
    let job = Job::new(4);
    let (zero, one) = (job.join(0), job.join(1));
    let mut odd = job.hello(2);
    odd.plan = vec![("channel_num".into(), 4)];
    let two = refusal(job.join_as(odd, |_| {}));
    assert_eq!(refusal(one), two);
    thread::sleep(Duration::from_millis(500));
    assert_eq!([refusal(job.join(3)), refusal(zero)], [two.clone(), two]);
}

#[test]
fn another_program_on_the_port_is_told_apart() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut job = Job::new(2);
    job.config.port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The rank may have given this connection up already.
            if stream.write_all(b"220 mail.example ESMTP\r\n").is_ok()
                && stream.shutdown(Shutdown::Write).is_ok()
            {
                until_closed(stream);
            }
        }
    });
    job = job.within(Duration::from_millis(700));
    let begun = Instant::now();
    let error = join(&job.config, job.hello(1)).unwrap_err();
    assert!(matches!(error, JoinError::NotShouter { .. }), "{error}");
    assert!(error.to_string().contains("for 0.7 s") && begun.elapsed() >= job.config.deadline, "{error}");
}

#[test]
fn a_taken_port_is_named_on_rank_0() {
    let mut job = Job::new(2);
    let _taken = job.config.listener.take();
    let error = join(&job.config, job.hello(0)).unwrap_err();
    assert!(matches!(error, JoinError::CannotListen { .. }), "{error}");
    assert!(error.to_string().contains("SHOUTER_PORT"), "{error}");
}

#[test]
fn a_rank_that_comes_twice_is_told_and_the_first_one_stays() {
    let job = Job::new(3);
    let zero = job.join(0);
    let (done, results) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let (done, rank) = (done.clone(), job.join(1));
        thread::spawn(move || done.send(rank.join().unwrap()).is_ok());
    }
    // Rank 2 is not there, so only the refused one can be done.
    let refused = results.recv().unwrap().unwrap_err();
    assert!(matches!(refused, JoinError::Refused(Refusal::DuplicateRank { rank: 1, .. })), "{refused}");
    assert!(refused.to_string().contains("SHOUTER_RANK"), "{refused}");
    let two = roster(job.join(2));
    let (one, _) = results.recv().unwrap().unwrap();
    assert_eq!([roster(zero), one], [two.clone(), two]);
}

/// Rank 0 and rank 1 agree, and rank 2 comes with another hello: all three get the same refusal.
fn all_receive(change: impl FnOnce(&mut Hello)) -> Refusal {
    let job = Job::new(3);
    let (zero, one) = (job.join(0), job.join(1));
    let mut hello = job.hello(2);
    change(&mut hello);
    let two = job.join_as(hello, |_| {});
    let two = refusal(two);
    assert_eq!([refusal(zero), refusal(one)], [two.clone(), two.clone()]);
    two
}

#[test]
fn a_rank_that_disagrees_ends_the_job_for_all_with_its_name() {
    // A place shows to be wrong when all are there; the others show at once, so there two ranks are enough.
    let told = all_receive(|hello| *hello = hello.clone().on_machine(7));
    assert!(matches!(told, Refusal::Place { rank: 2, .. }), "{told}");

    for (change, expected) in [
        (
            (|hello: &mut Hello| hello.size = 4) as fn(&mut Hello),
            "rank 1 says that the job has 4 ranks, rank 0 says 2",
        ),
        (|hello| hello.plan[1].1 = 4, "lanes: rank 1 has 4 and rank 0 has 3"),
        (
            |hello| drop(hello.plan.remove(0)),
            "channel_num: rank 1 has the default (not set) and rank 0 has 10",
        ),
        (
            |hello| hello.plan.push(("schedule of all-reduce".into(), 2)),
            "schedule of all-reduce: rank 1 has ring and rank 0 has none",
        ),
        (|hello| hello.plan.push(("depth".into(), 1)), "depth: rank 1 has 1 and rank 0 has none"),
        (|hello| hello.local_size = 1, "rank 1 cannot be where it says"),
    ] {
        let job = Job::new(2);
        let zero = job.join(0);
        let mut hello = job.hello(1);
        change(&mut hello);
        let one = job.join_as(hello, |_| {});
        let (zero, one) = (refusal(zero), refusal(one));
        assert_eq!(zero, one);
        assert!(zero.to_string().contains(expected), "{zero}");
    }
}

/// A rank by hand: proves itself as a given version and returns the connection.
fn by_hand(job: &Job, version: u32) -> Trusted {
    let mut stream = job.connect();
    let mut connector = Connector::new(version, [3; 32]);
    stream.write_all(connector.opening()).unwrap();
    let mut opening = [0; OPENING_LEN];
    stream.read_exact(&mut opening).unwrap();
    stream.write_all(&connector.prove(&job.config.key, "test", &opening).unwrap()).unwrap();
    let mut verdict = [0; VERDICT_LEN];
    stream.read_exact(&mut verdict).unwrap();
    let (framer, _) = connector.conclude(&job.config.key, &verdict).unwrap();
    let peer = stream.peer_addr().unwrap();
    Trusted::new(Conn::new(stream, peer).unwrap(), framer)
}

/// A rank by hand that rank 0 has taken in.
fn taken_in(job: &Job, rank: u32) -> Trusted {
    let mut member = by_hand(job, VERSION);
    member.queue(&Message::Hello(job.hello(rank))).unwrap();
    member.conn.flush().unwrap();
    let Message::Waiting(missing) = next(&mut member) else { panic!("not taken in") };
    assert!(!missing.ranks.contains(&rank), "{missing}");
    member
}

/// The next message on a connection by hand.
fn next(trusted: &mut Trusted) -> Message {
    let until = Instant::now() + SOON;
    let mut end = ReadStatus::Open;
    loop {
        if let Some(message) = trusted.next(10_000).unwrap() {
            return message;
        }
        assert_eq!(end, ReadStatus::Open, "closed without a message");
        assert!(Instant::now() < until, "no message came");
        sys::wait(&[(trusted.conn.fd(), false)], until).unwrap();
        end = trusted.read(10_000).unwrap();
    }
}

#[test]
fn another_version_that_holds_the_key_ends_the_job_for_all() {
    let job = Job::new(2);
    let zero = job.join(0);
    let Message::Refused(told) = next(&mut by_hand(&job, VERSION + 1)) else { panic!("not refused") };
    assert!(
        matches!(told, Refusal::Version { theirs, ours: VERSION, .. } if theirs == VERSION + 1),
        "{told}"
    );
    assert_eq!(refusal(zero), told);
}

/// Rank 0 by hand, with a given version: its connection to the first rank that comes.
fn rank_0_by_hand(job: &Job, version: u32) -> Trusted {
    let (mut stream, peer) = job.config.listener.as_ref().unwrap().accept().unwrap();
    let mut handshake = Acceptor::new(version, [1; 32]);
    let (mut opening, mut proof) = ([0; OPENING_LEN], [0; PROOF_LEN]);
    stream.read_exact(&mut opening).unwrap();
    let Ok(Answer::Send(ours)) = handshake.step(&job.config.key, "test", &opening) else { panic!() };
    stream.write_all(&ours).unwrap();
    stream.read_exact(&mut proof).unwrap();
    let Ok(Answer::Welcome(verdict, told)) = handshake.step(&job.config.key, "test", &proof) else {
        panic!()
    };
    stream.write_all(&verdict).unwrap();
    Trusted::new(Conn::new(stream, peer).unwrap(), told.framer)
}

/// The messages of rank 0 after the handshake have no meaning for this rank then.
#[test]
fn a_rank_sees_by_the_handshake_alone_that_rank_0_has_another_version() {
    let job = Job::new(2);
    let one = job.join(1);
    let _rank_0 = rank_0_by_hand(&job, VERSION + 1);
    let told = refusal(one);
    assert!(matches!(told, Refusal::Version { theirs: VERSION, ours, .. } if ours == VERSION + 1), "{told}");
    let text = told.to_string();
    let says = format!(
        "speaks version {VERSION} of the rendezvous and rank 0 speaks {}; install the same release",
        VERSION + 1
    );
    assert!(text.contains(&says), "{text}");
}

#[test]
fn a_rank_that_dies_before_the_others_come_may_come_back() {
    let job = Job::new(3);
    let zero = job.join(0);
    drop(taken_in(&job, 1));
    let one = job.join(1);
    let two = job.join(2);
    assert_eq!(roster(zero), roster(one));
    roster(two);
}

#[test]
fn a_rank_that_dies_and_does_not_come_back_is_named_long_before_the_deadline() {
    let job = Job::new(4);
    let (zero, one) = (job.join(0), job.join(1));
    drop(taken_in(&job, 2));
    let told = refusal(zero);
    assert!(matches!(told, Refusal::Left { rank: 2, .. }), "{told}");
    assert_eq!(refusal(one), told);
}

#[test]
fn a_member_without_sense_is_refused_and_the_job_goes_on() {
    let job = Job::new(2);
    let zero = job.join(0);
    for message in [&b"short"[..], &wire::encode(&Message::Leave(None)).unwrap(), &[0; MAX_HELLO + 1]] {
        let mut odd = by_hand(&job, VERSION);
        odd.queue_encoded(message);
        let _ = odd.conn.flush();
        let until = Instant::now() + SOON;
        while matches!(odd.read(10_000), Ok(ReadStatus::Open)) {
            assert!(Instant::now() < until, "it is still held");
            sys::wait(&[(odd.conn.fd(), odd.conn.has_output())], until).unwrap();
            let _ = odd.conn.flush();
        }
    }
    let one = job.join(1);
    assert_eq!(roster(zero), roster(one));
}

#[test]
fn a_hello_that_is_too_large_is_not_sent() {
    let job = Job::new(2);
    let mut hello = job.hello(1);
    hello.table = vec![0; MAX_HELLO];
    let error = join(&job.config, hello).unwrap_err();
    assert!(matches!(error, JoinError::HelloTooLarge { limit: MAX_HELLO, .. }), "{error}");
    let error = join(&job.config, Hello::new(2, 2, 0, 1).unwrap()).unwrap_err();
    assert_eq!(error, JoinError::NoSuchRank { rank: 2, size: 2 });
}

/// Rank 17 of 18 gets the roster from rank 1, whose port does not answer; so it asks rank 0.
#[test]
fn a_rank_that_finds_no_roster_where_it_should_gets_it_from_rank_0() {
    let job = Job::new(18);
    let zero = job.join(0);
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut one = by_hand(&job, VERSION);
    let mut hello = job.hello(1);
    hello.relay = Some(closed);
    one.queue(&Message::Hello(hello)).unwrap();
    one.conn.flush().unwrap();
    let others: Vec<_> = (2..18).map(|rank| job.join(rank)).collect();
    let (zero, mut link) = zero.join().unwrap().unwrap();
    let until = Instant::now() + SOON;
    while !others.iter().all(thread::JoinHandle::is_finished) {
        link.check("the roster").unwrap();
        assert!(Instant::now() < until, "a rank has no roster");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(others.into_iter().all(|rank| roster(rank) == zero));
    let told = std::iter::repeat_with(|| next(&mut one)).find(|told| !matches!(told, Message::Waiting(_)));
    assert_eq!(told, Some(Message::Relay { others: 1 }));
}

/// Rank 17 asks rank 0 for the roster when rank 0 is in the first exchange already, and gets the same error as the
/// others.
#[test]
fn a_rank_without_the_roster_learns_why_the_set_up_failed() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let gave_up = ExchangeError::GaveUp { rank: 3, why: "no device".into() };
    let left = |rank, why: &str| ExchangeError::Left { tag: "the roster".into(), rank, why: why.into() };
    for (last, expected) in [
        (Some(Message::Failed(gave_up.clone())), gave_up),
        (Some(Message::Lost(5)), left(5, "its process has ended")),
        (None, left(0, "it closed the connection before this rank had the roster")),
    ] {
        let job = Job::new(18);
        let rank = job.join(17);
        let mut zero = rank_0_by_hand(&job, VERSION);
        assert!(matches!(next(&mut zero), Message::Hello(_)));
        zero.queue(&Message::RosterAt { from: closed, digest: [0; 32] }).unwrap();
        zero.conn.flush().unwrap();
        assert_eq!(next(&mut zero), Message::Resend);
        if let Some(last) = &last {
            zero.queue(last).unwrap();
            zero.conn.flush().unwrap();
        }
        drop(zero);
        // A rank that connects again finds no listener.
        assert_eq!(rank.join().unwrap().unwrap_err(), JoinError::SetUp(expected));
    }
}

/// The port of the rank above lets nobody in. The time for that is the join's, and ranks below have given up at the same time.
#[test]
fn the_way_down_the_tree_takes_no_longer_than_the_join_may() {
    let job = Job::new(300).within(Duration::from_secs(1));
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let rank = job.join(17);
    let mut zero = rank_0_by_hand(&job, VERSION);
    let Message::Hello(Hello { relay: Some(_), .. }) = next(&mut zero) else { panic!("it has no port") };
    zero.queue(&Message::Relay { others: 16 }).unwrap();
    zero.queue(&Message::RosterAt { from: silent.local_addr().unwrap(), digest: [0; 32] }).unwrap();
    zero.conn.flush().unwrap();
    let begun = Instant::now();
    assert_eq!(next(&mut zero), Message::Resend);
    assert!(begun.elapsed() < Duration::from_secs(4), "it waited for {:?}", begun.elapsed());
    let member =
        |rank| Member { rank, local_rank: rank, local_size: 300, node: 0, table: vec![], blob: vec![] };
    zero.queue(&Message::Roster { epoch: 1, nonce: [0; 32], members: (0..300).map(member).collect() })
        .unwrap();
    zero.conn.flush().unwrap();
    let begun = Instant::now();
    assert_eq!(roster(rank).members.len(), 300);
    assert!(begun.elapsed() < Duration::from_secs(1), "it waited for ranks below for {:?}", begun.elapsed());
}

#[test]
fn a_hello_at_the_limit_is_taken_with_its_port() {
    let job = Job::new(18).within(Duration::from_secs(10));
    let len = |hello: &Hello| wire::encode(&Message::Hello(hello.clone())).unwrap().len();
    let mut hello = job.hello(1);
    hello.relay = Some(u16::MAX);
    hello.table = vec![0; MAX_HELLO - 1000];
    hello.table.resize(MAX_HELLO - 1000 + MAX_HELLO - len(&hello), 0);
    assert_eq!(len(&hello), MAX_HELLO);
    hello.relay = None;
    let mut larger = hello.clone();
    larger.table.push(0);
    assert!(len(&larger) <= MAX_HELLO, "without its port it is small enough");
    let error = join(&job.config, larger).unwrap_err();
    assert!(matches!(error, JoinError::HelloTooLarge { limit: MAX_HELLO, .. }), "{error}");
    let others: Vec<_> = (0..18).filter(|rank| *rank != 1).map(|rank| job.join(rank)).collect();
    let one = roster(job.join_as(hello, |_| {}));
    assert!(others.into_iter().all(|rank| roster(rank) == one));
}

#[test]
fn rank_0_keeps_the_encoded_roster_until_the_first_exchange() {
    let job = Job::new(2);
    let one = job.join(1);
    let server::Gathered { members, encoded, .. } = server::join(&job.config, job.hello(0)).unwrap();
    let kept = Arc::downgrade(&encoded);
    let mut zero = ControlLink::leader(members, (encoded, &[1]));
    assert!(kept.upgrade().is_some());
    let (_, mut one) = one.join().unwrap().unwrap();
    let other = thread::spawn(move || one.barrier("ways", SOON));
    zero.barrier("ways", SOON).unwrap();
    other.join().unwrap().unwrap();
    assert!(kept.upgrade().is_none());
}
