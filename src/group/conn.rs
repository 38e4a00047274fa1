//! A non-blocking TCP connection with its receive and send buffers.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::frame::{FrameError, Framer, HEADER_LEN};
use super::message::Message;
use crate::wire::{self, Unencodable};

/// How much is read from a connection before the others are read, in bytes.
const READ_AT_ONCE: usize = 256 * 1024;

/// A connection on which nothing happens is probed so often: more often than firewalls forget it.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// A connection with its two buffers.
pub(super) struct Conn {
    stream: TcpStream,
    peer: SocketAddr,
    /// Received bytes that are not consumed yet.
    pub(super) inbox: Vec<u8>,
    outbox: Vec<u8>,
    written: usize,
    traffic: Traffic,
}

/// Bytes that connections have carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From this rank.
    pub sent: u64,
    /// To this rank.
    pub received: u64,
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self { sent: a.sent + b.sent, received: a.received + b.received })
    }
}

/// Whether the peer may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadStatus {
    Open,
    Closed,
}

impl Conn {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let probes = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&probes)?;
        Ok(Self {
            stream,
            peer,
            inbox: Vec::new(),
            outbox: Vec::new(),
            written: 0,
            traffic: Traffic::default(),
        })
    }

    /// The addresses of this side and of the other one.
    pub(super) fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        Some((self.stream.local_addr().ok()?.ip(), self.peer.ip()))
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn has_output(&self) -> bool {
        self.written < self.outbox.len()
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Reads the available bytes, as long as the inbox holds less than `limit`. The buffer grows with the received
    /// bytes, not with the announced length.
    pub(super) fn read(&mut self, limit: usize) -> io::Result<ReadStatus> {
        let mut chunk = [0u8; 16 * 1024];
        let mut budget = READ_AT_ONCE;
        while self.inbox.len() < limit && budget > 0 {
            let room = (limit - self.inbox.len()).min(chunk.len()).min(budget);
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => return Ok(ReadStatus::Closed),
                Ok(read) => {
                    self.inbox.extend_from_slice(&chunk[..read]);
                    self.traffic.received += read as u64;
                    budget -= read;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ReadStatus::Open)
    }

    /// Reads the available bytes and discards them.
    pub(super) fn discard(&mut self) -> io::Result<ReadStatus> {
        self.inbox.clear();
        let end = self.read(READ_AT_ONCE);
        self.inbox.clear();
        end
    }

    /// Appends bytes to the send buffer.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        if !self.has_output() {
            self.outbox.clear();
            self.written = 0;
        }
        self.outbox.extend_from_slice(bytes);
    }

    /// Writes as much as the connection takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.has_output() {
            match self.stream.write(&self.outbox[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.written += written;
                    self.traffic.sent += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !self.has_output() {
            self.outbox = Vec::new();
            self.written = 0;
        }
        Ok(())
    }
}

/// A mutually authenticated connection.
pub(super) struct Trusted {
    pub(super) conn: Conn,
    framer: Framer,
}

impl Trusted {
    pub(super) fn new(conn: Conn, framer: Framer) -> Self {
        Self { conn, framer }
    }

    /// The connection and its framer, apart.
    pub(super) fn into_parts(self) -> (Conn, Framer) {
        (self.conn, self.framer)
    }

    /// Appends a message to the send buffer.
    pub(super) fn queue(&mut self, message: &Message) -> Result<(), Unencodable> {
        self.queue_encoded(&wire::encode(message)?);
        Ok(())
    }

    /// The same for a message that goes to several ranks, and is encoded once.
    pub(super) fn queue_encoded(&mut self, message: &[u8]) {
        let bytes = self.framer.seal(message);
        self.conn.queue(&bytes);
    }

    /// The next message of at most `limit` bytes, if one is whole.
    pub(super) fn next(&mut self, limit: usize) -> Result<Option<Message>, FrameError> {
        self.framer.open(&mut self.conn.inbox, limit)
    }

    /// Reads as many bytes as one message of `limit` bytes may need.
    pub(super) fn read(&mut self, limit: usize) -> io::Result<ReadStatus> {
        self.conn.read(HEADER_LEN + limit)
    }
}
