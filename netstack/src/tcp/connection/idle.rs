//! Silence: keep-alive (RFC 9293 section 3.8.4), the user timeout (RFC 5482), and all of a connection's timers.

use core::time::Duration;

use super::{Connection, ConnectionState, Context, Disposition, EndReason, NEVER};
use crate::tcp::sender::TimerOut;
use crate::time::Instant;

//= RFC 5482 section 3.1: a peer's request is kept within limits: not so short that an ordinary black-out ends the
//= connection, not so long that dead connections gather.
const PEER_TIMEOUT: core::ops::RangeInclusive<u64> = 100..=3600;

/// The divisor of the user timeout that gives the time for the peer to answer between the first check and the end.
const SUSPECTED: u32 = 8;

/// The state of the peer's silence. A probe is due, or has been sent, only since the peer was heard last.
#[derive(Debug)]
pub(super) struct Idle {
    last_heard: Instant,
    /// When the last keep-alive probe left, or when an acknowledgement was found to be nearly too late. Nothing is
    /// unacknowledged while probes leave, and none leave while something is.
    noticed: Instant,
    /// Probes without an answer.
    probes: u8,
    /// A probe is to leave.
    due: bool,
    /// A packet found no route, or an ICMP error said so: a later time-out is reported with that cause.
    unreachable: bool,
    /// The peer's user timeout option in seconds, within limits; zero: none.
    peer_timeout: u16,
}

impl Idle {
    pub(super) fn new(now: Instant) -> Self {
        Self { last_heard: now, noticed: now, probes: 0, due: false, unreachable: false, peer_timeout: 0 }
    }

    /// A segment was accepted as the peer's.
    #[inline]
    pub(super) fn on_heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.probes = 0;
        self.due = false;
    }

    /// The peer says how long it keeps data.
    pub(super) fn on_user_timeout_option(&mut self, seconds: u32) {
        self.peer_timeout = u64::from(seconds).clamp(*PEER_TIMEOUT.start(), *PEER_TIMEOUT.end()) as u16;
    }

    /// Whether a probe is to leave.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// A probe left.
    pub(super) fn on_probe_sent(&mut self, now: Instant) {
        self.noticed = now;
        self.probes = self.probes.saturating_add(1);
        self.due = false;
    }

    /// No probe is to leave any more.
    pub(super) fn cancel(&mut self) {
        self.due = false;
    }

    /// There is no way to the peer at present (RFC 5461 section 2: a soft error).
    pub(super) fn on_soft_error(&mut self) {
        self.unreachable = true;
    }

    /// The peer has acknowledged something: there is a way.
    #[inline]
    pub(super) fn on_progress(&mut self) {
        self.unreachable = false;
    }

    /// Why a connection ends whose peer has not answered for so long.
    pub(super) fn end_reason(&self, after: Duration) -> EndReason {
        if self.unreachable { EndReason::Unreachable } else { EndReason::timed_out(after) }
    }
}

impl Connection {
    /// The connection's next deadline.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        // Most connections are established, and do not watch for the peer's silence; other timers do not run then.
        let watched = self.options.user_timeout.is_some()
            || self.idle.peer_timeout > 0
            || self.options.keep_alive.is_some();
        if watched || !matches!(self.state, ConnectionState::Established) {
            return self.next_of_all();
        }
        let Some(first) = self.sender.deadline_at_rest() else { return self.next_of_all() };
        let first = first.min(self.receiver.ack_deadline().unwrap_or(NEVER));
        let deadline = (first != NEVER).then_some(first);
        debug_assert_eq!(deadline, self.next_of_all());
        deadline
    }

    /// The next deadline, whatever the state and the options.
    fn next_of_all(&self) -> Option<Instant> {
        let until = match &self.state {
            ConnectionState::SynSent(handshake) | ConnectionState::SynReceived(handshake) => {
                return handshake.deadline();
            }
            ConnectionState::Over(_) => return None,
            ConnectionState::FinWait2 { until } => *until,
            _ => NEVER,
        };
        let first = until
            .min(self.sender.next_deadline().unwrap_or(NEVER))
            .min(self.receiver.ack_deadline().unwrap_or(NEVER))
            .min(self.user_timeout_deadline())
            .min(self.keep_alive_deadline())
            .min(self.orphan_deadline());
        (first != NEVER).then_some(first)
    }

    //= RFC 5482 section 3.1: the user's own choice takes precedence over the peer's request.
    #[inline]
    fn user_timeout(&self) -> Option<Duration> {
        let theirs = self.idle.peer_timeout;
        self.options.user_timeout.or((theirs > 0).then(|| Duration::from_secs(u64::from(theirs))))
    }

    /// When the user timeout is checked, or [`NEVER`]: shortly before its end, and at its end. A connection ends an eighth of the
    /// time-out after the first check at the earliest, so a pause of this host is not taken for the peer's: segments
    /// that came meanwhile are read, and lost ones are sent again.
    #[inline]
    fn user_timeout_deadline(&self) -> Instant {
        let Some(timeout) = self.user_timeout() else { return NEVER };
        let Some(stalled_since) = self.sender.stalled_since() else { return NEVER };
        match self.idle.noticed {
            at if at > stalled_since => (stalled_since + timeout).max(at + timeout / SUSPECTED),
            _ => stalled_since + (timeout - timeout / SUSPECTED),
        }
    }

    //= RFC 9293 section 3.8.4, MUST-24 to MUST-29: only if asked for, only when nothing is in flight, and silence is
    //= not taken for death before several probes.
    #[inline]
    fn keep_alive_deadline(&self) -> Instant {
        let Some(keep_alive) = self.options.keep_alive else { return NEVER };
        if self.idle.due || !self.sender.is_empty() {
            return NEVER;
        }
        match self.idle.probes {
            0 => self.idle.last_heard + keep_alive.idle,
            _ => self.idle.noticed + keep_alive.interval,
        }
    }

    /// When a connection that its user has closed is ended, or [`NEVER`], though the peer answers: a window that stays shut would
    /// keep it, and its written bytes, for ever.
    #[inline]
    fn orphan_deadline(&self) -> Instant {
        let waits = matches!(
            self.state,
            ConnectionState::FinWait1 | ConnectionState::Closing | ConnectionState::LastAck
        );
        if waits && self.user.has_released() {
            self.user.stalled_since() + self.options.orphan_timeout
        } else {
            NEVER
        }
    }

    /// Runs the timers that are due.
    pub(crate) fn on_timer(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        match &self.state {
            ConnectionState::SynSent(_) | ConnectionState::SynReceived(_) => {
                return self.on_handshake_timer(now, cx);
            }
            ConnectionState::Over(_) => return Disposition::Keep,
            //= RFC 9293 section 3.6, as stacks do: a closed connection does not wait for ever for the peer's FIN.
            ConnectionState::FinWait2 { until } if *until <= now => return self.end(EndReason::Closed, cx),
            _ => {}
        }
        self.receiver.on_timer(now);
        //= RFC 9293 section 3.10.8; section 3.8.3, MUST-21: the user timeout ends the connection in any state.
        if self.user_timeout_deadline() <= now
            && let Some(stalled_since) = self.sender.stalled_since()
        {
            if self.idle.noticed > stalled_since {
                return self.time_out(now, cx);
            }
            self.idle.noticed = now;
        }
        //= RFC 9293 section 3.8.3, MUST-20: retransmissions end the connection after a while.
        if let TimerOut::GiveUp = self.sender.on_timer(now) {
            return self.time_out(now, cx);
        }
        if self.orphan_deadline() <= now {
            return self.give_up(now, cx);
        }
        if self.keep_alive_deadline() <= now {
            let probes = self.options.keep_alive.map_or(0, |keep_alive| keep_alive.probes);
            if self.idle.probes >= probes {
                let after = now.saturating_since(self.idle.last_heard);
                return self.end_with_reset(now, EndReason::timed_out(after), cx);
            }
            self.idle.due = true;
        }
        Disposition::Keep
    }

    fn time_out(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition {
        let since = self.sender.stalled_since().unwrap_or(self.idle.last_heard);
        let end = self.idle.end_reason(now.saturating_since(since));
        self.end(end, cx)
    }
}
