//! When the caller looks for datagrams (spec.md section 7.1): how long one may have been there.

/// Nanoseconds between looks for datagrams, above which an end cannot tell how long one was there.
const LATE: u64 = 5_000;

/// When the caller has looked for datagrams. Nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last: u64,
    /// Between the last two.
    pub(super) interval: u64,
    /// The look before the pause whose datagrams are being read, and how long the pause was.
    since: u64,
    pause: u64,
    /// For how long a datagram that is found now may have been there; zero if that is not long.
    pub(super) late: u64,
    /// Looks leave something behind although no pause was before them: this host is too slow.
    is_slow: bool,
}

impl Looks {
    /// One more; whether the one before left datagrams behind.
    #[inline]
    pub(super) fn on_look(&mut self, now: u64, more: bool) {
        let usual = core::mem::replace(&mut self.interval, now.saturating_sub(self.last));
        //= rud/spec.md section 7.1, RUD-75
        // Datagrams that a pause has left are read in several looks, for as long as the pause at most. Those that wait
        // for longer wait for a host that is too slow.
        if !more || now.saturating_sub(self.since) > 2 * self.pause {
            self.is_slow = more && self.interval <= 2 * usual;
            self.since = self.last;
            self.pause = self.interval;
        }
        let waited = now.saturating_sub(self.since);
        self.late = if waited > LATE { waited } else { 0 };
        self.last = now;
    }

    /// Whether datagrams that a pause has left are read now, of which there may be more.
    pub(super) fn reads_a_pause(&self, now: u64) -> bool {
        self.late != 0 && !self.is_slow && now.saturating_sub(self.since) <= 2 * self.pause
    }
}

#[cfg(test)]
mod tests;
