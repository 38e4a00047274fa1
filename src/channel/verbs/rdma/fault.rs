//! The faults that the device's errors mean for a connection.

use shouter_netstack::verbs::{Status, VerbsError};

use super::super::fabric::Fault;

/// The fault of a failed request.
pub(super) fn fault(status: Status, port_is_down: bool, gone: bool) -> Fault {
    match status {
        _ if gone => Fault::DeviceGone,
        Status::RetryExceeded if port_is_down => Fault::PortDown,
        Status::RetryExceeded | Status::ResponseTimeout => Fault::RetryExceeded,
        Status::RnrRetryExceeded => Fault::ReceiverNotReady,
        Status::RemoteAccess => Fault::RemoteAccess,
        Status::RemoteInvalidRequest | Status::RemoteOperation | Status::RemoteAborted => Fault::Remote,
        Status::Flushed => Fault::Flushed,
        _ => Fault::Local,
    }
}

/// The system's error number; for a device that was removed, that it is gone.
pub(super) fn setup(error: &VerbsError) -> Fault {
    let errno = match error {
        VerbsError::Call { errno, .. } | VerbsError::Unreachable { errno, .. } => errno.0,
        _ => 0,
    };
    // The kernel answers so on an open device that was removed. The call is repeated, so this is not logged as a warning; the
    // error of the group reports it.
    if matches!(errno, libc::EIO | libc::ENODEV) {
        tracing::debug!(%error, "the RDMA device is gone");
        return Fault::DeviceGone;
    }
    tracing::warn!(%error, "a queue pair cannot be set up");
    Fault::Setup(errno)
}

#[cfg(test)]
mod tests;
