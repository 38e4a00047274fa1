//! Where and how the ranks meet.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::JoinError;
use crate::config::Config;
use crate::key::Key;

/// Where and how the ranks meet; the same on every rank, but for the listener.
#[derive(Clone, Debug)]
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

/// A rank whose time is up stays for as long as it receives from rank 0 this often: rank 0's time will be up too, and its
/// verdict is the same for all.
pub(super) const SILENCE: Duration = Duration::from_secs(2);

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
