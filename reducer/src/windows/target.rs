//! The side that is accessed: turns, checks, what is done, and answers.

use super::api::{Action, Denial};
use super::slots::{Handle, PLACES};
use super::wire::Piece;
use super::{OVERHEAD, REQUESTS, Windows};
use crate::dtype::ReduceOp;
use crate::executor::Disposition;
use crate::grid::Rank;
use crate::header::{GRANULE_UNIT, Header, MAX_GRANULE, MessageKind};
use crate::memory::{self, Pool, Pooled, RegionOffset, Span, TensorRegion};
use crate::transport::{SendError, SendToken, Transport};
use std::collections::BTreeMap;

/// Buffers of held requests are kept for their next use: so many, of so many bytes.
const KEPT: usize = 16;
const KEPT_BYTES: usize = 64 << 10;

/// The largest element, in bytes.
const ELEMENT: usize = 16;

/// What a rank keeps for each origin.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// The number of the next request to be served.
    expected: u64,
    /// Requests whose turn has not come, or whose answer has no room.
    held: BTreeMap<u64, (Piece, Vec<u8>)>,
    /// What they cost.
    held_bytes: usize,
    /// Requests that were denied.
    denied: u32,
    /// Denials that were not posted.
    unsent: usize,
    /// Bytes of answers that were not released.
    answering: usize,
    is_telling: bool,
    is_stalled: bool,
}

impl Inbound {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && [self.held_bytes, self.unsent, self.answering] == [0; 3] && !self.is_stalled
    }
}

/// What a request has asked for, on its way back.
#[derive(Debug)]
pub(super) struct Answer {
    to: Rank,
    header: Header,
    room: Pooled,
    len: usize,
    sent: usize,
    granule: usize,
    /// Fragments that the transport has not released.
    unreleased: u32,
    /// The rank that it is for is gone.
    is_lost: bool,
}

impl Answer {
    /// Fragments that the transport has not released.
    pub(super) fn unreleased(&self) -> u32 {
        self.unreleased
    }
}

impl Windows {
    /// A request of another rank.
    pub(super) fn on_request(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        let Some(piece) = Piece::of(header) else { return self.malformed() };
        let Some(bytes) = piece.bytes() else { return self.malformed() };
        let (from, seq) = (header.src, header.key.seq);
        let has_all = payload.len() == header.len as usize && header.offset == 0;
        let is_small = bytes <= self.config.in_flight_bytes && bytes > 0;
        if !has_all || !is_small || piece.action.bytes_given(bytes) != payload.len() {
            return self.malformed();
        }
        let inbound = self.inbound.entry(from).or_default();
        if seq < inbound.expected || inbound.held.contains_key(&seq) {
            return self.repeated();
        }
        if seq == inbound.expected && !inbound.is_stalled && self.serve(from, seq, &piece, payload) {
            self.serve_held(from);
            return Disposition::Consumed;
        }
        let inbound = self.inbound.entry(from).or_default();
        let cost = OVERHEAD + payload.len();
        // An origin that keeps to the bounds is never refused.
        let has_room = inbound.held_bytes + cost <= self.config.in_flight_bytes + OVERHEAD;
        if seq - inbound.expected > REQUESTS as u64 || !has_room {
            return self.not_ready();
        }
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.extend_from_slice(payload);
        inbound.held_bytes += cost;
        inbound.held.insert(seq, (piece, buffer));
        self.counters.held += 1;
        Disposition::Consumed
    }

    /// Serves the requests of an origin that are here, in the order of their numbers, as far as there is no gap.
    fn serve_held(&mut self, from: Rank) {
        while let Some(inbound) = self.inbound.get_mut(&from) {
            let seq = inbound.expected;
            let Some((piece, buffer)) = inbound.held.remove(&seq) else { return };
            if !self.serve(from, seq, &piece, &buffer) {
                if let Some(inbound) = self.inbound.get_mut(&from) {
                    inbound.held.insert(seq, (piece, buffer));
                }
                return;
            }
            if let Some(inbound) = self.inbound.get_mut(&from) {
                inbound.held_bytes -= OVERHEAD + buffer.len();
            }
            self.recycle(buffer);
        }
    }

    /// Keeps a buffer for its next use.
    pub(super) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < KEPT && buffer.capacity() <= KEPT_BYTES {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Serves a request whose turn has come; false if there is no room for the answer.
    fn serve(&mut self, from: Rank, seq: u64, piece: &Piece, payload: &[u8]) -> bool {
        let len = piece.bytes().unwrap_or(0);
        let share = self.answer_share();
        let inbound = self.inbound.entry(from).or_default();
        // An origin that keeps to the bounds has no more requests whose denials it has not taken.
        let has_share = !piece.action.answers() || inbound.answering + len <= share;
        if inbound.unsent >= REQUESTS || !has_share {
            self.stall(from);
            return false;
        }
        let mut room = None;
        if piece.action.answers() {
            let answers = &mut self.answer_room;
            if answers.is_none() {
                *answers = Pool::new(self.config.answer_bytes.max(self.config.in_flight_bytes));
            }
            let has_place = self.answers.len() < PLACES;
            room = answers.as_mut().filter(|_| has_place).and_then(|answers| answers.take(len));
            if room.is_none() {
                self.stall(from);
                return false;
            }
        }
        let into = room.as_ref().map_or(TensorRegion::empty(), Pooled::region);
        let served = self.apply(piece, payload, (into, 0));
        let inbound = self.inbound.entry(from).or_default();
        inbound.expected = seq + 1;
        match served {
            Ok(()) => self.counters.served += 1,
            Err(why) => {
                inbound.denied = inbound.denied.wrapping_add(1);
                inbound.unsent += 1;
                self.counters.denied += 1;
                let header = piece.header(&self.config, MessageKind::Denied, seq);
                self.denials.push_back((from, Header { round: why as u32, ..header }));
                if let (Some(room), Some(answers)) = (room.take(), &mut self.answer_room) {
                    answers.put(room);
                }
            }
        }
        match room {
            Some(room) => {
                inbound.answering += len;
                let header = piece.header(&self.config, MessageKind::Answer, seq);
                let answer = Answer {
                    to: from,
                    header,
                    room,
                    len,
                    sent: 0,
                    granule: 0,
                    unreleased: 0,
                    is_lost: false,
                };
                let handle = self.answers.insert(answer);
                self.answering.push_back(handle);
            }
            // Requests with an answer end with that. (One that was denied counts for those that have none.)
            None => self.tell_soon(from),
        }
        true
    }

    /// Does what a piece says in this rank's memory, and writes what was there before to `before`, if it is asked for. All that the piece
    /// says is checked.
    pub(super) fn apply(&mut self, piece: &Piece, given: &[u8], before: RegionOffset) -> Result<(), Denial> {
        let window = self.windows.get(&piece.window).ok_or(Denial::Window)?;
        if window.dtype != piece.dtype {
            return Err(Denial::Type);
        }
        let (memory, size) = (window.memory, piece.dtype.size());
        let len = piece.bytes().ok_or(Denial::Range)?;
        let begin = usize::try_from(piece.offset).ok().and_then(|offset| offset.checked_mul(size));
        let at = begin.filter(|begin| memory.span(*begin, len).is_some()).ok_or(Denial::Range)?;
        if given.len() != piece.action.bytes_given(len) {
            return Err(Denial::Operation);
        }
        match piece.action {
            Action::Accumulate(op) | Action::FetchAndOp(op) => {
                let is_known = op != ReduceOp::Avg && op.check(piece.dtype).is_ok();
                is_known.then_some(()).ok_or(Denial::Operation)?;
            }
            Action::CompareAndSwap if len != size => return Err(Denial::Operation),
            _ => {}
        }
        let place = (memory, at);
        if piece.action.answers() {
            memory::copy(before, place, len).ok_or(Denial::Range)?;
        }
        let done = match piece.action {
            Action::Get => Some(()),
            Action::Put | Action::Swap => memory::write(place, given),
            Action::Accumulate(op) | Action::FetchAndOp(op) => {
                memory::accumulate(self.kernels, piece.dtype, op, place, given)
            }
            Action::CompareAndSwap => {
                let mut current = [0; ELEMENT];
                let (expected, new) = given.split_at(size);
                let current = current.get_mut(..size).ok_or(Denial::Operation)?;
                memory::read(place, current).and_then(|()| match current == expected {
                    true => memory::write(place, new),
                    false => Some(()),
                })
            }
        };
        done.ok_or(Denial::Range)
    }

    /// Bytes of answers to one origin at once: its part of the room, and always as much as it may ask for.
    fn answer_share(&self) -> usize {
        let others = self.config.ranks.saturating_sub(1).max(1) as usize;
        (self.config.answer_bytes / others).max(self.config.in_flight_bytes)
    }

    fn stall(&mut self, from: Rank) {
        let inbound = self.inbound.entry(from).or_default();
        if !inbound.is_stalled {
            inbound.is_stalled = true;
            self.stalled.push(from);
        }
    }

    /// Goes on where answers or denials had no room; whether there was anything.
    pub(super) fn resume(&mut self) -> bool {
        if !std::mem::take(&mut self.may_resume) || self.stalled.is_empty() {
            return false;
        }
        for from in std::mem::take(&mut self.stalled) {
            if let Some(inbound) = self.inbound.get_mut(&from) {
                inbound.is_stalled = false;
            }
            self.serve_held(from);
        }
        true
    }

    fn tell_soon(&mut self, from: Rank) {
        let inbound = self.inbound.entry(from).or_default();
        if !inbound.is_telling {
            inbound.is_telling = true;
            self.telling.push(from);
        }
    }

    /// Tells origins what was applied and what was denied, as far as there is room; whether anything was posted.
    pub(super) fn tell<T: Transport>(&mut self, transport: &mut T) -> bool {
        let mut worked = false;
        let Self { config, inbound, telling, denials, may_resume, .. } = self;
        denials.retain(|(to, header)| {
            let posted = transport.send(*to, header, Span::empty(), SendToken::CONTROL);
            worked |= posted.is_ok();
            if posted == Err(SendError::Full) {
                return true;
            }
            if let Some(inbound) = inbound.get_mut(to) {
                inbound.unsent = inbound.unsent.saturating_sub(1);
                *may_resume |= inbound.is_stalled;
            }
            false
        });
        telling.retain(|&to| {
            let Some(inbound) = inbound.get_mut(&to) else { return false };
            let nothing = Piece {
                window: super::WindowId(0),
                action: Action::Put,
                dtype: crate::dtype::DType::U8,
                offset: 0,
                count: 0,
            };
            let header = nothing.header(config, MessageKind::Applied, inbound.expected);
            let header = Header { round: inbound.denied, ..header };
            let posted = transport.send(to, &header, Span::empty(), SendToken::CONTROL);
            worked |= posted.is_ok();
            inbound.is_telling = posted == Err(SendError::Full);
            inbound.is_telling
        });
        worked
    }

    /// Posts answers that find room; whether one was posted.
    pub(super) fn post_answers<T: Transport>(&mut self, transport: &mut T) -> bool {
        let (mut worked, mut full, mut lost) = (false, None, vec![]);
        for _ in 0..self.answering.len() {
            let Some(handle) = self.answering.pop_front() else { break };
            let Some(answer) = self.answers.get(handle) else { continue };
            if full == Some(answer.to) {
                self.answering.push_back(handle);
                continue;
            }
            if answer.granule == 0 {
                let granule = transport.max_fragment(answer.to).clamp(GRANULE_UNIT, MAX_GRANULE);
                answer.granule = granule / GRANULE_UNIT * GRANULE_UNIT;
            }
            while answer.sent < answer.len {
                let len = (answer.len - answer.sent).min(answer.granule);
                let Some(payload) = answer.room.region().span(answer.sent, len) else { break };
                let (offset, granule) = (answer.sent as u64, answer.granule as u32);
                let header = Header { offset, granule, len: len as u32, ..answer.header };
                match transport.send(answer.to, &header, payload, handle.token(true)) {
                    Ok(()) => {
                        worked = true;
                        answer.sent += len;
                        answer.unreleased += 1;
                    }
                    Err(SendError::Full) => {
                        full = Some(answer.to);
                        break;
                    }
                    // Nobody takes the rest.
                    Err(SendError::PeerFailed) => {
                        lost.push(handle);
                        break;
                    }
                }
            }
            if answer.sent < answer.len && lost.last() != Some(&handle) {
                self.answering.push_back(handle);
            }
        }
        for handle in lost {
            self.lose_answer(handle);
        }
        worked
    }

    /// Nobody takes the rest of an answer.
    pub(super) fn lose_answer(&mut self, handle: Handle) {
        if let Some(answer) = self.answers.get(handle) {
            answer.is_lost = true;
        }
        self.end_answer(handle);
    }

    /// The transport has released a fragment of an answer.
    pub(super) fn answer_released(&mut self, handle: Handle) {
        let Some(answer) = self.answers.get(handle) else { return };
        answer.unreleased = answer.unreleased.saturating_sub(1);
        self.end_answer(handle);
    }

    /// Gives the room of an answer back, if all of it was sent, or nobody takes the rest, and nothing refers to it.
    fn end_answer(&mut self, handle: Handle) {
        let is_over =
            |answer: &mut Answer| answer.unreleased == 0 && (answer.is_lost || answer.sent == answer.len);
        if !self.answers.get(handle).is_some_and(is_over) {
            return;
        }
        if let (Some(answer), Some(room)) = (self.answers.remove(handle), &mut self.answer_room) {
            if let Some(inbound) = self.inbound.get_mut(&answer.to) {
                inbound.answering = inbound.answering.saturating_sub(answer.len);
            }
            room.put(answer.room);
            self.may_resume = true;
        }
    }
}
