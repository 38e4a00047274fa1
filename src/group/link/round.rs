//! The rounds of exchanges: rank 0 collects the parts of all ranks, and sends each its result.

use std::error::Error;
use std::time::{Duration, Instant};

use super::{FAREWELL, FROM_MEMBER, wait};
use crate::group::error::{ExchangeError, Missing};
use crate::group::matrix::{self, Line};
use crate::group::member_conn::{ConnState, MemberConn};
use crate::group::message::{MAX_MESSAGE, Message, Run};
use crate::group::rendezvous_config::SILENCE;
use crate::group::waker::Waker;
use crate::wire::{self, Malformed};

/// How often rank 0 sends the list of missing ranks to the waiting ones.
const PROGRESS: Duration = Duration::from_millis(500);
/// The most that all ranks may give together, in bytes; the framing has room beside it.
const MAX_RESULT: usize = MAX_MESSAGE - (1 << 20);

/// The parameters of one round.
pub(super) struct Round<'a> {
    pub(super) number: u64,
    pub(super) tag: &'a str,
    pub(super) waker: Option<&'a Waker>,
    pub(super) begun: Instant,
    pub(super) until: Instant,
}

impl Round<'_> {
    fn missing(&self, missing: Missing) -> ExchangeError {
        ExchangeError::Missing { tag: self.tag.into(), missing, waited: self.until - self.begun }
    }

    fn left(&self, rank: u32, why: impl Into<String>) -> ExchangeError {
        ExchangeError::Left { tag: self.tag.into(), rank, why: why.into() }
    }

    pub(super) fn malformed(&self, rank: u32) -> ExchangeError {
        ExchangeError::Malformed { tag: self.tag.into(), rank }
    }

    fn system(&self, error: impl Error) -> ExchangeError {
        ExchangeError::System { tag: self.tag.into(), why: error.to_string() }
    }

    fn encode(&self, message: &Message) -> Result<Vec<u8>, ExchangeError> {
        wire::encode(message).map_err(|error| self.system(error))
    }

    /// Whether the group has ended meanwhile.
    fn check(&self) -> Result<(), ExchangeError> {
        match self.waker.and_then(Waker::ended) {
            Some(ending) => Err(ExchangeError::Ended { tag: self.tag.into(), ending }),
            None => Ok(()),
        }
    }

    /// A connection on which nothing of this round can come any more, nor from the ranks behind it.
    pub(super) fn check_conn(&self, rank: u32, conn: &MemberConn) -> Result<(), ExchangeError> {
        match conn.state() {
            _ if conn.lost().is_some() => {
                Err(self.left(conn.lost().unwrap_or(rank), "its process has ended"))
            }
            ConnState::Open => Ok(()),
            ConnState::Left => Err(self.left(rank, "it has left the group")),
            ConnState::Gone => Err(self.left(rank, "its connection closed")),
            ConnState::Broken(why) => Err(self.left(rank, why)),
        }
    }

    fn wait<'b>(
        &'b self,
        conns: impl Iterator<Item = &'b MemberConn>,
        until: Instant,
    ) -> Result<(), ExchangeError> {
        wait(conns, self.waker, until).map_err(|error| self.system(error))
    }

    fn shown(&self) -> String {
        format!("{} (exchange {})", self.tag, self.number)
    }
}

/// Rank 0's side of a round that hands out everything.
pub(super) fn lead(
    members: &mut [Option<MemberConn>],
    round: &Round<'_>,
    ours: &[u8],
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let parts = gather(members, round, ours)?;
    let message = Message::Parts { number: round.number, tag: round.tag.into(), runs: runs(&parts) };
    let message = round.encode(&message)?;
    for member in members.iter_mut().flatten() {
        member.queue(&message);
    }
    hand_out(members, round)?;
    Ok(parts)
}

/// Rank 0's side of a round that hands each rank its column.
pub(super) fn lead_transposed(
    members: &mut [Option<MemberConn>],
    round: &Round<'_>,
    ours: &[u8],
) -> Result<Vec<u8>, ExchangeError> {
    let parts = gather(members, round, ours)?;
    let mut own = Vec::new();
    let column = |line: &Line| {
        let (number, tag, line) = (round.number, round.tag.into(), line.clone());
        round.encode(&Message::Column { number, tag, line })
    };
    let mut unencoded = None;
    matrix::columns(&parts, |ranks, line| {
        let message = match column(line) {
            Ok(message) => message,
            Err(error) => return unencoded = Some(error),
        };
        for rank in ranks {
            match members.get_mut(*rank) {
                Some(Some(member)) => member.queue(&message),
                // A rank's own: rank 0 has no connection to itself.
                _ => own.clone_from(line),
            }
        }
    })
    .map_err(|rank| round.malformed(rank))?;
    unencoded.map_or(Ok(()), Err)?;
    hand_out(members, round)?;
    matrix::from_line(&own, parts.len()).map_err(|_| round.malformed(0))
}

/// Collects the parts of a round on rank 0.
fn gather(
    members: &mut [Option<MemberConn>],
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
        round.check()?;
        let now = Instant::now();
        if now >= round.until {
            return Err(round.missing(missing));
        }
        if now >= next_progress {
            next_progress = now + PROGRESS;
            let message = round.encode(&Message::Waiting(missing))?;
            for (member, _) in members.iter_mut().zip(&parts).filter(|(_, part)| part.is_some()) {
                if let Some(member) = member.as_mut().filter(|member| !member.has_output()) {
                    member.queue(&message);
                }
            }
        }
        round.wait(members.iter().flatten(), round.until.min(next_progress))?;
    }
    let parts: Vec<Vec<u8>> = parts.into_iter().flatten().collect();
    let len = parts.iter().map(Vec::len).sum();
    if len > MAX_RESULT {
        return Err(ExchangeError::TooLarge { tag: round.tag.into(), len, limit: MAX_RESULT });
    }
    Ok(parts)
}

/// Reads the messages of a member; its part of this round goes to `part`.
fn collect(
    rank: u32,
    member: &mut Option<MemberConn>,
    part: &mut Option<Vec<u8>>,
    round: &Round<'_>,
) -> Result<(), ExchangeError> {
    let Some(conn) = member else { return Err(round.left(rank, "earlier")) };
    conn.pump(FROM_MEMBER);
    if part.is_none() {
        match conn.next_message() {
            None => {}
            Some(Message::Part { number, tag, bytes }) if (number, &*tag) == (round.number, round.tag) => {
                *part = Some(bytes);
            }
            Some(Message::Part { number, tag, .. }) => {
                let found = format!("{tag} (exchange {number})");
                return Err(ExchangeError::Mismatch { rank, expected: round.shown(), found });
            }
            Some(Message::Failed(error)) => return Err(error),
            Some(_) => return Err(round.malformed(rank)),
        }
    }
    round.check_conn(rank, conn)
}

/// Writes the result to every member. A member that broke off is named; one that reads too slowly is missing.
fn hand_out(members: &mut [Option<MemberConn>], round: &Round<'_>) -> Result<(), ExchangeError> {
    let until = round.until.max(Instant::now() + FAREWELL);
    loop {
        for (rank, conn) in (0..).zip(members.iter_mut()) {
            if let Some(conn) = conn {
                conn.flush();
                round.check_conn(rank, conn)?;
            }
        }
        let slow = |member: &Option<MemberConn>| member.as_ref().is_some_and(MemberConn::has_output);
        let missing = Missing::of((0..).zip(members.iter()).filter(|(_, m)| slow(m)).map(|(rank, _)| rank));
        if missing.total == 0 {
            return Ok(());
        }
        round.check()?;
        if Instant::now() >= until {
            return Err(round.missing(missing));
        }
        round.wait(members.iter().flatten().filter(|conn| conn.has_output()), until)?;
    }
}

/// Rank 0's reply in a round.
pub(super) enum Reply {
    Parts(Vec<Run>),
    Column(Line),
}

/// The side of every other rank.
pub(super) fn follow(
    server: &mut MemberConn,
    rank: u32,
    round: &Round<'_>,
    ours: &[u8],
) -> Result<Reply, ExchangeError> {
    let part = Message::Part { number: round.number, tag: round.tag.into(), bytes: ours.to_vec() };
    server.queue(&round.encode(&part)?);
    let mut missing = Missing::of(std::iter::once(0));
    let mut until = round.until;
    loop {
        server.pump(MAX_MESSAGE);
        while let Some(message) = server.next_message() {
            match message {
                // One that was on its way when rank 0 handed out an earlier result says nothing about this round, and
                // cannot come: rank 0's messages are in order.
                Message::Waiting(absent) => {
                    missing = absent;
                    until = round.until.max(Instant::now() + SILENCE);
                }
                Message::Failed(error) => return Err(error),
                Message::Parts { number, tag, runs } if (number, &*tag) == (round.number, round.tag) => {
                    return Ok(Reply::Parts(runs));
                }
                Message::Column { number, tag, line } if (number, &*tag) == (round.number, round.tag) => {
                    return Ok(Reply::Column(line));
                }
                Message::Parts { number, tag, .. } | Message::Column { number, tag, .. } => {
                    let expected = format!("{tag} (exchange {number})");
                    return Err(ExchangeError::Mismatch { rank, expected, found: round.shown() });
                }
                _ => return Err(round.malformed(0)),
            }
        }
        // Only now: a reason that rank 0 sent before it closed has been read.
        round.check_conn(0, server)?;
        round.check()?;
        if Instant::now() >= until {
            return Err(round.missing(missing));
        }
        round.wait(std::iter::once(&*server), until)?;
    }
}

/// The parts in the order of ranks, those that are equal and follow one another once.
pub(super) fn runs(parts: &[Vec<u8>]) -> Vec<Run> {
    let equal = parts.chunk_by(|a, b| a == b);
    equal.map(|equal| Run { ranks: equal.len() as u32, part: equal[0].clone() }).collect()
}

/// The parts of all `size` ranks.
pub(super) fn expand(runs: Vec<Run>, size: usize) -> Result<Vec<Vec<u8>>, Malformed> {
    let (mut parts, mut len) = (Vec::new(), 0usize);
    for Run { ranks, part } in runs {
        let ranks = ranks as usize;
        // Equal parts take no bytes of the message, and much memory here.
        len = len.saturating_add(ranks.saturating_mul(part.len()));
        if ranks > size - parts.len() || len > MAX_RESULT {
            return Err(Malformed);
        }
        parts.resize(parts.len() + ranks, part);
    }
    if parts.len() == size { Ok(parts) } else { Err(Malformed) }
}
