//! The rendezvous of a job's ranks: all connect to rank 0, whose address is the only one that all know.
//!
//! [`join`] returns the same [`Roster`] on every rank, and a [`ControlLink`] for further agreements before step 0.
//! It takes no part in the data path, and no rank waits for rank 0 after set-up.

pub use super::conn::Traffic;
pub use super::error::{ExchangeError, JoinError, Missing, Refusal};
pub use super::hello::{Hello, MAX_HELLO};
pub use super::link::ControlLink;
use super::message::Message;
pub use super::rendezvous_config::{RendezvousConfig, resolve};
pub use super::roster::{Member, Roster};
use super::{client, server};
use crate::config::Config;
use crate::key::random;
use crate::wire;

impl Hello {
    /// A rank's hello from its configuration, with nothing from its channels yet.
    ///
    /// # Errors
    /// As [`Hello::new`].
    pub fn of(config: &Config) -> Result<Self, JoinError> {
        let mut hello = Self::new(config.rank, config.size, config.local_rank, config.local_size)?;
        hello.node = config.node;
        Ok(hello)
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
    let len = wire::encode(&Message::Hello(largest))?.len();
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
