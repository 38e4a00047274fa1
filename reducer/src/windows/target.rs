//! The side that is accessed: it serves requests in the order of their numbers, and reports to their origins.

use super::answers::{Answers, GivenBack};
use super::api::{Denial, WindowCounters, WindowsConfig};
use super::exposed::Exposed;
use super::wire::Piece;
use super::{OVERHEAD, Outcome, REQUESTS};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::memory::{self, Pooled, Span, TensorRegion};
use crate::transport::{SendError, SendToken, Transport};
use std::collections::{BTreeMap, VecDeque};

/// Buffers of held requests are kept for their next use: so many, of so many bytes.
const KEPT: usize = 16;
const KEPT_BYTES: usize = 64 << 10;

/// The requests of one origin.
#[derive(Debug, Default)]
struct Inbound {
    /// The number of the next request to be served.
    expected: u64,
    /// Requests that came before an earlier one, or whose answer has no room.
    held: BTreeMap<u64, (Piece, Vec<u8>)>,
    /// The sum of their costs.
    held_bytes: usize,
    /// Requests that were denied.
    denied: u32,
    /// Denials that were not posted.
    unsent: usize,
    /// Bytes of answers that were not released.
    answering: usize,
    is_report_due: bool,
    is_stalled: bool,
}

/// The requests of all origins.
#[derive(Debug)]
pub(super) struct Target {
    config: WindowsConfig,
    counters: WindowCounters,
    inbound: BTreeMap<Rank, Inbound>,
    answers: Answers,
    /// Denials to be posted.
    denials: VecDeque<(Rank, Header)>,
    /// Origins that are to be told how many requests were applied.
    reports: Vec<Rank>,
    /// Origins whose next request waits for room for its answer.
    stalled: Vec<Rank>,
    /// Room for answers has come back.
    may_resume: bool,
    /// Buffers of held requests, for their next use.
    buffers: Vec<Vec<u8>>,
}

impl Target {
    pub(super) fn new(config: WindowsConfig) -> Self {
        Self {
            config,
            counters: WindowCounters::default(),
            inbound: BTreeMap::new(),
            answers: Answers::default(),
            denials: VecDeque::new(),
            reports: vec![],
            stalled: vec![],
            may_resume: false,
            buffers: vec![],
        }
    }

    /// The counters of requests since the start.
    pub(super) fn counters(&self) -> WindowCounters {
        self.counters
    }

    /// A request of another rank.
    pub(super) fn on_request(&mut self, exposed: &Exposed, header: &Header, payload: &[u8]) -> Outcome {
        let Some(piece) = Piece::of(header) else { return Outcome::Malformed };
        let bytes = piece.bytes();
        let (from, seq) = (header.src, header.key.seq);
        let has_all = payload.len() == header.len as usize && header.offset == 0;
        let is_small = bytes <= self.config.in_flight_bytes && bytes > 0;
        if !has_all || !is_small || piece.action().bytes_given(bytes) != payload.len() {
            return Outcome::Malformed;
        }
        let inbound = self.inbound.entry(from).or_default();
        if seq < inbound.expected || inbound.held.contains_key(&seq) {
            return Outcome::Repeated;
        }
        if seq == inbound.expected && !inbound.is_stalled && self.serve(exposed, (from, seq), &piece, payload)
        {
            self.serve_held(exposed, from);
            return Outcome::Taken;
        }
        let inbound = self.inbound.entry(from).or_default();
        let cost = OVERHEAD + payload.len();
        // An origin that keeps to the bounds is never refused.
        let has_room = inbound.held_bytes + cost <= self.config.in_flight_bytes + OVERHEAD;
        if seq - inbound.expected > REQUESTS as u64 || !has_room {
            return Outcome::NotReady;
        }
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.extend_from_slice(payload);
        inbound.held_bytes += cost;
        inbound.held.insert(seq, (piece, buffer));
        self.counters.held += 1;
        Outcome::Taken
    }

    /// Serves the requests of an origin that are here, in the order of their numbers, as far as there is no gap.
    fn serve_held(&mut self, exposed: &Exposed, from: Rank) {
        while let Some(inbound) = self.inbound.get_mut(&from) {
            let seq = inbound.expected;
            let Some((piece, buffer)) = inbound.held.remove(&seq) else { return };
            let is_served = self.serve(exposed, (from, seq), &piece, &buffer);
            let Some(inbound) = self.inbound.get_mut(&from) else { return };
            if !is_served {
                inbound.held.insert(seq, (piece, buffer));
                return;
            }
            inbound.held_bytes -= OVERHEAD + buffer.len();
            self.recycle(buffer);
        }
    }

    /// Keeps a buffer for its next use.
    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < KEPT && buffer.capacity() <= KEPT_BYTES {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Serves the next request of an origin; false if there is no room for the answer.
    fn serve(&mut self, exposed: &Exposed, (from, seq): (Rank, u64), piece: &Piece, payload: &[u8]) -> bool {
        let (len, answers) = (piece.bytes(), piece.action().answers());
        let share = self.answer_share();
        let inbound = self.inbound.entry(from).or_default();
        // An origin that keeps to the bounds has no more requests whose denials it has not taken.
        let has_share = !answers || inbound.answering + len <= share;
        if inbound.unsent >= REQUESTS || !has_share {
            self.stall(from);
            return false;
        }
        let mut room = None;
        if answers {
            let bytes = self.config.answer_bytes.max(self.config.in_flight_bytes);
            room = self.answers.take_room(len, bytes);
            if room.is_none() {
                self.stall(from);
                return false;
            }
        }
        let into = room.as_ref().map_or(TensorRegion::empty(), Pooled::region);
        let served = exposed.apply(piece, payload, (into, 0));
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
                room.take().into_iter().for_each(|room| self.answers.give_back(room));
            }
        }
        match room {
            Some(room) => {
                inbound.answering += len;
                let header = piece.header(&self.config, MessageKind::Answer, seq);
                self.answers.send(from, header, room, len);
            }
            // A request with an answer ends with that. (One that was denied counts for those that have none.)
            None => self.report(from),
        }
        true
    }

    /// Serves an access of this rank to itself.
    pub(super) fn serve_own(
        &mut self,
        exposed: &Exposed,
        piece: &Piece,
        data: TensorRegion,
        into: TensorRegion,
    ) -> Result<(), Denial> {
        let mut given = self.buffers.pop().unwrap_or_default();
        given.resize(data.len(), 0);
        let read = data.is_empty() || memory::read((data, 0), &mut given).is_some();
        let served = match read {
            true => exposed.apply(piece, &given, (into, 0)),
            false => Err(Denial::Range),
        };
        self.recycle(given);
        served
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
    pub(super) fn resume(&mut self, exposed: &Exposed) -> bool {
        if !std::mem::take(&mut self.may_resume) || self.stalled.is_empty() {
            return false;
        }
        for from in std::mem::take(&mut self.stalled) {
            if let Some(inbound) = self.inbound.get_mut(&from) {
                inbound.is_stalled = false;
            }
            self.serve_held(exposed, from);
        }
        true
    }

    /// An origin is to be told how many requests were applied.
    fn report(&mut self, to: Rank) {
        let inbound = self.inbound.entry(to).or_default();
        if !inbound.is_report_due {
            inbound.is_report_due = true;
            self.reports.push(to);
        }
    }

    /// Tells origins how many requests were applied and denied, as far as there is room; whether anything was posted.
    pub(super) fn post_reports<T: Transport>(&mut self, transport: &mut T) -> bool {
        let mut worked = false;
        let Self { config, inbound, reports, denials, may_resume, .. } = self;
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
        reports.retain(|&to| {
            let Some(inbound) = inbound.get_mut(&to) else { return false };
            let header = Piece::EMPTY.header(config, MessageKind::Applied, inbound.expected);
            let header = Header { round: inbound.denied, ..header };
            let posted = transport.send(to, &header, Span::empty(), SendToken::CONTROL);
            worked |= posted.is_ok();
            inbound.is_report_due = posted == Err(SendError::Full);
            inbound.is_report_due
        });
        worked
    }

    /// Posts answers that find room; whether one was posted.
    pub(super) fn post_answers<T: Transport>(&mut self, transport: &mut T) -> bool {
        let (worked, given_back) = self.answers.post(transport);
        given_back.iter().for_each(|room| self.take_back(room));
        worked
    }

    /// The transport has released a fragment of an answer.
    pub(super) fn on_released(&mut self, token: SendToken) {
        if let Some(room) = self.answers.released(token) {
            self.take_back(&room);
        }
    }

    /// An answer has given its room back: a request may wait for that.
    fn take_back(&mut self, GivenBack { to, len }: &GivenBack) {
        if let Some(inbound) = self.inbound.get_mut(to) {
            inbound.answering = inbound.answering.saturating_sub(*len);
        }
        self.may_resume = true;
    }

    /// Whether a poll may post something.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.answers.has_work()
            || !self.reports.is_empty()
            || !self.denials.is_empty()
            || self.may_resume && !self.stalled.is_empty()
    }

    /// The group ends: nothing is served or posted any more.
    pub(super) fn abort(&mut self) {
        self.inbound.clear();
        self.reports.clear();
        self.stalled.clear();
        self.denials.clear();
        self.answers.abort();
    }

    /// The transport refers to no memory any more.
    pub(super) fn fenced(&mut self) {
        self.answers.fenced();
    }

    /// Whether the transport refers to no answer.
    pub(super) fn is_quiesced(&self) -> bool {
        self.answers.is_quiesced()
    }

    /// The ranks that there were accesses from.
    pub(super) fn known(&self) -> impl Iterator<Item = Rank> {
        self.inbound.keys().copied()
    }

    /// Denials to be posted.
    #[cfg(test)]
    pub(super) fn denials(&self) -> usize {
        self.denials.len()
    }

    /// Whether room has come back since the last poll.
    #[cfg(test)]
    pub(super) fn may_resume(&self) -> bool {
        self.may_resume
    }

    /// Whether nothing is kept for any origin, and all room is given back.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |inbound: &Inbound| {
            let counts = [inbound.held_bytes, inbound.unsent, inbound.answering];
            inbound.held.is_empty() && counts == [0; 3] && !inbound.is_stalled
        };
        self.inbound.values().all(is_empty) && self.stalled.is_empty() && self.answers.is_empty()
    }
}
