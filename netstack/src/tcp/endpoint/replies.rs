//! Answers that belong to no connection: resets, SYN-ACKs with cookies, acknowledgements from TIME-WAIT, and the last segments of
//! connections that are over.

use core::net::SocketAddr;
use std::collections::VecDeque;

use super::super::connection::RateLimit;
use crate::time::Instant;
use crate::wire::tcp::Header;

/// Answers that may wait to be sent.
const MAX: usize = 1024;

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) header: Header,
}

/// Those that wait to be sent, 1024 at most, and the limit of those that anybody can provoke.
#[derive(Debug)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    resets: RateLimit,
}

impl Replies {
    /// None; `resets` limits the resets to segments of no connection.
    pub(super) fn new(resets: RateLimit) -> Self {
        Self { queue: VecDeque::new(), resets }
    }

    /// Whether a segment of no connection may be answered by a reset.
    pub(super) fn may_refuse(&mut self, now: Instant) -> bool {
        self.resets.take(now)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues one; false if there are too many: it is lost, like any packet.
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        let room = self.queue.len() < MAX;
        if room {
            self.queue.push_back(reply);
        }
        room
    }

    /// The one that has waited longest.
    #[inline]
    pub(super) fn front(&self) -> Option<Reply> {
        self.queue.front().copied()
    }

    /// It has left.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }
}
