//! Liveness of the peer, and the heartbeats that show this end's (spec.md section 8).

use super::api::{Clue, Config};
use super::nanos;
use super::recovery::NEVER;

#[cfg(test)]
mod tests;

/// Heartbeats: those that are due to the peer, and those that stay away.
///
/// The peer is suspected from `suspected_at` until something valid comes from it; `NEVER` stands for no suspicion. It is
/// dead only if it has been suspected for an eighth of `dead_after`. `clue` is of that time.
#[derive(Debug)]
pub(super) struct Liveness {
    heartbeat: u64,
    dead_after: u64,
    heartbeat_due: bool,
    last_sent: u64,
    last_heard: u64,
    suspected_at: u64,
    clue: Clue,
    /// No timer's time is earlier. Nearly every datagram puts one off: that is looked at when this time has come.
    at: u64,
}

/// The end of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silence {
    /// For how long it has been silent, in nanoseconds.
    pub(super) silent: u64,
    /// Other datagrams that came instead.
    pub(super) clue: Clue,
}

impl Liveness {
    /// Of a session that begins now: the first heartbeat shows the peer that this end is alive.
    pub(super) fn new(now: u64, config: &Config) -> Self {
        let mut liveness = Self {
            heartbeat: nanos(config.heartbeat),
            dead_after: nanos(config.dead_after),
            heartbeat_due: true,
            last_sent: now,
            last_heard: now,
            suspected_at: NEVER,
            clue: Clue::Nothing,
            at: NEVER,
        };
        liveness.set_deadline();
        liveness
    }

    /// How long a peer may be silent.
    pub(super) fn dead_after(&self) -> u64 {
        self.dead_after
    }

    /// Whether the peer may be dead.
    pub(super) fn is_suspected(&self) -> bool {
        self.suspected_at != NEVER
    }

    /// Whether a heartbeat is due.
    #[inline]
    pub(super) fn heartbeat_due(&self) -> bool {
        self.heartbeat_due
    }

    /// A heartbeat is due now.
    pub(super) fn announce(&mut self) {
        self.heartbeat_due = true;
    }

    /// A datagram went out.
    #[inline]
    pub(super) fn on_sent(&mut self, now: u64) {
        self.last_sent = now;
    }

    /// An acknowledgement went out: whether it was the heartbeat that was due.
    pub(super) fn take_heartbeat(&mut self) -> bool {
        let was_due = core::mem::take(&mut self.heartbeat_due);
        self.set_deadline();
        was_due
    }

    /// Something valid came from the peer.
    #[inline]
    pub(super) fn on_heard(&mut self, now: u64) {
        self.last_heard = now;
        self.suspected_at = NEVER;
    }

    /// Something came in place of the peer's datagrams at `at`: a clue if it is suspected.
    #[cold]
    pub(super) fn on_clue(&mut self, at: u64, clue: Clue) {
        //= rud/spec.md section 8, RUD-88
        if at >= self.suspected_at {
            self.clue = self.clue.max(clue);
        }
    }

    /// Fires the timers whose time has come; returns the silence if the peer is dead.
    pub(super) fn on_timeout(&mut self, now: u64) -> Option<Silence> {
        if now < self.at {
            return None;
        }
        let silence = self.fire(now);
        self.set_deadline();
        silence
    }

    fn fire(&mut self, now: u64) -> Option<Silence> {
        //= rud/spec.md section 8, RUD-85
        if now >= self.heartbeat_at() {
            self.heartbeat_due = true;
        }
        if now < self.listen_at() {
            return None;
        }
        //= rud/spec.md section 8, RUD-86
        // Suspicion first, failure an eighth of the time later: if it was us who did not run, the peer's
        // heartbeats are waiting and will be read in between.
        if !self.is_suspected() {
            self.suspected_at = now;
            self.clue = Clue::Nothing;
            self.heartbeat_due = true;
            return None;
        }
        Some(Silence { silent: now.saturating_sub(self.last_heard), clue: self.clue })
    }

    /// When to call `on_timeout`, which may find nothing to do then.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.at
    }

    fn set_deadline(&mut self) {
        let listen_at = self.listen_at();
        self.at = if self.heartbeat_due { listen_at } else { listen_at.min(self.heartbeat_at()) };
    }

    fn heartbeat_at(&self) -> u64 {
        self.last_sent.saturating_add(self.heartbeat)
    }

    /// When the peer's silence has to be looked at next.
    fn listen_at(&self) -> u64 {
        if !self.is_suspected() {
            self.last_heard.saturating_add(self.dead_after - self.dead_after / 8)
        } else {
            let dead = self.last_heard.saturating_add(self.dead_after);
            dead.max(self.suspected_at.saturating_add(self.dead_after / 8))
        }
    }
}
