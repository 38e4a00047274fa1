//! Operations that always have something to send leave room for messages between two ranks.

use std::sync::mpsc::{Receiver, Sender, channel};

use shouter_reducer::header::Header;
use shouter_reducer::p2p::SendRequest;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::*;
use crate::channel::Inbox;
use crate::channel::loss::PeerLoss;
use crate::channel::up::Channel;

/// A channel to a peer that sends nothing, with room for one message in each of so many polls. It tells of those that it takes.
struct Tight {
    every: u32,
    polls: u32,
    is_full: bool,
    taken: Sender<SendToken>,
}

impl Transport for Tight {
    fn max_fragment(&self, _: Rank) -> usize {
        8896
    }
    fn send(&mut self, _: Rank, _: &Header, _: PayloadRange, token: SendToken) -> Result<(), SendError> {
        if core::mem::replace(&mut self.is_full, true) {
            return Err(SendError::Full);
        }
        self.taken.send(token).unwrap();
        Ok(())
    }
}

impl Channel for Tight {
    fn receive(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }
    fn transmit(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        self.polls += 1;
        if self.polls.is_multiple_of(self.every) {
            self.is_full = false;
        }
        true
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

/// Rank 0 of two hosts, with a small all-reduce under way in each memory, and what its channel takes: one message in `every` polls.
fn busy_engine(memory: &[Owned], every: u32, now: Instant) -> (Engine, Receiver<SendToken>) {
    let (taken, log) = channel();
    let grid = Grid::new(2, 1).unwrap();
    // SAFETY: it goes into an engine, which drops it last.
    let executor = unsafe { Executor::new(ExecutorConfig::new(Rank(0), grid, Kernels::detect())) }.unwrap();
    let up = Tight { every, polls: 0, is_full: false, taken }.into();
    let mut engine =
        Engine::new(EngineParts { executor, rank: Rank(0), up, node: None, dead_after: DEAD_AFTER }, now);
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 1 };
    let schedule =
        Arc::new(Plan::default().schedule_for(&Problem::new(grid, Rank(0), &shape, Rank(0))).unwrap());
    for data in memory {
        let request = Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            // SAFETY: nothing else accesses it, and it is dropped after the engine.
            data: unsafe { data.region() },
            input: TensorRegion::empty(),
            schedule: schedule.clone(),
            priority: 0,
            deadline: executor_time(now + LIMIT),
            name: Arc::from("gradient"),
            step: 0,
            device: None,
            pushed: Duration::ZERO,
        };
        engine.start(now, request).unwrap();
    }
    (engine, log)
}

#[test]
fn a_message_leaves_although_operations_fill_the_channel() {
    for every in 1..=6 {
        let now = Clock.now();
        let memory: Vec<Owned> = (0..32).map(|_| Owned::new(4).unwrap()).collect();
        let data = Owned::new(64).unwrap();
        let (mut engine, log) = busy_engine(&memory, every, now);
        let request = SendRequest {
            to: Rank(1),
            tag: 1,
            dtype: DType::U8,
            // SAFETY: nothing else accesses it, and it is dropped after the engine.
            data: unsafe { data.region() },
            held: false,
            synchronous: false,
            deadline: executor_time(now + LIMIT),
        };
        engine.start_send(None, request).unwrap();
        for _ in 0..6 * every {
            engine.poll(now);
        }
        let taken: Vec<bool> = log.try_iter().map(SendToken::is_p2p).collect();
        assert!(taken.len() >= 6, "operations had something to send all the time: {taken:?}");
        assert!(taken.contains(&true), "no message was taken with room in every {every} polls");
        drop((engine, memory, data));
    }
}
