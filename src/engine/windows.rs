//! The windows of the group of all, and how its accesses have ended: other ranks' requests are served with every poll, whoever drives.

use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::dtype::DType;
use shouter_reducer::executor::{AbortCause, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::transport::{SendToken, Transport};
use shouter_reducer::windows::{
    AccessEnded, AccessError, AccessId, AccessRefused, AccessRequest, WindowId, WindowRefused, Windows,
    WindowsConfig,
};

use super::Engine;
use super::served::{Machine, Served};

/// The windows of one of so many ranks. The engine drops its channels before them.
#[allow(unsafe_code)]
pub(super) fn windows(rank: Rank, ranks: u32) -> Served<Windows> {
    // SAFETY: it is a field of the engine behind the channels, which alone are given what it posts.
    Served::around(unsafe { Windows::new(WindowsConfig::new(rank, ranks)) })
}

impl Machine for Windows {
    type Id = AccessId;
    type Outcome = Result<(), AccessError>;

    fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_message(header, payload)
    }

    fn on_released(&mut self, token: SendToken) {
        self.on_released(token);
    }

    fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        self.poll(now, transport).worked
    }

    fn take_ended(&mut self) -> Option<(Self::Id, Self::Outcome)> {
        self.take_ended().map(|AccessEnded { id, result }| (id, result))
    }

    fn running(&self) -> usize {
        self.running()
    }

    fn has_work(&self) -> bool {
        self.has_work()
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn deserter(&self, ranks: impl Fn(Rank) -> bool) -> Option<Rank> {
        self.deserter(ranks)
    }

    fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.abort(cause);
    }

    fn fenced(&mut self) {
        self.fenced();
    }
}

impl Engine {
    /// Opens this rank's part of the next window.
    pub(crate) fn open_window(
        &mut self,
        memory: TensorRegion,
        dtype: DType,
    ) -> Result<WindowId, WindowRefused> {
        self.windows.machine.open(memory, dtype)
    }

    /// Elements of each rank's part.
    pub(crate) fn set_window_lengths(&mut self, window: WindowId, lengths: Box<[u64]>) {
        self.windows.machine.set_lengths(window, lengths);
    }

    /// Nothing touches this rank's part of a window from now on.
    pub(crate) fn close_window(&mut self, window: WindowId) {
        self.windows.machine.close(window);
    }

    /// The same of all windows.
    pub(crate) fn close_windows(&mut self) {
        self.windows.machine.close_all();
    }

    /// Starts an access.
    pub(crate) fn start_access(&mut self, request: AccessRequest) -> Result<AccessId, AccessRefused> {
        self.windows.machine.start(request)
    }

    /// Takes the outcome of an access that is waited for, once it has ended.
    #[inline]
    pub(crate) fn take_access(&mut self, id: AccessId) -> Option<Result<(), AccessError>> {
        if self.settling.is_some() {
            return None;
        }
        self.windows.take(id)
    }

    /// Once all accesses of a window to a target, or to all, have ended: how one failed that nobody has waited for.
    pub(crate) fn take_flush(
        &mut self,
        window: WindowId,
        target: Option<Rank>,
    ) -> Option<Result<Result<(), AccessError>, AccessRefused>> {
        if self.executor.aborted().is_none() && !self.windows.machine.has_window(window) {
            return Some(Err(AccessRefused::Window { window }));
        }
        let has_ended = self.settling.is_none() && self.windows.machine.is_flushed(window, target);
        has_ended.then(|| Ok(self.windows.machine.take_late(window, target).map_or(Ok(()), Err)))
    }
}
