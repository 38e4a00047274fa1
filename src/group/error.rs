//! Errors of a group that did not come together, or fell apart during set-up.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::Reason;
use crate::key::KeyError;
use crate::runtime::DriveError;
use crate::wire::Unencodable;

/// How many missing ranks a message names.
const NAMED: usize = 16;

/// Ranks that did not arrive. A large set names its first few and its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The first of them, in order.
    #[serde(deserialize_with = "crate::wire::at_most::<NAMED, _, _>")]
    pub ranks: Vec<u32>,
    /// How many there are in all.
    pub total: u32,
}

impl Missing {
    /// From all of the missing ranks, in order.
    pub fn of(ranks: impl Iterator<Item = u32>) -> Self {
        let mut missing = Self { ranks: Vec::new(), total: 0 };
        for rank in ranks {
            if missing.ranks.len() < NAMED {
                missing.ranks.push(rank);
            }
            missing.total += 1;
        }
        missing
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.total == 1 { "rank " } else { "ranks " })?;
        for (index, rank) in self.ranks.iter().enumerate() {
            write!(f, "{}{rank}", if index == 0 { "" } else { ", " })?;
        }
        if self.total as usize > self.ranks.len() {
            write!(f, " and others ({} in all)", self.total)?;
        }
        Ok(())
    }
}

/// A fault that rank 0 found with a rank that holds the job's key. It is sent to the ranks that it concerns.
#[derive(Debug, Clone, PartialEq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The rank belongs to another job; this one goes on.
    #[error(
        "the rendezvous belongs to job `{job}`, not to this rank's job: two jobs use one address and port; give each \
         its own SHOUTER_PORT, or the ranks of one job the same SHOUTER_JOB"
    )]
    AnotherJob {
        /// The job that the rendezvous serves.
        job: String,
    },
    /// Another version of the rendezvous protocol.
    #[error(
        "the process at {address} speaks version {theirs} of the rendezvous and rank 0 speaks {ours}; install the same \
         release of shouter on every host"
    )]
    Version {
        /// The rank's address, as rank 0 sees it.
        address: SocketAddr,
        /// Its version.
        theirs: u32,
        /// Rank 0's version.
        ours: u32,
    },
    /// Two processes claim the same rank; the first stays.
    #[error(
        "rank {rank} is here already, from {first}, and {second} says that it is rank {rank} too; give each process its \
         own SHOUTER_RANK (or RANK), and end what an earlier start left behind"
    )]
    DuplicateRank {
        /// The rank.
        rank: u32,
        /// The process that came first.
        first: String,
        /// The process that came second.
        second: SocketAddr,
    },
    /// Ranks disagree on the size of the job.
    #[error(
        "rank {rank} says that the job has {theirs} ranks, rank 0 says {ours}; give every rank the same SHOUTER_SIZE (or \
         WORLD_SIZE)"
    )]
    Size {
        /// The rank that disagrees.
        rank: u32,
        /// Its size.
        theirs: u32,
        /// Rank 0's size.
        ours: u32,
    },
    /// Ranks disagree on the plan: schedules, slices, channels.
    #[error(
        "{key}: rank {rank} has {theirs} and rank 0 has {ours}; give every rank the same configuration, and install the same \
         release of shouter on every host"
    )]
    Plan {
        /// The rank that disagrees.
        rank: u32,
        /// The subject: the configuration's key where there is one.
        key: String,
        /// Its value.
        theirs: String,
        /// Rank 0's.
        ours: String,
    },
    /// The ranks do not fill hosts in blocks.
    #[error(
        "rank {rank} cannot be where it says: {what}; ranks fill hosts in blocks, as `shouter run` and torchrun number them; \
         where hosts have different numbers of ranks, each is told its own (SHOUTER_LOCAL_RANK and SHOUTER_LOCAL_SIZE)"
    )]
    Place {
        /// The rank.
        rank: u32,
        /// The fault.
        what: String,
    },
    /// Ranks did not arrive in time.
    #[error(
        "{missing} did not arrive within {seconds} s: check that they were started, that they reach {meeting}, and that \
         they have the same key, job and SHOUTER_PORT{refused}"
    )]
    Missing {
        /// The missing ranks.
        missing: Missing,
        /// How long they were waited for.
        seconds: f64,
        /// The address at which rank 0 waited for them.
        meeting: String,
        /// The connections refused in the meantime, for a reader.
        refused: String,
    },
    /// A rank was there and is gone.
    #[error(
        "rank {rank} at {address} left before all ranks had arrived, and did not come back within {seconds} s: its process has ended, or \
         lost its connection; look at its log, and restart the job"
    )]
    Left {
        /// The rank.
        rank: u32,
        /// Its address, as rank 0 saw it.
        address: SocketAddr,
        /// How long it was waited for.
        seconds: f64,
    },
    /// The ranks' hellos are too large together to be passed on.
    #[error(
        "the ranks' hellos have {len} bytes together, and at most {limit} are passed on; register fewer tensors before joining"
    )]
    TooLarge {
        /// The sum, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },
}

impl Refusal {
    /// The rank that does not fit.
    fn rank(&self) -> Option<u32> {
        match self {
            Self::DuplicateRank { rank, .. }
            | Self::Size { rank, .. }
            | Self::Plan { rank, .. }
            | Self::Place { rank, .. }
            | Self::Left { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// The ranks that did not arrive, of many the first ones.
    fn missing(&self) -> Vec<u32> {
        match self {
            Self::Missing { missing, .. } => missing.ranks.clone(),
            _ => vec![],
        }
    }

    /// Whether the job cannot go on without the refused rank.
    pub(super) fn ends_the_job(&self) -> bool {
        !matches!(self, Self::AnotherJob { .. } | Self::DuplicateRank { .. })
    }
}

/// Why [`join`](super::rendezvous::join) failed.
#[derive(Debug, Clone, Error, PartialEq)]
#[non_exhaustive]
pub enum JoinError {
    /// This rank's own hello cannot be sent.
    #[error(
        "this rank's hello has {len} bytes, and at most {limit} are allowed; register fewer tensors before joining"
    )]
    HelloTooLarge {
        /// Its length, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The configuration names no such place.
    #[error("rank {rank} of {size} cannot be; ranks count from 0 to size - 1")]
    NoSuchRank {
        /// This rank.
        rank: u32,
        /// The size of the job.
        size: u32,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {host} port {port}: {why}; choose a free port with SHOUTER_PORT, the same on every rank \
         (with torchrun it is MASTER_PORT + 1)"
    )]
    CannotListen {
        /// The host, as configured.
        host: String,
        /// The port.
        port: u16,
        /// The system's reason.
        why: String,
    },
    /// Rank 0 cannot be reached.
    #[error(
        "rank {rank} did not reach rank 0 at {host} port {port} within {seconds} s: {why}; check that rank 0 was started, that \
         SHOUTER_ADDR (or MASTER_ADDR) is its address and SHOUTER_PORT (or MASTER_PORT + 1) its port, and that no \
         firewall stands between"
    )]
    Unreachable {
        /// This rank.
        rank: u32,
        /// The host, as configured.
        host: String,
        /// The port.
        port: u16,
        /// How long it was tried.
        seconds: f64,
        /// The reason of the last attempt.
        why: String,
    },
    /// Something else answers at rank 0's address.
    #[error(
        "{address} answers, but not as rank 0 of a shouter job, and did so for {seconds} s: another program owns that port; \
         choose a free one with SHOUTER_PORT, the same on every rank"
    )]
    NotShouter {
        /// Where.
        address: SocketAddr,
        /// How long it was tried.
        seconds: f64,
    },
    /// The two ends have different keys.
    #[error(
        "rank {rank} and what answers at {address} have different keys, for {seconds} s; set SHOUTER_KEY (or SHOUTER_KEY_FILE) to \
         the same key on every rank, and check that nothing else uses that port"
    )]
    WrongKey {
        /// This rank.
        rank: u32,
        /// Where.
        address: SocketAddr,
        /// How long it was tried.
        seconds: f64,
    },
    /// The name of rank 0's host cannot be resolved.
    #[error(
        "the name `{host}` of rank 0's host cannot be resolved ({why}), tried for {seconds} s; set SHOUTER_ADDR (or MASTER_ADDR) to \
         rank 0's address or to a name that this host knows, and look at /etc/hosts and the name servers"
    )]
    Unresolved {
        /// The name, as configured.
        host: String,
        /// The system's reason.
        why: String,
        /// How long it was tried.
        seconds: f64,
    },
    /// Sessions are to be sealed with a key that goes through a store.
    #[error(
        "rud_seal is on, and the job's key would go through the launcher's store, where others can read it; give all ranks the same key in \
         SHOUTER_KEY_FILE, or leave rud_seal off"
    )]
    KeyInClear,
    /// The ranks did not learn the meeting point through a store.
    #[error("{text}")]
    Store {
        /// The rank that is at fault, where one is.
        rank: Option<u32>,
        /// The fault, and the remedy.
        text: String,
    },
    /// Rank 0 reports why the job, or this rank, cannot go on.
    #[error("{0}")]
    Refused(Refusal),
    /// The set-up failed when all ranks had arrived, before this one had the roster.
    #[error(transparent)]
    SetUp(ExchangeError),
    /// The system has no randomness.
    #[error(transparent)]
    Randomness(KeyError),
    /// The system refused something that it should not.
    #[error("the rendezvous failed: {what}: {why}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The system's reason.
        why: String,
    },
}

impl From<Unencodable> for JoinError {
    fn from(error: Unencodable) -> Self {
        Self::System { what: "encoding a message", why: error.to_string() }
    }
}

impl From<Unencodable> for crate::error::Error {
    fn from(error: Unencodable) -> Self {
        Self::Internal(error.to_string())
    }
}

impl From<JoinError> for crate::error::Error {
    fn from(error: JoinError) -> Self {
        let (rank, missing) = match &error {
            JoinError::Refused(refusal) => (refusal.rank(), refusal.missing()),
            JoinError::SetUp(error) => (error.rank(), error.missing()),
            JoinError::Store { rank, .. } => (*rank, vec![]),
            _ => (None, vec![]),
        };
        Self::Join { rank, missing, text: error.to_string().into() }
    }
}

/// How a group has ended on this rank.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct GroupEnd {
    /// The rank that it ended with.
    pub rank: u32,
    /// The cause.
    pub reason: Reason,
    /// Both for people, with further facts.
    pub text: String,
}

/// Why no exchange is of use any more.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Ending {
    /// The group has ended.
    #[error(transparent)]
    Group(GroupEnd),
    /// This rank leaves the group.
    #[error("this rank leaves")]
    Leaving,
    /// This process was forked from the one that has the connections.
    #[error("{}", DriveError::Forked)]
    Forked,
    /// No thread serves the connections any more.
    #[error("its connections are closed")]
    Unserved,
}

/// Why an exchange over the [`ControlLink`](super::link::ControlLink) failed. The link is of no use after it; every call
/// returns the first error again.
#[derive(Debug, Clone, Error, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Ranks did not arrive in time.
    #[error(
        "{missing} did not come to the exchange of {tag} within {waited:?}: check that every rank registers the same tensors \
         and makes the same calls in the same order, and look at the missing ranks' logs"
    )]
    Missing {
        /// The exchange's tag.
        tag: String,
        /// The missing ranks.
        missing: Missing,
        /// How long they were waited for.
        waited: Duration,
    },
    /// The group, or this rank's part in it, ended meanwhile.
    #[error("the exchange of {tag} was given up: {ending}")]
    Ended {
        /// The exchange's tag.
        tag: String,
        /// How it ended.
        ending: Ending,
    },
    /// A rank's connection closed.
    #[error("rank {rank} left during the exchange of {tag} ({why}); look at its log, and restart the job")]
    Left {
        /// The exchange's tag.
        tag: String,
        /// The rank.
        rank: u32,
        /// How its absence showed.
        why: String,
    },
    /// A rank cannot go on with the set-up.
    #[error("rank {rank} left the set-up: {why}")]
    GaveUp {
        /// The rank that left, or was found to have.
        rank: u32,
        /// The error of the rank that has told of it.
        why: String,
    },
    /// Ranks exchange different things.
    #[error(
        "rank {rank} exchanges {found} where rank 0 exchanges {expected}: let every rank make the same calls in the same \
         order"
    )]
    Mismatch {
        /// The rank that differs.
        rank: u32,
        /// The tag of rank 0's exchange.
        expected: String,
        /// The tag of the rank's exchange.
        found: String,
    },
    /// More than an exchange carries.
    #[error(
        "the exchange of {tag} has {len} bytes, and at most {limit} are carried; register fewer tensors at once"
    )]
    TooLarge {
        /// The exchange's tag.
        tag: String,
        /// Its length, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A message that is not authentic or has no meaning.
    #[error(
        "rank {rank} sent something without meaning during the exchange of {tag}; check that all hosts run the same release"
    )]
    Malformed {
        /// The exchange's tag.
        tag: String,
        /// The rank.
        rank: u32,
    },
    /// The system refused something that it should not.
    #[error("the exchange of {tag} failed: {why}")]
    System {
        /// The exchange's tag.
        tag: String,
        /// The system's reason.
        why: String,
    },
}

impl ExchangeError {
    /// The rank that differs, or left.
    pub(crate) fn rank(&self) -> Option<u32> {
        match self {
            Self::Left { rank, .. }
            | Self::GaveUp { rank, .. }
            | Self::Mismatch { rank, .. }
            | Self::Malformed { rank, .. } => Some(*rank),
            Self::Ended { ending: Ending::Group(end), .. } => Some(end.rank),
            _ => None,
        }
    }

    /// The ranks that did not arrive, of many the first ones.
    pub(crate) fn missing(&self) -> Vec<u32> {
        match self {
            Self::Missing { missing, .. } => missing.ranks.clone(),
            _ => vec![],
        }
    }
}

impl From<ExchangeError> for crate::error::Error {
    fn from(error: ExchangeError) -> Self {
        Self::Join { rank: error.rank(), missing: error.missing(), text: error.to_string().into() }
    }
}
