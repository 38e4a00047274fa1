//! The stack and the open files: the semantics of each call, without any waiting.

use core::net::SocketAddr;
use core::time::Duration;

use crate::epoll::{Epoll, ReadyEvent};
use crate::errno::{Errno, Result};
use crate::files::{File, FileKind, Files};
use crate::flags::Setup;
use crate::net::Net;
use crate::pipe::Pipes;
use crate::progress::{CallProgress, Patience};
use crate::socket::tcp::{Phase, TcpSocket, WriteEnd};
use crate::socket::udp::UdpSocket;
use crate::socket::{Domain, check_local, overlap};

/// The `ioctl`s for bytes written and not acknowledged, and for bytes not sent (`linux/sockios.h`).
const SIOCOUTQ: u64 = libc::TIOCOUTQ;
const SIOCOUTQNSD: u64 = 0x894b;

/// The result of a receive: the bytes delivered, the sender, and the length of the datagram.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) count: usize,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) full_len: usize,
    /// The value of TCP_INQ, if it is on.
    pub(crate) unread: Option<i32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) net: Net,
    files: Files,
    pipes: Pipes,
}

impl Machine {
    pub(crate) fn new(setup: Setup) -> core::result::Result<Self, String> {
        Ok(Self { net: Net::new(setup)?, files: Files::default(), pipes: Pipes::default() })
    }

    /// Runs the stack at the present time, and updates the sockets.
    pub(crate) fn run(&mut self) {
        self.net.run();
        for file in self.files.all_mut() {
            match &mut file.kind {
                FileKind::Tcp(socket) => socket.look(&mut self.net),
                FileKind::Udp(socket) => socket.look(&mut self.net),
                _ => {}
            }
        }
    }

    pub(crate) fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<i32> {
        let domain = match domain {
            libc::AF_INET => Domain::V4,
            libc::AF_INET6 => Domain::V6,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = match (kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                FileKind::Tcp(Box::new(TcpSocket::new(domain, self.net.setup.options.clone())))
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => FileKind::Udp(Box::new(UdpSocket::new(domain))),
            (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => return Err(Errno(libc::EPROTONOSUPPORT)),
            _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
        };
        self.files.open(kind, nonblocking)
    }

    pub(crate) fn bind(&mut self, fd: i32, address: SocketAddr) -> Result<()> {
        let others: Vec<(SocketAddr, bool)> = self
            .files
            .all()
            .filter(|(other, _)| *other != fd)
            .filter_map(|(_, file)| match &file.kind {
                FileKind::Tcp(socket) => {
                    Some((socket.bound?, socket.reuse && !matches!(socket.phase, Phase::Listening(_))))
                }
                _ => None,
            })
            .collect();
        match &mut self.files.get_mut(fd)?.kind {
            FileKind::Tcp(socket) => {
                let local = check_local(&self.net, socket.domain, address)?;
                if socket.bound.is_some() || socket.phase != Phase::Fresh {
                    return Err(Errno(libc::EINVAL));
                }
                if others.iter().any(|(other, shares)| overlap(other, &local) && !(*shares && socket.reuse)) {
                    return Err(Errno(libc::EADDRINUSE));
                }
                socket.bound = Some(local);
                Ok(())
            }
            FileKind::Udp(socket) if socket.handle.is_some() => Err(Errno(libc::EINVAL)),
            FileKind::Udp(socket) => {
                let local = check_local(&self.net, socket.domain, address)?;
                socket.bind(&mut self.net, local).map(drop)
            }
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    pub(crate) fn listen(&mut self, fd: i32, backlog: i32) -> Result<()> {
        self.files.tcp(fd)?.listen(&mut self.net, backlog)
    }

    pub(crate) fn accept(
        &mut self,
        fd: i32,
        patience: &mut Patience,
    ) -> Result<CallProgress<(i32, SocketAddr)>> {
        let may_wait = !self.files.get(fd)?.nonblocking;
        let socket = self.files.tcp(fd)?;
        if let Some((child, remote)) = socket.accept(&mut self.net)? {
            let fd = self.files.open(FileKind::Tcp(Box::new(child)), false)?;
            return Ok(CallProgress::Done((fd, remote)));
        }
        patience.wait(self.net.now, may_wait, socket.patience(&self.net, true))
    }

    /// Connects; `None`, for AF_UNSPEC, ends the connection.
    pub(crate) fn connect(
        &mut self,
        fd: i32,
        to: Option<SocketAddr>,
        begun: &mut bool,
        patience: &mut Patience,
    ) -> Result<CallProgress<()>> {
        let file = self.files.get_mut(fd)?;
        let socket = match (&mut file.kind, to) {
            (FileKind::Tcp(socket), Some(_)) => socket,
            (FileKind::Tcp(socket), None) => {
                socket.disconnect(&mut self.net);
                return Ok(CallProgress::Done(()));
            }
            (FileKind::Udp(socket), to) => return socket.connect(&mut self.net, to).map(CallProgress::Done),
            _ => return Err(Errno(libc::ENOTSOCK)),
        };
        let (was_connecting, may_wait) = (socket.is_connecting(), !file.nonblocking);
        let Some(remote) = to else { return Err(Errno(libc::EINVAL)) };
        if *begun && socket.phase == Phase::Fresh {
            // Another thread disconnected it meanwhile.
            return Err(Errno(libc::ECONNABORTED));
        }
        if socket.connect(&mut self.net, remote)?.is_some() {
            return Ok(CallProgress::Done(()));
        }
        *begun = true;
        let limit = socket.patience(&self.net, false);
        patience
            .wait(self.net.now, may_wait, limit)
            .map_err(|_| Errno(if was_connecting && !may_wait { libc::EALREADY } else { libc::EINPROGRESS }))
    }

    /// Reads at most `limit` bytes. `deliver` puts bytes into the reader's buffer, from an offset on; bytes that it
    /// refuses stay to be read.
    pub(crate) fn read(
        &mut self,
        fd: i32,
        limit: usize,
        flags: i32,
        deliver: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
        so_far: &mut Arrived,
        patience: &mut Patience,
    ) -> Result<CallProgress<Arrived>> {
        let known = libc::MSG_DONTWAIT
            | libc::MSG_PEEK
            | libc::MSG_WAITALL
            | libc::MSG_TRUNC
            | libc::MSG_NOSIGNAL
            | libc::MSG_CMSG_CLOEXEC;
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(Errno(libc::EAGAIN));
        }
        if flags & !known != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let file = self.files.get_mut(fd)?;
        let may_wait = !file.nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let limit_time = match &mut file.kind {
            FileKind::Tcp(socket) => {
                let at = so_far.count;
                // With MSG_TRUNC the bytes are discarded.
                let thrown = flags & libc::MSG_TRUNC != 0;
                let give = |bytes: &[u8]| if thrown { Ok(()) } else { deliver(at, bytes) };
                let read = match socket.read(&mut self.net, limit.saturating_sub(at), peek, give) {
                    // The call returns the bytes read so far. Undelivered bytes, and another error, are left for the
                    // next call.
                    Err(Errno(libc::EFAULT)) if at > 0 => Some(0),
                    Err(error) if at > 0 => {
                        socket.error = Some(error);
                        Some(0)
                    }
                    other => other?,
                };
                let all = flags & libc::MSG_WAITALL != 0 && !peek;
                if let Some(count) = read {
                    so_far.count += count;
                    so_far.full_len = so_far.count;
                    so_far.unread = socket.unread(&self.net);
                    if count == 0 || !all || so_far.count >= limit {
                        return Ok(CallProgress::Done(core::mem::take(so_far)));
                    }
                }
                socket.patience(&self.net, true)
            }
            FileKind::Udp(socket) => {
                if let Some((mut bytes, from)) = socket.receive(&mut self.net, peek)? {
                    let full_len = bytes.len();
                    bytes.truncate(limit);
                    deliver(0, &bytes)?;
                    let arrived = Arrived { count: bytes.len(), from: Some(from), full_len, unread: None };
                    return Ok(CallProgress::Done(arrived));
                }
                socket.timeout.map(|timeout| self.net.now + timeout)
            }
            FileKind::PipeOut(id) => {
                if let Some(bytes) = self.pipes.peek(*id, limit)? {
                    deliver(0, &bytes)?;
                    self.pipes.consume(*id, bytes.len());
                    let count = bytes.len();
                    return Ok(CallProgress::Done(Arrived { count, full_len: count, ..Arrived::default() }));
                }
                None
            }
            FileKind::PipeIn(_) => return Err(Errno(libc::EBADF)),
            FileKind::Epoll(_) => return Err(Errno(libc::EINVAL)),
        };
        match patience.wait(self.net.now, may_wait, limit_time) {
            Err(_) if so_far.count > 0 => Ok(CallProgress::Done(core::mem::take(so_far))),
            other => other,
        }
    }

    /// Writes all of `bytes`, of which `written` have been taken.
    pub(crate) fn write(
        &mut self,
        fd: i32,
        bytes: &[u8],
        to: Option<SocketAddr>,
        flags: i32,
        written: &mut usize,
        patience: &mut Patience,
    ) -> Result<CallProgress<usize>> {
        if flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let rest = bytes.get(*written..).unwrap_or_default();
        let file = self.files.get_mut(fd)?;
        let may_wait = !file.nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let (taken, limit) = match &mut file.kind {
            FileKind::Tcp(socket) => {
                let end = if flags & libc::MSG_EOR != 0 {
                    WriteEnd::Record
                } else if flags & libc::MSG_MORE != 0 {
                    WriteEnd::More
                } else {
                    WriteEnd::Plain
                };
                (socket.write(&mut self.net, rest, end), socket.patience(&self.net, false))
            }
            FileKind::Udp(socket) => (socket.send(&mut self.net, bytes, to), None),
            FileKind::PipeIn(id) => (self.pipes.write(*id, rest), None),
            FileKind::PipeOut(_) => return Err(Errno(libc::EBADF)),
            FileKind::Epoll(_) => return Err(Errno(libc::EINVAL)),
        };
        match taken {
            Ok(Some(count)) => {
                *written += count;
                if *written >= bytes.len() {
                    return Ok(CallProgress::Done(*written));
                }
            }
            Ok(None) => {}
            Err(_) if *written > 0 => return Ok(CallProgress::Done(*written)),
            Err(error) => return Err(error),
        }
        match patience.wait(self.net.now, may_wait, limit) {
            Err(_) if *written > 0 => Ok(CallProgress::Done(*written)),
            other => other,
        }
    }

    /// Closes; a lingering socket waits.
    pub(crate) fn close(&mut self, fd: i32, patience: &mut Patience) -> Result<CallProgress<()>> {
        let file = self.files.get_mut(fd)?;
        if let FileKind::Tcp(socket) = &mut file.kind
            && !file.nonblocking
            && socket.begin_close(&mut self.net)
            && !socket.is_delivered(&self.net)
        {
            let limit = socket.linger.map(|time| self.net.now + time);
            // After its time it closes all the same.
            if let Ok(progress) = patience.wait(self.net.now, true, limit) {
                return Ok(progress);
            }
        }
        let File { kind, .. } = self.files.take(fd)?;
        match kind {
            FileKind::Tcp(socket) => socket.close(&mut self.net),
            FileKind::Udp(socket) => socket.close(&mut self.net),
            FileKind::PipeOut(id) => self.pipes.close(id, true),
            FileKind::PipeIn(id) => self.pipes.close(id, false),
            FileKind::Epoll(_) => {}
        }
        for file in self.files.all_mut() {
            if let FileKind::Epoll(epoll) = &mut file.kind {
                epoll.forget(fd);
            }
        }
        Ok(CallProgress::Done(()))
    }

    pub(crate) fn shutdown(&mut self, fd: i32, how: i32) -> Result<()> {
        self.files.tcp(fd)?.shutdown(&mut self.net, how)
    }

    pub(crate) fn option(&mut self, fd: i32, level: i32, name: i32) -> Result<Vec<u8>> {
        match &mut self.files.get_mut(fd)?.kind {
            FileKind::Tcp(socket) => socket.option(&self.net, level, name),
            FileKind::Udp(socket) => socket.option(level, name),
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    pub(crate) fn set_option(&mut self, fd: i32, level: i32, name: i32, value: &[u8]) -> Result<()> {
        match &mut self.files.get_mut(fd)?.kind {
            FileKind::Tcp(socket) => socket.set_option(&mut self.net, level, name, value),
            FileKind::Udp(socket) => socket.set_option(level, name, value),
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    pub(crate) fn fcntl(&mut self, fd: i32, command: i32, argument: i32) -> Result<i32> {
        let file = self.files.get_mut(fd)?;
        match command {
            libc::F_GETFL => {
                let mode = match file.kind {
                    FileKind::PipeOut(_) => libc::O_RDONLY,
                    FileKind::PipeIn(_) => libc::O_WRONLY,
                    _ => libc::O_RDWR,
                };
                Ok(mode | if file.nonblocking { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_SETFL => {
                file.nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            // There is no exec.
            libc::F_GETFD | libc::F_SETFD => Ok(0),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// `ioctl` with an `int`: its new value, if it changes.
    pub(crate) fn ioctl(&mut self, fd: i32, request: u64, argument: i32) -> Result<Option<i32>> {
        let file = self.files.get_mut(fd)?;
        if request == libc::FIONBIO {
            file.nonblocking = argument != 0;
            return Ok(None);
        }
        let count = match (&mut file.kind, request) {
            (FileKind::Tcp(socket), _) if matches!(socket.phase, Phase::Listening(_)) => {
                return Err(Errno(libc::EINVAL));
            }
            (FileKind::Tcp(socket), libc::FIONREAD) => socket.readable(&self.net),
            (FileKind::Tcp(socket), SIOCOUTQ) => socket.info(&self.net).map_or(0, |info| info.unacknowledged),
            (FileKind::Tcp(socket), SIOCOUTQNSD) => socket.info(&self.net).map_or(0, |info| info.unsent),
            (FileKind::Udp(socket), libc::FIONREAD) => socket.readable(&mut self.net),
            (FileKind::Udp(_), SIOCOUTQ) => 0,
            (FileKind::PipeOut(id), libc::FIONREAD) => {
                self.pipes.peek(*id, usize::MAX)?.map_or(0, |bytes| bytes.len())
            }
            _ => return Err(Errno(libc::ENOTTY)),
        };
        Ok(Some(i32::try_from(count).unwrap_or(i32::MAX)))
    }

    /// A file's `poll` bits, and a number that changes when waiters for the file must look again.
    fn look(files: &Files, pipes: &Pipes, net: &Net, fd: i32) -> (i16, u64) {
        match files.get(fd).map(|file| &file.kind) {
            Ok(FileKind::Tcp(socket)) => (socket.readiness(net), socket.edge),
            Ok(FileKind::Udp(socket)) => (socket.readiness(net), socket.edge),
            Ok(FileKind::PipeOut(id)) => pipes.readiness(*id, true),
            Ok(FileKind::PipeIn(id)) => pipes.readiness(*id, false),
            Ok(FileKind::Epoll(_)) => (0, 0),
            Err(_) => (libc::POLLNVAL, 0),
        }
    }

    /// The bits of each of `asked`; waits until there are some.
    pub(crate) fn poll(
        &mut self,
        asked: &[(i32, i16)],
        timeout: Option<Duration>,
        patience: &mut Patience,
    ) -> Result<CallProgress<Vec<i16>>> {
        let bits: Vec<i16> = asked
            .iter()
            .map(|&(fd, events)| match fd {
                ..0 => 0,
                _ => {
                    let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
                    Self::look(&self.files, &self.pipes, &self.net, fd).0 & (events | always)
                }
            })
            .collect();
        if bits.iter().any(|bits| *bits != 0) {
            return Ok(CallProgress::Done(bits));
        }
        let limit = timeout.map(|timeout| self.net.now + timeout);
        Ok(patience.wait(self.net.now, true, limit).unwrap_or(CallProgress::Done(bits)))
    }

    pub(crate) fn epoll_create(&mut self) -> Result<i32> {
        self.files.open(FileKind::Epoll(Epoll::default()), false)
    }

    fn epoll(&mut self, fd: i32) -> Result<&mut Epoll> {
        match &mut self.files.get_mut(fd)?.kind {
            FileKind::Epoll(epoll) => Ok(epoll),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    pub(crate) fn epoll_control(
        &mut self,
        epoll: i32,
        operation: i32,
        fd: i32,
        event: Option<(u32, u64)>,
    ) -> Result<()> {
        // Instances of epoll are not nested here.
        if matches!(self.files.get(fd)?.kind, FileKind::Epoll(_)) {
            return Err(Errno(libc::EINVAL));
        }
        self.epoll(epoll)?.control(operation, fd, event)
    }

    pub(crate) fn epoll_wait(
        &mut self,
        epoll: i32,
        limit: usize,
        timeout: Option<Duration>,
        patience: &mut Patience,
    ) -> Result<CallProgress<Vec<ReadyEvent>>> {
        let mut instance = core::mem::take(self.epoll(epoll)?);
        let ready = instance.collect(limit, |fd| Self::look(&self.files, &self.pipes, &self.net, fd));
        *self.epoll(epoll)? = instance;
        if !ready.is_empty() {
            return Ok(CallProgress::Done(ready));
        }
        let end = timeout.map(|timeout| self.net.now + timeout);
        Ok(patience.wait(self.net.now, true, end).unwrap_or(CallProgress::Done(ready)))
    }

    /// Makes a pipe: its read end and its write end.
    pub(crate) fn pipe(&mut self) -> Result<(i32, i32)> {
        let id = self.pipes.open();
        let reader = self.files.open(FileKind::PipeOut(id), false)?;
        let writer = self.files.open(FileKind::PipeIn(id), false)?;
        Ok((reader, writer))
    }

    /// Moves bytes between two files, of which at least one is a pipe.
    pub(crate) fn splice(
        &mut self,
        from: i32,
        to: i32,
        limit: usize,
        flags: u32,
        patience: &mut Patience,
    ) -> Result<CallProgress<usize>> {
        let may_wait = flags & libc::SPLICE_F_NONBLOCK == 0;
        let into_pipe = match self.files.get(to)?.kind {
            FileKind::PipeIn(id) => Some(id),
            _ => None,
        };
        let source = self.files.get(from)?;
        let waits = |file: &File| may_wait && !file.nonblocking;
        let from_may_wait = waits(source);
        let moved = match (&source.kind, into_pipe) {
            (FileKind::PipeOut(id), _) => {
                let id = *id;
                match self.pipes.peek(id, limit)? {
                    None => None,
                    Some(bytes) if bytes.is_empty() => return Ok(CallProgress::Done(0)),
                    Some(bytes) => {
                        let (mut written, mut no_patience) = (0, Patience::default());
                        let flags = libc::MSG_DONTWAIT;
                        match self.write(to, &bytes, None, flags, &mut written, &mut no_patience) {
                            Ok(_) if written > 0 => {
                                self.pipes.consume(id, written);
                                Some(written)
                            }
                            Ok(_) | Err(Errno(libc::EAGAIN)) => None,
                            Err(error) => return Err(error),
                        }
                    }
                }
            }
            (FileKind::Tcp(_), Some(id)) => {
                let room = self.pipes.room(id)?.min(limit);
                if room == 0 {
                    None
                } else {
                    let (mut arrived, mut no_patience) = (Arrived::default(), Patience::default());
                    let mut bytes = Vec::new();
                    let mut deliver = |_, new: &[u8]| {
                        bytes.extend_from_slice(new);
                        Ok(())
                    };
                    let flags = libc::MSG_DONTWAIT;
                    match self.read(from, room, flags, &mut deliver, &mut arrived, &mut no_patience) {
                        Ok(CallProgress::Done(_)) => {
                            self.pipes.write(id, &bytes)?;
                            return Ok(CallProgress::Done(bytes.len()));
                        }
                        Ok(CallProgress::Wait(_)) | Err(Errno(libc::EAGAIN)) => None,
                        Err(error) => return Err(error),
                    }
                }
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        match moved {
            Some(count) => Ok(CallProgress::Done(count)),
            None => patience.wait(self.net.now, from_may_wait, None),
        }
    }
}
