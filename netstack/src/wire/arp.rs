//! The Address Resolution Protocol for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::Malformed;
use super::ethernet::Mac;

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const PACKET_LEN: usize = 28;

/// Hardware type 1, protocol type 0x0800, lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Requests the station of the target's protocol address.
    Request = 1,
    /// The sender has it.
    Reply = 2,
}

/// An ARP packet for IPv4 over Ethernet as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Question or answer.
    pub operation: Operation,
    /// The sender's station.
    pub sender: Mac,
    /// Its address.
    pub sender_ip: Ipv4Addr,
    /// The target's station; zero in a broadcast request.
    pub target: Mac,
    /// The address requested; in a reply, the requester's.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// Parses an ARP packet; trailing padding is ignored.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] below 28 bytes; [`Malformed::Unsupported`] if it is not IPv4 over Ethernet, or
    /// neither request nor reply, or its sender is not a station.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; PACKET_LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
        //= RFC 826, Packet Reception: do I have the hardware type, do I speak the protocol; lengths are checked too.
        if bytes[..6] != ETHERNET_IPV4 {
            return Err(Malformed::Unsupported);
        }
        let operation = match bytes[6..8] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return Err(Malformed::Unsupported),
        };
        let mac = |at: usize| Mac(core::array::from_fn(|i| bytes[at + i]));
        let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let sender = mac(8);
        if !sender.is_station() {
            return Err(Malformed::Unsupported);
        }
        Ok(Self { operation, sender, sender_ip: ip(14), target: mac(18), target_ip: ip(24) })
    }

    /// The packet as bytes.
    pub fn emit(&self) -> [u8; PACKET_LEN] {
        let mut out = [0; PACKET_LEN];
        out[..6].copy_from_slice(&ETHERNET_IPV4);
        out[7] = self.operation as u8;
        out[8..14].copy_from_slice(&self.sender.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target.0);
        out[24..].copy_from_slice(&self.target_ip.octets());
        out
    }
}
