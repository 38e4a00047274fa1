//! What a writer says about what it wrote: that more follows at once, that a record ends, that nothing is to wait.

use super::Sender;

impl Sender {
    /// What was written last will be followed by more at once.
    pub(crate) fn expect_more(&mut self) {
        self.more = true;
    }

    /// What was written so far ends a record: no segment goes beyond it.
    pub(crate) fn end_record(&mut self) {
        self.queue.mark();
    }

    /// What was written so far is not held back any longer.
    pub(crate) fn push(&mut self) {
        self.tally().pushed = self.queue.tail();
    }

    /// Whether a last segment that is less than full is held back for what may follow.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        let pushed = || self.tally.as_ref().map_or(0, |tally| tally.pushed);
        (self.more || self.options.cork) && !self.fin_queued && self.queue.tail() > pushed()
    }

    //= RFC 9293 section 3.9.1.2, MUST-61, SHLD-27: PSH when the queue is empty behind it, unless the writer said that more would
    //= follow; not at the end of each write.
    /// Whether a segment that ends at a stream position says PSH.
    pub(super) fn pushes(&self, end: u64) -> bool {
        (end == self.queue.tail() && !self.more) || self.queue.ends_record(end)
    }
}
