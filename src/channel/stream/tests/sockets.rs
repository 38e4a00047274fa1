//! Leaders over the kernel's sockets on this host, and everything that can come to a port.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use shouter_netstack::device::Loopback;
use shouter_netstack::tcp::Failure;
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::header::{Identity, MatchKey, Shape};

use super::super::connection::{MAX_SIDE, message_head, side_frame};
use super::*;
use crate::channel::loss::Loss;
use crate::channel::sys::bytes_of;
use crate::runtime::Clock;

pub(super) const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub(super) const SECRET: [u8; 32] = [7; 32];

pub(super) fn secrets(secret: [u8; 32], salt: u8) -> Secrets {
    Secrets::new(Key::from_secret(secret), Key::from_secret([salt; 32]))
}

/// The time that anything may take here.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn bind() -> KernelStreams {
    KernelStreams::bind(SocketAddr::from((LOCAL, 0)), DEAD_AFTER).unwrap()
}

pub(super) fn settings(rank: u32, connections: u16, crc: bool) -> Settings {
    let (secret, salt) = (Key::from_secret(SECRET), Key::from_secret([rank as u8; 32]));
    Settings { secret, salt, connections, dead_after: DEAD_AFTER, crc }
}

pub(super) fn peer(rank: u32, port: u16) -> PeerAddress {
    PeerAddress { rank: Rank(rank), ip: LOCAL, port, local_ip: Ipv4Addr::UNSPECIFIED }
}

/// A channel and the executor that it serves.
struct End {
    channel: KernelChannel,
    executor: Executor,
}

impl End {
    fn new(rank: u32, peers: &[PeerAddress], streams: KernelStreams, settings: Settings) -> Self {
        let grid = Grid::new(peers.len() as u32 + 1, 1).unwrap();
        let channel = StreamChannel::open(streams, Rank(rank), peers, settings, Clock.now()).unwrap();
        Self { channel, executor: executor(rank, grid) }
    }

    fn poll(&mut self, now: Instant) {
        self.channel.receive(now, &mut self.executor);
        self.channel.transmit(now, &mut self.executor);
    }

    fn loss(&mut self) -> Option<Loss> {
        self.channel.take_lost().map(|lost| lost.why)
    }
}

/// Both ends of one link.
fn ends(connections: u16, crc: [bool; 2]) -> [End; 2] {
    let streams = [bind(), bind()];
    let ports = streams.each_ref().map(|streams| streams.local_addr().port());
    let mut streams = streams.into_iter().zip([0, 1]);
    [0, 1].map(|rank: u32| {
        let (streams, _) = streams.next().unwrap();
        let peers = [peer(1 - rank, ports[1 - rank as usize])];
        End::new(rank, &peers, streams, settings(rank, connections, crc[rank as usize]))
    })
}

/// Polls all ends until `condition` is reached.
fn until(ends: &mut [End], what: &str, mut condition: impl FnMut(&mut [End]) -> bool) {
    let end = Clock.now() + PATIENCE;
    while !condition(ends) {
        let now = Clock.now();
        assert!(now < end, "not within {PATIENCE:?}: {what}");
        ends.iter_mut().for_each(|end| end.poll(now));
        std::thread::yield_now();
    }
}

/// Makes all connections, from both sides at once.
fn connected(ends: &mut [End]) {
    ends.iter_mut().for_each(|end| dial(&mut end.channel));
    until(ends, "connections", |ends| ends.iter().all(|end| is_connected(&end.channel)));
}

/// A peer that has the secret and then sends arbitrary bytes: rank 1 towards an end of rank 0.
struct Puppet {
    end: [End; 1],
    connections: Vec<TcpStream>,
    _listener: TcpListener,
}

impl Puppet {
    fn new(connections: u16) -> Self {
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let streams = bind();
        let address = streams.local_addr();
        let peers = [peer(1, listener.local_addr().unwrap().port())];
        let mut end = [End::new(0, &peers, streams, settings(0, connections, true))];
        let mut secrets = secrets(SECRET, 9);
        let mut dial = |connection: u32| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut challenge = [0; handshake::CHALLENGE];
            read_all(&mut end, &mut stream, &mut challenge);
            let challenge = handshake::check_challenge(&challenge).unwrap();
            let claim = handshake::Claim {
                from: Rank(1),
                to: Rank(0),
                connection,
                crc: true,
                nonce: secrets.nonce(),
            };
            stream.write_all(&secrets.hello(&challenge, &claim)).unwrap();
            let mut welcome = [0; handshake::WELCOME];
            read_all(&mut end, &mut stream, &mut welcome);
            assert_eq!(secrets.check_answer(&challenge, &claim, &welcome), Some(handshake::Answer::Welcome));
            stream
        };
        let connections = (0..=u32::from(connections)).map(&mut dial).collect();
        connected(&mut end);
        Self { end, connections, _listener: listener }
    }

    /// Writes to a connection, and returns the loss that results.
    fn says(&mut self, connection: usize, bytes: &[u8]) -> Loss {
        self.connections[connection].write_all(bytes).unwrap();
        self.loss()
    }

    fn loss(&mut self) -> Loss {
        let mut loss = None;
        until(&mut self.end, "a loss", |end| {
            loss = end[0].loss();
            loss.is_some()
        });
        loss.unwrap()
    }
}

/// Reads all of `buffer` while the other end is polled.
fn read_all(end: &mut [End], stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut read = 0;
    until(end, "an answer", |_| {
        match stream.read(&mut buffer[read..]) {
            Ok(count) => read += count,
            Err(why) => assert_eq!(why.kind(), std::io::ErrorKind::WouldBlock),
        }
        read == buffer.len()
    });
}

fn header(src: u32, len: usize) -> Header {
    Header {
        kind: MessageKind::Data,
        src: Rank(src),
        key: MatchKey::default(),
        identity: Identity::AdHoc { root: Rank(0) },
        shape: Shape {
            collective: Collective::AllReduce,
            dtype: DType::I32,
            op: ReduceOp::Sum,
            count: 1 << 20,
        },
        round: 0,
        offset: 0,
        granule: 4096,
        len: len as u32,
    }
}

/// A frame of a message from rank 1 with a payload.
fn frame(payload: &[u8]) -> Vec<u8> {
    [&message_head(&header(1, payload.len()), payload, true), payload].concat()
}

/// Runs one all-reduce on two engines, and checks every element.
fn all_reduce(mut hosts: [Host; 2], bytes: usize, clock: impl Fn() -> Instant) {
    for (rank, host) in hosts.iter().enumerate() {
        let values: Vec<u8> = (0..bytes as u32 / 4).flat_map(|at| (at + rank as u32).to_le_bytes()).collect();
        fill(&host._memory, &values);
    }
    let ops = [0, 1].map(|rank| start(clock(), rank as u32, &mut hosts[rank], bytes));
    let (mut left, end) = (2, clock() + PATIENCE);
    while left > 0 {
        let now = clock();
        assert!(now < end, "{left} operations have not ended");
        for (host, op) in hosts.iter_mut().zip(ops) {
            host.engine.poll(now);
            if let Some(completed) = host.engine.take_finished(op) {
                assert_eq!(completed.result, Ok(()));
                left -= 1;
            }
        }
    }
    for host in &hosts {
        let sum = bytes_of(&region(&host._memory).span(0, bytes).unwrap()).unwrap().to_vec();
        for (at, value) in sum.as_chunks::<4>().0.iter().enumerate() {
            assert_eq!(u32::from_le_bytes(*value), 2 * at as u32 + 1, "element {at}");
        }
    }
}

fn socket_hosts(connections: u16, crc: bool, bytes: usize) -> [Host; 2] {
    let mut rank = 0;
    ends(connections, [crc; 2]).map(|end| {
        let (executor, up) = (end.executor, UpChannels::from(end.channel));
        let parts = EngineParts { executor, rank: Rank(rank), up, node: None, dead_after: DEAD_AFTER };
        rank += 1;
        Host { engine: Engine::new(parts, Clock.now()), _memory: Owned::new(bytes).unwrap() }
    })
}

#[test]
fn an_all_reduce_is_right_over_either_provider() {
    const BYTES: usize = 8 << 20;
    for (connections, crc) in [(1, true), (10, true), (3, false)] {
        all_reduce(socket_hosts(connections, crc, BYTES), BYTES, || Clock.now());
    }
    let (left, right) = Loopback::pair(MTU, 256);
    let mut devices = [left, right].into_iter();
    let hosts = [0, 1].map(|rank| host(rank, devices.next().unwrap(), BYTES));
    let begin = Clock.now();
    all_reduce(hosts, BYTES, || Instant::ZERO + (Clock.now() - begin));
}

#[test]
fn unauthenticated_peers_at_a_socket_are_turned_away_and_hold_nothing() {
    let mut ends = ends(2, [true; 2]);
    let address = ends[0].channel.live.streams().local_addr();
    let claim = handshake::Claim { from: Rank(1), to: Rank(0), connection: 1, crc: true, nonce: [1; 16] };
    let forged = secrets([8; 32], 0).hello(&[0; 16], &claim).to_vec();
    let replayed = secrets(SECRET, 0).hello(&[0; 16], &claim).to_vec();
    let mut callers: Vec<TcpStream> = vec![];
    for says in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 72], &forged, &replayed, &[9; 60_000]] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(address).unwrap();
            // A peer that is refused while it writes gets a reset.
            let _ = stream.write_all(says);
            callers.push(stream);
        }
    }
    drop(callers);
    // While connections with peers are missing.
    until(&mut ends[..1], "refusals", |ends| ends[0].channel.refused() == 100);
    connected(&mut ends);
    let why = TcpStream::connect(address).expect_err("nobody listens any more");
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!((ends[0].channel.admission.len(), ends[0].channel.live.len()), (0, 3));
    assert!(ends[0].loss().is_none() && ends[1].loss().is_none());
}

#[test]
fn those_who_say_nothing_go_in_time_and_never_crowd_members_out() {
    let mut ends = ends(2, [true; 2]);
    let address = ends[0].channel.live.streams().local_addr();
    let callers: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    connected(&mut ends);
    // Each connection with the peer may have come after some more of the callers.
    assert!(ends[0].channel.admission.len() <= admission::MAX_UNAUTHENTICATED + 3, "the oldest had to go");
    let late = Clock.now() + Duration::from_secs(4);
    ends[0].poll(late);
    until(&mut ends[1..], "a moment", |_| true);
    let channel = &ends[0].channel;
    // The kernel turns away those that wait to be accepted when all connections exist.
    assert!(
        (200 - admission::MAX_ACCEPTED as u64..=200).contains(&channel.refused()),
        "{}",
        channel.refused()
    );
    assert_eq!((channel.admission.len(), channel.live.len()), (0, 3));
    drop(callers);
}

#[test]
fn a_peer_whose_process_is_gone_is_lost_at_once_and_named() {
    let [mut stays, goes] = ends(3, [true; 2]);
    let mut both = [stays, goes];
    connected(&mut both);
    let goes;
    [stays, goes] = both;
    let begin = Clock.now();
    drop(goes);
    let mut end = [stays];
    let mut lost = None;
    until(&mut end, "the loss", |end| {
        lost = end[0].channel.take_lost();
        lost.is_some()
    });
    let lost = lost.unwrap();
    assert_eq!(lost.rank, Rank(1));
    assert!(matches!(lost.why, Loss::Tcp(Failure::Reset { .. })), "{}", lost.why);
    assert!(Clock.now() - begin < DEAD_AFTER, "the end of a connection needs no time-out");
    assert!(end[0].channel.take_lost().is_none(), "once");
}

#[test]
fn who_says_farewell_is_not_lost_until_it_is_missed() {
    let mut both = ends(2, [true; 2]);
    connected(&mut both);
    both[1].channel.depart();
    let is_drained = |ends: &mut [End]| ends[1].channel.is_drained();
    until(&mut both, "the farewell", is_drained);
    let [stays, goes] = both;
    drop(goes);
    let mut end = [stays];
    until(&mut end, "the end of its connections", |end| {
        end[0]
            .channel
            .peers
            .get(0)
            .unwrap()
            .connections
            .iter()
            .all(|connection| connection.state() == ConnectionState::Over)
    });
    assert!(end[0].loss().is_none());
    end[0].channel.depart();
    assert!(end[0].channel.is_drained(), "nobody is there to whom this side's farewell could go");
    let now = Clock.now();
    end[0].poll(now + DEAD_AFTER * 2);
    assert!(end[0].loss().is_some(), "a rank that still needs it has to be notified of it some time");
}

#[test]
fn a_host_that_accepts_and_never_answers_is_given_up() {
    let silent = TcpListener::bind((LOCAL, 0)).unwrap();
    let peers = [peer(0, silent.local_addr().unwrap().port())];
    let mut end = [End::new(1, &peers, bind(), settings(1, 1, true))];
    dial(&mut end[0].channel);
    until(&mut end, "dialling", |end| end[0].channel.live.len() == 2);
    let now = Clock.now();
    end[0].poll(now + session::SETUP * 2);
    let loss = end[0].loss().unwrap();
    assert!(matches!(loss, Loss::Unconnected { .. }), "{loss}");
    assert!(end[0].channel.live.len() == 0);
}

#[test]
fn a_peer_that_is_stopped_is_found_though_its_kernel_answers() {
    let mut both = ends(2, [true; 2]);
    connected(&mut both);
    let (alive, stopped) = both.split_at_mut(1);
    let begin = Clock.now();
    let mut now = begin;
    // Only one of them is polled from here on.
    let loss = loop {
        now += DEAD_AFTER / 50;
        alive[0].poll(now);
        if let Some(loss) = alive[0].loss() {
            break loss;
        }
        assert!(now - begin < DEAD_AFTER * 2, "not found");
    };
    assert!(matches!(loss, Loss::Silent { .. }), "{loss}");
    assert!(now - begin >= DEAD_AFTER, "too early");
    // A rank that was stopped itself gives the others their time again.
    stopped[0].poll(begin + DEAD_AFTER * 3);
    assert!(!matches!(stopped[0].loss(), Some(Loss::Silent { .. })));
}

#[test]
fn heartbeats_keep_an_idle_pair_together() {
    let mut both = ends(2, [true; 2]);
    connected(&mut both);
    let begin = Clock.now();
    let mut now = begin;
    while now - begin < DEAD_AFTER * 3 {
        now += DEAD_AFTER / 200;
        both.iter_mut().for_each(|end| end.poll(now));
        assert!(both.iter_mut().all(|end| end.loss().is_none()));
        // The kernel needs a moment of real time to carry them.
        std::thread::yield_now();
    }
}

#[test]
fn a_frame_cut_in_half_is_never_handed_on() {
    let mut puppet = Puppet::new(1);
    let whole = frame(&[5; 4096]);
    puppet.connections[1].write_all(&whole[..whole.len() / 2]).unwrap();
    let side = side_frame(b"half of this", true);
    puppet.connections[0].write_all(&side[..side.len() - 1]).unwrap();
    puppet.connections.clear();
    let loss = puppet.loss();
    assert!(matches!(loss, Loss::Tcp(Failure::Reset { .. })), "{loss}");
    let channel = &mut puppet.end[0].channel;
    assert!(channel.peers.get(0).unwrap().backlog.is_empty() && channel.take_side().is_none());
}

#[test]
fn a_length_that_no_frame_has_ends_the_peer() {
    for connection in [0, 1] {
        let loss = Puppet::new(1).says(connection, &[0x7f; 64]);
        assert!(matches!(loss, Loss::Garbled { .. }), "{loss}");
    }
}

#[test]
fn a_frame_whose_crc_is_wrong_ends_the_peer_and_says_what_to_do() {
    let good = frame(&[5; 4096]);
    for (connection, at) in [(0, 10), (1, 30), (1, 62), (1, 64), (1, good.len() - 1)] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        let mut puppet = Puppet::new(1);
        let loss = puppet.says(connection, &bad);
        assert!(matches!(loss, Loss::Corrupted { .. }), "byte {at}: {loss}");
        assert!(loss.to_string().contains("transport = \"rud\""), "{loss}");
        assert!(
            puppet.end[0].channel.peers.get(0).unwrap().backlog.is_empty(),
            "nothing of it was handed on"
        );
    }
}

#[test]
fn a_crc_on_one_side_only_is_refused_on_both() {
    for (crc, first) in
        [([true, false], &[0][..]), ([false, true], &[0]), ([true, false], &[1]), ([true, false], &[0, 1])]
    {
        let mut both = ends(2, crc);
        first.iter().for_each(|rank| dial(&mut both[*rank as usize].channel));
        let mut losses = [None, None];
        until(&mut both, "both losses", |ends| {
            for (end, loss) in ends.iter_mut().zip(&mut losses) {
                *loss = loss.or(end.loss());
            }
            losses.iter().all(Option::is_some)
        });
        for (rank, loss) in losses.into_iter().flatten().enumerate() {
            let ours = if crc[rank] { "on" } else { "off" };
            assert_eq!(loss, Loss::CrcDiffers { rank: Rank(1 - rank as u32), ours }, "{loss}");
        }
    }
}

#[test]
fn a_fence_in_the_middle_of_a_transfer_leaves_nothing_behind_and_the_word_gets_through() {
    const BYTES: usize = 64 << 20;
    let mut hosts = socket_hosts(4, true, BYTES);
    let ops = [0, 1].map(|rank| start(Clock.now(), rank as u32, &mut hosts[rank], BYTES));
    let end = Clock.now() + PATIENCE;
    let poll = |hosts: &mut [Host; 2]| {
        let now = Clock.now();
        assert!(now < end, "not within {PATIENCE:?}");
        hosts.iter_mut().for_each(|host| {
            host.engine.poll(now);
        });
    };
    let sent = |host: &Host| host.engine.up().device_counters().tx_bytes;
    while sent(&hosts[0]) < BYTES as u64 / 8 {
        poll(&mut hosts);
    }
    // The operation's deadline passes on one side, which ends the group: the other learns of it by the connection for
    // control.
    hosts[0].engine.poll(Clock.now() + Duration::from_secs(61));
    assert!(hosts[0].engine.aborted().is_some());
    let up: &KernelChannel = hosts[0].engine.up().only().expect("sockets are used");
    assert_eq!(
        (up.live.len(), up.peers.get(0).unwrap().outbox.fragments()),
        (1, 0),
        "only the connection for control is left"
    );
    let result = loop {
        poll(&mut hosts);
        if let Some(completed) = hosts[1].engine.take_finished(ops[1]) {
            break completed.result;
        }
    };
    let why = result.expect_err("the group has ended");
    assert!(matches!(why, shouter_reducer::executor::OpError::Aborted { .. }), "{why}");
    // Its own outcome is held back until the other side has acknowledged the end.
    let own = loop {
        poll(&mut hosts);
        if let Some(completed) = hosts[0].engine.take_finished(ops[0]) {
            break completed.result;
        }
    };
    assert!(own.is_err());
}

#[test]
fn side_messages_come_in_order_and_are_bounded() {
    let mut both = ends(0, [true; 2]);
    assert!(both[0].channel.send_side(Rank(1), b"before the connection"));
    assert!(!both[0].channel.is_connected(Rank(1)) && !both[0].channel.is_connected(Rank(7)));
    connected(&mut both);
    assert!(both.iter().zip([1, 0]).all(|(end, peer)| end.channel.is_connected(Rank(peer))));
    assert!(!both[0].channel.send_side(Rank(1), &vec![0; MAX_SIDE + 1]), "too long");
    assert!(!both[0].channel.send_side(Rank(0), b"to myself") && !both[0].channel.send_side(Rank(9), b""));

    // Both ways, as many as there is room for, until a thousand have gone.
    let message = |from: usize, at: usize| {
        let len = [0, 1, 300, MAX_SIDE][at % 4];
        let mut bytes = vec![from as u8; len];
        bytes.iter_mut().zip(at.to_le_bytes()).for_each(|(byte, digit)| *byte = digit);
        bytes
    };
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    until(&mut both, "a thousand side messages", |ends| {
        for (from, end) in ends.iter_mut().enumerate() {
            while sent[from] < 1000
                && end.channel.send_side(Rank(1 - from as u32), &message(from, sent[from]))
            {
                sent[from] += 1;
            }
            while let Some((rank, bytes)) = end.channel.take_side() {
                if from == 1 && got[1] == 0 {
                    assert_eq!(bytes, b"before the connection");
                } else {
                    let at = got[from] - from;
                    assert_eq!((rank, bytes), (Rank(1 - from as u32), message(1 - from, at)));
                }
                got[from] += 1;
            }
        }
        got == [1000, 1001]
    });

    // A peer that does not take them is not read, and the sender finds no room.
    let mut refused = 0;
    until(&mut both, "no room", |ends| {
        refused += usize::from(!ends[0].channel.send_side(Rank(1), &vec![1; MAX_SIDE]));
        refused > 1000
    });
    let waiting = both[1].channel.peers.get(0).unwrap().backlog.sides();
    assert!((64..=64 + (256 << 10) / MAX_SIDE).contains(&waiting), "{waiting} wait");
}

#[test]
fn without_connections_for_data_control_messages_still_come_through() {
    let mut both = ends(0, [true; 2]);
    connected(&mut both);
    let end = &mut both[0];
    let sent = end.channel.send(Rank(1), &header(0, 0), PayloadRange::empty(), SendToken(1));
    assert_eq!(sent, Err(SendError::PeerFailed));
    let grant = Header { kind: MessageKind::Credit, granule: 0, ..header(0, 0) };
    end.channel.broadcast(&grant);
    until(&mut both, "the message", |ends| {
        let hour = Duration::from_secs(3600);
        let silence = ends[1].channel.peers.get(0).unwrap().standing.silence(Instant::ZERO + hour);
        silence < hour && ends[0].channel.is_drained()
    });
}
