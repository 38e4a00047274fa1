//! Sends and receives that are started without waiting for them.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex};

use shouter_reducer::p2p::{PostError, SendRequest, Status as Matched, TransferError, TransferId};

use super::Status;
use super::exchange::{Exchange, Message, check_apart};
use crate::communicator::Group;
use crate::communicator::drive::Post;
use crate::communicator::drive::start_post;
use crate::communicator::staging::device::{Outcome, Progress};
use crate::communicator::staging::{Ended, Staged};
use crate::communicator::start_queue::SLOT;
use crate::communicator::work::{About, OperationKind, StartedOperation, Work};
use crate::engine::groups::GroupId;
use crate::engine::submitted::Failure;
use crate::error::{Error, Operation};
use crate::runtime::Clock;
use crate::runtime::lock;

/// The messages of an operation, in the order in which they were started.
pub(in crate::communicator) struct Messages {
    /// The group of the messages; `None` for the group of all.
    group: Option<GroupId>,
    state: Mutex<BatchState>,
}

struct BatchState {
    messages: Vec<One>,
    /// Those that have not ended.
    left: usize,
    /// One was started.
    posted: bool,
}

/// A message, from its start to its end.
struct One {
    operation: Operation,
    staged: Option<Staged>,
    end: End,
}

enum End {
    Waits,
    UnderWay(TransferId),
    Ended(Result<Status, Failure>),
}

impl fmt::Display for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        let sends = state.messages.iter().filter(|one| one.operation == Operation::Send).count();
        match (sends, state.messages.len() - sends) {
            (1, 0) => f.write_str("a send"),
            (0, 1) => f.write_str("a receive"),
            (sends, receives) => write!(f, "a batch of {sends} sends and {receives} receives"),
        }
    }
}

impl Messages {
    fn new(group: Option<GroupId>, messages: impl Iterator<Item = (Operation, Option<Staged>)>) -> Self {
        let messages: Vec<_> =
            messages.map(|(operation, staged)| One { operation, staged, end: End::Waits }).collect();
        Self { group, state: Mutex::new(BatchState { left: messages.len(), posted: false, messages }) }
    }

    /// The call that errors of all of them name: that of the first.
    pub(in crate::communicator) fn operation(&self) -> Operation {
        lock(&self.state).messages.first().map_or(Operation::Send, |one| one.operation)
    }

    /// Of one on a GPU: the progress that it shares with its copies.
    fn progress(&self, at: usize) -> Option<Arc<Progress>> {
        lock(&self.state).messages.get(at)?.staged.as_ref()?.progress().cloned()
    }

    fn posted(&self, at: usize, id: TransferId) {
        let mut state = lock(&self.state);
        state.posted = true;
        if let Some(one) = state.messages.get_mut(at) {
            one.end = End::UnderWay(id);
        }
    }

    /// Whether none of them was started.
    pub(in crate::communicator) fn none_posted(&self) -> bool {
        !lock(&self.state).posted
    }

    /// One has ended; how all have, if it was the last.
    fn ended(&self, at: usize, result: Result<Status, Failure>) -> Option<Result<(), Failure>> {
        let mut state = lock(&self.state);
        let one = state.messages.get_mut(at)?;
        match (one.staged.take(), &result) {
            (Some(staged), Ok(status)) => staged.received(status.count),
            (Some(staged), Err(Failure::InUse(_))) => staged.end(Ended::InUse),
            _ => {}
        }
        one.end = End::Ended(result);
        state.left -= 1;
        if state.left > 0 {
            return None;
        }
        let failures = state.messages.iter().filter_map(|one| match &one.end {
            End::Ended(Err(failure)) => Some(failure),
            _ => None,
        });
        // The first; but others end because a copy of one has failed, and memory that is in use has to be reported.
        let weight = |failure: &&Failure| match failure {
            Failure::InUse(_) => 0,
            Failure::Refused(_) => 1,
            _ => 2,
        };
        Some(failures.min_by_key(weight).map_or(Ok(()), |failure| Err(failure.clone())))
    }

    /// Those that were not started, and whether these are all.
    fn waiting(&self) -> (Vec<usize>, bool) {
        let state = lock(&self.state);
        let waits = |one: &One| matches!(one.end, End::Waits);
        let waiting: Vec<_> =
            (0..).zip(&state.messages).filter(|(_, one)| waits(one)).map(|(at, _)| at).collect();
        let are_all = waiting.len() == state.messages.len();
        (waiting, are_all)
    }

    /// It is unknown whether the engine still uses their memory.
    fn forget(&self) {
        let mut state = lock(&self.state);
        state
            .messages
            .iter_mut()
            .filter_map(|one| one.staged.take())
            .for_each(|staged| staged.end(Ended::InUse));
    }
}

impl StartedOperation {
    /// One of its messages has ended.
    fn message_ended(self: Arc<Self>, at: usize, result: Result<Status, Failure>) {
        if let Some(ended) = self.messages().and_then(|messages| messages.ended(at, result)) {
            self.conclude(ended);
        }
    }

    /// The same for a result of the engine.
    fn transferred(self: Arc<Self>, at: usize, result: Option<Result<Matched, TransferError>>) {
        let result = match result {
            Some(Ok(status)) => Ok(status.into()),
            Some(Err(error)) => Err(Failure::Transfer(error)),
            None => Err(Failure::Gone),
        };
        match self.messages().and_then(|messages| messages.progress(at)) {
            None => self.message_ended(at, result),
            Some(progress) => {
                if let Some(outcome) = progress.ended(result.map(Some)) {
                    self.landed_message(at, outcome);
                }
            }
        }
    }

    /// One on a GPU has ended, and so have its copies.
    fn landed_message(self: Arc<Self>, at: usize, outcome: Outcome) {
        self.message_ended(at, outcome.and_then(|status| status.ok_or(Failure::Gone)));
    }
}

impl Group {
    /// Starts a send or receive; returns at once. See [`send`](Self::send) and [`receive`](Self::receive).
    ///
    /// Messages are started in the order of the calls, as many as one likes, and however ranks order theirs, they
    /// cannot wait for each other for ever. They are outside the order of the collectives. [`Work::statuses`] gives the
    /// messages with their senders, and [`Work::cancel`] cancels a receive. One whose handle is dropped goes on;
    /// dropping the group ends those under way, as it does with collectives.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive) that are found at once; [`Error::WouldBlock`] where 65,536 sends and receives are
    /// under way and none ended within a second: nothing was started then. The others are the outcome of the [`Work`]; they name the two ranks
    /// and the tag.
    ///
    /// # Safety
    /// Until it has ended, as its [`Work`] says, or the group has been dropped, the buffer is valid, nobody else writes to what is sent, and
    /// nobody touches what is received into. (The borrow of the exchange ends with this call.)
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// use shouter::{Exchange, Source};
    ///
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// let mut into = [0u8; 8];
    /// // SAFETY: nothing touches `into` before `wait` has returned.
    /// let receiving = unsafe { group.start_message(Exchange::receive(&mut into, Source::Any, 1)) }?;
    /// group.send(&[1u8, 2, 3], 0, 1)?;
    /// receiving.wait(None)?;
    /// let message = receiving.statuses()[0];
    /// assert_eq!((message.rank, message.tag, message.bytes()), (0, 1, 3));
    /// assert_eq!(into[..3], [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn start_message(&self, message: Exchange<'_>) -> Result<Work, Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_messages(&[message]) }
    }

    /// Starts sends and receives at once, in this order, as one operation: it ends when all have, with the error of the first of them that has
    /// failed. A send and a receive are what [`send_receive`](Self::send_receive) does, without waiting.
    ///
    /// # Errors
    /// As [`start_message`](Self::start_message), where none of them was started; [`Error::Argument`] for no messages, and for a receive into
    /// memory that another one sends or receives.
    ///
    /// # Safety
    /// As for [`start_message`](Self::start_message), for all of them.
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
    /// let messages = [Exchange::receive(&mut theirs, left, 0), Exchange::send(&own, right, 0)];
    /// // SAFETY: nothing touches the buffers before `wait` has returned.
    /// let work = unsafe { group.start_messages(&messages) }?;
    /// work.wait(None)?;
    /// assert_eq!(work.statuses()[0].rank, left);
    /// assert_eq!(theirs[0], left);
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn start_messages(&self, messages: &[Exchange<'_>]) -> Result<Work, Error> {
        self.drive.check_process()?;
        if messages.is_empty() {
            return Err(Error::Argument("there is no message to start".into()));
        }
        check_apart(messages)?;
        let step = self.annotations.step();
        let staged = messages.iter().map(|one| one.staged(self, step)).collect::<Result<Vec<_>, _>>()?;
        let mut staged = staged;
        let mut copies: Vec<_> =
            staged.iter_mut().map(|(_, staged)| staged.as_mut().and_then(Staged::take_copies)).collect();
        let begin = Clock.now();
        let (posts, due) = (staged.iter().zip(&copies), self.due(begin, self.deadline));
        let posts: Vec<Post> =
            posts.map(|((message, _), copies)| self.post_of(*message, due, copies.is_some())).collect();
        let bytes = staged.iter().map(|(message, _)| message.bytes()).sum();
        let group = self.drive.group();
        let staged = staged.into_iter().map(|(message, staged)| (Message::operation(&message), staged));
        let what = Messages::new(group, staged);
        let about =
            About { what: OperationKind::Messages(what), begin, step, bytes, name: self.annotations.label() };
        let operation = Arc::new(StartedOperation::new(self.outcomes.clone(), about));
        let (starting, mut posts) = (operation.clone(), posts.into_iter().enumerate().peekable());
        let condition = move |engine: &mut crate::communicator::drive::RankEngine| {
            while let Some((at, post)) = posts.peek() {
                let (at, this) = (*at, starting.clone());
                match start_post(engine, group, Clock.now(), post) {
                    Ok(id) => {
                        starting.messages().into_iter().for_each(|messages| messages.posted(at, id));
                        if let Some(mut copies) = copies.get_mut(at).and_then(Option::take) {
                            let ended = this.clone();
                            copies.when_over(Box::new(move |outcome| ended.landed_message(at, outcome)));
                            if let Post::Send(SendRequest { to, .. }) = *post {
                                copies.when_ready(Box::new(move |engine| {
                                    if let Some(messages) = engine.messages_in(group) {
                                        messages.release(to, id);
                                    }
                                }));
                            }
                            copies.begin();
                        }
                        engine.call_back_transfer(group, id, move |result| this.transferred(at, result));
                    }
                    Err(PostError::Busy { .. }) => return None,
                    Err(error) => {
                        let operation = post.operation();
                        this.message_ended(at, Err(Failure::Post(error, operation)));
                    }
                }
                posts.next();
            }
            Some(())
        };
        let posted = self.drive.until_of(condition, Some(begin + SLOT));
        match posted {
            Ok(()) => operation.refusal().map_or(Ok(()), Err)?,
            Err(error @ Error::Timeout { .. }) => {
                self.withhold(&operation, operation.named(error.would_block()))?;
            }
            Err(error) => {
                operation.messages().into_iter().for_each(Messages::forget);
                return Err(self.outcomes.recorded(error));
            }
        }
        self.drive.nudge()?;
        Ok(Work(operation))
    }

    /// There was no slot for all messages in time: those that were not started end so.
    #[cold]
    fn withhold(&self, operation: &Arc<StartedOperation>, error: Error) -> Result<(), Error> {
        let Some((waiting, are_all)) = operation.messages().map(Messages::waiting) else { return Err(error) };
        if are_all {
            return Err(error);
        }
        for at in waiting {
            operation.clone().message_ended(at, Err(Failure::Refused(error.clone())));
        }
        Ok(())
    }
}

impl Work {
    /// The messages that [`Group::start_message`] or [`Group::start_messages`] has started, in their order, once all
    /// have come or gone: from whom (of a send: to whom), with which tag, and how long each is. Empty before that,
    /// where one of them has failed, and for collectives.
    pub fn statuses(&self) -> Vec<Status> {
        let Some(messages) = self.0.messages() else { return vec![] };
        let state = lock(&messages.state);
        let statuses = state.messages.iter().map(|one| match &one.end {
            End::Ended(Ok(status)) => Some(*status),
            _ => None,
        });
        statuses.collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Cancels the receives of messages that were started and that no message was matched with: they end at once, with [`Error::Argument`]. False where
    /// there are none (it is too late; sends and collectives go on).
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub fn cancel(&self) -> Result<bool, Error> {
        let Some(messages) = self.0.messages() else { return Ok(false) };
        let ids: Vec<_> = {
            let state = lock(&messages.state);
            let id = |one: &One| match one.end {
                End::UnderWay(id) if one.operation == Operation::Receive => Some(id),
                _ => None,
            };
            state.messages.iter().filter_map(id).collect()
        };
        self.cancel_receives(messages.group, ids)
    }
}
