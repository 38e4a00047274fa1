//! What the device's errors mean for a lane.

use shouter_netstack::verbs::{Status, VerbsError};

use super::super::fabric::Fault;

/// Why a request failed, for a person.
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

/// The system's number for what went wrong.
pub(super) fn setup(error: &VerbsError) -> Fault {
    tracing::warn!(%error, "a queue pair cannot be set up");
    match error {
        VerbsError::Call { errno, .. } | VerbsError::Unreachable { errno, .. } => Fault::Setup(errno.0),
        _ => Fault::Setup(0),
    }
}
