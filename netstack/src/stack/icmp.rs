//! ICMP and ICMPv6: echo, errors about packets of ours, and errors about packets of others.

use core::net::IpAddr;

use super::ReceivedEcho;
use super::counters::Counters;
use super::destination::ethertype_of;
use super::port::{Interface, QueueError};
use super::receive::{Inbound, Receiver};
use crate::ip::limit::TokenBucket;
use crate::ip::neighbour::{Requester, Resolution};
use crate::ip::path_mtu::plateau_below;
use crate::ip::{IcmpError, is_unicast_ip};
use crate::rud;
use crate::time::Instant;
use crate::wire::icmp::{Echo, EchoKind, ErrorKind};
use crate::wire::ip::{Ecn, IpHeader, Protocol, header_len};
use crate::wire::{Malformed, icmpv4, icmpv6, ipv4, ipv6};

/// Echo replies, and as many requests, that wait to be looked at.
pub(super) const ECHO_QUEUE: usize = 64;

/// Bytes of a header, in both versions.
const HEADER_LEN: usize = icmpv6::HEADER_LEN;

//= RFC 1812 section 4.3.2.3: as much of the packet as fits an error of 576 bytes.
pub(super) const MAX_QUOTE_IPV4: usize = 576 - ipv4::HEADER_LEN - HEADER_LEN;

//= RFC 4443 section 2.4 (c): as much of the packet as fits the least MTU of IPv6.
pub(super) const MAX_QUOTE_IPV6: usize = ipv6::MIN_MTU as usize - ipv6::HEADER_LEN - HEADER_LEN;

impl<S: rud::Sink> Receiver<'_, S> {
    #[cold]
    pub(super) fn on_icmp(&mut self, packet: &Inbound<'_>) {
        match icmpv4::Message::parse(packet.payload) {
            Ok(icmpv4::Message::Echo(echo)) => self.on_echo(packet, &echo),
            Ok(icmpv4::Message::Error { kind, quoted }) => match about_ipv4(kind, quoted) {
                Some(error) => self.on_icmp_error(&error),
                None => self.protocols.counters.rx_icmp_ignored += 1,
            },
            Err(why) => self.on_bad_icmp(why),
        }
    }

    #[cold]
    pub(super) fn on_icmpv6(&mut self, packet: &Inbound<'_>) {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) else {
            self.protocols.counters.rx_icmp_unsupported += 1;
            return;
        };
        match icmpv6::Message::parse(source, destination, packet.payload) {
            Ok(icmpv6::Message::Echo(echo)) => self.on_echo(packet, &echo),
            Ok(icmpv6::Message::Error { kind, quoted }) => match about_ipv6(kind, quoted) {
                Some(error) => self.on_icmp_error(&error),
                None => self.protocols.counters.rx_icmp_ignored += 1,
            },
            Ok(icmpv6::Message::Solicitation(message)) => self.on_solicitation(packet, &message),
            Ok(icmpv6::Message::Advertisement(message)) => self.on_advertisement(packet, &message),
            Err(why) => self.on_bad_icmp(why),
        }
    }

    fn on_bad_icmp(&mut self, why: Malformed) {
        match why {
            Malformed::Checksum => self.protocols.counters.rx_icmp_checksum += 1,
            _ => self.protocols.counters.rx_icmp_unsupported += 1,
        }
    }

    /// Hands an error to the protocol whose packet it is about.
    fn on_icmp_error(&mut self, error: &IcmpError<'_>) {
        if !self.iface.addresses.has(error.local) || !is_unicast_ip(error.remote) {
            self.protocols.counters.rx_icmp_ignored += 1;
            return;
        }
        match error.protocol {
            Protocol::Tcp => self.on_tcp_error(error),
            //= RFC 1122 section 4.1.3.3: errors are passed up to the application; RUD finds out by itself.
            Protocol::Udp if self.protocols.sockets.on_error(error) => {
                self.protocols.counters.rx_icmp_errors += 1
            }
            _ => self.protocols.counters.rx_icmp_ignored += 1,
        }
    }

    fn on_echo(&mut self, packet: &Inbound<'_>, echo: &Echo<'_>) {
        let received = ReceivedEcho {
            from: packet.source,
            identifier: echo.identifier,
            sequence: echo.sequence,
            len: echo.data.len(),
            at: self.now,
        };
        match echo.kind {
            EchoKind::Request => {
                self.protocols.counters.rx_echo_requests += 1;
                if self.protocols.echo_requests.len() >= ECHO_QUEUE {
                    self.protocols.echo_requests.pop_front();
                }
                self.protocols.echo_requests.push_back(received);
                //= RFC 1122 section 3.2.2.6: an echo server; source and destination change places, data is kept.
                //= RFC 4443 section 4.2: likewise.
                self.answer_echo(packet, &Echo { kind: EchoKind::Reply, ..*echo });
            }
            EchoKind::Reply if self.protocols.echo_replies.len() >= ECHO_QUEUE => {
                self.protocols.counters.rx_echo_queue_full += 1
            }
            EchoKind::Reply => {
                self.protocols.counters.rx_echo_replies += 1;
                self.protocols.echo_replies.push_back(received);
            }
        }
    }

    fn answer_echo(&mut self, request: &Inbound<'_>, echo: &Echo<'_>) {
        let to = request.source;
        let from = own_address(self.iface, request.destination, request.to_group, to);
        let sent = match from {
            Some(from) if is_unicast_ip(to) => {
                let ip_len = header_len(&to);
                if ip_len + HEADER_LEN + echo.data.len() > usize::from(self.iface.mtu) {
                    self.answer_in_fragments(from, request, echo)
                } else {
                    send_echo(
                        self.now,
                        self.iface,
                        from,
                        to,
                        echo,
                        Requester::Unauthenticated,
                        &mut self.protocols.counters,
                    )
                }
            }
            _ => Err(SendIcmpError::NoRoute),
        };
        if let Err(why) = sent {
            why.count(&mut self.protocols.counters);
        }
    }

    /// Sends an answer that is longer than a packet may be: all of its fragments, or none.
    fn answer_in_fragments(
        &mut self,
        from: IpAddr,
        request: &Inbound<'_>,
        echo: &Echo<'_>,
    ) -> Result<(), SendIcmpError> {
        let (to, iface) = (request.source, &mut *self.iface);
        let header = echo_header(from, to, echo);
        let (hop, _) = iface.addresses.next_hop(to).ok_or(SendIcmpError::NoRoute)?;
        let mac = match iface.resolve(self.now, hop.address, to, Requester::Unauthenticated) {
            Resolution::Station(mac) => mac,
            Resolution::Limited => return Err(SendIcmpError::Limited),
            // The fragments are not worth so many places in the queue of packets that wait.
            Resolution::Pending | Resolution::Unreachable => return Err(SendIcmpError::Unreachable),
        };
        let mtu = match to {
            //= RFC 8200 section 5: behind a router, a host that does not know the path's MTU sends no more than 1280.
            IpAddr::V6(_) if hop.address != to => ipv6::MIN_MTU,
            _ => iface.mtu,
        };
        let overhead = if to.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN + ipv6::FRAGMENT_LEN };
        let most = usize::from(mtu).saturating_sub(overhead) / 8 * 8;
        let len = HEADER_LEN + echo.data.len();
        if most <= HEADER_LEN || len > usize::from(u16::MAX) - ipv6::HEADER_LEN {
            return Err(SendIcmpError::TooLong);
        }
        if !iface.takes(len.div_ceil(most)) {
            return Err(SendIcmpError::Full);
        }
        let link = iface.link_header(mac, ethertype_of(to));
        for offset in (0..len).step_by(most) {
            let end = len.min(offset + most);
            let ip = fragment_header([from, to], request, echo, (offset, end, len))
                .ok_or(SendIcmpError::TooLong)?;
            // The message's header is in the first one.
            let (first, at) = if offset == 0 { (&header[..], 0) } else { (&[][..], offset - HEADER_LEN) };
            let data = echo.data.get(at..end - HEADER_LEN).unwrap_or(&[]);
            iface.queue_bytes(&link, [&ip, first, data]).map_err(SendIcmpError::from)?;
        }
        Ok(())
    }

    /// Sends an ICMP error about a packet to its sender, if one is allowed.
    #[cold]
    pub(super) fn send_error(&mut self, about: &Inbound<'_>, kind: ErrorKind) {
        let about = About {
            source: about.source,
            destination: about.destination,
            to_group: about.to_group,
            packet: about.packet,
        };
        send_error(
            self.now,
            self.iface,
            &mut self.protocols.icmp_limit,
            &about,
            kind,
            &mut self.protocols.counters,
        );
    }
}

/// A packet that an error is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) to_group: bool,
    /// How it began.
    pub(super) packet: &'a [u8],
}

/// Sends an error, unless the packet must not be answered by one, or the rate limit is reached.
pub(super) fn send_error(
    now: Instant,
    iface: &mut Interface,
    limit: &mut TokenBucket,
    about: &About<'_>,
    kind: ErrorKind,
    counters: &mut Counters,
) {
    let &About { source, destination, to_group, packet } = about;
    //= RFC 4443 section 2.4 (e.3): about a packet for a group only if it has an option that must be known.
    let option = icmpv6::parameter::OPTION;
    let told_groups = matches!(kind, ErrorKind::ParameterProblem { code, .. } if code == option);
    //= RFC 1122 section 3.2.2: not about a packet for many hosts, nor from an address that is not one host's.
    //= RFC 4443 section 2.4 (e.6): likewise.
    if (to_group && !(told_groups && source.is_ipv6())) || !is_unicast_ip(source) || source.is_loopback() {
        return;
    }
    //= RFC 4443 section 2.4 (f): errors are limited in rate.
    if !limit.take(now) {
        counters.tx_icmp_limited += 1;
        return;
    }
    let Some(from) = own_address(iface, destination, to_group, source) else {
        counters.tx_no_route += 1;
        return;
    };
    let max = if source.is_ipv4() { MAX_QUOTE_IPV4 } else { MAX_QUOTE_IPV6 };
    let quoted = packet.get(..packet.len().min(max)).unwrap_or(packet);
    let header = match (from, source) {
        (IpAddr::V6(from), IpAddr::V6(to)) => icmpv6::emit_error(from, to, kind, quoted),
        _ => icmpv4::Message::Error { kind, quoted }.emit(),
    };
    match send_message(now, iface, [from, source], &header, quoted, Requester::Unauthenticated, counters) {
        Ok(()) => counters.tx_icmp_errors += 1,
        Err(why) => why.count(counters),
    }
}

/// The address to answer from: the one that was written to, or for a group the one that suits the asker.
fn own_address(iface: &Interface, destination: IpAddr, to_group: bool, asker: IpAddr) -> Option<IpAddr> {
    if !to_group {
        return Some(destination);
    }
    iface.addresses.next_hop(asker).map(|(_, own)| own)
}

/// The error in an ICMP message, if it quotes enough of a packet.
fn about_ipv4(kind: ErrorKind, quoted: &[u8]) -> Option<IcmpError<'_>> {
    let packet = ipv4::Packet::quoted(quoted).ok()?;
    let transport_prefix = packet.payload();
    if packet.fragment_offset() != 0 || transport_prefix.len() < icmpv4::QUOTED_PAYLOAD {
        return None;
    }
    let kind = match kind {
        //= RFC 1191 section 5: an old router does not say; the next plateau below the packet's length is tried.
        ErrorKind::PacketTooBig { mtu: 0 } => {
            ErrorKind::PacketTooBig { mtu: plateau_below(packet.total_len()) }
        }
        kind => kind,
    };
    Some(IcmpError {
        kind,
        local: packet.source().into(),
        remote: packet.destination().into(),
        protocol: packet.protocol(),
        transport_prefix,
    })
}

/// The error in an ICMPv6 message, if it quotes enough of a packet.
fn about_ipv6(kind: ErrorKind, quoted: &[u8]) -> Option<IcmpError<'_>> {
    let packet = ipv6::Packet::quoted(quoted).ok()?;
    let chain = ipv6::walk(packet.next_header(), packet.payload(), ipv6::HEADER_LEN, false).ok()?;
    let first = chain.fragment.is_none_or(|fragment| fragment.offset == 0);
    if !first || chain.payload.len() < icmpv4::QUOTED_PAYLOAD {
        return None;
    }
    Some(IcmpError {
        kind,
        local: packet.source().into(),
        remote: packet.destination().into(),
        protocol: chain.protocol.into(),
        transport_prefix: chain.payload,
    })
}

/// Why an ICMP message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendIcmpError {
    NoRoute,
    Unreachable,
    Limited,
    TooLong,
    Full,
}

impl From<QueueError> for SendIcmpError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Full => Self::Full,
            QueueError::TooLong => Self::TooLong,
        }
    }
}

impl SendIcmpError {
    fn count(self, counters: &mut Counters) {
        match self {
            Self::NoRoute => counters.tx_no_route += 1,
            Self::Unreachable => counters.tx_unreachable += 1,
            Self::Limited => counters.tx_neighbour_limited += 1,
            Self::TooLong => counters.tx_too_long += 1,
            Self::Full => counters.tx_full += 1,
        }
    }
}

/// Sends an echo message from a port's own address `from`.
pub(super) fn send_echo(
    now: Instant,
    iface: &mut Interface,
    from: IpAddr,
    to: IpAddr,
    echo: &Echo<'_>,
    asker: Requester,
    counters: &mut Counters,
) -> Result<(), SendIcmpError> {
    send_message(now, iface, [from, to], &echo_header(from, to, echo), echo.data, asker, counters)
}

/// The header in front of an echo message's data.
fn echo_header(from: IpAddr, to: IpAddr, echo: &Echo<'_>) -> [u8; HEADER_LEN] {
    match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => icmpv6::emit_echo(from, to, echo),
        _ => icmpv4::Message::Echo(*echo).emit(),
    }
}

/// The headers in front of the bytes from `offset` to `end` of an answer of `len` bytes.
fn fragment_header(
    [from, to]: [IpAddr; 2],
    request: &Inbound<'_>,
    echo: &Echo<'_>,
    (offset, end, len): (usize, usize, usize),
) -> Option<Vec<u8>> {
    let (at, more) = (u16::try_from(offset).ok()?, end < len);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            //= RFC 6864 section 4.3: unique among what this host sends the other of this protocol; as that one's own is.
            let [a, b] = request.packet.get(4..6)?.try_into().ok()?;
            let ip = ipv4::Repr::new(from, to, Protocol::Icmp, end - offset)?;
            Some(ip.emit_fragment(u16::from_be_bytes([a, b]), at, more).to_vec())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let identification = u32::from(echo.identifier) << 16 | u32::from(echo.sequence);
            let fragment = ipv6::Fragment { identification, offset: at, more };
            let next = Protocol::from(ipv6::FRAGMENT);
            let ip = ipv6::Repr::new(from, to, next, ipv6::FRAGMENT_LEN + end - offset)?;
            Some([&ip.emit()[..], &fragment.emit(Protocol::Icmpv6)].concat())
        }
        _ => None,
    }
}

fn send_message(
    now: Instant,
    iface: &mut Interface,
    [from, to]: [IpAddr; 2],
    header: &[u8; HEADER_LEN],
    data: &[u8],
    asker: Requester,
    counters: &mut Counters,
) -> Result<(), SendIcmpError> {
    let protocol = if to.is_ipv4() { Protocol::Icmp } else { Protocol::Icmpv6 };
    let len = HEADER_LEN + data.len();
    let ip = IpHeader::new(from, to, protocol, len, Ecn::NotEct).ok_or(SendIcmpError::TooLong)?;
    let (hop, _) = iface.addresses.next_hop(to).ok_or(SendIcmpError::NoRoute)?;
    let parts: [&[u8]; 3] = [ip.as_bytes(), header, data];
    let mac = match iface.resolve(now, hop.address, to, asker) {
        Resolution::Station(mac) => mac,
        Resolution::Pending => {
            iface.hold(hop.address, parts, asker, counters);
            return Ok(());
        }
        Resolution::Unreachable => return Err(SendIcmpError::Unreachable),
        Resolution::Limited => return Err(SendIcmpError::Limited),
    };
    let link = iface.link_header(mac, ethertype_of(to));
    iface.queue_bytes(&link, parts).map_err(SendIcmpError::from)
}
