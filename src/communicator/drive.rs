//! Drivers of the engine: the thread that blocks (with the runtime's helper between calls), or a pinned shard.

use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use shouter_reducer::executor::{OpError, Request, StartError};

use crate::engine::Engine;
use crate::error::Error;
use crate::group::watch::Control;
use crate::runtime::{
    Clock, Cores, DriveError, Driver, DriverOptions, IdlePolicy, Instant, Poller, ShardError, Shards,
    ShardsBuilder, stopping,
};

/// The engine of a rank over whatever ports it has.
pub(super) type RankEngine = Engine;

/// How long a leaving rank answers peers that have not yet heard that it is done.
const LINGER: Duration = Duration::from_millis(200);

/// Interval of the checks whether a leaving rank is quiet.
const PAUSE: Duration = Duration::from_millis(2);

/// An engine and its drivers.
pub(super) struct Drive {
    /// The shard of dedicated mode, which drives until it is stopped. Ends before the driver does.
    _shard: Option<Shards<()>>,
    driver: Arc<Driver<RankEngine>>,
}

/// Why an operation brought no result.
pub(super) enum RunError {
    /// The engine cannot be driven, or the time to wait is over.
    Drive(Error),
    /// It was not started.
    Start(StartError),
    /// It has failed.
    Operation(OpError),
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self::Drive(error)
    }
}

impl From<StartError> for RunError {
    fn from(error: StartError) -> Self {
        Self::Start(error)
    }
}

impl From<OpError> for RunError {
    fn from(error: OpError) -> Self {
        Self::Operation(error)
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
        Ok(Self { _shard: shard, driver })
    }

    /// Runs an operation to its end.
    #[inline]
    pub(super) fn run(&self, request: Request) -> Result<(), RunError> {
        let mut started = None;
        let goal = move |engine: &mut RankEngine| {
            let op = match started {
                Some(op) => op,
                None => match engine.start(Clock.now(), request.clone()) {
                    Ok(op) => *started.insert(op),
                    Err(StartError::Busy { .. }) => return None,
                    Err(error) => return Some(Err(error.into())),
                },
            };
            engine.take_finished(op).map(|completed| completed.result.map_err(RunError::from))
        };
        self.driver.drive_until(goal, None).map_err(drive_error)?
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

    /// What ends with the engine.
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
        self.driver.drive_until(|engine| engine.is_idle().then_some(()), None).map_err(drive_error)
    }

    /// Leaves the group: in good order where every operation has ended here, else as the rank that all others name.
    pub(super) fn leave(&self, control: Option<&Control>) {
        if self.check_process().is_err() {
            return;
        }
        match self.with(|engine| engine.withdraw(Clock.now())) {
            Ok(Some(started)) => {
                control.iter().for_each(|control| control.leave(started));
                self.depart();
            }
            // The engine gives up waiting for the others by itself.
            Ok(None) => drop(self.finish()),
            Err(error) => tracing::debug!(%error, "left without a word to the peers"),
        }
    }

    /// Answers peers for a short time: until everything sent is acknowledged and the engine has been quiet.
    fn depart(&self) {
        let until = Clock.now() + LINGER;
        loop {
            // A condition is checked only when something happens, so a quiet engine needs a new one.
            let quiet = self.driver.with(|engine| {
                engine.depart();
                engine.is_quiet(Clock.now())
            });
            match quiet {
                Ok(true) => return,
                Ok(false) if Clock.now() < until => {}
                Ok(false) => return tracing::debug!("left before the peers had confirmed everything"),
                Err(error) => return tracing::debug!(%error, "left without an abort message to the peers"),
            }
            // It always runs out; what else may be wrong is said above.
            let _ = self.driver.drive_until(|_| None::<()>, Some(Clock.now() + PAUSE));
        }
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
            tracing::warn!(%why, "the shard could not be pinned; it runs where the scheduler puts it");
            start(Cores::Any)
        }
        Some(started) => started,
        None => start(Cores::Any),
    };
    started.map_err(|why| Error::Device(why.to_string()))
}

pub(super) fn drive_error(error: DriveError) -> Error {
    match error {
        DriveError::Timeout { waited } => Error::Timeout { after: waited },
        DriveError::Forked => Error::closed(error.to_string()),
        DriveError::NoHelper(_) => Error::Device(error.to_string()),
        other => Error::Internal(other.to_string()),
    }
}
