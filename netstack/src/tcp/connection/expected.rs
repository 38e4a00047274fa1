//! The segment that was expected (Van Jacobson's header prediction): the next one in order, or a pure acknowledgement, on an
//! established connection, with nothing unusual about it. Most segments are. The result is the same as in `input`,
//! without most of its checks.

use super::{Connection, ConnectionState, Context};
use crate::tcp::sender::AckIn;
use crate::tcp::{Payload, TcpEvent};
use crate::time::Instant;
use crate::wire::tcp::{PlainHeader, SackBlocks};

impl Connection {
    /// Takes a segment if it is the expected; else nothing has changed.
    #[inline]
    pub(crate) fn on_expected(
        &mut self,
        now: Instant,
        header: &PlainHeader,
        payload: Payload<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let PlainHeader { seq, ack, window, timestamps, .. } = *header;
        // With ECN there are marks to be looked at, and data after a close is to be answered by a reset.
        let usual = matches!(self.state, ConnectionState::Established)
            && !self.negotiated.ecn
            && !self.user.has_released();
        if !usual || !self.receiver.expects(seq, payload.len()) || !self.is_ack_plausible(ack) {
            return false;
        }
        if self.negotiated.timestamps != timestamps.is_some() {
            return false;
        }
        if let Some(stamps) = timestamps {
            if self.receiver.is_old(now, stamps.value) {
                return false;
            }
            self.receiver.on_timestamp(now, stamps.value, seq);
        }
        self.idle.on_heard(now);
        let echo = timestamps.map(|stamps| stamps.echo);
        let input = AckIn {
            ack,
            seq,
            window: u32::from(window) << self.negotiated.peer_shift,
            sack: SackBlocks::NONE,
            rtt: echo.and_then(|echo| self.round_trip(now, echo)),
            echo,
            ece: false,
            has_data: !payload.is_empty(),
        };
        // Nothing has been finished yet: there is no FIN of ours to be acknowledged.
        self.work_in(now, &input, cx);
        if !payload.is_empty()
            && self.receiver.on_expected(now, payload, cx.pool) > 0
            && self.user.on_readable()
        {
            cx.events.push_back(TcpEvent::Readable(cx.id));
        }
        true
    }
}
