//! The rendezvous client, on every rank but 0: connect to rank 0, authenticate, send the hello, wait for the roster.
//!
//! Failures that do not come from an authenticated rank 0 (no listener yet, a broken connection, no answer, an unknown
//! name, another program on the port) are retried until the deadline. An error that rank 0 sends is returned at once.
//! Once rank 0 has reported that all ranks are there, it accepts no rank any more, and nothing is retried.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::conn::{Conn, ReadStatus, Trusted};
use super::error::{ExchangeError, JoinError, Missing, Refusal};
use super::frame::Framer;
use super::handshake::{Connector, HandshakeError, OPENING_LEN, VERDICT_LEN, VERSION};
use super::hello::Hello;
use super::message::{MAX_MESSAGE, Message};
use super::rendezvous_config::SILENCE;
use super::rendezvous_config::{RendezvousConfig, addresses};
use super::roster::Roster;
use super::{relay, sys};
use crate::key::random;
use crate::wire::{self, Unencodable};

/// How long one attempt to connect and to authenticate may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Pauses between attempts grow from this...
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// ...to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The awaited message, in errors.
const ROSTER: &str = "the roster";

/// Why an attempt failed.
pub(super) enum Setback {
    /// It may work the next time.
    Retry(String),
    /// It may work the next time; this error says more than that rank 0 was not reached.
    Met(JoinError),
    /// It will not.
    Give(JoinError),
}

impl From<Unencodable> for Setback {
    fn from(error: Unencodable) -> Self {
        Self::Give(error.into())
    }
}

impl fmt::Display for Setback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry(why) => f.write_str(why),
            Self::Met(error) | Self::Give(error) => error.fmt(f),
        }
    }
}

/// Joins, and returns the roster and the connection to rank 0.
pub(super) fn join(config: &RendezvousConfig, hello: &Hello) -> Result<(Roster, Trusted), JoinError> {
    let until = Instant::now() + config.deadline;
    let mut pause = FIRST_PAUSE;
    let mut waiting_for = None;
    let mut warned = false;
    loop {
        let why = match attempt(config, hello, until, &mut waiting_for) {
            Ok(joined) => return Ok(joined),
            Err(Setback::Give(error)) => return Err(error),
            Err(Setback::Retry(why)) => {
                tracing::debug!(%why, "rank 0 cannot be reached yet");
                unreachable(config, hello.rank, why)
            }
            Err(Setback::Met(error)) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(%error, "rank 0 cannot be reached yet; trying again");
                }
                error
            }
        };
        // The pause ends before the deadline, else it is the last: an attempt without time would only hide the reason.
        let left = until.saturating_duration_since(Instant::now());
        if left <= pause {
            std::thread::sleep(left);
            return Err(waiting_for.map_or(why, |missing| still_missing(config, missing)));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn unreachable(config: &RendezvousConfig, rank: u32, why: String) -> JoinError {
    let RendezvousConfig { host, port, deadline, .. } = config;
    JoinError::Unreachable { rank, host: host.clone(), port: *port, seconds: deadline.as_secs_f64(), why }
}

fn still_missing(config: &RendezvousConfig, missing: Missing) -> JoinError {
    let RendezvousConfig { host, port, deadline, .. } = config;
    JoinError::Refused(Refusal::Missing {
        missing,
        seconds: deadline.as_secs_f64(),
        meeting: format!("{host} port {port}"),
        refused: String::new(),
    })
}

fn attempt(
    config: &RendezvousConfig,
    hello: &Hello,
    until: Instant,
    waiting_for: &mut Option<Missing>,
) -> Result<(Roster, Trusted), Setback> {
    let (stream, address, framer) = connect(config, hello.rank, until)?;
    let retry = |error: io::Error| Setback::Retry(error.to_string());
    let (listener, relay) = relay::listen(hello.rank, hello.size, &stream).unzip();
    let mut server = Trusted::new(Conn::new(stream, address).map_err(retry)?, framer);
    let mut said = hello.clone();
    said.relay = relay;
    server.queue(&Message::Hello(said))?;
    let mut others = 0;
    *waiting_for = None;
    let mut heard = Instant::now();
    // When the ranks were complete, where this one does not get the roster from rank 0.
    let complete = Cell::new(None);
    loop {
        let flushed = server.conn.flush();
        let end = server.read(MAX_MESSAGE);
        let broken = |why: String| if complete.get().is_some() { left(0, why) } else { Setback::Retry(why) };
        let meaningless = || broken("it sent something without meaning".into());
        while let Some(message) = server.next(MAX_MESSAGE).map_err(|_| meaningless())? {
            let message = match message {
                Message::RosterAt { from, digest } => {
                    let now = Instant::now();
                    complete.set(Some(now));
                    *waiting_for = None;
                    match relay::fetch(config, hello.rank, from, &digest, relay::patience(now, until)) {
                        Ok(roster) => roster,
                        Err(why) => {
                            tracing::warn!(address = %from, why, "no roster from there; asking rank 0 for it");
                            server.queue(&Message::Resend)?;
                            heard = Instant::now();
                            continue;
                        }
                    }
                }
                message => message,
            };
            match message {
                Message::Relay { others: told } => others = told,
                Message::Waiting(missing) => {
                    *waiting_for = Some(missing);
                    heard = Instant::now();
                }
                Message::Roster { epoch, nonce, members } if members.len() == hello.size as usize => {
                    if let (Some(listener), 1..) = (&listener, others) {
                        let members = members.clone();
                        let encoded = wire::encode(&Message::Roster { epoch, nonce, members })?;
                        // Those below began to ask when this rank did.
                        let since = complete.get().unwrap_or_else(Instant::now);
                        relay::serve(config, listener, &encoded, others, relay::patience(since, until));
                    }
                    let roster = Roster::received(epoch, &nonce, members, &config.job, &config.key);
                    return Ok((roster, server));
                }
                Message::Refused(refusal) => return Err(Setback::Give(JoinError::Refused(refusal))),
                // Rank 0 has gone on to the first exchange.
                Message::Failed(error) if complete.get().is_some() => {
                    return Err(Setback::Give(JoinError::SetUp(error)));
                }
                Message::Lost(rank) if complete.get().is_some() => {
                    return Err(left(rank, "its process has ended".into()));
                }
                _ => return Err(meaningless()),
            }
        }
        // Only now: a reason that rank 0 gave before it closed has been read.
        flushed.map_err(|error| broken(error.to_string()))?;
        if end.map_err(|error| broken(error.to_string()))? == ReadStatus::Closed {
            *waiting_for = None;
            return Err(broken("it closed the connection before this rank had the roster".into()));
        }
        let until = until.max(heard + SILENCE);
        if Instant::now() >= until {
            return Err(broken("it was reached, and sent no roster in time".into()));
        }
        sys::wait(&[(server.conn.fd(), server.conn.has_output())], until)
            .map_err(|error| broken(error.to_string()))?;
    }
}

/// A rank that was there when all had come, and is not any more.
fn left(rank: u32, why: String) -> Setback {
    Setback::Give(JoinError::SetUp(ExchangeError::Left { tag: ROSTER.into(), rank, why }))
}

/// Connects to the first address of the host at which rank 0 answers.
fn connect(
    config: &RendezvousConfig,
    rank: u32,
    until: Instant,
) -> Result<(TcpStream, SocketAddr, Framer), Setback> {
    let mut setback = Setback::Retry("there was no time left".to_owned());
    for address in addresses(config).map_err(Setback::Met)? {
        let left = until.saturating_duration_since(Instant::now()).min(ATTEMPT);
        if left.is_zero() {
            break;
        }
        let failed = match TcpStream::connect_timeout(&address, left) {
            // On loopback, a port that nobody listens on can be connected to itself (RFC 9293 section 3.5: simultaneous
            // open), when the kernel happens to choose it as the source.
            Ok(stream) if stream.local_addr().ok() == Some(address) => {
                Setback::Retry("nobody listens there yet".into())
            }
            Ok(stream) => match prove(config, rank, &stream, address, until) {
                Ok(framer) => return Ok((stream, address, framer)),
                Err(Setback::Give(error)) => return Err(Setback::Give(error)),
                Err(failed) => failed,
            },
            Err(error) => Setback::Retry(format!("{address}: {error}")),
        };
        // The answer of another program at one address says more than none at the next.
        if !matches!((&setback, &failed), (Setback::Met(_), Setback::Retry(_))) {
            setback = failed;
        }
    }
    Err(setback)
}

/// The handshake, with the time of one attempt.
pub(super) fn prove(
    config: &RendezvousConfig,
    rank: u32,
    stream: &TcpStream,
    address: SocketAddr,
    until: Instant,
) -> Result<Framer, Setback> {
    let until = until.min(Instant::now() + ATTEMPT);
    let retry = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Setback::Retry(format!("{address} was reached and did not answer"))
        }
        _ => Setback::Retry(format!("{address} closed the connection ({error})")),
    };
    let seconds = config.deadline.as_secs_f64();
    let refuted = |error| match error {
        HandshakeError::OtherProtocol => Setback::Met(JoinError::NotShouter { address, seconds }),
        HandshakeError::WrongKey => Setback::Met(JoinError::WrongKey { rank, address, seconds }),
    };
    let nonce = random().map_err(|error| Setback::Give(JoinError::Randomness(error)))?;
    let mut connector = Connector::new(VERSION, nonce);
    let mut stream = Timed { stream, until };
    stream.write_all(connector.opening()).map_err(retry)?;
    let mut opening = [0; OPENING_LEN];
    // A foreign server shows itself in its first bytes and may send no more.
    stream.read_exact(&mut opening[..8]).map_err(retry)?;
    if !Connector::plausible(&opening[..8]) {
        return Err(refuted(HandshakeError::OtherProtocol));
    }
    stream.read_exact(&mut opening[8..]).map_err(retry)?;
    let proof = connector.prove(&config.key, &config.job, &opening).map_err(refuted)?;
    stream.write_all(&proof).map_err(retry)?;
    let mut verdict = [0; VERDICT_LEN];
    stream.read_exact(&mut verdict).map_err(retry)?;
    let (framer, version) = connector.conclude(&config.key, &verdict).map_err(refuted)?;
    // Nothing after the handshake can be understood then, not even the reason that rank 0 gives.
    if version != VERSION {
        let address = stream.stream.local_addr().map_err(retry)?;
        let refusal = Refusal::Version { address, theirs: VERSION, ours: version };
        return Err(Setback::Give(JoinError::Refused(refusal)));
    }
    Ok(framer)
}

/// A stream on which every call ends at one time.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
