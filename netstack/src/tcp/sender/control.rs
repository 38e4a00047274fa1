//! Congestion control of a connection: its controller, which is made when there is something to send, and its pace.

use super::Options;
use super::pacing::{self, Pacer};
use super::rtt::Rtt;
use crate::cc::{Controller, Parameters};
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

/// The controller, and the state kept for it. There is a controller only while `initial_window` is not 0.
#[derive(Debug)]
pub(super) struct Control {
    /// Made when the handshake is over and there is something to send: a server has many connections that only wait.
    controller: Option<Box<dyn Controller>>,
    /// Its initial window in segments; 0 until the handshake is over, and when the connection is.
    initial_window: u32,
    /// The window was in full use when this was the next to send.
    limited_end: SeqNumber,
    pacer: Pacer,
}

impl Control {
    pub(super) fn new(iss: SeqNumber) -> Self {
        Self { controller: None, initial_window: 0, limited_end: iss, pacer: Pacer::default() }
    }

    /// The handshake is over.
    pub(super) fn begin(&mut self, now: Instant, initial_window: u32) {
        self.initial_window = initial_window.max(1);
        self.pacer.restart(now);
    }

    /// The connection is over.
    pub(super) fn end(&mut self) {
        (self.controller, self.initial_window) = (None, 0);
    }

    /// Whether the handshake is not over yet, or the connection is.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.initial_window == 0
    }

    /// Makes the controller if there is none, now that there is something to send.
    #[inline]
    pub(super) fn take(&mut self, options: &Options, mss: u16) {
        if self.controller.is_none() && self.initial_window > 0 {
            let parameters = Parameters { mss: mss.into(), initial_window: self.initial_window };
            self.controller = Some(options.congestion.build(&parameters));
        }
    }

    /// Another controller, for tests.
    #[cfg(test)]
    pub(super) fn replace(&mut self, controller: Box<dyn Controller>) {
        self.controller = Some(controller);
    }

    /// Whether there is no controller.
    #[inline]
    pub(super) fn has_no_controller(&self) -> bool {
        self.controller.is_none()
    }

    /// The controller, for queries.
    #[inline]
    pub(super) fn get(&self) -> Option<&dyn Controller> {
        self.controller.as_deref()
    }

    /// The congestion window in bytes; the initial one if there is no controller yet.
    #[inline]
    pub(super) fn window(&self, mss: u16) -> u64 {
        match &self.controller {
            Some(controller) => controller.window(),
            None => u64::from(self.initial_window) * u64::from(mss),
        }
    }

    /// The threshold towards which the window is reduced.
    pub(super) fn threshold(&self) -> Option<u64> {
        self.controller.as_ref().map(|controller| controller.slow_start_threshold())
    }

    /// Tells the controller something, if there is one.
    #[inline]
    pub(super) fn tell(&mut self, something: impl FnOnce(&mut dyn Controller)) {
        if let Some(controller) = &mut self.controller {
            something(controller.as_mut());
        }
    }

    /// The window is in full use, and `nxt` the next to send.
    #[inline]
    pub(super) fn is_limiting(&mut self, nxt: SeqNumber) {
        self.limited_end = nxt;
    }

    /// Whether it was in full use when `una` was acknowledged.
    #[inline]
    pub(super) fn was_limiting(&self, una: SeqNumber) -> bool {
        self.limited_end.is_after(una)
    }

    /// SND.UNA moves on from `una`: the noted number is never 2^31 behind, and is compared with the data that was
    /// unacknowledged before.
    #[inline]
    pub(super) fn advance(&mut self, una: SeqNumber) {
        self.limited_end = self.limited_end.max(una);
    }

    /// Whether bursts have to keep a distance.
    #[inline]
    pub(super) fn paces(&self, options: &Options) -> bool {
        options.pacing || self.get().is_some_and(|controller| controller.pacing_rate().is_some())
    }

    /// Bytes per second, if the connection paces.
    #[inline]
    pub(super) fn pacing_rate(&self, options: &Options, rtt: &Rtt) -> Option<u64> {
        pacing::rate(self.get()?, options, rtt)
    }

    /// When the next burst may leave.
    #[inline]
    pub(super) fn next_burst_at(&self) -> Instant {
        self.pacer.at()
    }

    /// Whether it may not leave yet.
    #[inline]
    pub(super) fn waits_for_pace(&self, now: Instant) -> bool {
        self.pacer.waits(now)
    }

    /// The next burst may leave at once.
    pub(super) fn restart_pace(&mut self, now: Instant) {
        self.pacer.restart(now);
    }

    /// The next burst may leave when this one, of `bytes`, has had its time.
    #[inline]
    pub(super) fn pace(&mut self, now: Instant, bytes: u32, options: &Options, rtt: &Rtt) {
        if let Some(rate) = self.pacing_rate(options, rtt) {
            self.pacer.on_sent(now, bytes, rate);
        }
    }
}
