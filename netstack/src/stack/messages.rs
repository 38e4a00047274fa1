//! RUD on a stack: datagrams in and out, and the calls that its users make.

use core::net::{IpAddr, SocketAddr};

use super::destination::{Emitter, Miss, ip_udp_len, route, udp_packet_headers};
use super::port::QueueError;
use super::receive::Receiver;
use super::{Progress, SendError, Stack};
use crate::device::{Device, HEADER_CAPACITY, Offload, RxChecksum};
use crate::ip::neighbour::Requester;
use crate::region::Extent;
use crate::rud;
use crate::time::Instant;
use crate::udp::any_like;
use crate::wire::ip::Ecn;
use crate::wire::rud::{HEADER_LEN, MAX_BODY, SPLIT_LEN};
use crate::wire::{ethernet, udp, vlan};

/// The longest datagram that fits a frame's headers behind those of link, IP and UDP.
const SHORT: usize = HEADER_CAPACITY - (ethernet::HEADER_LEN + vlan::TAG_LEN + 40 + udp::HEADER_LEN);
// That of a piece with the longest message header does.
const _: () = assert!(SHORT >= HEADER_LEN + MAX_BODY + SPLIT_LEN);

impl<D: Device> Stack<D> {
    /// As [`Stack::poll`], with the upper layer of RUD's sessions.
    #[inline]
    pub fn poll_with(&mut self, now: Instant, sink: &mut impl rud::Sink) -> Progress {
        Progress { frames_in: self.receive_with(now, sink), frames_out: self.transmit(now) }
    }

    /// As [`Stack::receive`], with the upper layer of RUD's sessions.
    #[inline]
    pub fn receive_with(&mut self, now: Instant, sink: &mut impl rud::Sink) -> usize {
        self.take_in(now, sink)
    }

    /// The RUD endpoint.
    pub fn rud(&self) -> &rud::Endpoint {
        &self.protocols.rud
    }

    /// The RUD endpoint, to open sessions and send messages.
    pub fn rud_mut(&mut self) -> &mut rud::Endpoint {
        &mut self.protocols.rud
    }

    /// With [`StackConfig::rss`](super::StackConfig::rss) the UDP ports of `local`, from `first` on, from which datagrams to `remote` arrive at
    /// the shard of this stack's number, if the other end deals flows out alike: for [`SessionParams::local_ports`](rud::SessionParams).
    pub fn source_ports(
        &self,
        local: IpAddr,
        remote: SocketAddr,
        first: u16,
    ) -> Option<impl Iterator<Item = u16>> {
        let (rss, shard) = self.protocols.config.rss.as_ref()?;
        Some(rss.source_ports(*shard, local, remote, first))
    }

    /// Largest RUD datagram to `remote`, in bytes.
    ///
    /// # Errors
    /// [`SendError::NoRoute`] or [`SendError::NotUnicast`], or [`SendError::MtuTooSmall`] if no header fits.
    pub fn max_rud_datagram(&self, remote: impl Into<IpAddr>) -> Result<usize, SendError> {
        let remote = remote.into();
        let way = route(&self.ports, any_like(remote), remote)?;
        let mtu = self.ports.get(way.port).map_or(0, |port| port.iface.mtu);
        match rud::datagram_room(usize::from(mtu), &remote) {
            room if room > crate::wire::rud::HEADER_LEN => Ok(room),
            _ => Err(SendError::MtuTooSmall { mtu }),
        }
    }

    /// The UDP port that RUD datagrams arrive at, if the stack takes any.
    pub fn rud_port(&self) -> Option<u16> {
        self.protocols.config.rud_port
    }
}

impl<S: rud::Sink> Receiver<'_, S> {
    /// Takes in a datagram if it is RUD's. First of all in both versions: it is the hot path.
    #[inline(always)]
    pub(super) fn on_rud(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        ecn: Ecn,
        payload: &[u8],
        checksum: RxChecksum,
    ) -> bool {
        let Ok(datagram) = udp::Datagram::new(payload) else {
            return false;
        };
        if Some(datagram.destination_port()) != self.protocols.config.rud_port {
            return false;
        }
        //= RFC 6936 section 4: RUD has a check of its own, so that its datagrams may lack the checksum in IPv6 too.
        //= rud/spec.md section 4.5, RUD-16
        let unchecked = !datagram.has_checksum() || checksum == RxChecksum::Verified;
        if !unchecked && !datagram.checksum_ok(source, destination) {
            self.protocols.counters.rx_udp_checksum += 1;
            return true;
        }
        let meta = rud::DatagramMeta {
            src_ip: source,
            dst_ip: destination,
            src_port: datagram.source_port(),
            dst_port: datagram.destination_port(),
            congestion_experienced: ecn == Ecn::Ce,
        };
        self.protocols.counters.rx_rud += 1;
        let unproven = self.unproven(source);
        let before = unproven.map(|_| self.protocols.rud.acknowledged_to(datagram.payload()));
        self.protocols.rud.on_datagram(self.now, &meta, datagram.payload(), self.sink);
        if let Some(neighbour) = unproven
            && before != Some(self.protocols.rud.acknowledged_to(datagram.payload()))
        {
            self.iface.neighbours.confirm(self.now, neighbour);
        }
        true
    }
}

impl<D: Device> Emitter<'_, D> {
    /// Handles a datagram without a template: it waits for its neighbour, or is dropped. RUD takes a drop for a loss,
    /// and sends again.
    #[cold]
    fn miss(&mut self, miss: Miss, to: &rud::Destination, header: &[u8], payload: Option<Extent>) {
        let Ok((port, next_hop, source)) = self.pending(miss) else { return };
        let payload = payload.as_ref().map_or(&[][..], |extent| extent.as_bytes());
        let len = header.len() + payload.len();
        let ports = (to.src_port, to.dst_port);
        let headers = udp_packet_headers((source, to.remote_ip), ports, len, Ecn::Ect0);
        match (headers, self.ports.get_mut(port)) {
            (Some(headers), Some(port)) => {
                let parts = [headers.as_bytes(), header, payload];
                port.iface.hold(next_hop, parts, Requester::Session, self.counters);
            }
            _ => self.counters.tx_too_long += 1,
        }
    }
}

impl<D: Device> rud::Emit for Emitter<'_, D> {
    #[inline]
    fn room(&self) -> usize {
        match &*self.ports {
            [port] => port.iface.room(),
            ports => ports.iter().map(|port| port.iface.room()).max().unwrap_or(0),
        }
    }

    #[inline]
    fn is_turn_over(&self) -> bool {
        self.turn.is_over()
    }

    /// The UDP checksum stays zero: RUD's CRC32C covers payload, addresses and ports, and finds errors that the 16-bit
    /// sum would miss.
    #[inline(always)]
    fn emit(&mut self, to: &rud::Destination, header: &[u8], payload: Option<Extent>) -> bool {
        //= RFC 768: a UDP checksum of zero says that there is none; over IPv4 that is allowed.
        //= RFC 6936 section 4: over IPv6 too, between hosts that agree on it, with a check of their own over addresses.
        let ends = (&to.local_ip, &to.remote_ip);
        let template = match self.destinations.find(self.now, self.ports, ends, Requester::Session) {
            Ok(template) => template,
            Err(miss) => {
                self.miss(miss, to, header, payload);
                return true;
            }
        };
        let len = header.len() + payload.map_or(0, |extent| extent.len());
        if len + ip_udp_len(&to.remote_ip) > usize::from(template.port_mtu) {
            self.counters.tx_too_long += 1;
            return true;
        }
        let Some(port) = self.ports.get_mut(template.port) else {
            return false;
        };
        let iface = &mut port.iface;
        let Some(frame) = iface.next_header() else {
            return false;
        };
        //= rud/spec.md section 4.4, RUD-14
        match template.put_udp(frame, (to.src_port, to.dst_port), (header, len), Ecn::Ect0) {
            Some(header_len) => {
                iface.push_written(header_len, payload.as_slice(), Offload::NONE);
                iface.note_rud();
                self.counters.tx_rud += 1;
                self.turn.take(len);
            }
            None => self.counters.tx_too_long += 1,
        }
        true
    }

    /// A short datagram is copied into its frame's headers; another is written where the device reads it, in scratch memory of its port.
    fn emit_written(&mut self, to: &rud::Destination, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if len <= SHORT {
            let mut bytes = [0; SHORT];
            write(&mut bytes[..len]);
            return self.emit(to, &bytes[..len], None);
        }
        let ends = (&to.local_ip, &to.remote_ip);
        let template = match self.destinations.find(self.now, self.ports, ends, Requester::Session) {
            Ok(template) => template,
            Err(miss) => {
                let mut bytes = vec![0; len];
                write(&mut bytes);
                self.miss(miss, to, &bytes, None);
                return true;
            }
        };
        let Some(port) = self.ports.get_mut(template.port) else {
            return false;
        };
        let iface = &mut port.iface;
        if iface.room() == 0 {
            return false;
        }
        let remote = to.remote_ip;
        let (ends, ports) = ((template.source, remote), (to.src_port, to.dst_port));
        let queued = match udp_packet_headers(ends, ports, len, Ecn::Ect0) {
            Some(ip_udp) if len + ip_udp_len(&remote) <= usize::from(template.port_mtu) => {
                iface.queue_written(&template.link(), ip_udp.as_bytes(), len, write)
            }
            _ => Err(QueueError::TooLong),
        };
        match queued {
            Ok(()) => {
                iface.note_rud();
                self.counters.tx_rud += 1;
                self.turn.take(len);
                true
            }
            Err(QueueError::Full) => false,
            Err(QueueError::TooLong) => {
                self.counters.tx_too_long += 1;
                true
            }
        }
    }
}
