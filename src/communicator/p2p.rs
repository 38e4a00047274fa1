//! Messages from one rank to another: send, receive, probe.
//!
//! They are outside the order of the collectives: only sender and receiver take part, matched by rank and tag, in MPI's order. The
//! promises of room and order are in [`shouter_reducer::p2p`].

mod exchange;
mod started;

use std::time::Duration;

use shouter_reducer::dtype::DType;
use shouter_reducer::grid::Rank;
use shouter_reducer::p2p::{ReceiveRequest, SendRequest, Status as Matched};

use super::drive::{Post, RankEngine, TransferFailure};
use super::element::Element;
use super::staging::{Ended, Staged};
use super::{Group, Work};
use crate::engine::executor_time;
use crate::error::Error;
use crate::runtime::{Clock, Instant};
pub use exchange::Exchange;
pub(super) use exchange::Message;
use exchange::check_apart;
pub(super) use started::Messages;

/// The sender of the messages that a receive or a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This rank's.
    Rank(u32),
    /// Any rank's.
    Any,
}

impl From<u32> for Source {
    fn from(rank: u32) -> Self {
        Self::Rank(rank)
    }
}

impl Source {
    fn rank(self) -> Option<Rank> {
        match self {
            Self::Rank(rank) => Some(Rank(rank)),
            Self::Any => None,
        }
    }
}

/// The tag of the messages that a receive or a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Those with this tag.
    Is(u32),
    /// All.
    Any,
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Self::Is(tag)
    }
}

impl Tag {
    fn number(self) -> Option<u32> {
        match self {
            Self::Is(tag) => Some(tag),
            Self::Any => None,
        }
    }
}

/// A message, as a receive or a probe finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The rank that has sent it; for a send, the one that it went to.
    pub rank: u32,
    /// Its tag.
    pub tag: u32,
    /// The elements' type.
    pub dtype: DType,
    /// Its elements.
    pub count: u64,
}

impl From<Matched> for Status {
    fn from(Matched { peer, tag, dtype, count }: Matched) -> Self {
        Self { rank: peer.0, tag, dtype, count }
    }
}

impl Status {
    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }
}

impl Group {
    /// Sends `data` to rank `to`, and returns when `data` may be changed: a small message may wait there for its receive then. A later
    /// failure of such a message (a receive too short for it; none before the deadline) is the error of the next send to that rank, which its
    /// text says; that next one has sent nothing then.
    ///
    /// Messages from one rank to another are received in the order in which they were sent, as far as tags let a receive choose. A rank
    /// may send to itself. `data` that a receive has to ask for (more than 16 KiB, or more than there is room for) stays here until then: where two ranks
    /// send each other such data before they receive, they wait for each other; use [`send_receive`](Self::send_receive) or
    /// [`batch`](Self::batch).
    ///
    /// # Errors
    /// The group goes on after [`Error::Argument`] (a rank that does not exist), [`Error::Mismatch`] (the receive is too short, or of
    /// another type; both sizes are named) and [`Error::Deadline`] (no receive within the key `deadline`; the pair of ranks and the tag are
    /// named). A rank that is stopped while it fetches `data` is waited for until the key `heartbeat_timeout` has found it, whatever the
    /// deadline. [`Error::PeerFailed`] and [`Error::Closed`] where it has ended.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// use shouter::Source;
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// let next = (group.rank() + 1) % group.size();
    /// group.send(&[1f32, 2.0], next, 7)?;
    /// let mut into = [0f32; 8];
    /// let status = group.receive(&mut into, Source::Any, 7)?;
    /// assert_eq!((status.rank, status.count), (0, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<(), Error> {
        self.send_within(data, to, tag, self.deadline)
    }

    /// As [`send`](Self::send), with another time than the group's until the receive.
    pub(crate) fn send_within<T: Element>(
        &self,
        data: &[T],
        to: u32,
        tag: u32,
        within: Duration,
    ) -> Result<(), Error> {
        self.exchange_one(*Exchange::send(data, to, tag).message(), within).map(drop)
    }

    /// Receives the first message from this rank (or any) with this tag (or any) into `into`, which may be longer than the message.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Mismatch`] where the message is longer, or of another type: it is gone then, and its sender learns of
    /// it, too.
    pub fn receive<T: Element>(
        &self,
        into: &mut [T],
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Status, Error> {
        self.receive_within(into, from, tag, self.deadline)
    }

    /// As [`receive`](Self::receive), with another time than the group's until the message has come.
    pub(crate) fn receive_within<T: Element>(
        &self,
        into: &mut [T],
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        within: Duration,
    ) -> Result<Status, Error> {
        self.exchange_one(*Exchange::receive(into, from, tag).message(), within)
    }

    /// Sends and receives at once.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`receive`](Self::receive); that of the receive where both fail.
    pub fn send_receive<T: Element, U: Element>(
        &self,
        (data, to): (&[T], u32),
        (into, from): (&mut [U], impl Into<Source>),
        tag: u32,
    ) -> Result<Status, Error> {
        let messages = [Exchange::receive(into, from, tag), Exchange::send(data, to, tag)];
        let mut ended = self.exchange(&messages).into_iter();
        let received = ended.next().unwrap_or_else(|| Err(Error::Internal("a receive has no end".into())));
        let sent = ended.next().unwrap_or_else(|| Err(Error::Internal("a send has no end".into())));
        received.and_then(|status| sent.map(|_| status))
    }

    /// Runs sends and receives at once, started in this order, and returns when all have ended, with the outcome of each. However ranks
    /// order theirs, they cannot wait for each other for ever.
    ///
    /// # Errors
    /// Each has its own, as [`send`](Self::send) and [`receive`](Self::receive); all have [`Error::Argument`] for a receive into memory that
    /// another one sends or receives, as raw addresses may have it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// use shouter::Exchange;
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// let (left, right) = ((group.rank() + group.size() - 1) % group.size(), (group.rank() + 1) % group.size());
    /// let (own, mut theirs) = ([group.rank(); 100_000], vec![0u32; 100_000]);
    /// for ended in group.batch(&mut [Exchange::send(&own, right, 0), Exchange::receive(&mut theirs, left, 0)]) {
    ///     ended?;
    /// }
    /// assert_eq!(theirs[0], left);
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self, exchanges: &mut [Exchange<'_>]) -> Vec<Result<Status, Error>> {
        self.exchange(exchanges)
    }

    /// The first message from this rank (or any) with this tag (or any) that has come, and that no receive has taken; waits for one for
    /// `timeout` at most, and looks once where that is zero. `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Argument`] for a rank that does not exist; [`Error::Closed`] where the group has ended.
    pub fn probe(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        timeout: Duration,
    ) -> Result<Option<Status>, Error> {
        let (from, tag) = (from.into().rank(), tag.into().number());
        if let Some(Rank(rank)) = from.filter(|rank| rank.0 >= self.size()) {
            return Err(Error::Argument(format!("rank {rank} does not exist in a group of {}", self.size())));
        }
        match self.drive.probe(from, tag, Clock.now() + timeout) {
            Ok(status) => Ok(Some(status.into())),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(self.outcomes.recorded(error)),
        }
    }

    /// Runs all of these to their ends, and returns an outcome for each.
    fn exchange(&self, exchanges: &[Exchange<'_>]) -> Vec<Result<Status, Error>> {
        let all = |error: Error| exchanges.iter().map(|_| Err(error.clone())).collect();
        if let Err(error) = self.drive.check_process().and_then(|()| check_apart(exchanges)) {
            return all(error);
        }
        if let [one] = exchanges
            && one.is_plain()
        {
            return vec![self.exchange_one(*one.message(), self.deadline)];
        }
        if exchanges.iter().any(Exchange::is_on_gpu) {
            return self.exchange_started(exchanges);
        }
        let step = self.annotations.step();
        let staged: Result<Vec<_>, _> = exchanges.iter().map(|one| one.staged(self, step)).collect();
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => return all(error),
        };
        let due = self.due(Clock.now(), self.deadline);
        let posts = staged.iter().map(|(message, _)| self.post_of(*message, due, false)).collect();
        let ended = match self.drive.exchange(posts) {
            Ok(ended) => ended,
            Err(error) => {
                let error = self.outcomes.recorded(error);
                // Nobody knows which of them have begun.
                staged
                    .into_iter()
                    .filter_map(|(_, staged)| staged)
                    .for_each(|staged| staged.end(Ended::InUse));
                return all(error);
            }
        };
        let outcome = |(ended, (message, staged)): (Result<Matched, _>, (Message, Option<Staged>))| {
            let status = ended.map_err(|error| self.message_error(error, &message))?;
            if let Some(staged) = staged {
                staged.received(status.count);
            }
            Ok(status.into())
        };
        ended.into_iter().zip(staged).map(outcome).collect()
    }

    /// Runs one to its end whose elements lie where the message says; gives it up after this time.
    #[inline]
    fn exchange_one(&self, message: Message, within: Duration) -> Result<Status, Error> {
        let at_once = self.post_of(message, Duration::MAX, false);
        match self.drive.exchange_at_once(&at_once, within) {
            Ok(Some(status)) => return Ok(status.into()),
            Ok(None) => {}
            Err(error) => return Err(self.message_error(error.into(), &message)),
        }
        let begin = Clock.now();
        let due = self.due(begin, within);
        match self.drive.exchange_one(self.post_of(message, due, false), begin) {
            Ok(status) => Ok(status.into()),
            Err(error) => Err(self.message_error(error, &message)),
        }
    }

    /// The same of messages of which some are on a GPU: each is started by itself, in this order.
    #[allow(unsafe_code)]
    fn exchange_started(&self, exchanges: &[Exchange<'_>]) -> Vec<Result<Status, Error>> {
        // SAFETY: they are borrowed until all have ended.
        let start = |one| unsafe { self.start_messages(std::slice::from_ref(one)) };
        let started: Vec<_> = exchanges.iter().map(start).collect();
        let outcome = |work: Result<Work, Error>| {
            let work = work?;
            work.wait(None)?;
            let status = work.statuses().first().copied();
            status.ok_or_else(|| Error::Internal("a message that has ended well has no status".into()))
        };
        started.into_iter().map(outcome).collect()
    }

    /// When a message that is started at `begin` is given up.
    fn due(&self, begin: Instant, within: Duration) -> Duration {
        executor_time(begin + within)
    }

    /// With `held` the elements of a send are not there yet.
    fn post_of(&self, message: Message, deadline: Duration, held: bool) -> Post {
        match message {
            Message::Send { data, dtype, to, tag, synchronous } => Post::Send(SendRequest {
                to: Rank(to),
                tag,
                dtype,
                data: self.region(data),
                held,
                synchronous,
                deadline,
            }),
            Message::Receive { into, dtype, from, tag } => Post::Receive(ReceiveRequest {
                from: from.rank(),
                tag: tag.number(),
                dtype,
                into: self.region(into),
                deadline,
            }),
        }
    }

    /// Why a send or receive brought no message.
    #[cold]
    fn message_error(&self, error: TransferFailure, message: &Message) -> Error {
        let step = self.annotations.step();
        self.outcomes.recorded(match error {
            TransferFailure::Drive(error) => error,
            TransferFailure::Start(error) => self.outcomes.post_error(error, message.operation(), step),
            TransferFailure::Failed(error) => self.outcomes.transfer_error(&error, step),
        })
    }

    /// The errors of sends that had ended well and have failed since, when the group is left.
    pub(super) fn check_late(&self) -> Result<(), Error> {
        let group = self.drive.group();
        let look = move |engine: &mut RankEngine| {
            let messages = engine.messages_in(group)?;
            Some((messages.take_late(), messages.probe(None, None)))
        };
        let (late, left) = self.drive.with(look)?.unwrap_or_default();
        if let Some(Matched { peer, tag, dtype, count }) = left {
            tracing::warn!(
                rank = self.rank.0,
                from = peer.0,
                tag,
                "a message of {count} x {dtype} that nobody has received is dropped"
            );
        }
        let Some(error) = late else { return Ok(()) };
        let error = self.outcomes.transfer_error(&error, self.annotations.step());
        Err(self.outcomes.recorded(error))
    }
}
