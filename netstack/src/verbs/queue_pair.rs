//! Reliable connected queue pairs: connected with parameters that both ends exchange, then posted to.

use std::sync::Arc;

use super::sys::Errno;
use super::{Access, CompletionQueue, Context, Gid, Sge, VerbsError, device, sys};

/// Requests handed to the driver as one chain.
pub const BATCH: usize = 16;
/// Scatter/gather elements of a request.
pub const MAX_SGE: usize = 3;

/// How large a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Sends, writes and reads that may be under way, [`DeviceInfo::max_qp_wr`](super::DeviceInfo::max_qp_wr) at most.
    pub max_send: u32,
    /// Receives that may be posted.
    pub max_recv: u32,
    /// Bytes to send inline, if the device can; see [`QueuePair::max_inline`].
    pub max_inline_wanted: u32,
}

/// A queue pair of the reliable connected service: every message arrives once and in order, or the queue pair fails.
///
/// Its states: created in [`Reset`](QpState::Reset); [`init`](Self::init) makes it ready to post receives;
/// [`connect`](Self::connect) makes it ready to receive and to send. After a failure, or [`to_error`](Self::to_error), all that
/// is posted completes as [`Flushed`](super::Status::Flushed); once that is polled, [`reset`](Self::reset) starts over.
#[derive(Debug)]
pub struct QueuePair {
    raw: sys::Pair,
    device: Arc<str>,
}

impl Context {
    /// A queue pair whose sends and receives complete in `queue`.
    ///
    /// If the device does not give as much inline data as wanted, less is requested, down to none.
    ///
    /// # Errors
    /// [`VerbsError::Call`] with `EINVAL` for a queue larger than the device has, or one of another context; with `ENOMEM`
    /// where the device or the limit of locked memory has no room for it.
    pub fn create_rc(&self, queue: &CompletionQueue, config: QpConfig) -> Result<QueuePair, VerbsError> {
        if !queue.raw().is_of(self.domain()) {
            return Err(VerbsError::call(self.name(), "ibv_create_qp", Errno(libc::EINVAL)));
        }
        let mut inline = config.max_inline_wanted;
        loop {
            match sys::Pair::new(queue.raw(), config, inline) {
                Ok(raw) => return Ok(QueuePair { raw, device: self.shared_name() }),
                Err(_) if inline > 0 => inline /= 2,
                Err(errno) => return Err(VerbsError::call(self.name(), "ibv_create_qp", errno)),
            }
        }
    }
}

/// The state of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// It receives.
    ReadyToReceive,
    /// It receives and sends.
    ReadyToSend,
    /// The send queue is drained for a change.
    SendQueueDrained,
    /// The send queue failed.
    SendQueueError,
    /// It failed; all that is posted is flushed.
    Error,
    /// None of these.
    Unknown,
}

impl QpState {
    fn of(raw: u32) -> Self {
        match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::SendQueueDrained,
            5 => Self::SendQueueError,
            6 => Self::Error,
            _ => Self::Unknown,
        }
    }
}

/// The address of the peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// On Ethernet, by GIDs that [`route`](super::route) chose.
    Roce {
        /// The index of our GID.
        gid_index: u8,
        /// The peer's GID.
        gid: [u8; 16],
    },
    /// In an InfiniBand subnet, by the port's local identifier. **Never run**: there was no such network to try it on.
    InfiniBand {
        /// The peer's LID.
        lid: u16,
    },
}

/// A connection: the peer's parameters, and the options. The peer's own must mirror it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Our port.
    pub port: u8,
    /// The address of the peer's port.
    pub destination: Destination,
    /// The number of the peer's queue pair.
    pub remote_qp: u32,
    /// The PSN that our first packet has (24 bits; best random, so that packets of an older connection do not fit).
    pub local_psn: u32,
    /// The PSN that the peer's first packet has.
    pub remote_psn: u32,
    /// Payload of a packet in bytes, 256 to 4096: the smaller one of both ports' active MTUs.
    pub path_mtu: u32,
    /// How long to wait for an acknowledgement: 4.096 us x 2^timeout (5 bits; 0 waits for ever; 14 is 67 ms). Devices may
    /// take up to four times as long.
    pub timeout: u8,
    /// How often to send again without an acknowledgement, 0 to 7. (Soft-RoCE takes 7 for ever.)
    pub retry_cnt: u8,
    /// How often to send again when the peer has no receive posted, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// How long the peer waits when we have no receive posted (RNR NAK), as the InfiniBand specification codes it (table 45 of
    /// volume 1: 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491 ms, 0 is 655 ms).
    pub min_rnr_timer: u8,
    /// RDMA reads under way at a time, either way; [`DeviceInfo::max_rd_atomic`](super::DeviceInfo::max_rd_atomic) of both
    /// ends at most.
    pub max_rd_atomic: u8,
    /// The service level of InfiniBand; on RoCE the priority of VLAN tags.
    pub service_level: u8,
    /// The traffic class of the IP header: DSCP x 4 and ECN. RoCE only.
    pub traffic_class: u8,
    /// The hop limit of the IP header. RoCE only.
    pub hop_limit: u8,
    /// The flow label (20 bits), from which many adapters take the UDP source port, and so the path. RoCE only.
    pub flow_label: u32,
}

impl Connection {
    /// A connection with the usual timers: 67 ms for an acknowledgement, seven retries (on soft-RoCE for ever: set fewer),
    /// one RDMA read at a time, 64 hops, a path MTU of 1024; PSNs start at 0.
    pub fn new(port: u8, destination: Destination, remote_qp: u32) -> Self {
        Self {
            port,
            destination,
            remote_qp,
            local_psn: 0,
            remote_psn: 0,
            path_mtu: 1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    /// The path MTU's number in `enum ibv_mtu`.
    fn mtu_number(&self) -> Result<u32, VerbsError> {
        device::mtu_number(self.path_mtu).ok_or(VerbsError::PathMtu { bytes: self.path_mtu })
    }
}

impl Destination {
    /// From the result of [`route`](super::route).
    pub fn roce(our: &Gid, their: [u8; 16]) -> Self {
        Self::Roce { gid_index: our.index, gid: their }
    }
}

impl QueuePair {
    /// Its number, which the peer needs.
    pub fn number(&self) -> u32 {
        self.raw.number()
    }

    /// Bytes that a request may send inline.
    pub fn max_inline(&self) -> u32 {
        self.raw.max_inline()
    }

    /// From RESET to INIT, at `port` (counted from 1); `access` has the peer's rights through this queue pair.
    ///
    /// # Errors
    /// [`VerbsError::Call`] with `EINVAL` in another state, or without such a port.
    pub fn init(&self, port: u8, access: Access) -> Result<(), VerbsError> {
        self.raw.init(port, access.bits()).map_err(self.failed("ibv_modify_qp to INIT"))
    }

    /// From INIT to RTR, then RTS. Packets may arrive from here on.
    ///
    /// # Errors
    /// [`VerbsError::PathMtu`]; [`VerbsError::Unreachable`] where the peer's address has no neighbour entry in time (the
    /// kernel tries for some seconds); [`VerbsError::Call`] with `EINVAL` in another state, or beyond the device's
    /// limits.
    pub fn connect(&self, connection: &Connection) -> Result<(), VerbsError> {
        let path_mtu = connection.mtu_number()?;
        self.raw.ready_to_receive(connection, path_mtu).map_err(|errno| match errno.0 {
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
                VerbsError::Unreachable { device: self.device.to_string(), errno }
            }
            _ => VerbsError::call(&self.device, "ibv_modify_qp to RTR", errno),
        })?;
        self.raw.ready_to_send(connection).map_err(self.failed("ibv_modify_qp to RTS"))
    }

    /// Fails it on purpose: all that is posted completes as flushed, and the peer's next request fails.
    ///
    /// # Errors
    /// [`VerbsError::Call`] with `EINVAL` in RESET, where nothing is posted.
    pub fn to_error(&self) -> Result<(), VerbsError> {
        self.raw.fail().map_err(self.failed("ibv_modify_qp to ERROR"))
    }

    /// Back to RESET, to start over. Posted requests are dropped, without completions; completions that are in the
    /// queue already may stay there (it depends on the driver), so poll until all posted requests are flushed first.
    ///
    /// # Errors
    /// [`VerbsError::Call`] where the device does not answer.
    pub fn reset(&self) -> Result<(), VerbsError> {
        self.raw.reset().map_err(self.failed("ibv_modify_qp to RESET"))
    }

    /// The state, as the device says it: a system call.
    ///
    /// # Errors
    /// [`VerbsError::Call`] where the device does not answer.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        self.raw.state().map(QpState::of).map_err(self.failed("ibv_query_qp"))
    }

    fn failed(&self, call: &'static str) -> impl Fn(Errno) -> VerbsError + '_ {
        move |errno| VerbsError::call(&self.device, call, errno)
    }

    /// Posts a receive for each number, without memory. An RDMA write with immediate value, or an empty message, uses
    /// one up.
    ///
    /// # Errors
    /// [`PostError`], with how many were posted.
    #[inline]
    pub fn post_recv(&self, wr_ids: &[u64]) -> Result<(), PostError> {
        chunked(wr_ids, |chunk| self.raw.post_recv(chunk))
    }

    /// Posts `requests` in their order, [`BATCH`] at a time as one chain. Never blocks, never allocates.
    ///
    /// A request that is not signalled completes silently; its place in the send queue is free once a later one that is
    /// signalled has been polled. So signal at least one of every `max_send`.
    ///
    /// # Errors
    /// [`PostError`], with how many were posted: `ENOMEM` where the send queue is full, `EMSGSIZE` (and none posted) for
    /// inline data above [`max_inline`](Self::max_inline), of a dma-buf, or with an RDMA read.
    #[inline]
    pub fn post_send(&self, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let max_inline = u64::from(self.max_inline());
        if requests.iter().any(|request| !request.is_fit(max_inline)) {
            return Err(PostError { posted: 0, errno: Errno(libc::EMSGSIZE) });
        }
        chunked(requests, |chunk| self.raw.post_send(chunk))
    }
}

#[inline]
fn chunked<T>(all: &[T], mut post: impl FnMut(&[T]) -> Result<(), (usize, Errno)>) -> Result<(), PostError> {
    for (index, chunk) in all.chunks(BATCH).enumerate() {
        post(chunk).map_err(|(taken, errno)| PostError { posted: index * BATCH + taken, errno })?;
    }
    Ok(())
}

/// Not all requests could be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "posted {posted} requests, not the next: {errno}; poll completions to make room (ENOMEM), connect first (EINVAL)"
)]
pub struct PostError {
    /// How many were posted, from the first on: they will complete.
    pub posted: usize,
    /// Why the next one was not.
    pub errno: Errno,
}

impl PostError {
    /// Whether the queue was full: poll completions, then post the rest.
    pub fn is_full(&self) -> bool {
        self.errno.0 == libc::ENOMEM
    }
}

/// An operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Write to the peer's memory, without its notice.
    Write {
        /// The peer's address.
        remote: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Write to the peer's memory, then complete one of its receives with a value.
    WriteImm {
        /// The peer's address.
        remote: u64,
        /// The peer's key.
        rkey: u32,
        /// The value, in host order.
        imm: u32,
    },
    /// Read the peer's memory into ours.
    Read {
        /// The peer's address.
        remote: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Send a message with a value. Receives have no memory here, so it has to be empty.
    SendImm {
        /// The value, in host order.
        imm: u32,
    },
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'m> {
    /// A number of the caller's, which its completion carries.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// This side's memory.
    pub sges: Sges<'m>,
    /// Whether success completes it visibly; failure always does.
    pub signalled: bool,
    /// Whether the bytes are copied now, so that their memory is free at once; for a few bytes this is faster too.
    pub inline: bool,
    /// Whether it waits for the RDMA reads before it.
    pub fence: bool,
}

impl<'m> WorkRequest<'m> {
    /// A request that is signalled, not inline, and without a fence.
    pub fn new(wr_id: u64, operation: Operation, sges: impl Into<Sges<'m>>) -> Self {
        Self { wr_id, operation, sges: sges.into(), signalled: true, inline: false, fence: false }
    }

    /// The same, not signalled.
    pub fn unsignalled(self) -> Self {
        Self { signalled: false, ..self }
    }

    /// The same, inline.
    pub fn inline(self) -> Self {
        Self { inline: true, ..self }
    }

    /// The same, after the reads before it.
    pub fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }

    /// Whether its inline data can be copied: the driver reads it at its address.
    fn is_fit(&self, max_inline: u64) -> bool {
        !self.inline
            || !matches!(self.operation, Operation::Read { .. })
                && self.sges.as_slice().iter().all(Sge::is_mapped)
                && self.sges.bytes() <= max_inline
    }
}

/// Up to [`MAX_SGE`] ranges of memory, one after the other; made from an array of them.
#[derive(Clone, Copy, Debug)]
pub struct Sges<'m> {
    all: [Sge<'m>; MAX_SGE],
    len: u8,
}

impl<'m> Sges<'m> {
    /// No bytes.
    pub const NONE: Self = Self { all: [Sge::EMPTY; MAX_SGE], len: 0 };

    /// The ranges.
    #[inline]
    pub fn as_slice(&self) -> &[Sge<'m>] {
        &self.all[..usize::from(self.len)]
    }

    /// Bytes in all.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.as_slice().iter().map(|sge| u64::from(sge.len())).sum()
    }

    #[inline]
    pub(super) fn raw(&self) -> [rdma_sys::ibv_sge; MAX_SGE] {
        self.all.map(Sge::raw)
    }
}

impl<'m> From<Sge<'m>> for Sges<'m> {
    #[inline]
    fn from(sge: Sge<'m>) -> Self {
        Self { all: [sge, Sge::EMPTY, Sge::EMPTY], len: 1 }
    }
}

impl<'m> From<[Sge<'m>; 2]> for Sges<'m> {
    #[inline]
    fn from([a, b]: [Sge<'m>; 2]) -> Self {
        Self { all: [a, b, Sge::EMPTY], len: 2 }
    }
}

impl<'m> From<[Sge<'m>; 3]> for Sges<'m> {
    #[inline]
    fn from(all: [Sge<'m>; 3]) -> Self {
        Self { all, len: 3 }
    }
}

#[cfg(test)]
mod tests;
