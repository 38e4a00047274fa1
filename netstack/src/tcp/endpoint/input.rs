//! Finds a segment's target: a connection, a record in TIME-WAIT, a listener, or nothing.

use core::net::SocketAddr;

use super::super::api::{Payload, Segment, SegmentMeta, TcpEvent};
use super::super::connection::{
    Connection, Disposition, IcmpKind, TimeWaitRecord, cookie_syn_ack, timestamp,
};
use super::super::options::Options;
use super::replies::Reply;
use super::time_wait::TimeWaitAction;
use super::{Endpoint, Entry, Owner, cookie, is_host};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, PlainHeader, SeqNumber};

/// An ICMP error about a segment of ours, which it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIcmpError {
    /// The source of the quoted segment: our address and port.
    pub local: SocketAddr,
    /// Its destination.
    pub remote: SocketAddr,
    /// Its sequence number.
    pub seq: SeqNumber,
    /// The error.
    pub kind: IcmpKind,
}

/// Whether a segment can complete a handshake: an acknowledgement that neither opens nor resets.
fn is_pure_ack(flags: Flags) -> bool {
    flags.intersects(Flags::ACK) && !flags.intersects(Flags::SYN.with(Flags::RST))
}

impl Endpoint {
    #[inline]
    fn find(&self, local: &SocketAddr, remote: &SocketAddr) -> Option<Entry> {
        let hash = self.secret.hash(local, remote);
        self.demux.find(hash, local, remote, &self.slots, &self.records)
    }

    /// Whether a connection of the pair may be opened by this side.
    pub(super) fn is_free(&self, now: Instant, local: &SocketAddr, remote: &SocketAddr) -> bool {
        match self.find(local, remote) {
            None => true,
            Some(Entry::Connection(_)) => false,
            Some(Entry::TimeWait(index)) => {
                self.records.get(index).is_some_and(|record| record.reusable(now))
            }
        }
    }

    /// Takes the pair out of TIME-WAIT, if it is there, for a new connection that is about to be made, and returns
    /// where the old one's sequence numbers ended.
    pub(super) fn leave_time_wait(&mut self, local: &SocketAddr, remote: &SocketAddr) -> Option<SeqNumber> {
        let Some(Entry::TimeWait(index)) = self.find(local, remote) else { return None };
        let record = self.records.remove(index)?;
        self.timers.time_wait_over(index);
        self.demux.remove(self.secret.hash(local, remote), Entry::TimeWait(index));
        self.counters.time_wait_reused += 1;
        Some(record.snd_nxt())
    }

    /// Takes in one segment: `header` is the TCP header with its options and nothing else, the checksum has been
    /// verified.
    #[inline]
    pub fn on_segment(&mut self, now: Instant, meta: &SegmentMeta, header: &[u8], payload: Payload<'_>) {
        self.counters.received += 1;
        if let Some(plain) = PlainHeader::parse(header)
            && self.is_of_last(meta, plain.source_port, plain.destination_port)
            && self.on_plain(now, &plain, payload)
        {
            return;
        }
        let header = match Header::parse(header) {
            Ok((parsed, len)) if len == header.len() => parsed,
            _ => {
                self.counters.malformed += 1;
                return;
            }
        };
        let local = SocketAddr::new(meta.destination, header.destination_port);
        let remote = SocketAddr::new(meta.source, header.source_port);
        let segment = Segment { header, payload, congestion_experienced: meta.congestion_experienced };
        match self.find(&local, &remote) {
            Some(Entry::Connection(index)) => {
                self.demux.set_last(index);
                self.on_connection(now, index, &segment);
            }
            Some(Entry::TimeWait(index)) => self.on_time_wait(now, index, local, remote, &segment),
            None => self.on_unmatched(now, local, remote, &segment),
        }
    }

    /// The number up to which the peer of a segment's connection has acknowledged: if it rises, segments sent to the
    /// peer arrive. New data from the peer proves less, for its window allows it some without an answer.
    pub fn acknowledged(&self, meta: &SegmentMeta, header: &[u8]) -> Option<SeqNumber> {
        let &[a, b, c, d] = header.first_chunk()?;
        let local = SocketAddr::new(meta.destination, u16::from_be_bytes([c, d]));
        let remote = SocketAddr::new(meta.source, u16::from_be_bytes([a, b]));
        let Some(Entry::Connection(index)) = self.find(&local, &remote) else { return None };
        self.slots.get(index).map(Connection::acknowledged)
    }

    /// Whether a segment is for the connection that the last one was for. One that is over is in the table no more.
    #[inline]
    fn is_of_last(&self, meta: &SegmentMeta, source_port: u16, destination_port: u16) -> bool {
        self.slots.get(self.demux.last()).is_some_and(|last| {
            last.is_between(meta.destination, destination_port, meta.source, source_port) && !last.is_over()
        })
    }

    /// Takes a plain segment of that connection; false if it is not the expected one.
    #[inline]
    fn on_plain(&mut self, now: Instant, header: &PlainHeader, payload: Payload<'_>) -> bool {
        let index = self.demux.last();
        let taken = self.call(index, |connection, cx| connection.on_expected(now, header, payload, cx));
        if taken != Some(true) {
            return false;
        }
        self.slots.settle(now, index, &mut self.timers);
        true
    }

    #[inline]
    fn on_connection(&mut self, now: Instant, index: u32, segment: &Segment<'_>) {
        if let Some(Owner::HalfOpen(listener)) = self.slots.owner(index)
            && segment.header.flags.contains(Flags::ACK)
            && !segment.header.flags.intersects(Flags::RST)
            && self.listeners.at(listener).is_some_and(|(_, listener)| listener.is_full())
        {
            // The handshake ends when there is room: the peer sends again, and so does the connection.
            self.counters.accept_queue_full += 1;
            return;
        }
        if let Some(end) = self.call(index, |connection, cx| connection.on_segment(now, segment, cx)) {
            self.dispose(now, index, end);
        }
        self.look_at_orphan(index);
    }

    #[cold]
    fn on_time_wait(
        &mut self,
        now: Instant,
        index: u32,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment<'_>,
    ) {
        let listener = self.listeners.find(&local);
        let Some(record) = self.records.get(index).copied() else { return };
        let answer = Reply { local, remote, header: record.acknowledgement(timestamp(now, 0)) };
        let action = record.judge(&segment.header, segment.payload.len());
        // A SYN of the pair may have been answered by a cookie, for want of room.
        if let (TimeWaitAction::Drop | TimeWaitAction::Acknowledge, Some(listener)) = (action, listener)
            && is_pure_ack(segment.header.flags)
            && self.on_cookie(now, listener, local, remote, segment)
        {
            return;
        }
        match (action, listener) {
            (TimeWaitAction::Restart, _) => {
                self.records.restart(now, index);
                self.reply(answer);
            }
            //= RFC 9293 section 3.6.1, MAY-2: the old connection is forgotten once the new one exists, not before: its peer
            //= may repeat the FIN as long as the listener has no room.
            (TimeWaitAction::Reopen, Some(listener)) => self.on_syn(now, listener, local, remote, segment),
            (TimeWaitAction::Drop, _) => {}
            (TimeWaitAction::Acknowledge | TimeWaitAction::Reopen, _) => {
                //= RFC 5961 section 7: so many per second.
                if self.records.may_answer(now, index) {
                    self.reply(answer);
                } else {
                    self.counters.answers_suppressed += 1;
                }
            }
        }
    }

    /// A segment of no connection: for a listener, or for none.
    #[cold]
    fn on_unmatched(&mut self, now: Instant, local: SocketAddr, remote: SocketAddr, segment: &Segment<'_>) {
        let flags = segment.header.flags;
        // No host sends from port 0, nor to itself (over a device).
        //= RFC 9293 section 3.9.2.3, MUST-57, MUST-63: segments from or to addresses that are not unicast are dropped.
        // IP does it too, and knows the broadcast addresses of its subnets.
        if remote.port() == 0 || local == remote || !is_host(remote.ip()) || !is_host(local.ip()) {
            self.counters.no_connection += 1;
            return;
        }
        let Some(listener) = self.listeners.find(&local) else {
            self.counters.no_connection += 1;
            self.refuse(now, local, remote, segment);
            return;
        };
        //= RFC 9293 section 3.10.7.2: in LISTEN a reset is ignored, an acknowledgement is reset, a SYN is looked at, and
        // anything else dropped.
        if flags.intersects(Flags::RST) {
            self.counters.no_connection += 1;
        } else if flags.intersects(Flags::ACK) {
            if is_pure_ack(flags) && self.on_cookie(now, listener, local, remote, segment) {
                return;
            }
            self.counters.no_connection += 1;
            self.refuse(now, local, remote, segment);
        } else if flags.intersects(Flags::SYN) && !flags.intersects(Flags::FIN) {
            self.on_syn(now, listener, local, remote, segment);
        } else {
            // No handshake has a SYN with FIN.
            self.counters.no_connection += 1;
        }
    }

    fn on_syn(
        &mut self,
        now: Instant,
        index: u32,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment<'_>,
    ) {
        let connections = self.connections();
        let Some((_, listener)) = self.listeners.at(index) else { return };
        if listener.is_full() {
            self.counters.accept_queue_full += 1;
            return;
        }
        if connections >= self.config.max_connections {
            self.counters.too_many += 1;
            return;
        }
        let options = listener.options().clone();
        //= RFC 4987 section 3.6: when the queue of half-open connections is full, cookies take its place.
        if listener.half_open() >= self.config.max_half_open {
            listener.on_cookie_sent(now);
            self.send_cookie(now, local, remote, &segment.header, &options);
            return;
        }
        listener.begin_handshake();
        self.counters.syn_received += 1;
        let after = self.leave_time_wait(&local, &remote);
        let open = self.open(now, local, remote, after);
        let connection = Connection::accept(now, &open, options, segment);
        self.add(now, local, remote, connection, Owner::HalfOpen(index));
    }

    fn send_cookie(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        syn: &Header,
        options: &Options,
    ) {
        //= RFC 9293 section 3.7.1, MUST-15: without the option, 536 (which is safe over IPv6 too).
        let mss = syn.options.mss.unwrap_or(536);
        let mut open = self.open(now, local, remote, None);
        open.iss = cookie::make(&self.secret, now, &local, &remote, syn.seq, mss);
        let ecn = options.ecn && syn.flags.asks_for_ecn();
        let clock = timestamp(now, open.timestamp_offset);
        let value = cookie::timestamp(clock, syn, options.sack, ecn, options.window_scaling);
        let header = cookie_syn_ack(&open, options, syn, value);
        self.counters.cookies_sent += 1;
        self.reply(Reply { local, remote, header });
    }

    /// An acknowledgement of a cookie makes a connection. True if the segment has been dealt with.
    fn on_cookie(
        &mut self,
        now: Instant,
        index: u32,
        local: SocketAddr,
        remote: SocketAddr,
        segment: &Segment<'_>,
    ) -> bool {
        let connections = self.connections();
        let Some((_, listener)) = self.listeners.at(index) else { return false };
        if !listener.expects_cookies(now) {
            return false;
        }
        let Some(negotiated) = cookie::open(&self.secret, now, &local, &remote, &segment.header) else {
            self.counters.cookies_refused += 1;
            return false;
        };
        if listener.is_full() {
            self.counters.accept_queue_full += 1;
            return true;
        }
        if connections >= self.config.max_connections {
            self.counters.too_many += 1;
            return true;
        }
        listener.begin_handshake();
        let options = listener.options().clone();
        self.leave_time_wait(&local, &remote);
        let mut open = self.open(now, local, remote, None);
        open.iss = segment.header.ack - 1;
        let connection = Connection::from_cookie(now, &open, options, &negotiated, segment);
        self.counters.cookies_accepted += 1;
        let id = self.add(now, local, remote, connection, Owner::HalfOpen(index));
        self.on_connection(now, id.index, segment);
        true
    }

    /// Answers a segment that no connection or listener takes.
    fn refuse(&mut self, now: Instant, local: SocketAddr, remote: SocketAddr, segment: &Segment<'_>) {
        let Header { flags, seq, ack, .. } = segment.header;
        //= RFC 9293 section 3.10.7.1: a reset is never answered; an acknowledged number is used, or else all of the
        // segment is acknowledged.
        if flags.intersects(Flags::RST) {
            return;
        }
        if !self.replies.may_refuse(now) {
            self.counters.answers_suppressed += 1;
            return;
        }
        let mut header =
            Header { source_port: local.port(), destination_port: remote.port(), ..Header::default() };
        if flags.intersects(Flags::ACK) {
            header.seq = ack;
            header.flags = Flags::RST;
        } else {
            let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
            let phantom = u32::from(flags.intersects(Flags::SYN)) + u32::from(flags.intersects(Flags::FIN));
            header.ack = seq + len + phantom;
            header.flags = Flags::RST.with(Flags::ACK);
        }
        self.reply(Reply { local, remote, header });
    }

    /// Queues an answer; above the limit it is lost, like any packet.
    pub(super) fn reply(&mut self, reply: Reply) {
        let reset = reply.header.flags.contains(Flags::RST);
        if self.replies.push(reply) {
            self.counters.resets_sent += u64::from(reset);
        } else {
            self.counters.answers_suppressed += 1;
        }
    }

    /// Takes in an ICMP error about a segment of ours. The connection accepts it if it quotes a number that is in
    /// flight (RFC 5927 section 4.1). False if there is no such connection.
    pub fn on_icmp_error(&mut self, now: Instant, error: &SegmentIcmpError) -> bool {
        //= RFC 9293 section 3.9.2.2, MUST-54: an ICMP error goes to the connection whose segment caused it.
        let (local, remote) = (super::plain(error.local), super::plain(error.remote));
        let Some(Entry::Connection(index)) = self.find(&local, &remote) else { return false };
        if let Some(end) =
            self.call(index, |connection, cx| connection.on_icmp(now, error.kind, error.seq, cx))
        {
            self.dispose(now, index, end);
        }
        true
    }

    /// Carries out the disposition that a connection returned.
    #[inline]
    pub(super) fn dispose(&mut self, now: Instant, index: u32, end: Disposition) {
        match end {
            Disposition::Keep => {}
            Disposition::Opened => self.opened(index),
            Disposition::Answer(header) => self.reply_from(index, header),
            Disposition::Reset(header) => {
                self.reply_from(index, header);
                self.detach(index);
            }
            Disposition::Remove => self.detach(index),
            Disposition::TimeWait(record, last) => {
                if let Some(header) = last {
                    self.reply_from(index, header);
                }
                self.detach(index);
                self.enter_time_wait(now, &record);
            }
        }
        self.slots.settle(now, index, &mut self.timers);
    }

    fn reply_from(&mut self, index: u32, header: Header) {
        if let Some(connection) = self.slots.get(index) {
            self.reply(Reply { local: connection.local(), remote: connection.remote(), header });
        }
    }

    /// A listener's connection has completed its handshake.
    fn opened(&mut self, index: u32) {
        let Some((id, Owner::HalfOpen(listener), _)) = self.slots.get_mut(index) else { return };
        if let Some((listener_id, listener)) = self.listeners.at(listener) {
            listener.complete_handshake(id);
            self.slots.set_owner(index, Owner::Queued);
            self.counters.passive_opens += 1;
            self.shared.events().queue().push_back(TcpEvent::Acceptable(listener_id));
        }
    }

    /// The protocol is over: segments no longer find the connection. Its slot stays until its user has let go.
    fn detach(&mut self, index: u32) {
        let Some((_, owner, connection)) = self.slots.get_mut(index) else { return };
        let hash = self.secret.hash(&connection.local(), &connection.remote());
        let released = connection.released();
        self.demux.remove(hash, Entry::Connection(index));
        if let Owner::HalfOpen(listener) = owner
            && let Some((_, listener)) = self.listeners.at(listener)
        {
            listener.give_up_handshake();
        }
        match owner {
            Owner::User | Owner::Queued if !released => self.slots.disarm(index, &mut self.timers),
            _ => self.release(index),
        }
    }

    fn enter_time_wait(&mut self, now: Instant, record: &TimeWaitRecord) {
        self.counters.time_wait += 1;
        while self.records.len() >= self.config.max_time_wait.max(1) {
            let Some(oldest) = self.records.oldest() else { break };
            self.counters.time_wait_overflow += 1;
            self.forget(oldest);
        }
        let (index, generation) = self.records.insert(now, record);
        self.demux.insert(self.secret.hash(&record.local, &record.remote), Entry::TimeWait(index));
        let deadline = now + self.records.lasts(index);
        self.timers.time_wait(deadline, index, generation);
    }

    /// TIME-WAIT is over.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(record) = self.records.remove(index) {
            self.timers.time_wait_over(index);
            let hash = self.secret.hash(&record.local(), &record.remote());
            self.demux.remove(hash, Entry::TimeWait(index));
        }
    }
}
