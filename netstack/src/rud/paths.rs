//! A session's addresses and paths: where its datagrams go, and how they are sealed.

use super::api::{DatagramMeta, Destination, Emit, SessionParams};
use super::crc;
use crate::region::Extent;
use crate::wire::rud::{HEADER_LEN, Header};
use core::net::IpAddr;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// The paths of one session. They differ in the UDP source port alone. Both CRCs are those of the addresses in `to`.
#[derive(Debug)]
pub(super) struct Paths {
    /// That of the last datagram: all have the same but for the source port.
    to: Destination,
    /// The source port of each path, of which there is one at least.
    ports: Arc<[u16]>,
    /// The CRC of the addresses, for datagrams to the peer and for those from it.
    crc_out: u32,
    crc_in: u32,
}

impl Paths {
    pub(super) fn new(params: &SessionParams) -> Self {
        Self {
            to: Destination {
                local_ip: params.local_ip,
                remote_ip: params.remote_ip,
                src_port: params.local_ports.first().copied().unwrap_or(0),
                dst_port: params.remote_port,
            },
            ports: params.local_ports.clone(),
            crc_out: crc::addresses(params.local_ip, params.remote_ip),
            crc_in: crc::addresses(params.remote_ip, params.local_ip),
        }
    }

    /// The peer's address.
    pub(super) fn remote_ip(&self) -> IpAddr {
        self.to.remote_ip
    }

    /// Whether a datagram has the session's addresses. Its ports are covered by the CRC.
    #[inline]
    pub(super) fn lead(&self, meta: &DatagramMeta) -> bool {
        //= rud/spec.md section 3.3, RUD-5
        meta.src_ip == self.to.remote_ip && meta.dst_ip == self.to.local_ip
    }

    /// Whether the CRC of a datagram from the peer is right.
    #[inline]
    pub(super) fn verify(&self, meta: &DatagramMeta, header: &Header, datagram: &[u8]) -> bool {
        crc::verify(datagram, header.body_len, self.crc_in, (meta.src_port, meta.dst_port))
    }

    /// Puts the fixed header, with the CRC if the datagram gets no seal, in front of the body that lies in `head`, which has room for both, and sends both and the payload on `path`. False if `emit`
    /// did not take them.
    // Inlined, as its callers make the header: its fields need not be stored first.
    #[inline(always)]
    pub(super) fn send<const N: usize, E: Emit>(
        &mut self,
        path: u16,
        header: &Header,
        head: &mut [u8; N],
        payload_crc: u32,
        payload: Option<Extent>,
        emit: &mut E,
    ) -> bool {
        let len = header.payload_offset();
        let to = &mut self.to;
        if let Some(port) = self.ports.get(usize::from(path)) {
            to.src_port = *port;
        }
        if let Some((fixed, body)) = head.split_first_chunk_mut::<HEADER_LEN>() {
            header.emit(fixed);
            if !E::SEALS {
                let body = &body[..usize::from(header.body_len)];
                crc::seal(fixed, body, self.crc_out, (to.src_port, to.dst_port), payload_crc);
            }
        }
        emit.emit(to, &head[..len], payload)
    }
}
