//! What a device that is steered, and one whose hardware spreads flows, have in common: from a received frame to its shard, and the rings
//! by which frames go from shard to shard.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::VecDeque;

use rtrb::{Consumer, Producer, RingBuffer};

use super::{RxChecksum, RxFrame};
use crate::ip::reassembly::Key;
use crate::rss::Rss;
use crate::wire::ip::Protocol;

#[cfg(test)]
mod tests;

/// A frame in transit between shards, with the device's checksum result and segment size.
pub(super) struct Passed {
    pub(super) bytes: Vec<u8>,
    checksum: RxChecksum,
    segment_size: u16,
}

impl Passed {
    /// As the device handed it over.
    pub(super) fn frame(&self) -> RxFrame<'_> {
        RxFrame::new(&self.bytes).described(self.checksum, self.segment_size)
    }
}

/// One direction between two shards: frames there, their buffers back.
pub(super) struct Outlet {
    frames: Producer<Passed>,
    spare: Consumer<Vec<u8>>,
}

pub(super) struct Inlet {
    frames: Consumer<Passed>,
    spare: Producer<Vec<u8>>,
}

/// Frames that a shard may hand to another before that takes them.
pub(super) const DEPTH: usize = 512;

/// A ring of `depth` frames.
pub(super) fn ring(depth: usize) -> (Outlet, Inlet) {
    let (frames, to) = RingBuffer::new(depth);
    let (mut back, spare) = RingBuffer::new(depth);
    for _ in 0..depth {
        // As many places as pushes.
        let _ = back.push(Vec::new());
    }
    (Outlet { frames, spare }, Inlet { frames: to, spare: back })
}

impl Outlet {
    /// Whether the other end is there.
    pub(super) fn is_served(&self) -> bool {
        !self.frames.is_abandoned()
    }

    pub(super) fn room(&self) -> bool {
        !self.frames.is_full()
    }

    /// Copies a frame into the ring; false if it is full.
    pub(super) fn pass<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        (checksum, segment_size): (RxChecksum, u16),
    ) -> bool {
        let Ok(mut bytes) = self.spare.pop() else {
            return false;
        };
        bytes.clear();
        pieces.for_each(|piece| bytes.extend_from_slice(piece));
        // There is room: buffers in use are never more than places.
        self.frames.push(Passed { bytes, checksum, segment_size }).is_ok()
    }
}

impl Inlet {
    /// Frames that can be taken.
    pub(super) fn waiting(&self) -> usize {
        self.frames.slots()
    }

    /// Hands the oldest frame to `take`; false if there is none.
    pub(super) fn take(&mut self, take: impl FnOnce(&Passed)) -> bool {
        let Ok(passed) = self.frames.pop() else {
            return false;
        };
        take(&passed);
        // The buffer came from this ring, so there is a place for it; if the other end is gone, it is freed.
        let _ = self.spare.push(passed.bytes);
        true
    }
}

/// Deals out frames that one shard receives: keeps its own, and copies those of others into their rings.
pub(super) struct Dealer {
    rss: Rss,
    /// To each other shard, from 1.
    outlets: Vec<Outlet>,
    fragments: Fragments,
    /// Frames that found no room.
    pub(super) dropped: u64,
    /// Whole packets of other shards' flows that arrived here.
    pub(super) strayed: u64,
}

impl Dealer {
    pub(super) fn new(rss: Rss, outlets: Vec<Outlet>) -> Self {
        Self { rss, outlets, fragments: Fragments::default(), dropped: 0, strayed: 0 }
    }

    /// The number of shards.
    pub(super) fn shards(&self) -> usize {
        self.outlets.len() + 1
    }

    /// Passes a frame on, or hands it to `keep`.
    pub(super) fn deal(&mut self, frame: RxFrame<'_>, keep: &mut impl FnMut(RxFrame<'_>)) {
        let Self { rss, outlets, fragments, dropped, strayed } = self;
        let about = (frame.checksum, frame.segment_size);
        let mut pass = |outlet: &mut Outlet| {
            if !outlet.pass(frame.pieces(), about) {
                *dropped += 1;
            }
        };
        let shard = match addressee(frame.head()) {
            Addressee::Owner => 0,
            Addressee::All => {
                outlets.iter_mut().for_each(&mut pass);
                0
            }
            Addressee::Flow { source, destination } => {
                let shard = usize::from(rss.queue(source, destination));
                *strayed += u64::from(shard != 0);
                shard
            }
            Addressee::Quoted { source, destination } => usize::from(rss.queue(source, destination)),
            Addressee::First { datagram, source, destination } => {
                fragments.begin(datagram, rss.queue(source, destination).into())
            }
            Addressee::Following { datagram } => fragments.shard(&datagram),
        };
        match shard.checked_sub(1).and_then(|other| outlets.get_mut(other)) {
            Some(outlet) => pass(outlet),
            None => keep(frame),
        }
    }
}

/// The shards that a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressee {
    /// The owner.
    Owner,
    /// Every shard.
    All,
    /// The shard to which this flow belongs.
    Flow { source: SocketAddr, destination: SocketAddr },
    /// The shard to which the flow belongs that an error of ICMP quotes.
    Quoted { source: SocketAddr, destination: SocketAddr },
    /// As a flow's, of a datagram's first fragment.
    First { datagram: Key, source: SocketAddr, destination: SocketAddr },
    /// The shard that has the datagram's first fragment.
    Following { datagram: Key },
}

/// Datagrams whose first fragments are recorded.
pub(super) const DATAGRAMS: usize = 64;

/// The shards that got the first fragments of the latest datagrams. A fragment that arrives before the first, or long
/// after it, is the owner's, where it never becomes whole: the datagram is lost, and no shard answers for another.
#[derive(Debug, Default)]
struct Fragments {
    shards: VecDeque<(Key, usize)>,
}

impl Fragments {
    fn begin(&mut self, datagram: Key, shard: usize) -> usize {
        // An identification that comes round means another datagram.
        self.shards.retain(|(known, _)| *known != datagram);
        self.shards.truncate(DATAGRAMS - 1);
        self.shards.push_front((datagram, shard));
        shard
    }

    fn shard(&self, datagram: &Key) -> usize {
        self.shards.iter().find(|(known, _)| known == datagram).map_or(0, |(_, shard)| *shard)
    }
}

/// Chooses a frame's shard by its headers. All other frames are the owner's, whose stack counts them.
fn addressee(frame: &[u8]) -> Addressee {
    let packet = |at: usize| frame.get(at..).unwrap_or_default();
    let (mut ethertype, mut body) = (frame.get(12..14), packet(14));
    if ethertype == Some(&[0x81, 0x00]) {
        (ethertype, body) = (frame.get(16..18), packet(18));
    }
    let found = match ethertype {
        Some([0x08, 0x06]) => arp(body),
        Some([0x08, 0x00]) | Some([0x86, 0xdd]) => ip(body),
        _ => None,
    };
    found.unwrap_or(Addressee::Owner)
}

fn arp(body: &[u8]) -> Option<Addressee> {
    // An answer, or an announcement, whose sender and target are the same (RFC 5227 section 3).
    let operation = body.get(6..8)?;
    let announced = body.get(14..18)? == body.get(24..28)?;
    (operation == [0, 2] || announced).then_some(Addressee::All)
}

fn ip(packet: &[u8]) -> Option<Addressee> {
    let Packet { protocol, source, destination, fragment, body } = split(packet)?;
    match protocol {
        Protocol::Tcp | Protocol::Udp => {
            if let Some((datagram, false)) = fragment {
                return Some(Addressee::Following { datagram });
            }
            let (from, to) = ports(body)?;
            let (source, destination) = (SocketAddr::new(source, from), SocketAddr::new(destination, to));
            Some(match fragment {
                Some((datagram, _)) => Addressee::First { datagram, source, destination },
                None => Addressee::Flow { source, destination },
            })
        }
        _ if fragment.is_some() => None,
        // An ICMP error goes to the shard of the flow that it quotes, with source and destination swapped.
        Protocol::Icmp if matches!(body.first()?, 3 | 11 | 12) => quoted(body.get(8..)?),
        Protocol::Icmpv6 if *body.first()? < 128 => quoted(body.get(8..)?),
        // A neighbour advertisement.
        Protocol::Icmpv6 if *body.first()? == 136 => Some(Addressee::All),
        _ => None,
    }
}

fn quoted(packet: &[u8]) -> Option<Addressee> {
    let Packet { protocol, source, destination, fragment, body } = split(packet)?;
    let is_flow = fragment.is_none() && matches!(protocol, Protocol::Tcp | Protocol::Udp);
    let (from, to) = ports(body).filter(|_| is_flow)?;
    Some(Addressee::Quoted {
        source: SocketAddr::new(destination, to),
        destination: SocketAddr::new(source, from),
    })
}

/// The fields that decide which shard a packet is for.
struct Packet<'a> {
    protocol: Protocol,
    source: IpAddr,
    destination: IpAddr,
    /// The datagram that it is a fragment of, and whether it is the first.
    fragment: Option<(Key, bool)>,
    body: &'a [u8],
}

/// Bytes of the more-fragments flag and the offset: of IPv4 (RFC 791 section 3.1), and of IPv6 (RFC 8200 section 4.5),
/// where the offset alone is distinguished too.
const FRAGMENT_IPV4: u16 = 0x3fff;
const OFFSET_IPV4: u16 = 0x1fff;
const OFFSET_IPV6: u16 = 0xfff8;

/// The number of IPv6's fragment header.
const FRAGMENT_HEADER: u8 = 44;

fn split(packet: &[u8]) -> Option<Packet<'_>> {
    let first = *packet.first()?;
    match first >> 4 {
        4 => {
            let fixed = packet.first_chunk::<20>()?;
            let address =
                |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]).into();
            let (source, destination) = (address(12), address(16));
            let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
            let identification = word(4).into();
            let datagram = Key { port: 0, source, destination, protocol: fixed[9], identification };
            let fragment = (word(6) & FRAGMENT_IPV4 != 0).then_some((datagram, word(6) & OFFSET_IPV4 == 0));
            let body = packet.get(usize::from(first & 0xf) * 4..)?;
            Some(Packet { protocol: fixed[9].into(), source, destination, fragment, body })
        }
        6 => {
            let fixed = packet.first_chunk::<40>()?;
            let address = |bytes: &[u8]| Some(IpAddr::from(*bytes.first_chunk::<16>()?));
            let (source, destination) = (address(&fixed[8..24])?, address(&fixed[24..40])?);
            let body = &packet[40..];
            if fixed[6] != FRAGMENT_HEADER {
                return Some(Packet { protocol: fixed[6].into(), source, destination, fragment: None, body });
            }
            let ([next, _, offset @ .., a, b, c, d], body) = body.split_first_chunk::<8>()?;
            let identification = u32::from_be_bytes([*a, *b, *c, *d]);
            let datagram = Key { port: 0, source, destination, protocol: 0, identification };
            let fragment = Some((datagram, u16::from_be_bytes(*offset) & OFFSET_IPV6 == 0));
            Some(Packet { protocol: (*next).into(), source, destination, fragment, body })
        }
        _ => None,
    }
}

fn ports(body: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *body.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}
