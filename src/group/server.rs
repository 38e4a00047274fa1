//! Rank 0's side of the rendezvous: its listener, and the ranks that wait for the others.
//!
//! One thread serves every connection without blocking on any. A connection is *pending* until its proof holds and its hello
//! is taken; it then is the *member* of its rank. Pending connections are few and short-lived: at most [`slots`] of them,
//! each for at most five seconds, the oldest rejected when one too many comes. So a scan, a flood or a peer that
//! sends a byte a second costs a slot for a moment and never the join. A flood that is faster than an honest
//! handshake can delay an honest rank, which tries again until its deadline.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem};

use super::conn::{Conn, ReadStatus, Trusted};
use super::error::{JoinError, Missing, Refusal};
use super::frame::FrameError;
use super::handshake::{Acceptor as Handshake, VERSION};
use super::hello::{Hello, MAX_HELLO};
use super::listen::listen;
use super::message::{MAX_MESSAGE, Message};
use super::proving::{self, Proving};
use super::rejections::Rejections;
use super::relay;
use super::rendezvous_config::RendezvousConfig;
use super::roster::Roster;
use super::sys;
use crate::key::random;
use crate::wire::{self, Unencodable};

/// How long a connection may take to authenticate and to send its hello.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often the waiting ranks are sent the list of missing ones.
const PROGRESS: Duration = Duration::from_millis(500);
/// How long a last message may take to leave.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the listener stays open when the job cannot go on, so that late ranks receive the reason.
const LATECOMERS: Duration = Duration::from_secs(5);
/// How long a rank whose connection has closed may take to come back: a living one connects again at once.
const RETURN: Duration = Duration::from_secs(5);

/// How many connections may be pending at once in a job of `size` ranks.
fn slots(size: u32) -> usize {
    64.max(2 * size as usize)
}

/// A connection that has not become a member's.
struct Pending {
    conn: Conn,
    stage: Stage,
    until: Instant,
}

impl Pending {
    /// One that has been refused.
    fn leaving(trusted: Trusted) -> Self {
        let (conn, _) = trusted.into_parts();
        Self { conn, stage: Stage::Leaving, until: Instant::now() + FAREWELL }
    }
}

enum Stage {
    /// It is not authenticated yet.
    Unproved(Handshake),
    /// It holds the key; its hello is awaited.
    Proved(Box<super::frame::Framer>),
    /// It was refused. Further bytes of it are discarded until it closes: to close first would reset the connection,
    /// and the reset could overtake the reason.
    Leaving,
}

/// The outcome for a pending connection.
enum PendingOutcome {
    Stay(Pending),
    Drop,
    Rejected(&'static str),
    Arrived(Trusted, Hello),
    Refused(Trusted, Refusal),
}

/// The rendezvous of one job.
struct Server<'a> {
    config: &'a RendezvousConfig,
    ours: Hello,
    listener: TcpListener,
    pending: Vec<Pending>,
    members: Vec<Option<(Trusted, Hello)>>,
    rejections: Rejections,
    /// Said in the error when the time runs out: a rank that came twice leaves another one missing.
    duplicate: Option<Refusal>,
    /// Why the job cannot go on, once that is so.
    over: Option<Refusal>,
    /// Ranks that were refused and have been sent the reason.
    refused: HashSet<u32>,
    /// Ranks that were here and have left, with their addresses, and until when they may come back.
    left: Vec<(u32, SocketAddr, Instant)>,
    until: Instant,
    slots: usize,
}

/// Rank 0's result once all ranks have arrived.
pub(super) struct Gathered {
    pub(super) roster: Roster,
    /// The connections by rank; rank 0's own place is empty.
    pub(super) members: Vec<Option<Trusted>>,
    /// The roster as it was sent.
    pub(super) encoded: Arc<[u8]>,
    /// The ranks that were sent to others for it, and may come back.
    pub(super) resend: Vec<u32>,
}

/// Waits for every other rank, and sends all of them the roster.
pub(super) fn join(config: &RendezvousConfig, ours: Hello) -> Result<Gathered, JoinError> {
    let listener = listen(config)?;
    let slots = slots(ours.size);
    let members = (0..ours.size).map(|_| None).collect();
    let mut server = Server {
        config,
        ours,
        listener,
        pending: Vec::new(),
        members,
        rejections: Rejections::default(),
        duplicate: None,
        over: None,
        refused: HashSet::new(),
        left: Vec::new(),
        until: Instant::now() + config.deadline,
        slots,
    };
    match server.gather() {
        Ok(()) => server.finish(),
        Err(Failure::Refused(refusal)) => Err(server.fail(refusal)),
        Err(Failure::System(what, error)) => Err(system(what, error)),
    }
}

impl From<Unencodable> for Failure {
    fn from(error: Unencodable) -> Self {
        Self::System("encoding a message", error.into())
    }
}

fn system(what: &'static str, error: io::Error) -> JoinError {
    JoinError::System { what, why: error.to_string() }
}

enum Failure {
    Refused(Refusal),
    System(&'static str, io::Error),
}

impl Server<'_> {
    /// Serves all connections until every rank is there, or has been refused.
    fn gather(&mut self) -> Result<(), Failure> {
        let until = self.until;
        let mut next_progress = Instant::now() + PROGRESS;
        while self.missing().total > 0 {
            let now = Instant::now();
            if now >= until {
                return Err(Failure::Refused(self.too_late()));
            }
            if let Some((rank, address, _)) = self.left.iter().find(|(.., until)| now >= *until) {
                let (rank, address, seconds) = (*rank, *address, RETURN.as_secs_f64());
                return Err(Failure::Refused(Refusal::Left { rank, address, seconds }));
            }
            if now >= next_progress && self.over.is_none() {
                self.send_progress()?;
                next_progress = now + PROGRESS;
            }
            let first_pending = self.pending.iter().map(|pending| pending.until).min();
            let first_left = self.left.iter().map(|(.., until)| *until).min();
            let wake = [first_pending, first_left]
                .into_iter()
                .flatten()
                .fold(until.min(next_progress), Instant::min);
            let mut fds = vec![(self.listener.as_fd(), false)];
            fds.extend(self.pending.iter().map(|pending| (pending.conn.fd(), pending.conn.has_output())));
            fds.extend(self.members.iter().flatten().map(|(m, _)| (m.conn.fd(), m.conn.has_output())));
            let ready = sys::wait(&fds, wake).map_err(|error| Failure::System("waiting for ranks", error))?;
            let (listener, rest) = ready.split_at(1);
            let (pending, members) = rest.split_at(self.pending.len());
            self.serve_members(members);
            self.serve_pending(pending)?;
            if listener[0] {
                self.accept()?;
            }
        }
        Ok(())
    }

    fn missing(&self) -> Missing {
        let absent = |rank: &u32| self.members[*rank as usize].is_none() && !self.refused.contains(rank);
        Missing::of((1..self.ours.size).filter(absent))
    }

    fn too_late(&self) -> Refusal {
        let mut refused = self.rejections.summary();
        if let Some(duplicate) = &self.duplicate {
            refused += &format!("; and {duplicate}");
        }
        Refusal::Missing {
            missing: self.missing(),
            seconds: self.config.deadline.as_secs_f64(),
            meeting: format!("{} port {}", self.config.host, self.config.port),
            refused,
        }
    }

    /// Takes every connection that waits.
    fn accept(&mut self) -> Result<(), Failure> {
        loop {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    // The peer gave up, or a timer's signal arrived.
                    io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::Interrupted => continue,
                    // Out of descriptors or memory: close one of the pending connections, which took it.
                    _ if !self.pending.is_empty() => {
                        self.turn_away_oldest();
                        continue;
                    }
                    _ => return Err(Failure::System("accepting a connection", error)),
                },
            };
            let Ok(conn) = Conn::new(stream, peer) else { continue };
            if self.pending.len() >= self.slots {
                self.turn_away_oldest();
            }
            let nonce =
                random().map_err(|error| Failure::System("drawing a nonce", io::Error::other(error)))?;
            let stage = Stage::Unproved(Handshake::new(VERSION, nonce));
            self.pending.push(Pending { conn, stage, until: Instant::now() + HANDSHAKE });
        }
    }

    fn turn_away_oldest(&mut self) {
        let oldest = self.pending.iter().enumerate().min_by_key(|(_, pending)| pending.until).map(|(i, _)| i);
        if let Some(index) = oldest {
            let pending = self.pending.swap_remove(index);
            self.rejections.refuse(pending.conn.peer(), "too many connections wait at once");
        }
    }

    /// Moves pending connections on: those that are ready, and those whose time is over.
    fn serve_pending(&mut self, ready: &[bool]) -> Result<(), Failure> {
        let now = Instant::now();
        for (pending, ready) in mem::take(&mut self.pending).into_iter().zip(ready) {
            if !ready {
                match pending.stage {
                    _ if now < pending.until => self.pending.push(pending),
                    // It got the refusal, or did not read it.
                    Stage::Leaving => {}
                    _ => self.rejections.refuse(pending.conn.peer(), "it did not prove itself in time"),
                }
                continue;
            }
            let peer = pending.conn.peer();
            match self.step(pending) {
                PendingOutcome::Stay(pending) => self.pending.push(pending),
                PendingOutcome::Drop => {}
                PendingOutcome::Rejected(why) => self.rejections.refuse(peer, why),
                PendingOutcome::Arrived(trusted, hello) => self.arrive(trusted, hello)?,
                PendingOutcome::Refused(trusted, refusal) => self.refuse(trusted, refusal)?,
            }
        }
        Ok(())
    }

    /// Moves one pending connection on as far as its bytes go.
    fn step(&self, mut pending: Pending) -> PendingOutcome {
        loop {
            if pending.conn.flush().is_err() {
                return PendingOutcome::Drop;
            }
            match pending.stage {
                Stage::Leaving => {
                    let end = pending.conn.discard();
                    return if matches!(end, Ok(ReadStatus::Open)) {
                        PendingOutcome::Stay(pending)
                    } else {
                        PendingOutcome::Drop
                    };
                }
                Stage::Unproved(mut handshake) => {
                    let address = pending.conn.peer();
                    let peer = match proving::advance(&mut pending.conn, &mut handshake, self.config) {
                        Proving::Waits => {
                            pending.stage = Stage::Unproved(handshake);
                            return PendingOutcome::Stay(pending);
                        }
                        Proving::Broken => return PendingOutcome::Drop,
                        Proving::Rejected(why) => return PendingOutcome::Rejected(why),
                        Proving::Proved(peer) => peer,
                    };
                    let refusal = match peer.version {
                        _ if !peer.same_job => Refusal::AnotherJob { job: self.config.job.clone() },
                        VERSION => {
                            pending.stage = Stage::Proved(Box::new(peer.framer));
                            continue;
                        }
                        theirs => Refusal::Version { address, theirs, ours: VERSION },
                    };
                    return PendingOutcome::Refused(Trusted::new(pending.conn, peer.framer), refusal);
                }
                Stage::Proved(framer) => {
                    let mut trusted = Trusted::new(pending.conn, *framer);
                    let Ok(end) = trusted.read(MAX_HELLO) else { return PendingOutcome::Drop };
                    return match trusted.next(MAX_HELLO) {
                        Ok(Some(Message::Hello(hello))) => PendingOutcome::Arrived(trusted, hello),
                        Ok(Some(_)) => PendingOutcome::Rejected("it does not say hello"),
                        Err(FrameError::Malformed) => PendingOutcome::Rejected("its hello has no meaning"),
                        Err(FrameError::TooLong) => PendingOutcome::Rejected("its hello is too long"),
                        Err(FrameError::Forged) => PendingOutcome::Rejected("its hello is not authentic"),
                        Ok(None) if end == ReadStatus::Closed => PendingOutcome::Drop,
                        Ok(None) => {
                            let (conn, framer) = trusted.into_parts();
                            PendingOutcome::Stay(Pending {
                                conn,
                                stage: Stage::Proved(Box::new(framer)),
                                until: pending.until,
                            })
                        }
                    };
                }
            }
        }
    }

    /// A rank has sent its hello.
    fn arrive(&mut self, trusted: Trusted, hello: Hello) -> Result<(), Failure> {
        if let Some(over) = self.over.clone() {
            self.refused.insert(hello.rank);
            return self.refuse(trusted, over);
        }
        // Its predecessor may have died without our having looked.
        self.forget_if_gone(hello.rank as usize);
        match self.check(&hello, trusted.conn.peer()) {
            Err(refusal) => {
                if refusal.ends_the_job() {
                    self.refused.insert(hello.rank);
                }
                self.refuse(trusted, refusal)
            }
            Ok(()) => {
                tracing::debug!(rank = hello.rank, address = %trusted.conn.peer(), "arrived");
                let place = hello.rank as usize;
                self.left.retain(|(rank, ..)| *rank != hello.rank);
                self.members[place] = Some((trusted, hello));
                Ok(())
            }
        }
    }

    fn check(&self, hello: &Hello, address: SocketAddr) -> Result<(), Refusal> {
        let Hello { rank, size, .. } = hello;
        let (rank, ours) = (*rank, &self.ours);
        if *size != ours.size || rank >= ours.size {
            return Err(Refusal::Size { rank, theirs: *size, ours: ours.size });
        }
        let first = match &self.members[rank as usize] {
            _ if rank == 0 => Some("this process".to_owned()),
            other => other.as_ref().map(|(member, _)| member.conn.peer().to_string()),
        };
        if let Some(first) = first {
            return Err(Refusal::DuplicateRank { rank, first, second: address });
        }
        match hello.differing(ours) {
            Some((key, theirs, ours)) => Err(Refusal::Plan { rank, key, theirs, ours }),
            None => Ok(()),
        }
    }

    /// Refuses a rank with the reason, and ends the job where it cannot go on without it.
    fn refuse(&mut self, mut trusted: Trusted, refusal: Refusal) -> Result<(), Failure> {
        tracing::warn!(address = %trusted.conn.peer(), %refusal, "refused a rank");
        trusted.queue(&Message::Refused(refusal.clone()))?;
        self.pending.push(Pending::leaving(trusted));
        if refusal.ends_the_job() && self.over.is_none() {
            return Err(Failure::Refused(refusal));
        }
        if matches!(refusal, Refusal::DuplicateRank { .. }) {
            self.duplicate = Some(refusal);
        }
        Ok(())
    }

    /// A waiting member sends nothing; a readable connection means that it has closed.
    fn serve_members(&mut self, ready: &[bool]) {
        let places = (0..self.members.len()).filter(|place| self.members[*place].is_some());
        let ready: Vec<usize> =
            places.zip(ready).filter(|(_, ready)| **ready).map(|(place, _)| place).collect();
        ready.into_iter().for_each(|place| self.forget_if_gone(place));
    }

    /// Takes a member off its place when its connection is at its end.
    fn forget_if_gone(&mut self, place: usize) {
        let Some(Some((trusted, hello))) = self.members.get_mut(place) else { return };
        let flushed = trusted.conn.flush();
        let end = trusted.conn.read(1);
        if flushed.is_err() || !matches!(end, Ok(ReadStatus::Open)) || !trusted.conn.inbox.is_empty() {
            tracing::warn!(
                rank = hello.rank,
                "a rank left before the others came; waiting for it to come back"
            );
            self.left.push((hello.rank, trusted.conn.peer(), Instant::now() + RETURN));
            self.members[place] = None;
        }
    }

    fn send_progress(&mut self) -> Result<(), Unencodable> {
        let message = wire::encode(&Message::Waiting(self.missing()))?;
        for (trusted, _) in self.members.iter_mut().flatten() {
            // A member that does not read gets no further list.
            if !trusted.conn.has_output() {
                trusted.queue_encoded(&message);
            }
        }
        Ok(())
    }

    /// All ranks have arrived: builds the roster and sends it out.
    fn finish(mut self) -> Result<Gathered, JoinError> {
        let nonce = random().map_err(JoinError::Randomness)?;
        let hellos: Vec<Hello> = std::iter::once(self.ours.clone())
            .chain(self.members.iter().flatten().map(|(_, hello)| hello.clone()))
            .collect();
        let roster = match Roster::assemble(&hellos, &self.config.job, &self.config.key, &nonce) {
            Ok(roster) => roster,
            Err(refusal) => return Err(self.fail(refusal)),
        };
        let message = wire::encode(&roster.message(&nonce))?;
        if message.len() > MAX_MESSAGE {
            return Err(self.fail(Refusal::TooLarge { len: message.len(), limit: MAX_MESSAGE }));
        }
        let resend = self.send_out(&message)?;
        // A member whose connection breaks here is found by the first exchange, which names it.
        self.flush(Instant::now() + self.config.deadline.min(HANDSHAKE));
        if self.rejections.summary() != "" {
            tracing::info!("the ranks are complete{}", self.rejections.summary());
        }
        let members = self.members.into_iter().map(|member| member.map(|(trusted, _)| trusted)).collect();
        Ok(Gathered { roster, members, encoded: message.into(), resend })
    }

    /// Queues the encoded roster for those that get it from rank 0, and for others where they get it, whom it returns.
    fn send_out(&mut self, roster: &[u8]) -> Result<Vec<u32>, Unencodable> {
        let (size, digest) = (self.ours.size, relay::digest(roster));
        let address = |rank: u32| self.members.get(rank as usize)?.as_ref().map(|(m, _)| m.conn.peer().ip());
        let source = |rank: u32| {
            let above = relay::above(rank)?;
            let (_, hello) = self.members.get(above as usize)?.as_ref()?;
            let (ip, port) = (address(above)?, hello.relay?);
            // A loopback address, at which rank 0 sees a rank of its own host, means another host to the others.
            let leads = !ip.is_loopback() || address(rank)?.is_loopback();
            leads.then(|| SocketAddr::new(ip, port))
        };
        let sources: Vec<_> = (0..size).map(source).collect();
        let sent_on = |rank: &u32| sources.get(*rank as usize).is_some_and(Option::is_some);
        for (rank, member) in (0..).zip(&mut self.members) {
            let Some((trusted, _)) = member else { continue };
            let others = relay::below(rank, size).filter(sent_on).count() as u32;
            if others > 0 {
                trusted.queue(&Message::Relay { others })?;
            }
            match sources.get(rank as usize).copied().flatten() {
                Some(from) => trusted.queue(&Message::RosterAt { from, digest })?,
                None => trusted.queue_encoded(roster),
            }
        }
        Ok((0..size).filter(sent_on).collect())
    }

    /// Sends the reason why the job cannot go on to every member, and to late ranks.
    fn fail(&mut self, refusal: Refusal) -> JoinError {
        for (mut trusted, hello) in self.members.iter_mut().filter_map(Option::take) {
            if let Err(error) = trusted.queue(&Message::Refused(refusal.clone())) {
                tracing::error!(rank = hello.rank, %error, "a rank is not told why it is refused");
            }
            self.refused.insert(hello.rank);
            self.pending.push(Pending::leaving(trusted));
        }
        self.flush(Instant::now() + FAREWELL);
        self.over = Some(refusal.clone());
        self.left.clear();
        self.until = self.until.min(Instant::now() + LATECOMERS);
        if let Err(Failure::System(what, error)) = self.gather() {
            tracing::warn!(error = %system(what, error), "ranks that come later are not told why the job has ended");
        }
        self.flush(Instant::now() + FAREWELL);
        JoinError::Refused(refusal)
    }

    /// Flushes pending output to members and to refused ranks.
    fn flush(&mut self, until: Instant) {
        let leaving = |pending: &&mut Pending| matches!(pending.stage, Stage::Leaving);
        let members = self.members.iter_mut().flatten().map(|(trusted, _)| &mut trusted.conn);
        let leaving = self.pending.iter_mut().filter(leaving).map(|pending| &mut pending.conn);
        let mut conns: Vec<&mut Conn> = members.chain(leaving).collect();
        loop {
            conns.retain_mut(|conn| conn.flush().is_ok() && conn.has_output());
            if conns.is_empty() || Instant::now() >= until {
                return;
            }
            let fds: Vec<_> = conns.iter().map(|conn| (conn.fd(), true)).collect();
            if sys::wait(&fds, until).is_err() {
                return;
            }
        }
    }
}
