//! The store of the launcher that has started this process: PMI-1 or PMIx.
//!
//! A launcher serves one conversation for each process, and ends the job if a process ends without having ended it. So it is kept from
//! one join to the next, and ends when the process does.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use super::sys::{self, Pmix};
use super::{Store, StoreError, pmi1};
use crate::config::LauncherStore;

/// The conversation, while no join uses it.
static IDLE: Mutex<Option<Conversation>> = Mutex::new(None);

/// How long a put or a get may take, after which the launcher counts as gone.
const ANSWER: Duration = Duration::from_secs(10);

struct Conversation {
    with: With,
    /// The process that began it: a forked child is none of the launcher's.
    process: u32,
    /// So many joins have used it. Values are there for good, so each has keys of its own.
    joins: u64,
}

enum With {
    Pmi1(pmi1::Client),
    Pmix(Arc<Pmix>),
}

/// The launcher's store during a join.
pub(crate) struct OfLauncher(Option<Conversation>);

impl OfLauncher {
    /// Begins the conversation, or goes on with it.
    pub(crate) fn open(kind: &LauncherStore) -> Result<Self, StoreError> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut conversation = match idle.filter(|idle| idle.process == std::process::id()) {
            Some(conversation) => conversation,
            None => {
                let with = match kind {
                    LauncherStore::Pmi1(fd) => {
                        let socket =
                            sys::inherited_socket(*fd).map_err(|why| format!("PMI_FD={fd}: {why}"))?;
                        With::Pmi1(pmi1::Client::open(socket)?)
                    }
                    LauncherStore::Pmix => With::Pmix(Arc::new(Pmix::open()?)),
                };
                sys::at_exit(end);
                Conversation { with, process: std::process::id(), joins: 0 }
            }
        };
        conversation.joins += 1;
        Ok(Self(Some(conversation)))
    }

    /// It is there until this is dropped.
    fn conversation(&mut self) -> Result<&mut Conversation, StoreError> {
        self.0.as_mut().ok_or_else(|| "the conversation with the launcher has ended".into())
    }

    /// Runs a call of PMIx, for at most so long. A call that takes longer keeps its thread.
    fn within<T: Send + 'static>(
        pmix: &Arc<Pmix>,
        timeout: Duration,
        what: impl FnOnce(&Pmix) -> Result<T, String> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (send, receive) = mpsc::sync_channel(1);
        let pmix = pmix.clone();
        // The receiver may have gone.
        let body = move || drop(send.send(what(&pmix)));
        std::thread::Builder::new().name("shouter-pmix".into()).spawn(body)?;
        match receive.recv_timeout(timeout) {
            Ok(result) => Ok(result?),
            Err(_) => Err(format!("PMIx has not answered within {timeout:?}").into()),
        }
    }
}

/// The rank that has put a key: the number at its end, else rank 0.
fn owner(key: &str) -> u32 {
    key.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(0)
}

impl Store for OfLauncher {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let Conversation { with, joins, .. } = self.conversation()?;
        let key = format!("{joins}/{key}");
        match with {
            With::Pmi1(client) => client.put(&key, value),
            With::Pmix(pmix) => {
                let value = value.to_vec();
                Self::within(pmix, ANSWER, move |pmix| pmix.put(&key, &value))
            }
        }
    }

    fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let Conversation { with, joins, .. } = self.conversation()?;
        let own = format!("{joins}/{key}");
        match with {
            With::Pmi1(client) => client.get(&own),
            With::Pmix(pmix) => {
                let of = owner(key);
                Self::within(pmix, timeout, move |pmix| pmix.get(of, &own))
            }
        }
    }

    fn fence(&mut self, timeout: Duration) -> Result<(), StoreError> {
        match &mut self.conversation()?.with {
            With::Pmi1(client) => client.fence(timeout),
            With::Pmix(pmix) => Self::within(pmix, timeout, |pmix| pmix.fence()),
        }
    }
}

impl Drop for OfLauncher {
    fn drop(&mut self) {
        *IDLE.lock().unwrap_or_else(PoisonError::into_inner) = self.0.take();
    }
}

/// Ends the conversation with the process.
extern "C" fn end() {
    // A thread that holds the lock for longer than a moment is a forked child's, which has no such thread.
    let Ok(mut idle) = IDLE.try_lock() else { return };
    let Some(conversation) = idle.take().filter(|idle| idle.process == std::process::id()) else { return };
    let ended = match conversation.with {
        With::Pmi1(client) => client.finish().map_err(|why| why.to_string()),
        With::Pmix(pmix) => pmix.finish(),
    };
    if let Err(why) = ended {
        tracing::debug!(why, "the launcher was not told that this process ends");
    }
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn the_rank_at_the_end_of_a_key_has_put_it() {
        assert_eq!(owner("shouter/0123456789abcdef/17"), 17);
        assert_eq!(owner("shouter/0123456789abcdef/meeting"), 0);
        assert_eq!(owner("shouter/start"), 0);
    }
}
