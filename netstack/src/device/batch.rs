//! The transmit batch: frames as header bytes plus a few extents of payload, with the work that they leave to the
//! device.

use crate::region::Extent;

/// Room for headers in a [`Frame`]: Ethernet, VLAN, IPv6, UDP, RUD and a message header fit.
pub const HEADER_CAPACITY: usize = 176;

/// How many extents a [`Frame`] may have.
pub const MAX_EXTENTS: usize = 4;

/// The protocol whose checksum is left to the resolver of an [`Offload`].
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

/// The work that a frame leaves to the device, or to the port in software where the device cannot do it.
///
/// With a `transport` its checksum field is zero in the header; the resolver of the offload makes the pseudo header
/// from the IP header in the frame and fills the field in. With a `segment_size` the frame is a super-segment of TCP: an
/// IP packet of up to 65,535 bytes that leaves as segments of that much payload each, as NICs do it (TSO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The protocol whose checksum is to be filled in.
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
    /// No bytes.
    const EMPTY: Self = Self {
        header: [0; HEADER_CAPACITY],
        header_len: 0,
        extent_count: 0,
        offload: Offload::NONE,
        payload_len: 0,
        extents: [Extent::EMPTY; MAX_EXTENTS],
    };

    /// A frame of the concatenated `headers` and the payload, which goes out as it is. `None` if the headers exceed
    /// [`HEADER_CAPACITY`].
    #[inline]
    pub fn new(headers: &[&[u8]], extent: Option<Extent>) -> Option<Self> {
        Self::with_extents(headers, extent.as_slice(), Offload::NONE)
    }

    /// A frame of the concatenated `headers` and `extents`. `None` if the headers exceed [`HEADER_CAPACITY`], if there
    /// are more than [`MAX_EXTENTS`] extents, or if the offload's headers are not in place: IP at `l3_offset`, all of
    /// the TCP or UDP header from `l4_offset` on, and no payload behind them where the frame is to be split.
    #[inline]
    pub fn with_extents(headers: &[&[u8]], extents: &[Extent], offload: Offload) -> Option<Self> {
        let mut frame = Self::EMPTY;
        frame.fill(headers, extents, offload).then_some(frame)
    }

    /// Overwrites this with the frame that [`Frame::with_extents`] would give; false if it would give none.
    #[inline]
    fn fill(&mut self, headers: &[&[u8]], extents: &[Extent], offload: Offload) -> bool {
        let mut len = 0;
        for part in headers {
            let Some(place) = self.header.get_mut(len..len + part.len()) else {
                return false;
            };
            place.copy_from_slice(part);
            len += part.len();
        }
        self.complete(len, extents, offload)
    }

    /// Overwrites all but the header, of which `header_len` bytes have been written; false if that is no frame.
    #[inline]
    fn complete(&mut self, header_len: usize, extents: &[Extent], offload: Offload) -> bool {
        self.header_len = header_len.min(HEADER_CAPACITY) as u8;
        self.offload = offload;
        match extents {
            [] => (self.extent_count, self.payload_len) = (0, 0),
            [extent] => {
                self.extents[0] = *extent;
                (self.extent_count, self.payload_len) = (1, extent.len() as u32);
            }
            extents if !self.fill_extents(extents) => return false,
            _ => {}
        }
        offload.is_none() || self.offload_fits()
    }

    /// Takes over several extents; false if they are too many or too long.
    fn fill_extents(&mut self, extents: &[Extent]) -> bool {
        let mut total = 0_usize;
        let Some(places) = self.extents.get_mut(..extents.len()) else {
            return false;
        };
        for (place, extent) in places.iter_mut().zip(extents) {
            total = total.saturating_add(extent.len());
            *place = *extent;
        }
        self.extent_count = extents.len() as u8;
        u32::try_from(total).map(|total| self.payload_len = total).is_ok()
    }

    /// Whether the headers that the offload refers to lie in the header bytes.
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
        let end = l4.saturating_add(transport_len);
        let end_fits = match self.offload.segment_size {
            0 => end <= header.len(),
            // All payload lies in extents.
            _ => end == header.len() && transport == Transport::Tcp,
        };
        end_fits && l4 >= l3 + ip_len
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

    /// The work left to the device.
    #[inline]
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// The bytes are complete: the checksums are filled in.
    #[inline]
    pub fn resolve(&mut self) {
        self.offload = Offload::NONE;
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

    /// The same frame with no lent extent: a device reads it before it has taken it.
    #[inline]
    pub(crate) fn keep(mut self) -> Self {
        self.extents = self.extents.map(Extent::keep);
        self
    }

    /// The bytes: the header, then each extent.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.header()).chain(self.extents().iter().map(Extent::as_bytes))
    }
}

/// Frames queued for a device, in order. Capacity is fixed when it is made; nothing allocates afterwards.
#[derive(Debug)]
pub struct TxBatch {
    /// Twice the room, so that frames move to the front at most once per `capacity` frames. Frames outside of
    /// `head..tail` are left over, to be overwritten in place.
    frames: Box<[Frame]>,
    head: usize,
    tail: usize,
    capacity: usize,
}

impl TxBatch {
    /// A batch with room for `capacity` frames.
    pub fn with_capacity(capacity: usize) -> Self {
        let frames = vec![Frame::EMPTY; capacity.saturating_mul(2)].into_boxed_slice();
        Self { frames, head: 0, tail: 0, capacity }
    }

    /// Frames that wait.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        self.frames.get(self.head..self.tail).unwrap_or_default()
    }

    /// How many frames wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.tail - self.head
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.len()
    }

    /// How many frames fit when none waits.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// The place for the next frame; `None` if only `reserved` ones are left.
    #[inline]
    fn place(&mut self, reserved: usize) -> Option<&mut Frame> {
        if self.room() <= reserved {
            return None;
        }
        if self.tail == self.frames.len() {
            self.frames.copy_within(self.head..self.tail, 0);
            (self.head, self.tail) = (0, self.tail - self.head);
        }
        self.frames.get_mut(self.tail)
    }

    /// Adds a frame; false (and nothing added) when the batch is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> bool {
        let Some(place) = self.place(0) else {
            return false;
        };
        *place = frame;
        self.tail += 1;
        true
    }

    /// Adds the frame that [`Frame::with_extents`] would make, built in its place; false when the batch is full. `None` if it
    /// would make none.
    #[inline]
    pub fn push_parts(&mut self, headers: &[&[u8]], extents: &[Extent], offload: Offload) -> Option<bool> {
        let Some(place) = self.place(0) else {
            return Some(false);
        };
        let filled = place.fill(headers, extents, offload);
        self.tail += usize::from(filled);
        filled.then_some(true)
    }

    /// Room for the header of the next frame, which [`push_written`](Self::push_written) adds then; `None` if there is room for
    /// `reserved` frames at most.
    #[inline]
    pub(crate) fn next_header(&mut self, reserved: usize) -> Option<&mut [u8; HEADER_CAPACITY]> {
        self.place(reserved).map(|frame| &mut frame.header)
    }

    /// Adds the frame whose header of `len` bytes was put into its place, with this payload; false, and nothing added, if that is none. Called
    /// once after each [`next_header`](Self::next_header) at most.
    #[inline]
    pub(crate) fn push_written(&mut self, len: usize, extents: &[Extent], offload: Offload) -> bool {
        let written =
            self.frames.get_mut(self.tail).is_some_and(|frame| frame.complete(len, extents, offload));
        self.tail += usize::from(written);
        written
    }

    /// The frame that [`push_written`](Self::push_written) would add; `None` if it would add none.
    pub(crate) fn written(&mut self, len: usize, extents: &[Extent], offload: Offload) -> Option<Frame> {
        let frame = self.frames.get_mut(self.tail)?;
        frame.complete(len, extents, offload).then_some(*frame)
    }

    /// The frame that was added last, to be completed.
    #[inline]
    pub fn last_mut(&mut self) -> Option<&mut Frame> {
        self.frames.get_mut(self.head..self.tail)?.last_mut()
    }

    /// Removes `count` frames from the front (all, if fewer wait).
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.head = self.head.saturating_add(count).min(self.tail);
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
    }
}
