//! A window by delay in the manner of Swift (Kumar et al., SIGCOMM 2020), by marks in the manner of DCTCP (RFC 8257), and by losses
//! only where there is a queue, or more of them than a link loses by chance.

use super::noise::Noise;
use super::rival::{Rival, RoundEnd};
use super::{AckSample, Controller, NEVER};
use crate::rud::api::Config;
use crate::rud::nanos;

/// One datagram, as windows are counted; one, as shares are.
pub(super) const ONE: u64 = 1 << 16;

/// The datagrams that the initial window is meant for have so many bytes...
const INITIAL_BYTES: u64 = 1_500;
/// ...and of longer ones it has at least so many.
const INITIAL_LEAST: u64 = 4;

/// The window never falls below this.
const LEAST: u64 = ONE / 16;

/// The longest queue that is aimed at, in nanoseconds, before it is scaled.
pub(super) const LONGEST_QUEUE: u64 = 100_000;

/// A queue of this many times the aim does not build up within one round.
const DOUBTFUL: u64 = 16;

/// Where the network marks datagrams, the queue aimed at is this many times as long: marks come first, and say more.
const MARKED: u64 = 4;

/// Where the network marks datagrams, a window w grows by this times sqrt(w) / 256 in a round: at 39, by a sixteenth, as elsewhere.
const BY_ROOT: u64 = 100;

/// Rounds without a queue after which the window grows faster.
const CALM: u32 = 4;

/// A round's losses are judged over at least this many datagrams, for a share of fewer says little.
const JUDGED: u32 = 64;

/// Sums over the acknowledgements since the round began.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// It ends with the acknowledgement of a datagram that was sent no earlier.
    began: u64,
    acked: u32,
    marked: u32,
    lost: u32,
    /// The least delay, and the datagrams acknowledged with one: those of rounds before, too, where all of them were too few to judge it.
    delay: u64,
    delays: u32,
}

/// The window of one session. Times are nanoseconds.
#[derive(Debug)]
pub(in crate::rud) struct Swift {
    window: u64,
    max: u64,
    initial: u64,
    slow_start: bool,
    round: Round,
    /// Datagrams settled and lost since losses were judged.
    judged: (u32, u32),
    tolerance: u32,
    /// The share of marked datagrams, smoothed; one in slow start.
    alpha: u64,
    /// The least queue that is aimed at.
    least_queue: u64,
    /// The least delay that the network has had lately.
    least: u64,
    noise: Noise,
    /// The delay without a queue: the sum of both.
    base: u64,
    /// Whether the network marks datagrams.
    marks: bool,
    /// Acknowledged datagrams that a delay above the target is judged by.
    samples: u32,
    /// The delay with a quarter of the queue that is aimed at; less counts as no queue.
    drained: u64,
    /// The delay above which the window shrinks.
    target: u64,
    /// Whether the last round's delay was above it.
    above: bool,
    /// Rounds without a queue.
    calm: u32,
    rival: Rival,
    /// The window before a time-out that may have been none; zero if there is none.
    saved: u64,
    /// Alpha then.
    saved_alpha: u64,
    /// The delay of the last round that had one.
    delay: u64,
    gap: u64,
    /// The window and the delay, in microseconds or so, that the target and the gap are for.
    paced_for: (u64, u64),
}

impl Swift {
    /// In slow start, for datagrams of up to `payload` bytes.
    pub(in crate::rud) fn new(config: &Config, payload: usize) -> Self {
        //= rud/spec.md section 7.3, RUD-78
        // The initial window is a number of bytes, so that a port's buffer takes that of many senders.
        let most = u64::from(config.initial_window);
        let initial =
            (most * INITIAL_BYTES / (payload as u64).max(1)).clamp(INITIAL_LEAST.min(most), most) * ONE;
        let max = u64::from(config.window_packets) * ONE;
        Self {
            window: initial,
            max,
            initial,
            slow_start: true,
            round: Round::new(0),
            judged: (0, 0),
            tolerance: config.loss_tolerance,
            alpha: ONE,
            least_queue: nanos(config.queue_delay),
            least: NEVER,
            noise: Noise::default(),
            base: NEVER,
            marks: false,
            samples: 1,
            drained: NEVER,
            target: NEVER,
            above: false,
            calm: 0,
            rival: Rival::default(),
            saved: 0,
            saved_alpha: ONE,
            delay: NEVER,
            gap: 0,
            paced_for: (0, 0),
        }
    }

    #[cfg(test)]
    pub(super) fn noise(&self) -> &Noise {
        &self.noise
    }

    #[cfg(test)]
    pub(super) fn rival(&self) -> &Rival {
        &self.rival
    }

    /// The queue that is aimed at.
    fn queue(&self) -> u64 {
        (self.base - self.base / 4).min(LONGEST_QUEUE).max(self.least_queue)
    }

    fn aim(&mut self) {
        //= rud/spec.md section 7.8
        // What is noise in a delay is no queue.
        self.base = self.least.saturating_add(self.noise.amount());
        //= rud/spec.md section 7.4
        // The smaller the window, the longer the queue: so a session that meets two queues keeps a share of both links.
        if self.base != NEVER {
            let window = self.window.clamp(20 * ONE, 64 * ONE);
            // The inverse root of the window in 1/256: 32 for 64 datagrams, 57 for 20.
            let inverse = ONE / window.isqrt();
            let queue = self.queue();
            self.drained = self.base + queue / 4;
            let times = if self.marks { MARKED } else { 1 };
            self.target = self.base + times * queue * inverse / 32;
        }
    }

    /// Whether a delay can be that of the network.
    fn believes(&self, delay: u64) -> bool {
        //= rud/spec.md section 7.4
        // A queue that is far too long, and was not there before, is taken for a host's pause until the next round
        // shows it too.
        self.above || delay <= self.base.saturating_add(DOUBTFUL * self.queue())
    }

    fn grow(&mut self, acked: u32) {
        //= rud/spec.md section 7.4
        // By one for each datagram in slow start; then by a sixteenth of the window a round, or an eighth of a datagram, but the
        // less the larger it is: so two senders become even although each is marked as often as the other. Where there are marks small
        // windows grow by their root, for two of them that grow and shrink by the same share would stay as uneven as they are. By an
        // eighth at least when there was no queue for some rounds.
        let acked = u64::from(acked);
        self.window += if self.slow_start {
            acked * ONE
        } else if self.rival.is_there() {
            //= rud/spec.md section 7.7, RUD-101
            // As RFC 5681 has it: by one datagram a round.
            if self.rival.lets_grow() { acked * ONE * ONE / self.window.max(ONE) } else { 0 }
        } else {
            let most = 96 * ONE * ONE / self.window.max(ONE);
            let usual = if self.marks { BY_ROOT * self.window.isqrt() } else { self.window / 16 };
            let step = usual.max(ONE / 8).min(most);
            let calm = if self.calm >= CALM { acked * ONE / 8 } else { 0 };
            calm.max(step * acked * ONE / self.window.max(ONE))
        };
        self.window = self.window.min(self.max);
    }

    /// The share of the window that is left at the end of a round.
    fn remainder(&mut self) -> u64 {
        //= rud/spec.md section 7.4, RUD-81
        let Round { acked, marked, lost, delay, .. } = self.round;
        let mut left = ONE;
        let share = u64::from(marked.min(acked)) * ONE / u64::from(acked.max(1));
        if !self.slow_start {
            //= rud/spec.md section 7.4
            // RFC 8257: half the share of marked datagrams, smoothed by a sixteenth, which is rounded so that it comes down to nothing.
            self.alpha = self.alpha - self.alpha.div_ceil(16) + share / 16;
        }
        if marked != 0 {
            left = ONE - self.alpha / 2;
        }
        if delay != NEVER && self.base != NEVER && !self.round.is_partial(self.target, self.samples) {
            let above = delay > self.target;
            let believed = self.believes(delay);
            let alone = (self.drained * ONE / delay).min(ONE);
            let round = RoundEnd {
                window: self.window,
                alone: self.window * alone / ONE,
                delay,
                above: above && believed,
                drained: delay <= self.drained,
                lost: lost != 0,
            };
            if let Some(window) = self.rival.on_round(&round) {
                self.window = window.clamp(LEAST, self.max);
            }
            if self.rival.is_there() {
                if lost != 0 {
                    self.leave_slow_start();
                }
            } else if believed && delay > self.drained && (above || lost != 0) {
                let cut = (ONE - alone).clamp(ONE / 8, ONE / 2);
                // Many senders of a datagram at a time see a queue one after the other, and leave some of it to the others.
                left = left.min(ONE - cut * (self.window / 2).clamp(ONE / 4, ONE) / ONE);
            }
            if marked | lost != 0 {
                self.noise.on_congestion();
            } else if !above {
                self.noise.on_calm();
            } else if self.noise.on_above(self.window, delay.saturating_sub(self.least)) {
                //= rud/spec.md section 7.8
                // The window has shrunk for a queue that is none, and so is nobody's.
                self.rival = Rival::default();
                self.begin_slow_start();
                self.paced_for.0 = 0;
            }
            self.above = above;
            if believed {
                self.delay = delay;
            }
            self.calm = if delay <= self.drained && marked == 0 { self.calm.saturating_add(1) } else { 0 };
        }
        left.min(self.judge_losses()).max(ONE / 2)
    }

    /// The share of the window that losses leave, if they are more than chance.
    fn judge_losses(&mut self) -> u64 {
        let (settled, lost) = self.judged;
        let total = u64::from(settled) + u64::from(lost);
        if total < u64::from(JUDGED) {
            return ONE;
        }
        self.judged = (0, 0);
        //= rud/spec.md section 7.4
        // Two standard deviations of a count are twice its root.
        let certain = u64::from(lost.saturating_sub(2 * lost.isqrt()));
        if certain * 100 <= total * u64::from(self.tolerance) {
            return ONE;
        }
        self.leave_slow_start();
        ONE - u64::from(lost) * ONE / total
    }

    #[inline]
    fn end_round(&mut self, now: u64) {
        let Round { marked, lost, delay, .. } = self.round;
        let quiet = marked == 0 && lost == 0 && self.judged.1 == 0 && delay <= self.target;
        if quiet && (self.slow_start || self.alpha == 0) && !self.rival.is_suspected() {
            // Nothing shrinks the window: the usual round, in short.
            if self.judged.0 >= JUDGED {
                self.judged = (0, 0);
            }
            self.above = false;
            self.noise.on_calm();
            self.delay = delay;
            self.calm = if delay <= self.drained { self.calm.saturating_add(1) } else { 0 };
        } else {
            let left = self.remainder();
            if left != ONE {
                self.calm = 0;
                self.window = (self.window * left / ONE).max(LEAST);
            }
        }
        let Round { delay, delays, .. } = self.round;
        let next = Round::new(now);
        self.round = match self.round.is_partial(self.target, self.samples) {
            true => Round { delay, delays, ..next },
            false => next,
        };
        if (self.window, self.delay / 1024) != self.paced_for {
            self.set_pace();
        }
    }

    fn begin_slow_start(&mut self) {
        self.slow_start = true;
        self.alpha = ONE;
    }

    /// Slow start ends without a mark, if it is not over.
    fn leave_slow_start(&mut self) {
        //= rud/spec.md section 7.4
        // The next mark does not say that the window is too large by a half, as one in slow start does.
        if core::mem::take(&mut self.slow_start) {
            self.alpha = 0;
        }
    }

    /// No distance until a round has a delay again: the last one's means nothing for what is sent now, also where rounds without one follow.
    #[inline]
    fn forget_pace(&mut self) {
        self.delay = NEVER;
        self.gap = 0;
        self.paced_for.0 = 0;
    }

    /// The target and the distance follow the window and the delay.
    fn set_pace(&mut self) {
        self.paced_for = (self.window, self.delay / 1024);
        self.aim();
        //= rud/spec.md section 7.5, RUD-83
        // A little faster than the window in a round trip, so that acknowledgements set the pace where they come evenly.
        self.gap = if self.delay == NEVER {
            0
        } else {
            let ahead = if self.slow_start { 2 * self.window } else { self.window + self.window / 4 };
            self.delay * ONE / ahead
        };
    }
}

impl Round {
    const fn new(began: u64) -> Self {
        Self { began, acked: 0, marked: 0, lost: 0, delay: NEVER, delays: 0 }
    }

    /// Whether its delay is above the target, and of too few datagrams.
    #[inline]
    const fn is_partial(&self, target: u64, samples: u32) -> bool {
        //= rud/spec.md section 7.4
        // One path may be far shorter than the others, and the window less than the paths.
        self.delay > target && self.delays < samples
    }
}

impl Controller for Swift {
    #[inline]
    fn limit(&self) -> u32 {
        ((self.window / ONE) as u32).max(1)
    }

    #[inline]
    fn gap(&self) -> u64 {
        self.gap
    }

    // Inlined, as the sample need not be put together then where little is sent.
    #[inline(always)]
    fn on_acked(&mut self, sample: &AckSample) {
        if sample.base != self.least || sample.marks != self.marks {
            self.least = sample.base;
            self.marks = sample.marks;
            self.aim();
        }
        self.samples = sample.samples;
        let in_time = sample.delay <= self.target && sample.delay != NEVER;
        if in_time
            && 2 * sample.flight < self.limit()
            && sample.marked | sample.spurious | self.round.lost == 0
        {
            //= rud/spec.md section 7.5
            // Little is sent, and nothing is wrong: there is nothing to do but to begin the round anew.
            self.saved = 0;
            self.above = false;
            self.round.began = sample.now;
            if self.round.is_partial(self.target, self.samples) {
                (self.round.delay, self.round.delays) = (NEVER, 0);
            }
            self.forget_pace();
            return;
        }
        self.take_in(*sample);
    }

    fn on_lost(&mut self, count: u32) {
        self.round.lost += count;
        self.judged.1 += count;
    }

    fn on_timeout(&mut self) {
        //= rud/spec.md section 7.6, RUD-84
        // One datagram and slow start; the window before comes back if nothing was lost.
        if self.saved == 0 {
            self.saved_alpha = self.alpha;
        }
        self.saved = self.saved.max(self.window);
        self.rival.on_timeout(self.window);
        self.window = self.window.min(ONE);
        self.begin_slow_start();
        self.gap = 0;
        self.paced_for.0 = 0;
        self.judged = (0, 0);
    }

    fn on_idle(&mut self) {
        //= rud/spec.md section 7.3, RUD-80
        // The measurements are too old.
        self.window = self.window.min(self.initial);
        self.rival = Rival::default();
        self.begin_slow_start();
        self.forget_pace();
    }
}

impl Swift {
    fn take_in(&mut self, sample: AckSample) {
        if sample.spurious != 0 {
            self.on_spurious(sample.spurious);
        } else if sample.delay != NEVER {
            self.saved = 0;
        }
        self.judged.0 += sample.acked;
        self.round.acked += sample.acked;
        self.round.marked += sample.marked;
        if sample.delay != NEVER {
            self.round.delay = self.round.delay.min(sample.delay);
            self.round.delays += sample.acked;
        }
        let above = sample.delay != NEVER && sample.delay > self.target && !self.rival.is_there();
        let congested = sample.marked != 0 || above;
        if congested && self.slow_start {
            //= rud/spec.md section 7.3, RUD-79
            // The first sign of a queue ends slow start at once.
            if sample.marked != 0 {
                self.slow_start = false;
            } else if self.believes(sample.delay) {
                self.leave_slow_start();
            }
            self.end_round(sample.now);
            return;
        }
        //= rud/spec.md section 7.4, RUD-82
        // A window that is not used must not grow.
        let used = if self.slow_start { 2 * sample.flight } else { sample.flight + sample.flight / 4 };
        if !congested && used >= self.limit() {
            self.grow(sample.acked);
        }
        if sample.sent_at != NEVER && sample.sent_at >= self.round.began {
            self.end_round(sample.now);
        }
    }

    /// Datagrams that were held for lost were not.
    #[cold]
    fn on_spurious(&mut self, count: u32) {
        self.round.lost = self.round.lost.saturating_sub(count);
        self.judged.1 = self.judged.1.saturating_sub(count);
        if self.saved != 0 {
            self.window = self.window.max(self.saved);
            self.saved = 0;
            self.rival.on_spurious();
            self.leave_slow_start();
            // One is that of a slow start, which has ended without a mark.
            self.alpha = if self.saved_alpha == ONE { 0 } else { self.saved_alpha };
        }
    }
}
