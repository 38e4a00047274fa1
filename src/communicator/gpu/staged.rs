//! Operations on a GPU's memory that work on a copy of it: all but the collectives of one length in the group of all ranks.
//!
//! Each has a staging area of page-locked memory ([`Areas`]), and a task in the engine ([`CopyTask`]) that copies the
//! input there once the trainer's stream has come to where the memory was handed over, lets the operation begin, and
//! copies the output back when it has ended well, before its end is announced. Nothing is begun before the stream is
//! there, so one that hangs leaves no copy behind.
//!
//! A copy that fails, or does not end before the operation's deadline, ends the group. After an error a copy under way is waited for, two
//! seconds at most; where it has not ended then, the error says that the memory is in use, and the staging area is never freed.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use shouter_reducer::cuda::{Context, Copier, CopyFence, CudaError, CudaEvent, Pinned, Stream};
use shouter_reducer::dtype::DType;
use shouter_reducer::executor::AbortReason;
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{MemoryKind, Span, TensorRegion};

use super::gpu_error;
use crate::communicator::collectives::raw;
use crate::communicator::drive::RankEngine;
use crate::communicator::element::Buffer;
use crate::communicator::p2p::Message;
use crate::communicator::staging::device::{Act, Copies, Device, OnEnd, Outcome, Progress};
use crate::communicator::staging::{Sides, Staged, Staging};
use crate::communicator::{Group, Status};
use crate::engine::COPIES_END;
use crate::engine::groups::GroupId;
use crate::engine::submitted::Failure;
use crate::engine::tasks::{Handed, Step, Task};
use crate::error::{Call, Error, Operation};
use crate::runtime::lock;
use crate::runtime::{Clock, Instant};

/// The least page-locked memory that is taken at once.
const LEAST: usize = 64 << 10;

/// Larger areas are multiples of this; smaller ones are powers of two.
const LARGE: usize = 1 << 20;

/// The copier for staging areas, and the areas that no operation uses. They stay until the group is dropped, for to
/// free page-locked memory is to wait for the device.
pub(super) struct Areas {
    pub(super) context: Context,
    copier: Mutex<Copier>,
    events: Mutex<Vec<CudaEvent>>,
    /// Of operations that ended before the trainer's stream had come so far.
    unreached: Mutex<Vec<CudaEvent>>,
    free: Mutex<Vec<Pinned>>,
    handed: Arc<Handed>,
    group: Option<GroupId>,
}

impl Areas {
    fn new(context: &Context, handed: Arc<Handed>, group: Option<GroupId>) -> Result<Self, CudaError> {
        Ok(Self {
            context: context.clone(),
            copier: Mutex::new(Copier::new(context)?),
            events: Mutex::default(),
            unreached: Mutex::default(),
            free: Mutex::default(),
            handed,
            group,
        })
    }

    /// The point that the trainer's stream has been given work up to. Called by the thread that passed the stream.
    ///
    /// # Safety
    /// The stream lives.
    unsafe fn passed(&self, stream: u64) -> Result<CudaEvent, CudaError> {
        // SAFETY: passed on to the caller.
        let stream = unsafe { Stream::borrow(&self.context, stream) }?;
        let kept = lock(&self.events).pop();
        let event = kept.map_or_else(|| CudaEvent::new(&self.context), Ok)?;
        event.record(&stream)?;
        Ok(event)
    }

    /// An area of so many bytes, at least one.
    fn area(self: &Arc<Self>, bytes: usize) -> Result<Area, Error> {
        let kept = {
            let mut free = lock(&self.free);
            // A much larger one is kept for operations that need it.
            let fits = |area: &Pinned| area.len() >= bytes && area.len() / 4 <= bytes.max(LEAST);
            let found =
                free.iter().enumerate().filter(|(_, area)| fits(area)).min_by_key(|(_, area)| area.len());
            found.map(|(at, _)| at).map(|at| free.swap_remove(at))
        };
        let room = if bytes < LARGE {
            bytes.max(LEAST).checked_next_power_of_two()
        } else {
            bytes.checked_next_multiple_of(LARGE)
        };
        let too_much = || Error::Argument(format!("there is no memory to stage {bytes} bytes"));
        let memory = match kept {
            Some(memory) => memory,
            None => Pinned::new(&self.context, room.ok_or_else(too_much)?).map_err(gpu_error)?,
        };
        Ok(Area { memory: Some(memory), areas: self.clone() })
    }

    fn is_done(&self, fence: CopyFence) -> Result<bool, CudaError> {
        lock(&self.copier).is_done(fence)
    }

    fn copy(&self, (into, from): (Span, Span)) -> Result<CopyFence, CudaError> {
        lock(&self.copier).copy_span(into, from)
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        let runs = lock(&self.copier).pending().is_ok_and(|pending| pending > 0);
        // To free them would be to wait for a stream that hangs.
        let hangs = lock(&self.unreached).iter().any(|event| event.is_done().is_ok_and(|done| !done));
        if runs || hangs {
            std::mem::forget(std::mem::take(&mut *lock(&self.free)));
        }
    }
}

/// A staging area of an operation.
struct Area {
    memory: Option<Pinned>,
    areas: Arc<Areas>,
}

impl Drop for Area {
    fn drop(&mut self) {
        lock(&self.areas.free).extend(self.memory.take());
    }
}

/// The progress of copies.
enum At {
    /// The trainer's stream has not come so far.
    Before(CudaEvent),
    /// The input is being copied.
    In(CopyFence),
    /// The operation runs, or waits to be started.
    Runs,
    /// The output is being copied. The status is reported when it is.
    Out(CopyFence, Option<Status>),
    /// A copy has failed, and the group ends.
    Failing {
        error: Error,
        fence: Option<CopyFence>,
    },
    Over,
}

/// The copies of one operation, which the engine polls.
struct CopyTask {
    areas: Arc<Areas>,
    progress: Arc<Progress>,
    at: At,
    /// From the device to the staging area.
    inward: Option<(Span, Span)>,
    /// From the staging area to the device.
    outward: Option<(Span, Span)>,
    /// The input is multiplied by it in the staging area.
    factor: Option<(f64, DType)>,
    /// Bytes of an element.
    element: usize,
    ready: Option<Act>,
    over: Option<OnEnd>,
    call: Call,
    what: String,
    rank: u32,
    deadline: Instant,
    /// The operation has ended.
    has_ended: bool,
    /// The operation or the group has failed: running copies are not waited for any longer then.
    leaves_at: Option<Instant>,
}

impl Copies for CopyTask {
    fn when_ready(&mut self, act: Act) {
        self.ready = Some(act);
    }

    fn when_over(&mut self, on_end: OnEnd) {
        self.over = Some(on_end);
    }

    fn begin(self: Box<Self>) {
        let (handed, group) = (self.areas.handed.clone(), self.areas.group);
        handed.push(group, self);
    }
}

impl Task for CopyTask {
    fn poll(&mut self, engine: &mut RankEngine, now: Instant) -> Step {
        match self.go(engine, now) {
            Ok(step) => step,
            Err(error) => {
                let text = format!("{}: {error}", self.what);
                self.fail(engine, Error::accelerator_under(self.call.clone(), text))
            }
        }
    }
}

impl CopyTask {
    fn go(&mut self, engine: &mut RankEngine, now: Instant) -> Result<Step, CudaError> {
        loop {
            match std::mem::replace(&mut self.at, At::Over) {
                At::Before(event) => {
                    if self.progress.has_failed() {
                        lock(&self.areas.unreached).push(event);
                        self.at = At::Runs;
                        continue;
                    }
                    if !event.is_done()? {
                        self.at = At::Before(event);
                        return Ok(if now >= self.deadline { self.late(engine) } else { Step::Asks });
                    }
                    lock(&self.areas.events).push(event);
                    match self.inward {
                        Some(spans) => self.at = At::In(self.areas.copy(spans)?),
                        None => self.run(engine),
                    }
                }
                At::In(fence) => {
                    if !self.areas.is_done(fence)? {
                        self.at = At::In(fence);
                        let has_failed = self.progress.has_failed();
                        return Ok(self.wait(engine, now, has_failed));
                    }
                    self.multiply();
                    self.run(engine);
                }
                At::Runs => match self.take() {
                    None => {
                        self.at = At::Runs;
                        return Ok(Step::Waits);
                    }
                    Some(Ok(status)) => match self.part(status) {
                        Some(spans) => self.at = At::Out(self.areas.copy(spans)?, status),
                        None => return Ok(self.end(Ok(status))),
                    },
                    Some(Err(failure)) => return Ok(self.end(Err(failure))),
                },
                At::Out(fence, status) => {
                    if self.areas.is_done(fence)? {
                        return Ok(self.end(Ok(status)));
                    }
                    self.at = At::Out(fence, status);
                    // A group of some ranks that was left may be gone already.
                    let group = self.areas.group;
                    let has_ended = engine.aborted_in(group).is_some() || engine.is_settled_in(group);
                    return Ok(self.wait(engine, now, has_ended));
                }
                At::Failing { error, fence } => {
                    drop(self.take());
                    let is_told = self.has_ended && engine.is_settled_in(self.areas.group);
                    // An error of the device leaves nothing that runs.
                    let runs = fence.is_some_and(|fence| !self.areas.is_done(fence).unwrap_or(true));
                    let leaves_at = *self.leaves_at.get_or_insert(now + COPIES_END);
                    if !is_told || runs && now < leaves_at {
                        self.at = At::Failing { error, fence };
                        return Ok(Step::Asks);
                    }
                    return Ok(self.end(Err(self.failure(Failure::Refused(error), runs))));
                }
                At::Over => return Ok(Step::Over),
            }
        }
    }

    /// The input is where the operation finds it.
    fn run(&mut self, engine: &mut RankEngine) {
        self.at = At::Runs;
        self.progress.set_ready();
        if let Some(act) = self.ready.take() {
            act(engine);
        }
    }

    /// A copy runs. Where the operation or the group has failed it is not waited for without end.
    fn wait(&mut self, engine: &mut RankEngine, now: Instant, has_failed: bool) -> Step {
        if has_failed {
            if now < *self.leaves_at.get_or_insert(now + COPIES_END) {
                return Step::Asks;
            }
            let failure = self.take().and_then(Result::err).unwrap_or(Failure::Gone);
            return self.end(Err(self.failure(failure, true)));
        }
        if now >= self.deadline { self.late(engine) } else { Step::Asks }
    }

    /// The deadline has passed. No other rank is nearer to the cause.
    #[cold]
    fn late(&mut self, engine: &mut RankEngine) -> Step {
        let text = "a copy has not ended before the deadline; a kernel that it waits for has not ended, or the GPU hangs";
        let error = Error::accelerator_under(self.call.clone(), format!("{}: {text}", self.what));
        self.fail(engine, error)
    }

    /// The group ends, and the operation with this error.
    #[cold]
    fn fail(&mut self, engine: &mut RankEngine, error: Error) -> Step {
        let fence = match std::mem::replace(&mut self.at, At::Over) {
            At::In(fence) | At::Out(fence, _) => Some(fence),
            At::Before(event) => {
                lock(&self.areas.unreached).push(event);
                None
            }
            _ => None,
        };
        self.at = At::Failing { error, fence };
        engine.fail_in(self.areas.group, AbortReason::Accelerator);
        Step::Asks
    }

    /// Why there is no result, and whether memory is in use for ever.
    fn failure(&self, failure: Failure, in_use: bool) -> Failure {
        if !in_use {
            return failure;
        }
        tracing::error!(
            rank = self.rank,
            what = self.what,
            "a copy between GPU and staging area has not ended after {COPIES_END:?}"
        );
        Failure::InUse(Arc::new(failure))
    }

    /// The operation's end, once.
    fn take(&mut self) -> Option<Outcome> {
        let outcome = self.progress.take();
        self.has_ended |= outcome.is_some();
        outcome
    }

    fn end(&mut self, outcome: Outcome) -> Step {
        self.at = At::Over;
        drop(self.progress.leave(false));
        if let Some(on_end) = self.over.take() {
            on_end(outcome);
        }
        Step::Over
    }

    /// The bytes to copy out: of a message as many as have come.
    fn part(&self, status: Option<Status>) -> Option<(Span, Span)> {
        let (into, from) = self.outward?;
        let elements =
            status.map_or(usize::MAX, |status| usize::try_from(status.count).unwrap_or(usize::MAX));
        let bytes = elements.saturating_mul(self.element).min(from.len());
        into.part(0, bytes).zip(from.part(0, bytes)).filter(|_| bytes > 0)
    }

    fn multiply(&self) {
        let (Some((factor, dtype)), Some((staged, _))) = (self.factor, self.inward) else { return };
        // SAFETY: the staging area is the operation's, which has not begun, and no copy touches it.
        let elements = unsafe { std::slice::from_raw_parts_mut(staged.as_ptr().cast_mut(), staged.len()) };
        Kernels::detect().scale_in_place(dtype, elements, factor);
    }
}

impl Drop for CopyTask {
    /// The engine is gone, or the operation was not handed over.
    fn drop(&mut self) {
        let (fence, result) = match std::mem::replace(&mut self.at, At::Over) {
            At::Over => return,
            At::Before(event) => {
                lock(&self.areas.unreached).push(event);
                (None, None)
            }
            At::Runs => (None, None),
            At::In(fence) => (Some(fence), None),
            At::Out(fence, status) => (Some(fence), Some(Ok(status))),
            At::Failing { error, fence } => (fence, Some(Err(Failure::Refused(error)))),
        };
        let in_use = fence.is_some_and(|fence| !self.ends_soon(fence));
        let told = self.progress.leave(in_use);
        // The copies stay until the completion has run.
        if !self.has_ended && told.is_none() {
            return;
        }
        let outcome = match result.or(told) {
            Some(Err(failure)) => Err(failure),
            Some(Ok(status)) if fence.is_some() && !in_use => Ok(status),
            _ => Err(Failure::Gone),
        };
        if let Some(on_end) = self.over.take() {
            on_end(outcome.map_err(|failure| self.failure(failure, in_use)));
        }
    }
}

impl CopyTask {
    /// Waits for a copy; whether it ends.
    fn ends_soon(&self, fence: CopyFence) -> bool {
        let until = Clock.now() + COPIES_END;
        loop {
            match self.areas.is_done(fence) {
                Ok(false) if Clock.now() < until => thread::sleep(Duration::from_micros(50)),
                Ok(ended) => return ended,
                // Nothing runs on a device that is lost.
                Err(_) => return true,
            }
        }
    }
}

/// Memory of the GPU.
fn on_device(buffer: Buffer) -> TensorRegion {
    buffer.region(MemoryKind::Device)
}

impl Group {
    /// The areas for memory on the GPU, made with the first operation that needs them.
    fn areas(&self, at: &[Buffer]) -> Result<Option<Arc<Areas>>, Error> {
        let mut found = None;
        for buffer in at.iter().filter(|buffer| buffer.len() > 0) {
            found = Some(self.context_of(buffer.as_ptr().addr() as u64, buffer.len())?.0);
        }
        let Some(context) = found else { return Ok(None) };
        let mut areas = lock(&self.gpu.areas);
        if let Some(areas) = &*areas {
            return Ok(Some(areas.clone()));
        }
        let handed = self.drive.with(|engine| engine.tasks())?;
        let made = Areas::new(&context, handed, self.drive.group()).map_err(gpu_error)?;
        Ok(Some(areas.insert(Arc::new(made)).clone()))
    }

    /// Input and output in a staging area, where they have bytes.
    ///
    /// # Safety
    /// As for [`run_staged`](Self::run_staged), until the operation has ended.
    pub(in crate::communicator) unsafe fn stage_sides(
        &self,
        sides: Sides,
        (staging, stream): (&Staging, u64),
        (call, what): (Call, String),
    ) -> Result<(Buffer, Buffer, Option<Staged>), Error> {
        let Sides { input, output, dtype, is_one } = sides;
        // SAFETY: the caller's promise; only the addresses are checked here.
        let at = unsafe {
            [
                raw("the input", input.0.cast_mut(), input.1, dtype)?,
                raw("the output", output.0, output.1, dtype)?,
            ]
        };
        let Some(areas) = self.areas(&at)? else { return Ok((at[0], at[1], None)) };
        let [from, into] = at.map(on_device);
        let too_much = || {
            Error::Argument(format!("there is no memory to stage {} and {} bytes", from.len(), into.len()))
        };
        let behind = if is_one { Some(0) } else { from.len().checked_next_multiple_of(64) };
        let bytes = behind.and_then(|behind| behind.checked_add(into.len())).ok_or_else(too_much)?;
        let area = areas.area(bytes.max(from.len()))?;
        let memory = area.memory.as_ref().ok_or_else(too_much)?;
        // SAFETY: the area is this operation's until nothing touches it any more; else it is never freed.
        let whole = unsafe { memory.region(0) };
        let staged = |at: usize, len: usize, dtype: DType| {
            let base = NonNull::new(whole.as_ptr().wrapping_add(at)).ok_or_else(too_much)?;
            // SAFETY: inside of the area, which is page-locked and so aligned to any element.
            unsafe { Buffer::from_raw(base.as_ptr(), len / dtype.size(), dtype) }
        };
        let (input_at, output_at) =
            (staged(0, from.len(), dtype)?, staged(behind.unwrap_or(0), into.len(), dtype)?);
        let spans =
            |at: usize, device: &TensorRegion| whole.span(at, device.len()).zip(device.span(0, device.len()));
        let inward = spans(0, &from).filter(|_| !from.is_empty());
        let outward = spans(behind.unwrap_or(0), &into)
            .filter(|_| !into.is_empty())
            .map(|(host, device)| (device, host));
        // SAFETY: the caller's promise.
        let event = unsafe { areas.passed(stream) }.map_err(gpu_error)?;
        let progress = Arc::new(Progress::default());
        let task = CopyTask {
            areas,
            progress: progress.clone(),
            at: At::Before(event),
            inward,
            outward,
            factor: staging.factor.map(|factor| (factor, dtype)),
            element: dtype.size(),
            ready: None,
            over: None,
            what: format!("{what} at step {}", call.step),
            call,
            rank: self.rank(),
            deadline: Clock.now() + self.deadline,
            has_ended: false,
            leaves_at: None,
        };
        let device = Device { _area: Box::new(area), progress, copies: Some(Box::new(task)) };
        Ok((input_at, output_at, Some(Staged::on_device(device))))
    }

    /// A staging area of a message's elements.
    ///
    /// # Safety
    /// As for [`Exchange::on_cuda`](crate::Exchange::on_cuda), until the message has ended.
    pub(in crate::communicator) unsafe fn stage_message_on_gpu(
        &self,
        message: &Message,
        stream: u64,
        call: Call,
    ) -> Result<(Buffer, Option<Staged>), Error> {
        let (buffer, dtype) = message.buffer();
        let (at, count) = (buffer.as_ptr(), buffer.len() / dtype.size());
        let is_sent = call.operation == Operation::Send;
        let what = if is_sent { "a send" } else { "a receive" }.to_owned();
        let (given, taken) = if is_sent { (count, 0) } else { (0, count) };
        let sides = Sides { input: (at, given), output: (at.cast_mut(), taken), dtype, is_one: false };
        // SAFETY: passed on to the caller.
        let (input, output, staged) =
            unsafe { self.stage_sides(sides, (&Staging::on_cuda(stream), stream), (call, what)) }?;
        Ok((if is_sent { input } else { output }, staged))
    }
}
