//! A thousand ranks in virtual time: what a collective costs one of them in messages, bytes, memory and time stays within bounds that do
//! not grow with the square of the ranks. Every rank is a host of its own, so all goes over the network, whose round trip is 50 us.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::time::Duration;
use std::alloc::System;
use std::collections::VecDeque;
use std::sync::Arc;

use shouter_reducer::counts::{Counts, Share};
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{Disposition, Executor, ExecutorConfig, Request};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Header, Identity, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{Owned, Span, TensorRegion};
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::Problem;
use shouter_reducer::solo::Solo;
use shouter_reducer::transport::{SendError, SendToken, Transport};

const RANKS: u32 = 1024;
/// Half a round trip.
const ONE_WAY: Duration = Duration::from_micros(25);
/// The most bytes that a rank may hold: schedule, operations, tables by peer, and the room for slots.
const LIMIT: i64 = 2 << 20;
/// Messages that a send queue takes between two polls.
const QUEUE: usize = 4096;

/// The system's allocator, with the sum of what it has given to each thread.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends frees a little behind its counter.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: all calls go to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }
    // As it is: pages that nobody touches stay the system's.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the same.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `memory` came from `System.alloc` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A message, or a release, on its way.
enum Event {
    Arrives { from: Rank, to: Rank, header: Header, payload: Span, token: SendToken },
    Released { to: Rank, token: SendToken },
}

/// The sending side of a rank in one poll. It allocates nothing, so that what a poll allocates is the executor's.
struct Port<'a> {
    queue: &'a mut Vec<(Rank, Header, Span, SendToken)>,
}

impl Transport for Port<'_> {
    fn max_fragment(&self, _: Rank) -> usize {
        8 << 10
    }
    fn send(&mut self, to: Rank, header: &Header, payload: Span, token: SendToken) -> Result<(), SendError> {
        if self.queue.len() == QUEUE {
            return Err(SendError::Full);
        }
        self.queue.push((to, *header, payload, token));
        Ok(())
    }
}

/// The costs of a rank: the messages and bytes that it has sent.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    messages: u64,
    bytes: u64,
    /// Bytes that it holds, and the most that it has held.
    held: i64,
    most: i64,
}

/// Elements from one rank to another one, where blocks differ: one more or less than `count`.
fn block(count: u64, from: u32, to: u32) -> u64 {
    count - 1 + u64::from((from + to) % 3)
}

/// What a rank gives each other one, and what it takes.
fn given_and_taken(count: u64, rank: u32) -> [Vec<u64>; 2] {
    let given = (0..RANKS).map(|to| block(count, rank, to)).collect();
    [given, (0..RANKS).map(|from| block(count, from, rank)).collect()]
}

/// Runs one collective on all ranks and returns the highest costs of a rank, and the virtual time.
fn run(collective: Collective, count: u64) -> (Cost, Duration) {
    let grid = Grid::new(RANKS, 1).unwrap();
    let plan = Plan::default();
    let shape = Shape { collective, dtype: DType::I32, op: ReduceOp::Sum, count };
    let algorithm = plan.algorithm(&grid, &shape);
    let mut costs = vec![Cost::default(); RANKS as usize];
    let mut queue = Vec::with_capacity(QUEUE);
    let (mut ranks, mut buffers) = (Vec::new(), Vec::new());
    let charge = |cost: &mut Cost, before: i64| {
        cost.held += HELD.with(Cell::get) - before;
        cost.most = cost.most.max(cost.held);
    };
    let share = |rank| {
        let [given, taken] = given_and_taken(count, rank);
        Share::of(&grid, Rank(rank), &given, &taken)
    };
    let shares: Option<Vec<_>> = collective.has_counts().then(|| (0..RANKS).map(share).collect());
    for (rank, cost) in (0..RANKS).map(Rank).zip(&mut costs) {
        let before = HELD.with(Cell::get);
        let mut problem = Problem::new(grid, rank, &shape, Rank(0));
        if let Some(shares) = &shares {
            let own = given_and_taken(count, rank.0);
            let counts = Counts::of_node(&grid, grid.node_of(rank), own, shares.clone()).unwrap();
            problem = problem.with_counts(Arc::new(counts)).separate();
        }
        charge(cost, before);
        let [output, given] = [problem.output_bytes(), problem.input_bytes()].map(|bytes| bytes as usize);
        let memory = [output, given].map(|bytes| Owned::new(bytes.max(4)).unwrap());
        // SAFETY: the memory outlives the executors, which are dropped at the end of this function before it.
        let [data, input] = [0, 1].map(|at| unsafe { memory[at].region() });
        let fill = |region: TensorRegion| {
            let values: Vec<u8> =
                (0..region.len() as u32 / 4).flat_map(|at| (rank.0 + at).to_le_bytes()).collect();
            // SAFETY: the region has as many bytes, and nothing else refers to it yet.
            unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), region.as_ptr(), values.len()) };
        };
        fill(data);
        fill(input);
        let before = HELD.with(Cell::get);
        let mut config = ExecutorConfig::new(rank, grid, Kernels::detect());
        config.eager_bytes = plan.eager_bytes as usize;
        config.slot_pool_bytes = 1 << 20;
        config.lazy_slots = true;
        // SAFETY: nothing refers to its memory when it is dropped: the queue of events is empty then.
        let mut executor = unsafe { Executor::new(config) }.unwrap();
        let request = Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape: problem.shape,
            data: data.sub(0, output).unwrap(),
            input: if problem.has_input() { input.sub(0, given).unwrap() } else { TensorRegion::empty() },
            schedule: Arc::new(plan.build(algorithm, &problem).unwrap()),
            priority: 0,
            deadline: Duration::MAX,
            name: Arc::from("scale"),
            step: 0,
            pushed: Duration::ZERO,
            device: None,
        };
        executor.start(request).unwrap();
        charge(cost, before);
        buffers.push(memory);
        ranks.push(executor);
    }
    let mut events = VecDeque::<(Duration, Event)>::new();
    let (mut now, mut left) = (Duration::from_nanos(1), RANKS);
    let mut due: VecDeque<Rank> = (0..RANKS).map(Rank).collect();
    loop {
        while let Some(rank) = due.pop_front() {
            let at = rank.0 as usize;
            loop {
                let before = HELD.with(Cell::get);
                let port = &mut Port { queue: &mut queue };
                let worked = ranks[at].poll::<_, Solo>(now, port, None, None).worked;
                charge(&mut costs[at], before);
                for (to, header, payload, token) in queue.drain(..) {
                    costs[at].messages += 1;
                    costs[at].bytes += (shouter_reducer::header::HEADER_BYTES + payload.len()) as u64;
                    events.push_back((
                        now + ONE_WAY,
                        Event::Arrives { from: rank, to, header, payload, token },
                    ));
                }
                if !worked {
                    break;
                }
            }
            while let Some(completed) = ranks[at].take_completed() {
                completed.result.unwrap();
                left -= 1;
            }
        }
        let Some((at, event)) = events.pop_front() else { break };
        now = at;
        match event {
            Event::Arrives { from, to, header, payload, token } => {
                // SAFETY: the range was posted and is not released.
                let bytes = unsafe { payload.as_bytes() }.unwrap_or_default();
                let before = HELD.with(Cell::get);
                let taken = ranks[to.0 as usize].on_fragment(&header, bytes);
                charge(&mut costs[to.0 as usize], before);
                match taken {
                    Disposition::Consumed => {
                        events.push_back((now + ONE_WAY, Event::Released { to: from, token }));
                    }
                    Disposition::Refused(why) => {
                        assert!(why.is_retryable(), "{why:?}");
                        events
                            .push_back((now + ONE_WAY, Event::Arrives { from, to, header, payload, token }));
                    }
                }
                due.push_back(to);
            }
            Event::Released { to, token } => {
                ranks[to.0 as usize].on_released(token);
                due.push_back(to);
            }
        }
        if left == 0 && events.is_empty() {
            break;
        }
    }
    assert_eq!(left, 0, "{collective:?} of {count}: nothing happens any more");
    if collective == Collective::AllReduce {
        for at in [0, count as u32 / 2, count as u32 - 1] {
            let sum = (0..RANKS).map(|rank| rank + at).sum::<u32>().to_le_bytes();
            for memory in &buffers {
                // SAFETY: nothing runs any more.
                let region = unsafe { memory[0].region() };
                let span = region.span(4 * at as usize, 4).unwrap();
                // SAFETY: the same.
                assert_eq!(unsafe { span.as_bytes() }.unwrap(), sum);
            }
        }
    }
    drop(ranks);
    let highest = |of: fn(&Cost) -> i64| costs.iter().map(of).max().unwrap_or(0);
    let most = Cost {
        messages: highest(|cost| cost.messages as i64) as u64,
        bytes: highest(|cost| cost.bytes as i64) as u64,
        held: 0,
        most: highest(|cost| cost.most),
    };
    println!("{collective:?} of {count} by {algorithm:?}: a rank's most: {most:?}, after {now:?}");
    (most, now)
}

/// At most so many messages and bytes from each rank, and so much virtual time.
#[track_caller]
fn assert_bounded(collective: Collective, count: u64, (messages, bytes): (u64, u64), time: Duration) {
    let (cost, took) = run(collective, count);
    assert!(cost.messages <= messages, "{collective:?} of {count}: {} messages", cost.messages);
    assert!(cost.bytes <= bytes, "{collective:?} of {count}: {} bytes sent", cost.bytes);
    assert!(cost.most <= LIMIT, "{collective:?} of {count}: {} bytes held", cost.most);
    assert!(took <= time, "{collective:?} of {count}: {took:?}");
}

#[test]
fn a_barrier_of_a_thousand_ranks_takes_a_message_for_each_doubling() {
    assert_bounded(Collective::Barrier, 0, (10, 1 << 10), Duration::from_millis(1));
}

#[test]
fn an_all_reduce_of_a_thousand_ranks_stays_within_its_bounds() {
    assert_bounded(Collective::AllReduce, 1, (32, 4 << 10), Duration::from_millis(2));
    // Twice the tensor's bytes, and what a few dozen headers take.
    assert_bounded(Collective::AllReduce, 16 << 10, (128, 160 << 10), Duration::from_millis(4));
}

/// The exchange that creates a group of all ranks: a few words of each member.
#[test]
fn an_all_gather_of_a_thousand_ranks_stays_within_its_bounds() {
    assert_bounded(Collective::AllGather, 4, (32, 32 << 10), Duration::from_millis(2));
}

/// Of the counts that pairs of ranks have, a rank holds its own, and the sums of the others.
#[test]
fn an_all_to_all_of_a_thousand_ranks_whose_blocks_differ_stays_within_its_bounds() {
    assert_bounded(Collective::AllToAllV, 7, (2 << 10, 160 << 10), Duration::from_millis(2));
}
