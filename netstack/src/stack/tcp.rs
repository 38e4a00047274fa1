//! TCP over IP: segments in, ICMP errors in, segments out.

use core::net::{IpAddr, SocketAddr};

use super::destination::{Emitter, Miss, route};
use super::receive::{Inbound, Receiver};
use super::{SendError, Stack};
use crate::device::{Device, Offload, RxChecksum, Transport};
use crate::ip::neighbour::Requester;
use crate::ip::{IcmpError, IcmpErrorKind};
use crate::region::Extent;
use crate::rud;
use crate::tcp::{
    ConnectError, ConnectionId, Destination, Emit, Emitted, Endpoint, IcmpKind, Options, Path, Payload,
    SegmentMeta,
};
use crate::time::Instant;
use crate::udp::any_like;
use crate::wire::checksum::pseudo_header_ip;
use crate::wire::ip::{Ecn, IpHeader, Protocol, header_len};
use crate::wire::tcp::{Flags, HEADER_LEN, MAX_HEADER_LEN, SeqNumber};

#[cfg(test)]
mod tests;

/// The TCP header at the front of a packet's payload, and the segment's payload; `None` if it is cut off.
#[inline]
fn split(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    //= RFC 9293 section 3.1: the data offset counts 32-bit words.
    let len = usize::from(payload.get(12)? >> 4) * 4;
    payload.split_at_checked(len.max(HEADER_LEN))
}

/// Whether the checksum over pseudo header, header and payload holds.
#[inline]
fn checksum_ok(packet: &Inbound<'_>) -> bool {
    //= RFC 9293 section 3.1, MUST-3: the checksum of every segment is verified.
    let len = packet.payload.len() + packet.rest.iter().map(|piece| piece.len()).sum::<usize>();
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let sum = pseudo_header_ip(packet.source, packet.destination, Protocol::Tcp, len);
    packet.rest.iter().fold(sum.over(packet.payload), |sum, piece| sum.over(piece)).is_valid()
}

impl<S: rud::Sink> Receiver<'_, S> {
    /// Takes in a segment. Its checksum was not checked unless `packet.checksum` says so.
    #[inline]
    pub(super) fn on_tcp(&mut self, packet: &Inbound<'_>) {
        let Some((header, payload)) = split(packet.payload) else {
            self.protocols.counters.rx_tcp_malformed += 1;
            return;
        };
        if packet.checksum == RxChecksum::Unknown && !checksum_ok(packet) {
            self.protocols.counters.rx_tcp_checksum += 1;
            return;
        }
        self.protocols.counters.rx_tcp += 1;
        let meta = SegmentMeta {
            source: packet.source,
            destination: packet.destination,
            congestion_experienced: packet.ecn == Ecn::Ce,
        };
        let payload = Payload { head: payload, rest: packet.rest };
        match self.unproven(packet.source) {
            None => self.protocols.tcp.on_segment(self.now, &meta, header, payload),
            Some(neighbour) => {
                let before = self.protocols.tcp.acknowledged(&meta, header);
                self.protocols.tcp.on_segment(self.now, &meta, header, payload);
                if before.is_some() && before != self.protocols.tcp.acknowledged(&meta, header) {
                    self.iface.neighbours.confirm(self.now, neighbour);
                }
            }
        }
    }

    /// Takes in an ICMP error about a segment of ours. Anybody can send such a message: its sequence number has to be
    /// checked before it has an effect.
    pub(super) fn on_tcp_error(&mut self, error: &IcmpError<'_>) {
        let Some(([a, b, c, d, seq @ ..], _)) = error.transport_prefix.split_first_chunk::<8>() else {
            self.protocols.counters.rx_icmp_ignored += 1;
            return;
        };
        let refused = match error.remote {
            //= RFC 1122 section 4.2.3.9: protocol and port unreachable are hard errors, the others soft.
            IpAddr::V4(_) => [2, 3].as_slice(),
            //= RFC 4443 section 3.1: code 4 is the port.
            IpAddr::V6(_) => &[4],
        };
        let kind = match error.kind {
            IcmpErrorKind::PacketTooBig { mtu } => IcmpKind::TooBig(mtu),
            IcmpErrorKind::Unreachable { code } if refused.contains(&code) => IcmpKind::Refused,
            _ => IcmpKind::Unreachable,
        };
        let error = crate::tcp::SegmentIcmpError {
            local: SocketAddr::new(error.local, u16::from_be_bytes([*a, *b])),
            remote: SocketAddr::new(error.remote, u16::from_be_bytes([*c, *d])),
            seq: SeqNumber(u32::from_be_bytes(*seq)),
            kind,
        };
        if self.protocols.tcp.on_icmp_error(self.now, &error) {
            self.protocols.counters.rx_icmp_errors += 1;
        } else {
            self.protocols.counters.rx_icmp_ignored += 1;
        }
    }
}

/// The requester that a segment is sent for. SYN-ACKs and resets answer segments that anybody can have sent; all others
/// belong to a connection that both sides opened.
fn asker(header: &[u8]) -> Requester {
    let flags = Flags(header.get(13).copied().unwrap_or(0));
    let answer = flags.contains(Flags::SYN.with(Flags::ACK)) || flags.contains(Flags::RST);
    if answer { Requester::Unauthenticated } else { Requester::Session }
}

impl<D: Device> Emitter<'_, D> {
    /// A segment whose neighbour is not known waits for it, if it is one packet; else it is lost, and sent again.
    #[cold]
    fn hold_segment(&mut self, miss: Miss, to: &Destination, header: &[u8], payload: &[Extent]) -> Emitted {
        let (port, next_hop, _) = match self.pending(miss) {
            Ok(at) => at,
            Err(emitted) => return emitted,
        };
        let (local, remote) = (to.local.ip(), to.remote.ip());
        let bytes: Vec<u8> = payload.iter().flat_map(|extent| extent.as_bytes()).copied().collect();
        let len = header.len() + bytes.len();
        let ecn = if to.ect { Ecn::Ect0 } else { Ecn::NotEct };
        let ip = IpHeader::new(local, remote, Protocol::Tcp, len, ecn);
        let (Some(ip), Some(port)) = (ip, self.ports.get_mut(port)) else {
            self.counters.tx_too_long += 1;
            return Emitted::Sent;
        };
        let mut header = header.to_vec();
        //= RFC 9293 section 3.1, MUST-2: every segment that is sent has a checksum.
        let sum = pseudo_header_ip(local, remote, Protocol::Tcp, len as u32);
        let checksum = sum.over(&header).over(&bytes).finish().to_be_bytes();
        if let Some(field) = header.get_mut(16..18) {
            field.copy_from_slice(&checksum);
        }
        let asker = asker(&header);
        port.iface.hold(next_hop, [ip.as_bytes(), &header, &bytes], asker, self.counters);
        Emitted::Sent
    }
}

impl<D: Device> Emit for Emitter<'_, D> {
    fn path(&mut self, local: IpAddr, remote: IpAddr) -> Option<Path> {
        let (index, mtu) = match self.destinations.find_known(self.ports, &local, &remote) {
            Some(template) => (template.port, template.mtu),
            None => {
                let way = route(self.ports, local, remote).ok()?;
                let mtu = self.ports.get(way.port)?.iface.mtu;
                (way.port, self.destinations.path_mtu(remote).map_or(mtu, |path| path.min(mtu)))
            }
        };
        let port = self.ports.get(index)?;
        let longest = port.super_segment_max(usize::from(mtu));
        let ip_len = header_len(&remote);
        let one = usize::from(mtu).saturating_sub(ip_len + HEADER_LEN);
        let max_payload = longest.saturating_sub(ip_len + MAX_HEADER_LEN).max(one) as u32;
        let max_extents = port.device.capabilities().max_extents;
        Some(Path { mtu, max_payload, max_extents, max_segments: port.segments_max() })
    }

    fn source(&mut self, remote: IpAddr) -> Option<IpAddr> {
        route(self.ports, any_like(remote), remote).ok().map(|way| way.source)
    }

    #[inline]
    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted {
        let (local, remote) = (to.local.ip(), to.remote.ip());
        let template = match self.destinations.find(self.now, self.ports, (&local, &remote), asker(header)) {
            Ok(template) => template,
            Err(miss) => return self.hold_segment(miss, to, header, payload),
        };
        let payload_len = match payload {
            [extent] => extent.len(),
            extents => extents.iter().map(Extent::len).sum(),
        };
        let split = segment_size > 0 && payload_len > usize::from(segment_size);
        let packet_len = if split { usize::from(segment_size) } else { payload_len } + header.len();
        let len = header.len() + payload_len;
        if packet_len + header_len(&remote) > usize::from(template.port_mtu) || len > usize::from(u16::MAX) {
            self.counters.tx_too_long += 1;
            return Emitted::Sent;
        }
        let Some(port) = self.ports.get_mut(template.port) else {
            return Emitted::NoRoute;
        };
        let ecn = if to.ect { Ecn::Ect0 } else { Ecn::NotEct };
        let Some(frame) = port.iface.next_header() else {
            return Emitted::NoRoom;
        };
        let Some((l4_offset, header_len)) = template.put_tcp(frame, (header, len), ecn) else {
            self.counters.tx_too_long += 1;
            return Emitted::Sent;
        };
        //= RFC 9293 section 3.1, MUST-2: the checksum is filled in behind here, by the device or in its place.
        let offload = Offload {
            transport: Transport::Tcp,
            l3_offset: template.link_len,
            l4_offset: l4_offset as u8,
            segment_size: if split { segment_size } else { 0 },
        };
        let ip_len = l4_offset - usize::from(template.link_len) + len;
        // Not more than 16 bits, as checked above; in IPv6's pseudo header its upper half is zero.
        let pseudo = template.tcp_pseudo.add_u16(len as u16);
        match port.push_written_offloaded(header_len, payload, offload, ip_len, pseudo) {
            Some(true) => {
                self.counters.tx_tcp += 1;
                Emitted::Sent
            }
            Some(false) => Emitted::NoRoom,
            None => {
                self.counters.tx_too_long += 1;
                Emitted::Sent
            }
        }
    }

    #[inline]
    fn flush_now(&mut self) {
        if self.alone {
            let now = self.now;
            self.taken += self.ports.iter_mut().map(|port| port.flush(now)).sum::<usize>();
        }
    }
}

impl<D: Device> Stack<D> {
    /// The TCP endpoint.
    pub fn tcp(&self) -> &Endpoint {
        &self.protocols.tcp
    }

    /// The TCP endpoint, to listen, and to use connections.
    pub fn tcp_mut(&mut self) -> &mut Endpoint {
        &mut self.protocols.tcp
    }

    /// Opens a TCP connection to `remote`, from `local` or from a suitable address and port of ours; with
    /// [`StackConfig::rss`](super::StackConfig::rss) from a port whose answers arrive at this stack.
    ///
    /// # Errors
    /// [`ConnectError`] gives the reason.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: Option<Options>,
    ) -> Result<ConnectionId, ConnectError> {
        let local = self.tcp_source(local, remote)?;
        let Some((rss, queue)) = &self.protocols.config.rss else {
            return self.protocols.tcp.connect(now, local, remote, options);
        };
        let (ip, peer) = (local.ip(), SocketAddr::new(remote.ip().to_canonical(), remote.port()));
        let is_ours = &mut |port| rss.replies_to(*queue, SocketAddr::new(ip, port), peer);
        self.protocols.tcp.connect_from(now, local, remote, options, is_ours)
    }

    //= RFC 9293 section 3.9.1.1, MUST-43: the user may name the local address; MUST-44: else the route to the peer does.
    /// The local address and port of a connection to `remote`.
    fn tcp_source(&self, local: Option<SocketAddr>, remote: SocketAddr) -> Result<SocketAddr, ConnectError> {
        let remote_ip = remote.ip().to_canonical();
        let asked = local.unwrap_or(SocketAddr::new(any_like(remote_ip), 0));
        let ip = match asked.ip().to_canonical() {
            // [::] stands for both families.
            ip if ip.is_unspecified() && (ip.is_ipv6() || remote_ip.is_ipv4()) => any_like(remote_ip),
            ip => ip,
        };
        match route(&self.ports, ip, remote_ip) {
            Ok(way) => Ok(SocketAddr::new(way.source, asked.port())),
            Err(SendError::NotUnicast { .. }) => Err(ConnectError::BadRemote { remote }),
            Err(SendError::Own { .. }) => Err(ConnectError::Own { remote }),
            Err(SendError::NotOurs { .. }) => Err(ConnectError::NotOurs { local: asked }),
            Err(_) => Err(ConnectError::NoRoute { remote }),
        }
    }
}
