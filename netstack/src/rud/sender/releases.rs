//! Acknowledged messages whose release waits for frames: a device may still read their memory.

use crate::device::FramesOut;
use crate::rud::api::MessageToken;

/// The messages that wait, and the state of frames that may still be read. None waits while no frame is out.
#[derive(Debug)]
pub(in crate::rud) struct Releases {
    frames_out: FramesOut,
    held: Vec<MessageToken>,
}

impl Releases {
    /// No frame is out.
    pub(super) const fn new() -> Self {
        Self { frames_out: FramesOut::None, held: Vec::new() }
    }

    /// Sets the state of frames that may still be read. If there are none, [`drain`](Self::drain) follows.
    pub(super) fn set_frames_out(&mut self, out: FramesOut) {
        self.frames_out = out;
    }

    /// Whether messages wait.
    pub(in crate::rud) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Releases all messages.
    pub(super) fn drain(&mut self, release: impl FnMut(MessageToken)) {
        self.held.drain(..).for_each(release);
    }

    /// Whether a frame may still refer to a message that was acknowledged.
    #[inline]
    pub(super) fn may_be_read(&self, resent: bool) -> bool {
        // A waiting frame is not the one that was acknowledged: the message was sent again.
        self.frames_out == FramesOut::Held || self.frames_out == FramesOut::Waiting && resent
    }

    /// Releases a message that was acknowledged, or keeps it back if a frame may refer to it.
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        token: MessageToken,
        resent: bool,
        release: &mut impl FnMut(MessageToken),
    ) {
        if self.frames_out == FramesOut::None || !self.may_be_read(resent) {
            release(token);
        } else {
            self.hold(token);
        }
    }

    #[cold]
    fn hold(&mut self, token: MessageToken) {
        self.held.push(token);
    }
}
