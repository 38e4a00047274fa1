//! TCP segments on simulated links, for endpoints without a stack around them.

use core::net::{IpAddr, SocketAddr};

use super::link::{Link, Packet};
use crate::region::Extent;
use crate::tcp::{Destination, Emit, Emitted, Endpoint, Path, Payload, SegmentMeta};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, SeqNumber};

/// Ethernet and IPv4 headers, preamble, check sequence and gap: a segment's overhead on the line, in bytes.
const OVERHEAD: u64 = 20 + 14 + 8 + 4 + 12;

/// A segment with its addresses.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The receiver's address and port.
    pub destination: SocketAddr,
    /// The TCP header with its options, as bytes.
    pub header: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Whether it may be marked (RFC 3168: ECT).
    pub ect: bool,
    /// Whether it was marked (CE).
    pub marked: bool,
}

impl Segment {
    /// The sequence number in the header.
    pub fn seq(&self) -> SeqNumber {
        SeqNumber(u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]]))
    }

    /// The header, parsed.
    ///
    /// # Panics
    ///
    /// If it is none.
    pub fn parsed(&self) -> Header {
        Header::parse(&self.header).expect("a TCP header").0
    }

    /// The metadata of the segment for the endpoint at the other end.
    pub fn meta(&self) -> SegmentMeta {
        SegmentMeta {
            source: self.source.ip(),
            destination: self.destination.ip(),
            congestion_experienced: self.marked,
        }
    }

    /// Gives the segment to the endpoint at the other end.
    pub fn deliver(&self, now: Instant, endpoint: &mut Endpoint) {
        endpoint.on_segment(now, &self.meta(), &self.header, Payload::new(&self.payload));
    }
}

impl Packet for Segment {
    fn line_len(&self) -> u64 {
        (self.header.len() + self.payload.len()) as u64 + OVERHEAD
    }

    fn mark(&mut self) -> bool {
        self.marked = self.ect;
        self.ect
    }
}

/// The segments that a device would make of an emitted one, each with its own sequence number and flags.
///
/// # Panics
///
/// If a segment with its IP header is longer than the path's MTU, or all of them are longer than the path takes.
pub fn segments(
    to: &Destination,
    header: &[u8],
    payload: &[Extent],
    segment_size: u16,
    path: &Path,
) -> Vec<Segment> {
    let bytes: Vec<u8> = payload.iter().flat_map(|extent| extent.as_bytes()).copied().collect();
    assert!(payload.len() <= path.max_extents, "{} extents", payload.len());
    assert!(bytes.len() <= path.max_payload.max(u32::from(path.mtu)) as usize, "{} bytes", bytes.len());
    let size = if segment_size == 0 { bytes.len() } else { usize::from(segment_size) }.max(1);
    let count = bytes.len().div_ceil(size).max(1);
    let ip = if to.local.is_ipv4() { 20 } else { 40 };
    let each = |index: usize| {
        let part = &bytes[index * size..bytes.len().min((index + 1) * size)];
        assert!(ip + header.len() + part.len() <= usize::from(path.mtu), "a packet longer than the MTU");
        let mut segment = Segment {
            source: to.local,
            destination: to.remote,
            header: header.to_vec(),
            payload: part.to_vec(),
            ect: to.ect,
            marked: false,
        };
        let mut flags = Flags(header[13]);
        if index + 1 < count {
            flags = flags.without(Flags::FIN.with(Flags::PSH));
        }
        if index > 0 {
            flags = flags.without(Flags::CWR);
        }
        let seq = segment.seq() + (index * size) as u32;
        segment.header[4..8].copy_from_slice(&seq.0.to_be_bytes());
        segment.header[13] = flags.0;
        segment
    };
    (0..count).map(each).collect()
}

/// An endpoint's way out, onto a link.
#[derive(Debug)]
pub struct Outlet<'a> {
    /// The time.
    pub now: Instant,
    /// The link that segments go to.
    pub link: &'a mut Link<Segment>,
    /// The path that the endpoint is given.
    pub path: Path,
}

impl Emit for Outlet<'_> {
    fn path(&mut self, _: IpAddr, _: IpAddr) -> Option<Path> {
        Some(self.path)
    }

    fn source(&mut self, _: IpAddr) -> Option<IpAddr> {
        None
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted {
        for segment in segments(to, header, payload, segment_size, &self.path) {
            self.link.send(self.now, segment);
        }
        Emitted::Sent
    }
}
