//! Received frames, as the device hands them over.

/// A frame's first piece has at least so many bytes if there are more pieces: every header lies in it.
pub const HEAD_MIN: usize = 256;

/// The device's result for the transport checksum of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// No result: the stack computes it.
    #[default]
    Unknown,
    /// The TCP or UDP checksum holds, or the frame never left memory that is trusted. The field itself may be unfilled, so
    /// it must not be checked again.
    Verified,
}

/// A received frame, borrowed from the device for the call.
///
/// ```
/// use shouter_netstack::device::RxFrame;
///
/// let rest: [&[u8]; 2] = [&[2; 100], &[3; 50]];
/// let frame = RxFrame::with_rest(&[1; 300], &rest);
/// assert_eq!((frame.len(), frame.contiguous()), (450, None));
/// assert_eq!(RxFrame::new(b"whole").contiguous(), Some(&b"whole"[..]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    head: &'a [u8],
    rest: &'a [&'a [u8]],
    /// The device's result for the transport checksum.
    pub checksum: RxChecksum,
    /// Payload bytes of each segment that the device merged, or that a super-segment was to be split into; 0 for a frame as
    /// it was on the wire.
    pub segment_size: u16,
}

impl<'a> RxFrame<'a> {
    /// A frame in one piece, without checksum result and segment size.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { head: bytes, rest: &[], checksum: RxChecksum::Unknown, segment_size: 0 }
    }

    /// A frame in several pieces. If there is a `rest`, `head` has [`HEAD_MIN`] bytes at least: the device's promise.
    #[inline]
    pub const fn with_rest(head: &'a [u8], rest: &'a [&'a [u8]]) -> Self {
        Self { head, rest, checksum: RxChecksum::Unknown, segment_size: 0 }
    }

    /// The same frame with the device's checksum result and segment size.
    #[inline]
    #[must_use]
    pub const fn described(self, checksum: RxChecksum, segment_size: u16) -> Self {
        Self { checksum, segment_size, ..self }
    }

    /// The first piece, from the Ethernet header on, with all headers in it.
    #[inline]
    pub const fn head(&self) -> &'a [u8] {
        self.head
    }

    /// Further pieces: payload, in order.
    #[inline]
    pub const fn rest(&self) -> &'a [&'a [u8]] {
        self.rest
    }

    /// All bytes, if they are in one piece.
    #[inline]
    pub const fn contiguous(&self) -> Option<&'a [u8]> {
        if self.rest.is_empty() { Some(self.head) } else { None }
    }

    /// Length in bytes, Ethernet header included.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.rest.iter().map(|piece| piece.len()).sum::<usize>()
    }

    /// Whether the frame has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, the first one first.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        core::iter::once(self.head).chain(self.rest.iter().copied())
    }

    /// The bytes in a vector of their own.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}
