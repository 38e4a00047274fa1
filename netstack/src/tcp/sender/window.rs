//! The peer's window, and the segment that announced it.

use super::AckIn;
use crate::wire::tcp::SeqNumber;

/// The peer's window, in bytes.
#[derive(Debug)]
pub(super) struct SendWindow {
    size: u32,
    greatest: u32,
    /// The segment that announced it: its sequence number and acknowledgement (SND.WL1 and SND.WL2).
    seq: SeqNumber,
    ack: SeqNumber,
}

/// The effect of an acknowledgement on the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// It has another size.
    Resized,
    /// It was shut and is open.
    Reopened,
}

impl SendWindow {
    /// A window of nothing; `first` is the first number that is sent.
    pub(super) fn new(first: SeqNumber) -> Self {
        Self { size: 0, greatest: 0, seq: SeqNumber(0), ack: first }
    }

    /// The handshake's last segment, number `seq`, has offered `size` bytes.
    pub(super) fn begin(&mut self, size: u32, seq: SeqNumber) {
        (self.size, self.greatest, self.seq) = (size, size, seq);
    }

    #[inline]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// The greatest that it ever was.
    #[inline]
    pub(super) fn greatest(&self) -> u32 {
        self.greatest
    }

    /// Takes over a segment's window, if it is not older than the one that announced it last.
    #[inline]
    pub(super) fn update(&mut self, ack: &AckIn) -> Change {
        //= RFC 9293 section 3.10.7.4: SND.WL1 and SND.WL2 keep old segments from setting the window
        if self.seq.is_after(ack.seq) || (self.seq == ack.seq && self.ack.is_after(ack.ack)) {
            return Change::None;
        }
        self.seq = ack.seq;
        self.ack = ack.ack;
        let before = core::mem::replace(&mut self.size, ack.window);
        self.greatest = self.greatest.max(ack.window);
        match before {
            same if same == ack.window => Change::None,
            0 => Change::Reopened,
            _ => Change::Resized,
        }
    }
}
