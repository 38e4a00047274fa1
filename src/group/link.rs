//! Exchanges between all ranks during set-up: everybody gives some bytes, everybody gets those of all.
//!
//! The connections are those of the join. Rank 0 collects the parts of a round and hands all of them out. A round has a
//! number and a tag, so that a rank which makes another call than the others is found out and named. While it
//! waits, rank 0 says who is missing, so every rank can name them when its time is up.

use std::time::{Duration, Instant};

use super::codec::{Malformed, Reader, Writer};
use super::conn::{End, Trusted};
use super::error::{ExchangeError, Missing};
use super::frame::{Kind, MAX_PAYLOAD};
use super::guest::decode_missing;
use super::host::{SILENCE, encode_missing};
use super::sys;

/// How often rank 0 tells those who wait who is missing.
const PROGRESS: Duration = Duration::from_millis(500);
/// How long a last message may take to leave.
const FAREWELL: Duration = Duration::from_secs(2);
/// The most that one rank may give to an exchange, in bytes.
pub const MAX_PART: usize = 16 * 1024 * 1024;
/// What surrounds a rank's part on the wire, in bytes, beyond its tag.
const PART_OVERHEAD: usize = 64;
/// The longest tag, in bytes.
const MAX_TAG: usize = 256;

/// The connections of the join, kept for what must be agreed on later. Not part of the data path.
pub struct ControlLink {
    role: Role,
    round: u64,
    failed: Option<ExchangeError>,
}

enum Role {
    Alone,
    /// By rank; rank 0's own place is empty.
    Leader(Vec<Option<Trusted>>),
    Member {
        rank: u32,
        size: u32,
        host: Box<Trusted>,
    },
}

impl std::fmt::Debug for ControlLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = match &self.role {
            Role::Alone => "alone",
            Role::Leader(_) => "leader",
            Role::Member { .. } => "member",
        };
        f.debug_struct("ControlLink").field("role", &role).field("round", &self.round).finish_non_exhaustive()
    }
}

/// What one call needs to know throughout.
struct Round<'a> {
    number: u64,
    tag: &'a str,
    begun: Instant,
    until: Instant,
}

impl Round<'_> {
    fn missing(&self, missing: Missing) -> ExchangeError {
        ExchangeError::Missing { tag: self.tag.into(), missing, waited: self.until - self.begun }
    }

    fn left(&self, rank: u32, why: impl Into<String>) -> ExchangeError {
        ExchangeError::Left { tag: self.tag.into(), rank, why: why.into() }
    }

    fn malformed(&self, rank: u32) -> ExchangeError {
        ExchangeError::Malformed { tag: self.tag.into(), rank }
    }

    fn system(&self, error: std::io::Error) -> ExchangeError {
        ExchangeError::System { tag: self.tag.into(), why: error.to_string() }
    }

    fn shown(&self) -> String {
        format!("{} (exchange {})", self.tag, self.number)
    }
}

impl ControlLink {
    pub(super) fn alone() -> Self {
        Self { role: Role::Alone, round: 0, failed: None }
    }

    pub(super) fn leader(members: Vec<Option<Trusted>>) -> Self {
        Self { role: Role::Leader(members), round: 0, failed: None }
    }

    pub(super) fn member(rank: u32, size: u32, host: Trusted) -> Self {
        Self { role: Role::Member { rank, size, host: Box::new(host) }, round: 0, failed: None }
    }

    /// Gives `bytes` and returns those of every rank, in the order of ranks. All ranks must make the same calls, with the
    /// same tags, in the same order. Blocks until every rank has, for at most `deadline`. `tag` names the matter to people;
    /// its first 256 bytes count. At most 16 MiB a rank, and 256 MiB of all.
    ///
    /// # Errors
    /// All errors name the ranks at fault; after one the link is of no use, and returns it again.
    pub fn all_gather(
        &mut self,
        tag: &str,
        bytes: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let tag = shortened(tag);
        if bytes.len() > MAX_PART {
            // Nothing was sent: this rank's own error, and the others will name this rank.
            return Err(ExchangeError::TooLarge { tag: tag.into(), len: bytes.len(), limit: MAX_PART });
        }
        let begun = Instant::now();
        let round = Round { number: self.round, tag, begun, until: begun + deadline };
        self.round += 1;
        let result = match &mut self.role {
            Role::Alone => Ok(vec![bytes.to_vec()]),
            Role::Leader(members) => {
                let result = lead(members, &round, bytes);
                if let Err(error) = &result {
                    tell_all(members, error);
                }
                result
            }
            Role::Member { rank, size, host } => follow(host, *rank, *size, &round, bytes),
        };
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// Waits until every rank has called it with the same tag.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn barrier(&mut self, tag: &str, deadline: Duration) -> Result<(), ExchangeError> {
        self.all_gather(tag, &[], deadline).map(drop)
    }
}

/// Rank 0's side of a round.
fn lead(
    members: &mut [Option<Trusted>],
    round: &Round<'_>,
    ours: &[u8],
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let mut parts: Vec<Option<Vec<u8>>> = members.iter().map(|_| None).collect();
    parts[0] = Some(ours.to_vec());
    let mut next_progress = round.begun + PROGRESS;
    loop {
        for (rank, (member, part)) in members.iter_mut().zip(&mut parts).enumerate().skip(1) {
            collect(rank as u32, member, part, round)?;
        }
        let missing = Missing::of((0..).zip(&parts).filter(|(_, part)| part.is_none()).map(|(rank, _)| rank));
        if missing.total == 0 {
            break;
        }
        let now = Instant::now();
        if now >= round.until {
            return Err(round.missing(missing));
        }
        if now >= next_progress {
            next_progress = now + PROGRESS;
            let payload = encode_missing(&missing);
            for (member, _) in members.iter_mut().zip(&parts).filter(|(_, part)| part.is_some()) {
                if let Some(member) = member.as_mut().filter(|member| !member.conn.has_output()) {
                    member.queue(Kind::Waiting, &payload);
                }
            }
        }
        wait_for_any(members, round.until.min(next_progress)).map_err(|error| round.system(error))?;
    }
    let parts: Vec<Vec<u8>> = parts.into_iter().flatten().collect();
    let payload = encode_parts(round, &parts);
    if payload.len() > MAX_PAYLOAD {
        return Err(ExchangeError::TooLarge {
            tag: round.tag.into(),
            len: payload.len(),
            limit: MAX_PAYLOAD,
        });
    }
    for member in members.iter_mut().flatten() {
        member.queue(Kind::Parts, &payload);
    }
    hand_out(members, round)?;
    Ok(parts)
}

/// Reads what a member has sent; its part of this round goes to `part`.
fn collect(
    rank: u32,
    member: &mut Option<Trusted>,
    part: &mut Option<Vec<u8>>,
    round: &Round<'_>,
) -> Result<(), ExchangeError> {
    let Some(trusted) = member else { return Err(round.left(rank, "earlier")) };
    trusted.conn.flush().map_err(|error| round.left(rank, error.to_string()))?;
    let limit = MAX_PART + MAX_TAG + PART_OVERHEAD;
    let end = trusted.read(limit).map_err(|error| round.left(rank, error.to_string()))?;
    match trusted.next(limit) {
        Ok(None) if end == End::Closed => Err(round.left(rank, "its connection closed")),
        Ok(None) => Ok(()),
        Ok(Some((Kind::Part, payload))) if part.is_none() => {
            let (number, tag, bytes) = decode_part(&payload).map_err(|_| round.malformed(rank))?;
            if (number, tag) != (round.number, round.tag) {
                let found = format!("{tag} (exchange {number})");
                return Err(ExchangeError::Mismatch { rank, expected: round.shown(), found });
            }
            *part = Some(bytes.to_vec());
            Ok(())
        }
        Ok(Some(_)) | Err(_) => Err(round.malformed(rank)),
    }
}

fn wait_for_any(members: &[Option<Trusted>], until: Instant) -> std::io::Result<()> {
    let fds: Vec<_> =
        members.iter().flatten().map(|member| (member.conn.fd(), member.conn.has_output())).collect();
    sys::wait(&fds, until).map(drop)
}

/// Writes the result to every member. A member that broke off is named; one that reads too slowly is missing.
fn hand_out(members: &mut [Option<Trusted>], round: &Round<'_>) -> Result<(), ExchangeError> {
    let until = round.until.max(Instant::now() + FAREWELL);
    loop {
        for (rank, member) in (0..).zip(members.iter_mut()) {
            if let Some(trusted) = member {
                trusted.conn.flush().map_err(|error| round.left(rank, error.to_string()))?;
            }
        }
        let slow = |member: &Option<Trusted>| member.as_ref().is_some_and(|m| m.conn.has_output());
        let missing = Missing::of((0..).zip(members.iter()).filter(|(_, m)| slow(m)).map(|(rank, _)| rank));
        if missing.total == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(round.missing(missing));
        }
        let fds: Vec<_> = members
            .iter()
            .flatten()
            .filter(|member| member.conn.has_output())
            .map(|member| (member.conn.fd(), true))
            .collect();
        sys::wait(&fds, until).map_err(|error| round.system(error))?;
    }
}

/// Tells every member why the exchange failed, as well as its connection allows.
fn tell_all(members: &mut [Option<Trusted>], error: &ExchangeError) {
    let payload = serde_json::to_vec(error).unwrap_or_default();
    let mut open: Vec<&mut Trusted> = members.iter_mut().flatten().collect();
    for member in &mut open {
        member.queue(Kind::Failed, &payload);
    }
    let until = Instant::now() + FAREWELL;
    loop {
        open.retain_mut(|member| member.conn.flush().is_ok() && member.conn.has_output());
        if open.is_empty() || Instant::now() >= until {
            return;
        }
        let fds: Vec<_> = open.iter().map(|member| (member.conn.fd(), true)).collect();
        if sys::wait(&fds, until).is_err() {
            return;
        }
    }
}

/// The side of every other rank.
fn follow(
    host: &mut Trusted,
    rank: u32,
    size: u32,
    round: &Round<'_>,
    ours: &[u8],
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    host.queue(Kind::Part, &encode_part(round, ours));
    let lost = |error: std::io::Error| round.left(0, error.to_string());
    let mut missing = Missing::of(std::iter::once(0));
    let mut until = round.until;
    loop {
        let flushed = host.conn.flush();
        let end = host.read(MAX_PAYLOAD).map_err(lost)?;
        while let Some((kind, payload)) = host.next(MAX_PAYLOAD).map_err(|_| round.malformed(0))? {
            match kind {
                // One that was on its way when rank 0 handed out an earlier result says nothing about this round, and
                // cannot come: rank 0's messages are in order.
                Kind::Waiting => {
                    missing = decode_missing(&payload).map_err(|_| round.malformed(0))?;
                    until = round.until.max(Instant::now() + SILENCE);
                }
                Kind::Failed => {
                    return Err(serde_json::from_slice(&payload).unwrap_or_else(|_| round.malformed(0)));
                }
                Kind::Parts => {
                    let (number, tag, parts) = decode_parts(&payload).map_err(|_| round.malformed(0))?;
                    if (number, tag) != (round.number, round.tag) {
                        let found = round.shown();
                        let expected = format!("{tag} (exchange {number})");
                        return Err(ExchangeError::Mismatch { rank, expected, found });
                    }
                    if parts.len() != size as usize {
                        return Err(round.malformed(0));
                    }
                    return Ok(parts.into_iter().map(<[u8]>::to_vec).collect());
                }
                Kind::Hello | Kind::Roster | Kind::Refused | Kind::Part => return Err(round.malformed(0)),
            }
        }
        // Only now: a reason that rank 0 sent before it closed has been read.
        flushed.map_err(lost)?;
        if end == End::Closed {
            return Err(round.left(0, "its connection closed"));
        }
        if Instant::now() >= until {
            return Err(round.missing(missing));
        }
        sys::wait(&[(host.conn.fd(), host.conn.has_output())], until).map_err(|error| round.system(error))?;
    }
}

/// As much of a tag as is sent.
fn shortened(tag: &str) -> &str {
    let mut end = tag.len().min(MAX_TAG);
    while !tag.is_char_boundary(end) {
        end -= 1;
    }
    &tag[..end]
}

fn encode_part(round: &Round<'_>, bytes: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u64(round.number).bytes(round.tag.as_bytes()).bytes(bytes);
    writer.into_bytes()
}

fn decode_part(payload: &[u8]) -> Result<(u64, &str, &[u8]), Malformed> {
    let mut reader = Reader::new(payload);
    let part = (reader.u64()?, reader.text()?, reader.bytes()?);
    reader.end()?;
    Ok(part)
}

fn encode_parts(round: &Round<'_>, parts: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u64(round.number).bytes(round.tag.as_bytes()).u32(parts.len() as u32);
    for part in parts {
        writer.bytes(part);
    }
    writer.into_bytes()
}

fn decode_parts(payload: &[u8]) -> Result<(u64, &str, Vec<&[u8]>), Malformed> {
    let mut reader = Reader::new(payload);
    let (number, tag) = (reader.u64()?, reader.text()?);
    let count = reader.count(4)?;
    let parts = (0..count).map(|_| reader.bytes()).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok((number, tag, parts))
}

#[cfg(test)]
mod tests;
