//! Errors of the parameter server.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shouter_reducer::dtype::DType;

use crate::wire;

/// An error of actors, clients and servers: what it concerns, and the remedy. After each of them but
/// [`TrainerLost`](Self::TrainerLost), [`ServerLost`](Self::ServerLost), [`Protocol`](Self::Protocol) and [`Group`](Self::Group) all go on.
/// No server has applied anything of a call that its arguments were refused for; of several servers, some may have done what another one
/// has refused for a reason of its own ([`Stale`](Self::Stale), [`Checkpoint`](Self::Checkpoint) of a save, [`NoMemory`](Self::NoMemory)).
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// Names or a [`Plan`](super::Plan) that cannot be used, or that ranks differ in.
    #[error("parameter server: {0}")]
    Plan(String),
    /// No rank has this name.
    #[error("no actor is called '{name}'; there are {}", known.join(", "))]
    UnknownActor {
        /// The name that was given.
        name: String,
        /// The names that there are, by rank.
        known: Vec<String>,
    },
    /// The parameter was never set, or was reset since.
    #[error(
        "step {step}: '{parameter}' is not set on {server}; set it before it is pushed to or pulled, and wait for all trainers between"
    )]
    NotSet {
        /// The parameter.
        parameter: String,
        /// The server that says so.
        server: String,
        /// The client's step.
        step: u64,
    },
    /// A tensor of another shape than the parameter's, or than that of so many rows of it as there are indices.
    #[error("step {step}: '{parameter}': the shape of {what} is {found:?}, and has to be {expected:?}")]
    Shape {
        /// The parameter.
        parameter: String,
        /// What has the other shape: a gradient, a value, an array to pull into, the values of rows.
        what: String,
        /// The shape that it has to have.
        expected: Vec<u64>,
        /// The other one.
        found: Vec<u64>,
        /// The client's step.
        step: u64,
    },
    /// Elements of another type than the parameter's, or of a type that parameters cannot have.
    #[error(
        "step {step}: '{parameter}': the type of {what} is {found}, and has to be {expected}; convert it (parameters are f32 or f64)"
    )]
    Type {
        /// The parameter.
        parameter: String,
        /// What has the other type.
        what: String,
        /// The parameter's type; of a new one, a type that it can have.
        expected: DType,
        /// The other one.
        found: DType,
        /// The client's step.
        step: u64,
    },
    /// Row indices that cannot be used.
    #[error("step {step}: index {at} of the rows for '{parameter}' is {row}: {why}")]
    Rows {
        /// The parameter.
        parameter: String,
        /// The place in the list of indices.
        at: u64,
        /// The index.
        row: u64,
        /// Why it cannot be used, and the remedy.
        why: String,
        /// The client's step.
        step: u64,
    },
    /// A trainer would be further ahead of the slowest one than the mode permits, and the slowest did not come before the deadline. Where a
    /// pull says so, the pushes before it count.
    #[error(
        "step {step}: '{parameter}': {trainer} is {ahead} pushes ahead, and {limit} may be; {} did not push within {after:?}; look at them, \
         or give a larger staleness or deadline",
        behind.join(", ")
    )]
    Stale {
        /// The parameter; empty where trainers wait for all.
        parameter: String,
        /// The trainer that waited.
        trainer: String,
        /// By how many pushes it is ahead of the slowest.
        ahead: u64,
        /// By how many it may be.
        limit: u64,
        /// The trainers that it waited for.
        behind: Vec<String>,
        /// How long it waited.
        after: Duration,
        /// The trainer's step.
        step: u64,
    },
    /// A server finds no memory for a value, a gradient, or the copy that an update is made in. It has taken nothing of the call, unless it is an
    /// update that fails: then the gradients stay, and the next push or pull of any trainer tries again.
    #[error(
        "step {step}: {server} has no memory for '{parameter}': {text}; give its host more memory, or the plan more servers, and make the \
         call again"
    )]
    NoMemory {
        /// The parameter; empty where a call is about none.
        parameter: String,
        /// The server that says so.
        server: String,
        /// How much it has asked for.
        text: String,
        /// The client's step.
        step: u64,
    },
    /// A server is gone, or did not answer within twice the deadline. What the others hold of a parameter may be a push ahead of it.
    #[error(
        "step {step}: {server} (rank {rank}) is lost while {doing}: {text}; restore a checkpoint in a new job"
    )]
    ServerLost {
        /// Its name.
        server: String,
        /// Its rank.
        rank: u32,
        /// The call, with its parameter.
        doing: String,
        /// The group's error.
        text: String,
        /// The client's step.
        step: u64,
    },
    /// A trainer is gone, and the plan says that the job ends then.
    #[error(
        "{trainer} (rank {rank}) is lost: {text}; start the job again from a checkpoint, or let the plan drop trainers"
    )]
    TrainerLost {
        /// Its name.
        trainer: String,
        /// Its rank.
        rank: u32,
        /// The group's error.
        text: String,
    },
    /// A checkpoint that cannot be read or written, or does not fit.
    #[error("checkpoint {path}: {text}")]
    Checkpoint {
        /// The file.
        path: String,
        /// Why, and the remedy.
        text: String,
    },
    /// The servers were shut down.
    #[error("step {step}: the servers were shut down by {by}; leave")]
    ShutDown {
        /// The actor that has shut them down.
        by: String,
        /// The client's step.
        step: u64,
    },
    /// No message came from this actor before the deadline.
    #[error("no message from {actor} within {after:?}; look at it, or give a longer time")]
    NoMessage {
        /// Its name, or "any actor".
        actor: String,
        /// The time that was waited.
        after: Duration,
    },
    /// A message without meaning.
    #[error(
        "a message of {actor} (rank {rank}) has no meaning: {text}; all ranks have to run the same release, and messages of actors go through them alone"
    )]
    Protocol {
        /// The sender's name.
        actor: String,
        /// Its rank.
        rank: u32,
        /// What is wrong with it.
        text: String,
    },
    /// The group's error.
    #[error(transparent)]
    #[serde(skip)]
    Group(#[from] crate::Error),
}

/// The most bytes of an error in an answer.
const LONGEST_TOLD: usize = 16 << 10;
/// The most bytes of the text that takes the place of a longer one.
const LONGEST_TEXT: usize = 4 << 10;
/// The most trainers that are named to one that waits for them.
const MOST_BEHIND: usize = 64;

impl Error {
    /// The error as a server tells it to a client: one that has an encoding, and is short.
    pub(super) fn told(mut self, server: &str) -> Self {
        if let Self::Stale { behind, .. } = &mut self {
            behind.truncate(MOST_BEHIND);
        }
        match wire::encode(&self) {
            Ok(bytes) if bytes.len() <= LONGEST_TOLD => self,
            _ => Self::Plan(format!("{server}: {}", wire::shortened(&self.to_string(), LONGEST_TEXT))),
        }
    }

    /// The parameter that it is about.
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::NotSet { parameter, .. }
            | Self::Shape { parameter, .. }
            | Self::Type { parameter, .. }
            | Self::Rows { parameter, .. }
            | Self::Stale { parameter, .. }
            | Self::NoMemory { parameter, .. } => Some(parameter),
            _ => None,
        }
    }

    /// The actor that it names; of a stale trainer, that one.
    pub fn actor(&self) -> Option<&str> {
        match self {
            Self::UnknownActor { name: actor, .. }
            | Self::NotSet { server: actor, .. }
            | Self::Stale { trainer: actor, .. }
            | Self::NoMemory { server: actor, .. }
            | Self::ServerLost { server: actor, .. }
            | Self::TrainerLost { trainer: actor, .. }
            | Self::ShutDown { by: actor, .. }
            | Self::NoMessage { actor, .. }
            | Self::Protocol { actor, .. } => Some(actor),
            _ => None,
        }
    }

    /// The rank that it names.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Self::ServerLost { rank, .. } | Self::TrainerLost { rank, .. } | Self::Protocol { rank, .. } => {
                Some(*rank)
            }
            Self::Group(error) => error.rank(),
            _ => None,
        }
    }

    /// The step of the client that it names.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::NotSet { step, .. }
            | Self::Shape { step, .. }
            | Self::Type { step, .. }
            | Self::Rows { step, .. }
            | Self::Stale { step, .. }
            | Self::NoMemory { step, .. }
            | Self::ServerLost { step, .. }
            | Self::ShutDown { step, .. } => Some(*step),
            Self::Group(error) => error.step(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
