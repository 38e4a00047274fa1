//! The windows of groups, and the outcomes of accesses to them: other ranks' requests are served with every poll, on any thread.

use shouter_reducer::grid::Rank;
use shouter_reducer::windows::{AccessError, AccessId, AccessRefused, AccessRequest, WindowId, Windows};

use super::Engine;
use super::groups::GroupId;

/// Of any group of this process: without a [`GroupId`] those of the group of all. Of a group that is gone there are none.
impl Engine {
    /// The windows.
    pub(crate) fn windows_in(&mut self, group: Option<GroupId>) -> Option<&mut Windows> {
        Some(&mut self.pairwise_in(group)?.windows.machine)
    }

    /// Starts an access.
    pub(crate) fn start_access(
        &mut self,
        group: Option<GroupId>,
        request: AccessRequest,
    ) -> Result<AccessId, AccessRefused> {
        let gone = AccessRefused::Window { window: request.window };
        self.windows_in(group).ok_or(gone)?.start(request)
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
        let windows = self.windows_in(group);
        let is_there = windows.is_some_and(|windows| has_ended || windows.has_window(window));
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
        let windows = self.windows_in(group)?;
        let is_flushed = windows.is_flushed(window, target);
        is_flushed.then(|| windows.take_late(window, target).map_or(Ok(()), Err))
    }
}
