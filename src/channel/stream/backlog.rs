//! Frames that have come from a peer and cannot be taken yet. While there are many, the peer's connections are left
//! unread.

use std::collections::VecDeque;

use shouter_reducer::header::Header;

use super::CONTROL;
use super::connection::HEAD;
use crate::channel::Inbox;

/// Bytes of fragments that came too early, of one peer: its connections are not read while there are more. The executor
/// keeps some itself.
const EARLY: usize = 1 << 20;

/// Side messages of a peer that may wait to be taken: its connections are not read while there are as many.
const SIDES_KEPT: usize = 64;

/// A fragment that the executor could not take yet.
#[derive(Debug)]
struct Early {
    header: Header,
    payload: Box<[u8]>,
}

impl Early {
    fn bytes(&self) -> usize {
        self.payload.len() + HEAD
    }
}

/// The frames that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    early: VecDeque<Early>,
    /// Bytes of the early fragments.
    bytes: usize,
    /// Connections that were not read to their end, each once.
    unread: Vec<usize>,
    sides: VecDeque<Vec<u8>>,
}

impl Backlog {
    /// Whether anything waits for the executor.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.early.is_empty() && self.unread.is_empty()
    }

    /// Whether connection `at` is to be read. Control messages come through when fragments have to wait: the abort message is
    /// among them.
    #[inline]
    pub(super) fn has_room(&self, at: usize) -> bool {
        let limit = if at == CONTROL { 2 * EARLY } else { EARLY };
        self.bytes <= limit && self.sides.len() < SIDES_KEPT
    }

    /// Hands a message on, or keeps it.
    #[inline]
    pub(super) fn offer(&mut self, header: Header, payload: &[u8], inbox: &mut dyn Inbox) {
        if inbox.fragment(&header, payload).is_retryable() {
            let early = Early { header, payload: payload.into() };
            self.bytes += early.bytes();
            self.early.push_back(early);
        }
    }

    /// Offers the kept frames once more.
    pub(super) fn offer_again(&mut self, inbox: &mut dyn Inbox) {
        let bytes = &mut self.bytes;
        self.early.retain(|early| {
            let keep = inbox.fragment(&early.header, &early.payload).is_retryable();
            if !keep {
                *bytes -= early.bytes();
            }
            keep
        });
    }

    /// Connection `at` is read later.
    pub(super) fn leave_unread(&mut self, at: usize) {
        if !self.is_unread(at) {
            self.unread.push(at);
        }
    }

    /// Whether connection `at` may hold anything.
    pub(super) fn is_unread(&self, at: usize) -> bool {
        self.unread.contains(&at)
    }

    /// The connections to be read now.
    pub(super) fn take_unread(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.unread)
    }

    /// Keeps a side message.
    pub(super) fn push_side(&mut self, bytes: &[u8]) {
        self.sides.push_back(bytes.to_vec());
    }

    /// Side messages that wait.
    #[cfg(test)]
    pub(super) fn sides(&self) -> usize {
        self.sides.len()
    }

    /// The next side message.
    pub(super) fn take_side(&mut self) -> Option<Vec<u8>> {
        self.sides.pop_front()
    }
}
