//! The transmit batch: frames as header bytes plus at most one extent of payload.

use crate::region::Extent;

/// Room for headers in a [`Frame`]: Ethernet, VLAN, IPv6, UDP, RUD and a message header fit.
pub const HEADER_CAPACITY: usize = 168;

/// One frame to send: header bytes, then the bytes of the extent.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    header: [u8; HEADER_CAPACITY],
    header_len: u8,
    extent: Option<Extent>,
}

impl Frame {
    /// A frame of the concatenated `headers` and the payload. `None` if the headers exceed [`HEADER_CAPACITY`].
    #[inline]
    pub fn new(headers: &[&[u8]], extent: Option<Extent>) -> Option<Self> {
        let mut frame = Self { header: [0; HEADER_CAPACITY], header_len: 0, extent };
        let mut len = 0;
        for part in headers {
            frame.header.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        frame.header_len = len as u8;
        Some(frame)
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

    /// The payload behind the header.
    #[inline]
    pub fn extent(&self) -> Option<Extent> {
        self.extent
    }

    /// Frame length in bytes, without the frame check sequence.
    #[inline]
    pub fn len(&self) -> usize {
        self.header_len as usize + self.extent.map_or(0, |e| e.len())
    }

    /// Whether the frame has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
