//! A segment arrives in a synchronised state (RFC 9293 section 3.10.7.4).

use super::{Connection, ConnectionState, Context, Disposition, EndReason, NEVER};
use crate::tcp::sender::AckIn;
use crate::tcp::{Segment, TcpEvent};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, SeqNumber};

impl Connection {
    /// Takes a segment.
    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        cx: &mut Context<'_>,
    ) -> Disposition {
        let irs = self.irs();
        match &mut self.state {
            ConnectionState::SynSent(_) => return self.on_syn_sent(now, segment, cx),
            ConnectionState::Over(_) => return Disposition::Keep,
            ConnectionState::SynReceived(handshake)
                if segment.header.seq == irs
                    && segment.header.flags.contains(Flags::SYN)
                    && !segment.header.flags.intersects(Flags::RST) =>
            {
                if !segment.header.flags.contains(Flags::ACK) {
                    handshake.on_repeated_syn();
                    return Disposition::Keep;
                }
                //= RFC 9293 section 3.5, MUST-10, figure 8: in a simultaneous open the SYN comes again with an acknowledgement.
                let mut without = *segment;
                without.header.seq += 1;
                without.header.flags = without.header.flags.without(Flags::SYN);
                return self.on_synchronised(now, &without, cx);
            }
            _ => {}
        }
        self.on_synchronised(now, segment, cx)
    }

    fn on_synchronised(&mut self, now: Instant, segment: &Segment<'_>, cx: &mut Context<'_>) -> Disposition {
        let header = &segment.header;
        let flags = header.flags;
        let (syn, fin, rst) =
            (flags.contains(Flags::SYN), flags.contains(Flags::FIN), flags.contains(Flags::RST));
        let payload_len = segment.payload.len().min(i32::MAX as usize - 2) as u32;
        let len = payload_len + u32::from(syn) + u32::from(fin);
        let next = self.receiver.next();

        if self.negotiated.timestamps && !rst {
            match header.options.timestamps {
                //= RFC 7323 section 3.2: once timestamps are agreed upon, a segment without is dropped in silence.
                None => return Disposition::Keep,
                //= RFC 7323 section 5.3, R1: an old timestamp is answered by an acknowledgement.
                Some(stamps) if self.receiver.is_old(now, stamps.value) => {
                    self.on_unacceptable(now, header, payload_len, cx);
                    return Disposition::Keep;
                }
                Some(_) => {}
            }
        }
        //= RFC 9293 section 3.10.7.4, first: is anything of it in the window?
        if !self.receiver.is_acceptable(header.seq, len) {
            //= RFC 9293 section 3.4, MUST-66: acknowledgements and urgent pointers are processed with a window of zero.
            let shut = self.receiver.window() == 0 && header.seq == next && !rst && !syn;
            if shut && flags.contains(Flags::ACK) && self.is_synchronised() {
                if !self.believe(now, header, cx) {
                    return Disposition::Keep;
                }
                self.receiver.acknowledge_now();
                return self.on_ack(now, segment, cx).unwrap_or(Disposition::Keep);
            }
            if !rst {
                self.on_unacceptable(now, header, payload_len, cx);
            }
            return Disposition::Keep;
        }
        //= RFC 9293 section 3.10.7.4, second (RFC 5961 section 3.2): a reset with the very next number ends the
        //= connection; one elsewhere in the window is challenged. RFC 9293 section 3.5.3, SHLD-2: it may carry data.
        if rst {
            if header.seq == next {
                return self.on_reset(cx);
            }
            if self.receiver.is_in_window(header.seq) {
                self.challenge(now, cx);
            }
            return Disposition::Keep;
        }
        //= RFC 9293 section 3.10.7.4, fourth; section 3.5, MUST-11: a SYN sends a passive SYN-RECEIVED back to LISTEN;
        //= elsewhere (RFC 5961 section 4.2) it is challenged: a peer that has lost its state answers with a reset.
        if syn {
            if self.is_passive_handshake() {
                return self.end(EndReason::Reset, cx);
            }
            self.challenge(now, cx);
            return Disposition::Keep;
        }
        //= RFC 9293 section 3.10.7.4, fifth: without ACK it is dropped.
        if !flags.contains(Flags::ACK) {
            return Disposition::Keep;
        }
        let mut opened = None;
        if let ConnectionState::SynReceived(_) = self.state {
            if header.ack != self.iss() + 1 {
                return Disposition::Answer(self.reset_for_ack(now, header));
            }
            opened = Some(self.establish(now, header, cx));
        }
        if !self.believe(now, header, cx) {
            return Disposition::Keep;
        }
        if let Some(stamps) = header.options.timestamps {
            self.receiver.on_timestamp(now, stamps.value, header.seq);
        }
        if let Some(disposition) = self.on_ack(now, segment, cx) {
            return disposition;
        }
        //= RFC 9293 section 3.10.7.4, sixth; section 3.8.5, MUST-30, MUST-31: urgent data of any length is data like any other here: in line, and not distinguished. What
        //= applications get of the urgent pointer differs so much between stacks that RFC 6093 advises against its use.
        if payload_len > 0 || fin {
            let disposition = self.on_text(now, header.seq, segment, fin, cx);
            if !matches!(disposition, Disposition::Keep) {
                return disposition;
            }
        }
        opened.unwrap_or(Disposition::Keep)
    }

    /// Answers a segment outside of the window by an acknowledgement, which replies to a keep-alive and repairs a lost
    /// one.
    fn on_unacceptable(&mut self, now: Instant, header: &Header, payload_len: u32, cx: &mut Context<'_>) {
        let (seq, next) = (header.seq, self.receiver.next());
        // Two ends that disagree must not answer each other for ever, so answers to segments without data are limited.
        if payload_len > 0 || header.flags.contains(Flags::FIN) {
            self.receiver.on_repeated(seq, (seq + payload_len).min(next));
        } else if seq + 1 == next && self.is_ack_plausible(header.ack) {
            // A keep-alive.
            if self.answers.may_answer_keep_alive(now, cx.challenges) {
                self.receiver.acknowledge_now();
            }
        } else {
            self.challenge(now, cx);
        }
        if let ConnectionState::SynReceived(handshake) = &mut self.state {
            handshake.on_unacceptable();
        }
    }

    //= RFC 5961 section 7: the answers to what nothing proves are limited.
    /// An acknowledgement, unless there were too many of these lately.
    fn challenge(&mut self, now: Instant, cx: &mut Context<'_>) {
        if self.answers.may_challenge(now, cx.challenges) {
            self.receiver.acknowledge_now();
        }
    }

    //= RFC 5961 section 5.2: the acknowledgement is looked at before anything else is believed: by its timestamp alone a
    //= forged segment could make all that follows look old.
    /// Whether an acceptable segment can be the peer's: then it was heard. Else it is challenged.
    fn believe(&mut self, now: Instant, header: &Header, cx: &mut Context<'_>) -> bool {
        let plausible = self.is_ack_plausible(header.ack);
        if plausible {
            self.idle.on_heard(now);
        } else {
            self.challenge(now, cx);
        }
        plausible
    }

    //= RFC 9293 section 3.10.7.4, second: what a reset means in each state.
    fn on_reset(&mut self, cx: &mut Context<'_>) -> Disposition {
        let end = match self.state {
            ConnectionState::SynReceived(_) => EndReason::Refused,
            ConnectionState::Closing | ConnectionState::LastAck => EndReason::Closed,
            _ => EndReason::Reset,
        };
        self.end(end, cx)
    }

    /// Takes the acknowledgement of a segment that was accepted as the peer's. `Some`: the segment needs no further
    /// look.
    #[inline]
    fn on_ack(&mut self, now: Instant, segment: &Segment<'_>, cx: &mut Context<'_>) -> Option<Disposition> {
        let Header { ack, seq, flags, window, ref options, .. } = segment.header;
        let has_data = flags.intersects(Flags::FIN.with(Flags::SYN)) || !segment.payload.is_empty();
        let echo = options.timestamps.filter(|_| self.negotiated.timestamps).map(|stamps| stamps.echo);
        let input = AckIn {
            ack,
            seq,
            //= RFC 9293 section 3.1, MUST-1, REC-1: the window is unsigned, and computed with 32 bits.
            window: u32::from(window) << self.negotiated.peer_shift,
            sack: options.sack,
            rtt: echo.and_then(|echo| self.round_trip(now, echo)),
            echo,
            ece: self.negotiated.ecn && flags.contains(Flags::ECE),
            has_data,
        };
        if self.work_in(now, &input, cx) {
            //= RFC 9293 section 3.10.7.4, fifth: what the acknowledgement of this side's FIN means in each state.
            match self.state {
                ConnectionState::FinWait1 => {
                    let until = if self.user.has_released() { now + self.options.fin_wait_2 } else { NEVER };
                    self.state = ConnectionState::FinWait2 { until };
                }
                ConnectionState::Closing => return Some(self.enter_time_wait(now, cx)),
                ConnectionState::LastAck => return Some(self.end(EndReason::Closed, cx)),
                _ => {}
            }
        }
        None
    }

    //= RFC 9293 section 3.10.7.4, fifth: an acknowledgement of what was never sent is answered and dropped.
    //= RFC 5961 section 5.2: so is one from further back than the peer's largest window.
    /// Whether an acknowledgement can be the peer's.
    #[inline]
    pub(super) fn is_ack_plausible(&self, ack: SeqNumber) -> bool {
        let oldest = self.sender.una() - self.sender.max_window();
        !ack.is_after(self.sender.max_sent()) && !ack.is_before(oldest)
    }

    /// Processes an acknowledgement and queues the events that follow from it. Returns whether this side's FIN
    /// was acknowledged.
    #[inline(always)]
    pub(super) fn work_in(&mut self, now: Instant, ack: &AckIn, cx: &mut Context<'_>) -> bool {
        let out = self.sender.on_ack(now, ack, cx.memory, cx.released);
        if !cx.released.is_empty() {
            cx.notify_released();
        }
        if out.progress {
            self.idle.on_progress();
        }
        if out.acked > 0 {
            self.user.on_progress(now);
        }
        self.notify_writable(out.became_writable, cx);
        out.fin_acked
    }

    /// Queues the event that there is room to write again.
    #[inline]
    pub(super) fn notify_writable(&self, became_writable: bool, cx: &mut Context<'_>) {
        if became_writable && self.user.writes() {
            cx.events.push_back(TcpEvent::Writable(cx.id));
        }
    }

    //= RFC 9293 section 3.10.7.4, seventh and eighth: text and FIN.
    /// The payload and FIN of a segment whose first byte is `seq`.
    #[inline]
    pub(super) fn on_text(
        &mut self,
        now: Instant,
        seq: SeqNumber,
        segment: &Segment<'_>,
        fin: bool,
        cx: &mut Context<'_>,
    ) -> Disposition {
        if !matches!(
            self.state,
            ConnectionState::Established | ConnectionState::FinWait1 | ConnectionState::FinWait2 { .. }
        ) {
            // The peer has finished before: this can only be a repetition.
            self.receiver.acknowledge_now();
            return Disposition::Keep;
        }
        let len = segment.payload.len();
        if len > 0 {
            //= RFC 9293 section 3.6.1, SHLD-3, RFC 2525 section 2.17: data that cannot be read any more is answered by a reset.
            if self.user.has_released()
                && (seq + len.min(i32::MAX as usize) as u32).is_after(self.receiver.next())
            {
                return self.end_with_reset(now, EndReason::Reset, cx);
            }
            if self.negotiated.ecn {
                let cwr = segment.header.flags.contains(Flags::CWR);
                self.receiver.on_mark(segment.congestion_experienced, cwr);
            }
        }
        let taken = self.receiver.on_data(now, seq, segment.payload, fin, cx.pool);
        if (taken.readable > 0 || taken.fin) && self.user.on_readable() {
            cx.events.push_back(TcpEvent::Readable(cx.id));
        }
        if taken.fin {
            match self.state {
                ConnectionState::Established => self.state = ConnectionState::CloseWait,
                ConnectionState::FinWait1 => self.state = ConnectionState::Closing,
                ConnectionState::FinWait2 { .. } => return self.enter_time_wait(now, cx),
                _ => {}
            }
        }
        Disposition::Keep
    }
}
