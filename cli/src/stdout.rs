//! Standard output. A reader that closes the pipe early, such as `head`, is no failure of a command.

use std::io::{self, Write};

use serde::Serialize;

/// Prints a text, at once.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        ended => ended,
    }
}

/// Prints a value as one line of JSON, at once.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    print(&(serde_json::to_string(value)? + "\n"))
}
