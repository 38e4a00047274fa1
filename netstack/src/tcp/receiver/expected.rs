//! Header prediction: the next expected data in order, with nothing out of order before or behind it.

use super::Receiver;
use super::pool::Pool;
use super::run::Cut;
use crate::tcp::Payload;
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

impl Receiver {
    /// Whether a segment with `len` bytes of payload and no flags is the next in order, all of it in the window, with
    /// nothing held out of order and the end not in sight.
    #[inline]
    pub(crate) fn expects(&self, seq: SeqNumber, len: usize) -> bool {
        let fits = len <= self.window.edge().distance(self.next) as usize;
        seq == self.next && fits && self.assembly.is_none() && self.fin.is_none() && !self.finished
    }

    /// Takes the payload of such a segment, which has some; returns how many bytes found room.
    #[inline]
    pub(crate) fn on_expected(&mut self, now: Instant, payload: Payload<'_>, pool: &mut Pool) -> u32 {
        let len = payload.len();
        let took = self.queue.append(&Cut::new(payload, 0, len), pool, self.queue.len() == 0);
        self.next += took;
        self.policy.on_data(now, took, len, self.mss);
        self.received = self.received.saturating_add(u64::from(took));
        took
    }
}
