//! A dedicated shard: a thread of its own, pinned to a core.

use std::thread::JoinHandle;

use super::event::completion;
use super::mesh::Endpoint;
use super::shared::Remote;
use super::{CoreAllowance, IdlePolicy, LocalReactor, Poller, ShardId, sys};

/// How to run a dedicated shard.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// The thread's name; the shard's number is appended. Linux shows the first 15 bytes.
    pub name: String,
    /// The core to pin to, as the operating system numbers them; it must be in the affinity mask of the thread that
    /// spawns the shard. `None`: the scheduler chooses.
    pub core: Option<usize>,
    /// How to wait. Spin only with a core to itself.
    pub idle: IdlePolicy,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self { name: "shard".to_owned(), core: None, idle: IdlePolicy::SHARED }
    }
}

/// Why a shard did not start, or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The core is outside of the affinity mask.
    #[error(
        "core {core} is not among those this process may use ({allowed:?}); choose one of these, or widen the mask"
    )]
    CoreNotAllowed {
        /// The core asked for.
        core: usize,
        /// The cores of the affinity mask.
        allowed: Vec<usize>,
    },
    /// The core is in the mask, but pinning to it failed (it went offline, or a cpuset changed).
    #[error("pinning to core {core} failed although the affinity mask has it; is it online?")]
    PinFailed {
        /// The core asked for.
        core: usize,
    },
    /// The operating system gave no thread.
    #[error("no thread for the shard: {0}; look at the process and pids limits")]
    NoThread(String),
    /// The poller could not be made.
    #[error("the shard's poller could not be made: {0}")]
    Build(String),
    /// The poller panicked, when it was made or in a turn.
    #[error("the shard's poller panicked: {0}; the shard is gone, and what depended on it has failed")]
    Panicked(String),
    /// This is a forked child; the shard's thread exists in the parent only.
    #[error("the shard's thread is in the parent of this forked process; make a new shard here")]
    Forked,
}

/// A running dedicated shard. Dropping it stops the shard and waits for its thread.
#[derive(Debug)]
pub struct Shard {
    remote: Remote,
    thread: Option<JoinHandle<Result<(), ShardError>>>,
    forks: u32,
}

impl Shard {
    /// A shard without peers; see [`Shard::spawn_on`].
    ///
    /// # Errors
    ///
    /// As [`Shard::spawn_on`].
    pub fn spawn<P, E, B>(options: ShardOptions, build: B) -> Result<Self, ShardError>
    where
        P: Poller + 'static,
        E: std::fmt::Display + 'static,
        B: FnOnce() -> Result<P, E> + Send + 'static,
    {
        Self::spawn_on(Endpoint::alone(), options, build)
    }

    /// Starts a thread, pins it, makes the poller there with `build`, and turns until stopped. Returns once the poller is
    /// made, so an error in making it comes back here.
    ///
    /// # Errors
    ///
    /// If the core may not be used, the thread cannot be had, or `build` fails.
    pub fn spawn_on<P, E, B>(endpoint: Endpoint, options: ShardOptions, build: B) -> Result<Self, ShardError>
    where
        P: Poller + 'static,
        E: std::fmt::Display + 'static,
        B: FnOnce() -> Result<P, E> + Send + 'static,
    {
        sys::count_forks();
        let ShardOptions { name, core, idle } = options;
        if let Some(core) = core {
            let allowed = CoreAllowance::detect().cores;
            if !allowed.contains(&core) {
                return Err(ShardError::CoreNotAllowed { core, allowed });
            }
        }
        let remote = endpoint.remote();
        let (started, start) = completion::<Result<(), ShardError>>();
        let thread = std::thread::Builder::new()
            .name(format!("{name}-{}", endpoint.id().0))
            .spawn(move || {
                if let Some(core) = core
                    && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
                {
                    started.complete(Err(ShardError::PinFailed { core }));
                    return Ok(());
                }
                // A panic of `build` unwinds through here and drops `started`, which `spawn_on` notices.
                let poller = match build() {
                    Ok(poller) => poller,
                    Err(error) => {
                        started.complete(Err(ShardError::Build(error.to_string())));
                        return Ok(());
                    }
                };
                let mut reactor = LocalReactor::on(endpoint, poller);
                started.complete(Ok(()));
                reactor.run(idle).map_err(ShardError::Panicked)
            })
            .map_err(|error| ShardError::NoThread(error.to_string()))?;
        let mut shard = Self { remote, thread: Some(thread), forks: sys::fork_generation() };
        match start.wait(IdlePolicy::SHARED, None) {
            Ok(Ok(())) => Ok(shard),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(shard
                .wait_for_thread()
                .err()
                .unwrap_or_else(|| ShardError::Panicked("while starting".to_owned()))),
        }
    }

    /// Which shard of its mesh it is.
    pub fn id(&self) -> ShardId {
        self.remote.id()
    }

    /// The way in, from any thread.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Whether the thread has ended, by a stop or by a panic that [`Shard::join`] will tell.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the shard to end after its current turn; does not wait.
    pub fn stop(&self) {
        self.remote.0.ask_to_stop();
    }

    /// Stops the shard and waits for its thread.
    ///
    /// # Errors
    ///
    /// [`ShardError::Panicked`] if the poller panicked.
    pub fn join(mut self) -> Result<(), ShardError> {
        self.wait_for_thread()
    }

    fn wait_for_thread(&mut self) -> Result<(), ShardError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        if sys::fork_generation() != self.forks {
            // The thread stayed in the parent: there is nothing to wait for.
            std::mem::forget(thread);
            return Err(ShardError::Forked);
        }
        self.stop();
        match thread.join() {
            Ok(result) => result,
            Err(payload) => Err(ShardError::Panicked(super::panic_message(&*payload))),
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if let Err(error) = self.wait_for_thread()
            && error != ShardError::Forked
        {
            tracing::error!(shard = %self.id().0, %error, "a shard ended with an error");
        }
    }
}
