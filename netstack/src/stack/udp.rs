//! UDP on a stack: its sockets, and their datagrams out.

use core::net::SocketAddr;

use super::destination::{Miss, ip_udp_len, set_udp, udp_packet_headers};
use super::port::{Port, QueueError};
use super::{SendError, Stack};
use crate::device::Device;
use crate::ip::neighbour::Requester;
use crate::time::Instant;
use crate::udp::{Payload, Sockets, UdpHandle};
use crate::wire::ip::Ecn;
use crate::wire::udp::Repr;

impl<D: Device> Stack<D> {
    /// The UDP sockets.
    pub fn udp(&self) -> &Sockets {
        &self.protocols.sockets
    }

    /// The UDP sockets, to bind and to receive.
    pub fn udp_mut(&mut self) -> &mut Sockets {
        &mut self.protocols.sockets
    }

    /// Queues a UDP datagram of `header` and `payload`. It goes out with the next poll, or when its neighbour's
    /// address is known. An extent must stay as it is until [`Stack::holds_extents`] is false.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Full`] it can be tried again later.
    pub fn udp_send_to(
        &mut self,
        now: Instant,
        socket: UdpHandle,
        to: impl Into<SocketAddr>,
        header: &[u8],
        payload: Payload<'_>,
    ) -> Result<(), SendError> {
        let to = to.into();
        let (local, with_checksum) = self.protocols.sockets.sender(socket).ok_or(SendError::BadSocket)?;
        let len = header.len() + payload.len();
        let source_port = local.port();
        if to.port() == 0 {
            return Err(SendError::BadSocket);
        }
        let (index, source, found) =
            match self.destinations.find(now, &mut self.ports, (&local.ip(), &to.ip()), Requester::User) {
                Ok(template) => (template.port, template.source, Ok(template)),
                Err(Miss::Pending { port, next_hop, source }) => (port, source, Err(next_hop)),
                Err(Miss::Error(error)) => return Err(error),
                Err(Miss::Limited { remote, next_hop }) => {
                    return Err(SendError::Unreachable { remote, next_hop });
                }
            };
        let Some(Port { iface, .. }) = self.ports.get_mut(index) else {
            return Err(SendError::NotOurs { local: local.ip() });
        };
        let mtu = found.as_ref().map_or(iface.mtu, |template| template.mtu);
        let limit = usize::from(mtu).saturating_sub(ip_udp_len(&to.ip()));
        if len > limit {
            return Err(SendError::TooLong { len, limit });
        }
        if found.is_ok() && iface.room() == 0 {
            return Err(SendError::Full);
        }
        let headers = match found {
            Ok(template) => Some(template.udp_headers(source_port, to.port(), len)),
            Err(_) => udp_packet_headers((source, to.ip()), (source_port, to.port()), len, Ecn::NotEct),
        };
        let mut headers = headers.ok_or(SendError::TooLong { len, limit })?;
        //= RFC 8200 section 8.1: over IPv6 a UDP datagram always carries a checksum.
        if (with_checksum || to.is_ipv6())
            && let Some(udp) = Repr::new(source_port, to.port(), len)
        {
            set_udp(&mut headers, udp.emit_with_checksum(source, to.ip(), &[header, payload.as_bytes()]));
        }
        let headers = headers.as_bytes();
        let queued = match (found, payload) {
            (Ok(template), Payload::Bytes(bytes)) => {
                iface.queue_bytes(&template.link(), [headers, header, bytes])
            }
            (Ok(template), Payload::Extent(extent)) => {
                iface.queue_extent(&template.link(), [headers, header], extent)
            }
            (Err(next_hop), payload) => {
                iface.hold(
                    next_hop,
                    [headers, header, payload.as_bytes()],
                    Requester::User,
                    &mut self.protocols.counters,
                );
                Ok(())
            }
        };
        queued.map_err(|error| match error {
            QueueError::Full => SendError::Full,
            QueueError::TooLong => SendError::HeaderTooLong { len: header.len() },
        })
    }
}
