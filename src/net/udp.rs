//! UDP sockets as local futures.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;

use shouter_netstack::stack::SendError;
use shouter_netstack::udp::{BindError, Received, SocketConfig, UdpHandle};

use super::shard_stack::{Net, now};

/// A bound socket. Dropping it closes it; datagrams that wait in it are lost.
///
/// ```
/// # use shouter::net::{Addresses, Interface, Loopback, UdpSocket};
/// # use shouter::runtime::ShardsBuilder;
/// # let (left, right) = Loopback::pair(1500, 256);
/// # let [left, right] = [(1, left), (2, right)]
/// #     .map(|(host, device)| Interface::new(Addresses::new([10, 0, 0, host].into(), 24, 1500)).queues(device, 1));
/// # let servers = ShardsBuilder::new().start(right, |queue| {
/// #     let (net, poller) = queue.open()?;
/// let mut socket = UdpSocket::bind(&net, "0.0.0.0:5000".parse().unwrap())?;
/// let answer = async move {
///     let mut buffer = [0; 1472];
///     let received = socket.recv_from(&mut buffer).await?;
///     // A datagram that is longer than the buffer is cut, and `len` says how long it was.
///     let bytes = &buffer[..received.len.min(1472)];
///     socket.send_to(bytes, received.from).await
/// };
/// #     Ok((poller, answer))
/// # })?;
/// # let clients = ShardsBuilder::new().start(left, |queue| {
/// #     let (net, poller) = queue.open()?;
/// #     let ask = async move {
/// #         let mut socket = UdpSocket::bind(&net, "0.0.0.0:0".parse().unwrap())?;
/// #         socket.send_to(b"hello", "10.0.0.2:5000".parse().unwrap()).await?;
/// #         socket.recv_from(&mut [0; 1472]).await.map(|received| received.len)
/// #     };
/// #     Ok((poller, ask))
/// # })?;
/// # assert_eq!(clients.join()?, [5]);
/// # assert_eq!(servers.join()?, [5]);
/// # Ok::<(), shouter::runtime::ShardError>(())
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    net: Net,
    handle: UdpHandle,
}

impl UdpSocket {
    /// Binds `local`; an unspecified address stands for all of this stack's, port 0 for any free port.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`], or [`io::ErrorKind::AddrNotAvailable`] for an address that is none of this stack's.
    pub fn bind(net: &Net, local: SocketAddr) -> io::Result<Self> {
        Self::bind_with(net, local, SocketConfig::default())
    }

    /// As [`UdpSocket::bind`], with bounds of the receive queue.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub fn bind_with(net: &Net, local: SocketAddr, config: SocketConfig) -> io::Result<Self> {
        let handle = net.shared().stack.udp().bind(local, config);
        let handle = handle.map_err(|why| match why {
            BindError::NotOurs { .. } => io::Error::new(io::ErrorKind::AddrNotAvailable, why),
            why => io::Error::new(io::ErrorKind::AddrInUse, why),
        })?;
        Ok(Self { net: net.clone(), handle })
    }

    /// Where it is bound.
    ///
    /// # Errors
    /// None while it is open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.net.shared().stack.udp().local(self.handle).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Sends one datagram and returns its length in bytes. It waits while the port's queue is full, until the shard's next poll.
    ///
    /// # Errors
    /// No route, too long for a frame, or the next hop does not answer.
    pub async fn send_to(&self, bytes: &[u8], to: SocketAddr) -> io::Result<usize> {
        poll_fn(|cx| {
            let sent = self.net.shared().stack.send_datagram(now(), self.handle, to, bytes);
            match sent {
                Ok(()) => Poll::Ready(Ok(bytes.len())),
                Err(SendError::Full) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Err(why) => Poll::Ready(Err(io::Error::other(why))),
            }
        })
        .await
    }

    /// The next datagram, as much of it as `buffer` holds; [`Received::len`] is its length, also where that is more.
    ///
    /// # Errors
    /// None while it is open.
    pub async fn recv_from(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        poll_fn(|cx| {
            let mut shared = self.net.shared();
            match shared.stack.udp().recv(self.handle, buffer) {
                Some(received) => Poll::Ready(Ok(received)),
                None => {
                    let replaced = shared.datagrams.insert(self.handle, cx.waker().clone());
                    drop(shared);
                    drop(replaced);
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        let mut shared = self.net.shared();
        shared.stack.udp().close(self.handle);
        let waker = shared.datagrams.remove(&self.handle);
        drop(shared);
        drop(waker);
    }
}
