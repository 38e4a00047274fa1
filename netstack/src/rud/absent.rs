//! The endpoint of a stack that is built without RUD: it has no sessions.

use core::net::IpAddr;

use crate::device::FramesOut;
use crate::time::Instant;

/// The upper layer of no sessions.
pub(crate) trait Sink {}

/// The only one.
pub(crate) struct NoSink;

impl Sink for NoSink {}

/// An endpoint without sessions: it takes no datagrams, and sends none.
#[derive(Debug)]
pub(crate) struct Endpoint;

impl Endpoint {
    pub(crate) fn frames_out(&self) -> FramesOut {
        FramesOut::None
    }

    pub(crate) fn set_frames_out(&mut self, _: FramesOut) {}

    pub(crate) fn awaits_frames(&self) -> bool {
        false
    }

    pub(crate) fn release_held(&mut self, _: &mut impl Sink) {}

    pub(crate) fn has_peer(&self, _: IpAddr) -> bool {
        false
    }

    pub(crate) fn on_poll(&mut self, _: Instant, _more: bool) {}

    pub(crate) fn on_timeout(&mut self, _: Instant, _: &mut impl Sink) {}

    pub(crate) fn is_due(&self, _: Instant, _: bool) -> bool {
        false
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        None
    }

    pub(crate) fn wants_transmit(&self) -> bool {
        false
    }

    pub(crate) fn transmit<E>(&mut self, _: Instant, _: &mut E) {}
}
