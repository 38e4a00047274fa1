//! The receive window: how far the peer may send, and how large the buffer should be.

use core::time::Duration;

use crate::time::{Instant, whole_nanos};
use crate::wire::tcp::SeqNumber;

/// Initial size of buffers; they grow as the reader keeps up.
const INITIAL: u32 = 64 << 10;

/// The receive window. Its right edge never moves left (RFC 9293 section 3.8.6, SHLD-14), but for rounding.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveWindow {
    /// The number after the last that the peer may send.
    edge: SeqNumber,
    /// Bytes that may wait to be read at present.
    capacity: u32,
    /// Bytes that may ever, as the shift allows.
    ceiling: u32,
    /// The ceiling that was requested.
    wish: u32,
    /// Bytes that the reader took since `since`.
    copied: u32,
    since: Instant,
    /// The shift of windows on the wire (RFC 7323 section 2.3).
    shift: u8,
}

impl ReceiveWindow {
    /// `ceiling` bytes at most; the window starts behind `next`.
    pub(super) fn new(now: Instant, ceiling: usize) -> Self {
        // RFC 7323 section 2.3: windows are below 2^30.
        let ceiling = u32::try_from(ceiling).unwrap_or(u32::MAX).clamp(1, (1 << 30) - 1);
        Self {
            edge: SeqNumber(0),
            capacity: ceiling.min(INITIAL),
            ceiling,
            wish: ceiling,
            copied: 0,
            since: now,
            shift: 0,
        }
    }

    /// The shift to offer: the least by which the largest window can be announced.
    pub(super) fn wanted_shift(ceiling: usize) -> u8 {
        (0..14).find(|&shift| ceiling >> shift <= usize::from(u16::MAX)).unwrap_or(14)
    }

    /// The handshake settled the shift, and with it the largest window.
    pub(super) fn set_shift(&mut self, shift: u8) {
        self.shift = shift.min(14);
        self.ceiling = self.wish.min(u32::from(u16::MAX) << self.shift);
        self.capacity = self.capacity.min(self.ceiling);
    }

    /// The first window, as a SYN announces it: never scaled.
    pub(super) fn open(&mut self, next: SeqNumber) {
        self.edge = next + u32::from(self.initial_field());
    }

    /// The window field of a SYN.
    pub(super) fn initial_field(&self) -> u16 {
        u16::try_from(self.capacity).unwrap_or(u16::MAX)
    }

    #[inline]
    pub(super) fn edge(&self) -> SeqNumber {
        self.edge
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn set_ceiling(&mut self, ceiling: usize) {
        self.wish = Self::new(Instant::ZERO, ceiling).wish;
        self.ceiling = self.wish.min(u32::from(u16::MAX) << self.shift);
        self.capacity = self.capacity.min(self.ceiling);
    }

    //= RFC 9293 section 3.8.6.2.2, MUST-39: the edge moves by a segment or by half of the buffer at a time, whichever
    //= is less; section 3.8.6, SHLD-14: it never moves left.
    /// The new edge with `unread` bytes waiting, if the step is large enough; else the present one.
    #[inline]
    fn candidate(&self, next: SeqNumber, unread: u32, mss: u16) -> SeqNumber {
        let free = self.capacity.saturating_sub(unread);
        let candidate = next + free;
        let worth = (self.capacity / 2).min(u32::from(mss)).max(1);
        if candidate.since(self.edge) >= 0 && candidate.distance(self.edge) >= worth {
            candidate
        } else {
            self.edge
        }
    }

    /// The window field for an acknowledgement of `next`; moves the edge. With `hold` the edge stays: memory is short.
    #[inline]
    pub(super) fn announce(&mut self, next: SeqNumber, unread: u32, mss: u16, hold: bool) -> u16 {
        let edge = if hold { self.edge } else { self.candidate(next, unread, mss) };
        let most = u32::from(u16::MAX) << self.shift;
        let unit = 1_u32 << self.shift;
        let mut field = edge.distance(next).min(most) >> self.shift;
        // Rounding down would take back a part of the announced window; rounding up announces more, which adds up with
        // every acknowledgement, and is done only as far as there is room.
        //= RFC 7323 section 2.4: so the edge may seem to move left by less than a unit; what it included stays
        //= acceptable.
        if (next + (field << self.shift)).is_before(self.edge) {
            let up = self.edge.distance(next).div_ceil(unit).min(u32::from(u16::MAX));
            let room = next + self.capacity.saturating_sub(unread) + unit;
            if !(next + (up << self.shift)).is_after(room) {
                field = up;
            }
        }
        self.edge = self.edge.max(next + (field << self.shift));
        u16::try_from(field).unwrap_or(u16::MAX)
    }

    /// The window field that an acknowledgement of less than everything needs for the edge to stay where it is.
    pub(super) fn field_from(&self, ack: SeqNumber) -> u16 {
        u16::try_from(self.edge.distance(ack) >> self.shift).unwrap_or(u16::MAX)
    }

    /// Whether the reader made so much room that an unsolicited window update is due: it moves the edge, and at least
    /// doubles the rest of the window.
    pub(super) fn wants_update(&self, next: SeqNumber, unread: u32, mss: u16) -> bool {
        let left = self.edge.distance(next);
        let candidate = self.candidate(next, unread, mss);
        candidate != self.edge && candidate.distance(next) >= left.saturating_mul(2)
    }

    /// The reader took `bytes`. A reader that takes more than half of the buffer within a round trip could use a larger
    /// one: twice the bytes that it took, and room for the window to grow meanwhile.
    pub(super) fn on_read(&mut self, now: Instant, bytes: u32, mss: u16, round_trip: Option<Duration>) {
        self.copied = self.copied.saturating_add(bytes);
        if self.capacity >= self.ceiling {
            return;
        }
        let elapsed = now.nanos_since(self.since);
        let round_trip = round_trip.map(whole_nanos);
        // Without a round-trip time, a buffer's worth is a round.
        let over = match round_trip {
            Some(time) => elapsed >= time,
            None => self.copied >= self.capacity,
        };
        if over {
            let want = self.copied.saturating_mul(2).saturating_add(16 * u32::from(mss));
            // A reader that comes back after a pause has not kept up for one round trip only.
            let fresh = round_trip
                .is_none_or(|time| elapsed <= time.saturating_mul(4) || self.copied >= self.capacity);
            if fresh && want > self.capacity {
                self.capacity = want.min(self.ceiling);
            }
            self.copied = 0;
            self.since = now;
        }
    }
}
