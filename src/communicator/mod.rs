//! The group as a trainer sees it: join, register tensors, push, wait.
//!
//! A [`Group`] is one rank's membership. Blocking calls drive the rank's [engine](crate::engine) themselves; between
//! them a helper thread answers the network. In dedicated mode a pinned thread drives all the time. Every method may
//! be called from several threads, but the order of operations must be the same on all ranks.

mod annotations;
mod collectives;
mod costs;
mod drive;
mod element;
mod failure;
#[cfg(feature = "cuda")]
mod gpu;
mod groups;
mod init;
mod join;
mod lent;
#[cfg(not(feature = "cuda"))]
mod no_gpu;
mod notify;
mod outcomes;
mod p2p;
mod premul;
mod register;
mod registered;
mod schedules;
mod selection;
mod shards;
mod small;
mod staging;
mod start;
mod start_queue;
mod stats;
mod strided;
mod table;
mod tensor;
mod transport;
mod uneven;
mod windows;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{AbortCause, Request};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Shape, View};
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::schedule::Problem;
use shouter_reducer::transport::DeviceTensor;

use crate::channel::CELL_BYTES;
use crate::channel::shm::{NodeSegment, shortened};
use crate::engine::executor_time;
use crate::error::{Call, Error, Operation};
use crate::group::watch::Control;
use crate::observe::metrics::Exporter;
use crate::observe::signal::OnSignal;
use crate::observe::{Row, TimelineFile};
use crate::runtime::{Clock, Instant};
use annotations::Annotations;
pub use collectives::CollectiveCall;
pub use costs::{CostFigures, CostsFrom};
use drive::Drive;
pub use element::{Bool, Element};
use groups::Subset;
pub use init::{init, init_through};
pub use join::leaders;
pub use lent::{Lend, LendError, Lending, Lent};
use notify::StopNotifier;
use outcomes::{Outcomes, Span};
pub use p2p::{Exchange, Source, Status, Tag};
pub use premul::Premul;
use shards::Schedules;
use small::Cells;
pub use staging::Staging;
use start_queue::StartQueue;
pub use stats::Stats;
pub use strided::{Strided, StridedMut};
use table::Tables;
pub use table::{BlockCounts, TensorSpec};
pub use tensor::Tensor;
use transport::ChannelFacts;
pub use transport::Transport;
pub use uneven::UnevenCall;
use windows::DirectWindows;
pub use windows::{AccessCall, Update, Window, WindowMemory};
pub use work::Work;

/// The tracks of an operation that blocks its caller to its end.
const BLOCKING: [Row; 2] = [Row::Calls, Row::Wait];

/// One rank's membership in a group, and all that serves it: threads, links, shared memory.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shouter::ReduceOp;
/// use shouter::config::{Builder, Environment};
///
/// // A group of one needs no launcher; a trainer calls `Config::from_env()` instead.
/// let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
/// let group = shouter::init(config)?;
/// let mut gradient = [1.0f32, 2.0, 3.0];
/// group.all_reduce(&mut gradient, ReduceOp::Avg)?;
/// assert_eq!(gradient, [1.0, 2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
pub struct Group {
    rank: Rank,
    grid: Grid,
    /// The state that all groups of this process share. Dropped before the engine, which the control connections
    /// notify.
    job: Arc<Job>,
    /// The members, where they are not all ranks.
    subset: Option<Subset>,
    drive: Drive,
    /// After the engine, which reports the ends of all operations.
    _stop_notifier: StopNotifier,
    outcomes: Arc<Outcomes>,
    start_queue: StartQueue,
    cells: Option<Cells>,
    /// The memory shared with the host's other ranks.
    node: Option<Arc<NodeSegment>>,
    /// Windows that ranks of one host access in the memory that they share, that of the group of all.
    direct: DirectWindows,
    tables: Arc<Tables>,
    deadline: Duration,
    annotations: Annotations,
    channels: ChannelFacts,
    /// The GPU that tensors lie on, once there was one.
    #[cfg(feature = "cuda")]
    gpu: gpu::Bound,
    /// The figures of the cost model in force.
    costs: CostFigures,
}

/// This process's membership in its job, which ends with the last of its groups.
struct Job {
    /// The hosts of the job's ranks.
    grid: Grid,
    /// The memory that the ranks of this host share, where there are several.
    node: Option<Arc<NodeSegment>>,
    /// The control connections to the other ranks, where there are any.
    control: Option<Control>,
    drive: Drive,
    /// Shows the counters of this rank.
    metrics: Option<Exporter>,
    /// Writes dumps when a signal comes, where the configuration names one.
    _on_signal: Option<OnSignal>,
    /// The timeline that is written at the end, where the configuration asks for one.
    timeline: Option<TimelineFile>,
    /// Rank 0's addresses, with commas between them.
    rendezvous_host: String,
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.metrics.take());
        self.drive.leave(self.control.as_ref());
        // A forked child has its parent's.
        if let Some(timeline) = self.timeline.take().filter(|_| self.drive.check_process().is_ok()) {
            timeline.write();
        }
    }
}

/// The memory of an operation.
struct Memory {
    output: TensorRegion,
    /// Empty where the output holds the input.
    input: TensorRegion,
}

impl Group {
    /// This process's number in the group, from 0.
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.grid.ranks()
    }

    /// This process's number among the ranks of its host, from 0.
    pub fn local_rank(&self) -> u32 {
        self.subset.as_ref().map_or(self.grid.local_of(self.rank), |subset| subset.places.local_rank)
    }

    /// Ranks on this rank's host.
    pub fn local_size(&self) -> u32 {
        let of_host = self.grid.locals(self.grid.node_of(self.rank));
        self.subset.as_ref().map_or(of_host, |subset| subset.places.local_size)
    }

    /// This host's number in the group, from 0.
    pub fn node(&self) -> u32 {
        self.subset.as_ref().map_or(self.grid.node_of(self.rank), |subset| subset.places.node)
    }

    /// Hosts in the group.
    pub fn nodes(&self) -> u32 {
        self.subset.as_ref().map_or(self.grid.nodes(), |subset| subset.places.nodes)
    }

    /// The names or addresses of the job's rank 0, the likeliest first, by which the ranks have met it: for connections of a program's own.
    /// Some of several may not reach it from this host. Without any in a job of one rank.
    pub fn rank0_addresses(&self) -> impl Iterator<Item = &str> {
        self.job.rendezvous_host.split(',').map(str::trim).filter(|address| !address.is_empty())
    }

    /// The channels of the group's data on this host, and the reasons.
    pub fn transport(&self) -> &Transport {
        &self.channels.transport
    }

    /// The figures of the cost model in force, and where they are from: the same on all ranks.
    pub fn costs(&self) -> &CostFigures {
        &self.costs
    }

    /// The kind of this host's ports (`virtio`, `memif`...), on the rank that owns them.
    pub fn device(&self) -> Option<&'static str> {
        self.channels.device
    }

    /// How long one operation may take, late peers included.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Annotates later operations with the trainer's step number, for errors and traces; 0 before the first call. Ranks
    /// need not have the same.
    pub fn set_step(&self, step: u64) {
        self.annotations.set_step(step);
    }

    /// Names the operations outside the table that this rank starts from now on, in timelines and dumps: after the tensors in a bucket, say.
    /// An empty name is none. Ranks need not have the same.
    pub fn set_label(&self, label: &str) {
        self.annotations.set_label(label);
    }

    /// Reduces `data` with that of all ranks, in place; returns when the result is there.
    ///
    /// Every rank calls it in the same order with the same length, type and operation. After an error the content of
    /// `data` is undefined.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::PeerFailed`] or [`Error::Deadline`] name the operation and the ranks; [`Error::Closed`] where the
    /// group has ended before. Each of them ends the group.
    #[inline]
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        element::with_bytes(data, |data| self.all_reduce_bytes(data, T::DTYPE, op))
    }

    /// As [`all_reduce`](Self::all_reduce), for `count` elements at `data`, an address that is aligned to them.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`] for an address that cannot be one.
    ///
    /// # Safety
    /// `data` is valid for reads and writes of `count` elements, which nobody else touches during the call.
    #[allow(unsafe_code)]
    pub unsafe fn all_reduce_raw(
        &self,
        data: *mut u8,
        count: usize,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let data = unsafe { element::Buffer::from_raw(data, count, dtype) }?;
        self.all_reduce_bytes(data, dtype, op)
    }

    fn all_reduce_bytes(&self, data: element::Buffer, dtype: DType, op: ReduceOp) -> Result<(), Error> {
        element::check(dtype, op)?;
        let count = (data.len() / dtype.size()) as u64;
        let shape = Shape { collective: Collective::AllReduce, dtype, op, count };
        self.run_part(&self.tables.problem(&shape, Rank(0)), data, data)
    }

    /// Waits until every rank has called it. Tensors that are held for others of their bucket (see [`Work::wait`]) go by themselves before.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn barrier(&self) -> Result<(), Error> {
        self.drive.check_process()?;
        self.flush_held()?;
        let begin = Clock.now();
        let shape = Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 0 };
        let nothing = element::Buffer::empty();
        let step = self.annotations.step();
        let result = self.run_uncounted(begin, &self.tables.problem(&shape, Rank(0)), nothing, nothing);
        if self.outcomes.timeline.is_some() {
            let (what, name) = (shape.collective.name(), &self.annotations.label());
            let call = Span { begin, what, name, bytes: 0, step };
            self.outcomes.draw(&BLOCKING, &call, Clock.now(), result.as_ref().err());
        }
        result
    }

    /// Zeroed memory for a tensor of `count` elements. On a host with several ranks all of them see it; elsewhere it is ordinary
    /// memory. Where all ranks are on one host, large tensors that lie in it on every rank are reduced in place, which is several
    /// times faster where cores are far apart. Whether a rank uses it, and for which tensors, may differ between ranks: results
    /// are the same.
    ///
    /// RDMA devices send large tensors from it, and write to it, without a copy, and NICs that DPDK drives (`pci:`) send them by RUD without one; there all
    /// of it takes memory at once, elsewhere only touched pages. A forked child does not have it.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is not so much memory; [`Error::Closed`] after the group has failed, and in a forked child.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), shouter::Error> {
    /// let group = shouter::init(shouter::Config::from_env()?)?;
    /// let mut gradient = group.alloc::<f32>(1 << 20)?;
    /// gradient.fill(1.0);
    /// group.all_reduce(&mut gradient, shouter::ReduceOp::Sum)?;
    /// assert_eq!(gradient[0], group.size() as f32);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Tensor<T>, Error> {
        self.drive.check_process()?;
        let mut tensor = Tensor::new(self.job.node.as_ref(), count)?;
        if self.channels.take_memory {
            tensor.register(&self.drive);
        }
        Ok(tensor)
    }

    /// Whether all of these bytes lie in memory of [`alloc`](Self::alloc) that other ranks of the host read where it lies.
    pub(crate) fn is_shared(&self, bytes: &[u8]) -> bool {
        self.job.node.as_ref().is_some_and(|node| node.locate(bytes.as_ptr(), bytes.len()).is_some())
    }

    /// A buffer as the reducer's memory: shared, if it lies in memory of [`alloc`](Self::alloc).
    fn region(&self, data: element::Buffer) -> TensorRegion {
        let shared = self.node.as_ref().and_then(|node| node.locate(data.as_ptr(), data.len())).is_some();
        data.region(if shared { MemoryKind::Shared } else { MemoryKind::Host })
    }

    /// The cells, if an operation of so many bytes goes by them: the same answer on all ranks, wherever their tensors lie.
    #[inline]
    fn cells_for(&self, bytes: usize) -> Option<&Cells> {
        self.cells.as_ref().filter(|_| bytes <= CELL_BYTES)
    }

    /// Ahead of an operation of the engine: waits for ranks that have not come to the small operations before it.
    #[inline]
    fn settle_cells(&self, view: View, step: u64) -> Result<(), Error> {
        self.cells.as_ref().map_or(Ok(()), |cells| cells.settle(self, view, step))
    }

    /// Runs one operation outside the table to its end.
    fn run(
        &self,
        begin: Instant,
        problem: &Problem,
        memory: Memory,
        device: Option<DeviceTensor>,
    ) -> Result<(), Error> {
        let shape = problem.shape;
        let step = self.annotations.step();
        self.settle_cells(View { identity: problem.identity(), shape }, step)?;
        let schedules = self.schedules(problem)?;
        let request = Request {
            identity: problem.identity(),
            shape,
            data: memory.output,
            input: memory.input,
            schedule: schedules.first().clone(),
            priority: 0,
            deadline: executor_time(begin + self.deadline),
            name: self.annotations.label(),
            step,
            pushed: executor_time(begin),
            device,
        };
        let run = match &schedules {
            Schedules::Whole(_) => self.drive.run(request),
            Schedules::Parts(parts) => {
                self.check_spread(&request)?;
                self.run_spread(&request, parts)
            }
        };
        run.map_err(|why| self.outcomes.recorded(self.outcomes.run_error(why, &shape, None, step)))
    }

    /// An operation has ended, for which its caller was blocked all the time; returns the result.
    #[inline]
    fn ended(
        &self,
        begin: Instant,
        collective: Collective,
        bytes: usize,
        result: Result<(), Error>,
    ) -> Result<(), Error> {
        if self.outcomes.timeline.is_none() {
            if result.is_ok() {
                self.outcomes.tally.finished(begin, Clock.now(), bytes);
            }
            return result;
        }
        if result.is_err() && self.drive.check_process().is_err() {
            // A thread of the parent may have held a lock at the fork.
            return result;
        }
        let (name, step) = (&self.annotations.label(), self.annotations.step());
        let call = Span { begin, what: collective.name(), name, bytes, step };
        match &result {
            Ok(()) => self.outcomes.finished(&BLOCKING, &call),
            Err(why) => self.outcomes.failed(&BLOCKING, &call, why),
        }
        result
    }

    /// The counters of this rank since it joined.
    pub fn stats(&self) -> Stats {
        self.outcomes.tally.snapshot(&self.drive)
    }

    /// Writes this rank's recorded events, so far, as a trace that Perfetto opens. When the process leaves the job, they are written to a file
    /// in the folder that the key `timeline` names.
    ///
    /// # Errors
    /// [`Error::Argument`] if the file cannot be written, or nothing was recorded (set `timeline`).
    pub fn write_timeline(&self, path: &Path) -> Result<(), Error> {
        let timeline = self.outcomes.timeline.as_ref().ok_or_else(|| {
            Error::Argument("no timeline was recorded; set SHOUTER_TIMELINE to a folder".into())
        })?;
        timeline
            .write(path)
            .map_err(|why| Error::Argument(format!("the timeline '{}': {why}", path.display())))
    }

    /// Writes the last 4,096 events of this rank to a new file and returns its path: a trace that Perfetto opens, and `shouter timeline merge`
    /// takes. The file is in the folder that the key `dump_folder` names.
    ///
    /// A group that ends in error does the same; the error's text names the file then.
    ///
    /// # Errors
    /// [`Error::Argument`] if the file cannot be written; [`Error::Closed`] in a forked child.
    pub fn dump(&self) -> Result<PathBuf, Error> {
        self.drive.check_process()?;
        self.outcomes.flight.dump("asked for by the program").map_err(|why| Error::Argument(why.to_string()))
    }

    /// Gives up: ends the job for all its ranks, as where this one's program has met an error that it cannot go on
    /// with. Their calls fail from then on with [`Error::PeerFailed`], or, where none was under way, with
    /// [`Error::Closed`]: both name this rank, and their texts have `why`, of which the first 1,024 bytes are kept. It
    /// does not wait for other ranks. Where the group has ended before, nothing is done. A group of some ranks does the
    /// same: all groups of the job end.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub fn abort(&self, why: &str) -> Result<(), Error> {
        self.drive.check_process()?;
        let words: Box<str> = shortened(why).into();
        self.job.drive.with(move |engine| engine.give_up(Clock.now(), &words))
    }

    /// Leaves the group together with all its other ranks: waits for this rank's operations under way, then for all ranks. A receive is under
    /// way until its message has come, which another rank may still send, or `deadline` has passed; [`abort`](Self::abort) ends it at once.
    ///
    /// A process leaves the job with the last of its groups: groups that were made of this one ([`split`](Self::split)) go on, and
    /// so do threads and links until they are dropped, too.
    ///
    /// Dropping the group waits neither for operations nor for other ranks, but for one that is stopped inside this rank's part of an open
    /// [window](Self::window): for that until `heartbeat_timeout` has found it. Operations that have ended on this rank go on for the
    /// others; where one is under way on this rank, or the others start one more, the group ends for them, with this rank as the
    /// culprit ([`Reason::Aborted`](crate::Reason::Aborted)).
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); that of a send that had ended before (see [`send`](Self::send)), where the group has ended well.
    pub fn finalize(self) -> Result<(), Error> {
        self.drive.check_process()?;
        self.flush_held()?;
        self.drive.finish()?;
        self.barrier().map_err(|error| error.part_of(Operation::Finalize, &"leaving the group"))?;
        // A rank that was stopped finds all that it waited for, and yet the others may have given it up.
        self.drive.poll()?;
        if let Some(cause) = self.drive.aborted()? {
            let AbortCause { culprit, reason, .. } = &cause;
            let call = Call { operation: Operation::Finalize, tensor: None, step: self.annotations.step() };
            let text = format!("leaving the group: {cause}");
            return Err(self.outcomes.recorded(Error::peer_failed(call, culprit.0, reason.into(), text)));
        }
        self.check_late()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.withdraw_windows();
        // The last group of a process leaves the job, which does the same.
        if self.subset.is_some() || Arc::strong_count(&self.job) > 1 {
            self.drive.abandon();
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank).field("grid", &self.grid).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
