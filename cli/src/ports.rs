//! TCP ports of a job's ranks, which nobody listens on before the ranks do.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rand::rngs::OsRng;
use rand::{Rng, TryRngCore};

#[cfg(test)]
mod tests;

/// So many random ports are tried.
const ATTEMPTS: u32 = 64;

/// A TCP port of 127.0.0.1 without a listener, below the range of ports for the kernel's clients, so that no client takes it. While this
/// lives, no other job of this host chooses it, by a name of a UNIX socket that only one process of a network namespace can have.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _name: UnixDatagram,
}

impl Port {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// # Errors
    /// The last port's: it is in use, or 127.0.0.1 is not there.
    pub(crate) fn reserve() -> io::Result<Self> {
        let mut rng = OsRng.unwrap_err();
        let mut failed = io::ErrorKind::AddrInUse.into();
        for _ in 0..ATTEMPTS {
            match Self::take(rng.random_range(20_000..32_000)) {
                Ok(port) => return Ok(port),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn take(number: u16) -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(format!("shouter-port-{number}"))?;
        let name = UnixDatagram::bind_addr(&name)?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number))?;
        Ok(Self { number, _name: name })
    }
}
