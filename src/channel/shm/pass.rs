//! How the segment's descriptor reaches the other ranks of the node: over a UNIX socket in the abstract namespace.
//!
//! The socket's name is derived from the group's secret, so nobody else can guess it; both sides check that the other
//! process belongs to the same user and knows the secret's proof.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::layout::Shape;
use super::segment::{NodeSegment, SegmentError};
use super::sys;

/// Between two looks for a connection.
const PAUSE: Duration = Duration::from_millis(1);
/// What a connection that says nothing is given.
const SILENCE: Duration = Duration::from_secs(5);

/// Why the ranks of a node did not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The segment itself.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A system call.
    #[error("passing shared memory between the ranks of a host: {0}")]
    System(#[from] io::Error),
    /// Somebody did not come.
    #[error(
        "{missing} of {expected} ranks of this host did not fetch the shared memory within {waited:?}; are all ranks of \
         the host in the same network namespace and of the same user?"
    )]
    Missing {
        /// How many did not come.
        missing: usize,
        /// How many were expected.
        expected: usize,
        /// How long it was waited.
        waited: Duration,
    },
}

/// The segment of this node, shared with its other ranks. Every rank of the node calls it: local rank 0 makes the
/// segment and passes it on, the others fetch it. `secret` is the group's.
///
/// # Errors
/// If the others do not come before the deadline, or memory cannot be had.
pub fn meet(
    secret: &[u8; 32],
    node: u32,
    local: u32,
    shape: Shape,
    wait: Duration,
) -> Result<NodeSegment, PassError> {
    let name = SocketAddr::from_abstract_name(format!("shouter-{}", hex(&derive(secret, node, b"name"))))?;
    let proof = derive(secret, node, b"proof");
    if local == 0 {
        let segment = NodeSegment::create(shape)?;
        give(&segment, &name, &proof, shape.ranks as usize - 1, wait)?;
        Ok(segment)
    } else {
        let fd = fetch(&name, &proof, wait)?;
        Ok(NodeSegment::attach(fd, shape, local)?)
    }
}

fn give(
    segment: &NodeSegment,
    name: &SocketAddr,
    proof: &[u8; 32],
    others: usize,
    wait: Duration,
) -> Result<(), PassError> {
    let listener = UnixListener::bind_addr(name)?;
    listener.set_nonblocking(true)?;
    let begin = Instant::now();
    let mut given = 0;
    while given < others {
        match listener.accept() {
            Ok((stream, _)) => match serve(&stream, segment, proof) {
                Ok(()) => given += 1,
                Err(error) => tracing::warn!(%error, "a stranger asked for the host's shared memory"),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if begin.elapsed() > wait {
                    return Err(PassError::Missing {
                        missing: others - given,
                        expected: others + 1,
                        waited: wait,
                    });
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn serve(mut stream: &UnixStream, segment: &NodeSegment, proof: &[u8; 32]) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    sys::same_user(stream)?;
    let mut said = [0; 32];
    stream.read_exact(&mut said)?;
    if !equal(&said, proof) {
        return Err(io::Error::other("its proof is wrong"));
    }
    sys::send_descriptor(stream, segment.fd())
}

fn fetch(name: &SocketAddr, proof: &[u8; 32], wait: Duration) -> Result<OwnedFd, PassError> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect_addr(name) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(wait))?;
                sys::same_user(&stream)?;
                stream.write_all(proof)?;
                return Ok(sys::receive_descriptor(&stream)?);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                if begin.elapsed() > wait {
                    return Err(PassError::Missing { missing: 1, expected: 2, waited: wait });
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A value that only those who know the secret can name.
fn derive(secret: &[u8; 32], node: u32, what: &[u8]) -> [u8; 32] {
    // HMAC takes keys of any length, so this cannot fail.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else { return [0; 32] };
    mac.update(b"shouter node segment");
    mac.update(&node.to_le_bytes());
    mac.update(what);
    mac.finalize().into_bytes().into()
}

/// Compares in constant time.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
