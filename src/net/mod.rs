//! Sockets for the tasks of a shard: [`TcpListener`], [`TcpStream`] and [`UdpSocket`] over the shard's own stack.
//!
//! ```text
//!   task: stream.read().await        task: listener.accept().await
//!        |        ^ waker                   |        ^
//!   +----v--------+-------------------------v--------+----+
//!   | Net: the stack, and who waits for what              |   one per shard, shared by Rc, never locked
//!   +----------------------^------------------------------+
//!                          | poll: receive, timers, transmit, then wake
//!                     NetPoller, polled by the shard
//! ```
//!
//! A device is a port of DPDK's (`open`), or a [`Tap`] interface, which needs neither DPDK nor a NIC. An [`Interface`] gives
//! it its addresses and makes a [`Queue`] for each shard. On the shard's thread [`Queue::open`] makes of it the
//! [`NetPoller`] that the shard polls and the [`Net`] that its tasks hold. Nothing crosses a thread: a call on a socket
//! works on the connection at once, and its data leaves with the shard's next poll.
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use shouter::net::{Addresses, Interface, Loopback, TcpListener, TcpStream};
//! use shouter::runtime::{ShardsBuilder, spawn_local, until_stop};
//!
//! // Two hosts on one wire. The server has two shards, and connections are dealt out to them.
//! let (left, right) = Loopback::pair(1500, 256);
//! let client = Interface::new(Addresses::new([10, 0, 0, 1].into(), 24, 1500)).queues(left, 1);
//! let server = Interface::new(Addresses::new([10, 0, 0, 2].into(), 24, 1500)).queues(right, 2);
//!
//! let servers = ShardsBuilder::new().name("server").start(server, |queue| {
//!     let (net, poller) = queue.open()?;
//!     let mut listener = TcpListener::bind(&net, "10.0.0.2:7".parse().unwrap())?;
//!     let serve = async move {
//!         // Until the shards are stopped.
//!         while let Some(accepted) = until_stop(listener.accept()).await {
//!             let (mut stream, _) = accepted?;
//!             spawn_local(async move {
//!                 while let Some(chunk) = stream.read_chunk().await? {
//!                     stream.write_all(&chunk).await?;
//!                 }
//!                 stream.close().await
//!             })
//!             .detach();
//!         }
//!         std::io::Result::Ok(())
//!     };
//!     Ok((poller, serve))
//! })?;
//! let clients = ShardsBuilder::new().name("client").start(client, |queue| {
//!     let (net, poller) = queue.open()?;
//!     let ask = async move {
//!         let mut stream = TcpStream::connect(&net, "10.0.0.2:7".parse().unwrap()).await?;
//!         stream.write_all(b"hello").await?;
//!         stream.close().await?;
//!         let mut answer = String::new();
//!         stream.read_to_string(&mut answer).await?;
//!         std::io::Result::Ok(answer)
//!     };
//!     Ok((poller, ask))
//! })?;
//! assert_eq!(clients.join()?, ["hello"]);
//! servers.stop();
//! servers.join()?;
//! # Ok::<(), shouter::runtime::ShardError>(())
//! ```
//!
//! # A server in 50 lines
//!
//! Without DPDK, CUDA or verbs: `cargo add shouter --no-default-features`, `cargo add futures-util --no-default-features --features io`,
//! and
//!
//! ```no_run
#![doc = include_str!("../../examples/async_echo.rs")]
//! ```
//!
//! The interface is made once, and afterwards the program needs no privilege:
//!
//! ```text
//! sudo ip tuntap add dev tap0 mode tap user $USER
//! sudo ip addr add 10.0.0.1/24 dev tap0
//! sudo ip link set dev tap0 up
//! cargo run &
//! echo hello | nc -N 10.0.0.2 7777
//! ```
//!
//! The crate's folder `examples` has others, which take a device, addresses and a number of shards: `http.rs` is a server for
//! hyper, whose traits `adapter/mod.rs` implements for a stream, `fetch.rs` a client, `forward.rs` both, and `echo.rs` has UDP, too.

mod interface;
mod shard_stack;
mod tcp;
mod udp;

#[cfg(test)]
mod tests;

#[cfg(feature = "dpdk")]
pub use interface::open;
pub use interface::{Interface, Queue};
pub use shard_stack::{Net, NetPoller};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;

pub use shouter_netstack::cc::Algorithm as Congestion;
#[cfg(feature = "dpdk")]
pub use shouter_netstack::device::dpdk::{DeviceSpec, DpdkDevice};
pub use shouter_netstack::device::{Device, Loopback, Steered, Tap, TapError};
pub use shouter_netstack::stack::{Ipv6Config as Ipv6Addresses, PortConfig as Addresses};
pub use shouter_netstack::tcp::{
    Chunk, Counters as TcpCounters, Info as TcpInfo, KeepAlive as TcpKeepAlive, Options as TcpOptions,
};
pub use shouter_netstack::udp::{Received, SocketConfig as UdpOptions};
