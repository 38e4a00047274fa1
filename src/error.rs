//! Errors as a trainer meets them: each names who, what, and what to do next, and has a stable number for C.

/// What went wrong, for whom, and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used; nothing was started.
    #[error("configuration: {0}")]
    Config(String),
    /// The group did not come together.
    #[error("joining the group: {0}")]
    Join(String),
    /// A port, a link or memory could not be opened.
    #[error("device: {0}")]
    Device(String),
    /// An argument cannot be used; nothing was started.
    #[error("argument: {0}")]
    Argument(String),
    /// Ranks disagree about a tensor or an operation.
    #[error("mismatch: {0}")]
    Mismatch(String),
    /// A rank is gone; the operation did not complete and the buffer's content is undefined. Every survivor names the
    /// same rank.
    #[error("{0}")]
    PeerFailed(String),
    /// An operation's own deadline passed, which ends it; the message names what is missing.
    #[error("deadline: {0}")]
    Deadline(String),
    /// The caller's own time-out passed: the operation is still under way, the buffer still the group's; wait again.
    #[error("time-out: {0}")]
    Timeout(String),
    /// An accelerator cannot be used, or has failed.
    #[error("accelerator: {0}")]
    Accelerator(String),
    /// The group was closed, or failed before; `0` says how.
    #[error("the group is closed: {0}")]
    Closed(String),
    /// A fault of this library.
    #[error("internal error: {0}; please report it")]
    Internal(String),
}

impl Error {
    /// A stable number for C and for exit codes: 1 to 11.
    pub fn code(&self) -> i32 {
        match self {
            Self::Config(_) => 1,
            Self::Join(_) => 2,
            Self::Device(_) => 3,
            Self::Argument(_) => 4,
            Self::Mismatch(_) => 5,
            Self::PeerFailed(_) => 6,
            Self::Deadline(_) => 7,
            Self::Closed(_) => 8,
            Self::Internal(_) => 9,
            Self::Timeout(_) => 10,
            Self::Accelerator(_) => 11,
        }
    }
}
