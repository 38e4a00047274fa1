//! The windows of the group of all, and how its accesses have ended: other ranks' requests are served with every poll, whoever drives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::dtype::DType;
use shouter_reducer::executor::{AbortCause, AbortReason, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::memory::TensorRegion;
use shouter_reducer::transport::{SendToken, Transport};
use shouter_reducer::windows::{
    AccessEnded, AccessError, AccessId, AccessRefused, AccessRequest, WindowId, WindowRefused,
    Windows as Machine, WindowsConfig,
};

use super::Engine;

/// What a rank that has left in good order has sent arrives within this time.
const ARRIVES: Duration = Duration::from_secs(1);

/// The state machine, and the ends that nobody has taken.
pub(super) struct Windows {
    machine: Machine,
    ended: BTreeMap<AccessId, Result<(), AccessError>>,
    /// The ranks that have left, and when nothing of theirs is on its way any more.
    left: Vec<(Rank, Option<Instant>)>,
}

impl Windows {
    /// Of one of so many ranks. The engine drops its channels before it.
    #[allow(unsafe_code)]
    pub(super) fn new(rank: Rank, ranks: u32) -> Self {
        // SAFETY: it is a field of the engine behind the channels, which alone are given what it posts.
        let machine = unsafe { Machine::new(WindowsConfig::new(rank, ranks)) };
        Self { machine, ended: BTreeMap::new(), left: vec![] }
    }

    #[inline]
    pub(super) fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.machine.on_message(header, payload)
    }

    #[inline]
    pub(super) fn on_released(&mut self, token: SendToken) {
        self.machine.on_released(token);
    }

    /// Serves, posts what finds room, and notes what has ended; whether there was anything.
    #[inline]
    pub(super) fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        let is_due = self.machine.next_deadline().is_some_and(|deadline| deadline <= now);
        let mut busy = false;
        if is_due || self.machine.has_work() {
            busy = self.machine.poll(now, transport).worked;
        }
        busy | self.gather()
    }

    fn gather(&mut self) -> bool {
        let mut any = false;
        while let Some(AccessEnded { id, result }) = self.machine.take_ended() {
            self.ended.insert(id, result);
            any = true;
        }
        any
    }

    /// Whether an access of this rank has not ended.
    #[inline]
    pub(super) fn are_running(&self) -> bool {
        self.machine.running() != 0
    }

    /// Whether an access waits for one of these ranks.
    #[cold]
    pub(super) fn wait_for(&self, ranks: impl Fn(Rank) -> bool) -> bool {
        self.machine.deserter(ranks).is_some()
    }

    /// Whether there is something to post.
    pub(super) fn has_work(&self) -> bool {
        self.machine.has_work()
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.machine.next_deadline()
    }

    /// The group ends.
    pub(super) fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.machine.abort(cause);
    }

    /// No channel refers to any memory any more.
    pub(super) fn fenced(&mut self) {
        self.machine.fenced();
        self.gather();
    }

    /// A rank has left in good order.
    pub(super) fn left(&mut self, rank: Rank) {
        self.left.push((rank, None));
    }

    /// A rank that has left, and that an access waits for in vain.
    #[cold]
    fn deserter(&mut self, now: Instant) -> Option<Rank> {
        for (_, until) in &mut self.left {
            until.get_or_insert(now + ARRIVES);
        }
        let gone = |rank: Rank| {
            self.left.iter().any(|(left, until)| *left == rank && until.is_some_and(|until| now >= until))
        };
        self.machine.deserter(gone)
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
        self.windows.gather();
        self.windows.ended.remove(&id)
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

    /// Ends the group where an access waits for a rank that has left.
    #[cold]
    pub(super) fn look_for_absent_targets(&mut self, now: Instant) {
        if self.windows.are_running()
            && !self.liveness.departures_expected()
            && self.executor.aborted().is_none()
            && let Some(rank) = self.windows.deserter(now)
        {
            self.end(rank, AbortReason::Aborted);
        }
    }
}
