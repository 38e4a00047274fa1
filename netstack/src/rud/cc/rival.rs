//! Senders that fill buffers and do not give way to delay, as TCP with CUBIC does (spec.md section 7.7). A window that only follows the
//! delay has next to nothing beside one.

use super::swift::ONE;

/// So many rounds above the target, and the queue is somebody else's. Sessions of this kind among themselves had nine in a row at most: 256 of
/// them that began at once, on a link that holds 83 datagrams (tests/congestion).
const HOPELESS: u32 = 16;

/// Of a window of this and more, a round below the target takes back one above it. A smaller one is that of one among many senders: it takes
/// back all.
const LARGE: u64 = 8 * ONE;

/// A window of less is next to nothing: those 256 senders have more. Rounds below the target take nothing back, and two above it do.
const TINY: u64 = ONE / 5;

/// Rounds for which a sender stands back, to see whether it is itself that fills the buffer.
const BACK: u32 = 4;

/// It does so after each loss, and after this many rounds.
const PATIENCE: u32 = 256;

/// The end of a round of which enough datagrams were acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundEnd {
    /// The window.
    pub(super) window: u64,
    /// The window that would leave no queue, if this sender were alone.
    pub(super) alone: u64,
    /// The delay was above the target, and that of the network.
    pub(super) above: bool,
    /// There was no queue.
    pub(super) drained: bool,
    /// Datagrams were lost.
    pub(super) lost: bool,
}

/// Whether there is such a sender.
#[derive(Debug, Default)]
pub(super) struct Rival {
    /// Rounds above the target, less others, and the window before the first.
    steep: u32,
    before: u64,
    is_there: bool,
    /// Rounds since the last time that this sender stood back.
    rounds: u32,
    /// Rounds for which it still stands back, and the window after them.
    back: u32,
    resumed: u64,
}

impl Rival {
    /// Whether there is one, so that the window does not follow the delay.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Whether there may be one.
    #[inline]
    pub(super) fn is_suspected(&self) -> bool {
        self.steep != 0
    }

    /// Whether the window grows, beside one.
    pub(super) fn lets_grow(&self) -> bool {
        self.back == 0
    }

    /// A round has ended: the window from now on, if it changes.
    pub(super) fn on_round(&mut self, round: &RoundEnd) -> Option<u64> {
        if round.drained {
            *self = Self::default();
            return None;
        }
        if !self.is_there {
            return self.suspect(round);
        }
        if self.back != 0 {
            self.back -= 1;
            return (self.back == 0).then_some(self.resumed);
        }
        //= rud/spec.md section 7.7, RUD-102
        self.rounds += 1;
        if !round.lost && self.rounds < PATIENCE {
            return None;
        }
        (self.rounds, self.back) = (0, BACK);
        self.resumed = if round.lost { round.window / 2 } else { round.window };
        Some(round.alone)
    }

    /// Everything on the wire is held for lost.
    pub(super) fn on_timeout(&mut self) {
        self.is_there |= self.steep >= HOPELESS / 2;
        self.back = 0;
    }

    fn suspect(&mut self, round: &RoundEnd) -> Option<u64> {
        if !round.above {
            self.steep = match round.window {
                ..TINY => self.steep,
                TINY..LARGE => 0,
                LARGE.. => self.steep.saturating_sub(1),
            };
            return None;
        }
        if self.steep == 0 {
            self.before = round.window;
        }
        self.steep += if round.window < TINY { HOPELESS / 2 } else { 1 };
        self.is_there = self.steep >= HOPELESS;
        self.is_there.then_some(round.window.max(self.before / 2))
    }
}
