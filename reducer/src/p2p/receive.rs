//! The receiving side: the order of messages, their matching, and the places of their fragments.

use super::Messenger;
use super::api::{PostError, ReceiveRequest, Status, TransferError, TransferId};
use super::fragments::FragmentIs;
use super::peer::{Body, Inbound, Incoming, OVERHEAD, Receive, UnexpectedMessage, Unreported};
use super::wire::{DOES_NOT_FIT, Envelope};
use crate::executor::Disposition;
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::memory;

/// Buffers of held messages are kept for their next use: so many.
const KEPT: usize = 16;

/// The peer gets a report at once of so many messages that were taken.
const REPORT_COUNT: u32 = 64;

impl Messenger {
    /// Starts a receive. The memory belongs to the messenger until it has ended.
    ///
    /// # Errors
    /// [`PostError`]; nothing was started then.
    pub fn start_receive(&mut self, request: ReceiveRequest) -> Result<TransferId, PostError> {
        let ReceiveRequest { from, tag, dtype, into, deadline } = request;
        self.check(from, dtype, &into)?;
        let id = self.common.begin(deadline);
        let receive = Receive { id, from, tag, dtype, into, deadline };
        match self.find_waiting(from, tag) {
            Some((peer, seq)) => {
                let inbound = &mut self.peers.at(peer).inbound;
                inbound.waiting.retain(|waiting| waiting.seq != seq);
                if let Some(incoming) = inbound.remove(seq) {
                    self.attach(peer, incoming, receive);
                }
            }
            None => match from {
                Some(from) => self.peers.at(from).inbound.posted.push_back(receive),
                None => self.any.push_back(receive),
            },
        }
        Ok(id)
    }

    /// The first delivered message that a receive like this would take: its sender and its number.
    pub(super) fn find_waiting(&self, from: Option<Rank>, tag: Option<u32>) -> Option<(Rank, u64)> {
        let first = |inbound: &Inbound| inbound.waits(tag);
        match from {
            Some(from) => first(&self.peers.get(from)?.inbound).map(|waiting| (from, waiting.seq)),
            None => {
                let firsts = self.peers.iter().filter_map(|(rank, peer)| Some((rank, first(&peer.inbound)?)));
                let (rank, waiting) = firsts.min_by_key(|(_, waiting)| waiting.stamp)?;
                Some((rank, waiting.seq))
            }
        }
    }

    /// Takes the oldest receive that asks for a message of this rank with this tag.
    fn take_receive(&mut self, from: Rank, tag: u32) -> Option<Receive> {
        let find = |queue: &std::collections::VecDeque<Receive>| {
            queue.iter().position(|receive| receive.wants(tag)).map(|at| (at, queue[at].id))
        };
        let posted = &mut self.peers.at(from).inbound.posted;
        match (find(posted), find(&self.any)) {
            (Some((at, own)), any) if any.is_none_or(|(_, any)| own < any) => posted.remove(at),
            (_, Some((at, _))) => self.any.remove(at),
            _ => None,
        }
    }

    /// Delivers the messages that are here, in the order of their numbers, as far as there is no gap.
    pub(super) fn deliver_in_order(&mut self, from: Rank) {
        loop {
            let inbound = &mut self.peers.at(from).inbound;
            let seq = inbound.expected();
            let Some(incoming) = inbound.get(seq) else { return };
            let (tag, is_void) = (incoming.envelope.tag, matches!(incoming.body, Body::Void));
            inbound.advance();
            if is_void {
                self.forget(from, seq);
                continue;
            }
            match self.take_receive(from, tag) {
                Some(receive) => {
                    if let Some(incoming) = self.peers.at(from).inbound.remove(seq) {
                        self.attach(from, incoming, receive);
                    }
                }
                None => self.wait(from, seq, tag),
            }
        }
    }

    /// A delivered message waits for a receive.
    fn wait(&mut self, from: Rank, seq: u64, tag: u32) {
        self.stamps += 1;
        self.common.counters.early += 1;
        self.peers.at(from).inbound.waiting.push_back(UnexpectedMessage { seq, tag, stamp: self.stamps });
    }

    /// A message that its sender has given up is gone, and says so.
    fn forget(&mut self, from: Rank, seq: u64) {
        let inbound = &mut self.peers.at(from).inbound;
        inbound.waiting.retain(|waiting| waiting.seq != seq);
        if let Some(Incoming { body: Body::Held(buffer), .. }) = inbound.remove(seq) {
            self.recycle(buffer);
        }
        self.report(from, Unreported { first: seq, count: 1, cost: 0 });
    }

    /// Gives a message to the receive that takes it.
    fn attach(&mut self, from: Rank, mut incoming: Incoming, receive: Receive) {
        let cost = std::mem::take(&mut incoming.cost);
        if !fits(&incoming, &receive) {
            return self.mismatch(from, incoming, receive);
        }
        let seq = incoming.envelope.seq;
        match std::mem::replace(&mut incoming.body, Body::Into(receive)) {
            Body::Announced => {
                let header = incoming.envelope.header(&self.common.config, MessageKind::Clear);
                self.common.control(from, header);
            }
            Body::Held(buffer) => {
                // It has the message's length, and so much room is there.
                let _ = memory::write((receive.into, 0), &buffer);
                self.recycle(buffer);
                self.taken(from, seq, cost);
            }
            Body::Own(handle) => {
                if let Some(send) = self.sends.get(handle) {
                    let _ = memory::copy((receive.into, 0), (send.data, 0), incoming.total);
                }
                self.end_send(handle);
                return self.end_receive(from, &incoming.envelope, &receive);
            }
            // Neither waits for a receive.
            Body::Into(_) | Body::Void => {}
        }
        if incoming.fragments.are_complete(incoming.total) {
            return self.end_receive(from, &incoming.envelope, &receive);
        }
        self.peers.at(from).inbound.insert(incoming);
    }

    /// A receive has all of its message.
    fn end_receive(&mut self, peer: Rank, envelope: &Envelope, receive: &Receive) {
        let &Envelope { tag, dtype, count, .. } = envelope;
        self.common.end(receive.id, Ok(Status { peer, tag, dtype, count }));
    }

    /// A message and the receive that it was matched with do not fit: both ranks learn of it.
    fn mismatch(&mut self, from: Rank, incoming: Incoming, receive: Receive) {
        let (dtype, count) = (incoming.envelope.dtype, incoming.envelope.count);
        let subject = self.common.receiving(&receive);
        self.common.end(receive.id, Err(TransferError::Mismatch { subject, peer: from, dtype, count }));
        let theirs = Envelope { dtype: receive.dtype, count: subject.count, ..incoming.envelope };
        match incoming.body {
            Body::Own(handle) => {
                let (dtype, count) = (theirs.dtype, theirs.count);
                let why = |subject| TransferError::Mismatch { subject, peer: from, dtype, count };
                self.fail_late((from, handle), &incoming.envelope, why);
            }
            Body::Held(buffer) => {
                self.recycle(buffer);
                self.refuse(from, &theirs, DOES_NOT_FIT);
            }
            _ => self.refuse(from, &theirs, DOES_NOT_FIT),
        }
    }

    /// Tells a sender that its message is not taken.
    pub(super) fn refuse(&mut self, from: Rank, theirs: &Envelope, why: u32) {
        let header = theirs.header(&self.common.config, MessageKind::Refused);
        self.common.control(from, Header { round: why, ..header });
    }

    /// Keeps a buffer for its next use.
    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < KEPT {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Notes that a receive has taken a message that came unasked. A report to its sender follows.
    pub(super) fn taken(&mut self, from: Rank, seq: u64, cost: usize) {
        let unreported = &mut self.peers.at(from).inbound.unreported;
        let joins = unreported.count > 0 && unreported.first + u64::from(unreported.count) == seq;
        let before = match joins {
            true => Unreported::default(),
            false => std::mem::replace(unreported, Unreported { first: seq, count: 0, cost: 0 }),
        };
        unreported.count += 1;
        unreported.cost += cost;
        let many = unreported.count >= REPORT_COUNT || unreported.cost >= self.common.config.room_bytes / 8;
        let now = if many { std::mem::take(unreported) } else { Unreported::default() };
        self.report(from, before);
        self.report(from, now);
        if !many {
            self.peers.report_later(from, self.common.now);
        }
    }

    /// Reports to a sender which messages were taken.
    fn report(&mut self, from: Rank, unreported: Unreported) {
        if unreported.count > 0 && from != self.common.config.rank {
            let header = Envelope { seq: unreported.first, tag: 0, dtype: crate::dtype::DType::U8, count: 0 }
                .header(&self.common.config, MessageKind::Taken);
            self.common.control(from, Header { len: unreported.count, ..header });
        }
    }

    /// Reports to all senders which messages were taken.
    pub(super) fn report_all(&mut self) {
        while let Some(rank) = self.peers.next_to_report() {
            let unreported = std::mem::take(&mut self.peers.at(rank).inbound.unreported);
            self.report(rank, unreported);
        }
    }

    /// A peer has a message that is sent when it is asked for.
    pub(super) fn on_ready(&mut self, from: Rank, envelope: Envelope) -> Disposition {
        let Some(total) = envelope.bytes() else { return self.common.malformed() };
        let room = self.common.config.room_bytes;
        let inbound = &mut self.peers.at(from).inbound;
        if envelope.seq < inbound.expected() || inbound.get(envelope.seq).is_some() {
            return self.common.repeated();
        }
        if !inbound.reaches(envelope.seq, room) || inbound.held() + OVERHEAD > room {
            return self.common.not_ready();
        }
        let incoming = Incoming {
            envelope,
            total,
            cost: OVERHEAD,
            fragments: Default::default(),
            body: Body::Announced,
        };
        inbound.insert(incoming);
        self.deliver_in_order(from);
        Disposition::Consumed
    }

    /// A peer has given a message up.
    pub(super) fn on_withdrawn(&mut self, from: Rank, envelope: Envelope) -> Disposition {
        let room = self.common.config.room_bytes;
        let inbound = &mut self.peers.at(from).inbound;
        let (seq, is_delivered) = (envelope.seq, envelope.seq < inbound.expected());
        if is_delivered {
            if let Some(Incoming { body: Body::Into(receive), .. }) = inbound.get(seq) {
                let receive = *receive;
                let subject = self.common.receiving(&receive);
                self.common.end(receive.id, Err(TransferError::GivenUp { subject, peer: from }));
            }
            self.forget(from, seq);
            return Disposition::Consumed;
        }
        if !inbound.reaches(seq, room) {
            return self.common.not_ready();
        }
        let incoming =
            Incoming { envelope, total: 0, cost: 0, fragments: Default::default(), body: Body::Void };
        inbound.insert(incoming);
        self.deliver_in_order(from);
        Disposition::Consumed
    }

    /// A fragment.
    pub(super) fn on_fragment(&mut self, header: &Header, envelope: Envelope, payload: &[u8]) -> Disposition {
        let (from, seq) = (header.src, envelope.seq);
        let inbound = &mut self.peers.at(from).inbound;
        let Some(incoming) = inbound.get_mut(seq) else {
            return match seq < inbound.expected() {
                true => self.common.repeated(),
                false => self.on_first(header, envelope, payload),
            };
        };
        match incoming.body {
            Body::Void => return self.common.repeated(),
            Body::Held(_) | Body::Into(_) if incoming.envelope == envelope => {}
            _ => return self.common.malformed(),
        }
        match incoming.fragments.note(header, payload, incoming.total) {
            FragmentIs::Malformed => return self.common.malformed(),
            FragmentIs::Repeated => return self.common.repeated(),
            FragmentIs::New => {}
        }
        put(incoming, header, payload);
        if let Body::Into(receive) = incoming.body
            && incoming.fragments.are_complete(incoming.total)
        {
            inbound.remove(seq);
            self.end_receive(from, &envelope, &receive);
        }
        Disposition::Consumed
    }

    /// The first fragment to come of a message that nobody has asked for.
    fn on_first(&mut self, header: &Header, envelope: Envelope, payload: &[u8]) -> Disposition {
        let config = self.common.config;
        let from = header.src;
        let total = envelope.bytes().filter(|total| *total <= config.eager_bytes);
        let Some(total) = total else { return self.common.malformed() };
        let body = Body::Held(Vec::new());
        let mut incoming = Incoming { envelope, total, cost: 0, fragments: Default::default(), body };
        if incoming.fragments.note(header, payload, total) != FragmentIs::New {
            return self.common.malformed();
        }
        let cost = OVERHEAD + total;
        let inbound = &mut self.peers.at(from).inbound;
        let (has_room, is_next) =
            (inbound.held() + cost <= config.room_bytes, inbound.expected() == envelope.seq);
        if !inbound.reaches(envelope.seq, config.room_bytes) {
            return self.common.not_ready();
        }
        if is_next && let Some(receive) = self.take_receive(from, envelope.tag) {
            let inbound = &mut self.peers.at(from).inbound;
            inbound.advance();
            if !fits(&incoming, &receive) {
                self.mismatch(from, incoming, receive);
            } else {
                incoming.body = Body::Into(receive);
                put(&mut incoming, header, payload);
                if incoming.fragments.are_complete(total) {
                    self.end_receive(from, &envelope, &receive);
                } else {
                    inbound.insert(incoming);
                }
                self.taken(from, envelope.seq, cost);
            }
            self.deliver_in_order(from);
            return Disposition::Consumed;
        }
        if !has_room {
            return self.common.not_ready();
        }
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.resize(total, 0);
        incoming.body = Body::Held(buffer);
        incoming.cost = cost;
        put(&mut incoming, header, payload);
        let inbound = &mut self.peers.at(from).inbound;
        inbound.insert(incoming);
        self.deliver_in_order(from);
        Disposition::Consumed
    }
}

/// Whether a receive can take a message.
fn fits(incoming: &Incoming, receive: &Receive) -> bool {
    incoming.envelope.dtype == receive.dtype && incoming.total <= receive.into.len()
}

/// Puts a fragment, which lies inside the message, where it belongs.
fn put(incoming: &mut Incoming, header: &Header, payload: &[u8]) {
    let offset = header.offset as usize;
    match &mut incoming.body {
        Body::Held(buffer) => {
            if let Some(place) = buffer.get_mut(offset..offset + payload.len()) {
                place.copy_from_slice(payload);
            }
        }
        Body::Into(receive) => {
            // The message fits the receive's memory, and the fragment the message.
            let _ = memory::write((receive.into, offset), payload);
        }
        Body::Announced | Body::Own(_) | Body::Void => {}
    }
}
