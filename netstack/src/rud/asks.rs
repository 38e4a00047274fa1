//! Probes that this end sends, and what their answers show: which paths deliver acknowledgements, and how long a datagram may be.
//!
//! Data shows by its resends which paths lose it. An acknowledgement is not acknowledged, so an end whose acknowledgements seem to
//! get lost sends them as probes, which are (spec.md section 6.7).

use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// For so long the peer's lack of acknowledgements is one and the same, in nanoseconds.
pub(super) const ONE_DOUBT: u64 = 1_000_000;

/// So long the fate of a probe is waited for, in nanoseconds, before the next goes the same way.
const FATE: u64 = 200_000;

/// Probes that go out together at most, each on the next path. With more paths the next ones begin where these ended: a peer that has no
/// core just now would get hundreds from each host.
pub(super) const MOST_AT_ONCE: u16 = 16;

/// A probe that was not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    stamp: u64,
    /// When it was sent.
    pub(super) sent_at: u64,
    /// On which path.
    pub(super) path: u16,
    /// Bytes of the datagram, if it was padded; else zero.
    pub(super) padded_to: u16,
}

impl Asked {
    /// Whether it says something of `path`.
    fn is_small_on(&self, path: u16) -> bool {
        //= rud/spec.md section 6.8, RUD-62
        // The loss of a padded one says nothing about its path.
        self.path == path && self.padded_to == 0
    }
}

/// Probes by their stamps, which are numbers in order: the latest two for each path, and a few.
#[derive(Debug)]
pub(super) struct Asks {
    paths: u16,
    next: u64,
    /// The latest that was answered.
    newest: u64,
    asked: VecDeque<Asked>,
    /// Probes to be sent now, each on the next path whether it is in use or not.
    due: u16,
    /// That path.
    due_on: u16,
    /// Until then acknowledgements are sent as probes.
    ask_until: u64,
    /// The path whose probe was answered last in that time.
    good: Option<u16>,
    /// Whether the peer has lacked acknowledgements before, and no probe was answered since.
    doubted: bool,
    doubt_ends: u64,
}

impl Asks {
    pub(super) fn new(paths: u16) -> Self {
        Self {
            paths,
            next: 1,
            newest: 0,
            asked: VecDeque::new(),
            due: 0,
            due_on: 0,
            ask_until: 0,
            good: None,
            doubted: false,
            doubt_ends: 0,
        }
    }

    /// Whether probes are to be sent now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due != 0
    }

    /// The path of the next of them.
    pub(super) fn due_on(&self) -> u16 {
        self.due_on
    }

    /// Whether an acknowledgement on `path` is to be sent as a probe: not if the fate of one there is open.
    #[inline]
    pub(super) fn wants_ack(&self, now: u64, path: u16) -> bool {
        let is_open = |asked: &&Asked| asked.stamp > self.newest && now.saturating_sub(asked.sent_at) < FATE;
        // The youngest are the last.
        let mut open = self.asked.iter().rev().take_while(is_open);
        now < self.ask_until && !open.any(|asked| asked.is_small_on(path))
    }

    /// While paths seem to fail, the path that is known to deliver, if one is.
    #[inline]
    pub(super) fn good_path(&self, now: u64) -> Option<u16> {
        self.good.filter(|_| now < self.ask_until)
    }

    /// The peer seems to lack acknowledgements that were sent.
    /// `heard`: when data came before. False if it is the same doubt as before.
    #[cold]
    pub(super) fn on_doubt(&mut self, now: u64, heard: u64) -> bool {
        //= rud/spec.md section 6.7, RUD-58
        // The next acknowledgements are probes. If none is answered until the next doubt, or the peer has waited for long, paths are
        // probed at once.
        if self.paths == 1 || now < self.doubt_ends {
            return false;
        }
        self.doubt_ends = now.saturating_add(ONE_DOUBT);
        self.ask_until = self.doubt_ends;
        if core::mem::replace(&mut self.doubted, true) || now.saturating_sub(heard) > ONE_DOUBT {
            self.due = self.paths.min(MOST_AT_ONCE);
            self.good = None;
        }
        true
    }

    /// Nothing is acknowledged any more: paths are probed.
    pub(super) fn volley(&mut self, now: u64) {
        if self.paths != 1 {
            self.due = self.paths.min(MOST_AT_ONCE);
            self.good = None;
            self.ask_until = now.saturating_add(ONE_DOUBT);
        }
    }

    /// The stamp of a probe that is about to be sent.
    pub(super) fn stamp(&self) -> u64 {
        self.next
    }

    /// It was sent on `path`, padded to so many bytes or, with zero, not.
    pub(super) fn on_sent(&mut self, now: u64, path: u16, padded_to: u16) {
        let most = 2 * usize::from(self.paths) + 4;
        if self.asked.len() >= most {
            self.asked.pop_front();
        }
        self.asked.push_back(Asked { stamp: self.next, sent_at: now, path, padded_to });
        self.next += 1;
    }

    /// One of those that are due was sent.
    pub(super) fn on_due_sent(&mut self) {
        self.due = self.due.saturating_sub(1);
        self.due_on = (self.due_on + 1) % self.paths;
    }

    /// The answer with `stamp` has come.
    pub(super) fn answered(&mut self, stamp: u64) -> Option<Asked> {
        let at = self.asked.binary_search_by_key(&stamp, |asked| asked.stamp).ok()?;
        self.newest = self.newest.max(stamp);
        self.doubted = false;
        let asked = self.asked.remove(at)?;
        self.good = Some(asked.path);
        Some(asked)
    }

    /// Whether a probe on `path` was lost: later ones were answered. It is forgotten by that.
    pub(super) fn take_lost(&mut self, now: u64, path: u16) -> bool {
        let mut overtaken = self.asked.iter().take_while(|asked| asked.stamp < self.newest);
        let lost = overtaken.position(|asked| asked.is_small_on(path));
        if let Some(at) = lost {
            self.asked.remove(at);
            self.ask_until = self.ask_until.max(now.saturating_add(ONE_DOUBT));
        }
        lost.is_some()
    }
}
