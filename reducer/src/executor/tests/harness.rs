//! A group of executors over a simulated network, with the memory of their nodes and accelerators.
#![allow(unsafe_code)]

use super::super::*;
use crate::grid::tests::any_levels;
use crate::grid::{Grid, Rank};
use crate::header::{Collective, HEADER_BYTES, Identity, Shape};
use crate::kernel::Kernels;
use crate::memory::{self, Span};
use crate::schedule::{Algorithm, Params, Problem, build};
pub(super) use crate::simulation::{Buffer, Faults};
use crate::simulation::{Endpoint, Net, Port, peek};
use crate::transport::{
    Accelerator, AcceleratorError, DeviceFence, DeviceFold, DeviceTensor, ExportedTensor, LaneFlag,
    StreamEvent, TensorView,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

impl Buffer {
    /// The same memory as a tensor that the node's ranks share.
    pub(super) fn shared(&self) -> TensorRegion {
        self.as_kind(memory::MemoryKind::Shared)
    }

    /// The same memory as an accelerator's, which only copies touch.
    pub(super) fn device(&self) -> TensorRegion {
        self.as_kind(memory::MemoryKind::Device)
    }
}

/// Operations that a rank announces before it overwrites the first.
pub(super) const ANNOUNCEMENTS: u64 = 512;

/// The memory of one node.
pub(super) struct Node {
    lanes: u32,
    bytes: usize,
    areas: Vec<Buffer>,
    flags: Vec<AtomicU64>,
    locals: u32,
    /// Where tensors lie, by local rank: one for each operation that it has started.
    tensors: RefCell<Vec<Vec<(TensorView, crate::header::View)>>>,
    /// Whether a rank could open the others' tensors, by (local rank, operation).
    agreed: RefCell<HashMap<(u32, u64), bool>>,
    /// Ranks see which operations the others have started.
    pub(super) announces: bool,
}

impl Node {
    fn new(locals: u32, lanes: u32, bytes: usize) -> Self {
        let areas = (0..(locals + 1) * lanes).map(|_| Buffer::new(&vec![0xee; bytes])).collect();
        let flags = (0..locals * lanes * 4).map(|_| AtomicU64::new(0)).collect();
        let tensors = RefCell::new(vec![Vec::new(); locals as usize]);
        Self { lanes, bytes, areas, flags, locals, tensors, agreed: RefCell::default(), announces: false }
    }

    /// What a rank has announced of an operation, if it has come so far, and not much farther.
    fn announced(&self, local: u32, seq: u64) -> Option<(TensorView, crate::header::View)> {
        let all = &self.tensors.borrow()[local as usize];
        all.get(seq as usize).filter(|_| all.len() as u64 <= seq + ANNOUNCEMENTS).copied()
    }

    fn flag(&self, local: u32, lane: u32, flag: LaneFlag) -> &AtomicU64 {
        &self.flags[((local * self.lanes + lane) * 4) as usize + flag as usize]
    }
}

/// One rank's view of its node's memory.
pub(super) struct View<'a>(pub(super) &'a Node, pub(super) u32);

impl NodeMemory for View<'_> {
    fn has_started(&self, local: u32, seq: u64) -> Option<bool> {
        self.0.announces.then(|| self.0.tensors.borrow()[local as usize].len() as u64 > seq)
    }
    fn agrees(&self, seq: u64) -> Option<bool> {
        let ours = self.view(self.1, seq)?;
        (0..self.0.locals).try_fold(true, |all, local| Some(all & (self.view(local, seq)? == ours)))
    }
    fn view(&self, local: u32, seq: u64) -> Option<crate::header::View> {
        self.0.announced(local, seq).map(|(_, view)| view)
    }
    fn tensor(&self, local: u32, seq: u64, len: usize) -> TensorView {
        match self.0.announced(local, seq) {
            None => TensorView::Unknown,
            // Another length is another operation.
            Some((TensorView::Shared(region), _)) => {
                region.sub(0, len).map_or(TensorView::Unknown, TensorView::Shared)
            }
            Some((view, _)) => view,
        }
    }
    fn agree(&self, seq: u64, opened: bool) {
        assert!(self.0.agreed.borrow_mut().insert((self.1, seq), opened).is_none(), "an answer was changed");
    }
    fn has_agreed(&self, local: u32, seq: u64) -> Option<bool> {
        self.0.agreed.borrow().get(&(local, seq)).copied()
    }
    fn lanes(&self) -> u32 {
        self.0.lanes
    }
    fn lane_bytes(&self) -> usize {
        self.0.bytes
    }
    fn stage(&self, local: u32, lane: u32) -> TensorRegion {
        self.0.areas[(local * self.0.lanes + lane) as usize].region
    }
    fn result(&self, lane: u32) -> TensorRegion {
        self.0.areas[(self.0.locals * self.0.lanes + lane) as usize].region
    }
    fn signal(&self, lane: u32, flag: LaneFlag, value: u64) {
        let before = self.0.flag(self.1, lane, flag).swap(value, Ordering::Release);
        assert!(before < value, "flags only grow");
    }
    fn observe(&self, local: u32, lane: u32, flag: LaneFlag) -> u64 {
        self.0.flag(local, lane, flag).load(Ordering::Acquire)
    }
}

/// A copy or a fold that was started: it writes `bytes` to all of `into`, for `from` held what it does then.
struct Started {
    number: u64,
    into: Vec<Span>,
    bytes: Vec<u8>,
    from: Vec<(Span, Vec<u8>)>,
}

/// Copies and folds at random times between their start and the report that they are done, those of one direction in order.
pub(super) struct Copies {
    /// Started and not done, by direction.
    pending: [VecDeque<Started>; 2],
    started: u64,
    /// So often the stream event is not reached yet.
    pub(super) early: u32,
    rng: SmallRng,
    /// So many copies more and then only failures.
    pub(super) good: u64,
    /// Tensors of other ranks cannot be opened.
    pub(super) blind: bool,
    /// Folds that were started.
    pub(super) folds: usize,
}

impl Endpoint for Executor {
    fn on_packet(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_fragment(header, payload)
    }
    fn on_placed(&mut self, header: &Header, place: Span, payload: &[u8]) -> Disposition {
        let landing = self.landing(header).expect("what is asked for has its place");
        assert_eq!(landing.as_ptr(), place.as_ptr());
        assert!(peek(landing) == payload, "a place was overwritten");
        self.on_placed(header)
    }
    fn on_released(&mut self, token: SendToken) {
        self.on_released(token);
    }
    /// Whether it needs credit.
    fn may_refuse(&self, header: &Header) -> bool {
        let bytes = header.shape.count as usize * header.shape.dtype.size();
        header.kind == MessageKind::Data && bytes > self.config().eager_bytes
    }
}

/// An executor of the harness.
pub(super) fn executor(config: ExecutorConfig) -> Executor {
    // SAFETY: everything runs in this thread, and nothing reads or writes what executors name once they are gone.
    unsafe { Executor::new(config) }.unwrap()
}

impl Copies {
    /// Whether nothing was ever copied.
    pub(super) fn is_unused(&self) -> bool {
        self.started == 0
    }

    /// Ends all that was started.
    fn finish(&mut self) {
        while let Some(direction) = (0..2).find(|direction| !self.pending[*direction].is_empty()) {
            self.advance(direction);
        }
    }

    fn advance(&mut self, direction: usize) {
        let Some(Started { into, bytes, from, .. }) = self.pending[direction].pop_front() else { return };
        for (from, bytes) in from {
            assert!(peek(from) == bytes, "a source was written before the copy or fold was done");
        }
        for into in into {
            // SAFETY: as in `peek`.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), into.as_ptr().cast_mut(), bytes.len()) };
        }
    }

    fn enqueue(
        &mut self,
        into: &[Span],
        from: &[Span],
        make: impl FnOnce(&[Vec<u8>]) -> Vec<u8>,
    ) -> Result<DeviceFence, AcceleratorError> {
        assert!(into.iter().chain(from).all(|span| span.len() == into[0].len()));
        if self.started == self.good {
            return Err(AcceleratorError(Arc::from("out of order")));
        }
        self.started += 1;
        let is_device = |span: &Span| span.region().kind() == memory::MemoryKind::Device;
        let direction = usize::from(!from.iter().any(is_device));
        assert!(into.iter().chain(from).any(is_device));
        let sources: Vec<_> = from.iter().map(|&span| peek(span)).collect();
        let bytes = make(&sources);
        let from = from.iter().copied().zip(sources).collect();
        self.pending[direction].push_back(Started { number: self.started, into: into.to_vec(), bytes, from });
        Ok(DeviceFence(self.started << 1 | direction as u64))
    }
}

impl Accelerator for Copies {
    fn copy(&mut self, into: Span, from: Span) -> Result<DeviceFence, AcceleratorError> {
        self.enqueue(&[into], &[from], |from| from[0].clone())
    }
    fn open(&mut self, tensor: &ExportedTensor, len: usize) -> Option<TensorRegion> {
        let base = core::ptr::NonNull::new(tensor.address as *mut u8).filter(|_| !self.blind)?;
        // SAFETY: as in `Buffer::new`; all executors are in this process.
        Some(unsafe { TensorRegion::from_raw_parts(memory::MemoryKind::Device, base, len, 0) })
    }
    fn fold(&mut self, fold: &DeviceFold<'_>) -> Result<DeviceFence, AcceleratorError> {
        self.folds += 1;
        self.enqueue(fold.destinations, fold.sources, |sources| {
            let mut sum = vec![0; sources[0].len()];
            let from: Vec<_> = sources.iter().map(|source| source.as_ptr()).collect();
            let kernels = Kernels::detect();
            // SAFETY: all are as long as the sum, and apart from it.
            unsafe { kernels.fold_raw(fold.dtype, fold.op, sum.as_mut_ptr(), &from, sum.len()) };
            if let Some(n) = fold.divide_by {
                kernels.finish_avg(fold.dtype, &mut sum, n);
            }
            sum
        })
    }
    fn is_done(&mut self, copy: DeviceFence) -> Result<bool, AcceleratorError> {
        let (number, direction) = (copy.0 >> 1, copy.0 as usize & 1);
        if self.rng.random_bool(0.3) {
            self.advance(direction);
        }
        Ok(self.pending[direction].front().is_none_or(|first| first.number > number))
    }
    fn is_reached(&mut self, event: StreamEvent) -> Result<bool, AcceleratorError> {
        assert_eq!(event, StreamEvent(9));
        self.early = self.early.saturating_sub(1);
        Ok(self.early == 0)
    }
    fn is_idle(&mut self) -> Result<bool, AcceleratorError> {
        Ok(self.pending.iter().all(VecDeque::is_empty))
    }
}

/// A grid of so many nodes with up to `most` ranks each: on half of them the same number on each node.
pub(super) fn grid(rng: &mut SmallRng, nodes: u32, most: u32) -> Grid {
    let even = rng.random_bool(0.5).then(|| rng.random_range(1..=most));
    let locals: Vec<_> = (0..nodes).map(|_| even.unwrap_or_else(|| rng.random_range(1..=most))).collect();
    Grid::of_hosts(&locals).unwrap().with_levels(any_levels(rng))
}

/// All ranks of a group.
pub(super) struct Group {
    pub(super) executors: Vec<Executor>,
    pub(super) nodes: Vec<Node>,
    pub(super) net: Net,
    pub(super) copies: Vec<Copies>,
    pub(super) grid: Grid,
    pub(super) params: Params,
    pub(super) rng: SmallRng,
    pub(super) completed: Vec<Vec<Completed>>,
    pub(super) now: Duration,
}

pub(super) const PARAMS: Params = Params { chunk_bytes: 1024, lanes: 2, lane_bytes: 1024, depth: 2 };

impl Group {
    pub(super) fn new(seed: u64, grid: Grid, faults: Faults, change: impl Fn(&mut ExecutorConfig)) -> Self {
        let nodes: Vec<_> = (0..grid.nodes())
            .map(|node| Node::new(grid.locals(node), PARAMS.lanes, PARAMS.lane_bytes))
            .collect();
        let executors = (0..grid.ranks())
            .map(|rank| {
                let mut config = ExecutorConfig {
                    eager_bytes: 600,
                    eager_pool_bytes: 4096,
                    slot_pool_bytes: 1 << 20,
                    max_operations: 8,
                    poll_bytes: 2048,
                    ..ExecutorConfig::new(Rank(rank), grid, Kernels::detect())
                };
                change(&mut config);
                let mut executor = executor(config);
                let node = &nodes[grid.node_of(Rank(rank)) as usize];
                executor.attach_node(&View(node, grid.local_of(Rank(rank)))).unwrap();
                executor
            })
            .collect();
        let copies = |rank: u32| Copies {
            pending: Default::default(),
            started: 0,
            early: (seed % 50) as u32,
            rng: SmallRng::seed_from_u64(seed ^ u64::from(rank)),
            good: u64::MAX,
            blind: seed.is_multiple_of(7) && rank % 3 == 1,
            folds: 0,
        };
        let net = Net::new(seed ^ 0x5eed, faults, |header, _, token| {
            assert!(!header.kind.is_p2p() && !header.kind.is_window());
            assert!(token == SendToken::CONTROL || !token.is_p2p() && !token.is_window());
        });
        Self {
            executors,
            nodes,
            net,
            copies: (0..grid.ranks()).map(copies).collect(),
            grid,
            params: PARAMS,
            rng: SmallRng::seed_from_u64(seed),
            completed: (0..grid.ranks()).map(|_| Vec::new()).collect(),
            now: Duration::from_nanos(1),
        }
    }

    /// The same for a tensor in an accelerator's memory.
    pub(super) fn device_request(
        &self,
        rank: Rank,
        algorithm: Algorithm,
        shape: Shape,
        data: &Buffer,
    ) -> Request {
        let problem = Problem::new(self.grid, rank, &shape, Rank(0)).on_device();
        let schedule = Arc::new(build(algorithm, &problem, &self.params).unwrap());
        let ready_event = Some(StreamEvent(9));
        let address = data.region.as_ptr() as u64;
        let export = Some(ExportedTensor { address, handle: [0; ExportedTensor::HANDLE], is_own: true });
        let device = Some(DeviceTensor { ready_event, export });
        Request { data: data.device(), schedule, device, ..self.request(rank, algorithm, shape, data) }
    }

    pub(super) fn request(&self, rank: Rank, algorithm: Algorithm, shape: Shape, data: &Buffer) -> Request {
        let problem = Problem::new(self.grid, rank, &shape, Rank(0));
        Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            data: data.region,
            input: TensorRegion::empty(),
            schedule: Arc::new(build(algorithm, &problem, &self.params).unwrap()),
            priority: 0,
            deadline: Duration::MAX,
            name: Arc::from("t"),
            step: 7,
            pushed: Duration::ZERO,
            device: None,
        }
    }

    /// Starts an operation, and says where its tensor lies.
    pub(super) fn start(&mut self, rank: usize, request: Request) -> Result<OpId, StartError> {
        let id = Rank(rank as u32);
        let export = request.device.and_then(|device| device.export);
        let what = crate::header::View { identity: request.identity, shape: request.shape };
        let given = request.schedule.in_place().map(|_| request.given());
        let tensor = match (given, export) {
            (Some(given), _) if given.is_empty() || given.kind() == memory::MemoryKind::Shared => {
                TensorView::Shared(given)
            }
            (Some(_), Some(export)) => TensorView::Exported(export),
            _ => TensorView::Private,
        };
        let op = self.executors[rank].start(request)?;
        let node = &self.nodes[self.grid.node_of(id) as usize];
        node.tensors.borrow_mut()[self.grid.local_of(id) as usize].push((tensor, what));
        Ok(op)
    }

    pub(super) fn poll(&mut self, rank: usize) -> bool {
        let id = Rank(rank as u32);
        if self.net.dead == Some(id) {
            return false;
        }
        let node = &self.nodes[self.grid.node_of(id) as usize];
        let view = View(node, self.grid.local_of(id));
        let progress = self.executors[rank].poll(
            self.now,
            &mut Port(&mut self.net, id),
            Some(&view),
            Some(&mut self.copies[rank]),
        );
        assert!(self.executors[rank].ring.lists_what_is_due());
        while let Some(completed) = self.executors[rank].take_completed() {
            self.completed[rank].push(completed);
        }
        progress.worked
    }

    /// Lets a rank compare what it runs with what the others run.
    pub(super) fn compare(&mut self, rank: usize) {
        let id = Rank(rank as u32);
        let node = View(&self.nodes[self.grid.node_of(id) as usize], self.grid.local_of(id));
        self.executors[rank].compare(Some(&node));
    }

    /// Delivers or acknowledges one packet.
    pub(super) fn network(&mut self) -> bool {
        self.net.step(&mut self.rng, &mut self.executors)
    }

    /// Starts `work` (by rank, in order) at random times, and runs until all of it has ended.
    pub(super) fn run(&mut self, mut work: Vec<VecDeque<Request>>, what: &str) {
        let wanted: Vec<_> =
            work.iter().zip(&self.completed).map(|(work, done)| work.len() + done.len()).collect();
        let ranks = self.executors.len();
        let mut idle = 0;
        while (0..ranks).any(|rank| self.completed[rank].len() < wanted[rank]) {
            idle = if self.step(&mut work, what) { 0 } else { idle + 1 };
            assert!(idle < 20_000, "{what}: nothing happens any more");
        }
    }

    /// Lets something happen at random: the start of the next of a rank's `work`, a poll, or a message; whether anything did.
    fn step(&mut self, work: &mut [VecDeque<Request>], what: &str) -> bool {
        let rank = self.rng.random_range(0..self.executors.len());
        // Time passes: an engine lets its executor compare every so often.
        if self.rng.random_ratio(1, 20) {
            self.compare(rank);
        }
        match self.rng.random_range(0..8) {
            0 if self.net.dead == Some(Rank(rank as u32)) => false,
            0 => match work[rank].front() {
                None => false,
                Some(request) => match self.start(rank, request.clone()) {
                    Ok(_) => {
                        work[rank].pop_front();
                        true
                    }
                    Err(StartError::Busy { .. } | StartError::Aborted(_)) => false,
                    Err(error) => panic!("{what}: {error}"),
                },
            },
            1..4 => self.poll(rank),
            _ => self.network(),
        }
    }

    /// Starts `work` likewise. At a random moment a rank dies, and each other one ends the group for it and tears its channels down, at another
    /// moment. All that had started has ended then.
    pub(super) fn run_and_lose(&mut self, mut work: Vec<VecDeque<Request>>, dies: Rank, what: &str) {
        let before: Vec<_> = work.iter().map(VecDeque::len).collect();
        let most = [30, 300, 3000][self.rng.random_range(0..3)];
        for _ in 0..self.rng.random_range(0..most) {
            self.step(&mut work, what);
        }
        self.net.dead = Some(dies);
        let mut left: Vec<_> = (0..self.grid.ranks()).map(Rank).filter(|rank| *rank != dies).collect();
        while !left.is_empty() {
            for _ in 0..self.rng.random_range(0..100) {
                self.step(&mut work, what);
            }
            let rank = left.swap_remove(self.rng.random_range(0..left.len()));
            let at = rank.0 as usize;
            self.executors[at].abort(dies, AbortReason::Failed);
            self.poll(at);
            assert_eq!(
                self.completed[at].len(),
                before[at] - work[at].len(),
                "{what}: what {rank} has started"
            );
            self.net.fence(rank, &mut self.executors[at]);
            self.copies[at].finish();
        }
        self.net.bury();
    }

    /// After ranks have diverged: lets all leaders vote, as their engines do, and ends the group with what each rank then knows.
    pub(super) fn vote(&mut self) -> Vec<Option<Divergence>> {
        let grid = self.grid;
        let all = || (0..grid.ranks()).map(Rank);
        while let Some(seq) = all().filter_map(|rank| self.executors[rank.0 as usize].diverged()).min() {
            all().for_each(|rank| self.executors[rank.0 as usize].diverge(seq, Rank(0)));
            for leader in all().filter(|rank| grid.is_leader(*rank)) {
                let node = View(&self.nodes[grid.node_of(leader) as usize], 0);
                for vote in self.executors[leader.0 as usize].vote(Some(&node)) {
                    let mut bytes = [0; HEADER_BYTES];
                    vote.encode(&mut bytes);
                    let vote = Header::parse(&bytes).unwrap();
                    for other in all().filter(|rank| *rank != leader) {
                        // A rank that is no leader has its leader's verdict; here it tallies by itself.
                        let _ = self.executors[other.0 as usize].on_fragment(&vote, &[]);
                    }
                }
            }
            for executor in &self.executors {
                let (seen, cause) = (executor.diverged(), executor.aborted());
                assert!(
                    seen.is_some_and(|seen| seen <= seq),
                    "operation {seq} is in dispute, and yet {cause:?}"
                );
            }
            if self.executors.iter().all(|executor| executor.diverged() == Some(seq)) {
                break;
            }
        }
        let mut verdicts = Vec::new();
        for rank in all() {
            let node = View(&self.nodes[grid.node_of(rank) as usize], grid.local_of(rank));
            // Ranks of one node know each other's views; a leader's vote on its own node is no message.
            let executor = &mut self.executors[rank.0 as usize];
            executor.vote(Some(&node));
            verdicts.push(executor.conclude(Some(&node)));
        }
        verdicts
    }

    /// Lets the network become idle.
    pub(super) fn drain(&mut self) {
        for _ in 0..1_000_000 {
            let network = self.network();
            let polls = (0..self.executors.len()).any(|rank| self.poll(rank));
            if !network && !polls {
                return;
            }
        }
        panic!("the network never becomes idle");
    }
}

pub(super) fn shape(dtype: crate::dtype::DType, op: crate::dtype::ReduceOp, count: u64) -> Shape {
    Shape { collective: Collective::AllReduce, dtype, op, count }
}
