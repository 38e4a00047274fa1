//! What all actors of a parameter server agree on.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::actors::Actors;
use super::shard::Sharding;
use super::{Error, names::Names};
use crate::config::LONGEST_WAIT;
use crate::wire;

/// When the gradients of trainers take effect, and how far trainers may be apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Mode {
    /// A parameter is updated when all trainers have pushed to it, with the fold of their gradients in the order of the plan's trainers. A
    /// pull waits for the update that the trainer's last push belongs to.
    Synchronous,
    /// Each gradient takes effect when it comes. A trainer that is more than so many pushes ahead of the slowest one waits.
    Bounded(u64),
    /// Each gradient takes effect when it comes, and nobody waits.
    Asynchronous,
}

impl Mode {
    /// By how many pushes a trainer may be ahead before its next push or pull.
    pub(super) fn limit(self) -> u64 {
        match self {
            Self::Synchronous => 0,
            Self::Bounded(limit) => limit,
            Self::Asynchronous => u64::MAX,
        }
    }
}

/// What becomes of the job when a trainer dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Lost {
    /// It ends, with an error that names the trainer, on all ranks.
    End,
    /// The others go on without it. Its gradients that have not taken effect are dropped. Each trainer has a group of two with each server then,
    /// since the group of all ends with any of its ranks.
    Drop,
}

/// Who serves, who trains, and how: the same on all actors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// The actors that hold the parameters.
    pub servers: Vec<String>,
    /// The actors that push. Others can do all else.
    pub trainers: Vec<String>,
    /// When gradients take effect. Default: synchronous.
    pub mode: Mode,
    /// Who holds which rows. Default: contiguous.
    pub sharding: Sharding,
    /// Whether a synchronous update takes the average of the gradients rather than their sum. Default: true.
    pub average: bool,
    /// What becomes of the job when a trainer dies. Default: it ends.
    pub lost: Lost,
    /// How long a server waits for trainers that are behind. A client's call ends within twice that. Default: 60 s.
    pub deadline: Duration,
}

impl Plan {
    /// A plan with these servers and trainers, and the defaults.
    pub fn new(servers: &[impl AsRef<str>], trainers: &[impl AsRef<str>]) -> Self {
        Self {
            servers: servers.iter().map(|name| name.as_ref().to_owned()).collect(),
            trainers: trainers.iter().map(|name| name.as_ref().to_owned()).collect(),
            mode: Mode::Synchronous,
            sharding: Sharding::Contiguous,
            average: true,
            lost: Lost::End,
            deadline: Duration::from_secs(60),
        }
    }

    /// Refuses a plan that cannot be, or that other ranks have not. A collective of the actors' group.
    pub(super) fn agree(&self, actors: &Actors) -> Result<(), Error> {
        // All take part whatever their own plan is, or the others would wait.
        let checked = self.check(&actors.names);
        let digest = |plan: &Self| wire::encode(plan).map(|bytes| <[u8; 32]>::from(Sha256::digest(bytes)));
        let own = digest(self).map_err(|why| Error::Plan(why.to_string()))?;
        let group = actors.group();
        let mut all = vec![0; own.len() * group.size() as usize];
        group.all_gather(&own, &mut all)?;
        checked?;
        let other = all.chunks_exact(own.len()).position(|digest| *digest != own);
        other.map_or(Ok(()), |rank| {
            Err(Error::Plan(format!(
                "{} (rank {rank}) has another plan than {}; give all actors the same servers, trainers, mode and options",
                actors.names.of(rank as u32),
                actors.name()
            )))
        })
    }

    fn check(&self, names: &Names) -> Result<(), Error> {
        if self.servers.is_empty() || self.trainers.is_empty() {
            return Err(Error::Plan("no server, or no trainer; name at least one of each".into()));
        }
        if self.deadline.is_zero() || self.deadline > LONGEST_WAIT {
            return Err(Error::Plan(format!(
                "a deadline of {:?}; give one above zero, and a year at most",
                self.deadline
            )));
        }
        let all: Vec<_> = self.servers.iter().chain(&self.trainers).collect();
        for (at, name) in all.iter().enumerate() {
            names.rank(name)?;
            if all[..at].contains(name) {
                return Err(Error::Plan(format!(
                    "'{name}' is named twice; an actor is one server or one trainer"
                )));
            }
        }
        Ok(())
    }

    /// How long a client's call may take, and a server's answer: a server waits for the deadline itself before it answers.
    pub(super) fn patience(&self) -> Duration {
        self.deadline.saturating_mul(2).min(LONGEST_WAIT)
    }

    /// When a call or an answer that begins now has to have ended.
    pub(super) fn end(&self) -> Instant {
        Instant::now() + self.patience()
    }

    pub(super) fn server(&self, name: &str) -> Option<usize> {
        self.servers.iter().position(|server| server == name)
    }

    pub(super) fn trainer(&self, name: &str) -> Option<usize> {
        self.trainers.iter().position(|trainer| trainer == name)
    }
}
