//! Senders that fill buffers and do not give way to delay, as TCP with CUBIC does (spec.md section 7.7). A window that only follows the
//! delay has next to nothing beside one.

use super::swift::ONE;

/// Rounds of a response, after one above the target. What is sent in the first meets the shorter queue, and is acknowledged in the second; the others'
/// windows shrink up to a round later.
const RESPONSE: u32 = 4;

/// There is a rival once the cuts in vain add up to so many windows.
const IN_VAIN: u64 = 7 * ONE / 4;

/// So much of that makes it likely: then responses of small windows count, too, and a time-out of one is enough.
const LIKELY: u64 = IN_VAIN / 3;

/// A smaller window may be that of one among many senders, which see the queue one after the other: the delay need not fall with it.
const SMALL: u64 = 2 * ONE;

/// A window of less is next to nothing: a round above the target counts as a cut by a whole window, and the next one is the response.
const TINY: u64 = ONE / 10;

/// A round that is not above the target takes this part of the sum away: what is older says little of the senders of now.
const FADING: u64 = 100;

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
    /// The least delay in it.
    pub(super) delay: u64,
    /// The delay was above the target, and that of the network.
    pub(super) above: bool,
    /// There was no queue.
    pub(super) drained: bool,
    /// Datagrams were lost.
    pub(super) lost: bool,
}

/// What a smaller window does to the delay.
#[derive(Debug)]
struct Response {
    /// Rounds left of it.
    left: u32,
    /// The window at its beginning, and the least since.
    window: [u64; 2],
    /// The delay at its beginning, and the least since.
    delay: [u64; 2],
}

/// Whether there is such a sender.
#[derive(Debug, Default)]
pub(super) struct Rival {
    response: Option<Response>,
    /// The shares by which the window was cut in vain, in sum, and the window before the first of them.
    in_vain: u64,
    before: u64,
    is_there: bool,
    /// A time-out of this round has found it.
    by_timeout: bool,
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
        self.in_vain != 0 || self.response.is_some()
    }

    /// Whether the window grows, beside one.
    pub(super) fn lets_grow(&self) -> bool {
        self.back == 0
    }

    /// A round has ended: the window from now on, if it changes.
    pub(super) fn on_round(&mut self, round: &RoundEnd) -> Option<u64> {
        if round.drained {
            //= rud/spec.md section 7.7, RUD-109
            // It may have emptied the queue for once.
            let in_vain = self.in_vain - self.in_vain.div_ceil(4);
            *self = Self { in_vain, before: self.before, ..Self::default() };
            return None;
        }
        self.by_timeout = false;
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

    /// Everything on the wire of this window is held for lost.
    pub(super) fn on_timeout(&mut self, window: u64) {
        if !self.is_there {
            self.is_there = self.in_vain >= LIKELY && window < SMALL;
            self.by_timeout = self.is_there;
        }
        self.back = 0;
        self.response = None;
    }

    /// It was not.
    pub(super) fn on_spurious(&mut self) {
        self.is_there &= !core::mem::take(&mut self.by_timeout);
    }

    //= rud/spec.md section 7.7, RUD-109
    fn suspect(&mut self, round: &RoundEnd) -> Option<u64> {
        if !round.above && round.window >= TINY {
            self.in_vain -= self.in_vain.div_ceil(FADING);
        }
        let Some(response) = &mut self.response else {
            let left = match round.window {
                ..TINY => 1,
                TINY..SMALL if self.in_vain < LIKELY => 0,
                _ => RESPONSE,
            };
            if round.above && left != 0 {
                let (window, delay) = ([round.window; 2], [round.delay; 2]);
                self.response = Some(Response { left, window, delay });
                self.before = if self.in_vain == 0 { round.window } else { self.before };
            }
            return None;
        };
        response.left -= 1;
        response.window[1] = response.window[1].min(round.window);
        response.delay[1] = response.delay[1].min(round.delay);
        if response.left != 0 {
            return None;
        }
        // Page's cumulative sum (Biometrika 1954): it stays near zero as long as half of the traffic gives way.
        let share = |[before, least]: [u64; 2]| ONE - least * ONE / before.max(1);
        let cut = if response.window[0] < TINY { ONE } else { share(response.window) };
        self.in_vain = (self.in_vain + cut).saturating_sub(2 * share(response.delay));
        self.response = None;
        self.is_there = self.in_vain >= IN_VAIN;
        self.is_there.then_some(round.window.max(self.before / 2))
    }
}
