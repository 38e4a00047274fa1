//! Distribution of the roster: down a tree of ranks, so that rank 0 sends it to a few, whatever the job's size.
//!
//! ```text
//!   rank 0 -- roster --> ranks 1 to 16 -- roster --> ranks 17 to 272 -- roster --> ...
//!     '-- digest, address of the one above ------------^
//! ```
//!
//! Rank 0 sends every rank further down, over their connection, the address to ask and the digest of the roster. So a
//! rank that passes the roster on can withhold it and cannot change it. Both prove that they hold the job's key, by the
//! same handshake as at rank 0. A rank that gets no answer asks rank 0.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::client::prove;
use super::conn::{Conn, ReadStatus, Trusted};
use super::handshake::{Acceptor as Handshake, VERSION};
use super::message::{MAX_MESSAGE, Message};
use super::proving::{self, Proving};
use super::rejections::Rejections;
use super::rendezvous_config::RendezvousConfig;
use super::rendezvous_config::SILENCE;
use super::sys;
use crate::key::{TAG_LEN, random};
use crate::wire;

/// The number of ranks that a rank passes the roster on to: 1,024 ranks have it after three steps, and a rank sends
/// little.
const FANOUT: u32 = 16;

/// How long a rank waits for the one above it, and for those below.
const PATIENCE: Duration = Duration::from_secs(5);

/// The deadline of a rank that got the address at `since` and has until `until` for the join. It may be later than
/// `until`, as any wait for rank 0 may.
pub(super) fn patience(since: Instant, until: Instant) -> Instant {
    (since + PATIENCE).min(until.max(since + SILENCE))
}

/// Connections that may be open at a rank at once.
const SLOTS: usize = 4 * FANOUT as usize;

/// The ranks that a rank passes the roster on to.
pub(super) fn below(rank: u32, size: u32) -> Range<u32> {
    let first = rank.saturating_mul(FANOUT).saturating_add(1).min(size);
    first..first.saturating_add(FANOUT).min(size)
}

/// The rank from which a rank gets the roster, if that is not rank 0.
pub(super) fn above(rank: u32) -> Option<u32> {
    Some(rank.checked_sub(1)? / FANOUT).filter(|above| *above > 0)
}

/// Of an encoded message.
pub(super) fn digest(message: &[u8]) -> [u8; TAG_LEN] {
    Sha256::digest(message).into()
}

/// A port for those below, at the address by which rank 0 is reached; `None` if there are none, or the system has no port.
pub(super) fn listen(rank: u32, size: u32, server: &TcpStream) -> Option<(TcpListener, u16)> {
    if below(rank, size).is_empty() {
        return None;
    }
    let open = || {
        let listener = TcpListener::bind((server.local_addr()?.ip(), 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        io::Result::Ok((listener, port))
    };
    open().inspect_err(|why| tracing::debug!(%why, "no port to pass the roster on; rank 0 does it")).ok()
}

/// The roster from the rank above, if it is the one that rank 0 has.
pub(super) fn fetch(
    config: &RendezvousConfig,
    rank: u32,
    from: SocketAddr,
    expected: &[u8; TAG_LEN],
    until: Instant,
) -> Result<Message, String> {
    let broken = |error: io::Error| error.to_string();
    let left = until.saturating_duration_since(Instant::now());
    let stream = TcpStream::connect_timeout(&from, left).map_err(broken)?;
    let framer = prove(config, rank, &stream, from, until).map_err(|setback| setback.to_string())?;
    let mut above = Trusted::new(Conn::new(stream, from).map_err(broken)?, framer);
    loop {
        let end = above.read(MAX_MESSAGE).map_err(broken)?;
        if let Some(message) = above.next(MAX_MESSAGE).map_err(|_| "it sent something without meaning")? {
            let encoded = wire::encode(&message).map_err(|error| error.to_string())?;
            return match digest(&encoded) == *expected {
                true => Ok(message),
                false => Err("it sent another roster than rank 0 has".into()),
            };
        }
        if end == ReadStatus::Closed {
            return Err("it closed the connection".into());
        }
        if Instant::now() >= until {
            return Err("no roster came in time".into());
        }
        sys::wait(&[(above.conn.fd(), false)], until).map_err(broken)?;
    }
}

/// A connection at a rank that passes the roster on.
struct Candidate {
    conn: Conn,
    /// `None` once it was sent the roster.
    handshake: Option<Handshake>,
}

/// The fate of a candidate.
enum Outcome {
    Stays,
    /// It has read the roster.
    Delivered,
    Rejected(&'static str),
}

/// Passes the encoded roster on to `others` ranks, until `until`: a rank that has not come by then asks rank 0.
pub(super) fn serve(
    config: &RendezvousConfig,
    listener: &TcpListener,
    roster: &[u8],
    others: u32,
    until: Instant,
) {
    let (mut left, mut candidates) = (others, Vec::<Candidate>::new());
    let mut rejections = Rejections::default();
    while left > 0 && Instant::now() < until {
        let mut fds = vec![(listener.as_fd(), false)];
        fds.extend(candidates.iter().map(|one| (one.conn.fd(), one.conn.has_output())));
        let Ok(ready) = sys::wait(&fds, until) else { return };
        let mut ready = ready.into_iter();
        let acceptable = ready.next().unwrap_or(false);
        candidates = candidates
            .into_iter()
            .zip(ready)
            .filter_map(|(mut candidate, ready)| {
                match if ready { candidate.step(config, roster) } else { Outcome::Stays } {
                    Outcome::Stays => return Some(candidate),
                    Outcome::Delivered => left = left.saturating_sub(1),
                    Outcome::Rejected(why) => rejections.refuse(candidate.conn.peer(), why),
                }
                None
            })
            .collect();
        while acceptable && let Ok((stream, peer)) = listener.accept() {
            if candidates.len() == SLOTS {
                // Those that have proved themselves read the roster; unauthenticated peers must not interrupt them.
                let unproven = candidates.iter().position(|one| one.handshake.is_some());
                let oldest = candidates.remove(unproven.unwrap_or(0));
                rejections.refuse(oldest.conn.peer(), "too many connections wait at once");
            }
            let (Ok(conn), Ok(nonce)) = (Conn::new(stream, peer), random()) else { continue };
            candidates.push(Candidate { conn, handshake: Some(Handshake::new(VERSION, nonce)) });
        }
    }
    if left > 0 {
        tracing::warn!(ranks = left, "not all ranks came for the roster; they get it from rank 0");
    }
}

impl Candidate {
    /// Moves it on as far as its bytes go.
    fn step(&mut self, config: &RendezvousConfig, roster: &[u8]) -> Outcome {
        if let Some(handshake) = &mut self.handshake {
            match proving::advance(&mut self.conn, handshake, config) {
                Proving::Waits => return Outcome::Stays,
                Proving::Broken => return Outcome::Rejected("it broke off before proving itself"),
                Proving::Rejected(why) => return Outcome::Rejected(why),
                Proving::Proved(peer) if !peer.same_job || peer.version != VERSION => {
                    return Outcome::Rejected("it has another job or version");
                }
                Proving::Proved(mut peer) => {
                    self.conn.queue(&peer.framer.seal(roster));
                    self.handshake = None;
                }
            }
        }
        // It closes when it has read all.
        match (self.conn.flush(), self.conn.discard()) {
            (Ok(()), Ok(ReadStatus::Open)) => Outcome::Stays,
            (Ok(()), Ok(ReadStatus::Closed)) if !self.conn.has_output() => Outcome::Delivered,
            _ => Outcome::Rejected("it broke off before it had read the roster"),
        }
    }
}

#[cfg(test)]
mod tests;
