//! The accesses of this rank, from their start until nothing refers to their memory.
//!
//! An access ends when all its requests have ended, or when it has failed, and the transport has released every fragment of it. Each end is
//! told once: by [`take_ended`](Accesses::take_ended) if the caller waits for it, else by [`take_late`](Accesses::take_late) if it has failed.

use super::api::{
    AccessError, AccessId, AccessRefused, AccessRequest, AccessSubject, WindowId, WindowsConfig,
};
use super::check::subject_of;
use super::slots::{Handle, PLACES, Slots};
use super::wire::Piece;
use crate::executor::AbortCause;
use crate::grid::Rank;
use crate::machine::Ended;
use crate::memory::{self, Pool, Pooled, Span, TensorRegion};
use crate::transport::SendToken;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An access under way.
#[derive(Debug)]
pub(super) struct OngoingAccess {
    /// The caller's, until it has been told of the end.
    id: Option<AccessId>,
    target: Rank,
    /// All of it.
    piece: Piece,
    data: TensorRegion,
    into: TensorRegion,
    /// The room of a copy of the data.
    copy: Option<Pooled>,
    /// The end was reported to the caller, although the transport may still refer to the copy.
    is_reported: bool,
    deadline: Duration,
    /// Bytes of the window that were asked for.
    posted: usize,
    is_posted: bool,
    /// Requests that have not ended.
    requests: u32,
    /// Fragments that the transport has not released.
    unreleased: u32,
    failure: Option<AccessError>,
}

/// The next part of an access to be asked for.
pub(super) struct Part {
    pub(super) piece: Piece,
    /// The bytes that go to the target.
    pub(super) payload: Span,
    /// The offset of the answer in the access's memory, if there is one.
    pub(super) answer_at: Option<usize>,
}

impl OngoingAccess {
    /// Bytes of the next part in requests of at most `granule` bytes.
    #[inline]
    pub(super) fn next_len(&self, granule: usize) -> usize {
        (self.piece.bytes() - self.posted).min(granule)
    }

    /// The next part, of so many bytes.
    #[inline]
    pub(super) fn next_part(&self, len: usize) -> Option<Part> {
        let action = self.piece.action();
        let given = action.bytes_given(len);
        let payload = if given == 0 { Span::empty() } else { self.data.span(self.posted, given)? };
        let answer_at = action.answers().then_some(self.posted);
        Some(Part { piece: self.piece.part(self.posted, len), payload, answer_at })
    }

    /// The next part was posted. True if it was the last.
    #[inline]
    pub(super) fn part_posted(&mut self, part: &Part) -> bool {
        self.posted += part.piece.bytes();
        self.requests += 1;
        self.unreleased += u32::from(!part.payload.is_empty());
        self.is_posted = self.posted == self.piece.bytes();
        self.is_posted
    }

    /// An access of this rank to itself is served now: its elements, the data, and the memory for the result.
    pub(super) fn serve_own(&mut self) -> (Piece, TensorRegion, TensorRegion) {
        self.is_posted = true;
        (self.piece, self.data, self.into)
    }

    fn is_done(&self) -> bool {
        let has_ended = self.failure.is_some() || self.is_posted && self.requests == 0;
        has_ended && self.unreleased == 0
    }
}

/// All accesses of a rank.
#[derive(Debug)]
pub(super) struct Accesses {
    own: Rank,
    slots: Slots<OngoingAccess>,
    /// The number of them for each window and target.
    under_way: BTreeMap<(WindowId, Rank), usize>,
    copies: Option<Pool>,
    ended: VecDeque<Ended<AccessId, Result<(), AccessError>>>,
    /// Failures that no caller waits for: the first one of each window and target.
    late: BTreeMap<(WindowId, Rank), AccessError>,
    next: u64,
    /// No deadline is earlier.
    earliest: Duration,
}

impl Accesses {
    pub(super) fn new(own: Rank) -> Self {
        Self {
            own,
            slots: Slots::default(),
            under_way: BTreeMap::new(),
            copies: None,
            ended: VecDeque::new(),
            late: BTreeMap::new(),
            next: 0,
            earliest: Duration::MAX,
        }
    }

    /// Starts an access; `None` in the place of its handle if it has no elements, and so has ended.
    pub(super) fn start(
        &mut self,
        config: &WindowsConfig,
        request: &AccessRequest,
        piece: Piece,
    ) -> Result<(AccessId, Option<Handle>), AccessRefused> {
        let &AccessRequest { target, data, into, deadline, waited, .. } = request;
        if self.slots.len() >= config.max_accesses.min(PLACES) {
            return Err(AccessRefused::Busy { max: config.max_accesses });
        }
        let id = AccessId(self.next);
        self.next += 1;
        let mut access = OngoingAccess {
            id: waited.then_some(id),
            target,
            piece,
            data,
            into,
            copy: None,
            is_reported: false,
            deadline,
            posted: 0,
            is_posted: false,
            requests: 0,
            unreleased: 0,
            failure: None,
        };
        let is_copied = waited && data.len() <= config.copied_bytes && self.copy(config, &mut access);
        if is_copied && !piece.action().answers() {
            access.id = None;
            self.ended.push_back(Ended { id, result: Ok(()) });
        }
        self.earliest = self.earliest.min(deadline);
        *self.under_way.entry((piece.window(), target)).or_default() += 1;
        let handle = self.slots.insert(access);
        if piece.bytes() == 0 {
            self.end(handle);
            return Ok((id, None));
        }
        Ok((id, Some(handle)))
    }

    /// Copies the data of an access, if there is room.
    fn copy(&mut self, config: &WindowsConfig, access: &mut OngoingAccess) -> bool {
        let len = access.data.len();
        if len == 0 {
            return true;
        }
        if self.copies.is_none() {
            self.copies = Pool::new(config.copy_bytes);
        }
        let Some(copies) = &mut self.copies else { return false };
        let Some(copy) = copies.take(len) else { return false };
        let into = copy.region().sub(0, len);
        let Some(into) = into.filter(|into| memory::copy((*into, 0), (access.data, 0), len).is_some()) else {
            copies.put(copy);
            return false;
        };
        (access.data, access.copy) = (into, Some(copy));
        true
    }

    /// An access that has not failed. The memory of one that has is the caller's again.
    #[inline]
    pub(super) fn open(&mut self, handle: Handle) -> Option<&mut OngoingAccess> {
        self.slots.get(handle).filter(|access| access.failure.is_none())
    }

    /// Writes a part of an answer to an access's memory.
    #[inline]
    pub(super) fn write(&mut self, handle: Handle, at: usize, payload: &[u8]) {
        if let Some(access) = self.open(handle) {
            // The part lies inside the answer, and the answer inside the memory.
            let _ = memory::write((access.into, at), payload);
        }
    }

    /// A request of an access has ended.
    pub(super) fn request_ended(&mut self, handle: Handle) {
        if let Some(access) = self.slots.get(handle) {
            access.requests = access.requests.saturating_sub(1);
            self.end_if_done(handle);
        }
    }

    /// The transport has released a fragment of an access.
    pub(super) fn released(&mut self, token: SendToken) {
        let Some(handle) = self.slots.handle_of(token) else { return };
        if let Some(access) = self.slots.get(handle) {
            access.unreleased = access.unreleased.saturating_sub(1);
            self.end_if_done(handle);
        }
    }

    /// An access has failed, and ends when nothing refers to its memory. Nothing more of it is posted.
    pub(super) fn fail(&mut self, handle: Handle, why: impl FnOnce(AccessSubject) -> AccessError) {
        let own = self.own;
        let Some(access) = self.slots.get(handle) else { return };
        if access.failure.is_none() {
            let error = why(subject_of(&access.piece, own, access.target));
            // The transport may still refer to the copy, and not to the caller's memory.
            if access.copy.is_some()
                && let Some(id) = access.id.take()
            {
                access.is_reported = true;
                self.ended.push_back(Ended { id, result: Err(error.clone()) });
            }
            access.failure = Some(error);
        }
        self.end_if_done(handle);
    }

    fn end_if_done(&mut self, handle: Handle) {
        if self.slots.get(handle).is_some_and(|access| access.is_done()) {
            self.end(handle);
        }
    }

    /// Nothing refers to an access's memory: it has ended.
    pub(super) fn end(&mut self, handle: Handle) {
        let Some(mut access) = self.slots.remove(handle) else { return };
        let of = (access.piece.window(), access.target);
        if let Some(count) = self.under_way.get_mut(&of) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&of);
            }
        }
        if let (Some(copy), Some(copies)) = (access.copy.take(), &mut self.copies) {
            copies.put(copy);
        }
        match (access.id, access.failure.map_or(Ok(()), Err)) {
            (Some(id), result) => self.ended.push_back(Ended { id, result }),
            (None, Err(error)) if !access.is_reported => {
                self.late.entry(of).or_insert(error);
            }
            (None, _) => {}
        }
    }

    /// Fails the accesses whose deadline has passed, and finds the next deadline; the targets of those that have failed.
    pub(super) fn check_deadlines(&mut self, now: Duration) -> Vec<Rank> {
        if now < self.earliest {
            return vec![];
        }
        let open = |access: &OngoingAccess| access.failure.is_none();
        let late = self.slots.iter().filter(|(_, access)| open(access) && access.deadline <= now);
        let late: Vec<_> = late.map(|(handle, access)| (handle, access.target)).collect();
        for (handle, _) in &late {
            self.fail(*handle, |subject| AccessError::Deadline { subject });
        }
        let open = self.slots.iter().filter(|(_, access)| open(access));
        self.earliest = open.map(|(_, access)| access.deadline).min().unwrap_or(Duration::MAX);
        late.into_iter().map(|(_, target)| target).collect()
    }

    /// The next deadline, if there is one. It may be earlier than needed.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        (self.earliest < Duration::MAX).then_some(self.earliest)
    }

    /// Fails all accesses.
    pub(super) fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.earliest = Duration::MAX;
        for handle in self.handles() {
            self.fail(handle, |subject| AccessError::Aborted { subject, cause: Arc::clone(cause) });
        }
    }

    /// The transport refers to no memory any more.
    pub(super) fn fenced(&mut self) {
        for handle in self.handles() {
            if let Some(access) = self.slots.get(handle) {
                access.unreleased = 0;
            }
            self.end(handle);
        }
    }

    fn handles(&self) -> Vec<Handle> {
        self.slots.iter().map(|(handle, _)| handle).collect()
    }

    #[inline]
    pub(super) fn take_ended(&mut self) -> Option<Ended<AccessId, Result<(), AccessError>>> {
        self.ended.pop_front()
    }

    /// Takes the first failure of an access to a target (or any) of the window that no caller waits for.
    pub(super) fn take_late(&mut self, window: WindowId, target: Option<Rank>) -> Option<AccessError> {
        let (of, _) = self.late.range(targets(window, target)).next()?;
        let of = *of;
        self.late.remove(&of)
    }

    /// Whether all accesses to a target, or to all, have ended.
    pub(super) fn is_flushed(&self, window: WindowId, target: Option<Rank>) -> bool {
        self.under_way.range(targets(window, target)).next().is_none()
    }

    /// The number of accesses.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the transport refers to no memory of an access, copies included.
    pub(super) fn is_quiesced(&self) -> bool {
        self.slots.iter().all(|(_, access)| access.unreleased == 0)
    }

    /// The targets of all accesses.
    pub(super) fn targets(&self) -> impl Iterator<Item = Rank> {
        self.slots.iter().map(|(_, access)| access.target)
    }

    /// Whether all has ended and been told, and all room is given back.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_whole = self.copies.as_ref().is_none_or(Pool::is_whole);
        self.len() == 0 && self.under_way.is_empty() && self.late.is_empty() && is_whole
    }
}

/// The places of a target, or of all, among those of a window.
fn targets(window: WindowId, target: Option<Rank>) -> RangeInclusive<(WindowId, Rank)> {
    let (first, last) = target.map_or((Rank(0), Rank(u32::MAX)), |target| (target, target));
    (window, first)..=(window, last)
}
