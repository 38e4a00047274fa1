//! TCP sockets as local futures.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_io::{AsyncRead, AsyncWrite};
use shouter_netstack::region::SharedBytes;
use shouter_netstack::tcp::{
    Chunk, ConnectError, ConnectionId, Error, Failure, Info, ListenError, ListenerId, Options,
};

use super::shard_stack::{Guard, Net, Waiters, now};

/// Waits for connections at an address. Dropping it refuses those that were not accepted.
#[derive(Debug)]
pub struct TcpListener {
    net: Net,
    id: ListenerId,
    local: SocketAddr,
}

impl TcpListener {
    /// Listens at `local`; an unspecified address stands for all of this stack's, port 0 for any free port.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another listener has the address, [`io::ErrorKind::AddrNotAvailable`] if it is none of this stack's.
    pub fn bind(net: &Net, local: SocketAddr) -> io::Result<Self> {
        Self::bind_with(net, local, 1024, None)
    }

    /// As [`TcpListener::bind`], with room for `backlog` connections that are not accepted yet, and the options that
    /// accepted connections get.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind_with(
        net: &Net,
        local: SocketAddr,
        backlog: usize,
        options: Option<Options>,
    ) -> io::Result<Self> {
        let mut shared = net.shared();
        let tcp = shared.stack.tcp();
        let id = tcp.listen(local, backlog, options).map_err(listen_error)?;
        let local = tcp.listener_address(id).unwrap_or(local);
        drop(shared);
        Ok(Self { net: net.clone(), id, local })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next connection, and its peer's address.
    ///
    /// # Errors
    /// None at present; the type leaves room for them.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`TcpListener::accept`] for callers that poll.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let mut shared = self.net.shared();
        match shared.stack.tcp().accept(self.id) {
            Some((id, remote)) => {
                shared.connections.insert(id, Waiters::default());
                Poll::Ready(Ok((TcpStream { net: self.net.clone(), id }, remote)))
            }
            None => {
                let replaced = shared.listeners.insert(self.id, cx.waker().clone());
                drop(shared);
                drop(replaced);
                Poll::Pending
            }
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let mut shared = self.net.shared();
        shared.stack.tcp().close_listener(now(), self.id);
        let waker = shared.listeners.remove(&self.id);
        drop(shared);
        drop(waker);
    }
}

/// A connection. Dropping it closes it: data written is still delivered, as long as the shard is polled (after its work
/// has ended, for 100 ms at most); if something was left unread, the peer gets a reset (RFC 9293 section 3.6.1).
#[derive(Debug)]
pub struct TcpStream {
    net: Net,
    id: ConnectionId,
}

impl TcpStream {
    /// Connects to `remote`. Dropping the future gives the attempt up.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`], [`io::ErrorKind::TimedOut`], [`io::ErrorKind::HostUnreachable`]..., with
    /// the remedy in the text.
    pub async fn connect(net: &Net, remote: SocketAddr) -> io::Result<Self> {
        Self::connect_with(net, None, remote, None).await
    }

    /// As [`TcpStream::connect`], from a local address of one's choice and with options.
    ///
    /// # Errors
    /// As [`TcpStream::connect`], and if the local address is in use or not ours.
    pub async fn connect_with(
        net: &Net,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: Option<Options>,
    ) -> io::Result<Self> {
        let id = {
            let mut shared = net.shared();
            let id = shared.stack.connect(now(), local, remote, options)?;
            shared.connections.insert(id, Waiters::default());
            id
        };
        let stream = Self { net: net.clone(), id };
        let connected = |shared: &mut Guard<'_>| match shared.stack.tcp().connected(stream.id) {
            Ok(false) => Err(Error::WouldBlock),
            known => known,
        };
        poll_fn(|cx| stream.poll(cx, |waiters| &mut waiters.writer, connected)).await?;
        Ok(stream)
    }

    /// Polls a call; `side` is the place of the task that waits for it.
    #[inline]
    fn poll<T>(
        &self,
        cx: &Context<'_>,
        side: impl FnOnce(&mut Waiters) -> &mut Option<Waker>,
        call: impl FnOnce(&mut Guard<'_>) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        let mut shared = self.net.shared();
        match call(&mut shared) {
            Err(Error::WouldBlock) => {
                let waiters = shared.connections.entry(self.id).or_default();
                let replaced = side(waiters).replace(cx.waker().clone());
                drop(shared);
                // Dropped outside of the borrow: its drop may drop another socket.
                drop(replaced);
                Poll::Pending
            }
            result => Poll::Ready(result.map_err(io_error)),
        }
    }

    /// The connection's state: addresses, round-trip time, window, retransmissions.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once it is gone.
    pub fn info(&self) -> io::Result<Info> {
        self.net.shared().stack.tcp().info(self.id).ok_or_else(|| io_error(Error::Unknown))
    }

    /// The peer.
    ///
    /// # Errors
    /// As [`TcpStream::info`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.info().map(|info| info.remote)
    }

    /// This side.
    ///
    /// # Errors
    /// As [`TcpStream::info`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.info().map(|info| info.local)
    }

    /// Changes options: Nagle, keep-alive, user timeout, buffer sizes. Those of the handshake are fixed.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] once the connection is gone.
    pub fn modify(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        self.net.shared().stack.tcp().modify(now(), self.id, change).map_err(io_error)
    }

    /// Received bytes as the stack holds them, without a further copy; `None` at the end of the data.
    ///
    /// # Errors
    /// The connection's failure.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Chunk>> {
        let read = |shared: &mut Guard<'_>| shared.stack.tcp().read_chunk(now(), self.id);
        poll_fn(|cx| self.poll(cx, |waiters| &mut waiters.reader, read)).await
    }

    /// Sends all of `bytes` from where they are, without a copy, behind what was written before. Ends when they are
    /// handed to the connection; the memory is kept as long as it is needed.
    ///
    /// # Errors
    /// The connection's failure, or [`io::ErrorKind::InvalidInput`] for 4 GiB and more.
    ///
    /// ```
    /// # use futures_util::{AsyncReadExt, AsyncWriteExt};
    /// # use shouter::net::{Addresses, Interface, Loopback, TcpListener, TcpStream};
    /// # use shouter::runtime::ShardsBuilder;
    /// use std::sync::Arc;
    ///
    /// # let (left, right) = Loopback::pair(1500, 256);
    /// # let [left, right] = [(1, left), (2, right)]
    /// #     .map(|(host, device)| Interface::new(Addresses::new([10, 0, 0, host].into(), 24, 1500)).queues(device, 1));
    /// # let servers = ShardsBuilder::new().start(right, |queue| {
    /// #     let (net, poller) = queue.open()?;
    /// #     let mut listener = TcpListener::bind(&net, "10.0.0.2:7".parse().unwrap())?;
    /// #     let read = async move {
    /// #         let (mut stream, _) = listener.accept().await?;
    /// #         let mut bytes = Vec::new();
    /// #         stream.read_to_end(&mut bytes).await?;
    /// #         stream.close().await?;
    /// #         std::io::Result::Ok(bytes.len())
    /// #     };
    /// #     Ok((poller, read))
    /// # })?;
    /// # let clients = ShardsBuilder::new().start(left, |queue| {
    /// #     let (net, poller) = queue.open()?;
    /// #     let send = async move {
    /// let weights: Arc<[u8]> = vec![7; 100_000].into();
    /// let mut stream = TcpStream::connect(&net, "10.0.0.2:7".parse().unwrap()).await?;
    /// stream.write_shared(weights.clone()).await?; // Other connections may send the same memory.
    /// #         stream.close().await?;
    /// #         // Until the server has read all: a shard that ends does not wait for acknowledgements.
    /// #         stream.read_to_end(&mut Vec::new()).await
    /// #     };
    /// #     Ok((poller, send))
    /// # })?;
    /// # assert_eq!(clients.join()?, [0]);
    /// # assert_eq!(servers.join()?, [100_000]);
    /// # Ok::<(), shouter::runtime::ShardError>(())
    /// ```
    pub async fn write_shared(&mut self, bytes: Arc<[u8]>) -> io::Result<()> {
        let bytes = SharedBytes::new(bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "4 GiB and more: send it in parts"))?;
        let write = |shared: &mut Guard<'_>| shared.stack.tcp().write_shared(now(), self.id, &bytes);
        poll_fn(|cx| self.poll(cx, |waiters| &mut waiters.writer, write)).await
    }

    /// Ends the connection at once with a reset.
    pub fn abort(self) {
        self.net.shared().stack.tcp().abort(now(), self.id);
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, |waiters| &mut waiters.reader, |shared| shared.stack.tcp().read(now(), self.id, buffer))
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, |waiters| &mut waiters.writer, |shared| shared.stack.tcp().write(now(), self.id, bytes))
    }

    /// Written bytes leave with the shard's next poll; there is nothing to wait for.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends this side's data with a FIN; the other side's may still be read.
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.net.shared().stack.tcp().shutdown(now(), self.id) {
            Ok(()) | Err(Error::Shut) => Poll::Ready(Ok(())),
            Err(why) => Poll::Ready(Err(io_error(why))),
        }
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let mut shared = self.net.shared();
        shared.stack.tcp().close(now(), self.id);
        let waiters = shared.connections.remove(&self.id);
        drop(shared);
        // Dropped outside of the borrow: a waker's drop may drop another socket.
        drop(waiters);
    }
}

/// The kind that programs look at, with our text.
fn io_error(why: Error) -> io::Error {
    let kind = match why {
        Error::WouldBlock => io::ErrorKind::WouldBlock,
        Error::Shut => io::ErrorKind::BrokenPipe,
        Error::Failed(Failure::Refused { .. }) => io::ErrorKind::ConnectionRefused,
        Error::Failed(Failure::Reset { .. }) => io::ErrorKind::ConnectionReset,
        Error::Failed(Failure::TimedOut { .. }) => io::ErrorKind::TimedOut,
        Error::Failed(Failure::Unreachable { .. }) => io::ErrorKind::HostUnreachable,
        Error::Failed(Failure::Aborted { .. }) => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::NotConnected,
    };
    io::Error::new(kind, why)
}

fn listen_error(why: ListenError) -> io::Error {
    let kind = match why {
        ListenError::NotOurs { .. } => io::ErrorKind::AddrNotAvailable,
        _ => io::ErrorKind::AddrInUse,
    };
    io::Error::new(kind, why)
}

pub(super) fn connect_error(why: ConnectError) -> io::Error {
    let kind = match why {
        ConnectError::BadRemote { .. } | ConnectError::Own { .. } => io::ErrorKind::InvalidInput,
        ConnectError::InUse { .. } => io::ErrorKind::AddrInUse,
        ConnectError::NoFreePort { .. } => io::ErrorKind::AddrNotAvailable,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, why)
}
