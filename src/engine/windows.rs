//! The windows of groups, and the outcomes of accesses to them: other ranks' requests are served with every poll, on any thread.

use shouter_reducer::dtype::DType;
use shouter_reducer::grid::Rank;
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::windows::{
    AccessError, AccessId, AccessRefused, AccessRequest, WindowId, WindowRefused,
};

use super::Engine;
use super::groups::GroupId;

/// Of any group of this process: without a [`GroupId`] those of the group of all. Of a group that is gone there are none.
impl Engine {
    /// Opens this rank's part of the group's next window; `None` for a group that is gone.
    pub(crate) fn open_window(
        &mut self,
        group: Option<GroupId>,
        memory: TensorRegion,
        dtype: DType,
    ) -> Option<Result<WindowId, WindowRefused>> {
        self.pairwise_in(group).map(|pairwise| pairwise.windows.machine.open(memory, dtype))
    }

    /// Elements of each rank's part.
    pub(crate) fn set_window_lengths(
        &mut self,
        group: Option<GroupId>,
        window: WindowId,
        lengths: Box<[u64]>,
    ) {
        if let Some(pairwise) = self.pairwise_in(group) {
            pairwise.windows.machine.set_lengths(window, lengths);
        }
    }

    /// Nothing touches this rank's part of a window from now on.
    pub(crate) fn close_window(&mut self, group: Option<GroupId>, window: WindowId) {
        if let Some(pairwise) = self.pairwise_in(group) {
            pairwise.windows.machine.close(window);
        }
    }

    /// Nothing touches this rank's part of any window of the group of all from now on.
    pub(crate) fn close_windows(&mut self) {
        self.pairwise.windows.machine.close_all();
    }

    /// Starts an access.
    pub(crate) fn start_access(
        &mut self,
        group: Option<GroupId>,
        request: AccessRequest,
    ) -> Result<AccessId, AccessRefused> {
        let gone = AccessRefused::Window { window: request.window };
        self.pairwise_in(group).ok_or(gone)?.windows.machine.start(request)
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
        self.pairwise_in(group)?.windows.take(id)
    }

    /// Whether a window can be flushed: it is open, or its group has ended in error.
    pub(crate) fn check_window(
        &mut self,
        group: Option<GroupId>,
        window: WindowId,
    ) -> Result<(), AccessRefused> {
        let has_ended = self.aborted_in(group).is_some();
        let pairwise = self.pairwise_in(group);
        let is_there = pairwise.is_some_and(|it| has_ended || it.windows.machine.has_window(window));
        if is_there { Ok(()) } else { Err(AccessRefused::Window { window }) }
    }

    /// Takes the outcome of a flush, once all accesses of a window to a target, or to all, have ended: the error of one that nobody has waited
    /// for.
    pub(crate) fn take_flush(
        &mut self,
        group: Option<GroupId>,
        window: WindowId,
        target: Option<Rank>,
    ) -> Option<Result<(), AccessError>> {
        if self.is_settling_in(group) {
            return None;
        }
        let windows = &mut self.pairwise_in(group)?.windows.machine;
        let is_flushed = windows.is_flushed(window, target);
        is_flushed.then(|| windows.take_late(window, target).map_or(Ok(()), Err))
    }
}
