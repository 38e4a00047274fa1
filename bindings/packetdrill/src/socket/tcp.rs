//! TCP sockets.

use core::net::SocketAddr;
use core::time::Duration;

use shouter_netstack::tcp::{
    ConnectionId, Error, Failure, Info, KeepAlive, ListenerId, Options, Sending, StateName,
};
use shouter_netstack::time::Instant;

use super::Domain;
use crate::errno::{self, Errno, Result};
use crate::net::Net;

/// The state of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Neither connected nor listening.
    #[default]
    Fresh,
    Listening(ListenerId),
    Connection(ConnectionId),
    /// The connection has failed; `done` if the peer had finished before.
    Over {
        done: bool,
    },
}

/// The data that follow a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteEnd {
    /// Unknown.
    Plain,
    /// More data, at once: MSG_MORE.
    More,
    /// Another record: MSG_EOR.
    Record,
}

/// The properties of a connection that matter to waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Glimpse {
    state: Option<StateName>,
    received: u64,
    writable: bool,
    acceptable: usize,
}

/// A TCP socket.
#[derive(Debug, Default)]
pub(crate) struct TcpSocket {
    pub(crate) domain: Domain,
    pub(crate) phase: Phase,
    pub(crate) bound: Option<SocketAddr>,
    pub(crate) options: Options,
    pub(crate) keep_alive: KeepAlive,
    /// SO_LINGER's time if it is on.
    pub(crate) linger: Option<Duration>,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    /// The values set for SO_SNDBUF and SO_RCVBUF: Linux reports twice as much.
    pub(crate) buffers: (Option<i32>, Option<i32>),
    /// SO_RCVTIMEO and SO_SNDTIMEO.
    pub(crate) timeouts: (Option<Duration>, Option<Duration>),
    /// A connection was requested, and its result has not been reported.
    pub(crate) connecting: bool,
    /// The next value of SO_ERROR.
    pub(crate) error: Option<Errno>,
    /// TCP_INQ.
    pub(crate) reports_unread: bool,
    read_shut: bool,
    write_shut: bool,
    seen: Glimpse,
    /// The number of events that would wake a waiter.
    pub(crate) edge: u64,
}

/// Whether the peer's FIN has arrived.
fn has_peer_finished(state: StateName) -> bool {
    matches!(
        state,
        StateName::CloseWait
            | StateName::LastAck
            | StateName::Closing
            | StateName::TimeWait
            | StateName::Closed
    )
}

impl TcpSocket {
    pub(crate) fn new(domain: Domain, options: Options) -> Self {
        Self { domain, options, ..Self::default() }
    }

    /// The socket of a connection that this listening one accepted. Its options are those of the listening one when the
    /// connection began.
    fn child(&self, net: &mut Net, id: ConnectionId) -> Self {
        let options = net.stack.tcp().options(id).unwrap_or(&self.options).clone();
        let mut child = Self::new(self.domain, options);
        child.phase = Phase::Connection(id);
        child.keep_alive = self.keep_alive;
        child.linger = self.linger;
        child.reuse = self.reuse;
        child.v6_only = self.v6_only;
        child.buffers = self.buffers;
        child.timeouts = self.timeouts;
        child.reports_unread = self.reports_unread;
        child.bound = net.stack.tcp().info(id).map(|info| info.local);
        child.look(net);
        child
    }

    pub(crate) fn info(&self, net: &Net) -> Option<Info> {
        match self.phase {
            Phase::Connection(id) => net.stack.tcp().info(id),
            _ => None,
        }
    }

    /// The sending side of the connection.
    pub(crate) fn sending(&self, net: &Net) -> Option<Sending> {
        match self.phase {
            Phase::Connection(id) => net.stack.tcp().sending(net.now, id),
            _ => None,
        }
    }

    /// Applies the options to the connection, or to future connections.
    pub(crate) fn apply(&self, net: &mut Net) {
        let now = net.now;
        match self.phase {
            Phase::Connection(id) => {
                // A closed connection has no options.
                let _ = net.tcp().modify(now, id, |options| options.clone_from(&self.options));
            }
            Phase::Listening(id) => {
                net.tcp().modify_listener(id, |options| options.clone_from(&self.options))
            }
            Phase::Fresh | Phase::Over { .. } => {}
        }
    }

    /// Sends the data that TCP_CORK and MSG_MORE hold back.
    pub(crate) fn push(&self, net: &mut Net) {
        if let Phase::Connection(id) = self.phase {
            let now = net.now;
            // A closed connection holds no data.
            let _ = net.tcp().push(now, id);
        }
    }

    /// Whether `poll` reports it: Linux requires a third of the buffer free, and less than half of TCP_NOTSENT_LOWAT
    /// unsent.
    fn is_writable(&self, info: &Info) -> bool {
        let roomy = self.options.send_buffer.saturating_sub(info.unacknowledged) >= info.unacknowledged / 2;
        let low = self.options.unsent_limit.is_none_or(|limit| info.unsent.saturating_mul(2) < limit);
        roomy && low && info.writable > 0
    }

    /// Notes the changes of the connection.
    pub(crate) fn look(&mut self, net: &mut Net) {
        let glimpse = match self.phase {
            Phase::Fresh | Phase::Over { .. } => return,
            Phase::Listening(id) => {
                Glimpse { acceptable: net.stack.tcp().acceptable(id), ..Glimpse::default() }
            }
            Phase::Connection(id) => match net.stack.tcp().connected(id) {
                Ok(_) => net.stack.tcp().info(id).map_or_else(Glimpse::default, |info| Glimpse {
                    state: Some(info.state),
                    received: info.bytes_received,
                    writable: self.is_writable(&info),
                    acceptable: 0,
                }),
                Err(error) => return self.fail(net, id, error),
            },
        };
        if glimpse != self.seen {
            let fewer = glimpse.acceptable < self.seen.acceptable
                || (self.seen.writable && Glimpse { writable: true, ..glimpse } == self.seen);
            self.seen = glimpse;
            // A decrease wakes no thread.
            self.edge += u64::from(!fewer);
        }
    }

    fn fail(&mut self, net: &mut Net, id: ConnectionId, error: Error) {
        let done = matches!(
            self.seen.state,
            Some(StateName::CloseWait | StateName::LastAck | StateName::Closing | StateName::TimeWait)
        );
        self.error = Some(match error {
            // As on Linux: the peer had announced the end of its data.
            Error::Failed(Failure::Reset { .. }) if self.seen.state == Some(StateName::CloseWait) => {
                Errno(libc::EPIPE)
            }
            error => error.into(),
        });
        //= RFC 9293 section 3.10.7.4: with a reset the queues are flushed; what was not read is lost.
        let now = net.now;
        net.tcp().close(now, id);
        self.phase = Phase::Over { done };
        self.edge += 1;
    }

    pub(crate) fn listen(&mut self, net: &mut Net, backlog: i32) -> Result<()> {
        match self.phase {
            Phase::Listening(_) => return Ok(()),
            Phase::Fresh | Phase::Over { .. } => {}
            Phase::Connection(_) => return Err(Errno(libc::EINVAL)),
        }
        let mut local = self.bound.unwrap_or(SocketAddr::new(self.domain.any(), 0));
        if self.v6_only && local.ip().is_unspecified() {
            local.set_ip(net.setup.ipv6.into());
        }
        // Linux allows one more than the backlog.
        let backlog = usize::try_from(backlog).unwrap_or(4096).saturating_add(1);
        let id = net.tcp().listen(local, backlog, Some(self.options.clone()))?;
        self.bound = net.stack.tcp().listener_address(id);
        self.phase = Phase::Listening(id);
        self.seen = Glimpse::default();
        Ok(())
    }

    /// `None`: no connection.
    pub(crate) fn accept(&mut self, net: &mut Net) -> Result<Option<(Self, SocketAddr)>> {
        let Phase::Listening(id) = self.phase else { return Err(Errno(libc::EINVAL)) };
        let accepted = net.tcp().accept(id);
        self.seen.acceptable = net.stack.tcp().acceptable(id);
        Ok(accepted.map(|(id, remote)| (self.child(net, id), self.domain.outward(remote))))
    }

    /// `None`: the handshake goes on.
    pub(crate) fn connect(&mut self, net: &mut Net, remote: SocketAddr) -> Result<Option<()>> {
        match self.phase {
            Phase::Listening(_) => Err(Errno(libc::EISCONN)),
            Phase::Connection(_) if !self.connecting => Err(Errno(libc::EISCONN)),
            Phase::Connection(_) => Ok(self.connect_goes_on(net)),
            Phase::Over { .. } if self.error.is_some() || self.connecting => {
                self.connecting = false;
                self.phase = Phase::Fresh;
                Err(self.error.take().unwrap_or(Errno(libc::ECONNABORTED)))
            }
            Phase::Fresh | Phase::Over { .. } => {
                let remote = self.domain.inward(remote)?;
                let (now, options) = (net.now, self.options.clone());
                let id = net.stack.tcp_connect(now, self.bound, remote, Some(options))?;
                self.phase = Phase::Connection(id);
                (self.connecting, self.read_shut, self.write_shut) = (true, false, false);
                self.seen = Glimpse::default();
                Ok(None)
            }
        }
    }

    /// Whether a connection attempt has been begun and not reported.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting && matches!(self.phase, Phase::Connection(_))
    }

    fn connect_goes_on(&mut self, net: &Net) -> Option<()> {
        let state = self.info(net)?.state;
        if matches!(state, StateName::SynSent | StateName::SynReceived) {
            return None;
        }
        self.connecting = false;
        Some(())
    }

    /// Ends the connection at once, as `connect` to AF_UNSPEC does; the socket can be used again.
    pub(crate) fn disconnect(&mut self, net: &mut Net) {
        let now = net.now;
        match self.phase {
            Phase::Connection(id) => net.tcp().abort(now, id),
            Phase::Listening(id) => net.tcp().close_listener(now, id),
            Phase::Fresh | Phase::Over { .. } => {}
        }
        self.phase = Phase::Fresh;
        self.connecting = false;
        self.error = None;
        self.edge += 1;
    }

    /// Reads at most `limit` bytes, which `deliver` takes before they are removed; `None`: none has arrived.
    pub(crate) fn read(
        &mut self,
        net: &mut Net,
        limit: usize,
        peek: bool,
        deliver: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Option<usize>> {
        if let Phase::Connection(id) = self.phase {
            let now = net.now;
            let mut bytes = vec![0; limit.min(self.readable(net))];
            match net.tcp().peek(id, &mut bytes) {
                Ok(count) => {
                    deliver(bytes.get(..count).unwrap_or_default())?;
                    return match bytes.get_mut(..count) {
                        Some(bytes) if !peek && count > 0 => Ok(Some(net.tcp().read(now, id, bytes)?)),
                        _ => Ok(Some(count)),
                    };
                }
                Err(Error::WouldBlock) => return Ok(self.read_shut.then_some(0)),
                Err(error) => self.fail(net, id, error),
            }
        }
        match self.phase {
            Phase::Fresh | Phase::Listening(_) => Err(Errno(libc::ENOTCONN)),
            Phase::Over { done: false } => errno::take(&mut self.error).map(|()| Some(0)),
            Phase::Over { done: true } | Phase::Connection(_) => Ok(Some(0)),
        }
    }

    /// The value of TCP_INQ: the unread bytes, or one if there are none and the end has been reached.
    pub(crate) fn unread(&self, net: &Net) -> Option<i32> {
        if !self.reports_unread {
            return None;
        }
        let unread = i32::try_from(self.readable(net)).unwrap_or(i32::MAX);
        let ended = self.info(net).is_none_or(|info| has_peer_finished(info.state));
        Some(if unread == 0 && ended { 1 } else { unread })
    }

    /// Takes as many bytes as fit; `None` if none does.
    pub(crate) fn write(&mut self, net: &mut Net, bytes: &[u8], end: WriteEnd) -> Result<Option<usize>> {
        if self.write_shut {
            return Err(Errno(libc::EPIPE));
        }
        let Phase::Connection(id) = self.phase else {
            errno::take(&mut self.error)?;
            return Err(Errno(libc::EPIPE));
        };
        let state = self.info(net).map(|info| info.state);
        if let Some(StateName::SynSent | StateName::SynReceived) = state {
            return Ok(None);
        }
        match self.write_all(net, id, bytes, end) {
            Ok(count) => Ok(Some(count)),
            Err(Error::WouldBlock) => Ok(None),
            Err(error @ Error::Failed(_)) => {
                self.fail(net, id, error);
                errno::take(&mut self.error)?;
                Err(Errno(libc::EPIPE))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes until there is no room. As on Linux, the stack sends meanwhile, which makes room if TCP_NOTSENT_LOWAT is
    /// the limit.
    fn write_all(
        &self,
        net: &mut Net,
        id: ConnectionId,
        bytes: &[u8],
        end: WriteEnd,
    ) -> core::result::Result<usize, Error> {
        let now = net.now;
        let mut done = 0;
        loop {
            let rest = bytes.get(done..).unwrap_or_default();
            let taken = match end {
                WriteEnd::More => net.tcp().write_more(now, id, rest),
                WriteEnd::Plain | WriteEnd::Record => net.tcp().write(now, id, rest),
            };
            done += match taken {
                // The bytes taken count; the next call gets the error.
                Err(_) if done > 0 => return Ok(done),
                taken => taken?,
            };
            if done >= bytes.len() {
                break;
            }
            net.run();
        }
        if end == WriteEnd::Record {
            net.tcp().end_record(now, id)?;
        }
        Ok(done)
    }

    pub(crate) fn shutdown(&mut self, net: &mut Net, how: i32) -> Result<()> {
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno(libc::EINVAL)),
        };
        let id = match self.phase {
            Phase::Connection(id) => id,
            Phase::Listening(_) if read => {
                self.disconnect(net);
                return Ok(());
            }
            Phase::Listening(_) => return Ok(()),
            Phase::Fresh | Phase::Over { .. } => return Err(Errno(libc::ENOTCONN)),
        };
        if self.info(net).is_some_and(|info| info.state == StateName::SynSent) {
            self.disconnect(net);
            return Ok(());
        }
        self.read_shut |= read;
        if write && !self.write_shut {
            self.write_shut = true;
            let now = net.now;
            match net.tcp().shutdown(now, id) {
                Ok(()) | Err(Error::Shut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.edge += 1;
        Ok(())
    }

    /// Begins to close; returns whether the close may wait, for `linger`'s time, until the peer has everything.
    pub(crate) fn begin_close(&mut self, net: &mut Net) -> bool {
        let Phase::Connection(id) = self.phase else { return false };
        let unread = self.readable(net) > 0;
        match self.linger {
            Some(time) if !time.is_zero() && !unread => {
                let now = net.now;
                // An error means that it has failed or was shut down: there is nothing to wait for.
                let _ = net.tcp().shutdown(now, id);
                true
            }
            _ => false,
        }
    }

    /// Whether the peer has acknowledged everything, the FIN included.
    pub(crate) fn is_delivered(&self, net: &Net) -> bool {
        self.info(net).is_none_or(|info| {
            matches!(info.state, StateName::FinWait2 | StateName::TimeWait | StateName::Closed)
        })
    }

    /// Releases the connection.
    pub(crate) fn close(self, net: &mut Net) {
        let now = net.now;
        match self.phase {
            Phase::Listening(id) => net.tcp().close_listener(now, id),
            //= RFC 9293 section 3.6.1: data that nobody will read is answered by a reset; so is SO_LINGER with time zero.
            Phase::Connection(id) if self.linger.is_some_and(|time| time.is_zero()) => {
                net.tcp().abort(now, id)
            }
            Phase::Connection(id) => net.tcp().close(now, id),
            Phase::Fresh | Phase::Over { .. } => {}
        }
    }

    /// Bytes that can be read now.
    pub(crate) fn readable(&self, net: &Net) -> usize {
        self.info(net).map_or(0, |info| info.readable)
    }

    /// The `poll` bits, as of Linux's TCP.
    pub(crate) fn readiness(&self, net: &Net) -> i16 {
        let (readable, writable) = (libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM);
        let mut bits = if self.error.is_some() { libc::POLLERR } else { 0 };
        match self.phase {
            Phase::Fresh => bits |= libc::POLLOUT | libc::POLLWRNORM | libc::POLLHUP,
            Phase::Listening(id) if net.stack.tcp().acceptable(id) > 0 => bits |= readable,
            Phase::Listening(_) => {}
            Phase::Over { .. } => bits |= readable | writable | libc::POLLHUP | libc::POLLRDHUP,
            Phase::Connection(_) => {
                let Some(info) = self.info(net) else { return bits };
                let state = info.state;
                if matches!(state, StateName::SynSent | StateName::SynReceived) {
                    return bits;
                }
                if has_peer_finished(state) || self.read_shut {
                    bits |= readable | libc::POLLRDHUP;
                    if self.write_shut {
                        bits |= libc::POLLHUP;
                    }
                }
                if self.readable(net) > 0 {
                    bits |= readable;
                }
                if self.is_writable(&info) || self.write_shut {
                    bits |= writable;
                }
            }
        }
        bits
    }

    /// The end of a wait that begins now.
    pub(crate) fn patience(&self, net: &Net, reading: bool) -> Option<Instant> {
        let timeout = if reading { self.timeouts.0 } else { self.timeouts.1 };
        timeout.map(|timeout| net.now + timeout)
    }
}
