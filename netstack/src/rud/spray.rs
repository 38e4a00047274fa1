//! Which path each datagram takes: all in turn, but for those that lose what the others deliver.
//!
//! Routers choose a link by a hash of the addresses and ports (ECMP, RFC 2992), so a link or switch that fails takes with it
//! every datagram of the paths that lead over it, and none of the others.

use crate::wire::rud::Psn;

#[cfg(test)]
mod tests;

/// The fewest losses in a row for which a path is left out.
const STREAK: u16 = 3;
/// A path is left out if the chance of its losses in a row is less than this.
const CHANCE: f64 = 1e-6;
/// The fewest losses of a path that delivers some for which its share is judged.
const FEW: u32 = 8;
/// Datagrams of a path after which its counts are halved.
const MEMORY: u16 = 128;
/// How long a path is left out, in nanoseconds, before it is tried again; it doubles with each trial that fails.
const FIRST_REST: u64 = 1_000_000;
/// The rest doubles at most this often: to about a second.
const MOST_DOUBLINGS: u8 = 10;

/// Whether a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    InUse,
    /// It is tried again at this time.
    Out(u64),
    /// One datagram is on the wire to try it.
    Tried,
}

/// The record of a path.
#[derive(Clone, Copy, Debug)]
struct Health {
    delivered: u16,
    lost: u16,
    /// Losses since something was delivered.
    streak: u16,
    /// Trials that failed, and the loss before them.
    failures: u8,
    standing: Standing,
}

impl Health {
    const FRESH: Self = Self { delivered: 0, lost: 0, streak: 0, failures: 0, standing: Standing::InUse };

    fn forget(&mut self) {
        if self.delivered + self.lost >= MEMORY {
            self.delivered /= 2;
            self.lost /= 2;
            self.failures = 0;
        }
    }

    fn rest(&mut self, now: u64) {
        let rest = FIRST_REST << self.failures;
        self.failures = (self.failures + 1).min(MOST_DOUBLINGS);
        self.standing = Standing::Out(now.saturating_add(rest));
    }
}

/// The choice among a session's paths. `next` is below `count`, `out` the number of paths that are not in use: at most half of
/// all; `health` has one record a path, or none while no datagram was lost.
#[derive(Debug, Default)]
pub(super) struct Spray {
    count: u16,
    next: u16,
    /// The path of the last transmission from each slot of the sender; empty before there is one, and with one path.
    taken: Box<[u16]>,
    slots: u32,
    /// The path of the last acknowledgement without data, and its floor, while the peer has not shown whether it has it.
    report: Option<(u16, Psn)>,
    /// The peer's base, as its last datagram had it.
    base: Psn,
    health: Box<[Health]>,
    out: u16,
}

impl Spray {
    /// `count` paths, at least one, for a sender with so many slots.
    pub(super) fn new(count: u16, slots: u32) -> Self {
        Self { count, slots, ..Self::default() }
    }

    /// The paths that are not in use.
    pub(super) fn out(&self) -> u16 {
        self.out
    }

    /// The path of a datagram without data.
    #[inline]
    pub(super) fn pick(&self) -> u16 {
        if self.out == 0 { self.next } else { self.pick_around(None) }
    }

    /// The path of the data in `slot`; `again`: it was sent before, and takes another path than then.
    #[inline]
    pub(super) fn pick_for(&self, now: u64, slot: u16, again: bool) -> u16 {
        if again || self.out != 0 { self.pick_with_care(now, slot, again) } else { self.next }
    }

    #[cold]
    fn pick_with_care(&self, now: u64, slot: u16, again: bool) -> u16 {
        //= rud/spec.md section 6.7
        // A resend takes another path than the transmission that was lost; new data tries a path that is out.
        if again {
            return self.pick_around(self.taken.get(usize::from(slot)).copied());
        }
        let due = |health: &Health| matches!(health.standing, Standing::Out(at) if at <= now);
        self.health.iter().position(due).map_or_else(|| self.pick_around(None), |path| path as u16)
    }

    /// The next path in use that is not `other`; that one if no other is in use.
    #[cold]
    fn pick_around(&self, other: Option<u16>) -> u16 {
        let in_turn = (self.next..self.count).chain(0..self.next);
        let mut usable = in_turn.filter(|&path| {
            Some(path) != other
                && self.health.get(usize::from(path)).is_none_or(|h| h.standing == Standing::InUse)
        });
        usable.next().or(other).unwrap_or(self.next)
    }

    /// A datagram went out on `path`.
    #[inline]
    pub(super) fn on_sent(&mut self, path: u16) {
        self.next = if path + 1 < self.count { path + 1 } else { 0 };
    }

    /// The data in `slot` went out on `path`; `again`: its transmission before counts as lost.
    #[inline]
    pub(super) fn on_data_sent(&mut self, now: u64, slot: u16, again: bool, path: u16) {
        if self.count == 1 {
            return;
        }
        let Some(taken) = self.taken.get_mut(usize::from(slot)) else { return self.allocate(path) };
        let before = core::mem::replace(taken, path);
        if again {
            self.on_lost(now, before);
        } else if self.out != 0 {
            self.on_trial(path);
        }
    }

    /// The first data goes out.
    #[cold]
    fn allocate(&mut self, path: u16) {
        self.taken = vec![path; self.slots as usize].into_boxed_slice();
    }

    /// An acknowledgement without data went out on `path`, with this floor. One that the peer has already shows nothing.
    #[inline]
    pub(super) fn on_ack_sent(&mut self, path: u16, floor: Psn) {
        self.report = (floor != self.base).then_some((path, floor));
    }

    /// The peer's base is `base`: if that is the floor of the last acknowledgement, it has arrived.
    #[inline]
    pub(super) fn on_base(&mut self, base: Psn) {
        self.base = base;
        if !self.health.is_empty()
            && let Some((path, _)) = self.report.take_if(|(_, floor)| *floor == base)
        {
            self.count_delivered(path);
        }
    }

    /// The peer sent what it had sent before: it lacks the last acknowledgement.
    pub(super) fn on_duplicate(&mut self, now: u64) {
        if let Some((path, _)) = self.report.take()
            && self.count > 1
        {
            self.on_lost(now, path);
        }
    }

    /// The last transmission from `slot` has arrived.
    #[inline]
    pub(super) fn on_delivered(&mut self, slot: usize) {
        if !self.health.is_empty() {
            self.count_delivered(self.taken[slot]);
        }
    }

    #[cold]
    fn count_delivered(&mut self, path: u16) {
        let health = &mut self.health[usize::from(path)];
        health.streak = 0;
        health.delivered += 1;
        health.forget();
        if health.standing != Standing::InUse {
            // It begins anew, but for its failures.
            *health = Health { failures: health.failures, ..Health::FRESH };
            self.out -= 1;
        }
    }

    #[cold]
    fn on_lost(&mut self, now: u64, path: u16) {
        if self.health.is_empty() {
            self.health = vec![Health::FRESH; usize::from(self.count)].into_boxed_slice();
        }
        let health = &mut self.health[usize::from(path)];
        health.streak = health.streak.saturating_add(1);
        health.lost += 1;
        health.forget();
        let standing = health.standing;
        match standing {
            Standing::Tried => {}
            Standing::InUse if 2 * (self.out + 1) <= self.count && self.is_worse(path) => self.out += 1,
            Standing::InUse | Standing::Out(_) => return,
        }
        self.health[usize::from(path)].rest(now);
    }

    /// Whether a path loses far more than the others in use.
    fn is_worse(&self, path: u16) -> bool {
        //= rud/spec.md section 6.7
        // So many losses in a row as chance does not make of the others' share; or a quarter of its datagrams and four times
        // the others' share.
        let Health { delivered, lost, streak, .. } = self.health[usize::from(path)];
        let (mut arrived, mut gone) = (0u32, 0u32);
        for (at, other) in self.health.iter().enumerate() {
            if at != usize::from(path) && other.standing == Standing::InUse {
                arrived += u32::from(other.delivered);
                gone += u32::from(other.lost);
            }
        }
        let share = f64::from(gone + 1) / f64::from(arrived + gone + 1);
        let (delivered, lost) = (u32::from(delivered), u32::from(lost));
        let stopped = streak >= STREAK && share.powi(streak.into()) < CHANCE;
        let poor =
            lost >= FEW && 3 * lost >= delivered && lost * (arrived + gone) > 4 * gone * (lost + delivered);
        stopped || poor
    }

    /// Data went out on `path`; if that was out, this is its trial.
    #[cold]
    fn on_trial(&mut self, path: u16) {
        let standing = &mut self.health[usize::from(path)].standing;
        if matches!(standing, Standing::Out(_)) {
            *standing = Standing::Tried;
        }
    }
}
