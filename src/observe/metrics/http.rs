//! The HTTP server that shows the counters: as much of HTTP/1.1 (RFC 9112) as a scraper needs.
//!
//! Anybody may connect, so a peer costs little: one thread serves the connections one after the other, each for at most
//! [`PATIENCE`], holds at most [`LONGEST_REQUEST`] bytes of a request, and closes the connection after one answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// For so long a connection is served, from its acceptance on.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most bytes of a request line and its header.
const LONGEST_REQUEST: usize = 8 << 10;

/// The most lines of a request's header.
const MOST_LINES: usize = 64;

/// Before the port is tried again after an error, such as too many open files.
const AGAIN: Duration = Duration::from_secs(1);

/// A port at which a thread answers.
pub(super) struct Http {
    listener: TcpListener,
    stopping: AtomicBool,
}

impl Http {
    pub(super) fn open(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address)?, stopping: AtomicBool::new(false) })
    }

    /// Answers with what `text` gives until [`stop`](Self::stop).
    pub(super) fn answer_all(&self, text: &dyn Fn() -> io::Result<String>) {
        while !self.stopping.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(why) = serve(stream, text) {
                        tracing::debug!(%why, "a request for the counters could not be answered");
                    }
                }
                Err(_) if self.stopping.load(Ordering::Acquire) => return,
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(why) => {
                    tracing::warn!(%why, "the counters could not be asked for; trying again");
                    // The end of the group unparks.
                    thread::park_timeout(AGAIN);
                }
            }
        }
    }

    /// Refuses connections from now on, and ends `thread`, which answers, when it has served the connection at hand.
    pub(super) fn stop(&self, thread: &Thread) {
        self.stopping.store(true, Ordering::Release);
        // Linux ends an `accept` that waits, also one that begins later.
        if let Err(why) = SockRef::from(&self.listener).shutdown(Shutdown::Both) {
            tracing::debug!(%why, "the port of the counters could not be shut down");
        }
        thread.unpark();
    }
}

/// A connection whose reads and writes fail once it has been open for so long.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Answers the request of one connection.
fn serve(stream: TcpStream, text: &dyn Fn() -> io::Result<String>) -> io::Result<()> {
    let mut timed = Timed { stream, until: Instant::now() + PATIENCE };
    let (status, body) = match requested(&mut timed)? {
        Ok(()) => text()
            .map_or_else(|why| ("500 Internal Server Error", format!("{why}\n")), |text| ("200 OK", text)),
        Err(status) => (status, "GET /metrics shows the counters\n".into()),
    };
    let (kind, length) =
        (if status == "200 OK" { prometheus::TEXT_FORMAT } else { "text/plain" }, body.len());
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    write!(
        timed,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n{body}"
    )?;
    timed.stream.shutdown(Shutdown::Write)?;
    // A close with bytes unread would reset the connection, and the peer might lose the answer (RFC 9112 section 9.6).
    let mut unread = [0; 1024];
    while timed.read(&mut unread).is_ok_and(|read| read > 0) {}
    Ok(())
}

/// Reads the request: `Ok` for the counters, else the status to answer with.
fn requested(from: &mut impl Read) -> io::Result<Result<(), &'static str>> {
    let (mut bytes, mut filled) = ([0; LONGEST_REQUEST], 0);
    loop {
        let read = match from.read(&mut bytes[filled..]) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += read;
        let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
        let mut request = httparse::Request::new(&mut lines);
        return Ok(match request.parse(&bytes[..filled]) {
            Ok(httparse::Status::Partial) if filled < LONGEST_REQUEST => continue,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                Err("431 Request Header Fields Too Large")
            }
            Err(_) => Err("400 Bad Request"),
            Ok(httparse::Status::Complete(_)) if request.method != Some("GET") => {
                Err("405 Method Not Allowed")
            }
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.and_then(|path| path.split('?').next());
                if path == Some("/metrics") { Ok(()) } else { Err("404 Not Found") }
            }
        });
    }
}

#[cfg(test)]
mod tests;
