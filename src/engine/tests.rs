//! Ranks of one node whose accelerators have opened each other's tensors, when the group ends: no memory goes back while another
//! rank's accelerator may touch it, or the error says so.
#![allow(unsafe_code)]

mod at_once;
mod glance;
mod instructions;
mod leaving;
mod losses;
mod poll_cost;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{AbortCause, AbortReason, Divergence, ExecutorConfig, OpError};
use shouter_reducer::grid::Grid;
use shouter_reducer::header::{Collective, Identity, Shape, View};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{MemoryKind, Owned, Span};
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::Problem;
use shouter_reducer::transport::{
    AcceleratorError, DeviceFence, DeviceFold, DeviceTensor, ExportedTensor, StreamEvent,
};

use super::end::COPIES_END;
use super::*;
use crate::channel::shm::SegmentShape;
use crate::group::watch::Departure;
use crate::runtime::{Activity, Clock, Poller};

const DEAD_AFTER: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

/// An accelerator that ends its folds when it is let.
#[derive(Clone, Default)]
struct Slow(Arc<(AtomicUsize, AtomicBool)>);

impl Slow {
    fn folds(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    fn is_let(&self) -> bool {
        self.0.1.load(Ordering::SeqCst)
    }

    fn let_go(&self) {
        self.0.1.store(true, Ordering::SeqCst);
    }
}

impl Accelerator for Slow {
    fn copy(&mut self, _into: Span, _from: Span) -> Result<DeviceFence, AcceleratorError> {
        Err(AcceleratorError("nothing is staged here".into()))
    }

    fn open(&mut self, tensor: &ExportedTensor, len: usize) -> Option<TensorRegion> {
        let base = core::ptr::NonNull::new(tensor.address as *mut u8)?;
        // SAFETY: nothing accesses it.
        Some(unsafe { TensorRegion::from_raw_parts(MemoryKind::Device, base, len, 0) })
    }

    fn fold(&mut self, _fold: &DeviceFold<'_>) -> Result<DeviceFence, AcceleratorError> {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        Ok(DeviceFence(1))
    }

    fn is_done(&mut self, _started: DeviceFence) -> Result<bool, AcceleratorError> {
        Ok(self.is_let())
    }

    fn is_reached(&mut self, _event: StreamEvent) -> Result<bool, AcceleratorError> {
        Ok(true)
    }

    fn is_idle(&mut self) -> Result<bool, AcceleratorError> {
        Ok(self.folds() == 0 || self.is_let())
    }
}

struct Member {
    // Before the memory that it refers to.
    engine: Engine,
    accelerator: Slow,
    op: OpId,
    memory: Owned,
}

/// The memory of two ranks of one node.
fn segments(plan: &Plan, grid: Grid) -> [NodeSegment; 2] {
    let params = plan.params();
    let lane_bytes = params.chunk_bytes_on(&grid);
    let shape = SegmentShape { ranks: 2, lanes: params.lanes, lane_bytes, arena_bytes: 0, parts: 0 };
    let first = NodeSegment::create(shape).unwrap();
    let second = NodeSegment::attach(first.fd().try_clone_to_owned().unwrap(), shape, 1).unwrap();
    [first, second]
}

/// The rank whose memory this is.
fn engine(node: NodeSegment, grid: Grid, now: Instant) -> Engine {
    let rank = Rank(node.local());
    let config = ExecutorConfig::new(rank, grid, Kernels::detect());
    // SAFETY: it goes into an engine, which drops it last and keeps the node's memory.
    let mut executor = unsafe { Executor::new(config) }.unwrap();
    executor.attach_node(&node).unwrap();
    let parts = EngineParts {
        executor,
        rank,
        up: UpChannels::default(),
        node: Some(Arc::new(node)),
        dead_after: DEAD_AFTER,
    };
    Engine::new(parts, now)
}

/// Two ranks of one node.
fn engines(plan: &Plan, grid: Grid) -> [Engine; 2] {
    segments(plan, grid).map(|node| engine(node, grid, Clock.now()))
}

/// Two ranks of one node, with one operation that neither has ended, as its folds are under way on both.
fn pair() -> [Member; 2] {
    let (plan, grid) = (Plan::default(), Grid::new(2, 2).unwrap());
    let mut members = engines(&plan, grid).map(|mut engine| {
        let rank = engine.rank;
        let accelerator = Slow::default();
        let staging =
            AcceleratorParts { accelerator: Box::new(accelerator.clone()), solo: None, memory: Box::new(()) };
        engine.attach(staging).unwrap();
        let memory = Owned::new(BYTES).unwrap();
        let count = BYTES as u64 / 4;
        let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
        let problem = Problem::new(grid, rank, &shape, Rank(0)).on_device();
        // SAFETY: nothing accesses it.
        let address = unsafe { memory.region() }.as_ptr();
        let base = core::ptr::NonNull::new(address).unwrap();
        let export =
            ExportedTensor { address: address as u64, handle: [0; ExportedTensor::HANDLE], is_own: true };
        let request = Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            // SAFETY: nothing accesses it.
            data: unsafe { TensorRegion::from_raw_parts(MemoryKind::Device, base, BYTES, 0) },
            input: TensorRegion::empty(),
            schedule: Arc::new(plan.schedule_for(&problem).unwrap()),
            priority: 0,
            deadline: executor_time(Clock.now() + LIMIT * 2),
            name: Arc::from("gradient"),
            step: 0,
            pushed: Duration::ZERO,
            device: Some(DeviceTensor { ready_event: None, export: Some(export) }),
        };
        let op = engine.start(Clock.now(), request).unwrap();
        Member { engine, accelerator, op, memory }
    });
    let begin = Clock.now();
    while members.iter().any(|member| member.accelerator.folds() == 0) {
        assert!(Clock.now() - begin < LIMIT, "no folds");
        members.iter_mut().for_each(|member| {
            member.engine.poll(Clock.now());
        });
    }
    members
}

/// Drops a rank in a thread of its own, which ends with whether `other` had let go of all memory by then.
fn drop_beside(member: Member, other: &Slow) -> std::thread::JoinHandle<bool> {
    let other = other.clone();
    std::thread::spawn(move || {
        member.accelerator.let_go();
        drop(member.engine);
        drop(member.memory);
        other.is_let()
    })
}

#[test]
fn who_is_dropped_in_mid_operation_ends_it_for_the_others_first() {
    let [mut first, second] = pair();
    let dropped = drop_beside(second, &first.accelerator);
    // Folds that it could start before it knew are under way now, and end some time after the group: perhaps while it waits for them.
    let (node, accelerator) = (first.engine.node.clone().unwrap(), first.accelerator.clone());
    let begin = Clock.now();
    let device = std::thread::spawn(move || {
        while node.abort().is_none() && Clock.now() - begin < LIMIT {
            std::thread::yield_now();
        }
        accelerator.let_go();
    });
    while first.engine.aborted().is_none() {
        assert!(Clock.now() - begin < LIMIT, "this rank was not notified");
        first.engine.poll(Clock.now());
        std::thread::yield_now();
    }
    device.join().unwrap();
    assert_eq!(first.engine.aborted().unwrap().culprit, Rank(1));
    assert!(dropped.join().unwrap(), "its memory went back first");
}

#[test]
fn who_has_left_may_have_left_folds_behind() {
    let [mut first, mut second] = pair();
    first.engine.depart(Clock.now());
    second.engine.depart(Clock.now());
    let dropped = drop_beside(second, &first.accelerator);
    let other = first.accelerator.clone();
    // The first is dropped, too, and waits for its own folds.
    let own = std::thread::spawn(move || drop(first));
    let begin = Clock.now();
    while !dropped.is_finished() && Clock.now() - begin < COPIES_END / 4 {
        std::thread::yield_now();
    }
    other.let_go();
    assert!(dropped.join().unwrap(), "its memory went back before the other's folds had ended");
    own.join().unwrap();
}

#[test]
fn an_error_says_whose_memory_must_stay() {
    let [mut first, mut second] = pair();
    // The abort comes from elsewhere: as that of a third rank would.
    second.engine.node.as_ref().unwrap().set_abort(0, AbortReason::Aborted.code() as u8);
    let second = std::thread::spawn(move || {
        second.accelerator.let_go();
        let begin = Clock.now();
        while second.engine.aborted().is_none() && Clock.now() - begin < LIMIT {
            second.engine.poll(Clock.now());
        }
        second.engine.poll(Clock.now());
        let completed = second.engine.take_finished(second.op).unwrap();
        // Its memory stays until the first has ended.
        (completed.result.unwrap_err().to_string(), second)
    });
    let begin = Clock.now();
    while first.engine.aborted().is_none() {
        assert!(Clock.now() - begin < LIMIT, "this rank was not notified");
        first.engine.poll(Clock.now());
    }
    first.engine.poll(Clock.now());
    let completed = first.engine.take_finished(first.op).unwrap();
    let own = completed.result.unwrap_err().to_string();
    assert!(own.contains("leave the tensor's memory as it is"), "{own}");
    let (others, second) = second.join().unwrap();
    assert!(others.contains("rank 0's GPU may still use it"), "{others}");
    assert!(!first.engine.node.as_ref().unwrap().is_quiesced(0), "its folds have not ended");
    drop(first.engine);
    assert!(!second.engine.node.as_ref().unwrap().is_quiesced(0), "its folds have not ended");
}

/// Two ranks of one node that have nothing to do.
fn idle() -> [Engine; 2] {
    engines(&Plan::default(), Grid::new(2, 2).unwrap())
}

#[test]
fn a_known_cause_is_published_rather_than_the_rank_that_left_because_of_it() {
    let [mut engine, other] = idle();
    engine.executor.abort(Rank(1), AbortReason::Diverged(None));
    // Before this rank has notified the others of the cause, it finds somebody missing.
    engine.lost(Clock.now(), Rank(0));
    let published = other.node.as_ref().and_then(|node| node.abort()).unwrap();
    assert_eq!(
        (published.culprit, AbortReason::from_code(published.reason.into())),
        (1, AbortReason::Diverged(None))
    );
    assert_eq!(engine.aborted().map(|cause| cause.culprit), Some(Rank(1)));
}

/// Its votes were another shard's, on another part of the node's memory, so that the rank beside has none.
#[test]
fn a_divergence_that_another_shard_has_found_is_seen_by_the_rank_beside() {
    let view = |count| View {
        identity: Identity::part(1),
        shape: Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count },
    };
    let found = Divergence {
        seq: 1,
        rank: Rank(7),
        found: view(9),
        other: Rank(3),
        expected: view(8),
        is_majority: true,
    };
    let why = AbortReason::Diverged(Some(Box::new(found)));
    let [engine, mut other] = idle();
    let cause = AbortCause { culprit: Rank(7), reason: why.clone(), seen: None };
    liveness::publish(engine.node.as_ref().unwrap(), &cause);
    other.poll(Clock.now() + DEAD_AFTER / 2);
    assert_eq!(other.aborted().map(|cause| (cause.culprit, &cause.reason)), Some((Rank(7), &why)));
}

#[test]
fn a_rank_that_was_stopped_for_too_long_blames_itself() {
    let after = |pause: Duration, then: u32| {
        let [mut other, mut engine] = idle();
        let resumed = Clock.now() + pause;
        for step in 0..then {
            let now = resumed + step * (DEAD_AFTER / 10);
            other.poll(now);
            engine.poll(now);
        }
        engine.lost(resumed + then * (DEAD_AFTER / 10), Rank(0));
        let cause = engine.aborted().unwrap();
        (cause.culprit, cause.reason.clone())
    };
    assert_eq!(after(DEAD_AFTER / 3, 0), (Rank(0), AbortReason::Failed));
    assert_eq!(after(2 * DEAD_AFTER, 0), (Rank(1), AbortReason::Stopped));
    assert_eq!(after(2 * DEAD_AFTER, 5), (Rank(1), AbortReason::Stopped));
    // Long afterwards the others are lost for reasons of their own.
    assert_eq!(after(2 * DEAD_AFTER, 20), (Rank(0), AbortReason::Failed));
}

#[test]
fn who_still_joins_is_not_silent() {
    let grid = Grid::new(2, 2).unwrap();
    let [first, second] = segments(&Plan::default(), grid);
    let mut now = Clock.now();
    let mut first = engine(first, grid, now);
    // In short steps: this rank itself was not stopped.
    let mut wait = |first: &mut Engine| {
        for _ in 0..12 {
            now += DEAD_AFTER / 4;
            first.poll(now);
            first.poll(now);
        }
        now
    };
    // The other one tests its paths, say, and has no engine yet.
    let now = wait(&mut first);
    assert_eq!(first.aborted(), None);
    let _second = engine(second, grid, now);
    wait(&mut first);
    let cause = first.aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason), (Rank(1), &AbortReason::Failed));
}

#[test]
fn who_hears_of_its_own_death_was_stopped() {
    let [mut engine, _] = idle();
    engine.lost(Clock.now(), Rank(0));
    assert_eq!(engine.aborted().map(|cause| &cause.reason), Some(&AbortReason::Stopped));
}

/// An all-reduce of floats, to be ended by then.
fn all_reduce(engine: &Engine, data: TensorRegion, until: Instant) -> Request {
    let (grid, rank) = (engine.executor.config().grid, engine.rank);
    let count = data.len() as u64 / 4;
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
    let schedule = Plan::default().schedule_for(&Problem::new(grid, rank, &shape, Rank(0))).unwrap();
    Request {
        identity: Identity::AdHoc { root: Rank(0) },
        shape,
        data,
        input: TensorRegion::empty(),
        schedule: Arc::new(schedule),
        priority: 0,
        deadline: executor_time(until),
        name: Arc::from("gradient"),
        step: 0,
        pushed: Duration::ZERO,
        device: None,
    }
}

/// It was not scheduled when its operation became late, and another rank of the host has named the culprit meanwhile.
#[test]
fn who_is_late_to_look_names_the_culprit_that_others_have_named() {
    let [mut engine, other] = idle();
    let memory = Owned::new(4000).unwrap();
    let (begin, allowed) = (Clock.now(), Duration::from_secs(1));
    // SAFETY: nothing else accesses it, and it is dropped after the engine.
    let data = unsafe { memory.region() };
    let request = all_reduce(&engine, data, begin + allowed);
    let op = engine.start(begin, request).unwrap();
    engine.poll(begin);
    // By itself this rank would name the other one, which has not started it.
    other.node.as_ref().unwrap().set_abort(0, AbortReason::Late.code() as u8);
    engine.poll(begin + 2 * allowed);
    assert_eq!(
        engine.aborted().map(|cause| (cause.culprit, &cause.reason)),
        Some((Rank(0), &AbortReason::Late))
    );
    let result = engine.take_finished(op).unwrap().result;
    assert!(matches!(&result, Err(OpError::Aborted { cause, .. }) if cause.culprit == Rank(0)), "{result:?}");
    drop((engine, other));
}

/// A barrier in shared memory, say, is faster than what its sender says of the message.
#[test]
fn a_receive_does_not_take_a_message_that_its_sender_has_given_up() {
    use shouter_reducer::p2p::{ReceiveRequest, SendRequest, TransferError};
    let grid = Grid::new(2, 2).unwrap();
    let [mut first, mut second] = idle().map(|mut engine| {
        let node = engine.node.clone().unwrap();
        engine.up.reach_all(node, grid, engine.rank);
        engine
    });
    let (large, small) = (Owned::new(1 << 20).unwrap(), Owned::new(16).unwrap());
    let (begin, allowed, tag) = (Clock.now(), Duration::from_secs(1), 7);
    let (dtype, deadline) = (DType::U8, executor_time(begin + allowed));
    // SAFETY: nothing else accesses it, and it is dropped after the engines.
    let data = unsafe { large.region() };
    let request = SendRequest { to: Rank(1), tag, dtype, data, held: false, synchronous: false, deadline };
    let sent = first.start_send(None, request).unwrap();
    while second.messages_in(None).unwrap().probe(Some(Rank(0)), Some(tag)).is_none() {
        assert!(Clock.now() - begin < LIMIT, "it is not announced");
        first.poll(begin);
        second.poll(begin);
    }
    let later = begin + 2 * allowed;
    first.poll(later);
    let given_up = first.take_transfer(None, sent).unwrap();
    assert!(matches!(given_up, Err(TransferError::Deadline { .. })), "{given_up:?}");
    // SAFETY: as above.
    let into = unsafe { small.region() };
    let request =
        ReceiveRequest { from: Some(Rank(0)), tag: Some(tag), dtype, into, deadline: Duration::MAX };
    let received = second.start_receive(None, later, request).unwrap();
    assert_eq!(second.take_transfer(None, received).map(|result| result.map(drop)), None);
    drop((first, second));
}
