//! The distance between datagrams (spec.md section 7.5).

/// Nanoseconds of which a sender makes up for what it could not send, at most.
const LONGEST_BEHIND: u64 = 1_000_000;

/// When the next datagram may leave.
#[derive(Debug, Default)]
pub(in crate::rud) struct Pace {
    next_at: u64,
    /// How long datagrams have waited for their time, over all.
    waited: u64,
    /// Since when one waits, if one does.
    waits_since: Option<u64>,
    /// The time of the poll before the one whose turn ended too early; zero if none did.
    behind_since: u64,
}

impl Pace {
    /// When the next datagram may leave.
    #[inline]
    pub(in crate::rud) fn next_at(&self) -> u64 {
        self.next_at
    }

    /// Whether one may leave now.
    #[inline]
    pub(in crate::rud) fn is_open(&self, now: u64) -> bool {
        self.next_at <= now
    }

    /// A datagram waits for its time.
    #[cold]
    pub(in crate::rud) fn on_wait(&mut self, now: u64) {
        self.waits_since.get_or_insert(now);
    }

    /// How long datagrams have waited for their time, over all.
    pub(in crate::rud) fn waited(&self) -> u64 {
        self.waited
    }

    /// For how long the sender may make up. `interval`: the time since its last poll.
    #[inline]
    pub(in crate::rud) fn interval(&mut self, now: u64, interval: u64) -> u64 {
        match core::mem::take(&mut self.behind_since) {
            0 => interval,
            since => interval.max(now.saturating_sub(since).min(LONGEST_BEHIND)),
        }
    }

    /// The rest of what may leave now leaves with the next poll.
    #[cold]
    pub(in crate::rud) fn on_turn_over(&mut self, now: u64, interval: u64) {
        self.behind_since = now.saturating_sub(interval);
    }

    /// A datagram left, and the next may `gap` later. A sender that polls every `interval` may make up for the time
    /// since its last poll.
    #[inline]
    pub(in crate::rud) fn on_sent(&mut self, now: u64, gap: u64, interval: u64) {
        //= rud/spec.md section 7.5, RUD-83
        // Two datagrams, and those of the time since the last poll, may leave at once.
        if let Some(since) = self.waits_since.take() {
            self.waited += now.saturating_sub(since);
        }
        if gap != 0 {
            self.next_at = self.next_at.max(now.saturating_sub(interval + gap)) + gap;
        }
    }
}
