//! A writer's hints about its bytes: that more follows at once, that a record ends, that nothing is to wait. And
//! whether it waits for room itself.

use super::Sender;

/// The writer's hint, which is about the last write alone, and whether it waits for room.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// The last write said that more would follow.
    more: bool,
    /// A write was refused in part.
    blocked: bool,
}

impl Writer {
    /// Something was written, or the end; `all`: none of it was refused.
    #[inline]
    pub(super) fn on_write(&mut self, all: bool) {
        self.more = false;
        self.blocked |= !all;
    }

    /// A write was refused.
    pub(super) fn on_refused(&mut self) {
        self.blocked = true;
    }

    /// Whether a write was refused, and no room was found since.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// There is room for the refused bytes, or there will be no more writes.
    #[inline]
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Whether the last write said that more would follow.
    #[inline]
    pub(super) fn expects_more(&self) -> bool {
        self.more
    }
}

impl Sender {
    /// More will follow the last write at once.
    pub(crate) fn expect_more(&mut self) {
        self.writer.more = true;
    }

    /// Ends a record after the bytes written so far: no segment goes beyond it.
    pub(crate) fn end_record(&mut self) {
        self.queue.mark();
    }

    /// Stops holding back the bytes written so far.
    pub(crate) fn push(&mut self) {
        let end = self.queue.tail();
        self.tally().push(end);
    }

    /// Whether a last segment that is less than full is held back for further writes.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        let more = self.writer.more || self.options.cork;
        let pushed = || self.tally.as_ref().map_or(0, |tally| tally.pushed());
        more && !self.space.is_finished() && self.queue.tail() > pushed()
    }

    //= RFC 9293 section 3.9.1.2, MUST-61, SHLD-27: PSH when the queue is empty behind it, unless the writer said that more would
    //= follow; not at the end of each write.
    /// Whether a segment that ends at a stream position says PSH.
    pub(super) fn pushes(&self, end: u64) -> bool {
        (end == self.queue.tail() && !self.writer.more) || self.queue.ends_record(end)
    }
}
