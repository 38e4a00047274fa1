//! The network's delay and marks, read from acknowledgements (spec.md sections 7.1 and 7.2).

use super::NEVER;
use crate::wire::rud::{DatagramKind, Header, Held};

/// Period of the least time, in nanoseconds. It is that of the present period and the one before, for routes change.
const PERIOD: u64 = 30_000_000_000;

/// The echo that was read, and the least time. `base` is the smaller of the two.
#[derive(Debug)]
pub(in crate::rud) struct Signals {
    /// The peer's count of marks that was read last.
    marks: u16,
    base: u64,
    /// The least of this period, and of the one before.
    recent: [u64; 2],
    period_ends: u64,
}

/// The signals of one acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rud) struct Signal {
    /// Marks that were not known of before.
    pub(in crate::rud) marked: u32,
    /// The least time that the network took; `NEVER` if that is not known.
    pub(in crate::rud) delay: u64,
    /// The least that it has taken lately; `NEVER` if that is not known.
    pub(in crate::rud) base: u64,
}

impl Signals {
    pub(in crate::rud) fn new() -> Self {
        Self { marks: 0, base: NEVER, recent: [NEVER; 2], period_ends: 0 }
    }

    /// Reads the acknowledgement in `header`, which this end may have had for `late` nanoseconds before it looked. It was for a
    /// datagram sent at `sent_at`; `NEVER` if that is not certain.
    #[inline]
    pub(in crate::rud) fn read(&mut self, now: u64, late: u64, header: &Header, sent_at: u64) -> Signal {
        //= rud/spec.md section 7.2, RUD-77
        // Acknowledgements overtake each other; an older one says nothing new.
        let marked = header.marks.wrapping_sub(self.marks);
        let marked = if marked < 1 << 15 { marked } else { 0 };
        self.marks = self.marks.wrapping_add(marked);
        let mut delay = NEVER;
        if sent_at != NEVER {
            //= rud/spec.md section 7.1
            // Neither end's time is the network's. Where an end has not looked for long, it is only certain that the network
            // took no less than the rest; such a time is not the least of an idle network.
            let rtt = now.saturating_sub(sent_at);
            // An answer says how long its probe was held, and nothing of data. Nobody holds data for longer than it was away.
            let is_of_data = |held: &u64| header.kind != DatagramKind::Answer && *held <= rtt;
            if let Some(held) = header.held.nanos().filter(is_of_data) {
                delay = rtt.saturating_sub(held + late).max(1);
            }
            let exact = late == 0 && delay != NEVER && !header.held.is_late();
            self.note(now, if exact { delay } else { rtt.max(1) });
        }
        Signal { marked: marked.into(), delay, base: self.base }
    }

    /// Takes in the answer to a probe that was sent at `sent_at`.
    pub(in crate::rud) fn on_answer(&mut self, now: u64, late: u64, held: Held, sent_at: u64) {
        //= rud/spec.md section 7.1
        // Probes measure the network while it is idle: when the session is opened, and when nothing else was sent for long.
        let time = held.nanos().map(|held| now.saturating_sub(sent_at).saturating_sub(held).max(1));
        if let Some(time) = time.filter(|_| late == 0 && !held.is_late() && sent_at <= now) {
            self.note(now, time);
        }
    }

    #[inline]
    fn note(&mut self, now: u64, time: u64) {
        if now >= self.period_ends {
            self.period_ends = now + PERIOD;
            self.recent = [NEVER, self.recent[0]];
        }
        self.recent[0] = self.recent[0].min(time);
        self.base = self.recent[0].min(self.recent[1]);
    }
}
