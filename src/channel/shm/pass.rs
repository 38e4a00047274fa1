//! Passes the segment's descriptor to the other ranks of the node: over a UNIX socket in the abstract namespace.
//!
//! The socket's name is derived from the group's secret, so it cannot be guessed without it; both sides check that the other
//! process belongs to the same user and has the secret's proof. The others come first and send how much they can map;
//! local rank 0 then makes a segment that all of them can, and passes it on. Where it cannot, it sends them the reason.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::layout::SegmentShape;
use super::segment::{NodeSegment, SegmentError};
use super::sys;
use crate::group::error::{ExchangeError, Missing};
use crate::key::Key;

/// The interval of the checks for a connection.
const PAUSE: Duration = Duration::from_millis(1);
/// The timeout of a silent connection.
const SILENCE: Duration = Duration::from_secs(5);
/// The first byte of local rank 0's answer: the descriptor comes with it, and behind it the arena's size.
const SEGMENT: u8 = 1;
/// The first byte of an answer without a segment: the rank that is to blame and a text with the reason follow.
const REFUSAL: u8 = 0;
/// The longest text of a refusal that is read, in bytes.
const LONGEST_REFUSAL: u64 = 4096;
/// Bytes that a rank begins with: its proof, its local number, and the bytes of address space that it has.
const HELLO: usize = 32 + 4 + 8;
/// The purpose of that proof.
const PROOF: &str = "proof";

/// Why the ranks of a node did not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PassError {
    /// The segment itself.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A system call.
    #[error("passing shared memory between the ranks of a host: {0}")]
    System(#[from] io::Error),
    /// Local rank 0 made no segment.
    #[error("the first rank of this host made no shared memory for it: {why}")]
    First {
        /// Its reason; or that it is gone.
        why: String,
    },
    /// Local rank 0 waited in vain for this rank.
    #[error("{why}")]
    Other {
        /// Its number in the job.
        rank: u32,
        /// The error of local rank 0, which names it.
        why: String,
    },
    /// A rank of the job has ended meanwhile.
    #[error(transparent)]
    Ended(#[from] ExchangeError),
    /// A rank was there and is gone.
    #[error("rank {rank} has ended while the shared memory of its host was made: {why}")]
    Gone {
        /// Its number in the job.
        rank: u32,
        /// The error of the connection to it.
        why: io::Error,
    },
    /// A rank did not connect in time.
    #[error(
        "{missing} did not ask for the shared memory of the host within {waited:?}: see whether it was stopped or has ended, and \
         that all ranks of the host are in the same network namespace and of the same user"
    )]
    Missing {
        /// Those that did not come.
        missing: Missing,
        /// The time waited.
        waited: Duration,
    },
}

impl PassError {
    /// The rank that is to blame, unless it is the one whose error this is.
    pub(crate) fn rank(&self) -> Option<u32> {
        match self {
            Self::Ended(why) => why.rank(),
            Self::Gone { rank, .. } | Self::Other { rank, .. } => Some(*rank),
            Self::Missing { missing, .. } => missing.ranks.first().copied(),
            Self::First { .. } | Self::Segment(_) | Self::System(_) => None,
        }
    }
}

/// Whether all ranks are still there; if not, why.
type Check<'a> = &'a mut dyn FnMut() -> Result<(), ExchangeError>;

/// The segment of this node, shared with its other ranks. Every rank of the node calls it: local rank 0 makes the
/// segment and passes it on, the others fetch it. `secret` is the group's. The arena is smaller than in the shape where
/// a rank's address space is limited. `check` is called while others are waited for, and fails when they cannot come
/// any more.
///
/// # Errors
/// If the others do not come before the deadline, or memory cannot be had.
pub(crate) fn meet(
    secret: &Key,
    node: u32,
    local: u32,
    shape: SegmentShape,
    wait: Duration,
    check: Check<'_>,
) -> Result<NodeSegment, PassError> {
    let key = secret.derive("shouter node segment", &[&node.to_le_bytes()]);
    let name = SocketAddr::from_abstract_name(format!("shouter-{}", hex::encode(key.tag("name", &[]))))?;
    // Ranks fill hosts in blocks, of as many on each.
    let first = node * shape.ranks;
    if local == 0 {
        give(&name, &key, first, shape, wait, check)
    } else {
        fetch(&name, &key, (first, local), shape, wait, check)
    }
}

/// A rank that waits for the segment.
struct WaitingRank {
    local: u32,
    stream: UnixStream,
    /// Bytes of address space that it may still map.
    room: u64,
}

fn give(
    name: &SocketAddr,
    key: &Key,
    first: u32,
    shape: SegmentShape,
    wait: Duration,
    check: Check<'_>,
) -> Result<NodeSegment, PassError> {
    let listener = UnixListener::bind_addr(name)?;
    listener.set_nonblocking(true)?;
    let mut waiting = Vec::new();
    let made = gather(&listener, key, first..first + shape.ranks, wait, check, &mut waiting).and_then(|()| {
        let least = waiting.iter().map(|rank| rank.room).fold(sys::address_room(), u64::min);
        let segment = NodeSegment::create(shape.within(least))?;
        waiting.iter().try_for_each(|rank| pass(rank, first, &segment))?;
        Ok(segment)
    });
    made.inspect_err(|error| {
        // A rank that has the segment already reads no more.
        let rank = error.rank().unwrap_or(first).to_le_bytes();
        let refusal = [&[REFUSAL], &rank[..], error.to_string().as_bytes()].concat();
        for rank in &waiting {
            if let Err(error) = (&rank.stream).write_all(&refusal) {
                tracing::debug!(local = rank.local, %error, "the reason why there is no shared memory was not sent to a rank");
            }
        }
    })
}

/// Waits until all `ranks` of the host but the first are there.
fn gather(
    listener: &UnixListener,
    key: &Key,
    ranks: Range<u32>,
    wait: Duration,
    check: Check<'_>,
    waiting: &mut Vec<WaitingRank>,
) -> Result<(), PassError> {
    let begin = Instant::now();
    let first = ranks.start;
    let ranks = ranks.end - first;
    let is_there = |waiting: &[WaitingRank], local| waiting.iter().any(|rank| rank.local == local);
    while waiting.len() + 1 < ranks as usize {
        match listener.accept() {
            Ok((stream, _)) => match welcome(stream, key) {
                Ok(rank) if (1..ranks).contains(&rank.local) && !is_there(waiting, rank.local) => {
                    waiting.push(rank)
                }
                Ok(rank) => tracing::warn!(
                    local = rank.local,
                    "a rank that is not due asked for the host's shared memory"
                ),
                Err(error) => {
                    tracing::warn!(%error, "an unauthenticated process asked for the host's shared memory")
                }
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if begin.elapsed() > wait {
                    let missing = (1..ranks).filter(|local| !is_there(waiting, *local));
                    let missing = Missing::of(missing.map(|local| first + local));
                    return Err(PassError::Missing { missing, waited: wait });
                }
                check()?;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads and checks a rank's first message.
fn welcome(mut stream: UnixStream, key: &Key) -> io::Result<WaitingRank> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    sys::same_user(&stream)?;
    let (mut said, mut local, mut room) = ([0; 32], [0; 4], [0; 8]);
    stream.read_exact(&mut said)?;
    if !key.verify(PROOF, &[], &said) {
        return Err(io::Error::other("its proof is wrong"));
    }
    stream.read_exact(&mut local)?;
    stream.read_exact(&mut room)?;
    Ok(WaitingRank { local: u32::from_le_bytes(local), stream, room: u64::from_le_bytes(room) })
}

/// Hands the segment to a rank.
fn pass(rank: &WaitingRank, first: u32, segment: &NodeSegment) -> Result<(), PassError> {
    let mut stream = &rank.stream;
    sys::send_descriptor(stream, SEGMENT, segment.fd())
        .and_then(|()| stream.write_all(&(segment.arena_bytes() as u64).to_le_bytes()))
        .map_err(|why| PassError::Gone { rank: first + rank.local, why })
}

fn fetch(
    name: &SocketAddr,
    key: &Key,
    (first, local): (u32, u32),
    shape: SegmentShape,
    wait: Duration,
    check: Check<'_>,
) -> Result<NodeSegment, PassError> {
    let begin = Instant::now();
    let stream = loop {
        match UnixStream::connect_addr(name) {
            Ok(stream) => break stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                if begin.elapsed() > wait {
                    let missing = Missing::of([first].into_iter());
                    return Err(PassError::Missing { missing, waited: wait });
                }
                check()?;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    };
    // Local rank 0 answers when all ranks have come, or at its own deadline.
    stream.set_read_timeout(Some(wait.saturating_add(SILENCE)))?;
    sys::same_user(&stream)?;
    let (fd, arena_bytes) = ask(&stream, key, (first, local))?;
    Ok(NodeSegment::attach(fd, SegmentShape { arena_bytes, ..shape }, local)?)
}

/// Asks local rank 0 for the segment; its descriptor, and the bytes of each rank's arena.
fn ask(
    mut stream: &UnixStream,
    key: &Key,
    (first, local): (u32, u32),
) -> Result<(OwnedFd, usize), PassError> {
    let gone = |error: io::Error| PassError::First { why: format!("it gave no answer ({error})") };
    let mut hello = [0; HELLO];
    hello[..32].copy_from_slice(&key.tag(PROOF, &[]));
    hello[32..36].copy_from_slice(&local.to_le_bytes());
    hello[36..].copy_from_slice(&sys::address_room().to_le_bytes());
    stream.write_all(&hello).map_err(gone)?;
    match sys::receive_descriptor(stream).map_err(gone)? {
        Some((SEGMENT, Some(fd))) => {
            let mut arena = [0; 8];
            stream.read_exact(&mut arena).map_err(gone)?;
            let arena = usize::try_from(u64::from_le_bytes(arena)).map_err(io::Error::other)?;
            Ok((fd, arena))
        }
        Some((REFUSAL, _)) => {
            let (mut rank, mut why) = ([0; 4], Vec::new());
            stream.read_exact(&mut rank).map_err(gone)?;
            stream.take(LONGEST_REFUSAL).read_to_end(&mut why).map_err(gone)?;
            let why = String::from_utf8_lossy(&why).into_owned();
            Err(match u32::from_le_bytes(rank) {
                rank if rank == first => PassError::First { why },
                rank => PassError::Other { rank, why },
            })
        }
        Some(_) => {
            Err(PassError::First { why: "its answer is not one; run the same version on all ranks".into() })
        }
        None => Err(PassError::First { why: "its process has ended".into() }),
    }
}
