//! Leaders that cannot be reached any more, and the evidence.

use std::net::SocketAddr;
use std::time::Duration;

use shouter_netstack::{rud, tcp};
use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;

use super::verbs;

/// A peer that cannot be reached any more.
#[derive(Clone, Debug)]
pub struct PeerLoss {
    /// The leader that is gone.
    pub rank: Rank,
    /// The evidence.
    pub why: Loss,
}

/// The evidence that a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its RUD session has failed.
    #[error(transparent)]
    Rud(rud::Failure),
    /// A TCP connection has failed.
    #[error(transparent)]
    Tcp(tcp::Failure),
    /// No queue pair to it can be kept up.
    #[error(transparent)]
    Verbs(verbs::Fault),
    /// There never was a connection.
    #[error(
        "TCP connections with {remote} were not made within {waited:?}; see that it runs with the same transport and that \
         nothing on the way drops its packets"
    )]
    Unconnected {
        /// The address at which it listens, or would.
        remote: SocketAddr,
        /// For how long it was tried.
        waited: Duration,
    },
    /// There never was a connection, since this host has refused to open one.
    #[error(
        "this rank could open no TCP connection with {remote} within {waited:?}: {}; see the limit of open files (ulimit -n) and the routes \
         of this rank's host", std::io::Error::from_raw_os_error(*errno)
    )]
    Unopened {
        /// The address at which it listens.
        remote: SocketAddr,
        /// For how long it was tried.
        waited: Duration,
        /// The system's number of the error of the last try.
        errno: i32,
    },
    /// The bytes on a connection make no sense.
    #[error("{remote} sent what makes no frames; run the same version on all ranks")]
    Garbled {
        /// The address at which it listens, or would.
        remote: SocketAddr,
    },
    /// A frame came damaged through TCP, which cannot bring it again.
    #[error(
        "{remote} sent a frame whose CRC32C is wrong, and a byte stream cannot bring it again: a network card, its driver or memory on the \
         way damages data. Take that host or path out of the job, or use transport = \"rud\", which sends again"
    )]
    Corrupted {
        /// The address at which it listens, or would.
        remote: SocketAddr,
    },
    /// One side's frames carry a CRC and the other's do not.
    #[error("{rank} has `crc` otherwise than this rank, where it is {ours}; give all ranks the same `crc`")]
    CrcDiffers {
        /// The peer.
        rank: Rank,
        /// This rank's setting: on or off.
        ours: &'static str,
    },
    /// Its writes to the rings that it shares with this rank make no sense.
    #[error(
        "it has written what makes no messages to the memory that its host shares; run the same version on all ranks, and look for \
         what overwrites its memory"
    )]
    Scrambled,
    /// Its host answers and its process gives no heartbeat.
    #[error(
        "{remote} has given no heartbeat for {after:?}, though its connection is open; see whether its process was stopped"
    )]
    Silent {
        /// The address at which it listens.
        remote: SocketAddr,
        /// The time since anything was received from it.
        after: Duration,
    },
}

impl Loss {
    /// The abort reason for the peer, where it is not [this rank's own](Self::is_own).
    pub fn reason(&self) -> AbortReason {
        match self {
            Self::Rud(rud::Failure::NoProgress { .. }) => AbortReason::Unreachable,
            Self::Garbled { .. } | Self::CrcDiffers { .. } | Self::Scrambled => AbortReason::Protocol,
            _ => AbortReason::Failed,
        }
    }

    /// Whether this host may be the one that is cut off, rather than the peer: the peer does not answer, or has taken this rank for lost, and reset
    /// its connections.
    pub fn may_be_own(&self) -> bool {
        matches!(
            self,
            Self::Rud(_)
                | Self::Tcp(_)
                | Self::Unopened { .. }
                | Self::Unconnected { .. }
                | Self::Silent { .. }
        )
    }

    /// Whether it is this rank's own host that cannot be reached, rather than the peer's.
    pub fn is_own(&self) -> bool {
        use verbs::Fault;
        matches!(
            self,
            Self::Verbs(Fault::Local | Fault::PortDown | Fault::DeviceGone | Fault::AddressChanged)
        )
    }
}
