//! The transmit batch: frames as header bytes plus a few extents of payload, and what the device is to do to them.

use crate::region::Extent;

/// Room for headers in a [`Frame`]: Ethernet, VLAN, IPv6, UDP, RUD and a message header fit.
pub const HEADER_CAPACITY: usize = 168;

/// How many extents a [`Frame`] may have.
pub const MAX_EXTENTS: usize = 4;

/// The protocol whose checksum is left to whoever resolves an [`Offload`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The frame is complete: it goes out as it is.
    #[default]
    None,
    /// A TCP segment.
    Tcp,
    /// A UDP datagram.
    Udp,
}

/// What a frame leaves to the device, or to the port in software where the device cannot.
///
/// With a `transport` its checksum field is zero in the header; whoever resolves the offload makes the pseudo header
/// from the IP header in the frame and fills the field in. With a `segment_size` the frame is a super-segment of TCP: an
/// IP packet of up to 65,535 bytes that leaves as segments of that much payload each, as NICs do it (TSO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Whose checksum is to be filled in.
    pub transport: Transport,
    /// Bytes from the start of the frame to the IP header.
    pub l3_offset: u8,
    /// Bytes from the start of the frame to the TCP or UDP header. All of both headers lie in [`Frame::header`].
    pub l4_offset: u8,
    /// TCP payload of each segment in bytes; 0: the frame is not to be split.
    pub segment_size: u16,
}

impl Offload {
    /// Nothing is left to the device.
    pub const NONE: Self = Self { transport: Transport::None, l3_offset: 0, l4_offset: 0, segment_size: 0 };

    /// Whether the frame goes out as it is.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.transport == Transport::None
    }
}

/// One frame to send: header bytes, then the bytes of the extents.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    header: [u8; HEADER_CAPACITY],
    header_len: u8,
    extent_count: u8,
    offload: Offload,
    /// Bytes of the extents together.
    payload_len: u32,
    /// The first `extent_count` count, the others are [`Extent::EMPTY`].
    extents: [Extent; MAX_EXTENTS],
}

impl Frame {
    /// A frame of the concatenated `headers` and the payload, which goes out as it is. `None` if the headers exceed
    /// [`HEADER_CAPACITY`].
    #[inline]
    pub fn new(headers: &[&[u8]], extent: Option<Extent>) -> Option<Self> {
        Self::with_extents(headers, extent.as_slice(), Offload::NONE)
    }

    /// A frame of the concatenated `headers` and `extents`. `None` if the headers exceed [`HEADER_CAPACITY`], if there
    /// are more than [`MAX_EXTENTS`] extents, or if the offload's headers are not in place: IP at `l3_offset`, all of
    /// the TCP or UDP header from `l4_offset` on.
    #[inline]
    pub fn with_extents(headers: &[&[u8]], extents: &[Extent], offload: Offload) -> Option<Self> {
        let mut frame = Self {
            header: [0; HEADER_CAPACITY],
            header_len: 0,
            extent_count: extents.len() as u8,
            offload,
            payload_len: 0,
            extents: [Extent::EMPTY; MAX_EXTENTS],
        };
        let mut len = 0;
        for part in headers {
            frame.header.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        frame.header_len = len as u8;
        for (place, extent) in frame.extents.get_mut(..extents.len())?.iter_mut().zip(extents) {
            frame.payload_len = frame.payload_len.checked_add(u32::try_from(extent.len()).ok()?)?;
            *place = *extent;
        }
        if !offload.is_none() && !frame.offload_fits() {
            return None;
        }
        Some(frame)
    }

    /// Whether the headers that the offload speaks of lie in the header bytes.
    fn offload_fits(&self) -> bool {
        let Offload { transport, l3_offset, l4_offset, .. } = self.offload;
        let (l3, l4) = (usize::from(l3_offset), usize::from(l4_offset));
        let header = self.header();
        let ip_len = match header.get(l3).map(|byte| byte >> 4) {
            Some(4) => 20,
            Some(6) => 40,
            _ => return false,
        };
        let transport_len = match transport {
            //= RFC 9293 section 3.1: the data offset counts 32-bit words, five at least.
            Transport::Tcp => {
                header.get(l4 + 12).map_or(usize::MAX, |byte| usize::from(byte >> 4).max(5) * 4)
            }
            Transport::Udp => 8,
            Transport::None => 0,
        };
        let splittable = transport == Transport::Tcp || self.offload.segment_size == 0;
        splittable && l4 >= l3 + ip_len && l4.saturating_add(transport_len) <= header.len()
    }

    /// The header bytes, from the Ethernet header on.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_len as usize]
    }

    /// The header bytes, to be patched.
    #[inline]
    pub fn header_mut(&mut self) -> &mut [u8] {
        &mut self.header[..self.header_len as usize]
    }

    /// The payload behind the header, at most [`MAX_EXTENTS`] pieces.
    #[inline]
    pub fn extents(&self) -> &[Extent] {
        self.extents.get(..usize::from(self.extent_count)).unwrap_or(&self.extents)
    }

    /// What is left to the device.
    #[inline]
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// The same bytes, complete: whoever filled in the checksums says so.
    #[inline]
    #[must_use]
    pub fn resolved(mut self) -> Self {
        self.offload = Offload::NONE;
        self
    }

    /// Frame length in bytes, without the frame check sequence.
    #[inline]
    pub fn len(&self) -> usize {
        self.header_len as usize + self.payload_len as usize
    }

    /// Whether the frame has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes: the header, then each extent.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.header()).chain(self.extents().iter().map(Extent::as_bytes))
    }
}

/// Frames on their way to a device, in order. Capacity is fixed when it is made; nothing allocates afterwards.
#[derive(Debug)]
pub struct TxBatch {
    frames: Vec<Frame>,
    head: usize,
    capacity: usize,
}

impl TxBatch {
    /// A batch with room for `capacity` frames.
    pub fn with_capacity(capacity: usize) -> Self {
        // Twice the room, so that frames move to the front at most once per `capacity` frames.
        Self { frames: Vec::with_capacity(2 * capacity), head: 0, capacity }
    }

    /// Frames that wait.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[self.head..]
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - (self.frames.len() - self.head)
    }

    /// Whether no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.len() == self.head
    }

    /// Adds a frame; false (and nothing added) when the batch is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> bool {
        if self.room() == 0 {
            return false;
        }
        if self.frames.len() == 2 * self.capacity {
            self.frames.drain(..self.head);
            self.head = 0;
        }
        self.frames.push(frame);
        true
    }

    /// Removes `count` frames from the front (all, if fewer wait).
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.head = self.head.saturating_add(count).min(self.frames.len());
        if self.head == self.frames.len() {
            self.frames.clear();
            self.head = 0;
        }
    }
}
