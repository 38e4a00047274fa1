//! Starting operations without waiting for them: any collective by address, and registered tensors.
//!
//! Started operations go into the engine's queue ([`Submissions`](crate::engine::submitted)); from then on only the
//! handle waits. Small collectives within a host, which go by the cells where a call waits for them, go by the engine,
//! too: the cells are a straight line. Their identity says so, and the cells' tags count them, so ranks that start and
//! ranks that call diverge, and get the error.
#![allow(unsafe_code)]

use std::sync::Arc;

use shouter_reducer::executor::Request;
use shouter_reducer::fusion::Member;
#[cfg(feature = "cuda")]
use shouter_reducer::grid::Rank;
#[cfg(feature = "cuda")]
use shouter_reducer::header::Shape;
use shouter_reducer::header::{Identity, View};
#[cfg(feature = "cuda")]
use shouter_reducer::memory::TensorRegion;
#[cfg(feature = "cuda")]
use shouter_reducer::schedule::Placement;
use shouter_reducer::schedule::{Problem, Schedule};
use shouter_reducer::transport::DeviceTensor;

use super::shards::{Schedules, request_of};
use super::small::{Cells, Starts};
use super::staging::device::Copies;
use super::staging::{Staged, Staging};
use super::start_queue::SLOT;
use super::table::Entry;
use super::uneven::Followed;
use super::work::{About, OperationKind, StartedOperation, Work};
use super::{CollectiveCall, Group, Memory};
use crate::engine::executor_time;
use crate::engine::submitted::{Report, Submissions};
use crate::error::{Error, TensorId};
use crate::runtime::{Clock, Instant};

/// An operation to be started.
struct Starting {
    begin: Instant,
    problem: Problem,
    identity: Identity,
    memory: Memory,
    schedules: Schedules,
    device: Option<DeviceTensor>,
    /// The tensor, if it is registered.
    entry: Option<Arc<Entry>>,
    /// Memory of its own, if it has any.
    staged: Option<Staged>,
}

impl Group {
    /// Starts any collective, on memory that is given by address; returns at once. [`run_collective`](Self::run_collective) does the
    /// same and waits.
    ///
    /// Every rank starts the same operations in the same order, among those that it calls. Where all ranks are on one
    /// host, all must start an operation that one of them starts: with a rank that calls it they diverge
    /// ([`Error::Mismatch`]) if it is small. Small collectives that this rank has left [early](Self::broadcast) come first: a start waits
    /// until the others have called those, and has the error if they call something else.
    ///
    /// # Errors
    /// As [`run_collective`](Self::run_collective) before it waits; [`Error::WouldBlock`] where as many operations are under
    /// way as can be (1,000 at least), and none ended within a second: nothing was started then.
    ///
    /// # Safety
    /// Until the operation has ended, as its [`Work`] says, or the group has been dropped: the input is valid for reads of what the
    /// [table](CollectiveCall) says, and nobody writes it; the output is valid for reads and writes, and nobody else touches it. An error
    /// whose [`in_use_by`](Error::in_use_by) names a rank leaves the memory in use for ever.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// use shouter::{Collective, CollectiveCall, DType, ReduceOp};
    ///
    /// let (mine, mut all) = (7u32, vec![0u32; group.size() as usize]);
    /// let call = CollectiveCall {
    ///     collective: Collective::AllGather,
    ///     input: (&raw const mine).cast(),
    ///     output: all.as_mut_ptr().cast(),
    ///     count: 1,
    ///     dtype: DType::U32,
    ///     op: ReduceOp::Sum,
    ///     root: 0,
    /// };
    /// // SAFETY: as many elements as the call says, which nothing else touches before the wait.
    /// let work = unsafe { group.start(&call) }?;
    /// work.wait(None)?;
    /// assert_eq!(all[group.rank() as usize], 7);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn start(&self, call: &CollectiveCall) -> Result<Work, Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_staged(call, &Staging::default()) }
    }

    /// Starts an operation outside the table, on memory of any kind.
    pub(super) fn start_memory(
        &self,
        begin: Instant,
        problem: Problem,
        memory: Memory,
        device: Option<DeviceTensor>,
        staged: Option<Staged>,
    ) -> Result<Work, Error> {
        let starts = self.starts();
        let identity = starts.identity(&problem);
        let schedules = self.schedules(&problem)?;
        let work = self.submit(Starting {
            begin,
            problem,
            identity,
            memory,
            schedules,
            device,
            entry: None,
            staged,
        })?;
        starts.count(&identity);
        Ok(work)
    }

    /// Starts an operation whose first part is this one.
    pub(super) fn start_followed(
        &self,
        begin: Instant,
        request: Request,
        bytes: usize,
        followed: Arc<Followed>,
        mut staged: Option<Staged>,
    ) -> Result<Work, Error> {
        let copies = staged.as_mut().and_then(Staged::take_copies);
        let Request { identity, step, ref name, .. } = request;
        let what = OperationKind::Collective { shape: followed.shape(), entry: None, held_in: None };
        let about = About { what, begin, step, bytes, name: name.clone() };
        let operation =
            StartedOperation::new(self.outcomes.clone(), about).followed_by(followed).with_memory(staged);
        let work = self.hand_over(&request, None, Arc::new(operation), None, copies)?;
        self.starts().count(&identity);
        Ok(work)
    }

    /// The counter of small operations that are started rather than called.
    pub(super) fn starts(&self) -> Starts {
        self.cells.as_ref().map_or_else(Starts::default, Cells::starts)
    }

    /// Starts an all-reduce in place on a device.
    #[cfg(feature = "cuda")]
    pub(super) fn start_device(
        &self,
        begin: Instant,
        shape: &Shape,
        data: TensorRegion,
        device: Option<DeviceTensor>,
    ) -> Result<Work, Error> {
        let problem = Problem { access: self.access(&data), ..self.tables.problem(shape, Rank(0)) };
        self.start_memory(begin, problem, Memory { output: data, input: TensorRegion::empty() }, device, None)
    }

    /// Starts the operation of a registered tensor at `data`, an address that is aligned to its elements, in place; returns at once.
    /// The memory holds input and output, as [`CollectiveCall`] says of both in one, or [`UnevenCall`](super::UnevenCall) where blocks
    /// differ; it may be null where this rank has neither.
    ///
    /// From its second start on this allocates nothing, takes no lock but the engine's, and makes no system call of its own.
    ///
    /// # Errors
    /// [`Error::Argument`] for an unknown tensor or an address that cannot be one, and for an all-to-all-v of which this rank gives other
    /// counts than it takes, where it lies in the host's memory (see [`push_into`](Self::push_into)); [`Error::Closed`] after the group has failed;
    /// [`Error::WouldBlock`] as for [`start`](Self::start).
    ///
    /// # Safety
    /// As for [`start`](Self::start), with the elements that were registered.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # use shouter::{DType, ReduceOp, TensorSpec};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// # let tensor = TensorSpec::all_reduce("head", DType::F32, 2, ReduceOp::Sum);
    /// # let ids = group.register(&[tensor])?;
    /// let mut gradient = [1f32, 2.0];
    /// // SAFETY: as many elements as were registered, which nothing else touches before `wait` has returned.
    /// let work = unsafe { group.push(ids[0], gradient.as_mut_ptr().cast()) }?;
    /// work.wait(None)?;
    /// assert_eq!(gradient, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn push(&self, tensor: TensorId, data: *mut u8) -> Result<Work, Error> {
        self.drive.check_process()?;
        let entry = self.tables.entry(tensor)?;
        let (input_at, output_at) = entry.problem.in_place();
        let (input, output) = (data.wrapping_add(input_at as usize), data.wrapping_add(output_at as usize));
        // SAFETY: passed on to the caller.
        unsafe { self.push_entry(entry, input, output, &Staging::default()) }
    }

    /// As [`push`](Self::push), with the input apart from the output, or in place as [`CollectiveCall`] allows it. Ranks and steps may
    /// differ in that.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// # use shouter::{DType, ReduceOp, TensorSpec};
    /// # let ids = group.register(&[TensorSpec::all_reduce("head", DType::F32, 2, ReduceOp::Sum)])?;
    /// let (gradient, mut sum) = ([1f32, 2.0], [0f32; 2]);
    /// // SAFETY: as many elements as were registered, which nothing else touches before `wait` has returned.
    /// let work = unsafe { group.push_into(ids[0], gradient.as_ptr().cast(), sum.as_mut_ptr().cast()) }?;
    /// work.wait(None)?;
    /// assert_eq!(sum, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](Self::push), and [`Error::Argument`] for input and output that overlap.
    ///
    /// # Safety
    /// As for [`start`](Self::start), with the elements that were registered.
    pub unsafe fn push_into(
        &self,
        tensor: TensorId,
        input: *const u8,
        output: *mut u8,
    ) -> Result<Work, Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.push_staged(tensor, input, output, &Staging::default()) }
    }

    /// # Safety
    /// As for [`push_staged`](Self::push_staged).
    pub(super) unsafe fn push_entry(
        &self,
        entry: Arc<Entry>,
        input: *const u8,
        output: *mut u8,
        staging: &Staging,
    ) -> Result<Work, Error> {
        let begin = Clock.now();
        // SAFETY: passed on to the caller.
        let (problem, input, output, staged) =
            unsafe { self.staged(entry.problem.clone(), (input, output), staging, Some(&entry)) }?;
        let schedules = match self.is_spread_of(&entry, &problem) {
            true => Schedules::Parts(entry.parts(problem.placement, || self.part_schedules(&problem))?),
            false => Schedules::Whole(self.tables.schedule_of(&entry, problem.placement)?),
        };
        let memory = self.memory(&problem, input, output);
        let identity = entry.next_use();
        let starting =
            Starting { begin, problem, identity, memory, schedules, device: None, entry: None, staged };
        self.push_next(entry, starting)
    }

    /// Starts the next operation of a registered tensor.
    fn push_next(&self, entry: Arc<Entry>, starting: Starting) -> Result<Work, Error> {
        let unused = entry.clone();
        let started = self.submit(Starting { entry: Some(entry), ..starting });
        // Neither has started it.
        if let Err(Error::WouldBlock { .. } | Error::Argument(_)) = &started {
            unused.unused();
        }
        started
    }

    /// Starts the next operation of a registered tensor on a device.
    #[cfg(feature = "cuda")]
    pub(super) fn push_device(
        &self,
        begin: Instant,
        entry: Arc<Entry>,
        data: TensorRegion,
        device: Option<DeviceTensor>,
    ) -> Result<Work, Error> {
        let problem =
            Problem { access: self.access(&data), placement: Placement::InPlace, ..entry.problem.clone() };
        if self.is_spread_of(&entry, &problem) {
            return Err(Self::unspread(&problem.shape));
        }
        let schedules = Schedules::Whole(self.tables.schedule(&problem)?);
        let memory = Memory { output: data, input: TensorRegion::empty() };
        let identity = entry.next_use();
        let starting =
            Starting { begin, problem, identity, memory, schedules, device, entry: None, staged: None };
        self.push_next(entry, starting)
    }

    fn submit(&self, starting: Starting) -> Result<Work, Error> {
        let Starting { begin, problem, identity, memory, schedules, device, entry, mut staged } = starting;
        let copies = staged.as_mut().and_then(Staged::take_copies);
        let step = self.annotations.step();
        let name = entry.as_ref().map_or_else(|| self.annotations.label(), |entry| entry.name.clone());
        let request = Request {
            identity,
            shape: problem.shape,
            data: memory.output,
            input: memory.input,
            schedule: schedules.first().clone(),
            priority: entry.as_ref().map_or(0, |entry| entry.tensor),
            deadline: executor_time(begin + self.deadline),
            name: name.clone(),
            step,
            pushed: executor_time(begin),
            device,
        };
        let bytes = request.data.len().max(request.input.len());
        let member = entry
            .as_ref()
            .and_then(|entry| entry.member.clone())
            .filter(|_| device.is_none() && copies.is_none());
        let held_in = member.as_ref().map(|_| self.submissions().cloned()).transpose()?;
        let what = OperationKind::Collective { shape: problem.shape, entry, held_in };
        let parts = match &schedules {
            Schedules::Whole(_) => None,
            Schedules::Parts(parts) => {
                if copies.is_some() {
                    return Err(Self::unspread(&request.shape));
                }
                self.check_spread(&request)?;
                Some(parts)
            }
        };
        let about = About { what, begin, step, bytes, name };
        let operation = self.spare_operation(about, staged, parts.map_or(1, |parts| parts.len()));
        self.hand_over(&request, parts, operation, member, copies)
    }

    /// Puts an operation into the engine's queue, when there is a slot for it, and hands its copies over; of one in parts each into
    /// that of its shard. `whole` is the request but for the schedules of parts.
    fn hand_over(
        &self,
        whole: &Request,
        parts: Option<&Arc<[Arc<Schedule>]>>,
        operation: Arc<StartedOperation>,
        member: Option<Member>,
        copies: Option<Box<dyn Copies>>,
    ) -> Result<Work, Error> {
        self.settle_cells(View { identity: whole.identity, shape: whole.shape }, whole.step)?;
        let first = parts.map(|parts| request_of(whole, parts, 0));
        let request = first.as_ref().unwrap_or(whole);
        let small_before = self.small_before();
        let submissions = self.submissions()?;
        let report: Arc<dyn Report> = operation.clone();
        if !submissions.push(request, small_before, &report, member.as_ref()) {
            let request = request.clone();
            let handed = move |submissions: &Submissions| {
                submissions.push(&request, small_before, &report, member.as_ref())
            };
            self.await_slot(submissions.clone(), handed).map_err(|error| operation.named(error))?;
        }
        if let Some(parts) = parts {
            let report: Arc<dyn Report> = operation.clone();
            let handed = self.hand_to_siblings(whole, parts, &report);
            handed.inspect_err(|_| self.drive.await_stop(|| false))?;
        }
        if let Some(mut copies) = copies {
            let ended = operation.clone();
            copies.when_over(Box::new(move |outcome| ended.landed(outcome.map(drop))));
            copies.begin();
        }
        self.drive.nudge()?;
        if submissions.is_closed() {
            let ended = operation.clone();
            self.drive.until(move || ended.has_ended().then_some(()), None)?;
        }
        match operation.refusal() {
            Some(error) => Err(error),
            None => Ok(Work(operation)),
        }
    }

    /// The queue of started operations, made with the first start in a group of some ranks.
    pub(super) fn submissions(&self) -> Result<&Arc<Submissions>, Error> {
        if let Some(submissions) = self.start_queue.submissions() {
            return Ok(submissions);
        }
        let group = self.drive.group();
        let made = self.drive.with(move |engine| engine.submissions_in(group))?;
        let made = made.ok_or_else(|| Error::Internal("the engine does not know this group".into()))?;
        Ok(self.start_queue.set(made))
    }

    /// Hands something over when there is a slot for it.
    #[cold]
    fn await_slot(
        &self,
        submissions: Arc<Submissions>,
        hand: impl Fn(&Submissions) -> bool + Send + 'static,
    ) -> Result<(), Error> {
        let handed = move || hand(&submissions).then_some(());
        self.drive.until(handed, Some(Clock.now() + SLOT)).map_err(Error::would_block)
    }

    /// Small operations of this rank so far.
    fn small_before(&self) -> u64 {
        self.node.as_ref().map_or(0, |node| node.small_published())
    }

    /// Flushes tensors that are held for others of their bucket: they go by themselves.
    #[inline]
    pub(super) fn flush_held(&self) -> Result<(), Error> {
        match self.start_queue.submissions() {
            Some(submissions) if self.tables.have_buckets() && !submissions.holds_nothing() => {
                self.flush_queue(submissions)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn flush_queue(&self, submissions: &Arc<Submissions>) -> Result<(), Error> {
        let small_before = self.small_before();
        let submissions = submissions.clone();
        let end = move || submissions.flush(None, small_before).then_some(());
        // The deadlines of operations under way bound the wait for a slot.
        end().map_or_else(|| self.drive.until(end, None), Ok)
    }

    /// Waits until all that was handed over before has been started.
    #[cold]
    pub(super) fn await_started(&self) -> Result<(), Error> {
        let submissions = self.submissions()?.clone();
        self.drive.until(move || submissions.are_all_started().then_some(()), None)
    }

    fn spare_operation(&self, about: About, staged: Option<Staged>, parts: usize) -> Arc<StartedOperation> {
        let new =
            |about| StartedOperation::new(self.outcomes.clone(), about).with_memory(staged).in_parts(parts);
        self.start_queue.operation(|| new(about))
    }

    /// A descriptor that becomes readable when an operation ends that was started since the first call of this: for an
    /// event loop, which reads its 8 bytes, and tests its [`Work`]s then. It may be readable without news.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no descriptor or thread; [`Error::Closed`] in a forked child.
    pub fn completion_fd(&self) -> Result<std::os::fd::BorrowedFd<'_>, Error> {
        self.drive.check_process()?;
        self.outcomes.notifier.eventfd()
    }
}
