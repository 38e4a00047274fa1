//! Shards on threads of their own: one builder starts them, pinned, and their owner waits for them.

mod ending;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::mesh::mesh;
use super::{CoreAllowance, IdlePolicy, Poller, Reactor, ShardId, panic_message, sys};
use crate::log;
use ending::{Ending, Plan, ShardEnding};

/// Messages that a ring between two shards holds; more wait at the sender.
const RING_DEPTH: usize = 256;

/// Which cores shards run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// Each shard is pinned to one core of the calling thread's affinity mask, in ascending order, where there are more whole cores
    /// ([`CoreAllowance::whole_cores`]) than shards. The scheduler chooses where there are not: another program could only share the
    /// core of a shard that cannot give way.
    #[default]
    Spread,
    /// Each shard is pinned to one of these, as the operating system numbers them; they must be in the affinity mask of
    /// the thread that starts the shards.
    Each(Vec<usize>),
    /// The scheduler chooses.
    Any,
}

/// Why shards did not start, or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// There are fewer cores in [`Cores::Each`] than shards.
    #[error("{shards} shards cannot be pinned to {cores} cores; name one for each shard")]
    TooFewCores {
        /// Shards to be started.
        shards: usize,
        /// Cores that were named.
        cores: usize,
    },
    /// The core is outside of the affinity mask.
    #[error(
        "core {core} is not among those this process may use ({allowed:?}); choose one of these, or widen the mask"
    )]
    CoreNotAllowed {
        /// The requested core.
        core: usize,
        /// The cores of the affinity mask.
        allowed: Vec<usize>,
    },
    /// The core is in the mask, but pinning to it failed (it went offline, or a cpuset changed).
    #[error("pinning to core {core} failed although the affinity mask has it; is it online?")]
    PinFailed {
        /// The requested core.
        core: usize,
    },
    /// The operating system gave no thread.
    #[error("no thread for the shard: {0}; look at the process and pids limits")]
    NoThread(String),
    /// The operating system did not take the handlers of SIGINT and SIGTERM.
    #[error("SIGINT and SIGTERM cannot be caught: {0}")]
    NoSignals(String),
    /// The poller could not be made, or the shard's work ended with an error.
    #[error("{shard}: {why}")]
    Failed {
        /// The shard.
        shard: ShardId,
        /// The error.
        why: String,
    },
    /// The poller or the shard's work panicked.
    #[error("{shard} panicked: {message}; this is a bug in what ran there")]
    Panicked {
        /// The shard.
        shard: ShardId,
        /// The panic's message.
        message: String,
    },
    /// The work did not end in time after the shard was asked to; it was cancelled.
    #[error(
        "{shard} did not end within {grace:?} after it was asked to, and was cancelled; let its work end with `stopping`"
    )]
    Unfinished {
        /// The shard.
        shard: ShardId,
        /// How long it had.
        grace: Duration,
    },
    /// This is a forked child; the shards' threads exist in the parent only.
    #[error("the shards' threads are in the parent of this forked process; start new ones here")]
    Forked,
}

/// Starts shards.
///
/// ```
/// use shouter::runtime::{ShardsBuilder, all_shards, current_shard, submit_to};
///
/// // Three shards, each with a number for a queue; shard 0 asks the others what they have.
/// thread_local!(static NUMBER: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
/// let shards = ShardsBuilder::new().name("sum").start([1, 20, 300], |number| {
///     NUMBER.set(number);
///     let work = async move {
///         let mut sum = 0;
///         if current_shard().is_some_and(|shard| shard.0 == 0) {
///             for shard in all_shards() {
///                 sum += submit_to(shard, || NUMBER.get()).await.map_err(|why| why.to_string())?;
///             }
///         }
///         Ok::<_, String>(sum)
///     };
///     Ok(((), work))
/// })?;
/// assert_eq!(shards.join()?, [321, 0, 0]);
/// # Ok::<(), shouter::runtime::ShardError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before it is started"]
pub struct ShardsBuilder {
    name: String,
    cores: Cores,
    idle: Option<IdlePolicy>,
    grace: Duration,
    signals: bool,
}

impl Default for ShardsBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ShardsBuilder {
    /// Shards that are spread over the cores of the affinity mask and wait by the detected [`IdlePolicy`].
    pub fn new() -> Self {
        Self {
            name: "shard".to_owned(),
            cores: Cores::Spread,
            idle: None,
            grace: Duration::from_secs(1),
            signals: false,
        }
    }

    /// The threads' name; the shard's number is appended. Linux shows the first 15 bytes.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Which cores they run on.
    pub fn cores(mut self, cores: Cores) -> Self {
        self.cores = cores;
        self
    }

    /// How they wait. Spin only with a core for each shard.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = Some(idle);
        self
    }

    /// How long a shard's work may go on after the shard was asked to end; one second, unless set otherwise.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Asks all shards to end at the first SIGINT or SIGTERM. A second one of the same kind ends the process. This is
    /// process-wide, so it is for programs, not for libraries.
    pub fn stop_on_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Starts a shard for each of `queues`. On the shard's thread, pinned, `make` makes queue into the poller that the
    /// shard polls and the work that it does. Returns when all pollers are made.
    ///
    /// The shards belong together: each is polled until the work of all has ended, for others may depend on it. An error
    /// or a panic of one asks all others to end, and [`Shards::join`] reports it. In the end the remaining tasks are
    /// cancelled, and the pollers have 100 ms to send the remaining data.
    ///
    /// # Errors
    ///
    /// If a core may not be used, a thread cannot be had, or `make` fails, or if a shard failed before all pollers were
    /// made; no shard is left then.
    pub fn start<Q, P, F, R, E, M>(
        &self,
        queues: impl IntoIterator<Item = Q>,
        make: M,
    ) -> Result<Shards<R>, ShardError>
    where
        Q: Send + 'static,
        P: Poller + 'static,
        F: Future<Output = Result<R, E>> + 'static,
        R: Send + 'static,
        E: Display + 'static,
        M: Fn(Q) -> Result<(P, F), E> + Clone + Send + 'static,
    {
        sys::count_forks();
        let queues: Vec<Q> = queues.into_iter().collect();
        let count = queues.len();
        let cores = self.place(count)?;
        if self.signals {
            sys::catch_signals().map_err(|why| ShardError::NoSignals(why.to_string()))?;
        }
        let plan = Plan {
            idle: self.idle.unwrap_or_else(|| IdlePolicy::detect(count)),
            grace: self.grace,
            signals: self.signals,
        };
        let endpoints = mesh(count, RING_DEPTH);
        let all = endpoints.first().map_or_else(|| Arc::from([]), |endpoint| endpoint.all().clone());
        let ending = Arc::new(Ending::new(all));
        let mut shards = Shards {
            threads: Vec::with_capacity(count),
            ending: ending.clone(),
            forks: sys::fork_generation(),
        };
        // Nothing is sent: each shard drops its end when it has made its poller, or has failed to.
        let (making, made) = mpsc::channel::<()>();
        for ((endpoint, queue), core) in endpoints.into_iter().zip(queues).zip(cores) {
            let (id, make, making) = (endpoint.id(), make.clone(), making.clone());
            let mut own = ShardEnding::new(ending.clone());
            let body = move || {
                let mut making = Some(making);
                let begin = |own: &mut ShardEnding| {
                    pin(core)?;
                    let failed = |why: E| ShardError::Failed { shard: id, why: why.to_string() };
                    let (poller, work) = make(queue).map_err(failed)?;
                    making = None;
                    Reactor::on(endpoint, poller).work(work, plan, own)
                };
                let outcome = catch_unwind(AssertUnwindSafe(|| begin(&mut own)));
                match outcome.unwrap_or_else(|payload| {
                    Err(ShardError::Panicked { shard: id, message: panic_message(&*payload) })
                }) {
                    Ok(result) => result,
                    Err(error) => {
                        own.fail(error);
                        None
                    }
                }
            };
            match log::spawn(format!("{}-{}", self.name, id.0), body) {
                Ok(thread) => shards.threads.push(thread),
                Err(why) => ending.fail(ShardError::NoThread(why.to_string())),
            }
        }
        drop(making);
        // Returns when all shards have dropped their ends.
        let _ = made.recv();
        match ending.error() {
            Some(error) => {
                // The first of the errors, which `wait` would only return again.
                let _ = shards.wait();
                Err(error)
            }
            None => Ok(shards),
        }
    }

    /// A core for each shard, if they are pinned.
    fn place(&self, count: usize) -> Result<Vec<Option<usize>>, ShardError> {
        let allowance = CoreAllowance::detect();
        let cores = match &self.cores {
            Cores::Each(cores) => {
                if let Some(&core) = cores.iter().find(|core| !allowance.cores.contains(core)) {
                    return Err(ShardError::CoreNotAllowed { core, allowed: allowance.cores });
                }
                if cores.len() < count {
                    return Err(ShardError::TooFewCores { shards: count, cores: cores.len() });
                }
                cores
            }
            Cores::Spread if allowance.whole_cores() > count => &allowance.cores,
            Cores::Spread | Cores::Any => return Ok(vec![None; count]),
        };
        Ok(cores.iter().take(count).copied().map(Some).collect())
    }
}

/// Pins the calling thread.
fn pin(core: Option<usize>) -> Result<(), ShardError> {
    match core {
        Some(core) if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) => {
            Err(ShardError::PinFailed { core })
        }
        _ => Ok(()),
    }
}

/// Running shards. Dropping this stops them and waits for their threads.
#[derive(Debug)]
pub struct Shards<R> {
    threads: Vec<JoinHandle<Option<R>>>,
    ending: Arc<Ending>,
    forks: u32,
}

impl<R> Shards<R> {
    /// Asks all shards to end; does not wait. Their work is notified by [`stopping`](super::stopping).
    pub fn stop(&self) {
        self.ending.stop();
    }

    /// Waits until the work of all shards has ended, and gives its results in the order of the shards.
    ///
    /// # Errors
    ///
    /// The first error or panic of any of them.
    pub fn join(mut self) -> Result<Vec<R>, ShardError> {
        self.wait()
    }

    fn wait(&mut self) -> Result<Vec<R>, ShardError> {
        let threads = std::mem::take(&mut self.threads);
        if sys::fork_generation() != self.forks {
            // The threads stayed in the parent: there is nothing to wait for.
            std::mem::forget(threads);
            return Err(ShardError::Forked);
        }
        let mut results = Vec::with_capacity(threads.len());
        for (id, thread) in threads.into_iter().enumerate() {
            match thread.join() {
                Ok(result) => results.extend(result),
                // A destructor, after everything else was caught.
                Err(payload) => self
                    .ending
                    .fail(ShardError::Panicked { shard: ShardId(id), message: panic_message(&*payload) }),
            }
        }
        self.ending.error().map_or(Ok(results), Err)
    }
}

impl<R> Drop for Shards<R> {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        if sys::fork_generation() == self.forks {
            self.stop();
        }
        match self.wait() {
            Ok(_) | Err(ShardError::Forked) => {}
            Err(error) => tracing::error!(%error, "shards ended with an error"),
        }
    }
}
