//! Streams of the kernel's TCP: non-blocking sockets, looked at in every poll (epoll, without waiting).
//!
//! Written bytes wait for the poll's end and go out in few calls; extents are free when the kernel has copied
//! them. The kernel acknowledges whether or not the process runs, so the channel sends heartbeats of its own.
//! No thread sleeps on a socket: the runtime parks for at most some hundred microseconds while a thread waits, and its
//! helper looks every few milliseconds between calls.

mod socket;
mod sys;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll};
use shouter_netstack::device::DeviceCounters;
use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{Error, Failure, ReleaseToken};
use shouter_netstack::time::Instant;
use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, Type};

use super::streams::{ConnectError, ConnectionInfo, ListenError, StreamEvent, Streams};
use socket::{Socket, Stage};

/// The listener's name in epoll.
const LISTENER: mio::Token = mio::Token(usize::MAX);

/// Announcements taken in one poll.
const EVENTS: usize = 256;

/// Bytes read in one call.
const BUFFER: usize = 256 << 10;

/// Bytes read from one connection in one poll; then the others have theirs.
const BUDGET: usize = 1 << 20;

/// Interval of the polls for acknowledgements, while some are missing.
const SAMPLE: Duration = Duration::from_millis(1);

/// After this process had no descriptor to spare for a peer that connects.
const PAUSE: Duration = Duration::from_millis(10);

/// Connections that wait to be accepted; the kernel has a limit of its own (somaxconn).
const BACKLOG: i32 = 4096;

/// A connection: a slot and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    index: u32,
    generation: u32,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    socket: Option<Box<Socket>>,
}

/// A listener and connections of the kernel's.
pub struct KernelStreams {
    poll: Poll,
    ready: Events,
    /// Open until all connections with peers exist.
    listener: Option<TcpListener>,
    local: SocketAddr,
    dead_after: Duration,
    slots: Vec<Slot>,
    free: Vec<u32>,
    events: VecDeque<StreamEvent<SocketId>>,
    /// Those with something to write that the kernel may take.
    dirty: Vec<SocketId>,
    /// Those with something unacknowledged, and when they are looked at.
    watched: Vec<SocketId>,
    sample_at: Instant,
    /// Those that were not read to their end because their poll was over.
    again: Vec<SocketId>,
    /// When to try to accept again.
    accept_at: Option<Instant>,
    /// It was logged that a connection could not be accepted.
    has_told: bool,
    polls: u64,
    buffer: Box<[u8]>,
    counters: DeviceCounters,
}

impl KernelStreams {
    /// Listens on `local`; with port 0 on one that the kernel chooses. Connections fail when a peer's host has not answered
    /// for `dead_after`.
    ///
    /// # Errors
    /// [`ListenError`] with the kernel's error.
    pub fn bind(local: SocketAddr, dead_after: Duration) -> Result<Self, ListenError> {
        Self::try_bind(local, dead_after).map_err(|why| ListenError::Socket { local, why })
    }

    fn try_bind(local: SocketAddr, dead_after: Duration) -> io::Result<Self> {
        let socket = RawSocket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.bind(&local.into())?;
        socket.listen(BACKLOG)?;
        let mut listener = TcpListener::from_std(socket.into());
        let local = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            ready: Events::with_capacity(EVENTS),
            listener: Some(listener),
            local,
            dead_after,
            slots: vec![],
            free: vec![],
            events: VecDeque::new(),
            dirty: vec![],
            watched: vec![],
            sample_at: Instant::ZERO,
            again: vec![],
            accept_at: None,
            has_told: false,
            polls: 0,
            buffer: vec![0; BUFFER].into(),
            counters: DeviceCounters::default(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn get(&self, id: SocketId) -> Option<&Socket> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.socket.as_deref()
    }

    fn get_mut(&mut self, id: SocketId) -> Option<&mut Socket> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.socket.as_deref_mut()
    }

    /// Gives a connection a slot and makes it known to epoll.
    fn add(
        &mut self,
        now: Instant,
        stream: TcpStream,
        remote: SocketAddr,
        stage: Stage,
    ) -> io::Result<SocketId> {
        let mut socket = Box::new(Socket::new(stream, remote, stage, self.dead_after, now)?);
        let index = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        let (token, interest) = (mio::Token(index as usize), Interest::READABLE | Interest::WRITABLE);
        self.poll.registry().register(&mut socket.stream, token, interest)?;
        if self.free.pop().is_none() {
            self.slots.push(Slot::default());
        }
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(io::ErrorKind::Other.into()) };
        slot.socket = Some(socket);
        Ok(SocketId { index, generation: slot.generation })
    }

    /// A connection is over; reports it once.
    fn fail(&mut self, id: SocketId, failure: Failure) {
        let Self { slots, events, .. } = self;
        let slot = slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation);
        let Some(socket) = slot.and_then(|slot| slot.socket.as_deref_mut()) else { return };
        if !matches!(socket.stage, Stage::Failed(_)) {
            socket.stage = Stage::Failed(failure);
            socket.drop_queue(|token| events.push_back(StreamEvent::Dropped(id, token)));
            events.push_back(StreamEvent::Failed(id, failure));
        }
    }

    /// Handles epoll's events of a connection.
    fn on_ready(&mut self, readiness: &Readiness) {
        let index = readiness.token().0;
        let Some(slot) = self.slots.get(index) else { return };
        let id = SocketId { index: index as u32, generation: slot.generation };
        let Some(socket) = self.get_mut(id) else { return };
        if socket.stage == Stage::Connecting {
            match progress(socket) {
                Ok(true) => socket.stage = Stage::Open,
                Ok(false) => return,
                Err(why) => {
                    let failure = failure_of(&why, socket.remote, self.dead_after);
                    return self.fail(id, failure);
                }
            }
        }
        if readiness.is_writable() {
            socket.blocked = false;
        }
        let ending = readiness.is_read_closed() || readiness.is_write_closed() || readiness.is_error();
        let readable = readiness.is_readable() || ending;
        if readable {
            socket.readable(ending);
        }
        let wants = socket.has_output() && !socket.blocked && !std::mem::replace(&mut socket.is_dirty, true);
        if wants {
            self.dirty.push(id);
        }
        if readable {
            self.events.push_back(StreamEvent::Readable(id));
        }
    }

    /// Ensures that queued bytes are written at the poll's end.
    fn mark(&mut self, id: SocketId) {
        if let Some(socket) = self.get_mut(id)
            && !socket.blocked
            && !std::mem::replace(&mut socket.is_dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// Polls for acknowledgements.
    #[cold]
    fn sample(&mut self, now: Instant) {
        self.sample_at = now + SAMPLE;
        for id in std::mem::take(&mut self.watched) {
            let dead_after = self.dead_after;
            let Some(socket) = self.get_mut(id) else { continue };
            if matches!(socket.stage, Stage::Failed(_)) {
                continue;
            }
            let sampled = socket.sample(now, dead_after);
            socket.is_watched = socket.is_owed();
            if socket.is_watched {
                self.watched.push(id);
            }
            if let Err(failure) = sampled {
                self.fail(id, failure);
            }
        }
    }

    /// Reads into `buffer`; `Ok(None)` is the end of the data.
    fn read_into(&mut self, id: SocketId, buffer: &mut [u8]) -> Result<usize, Error> {
        let (poll, dead_after) = (self.polls, self.dead_after);
        let socket = self.get_mut(id).ok_or(Error::Unknown)?;
        match socket.stage {
            Stage::Connecting => return Err(Error::WouldBlock),
            Stage::Failed(failure) => return Err(failure.into()),
            Stage::Open => {}
        }
        match socket.read(poll, BUDGET, buffer) {
            Some(Ok(count)) => {
                self.counters.rx_bytes += count as u64;
                Ok(count)
            }
            Some(Err(why)) if why.kind() == io::ErrorKind::WouldBlock => Err(Error::WouldBlock),
            Some(Err(why)) => {
                let failure = failure_of(&why, socket.remote, dead_after);
                self.fail(id, failure);
                Err(failure.into())
            }
            None => {
                self.again.push(id);
                Err(Error::WouldBlock)
            }
        }
    }
}

impl Streams for KernelStreams {
    type Id = SocketId;
    type Chunk<'a> = &'a [u8];

    /// The kernel acknowledges for a process that is stopped.
    const PROVES_LIFE: bool = false;

    /// It listens since it was made.
    fn listen(&mut self, _: usize) -> Result<(), ListenError> {
        Ok(())
    }

    /// From then on the kernel refuses every connection.
    fn stop_listening(&mut self, _: Instant) {
        (self.listener, self.accept_at) = (None, None);
    }

    /// The kernel chooses the address on the way by itself.
    fn connect(&mut self, now: Instant, _: IpAddr, remote: SocketAddr) -> Result<SocketId, ConnectError> {
        let added = TcpStream::connect(remote).and_then(|s| self.add(now, s, remote, Stage::Connecting));
        added.map_err(|why| ConnectError::Socket { remote, why })
    }

    fn accept(&mut self, now: Instant) -> Option<SocketId> {
        loop {
            let why = match self.listener.as_ref()?.accept() {
                Ok((stream, remote)) => match self.add(now, stream, remote, Stage::Open) {
                    Ok(id) => return Some(id),
                    Err(why) => why,
                },
                Err(why) => why,
            };
            match why.kind() {
                io::ErrorKind::WouldBlock => return None,
                // It was there and is no more.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => {
                    if !std::mem::replace(&mut self.has_told, true) {
                        tracing::warn!(
                            %why,
                            "a connection could not be accepted; this is tried again and not logged again: where too many files are open, raise \
                             that limit (ulimit -n), or lower channel_num, the connections to each other leader"
                        );
                    }
                    self.accept_at = Some(now + PAUSE);
                    return None;
                }
            }
        }
    }

    #[inline]
    fn write(&mut self, _: Instant, id: SocketId, bytes: &[u8]) -> Result<usize, Error> {
        let socket = self.get_mut(id).ok_or(Error::Unknown)?;
        if let Stage::Failed(failure) = socket.stage {
            return Err(failure.into());
        }
        if socket.room() == 0 {
            return Err(Error::WouldBlock);
        }
        let count = socket.push_bytes(bytes);
        self.mark(id);
        Ok(count)
    }

    #[inline]
    fn write_extent(
        &mut self,
        _: Instant,
        id: SocketId,
        extent: Extent,
        token: ReleaseToken,
    ) -> Result<(), Error> {
        let socket = self.get_mut(id).ok_or(Error::Unknown)?;
        if let Stage::Failed(failure) = socket.stage {
            return Err(failure.into());
        }
        if socket.room() < extent.len() {
            return Err(Error::WouldBlock);
        }
        socket.push_extent(extent, token);
        self.mark(id);
        Ok(())
    }

    fn read(&mut self, _: Instant, id: SocketId, buffer: &mut [u8]) -> Result<usize, Error> {
        self.read_into(id, buffer)
    }

    #[inline]
    fn read_chunk(&mut self, _: Instant, id: SocketId) -> Result<Option<&[u8]>, Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.read_into(id, &mut buffer);
        self.buffer = buffer;
        match result? {
            0 => Ok(None),
            count => Ok(self.buffer.get(..count)),
        }
    }

    #[inline]
    fn info(&self, id: SocketId) -> Option<ConnectionInfo> {
        self.get(id).map(Socket::info)
    }

    fn abort(&mut self, _: Instant, id: SocketId) {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return };
        if slot.generation != id.generation {
            return;
        }
        let Some(socket) = slot.socket.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        // Closing resets the connection then, and takes it out of epoll.
        if let Err(why) = SockRef::from(&socket.stream).set_linger(Some(Duration::ZERO)) {
            tracing::debug!(%why, "a connection ends without a reset");
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<StreamEvent<SocketId>> {
        self.events.pop_front()
    }

    fn receive(&mut self, now: Instant) -> bool {
        self.polls += 1;
        self.events.extend(self.again.drain(..).map(StreamEvent::Readable));
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.events.push_back(StreamEvent::Acceptable);
        }
        let mut ready = std::mem::replace(&mut self.ready, Events::with_capacity(0));
        match self.poll.poll(&mut ready, Some(Duration::ZERO)) {
            Ok(()) => {
                for readiness in &ready {
                    match readiness.token() {
                        LISTENER => self.events.push_back(StreamEvent::Acceptable),
                        _ => self.on_ready(readiness),
                    }
                }
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => tracing::warn!(%why, "epoll"),
        }
        self.ready = ready;
        !self.events.is_empty()
    }

    fn transmit(&mut self, now: Instant) -> bool {
        let mut any = false;
        for id in std::mem::take(&mut self.dirty) {
            let Self { slots, events, counters, watched, sample_at, dead_after, .. } = self;
            let slot = slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation);
            let Some(socket) = slot.and_then(|slot| slot.socket.as_deref_mut()) else { continue };
            socket.is_dirty = false;
            match socket.flush(|token| events.push_back(StreamEvent::Released(id, token))) {
                Ok(count) => {
                    any |= count > 0;
                    counters.tx_bytes += count as u64;
                    if !std::mem::replace(&mut socket.is_watched, true) {
                        if watched.is_empty() {
                            *sample_at = now + SAMPLE;
                        }
                        watched.push(id);
                    }
                }
                Err(why) => {
                    let failure = failure_of(&why, socket.remote, *dead_after);
                    self.fail(id, failure);
                }
            }
        }
        if !self.watched.is_empty() && self.sample_at <= now {
            self.sample(now);
        }
        any || !self.events.is_empty()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sample = (!self.watched.is_empty()).then_some(self.sample_at);
        [sample, self.accept_at].into_iter().flatten().min()
    }

    /// The kernel copies.
    fn drop_waiting(&mut self) {}

    fn checksum_dropped(&self) -> u64 {
        0
    }

    /// Bytes only: the frames are the kernel's.
    fn device_counters(&self) -> DeviceCounters {
        self.counters
    }
}

/// Whether a connection attempt has succeeded.
fn progress(socket: &Socket) -> io::Result<bool> {
    if let Some(why) = socket.stream.take_error()? {
        return Err(why);
    }
    match socket.stream.peer_addr() {
        // If no socket listens on a port of this host, the kernel can connect a socket with itself.
        Ok(remote) if socket.stream.local_addr()? == remote => Err(io::ErrorKind::ConnectionRefused.into()),
        Ok(_) => Ok(true),
        Err(why) if why.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(why) => Err(why),
    }
}

/// The kernel's error as our own TCP would have put it.
fn failure_of(why: &io::Error, remote: SocketAddr, dead_after: Duration) -> Failure {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, TimedOut, WriteZero,
    };
    match why.kind() {
        ConnectionRefused => Failure::Refused { remote },
        ConnectionReset | ConnectionAborted | BrokenPipe | WriteZero => Failure::Reset { remote },
        TimedOut => Failure::TimedOut { remote, after: dead_after },
        _ => {
            tracing::debug!(%remote, %why, "a connection has failed");
            Failure::Unreachable { remote }
        }
    }
}

#[cfg(test)]
mod tests;
