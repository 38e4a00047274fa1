//! Small messages that begin and end in one call, because nothing stands in their way: no queue, no number of an operation, no poll. Both ranks
//! count them as all others, so each side may do the one and the other in any order.

use super::Messenger;
use super::api::{ReceiveRequest, SendRequest, Status};
use super::peer::{OVERHEAD, UnsettledMessage};
use super::sends::Handle;
use super::wire::Envelope;
use crate::executor::Refusal;
use crate::grid::Rank;
use crate::header::{Header, MessageKind, granule};
use crate::memory::{self, MemoryKind, Span, TensorRegion};

impl Messenger {
    /// Sends a message, if it fits one fragment of a transport that takes `fragment` bytes, the receiver has room for it, and none before it waits
    /// to be sent. `post`
    /// copies header and payload to where the receiver finds them, or returns false. `None` where the message was not sent:
    /// [`start_send`](Self::start_send) says what stands in its way.
    #[inline]
    pub fn send_at_once(
        &mut self,
        request: &SendRequest,
        fragment: usize,
        post: impl FnOnce(&Header, Span) -> bool,
    ) -> Option<Status> {
        let &SendRequest { to, tag, dtype, data, held, synchronous, deadline } = request;
        let config = self.common.config;
        let (total, granule) = (data.len(), granule(fragment));
        let is_small = total <= config.eager_bytes && total <= granule as usize;
        if held || synchronous || !is_small || !self.is_open_to(to) {
            return None;
        }
        let count = self.elements(dtype.size(), &data)?;
        let out = &mut self.peers.at(to).out;
        if !out.is_idle() || !out.takes_unasked(total, config.room_bytes) {
            return None;
        }
        let envelope = Envelope { seq: out.next, tag, dtype, count };
        let header = envelope.header(&config, MessageKind::Message);
        if !post(&Header { granule, len: total as u32, ..header }, data.span(0, total)?) {
            return None;
        }
        out.next += 1;
        let (announced, withdrawn, send) = (false, false, Handle::ENDED);
        let cost = OVERHEAD + total;
        out.add(UnsettledMessage { envelope, cost, send, deadline, announced, withdrawn });
        self.common.expect(deadline);
        self.common.counters.eager += 1;
        Some(Status { peer: to, tag, dtype, count })
    }

    /// Whether the next message from this rank is the first that a receive of it could take.
    #[inline]
    pub fn may_receive_at_once(&self, from: Rank) -> bool {
        let is_idle = self.peers.get(from).is_none_or(|peer| peer.inbound.is_idle());
        is_idle && self.any.is_empty() && self.is_open_to(from)
    }

    /// Receives a message of one fragment from a rank, from which a receive [may](Self::may_receive_at_once) be made now, if it is the next one
    /// and fits the request. `None` where it was not taken: then it is one for [`on_message`](crate::machine::Machine::on_message).
    #[inline]
    pub fn receive_at_once(
        &mut self,
        (from, request): (Rank, &ReceiveRequest),
        header: &Header,
        payload: &[u8],
    ) -> Option<Status> {
        let config = &self.common.config;
        if header.kind != MessageKind::Message
            || header.src != from
            || Refusal::of_key(&header.key, config.group, config.epoch).is_some()
        {
            return None;
        }
        let envelope = Envelope::of(header)?;
        let inbound = &mut self.peers.at(from).inbound;
        let is_next = envelope.seq == inbound.expected();
        let is_wanted = request.tag.is_none_or(|tag| tag == envelope.tag) && request.dtype == envelope.dtype;
        let is_whole = envelope.bytes() == Some(payload.len())
            && payload.len() == header.len as usize
            && header.offset == 0
            && payload.len() <= config.eager_bytes;
        if !is_next || !is_wanted || !is_whole || payload.len() > request.into.len() {
            return None;
        }
        self.elements(request.dtype.size(), &request.into)?;
        memory::write((request.into, 0), payload)?;
        self.peers.at(from).inbound.advance();
        self.taken(from, envelope.seq, OVERHEAD + payload.len());
        let Envelope { tag, dtype, count, .. } = envelope;
        Some(Status { peer: from, tag, dtype, count })
    }

    /// Whether messages can be exchanged with a rank, which is another one.
    #[inline]
    fn is_open_to(&self, peer: Rank) -> bool {
        let config = &self.common.config;
        self.cause.is_none() && peer.0 < config.ranks && peer != config.rank
    }

    /// The elements in a region that a CPU can read; `None` of another one.
    #[inline]
    fn elements(&self, size: usize, region: &TensorRegion) -> Option<u64> {
        let is_readable = region.is_empty() || region.kind() != MemoryKind::Device;
        (is_readable && region.len().is_multiple_of(size)).then(|| (region.len() / size) as u64)
    }
}
