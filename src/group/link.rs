//! Exchanges between all ranks: each contributes bytes and receives those of all ([`ControlLink::all_gather`]), or the
//! others' bytes for it ([`ControlLink::transpose`]).
//!
//! The connections are those of the join. Rank 0 collects the parts of a round and hands all of them out, equal ones once. A
//! round has a number and a tag, so that a rank which makes another call than the others is detected and named. While it
//! waits, rank 0 sends the list of missing ranks, so every rank can name them when its time is up.
//!
//! After set-up a thread of its own listens to the connections between the exchanges (`watch`).

use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::conn::{Traffic, Trusted};
use super::error::ExchangeError;
use super::matrix;
use super::member_conn::{ConnState, MemberConn};
use super::message::{AbortText, Departure, MAX_MESSAGE, Message};
use super::sys;
use super::waker::Waker;
use crate::wire::{self, Unencodable};
use round::{Reply, Round, expand, follow, lead, lead_transposed};

mod round;

/// How long a last message may take to leave.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// The most that one rank may give to an exchange, in bytes.
pub const MAX_PART: usize = 16 * 1024 * 1024;
/// The framing of a rank's part on the wire, in bytes, beyond its tag.
const PART_OVERHEAD: usize = 64;
/// The longest tag, in bytes.
const MAX_TAG: usize = 256;
/// Interval of the checks of idle connections.
const IDLE: Duration = Duration::from_secs(3600);
/// The longest message of a member, in bytes.
const FROM_MEMBER: usize = MAX_PART + MAX_TAG + PART_OVERHEAD;

/// The connections of the join, kept for later agreements. Not part of the data path.
pub struct ControlLink {
    role: Role,
    round: u64,
    failed: Option<ExchangeError>,
    /// Wakes the thread that waits here, once there is one.
    waker: Option<Waker>,
    /// The rank whose process has ended, as announced to the other ranks.
    announced: Option<u32>,
    /// This rank has announced that it leaves in good order.
    has_left: bool,
    /// Why ranks have given up; passed on, and not taken yet.
    abort_texts: Vec<AbortText>,
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

impl ControlLink {
    fn new(role: Role) -> Self {
        Self {
            role,
            round: 0,
            failed: None,
            waker: None,
            announced: None,
            has_left: false,
            abort_texts: vec![],
        }
    }

    pub(super) fn alone() -> Self {
        Self::new(Role::Alone)
    }

    /// Of rank 0. Members in `resend` may ask for this encoded roster.
    pub(super) fn leader(members: Vec<Option<Trusted>>, (roster, resend): (Arc<[u8]>, &[u32])) -> Self {
        let conn = |(rank, trusted): (u32, Option<Trusted>)| {
            let mut conn = MemberConn::new(rank, trusted?);
            if resend.contains(&rank) {
                conn.keep_roster(roster.clone());
            }
            Some(conn)
        };
        Self::new(Role::Leader((0..).zip(members).map(conn).collect()))
    }

    /// The traffic of the connections since they were opened.
    pub fn traffic(&self) -> Traffic {
        self.conns().map(|(_, conn)| conn.traffic()).sum()
    }

    /// The address of this host by which it and rank 0 have met, and rank 0's; `None` on rank 0.
    pub fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        match &self.role {
            Role::Member { server, .. } => server.ends(),
            Role::Alone | Role::Leader(_) => None,
        }
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
        self.exchange(tag, bytes, deadline, |role, round| match role {
            Role::Alone => Ok(vec![bytes.to_vec()]),
            Role::Leader(members) => lead(members, round, bytes),
            Role::Member { rank, size, server } => match follow(server, *rank, round, bytes)? {
                Reply::Parts(runs) => expand(runs, *size as usize).map_err(|_| round.malformed(0)),
                Reply::Column(_) => Err(round.malformed(0)),
            },
        })
    }

    /// Contributes a byte for each rank that takes part, in their order, and returns the bytes that those have for this one. A
    /// rank takes part if its row is not empty; all rows are as long as there are such ranks. Else as
    /// [`all_gather`](Self::all_gather), but no rank gets more than its own column, and neighbours that are equal cross the
    /// network once.
    ///
    /// # Errors
    /// As there.
    pub fn transpose(&mut self, tag: &str, row: &[u8], deadline: Duration) -> Result<Vec<u8>, ExchangeError> {
        let unencoded =
            |why: Unencodable| ExchangeError::System { tag: shortened(tag).into(), why: why.to_string() };
        let bytes = wire::encode(&matrix::to_line(row)).map_err(unencoded)?;
        self.exchange(tag, &bytes, deadline, |role, round| match role {
            Role::Alone => Ok(row.to_vec()),
            Role::Leader(members) => lead_transposed(members, round, &bytes),
            Role::Member { rank, size, server } => match follow(server, *rank, round, &bytes)? {
                Reply::Column(line) => {
                    matrix::from_line(&line, *size as usize).map_err(|_| round.malformed(0))
                }
                Reply::Parts(_) => Err(round.malformed(0)),
            },
        })
    }

    /// A round, in which this rank contributes `bytes`.
    fn exchange<T>(
        &mut self,
        tag: &str,
        bytes: &[u8],
        deadline: Duration,
        act: impl FnOnce(&mut Role, &Round<'_>) -> Result<T, ExchangeError>,
    ) -> Result<T, ExchangeError> {
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
        let result = act(&mut self.role, &round);
        result.inspect_err(|error| self.fail(error))
    }

    /// The link is of no use any more; rank 0 sends the others the reason.
    fn fail(&mut self, error: &ExchangeError) {
        self.failed = Some(error.clone());
        self.forward_abort_texts();
        // The end of a process comes first: it is the cause of the failed exchange.
        if let (Some(_), Some(rank)) = (&self.waker, self.lost()) {
            self.announce_lost(rank);
        }
        if let Role::Leader(members) = &mut self.role {
            send_to_all(members, &Message::Failed(error.clone()));
        }
    }

    /// Checks without waiting whether a rank has ended or given up, for callers that wait for something else than an
    /// exchange, which `tag` names.
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

    /// Reports that this rank cannot go on with the set-up, because of rank `culprit` where that is another one; all others get the
    /// error in their current or next exchange.
    pub fn give_up(&mut self, culprit: Option<u32>, why: &str) {
        let own = if let Role::Member { rank, .. } = &self.role { *rank } else { 0 };
        let rank = culprit.unwrap_or(own);
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

    /// Waits until something can be read or the waker fires, then reads and writes as much as possible.
    pub(super) fn listen(&mut self) -> std::io::Result<()> {
        wait(self.conns().map(|(_, conn)| conn), self.waker.as_ref(), Instant::now() + IDLE)?;
        self.pump();
        Ok(())
    }

    /// Reads and writes as much as possible.
    fn pump(&mut self) {
        let limit = if let Role::Member { .. } = &self.role { MAX_MESSAGE } else { FROM_MEMBER };
        self.conns_mut().for_each(|conn| conn.pump(limit));
    }

    /// A rank whose process has ended for certain: its kernel has closed the connection without a leave message, or
    /// another rank reports it.
    pub(super) fn lost(&self) -> Option<u32> {
        let gone = |(rank, conn): (u32, &MemberConn)| (*conn.state() == ConnState::Gone).then_some(rank);
        // A message before the end names the cause.
        self.conns().find_map(|(_, conn)| conn.lost()).or_else(|| self.conns().find_map(gone))
    }

    /// Broken connections, which prove nothing about the processes of their ranks. None once this rank leaves: ranks
    /// that have learnt it read nothing more and send nothing when they go, so that late messages to them reset the
    /// connection.
    pub(super) fn broken(&self) -> impl Iterator<Item = (u32, &str)> {
        self.conns().filter_map(|(rank, conn)| match conn.state() {
            ConnState::Broken(why) if !self.has_left => Some((rank, why.as_str())),
            _ => None,
        })
    }

    /// Announces once the rank whose process has ended: all of them on rank 0, rank 0 elsewhere.
    pub(super) fn announce_lost(&mut self, rank: u32) {
        if self.announced.is_none() {
            self.announced = Some(rank);
            self.send(&Message::Lost(rank));
        }
    }

    /// Announces why a rank has given up; the close follows. Only rank 0 reports for others.
    pub(super) fn send_abort_text(&mut self, text: &AbortText) {
        if let Role::Member { rank, .. } = &self.role
            && *rank != text.rank
        {
            return;
        }
        self.send(&Message::GaveUp(text.clone()));
    }

    /// Why ranks have given up, since the last call; rank 0 passes it on.
    pub(super) fn take_abort_texts(&mut self) -> Vec<AbortText> {
        self.forward_abort_texts();
        std::mem::take(&mut self.abort_texts)
    }

    fn forward_abort_texts(&mut self) {
        let texts: Vec<_> = self.conns_mut().flat_map(MemberConn::take_abort_texts).collect();
        if let Role::Leader(members) = &mut self.role {
            texts.iter().for_each(|text| send_to_all(members, &Message::GaveUp(text.clone())));
        }
        self.abort_texts.extend(texts);
    }

    /// Announces a graceful close to the others, after so many operations; nothing where the group has ended.
    pub(super) fn leave(&mut self, started: Option<u64>) {
        self.send(&Message::Leave(started));
        self.has_left |= started.is_some();
    }

    /// The ranks that have left since the last call; rank 0 passes them on.
    pub(super) fn take_left(&mut self) -> Vec<Departure> {
        let left: Vec<_> = self.conns_mut().flat_map(MemberConn::take_left).collect();
        if let Role::Leader(members) = &mut self.role {
            left.iter().for_each(|departure| send_to_all(members, &Message::Left(*departure)));
        }
        left
    }

    /// Sends a message to every open connection.
    fn send(&mut self, message: &Message) {
        match &mut self.role {
            Role::Alone => {}
            Role::Leader(members) => send_to_all(members, message),
            Role::Member { server, .. } => {
                if let Some(message) = encoded(message) {
                    server.queue(&message);
                    server.flush();
                }
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

/// A message that nothing answers, encoded.
fn encoded(message: &Message) -> Option<Vec<u8>> {
    let log = |error: &Unencodable| tracing::error!(%error, "the other ranks are not told");
    wire::encode(message).inspect_err(log).ok()
}

/// Sends a message to every member, as far as its connection takes it.
fn send_to_all(members: &mut [Option<MemberConn>], message: &Message) {
    let Some(message) = encoded(message) else { return };
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

/// The part of a tag that is sent.
fn shortened(tag: &str) -> &str {
    wire::shortened(tag, MAX_TAG)
}

#[cfg(test)]
mod tests;
