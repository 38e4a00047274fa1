//! Two leaders over queue pairs that fail and damage at random: no contribution is lost or counted twice.

mod device;
mod hub;
#[cfg(feature = "verbs")]
mod rxe;

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{Executor, ExecutorConfig, OpError, Request};
use shouter_reducer::grid::Grid;
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::plan::Plan;

use super::fabric::Sizes;
use super::*;
use crate::allocations;
use crate::channel::loss::Loss;
use crate::channel::shm::NodeSegment;
use crate::engine::executor_time;
use hub::{End, Hub, Wire, hub};

const CONNECTIONS: u16 = 3;
const SIZES: Sizes = Sizes { window: 8, slot_bytes: 1024 };
const DEAD_AFTER: Duration = Duration::from_secs(5);

struct Leader<F: Fabric> {
    channel: VerbsChannel<F, Wire>,
    executor: Executor,
    data: Vec<Vec<i32>>,
}

struct Pair<F: Fabric> {
    hub: Rc<RefCell<Hub>>,
    leaders: [Leader<F>; 2],
    now: Instant,
}

fn pair(seed: u64, settings: [Settings; 2]) -> Pair<End> {
    let (hub, ends) = hub(seed, CONNECTIONS.into(), SIZES);
    leaders(hub, ends, settings)
}

fn leaders<F: Fabric>(hub: Rc<RefCell<Hub>>, ends: [F; 2], settings: [Settings; 2]) -> Pair<F> {
    let mut settings = settings.into_iter();
    let mut rank = 0;
    let leaders = ends.map(|end| {
        let grid = Grid::new(2, 1).unwrap();
        let mut config = ExecutorConfig::new(Rank(rank), grid, Kernels::detect());
        config.eager_bytes = Plan::default().eager_bytes as usize;
        // So few bytes that small operations need credit, too.
        config.eager_pool_bytes = 1024;
        config.max_operations = 16;
        config.one_sided = true;
        let wire = Wire::new(&hub, rank as usize);
        let settings = settings.next().unwrap();
        let channel = VerbsChannel::new(end, wire, &[Rank(1 - rank)], settings, Instant::ZERO);
        rank += 1;
        Leader { channel, executor: executor(config), data: vec![] }
    });
    Pair { hub, leaders, now: Instant::ZERO }
}

#[allow(unsafe_code)]
fn executor(config: ExecutorConfig) -> Executor {
    // SAFETY: a leader drops its channel first, and a pair moves nothing between leaders that are gone.
    unsafe { Executor::new(config) }.unwrap()
}

fn alike(crc: bool) -> [Settings; 2] {
    [Settings { connections: CONNECTIONS, crc, dead_after: DEAD_AFTER, zero_copy_from: 256 }; 2]
}

impl<F: Fabric> Leader<F> {
    fn start(&mut self, rank: u32, data: Vec<i32>) {
        self.data.push(data);
        self.start_again(rank, self.data.len() - 1);
    }

    /// Starts another operation on the data of a former one.
    #[allow(unsafe_code)]
    fn start_again(&mut self, rank: u32, index: usize) {
        let plan = Plan::default();
        let grid = Grid::new(2, 1).unwrap();
        let data = &mut self.data[index];
        let count = data.len() as u64;
        let shape = Shape { collective: Collective::AllReduce, dtype: DType::I32, op: ReduceOp::Sum, count };
        let base = NonNull::new(data.as_mut_ptr().cast()).unwrap();
        // SAFETY: a vector of the leader's, which stays where it is until the leader goes.
        let data = unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, base, data.len() * 4, 0) };
        let request = Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            data,
            input: TensorRegion::empty(),
            schedule: Arc::new(plan.schedule(&grid, Rank(rank), &shape, Rank(0)).unwrap()),
            priority: 0,
            deadline: executor_time(Instant::ZERO + Duration::from_secs(100)),
            name: Arc::from("gradient"),
            step: 0,
            pushed: Duration::ZERO,
            device: None,
        };
        self.executor.start(request).unwrap();
    }

    /// Starts an operation on memory that is registered for as long as the leader lives.
    #[allow(unsafe_code)]
    fn start_registered(&mut self, rank: u32, mut data: Vec<i32>) -> bool {
        let base = NonNull::new(data.as_mut_ptr().cast()).unwrap();
        // SAFETY: as in `start`, which moves the vector and not its elements.
        let region = unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, base, data.len() * 4, 0) };
        // SAFETY: the leader's channel goes before its data.
        let registering = unsafe { self.channel.registering(region) };
        let known = registering.is_some_and(|registering| self.channel.adopt(region, registering()));
        self.start(rank, data);
        known
    }

    fn step(&mut self, now: Instant) -> Option<PeerLoss> {
        self.channel.receive(now, &mut self.executor);
        let lost = self.channel.take_lost();
        self.executor.poll(executor_time(now), &mut self.channel, None::<&NodeSegment>, None);
        self.channel.transmit(now, &mut self.executor);
        lost
    }
}

impl<F: Fabric> Pair<F> {
    fn step(&mut self) -> Vec<PeerLoss> {
        self.now += Duration::from_micros(5);
        let now = self.now;
        self.leaders.iter_mut().filter_map(|leader| leader.step(now)).collect()
    }

    /// Steps until both have completed so many operations.
    fn complete(&mut self, operations: usize) -> [Vec<Result<(), OpError>>; 2] {
        let mut results = [vec![], vec![]];
        for _ in 0..2_000_000 {
            let lost = self.step();
            assert_eq!(lost.len(), 0, "{lost:?}");
            for (leader, results) in self.leaders.iter_mut().zip(&mut results) {
                while let Some(completed) = leader.executor.take_completed() {
                    results.push(completed.result);
                }
            }
            if results.iter().all(|results| results.len() == operations) {
                return results;
            }
        }
        panic!("{results:?} of {operations} operations after {:?}", self.now);
    }
}

/// Some operations, small and large, in memory that is registered or not; rank 1 starts each a little later, so that much
/// comes early.
fn run(seed: u64, damage: f64, cuts: f64, registered: bool) -> Pair<End> {
    let mut pair = pair(seed, alike(true));
    pair.hub.borrow_mut().damage = damage;
    pair.hub.borrow_mut().cuts = cuts;
    reduce(&mut pair, seed, registered);
    pair
}

/// See [`run`].
fn reduce<F: Fabric>(pair: &mut Pair<F>, seed: u64, registered: bool) {
    let counts = [1, 200, 3_000, 70_000, 2, 900, 4_000, 17];
    let input = |rank: u32, op: usize| (0..counts[op]).map(move |i: i32| i * 3 + rank as i32 * 7 + op as i32);
    let start = |leader: &mut Leader<F>, rank: u32, op: usize| {
        let data = input(rank, op).collect();
        if registered {
            assert!(leader.start_registered(rank, data));
        } else {
            leader.start(rank, data);
        }
    };
    for op in 0..counts.len() {
        start(&mut pair.leaders[0], 0, op);
    }
    for op in 0..counts.len() {
        (0..40).for_each(|_| drop(pair.step()));
        start(&mut pair.leaders[1], 1, op);
    }
    let results = pair.complete(counts.len());
    for (rank, results) in results.iter().enumerate() {
        assert!(results.iter().all(Result::is_ok), "seed {seed}, rank {rank}: {results:?}");
    }
    for op in 0..counts.len() {
        let sums: Vec<i32> = input(0, op).zip(input(1, op)).map(|(a, b)| a + b).collect();
        for (rank, leader) in pair.leaders.iter().enumerate() {
            assert!(leader.data[op] == sums, "seed {seed}: rank {rank} has wrong sums in operation {op}");
        }
    }
}

#[test]
fn sums_are_right_and_everything_is_acknowledged_in_the_end() {
    for registered in [false, true] {
        let mut pair = run(1, 0.0, 0.0, registered);
        (0..200).for_each(|_| drop(pair.step()));
        for leader in &pair.leaders {
            assert!(leader.channel.is_drained());
            assert_eq!(leader.channel.crc_dropped(), 0);
            // Of 78,000 elements, each leader sends half and its half of the sums, some hundred bytes a fragment.
            assert_eq!(
                leader.channel.counts.zero_copy > 300,
                registered,
                "{} fragments were zero_copy",
                leader.channel.counts.zero_copy
            );
            // The sums are only placed.
            let placed = leader.channel.counts.placed;
            assert_eq!(
                placed > 150 && placed < leader.channel.counts.zero_copy,
                registered,
                "{placed} were placed"
            );
            assert!(leader.channel.peers.get(0).unwrap().windows.is_empty());
        }
    }
}

#[test]
fn sums_are_right_over_queue_pairs_that_damage_and_fail() {
    let (mut cut, mut damaged, mut placed) = (0, 0, 0);
    for seed in 0..60 {
        let pair = run(seed, 0.01, 0.002, seed % 2 == 1);
        let hub = pair.hub.borrow();
        (cut, damaged) = (cut + hub.cut, damaged + hub.damaged);
        placed += pair.leaders.iter().map(|leader| leader.channel.counts.placed).sum::<u64>();
        let found: u64 = pair.leaders.iter().map(|leader| leader.channel.crc_dropped()).sum();
        assert!(found <= hub.damaged);
    }
    assert!(cut > 100 && damaged > 100, "{cut} queue pairs failed, {damaged} fragments were damaged");
    assert!(placed > 1000, "{placed} fragments were placed");
}

#[test]
fn a_peer_that_no_queue_pair_reaches_is_lost_with_the_reason() {
    let mut pair = pair(3, alike(true));
    for rank in 0..2 {
        pair.leaders[rank].start(rank as u32, vec![1; 50_000]);
    }
    (0..50).for_each(|_| drop(pair.step()));
    pair.hub.borrow_mut().dark = true;
    let begin = pair.now;
    let lost = loop {
        let lost = pair.step();
        if !lost.is_empty() {
            break lost;
        }
        assert!(pair.now - begin < DEAD_AFTER * 2, "nobody was lost");
    };
    assert!(pair.now - begin >= DEAD_AFTER);
    assert_eq!(lost[0].why, Loss::Verbs(Fault::RetryExceeded));
}

#[test]
fn memory_beyond_the_budget_is_copied_and_what_goes_is_forgotten() {
    let mut pair = pair(8, alike(true));
    pair.hub.borrow_mut().budget = 70_000 * 4;
    assert!(pair.leaders[0].start_registered(0, vec![1; 70_000]));
    assert!(!pair.leaders[1].start_registered(1, vec![2; 70_000]), "the budget is the other's");
    assert_eq!(pair.complete(1), [vec![Ok(())], vec![Ok(())]]);
    (0..200).for_each(|_| drop(pair.step()));
    assert!(pair.leaders[0].channel.counts.zero_copy > 0);
    assert_eq!(pair.leaders[1].channel.counts.zero_copy, 0);
    let leader = &mut pair.leaders[0];
    let (base, zero_copy) = (leader.data[0].as_ptr().addr(), leader.channel.counts.zero_copy);
    assert!(leader.channel.unregister(base).is_some());
    assert!(leader.channel.unregister(base).is_none());
    assert_eq!(leader.channel.memory.len(), 0);
    pair.leaders[0].start(0, vec![1; 70_000]);
    assert!(pair.leaders[1].start_registered(1, vec![2; 70_000]), "there is room again");
    assert_eq!(pair.complete(1), [vec![Ok(())], vec![Ok(())]]);
    assert_eq!(pair.leaders[0].channel.counts.zero_copy, zero_copy);
    assert!(pair.leaders.iter().all(|leader| leader.data.iter().flatten().all(|sum| *sum == 3)));
}

#[test]
fn a_peer_that_refuses_for_long_is_not_sent_to_all_the_time() {
    let mut pair = pair(12, alike(true));
    // Rank 0 assumes that there is room for all of it.
    let grid = Grid::new(2, 1).unwrap();
    pair.leaders[0].executor = executor(ExecutorConfig::new(Rank(0), grid, Kernels::detect()));
    for _ in 0..8 {
        pair.leaders[0].start(0, vec![1; 200]);
    }
    while pair.now < Instant::ZERO + Duration::from_secs(1) {
        assert!(pair.step().is_empty());
    }
    let refused = pair.leaders[1].executor.counters().not_ready;
    // 100 us doubled 13 times are 0.8 s.
    assert!(refused > 50 && refused <= 8 * 14 + 8, "{refused} refusals");
}

#[test]
#[allow(unsafe_code)]
fn registering_memory_holds_up_no_turn_of_the_channel() {
    let mut pair = pair(11, alike(true));
    let data = vec![1i32; 50_000];
    let base = NonNull::new(data.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: it says which memory is meant; the vector stays.
    let region = unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, base, data.len() * 4, 0) };
    // SAFETY: as above.
    let registering = unsafe { pair.leaders[0].channel.registering(region) }.unwrap();
    // The device takes its time, in another thread, while operations go on.
    let (go, gate) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        gate.recv().unwrap();
        registering()
    });
    for rank in 0..2 {
        pair.leaders[rank].start(rank as u32, vec![1; 50_000]);
    }
    assert_eq!(pair.complete(1), [vec![Ok(())], vec![Ok(())]]);
    assert_eq!(pair.leaders[0].channel.memory.len(), 0);
    go.send(()).unwrap();
    let registered = thread.join().unwrap();
    assert!(pair.leaders[0].channel.adopt(region, registered));
    // Memory that was registered meanwhile is not registered twice.
    // SAFETY: as above.
    assert!(unsafe { pair.leaders[0].channel.registering(region) }.is_none());
    assert!(!pair.leaders[0].channel.adopt(region, Ok(Box::new(region))));
    assert_eq!(pair.leaders[0].channel.memory.len(), 1);
}

#[test]
fn another_step_over_the_same_tensors_registers_and_allocates_nothing() {
    const TENSORS: usize = 3;
    // Where a connection overtakes another, its fragments are early and have to be kept.
    let mut pair = pair(10, [Settings { connections: 1, ..alike(true)[0] }; 2]);
    for _ in 0..TENSORS {
        for rank in 0..2 {
            let data = vec![1; 20_000];
            assert!(pair.leaders[rank].start_registered(rank as u32, data));
        }
    }
    pair.complete(TENSORS);
    for step in 1..12 {
        for (rank, leader) in pair.leaders.iter_mut().enumerate() {
            (0..TENSORS).for_each(|tensor| leader.start_again(rank as u32, tensor));
        }
        let (before, zero_copy) = (allocations::count(), pair.leaders[0].channel.counts.zero_copy);
        let mut open = 2 * TENSORS;
        for _ in 0..1_000_000 {
            assert!(pair.step().is_empty());
            for leader in &mut pair.leaders {
                while let Some(completed) = leader.executor.take_completed() {
                    assert_eq!(completed.result, Ok(()));
                    open -= 1;
                }
            }
            if open == 0 {
                break;
            }
        }
        assert_eq!(open, 0);
        assert!(pair.leaders[0].channel.counts.zero_copy > zero_copy);
        // Each of the executor's 16 places has its memory after 16 operations.
        assert!(step < 7 || allocations::count() == before, "step {step} allocates");
    }
    assert_eq!(pair.hub.borrow().registrations, 2 * TENSORS);
    assert!(pair.leaders.iter().all(|leader| leader.data.iter().flatten().all(|sum| *sum == 1 << 12)));
}

#[test]
fn nothing_is_sent_from_its_place_after_a_fence() {
    let mut pair = pair(9, alike(true));
    for rank in 0..2 {
        assert!(pair.leaders[rank].start_registered(rank as u32, vec![1; 50_000]));
    }
    let until = pair.now + Duration::from_secs(1);
    while pair.leaders[0].channel.counts.zero_copy == 0 || pair.leaders[0].channel.is_drained() {
        pair.step();
        assert!(pair.now < until, "nothing was zero_copy");
    }
    let leader = &mut pair.leaders[0];
    leader.channel.fence();
    assert!(leader.channel.is_drained());
    let connections = 0..usize::from(CONNECTIONS);
    let mut out =
        connections.filter_map(|at| leader.channel.connections.get_mut(at)?.sender.outstanding().next());
    assert!(out.next().is_none());
    // Later content of the memory arrives nowhere: a sum made of it would show.
    leader.data[0].fill(1 << 20);
    (0..400).for_each(|_| drop(pair.step()));
    assert!(pair.leaders[1].data[0].iter().all(|sum| *sum < 1 << 20));
    // Nor does the other's arrive there.
    assert!(pair.leaders[0].data[0].iter().all(|value| *value == 1 << 20));
}

#[test]
fn other_settings_are_refused() {
    let mut settings = alike(true);
    settings[1].crc = false;
    let mut pair = pair(4, settings);
    let lost = loop {
        let lost = pair.step();
        if !lost.is_empty() {
            break lost;
        }
        assert!(pair.now < Instant::ZERO + Duration::from_secs(1), "nobody noticed");
    };
    assert_eq!(lost[0].why, Loss::Verbs(Fault::Settings));
}

#[test]
fn after_a_fence_only_control_messages_go_out() {
    let mut pair = pair(5, alike(false));
    for rank in 0..2 {
        pair.leaders[rank].start(rank as u32, vec![1; 50_000]);
    }
    (0..50).for_each(|_| drop(pair.step()));
    pair.leaders[0].channel.fence();
    assert!(pair.leaders[0].channel.is_drained());
    let sent = |kind| {
        let header = Header { kind, ..header() };
        move |channel: &mut VerbsChannel<End, Wire>| {
            channel.send(Rank(1), &header, PayloadRange::empty(), SendToken::CONTROL)
        }
    };
    assert_eq!(sent(MessageKind::Credit)(&mut pair.leaders[0].channel), Err(SendError::PeerFailed));
    assert_eq!(sent(MessageKind::Abort)(&mut pair.leaders[0].channel), Ok(()));
    // The control connections are looked at once in a while.
    (0..400).for_each(|_| drop(pair.step()));
    assert!(pair.leaders[1].executor.aborted().is_some());
}

#[test]
fn what_is_no_message_breaks_nothing() {
    let mut pair = pair(6, alike(true));
    for garbage in [&b"{"[..], b"null", b"{\"Ready\":{\"connection\":9,\"epoch\":0}}"] {
        let mut other = self::pair(7, alike(true));
        other.hub.borrow_mut().dark = true;
        let channel = &mut other.leaders[0].channel;
        channel.on_side(Instant::ZERO, 0, garbage);
        let loss = channel.take_lost().expect("a peer that talks nonsense is lost");
        assert!(matches!(loss.why, Loss::Verbs(Fault::Protocol | Fault::Settings)), "{loss:?}");
    }
    let leader = &mut pair.leaders[0];
    leader.channel.written(Instant::ZERO, 0, 99, 1 << 30, &mut leader.executor);
    leader.channel.on_immediate(Instant::ZERO, 99, u32::MAX);
    assert_eq!(
        leader.channel.send(Rank(7), &header(), PayloadRange::empty(), SendToken(1)),
        Err(SendError::PeerFailed)
    );
}

fn header() -> Header {
    Header {
        kind: MessageKind::Credit,
        src: Rank(0),
        key: Default::default(),
        identity: Identity::AdHoc { root: Rank(0) },
        shape: Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 0 },
        round: 0,
        offset: 0,
        granule: 0,
        len: 2,
    }
}
