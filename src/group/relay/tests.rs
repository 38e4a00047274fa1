use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::group::conn::Traffic;
use crate::group::tests::{Job, SOON, roster};
use crate::key::Key;

#[test]
fn every_rank_is_below_one_other_and_three_steps_reach_a_thousand() {
    for size in [1, 2, 17, 18, 272, 273, 1024, 5000, 65_536] {
        let mut steps = vec![None; size as usize];
        steps[0] = Some(0);
        for rank in 0..size {
            for other in below(rank, size) {
                assert_eq!(above(other), Some(rank).filter(|rank| *rank > 0));
                let step = steps[rank as usize].map(|step| step + 1);
                assert!(
                    std::mem::replace(&mut steps[other as usize], step).is_none(),
                    "{other} is below two"
                );
            }
        }
        let deepest = steps.iter().map(|step| step.expect("a rank is below none")).max().unwrap();
        assert!(deepest <= if size <= 1024 { 3 } else { 4 }, "{size} ranks take {deepest} steps");
    }
    assert!(below(u32::MAX, u32::MAX).is_empty());
}

/// The bytes that rank 0 sends and receives until all have joined and made one exchange of each kind.
fn bytes_at_rank_0(size: u32) -> u64 {
    let job = Job::new(size);
    let ranks: Vec<_> = (0..size).map(|rank| job.join(rank)).collect();
    let (rosters, mut links): (Vec<_>, Vec<_>) =
        ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).unzip();
    assert!(rosters.iter().all(|other| *other == rosters[0]));
    assert_eq!(rosters[0].members.len(), size as usize);
    let deadline = Duration::from_secs(30);
    thread::scope(|scope| {
        for link in &mut links {
            scope.spawn(move || {
                assert_eq!(
                    link.transpose("ways", &vec![4; size as usize], deadline),
                    Ok(vec![4; size as usize])
                );
                assert_eq!(
                    link.all_gather("ports", b"rud", deadline).map(|all| all.len()),
                    Ok(size as usize)
                );
            });
        }
    });
    let Traffic { sent, received } = links[0].traffic();
    sent + received
}

/// Whether a process may have so many descriptors; raises its limit where it may.
fn may_open(descriptors: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).is_ok() && limit.maximum.is_none_or(|most| most >= descriptors)
}

/// A thousand ranks took a GiB when rank 0 sent each of them the roster and every rank's reach. The list of missing
/// ranks, which rank 0 sends twice a second, comes on top; on a slow machine more often.
#[test]
fn rank_0_sends_and_receives_in_proportion_to_the_ranks() {
    let size = if may_open(8 * 1024) { 1024 } else { 192 };
    let (few, many) = (bytes_at_rank_0(32), bytes_at_rank_0(size));
    println!("bytes at rank 0: {few} for 32 ranks, {many} for {size}");
    assert!(many <= 2 * few * u64::from(size / 32), "{few} bytes for 32 ranks, {many} for {size}");
    assert!(many <= u64::from(size) * 3 * 1024, "{many} bytes for {size} ranks");
}

#[test]
fn unauthenticated_peers_do_not_keep_the_roster_from_those_it_is_for() {
    let job = Job::new(2);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let message = Message::Relay { others: 7 };
    let encoded = wire::encode(&message).unwrap();
    let expected = digest(&encoded);
    let begun = Instant::now();
    let config = job.config.clone();
    let server = thread::spawn(move || serve(&config, &listener, &encoded, 3, begun + PATIENCE));
    let mut silent: Vec<_> = (0..2 * SLOTS).map(|_| TcpStream::connect(at).unwrap()).collect();
    for unauthenticated in silent.iter_mut().step_by(2) {
        // It may have been closed for the next one.
        let _ = unauthenticated.write_all(b"GET / HTTP/1.1\r\n\r\n");
    }
    let mut others = job.config.clone();
    others.key = Key::from_secret([8; 32]);
    assert!(fetch(&others, 1, at, &expected, begun + PATIENCE).unwrap_err().contains("key"));
    others = job.config.clone();
    others.job = "another".into();
    assert!(fetch(&others, 1, at, &expected, begun + PATIENCE).is_err());
    // A rank that passes on something else is detected.
    let told = fetch(&job.config, 1, at, &[0; 32], begun + PATIENCE).unwrap_err();
    assert!(told.contains("another roster"), "{told}");
    for rank in [2, 3] {
        assert_eq!(fetch(&job.config, rank, at, &expected, begun + PATIENCE), Ok(message.clone()));
    }
    server.join().unwrap();
    assert!(begun.elapsed() < PATIENCE, "it waited for more than it was told of");
}

/// An unauthenticated peer can open connections faster than a rank reads a large roster.
#[test]
fn unauthenticated_peers_do_not_interrupt_a_rank_that_reads_the_roster() {
    let job = Job::new(2);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    // More than the sockets buffer.
    let message = Message::Part { number: 0, tag: String::new(), bytes: vec![7; 32 << 20] };
    let encoded = wire::encode(&message).unwrap();
    let until = Instant::now() + SOON;
    let config = job.config.clone();
    let server = thread::spawn(move || serve(&config, &listener, &encoded, 1, until));
    let stream = TcpStream::connect(at).unwrap();
    let framer = prove(&job.config, 1, &stream, at, until).unwrap_or_else(|why| panic!("{why}"));
    let mut unauthenticated: Vec<_> = (0..=SLOTS).map(|_| TcpStream::connect(at).unwrap()).collect();
    // The first of them is closed for a later one; a peer that it would interrupt is closed by then.
    unauthenticated[0].set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(unauthenticated[0].read(&mut [0]).unwrap(), 0);
    let mut above = Trusted::new(Conn::new(stream, at).unwrap(), framer);
    let read = loop {
        let end = above.read(MAX_MESSAGE).unwrap();
        if let Some(read) = above.next(MAX_MESSAGE).unwrap() {
            break read;
        }
        assert!(end == ReadStatus::Open && Instant::now() < until, "it was interrupted");
        sys::wait(&[(above.conn.fd(), false)], until).unwrap();
    };
    assert!(read == message);
    drop(above);
    server.join().unwrap();
    assert!(Instant::now() < until, "the rank was not counted");
}

#[test]
fn who_serves_nobody_opens_no_port() {
    let job = Job::new(3);
    let stream = job.connect();
    assert!(listen(1, 3, &stream).is_none());
    assert!(listen(1, 18, &stream).is_some());
    let ranks: Vec<_> = (0..3).map(|rank| job.join(rank)).collect();
    ranks.into_iter().for_each(|rank| drop(roster(rank)));
}
