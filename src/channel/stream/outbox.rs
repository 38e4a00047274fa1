//! Messages that wait to be sent to a peer: fragments, which any connection for data may take, and the messages of the
//! connection for control.

use std::collections::VecDeque;

use shouter_netstack::time::Instant;
use shouter_reducer::transport::{SendError, SendToken};

use super::CONTROL;
use super::connection::{Connection, HEAD, MAX_FRAGMENT, Post};
use super::share::{self, Load};
use super::streams::Streams;

/// Fragments that may wait for the connections to a peer: more than they take between two polls of a thread that waits. More urgent operations wait for
/// those that are here.
const QUEUE: usize = 64;

/// Control messages that may wait for a peer.
const CONTROL_QUEUE: usize = 4096;

/// Side messages that may wait to be sent to a peer.
const SIDES_QUEUED: usize = 64;

/// The messages that no connection has taken yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    fragments: VecDeque<Post>,
    /// Bytes of the fragments on the wire.
    bytes: usize,
    control: VecDeque<[u8; HEAD]>,
    /// Frames of side messages.
    sides: VecDeque<Vec<u8>>,
    /// Kept for its memory.
    loads: Vec<Load>,
}

impl Outbox {
    /// Queues a fragment.
    #[inline]
    pub(super) fn post(&mut self, post: Post) -> Result<(), SendError> {
        if self.fragments.len() >= QUEUE {
            return Err(SendError::Full);
        }
        self.bytes += post.len();
        self.fragments.push_back(post);
        Ok(())
    }

    /// Queues a control message.
    #[inline]
    pub(super) fn post_control(&mut self, head: [u8; HEAD]) -> Result<(), SendError> {
        if self.control.len() >= CONTROL_QUEUE {
            return Err(SendError::Full);
        }
        self.control.push_back(head);
        Ok(())
    }

    /// Queues a message that is sent once, however many wait: an abort, a farewell.
    pub(super) fn announce(&mut self, head: [u8; HEAD]) {
        self.control.push_back(head);
    }

    /// Queues a heartbeat, unless a message waits that shows as much.
    pub(super) fn beat(&mut self, head: [u8; HEAD]) {
        if self.control.is_empty() {
            self.control.push_back(head);
        }
    }

    /// Queues the frame of a side message; false if too many wait.
    pub(super) fn post_side(&mut self, frame: impl FnOnce() -> Vec<u8>) -> bool {
        let fits = self.sides.len() < SIDES_QUEUED;
        if fits {
            self.sides.push_back(frame());
        }
        fits
    }

    /// Fragments that wait.
    #[cfg(test)]
    pub(super) fn fragments(&self) -> usize {
        self.fragments.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fragments.is_empty() && self.control.is_empty() && self.sides.is_empty()
    }

    /// Forgets the fragments.
    pub(super) fn clear_fragments(&mut self) {
        self.fragments.clear();
        self.bytes = 0;
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.clear_fragments();
        self.control.clear();
        self.sides.clear();
    }

    /// Gives waiting messages to the peer's connections; true if any took something. Tokens that are free by that go to
    /// `copied`.
    pub(super) fn share<S: Streams>(
        &mut self,
        now: Instant,
        streams: &mut S,
        connections: &mut [Connection<S::Id>],
        copied: &mut Vec<SendToken>,
    ) -> bool {
        let mut any = false;
        for connection in connections.iter_mut().filter(|connection| connection.is_stuck()) {
            any |= connection.flush(now, streams);
        }
        if let Some(connection) = connections.get_mut(CONTROL).filter(|connection| connection.is_up()) {
            any |= write_all(&mut self.control, connection, now, streams);
            any |= write_all(&mut self.sides, connection, now, streams);
        }
        if !self.fragments.is_empty() {
            any |= self.share_fragments(now, streams, connections, copied);
        }
        any
    }

    fn share_fragments<S: Streams>(
        &mut self,
        now: Instant,
        streams: &mut S,
        connections: &mut [Connection<S::Id>],
        copied: &mut Vec<SendToken>,
    ) -> bool {
        let mut any = false;
        self.loads.clear();
        self.loads.extend(connections.iter().enumerate().map(|(index, connection)| {
            let open = index != CONTROL && connection.is_up() && !connection.is_stuck();
            let info = connection.id().and_then(|id| streams.info(id));
            info.map_or(Load { open: false, unacknowledged: 0, unsent: 0, rate: 1.0 }, |info| Load {
                open: open && info.writable >= HEAD + MAX_FRAGMENT,
                unacknowledged: info.unacknowledged,
                unsent: info.unsent,
                rate: info.rate,
            })
        }));
        while let Some(post) = self.fragments.front() {
            let len = post.len();
            let Some(index) = share::pick(&self.loads, self.bytes, len) else { break };
            let (Some(connection), Some(load)) = (connections.get_mut(index), self.loads.get_mut(index))
            else {
                break;
            };
            copied.extend(connection.post(now, streams, post));
            load.add(len);
            load.open &= !connection.is_stuck();
            self.bytes -= len;
            self.fragments.pop_front();
            any = true;
        }
        any
    }
}

/// Writes waiting messages until the connection is stuck; whether there were any.
fn write_all<S: Streams>(
    waiting: &mut VecDeque<impl AsRef<[u8]>>,
    connection: &mut Connection<S::Id>,
    now: Instant,
    streams: &mut S,
) -> bool {
    let mut any = false;
    while !connection.is_stuck()
        && let Some(message) = waiting.pop_front()
    {
        connection.write(now, streams, message.as_ref());
        any = true;
    }
    any
}
