//! Explicit congestion notification, as a sender sees it (RFC 3168 section 6.1).

use crate::wire::tcp::SeqNumber;

//= RFC 9293 section 3.8.2, SHLD-8: ECN as RFC 3168 has it.
/// Whether marks count, and since when.
#[derive(Debug)]
pub(super) struct Ecn {
    on: bool,
    /// The next new segment says CWR.
    cwr: bool,
    /// ECN echo does not count before this is acknowledged.
    point: SeqNumber,
}

impl Ecn {
    pub(super) fn new(first: SeqNumber) -> Self {
        Self { on: false, cwr: false, point: first }
    }

    /// The handshake agreed on ECN, or not.
    pub(super) fn begin(&mut self, on: bool) {
        self.on = on;
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the next new segment says that the window was reduced.
    #[inline]
    pub(super) fn says_cwr(&self) -> bool {
        self.cwr
    }

    /// New data has left; `said`: with CWR.
    #[inline]
    pub(super) fn said_cwr(&mut self, said: bool) {
        self.cwr &= !said;
    }

    /// The window was reduced, for any reason.
    pub(super) fn reduced(&mut self, nxt: SeqNumber) {
        //= RFC 3168 section 6.1.2: at most once per window of data, and the first new segment says CWR
        self.point = nxt;
        self.cwr = self.on;
    }

    /// The reduction was spurious.
    pub(super) fn taken_back(&mut self, una: SeqNumber) {
        self.cwr = false;
        self.point = una;
    }

    /// Whether an echo counts now.
    pub(super) fn counts(&self, una: SeqNumber) -> bool {
        self.on && una.is_after(self.point)
    }

    /// Whether the window was reduced within the last round trip.
    pub(super) fn is_reduced(&self, una: SeqNumber) -> bool {
        self.on && una.is_before(self.point)
    }

    /// SND.UNA has moved on: the point is never 2^31 behind.
    #[inline]
    pub(super) fn advance(&mut self, una: SeqNumber) {
        self.point = self.point.max(una - 1);
    }
}
