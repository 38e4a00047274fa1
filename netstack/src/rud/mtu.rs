//! How long a datagram the path carries, found by probing (spec.md section 6.8; RFC 8899).
//!
//! ```text
//!    settled --- datagrams get lost ---> tries of the limit --- one is answered ---> settled
//!       |                                      |
//!   `deadline`                              all fail: the limit is the base
//!       |                                      v
//!       '---> tries of the largest ---> tries between the limit and what has failed ---> settled
//! ```

use super::api::MAX_MESSAGE_HEADER;
use super::asks::Asked;
use super::recovery::NEVER;
use crate::wire::rud::HEADER_LEN;

#[cfg(test)]
mod tests;

/// The longest datagram that every path is held to carry, in bytes.
//= RFC 8899 section 5.1.2: BASE_PLPMTU
pub(super) const BASE: u16 = 1_200;

/// A size has failed after so many tries, or after one for each path in use if those are more.
//= RFC 8899 section 5.1.2: MAX_PROBES
const TRIES: u16 = 3;
/// But not after more: with a time-out of some 6 ms between them, 256 tries would take 1.6 s.
const MOST_TRIES: u16 = 64;

/// A search ends when the limit is known as well as this, in bytes.
const STEP: u16 = 64;

/// Losses in a row of long datagrams, none of which was delivered, after which the limit is tried.
const SUSPICIOUS: u32 = 8;

/// The limit fails only after so many nanoseconds without a delivery of its length: full buffers drop long datagrams more than short
/// ones, for a while.
const LEAST_DOUBT: u64 = 100_000_000;

/// An answer may be overtaken by so many nanoseconds at least.
const LEAST_WAIT: u64 = 20_000;

/// The time for a try doubles at most this often while neither of its probes is answered.
const MOST_DOUBLINGS: u8 = 6;

/// A try that is out: a padded probe, then one that is not, on the same path.
#[derive(Clone, Copy, Debug)]
struct Try {
    small_stamp: u64,
    small_answered: bool,
}

/// What one size has come to.
#[derive(Clone, Copy, Debug)]
struct Trial {
    size: u16,
    failures: u16,
    /// Tries sent.
    tries: u16,
    /// Tries in a row of which nothing was heard.
    unheard: u8,
    current: Option<Try>,
    /// When the first try went out, and a time-out at the last one.
    begun: u64,
    patience: u64,
    /// Payload of the datagrams that are the cause, in bytes: one that is delivered proves that the size passes.
    proof: u16,
}

/// Something that the session has to act upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Datagrams above the limit, which is lower now, are lost.
    Lowered,
    /// A search has ended.
    Settled,
}

/// The longest datagram that may be sent in one, and the search for it. Sizes are those of whole datagrams in bytes, less that of the seal; `limit` lies
/// between `base` and `most`, `failed` above it.
#[derive(Debug)]
pub(super) struct PathMtu {
    base: u16,
    most: u16,
    limit: u16,
    /// The shortest that is known to get lost; one more than `most` if none is.
    failed: u16,
    trial: Option<Trial>,
    /// A try is to be sent now.
    due: bool,
    /// When the try that is out ends, or the next search begins.
    deadline: u64,
    raise_after: u64,
    /// The limit that the upper layer was told.
    told: u16,
    /// Long datagrams lost in a row, and the payload bytes of the longest.
    lost: u32,
    longest_lost: u16,
}

impl PathMtu {
    /// Datagrams of up to `most` bytes, and `seal` more in which they are sealed, are held for carried.
    pub(super) fn new(most: usize, seal: usize, raise_after: u64) -> Self {
        let most = u16::try_from(most).unwrap_or(u16::MAX - 1);
        Self {
            base: (BASE - seal as u16).min(most),
            most,
            limit: most,
            failed: most + 1,
            trial: None,
            due: false,
            deadline: NEVER,
            raise_after,
            told: most,
            lost: 0,
            longest_lost: 0,
        }
    }

    /// The length of datagrams that every path carries.
    pub(super) fn base(&self) -> u16 {
        self.base
    }

    /// The longest datagram to be sent.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        self.limit.into()
    }

    /// Whether a try is to be sent now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The size to try.
    pub(super) fn size(&self) -> u16 {
        self.trial.map_or(0, |trial| trial.size)
    }

    /// How many tries of it were sent.
    pub(super) fn tries(&self) -> u16 {
        self.trial.map_or(0, |trial| trial.tries)
    }

    /// When `on_timeout` has something to do.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// A datagram with `payload` bytes of payload was declared lost.
    pub(super) fn on_lost(&mut self, payload: u16) {
        if HEADER_LEN + usize::from(payload) > self.base.into() {
            self.lost += 1;
            self.longest_lost = self.longest_lost.max(payload);
        }
        //= rud/spec.md section 6.8, RUD-60
        if self.lost >= SUSPICIOUS {
            self.doubt();
        }
    }

    /// Whether deliveries are worth looking at.
    #[inline]
    pub(super) fn is_in_doubt(&self) -> bool {
        self.lost != 0 || self.trial.is_some()
    }

    /// A datagram with `payload` bytes of payload, sent once, was delivered.
    pub(super) fn on_delivered(&mut self, now: u64, payload: u16) {
        if payload >= self.longest_lost {
            (self.lost, self.longest_lost) = (0, 0);
        }
        //= rud/spec.md section 6.8
        if self.trial.is_some_and(|trial| trial.size == self.limit && payload >= trial.proof) {
            self.trial = None;
            self.due = false;
            self.deadline =
                if self.limit == self.most { NEVER } else { now.saturating_add(self.raise_after) };
        }
    }

    /// Nothing is acknowledged of what is on the wire, at most `longest` bytes in one datagram.
    pub(super) fn on_stalled(&mut self, longest: usize) {
        if longest > self.base.into() {
            let payload = longest.saturating_sub(HEADER_LEN + MAX_MESSAGE_HEADER);
            self.longest_lost = self.longest_lost.max(payload as u16);
            self.doubt();
        }
    }

    /// Long datagrams seem to get lost: the limit is tried.
    fn doubt(&mut self) {
        let proof = core::mem::take(&mut self.longest_lost);
        self.lost = 0;
        if self.trial.is_none() && self.limit > self.base {
            self.begin(self.limit);
            self.trial = self.trial.map(|trial| Trial { proof, ..trial });
        }
    }

    fn begin(&mut self, size: u16) {
        self.trial = Some(Trial {
            size,
            failures: 0,
            tries: 0,
            unheard: 0,
            current: None,
            begun: 0,
            patience: 0,
            proof: u16::MAX,
        });
        self.due = true;
        self.deadline = NEVER;
    }

    /// A try has gone out, its small probe with `small_stamp`; a time-out is `patience`.
    pub(super) fn on_tried(&mut self, now: u64, small_stamp: u64, patience: u64) {
        self.due = false;
        if let Some(trial) = &mut self.trial {
            if trial.tries == 0 {
                trial.begun = now;
            }
            trial.tries = trial.tries.saturating_add(1);
            trial.patience = patience;
            trial.current = Some(Try { small_stamp, small_answered: false });
            self.deadline = now.saturating_add(patience << trial.unheard);
        }
    }

    /// A probe was answered, that with `stamp`.
    pub(super) fn on_answer(&mut self, now: u64, stamp: u64, asked: &Asked) -> Option<Finding> {
        let trial = self.trial.as_mut()?;
        if asked.padded_to != 0 && asked.padded_to == trial.size {
            return self.passed(now);
        }
        if let Some(current) = trial.current.as_mut().filter(|current| current.small_stamp == stamp) {
            //= rud/spec.md section 6.8
            // The padded probe went out first, on the same path: its answer is at most overtaken.
            current.small_answered = true;
            self.deadline = self.deadline.min(now + now.saturating_sub(asked.sent_at).max(LEAST_WAIT));
        }
        None
    }

    /// The limit, if it is settled and another than was said before.
    pub(super) fn take_news(&mut self) -> Option<usize> {
        if self.trial.is_some() || core::mem::replace(&mut self.told, self.limit) == self.limit {
            return None;
        }
        Some(self.limit.into())
    }

    /// Judges a try whose time is over, or begins a search. `paths` are in use.
    pub(super) fn on_timeout(&mut self, now: u64, paths: u16) -> Option<Finding> {
        if now < self.deadline() {
            return None;
        }
        let Some(trial) = &mut self.trial else {
            //= rud/spec.md section 6.8, RUD-64
            // Longer ones are tried again, the longest first.
            self.failed = self.most + 1;
            self.begin(self.most);
            return None;
        };
        self.deadline = NEVER;
        self.due = true;
        let current = trial.current.take()?;
        //= rud/spec.md section 6.8, RUD-61
        if !current.small_answered {
            trial.unheard = (trial.unheard + 1).min(MOST_DOUBLINGS);
            return None;
        }
        trial.unheard = 0;
        trial.failures = trial.failures.saturating_add(1);
        let is_doubt = trial.size == self.limit;
        if trial.failures >= TRIES.max(paths.min(MOST_TRIES))
            && (!is_doubt || now - trial.begun >= LEAST_DOUBT)
        {
            return self.has_failed(now);
        }
        if is_doubt {
            self.due = false;
            self.deadline = now.saturating_add(trial.patience);
        }
        None
    }

    /// The size that is tried gets through.
    fn passed(&mut self, now: u64) -> Option<Finding> {
        let size = self.trial.take()?.size;
        self.due = false;
        let is_new = size > self.limit;
        self.limit = size;
        self.go_on(now, is_new)
    }

    /// The size that is tried does not get through.
    fn has_failed(&mut self, now: u64) -> Option<Finding> {
        let size = self.trial.take()?.size;
        self.due = false;
        self.failed = self.failed.min(size);
        if size > self.limit {
            return self.go_on(now, true);
        }
        //= rud/spec.md section 6.8, RUD-63
        self.limit = self.base;
        self.go_on(now, false);
        Some(Finding::Lowered)
    }

    /// Tries the next size, halfway, until the limit is known well enough.
    fn go_on(&mut self, now: u64, searches: bool) -> Option<Finding> {
        if self.limit == self.most {
            self.deadline = NEVER;
        } else if self.failed - self.limit > STEP {
            self.begin(self.limit + (self.failed - self.limit) / 2);
            return None;
        } else {
            self.deadline = now.saturating_add(self.raise_after);
        }
        searches.then_some(Finding::Settled)
    }
}
