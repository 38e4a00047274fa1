//! The sending side.

use super::Messenger;
use super::api::{PostError, SendRequest, TransferError, TransferId, TransferSubject};
use super::peer::{Body, Incoming, OVERHEAD, UnsettledMessage};
use super::sends::{Handle, Outgoing, SendState, subject_of};
use super::wire::{Envelope, GIVEN_UP};
use crate::executor::Disposition;
use crate::grid::Rank;
use crate::header::{Header, MessageKind, granule};
use crate::memory::{self, Pool};
use crate::transport::Transport;

impl Messenger {
    /// Starts to send a message. Its number among those to this rank is that of the call. The memory belongs to the messenger until the
    /// send has ended.
    ///
    /// # Errors
    /// [`PostError`]; nothing was started then.
    pub fn start_send(&mut self, request: SendRequest) -> Result<TransferId, PostError> {
        let SendRequest { to, tag, dtype, data, held, synchronous, deadline } = request;
        self.check(Some(to), dtype, &data)?;
        let out = &mut self.peers.at(to).out;
        if let Some(late) = out.late.take() {
            return Err(PostError::Earlier(late));
        }
        let id = self.common.begin(deadline);
        let envelope = Envelope { seq: 0, tag, dtype, count: (data.len() / dtype.size()) as u64 };
        let handle = self.sends.insert(Outgoing {
            id: Some(id),
            to,
            envelope,
            data,
            copy: None,
            synchronous,
            held,
            deadline,
            state: SendState::Queued,
            granule: 0,
            sent: 0,
            unreleased: 0,
            failure: None,
        });
        out.queue.push_back(handle);
        self.admit(to);
        Ok(id)
    }

    /// The elements of a send to this rank are there that was [held](SendRequest::held).
    pub fn release(&mut self, to: Rank, id: TransferId) {
        let Self { peers, sends, .. } = self;
        let held = |handle: &&Handle| sends.get(**handle).is_some_and(|send| send.id == Some(id));
        let found = peers.at(to).out.queue.iter().find(held).copied();
        if let Some(send) = found.and_then(|handle| self.sends.get(handle)) {
            send.held = false;
            self.admit(to);
            self.peers.activate(to);
        }
    }

    /// Numbers the sends that a peer has room for, and announces them or has them posted.
    fn admit(&mut self, to: Rank) {
        let config = self.common.config;
        loop {
            let out = &mut self.peers.at(to).out;
            let Some(&handle) = out.queue.front() else { break };
            let Some(send) = self.sends.get(handle).filter(|send| send.state == SendState::Queued) else {
                out.queue.pop_front();
                continue;
            };
            if send.held {
                break;
            }
            let total = send.data.len();
            let room = out.room(config.room_bytes);
            let small = !send.synchronous && total <= config.eager_bytes;
            let eager = small && out.takes_unasked(total, config.room_bytes);
            let is_own = to == config.rank;
            if !is_own && !eager && room < OVERHEAD {
                break;
            }
            out.queue.pop_front();
            send.envelope.seq = out.next;
            out.next += 1;
            let envelope = send.envelope;
            if is_own {
                send.state = SendState::Announced;
                if small {
                    self.copy(handle);
                }
                let body = Body::Own(handle);
                let incoming = Incoming { envelope, total, cost: 0, fragments: Default::default(), body };
                self.peers.at(to).inbound.insert(incoming);
                self.deliver_in_order(to);
                continue;
            }
            let (deadline, announced) = (send.deadline, !eager);
            let cost = if eager { OVERHEAD + total } else { OVERHEAD };
            out.add(UnsettledMessage { envelope, cost, send: handle, deadline, announced, withdrawn: false });
            if eager {
                send.state = SendState::Posting;
                out.eager.push_back(handle);
                self.common.counters.eager += 1;
                self.copy(handle);
            } else {
                send.state = SendState::Announced;
                self.common.counters.announced += 1;
                self.common.control(to, envelope.header(&config, MessageKind::Ready));
            }
        }
        if self.peers.at(to).out.has_fragments() {
            self.peers.activate(to);
        }
    }

    /// Copies a message, where there is room for it, and ends its send.
    fn copy(&mut self, handle: Handle) {
        let Some(send) = self.sends.get(handle) else { return };
        let total = send.data.len();
        if total > 0 {
            if self.copies.is_none() {
                self.copies = Pool::new(self.common.config.copy_bytes);
            }
            let Some(copies) = &mut self.copies else { return };
            let Some(copy) = copies.take(total) else { return };
            let into = copy.region().sub(0, total);
            let copied = into.filter(|into| memory::copy((*into, 0), (send.data, 0), total).is_some());
            let Some(into) = copied else { return copies.put(copy) };
            send.data = into;
            send.copy = Some(copy);
        }
        if let Some(id) = send.id.take() {
            self.common.end(id, Ok(send.status()));
        }
    }

    /// Posts to all peers that there is something for; whether anything was posted.
    pub(super) fn post_all<T: Transport>(&mut self, transport: &mut T) -> bool {
        let (mut at, mut worked) = (0, false);
        while let Some(to) = self.peers.active(at) {
            self.admit(to);
            worked |= self.post(to, transport);
            if self.peers.at(to).out.has_fragments() {
                at += 1;
            } else {
                self.peers.deactivate(at);
            }
        }
        worked
    }

    /// Posts fragments to a peer until its queue is full; whether one was posted.
    fn post<T: Transport>(&mut self, to: Rank, transport: &mut T) -> bool {
        let (out, mut worked) = (&mut self.peers.at(to).out, false);
        loop {
            let queue = if out.eager.is_empty() { &mut out.asked } else { &mut out.eager };
            let Some(&handle) = queue.front() else { return worked };
            let Some(send) = self.sends.get(handle).filter(|send| send.state == SendState::Posting) else {
                queue.pop_front();
                continue;
            };
            if send.granule == 0 {
                send.granule = granule(transport.max_fragment(to));
            }
            let total = send.data.len();
            let len = (total - send.sent).min(send.granule as usize);
            let Some(payload) = send.data.span(send.sent, len) else { return worked };
            let (offset, granule, len32) = (send.sent as u64, send.granule, len as u32);
            let header = send.envelope.header(&self.common.config, MessageKind::Message);
            let header = Header { offset, granule, len: len32, ..header };
            if transport.send(to, &header, payload, handle.token()).is_err() {
                return worked;
            }
            worked = true;
            send.sent += len;
            send.unreleased += 1;
            if send.sent == total {
                send.state = SendState::Posted;
                queue.pop_front();
                if send.id.is_some() {
                    transport.request_ack(to);
                }
            }
        }
    }

    /// Nothing refers to a send's memory: it has ended.
    pub(super) fn end_send(&mut self, handle: Handle) {
        let Some(mut send) = self.sends.remove(handle) else { return };
        if let (Some(copy), Some(copies)) = (send.copy.take(), &mut self.copies) {
            copies.put(copy);
        }
        if let Some(id) = send.id {
            let status = send.status();
            self.common.end(id, send.failure.map_or(Ok(status), Err));
        }
    }

    /// A send has failed, and ends when nothing refers to its memory. Nothing more of it is posted.
    pub(super) fn fail_send(&mut self, handle: Handle, why: impl FnOnce(TransferSubject) -> TransferError) {
        let own = self.common.config.rank;
        let Some(send) = self.sends.get(handle) else { return };
        send.state = SendState::Posted;
        if send.failure.is_none() {
            send.failure = Some(why(send.subject(own)));
        }
        if send.unreleased == 0 {
            self.end_send(handle);
        }
    }

    /// A send fails that may have ended before: then the next send to that rank reports it.
    pub(super) fn fail_late(
        &mut self,
        (to, handle): (Rank, Handle),
        envelope: &Envelope,
        why: impl FnOnce(TransferSubject) -> TransferError,
    ) {
        if self.sends.get(handle).is_some_and(|send| send.id.is_some()) {
            return self.fail_send(handle, why);
        }
        let error = why(subject_of(envelope, self.common.config.rank, to));
        let late = &mut self.peers.at(to).out.late;
        if late.is_none() {
            *late = Some(Box::new(error.clone()));
        }
        self.fail_send(handle, |_| error);
    }

    /// The peer waits for the fragments of a message.
    pub(super) fn on_clear(&mut self, from: Rank, seq: u64) -> Disposition {
        let out = &mut self.peers.at(from).out;
        if out.record(seq).is_none_or(|record| !record.announced || record.withdrawn) {
            return self.common.repeated();
        }
        let Some(record) = out.settle(seq) else { return self.common.repeated() };
        if let Some(send) = self.sends.get(record.send) {
            send.state = SendState::Posting;
            out.asked.push_back(record.send);
        }
        self.peers.activate(from);
        Disposition::Consumed
    }

    /// Receives have taken so many messages, or the peer has forgotten them that this rank has given up.
    pub(super) fn on_taken(&mut self, from: Rank, first: u64, count: u32) -> Disposition {
        let Some(end) = first.checked_add(count.into()) else { return self.common.malformed() };
        let (out, mut next) = (&mut self.peers.at(from).out, first);
        while let Some(record) = out.first_from(next) {
            let seq = record.envelope.seq;
            if seq >= end {
                break;
            }
            if !record.announced || record.withdrawn {
                out.settle(seq);
            }
            next = seq + 1;
        }
        self.peers.activate(from);
        Disposition::Consumed
    }

    /// A receive does not take a message.
    pub(super) fn on_refused(&mut self, header: &Header, theirs: &Envelope) -> Disposition {
        let (peer, seq) = (header.src, theirs.seq);
        let (dtype, count) = (theirs.dtype, theirs.count);
        let why = |subject| match header.round {
            GIVEN_UP => TransferError::GivenUp { subject, peer },
            _ => TransferError::Mismatch { subject, peer, dtype, count },
        };
        match self.peers.at(peer).out.settle(seq) {
            Some(record) if record.withdrawn => {}
            Some(record) => self.fail_late((peer, record.send), &record.envelope, why),
            // It is on its way, at the peer's wish.
            None => match self.sends.find(peer, seq) {
                Some(handle) => self.fail_send(handle, why),
                None => return self.common.repeated(),
            },
        }
        self.peers.activate(peer);
        Disposition::Consumed
    }
}
