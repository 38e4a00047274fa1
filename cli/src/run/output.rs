//! The ranks' output, line by line, each line after its rank.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::Sender;
use std::sync::{Once, OnceLock};
use std::thread::JoinHandle;

use serde::Serialize;

/// The longest part of an unfinished line that is held back, in bytes: a longer line is printed as several.
const LONGEST_LINE: u64 = 64 * 1024;

/// The first error of a write of output or of events.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Why output of the job is lost, if some is. A reader that closes the pipe early, such as `head`, is no cause.
pub(super) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Keeps the first error, and says once that nobody reads standard output any more. The job goes on: its ranks do more than print.
fn keep_error(written: io::Result<()>, to: Stream) {
    static UNREAD: Once = Once::new();
    match written {
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => match to {
            Stream::Stdout => UNREAD.call_once(|| {
                tell("the reader of standard output has closed it: the job goes on without, and INT or TERM ends it");
            }),
            // There is nowhere left to say it.
            Stream::Stderr => {}
        },
        Err(why) => drop(LOST.set(why)),
        Ok(()) => {}
    }
}

/// One of a rank's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// The format of lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// One JSON object a line, everything on standard output.
    pub(super) json: bool,
    /// Colour the rank on standard output and on standard error.
    pub(super) colour: [bool; 2],
}

/// An event of the launcher, as JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum LauncherEvent<'a> {
    /// A rank printed a line.
    Output { rank: u32, stream: Stream, line: &'a str },
    /// A rank's process has started.
    Started { rank: u32, pid: u32, host: u32 },
    /// A rank ended; exactly one of `code` and `signal` is set.
    Ended { rank: u32, pid: u32, code: Option<i32>, signal: Option<i32> },
    /// An action of the launcher, for people.
    Note { text: &'a str },
    /// The job is over.
    Finished { status: u8 },
}

impl Style {
    /// Prints an event as a JSON line, if JSON is selected.
    pub(super) fn event(&self, event: &LauncherEvent<'_>) {
        if self.json {
            match serde_json::to_string(event) {
                Ok(text) => keep_error(writeln!(io::stdout().lock(), "{text}"), Stream::Stdout),
                Err(why) => tell(&format!("an event of the job cannot be printed: {why}")),
            }
        }
    }

    /// Prints a text for people on standard error, and for programs on standard output.
    pub(super) fn note(&self, text: &str) {
        tell(text);
        self.event(&LauncherEvent::Note { text });
    }

    /// Formats one line of a rank's output, newline included.
    fn format(&self, rank: u32, stream: Stream, line: &[u8]) -> serde_json::Result<Vec<u8>> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if self.json {
            let line = String::from_utf8_lossy(line);
            let event = LauncherEvent::Output { rank, stream, line: &line };
            let mut text = serde_json::to_vec(&event)?;
            text.push(b'\n');
            return Ok(text);
        }
        let mut text = match self.colour[usize::from(stream == Stream::Stderr)] {
            // Six colours that are legible on black and on white, by rank.
            true => format!("\x1b[3{}m[{rank}]\x1b[0m ", 1 + rank % 6).into_bytes(),
            false => format!("[{rank}] ").into_bytes(),
        };
        text.extend_from_slice(line);
        text.push(b'\n');
        Ok(text)
    }
}

/// Prints a text for people on standard error. The ranks go on even if the terminal is gone.
pub(super) fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "shouter run: {text}");
}

/// Copies one output of one rank until its last writer has closed it, then reports on `done`. The copying goes on even
/// if our own reader has gone: the rank would block on a full pipe.
pub(super) fn forward(
    rank: u32,
    stream: Stream,
    style: Style,
    from: impl Read + Send + 'static,
    done: Sender<()>,
) -> io::Result<JoinHandle<()>> {
    let copy = move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            }
            let text = match style.format(rank, stream, &line) {
                Ok(text) => text,
                Err(why) => {
                    tell(&format!("a line of rank {rank} cannot be printed: {why}"));
                    continue;
                }
            };
            // One write under the lock, so that lines of several ranks do not mix.
            let to = if style.json { Stream::Stdout } else { stream };
            let written = match to {
                Stream::Stderr => io::stderr().lock().write_all(&text),
                Stream::Stdout => {
                    let mut out = io::stdout().lock();
                    out.write_all(&text).and_then(|()| out.flush())
                }
            };
            keep_error(written, to);
        }
        let _ = done.send(());
    };
    std::thread::Builder::new().name(format!("output-{rank}")).spawn(copy)
}

#[cfg(test)]
mod tests;
