//! Linux's error numbers.

use shouter_netstack::stack::SendError;
use shouter_netstack::tcp::{ConnectError, Error, Failure, ListenError};
use shouter_netstack::udp::BindError;

/// A call's `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// The result of a call.
pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Reports the error that waits for the next call, if there is one.
pub(crate) fn take(waiting: &mut Option<Errno>) -> Result<()> {
    waiting.take().map_or(Ok(()), Err)
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        Self(match failure {
            Failure::Refused { .. } => libc::ECONNREFUSED,
            Failure::Reset { .. } => libc::ECONNRESET,
            Failure::TimedOut { .. } => libc::ETIMEDOUT,
            Failure::Unreachable { .. } => libc::EHOSTUNREACH,
            _ => libc::ECONNABORTED,
        })
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::WouldBlock => Self(libc::EAGAIN),
            Error::Unknown => Self(libc::ENOTCONN),
            Error::Shut => Self(libc::EPIPE),
            Error::Failed(failure) => failure.into(),
            _ => Self(libc::EIO),
        }
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Self {
        Self(match error {
            ConnectError::BadRemote { .. } | ConnectError::NoRoute { .. } => libc::ENETUNREACH,
            ConnectError::TooMany { .. } => libc::ENOBUFS,
            // Linux also returns this for a pair of addresses in use.
            _ => libc::EADDRNOTAVAIL,
        })
    }
}

impl From<ListenError> for Errno {
    fn from(error: ListenError) -> Self {
        if let ListenError::NotOurs { .. } = error {
            return Self(libc::EADDRNOTAVAIL);
        }
        Self(libc::EADDRINUSE)
    }
}

impl From<BindError> for Errno {
    fn from(error: BindError) -> Self {
        if let BindError::NotOurs { .. } = error {
            return Self(libc::EADDRNOTAVAIL);
        }
        Self(libc::EADDRINUSE)
    }
}

impl From<SendError> for Errno {
    fn from(error: SendError) -> Self {
        Self(match error {
            SendError::NoRoute { .. } | SendError::NotUnicast { .. } => libc::ENETUNREACH,
            SendError::NotOurs { .. } => libc::EADDRNOTAVAIL,
            SendError::Unreachable { .. } => libc::EHOSTUNREACH,
            SendError::TooLong { .. } => libc::EMSGSIZE,
            SendError::Full => libc::EAGAIN,
            _ => libc::EINVAL,
        })
    }
}
