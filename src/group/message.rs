//! The messages on the control connections, from the end of the handshake on.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::error::{ExchangeError, Missing, Refusal};
use super::hello::Hello;
use super::matrix::Line;
use super::roster::Member;
use crate::key::TAG_LEN;
use crate::wire;

/// The largest message, in bytes.
pub(super) const MAX_MESSAGE: usize = 256 * 1024 * 1024;

/// The most ranks of a job.
const MAX_RANKS: usize = crate::config::MAX_RANKS as usize;

/// A message between a rank and rank 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    /// A rank introduces itself.
    Hello(Hello),
    /// Rank 0 lists the missing ranks.
    Waiting(Missing),
    /// Rank 0 sends the members, in the order of ranks, and the nonce from which the session's secret is derived.
    Roster {
        epoch: u64,
        nonce: [u8; TAG_LEN],
        #[serde(deserialize_with = "wire::at_most::<MAX_RANKS, _, _>")]
        members: Vec<Member>,
    },
    /// Rank 0 refuses the rank, with the reason.
    Refused(Refusal),
    /// A rank's part in an exchange.
    Part {
        number: u64,
        tag: String,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// All parts of an exchange, in the order of ranks.
    Parts {
        number: u64,
        tag: String,
        #[serde(deserialize_with = "wire::at_most::<MAX_RANKS, _, _>")]
        runs: Vec<Run>,
    },
    /// Why an exchange failed.
    Failed(ExchangeError),
    /// The process of a rank has ended.
    Lost(u32),
    /// Graceful close: the rank leaves, and its connection closes next. So many operations it has started, all of which have
    /// ended on it; nothing, where the group has ended.
    Leave(Option<u64>),
    /// Rank 0 passes on that another rank leaves.
    Left(Departure),
    /// Rank 0 asks the rank to pass the roster on, to so many others. Comes before the roster.
    Relay { others: u32 },
    /// Rank 0 sends the address at which the rank gets the roster, and its [digest](super::relay::digest).
    RosterAt { from: SocketAddr, digest: [u8; TAG_LEN] },
    /// The roster is not to be had there: rank 0 sends it itself.
    Resend,
    /// The bytes of all ranks that take part in an exchange for the receiver of this message.
    Column {
        number: u64,
        tag: String,
        #[serde(deserialize_with = "wire::at_most::<MAX_RANKS, _, _>")]
        line: Line,
    },
    /// A rank has given up, with its reason; rank 0 passes it on.
    GaveUp(AbortText),
}

/// A rank has left in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// The rank.
    pub rank: u32,
    /// Operations that it has started; it takes part in no later one.
    pub started: u64,
}

/// Why a rank has given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortText {
    /// The rank.
    pub rank: u32,
    /// Its own text.
    pub text: String,
}

/// Equal parts of consecutive ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) ranks: u32,
    #[serde(with = "serde_bytes")]
    pub(super) part: Vec<u8>,
}

#[cfg(test)]
mod tests;
