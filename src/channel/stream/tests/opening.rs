//! First uses: connections are made by the pairs that use them, from either side or both, and by nobody else.

use shouter_netstack::tcp::Failure;

use super::sockets::{LOCAL, SECRET, bind, peer, secrets, settings};
use super::*;
use crate::channel::loss::Loss;
use crate::runtime::Clock;

use std::io::Write;
use std::net::{TcpListener, TcpStream};

/// A message without payload.
fn word(src: u32) -> Header {
    Header::new(MessageKind::Vote, Rank(src), shouter_reducer::header::MatchKey::default())
}

/// Counts the messages of each sender.
#[derive(Default)]
struct Counter(Vec<u64>);

impl Inbox for Counter {
    fn fragment(&mut self, header: &Header, _: &[u8]) -> shouter_reducer::executor::Disposition {
        let at = header.src.0 as usize;
        self.0.resize(self.0.len().max(at + 1), 0);
        self.0[at] += 1;
        shouter_reducer::executor::Disposition::Consumed
    }

    fn released(&mut self, _: SendToken) {}
}

/// A leader among many.
struct Leader {
    channel: KernelChannel,
    came: Counter,
}

impl Leader {
    fn poll(&mut self, now: Instant) {
        self.channel.receive(now, &mut self.came);
        self.channel.transmit(now, &mut self.came);
    }

    fn says(&mut self, to: u32, own: u32) {
        let sent = self.channel.send(Rank(to), &word(own), PayloadRange::empty(), SendToken::CONTROL);
        assert_eq!(sent, Ok(()));
    }

    fn got_from(&self, rank: u32) -> u64 {
        self.came.0.get(rank as usize).copied().unwrap_or(0)
    }

    fn open(&self) -> usize {
        let connections = self.channel.peers.iter().flat_map(|(_, peer)| &peer.connections);
        connections.filter(|connection| connection.is_up()).count()
    }
}

fn leaders(count: u32, connections: u16) -> Vec<Leader> {
    let streams: Vec<_> = (0..count).map(|_| bind()).collect();
    let ports: Vec<_> = streams.iter().map(|streams| streams.local_addr().port()).collect();
    let leader = |(rank, streams): (u32, KernelStreams)| {
        let others = (0..count).filter(|other| *other != rank);
        let peers: Vec<_> = others.map(|other| peer(other, ports[other as usize])).collect();
        let settings = settings(rank, connections, true);
        let channel = StreamChannel::open(streams, Rank(rank), &peers, settings, Clock.now()).unwrap();
        Leader { channel, came: Counter::default() }
    };
    (0..count).zip(streams).map(leader).collect()
}

/// Polls all leaders, in an order that differs from time to time, until the condition is reached.
fn run(all: &mut [Leader], seed: u64, what: &str, mut condition: impl FnMut(&mut [Leader]) -> bool) {
    let end = Clock.now() + Duration::from_secs(20);
    let mut random = seed;
    while !condition(all) {
        assert!(Clock.now() < end, "seed {seed}: {what}");
        for _ in 0..all.len() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % all.len();
            all[at].poll(Clock.now());
        }
    }
}

#[test]
fn only_the_pairs_that_speak_have_connections() {
    const LEADERS: u32 = 64;
    let mut all = leaders(LEADERS, 2);
    assert!(
        all.iter().all(|leader| leader.channel.peers.indices().is_empty() && leader.channel.live.len() == 0)
    );
    for rank in 0..LEADERS {
        all[rank as usize].says((rank + 1) % LEADERS, rank);
    }
    let neighbours = |rank: u32| [(rank + LEADERS - 1) % LEADERS, (rank + 1) % LEADERS];
    run(&mut all, 1, "a word from the one before", |all| {
        (0..LEADERS).all(|rank| all[rank as usize].got_from(neighbours(rank)[0]) == 1)
    });
    for (rank, leader) in (0..LEADERS).zip(&all) {
        assert_eq!(leader.open(), 2, "rank {rank}: one with each neighbour, for control messages");
        for other in (0..LEADERS).filter(|other| *other != rank) {
            assert_eq!(
                leader.channel.is_used(Rank(other)),
                neighbours(rank).contains(&other),
                "{rank} {other}"
            );
        }
        assert_eq!(leader.channel.refused(), 0);
    }
}

#[test]
fn both_sides_may_be_the_first_at_a_time() {
    const SEEDS: u64 = 300;
    const CONNECTIONS: u16 = 3;
    let (mut gave_way, mut ties) = (0, [0; 2]);
    for seed in 0..SEEDS {
        let mut both = leaders(2, CONNECTIONS);
        // One may be some polls ahead of the other, in any state of its dials.
        let (first, ahead) = ((seed % 2) as usize, seed / 2 % 12);
        let use_it = |all: &mut [Leader], rank: usize| {
            all[rank].says(1 - rank as u32, rank as u32);
            let index = all[rank].channel.peers.index(Rank(1 - rank as u32)).unwrap();
            all[rank].channel.want_data(index);
        };
        use_it(&mut both, first);
        for _ in 0..ahead {
            both.iter_mut().for_each(|leader| leader.poll(Clock.now()));
        }
        use_it(&mut both, 1 - first);
        run(&mut both, seed, "all connections, and both words", |all| {
            let is_done = |rank: usize| {
                all[rank].got_from(1 - rank as u32) == 1 && all[rank].open() == usize::from(CONNECTIONS) + 1
            };
            gave_way += usize::from(all.iter().any(|leader| leader.channel.live.len() > leader.open() + 2));
            is_done(0) && is_done(1)
        });
        // Those that gave way are gone as well.
        run(&mut both, seed, "one connection each", |all| {
            all.iter().all(|leader| leader.channel.live.len() == usize::from(CONNECTIONS) + 1)
        });
        for leader in &mut both {
            ties.iter_mut().zip(leader.channel.ties).for_each(|(all, here)| *all += here);
            assert!(leader.channel.take_lost().is_none(), "seed {seed}");
            assert_eq!(leader.channel.refused(), 0, "seed {seed}");
            let address = leader.channel.live.streams().local_addr();
            TcpStream::connect(address).expect_err("all connections exist: nobody listens");
        }
        // Each word has come once.
        both[0].says(1, 0);
        run(&mut both, seed, "another word", |all| all[1].got_from(0) == 2);
    }
    println!("{gave_way} looks at more connections than were kept, ties of both rules: {ties:?}");
    assert!(ties.iter().all(|count| *count > 0), "{ties:?}");
}

#[test]
fn a_stranger_after_the_first_use_is_refused_and_counted_and_harms_nothing() {
    let mut all = leaders(3, 1);
    all[0].says(1, 0);
    run(&mut all, 7, "a word", |all| all[1].got_from(0) == 1);
    let address = all[0].channel.live.streams().local_addr();
    let claim = handshake::Claim { from: Rank(2), to: Rank(0), connection: 0, crc: true, nonce: [1; 16] };
    let forged = secrets([8; 32], 0).hello(&[0; 16], &claim).to_vec();
    let replayed = secrets(SECRET, 0).hello(&[0; 16], &claim).to_vec();
    let mut callers = vec![];
    for says in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 72], &forged, &replayed, &[9; 60_000]] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(says);
            callers.push(stream);
        }
    }
    drop(callers);
    run(&mut all, 8, "refusals", |all| all[0].channel.refused() == 100);
    assert!(!all[0].channel.is_used(Rank(2)), "who has not shown that it is rank 2 makes no state of it");
    assert_eq!((all[0].channel.admission.len(), all[0].channel.live.len()), (0, 1));
    // Members come in all the same, at any time.
    all[2].says(0, 2);
    all[1].says(0, 1);
    run(&mut all, 9, "words", |all| all[0].got_from(2) == 1 && all[0].got_from(1) == 1);
    assert!(all.iter_mut().all(|leader| leader.channel.take_lost().is_none()));
}

#[test]
fn a_flood_of_strangers_takes_bounded_memory_and_members_come_in() {
    let mut all = leaders(40, 10);
    let address = all[0].channel.live.streams().local_addr();
    let most = admission::MAX_UNAUTHENTICATED + 39 * 11;
    let callers: Vec<_> = (0..most + 100).map(|_| TcpStream::connect(address)).collect();
    all[1].says(0, 1);
    run(&mut all[..2], 3, "a word", |all| all[0].got_from(1) == 1);
    assert!(all[0].channel.admission.len() <= most);
    // After the join all of them may take only so many of the process's open files.
    all.iter_mut().for_each(|leader| leader.channel.joined());
    let more: Vec<_> = (0..200).map(|_| TcpStream::connect(address)).collect();
    all[2].says(0, 2);
    run(&mut all[..3], 4, "a word", |all| all[0].got_from(2) == 1);
    assert!(all[0].channel.admission.len() <= admission::MAX_LATER);
    drop((callers, more));
}

#[test]
fn a_peer_with_many_connections_is_not_crowded_out_by_its_own() {
    let mut all = leaders(2, 256);
    all.iter_mut().for_each(|leader| leader.channel.joined());
    all[1].says(0, 1);
    let index = all[1].channel.peers.index(Rank(0)).unwrap();
    all[1].channel.want_data(index);
    run(&mut all, 13, "all connections", |all| all[1].open() == 257 && all[0].got_from(1) == 1);
    assert_eq!(all[0].channel.admission.refused(), 0);
}

/// More peers than may be candidates at once.
#[test]
fn peers_that_are_crowded_out_after_the_join_dial_again_and_come_in() {
    const LEADERS: u32 = 60;
    let mut all = leaders(LEADERS, 10);
    all.iter_mut().for_each(|leader| leader.channel.joined());
    for rank in 1..LEADERS {
        let leader = &mut all[rank as usize];
        leader.says(0, rank);
        let index = leader.channel.peers.index(Rank(0)).unwrap();
        leader.channel.want_data(index);
    }
    run(&mut all, 11, "all connections", |all| {
        assert!(all[0].channel.admission.len() <= admission::MAX_LATER);
        (1..LEADERS).all(|rank| all[rank as usize].open() == 11 && all[0].got_from(rank) == 1)
    });
    assert!(all.iter_mut().all(|leader| leader.channel.take_lost().is_none()));
}

#[test]
fn a_host_that_opens_no_connection_blames_itself_and_not_the_network() {
    // No TCP connection leads to all hosts at once: the system says so without asking any.
    let everybody = PeerAddress { ip: Ipv4Addr::BROADCAST, ..peer(1, 4711) };
    let channel =
        StreamChannel::open(bind(), Rank(0), &[everybody], settings(0, 1, true), Clock.now()).unwrap();
    let mut leader = Leader { channel, came: Counter::default() };
    leader.says(1, 0);
    leader.poll(Clock.now() + session::SETUP * 2);
    let why = leader.channel.take_lost().unwrap().why;
    let Loss::Unopened { errno, .. } = why else { panic!("{why}") };
    let text = why.to_string();
    assert!(text.contains(&std::io::Error::from_raw_os_error(errno).to_string()), "{text}");
    assert!(text.contains("ulimit") && !text.contains("drops"), "{text}");
}

#[test]
fn a_poll_accepts_so_many_connections_and_the_next_ones_the_rest() {
    const CALLERS: usize = 3 * admission::MAX_ACCEPTED - 5;
    let mut all = leaders(40, 10);
    let address = all[0].channel.live.streams().local_addr();
    let callers: Vec<_> = (0..CALLERS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut accepted = 0;
    for _ in 0..3 {
        all[0].poll(Clock.now());
        let now = all[0].channel.admission.len();
        assert!(now - accepted <= admission::MAX_ACCEPTED, "{accepted} and then {now}");
        accepted = now;
        let is_behind = accepted < CALLERS;
        assert_eq!(all[0].channel.admission.is_behind(), is_behind, "{accepted}");
        assert!(!is_behind || all[0].channel.next_deadline().is_some_and(|at| at <= Clock.now()));
    }
    // Nobody has called meanwhile, so no event has said that there are more.
    assert_eq!(accepted, CALLERS);
    drop(callers);
}

#[test]
fn an_announcement_reaches_those_that_never_used_the_channel() {
    let mut all = leaders(20, 2);
    all[3].says(4, 3);
    run(&mut all, 5, "a word", |all| all[4].got_from(3) == 1);
    // As the end of a group goes out.
    let begin = Clock.now();
    all[3].channel.fence();
    all[3].channel.broadcast(&word(3));
    run(&mut all, 6, "the end, at all", |all| {
        (0..20)
            .filter(|rank| *rank != 3)
            .all(|rank| all[rank as usize].got_from(3) == 1 + u64::from(rank == 4))
    });
    assert!(Clock.now() - begin < Duration::from_secs(5), "within a moment");
    // A rank that wants to send it data now gets no connection for that, and its messages.
    all[7].says(3, 7);
    let index = all[7].channel.peers.index(Rank(3)).unwrap();
    all[7].channel.want_data(index);
    run(&mut all, 6, "a word", |all| all[3].got_from(7) == 1);
    assert_eq!(all[3].open(), 19, "for control messages only");
}

#[test]
fn who_has_said_farewell_to_some_can_still_be_reached_by_the_others() {
    let mut all = leaders(3, 1);
    all[0].says(1, 0);
    run(&mut all, 2, "a word", |all| all[1].got_from(0) == 1);
    all[1].channel.depart();
    assert!(!all[1].channel.is_used(Rank(2)), "a farewell is no first use");
    all[2].says(1, 2);
    run(&mut all, 3, "a word, and all acknowledged", |all| {
        all[1].got_from(2) == 1 && all[1].channel.is_drained() && all[2].channel.is_drained()
    });
    // It was told as well that this rank leaves.
    drop(all.remove(1));
    run(&mut all, 4, "the end of its connection", |all| {
        all[1]
            .channel
            .peers
            .iter()
            .all(|(_, peer)| peer.connections[CONTROL].state() == ConnectionState::Over)
    });
    assert!(all[1].channel.take_lost().is_none(), "who has left in good order is not lost");
}

#[test]
fn a_peer_whose_listener_is_gone_is_named_in_time_from_the_first_use_on() {
    let gone = TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port();
    for (rank, joined) in [(0, false), (5, false), (0, true), (5, true)] {
        let settings = settings(rank, 1, true);
        let channel =
            StreamChannel::open(bind(), Rank(rank), &[peer(3, gone)], settings, Clock.now()).unwrap();
        let mut leader = Leader { channel, came: Counter::default() };
        let idle = Clock.now() + Duration::from_secs(3600);
        leader.poll(idle);
        assert!(leader.channel.take_lost().is_none(), "nobody needs it");
        // After the join a peer that makes no connection has as long as one that sends nothing.
        let patience = if joined { DEAD_AFTER } else { session::SETUP };
        if joined {
            leader.channel.joined();
        }
        leader.says(3, rank);
        leader.poll(idle + patience / 2);
        assert!(leader.channel.take_lost().is_none(), "it is tried for a while");
        leader.poll(idle + patience * 2);
        let lost = leader.channel.take_lost().unwrap();
        assert_eq!(lost.rank, Rank(3));
        assert!(
            matches!(lost.why, Loss::Unconnected { remote, .. } if remote.port() == gone),
            "{}",
            lost.why
        );
        let sent = leader.channel.send(Rank(3), &word(rank), PayloadRange::empty(), SendToken::CONTROL);
        assert_eq!(sent, Err(SendError::PeerFailed));
    }
}

#[test]
fn who_says_hello_once_and_never_makes_the_rest_is_named() {
    let mut both = leaders(2, 1);
    both[0].says(1, 0);
    run(&mut both, 1, "a word", |all| all[1].got_from(0) == 1);
    // Rank 1 has data, and rank 0 is not there any more.
    let gone = both.remove(0);
    let index = both[0].channel.peers.index(Rank(0)).unwrap();
    both[0].channel.want_data(index);
    drop(gone);
    let mut loss = None;
    run(&mut both, 2, "the loss", |all| {
        loss = loss.take().or(all[0].channel.take_lost());
        loss.is_some()
    });
    assert!(matches!(loss.unwrap().why, Loss::Tcp(Failure::Reset { .. })));
}

#[test]
fn trials_reach_all_and_leave_nothing() {
    const LEADERS: u32 = 24;
    let mut all = leaders(LEADERS, 2);
    let others = |rank: u32| (0..LEADERS).filter(move |other| *other != rank);
    // The last one comes late, and its port has nobody behind it until then.
    let mut late = all.pop().unwrap();
    for _ in 0..50 {
        all.iter_mut().for_each(|leader| {
            leader.channel.try_all();
            leader.poll(Clock.now());
        });
    }
    assert!(all.iter().all(|leader| !leader.channel.has_heard_from(Rank(LEADERS - 1))));
    late.channel.try_all();
    all.push(late);
    run(&mut all, 4, "all have heard from all", |all| {
        all.iter_mut().for_each(|leader| leader.channel.try_all());
        (0..LEADERS)
            .all(|rank| others(rank).all(|other| all[rank as usize].channel.has_heard_from(Rank(other))))
    });
    run(&mut all, 5, "no connections", |all| all.iter().all(|leader| leader.channel.live.len() == 0));
    for leader in &mut all {
        leader.channel.joined();
        assert!(
            leader.channel.used() == 0
                && leader.channel.refused() == 0
                && leader.channel.take_lost().is_none()
        );
        assert!(!leader.channel.has_heard_from(Rank(0)), "that is forgotten");
    }
    // A trial of a rank with another key fails, and is no first use.
    let stranger = settings(1, 2, true);
    let stranger = Settings { secret: Key::from_secret([8; 32]), ..stranger };
    let port = all[0].channel.live.streams().local_addr().port();
    let channel = StreamChannel::open(bind(), Rank(1), &[peer(0, port)], stranger, Clock.now()).unwrap();
    let mut both = vec![all.remove(0), Leader { channel, came: Counter::default() }];
    both[1].channel.try_all();
    run(&mut both, 6, "a refusal", |both| both[0].channel.refused() == 1 && both[1].channel.live.len() == 0);
    assert!(!both[0].channel.has_heard_from(Rank(1)) && !both[1].channel.has_heard_from(Rank(0)));
}

#[test]
fn a_connection_that_is_being_made_is_known() {
    let mute = TcpListener::bind((LOCAL, 0)).unwrap();
    let gone = TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port();
    for (port, expected) in [(mute.local_addr().unwrap().port(), true), (gone, false)] {
        let channel =
            StreamChannel::open(bind(), Rank(0), &[peer(1, port)], settings(0, 1, true), Clock.now())
                .unwrap();
        let mut leader = Leader { channel, came: Counter::default() };
        assert!(!leader.channel.is_connecting_to(&|_| true));
        leader.channel.broadcast(&word(0));
        leader.poll(Clock.now());
        for _ in 0..3 {
            leader.poll(Clock.now() + Duration::from_millis(20));
            assert_eq!(leader.channel.is_connecting_to(&|_| true), expected, "nobody listens: nobody comes");
        }
        assert!(!leader.channel.is_connecting_to(&|rank| rank != Rank(1)));
    }
    let mut both = leaders(2, 1);
    both[0].channel.broadcast(&word(0));
    assert!(both[0].channel.is_connecting_to(&|_| true));
    run(&mut both, 1, "a word", |all| all[1].got_from(0) == 1);
    assert!(both.iter().all(|leader| !leader.channel.is_connecting_to(&|_| true)));
}

#[test]
fn trials_that_fail_or_take_too_long_are_made_again_after_a_pause() {
    let begin = Clock.now();
    let at = |millis| begin + Duration::from_millis(millis);
    // Nobody accepts; or nobody listens.
    let mute = TcpListener::bind((LOCAL, 0)).unwrap();
    let gone = TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port();
    let (slow, refused) =
        (&[(0, 1), (499, 1), (500, 0), (509, 0), (510, 1)][..], &[(0, 1), (1, 0), (10, 0), (11, 1)][..]);
    for (port, steps) in [(mute.local_addr().unwrap().port(), slow), (gone, refused)] {
        let channel =
            StreamChannel::open(bind(), Rank(1), &[peer(0, port)], settings(1, 1, true), begin).unwrap();
        let mut leader = Leader { channel, came: Counter::default() };
        for (millis, under_way) in steps {
            leader.poll(at(*millis));
            leader.channel.try_all();
            assert_eq!(leader.channel.live.len(), *under_way, "after {millis} ms");
        }
    }
}

#[test]
fn an_unused_peer_costs_its_address() {
    let unused = |count: u32| {
        let peers: Vec<_> = (1..=count).map(|rank| peer(rank, 1)).collect();
        let before = crate::allocations::bytes();
        let channel =
            StreamChannel::open(bind(), Rank(0), &peers, settings(0, 10, true), Clock.now()).unwrap();
        let after = crate::allocations::bytes();
        drop(channel);
        after - before
    };
    let each = (unused(2000) - unused(1000)) / 1000;
    assert!(each <= 32, "{each} bytes");
    let peers: Vec<_> = (1..=100).map(|rank| peer(rank, 1)).collect();
    let mut channel =
        StreamChannel::open(bind(), Rank(0), &peers, settings(0, 10, true), Clock.now()).unwrap();
    let before = crate::allocations::bytes();
    assert!((1..=100).all(|rank| channel.introduce(Clock.now(), Rank(rank)).is_some()));
    let used = (crate::allocations::bytes() - before) / 100;
    println!("bytes of a peer: {each} unused, {used} used, without its connections' buffers");
    assert!(used > 1000, "there is something to be saved");
}
