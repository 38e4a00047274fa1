//! Drivers of the engine: the thread that blocks (with the runtime's helper between calls), or a pinned shard.

use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use shouter_reducer::executor::{AbortCause, OpError, Request, StartError};
use shouter_reducer::grid::Rank;
use shouter_reducer::p2p::{PostError, ReceiveRequest, SendRequest, Status, TransferError, TransferId};
use shouter_reducer::windows::{AccessError, AccessRefused, AccessRequest, WindowId, Windows};

use crate::engine::groups::GroupId;
use crate::engine::submitted::Submissions;
use crate::engine::{Engine, SharedEnd};
use crate::error::{Error, Operation};
use crate::group::watch::Control;
use crate::runtime::{
    AwaitedEnds, Clock, Cores, DriveError, Driver, DriverOptions, IdlePolicy, Instant, Poller, ShardError,
    Shards, ShardsBuilder, stopping,
};

/// The engine of a rank over whatever ports it has.
pub(super) type RankEngine = Engine;

/// Interval of the checks whether a leaving rank may go, and whether engines have stopped.
const PAUSE: Duration = Duration::from_millis(2);

/// After a panic of one engine the others of its rank stop in their next poll; this bounds the wait for that.
const STOPPED: Duration = Duration::from_secs(2);

/// A further shard of this rank: an engine with a channel of its own, which has parts of the operations of the group of all.
pub(super) struct Sibling {
    pub(super) drive: Drive,
    /// The queue of its operations.
    pub(super) submissions: Arc<Submissions>,
}

/// An engine and its drivers, for one of the groups of this process.
#[derive(Clone)]
pub(super) struct Drive {
    /// The further shards, of the group of all. They end before this one.
    siblings: Arc<[Sibling]>,
    /// The shard of dedicated mode, which drives until it is stopped. Ends before the driver does.
    shard: Option<Arc<Shards<()>>>,
    driver: Arc<Driver<RankEngine>>,
    /// The group whose operations these are; `None` for the group of all.
    group: Option<GroupId>,
}

/// Why something that the engine was asked for brought no result: it is refused with an `S`, and fails with an `F`.
pub(super) enum Failure<S, F> {
    /// The engine cannot be driven, or the time to wait is over.
    Drive(Error),
    /// It was not started.
    Start(S),
    /// It has failed.
    Failed(F),
}

impl<S, F> From<Error> for Failure<S, F> {
    fn from(error: Error) -> Self {
        Self::Drive(error)
    }
}

/// Why an operation brought no result.
pub(super) type OperationFailure = Failure<StartError, OpError>;

/// Why a send or receive brought no message.
pub(super) type TransferFailure = Failure<PostError, TransferError>;

/// Why an access or a flush brought no result.
pub(super) type AccessFailure = Failure<AccessRefused, AccessError>;

/// A message that the engine is asked to start.
pub(super) enum Post {
    /// A send.
    Send(SendRequest),
    /// A receive.
    Receive(ReceiveRequest),
}

impl Post {
    pub(super) fn operation(&self) -> Operation {
        match self {
            Self::Send(_) => Operation::Send,
            Self::Receive(_) => Operation::Receive,
        }
    }
}

impl Drive {
    /// Puts the engine into its driver; with `dedicated`, a shard drives it, pinned to that core if there is one.
    pub(super) fn new(
        engine: RankEngine,
        options: DriverOptions,
        dedicated: Option<Option<usize>>,
    ) -> Result<Self, Error> {
        let idle = options.idle;
        let driver = Arc::new(Driver::new(engine, options).map_err(drive_error)?);
        let shard = dedicated.map(|core| start_shard(&driver, core, idle)).transpose()?;
        Ok(Self { siblings: Arc::from([]), shard: shard.map(Arc::new), driver, group: None })
    }

    /// The same beside further shards; what ends the group in one of them ends it in all.
    pub(super) fn beside(self, siblings: Vec<Sibling>) -> Result<Self, Error> {
        if siblings.is_empty() {
            return Ok(self);
        }
        let this = Self { siblings: siblings.into(), ..self };
        let end = Arc::new(SharedEnd::default());
        end.wake(this.all().map(Self::weak).collect());
        for drive in this.all() {
            let of_panics = end.clone();
            drive.driver.on_panic(Box::new(move |message| of_panics.panicked(message)));
            let end = end.clone();
            drive.with(move |engine| engine.share_end(end))?;
        }
        Ok(this)
    }

    /// The further shards; none of a group of some ranks.
    pub(super) fn siblings(&self) -> &[Sibling] {
        &self.siblings
    }

    /// This one, and the further shards.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.siblings.iter().map(|sibling| &sibling.drive))
    }

    /// The same, for another group of the engine.
    pub(super) fn of(&self, group: GroupId) -> Self {
        Self { siblings: Arc::from([]), group: Some(group), ..self.clone() }
    }

    /// The ends that are awaited by no thread that drives.
    pub(super) fn awaited_ends(&self) -> Arc<AwaitedEnds> {
        self.driver.awaited_ends()
    }

    /// Runs an operation to its end.
    #[inline]
    pub(super) fn run(&self, request: Request) -> Result<(), OperationFailure> {
        let (group, mut started) = (self.group, None);
        let condition = move |engine: &mut RankEngine| {
            let op = match started {
                Some(op) => op,
                None => match engine.start_in(group, Clock.now(), request.clone()) {
                    Ok(op) => *started.insert(op),
                    Err(StartError::Busy { .. }) => return None,
                    Err(error) => return Some(Err(Failure::Start(error))),
                },
            };
            engine.take_finished_in(group, op).map(|completed| completed.result.map_err(Failure::Failed))
        };
        self.driver.drive_until(condition, None).map_err(drive_error)?
    }

    /// Has the engine polled, by this thread unless another one drives; does not wait.
    pub(super) fn nudge(&self) -> Result<(), Error> {
        self.driver.nudge().map_err(drive_error)
    }

    /// Drives until a condition holds.
    pub(super) fn until<R: Send + 'static>(
        &self,
        condition: impl FnMut() -> Option<R> + Send + 'static,
        until: Option<Instant>,
    ) -> Result<R, Error> {
        let mut condition = condition;
        self.driver.drive_until(move |_| condition(), until).map_err(drive_error)
    }

    /// Runs sends and receives to their ends, each of which has its own outcome.
    pub(super) fn exchange(&self, posts: Vec<Post>) -> Result<Vec<Result<Status, TransferFailure>>, Error> {
        let group = self.group;
        let mut started: Option<Vec<Result<TransferId, PostError>>> = None;
        let (mut outcomes, mut left) = (Vec::with_capacity(posts.len()), 0);
        let condition = move |engine: &mut RankEngine| {
            let started = started.get_or_insert_with(|| {
                let now = Clock.now();
                let started: Vec<_> = posts.iter().map(|post| start_post(engine, group, now, post)).collect();
                engine.poll(Clock.now());
                let refused = |started: &Result<_, PostError>| started.as_ref().err().cloned();
                outcomes.extend(
                    started.iter().map(|started| refused(started).map(|why| Err(Failure::Start(why)))),
                );
                left = started.iter().filter(|started| started.is_ok()).count();
                started
            });
            for (started, outcome) in started.iter().zip(&mut outcomes) {
                if let (Ok(id), None) = (started, &outcome)
                    && let Some(ended) = engine.take_transfer(group, *id)
                {
                    *outcome = Some(ended.map_err(Failure::Failed));
                    left -= 1;
                }
            }
            (left == 0).then(|| std::mem::take(&mut outcomes).into_iter().flatten().collect())
        };
        self.driver.drive_until(condition, None).map_err(drive_error)
    }

    /// Runs a send or receive to its end in this call, where nothing stands in its way: a send has so much time until its receive. `None` where
    /// it has to be [driven](Self::exchange_one).
    #[inline]
    pub(super) fn exchange_at_once(&self, post: &Post, within: Duration) -> Result<Option<Status>, Error> {
        if self.group.is_some() {
            return Ok(None);
        }
        let exchange = |engine: &mut RankEngine, looks| match post {
            Post::Send(request) => engine.send_at_once(request, within),
            Post::Receive(request) => engine.receive_at_once(request, looks),
        };
        self.driver.at_once(exchange).map_err(drive_error)
    }

    /// Runs a send or receive to its end, as [`exchange`](Self::exchange) does, without an allocation. It starts at `begin`, or when the
    /// thread that drives comes to it.
    #[inline]
    pub(super) fn exchange_one(&self, post: Post, begin: Instant) -> Result<Status, TransferFailure> {
        let (group, mut started) = (self.group, None);
        let condition = move |engine: &mut RankEngine| {
            let id = match started {
                Some(id) => id,
                None => {
                    let now = begin.max(engine.polled_at());
                    match start_post(engine, group, now, &post) {
                        Ok(id) => {
                            engine.post(group, now);
                            *started.insert(id)
                        }
                        Err(why) => return Some(Err(Failure::Start(why))),
                    }
                }
            };
            engine.take_transfer(group, id).map(|ended| ended.map_err(Failure::Failed))
        };
        self.driver.drive_until(condition, None).map_err(drive_error)?
    }

    /// Drives until something could be done with the engine.
    pub(super) fn until_of<R: Send + 'static>(
        &self,
        condition: impl FnMut(&mut RankEngine) -> Option<R> + Send + 'static,
        until: Option<Instant>,
    ) -> Result<R, Error> {
        self.driver.drive_until(condition, until).map_err(drive_error)
    }

    /// Starts an access to a window, where there is room for one more, and waits for its end where it is waited for.
    pub(super) fn access(&self, request: AccessRequest) -> Result<(), AccessFailure> {
        let (group, mut started) = (self.group, None);
        let condition = move |engine: &mut RankEngine| {
            let id = match started {
                Some(id) => id,
                None => match engine.start_access(group, request) {
                    Ok(id) => {
                        engine.poll_for_posts(|engine, now| engine.poll(now));
                        *started.insert(id)
                    }
                    Err(AccessRefused::Busy { .. }) => return None,
                    Err(error) => return Some(Err(Failure::Start(error))),
                },
            };
            if !request.waited {
                return Some(Ok(()));
            }
            engine.take_access(group, id).map(|ended| ended.map_err(Failure::Failed))
        };
        self.driver.drive_until(condition, None).map_err(drive_error)?
    }

    /// Waits until all accesses of a window to a target, or to all, have ended.
    pub(super) fn flush(&self, window: WindowId, target: Option<Rank>) -> Result<(), AccessFailure> {
        let group = self.group;
        let condition = move |engine: &mut RankEngine| {
            if let Err(refused) = engine.check_window(group, window) {
                return Some(Err(Failure::Start(refused)));
            }
            engine.take_flush(group, window, target).map(|ended| ended.map_err(Failure::Failed))
        };
        self.driver.drive_until(condition, None).map_err(drive_error)?
    }

    /// Waits for a message that a receive could take; the end of the group is an error.
    pub(super) fn probe(
        &self,
        from: Option<Rank>,
        tag: Option<u32>,
        until: Instant,
    ) -> Result<Status, Error> {
        let (group, mut is_first) = (self.group, true);
        let condition = move |engine: &mut RankEngine| {
            // One that does not wait looks at what has come, too.
            if std::mem::take(&mut is_first) {
                engine.poll(Clock.now());
            }
            let closed =
                |cause: &AbortCause| Err(Error::closed_by(cause, format!("a probe was not made: {cause}")));
            let aborted = engine.aborted_in(group).map(closed);
            aborted.or_else(|| engine.messages_in(group)?.probe(from, tag).map(Ok))
        };
        self.driver.drive_until(condition, Some(until)).map_err(drive_error)?
    }

    /// Refuses a forked child, before it waits for a lock that a thread of its parent's may have held.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.driver.check_process().map_err(drive_error)
    }

    /// One look at the engine, and a poll.
    pub(super) fn with<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut RankEngine) -> R + Send + 'static,
    ) -> Result<R, Error> {
        self.driver.with(look).map_err(drive_error)
    }

    /// Whether a shard drives all the time.
    pub(super) fn is_dedicated(&self) -> bool {
        self.shard.is_some()
    }

    /// The group whose operations these are; `None` for the group of all.
    pub(super) fn group(&self) -> Option<GroupId> {
        self.group
    }

    /// The driver, until the engine ends.
    pub(super) fn weak(&self) -> Weak<Driver<RankEngine>> {
        Arc::downgrade(&self.driver)
    }

    /// Takes one poll.
    pub(super) fn poll(&self) -> Result<(), Error> {
        self.with(|engine| {
            engine.poll(Clock.now());
        })
    }

    /// Waits until every operation that was started has ended, which its deadline bounds.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let group = self.group;
        self.all().try_for_each(|drive| {
            let condition = move |engine: &mut RankEngine| engine.is_idle_in(group).then_some(());
            drive.driver.drive_until(condition, None).map_err(drive_error)
        })
    }

    /// Why the group has ended, if it has.
    pub(super) fn aborted(&self) -> Result<Option<AbortCause>, Error> {
        let group = self.group;
        for drive in self.all() {
            if let Some(cause) = drive.with(move |engine| engine.aborted_in(group).cloned())? {
                return Ok(Some(cause));
            }
        }
        Ok(None)
    }

    /// Ends this rank's part in the group of all. Returns how many operations it has started if all of them have ended; the
    /// group ends where some have not, and `None` then.
    fn withdraw(&self) -> Result<Option<u64>, Error> {
        let mut started = self.with(|engine| engine.withdraw(Clock.now()))?;
        for sibling in &*self.siblings {
            let withdrawn = sibling.drive.with(|engine| engine.withdraw(Clock.now()))?;
            started = started.filter(|_| withdrawn.is_some());
        }
        Ok(started)
    }

    /// Gives the memory of this group's operations and windows back to the trainer. Where operations are under way, the group ends, and all
    /// others name this rank. The process stays in the job.
    pub(super) fn abandon(&self) {
        if self.check_process().is_err() {
            return;
        }
        let left = match self.group {
            None => {
                let withdrawn = self.withdraw().and_then(|started| {
                    // Their memory is the trainer's again, and the engine goes on for other groups.
                    self.with(|engine| engine.windows_in(None).into_iter().for_each(Windows::close_all))?;
                    Ok(started)
                });
                withdrawn.and_then(|started| match started {
                    Some(_) => Ok(()),
                    None => self.finish(),
                })
            }
            Some(id) => self.with(move |engine| engine.leave_group(id, Clock.now())).and_then(|()| {
                let at_rest = move |engine: &mut RankEngine| engine.is_group_at_rest(id).then_some(());
                self.driver.drive_until(at_rest, None).map_err(drive_error)
            }),
        };
        if let Err(error) = left {
            tracing::debug!(%error, "left a group without a word to its members");
        }
    }

    /// Leaves the job: in good order where every operation has ended here, else as the rank that all others name.
    pub(super) fn leave(&self, control: Option<&Control>) {
        if self.check_process().is_err() {
            return;
        }
        match self.withdraw() {
            Ok(Some(started)) => {
                control.iter().for_each(|control| control.leave(started));
                self.depart();
            }
            // The engine gives up waiting for the others by itself.
            Ok(None) => drop(self.finish()),
            Err(error) => tracing::debug!(%error, "left without a word to the peers"),
        }
    }

    /// Goes on until all engines may go: see [`Engine::depart`].
    fn depart(&self) {
        let mut staying: Vec<&Self> = self.all().collect();
        loop {
            // A condition is checked only when something happens, so a quiet engine needs a new one.
            staying.retain(|drive| match drive.driver.with(|engine| engine.depart(Clock.now())) {
                Ok(may_go) => !may_go,
                Err(error) => {
                    tracing::debug!(%error, "left without an abort message to the peers");
                    false
                }
            });
            let Some(first) = staying.first() else { return };
            // It always runs out; any other error is reported above.
            let _ = first.driver.drive_until(|_| None::<()>, Some(Clock.now() + PAUSE));
        }
    }

    /// One engine of this rank works no more, since it has panicked or this is a forked child. Waits until the others have heard of that, too, unless
    /// what they work on `is_over` before.
    pub(super) fn await_stop(&self, is_over: impl Fn() -> bool) {
        let until = Clock.now() + STOPPED;
        let is_dead = |drive: &Self| drive.with(|_| ()).is_err();
        while !is_over() && !self.all().all(is_dead) && Clock.now() < until {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Starts a send or receive.
pub(super) fn start_post(
    engine: &mut RankEngine,
    group: Option<GroupId>,
    now: Instant,
    post: &Post,
) -> Result<TransferId, PostError> {
    match post {
        Post::Send(request) => engine.start_send(group, *request),
        Post::Receive(request) => engine.start_receive(group, now, *request),
    }
}

/// Starts the shard that drives the engine and checks callers' conditions, until it is stopped.
fn start_shard(
    driver: &Driver<RankEngine>,
    core: Option<usize>,
    idle: IdlePolicy,
) -> Result<Shards<()>, Error> {
    let start = |cores| {
        ShardsBuilder::new().name("shouter-shard").cores(cores).idle(idle).start(
            [driver.dedicated()],
            |engine| {
                Ok::<_, Infallible>((engine, async {
                    stopping().await;
                    Ok(())
                }))
            },
        )
    };
    let started = match core.map(|core| start(Cores::Each(vec![core]))) {
        Some(Err(why @ (ShardError::CoreNotAllowed { .. } | ShardError::PinFailed { .. }))) => {
            tracing::warn!(%why, "the shard could not be pinned as the key cores says; it runs where the scheduler puts it");
            start(Cores::Any)
        }
        Some(started) => started,
        None => start(Cores::Any),
    };
    started.map_err(|why| Error::Device(why.to_string()))
}

pub(super) fn drive_error(error: DriveError) -> Error {
    match error {
        DriveError::Timeout { waited } => Error::timeout(waited),
        DriveError::Forked => Error::closed(error.to_string()),
        DriveError::NoHelper(_) => Error::Device(error.to_string()),
        other => Error::Internal(other.to_string()),
    }
}
