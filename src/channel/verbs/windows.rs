//! The peer's memory windows for the messages that it has given credit for, until all of them are sent.

use std::collections::VecDeque;

use shouter_reducer::header::Header;

use super::fabric::Remote;
use super::message::CreditWindow;

/// Beyond this limit credits are not kept, and their fragments use the slots.
const MOST: usize = 1 << 14;

/// The messages of one credit.
#[derive(Clone, Copy, Debug)]
struct Open {
    seq: u64,
    first: u32,
    rounds: u32,
    window: CreditWindow,
    /// Bytes that are not sent.
    left: u64,
}

/// A peer's windows, in the order of (seq, round).
#[derive(Debug, Default)]
pub(super) struct CreditWindows {
    all: VecDeque<Open>,
}

impl CreditWindows {
    /// Adds the window of a credit message.
    pub(super) fn open(&mut self, credit: &Header, window: CreditWindow) {
        let (seq, first, rounds) = (credit.key.seq, credit.round, credit.len);
        let at = self.all.partition_point(|open| (open.seq, open.first) < (seq, first));
        let known = self.all.get(at).is_some_and(|open| (open.seq, open.first) == (seq, first));
        if !known && self.all.len() < MOST && rounds > 0 {
            let left = u64::from(rounds) * u64::from(window.len);
            self.all.insert(at, Open { seq, first, rounds, window, left });
        }
    }

    /// The place of a fragment that is sent now; called once for each.
    pub(super) fn find(&mut self, header: &Header) -> Option<Remote> {
        let after = self.all.partition_point(|open| (open.seq, open.first) <= (header.key.seq, header.round));
        let open = self.all.get_mut(after.checked_sub(1)?)?;
        let index = header.round.checked_sub(open.first).filter(|index| *index < open.rounds)?;
        let end = header.offset.checked_add(header.len.into())?;
        if open.seq != header.key.seq || end > open.window.len.into() {
            return None;
        }
        let CreditWindow { address, stride, rkey, .. } = open.window;
        open.left = open.left.saturating_sub(header.len.into());
        while self.all.front().is_some_and(|open| open.left == 0) {
            self.all.pop_front();
        }
        let offset = stride.checked_mul(index.into())?.checked_add(header.offset)?;
        Some(Remote { address: address.checked_add(offset)?, rkey })
    }

    /// Whether the peer has no windows open.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests;
