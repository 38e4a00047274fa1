//! Sockets for the tasks of a shard: [`TcpListener`], [`TcpStream`] and [`UdpSocket`] over the shard's own stack.
//!
//! ```text
//!   task: stream.read().await        task: listener.accept().await
//!        |        ^ waker                   |        ^
//!   +----v--------+-------------------------v--------+----+
//!   | Net: the stack, and who waits for what              |   one per shard, shared by Rc, never locked
//!   +----------------------^------------------------------+
//!                          | poll: receive, timers, transmit, then wake
//!                     NetPoller, turned by the shard
//! ```
//!
//! [`net`] cuts a stack into the [`NetPoller`] that a shard turns and the [`Net`] that its tasks hold. Nothing
//! crosses a thread: a call on a socket works on the connection at once, and what it has to send leaves with the
//! shard's next turn.
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use shouter::net::{TcpListener, TcpStream, net};
//! use shouter::runtime::{LocalReactor, spawn_local};
//! use shouter_netstack::device::Loopback;
//! use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
//!
//! // Two stacks on one wire, both turned by one shard here.
//! let (left, right) = Loopback::pair(1500, 256);
//! let mut stacks = [left, right].into_iter().zip(1u8..).map(|(device, host)| {
//!     let mut stack = Stack::new(StackConfig::new(4791, host.into()));
//!     stack.add_port(device, PortConfig::new([10, 0, 0, host].into(), 24, 1500)).map(|_| stack)
//! });
//! let (client, client_poller) = net(stacks.next().unwrap()?);
//! let (server, server_poller) = net(stacks.next().unwrap()?);
//! let mut shard = LocalReactor::new((client_poller, server_poller));
//!
//! let answer = shard.block_on(async move {
//!     let mut listener = TcpListener::bind(&server, "10.0.0.2:7".parse().unwrap())?;
//!     let echo = spawn_local(async move {
//!         let (mut stream, _) = listener.accept().await?;
//!         let mut bytes = Vec::new();
//!         stream.read_to_end(&mut bytes).await?;
//!         stream.write_all(&bytes).await?;
//!         stream.close().await
//!     });
//!     let mut stream = TcpStream::connect(&client, "10.0.0.2:7".parse().unwrap()).await?;
//!     stream.write_all(b"hello").await?;
//!     stream.close().await?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer).await?;
//!     echo.await?;
//!     Ok::<_, std::io::Error>(answer)
//! })?;
//! assert_eq!(answer, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod host;
#[allow(unsafe_code)]
mod sys;
mod tcp;
mod udp;

#[cfg(test)]
mod tests;

pub use host::{Net, NetPoller, net};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
