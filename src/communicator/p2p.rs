//! Messages from one rank to another: send, receive, probe.
//!
//! They are outside the order of the collectives: only sender and receiver take part, matched by rank and tag, in MPI's order. What is
//! promised of room and order is said in [`shouter_reducer::p2p`].

mod exchange;

use std::sync::atomic::Ordering;
use std::time::Duration;

use shouter_reducer::dtype::DType;
use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;
use shouter_reducer::p2p::{
    Direction, PostError, ReceiveRequest, SendRequest, Status as Matched, TransferError, TransferId,
};

use super::Group;
use super::drive::RankEngine;
use super::element::Element;
use super::staging::{Ended, Staged};
use crate::engine::executor_time;
use crate::error::{Call, Error, Operation, Reason, Views};
use crate::runtime::Clock;
pub use exchange::Exchange;
use exchange::Message;

/// Whose messages a receive or a probe asks for.
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

/// Which messages a receive or a probe asks for.
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

/// A send or receive under way, from [`Group::start_exchange`]. One that is dropped is waited for; a receive
/// is cancelled first.
#[must_use = "the buffer is the group's until the transfer has been waited for"]
pub struct Transfer<'g> {
    group: &'g Group,
    id: TransferId,
    operation: Operation,
    /// Memory of its own, where its elements lie in blocks.
    staged: Option<Staged>,
    /// Nothing is to be waited for any more.
    has_ended: bool,
}

impl std::fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("operation", &self.operation)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Transfer<'_> {
    /// Waits until it has ended, for `timeout` at most; `None` if that passes first. The buffer is the caller's again when it has ended,
    /// well or not. After the end there is no other: a second call is an [`Error::Argument`].
    ///
    /// # Errors
    /// As [`Group::send`] and [`Group::receive`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Status>, Error> {
        if self.has_ended {
            return Err(Error::Argument("the send or receive has been waited for".into()));
        }
        let (id, until) = (self.id, timeout.map(|timeout| Clock.now() + timeout));
        match self.group.drive.transfer(id, until) {
            Ok(ended) => {
                self.has_ended = true;
                let ended = ended.map(Status::from).map_err(|error| self.group.transfer_error(&error));
                if let (Some(staged), Ok(status)) = (self.staged.take(), &ended) {
                    staged.received(status.count);
                }
                ended.map(Some)
            }
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(self.group.outcomes.recorded(error)),
        }
    }

    /// Cancels a receive that no message was matched with: [`wait`](Self::wait) then returns at once, with [`Error::Argument`]. False
    /// where it is too late, and for a send.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub fn cancel(&self) -> Result<bool, Error> {
        let (group, id) = (self.group.drive.group(), self.id);
        self.group.drive.with(move |engine| engine.cancel_receive(group, id))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if self.group.drive.check_process().is_err() {
            // A forked child has none of it.
            if let Some(staged) = self.staged.take() {
                staged.end(Ended::InUse);
            }
            return;
        }
        // A receive may wait for what never comes. What has been matched ends by itself, by its deadline at the latest.
        let _ = self.cancel();
        if let Err(error) = self.wait(None) {
            tracing::debug!(%error, "a send or receive that was dropped has failed");
        }
        if let Some(staged) = self.staged.take() {
            // It was not waited for to its end.
            staged.end(Ended::InUse);
        }
    }
}

impl Group {
    /// Sends `data` to rank `to`, and returns when `data` may be changed: a small message may wait there for its receive then. What
    /// becomes of such a message later (a receive too short for it; none before the deadline) the next send to that rank says.
    ///
    /// Messages from one rank to another are received in the order in which they were sent, as far as tags let a receive choose. A rank
    /// may send to itself. `data` that a receive has to ask for (more than 16 KiB, or more than there is room for) stays here until then: where two ranks
    /// send each other such data before they receive, they wait for each other; use [`send_receive`](Self::send_receive) or
    /// [`batch`](Self::batch).
    ///
    /// # Errors
    /// The group goes on after [`Error::Argument`] (a rank that does not exist), [`Error::Mismatch`] (the receive is too short, or of
    /// another type; both sizes are named) and [`Error::Deadline`] (no receive within the key `deadline`; the pair of ranks and the tag are
    /// named). [`Error::PeerFailed`] and [`Error::Closed`] where it has ended.
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
        self.exchange(&[Exchange::send(data, to, tag)]).remove(0).map(drop)
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
        self.exchange(&[Exchange::receive(into, from, tag)]).remove(0)
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
    /// Each has its own, as [`send`](Self::send) and [`receive`](Self::receive).
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

    /// Starts a send or receive; see [`send`](Self::send) and [`receive`](Self::receive).
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive) that are found at once.
    ///
    /// # Safety
    /// The buffer stays valid until the transfer has ended, and until then nobody else writes to what is sent, or touches what is received
    /// into. (The borrow of the exchange ends with this call.)
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// use shouter::Exchange;
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// let mut into = [0u8; 3];
    /// // SAFETY: nothing touches `into` before `wait` has returned.
    /// let mut receiving = unsafe { group.start_exchange(Exchange::receive(&mut into, 0, 1)) }?;
    /// group.send(&[1u8, 2, 3], 0, 1)?;
    /// receiving.wait(None)?;
    /// assert_eq!(into, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn start_exchange(&self, exchange: Exchange<'_>) -> Result<Transfer<'_>, Error> {
        self.start_transfer(&exchange)
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
            Ok(Ok(status)) => Ok(Some(status.into())),
            Ok(Err(cause)) => Err(self
                .outcomes
                .recorded(Error::closed_by(&cause, format!("a probe was not made: {cause}")))),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(self.outcomes.recorded(error)),
        }
    }

    /// Starts a send or receive, and takes its first poll.
    fn start_transfer(&self, exchange: &Exchange<'_>) -> Result<Transfer<'_>, Error> {
        self.drive.check_process()?;
        let (message, staged) = exchange.staged()?;
        let operation = message.operation();
        let started = match self.drive.post(vec![self.post_of(message)]) {
            Ok(started) => started,
            Err(error) => {
                // Nobody knows whether it has begun.
                if let Some(staged) = staged {
                    staged.end(Ended::InUse);
                }
                return Err(error);
            }
        };
        match started.into_iter().next() {
            Some(Ok(id)) => Ok(Transfer { group: self, id, operation, staged, has_ended: false }),
            Some(Err(error)) => Err(self.post_error(error, operation)),
            None => Err(Error::Internal("nothing was started".into())),
        }
    }

    /// Runs all of these to their ends, and returns an outcome for each.
    fn exchange(&self, exchanges: &[Exchange<'_>]) -> Vec<Result<Status, Error>> {
        let all = |error: Error| exchanges.iter().map(|_| Err(error.clone())).collect();
        if let Err(error) = self.drive.check_process() {
            return all(error);
        }
        let staged: Result<Vec<_>, _> = exchanges.iter().map(Exchange::staged).collect();
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => return all(error),
        };
        let posts = staged.iter().map(|(message, _)| self.post_of(*message)).collect();
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
        let outcome = |(ended, (message, staged)): (Outcome, (Message, Option<Staged>))| match ended {
            Ok(Ok(status)) => {
                let status = Status::from(status);
                if let Some(staged) = staged {
                    staged.received(status.count);
                }
                Ok(status)
            }
            Ok(Err(error)) => Err(self.transfer_error(&error)),
            Err(error) => Err(self.post_error(error, message.operation())),
        };
        ended.into_iter().zip(staged).map(outcome).collect()
    }

    fn post_of(&self, message: Message) -> Post {
        let deadline = executor_time(Clock.now() + self.deadline);
        match message {
            Message::Send { data, dtype, to, tag, synchronous } => Post::Send(SendRequest {
                to: Rank(to),
                tag,
                dtype,
                data: self.region(data),
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

    fn transfer_call(&self, operation: Operation) -> Call {
        Call { operation, tensor: None, step: self.step.load(Ordering::Relaxed) }
    }

    /// Why a send or receive was not started.
    #[cold]
    fn post_error(&self, error: PostError, operation: Operation) -> Error {
        match error {
            PostError::Earlier(error) => self.transfer_error(&error),
            PostError::Aborted(cause) => {
                let what = if operation == Operation::Send { "a send" } else { "a receive" };
                self.outcomes.recorded(Error::closed_by(&cause, format!("{what} was not started: {cause}")))
            }
            error => Error::Argument(error.to_string()),
        }
    }

    /// Why a send or receive has failed.
    #[cold]
    pub(super) fn transfer_error(&self, error: &TransferError) -> Error {
        let subject = error.subject();
        let (operation, text) = match subject.direction {
            Direction::Send => (Operation::Send, error.to_string()),
            Direction::Receive => (Operation::Receive, error.to_string()),
        };
        let call = self.transfer_call(operation);
        let error = match error {
            TransferError::Mismatch { subject, peer, dtype, count } => {
                let views = Views {
                    ours: Some(subject.to_string().into()),
                    theirs: Some(format!("{count} x {dtype}").into()),
                };
                Error::mismatch(call, Some(peer.0), views, text)
            }
            TransferError::Deadline { subject } => {
                let missing = subject.peer.map(|peer| peer.0).into_iter().collect();
                Error::deadline(call, missing, self.deadline, text)
            }
            TransferError::GivenUp { peer, .. } => Error::deadline(call, vec![peer.0], self.deadline, text),
            TransferError::Cancelled { .. } => Error::Argument(text),
            TransferError::Aborted { cause, .. } => match &cause.reason {
                AbortReason::Diverged(_) => {
                    Error::mismatch(call, Some(cause.culprit.0), Views::default(), text)
                }
                why => Error::peer_failed(call, cause.culprit.0, Reason::from(why), text),
            },
        };
        self.outcomes.recorded(error)
    }

    /// What became of sends that had ended, when the group is left.
    pub(super) fn check_late(&self) -> Result<(), Error> {
        let group = self.drive.group();
        let look = move |engine: &mut RankEngine| (engine.take_late(group), engine.probe(group, None, None));
        let (late, left) = self.drive.with(look)?;
        if let Some(Matched { peer, tag, dtype, count }) = left {
            tracing::warn!(
                rank = self.rank.0,
                from = peer.0,
                tag,
                "a message of {count} x {dtype} that nobody has received is dropped"
            );
        }
        late.map_or(Ok(()), |error| Err(self.transfer_error(&error)))
    }
}

/// What the engine is asked to start.
pub(super) enum Post {
    /// A send.
    Send(SendRequest),
    /// A receive.
    Receive(ReceiveRequest),
}

/// How a send or receive has ended, or why it was not started.
pub(super) type Outcome = Result<Result<Matched, TransferError>, PostError>;
