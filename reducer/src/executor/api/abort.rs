//! Why a group ends, and the numbers of the reasons on the wire.

use crate::grid::Rank;
use crate::header::View;
use core::fmt;
use thiserror::Error;

/// The result of the vote on an operation that ranks disagree about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divergence {
    /// The operation's number.
    pub seq: u64,
    /// The culprit; without a majority, a rank whose view differs from `expected`.
    pub rank: Rank,
    /// The view of that rank.
    pub found: View,
    /// The lowest rank that runs what is expected.
    pub other: Rank,
    /// The majority's view; without a majority, that of the rank that reports this, where it has one.
    pub expected: View,
    /// Whether `expected` is the view of a majority.
    pub is_majority: bool,
}

impl Divergence {
    /// The same for a rank with this view: without a majority, the other rank is the culprit for it.
    pub fn seen_with(self, own: Option<View>) -> Self {
        if self.is_majority || own != Some(self.found) {
            return self;
        }
        Self { rank: self.other, found: self.expected, other: self.rank, expected: self.found, ..self }
    }

    /// The divergence as text, with operations described by the caller.
    pub fn describe(&self, view: impl Fn(&View) -> String) -> String {
        let Self { seq, found, other, expected, is_majority, .. } = self;
        let others = if *is_majority { "most ranks run".into() } else { format!("{other} runs") };
        format!("it runs {} as operation {seq} where {others} {}", view(found), view(expected))
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(View::to_string))
    }
}

/// Why a group ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{culprit}: {reason}{}", seen_text(.seen))]
pub struct AbortCause {
    /// The rank that every survivor names.
    pub culprit: Rank,
    /// The reason.
    pub reason: AbortReason,
    /// How it showed on this rank, as the text of what noticed it. Other ranks receive the reason alone.
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
        "it left the group, or gave it up at an error of its own, such as a deadline, before the others had ended their operations; look \
         at its log, and call finalize on every rank (in Python: close) before its group is dropped"
    )]
    Aborted,
    /// An operation missed its deadline while waiting for it.
    #[error(
        "it did not take part in an operation before the deadline; check that it runs the same operations"
    )]
    Late,
    /// It runs other operations than other ranks; how, once that is known.
    #[error("{}; run the same operations in the same order on every rank", divergence_text(_0))]
    Diverged(Option<Box<Divergence>>),
    /// Its accelerator failed under an operation.
    #[error("its accelerator failed; look at its log, and at the device (`nvidia-smi`)")]
    Accelerator,
    /// Its own port, device or address is gone, or no other host answers it; it reported this itself.
    #[error(
        "it has lost its network port, device or address, or packets get through to no other host, or back from none; look at its log, and \
         at the links, cables and firewall of its host"
    )]
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
    #[error("it has given up{}; look at its log", gave_up_text(_0))]
    GaveUp(Option<Box<str>>),
    /// Its heartbeats arrive, and messages to it do not.
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

/// This rank's account, behind the reason.
fn seen_text(seen: &Option<Box<str>>) -> String {
    seen.as_ref().map_or_else(String::new, |seen| format!(" (as this rank saw it: {seen})"))
}

/// The difference of a divergence's culprit, as far as it is known.
fn divergence_text(found: &Option<Box<Divergence>>) -> String {
    found.as_ref().map_or_else(|| "it runs another operation".into(), ToString::to_string)
}

/// The text of a rank that has given up.
fn gave_up_text(text: &Option<Box<str>>) -> String {
    text.as_ref().map_or_else(String::new, |text| format!(": {text}"))
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
