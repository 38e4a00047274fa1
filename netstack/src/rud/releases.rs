//! When a message's memory is free: it is acknowledged, and no frame refers to it.

use super::api::{SessionId, Sink, Token};
use super::sender::Slot;
use crate::device::FramesOut;

/// Releases that wait for frames.
#[derive(Debug, Default)]
pub(super) struct Releases {
    pub(super) frames_out: FramesOut,
    held: Vec<(SessionId, Token)>,
}

impl Releases {
    /// A message was acknowledged.
    #[inline]
    pub(super) fn release(&mut self, session: SessionId, slot: &Slot, sink: &mut impl Sink) {
        if self.frames_out == FramesOut::None || !self.hold(session, slot) {
            sink.released(session, slot.token);
        }
    }

    /// Keeps the release back if a frame may refer to the message.
    #[cold]
    fn hold(&mut self, session: SessionId, slot: &Slot) -> bool {
        let hold = self.frames_out == FramesOut::Held || slot.was_resent();
        if hold {
            self.held.push((session, slot.token));
        }
        hold
    }

    /// Whether releases wait.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        !self.held.is_empty()
    }

    /// No frame refers to anything any more.
    pub(super) fn release_held(&mut self, sink: &mut impl Sink) {
        for (session, token) in self.held.drain(..) {
            sink.released(session, token);
        }
    }
}
