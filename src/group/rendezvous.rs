//! The rendezvous of a job's ranks: all connect to rank 0, whose address is the only one that all know.
//!
//! [`join`] returns the same [`Roster`] on every rank, and a [`ControlLink`] for further agreements before step 0.
//! It takes no part in the data path, and no rank waits for rank 0 after set-up.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use super::conn::Traffic;
pub use super::error::{ExchangeError, JoinError, Missing, Refusal};
pub use super::hello::{Hello, MAX_HELLO};
pub use super::link::ControlLink;
use super::message::Message;
pub use super::roster::{Member, Roster};
use super::{client, server};
use crate::config::Config;
use crate::key::{Key, random};
use crate::wire;

/// Where and how the ranks meet; the same on every rank, but for the listener.
#[derive(Clone)]
pub struct RendezvousConfig {
    /// Rank 0's host: an address or a name, or several with commas between them, which are tried in turn.
    pub host: String,
    /// The TCP port on which rank 0 listens.
    pub port: u16,
    /// Rank 0's port, where it is open already.
    pub listener: Option<Arc<TcpListener>>,
    /// The job's key.
    pub key: Key,
    /// The job's name.
    pub job: String,
    /// How long to wait for all ranks.
    pub deadline: Duration,
}

impl fmt::Debug for RendezvousConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, listener: _, key: _, job, deadline } = self;
        f.debug_struct("RendezvousConfig")
            .field("host", host)
            .field("port", port)
            .field("job", job)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

impl RendezvousConfig {
    /// From a rank's configuration. A job of one rank, which needs no key, gets one of its own.
    ///
    /// # Errors
    /// If a key must be made and the system has no randomness.
    pub fn of(config: &Config) -> Result<Self, JoinError> {
        let key = match &config.key {
            Some(key) => key.clone(),
            None => Key::generate().map_err(JoinError::Randomness)?,
        };
        Ok(Self {
            host: config.rendezvous.host.clone(),
            port: config.rendezvous.port,
            listener: config.rendezvous.listener.clone(),
            key,
            job: config.job.clone(),
            deadline: config.rendezvous_deadline,
        })
    }
}

impl Hello {
    /// A rank's hello from its configuration, with nothing from its channels yet.
    pub fn of(config: &Config) -> Self {
        let mut hello = Self::new(config.rank, config.size, config.local_rank, config.local_size);
        hello.node = config.node;
        hello
    }
}

/// Between two attempts to resolve a name.
const PAUSE: Duration = Duration::from_millis(500);

/// The addresses that rank 0's host has now.
pub(super) fn addresses(config: &RendezvousConfig) -> Result<Vec<SocketAddr>, JoinError> {
    let RendezvousConfig { host, port, deadline, .. } = config;
    let mut why = String::from("it has no address");
    let mut all = Vec::new();
    for name in host.split(',').map(str::trim) {
        match (name, *port).to_socket_addrs() {
            Ok(found) => all.extend(found),
            Err(error) => why = error.to_string(),
        }
    }
    if all.is_empty() {
        return Err(JoinError::Unresolved { host: host.clone(), why, seconds: deadline.as_secs_f64() });
    }
    Ok(all)
}

/// The addresses of rank 0's host. Blocks until its name can be resolved, or until the deadline.
///
/// # Errors
/// [`JoinError::Unresolved`].
pub fn resolve(config: &RendezvousConfig) -> Result<Vec<SocketAddr>, JoinError> {
    let until = Instant::now() + config.deadline;
    loop {
        match addresses(config) {
            Err(error) if Instant::now() + PAUSE < until => {
                tracing::debug!(%error, "rank 0's host is not known yet");
                std::thread::sleep(PAUSE);
            }
            Err(error) => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return addresses(config).map_err(|_| error);
            }
            found => return found,
        }
    }
}

/// Joins the ranks of the job. Blocks until all have arrived, or until the deadline.
///
/// # Errors
/// Every error says which rank is at fault and what to do. Where rank 0 finds a fault that ends the job, every rank
/// that has arrived gets the same error.
pub fn join(config: &RendezvousConfig, hello: Hello) -> Result<(Roster, ControlLink), JoinError> {
    let Hello { rank, size, .. } = hello;
    if rank >= size {
        return Err(JoinError::NoSuchRank { rank, size });
    }
    // The port to pass the roster on is not known yet.
    let mut largest = hello.clone();
    largest.relay = Some(u16::MAX);
    let len = wire::encode(&Message::Hello(largest)).len();
    if len > MAX_HELLO {
        return Err(JoinError::HelloTooLarge { len, limit: MAX_HELLO });
    }
    if size == 1 {
        let nonce = random().map_err(JoinError::Randomness)?;
        let roster =
            Roster::assemble(&[hello], &config.job, &config.key, &nonce).map_err(JoinError::Refused)?;
        return Ok((roster, ControlLink::alone()));
    }
    if rank == 0 {
        let server::Gathered { roster, members, encoded, resend } = server::join(config, hello)?;
        return Ok((roster, ControlLink::leader(members, (encoded, &resend))));
    }
    let (roster, server) = client::join(config, &hello)?;
    Ok((roster, ControlLink::member(rank, size, server)))
}

#[cfg(test)]
mod tests;
