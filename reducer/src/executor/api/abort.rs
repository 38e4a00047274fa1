//! Why a group ends, and the numbers of the reasons on the wire.

use crate::executor::divergence::Divergence;
use crate::grid::Rank;
use core::fmt;
use thiserror::Error;

/// Why a group ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{culprit}: {reason}{}", SeenText(.seen))]
pub struct AbortCause {
    /// The rank that every survivor names.
    pub culprit: Rank,
    /// The reason.
    pub reason: AbortReason,
    /// How it showed on this rank, in the words of what noticed it. Other ranks are told the reason alone.
    pub seen: Option<Box<str>>,
}

/// The reason of an abort: an event at its culprit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AbortReason {
    /// No heartbeat came from it, or its connection is gone.
    #[error("the process is dead or unreachable; look at its log and host, then start the job again")]
    Failed,
    /// It left while others needed it.
    #[error(
        "it left the group before the others had ended their operations; look at its log, and call finalize on every rank before \
         its group is dropped"
    )]
    Aborted,
    /// An operation missed its deadline while waiting for it.
    #[error(
        "it did not take part in an operation before the deadline; check that it runs the same operations"
    )]
    Late,
    /// It runs other operations than other ranks; how, once that is known.
    #[error("{}; run the same operations in the same order on every rank", DivergenceText(_0))]
    Diverged(Option<Box<Divergence>>),
    /// Its accelerator failed under an operation.
    #[error("its accelerator failed; look at its log, and at the device (`nvidia-smi`)")]
    Accelerator,
    /// Its own port, device or address is gone; it reported this itself.
    #[error("it has lost its network port, device or address; look at its log, and at the links of its host")]
    Disconnected,
    /// It sent what no schedule of this plan sends.
    #[error("it sent a message that fits no schedule; run the same version and plan on all ranks")]
    Protocol,
    /// It found that the others have declared it dead.
    #[error(
        "it was stopped (by a debugger, SIGSTOP, a host that was suspended or out of memory) or cut off for longer than the \
         heartbeat time-out, and the other ranks have given it up; find what stopped it, or raise heartbeat_timeout, and start \
         the job again"
    )]
    Stopped,
    /// It has ended the group itself; why, once that is known.
    #[error("it has given up{}; look at its log", WordsText(_0))]
    GaveUp(Option<Box<str>>),
    /// Its heartbeats arrive, and what is sent to it does not.
    #[error(
        "it is alive, and messages to it do not arrive; see that all switches and ports on the way to it carry packets of the \
         configured MTU"
    )]
    Unreachable,
}

impl AbortCause {
    /// The cause as rank `own` reports it. A rank that learns that it has failed is alive and was only declared dead: it reports
    /// [`AbortReason::Stopped`].
    pub fn seen_by(own: Rank, culprit: Rank, reason: AbortReason) -> Self {
        let given_up = culprit == own && reason == AbortReason::Failed;
        Self { culprit, reason: if given_up { AbortReason::Stopped } else { reason }, seen: None }
    }
}

/// The words of this rank, behind the reason.
struct SeenText<'a>(&'a Option<Box<str>>);

impl fmt::Display for SeenText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(seen) => write!(f, " (as this rank saw it: {seen})"),
            None => Ok(()),
        }
    }
}

/// The difference of a divergence's culprit, as far as it is known.
struct DivergenceText<'a>(&'a Option<Box<Divergence>>);

impl fmt::Display for DivergenceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(divergence) => divergence.fmt(f),
            None => f.write_str("it runs another operation"),
        }
    }
}

/// The words of a rank that has given up.
struct WordsText<'a>(&'a Option<Box<str>>);

impl fmt::Display for WordsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(words) => write!(f, ": {words}"),
            None => Ok(()),
        }
    }
}

impl AbortReason {
    /// The reason as a number on the wire; 0 stands for none.
    pub fn code(&self) -> u32 {
        match self {
            Self::Failed => 1,
            Self::Aborted => 2,
            Self::Late => 3,
            Self::Diverged(_) => 4,
            Self::Protocol => 5,
            Self::Accelerator => 6,
            Self::Disconnected => 7,
            Self::Stopped => 8,
            Self::Unreachable => 9,
            Self::GaveUp(_) => 10,
        }
    }

    /// The reason of this number. An unknown number ends the group too, as [`Aborted`](Self::Aborted).
    pub fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Failed,
            3 => Self::Late,
            4 => Self::Diverged(None),
            5 => Self::Protocol,
            6 => Self::Accelerator,
            7 => Self::Disconnected,
            8 => Self::Stopped,
            9 => Self::Unreachable,
            10 => Self::GaveUp(None),
            _ => Self::Aborted,
        }
    }
}
