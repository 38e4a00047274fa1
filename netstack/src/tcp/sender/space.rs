//! The send sequence space (RFC 9293 section 3.3.1): SND.UNA, SND.NXT, the FIN, and the peer's window.

use super::AckIn;
use super::window::{Change, SendWindow};
use crate::wire::tcp::SeqNumber;

#[cfg(test)]
mod tests;

/// This side's FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// The writer may write more.
    None,
    /// It follows the written bytes.
    Queued,
    /// Its number is the one before SND.NXT.
    Sent,
}

/// SND.UNA, SND.NXT and SND.WND. Always `una <= small_end <= nxt`, none of them 2^31 behind another. One number beyond `nxt`
/// may be out, that of a window probe, until it is acknowledged or sent again as a part of other data.
#[derive(Debug)]
pub(super) struct SendSpace {
    una: SeqNumber,
    nxt: SeqNumber,
    /// End of the last segment that was less than full (for Nagle's algorithm).
    small_end: SeqNumber,
    window: SendWindow,
    fin: Fin,
    /// One number beyond SND.NXT was sent as a window probe.
    probed: bool,
}

impl SendSpace {
    /// Nothing was sent, and no window is known; `first` is the number of the first byte.
    pub(super) fn new(first: SeqNumber) -> Self {
        let window = SendWindow::new(first);
        Self { una: first, nxt: first, small_end: first, window, fin: Fin::None, probed: false }
    }

    /// The handshake's last segment, number `seq`, has offered a window of so many bytes.
    pub(super) fn begin(&mut self, window: u32, seq: SeqNumber) {
        self.window.begin(window, seq);
    }

    /// SND.UNA.
    #[inline]
    pub(super) fn una(&self) -> SeqNumber {
        self.una
    }

    /// SND.NXT.
    #[inline]
    pub(super) fn nxt(&self) -> SeqNumber {
        self.nxt
    }

    /// Acknowledgements are acceptable up to here.
    #[inline]
    pub(super) fn max_sent(&self) -> SeqNumber {
        self.nxt + u32::from(self.probed)
    }

    /// The peer's window.
    #[inline]
    pub(super) fn window(&self) -> &SendWindow {
        &self.window
    }

    /// The first number beyond the peer's window.
    #[inline]
    pub(super) fn right_edge(&self) -> SeqNumber {
        self.una + self.window.size()
    }

    //= RFC 9293 section 3.8.6, MUST-34, SHLD-15: if the window has shrunk below SND.NXT, none.
    /// Sequence numbers from SND.NXT that the peer's window admits.
    #[inline]
    pub(super) fn usable(&self) -> u32 {
        self.right_edge().distance(self.nxt)
    }

    /// Whether a segment that was less than full is not acknowledged.
    #[inline]
    pub(super) fn small_is_out(&self) -> bool {
        self.small_end.is_after(self.una)
    }

    /// Whether nothing more can be written: the FIN was sent, or is to be.
    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.fin != Fin::None
    }

    /// Whether the FIN is to be sent.
    #[inline]
    pub(super) fn owes_fin(&self) -> bool {
        self.fin == Fin::Queued
    }

    /// Whether the FIN was sent.
    #[inline]
    pub(super) fn fin_sent(&self) -> bool {
        self.fin == Fin::Sent
    }

    /// Whether the FIN is acknowledged.
    pub(super) fn fin_acked(&self) -> bool {
        self.fin_sent() && self.una == self.nxt
    }

    /// The FIN follows the written bytes.
    pub(super) fn finish(&mut self) {
        if self.fin == Fin::None {
            self.fin = Fin::Queued;
        }
    }

    /// New data was sent, up to `end`; with the FIN, and with a last segment that was less than full.
    #[inline]
    pub(super) fn on_sent(&mut self, end: SeqNumber, fin: bool, small: bool) {
        self.nxt = end;
        // The byte of a window probe is sent again as a part of this.
        self.probed = false;
        if fin {
            self.fin = Fin::Sent;
        }
        if small {
            self.small_end = end;
        }
    }

    /// A window probe was sent: SND.NXT stays.
    pub(super) fn on_probe_sent(&mut self) {
        self.probed = true;
    }

    /// The peer has taken the number of the window probe; `fin`: it was the FIN's.
    pub(super) fn on_probe_taken(&mut self, fin: bool) {
        self.nxt = self.max_sent();
        self.probed = false;
        if fin {
            self.fin = Fin::Sent;
        }
    }

    /// SND.UNA moves on.
    #[inline]
    pub(super) fn acknowledge(&mut self, una: SeqNumber) {
        self.una = una;
        self.small_end = self.small_end.max(una);
    }

    /// Takes over the window that a segment offers, if it is not older than the one that did so last.
    #[inline]
    pub(super) fn update_window(&mut self, ack: &AckIn) -> Change {
        self.window.update(ack)
    }

    /// Data sent and not acknowledged is given up, and the FIN.
    pub(super) fn abort(&mut self) {
        (self.nxt, self.small_end) = (self.una, self.una);
        self.fin = Fin::None;
    }
}
