//! The result of a subcommand.

use crate::failure::CommandError;

/// The exit status of a subcommand, as the shell reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    /// All went well.
    pub(crate) const OK: Status = Status(0);
    /// The work failed; standard error says why.
    pub(crate) const FAILED: Status = Status(1);
    /// The command line asks for something impossible; standard error says what is possible.
    pub(crate) const USAGE: Status = Status(2);
    /// The work was done, and a checked figure is too slow.
    pub(crate) const SLOW: Status = Status(3);

    /// The status of a command's outcome; an error goes to standard error, with the command's name.
    pub(crate) fn of(command: &str, outcome: Result<Status, CommandError>) -> Self {
        outcome.unwrap_or_else(|error| {
            eprintln!("shouter {command}: {error}");
            if matches!(error, CommandError::Usage(_)) { Self::USAGE } else { Self::FAILED }
        })
    }
}
