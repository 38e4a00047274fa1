//! Events that the user has not taken yet, and releases that wait until no frame refers to their extents.

use std::collections::VecDeque;

use super::super::api::TcpEvent;
use super::Endpoint;

/// Events in flight to the user. One that gives an extent back passes only while no frame is out.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Oldest first.
    queue: VecDeque<TcpEvent>,
    /// Of extents that a frame may still refer to.
    held: VecDeque<TcpEvent>,
    /// Frames that were emitted may still be read.
    frames_out: bool,
}

impl Events {
    /// The queue that new events are appended to.
    #[inline]
    pub(super) fn queue(&mut self) -> &mut VecDeque<TcpEvent> {
        &mut self.queue
    }

    /// Whether some wait until no frame is out.
    #[inline]
    pub(super) fn are_held(&self) -> bool {
        !self.held.is_empty()
    }

    #[inline]
    fn next(&mut self) -> Option<TcpEvent> {
        loop {
            let event = self.queue.pop_front()?;
            if !self.frames_out || !matches!(event, TcpEvent::Released(..) | TcpEvent::Dropped(..)) {
                return Some(event);
            }
            self.held.push_back(event);
        }
    }

    fn release(&mut self) {
        self.frames_out = false;
        while let Some(event) = self.held.pop_back() {
            self.queue.push_front(event);
        }
    }
}

impl Endpoint {
    /// The oldest event that was not taken yet. An extent comes back only while no frame is out.
    #[inline]
    pub fn next_event(&mut self) -> Option<TcpEvent> {
        self.shared.events().next()
    }

    /// Frames that were emitted may still be read from their extents, until [`release_held`](Self::release_held).
    pub fn set_frames_out(&mut self) {
        self.shared.events().frames_out = true;
    }

    /// Whether events of released extents wait until no frame is out.
    #[inline]
    pub fn awaits_releases(&self) -> bool {
        self.shared.awaits_releases()
    }

    /// No frame is out any more: the events that waited for that are the next.
    pub fn release_held(&mut self) {
        self.shared.events().release();
    }
}
