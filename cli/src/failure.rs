//! Why a command that measures has no figures.

use std::io;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command line asks for something that cannot be, or does not go with the configuration.
    #[error("{0}")]
    Usage(String),
    /// A measurement failed, or a rank sent what it should not.
    #[error("{0}")]
    Failed(String),
    /// The library.
    #[error(transparent)]
    Library(#[from] shouter::Error),
    /// A system call: of a socket, or where the result is written.
    #[error(transparent)]
    System(#[from] io::Error),
}
