//! Exchanges between all ranks (all-gather): each rank contributes bytes and receives those of all.
//!
//! The connections are those of the join. Rank 0 collects the parts of a round and hands all of them out, equal ones once. A
//! round has a number and a tag, so that a rank which makes another call than the others is detected and named. While it
//! waits, rank 0 says who is missing, so every rank can name them when its time is up.
//!
//! After set-up a thread of its own listens to the connections between the exchanges (`watch`).

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::conn::Trusted;
use super::error::{ExchangeError, Missing};
use super::member_conn::{ConnState, MemberConn};
use super::message::{Departure, MAX_MESSAGE, Message, Run};
use super::server::SILENCE;
use super::sys;
use super::watch::Waker;
use crate::wire::{self, Malformed};

/// How often rank 0 sends the list of missing ranks to the waiting ones.
const PROGRESS: Duration = Duration::from_millis(500);
/// How long a last message may take to leave.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// The most that one rank may give to an exchange, in bytes.
pub const MAX_PART: usize = 16 * 1024 * 1024;
/// The most that all ranks may give together, in bytes; what surrounds it has room beside it.
const MAX_RESULT: usize = MAX_MESSAGE - (1 << 20);
/// What surrounds a rank's part on the wire, in bytes, beyond its tag.
const PART_OVERHEAD: usize = 64;
/// The longest tag, in bytes.
const MAX_TAG: usize = 256;
/// Interval of the checks of idle connections.
const IDLE: Duration = Duration::from_secs(3600);
/// What a member may send in one message, in bytes.
const FROM_MEMBER: usize = MAX_PART + MAX_TAG + PART_OVERHEAD;

/// The connections of the join, kept for what must be agreed on later. Not part of the data path.
pub struct ControlLink {
    role: Role,
    round: u64,
    failed: Option<ExchangeError>,
    /// Wakes the thread that waits here, once there is one.
    waker: Option<Waker>,
    /// The rank whose process has ended, as announced to the other ranks.
    announced: Option<u32>,
}

enum Role {
    Alone,
    /// By rank; rank 0's own place is empty.
    Leader(Vec<Option<MemberConn>>),
    Member {
        rank: u32,
        size: u32,
        server: Box<MemberConn>,
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

/// The parameters of one round.
struct Round<'a> {
    number: u64,
    tag: &'a str,
    waker: Option<&'a Waker>,
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

    /// Whether the group has ended meanwhile.
    fn check(&self) -> Result<(), ExchangeError> {
        match self.waker.and_then(Waker::ended) {
            Some(ending) => Err(ExchangeError::Ended { tag: self.tag.into(), ending }),
            None => Ok(()),
        }
    }

    /// A connection on which nothing of this round can come any more, nor from the ranks behind it.
    fn check_conn(&self, rank: u32, conn: &MemberConn) -> Result<(), ExchangeError> {
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

impl ControlLink {
    fn new(role: Role) -> Self {
        Self { role, round: 0, failed: None, waker: None, announced: None }
    }

    pub(super) fn alone() -> Self {
        Self::new(Role::Alone)
    }

    pub(super) fn leader(members: Vec<Option<Trusted>>) -> Self {
        let members = (0..).zip(members);
        let conns = members.map(|(rank, member)| member.map(|trusted| MemberConn::new(rank, trusted)));
        Self::new(Role::Leader(conns.collect()))
    }

    pub(super) fn member(rank: u32, size: u32, server: Trusted) -> Self {
        Self::new(Role::Member { rank, size, server: Box::new(MemberConn::new(0, server)) })
    }

    /// Contributes `bytes` and returns those of every rank, in the order of ranks. All ranks must make the same calls, with the
    /// same tags, in the same order. Blocks until every rank has, for at most `deadline`. `tag` names the exchange in errors;
    /// its first 256 bytes count. At most 16 MiB a rank, and 255 MiB of all.
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
        let waker = self.waker.as_ref();
        let round = Round { number: self.round, tag, waker, begun, until: begun + deadline };
        self.round += 1;
        let result = match &mut self.role {
            Role::Alone => Ok(vec![bytes.to_vec()]),
            Role::Leader(members) => lead(members, &round, bytes),
            Role::Member { rank, size, server } => follow(server, *rank, *size, &round, bytes),
        };
        result.inspect_err(|error| self.fail(error))
    }

    /// The link is of no use any more; rank 0 tells the others why.
    fn fail(&mut self, error: &ExchangeError) {
        self.failed = Some(error.clone());
        // The end of a process comes first: it is the cause of the failed exchange.
        if let (Some(_), Some(rank)) = (&self.waker, self.lost()) {
            self.tell_lost(rank);
        }
        if let Role::Leader(members) = &mut self.role {
            tell_all(members, &Message::Failed(error.clone()));
        }
    }

    /// Looks without waiting whether a rank has ended or given up: for what waits for something else than an exchange, which
    /// `tag` names.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn check(&mut self, tag: &str) -> Result<(), ExchangeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.pump();
        let now = Instant::now();
        let round = Round { number: self.round, tag: shortened(tag), waker: None, begun: now, until: now };
        let result = self.conns().try_for_each(|(rank, conn)| match conn.failure() {
            Some(error) => Err(error.clone()),
            None => round.check_conn(rank, conn),
        });
        result.inspect_err(|error| self.fail(error))
    }

    /// Reports that this rank cannot go on with the set-up; all others get the error in their current or next exchange.
    pub fn give_up(&mut self, why: &str) {
        let rank = if let Role::Member { rank, .. } = &self.role { *rank } else { 0 };
        if self.failed.is_none() {
            self.send(&Message::Failed(ExchangeError::GaveUp { rank, why: why.to_owned() }));
        }
    }

    /// Waits until every rank has called it with the same tag.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn barrier(&mut self, tag: &str, deadline: Duration) -> Result<(), ExchangeError> {
        self.all_gather(tag, &[], deadline).map(drop)
    }

    /// From now on `waker` wakes the thread that waits here.
    pub(super) fn attach(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    fn conns(&self) -> impl Iterator<Item = (u32, &MemberConn)> {
        let (members, server) = match &self.role {
            Role::Alone => (&[][..], None),
            Role::Leader(members) => (&members[..], None),
            Role::Member { server, .. } => (&[][..], Some((0, &**server))),
        };
        let members = (0..).zip(members).filter_map(|(rank, member)| Some((rank, member.as_ref()?)));
        members.chain(server)
    }

    fn conns_mut(&mut self) -> impl Iterator<Item = &mut MemberConn> {
        let (members, server) = match &mut self.role {
            Role::Alone => (&mut [][..], None),
            Role::Leader(members) => (&mut members[..], None),
            Role::Member { server, .. } => (&mut [][..], Some(&mut **server)),
        };
        members.iter_mut().flatten().chain(server)
    }

    /// The sockets, as long as this lives.
    pub(super) fn sockets(&self) -> Vec<RawFd> {
        self.conns().filter_map(|(_, conn)| Some(conn.waits()?.0.as_raw_fd())).collect()
    }

    /// Reads what has come, until something can be read or the waker fires.
    pub(super) fn listen(&mut self) -> std::io::Result<()> {
        wait(self.conns().map(|(_, conn)| conn), self.waker.as_ref(), Instant::now() + IDLE)?;
        self.pump();
        Ok(())
    }

    /// Reads and writes what can be.
    fn pump(&mut self) {
        let limit = if let Role::Member { .. } = &self.role { MAX_MESSAGE } else { FROM_MEMBER };
        self.conns_mut().for_each(|conn| conn.pump(limit));
    }

    /// A rank whose process has ended for certain: its kernel has closed the connection without a leave message, or another
    /// rank knows it.
    pub(super) fn lost(&self) -> Option<u32> {
        let gone = |(rank, conn): (u32, &MemberConn)| (*conn.state() == ConnState::Gone).then_some(rank);
        // A message before the end names the cause.
        self.conns().find_map(|(_, conn)| conn.lost()).or_else(|| self.conns().find_map(gone))
    }

    /// Broken connections, which say nothing of the processes of their ranks.
    pub(super) fn broken(&self) -> impl Iterator<Item = (u32, &str)> {
        self.conns().filter_map(|(rank, conn)| match conn.state() {
            ConnState::Broken(why) => Some((rank, why.as_str())),
            _ => None,
        })
    }

    /// Announces once the rank whose process has ended: all of them on rank 0, rank 0 elsewhere.
    pub(super) fn tell_lost(&mut self, rank: u32) {
        if self.announced.is_none() {
            self.announced = Some(rank);
            self.send(&Message::Lost(rank));
        }
    }

    /// Announces a graceful close to the others, after so many operations; nothing where the group has ended.
    pub(super) fn leave(&mut self, started: Option<u64>) {
        self.send(&Message::Leave(started));
    }

    /// The ranks that have left since the last call; rank 0 passes them on.
    pub(super) fn take_left(&mut self) -> Vec<Departure> {
        let left: Vec<_> = self.conns_mut().flat_map(MemberConn::take_left).collect();
        if let Role::Leader(members) = &mut self.role {
            left.iter().for_each(|departure| tell_all(members, &Message::Left(*departure)));
        }
        left
    }

    /// Sends a message to every open connection.
    fn send(&mut self, message: &Message) {
        match &mut self.role {
            Role::Alone => {}
            Role::Leader(members) => tell_all(members, message),
            Role::Member { server, .. } => {
                server.queue(&wire::encode(message));
                server.flush();
            }
        }
    }
}

/// Waits until something can be read or written as it should be, the waker fires, or `until` has come.
fn wait<'a>(
    conns: impl Iterator<Item = &'a MemberConn>,
    waker: Option<&'a Waker>,
    until: Instant,
) -> std::io::Result<()> {
    let fds: Vec<_> = waker
        .map(|waker| (waker.fd(), false))
        .into_iter()
        .chain(conns.filter_map(MemberConn::waits))
        .collect();
    sys::wait(&fds, until)?;
    if let Some(waker) = waker {
        waker.drain();
    }
    Ok(())
}

/// Rank 0's side of a round.
fn lead(
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
            let message = wire::encode(&Message::Waiting(missing));
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
    let message = Message::Parts { number: round.number, tag: round.tag.into(), runs: runs(&parts) };
    let message = wire::encode(&message);
    for member in members.iter_mut().flatten() {
        member.queue(&message);
    }
    hand_out(members, round)?;
    Ok(parts)
}

/// Reads what a member has sent; its part of this round goes to `part`.
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

/// Sends a message to every member, as far as its connection takes it.
fn tell_all(members: &mut [Option<MemberConn>], message: &Message) {
    let message = wire::encode(message);
    let mut open: Vec<&mut MemberConn> = members.iter_mut().flatten().collect();
    for conn in &mut open {
        conn.queue(&message);
    }
    let until = Instant::now() + FAREWELL;
    loop {
        open.retain_mut(|conn| {
            conn.flush();
            conn.has_output()
        });
        if open.is_empty() || Instant::now() >= until {
            return;
        }
        if wait(open.iter().map(|conn| &**conn), None, until).is_err() {
            return;
        }
    }
}

/// The side of every other rank.
fn follow(
    server: &mut MemberConn,
    rank: u32,
    size: u32,
    round: &Round<'_>,
    ours: &[u8],
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let part = Message::Part { number: round.number, tag: round.tag.into(), bytes: ours.to_vec() };
    server.queue(&wire::encode(&part));
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
                    return expand(runs, size as usize).map_err(|_| round.malformed(0));
                }
                Message::Parts { number, tag, .. } => {
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

/// As much of a tag as is sent.
fn shortened(tag: &str) -> &str {
    let mut end = tag.len().min(MAX_TAG);
    while !tag.is_char_boundary(end) {
        end -= 1;
    }
    &tag[..end]
}

/// The parts in the order of ranks, those that are equal and follow one another once.
fn runs(parts: &[Vec<u8>]) -> Vec<Run> {
    let equal = parts.chunk_by(|a, b| a == b);
    equal.map(|equal| Run { ranks: equal.len() as u32, part: equal[0].clone() }).collect()
}

/// The parts of all `size` ranks.
fn expand(runs: Vec<Run>, size: usize) -> Result<Vec<Vec<u8>>, Malformed> {
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

#[cfg(test)]
mod tests;
