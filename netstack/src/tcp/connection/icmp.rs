//! ICMP errors about segments of a connection (RFC 9293 section 3.9.2.2, RFC 5461, RFC 5927).

use super::{Connection, ConnectionState, Context, Disposition, EndReason};
use crate::time::Instant;
use crate::wire::ipv6;
use crate::wire::tcp::SeqNumber;

/// The kind of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// Host or network unreachable, time exceeded: it may pass.
    Unreachable,
    /// Protocol or port unreachable.
    Refused,
    /// A packet was too big: the next hop's MTU in bytes.
    TooBig(u16),
}

impl Connection {
    /// An ICMP error quotes a segment of ours that begins at `quoted`.
    pub(crate) fn on_icmp(
        &mut self,
        now: Instant,
        kind: IcmpKind,
        quoted: SeqNumber,
        cx: &mut Context<'_>,
    ) -> Disposition {
        //= RFC 5927 section 4.1: only an error about a segment in flight is believed.
        let attempt = match &self.state {
            ConnectionState::Over(_) => return Disposition::Keep,
            ConnectionState::SynSent(_) | ConnectionState::SynReceived(_) => {
                if quoted != self.iss() {
                    return Disposition::Keep;
                }
                true
            }
            _ => {
                let (una, end) = (self.sender.una(), self.sender.max_sent());
                if quoted.is_before(una) || !quoted.is_before(end) {
                    return Disposition::Keep;
                }
                false
            }
        };
        match kind {
            //= RFC 9293 section 3.9.2.2, MUST-56: a soft error does not end the connection.
            IcmpKind::Unreachable => self.idle.on_soft_error(),
            //= RFC 9293 section 3.9.2.2, SHLD-26, as RFC 5461 section 4.1 and RFC 5927 section 5.2 have it: a hard error
            //= ends an attempt, and is soft afterwards.
            IcmpKind::Refused if attempt => return self.end(EndReason::Refused, cx),
            IcmpKind::Refused => self.idle.on_soft_error(),
            IcmpKind::TooBig(mtu) => {
                //= RFC 8201 section 4: every IPv6 path carries 1280 bytes.
                let floor = if self.pair.is_ipv6() { ipv6::MIN_MTU } else { self.options.min_path_mtu };
                if !attempt {
                    self.sender.on_packet_too_big(now, mtu.max(floor), quoted);
                }
            }
        }
        Disposition::Keep
    }
}
