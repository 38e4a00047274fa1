//! Filters congestion events: one reduction for one window of data.

use super::Congestion;

/// Effect of an event on the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onset {
    /// The first of its window: the threshold comes down.
    First,
    /// A time-out in the midst of a recovery, whose reduction was for the same window of data.
    Deeper,
    /// Part of a congestion that was answered already.
    Same,
}

/// The phase of a connection between a congestion event and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Episode {
    /// A loss was reported and the recovery from it has not ended.
    in_recovery: bool,
    /// A time-out was reported and nothing has been delivered since.
    timed_out: bool,
}

impl Episode {
    /// Takes an event in.
    pub(super) fn begin(&mut self, kind: Congestion) -> Onset {
        let before = *self;
        match kind {
            Congestion::Loss => self.in_recovery = true,
            Congestion::Ecn => {}
            //= RFC 5681 section 3.1
            // A segment that times out again leaves the threshold as it is; and a time-out ends a fast recovery
            // (RFC 6582 section 3.2, step 4).
            Congestion::Timeout => *self = Self { in_recovery: false, timed_out: true },
        }
        match before {
            Self { in_recovery: false, timed_out: false } => Onset::First,
            Self { in_recovery: true, .. } if kind == Congestion::Timeout => Onset::Deeper,
            Self { .. } => Onset::Same,
        }
    }

    /// Something was delivered.
    pub(super) fn progress(&mut self) {
        self.timed_out = false;
    }

    /// The recovery is over, or was for nothing.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}
