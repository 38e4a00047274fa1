//! The windows of groups, and how accesses to them have ended: other ranks' requests are served with every poll, whoever drives.

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
};

use super::Engine;
use super::groups::GroupId;
use super::served::Machine;

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

/// Of any group of this process: without a [`GroupId`] those of the group of all. Of a group that is gone there are none.
impl Engine {
    /// Opens this rank's part of the group's next window; `None` for a group that is gone.
    pub(crate) fn open_window(
        &mut self,
        group: Option<GroupId>,
        memory: TensorRegion,
        dtype: DType,
    ) -> Option<Result<WindowId, WindowRefused>> {
        self.beside_in(group).map(|beside| beside.windows.machine.open(memory, dtype))
    }

    /// Elements of each rank's part.
    pub(crate) fn set_window_lengths(
        &mut self,
        group: Option<GroupId>,
        window: WindowId,
        lengths: Box<[u64]>,
    ) {
        if let Some(beside) = self.beside_in(group) {
            beside.windows.machine.set_lengths(window, lengths);
        }
    }

    /// Nothing touches this rank's part of a window from now on.
    pub(crate) fn close_window(&mut self, group: Option<GroupId>, window: WindowId) {
        if let Some(beside) = self.beside_in(group) {
            beside.windows.machine.close(window);
        }
    }

    /// The same of all windows of the group of all.
    pub(crate) fn close_windows(&mut self) {
        self.beside.windows.machine.close_all();
    }

    /// Starts an access.
    pub(crate) fn start_access(
        &mut self,
        group: Option<GroupId>,
        request: AccessRequest,
    ) -> Result<AccessId, AccessRefused> {
        let gone = AccessRefused::Window { window: request.window };
        self.beside_in(group).ok_or(gone)?.windows.machine.start(request)
    }

    /// Takes the outcome of an access that is waited for, once it has ended.
    #[inline]
    pub(crate) fn take_access(
        &mut self,
        group: Option<GroupId>,
        id: AccessId,
    ) -> Option<Result<(), AccessError>> {
        if self.is_settling_in(group) {
            return None;
        }
        self.beside_in(group)?.windows.take(id)
    }

    /// Once all accesses of a window to a target, or to all, have ended: how one failed that nobody has waited for.
    pub(crate) fn take_flush(
        &mut self,
        group: Option<GroupId>,
        window: WindowId,
        target: Option<Rank>,
    ) -> Option<Result<Result<(), AccessError>, AccessRefused>> {
        let (has_ended, settles) = (self.aborted_in(group).is_some(), self.is_settling_in(group));
        let Some(beside) = self.beside_in(group) else {
            return Some(Err(AccessRefused::Window { window }));
        };
        let windows = &mut beside.windows.machine;
        if !has_ended && !windows.has_window(window) {
            return Some(Err(AccessRefused::Window { window }));
        }
        let is_flushed = !settles && windows.is_flushed(window, target);
        is_flushed.then(|| Ok(windows.take_late(window, target).map_or(Ok(()), Err)))
    }
}
