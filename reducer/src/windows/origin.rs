//! The side that accesses: pieces, requests, and their ends.

use super::api::{
    AccessEnded, AccessError, AccessId, AccessRefused, AccessRequest, AccessSubject, Action, Denial, WindowId,
};
use super::slots::{Handle, PLACES};
use super::wire::Piece;
use super::{OVERHEAD, REQUESTS, Windows};
use crate::dtype::{DType, ReduceOp};
use crate::executor::Disposition;
use crate::grid::Rank;
use crate::header::{GRANULE_UNIT, Header, MAX_COUNT, MAX_GRANULE, MessageKind};
use crate::memory::{self, MemoryKind, Pool, Pooled, Span, TensorRegion};
use crate::p2p::fragments::{FragmentIs, Fragments};
use crate::transport::{SendError, SendToken, Transport};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

/// An access under way.
#[derive(Debug)]
pub(super) struct Access {
    /// The caller's, until it has been told of the end.
    id: Option<AccessId>,
    pub(super) target: Rank,
    /// All of it.
    pub(super) piece: Piece,
    data: TensorRegion,
    into: TensorRegion,
    /// What a copy of the data lies in.
    copy: Option<Pooled>,
    /// The caller has been told of the end, whatever the transport still refers to.
    is_told: bool,
    pub(super) deadline: Duration,
    /// Bytes of the window.
    total: usize,
    /// Those of them that were asked for.
    posted: usize,
    is_posted: bool,
    /// Requests that have not ended.
    requests: u32,
    /// Fragments that the transport has not released.
    pub(super) unreleased: u32,
    pub(super) failure: Option<AccessError>,
}

/// A request that has not ended.
#[derive(Debug)]
struct Record {
    seq: u64,
    access: Handle,
    cost: usize,
    /// The answer: where it goes in the access's memory, how long it is, and what has come of it.
    answer: Option<(usize, usize, Fragments)>,
    /// Its denial has come. It ends when the target has counted that, so denials are bounded as requests are.
    is_denied: bool,
}

/// What a rank keeps for each target.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// The number of the next request.
    next: u64,
    /// Accesses of which not all was asked for, in order.
    queue: VecDeque<Handle>,
    /// Requests that have not ended, in the order of their numbers.
    records: VecDeque<Record>,
    /// Their costs.
    in_flight: usize,
    /// The target has applied those before this number...
    applied: u64,
    /// ...and has denied so many of them.
    denied_there: u32,
    /// Denials of requests that have ended.
    denied_here: u32,
    /// How accesses failed that nobody waited for: the first one of each window.
    late: Vec<AccessError>,
    is_active: bool,
}

impl Outbound {
    /// The first failure in a window.
    pub(super) fn take_late(&mut self, window: WindowId) -> Option<AccessError> {
        let at = self.late.iter().position(|error| error.subject().window == window)?;
        Some(self.late.remove(at))
    }

    fn index_of(&self, seq: u64) -> Option<usize> {
        self.records.binary_search_by_key(&seq, |record| record.seq).ok()
    }

    fn settle(&mut self, at: usize) -> Option<Record> {
        let record = self.records.remove(at)?;
        self.in_flight -= record.cost;
        Some(record)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.queue.is_empty() && self.in_flight == 0 && self.late.is_empty()
    }
}

impl Access {
    fn subject(&self, own: Rank) -> AccessSubject {
        subject_of(&self.piece, own, self.target)
    }
}

fn subject_of(piece: &Piece, own: Rank, target: Rank) -> AccessSubject {
    let &Piece { window, action, dtype, offset, count } = piece;
    AccessSubject { action, own, target, window, offset, dtype, count }
}

/// Whether the type has bits that a compare-and-swap may compare.
fn is_comparable(dtype: DType) -> bool {
    ReduceOp::Bxor.is_of(dtype) || ReduceOp::Lxor.is_of(dtype)
}

impl Windows {
    /// Starts an access. It takes effect behind those that were started before it to the same target. The memory belongs to the windows
    /// until it has ended.
    ///
    /// # Errors
    /// [`AccessRefused`]; nothing was started then.
    pub fn start(&mut self, request: AccessRequest) -> Result<AccessId, AccessRefused> {
        let piece = self.check(&request)?;
        let AccessRequest { target, data, into, deadline, waited, .. } = request;
        let id = AccessId(self.next);
        self.next += 1;
        let total = piece.bytes().unwrap_or(0);
        let mut access = Access {
            id: waited.then_some(id),
            target,
            piece,
            data,
            into,
            copy: None,
            is_told: false,
            deadline,
            total,
            posted: 0,
            is_posted: false,
            requests: 0,
            unreleased: 0,
            failure: None,
        };
        let is_copied = waited && data.len() <= self.config.copied_bytes && self.copy(&mut access);
        if is_copied && !piece.action.answers() {
            access.id = None;
            self.ended.push_back(AccessEnded { id, result: Ok(()) });
        }
        self.earliest = self.earliest.min(deadline);
        *self.under_way.entry((piece.window, target)).or_default() += 1;
        let handle = self.accesses.insert(access);
        if total == 0 {
            self.end(handle);
            return Ok(id);
        }
        self.outbound.entry(target).or_default().queue.push_back(handle);
        self.activate(target);
        Ok(id)
    }

    /// Whether an access may start, and what it asks for.
    fn check(&self, request: &AccessRequest) -> Result<Piece, AccessRefused> {
        let &AccessRequest { window, action, target, offset, dtype, data, into, .. } = request;
        let ranks = self.config.ranks;
        if let Some(cause) = &self.cause {
            return Err(AccessRefused::Aborted(Arc::clone(cause)));
        }
        let (given, taken) = (data.len(), into.len());
        let bytes = match action {
            Action::CompareAndSwap => dtype.size(),
            Action::Get => taken,
            _ => given,
        };
        let fits = given == action.bytes_given(bytes) && taken == if action.answers() { bytes } else { 0 };
        let is_whole = bytes.is_multiple_of(dtype.size()) && (bytes / dtype.size()) as u64 <= MAX_COUNT;
        let on_device = |region: &TensorRegion| region.kind() == MemoryKind::Device && !region.is_empty();
        if !fits || !is_whole || on_device(&data) || on_device(&into) {
            return Err(AccessRefused::Memory { action, dtype, given, taken });
        }
        if target.0 >= ranks {
            return Err(AccessRefused::Rank { target, ranks });
        }
        let own = self.windows.get(&window).ok_or(AccessRefused::Window { window })?;
        let lengths = own.lengths.as_ref().ok_or(AccessRefused::Window { window })?;
        let piece = Piece { window, action, dtype, offset, count: (bytes / dtype.size()) as u64 };
        let subject = subject_of(&piece, self.config.rank, target);
        if own.dtype != dtype {
            return Err(AccessRefused::Type { subject, dtype: own.dtype });
        }
        let len = lengths.get(target.0 as usize).copied().unwrap_or(0);
        if offset.checked_add(piece.count).is_none_or(|end| end > len) {
            return Err(AccessRefused::Range { subject, len });
        }
        match action {
            Action::Accumulate(ReduceOp::Avg) | Action::FetchAndOp(ReduceOp::Avg) => {
                let why = "a window does not know how many ranks will take part; use sum, and divide";
                return Err(AccessRefused::Operation { subject, why });
            }
            Action::Accumulate(op) | Action::FetchAndOp(op) => op.check(dtype)?,
            Action::CompareAndSwap if !is_comparable(dtype) => {
                let why = "only integers and truth values are compared and swapped; use a window of unsigned integers of that size";
                return Err(AccessRefused::Operation { subject, why });
            }
            _ => {}
        }
        if self.accesses.len() >= self.config.max_accesses.min(PLACES) {
            return Err(AccessRefused::Busy { max: self.config.max_accesses });
        }
        Ok(piece)
    }

    /// Copies what an access writes, if there is room.
    fn copy(&mut self, access: &mut Access) -> bool {
        let len = access.data.len();
        if len == 0 {
            return true;
        }
        if self.copies.is_none() {
            self.copies = Pool::new(self.config.copy_bytes);
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

    fn activate(&mut self, target: Rank) {
        let out = self.outbound.entry(target).or_default();
        if !out.is_active {
            out.is_active = true;
            self.active.push(target);
        }
    }

    /// Posts requests to all targets that there are some for; whether one was posted.
    pub(super) fn post_requests<T: Transport>(&mut self, transport: &mut T) -> bool {
        let (mut at, mut worked) = (0, false);
        while let Some(&target) = self.active.get(at) {
            let (posted, is_full) = match target == self.config.rank {
                true => (self.serve_own(), false),
                false => self.post_to(target, transport),
            };
            worked |= posted;
            // One that waits for room in flight is activated by what gives it room.
            if is_full {
                at += 1;
                continue;
            }
            self.active.swap_remove(at);
            if let Some(out) = self.outbound.get_mut(&target) {
                out.is_active = false;
            }
        }
        worked
    }

    /// Posts requests to a target; whether one was posted, and whether the transport was full.
    fn post_to<T: Transport>(&mut self, target: Rank, transport: &mut T) -> (bool, bool) {
        let Self { config, accesses, outbound, .. } = self;
        let Some(out) = outbound.get_mut(&target) else { return (false, false) };
        let granule = transport.max_fragment(target).min(config.in_flight_bytes / 4);
        let granule = granule.clamp(GRANULE_UNIT, MAX_GRANULE) / GRANULE_UNIT * GRANULE_UNIT;
        let (mut worked, mut ready) = (false, vec![]);
        let is_full = loop {
            let Some(&handle) = out.queue.front() else { break false };
            let Some(access) = accesses.get(handle).filter(|access| access.failure.is_none()) else {
                out.queue.pop_front();
                continue;
            };
            let (action, size) = (access.piece.action, access.piece.dtype.size());
            let len = (access.total - access.posted).min(granule);
            let cost = OVERHEAD + len;
            let has_room = out.in_flight + cost <= config.in_flight_bytes && out.records.len() < REQUESTS;
            if !has_room && !out.records.is_empty() {
                break false;
            }
            let given = action.bytes_given(len);
            let span = if given == 0 { Some(Span::empty()) } else { access.data.span(access.posted, given) };
            let Some(payload) = span else {
                debug_assert!(false, "an access was checked when it started");
                break false;
            };
            let offset = access.piece.offset + (access.posted / size) as u64;
            let piece = Piece { offset, count: (len / size) as u64, ..access.piece };
            let room = given.next_multiple_of(GRANULE_UNIT).max(GRANULE_UNIT);
            let header = piece.header(config, MessageKind::Access, out.next);
            let header = Header { granule: room as u32, len: given as u32, ..header };
            // Without payload, the transport does not refer to the caller's memory.
            let token = if given == 0 { SendToken::CONTROL } else { handle.token(false) };
            match transport.send(target, &header, payload, token) {
                Ok(()) => {}
                Err(SendError::Full) => break true,
                // The transport reports the loss to its owner, who decides what becomes of the group.
                Err(SendError::PeerFailed) => break true,
            }
            worked = true;
            let answer = action.answers().then(|| (access.posted, len, Fragments::default()));
            out.records.push_back(Record { seq: out.next, access: handle, cost, answer, is_denied: false });
            out.next += 1;
            out.in_flight += cost;
            access.posted += len;
            access.requests += 1;
            access.unreleased += u32::from(given > 0);
            if access.posted == access.total {
                access.is_posted = true;
                out.queue.pop_front();
                ready.push(handle);
            }
        };
        if worked {
            transport.request_ack(target);
        }
        (worked, is_full)
    }

    /// Makes this rank's accesses to its own windows; whether there was one.
    fn serve_own(&mut self) -> bool {
        let own = self.config.rank;
        let mut any = false;
        while let Some(handle) = self.outbound.get_mut(&own).and_then(|out| out.queue.pop_front()) {
            let Some(access) = self.accesses.get(handle).filter(|access| access.failure.is_none()) else {
                continue;
            };
            any = true;
            let (piece, data, into) = (access.piece, access.data, access.into);
            access.is_posted = true;
            let mut given = self.buffers.pop().unwrap_or_default();
            given.resize(data.len(), 0);
            let read = data.is_empty() || memory::read((data, 0), &mut given).is_some();
            let served = match read {
                true => self.apply(&piece, &given, (into, 0)),
                false => Err(Denial::Range),
            };
            self.recycle(given);
            match served {
                Ok(()) => self.end(handle),
                Err(why) => self.fail(handle, |subject| AccessError::Denied { subject, why }),
            }
        }
        any
    }

    /// A fragment of what a request has asked for.
    pub(super) fn on_answer(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        let target = header.src;
        let Some(out) = self.outbound.get_mut(&target).filter(|out| header.key.seq < out.next) else {
            return self.malformed();
        };
        let Some(at) = out.index_of(header.key.seq) else { return self.repeated() };
        let record = &mut out.records[at];
        let handle = record.access;
        if record.is_denied {
            return self.malformed();
        }
        let Some((place, len, fragments)) = &mut record.answer else { return self.malformed() };
        match fragments.note(header, payload, *len) {
            FragmentIs::Malformed => return self.malformed(),
            FragmentIs::Repeated => return self.repeated(),
            FragmentIs::New => {}
        }
        // Memory of an access that was given up is the caller's again.
        if let Some(access) = self.accesses.get(handle).filter(|access| access.failure.is_none()) {
            let _ = memory::write((access.into, *place + header.offset as usize), payload);
        }
        if fragments.are_complete(*len) {
            out.settle(at);
            self.request_ended(handle);
            self.activate(target);
        }
        Disposition::Consumed
    }

    /// A target does not do what a request asks for.
    pub(super) fn on_denied(&mut self, header: &Header) -> Disposition {
        let Some(why) = Denial::from_code(header.round) else { return self.malformed() };
        let target = header.src;
        let Some(out) = self.outbound.get_mut(&target).filter(|out| header.key.seq < out.next) else {
            return self.malformed();
        };
        let Some(at) = out.index_of(header.key.seq) else { return self.repeated() };
        let record = &mut out.records[at];
        if record.is_denied {
            return self.repeated();
        }
        record.is_denied = true;
        let handle = record.access;
        self.fail(handle, |subject| AccessError::Denied { subject, why });
        self.settle_applied(target);
        Disposition::Consumed
    }

    /// A target says what it has applied.
    pub(super) fn on_applied(&mut self, header: &Header) -> Disposition {
        let (target, applied) = (header.src, header.key.seq);
        let Some(out) = self.outbound.get_mut(&target).filter(|out| applied <= out.next) else {
            return self.malformed();
        };
        if applied <= out.applied {
            return self.repeated();
        }
        (out.applied, out.denied_there) = (applied, header.round);
        self.settle_applied(target);
        Disposition::Consumed
    }

    /// Ends the requests that were applied, unless a denial of one of them has still to come.
    fn settle_applied(&mut self, target: Rank) {
        let Some(out) = self.outbound.get_mut(&target) else { return };
        let mut done = vec![];
        // Denials of later requests may be here already, and the target has not counted them.
        let applied = out.records.partition_point(|record| record.seq < out.applied);
        let denied = out.records.range(..applied).filter(|record| record.is_denied).count() as u32;
        if out.denied_here.wrapping_add(denied) == out.denied_there {
            out.denied_here = out.denied_there;
            let mut at = 0;
            while let Some(record) = out.records.get(at).filter(|record| record.seq < out.applied) {
                if record.answer.is_some() && !record.is_denied {
                    at += 1;
                } else if let Some(record) = out.settle(at) {
                    done.push(record.access);
                }
            }
        }
        for handle in done {
            self.request_ended(handle);
        }
        self.activate(target);
    }

    fn request_ended(&mut self, handle: Handle) {
        if let Some(access) = self.accesses.get(handle) {
            access.requests = access.requests.saturating_sub(1);
            self.end_if_done(handle);
        }
    }

    /// The transport has released a fragment of an access.
    pub(super) fn request_released(&mut self, handle: Handle) {
        if let Some(access) = self.accesses.get(handle) {
            access.unreleased = access.unreleased.saturating_sub(1);
            self.end_if_done(handle);
        }
    }

    fn end_if_done(&mut self, handle: Handle) {
        let Some(access) = self.accesses.get(handle) else { return };
        let is_done = access.failure.is_some() || access.is_posted && access.requests == 0;
        if is_done && access.unreleased == 0 {
            self.end(handle);
        }
    }

    /// An access has failed, and ends when nothing refers to its memory. Nothing more of it is posted.
    pub(super) fn fail(&mut self, handle: Handle, why: impl FnOnce(AccessSubject) -> AccessError) {
        let own = self.config.rank;
        let Some(access) = self.accesses.get(handle) else { return };
        if access.failure.is_none() {
            let error = why(access.subject(own));
            // What the transport may still refer to is a copy.
            if access.copy.is_some()
                && let Some(id) = access.id.take()
            {
                access.is_told = true;
                self.ended.push_back(AccessEnded { id, result: Err(error.clone()) });
            }
            access.failure = Some(error);
        }
        let target = access.target;
        self.end_if_done(handle);
        if self.cause.is_none() {
            // The next poll takes it off the queue.
            self.activate(target);
        }
    }

    /// Nothing refers to an access's memory: it has ended.
    pub(super) fn end(&mut self, handle: Handle) {
        let Some(mut access) = self.accesses.remove(handle) else { return };
        let of = (access.piece.window, access.target);
        if let Some(count) = self.under_way.get_mut(&of) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&of);
            }
        }
        if let (Some(copy), Some(copies)) = (access.copy.take(), &mut self.copies) {
            copies.put(copy);
        }
        let result = access.failure.map_or(Ok(()), Err);
        match (access.id, result) {
            (Some(id), result) => self.ended.push_back(AccessEnded { id, result }),
            (None, Err(error)) if !access.is_told => {
                let late = &mut self.outbound.entry(access.target).or_default().late;
                if !late.iter().any(|earlier| earlier.subject().window == access.piece.window) {
                    late.push(error);
                }
            }
            (None, _) => {}
        }
    }
}
