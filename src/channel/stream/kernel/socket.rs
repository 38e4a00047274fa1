//! One connection of the kernel's: its unwritten bytes, and its state.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use mio::net::TcpStream;
use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{Failure, ReleaseToken};
use shouter_netstack::time::Instant;
use socket2::{SockRef, TcpKeepalive};

use super::super::share::Load;
use super::super::streams::ConnectionInfo;
use super::sys;

/// Bytes that may wait for the kernel to take them.
pub(super) const QUEUE: usize = 256 << 10;

/// The kernel takes no more while it has so many bytes unsent (TCP_NOTSENT_LOWAT of tcp(7)).
const UNSENT: u32 = 128 << 10;

/// So many unanswered probes of a full window are a sign that the peer is gone.
const PROBES: u8 = 3;

/// Pieces given to the kernel in one call.
const PIECES: usize = 16;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Connecting,
    Open,
    Failed(Failure),
}

/// A piece that waits to be written, in order.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// So many of the staged bytes.
    Staged(usize),
    /// An extent, from an offset on.
    Extent(Extent, usize, ReleaseToken),
}

/// The kernel's last statistics.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Bytes that it had taken by then, and those of them that were not acknowledged.
    written: u64,
    unacknowledged: usize,
    rate: f64,
    retransmitted: u64,
    /// When the peer last acknowledged something new, or owed nothing.
    progress: Instant,
}

/// A connection.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) stage: Stage,
    staged: Vec<u8>,
    staged_at: usize,
    queue: VecDeque<Piece>,
    /// Bytes in the queue.
    queued: usize,
    /// The kernel's buffer is full; an event follows when it is writable.
    pub(super) blocked: bool,
    /// It is listed among those with something to write; among those with something unacknowledged.
    pub(super) is_dirty: bool,
    pub(super) is_watched: bool,
    /// Everything that was announced has been read.
    drained: bool,
    /// The end of the data, or an error, was announced; it is not announced again.
    ending: bool,
    /// Bytes read in a poll.
    taken: (u64, usize),
    /// Bytes that the kernel has taken.
    written: u64,
    sample: Sample,
}

impl Socket {
    /// A socket with the options of a group whose dead ranks are found after `dead_after`.
    pub(super) fn new(
        stream: TcpStream,
        remote: SocketAddr,
        stage: Stage,
        dead_after: Duration,
        now: Instant,
    ) -> io::Result<Self> {
        let options = SockRef::from(&stream);
        options.set_tcp_nodelay(true)?;
        options.set_tcp_notsent_lowat(UNSENT)?;
        // Whole seconds are the kernel's unit. TCP_USER_TIMEOUT would also end a connection whose peer lives and has no
        // room for longer (a trainer that is late), so unacknowledged bytes have a deadline of our own, in `sample`.
        let interval = (dead_after / 8).max(Duration::from_secs(1));
        let idle = dead_after.saturating_sub(interval * 4).max(interval);
        let keep_alive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(4);
        options.set_tcp_keepalive(&keep_alive)?;
        Ok(Self {
            stream,
            remote,
            stage,
            staged: vec![],
            staged_at: 0,
            queue: VecDeque::new(),
            queued: 0,
            blocked: false,
            is_dirty: false,
            is_watched: false,
            drained: false,
            ending: false,
            taken: (0, 0),
            written: 0,
            sample: Sample {
                written: 0,
                unacknowledged: 0,
                rate: Load::rate(0, None),
                retransmitted: 0,
                progress: now,
            },
        })
    }

    /// There is something to read, or it is over.
    pub(super) fn readable(&mut self, ending: bool) {
        self.drained = false;
        self.ending |= ending;
    }

    pub(super) fn has_output(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Bytes that can be queued.
    pub(super) fn room(&self) -> usize {
        if self.stage == Stage::Open { QUEUE.saturating_sub(self.queued) } else { 0 }
    }

    /// Queues bytes, as many as there is room for.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.room()).unwrap_or(bytes);
        self.staged.extend_from_slice(bytes);
        self.queued += bytes.len();
        match self.queue.back_mut() {
            Some(Piece::Staged(len)) => *len += bytes.len(),
            _ => self.queue.push_back(Piece::Staged(bytes.len())),
        }
        bytes.len()
    }

    /// Queues an extent.
    pub(super) fn push_extent(&mut self, extent: Extent, token: ReleaseToken) {
        self.queued += extent.len();
        self.queue.push_back(Piece::Extent(extent, 0, token));
    }

    /// Gives the kernel as much as it takes, and returns the number of bytes; `released` gets the tokens of extents
    /// that it has copied.
    pub(super) fn flush(&mut self, mut released: impl FnMut(ReleaseToken)) -> io::Result<usize> {
        let mut total = 0;
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut staged = self.staged.get(self.staged_at..).unwrap_or_default();
            for (slice, piece) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(match piece {
                    Piece::Staged(len) => {
                        let (bytes, rest) = staged.split_at_checked(*len).unwrap_or((staged, &[]));
                        staged = rest;
                        bytes
                    }
                    Piece::Extent(extent, at, _) => extent.as_bytes().get(*at..).unwrap_or_default(),
                });
            }
            let pieces = slices.get(..self.queue.len()).unwrap_or(&slices);
            match self.stream.write_vectored(pieces) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    total += count;
                    self.advance(count, &mut released);
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(total)
    }

    /// The kernel has taken the first `count` bytes of the queue.
    fn advance(&mut self, mut count: usize, released: &mut impl FnMut(ReleaseToken)) {
        self.written += count as u64;
        self.queued = self.queued.saturating_sub(count);
        while let Some(piece) = self.queue.front_mut() {
            let (left, token) = match piece {
                Piece::Staged(len) => {
                    let taken = count.min(*len);
                    *len -= taken;
                    self.staged_at += taken;
                    count -= taken;
                    (*len, None)
                }
                Piece::Extent(extent, at, token) => {
                    let taken = count.min(extent.len() - *at);
                    *at += taken;
                    count -= taken;
                    (extent.len() - *at, Some(*token))
                }
            };
            if left > 0 {
                break;
            }
            self.queue.pop_front();
            token.into_iter().for_each(&mut *released);
        }
        if self.staged_at == self.staged.len() {
            self.staged.clear();
            self.staged_at = 0;
        }
    }

    /// Forgets the queue; `released` gets the tokens of its extents.
    pub(super) fn drop_queue(&mut self, mut released: impl FnMut(ReleaseToken)) {
        for piece in self.queue.drain(..) {
            if let Piece::Extent(_, _, token) = piece {
                released(token);
            }
        }
        (self.queued, self.staged_at) = (0, 0);
        self.staged.clear();
    }

    /// Reads the received bytes, at most `budget` in one poll (within one call to spare): `None` if that is used up.
    pub(super) fn read(&mut self, poll: u64, budget: usize, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        if self.drained && !self.ending {
            return Some(Err(io::ErrorKind::WouldBlock.into()));
        }
        if self.taken.0 != poll {
            self.taken = (poll, 0);
        }
        if self.taken.1 >= budget {
            return None;
        }
        let result = loop {
            match self.stream.read(buffer) {
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        // A read that returns less than it asked for has got everything (epoll(7)).
        let count = result.as_ref().map_or(0, |count| *count);
        self.drained = count < buffer.len();
        self.taken.1 += count;
        Some(result)
    }

    /// Polls the kernel for acknowledgements of the written bytes. An error if the peer has acknowledged nothing for
    /// `dead_after`, not even that it has no room (as RFC 9293 section 3.8.6.1 requires). Where it has none, the kernel
    /// probes it ever more seldom, so that it says little: that its process runs is seen on the connection for control
    /// messages.
    pub(super) fn sample(&mut self, now: Instant, dead_after: Duration) -> Result<(), Failure> {
        let unacknowledged = sys::unacknowledged(self.stream.as_fd());
        let acknowledged =
            |written: u64, unacknowledged: usize| written.saturating_sub(unacknowledged as u64);
        let before = acknowledged(self.sample.written, self.sample.unacknowledged);
        if unacknowledged == 0 || acknowledged(self.written, unacknowledged) > before {
            self.sample.progress = now;
        }
        (self.sample.written, self.sample.unacknowledged) = (self.written, unacknowledged);
        let Some(info) = sys::tcp_info(self.stream.as_fd()) else { return Ok(()) };
        let window = u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss);
        let round_trip = (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()));
        self.sample.rate = Load::rate(window, round_trip);
        self.sample.retransmitted = info.tcpi_total_retrans.into();
        let silent = now.saturating_since(self.sample.progress);
        let unheard = Duration::from_millis(info.tcpi_last_ack_recv.into());
        let has_no_room = info.tcpi_unacked == 0 && info.tcpi_probes < PROBES;
        if !has_no_room && silent.min(unheard) >= dead_after {
            return Err(Failure::TimedOut { remote: self.remote, after: silent.min(unheard) });
        }
        Ok(())
    }

    /// Whether something that was written is not known to be acknowledged.
    pub(super) fn is_owed(&self) -> bool {
        self.sample.unacknowledged > 0 || self.written > self.sample.written || !self.queue.is_empty()
    }

    pub(super) fn info(&self) -> ConnectionInfo {
        let since = self.written.saturating_sub(self.sample.written) as usize;
        let unacknowledged = self.sample.unacknowledged + since;
        ConnectionInfo {
            remote: self.remote,
            writable: if self.blocked { 0 } else { self.room() },
            unacknowledged: unacknowledged + self.queued,
            unsent: self.queued,
            rate: self.sample.rate,
            acknowledged: self.written.saturating_sub(unacknowledged as u64),
            retransmitted: self.sample.retransmitted,
        }
    }
}
