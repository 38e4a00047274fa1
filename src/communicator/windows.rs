//! Windows: memory of each rank that the others read and write without its taking part.
//!
//! The rules of order, atomicity and progress are in [`shouter_reducer::windows`] and docs/windows.md.
#![allow(unsafe_code)]

mod direct;
mod typed;

use shouter_reducer::dtype::DType;
use shouter_reducer::grid::Rank;
use shouter_reducer::memory::{MemoryKind, TensorRegion};
use shouter_reducer::windows::{
    AccessError, AccessRefused, AccessRequest, DirectWindow, WindowAction, WindowId, WindowRefused,
};

use super::Group;
use super::collectives::raw;
use super::drive::AccessFailure;
use super::element::Buffer;
use crate::channel::shm::Exposure;
use crate::engine::executor_time;
use crate::error::{Call, Error, Operation, Views};
use crate::runtime::Clock;
pub(super) use direct::DirectWindows;
use direct::{Announced, withdraw};
pub use typed::{Update, Window, WindowMemory};

/// An access to a window by addresses, for [`Group::window_access`] and [`Group::start_window_access`].
#[derive(Clone, Copy, Debug)]
pub struct AccessCall {
    /// The window's number, as [`Group::open_window`] gave it.
    pub window: u32,
    /// The kind of the access.
    pub action: WindowAction,
    /// The rank of the accessed memory; it may be this one.
    pub target: u32,
    /// The first element there, counted from the start of the target's memory.
    pub offset: u64,
    /// Elements from there on.
    pub count: usize,
    /// Their type: the window's.
    pub dtype: DType,
    /// The data that go there: `count` elements; two for a compare-and-swap, the expected one and the new one. Not
    /// looked at for a get.
    pub data: *const u8,
    /// The buffer for the result: `count` elements. Not looked at for a put or an accumulate.
    pub into: *mut u8,
}

impl Group {
    /// As [`window`](Self::window), with `count` elements at `memory`, an address that is aligned to them. Returns the window's number.
    ///
    /// # Errors
    /// As [`window`](Self::window), and [`Error::Argument`] for an address that cannot be one.
    ///
    /// # Safety
    /// Until [`close_window`](Self::close_window) has returned, or the group has been dropped: `memory` is valid for reads and writes of
    /// `count` elements, and this process touches them otherwise only where no access to them is under way. None of these bytes belong to
    /// another open window: two would access them by atomic operations of different widths.
    pub unsafe fn open_window(&self, memory: *mut u8, count: usize, dtype: DType) -> Result<u32, Error> {
        // SAFETY: the caller's promise.
        let part = unsafe { Buffer::from_raw(memory, count, dtype) }?;
        self.make_window(part, dtype)
    }

    /// Makes an access, and waits until it has ended.
    ///
    /// # Errors
    /// As [`Window::put`].
    ///
    /// # Safety
    /// The memory is valid for what the call says, and nobody else touches it during the call.
    pub unsafe fn window_access(&self, call: &AccessCall) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let request = unsafe { self.access_at(call, true) }?;
        self.run_access(request)
    }

    /// Starts an access, and returns at once; where this rank accesses the target's memory by itself, once the access has taken effect. A
    /// [flush](Self::flush_window) says how it has ended.
    ///
    /// # Errors
    /// Those of [`Window::put`] that are found at once.
    ///
    /// # Safety
    /// Until a flush of the window to this target has returned, or the group has been dropped: `data` is valid for reads of what the call
    /// says, and nobody writes it; `into` is valid for reads and writes, and nobody else touches it.
    pub unsafe fn start_window_access(&self, call: &AccessCall) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let request = unsafe { self.access_at(call, false) }?;
        self.run_access(request)
    }

    /// See [`Window::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush_window(&self, window: u32, target: Option<u32>) -> Result<(), Error> {
        self.drive.check_process()?;
        if let Some(rank) = target.filter(|rank| *rank >= self.size()) {
            return Err(Error::Argument(format!("rank {rank} does not exist in a group of {}", self.size())));
        }
        if self.direct.is_flushed(window, target) {
            return Ok(());
        }
        self.accessed(self.drive.flush(WindowId(window), target.map(Rank)), None)
    }

    /// See [`Window::fence`].
    ///
    /// # Errors
    /// As there.
    pub fn fence_window(&self, window: u32) -> Result<(), Error> {
        let flushed = self.flush_window(window, None);
        if let Err(Error::Argument(_)) = flushed {
            return flushed;
        }
        // The others wait for this rank, whatever has become of its own accesses.
        self.barrier()?;
        flushed
    }

    /// See [`Window::free`]. The memory is the caller's again, whatever this returns, but for [`Error::Closed`] in a forked child, and for
    /// [`Error::Argument`] while another thread closes the window.
    ///
    /// # Errors
    /// As there; [`Error::Argument`] for a window that does not exist, or was freed.
    pub fn close_window(&self, window: u32) -> Result<(), Error> {
        self.end_window(window).1
    }

    /// Closes a window; whether its memory is the caller's again, and the outcome.
    fn end_window(&self, window: u32) -> (bool, Result<(), Error>) {
        let fenced = self.fence_window(window);
        if let Err(Error::Argument(_)) = fenced {
            return (false, fenced);
        }
        match self.drop_window(window) {
            Ok(()) => (true, fenced),
            failed => (false, failed),
        }
    }

    /// Takes this rank's memory out of a window.
    fn drop_window(&self, window: u32) -> Result<(), Error> {
        self.drive.check_process()?;
        let group = self.drive.group();
        let closed = self.drive.with(move |engine| {
            if let Some(windows) = engine.windows_in(group) {
                windows.close(WindowId(window));
            }
        });
        // The host's other ranks access it whatever has become of the engine.
        closed.and(self.direct.remove(&self.drive, window))
    }

    /// Takes this rank's memory out of the windows that were not closed, as far as other ranks access it themselves.
    pub(super) fn withdraw_windows(&self) {
        if self.drive.check_process().is_err() {
            return;
        }
        for window in self.direct.ids() {
            if let Err(error) = self.drop_window(window) {
                tracing::error!(%error, window, "other ranks of the host may still access the memory of a window");
            }
        }
    }

    fn make_window(&self, part: Buffer, dtype: DType) -> Result<u32, Error> {
        self.drive.check_process()?;
        let memory = self.window_memory(part);
        let group = self.drive.group();
        let opened = self.drive.with(move |engine| Some(engine.windows_in(group)?.open(memory, dtype)))?;
        let opened = opened.ok_or_else(gone)?;
        let WindowId(id) = opened.map_err(|error| match error {
            WindowRefused::Aborted(cause) => {
                let error = Error::closed_by(&cause, format!("a window was not made: {cause}"));
                self.outcomes.recorded(error.of(self.access_call(Operation::Window), &"a window"))
            }
            error => Error::Argument(error.to_string()),
        })?;
        let mut exposure = self.direct.expose(&memory, dtype);
        let made = self.agree_on_window(id, (part.len() / dtype.size()) as u64, dtype, &mut exposure);
        if made.is_err() {
            self.drop_window(id)?;
            exposure.map_or(Ok(()), |exposure| withdraw(&self.drive, exposure))?;
        }
        made.map(|()| id)
    }

    /// A rank's part as the reducer's memory: shared, if the host's other ranks see it.
    fn window_memory(&self, part: Buffer) -> TensorRegion {
        let is_shared = self.direct.is_shared(part.as_ptr(), part.len());
        part.region(if is_shared { MemoryKind::Shared } else { MemoryKind::Host })
    }

    /// Exchanges the number, type, length and place of all ranks' parts, and compares them. Takes the exposure only with success.
    fn agree_on_window(
        &self,
        id: u32,
        len: u64,
        dtype: DType,
        exposure: &mut Option<Exposure>,
    ) -> Result<(), Error> {
        let [begin, version] = exposure.as_ref().map_or([0; 2], Exposure::place);
        let own = [u64::from(id), u64::from(u8::from(dtype)), len, begin, version];
        let mut all = vec![0; own.len() * self.size() as usize];
        let gathered = self.all_gather(&own, &mut all);
        gathered.map_err(|error| error.with_more("; a window was being made"))?;
        self.compare_windows(&own, &all)?;
        let parts = || all.chunks_exact(own.len());
        let lengths: Box<[u64]> = parts().map(|part| part[2]).collect();
        let (group, theirs) = (self.drive.group(), lengths.clone());
        let is_over = self.drive.with(move |engine| {
            let windows = engine.windows_in(group)?;
            windows.set_lengths(WindowId(id), theirs);
            Some(windows.is_over())
        })?;
        let is_over = is_over.ok_or_else(gone)?;
        let announced = (0..)
            .zip(parts())
            .map(|(rank, part)| Announced { local: self.beside(rank), place: [part[3], part[4]] });
        let window = DirectWindow::new(self.rank, dtype, lengths);
        self.direct.insert(id, window, exposure.take(), announced, is_over);
        Ok(())
    }

    /// The number on this host of a rank of the group; `None` if it is on another one.
    fn beside(&self, rank: u32) -> Option<u32> {
        let job = &self.job.grid;
        let [own, other] = [self.rank.0, rank].map(|rank| self.job_rank(rank).map(Rank));
        let (own, other) = (own?, other?);
        (job.node_of(own) == job.node_of(other)).then(|| job.local_of(other))
    }

    /// Refuses windows with different numbers or types.
    fn compare_windows(&self, own: &[u64; 5], all: &[u64]) -> Result<(), Error> {
        let mut parts = (0u32..).zip(all.chunks_exact(own.len()));
        let Some((rank, theirs)) = parts.find(|(_, theirs)| theirs[..2] != own[..2]) else { return Ok(()) };
        let view = |part: &[u64]| {
            let name = u8::try_from(part[1]).ok().and_then(|number| DType::try_from(number).ok());
            let name = name.map_or("an unknown type", DType::name);
            format!("window {} with elements of {name}", part[0])
        };
        let (ours, theirs) = (view(own), view(theirs));
        let text = format!(
            "rank {} makes {ours}, and rank {rank} makes {theirs}; make windows of one type, in the same order, on all ranks",
            self.rank()
        );
        let views = Views { ours: Some(ours.into()), theirs: Some(theirs.into()) };
        Err(Error::mismatch(self.access_call(Operation::Window), Some(rank), views, text))
    }

    /// # Safety
    /// As for [`window_access`](Self::window_access), or [`start_window_access`](Self::start_window_access) where it is not waited for.
    unsafe fn access_at(&self, call: &AccessCall, waited: bool) -> Result<AccessRequest, Error> {
        let &AccessCall { window, action, target, offset, count, dtype, data, into } = call;
        let (given, taken) = match action {
            WindowAction::Get => (0, count),
            WindowAction::Put | WindowAction::Accumulate(_) => (count, 0),
            WindowAction::CompareAndSwap => (count.saturating_mul(2), count),
            _ => (count, count),
        };
        // SAFETY: the caller's promise; given elements are only read.
        let buffers = unsafe {
            (raw("the input", data.cast_mut(), given, dtype)?, raw("the output", into, taken, dtype)?)
        };
        Ok(self.access_of(window, action, (target, offset), dtype, buffers, waited))
    }

    fn access_of(
        &self,
        window: u32,
        action: WindowAction,
        (target, offset): (u32, u64),
        dtype: DType,
        (data, into): (Buffer, Buffer),
        waited: bool,
    ) -> AccessRequest {
        AccessRequest {
            window: WindowId(window),
            action,
            target: Rank(target),
            offset,
            dtype,
            data: self.region(data),
            into: self.region(into),
            deadline: executor_time(Clock.now() + self.deadline),
            waited,
        }
    }

    fn run_access(&self, request: AccessRequest) -> Result<(), Error> {
        self.drive.check_process()?;
        let direct = self.direct.access(&self.drive, &request);
        self.accessed(direct.unwrap_or_else(|| self.drive.access(request)), Some(request.action))
    }

    /// The outcome of an access, or of a flush, for the caller.
    #[inline]
    fn accessed(
        &self,
        outcome: Result<(), AccessFailure>,
        action: Option<WindowAction>,
    ) -> Result<(), Error> {
        outcome.map_err(|failure| self.access_failure(failure, action))
    }

    #[cold]
    fn access_failure(&self, failure: AccessFailure, action: Option<WindowAction>) -> Error {
        self.outcomes.recorded(match failure {
            AccessFailure::Drive(error) => error,
            AccessFailure::Failed(error) => self.access_error(&error),
            AccessFailure::Start(AccessRefused::Aborted(cause)) => {
                let what = action.map_or_else(|| "a flush".to_owned(), |action| action.to_string());
                let error = Error::closed_by(&cause, format!("{what} was not started: {cause}"));
                match action {
                    Some(action) => error.of(self.access_call(operation_of(action)), &what),
                    None => error,
                }
            }
            AccessFailure::Start(refused) => return Error::Argument(refused.to_string()),
        })
    }

    fn access_call(&self, operation: Operation) -> Call {
        Call { operation, tensor: None, step: self.annotations.step() }
    }

    /// Why an access has failed.
    fn access_error(&self, error: &AccessError) -> Error {
        let (subject, text) = (error.subject(), error.to_string());
        let target = subject.target.0;
        let call = self.access_call(operation_of(subject.action));
        match error {
            AccessError::Denied { .. } => Error::mismatch(call, Some(target), Views::default(), text),
            AccessError::Deadline { .. } => Error::deadline(call, vec![target], self.deadline, text),
            AccessError::Aborted { cause, .. } => Error::ended_by(call, cause, text),
        }
    }
}

/// The call that errors name.
fn operation_of(action: WindowAction) -> Operation {
    match action {
        WindowAction::Put => Operation::Put,
        WindowAction::Get => Operation::Get,
        WindowAction::Accumulate(_) => Operation::Accumulate,
        WindowAction::FetchAndOp(_) | WindowAction::Swap => Operation::FetchAndOp,
        WindowAction::CompareAndSwap => Operation::CompareAndSwap,
    }
}

/// The engine has no such group any more.
fn gone() -> Error {
    Error::Internal("the group of a window is gone".into())
}
