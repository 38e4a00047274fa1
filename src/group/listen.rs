//! Rank 0's port.

use std::io;
use std::net::{IpAddr, TcpListener};

use super::error::JoinError;
use super::rendezvous_config::{RendezvousConfig, resolve};

/// Opens rank 0's port: on its address when that is given and this host's, else on all of the family's.
pub(super) fn listen(config: &RendezvousConfig) -> Result<TcpListener, JoinError> {
    let failed = |why: io::Error| JoinError::CannotListen {
        host: config.host.clone(),
        port: config.port,
        why: why.to_string(),
    };
    let listener = match (&config.listener, config.host.parse::<IpAddr>()) {
        (Some(listener), _) => listener.try_clone(),
        (None, Ok(ip)) => match TcpListener::bind((ip, config.port)) {
            // An address that stands for this host without being one of its own: behind a NAT, or a service.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                tracing::info!(address = %ip, "not an address of this host; listening on all of them");
                TcpListener::bind((all_of_family(ip), config.port))
            }
            result => result,
        },
        // A host's own name often means 127.0.1.1 to itself and something else to the others.
        (None, Err(_)) => {
            let first = resolve(config)?.first().map_or(IpAddr::from([0; 4]), |address| address.ip());
            TcpListener::bind((all_of_family(first), config.port))
        }
    };
    let listener = listener.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

fn all_of_family(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0u16; 8]),
    }
}
