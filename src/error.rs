//! Errors as a trainer meets them: fields for a program, a text for people that says what to do next, and a stable number
//! for C and for exit codes.

mod operation;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::executor::{AbortCause, AbortReason};
use shouter_reducer::header::Collective;
use shouter_reducer::recorder::EVENTS;

pub use operation::Operation;

/// An error of the library: the call and the ranks that it concerns, and the remedy.
///
/// A program looks at the variant and its fields; [`Display`](std::fmt::Display) is the text for people. The fields may grow:
/// match with `..`.
///
/// ```
/// use shouter::{Error, Reason};
///
/// /// Which ranks a launcher should replace.
/// fn suspects(error: &Error) -> Vec<u32> {
///     match error {
///         Error::PeerFailed { rank, reason: Reason::Lost | Reason::Stopped, .. } => vec![*rank],
///         Error::Deadline { missing, .. } => missing.clone(),
///         _ => vec![],
///     }
/// }
///
/// assert!(suspects(&Error::Argument("count is 0".into())).is_empty());
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used. Nothing was started.
    #[error("configuration: {0}")]
    Config(String),
    /// The group did not come together, or its ranks did not meet to register tensors. After [`init`](crate::init) there is no
    /// group; after [`Group::register`](crate::Group::register) there is, without these tensors.
    #[error("joining the group: {text}")]
    #[non_exhaustive]
    Join {
        /// The rank that does not fit, or left; `None` where no rank is at fault, or this one.
        rank: Option<u32>,
        /// The ranks that did not come in time, in order: the first 16 of them.
        missing: Vec<u32>,
        /// The text.
        text: Box<str>,
    },
    /// A port, a link, a thread or memory could not be had. Nothing was started.
    #[error("device: {0}")]
    Device(String),
    /// An argument cannot be used. Nothing was started, and the group goes on.
    #[error("argument: {0}")]
    Argument(String),
    /// Ranks disagree about a tensor or an operation.
    ///
    /// After an operation the group has ended, the content of the buffers under way is undefined, and they are free unless
    /// `in_use_by` says otherwise. After [`Group::register`](crate::Group::register) the group goes on without these tensors.
    #[error("mismatch: {text}")]
    #[non_exhaustive]
    Mismatch {
        /// The rank that differs: from the majority if there is one, else from this rank. `None` where it is not known.
        rank: Option<u32>,
        /// [`Reason::Diverged`] where the group has ended; `None` where it goes on.
        reason: Option<Reason>,
        /// This rank's call.
        operation: Operation,
        /// The tensor of this rank's call, or that the tables differ in.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the call.
        step: u64,
        /// The operation or value of most ranks; without a majority, that of this rank. `None` where it is not known.
        ours: Option<Box<str>>,
        /// The operation or value of `rank`.
        theirs: Option<Box<str>>,
        /// The rank whose GPU may still use the tensor: its memory must stay as it is.
        in_use_by: Option<u32>,
        /// The text.
        text: Box<str>,
    },
    /// A rank is gone. Every survivor names the same one.
    ///
    /// The group has ended, the operation did not complete, and the content of the buffers under way is undefined. They are
    /// free unless `in_use_by` says otherwise.
    #[error("{text}")]
    #[non_exhaustive]
    PeerFailed {
        /// The rank. It is this rank's own where the others have given it up.
        rank: u32,
        /// The cause.
        reason: Reason,
        /// The call that reports it.
        operation: Operation,
        /// The tensor of that call, if it is registered.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the call.
        step: u64,
        /// The rank whose GPU may still use the tensor: its memory must stay as it is.
        in_use_by: Option<u32>,
        /// The text.
        text: Box<str>,
    },
    /// An operation's deadline (the key `deadline`) passed, here or on another rank that waited for the same ones, which ends the operation and
    /// the group. That of a `register` of the group of all ends neither, but no more can be registered. That of a tensor which was held for
    /// others of its bucket (the key `fuse_below`) ends neither the group nor anything else: nothing of it was started.
    ///
    /// The content of the buffers under way is undefined. They are free unless `in_use_by` says otherwise.
    #[error("deadline: {text}")]
    #[non_exhaustive]
    Deadline {
        /// The ranks that the operation waited for, in order; none where its own sends were not acknowledged, a GPU's copy did not end,
        /// or it was held for tensors that this rank has not pushed.
        missing: Vec<u32>,
        /// The call.
        operation: Operation,
        /// Its tensor, if it is registered.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the call.
        step: u64,
        /// The time that the operation had.
        after: Duration,
        /// The rank whose GPU may still use the tensor: its memory must stay as it is.
        in_use_by: Option<u32>,
        /// The text.
        text: Box<str>,
    },
    /// The caller's own time-out passed. The operation is still under way and the buffer still the group's: wait again.
    #[error(
        "time-out: {what} has not completed within {after:?}; it is still under way: wait again, or look at the other ranks"
    )]
    #[non_exhaustive]
    Timeout {
        /// The call, where it is known.
        operation: Option<Operation>,
        /// Its tensor, if it is registered.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the call.
        step: Option<u64>,
        /// How long it was waited for.
        after: Duration,
        /// The operation, for people.
        what: Box<str>,
    },
    /// As many operations are under way and queued as can be, and none has ended while this one waited for a slot. Nothing was started:
    /// wait for one of those, and start again.
    #[error(
        "would block: {what} was not started: as many operations are under way as can be, and none has ended within {after:?}; wait for \
         one of them, then start again"
    )]
    #[non_exhaustive]
    WouldBlock {
        /// The call, where it is known.
        operation: Option<Operation>,
        /// Its tensor, if it is registered.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the call.
        step: Option<u64>,
        /// How long it waited for a slot.
        after: Duration,
        /// The operation, for people.
        what: Box<str>,
    },
    /// An accelerator cannot be used, and nothing was started; or it has failed under an operation (there is a `step` then), and
    /// the group has ended.
    #[error("accelerator: {text}")]
    #[non_exhaustive]
    Accelerator {
        /// The tensor of the operation, if it is registered.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the operation that failed.
        step: Option<u64>,
        /// The rank whose GPU may still use the tensor: its memory must stay as it is.
        in_use_by: Option<u32>,
        /// The text.
        text: Box<str>,
    },
    /// The group was closed, or failed before, or belongs to the process that this one was forked from. Nothing was started.
    #[error("the group is closed: {text}")]
    #[non_exhaustive]
    Closed {
        /// The rank that the group ended with, where it ended for one.
        rank: Option<u32>,
        /// The cause.
        reason: Option<Reason>,
        /// The call, where it is known.
        operation: Option<Operation>,
        /// Its tensor, if it is registered.
        tensor: Option<Arc<NamedTensor>>,
        /// The trainer's step at the call.
        step: Option<u64>,
        /// The text.
        text: Box<str>,
    },
    /// A fault of this library. Buffers under way must stay as they are.
    #[error("internal error: {0}; please report it")]
    Internal(String),
}

/// The reason why a group ended with a rank. The numbers are stable; [`Display`](std::fmt::Display) says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// Its process was killed or has crashed, or its host or every connection to it is gone.
    Lost = 1,
    /// It left while operations were under way, or has given up ([`Group::abort`](crate::Group::abort)): the text says why then.
    Aborted = 2,
    /// It did not take part in an operation before the deadline.
    Late = 3,
    /// It runs other operations than the other ranks.
    Diverged = 4,
    /// It sent a message that no rank of this version and plan sends.
    Protocol = 5,
    /// Its accelerator failed.
    Accelerator = 6,
    /// Its own port, device or address is gone, or no other host answers it, as it said itself.
    Disconnected = 7,
    /// It was stopped or cut off for longer than `heartbeat_timeout`, as it found out itself, and the others have given it up.
    Stopped = 8,
    /// It is alive, and messages to it do not arrive: the network drops packets of their size, say.
    Unreachable = 9,
}

impl From<&AbortReason> for Reason {
    fn from(why: &AbortReason) -> Self {
        match why {
            AbortReason::Failed => Self::Lost,
            AbortReason::Aborted | AbortReason::GaveUp(_) => Self::Aborted,
            AbortReason::Late => Self::Late,
            AbortReason::Diverged(_) => Self::Diverged,
            AbortReason::Protocol => Self::Protocol,
            AbortReason::Accelerator => Self::Accelerator,
            AbortReason::Disconnected => Self::Disconnected,
            AbortReason::Stopped => Self::Stopped,
            AbortReason::Unreachable => Self::Unreachable,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        AbortReason::from_code(*self as u32).fmt(f)
    }
}

/// A registered tensor: an index over all generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub u32);

/// A registered tensor as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedTensor {
    /// Its number on this rank.
    pub id: TensorId,
    /// The name that it was registered with.
    pub name: String,
}

/// The call that an error is about.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) tensor: Option<Arc<NamedTensor>>,
    pub(crate) step: u64,
}

/// The differing operations or values of two ranks.
#[derive(Default)]
pub(crate) struct Views {
    pub(crate) ours: Option<Box<str>>,
    pub(crate) theirs: Option<Box<str>>,
}

impl Error {
    /// Whether it can be how a group has ended, or what a call says after that.
    pub(crate) fn can_end_group(&self) -> bool {
        use Error::{Accelerator, Closed, Deadline, Internal, Mismatch, PeerFailed};
        matches!(
            self,
            Mismatch { .. }
                | PeerFailed { .. }
                | Deadline { .. }
                | Accelerator { .. }
                | Closed { .. }
                | Internal(_)
        )
    }

    /// The same, and at the end of its text where the rank's last events are.
    pub(crate) fn with_events_in(self, path: &Path) -> Self {
        self.with_more(&format!("; the last {EVENTS} events of this rank are in {}", path.display()))
    }

    /// The same, and this at the end of its text.
    pub(crate) fn with_more(mut self, more: &str) -> Self {
        match &mut self {
            Self::Mismatch { text, .. }
            | Self::PeerFailed { text, .. }
            | Self::Deadline { text, .. }
            | Self::Accelerator { text, .. }
            | Self::Closed { text, .. } => *text = format!("{text}{more}").into(),
            Self::Internal(text) => text.push_str(more),
            _ => {}
        }
        self
    }

    /// A stable number for C and for exit codes: 1 to 12.
    pub fn code(&self) -> i32 {
        match self {
            Self::Config(_) => 1,
            Self::Join { .. } => 2,
            Self::Device(_) => 3,
            Self::Argument(_) => 4,
            Self::Mismatch { .. } => 5,
            Self::PeerFailed { .. } => 6,
            Self::Deadline { .. } => 7,
            Self::Closed { .. } => 8,
            Self::Internal(_) => 9,
            Self::Timeout { .. } => 10,
            Self::Accelerator { .. } => 11,
            Self::WouldBlock { .. } => 12,
        }
    }

    /// The rank that it names.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Self::PeerFailed { rank, .. } => Some(*rank),
            Self::Join { rank, .. } | Self::Mismatch { rank, .. } | Self::Closed { rank, .. } => *rank,
            _ => None,
        }
    }

    /// The cause, where the group has ended.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::PeerFailed { reason, .. } => Some(*reason),
            Self::Mismatch { reason, .. } | Self::Closed { reason, .. } => *reason,
            _ => None,
        }
    }

    /// The ranks that did not come in time, in order.
    pub fn missing(&self) -> &[u32] {
        match self {
            Self::Join { missing, .. } | Self::Deadline { missing, .. } => missing,
            _ => &[],
        }
    }

    /// The call that it is about.
    pub fn operation(&self) -> Option<Operation> {
        match self {
            Self::Mismatch { operation, .. }
            | Self::PeerFailed { operation, .. }
            | Self::Deadline { operation, .. } => Some(*operation),
            Self::Timeout { operation, .. }
            | Self::WouldBlock { operation, .. }
            | Self::Closed { operation, .. } => *operation,
            _ => None,
        }
    }

    /// The registered tensor that it is about.
    pub fn tensor(&self) -> Option<&NamedTensor> {
        match self {
            Self::Mismatch { tensor, .. }
            | Self::PeerFailed { tensor, .. }
            | Self::Deadline { tensor, .. }
            | Self::Timeout { tensor, .. }
            | Self::WouldBlock { tensor, .. }
            | Self::Accelerator { tensor, .. }
            | Self::Closed { tensor, .. } => tensor.as_deref(),
            _ => None,
        }
    }

    /// The trainer's step at the call, as [`Group::set_step`](crate::Group::set_step) gave it; 0 before.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::Mismatch { step, .. } | Self::PeerFailed { step, .. } | Self::Deadline { step, .. } => {
                Some(*step)
            }
            Self::Timeout { step, .. }
            | Self::WouldBlock { step, .. }
            | Self::Accelerator { step, .. }
            | Self::Closed { step, .. } => *step,
            _ => None,
        }
    }

    /// The time that passed.
    pub fn after(&self) -> Option<Duration> {
        match self {
            Self::Deadline { after, .. } | Self::Timeout { after, .. } | Self::WouldBlock { after, .. } => {
                Some(*after)
            }
            _ => None,
        }
    }

    /// The rank whose GPU may still use the operation's tensor. Its memory must stay as it is then, for ever.
    pub fn in_use_by(&self) -> Option<u32> {
        match self {
            Self::Mismatch { in_use_by, .. }
            | Self::PeerFailed { in_use_by, .. }
            | Self::Deadline { in_use_by, .. }
            | Self::Accelerator { in_use_by, .. } => *in_use_by,
            _ => None,
        }
    }

    pub(crate) fn join(text: impl Into<Box<str>>) -> Self {
        Self::Join { rank: None, missing: vec![], text: text.into() }
    }

    /// The group did not come together because of this rank.
    pub(crate) fn join_without(rank: u32, text: impl Into<Box<str>>) -> Self {
        Self::Join { rank: Some(rank), missing: vec![], text: text.into() }
    }

    /// Ranks disagree, and the group goes on.
    pub(crate) fn mismatch(call: Call, rank: Option<u32>, views: Views, text: impl Into<Box<str>>) -> Self {
        let Call { operation, tensor, step } = call;
        let Views { ours, theirs } = views;
        let (reason, in_use_by, text) = (None, None, text.into());
        Self::Mismatch { rank, reason, operation, tensor, step, ours, theirs, in_use_by, text }
    }

    /// Ranks run different operations, and the group has ended.
    pub(crate) fn diverged(call: Call, rank: Option<u32>, views: Views, text: impl Into<Box<str>>) -> Self {
        let mut error = Self::mismatch(call, rank, views, text);
        if let Self::Mismatch { reason, .. } = &mut error {
            *reason = Some(Reason::Diverged);
        }
        error
    }

    pub(crate) fn peer_failed(call: Call, rank: u32, reason: Reason, text: impl Into<Box<str>>) -> Self {
        let Call { operation, tensor, step } = call;
        Self::PeerFailed { rank, reason, operation, tensor, step, in_use_by: None, text: text.into() }
    }

    pub(crate) fn deadline(
        call: Call,
        missing: Vec<u32>,
        after: Duration,
        text: impl Into<Box<str>>,
    ) -> Self {
        let Call { operation, tensor, step } = call;
        Self::Deadline { missing, operation, tensor, step, after, in_use_by: None, text: text.into() }
    }

    /// An accelerator cannot be used, or has failed outside of an operation; `text` says why, and what to do.
    pub fn accelerator(text: impl ToString) -> Self {
        Self::Accelerator { tensor: None, step: None, in_use_by: None, text: text.to_string().into() }
    }

    pub(crate) fn accelerator_under(call: Call, text: impl Into<Box<str>>) -> Self {
        Self::Accelerator { tensor: call.tensor, step: Some(call.step), in_use_by: None, text: text.into() }
    }

    /// The group cannot be used in this process any more, whichever rank ended it.
    pub(crate) fn closed(text: impl Into<Box<str>>) -> Self {
        let (rank, reason, operation, tensor, step) = Default::default();
        Self::Closed { rank, reason, operation, tensor, step, text: text.into() }
    }

    /// The group ended before the call.
    pub(crate) fn closed_by(cause: &AbortCause, text: impl Into<Box<str>>) -> Self {
        let mut error = Self::closed(text);
        if let Self::Closed { rank, reason, .. } = &mut error {
            (*rank, *reason) = (Some(cause.culprit.0), Some(Reason::from(&cause.reason)));
        }
        error
    }

    /// The caller's own time-out has passed.
    pub(crate) fn timeout(after: Duration) -> Self {
        let (operation, tensor, step) = Default::default();
        Self::Timeout { operation, tensor, step, after, what: "the operation".into() }
    }

    /// A time-out after several waits, which have taken so long together.
    pub fn waited(mut self, all: Duration) -> Self {
        if let Self::Timeout { after, .. } = &mut self {
            *after = all;
        }
        self
    }

    /// In the place of a time-out while an operation waits for a slot: nothing was started.
    pub(crate) fn would_block(self) -> Self {
        match self {
            Self::Timeout { operation, tensor, step, after, what } => {
                Self::WouldBlock { operation, tensor, step, after, what }
            }
            other => other,
        }
    }

    /// The same of this call, where it names none.
    pub(crate) fn of(mut self, call: Call, name: &dyn std::fmt::Display) -> Self {
        match &mut self {
            Self::Timeout { operation, tensor, step, what, .. }
            | Self::WouldBlock { operation, tensor, step, what, .. } => {
                (*operation, *tensor, *step) = (Some(call.operation), call.tensor, Some(call.step));
                *what = name.to_string().into();
            }
            Self::Closed { operation, tensor, step, .. } => {
                (*operation, *tensor, *step) = (Some(call.operation), call.tensor, Some(call.step));
            }
            _ => {}
        }
        self
    }

    /// The group ended during the call. Views of a divergence are not this call's.
    pub(crate) fn ended_by(call: Call, cause: &AbortCause, text: impl Into<Box<str>>) -> Self {
        match &cause.reason {
            AbortReason::Diverged(_) => Self::diverged(call, Some(cause.culprit.0), Views::default(), text),
            why => Self::peer_failed(call, cause.culprit.0, Reason::from(why), text),
        }
    }

    /// The same of the collective that the operation was a part of.
    pub(crate) fn within(self, collective: Collective) -> Self {
        self.part_of(collective.into(), &collective)
    }

    /// The same of the call that the operation was a part of.
    pub(crate) fn part_of(mut self, call: Operation, name: &dyn std::fmt::Display) -> Self {
        if let Self::Mismatch { operation, text, .. }
        | Self::PeerFailed { operation, text, .. }
        | Self::Deadline { operation, text, .. } = &mut self
        {
            *operation = call;
            *text = format!("{name}: {text}").into();
        } else if let Self::Closed { operation, text, .. } = &mut self {
            *operation = Some(call);
            *text = format!("{name}: {text}").into();
        }
        self
    }

    /// The same error, of a tensor that a rank's GPU may still use.
    pub(crate) fn with_memory_in_use(mut self, by: u32) -> Self {
        match &mut self {
            Self::Mismatch { in_use_by, .. }
            | Self::PeerFailed { in_use_by, .. }
            | Self::Deadline { in_use_by, .. }
            | Self::Accelerator { in_use_by, .. } => *in_use_by = Some(by),
            _ => {}
        }
        self
    }
}

#[cfg(test)]
mod tests;
