//! Which share of the datagrams each path takes: less while they come late on it, for then there is a queue.
//!
//! All shares and what is to be given out add up to [`EVEN`] a path. A late datagram takes a unit from its path's share, and
//! delivered ones bring that to theirs: so the delays of the paths become even (a replicator's dynamics: what serves well grows).

#[cfg(test)]
mod tests;

/// The share of a path among even ones: those of the most paths add up to less than 2^32.
const EVEN: u32 = 1 << 14;
/// The least, by which a path goes on being tried.
const LEAST: u32 = EVEN / 16;
/// The most: half of the paths carry everything, at least.
const MOST: u32 = 2 * EVEN;
/// A window whose datagrams are all late loses this part of the shares.
const LOSS: u32 = 16;
/// A path with more than its even share gives back this part of a unit for each datagram, while nothing is late.
const RETURNED: u32 = 16;

#[derive(Clone, Copy, Debug)]
struct Share {
    share: u32,
    /// One datagram may go out for each [`EVEN`] of it.
    credit: i64,
}

/// The shares of a session's paths; none while no datagram was late.
#[derive(Debug, Default)]
pub(super) struct Shares {
    paths: Box<[Share]>,
    next: u16,
    /// What was taken and not given out yet.
    pool: u32,
    /// What a late datagram takes.
    unit: u32,
}

impl Shares {
    /// Whether there are shares: without, paths take turns.
    #[inline]
    pub(super) fn are_kept(&self) -> bool {
        !self.paths.is_empty()
    }

    /// The path of the next datagram.
    pub(super) fn next(&self) -> u16 {
        self.next
    }

    /// A datagram went out on `path`: the next one takes a path that is `in_use`.
    #[cold]
    pub(super) fn on_sent(&mut self, path: u16, in_use: impl Fn(usize) -> bool) {
        //= rud/spec.md section 6.7, RUD-53
        // A path in use that is passed gains its share; a datagram costs an even one.
        let count = self.paths.len();
        let mut at = usize::from(path);
        self.paths[at].credit = (self.paths[at].credit - i64::from(EVEN)).max(-i64::from(EVEN));
        for _ in 0..2 * count {
            if in_use(at) && self.paths[at].credit >= i64::from(EVEN) {
                break;
            }
            at = if at + 1 < count { at + 1 } else { 0 };
            if in_use(at) {
                self.paths[at].credit += i64::from(self.paths[at].share);
            }
        }
        self.next = at as u16;
    }

    /// A datagram on `path`, one of so many, is late; so many datagrams may be on the wire.
    #[cold]
    pub(super) fn on_late(&mut self, path: u16, count: u16, window: u32) {
        //= rud/spec.md section 6.7, RUD-53
        // A late datagram takes a unit of its path's share.
        if self.paths.is_empty() {
            self.paths = vec![Share { share: EVEN, credit: 0 }; count.into()].into_boxed_slice();
        }
        let all = EVEN * u32::from(count);
        self.unit = (all / LOSS.saturating_mul(window.max(1))).clamp(1, EVEN / 2);
        let share = &mut self.paths[usize::from(path)].share;
        let taken = self.unit.min(*share - LEAST);
        *share -= taken;
        self.pool += taken;
    }

    /// A datagram on `path` has arrived.
    #[cold]
    pub(super) fn on_delivered(&mut self, path: u16) {
        //= rud/spec.md section 6.7, RUD-53
        // It brings its path up to two units of what was taken; where nothing is left of that, a path that has more gives some back.
        let share = &mut self.paths[usize::from(path)].share;
        if self.pool != 0 {
            let given = (2 * self.unit).min(self.pool).min(MOST - *share);
            *share += given;
            self.pool -= given;
        } else if *share > EVEN {
            let returned = (self.unit / RETURNED).max(1).min(*share - EVEN);
            *share -= returned;
            self.pool += returned;
        }
    }
}
