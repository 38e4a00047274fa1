//! How marks of congestion go back to the peer.

use crate::wire::tcp::SeqNumber;

/// Changes of the ECN mark that wait for their acknowledgement at most.
const MAX_MARK_CHANGES: usize = 32;

/// The echo of a connection.
#[derive(Debug, Default)]
pub(super) enum Echo {
    /// ECN is not in use.
    #[default]
    Off,
    //= RFC 3168 section 6.1.3: ECE on every acknowledgement from a marked packet until CWR.
    Classic {
        echo: bool,
    },
    //= RFC 8257 section 3.2: acknowledgements distinguish marked from unmarked bytes; when the mark changes, what came before
    //= is acknowledged by itself.
    Exact(Box<Exact>),
}

#[derive(Debug, Default)]
pub(super) struct Exact {
    marked: bool,
    /// Acknowledgements to send first: up to where, and with which mark.
    mark_changes: Vec<(SeqNumber, bool)>,
}

impl Echo {
    /// That of a connection on which nothing was marked yet, with ECN or without, exact or not.
    pub(super) fn new(ecn: bool, exact: bool) -> Self {
        match (ecn, exact) {
            (false, _) => Self::Off,
            (true, false) => Self::Classic { echo: false },
            (true, true) => Self::Exact(Box::default()),
        }
    }

    /// Takes in the mark of a segment with payload, and its CWR, where `next` is expected and `last_ack` was acknowledged last. Whether an
    /// acknowledgement should leave now.
    #[inline]
    pub(super) fn on_mark(&mut self, marked: bool, cwr: bool, next: SeqNumber, last_ack: SeqNumber) -> bool {
        match self {
            Self::Off => false,
            Self::Classic { echo } => {
                *echo = marked || (*echo && !cwr);
                false
            }
            Self::Exact(exact) => {
                // Only if there is something that has not been acknowledged.
                let splits = exact.marked != marked && next != last_ack;
                if splits && exact.mark_changes.len() < MAX_MARK_CHANGES {
                    exact.mark_changes.push((next, exact.marked));
                }
                exact.marked = marked;
                splits
            }
        }
    }

    /// ECE of an acknowledgement of all that has come.
    #[inline]
    pub(super) fn ece(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Classic { echo } => *echo,
            Self::Exact(exact) => exact.marked,
        }
    }

    /// What has to be acknowledged before the rest, and its ECE.
    pub(super) fn earlier(&self) -> Option<(SeqNumber, bool)> {
        let Self::Exact(exact) = self else { return None };
        exact.mark_changes.first().copied()
    }

    /// It was; up to where.
    pub(super) fn on_earlier_sent(&mut self) -> Option<SeqNumber> {
        match self {
            Self::Exact(exact) if !exact.mark_changes.is_empty() => Some(exact.mark_changes.remove(0).0),
            _ => None,
        }
    }
}
