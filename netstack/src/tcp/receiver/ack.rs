//! When to acknowledge: at once, with the second full segment, or after a delay that follows the peer's rhythm.

use core::time::Duration;

use crate::time::Instant;

/// Segments at the beginning, and after a disturbance, that are acknowledged without delay: the peer's window is small
/// and grows by acknowledgements.
const QUICK: u8 = 16;

/// No deadline.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Duplicate acknowledgements pending at most.
const MAX_DUPLICATES: u8 = 16;

/// Decides when an acknowledgement leaves. Decisions are taken for each segment; a due acknowledgement leaves at the
/// end of a burst, so that a burst in order costs few of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckPolicy {
    /// [`NEVER`]: nothing waits.
    deadline: Instant,
    last_arrival: Instant,
    /// Smoothed time between arrivals of data, in microseconds.
    gap: u32,
    /// The longest delay, in microseconds.
    max_delay: u32,
    /// Bytes taken since the last acknowledgement.
    bytes: u32,
    /// The largest payload seen: a full segment of the peer's.
    full: u16,
    quick: u8,
    /// Acknowledgements pending for segments out of order, one each.
    duplicates: u8,
    due: bool,
}

impl AckPolicy {
    pub(super) fn new(now: Instant, max_delay: Duration) -> Self {
        Self {
            deadline: NEVER,
            last_arrival: now,
            gap: u32::MAX,
            max_delay: bounded(max_delay),
            bytes: 0,
            full: 0,
            quick: QUICK,
            duplicates: 0,
            due: false,
        }
    }

    //= RFC 9293 section 3.8.6.3, SHLD-18 (acknowledgements are delayed), MUST-40 (by less than 0.5 s) and SHLD-19 (at
    //= least every second full segment is acknowledged).
    /// `bytes` new bytes in order, by a segment with `payload` bytes.
    #[inline]
    pub(super) fn on_data(&mut self, now: Instant, bytes: u32, payload: usize, mss: u16) {
        let gap = u32::try_from(now.nanos_since(self.last_arrival) / 1000).unwrap_or(u32::MAX);
        self.last_arrival = now;
        // Half of the old, half of the new: two segments after a pause are enough.
        self.gap = self.gap.min(self.max_delay) / 2 + gap.min(self.max_delay) / 2;
        self.full = self.full.max(payload.min(usize::from(mss)) as u16);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.quick > 0 {
            self.quick -= 1;
            self.due = true;
        } else if self.bytes >= 2 * u32::from(self.full) && self.bytes > u32::from(mss) / 2 {
            self.due = true;
        } else if self.deadline == NEVER {
            // If a second segment were to come, it would be here within twice the usual gap; a reader that answers
            // needs a moment too.
            let delay = self.gap.saturating_mul(2).clamp(self.max_delay / 8, self.max_delay);
            self.deadline = now.later(u64::from(delay) * 1000);
        }
    }

    /// The largest payload seen.
    pub(super) fn largest(&self) -> u16 {
        self.full
    }

    /// Options changed.
    pub(super) fn set_max_delay(&mut self, max_delay: Duration) {
        self.max_delay = bounded(max_delay);
    }

    /// An acknowledgement is due at once.
    #[inline]
    pub(super) fn now(&mut self) {
        self.due = true;
    }

    //= RFC 5681 section 4.2: a segment out of order, and one that fills a hole, are acknowledged at once.
    /// A segment out of order: without SACK the peer counts these acknowledgements.
    pub(super) fn out_of_order(&mut self) {
        self.due = true;
        self.duplicates = self.duplicates.saturating_add(1).min(MAX_DUPLICATES);
        self.quick = self.quick.max(QUICK / 2);
    }

    /// Whether an acknowledgement is to leave.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// When one that waits becomes due.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// The delay is over.
    pub(super) fn on_timer(&mut self, now: Instant) {
        if self.deadline <= now {
            self.deadline = NEVER;
            self.due = true;
        }
    }

    /// Duplicates pending beyond the one acknowledgement that reports all.
    pub(super) fn take_duplicates(&mut self) -> u8 {
        core::mem::take(&mut self.duplicates).saturating_sub(1)
    }

    /// An acknowledgement left, alone or with data. With data soon after an arrival, the reader answers: there is no
    /// need to acknowledge ahead of its answers.
    #[inline]
    pub(super) fn on_sent(&mut self, with_data: bool) {
        if with_data && self.bytes > 0 && self.bytes < u32::from(self.full).saturating_mul(2) {
            self.quick = 0;
        }
        self.bytes = 0;
        self.deadline = NEVER;
        self.duplicates = 0;
        self.due = false;
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn bounded(max_delay: Duration) -> u32 {
    micros(max_delay).min(499_000)
}
