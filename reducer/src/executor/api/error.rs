//! The errors of an executor and its operations.

use super::AbortCause;
use crate::grid::Rank;
use crate::header::{Identity, Shape, View};
use crate::transport::AcceleratorError;
use core::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why an executor cannot be made as configured.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExecutorError {
    /// Too many operations at once.
    #[error("{0} operations at once are too many; set max_operations to 1048576 or less")]
    Operations(usize),
    /// The rank is not of the grid.
    #[error("{rank} does not exist in a group of {ranks} ranks; number ranks from 0")]
    Rank {
        /// The rank.
        rank: Rank,
        /// Ranks of the group.
        ranks: u32,
    },
    /// The slots' memory cannot be allocated.
    #[error("{0} bytes of slots cannot be allocated; lower slot_pool_bytes")]
    SlotPool(usize),
    /// The node's memory is smaller than it says.
    #[error(
        "the node's memory does not have {lanes} lanes of {bytes} bytes; create it with the plan's numbers"
    )]
    Lanes {
        /// Lanes.
        lanes: u32,
        /// Bytes of each area.
        bytes: usize,
    },
}

/// Why an operation was not started. Its seq is not used up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StartError {
    /// Too many operations, or too many slots in use.
    #[error("{what} are all in use; poll until an operation completes, then start again")]
    Busy {
        /// The exhausted resource.
        what: &'static str,
    },
    /// The schedule needs more slots than the executor has in all.
    #[error(
        "the schedule needs {needed} bytes of slots and the executor has {budget}; raise slot_pool_bytes"
    )]
    SlotBudget {
        /// Bytes needed.
        needed: usize,
        /// Bytes available.
        budget: usize,
    },
    /// The slots' memory cannot be allocated.
    #[error("{0} bytes of slots cannot be allocated; give the process more memory")]
    SlotMemory(usize),
    /// A region is not as long as this rank's part.
    #[error("{shape} of tensor \"{name}\" takes {needed} bytes and not {bytes}; check count and dtype")]
    Length {
        /// The tensor's name.
        name: Arc<str>,
        /// The operation.
        shape: Shape,
        /// Bytes of the rank's input, or output.
        needed: u64,
        /// Bytes of the region.
        bytes: usize,
    },
    /// The schedule was made for another shape, rank or grid.
    #[error("the schedule of tensor \"{name}\" was built for another {what}; build it for this one")]
    Schedule {
        /// The tensor's name.
        name: Arc<str>,
        /// The part that differs.
        what: &'static str,
    },
    /// The schedule uses memory shared within the node, and none fitting was attached.
    #[error("the schedule uses {lanes} shared lanes of {bytes} bytes; attach a node memory that has them")]
    NoNodeMemory {
        /// Lanes.
        lanes: u32,
        /// Bytes of each.
        bytes: usize,
    },
    /// The group is over.
    #[error("the group has ended: {0}")]
    Aborted(Arc<AbortCause>),
}

/// Which operation an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpSubject {
    /// The operation's number.
    pub seq: u64,
    /// The operation.
    pub shape: Shape,
    /// The tensor.
    pub identity: Identity,
    /// The tensor's name.
    pub name: Arc<str>,
    /// The trainer's step.
    pub step: u64,
}

impl fmt::Display for OpSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, shape, identity, name, step } = self;
        match identity {
            Identity::Registered { .. } => {
                write!(f, "{} of \"{name}\" ({identity}; step {step}, seq {seq})", shape.collective)
            }
            Identity::AdHoc { .. } | Identity::Started { .. } => {
                let view = View { identity: *identity, shape: *shape };
                write!(f, "{view} (step {step}, seq {seq})")
            }
        }
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpError {
    /// The deadline passed.
    #[error(
        "{subject} missed its deadline, waiting for {}; check that they are alive and run the same operations, and that none of them \
         registers tensors meanwhile, or allow more time",
        awaited(missing)
    )]
    Deadline {
        /// The operation.
        subject: Box<OpSubject>,
        /// The ranks that it waits for.
        missing: Vec<Rank>,
    },
    /// The accelerator that holds this rank's tensor failed.
    #[error("{subject}: {error}")]
    Accelerator {
        /// The operation.
        subject: Box<OpSubject>,
        /// The accelerator's error.
        error: AcceleratorError,
    },
    /// It failed, and an accelerator may still read or write the tensor.
    #[error("{error}; {rank}'s GPU may still use it: leave the tensor's memory as it is")]
    InUse {
        /// How it failed.
        error: Box<OpError>,
        /// The rank whose accelerator has not confirmed that it is idle.
        rank: Rank,
    },
    /// The group ended while the operation ran.
    #[error("{subject} was given up: {cause}")]
    Aborted {
        /// The operation.
        subject: Box<OpSubject>,
        /// The culprit and the reason.
        cause: Arc<AbortCause>,
    },
}

impl OpError {
    /// The operation.
    pub fn subject(&self) -> &OpSubject {
        match self {
            Self::Deadline { subject, .. }
            | Self::Accelerator { subject, .. }
            | Self::Aborted { subject, .. } => subject,
            Self::InUse { error, .. } => error.subject(),
        }
    }
}

/// The ranks that an operation waits for.
fn awaited(missing: &[Rank]) -> String {
    match missing {
        [] => "its own sends to be acknowledged".into(),
        missing => missing.iter().map(Rank::to_string).collect::<Vec<_>>().join(", "),
    }
}
