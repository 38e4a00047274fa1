//! Operations that wait for others cost a poll nothing: it takes as many instructions with 256 operations under way as with one between
//! hosts, and as with one for each lane within a host, since the flags of lanes are looked at.

use shouter_reducer::header::Header;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::instructions::count;
use super::*;
use crate::channel::Inbox;
use crate::channel::loss::PeerLoss;
use crate::channel::up::Channel;

/// As many as an engine takes.
const MANY: usize = 256;

/// A channel to a peer that sends nothing, and takes all.
struct Silent;

impl Transport for Silent {
    fn max_fragment(&self, _: Rank) -> usize {
        8900
    }
    fn send(&mut self, _: Rank, _: &Header, _: PayloadRange, _: SendToken) -> Result<(), SendError> {
        Ok(())
    }
    fn request_ack(&mut self, _: Rank) {}
}

impl Channel for Silent {
    fn receive(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn transmit(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn take_lost(&mut self) -> Option<PeerLoss> {
        None
    }
    fn acknowledged_by(&self, _: Rank) -> u64 {
        0
    }
    fn broadcast(&mut self, _: &Header) {}
    fn fence(&mut self) {}
    fn is_drained_to(&self, _: &dyn Fn(Rank) -> bool) -> bool {
        true
    }
    fn resent(&self) -> u64 {
        0
    }
    fn crc_dropped(&self) -> u64 {
        0
    }
}

/// Rank 0 of two, on one host or on two.
fn first_of_two(hosts: u32) -> (Engine, Grid) {
    let plan = Plan::default();
    let grid = Grid::new(2, 2 / hosts).unwrap();
    if hosts == 1 {
        let [first, _] = engines(&plan, grid);
        return (first, grid);
    }
    // SAFETY: it goes into an engine, which drops it last.
    let executor = unsafe { Executor::new(ExecutorConfig::new(Rank(0), grid, Kernels::detect())) }.unwrap();
    let parts =
        EngineParts { executor, rank: Rank(0), up: Silent.into(), node: None, dead_after: DEAD_AFTER };
    (Engine::new(parts, Clock.now()), grid)
}

/// The instructions of a poll while so many all-reduces wait for the other rank.
fn idle_poll(hosts: u32, operations: usize, elements: u64) -> Option<u64> {
    let (mut engine, grid) = first_of_two(hosts);
    let shape =
        Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: elements };
    let schedule =
        Arc::new(Plan::default().schedule_for(&Problem::new(grid, Rank(0), &shape, Rank(0))).unwrap());
    let memory: Vec<Owned> = (0..operations).map(|_| Owned::new(elements as usize * 4).unwrap()).collect();
    let begin = Clock.now();
    for data in &memory {
        let request = Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            // SAFETY: nothing else accesses it, and it is dropped after the engine.
            data: unsafe { data.region() },
            input: TensorRegion::empty(),
            schedule: schedule.clone(),
            priority: 0,
            deadline: executor_time(begin + LIMIT),
            name: Arc::from("gradient"),
            step: 0,
            device: None,
            pushed: Duration::ZERO,
        };
        engine.start(begin, request).unwrap();
    }
    // All that can be done before the other rank comes is done when polls do nothing any more.
    let mut quiet = 0;
    while quiet < 100 {
        assert!(Clock.now() - begin < LIMIT, "it never waits");
        quiet = if engine.poll(begin) == Activity::Idle { quiet + 1 } else { 0 };
    }
    let instructions = count(|| {
        engine.poll(begin);
    });
    assert_eq!(engine.operations.running(), operations);
    drop((engine, memory));
    instructions
}

#[test]
fn a_poll_costs_the_same_with_few_and_with_256_operations_under_way() {
    for (hosts, few) in [(1, Plan::default().lanes as usize), (2, 1)] {
        // One that is sent at once, and one in many parts.
        for elements in [1, 100_000] {
            let counts = [1, few, MANY].map(|operations| idle_poll(hosts, operations, elements));
            let [Some(one), Some(few), Some(many)] = counts else {
                println!("skipped: this system lets no process trace another");
                return;
            };
            let says =
                format!("{hosts} hosts, {elements} elements: {one} with one, {few}, {many} with {MANY}");
            println!("{says}");
            assert!(many * 10 <= few * 12 && many <= 2 * one, "{says}");
        }
    }
}
