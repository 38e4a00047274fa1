//! How connections end (RFC 9293 sections 3.6, 3.10.4 and 3.10.5).

use super::{Connection, ConnectionState, Context, Disposition, EndReason, TimeWaitRecord};
use crate::tcp::{Error, TcpEvent};
use crate::time::Instant;

impl Connection {
    //= RFC 9293 section 3.10.4: what CLOSE means in each state; section 3.6: reading goes on after it.
    /// FIN after the written bytes; reading goes on.
    ///
    /// # Errors
    /// The connection's failure.
    pub(crate) fn shutdown(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.failure() {
            return Err(failure.into());
        }
        if !self.user.has_shut() && !self.is_over() {
            self.user.shut();
            self.sender.finish();
            match self.state {
                ConnectionState::Established => self.state = ConnectionState::FinWait1,
                ConnectionState::CloseWait => self.state = ConnectionState::LastAck,
                // SYN-SENT and SYN-RECEIVED go to FIN-WAIT-1 through `establish`.
                _ => {}
            }
        }
        Ok(())
    }

    //= RFC 9293 section 3.6.1, SHLD-3: a close with received data unread sends a reset.
    /// The user closes: FIN after the written bytes; a reset if something is unread (RFC 2525 section 2.17).
    pub(crate) fn close(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        self.user.release(now);
        match &mut self.state {
            ConnectionState::Over(_) => {
                self.receiver.clear(cx.pool);
                return Disposition::Remove;
            }
            ConnectionState::SynSent(_) => return self.end(EndReason::Closed, cx),
            ConnectionState::FinWait2 { until } => *until = now + self.options.fin_wait_2,
            _ => {}
        }
        if self.receiver.readable() > 0 {
            return self.end_with_reset(now, EndReason::Aborted, cx);
        }
        self.receiver.abandon(cx.pool);
        // It cannot fail: the connection is not over.
        let _ = self.shutdown();
        Disposition::Keep
    }

    //= RFC 9293 section 3.10.5: ABORT sends a reset where the peer may still expect data.
    /// The user gives the connection up.
    pub(crate) fn abort(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        self.user.release(now);
        match self.state {
            ConnectionState::Over(_) => {
                self.receiver.clear(cx.pool);
                Disposition::Remove
            }
            ConnectionState::SynSent(_) | ConnectionState::Closing | ConnectionState::LastAck => {
                self.end(EndReason::Aborted, cx)
            }
            _ => self.end_with_reset(now, EndReason::Aborted, cx),
        }
    }

    //= RFC 9293 section 3.8.6.1, MUST-37, as RFC 6429 section 4 has it: a window may stay closed for ever for the protocol's sake,
    //= and a host that runs short of memory may end the connection all the same.
    /// The user has closed, and the peer does not take the written bytes: the connection is given up.
    pub(crate) fn give_up(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        let after = now.saturating_since(self.user.stalled_since());
        self.end_with_reset(now, EndReason::timed_out(after), cx)
    }

    /// Since when a connection that the user has closed has got nothing through.
    pub(crate) fn stalled_since(&self) -> Instant {
        self.user.stalled_since()
    }

    /// Whether it holds written bytes that the peer has not acknowledged.
    pub(crate) fn holds_data(&self) -> bool {
        self.sender.queued() > 0
    }

    //= RFC 9293 section 3.10.7.4, eighth; section 3.6.1, MUST-13: TIME-WAIT lasts twice the maximum segment lifetime.
    /// Both FIN are acknowledged; the acknowledgement of the peer's may be lost.
    pub(super) fn enter_time_wait(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        let header = self.pure_ack(now, cx);
        let record = TimeWaitRecord {
            local: self.local(),
            remote: self.remote(),
            snd_nxt: self.sender.nxt(),
            rcv_nxt: self.receiver.next(),
            window: header.window,
            ts_recent: self.receiver.ts_recent(),
            timestamp_offset: self.timestamp_offset,
            duration: self.options.time_wait,
        };
        // Entered by an acknowledgement of this side's FIN, there may be nothing to acknowledge.
        let answer = self.receiver.is_ack_due().then_some(header);
        let _ = self.end(EndReason::TimeWait, cx);
        Disposition::TimeWait(record, answer)
    }

    /// The protocol is over: gives the memory back and queues the last event.
    pub(super) fn end(&mut self, end: EndReason, cx: &mut Context<'_>) -> Disposition {
        self.state = ConnectionState::Over(end);
        self.idle.cancel();
        self.sender.abort(cx.memory, cx.released);
        cx.notify_dropped();
        let failure = self.failure();
        if self.user.has_released() || failure.is_some() {
            self.receiver.clear(cx.pool);
        } else {
            self.receiver.abandon(cx.pool);
        }
        if !self.user.has_released() {
            //= RFC 9293 section 3.6, MUST-12: the user learns whether the connection was closed or aborted.
            cx.events.push_back(match failure {
                Some(failure) => TcpEvent::Failed(cx.id, failure),
                None => TcpEvent::Closed(cx.id),
            });
        }
        Disposition::Remove
    }

    /// The same, and sends the peer a reset.
    pub(super) fn end_with_reset(
        &mut self,
        now: Instant,
        end: EndReason,
        cx: &mut Context<'_>,
    ) -> Disposition {
        let reset = self.reset(now);
        let _ = self.end(end, cx);
        Disposition::Reset(reset)
    }
}
