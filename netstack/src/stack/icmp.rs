//! ICMP: echo, and what routers and hosts say about packets of ours.

use core::net::IpAddr;

use super::EchoReply;
use super::counters::Counters;
use super::destination::ethertype_of;
use super::port::{Interface, QueueError};
use super::receive::{Inbound, Receiver};
use crate::ip::IcmpError;
use crate::ip::neighbour::Resolution;
use crate::rud;
use crate::time::Instant;
use crate::wire::Malformed;
use crate::wire::icmpv4::{Echo, EchoKind};
use crate::wire::ip::{Ecn, IpHeader, Protocol};

/// Echo replies that wait to be looked at.
pub(super) const ECHO_REPLIES: usize = 64;

impl<S: rud::Sink> Receiver<'_, S> {
    /// Hands an error to the protocol whose packet it is about.
    #[allow(dead_code, reason = "called by the parsers of both versions")]
    pub(super) fn on_icmp_error(&mut self, error: &IcmpError<'_>) {
        match error.protocol {
            Protocol::Tcp => self.on_tcp_error(error),
            _ => self.counters.rx_icmp_ignored += 1,
        }
    }

    #[cold]
    pub(super) fn on_icmp(&mut self, packet: &Inbound<'_>) {
        let echo = match Echo::parse(packet.payload) {
            Ok(echo) => echo,
            Err(Malformed::Checksum) => {
                self.counters.rx_icmp_checksum += 1;
                return;
            }
            Err(_) => {
                self.counters.rx_icmp_unsupported += 1;
                return;
            }
        };
        match echo.kind {
            EchoKind::Request => {
                self.counters.rx_echo_requests += 1;
                //= RFC 1122 section 3.2.2.6: an echo server; source and destination change places, data is kept.
                self.send_echo(packet, &Echo { kind: EchoKind::Reply, ..echo });
            }
            EchoKind::Reply if self.echo_replies.len() >= ECHO_REPLIES => {
                self.counters.rx_echo_queue_full += 1
            }
            EchoKind::Reply => {
                self.counters.rx_echo_replies += 1;
                self.echo_replies.push_back(EchoReply {
                    from: packet.source,
                    identifier: echo.identifier,
                    sequence: echo.sequence,
                    len: echo.data.len(),
                    at: self.now,
                });
            }
        }
    }

    fn send_echo(&mut self, request: &Inbound<'_>, echo: &Echo<'_>) {
        let (from, to) = (request.destination, request.source);
        if let Err(why) = send_echo(self.now, self.iface, from, to, echo, self.counters) {
            match why {
                EchoError::NoRoute => self.counters.tx_no_route += 1,
                EchoError::Unreachable => self.counters.tx_unreachable += 1,
                EchoError::TooLong => self.counters.tx_too_long += 1,
                EchoError::Full => self.counters.tx_full += 1,
            }
        }
    }
}

/// Why an echo message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EchoError {
    NoRoute,
    Unreachable,
    TooLong,
    Full,
}

/// Sends an echo message from a port's own address `from`.
pub(super) fn send_echo(
    now: Instant,
    iface: &mut Interface,
    from: IpAddr,
    to: IpAddr,
    echo: &Echo<'_>,
    counters: &mut Counters,
) -> Result<(), EchoError> {
    let len = crate::wire::icmpv4::HEADER_LEN + echo.data.len();
    let ip = IpHeader::new(from, to, Protocol::Icmp, len, Ecn::NotEct).ok_or(EchoError::TooLong)?;
    let (hop, _) = iface.next_hop(to).ok_or(EchoError::NoRoute)?;
    let icmp = echo.emit();
    let parts: [&[u8]; 3] = [ip.as_bytes(), &icmp, echo.data];
    let mac = match iface.neighbours.resolve(now, hop.address) {
        Resolution::Station(mac) => mac,
        Resolution::Pending => {
            iface.hold(hop.address, parts, counters);
            return Ok(());
        }
        Resolution::Unreachable => return Err(EchoError::Unreachable),
    };
    let link = iface.link_header(mac, ethertype_of(to));
    iface.queue_bytes(&link, parts).map_err(|error| match error {
        QueueError::Full => EchoError::Full,
        QueueError::TooLong => EchoError::TooLong,
    })
}
