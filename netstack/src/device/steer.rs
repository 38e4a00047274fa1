//! One queue for many shards: a device without receive-side scaling, steered in software.
//!
//! ```text
//!                   +--> shard 0's stack (the owner polls the device)
//!   device --hash--<---ring--> shard 1's stack        frames are copied once each way;
//!                   +--ring--> shard 2's stack        their buffers go round
//! ```
//!
//! The owner computes the hash of each received frame as a NIC would ([`crate::rss`]), and keeps the frame or passes it
//! on. Frames that the other shards transmit reach the owner by ring and leave with its own next burst. Replies of ARP
//! and neighbour discovery go to all shards, so that each stack learns the neighbours; requests are the owner's. The
//! fragments of a datagram follow the first one, which has the ports.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::VecDeque;

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Capabilities, Device, DeviceCounters, Frame, HEADER_CAPACITY, RxChecksum, RxFrame, TxBatch};
use crate::ip::reassembly::Key;
use crate::rss::Rss;
use crate::scratch::{Scratch, Slot};
use crate::time::Instant;
use crate::wire::ip::Protocol;
use crate::wire::{ethernet, vlan};

#[cfg(test)]
mod tests;

/// A frame in transit between shards, with the device's checksum result and segment size.
struct Passed {
    bytes: Vec<u8>,
    checksum: RxChecksum,
    segment_size: u16,
}

/// One direction between two shards: frames there, their buffers back.
struct Outlet {
    frames: Producer<Passed>,
    spare: Consumer<Vec<u8>>,
}

struct Inlet {
    frames: Consumer<Passed>,
    spare: Producer<Vec<u8>>,
}

/// A ring of `depth` frames.
fn ring(depth: usize) -> (Outlet, Inlet) {
    let (frames, to) = RingBuffer::new(depth);
    let (mut back, spare) = RingBuffer::new(depth);
    for _ in 0..depth {
        // As many places as pushes.
        let _ = back.push(Vec::new());
    }
    (Outlet { frames, spare }, Inlet { frames: to, spare: back })
}

impl Outlet {
    fn room(&self) -> bool {
        !self.frames.is_full()
    }

    /// Copies a frame into the ring; false if it is full.
    fn pass<'a>(
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
    /// Hands the oldest frame to `take`; false if there is none.
    fn take(&mut self, take: impl FnOnce(&Passed)) -> bool {
        let Ok(passed) = self.frames.pop() else {
            return false;
        };
        take(&passed);
        // The buffer came from this ring, so there is a place for it; if the other end is gone, it is freed.
        let _ = self.spare.push(passed.bytes);
        true
    }
}

/// A shard's share of a steered device.
#[derive(Debug)]
pub struct Steered<D>(Share<D>);

#[derive(Debug)]
enum Share<D> {
    Owner(Box<Owner<D>>),
    Secondary(Secondary),
}

/// The shard that polls the device.
struct Owner<D> {
    device: D,
    capabilities: Capabilities,
    rss: Rss,
    /// To each other shard, from 1.
    outlets: Vec<Outlet>,
    inlets: Vec<Inlet>,
    /// Frames of the other shards, to be transmitted.
    batch: TxBatch,
    scratch: Scratch,
    in_flight: Vec<Slot>,
    fragments: Fragments,
    counters: DeviceCounters,
}

/// A shard that is served by the owner.
struct Secondary {
    capabilities: Capabilities,
    mac: [u8; 6],
    outlet: Outlet,
    inlet: Inlet,
    counters: DeviceCounters,
}

impl<D> core::fmt::Debug for Owner<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Owner").field("shards", &(self.outlets.len() + 1)).finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Secondary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Secondary").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// Frames that a shard may hand to the owner before it takes them, and in the other direction.
const DEPTH: usize = 512;

/// Cuts a device into `shards` shares (at least one); the first is the owner's. `rss` says where a flow belongs, and
/// must spread over as many queues.
pub fn steer<D: Device>(device: D, rss: Rss, shards: u16) -> Vec<Steered<D>> {
    let plain = {
        let Capabilities { kind, mtu, burst, .. } = *device.capabilities();
        Capabilities::plain(kind, mtu, burst)
    };
    let mac = device.mac();
    let (mut outlets, mut inlets, mut secondaries) = (vec![], vec![], vec![]);
    for _ in 1..shards.max(1) {
        let ((to_secondary, at_secondary), (to_owner, at_owner)) = (ring(DEPTH), ring(DEPTH));
        outlets.push(to_secondary);
        inlets.push(at_owner);
        let counters = DeviceCounters::default();
        let secondary =
            Secondary { capabilities: plain.clone(), mac, outlet: to_owner, inlet: at_secondary, counters };
        secondaries.push(Steered(Share::Secondary(secondary)));
    }
    let longest = usize::from(plain.mtu) + ethernet::HEADER_LEN + vlan::TAG_LEN;
    let owner = Owner {
        capabilities: device.capabilities().clone(),
        device,
        rss,
        scratch: Scratch::new(if secondaries.is_empty() { 0 } else { 256 }, longest),
        outlets,
        inlets,
        batch: TxBatch::with_capacity(256),
        in_flight: Vec::with_capacity(256),
        fragments: Fragments::default(),
        counters: DeviceCounters::default(),
    };
    let mut shares = vec![Steered(Share::Owner(Box::new(owner)))];
    shares.append(&mut secondaries);
    shares
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
    /// The same, of a datagram's first fragment.
    First { datagram: Key, source: SocketAddr, destination: SocketAddr },
    /// The shard that has the datagram's first fragment.
    Following { datagram: Key },
}

/// Datagrams whose first fragments are recorded.
const DATAGRAMS: usize = 64;

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
    Some(Addressee::Flow {
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

impl<D: Device> Owner<D> {
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let Self { device, rss, outlets, fragments, counters, .. } = self;
        device.receive(now, budget, &mut |frame: RxFrame<'_>| {
            counters.rx_frames += 1;
            counters.rx_bytes += frame.len() as u64;
            let about = (frame.checksum, frame.segment_size);
            let mut pass = |outlet: &mut Outlet| {
                if !outlet.pass(frame.pieces(), about) {
                    counters.dropped += 1;
                }
            };
            let shard = match addressee(frame.head()) {
                Addressee::Owner => 0,
                Addressee::All => {
                    outlets.iter_mut().for_each(&mut pass);
                    0
                }
                Addressee::Flow { source, destination } => usize::from(rss.queue(source, destination)),
                Addressee::First { datagram, source, destination } => {
                    fragments.begin(datagram, rss.queue(source, destination).into())
                }
                Addressee::Following { datagram } => fragments.shard(&datagram),
            };
            match shard.checked_sub(1).and_then(|secondary| outlets.get_mut(secondary)) {
                Some(outlet) => pass(outlet),
                None => sink(frame),
            }
        })
    }

    /// Hands on the frames that the other shards send, as many as there is room for. Returns how many frames the device
    /// took.
    fn forward(&mut self, now: Instant) -> usize {
        if !self.in_flight.is_empty() && self.batch.is_empty() && !self.device.holds_extents() {
            self.in_flight.drain(..).for_each(|slot| self.scratch.release(slot));
        }
        let Self { inlets, batch, scratch, in_flight, counters, .. } = self;
        for inlet in inlets {
            while batch.room() > 0 && scratch.available() > 0 {
                let taken = inlet.take(|passed| {
                    let bytes = passed.bytes.as_slice();
                    let frame = if bytes.len() <= HEADER_CAPACITY {
                        Frame::new(&[bytes], None)
                    } else {
                        let (header, payload) = bytes.split_at(ethernet::HEADER_LEN);
                        scratch.store(&[payload]).and_then(|(slot, extent)| {
                            in_flight.push(slot);
                            Frame::new(&[header], Some(extent))
                        })
                    };
                    if !frame.is_some_and(|frame| batch.push(frame)) {
                        counters.dropped += 1;
                    }
                });
                if !taken {
                    break;
                }
            }
        }
        if self.batch.is_empty() { 0 } else { self.device.transmit(now, &mut self.batch) }
    }
}

// SAFETY: the owner's frames are the inner device's, which keeps the promise; the other shards' are copied within `transmit`.
#[allow(unsafe_code)]
unsafe impl<D: Device> Device for Steered<D> {
    fn capabilities(&self) -> &Capabilities {
        match &self.0 {
            Share::Owner(owner) => &owner.capabilities,
            Share::Secondary(secondary) => &secondary.capabilities,
        }
    }

    fn mac(&self) -> [u8; 6] {
        match &self.0 {
            Share::Owner(owner) => owner.device.mac(),
            Share::Secondary(secondary) => secondary.mac,
        }
    }

    /// A secondary's link is up as long as the owner is there.
    fn link_up(&mut self) -> bool {
        match &mut self.0 {
            Share::Owner(owner) => owner.device.link_up(),
            Share::Secondary(secondary) => !secondary.outlet.frames.is_abandoned(),
        }
    }

    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        match &mut self.0 {
            Share::Owner(owner) => {
                owner.forward(now);
                let taken = owner.device.transmit(now, batch);
                owner.counters.tx_frames += taken as u64;
                taken
            }
            Share::Secondary(secondary) => {
                let mut taken = 0;
                for frame in batch.frames() {
                    if !secondary.outlet.room()
                        || !secondary.outlet.pass(frame.pieces(), (RxChecksum::Unknown, 0))
                    {
                        break;
                    }
                    secondary.counters.tx_frames += 1;
                    secondary.counters.tx_bytes += frame.len() as u64;
                    taken += 1;
                }
                batch.consume(taken);
                taken
            }
        }
    }

    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        match &mut self.0 {
            Share::Owner(owner) => {
                // Frames handed on count as work, so that the owner does not go to sleep on them.
                let forwarded = owner.forward(now);
                owner.receive(now, budget, sink) + forwarded
            }
            Share::Secondary(secondary) => {
                let Secondary { inlet, counters, .. } = secondary;
                let mut count = 0;
                while count < budget
                    && inlet.take(|passed| {
                        counters.rx_frames += 1;
                        counters.rx_bytes += passed.bytes.len() as u64;
                        sink(RxFrame::new(&passed.bytes).described(passed.checksum, passed.segment_size));
                    })
                {
                    count += 1;
                }
                count
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.0 {
            Share::Owner(owner) => owner.device.next_deadline(),
            Share::Secondary(_) => None,
        }
    }

    fn holds_extents(&self) -> bool {
        match &self.0 {
            Share::Owner(owner) => owner.device.holds_extents(),
            Share::Secondary(_) => false,
        }
    }

    fn drop_waiting(&mut self) {
        if let Share::Owner(owner) = &mut self.0 {
            owner.batch.consume(owner.batch.frames().len());
            owner.device.drop_waiting();
        }
    }

    fn counters(&self) -> DeviceCounters {
        match &self.0 {
            Share::Owner(owner) => {
                let device = owner.device.counters();
                DeviceCounters { dropped: device.dropped + owner.counters.dropped, ..device }
            }
            Share::Secondary(secondary) => secondary.counters,
        }
    }
}
