//! Two hosts of two ranks: rings within a host, and an embedded link that loses and reorders frames between their leaders.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use shouter_netstack::device::{Fault, FaultConfig};
use shouter_netstack::sim::{LinkConfig, Node, Sim};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{Executor, ExecutorConfig, Refusal, Request};
use shouter_reducer::header::{Collective, Identity, MatchKey, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{Owned, TensorRegion};
use shouter_reducer::plan::Plan;
use shouter_reducer::transport::Transport;

use super::*;
use crate::channel::rud::{RudChannel, rud_config};
use crate::channel::stream::{Settings, StackStreams, TcpChannel};
use crate::channel::up::{PeerAddress, UpChannels};
use crate::engine::executor_time;
use crate::key::Key;

const PORT: u16 = 4_790;
const MTU: u16 = 1_500;
const DEAD_AFTER: Duration = Duration::from_secs(5);
const LIMIT: Instant = Instant::from_nanos(4_000_000_000);

fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1)
}

/// The ways of each rank of two hosts, with the hosts' memory.
fn two_hosts(sim: &Sim, over_tcp: bool) -> Vec<UpChannels> {
    let grid = Grid::new(4, 2).unwrap();
    let shape =
        crate::channel::shm::SegmentShape { ranks: 2, lanes: 1, lane_bytes: 4096, arena_bytes: 0, parts: 0 };
    let mut all = vec![];
    for (leader, other) in [(0, 2), (2, 0)] {
        let faults = match over_tcp {
            true => FaultConfig::default(),
            false => FaultConfig { seed: leader.into(), loss: 0.02, reorder: 0.05, ..FaultConfig::default() },
        };
        let device = Fault::new(sim.network().attach(MTU, LinkConfig::default()), faults).unwrap();
        let mut config = StackConfig::new(u64::from(leader)).with_rud(PORT);
        config.neighbours.request_interval = Duration::from_millis(1);
        config.neighbours.requests = 20;
        config.rud = rud_config(DEAD_AFTER, 2);
        let mut stack = Stack::new(config);
        stack.add_port(device, PortConfig::new(address(leader), 24, MTU)).unwrap();
        let ip = address(other);
        let peers = [PeerAddress { rank: Rank(other), ip, port: PORT, local_ip: address(leader) }];
        let secret = Key::from_secret([7; 32]);
        let (rank, now) = (Rank(leader), Instant::ZERO);
        let mut up: UpChannels = if over_tcp {
            let salt = Key::from_secret([leader as u8; 32]);
            let settings = Settings { secret, salt, connections: 2, dead_after: DEAD_AFTER, crc: true };
            let streams = StackStreams::new(stack, PORT, DEAD_AFTER);
            TcpChannel::open(streams, rank, &peers, settings, now).unwrap().into()
        } else {
            RudChannel::open(stack, rank, &peers, (&secret, false), (2, PORT, MTU)).unwrap().into()
        };
        let first = NodeSegment::create(shape).unwrap();
        let second = NodeSegment::attach(first.fd().try_clone_to_owned().unwrap(), shape, 1).unwrap();
        up.reach_all(Arc::new(first), grid, rank);
        let mut beside = UpChannels::default();
        beside.reach_all(Arc::new(second), grid, Rank(leader + 1));
        all.extend([up, beside]);
    }
    all
}

/// The messages that a rank has received: their numbers by sender.
#[derive(Default)]
struct Post {
    came: BTreeMap<u32, Vec<u64>>,
    /// Takes nothing of this kind now.
    refuses: bool,
    released: usize,
}

impl Inbox for Post {
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        if self.refuses {
            return Disposition::Refused(Refusal::NotReady);
        }
        let expected = contents(header.src, header.key.seq, payload.len());
        assert!(payload == expected, "message {} of {}", header.key.seq, header.src);
        assert_eq!(payload.len(), header.len as usize);
        self.came.entry(header.src.0).or_default().push(header.key.seq);
        Disposition::Consumed
    }

    fn released(&mut self, token: SendToken) {
        self.released += usize::from(token != SendToken::CONTROL);
    }
}

fn contents(src: Rank, number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|index| (index as u64 * 7 + number * 13 + u64::from(src.0)) as u8).collect()
}

fn header_of(src: Rank, number: u64, len: usize) -> Header {
    Header {
        kind: MessageKind::Data,
        src,
        key: MatchKey { seq: number, ..MatchKey::default() },
        identity: Identity::AdHoc { root: Rank(0) },
        shape: Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 1 },
        round: 0,
        offset: 0,
        granule: len.next_multiple_of(64).max(64) as u32,
        len: len as u32,
    }
}

/// A rank that sends its messages, and counts those that come.
struct Member {
    rank: Rank,
    up: UpChannels,
    post: Post,
    /// Destination, number, bytes.
    to_send: VecDeque<(Rank, u64, usize)>,
    /// Destinations that had no room when they were tried last.
    full: Vec<Rank>,
    posted: usize,
    sleeps: bool,
    /// The memory that was sent from.
    memory: Vec<Owned>,
}

impl Member {
    fn all(sim: &Sim, over_tcp: bool) -> Vec<Self> {
        let ups = two_hosts(sim, over_tcp).into_iter().zip(0..);
        let member = |(up, rank)| Self {
            rank: Rank(rank),
            up,
            post: Post::default(),
            to_send: VecDeque::new(),
            full: vec![],
            posted: 0,
            sleeps: false,
            memory: vec![],
        };
        ups.map(member).collect()
    }

    fn is_done(&self) -> bool {
        self.to_send.is_empty()
    }

    fn count(&self, from: u32) -> usize {
        self.post.came.get(&from).map_or(0, Vec::len)
    }

    /// Whether all of `count` messages of a sender have come, each once.
    fn has_all(&self, from: u32, count: u64) -> bool {
        let mut came = self.post.came.get(&from).cloned().unwrap_or_default();
        came.sort_unstable();
        came.into_iter().eq(0..count)
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let came: BTreeMap<_, _> = self.post.came.iter().map(|(from, came)| (from, came.len())).collect();
        let (left, posted, released) = (self.to_send.len(), self.posted, self.post.released);
        write!(f, "{}: {posted} posted, {left} left, {released} released, {came:?} came", self.rank)?;
        write!(f, ", drained: {}", self.up.is_drained())
    }
}

impl Node for Member {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        if self.sleeps {
            return None;
        }
        self.up.receive(now, &mut self.post);
        assert!(self.up.take_lost().is_none());
        self.full.clear();
        for _ in 0..self.to_send.len().min(64) {
            let Some((to, number, len)) = self.to_send.pop_front() else { break };
            if self.full.contains(&to) {
                self.to_send.push_back((to, number, len));
                continue;
            }
            let len = len.min(self.up.max_fragment(to));
            let memory = Owned::new(len.max(1)).unwrap();
            let bytes = contents(self.rank, number, len);
            // SAFETY: inside the allocation, which nobody else refers to.
            unsafe { memory.as_ptr().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
            // SAFETY: it is kept, and dropped behind the channels.
            let payload = unsafe { memory.region() }.span(0, len).unwrap();
            let header = header_of(self.rank, number, len);
            match self.up.send(to, &header, payload, SendToken(1)) {
                Ok(()) => {
                    self.posted += 1;
                    self.memory.push(memory);
                }
                Err(SendError::Full) => {
                    self.full.push(to);
                    self.to_send.push_back((to, number, len));
                }
                Err(error) => panic!("{} to {to}: {error}", self.rank),
            }
        }
        self.up.transmit(now, &mut self.post);
        Some(now + Duration::from_micros(5))
    }
}

/// A length for message `number`.
fn length(number: u64) -> usize {
    [0, 8, 56, 64, 1000, 5000, 16 << 10][number as usize % 7]
}

#[test]
fn every_rank_reaches_every_other() {
    const MESSAGES: u64 = 300;
    for over_tcp in [false, true] {
        let mut sim = Sim::new(5);
        let mut members = Member::all(&sim, over_tcp);
        for member in &mut members {
            let others = (0..4).map(Rank).filter(|to| *to != member.rank);
            let all = (0..MESSAGES).flat_map(|number| others.clone().map(move |to| (to, number)));
            member.to_send = all.map(|(to, number)| (to, number, length(number))).collect();
        }
        let done = sim.run_until(&mut members, LIMIT, |members| {
            members.iter().all(|member| {
                let from = |from: &u32| *from != member.rank.0;
                member.is_done()
                    && member.post.released == member.posted
                    && (0..4).filter(from).all(|from| member.count(from) >= MESSAGES as usize)
                    && member.up.is_drained()
            })
        });
        assert!(done, "over TCP: {over_tcp}: {members:?}");
        for member in &members {
            let others = (0..4).filter(|from| *from != member.rank.0);
            assert!(others.into_iter().all(|from| member.has_all(from, MESSAGES)), "{}", member.rank);
        }
    }
}

/// What is under way to a leader that has gone is not waited for, nor what has no room on the way there.
#[test]
fn messages_to_a_host_whose_leader_has_gone_are_not_waited_for() {
    for (over_tcp, messages) in [(false, 1), (false, 200), (true, 200)] {
        let mut sim = Sim::new(3);
        let mut members = Member::all(&sim, over_tcp);
        members[1].to_send = (0..1).map(|number| (Rank(3), number, 64)).collect();
        let came = sim
            .run_until(&mut members, LIMIT, |members| members[3].has_all(1, 1) && members[0].up.is_drained());
        assert!(came, "over TCP: {over_tcp}: {members:?}");
        members[2].sleeps = true;
        members[1].to_send = (0..messages).map(|number| (Rank(3), number, 4096)).collect();
        let until = sim.now() + Duration::from_millis(20);
        sim.run_until(&mut members, until, |_| false);
        let leader = &members[0].up;
        assert!(!leader.is_drained(), "over TCP: {over_tcp}: {members:?}");
        assert!(!leader.is_drained_to(&|rank| rank == Rank(2)));
        assert!(leader.is_drained_to(&|rank| rank != Rank(2)), "over TCP: {over_tcp}: {members:?}");
    }
}

/// A rank takes nothing for a while: its senders come to a stop, with little underway; all other messages arrive, those between the
/// leaders among them; and then it gets everything, once.
#[test]
fn a_rank_that_takes_nothing_stops_only_what_is_for_it() {
    const MESSAGES: u64 = 400;
    for (stuck, over_tcp) in [(3, false), (3, true), (2, false)] {
        let mut sim = Sim::new(9);
        let mut members = Member::all(&sim, over_tcp);
        members[stuck as usize].post.refuses = true;
        let bytes = 4096;
        // From the leader of the other host, and from the rank beside it.
        for from in [0, 1] {
            members[from].to_send = (0..MESSAGES).map(|number| (Rank(stuck), number, bytes)).collect();
        }
        let quiet = Instant::ZERO + Duration::from_millis(100);
        sim.run_until(&mut members, quiet, |_| false);
        if stuck == 3 {
            let posted: usize = members.iter().map(|member| member.posted).sum();
            let bytes = posted * bytes.min(members[1].up.max_fragment(Rank(stuck)));
            // A window, and two rings on the way there, and one from there on.
            assert!(bytes <= (256 << 10) + 3 * (128 << 10), "{posted} messages are under way");
        }
        // Between other ranks everything flows.
        let free = 5 - stuck;
        for from in [0, 1] {
            if stuck == 3 {
                let to = Rank(free);
                members[from].to_send.extend((0..MESSAGES).map(|number| (to, number, 64)));
            }
        }
        for from in [2, 3] {
            members[from].to_send.extend((0..MESSAGES).map(|number| (Rank(0), number, 64)));
            members[from].to_send.extend((0..MESSAGES).map(|number| (Rank(1), number, 5000)));
        }
        let reached = sim.run_until(&mut members, LIMIT, |members| {
            // The rank beside a leader has one ring for all other hosts: it waits, its leader's direct messages do not.
            let beside = stuck != 3 || members[free as usize].has_all(0, MESSAGES);
            beside && [0, 1].iter().all(|to| [2, 3].iter().all(|from| members[*to].has_all(*from, MESSAGES)))
        });
        assert!(reached, "rank {stuck} stops others; over TCP: {over_tcp}");
        assert_eq!(members[stuck as usize].post.came.len(), 0);
        members[stuck as usize].post.refuses = false;
        let done = sim.run_until(&mut members, LIMIT, |members| {
            members.iter().all(Member::is_done)
                && [0, 1].iter().all(|from| members[stuck as usize].has_all(*from, MESSAGES))
        });
        assert!(done, "rank {stuck} has not got everything; over TCP: {over_tcp}");
    }
}

/// Both leaders forward as much as they can, both ways, while their own messages cross.
#[test]
fn full_queues_in_both_directions_drain() {
    const MESSAGES: u64 = 1_000;
    let mut sim = Sim::new(13);
    let mut members = Member::all(&sim, false);
    for (from, to) in [(1, 3), (3, 1), (0, 3), (2, 1), (0, 2), (2, 0)] {
        let most = members[from as usize].up.max_fragment(Rank(to));
        let messages = (0..MESSAGES).map(|number| (Rank(to), number, most));
        members[from as usize].to_send.extend(messages);
    }
    let done = sim.run_until(&mut members, LIMIT, |members| members.iter().all(Member::is_done));
    assert!(done);
    let done = sim.run_until(&mut members, LIMIT, |members| {
        [(1, 3), (3, 1), (0, 3), (2, 1), (0, 2), (2, 0)]
            .iter()
            .all(|(from, to)| members[*to as usize].has_all(*from, MESSAGES))
    });
    assert!(done);
}

/// A rank that is stopped, or dead and not yet found to be: its ring is full, and messages to others go on.
#[test]
fn a_rank_that_does_not_poll_fills_its_rings_only() {
    const MESSAGES: u64 = 200;
    let mut sim = Sim::new(17);
    let mut members = Member::all(&sim, false);
    members[1].sleeps = true;
    for to in [1, 2, 3] {
        members[0].to_send.extend((0..MESSAGES).map(|number| (Rank(to), number, 5000)));
    }
    let reached = sim
        .run_until(&mut members, LIMIT, |members| [2, 3].iter().all(|to| members[*to].has_all(0, MESSAGES)));
    assert!(reached && !members[0].is_done());
    let left = members[0].to_send.len();
    assert!((150..200).contains(&left), "{left} messages wait for a ring of 128 KiB");
}

#[test]
fn who_has_left_is_sent_nothing_once_its_ring_is_full() {
    let sim = Sim::new(1);
    let mut ups = two_hosts(&sim, false);
    let memory = Owned::new(8192).unwrap();
    // SAFETY: the memory outlives its use: it is copied.
    let payload = unsafe { memory.region() }.span(0, 8192).unwrap();
    let header = header_of(Rank(0), 0, 8192);
    let leaver = ups[1].local_segment();
    let mut send = || ups[0].send(Rank(1), &header, payload, SendToken::CONTROL);
    while send() == Ok(()) {}
    assert_eq!(send(), Err(SendError::Full));
    leaver.leave();
    assert_eq!(send(), Err(SendError::PeerFailed));
}

#[test]
fn what_cannot_be_a_message_is_reported_as_its_writers() {
    let sim = Sim::new(1);
    // In a ring of a pair: a sender that it is not; a destination; no header.
    let mut bytes = [0; HEADER_BYTES];
    header_of(Rank(0), 0, 0).encode(&mut bytes);
    for (what, to, head) in [("destination", 3, bytes), ("no header", 0, [0; HEADER_BYTES])] {
        let mut ups = two_hosts(&sim, false);
        let segment = ups[0].local_segment();
        let mut writer = Writer::new(segment.ring_between(0, 1));
        writer.push(&segment, to, &head, &[]).unwrap();
        segment.doorbell(1).fetch_or(bit(0), Ordering::Release);
        let mut post = Post::default();
        ups[1].receive(Instant::ZERO, &mut post);
        let lost = ups[1].take_lost();
        assert!(matches!(lost, Some(PeerLoss { rank: Rank(0), why: Loss::Scrambled })), "{what}: {lost:?}");
        assert_eq!(post.came.len(), 0, "{what}");
    }
    // In an up ring: a destination of this host, one that does not exist, a sender that it is not.
    header_of(Rank(1), 0, 0).encode(&mut bytes);
    let mut other = [0; HEADER_BYTES];
    header_of(Rank(0), 0, 0).encode(&mut other);
    for (to, head) in [(0, bytes), (1, bytes), (9, bytes), (3, other)] {
        let mut ups = two_hosts(&sim, false);
        let segment = ups[1].local_segment();
        let mut writer = Writer::new(segment.ring_up(1));
        writer.push(&segment, to, &head, &[]).unwrap();
        segment.doorbell(0).fetch_or(relay_bit(1), Ordering::Release);
        let mut post = Post::default();
        ups[0].receive(Instant::ZERO, &mut post);
        ups[0].transmit(Instant::ZERO, &mut post);
        let lost = ups[0].take_lost();
        assert!(matches!(lost, Some(PeerLoss { rank: Rank(1), why: Loss::Scrambled })), "{to}: {lost:?}");
    }
}

/// A collective of all ranks as if each had a host of its own.
struct Flat {
    // Before the memory that it refers to.
    up: UpChannels,
    executor: Executor,
    result: Option<bool>,
    memory: Owned,
}

impl Node for Flat {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.up.receive(now, &mut self.executor);
        self.executor.poll(executor_time(now), &mut self.up, None::<&NodeSegment>, None);
        self.up.transmit(now, &mut self.executor);
        if let Some(completed) = self.executor.take_completed() {
            self.result = Some(completed.result.is_ok());
        }
        Some(now + Duration::from_micros(5))
    }
}

#[test]
fn a_collective_of_ranks_as_equals_runs_over_it() {
    const COUNT: usize = 100_003;
    let plan = Plan::default();
    let grid = Grid::new(4, 1).unwrap();
    let mut sim = Sim::new(3);
    let mut ranks: Vec<Flat> = (0..)
        .zip(two_hosts(&sim, false))
        .map(|(rank, up)| {
            let mut config = ExecutorConfig::new(Rank(rank), grid, Kernels::detect());
            config.eager_bytes = plan.eager_bytes as usize;
            // SAFETY: the channels are dropped first.
            let mut executor = unsafe { Executor::new(config) }.unwrap();
            let memory = Owned::new(COUNT * 4).unwrap();
            for index in 0..COUNT {
                let value = (index as u32 + rank) as i32;
                // SAFETY: inside the allocation, which nobody else refers to yet.
                unsafe { memory.as_ptr().as_ptr().cast::<i32>().add(index).write(value) };
            }
            let count = COUNT as u64;
            let shape =
                Shape { collective: Collective::AllReduce, dtype: DType::I32, op: ReduceOp::Sum, count };
            let request = Request {
                identity: Identity::AdHoc { root: Rank(0) },
                shape,
                // SAFETY: the memory is dropped behind the channels and the executor.
                data: unsafe { memory.region() },
                input: TensorRegion::empty(),
                schedule: Arc::new(plan.schedule(&grid, Rank(rank), &shape, Rank(0)).unwrap()),
                priority: 0,
                deadline: Duration::from_secs(15),
                name: Arc::from("gradient"),
                step: 0,
                pushed: Duration::ZERO,
                device: None,
            };
            executor.start(request).unwrap();
            Flat { up, executor, result: None, memory }
        })
        .collect();
    let done = sim.run_until(&mut ranks, LIMIT, |ranks| ranks.iter().all(|rank| rank.result == Some(true)));
    assert!(done, "{:?}", ranks.iter().map(|rank| rank.result).collect::<Vec<_>>());
    for rank in &ranks {
        for index in 0..COUNT {
            // SAFETY: inside the allocation; the operation has ended.
            let value = unsafe { rank.memory.as_ptr().as_ptr().cast::<i32>().add(index).read() };
            assert_eq!(value, 4 * index as i32 + 6);
        }
    }
}

/// Two ranks of a host on two threads: one sends with pauses, so that the other stops watching its ring again and again.
#[test]
fn nothing_is_missed_when_a_rank_stops_watching_a_ring() {
    const MESSAGES: u64 = 30_000;
    let sim = Sim::new(1);
    let mut ups = two_hosts(&sim, false);
    let (mut receiver, mut sender) = (ups.remove(1), ups.remove(0));
    let sender = std::thread::spawn(move || {
        let mut pause = 0u32;
        for number in 0..MESSAGES {
            let header = header_of(Rank(0), number, 0);
            while sender.send(Rank(1), &header, Span::empty(), SendToken(1)) == Err(SendError::Full) {
                std::thread::yield_now();
            }
            pause = pause.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            (0..pause >> 21).for_each(|_| std::hint::spin_loop());
            sender.transmit(Instant::ZERO, &mut Post::default());
        }
    });
    let (mut post, begin) = (Post::default(), std::time::Instant::now());
    while post.came.get(&0).is_none_or(|came| came.len() < MESSAGES as usize) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", post.came.get(&0).map(Vec::len));
        if !receiver.receive(Instant::ZERO, &mut post) && begin.elapsed().as_nanos() % 64 == 0 {
            std::thread::yield_now();
        }
    }
    sender.join().unwrap();
    assert!(post.came[&0].iter().copied().eq(0..MESSAGES));
}
