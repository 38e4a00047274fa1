//! Which path each datagram takes: all in turn, but for those that lose what the others deliver.
//!
//! Routers choose a link by a hash of the addresses and ports (ECMP, RFC 2992), so a link or switch that fails takes with it
//! every datagram of the paths that lead over it, and none of the others.

use super::shares::Shares;

#[cfg(test)]
mod tests;

/// The fewest losses in a row for which a path is left out, and the fewest deliveries of others meanwhile.
const STREAK: u16 = 3;
/// Losses in a row of all paths in use after which the others are used as well.
const HOPELESS: u16 = 8;
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

/// The most datagrams that a delay is judged by.
const MOST_SAMPLES: u16 = 16;

/// Whether a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    InUse,
    /// It is tried again at this time.
    Out(u64),
}

/// The record of a path.
#[derive(Clone, Copy, Debug)]
struct Health {
    delivered: u16,
    lost: u16,
    /// Losses since something was delivered.
    streak: u16,
    /// What all paths had delivered at the first of them.
    since: u32,
    /// Trials that failed, and the loss before them.
    failures: u8,
    standing: Standing,
}

impl Health {
    const FRESH: Self =
        Self { delivered: 0, lost: 0, streak: 0, since: 0, failures: 0, standing: Standing::InUse };

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

/// The choice among a session's paths. `next` is below `count`, `out` the number of paths that are not in use, below `count`, too;
/// `health` has one record a path, or none while no datagram was lost.
#[derive(Debug, Default)]
pub(super) struct Spray {
    count: u16,
    next: u16,
    /// The path of the last transmission from each slot of the sender; empty before there is one, and with one path.
    taken: Box<[u16]>,
    slots: u32,
    health: Box<[Health]>,
    shares: Shares,
    out: u16,
    /// No path that is left out is tried again before.
    due_at: u64,
    /// Datagrams that were delivered since there are records, modulo 2^32.
    delivered: u32,
}

impl Spray {
    /// `count` paths, at least one, for a sender with so many slots.
    pub(super) fn new(count: u16, slots: u32) -> Self {
        Self { count, slots, ..Self::default() }
    }

    /// All paths.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// The paths that are not in use.
    pub(super) fn out(&self) -> u16 {
        self.out
    }

    /// The paths that are in use.
    pub(super) fn in_use(&self) -> u16 {
        self.count - self.out
    }

    /// So many datagrams in turn meet a short path, if there are some among long ones; one where none was late.
    #[inline]
    pub(super) fn samples(&self) -> u16 {
        if self.shares.are_kept() { self.in_use().min(MOST_SAMPLES) } else { 1 }
    }

    /// The path of a datagram without data.
    #[inline]
    pub(super) fn pick(&self) -> u16 {
        if self.out == 0 { self.next } else { self.pick_around(self.next, None) }
    }

    /// The paths in use in the order of their numbers: the `number`th, counted on from the first again.
    pub(super) fn in_order(&self, number: u16) -> u16 {
        let in_use = |path: &u16| self.is_used(*path);
        (0..self.count).filter(in_use).nth((number % self.in_use()).into()).unwrap_or(self.next)
    }

    /// Whether a path is in use.
    pub(super) fn is_used(&self, path: u16) -> bool {
        self.health.get(usize::from(path)).is_none_or(|health| health.standing == Standing::InUse)
    }

    /// The next path, whether it is in use or not.
    pub(super) fn in_turn(&self) -> u16 {
        self.next
    }

    /// A path that is left out, and is to be tried now by a probe: a message would wait for the trial to fail.
    #[inline]
    pub(super) fn trial(&self, now: u64) -> Option<u16> {
        if self.out == 0 { None } else { self.first_due(now) }
    }

    #[cold]
    fn first_due(&self, now: u64) -> Option<u16> {
        if now < self.due_at {
            return None;
        }
        // The one that has been due for longest, or where little is sent some would have no turn.
        let rests = (0..).zip(&self.health).filter_map(|(path, health)| match health.standing {
            Standing::Out(at) if at <= now => Some((at, path)),
            _ => None,
        });
        rests.min().map(|(_, path)| path)
    }

    /// Whether paths are left out, or until when, has changed.
    fn set_due(&mut self) {
        let rests = self.health.iter().filter_map(|health| match health.standing {
            Standing::Out(at) => Some(at),
            Standing::InUse => None,
        });
        self.due_at = rests.min().unwrap_or(u64::MAX);
    }

    /// The path of new data.
    #[inline]
    pub(super) fn pick_new(&self) -> u16 {
        let next = self.next_for_data();
        if self.out == 0 { next } else { self.pick_around(next, None) }
    }

    /// The next path of data.
    #[inline]
    fn next_for_data(&self) -> u16 {
        if self.shares.are_kept() { self.shares.next() } else { self.next }
    }

    /// The path of the data in `slot`, which was sent before and takes another path than then: `good`, if that is known to deliver.
    #[cold]
    pub(super) fn pick_again(&self, slot: u16, good: Option<u16>) -> u16 {
        //= rud/spec.md section 6.7, RUD-54
        // A resend takes another path than the transmission that was lost.
        let before = self.taken.get(usize::from(slot)).copied();
        good.filter(|_| good != before).unwrap_or_else(|| self.pick_around(self.next_for_data(), before))
    }

    /// The first path from `next` on that is in use and not `other`; that one if no other is in use. Where those in use deliver nothing, all paths
    /// count as in use.
    #[cold]
    fn pick_around(&self, next: u16, other: Option<u16>) -> u16 {
        //= rud/spec.md section 6.7, RUD-57
        // When the last paths in use fail, one that is left out may be back.
        let in_use = |health: &Health| health.standing == Standing::InUse;
        let hopeless =
            !self.health.is_empty() && self.health.iter().all(|h| !in_use(h) || h.streak >= HOPELESS);
        // `next` may be of paths in use alone, as shares name it.
        let next = if hopeless { self.next } else { next };
        let in_turn = (next..self.count).chain(0..next);
        let mut usable = in_turn.filter(|&path| Some(path) != other && (hopeless || self.is_used(path)));
        usable.next().or(other).unwrap_or(next)
    }

    /// A datagram went out on `path`.
    #[inline]
    pub(super) fn on_sent(&mut self, path: u16) {
        //= rud/spec.md section 6.7, RUD-52
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
        }
        if self.shares.are_kept() {
            let is_used = |health: &Health| health.standing == Standing::InUse;
            self.shares.on_sent(path, |at| self.health.get(at).is_none_or(is_used));
        }
    }

    /// The first data goes out.
    #[cold]
    fn allocate(&mut self, path: u16) {
        self.taken = vec![path; self.slots as usize].into_boxed_slice();
    }

    /// A probe tries `path`, which is left out: it is until the answer comes. `turn` was the next path before, and is again: else what follows
    /// trials would take the paths behind them alone.
    pub(super) fn on_trial(&mut self, now: u64, path: u16, turn: u16) {
        self.next = turn;
        if let Some(health) = self.health.get_mut(usize::from(path)) {
            health.rest(now);
            self.set_due();
        }
    }

    /// A probe on `path` was answered.
    pub(super) fn on_probe_delivered(&mut self, path: u16) {
        if !self.health.is_empty() {
            self.count_delivered(path);
        }
    }

    /// A probe on `path` was lost.
    pub(super) fn on_probe_lost(&mut self, now: u64, path: u16) {
        if self.count > 1 {
            self.on_lost(now, path);
        }
    }

    /// The last transmission from `slot` has arrived.
    #[inline]
    pub(super) fn on_delivered(&mut self, slot: usize) {
        if !self.health.is_empty() {
            self.count_delivered(self.taken[slot]);
        }
        if self.shares.are_kept() {
            self.shares.on_delivered(self.taken[slot]);
        }
    }

    /// The last transmission from `slot` is late; so many datagrams may be on the wire.
    #[cold]
    pub(super) fn on_late(&mut self, slot: usize, window: u32) {
        if let Some(path) = self.taken.get(slot) {
            self.shares.on_late(*path, self.count, window);
        }
    }

    #[cold]
    fn count_delivered(&mut self, path: u16) {
        self.delivered = self.delivered.wrapping_add(1);
        let health = &mut self.health[usize::from(path)];
        health.streak = 0;
        health.delivered += 1;
        health.forget();
        if health.standing != Standing::InUse {
            // It begins anew, but for its failures, of which a trial that is answered is none.
            *health = Health { failures: health.failures.saturating_sub(1), ..Health::FRESH };
            self.out -= 1;
            self.set_due();
        }
    }

    #[cold]
    fn on_lost(&mut self, now: u64, path: u16) {
        if self.health.is_empty() {
            self.health = vec![Health::FRESH; usize::from(self.count)].into_boxed_slice();
        }
        let health = &mut self.health[usize::from(path)];
        if health.streak == 0 {
            health.since = self.delivered;
        }
        health.streak = health.streak.saturating_add(1);
        health.lost += 1;
        health.forget();
        if health.standing == Standing::InUse && self.is_worse(path) {
            self.out += 1;
            self.health[usize::from(path)].rest(now);
            self.set_due();
        }
    }

    /// Whether a path loses far more than the others in use that deliver: false if there are none.
    fn is_worse(&self, path: u16) -> bool {
        //= rud/spec.md section 6.7, RUD-55, RUD-56
        // So many losses in a row as chance does not make of the others' share, while others deliver; or a quarter of its datagrams
        // and four times the others' share. A path that may be dead itself is no measure.
        let Health { delivered, lost, streak, since, .. } = self.health[usize::from(path)];
        let (delivered, lost) = (u32::from(delivered), u32::from(lost));
        let others_deliver = self.delivered.wrapping_sub(since) >= STREAK.into();
        let (may_have_stopped, may_be_poor) =
            (streak >= STREAK && others_deliver, lost >= FEW && 3 * lost >= delivered);
        if !may_have_stopped && !may_be_poor {
            return false;
        }
        let (mut arrived, mut gone) = (0u32, 0u32);
        for (at, other) in self.health.iter().enumerate() {
            if at != usize::from(path) && other.standing == Standing::InUse && other.streak < STREAK {
                arrived += u32::from(other.delivered);
                gone += u32::from(other.lost);
            }
        }
        let share = f64::from(gone + 1) / f64::from(arrived + gone + 1);
        let stopped = may_have_stopped && share.powi(streak.into()) < CHANCE;
        let poor = may_be_poor && lost * (arrived + gone) > 4 * gone * (lost + delivered);
        stopped || poor
    }
}
