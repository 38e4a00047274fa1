//! The error of a command that measures.

use std::io;

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command line asks for something impossible, or contradicts the configuration.
    #[error("{0}")]
    Usage(String),
    /// A measurement failed, or a rank sent an invalid message.
    #[error("{0}")]
    Failed(String),
    /// An error of the library.
    #[error(transparent)]
    Library(#[from] shouter::Error),
    /// A system call failed: of a socket, or when writing the result.
    #[error(transparent)]
    System(#[from] io::Error),
}
