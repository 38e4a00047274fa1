//! The side that accesses: its accesses, and the requests that they are cut into.

use super::accesses::Accesses;
use super::api::{AccessError, AccessId, AccessRefused, AccessRequest, Denial, WindowsConfig};
use super::outbound::Outbound;
use super::wire::Piece;
use super::{AbortCause, Outcome};
use crate::grid::Rank;
use crate::header::{GRANULE_UNIT, Header, MessageKind, granule};
use crate::memory::TensorRegion;
use crate::transport::{SendError, SendToken, Transport};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The accesses of a rank, and its requests to each target.
#[derive(Debug)]
pub(super) struct Origin {
    config: WindowsConfig,
    accesses: Accesses,
    outbound: BTreeMap<Rank, Outbound>,
    /// Targets that there may be something to post to.
    active: Vec<Rank>,
}

impl Origin {
    pub(super) fn new(config: WindowsConfig) -> Self {
        let accesses = Accesses::new(config.rank);
        Self { config, accesses, outbound: BTreeMap::new(), active: vec![] }
    }

    /// Its accesses.
    #[inline]
    pub(super) fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    /// The same, to take their ends, and for what the transport has released.
    #[inline]
    pub(super) fn accesses_mut(&mut self) -> &mut Accesses {
        &mut self.accesses
    }

    /// Starts an access to these elements.
    pub(super) fn start(&mut self, request: &AccessRequest, piece: Piece) -> Result<AccessId, AccessRefused> {
        let (id, handle) = self.accesses.start(&self.config, request, piece)?;
        if let Some(handle) = handle {
            self.outbound.entry(request.target).or_default().enqueue(handle);
            self.activate(request.target);
        }
        Ok(id)
    }

    fn activate(&mut self, target: Rank) {
        if self.outbound.entry(target).or_default().activate() {
            self.active.push(target);
        }
    }

    /// Whether a poll may post something.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.active.is_empty()
    }

    /// Posts requests to all targets that there are some for; whether one was posted. This rank's accesses to itself are served by `apply`:
    /// of these elements, with these data, and the memory for the result.
    pub(super) fn post<T: Transport>(
        &mut self,
        transport: &mut T,
        mut apply: impl FnMut(&Piece, TensorRegion, TensorRegion) -> Result<(), Denial>,
    ) -> bool {
        let (mut at, mut worked) = (0, false);
        while let Some(&target) = self.active.get(at) {
            let (posted, is_full) = match target == self.config.rank {
                true => (self.serve_own(&mut apply), false),
                false => self.post_to(target, transport),
            };
            worked |= posted;
            // A target that waits for room in flight is activated when room comes back.
            if is_full {
                at += 1;
                continue;
            }
            self.active.swap_remove(at);
            if let Some(out) = self.outbound.get_mut(&target) {
                out.deactivate();
            }
        }
        worked
    }

    /// Posts requests to a target; whether one was posted, and whether the transport was full.
    fn post_to<T: Transport>(&mut self, target: Rank, transport: &mut T) -> (bool, bool) {
        let Self { config, accesses, outbound, .. } = self;
        let Some(out) = outbound.get_mut(&target) else { return (false, false) };
        let granule = granule(transport.max_fragment(target).min(config.in_flight_bytes / 4)) as usize;
        let mut worked = false;
        let is_full = loop {
            let Some(handle) = out.front() else { break false };
            let Some(access) = accesses.open(handle) else {
                out.dequeue();
                continue;
            };
            let len = access.next_len(granule);
            if !out.has_room(len, config.in_flight_bytes) {
                break false;
            }
            let Some(part) = access.next_part(len) else {
                debug_assert!(false, "an access was checked when it started");
                break false;
            };
            let given = part.payload.len();
            let room = given.next_multiple_of(GRANULE_UNIT).max(GRANULE_UNIT);
            let header = part.piece.header(config, MessageKind::Access, out.next());
            let header = Header { granule: room as u32, len: given as u32, ..header };
            // Without payload, the transport does not refer to the caller's memory.
            let token = if given == 0 { SendToken::CONTROL } else { handle.token(false) };
            match transport.send(target, &header, part.payload, token) {
                Ok(()) => {}
                Err(SendError::Full) => break true,
                // The transport reports the loss to its owner, which decides what becomes of the group.
                Err(SendError::PeerFailed) => break true,
            }
            worked = true;
            out.posted(handle, &part);
            if access.part_posted(&part) {
                out.dequeue();
            }
        };
        if worked {
            transport.request_ack(target);
        }
        (worked, is_full)
    }

    /// Makes this rank's accesses to its own windows; whether there was one.
    fn serve_own(
        &mut self,
        mut apply: impl FnMut(&Piece, TensorRegion, TensorRegion) -> Result<(), Denial>,
    ) -> bool {
        let own = self.config.rank;
        let mut any = false;
        while let Some(handle) = self.outbound.get_mut(&own).and_then(Outbound::dequeue) {
            let Some(access) = self.accesses.open(handle) else { continue };
            any = true;
            let (piece, data, into) = access.serve_own();
            match apply(&piece, data, into) {
                Ok(()) => self.accesses.end(handle),
                Err(why) => self.accesses.fail(handle, |subject| AccessError::Denied { subject, why }),
            }
        }
        any
    }

    /// A fragment of an answer to a request.
    pub(super) fn on_answer(&mut self, header: &Header, payload: &[u8]) -> Outcome {
        let target = header.src;
        let Some(out) = self.outbound.get_mut(&target) else { return Outcome::Malformed };
        let answered = match out.on_answer(header, payload) {
            Ok(answered) => answered,
            Err(outcome) => return outcome,
        };
        self.accesses.write(answered.access, answered.at, payload);
        if answered.is_last {
            self.accesses.request_ended(answered.access);
            self.activate(target);
        }
        Outcome::Taken
    }

    /// A target has denied a request.
    pub(super) fn on_denied(&mut self, header: &Header) -> Outcome {
        let Some(why) = Denial::from_code(header.round) else { return Outcome::Malformed };
        let target = header.src;
        let Some(out) = self.outbound.get_mut(&target) else { return Outcome::Malformed };
        match out.on_denied(header.key.seq) {
            Ok(handle) => self.accesses.fail(handle, |subject| AccessError::Denied { subject, why }),
            Err(outcome) => return outcome,
        }
        self.settle_applied(target);
        Outcome::Taken
    }

    /// A target has applied requests.
    pub(super) fn on_applied(&mut self, header: &Header) -> Outcome {
        let target = header.src;
        let Some(out) = self.outbound.get_mut(&target) else { return Outcome::Malformed };
        let outcome = out.on_applied(header.key.seq, header.round);
        if matches!(outcome, Outcome::Taken) {
            self.settle_applied(target);
        }
        outcome
    }

    /// Ends the requests to a target that were applied.
    fn settle_applied(&mut self, target: Rank) {
        let Some(out) = self.outbound.get_mut(&target) else { return };
        for handle in out.settle_applied() {
            self.accesses.request_ended(handle);
        }
        self.activate(target);
    }

    /// Fails the accesses whose deadline has passed; whether there was one.
    pub(super) fn check_deadlines(&mut self, now: Duration) -> bool {
        let late = self.accesses.check_deadlines(now);
        // The next poll takes them off the queues.
        late.iter().for_each(|target| self.activate(*target));
        !late.is_empty()
    }

    /// The group ends: nothing is posted any more, and all accesses fail.
    pub(super) fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.active.clear();
        self.accesses.abort(cause);
    }

    /// The ranks that there were accesses to.
    pub(super) fn known(&self) -> impl Iterator<Item = Rank> {
        self.outbound.keys().copied()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.accesses.is_empty() && self.outbound.values().all(Outbound::is_empty)
    }
}
