//! Completion queues: the outcome of each work request.

use core::fmt;
use std::sync::Arc;

use super::{Context, VerbsError, sys};

/// A queue of completions, shared by queue pairs and at least as deep as requested. More completions than it holds
/// break it, so let its depth be the sum of all requests that its queue pairs may have posted and signalled.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    raw: Arc<sys::Queue>,
    device: Arc<str>,
}

impl Context {
    /// A queue of at least `depth` entries (one or more, [`DeviceInfo::max_cqe`](super::DeviceInfo::max_cqe) at most).
    ///
    /// # Errors
    /// [`VerbsError::Call`] where the device has none left or not of that depth.
    pub fn create_completion_queue(&self, depth: u32) -> Result<CompletionQueue, VerbsError> {
        let raw = sys::Queue::new(self.domain(), depth)
            .map_err(|errno| VerbsError::call(self.name(), "ibv_create_cq", errno))?;
        Ok(CompletionQueue { raw: Arc::new(raw), device: self.shared_name() })
    }
}

impl CompletionQueue {
    /// Fills `into` from its start with completions, oldest first, and returns how many. Never blocks, never allocates.
    ///
    /// # Errors
    /// [`VerbsError::Call`] where the queue itself is broken (it overflowed, or the device is gone): its queue pairs have to
    /// be made anew on another.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        self.raw.poll(into).map_err(|errno| VerbsError::call(&self.device, "ibv_poll_cq", errno))
    }

    pub(super) fn raw(&self) -> &Arc<sys::Queue> {
        &self.raw
    }
}

/// The outcome of one work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The request's own number.
    pub wr_id: u64,
    /// The number of the queue pair.
    pub qp: u32,
    /// Whether it succeeded, else why not.
    pub status: Status,
    /// The operation; `None` after a failure, for which the interface does not give it.
    pub opcode: Option<Opcode>,
    /// The immediate value that a receive came with, in host order.
    pub imm: Option<u32>,
    /// Bytes received or read; the interface leaves it open for sends and writes, and it is 0 after a failure.
    pub byte_len: u32,
    /// The vendor's own number for a failure.
    pub vendor_error: u32,
}

impl Completion {
    /// Whether the request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.status == Status::Success
    }

    #[inline]
    pub(super) fn done(wr_id: u64, qp: u32, opcode: u32, imm: Option<u32>, byte_len: u32) -> Self {
        let opcode = Opcode::of(opcode);
        // Soft-RoCE hands the sender its own value back.
        let imm = imm.filter(|_| matches!(opcode, Some(Opcode::Recv | Opcode::RecvImm)));
        Self { wr_id, qp, status: Status::Success, opcode, imm, byte_len, vendor_error: 0 }
    }

    pub(super) fn failed(wr_id: u64, qp: u32, status: u32, vendor_error: u32) -> Self {
        Self { wr_id, qp, status: Status::of(status), vendor_error, ..Self::default() }
    }
}

/// The operation of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A message was sent.
    Send,
    /// The peer's memory was written.
    Write,
    /// The peer's memory was read.
    Read,
    /// A message arrived.
    Recv,
    /// The peer wrote with an immediate value.
    RecvImm,
}

impl Opcode {
    #[inline]
    fn of(raw: u32) -> Option<Self> {
        use rdma_sys::ibv_wc_opcode as raw_opcode;
        Some(match raw {
            raw_opcode::IBV_WC_SEND => Self::Send,
            raw_opcode::IBV_WC_RDMA_WRITE => Self::Write,
            raw_opcode::IBV_WC_RDMA_READ => Self::Read,
            raw_opcode::IBV_WC_RECV => Self::Recv,
            raw_opcode::IBV_WC_RECV_RDMA_WITH_IMM => Self::RecvImm,
            _ => return None,
        })
    }
}

/// `enum ibv_wc_status` of libibverbs. After anything but success the queue pair is in the error state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    #[default]
    Success,
    /// IBV_WC_LOC_LEN_ERR.
    LocalLength,
    /// IBV_WC_LOC_QP_OP_ERR.
    LocalOperation,
    /// IBV_WC_LOC_EEC_OP_ERR.
    LocalEndToEndContext,
    /// IBV_WC_LOC_PROT_ERR.
    LocalProtection,
    /// IBV_WC_WR_FLUSH_ERR.
    Flushed,
    /// IBV_WC_MW_BIND_ERR.
    MemoryWindowBind,
    /// IBV_WC_BAD_RESP_ERR.
    BadResponse,
    /// IBV_WC_LOC_ACCESS_ERR.
    LocalAccess,
    /// IBV_WC_REM_INV_REQ_ERR.
    RemoteInvalidRequest,
    /// IBV_WC_REM_ACCESS_ERR.
    RemoteAccess,
    /// IBV_WC_REM_OP_ERR.
    RemoteOperation,
    /// IBV_WC_RETRY_EXC_ERR.
    RetryExceeded,
    /// IBV_WC_RNR_RETRY_EXC_ERR.
    RnrRetryExceeded,
    /// IBV_WC_LOC_RDD_VIOL_ERR.
    LocalDomainViolation,
    /// IBV_WC_REM_INV_RD_REQ_ERR.
    RemoteInvalidReadRequest,
    /// IBV_WC_REM_ABORT_ERR.
    RemoteAborted,
    /// IBV_WC_INV_EECN_ERR.
    InvalidContextNumber,
    /// IBV_WC_INV_EEC_STATE_ERR.
    InvalidContextState,
    /// IBV_WC_FATAL_ERR.
    Fatal,
    /// IBV_WC_RESP_TIMEOUT_ERR.
    ResponseTimeout,
    /// IBV_WC_GENERAL_ERR.
    General,
    /// IBV_WC_TM_ERR.
    TagMatching,
    /// IBV_WC_TM_RNDV_INCOMPLETE.
    RendezvousIncomplete,
    /// A number that this version does not support.
    Unknown(u32),
}

impl Status {
    /// All statuses of libibverbs 44, in the order of their numbers.
    pub(super) const ALL: [Self; 24] = [
        Self::Success,
        Self::LocalLength,
        Self::LocalOperation,
        Self::LocalEndToEndContext,
        Self::LocalProtection,
        Self::Flushed,
        Self::MemoryWindowBind,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
        Self::LocalDomainViolation,
        Self::RemoteInvalidReadRequest,
        Self::RemoteAborted,
        Self::InvalidContextNumber,
        Self::InvalidContextState,
        Self::Fatal,
        Self::ResponseTimeout,
        Self::General,
        Self::TagMatching,
        Self::RendezvousIncomplete,
    ];

    fn of(raw: u32) -> Self {
        Self::ALL.get(raw as usize).copied().unwrap_or(Self::Unknown(raw))
    }

    /// The meaning, and the remedy.
    fn text(self) -> (&'static str, &'static str) {
        const BUG: &str = "this is a defect of the program: report it";
        const DEVICE: &str = "see the kernel's log (`dmesg`) and the device's counters, and connect anew";
        match self {
            Self::Success => ("success", "nothing has to be done"),
            Self::LocalLength => {
                ("a message did not fit the memory given for it, or the port's largest message", BUG)
            }
            Self::LocalOperation => ("the device found the queue pair or the request inconsistent", BUG),
            Self::LocalProtection => (
                "memory of a request is not registered, or no longer",
                "keep the registration until its requests are done",
            ),
            Self::Flushed => (
                "the queue pair was in the error state before the request ran",
                "look at the first completion that failed; it has the cause",
            ),
            Self::MemoryWindowBind => ("a memory window could not be bound", BUG),
            Self::BadResponse => ("the peer's answer was not of this request", DEVICE),
            Self::LocalAccess => (
                "the peer wrote to memory that was not registered for it",
                "register with remote write, and compare the address with the region",
            ),
            Self::RemoteInvalidRequest => (
                "the peer refused the request as invalid: its length, or an operation that it does not allow",
                "initialise the peer's queue pair with the access that is used",
            ),
            Self::RemoteAccess => (
                "the peer's memory may not be accessed there: a wrong key, address or length, or no permission",
                "exchange the region's key and address anew, and register it with remote access",
            ),
            Self::RemoteOperation => {
                ("the peer could not carry the request out", "look at the peer's own errors")
            }
            Self::RetryExceeded => (
                "the peer did not acknowledge, all retries are used up",
                "check that the peer lives, its link is up, and the network loses little (RoCE wants priority flow control or ECN)",
            ),
            Self::RnrRetryExceeded => (
                "the peer had no receive posted, all retries are used up",
                "post more receives at the peer, or allow more retries (rnr_retry)",
            ),
            Self::RemoteAborted => ("the peer gave the request up", "look at the peer's own errors"),
            Self::Fatal => ("the device failed", DEVICE),
            Self::ResponseTimeout => ("no answer within the time allowed", "check the link and the peer"),
            Self::General => ("the transport failed", DEVICE),
            Self::LocalEndToEndContext
            | Self::LocalDomainViolation
            | Self::RemoteInvalidReadRequest
            | Self::InvalidContextNumber
            | Self::InvalidContextState => {
                ("an error of reliable datagrams, which are not used here", DEVICE)
            }
            Self::TagMatching | Self::RendezvousIncomplete => {
                ("an error of tag matching, which is not used here", DEVICE)
            }
            Self::Unknown(_) => (
                "an error that this version has no name for",
                "look it up in <infiniband/verbs.h> of this host",
            ),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (meaning, remedy) = self.text();
        match self {
            Self::Success => f.write_str(meaning),
            Self::Unknown(number) => write!(f, "{meaning} (status {number}); {remedy}"),
            _ => write!(f, "{meaning}; {remedy}"),
        }
    }
}

#[cfg(test)]
mod tests;
