//! Shouter's network stack: frames in, messages out.
//!
//! Everything here is *sans-IO*: time, randomness and frames are arguments; a protocol returns what to send and
//! when to wake. There are no threads, no clock and no globals, but in `device::dpdk`, as DPDK is initialised once for
//! a process. So the same code runs on a NIC queue, in the simulator under virtual time, and under a fuzzer.
//!
//! ```text
//!      messages       datagrams       streams
//!         |               |              |
//!   +-----v------+  +-----v-----+  +-----v-----+
//!   |    rud     |  |    udp    |  |    tcp    |  cc    reliable unordered; sockets; connections and their
//!   +-----+------+  +-----+-----+  +-----+-----+        congestion control
//!         |  header bytes and extents    |
//!   +-----v------------------v--------------v---+
//!   | stack: demultiplexing, header templates,  |    ip: routes, neighbours (ARP, ND)
//!   |        one TxBatch per port, timers       |    wire: header formats; wheel: timers
//!   +---------------------+---------------------+
//!                         |  bursts of frames
//!   +---------------------v---------------------+
//!   | device: dpdk | tap | loopback | simulated |    wrapped, if wished, in Fault and Pcap
//!   +-------------------------------------------+
//! ```
//!
//! - Payload is never copied when sent: protocols emit header bytes plus an [`Extent`](region::Extent) of
//!   registered memory, and the device reads it when it transmits.
//! - Payload is borrowed when received: a sink (`rud::Sink`) sees the bytes in the receive buffer, checked, and uses or
//!   copies them before it returns.
//! - Beside the stack stands `verbs`: RDMA queue pairs, where the adapter is the transport.
//! - [`Stack::poll`](stack::Stack::poll) is one iteration of the loop; the caller decides when and where it runs:
//!   a pinned thread on a NIC queue, or [`sim::Sim`] with virtual time.
//!
//! Cargo features, none by default: `tap`, `dpdk`, `rud`, `verbs`. The README says what each adds, and has a TCP server in 60 lines.
//!
//! # Example
//!
//! Two stacks on one wire, which exchange a RUD message:
//!
//! ```
//! use core::time::Duration;
//! use shouter_netstack::device::Loopback;
//! use shouter_netstack::region::Region;
//! use shouter_netstack::rud::{Disposition, Failure, SessionId, SessionParams, Sink, MessageToken};
//! use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
//! use shouter_netstack::time::Instant;
//!
//! /// The upper layer, which keeps all that arrives.
//! #[derive(Default)]
//! struct Inbox {
//!     messages: Vec<Vec<u8>>,
//!     released: Vec<MessageToken>,
//! }
//!
//! impl Sink for Inbox {
//!     fn deliver(&mut self, _: SessionId, _header: &[u8], payload: &[u8]) -> Disposition {
//!         self.messages.push(payload.to_vec());
//!         Disposition::Consumed
//!     }
//!     fn released(&mut self, _: SessionId, token: MessageToken) {
//!         self.released.push(token);
//!     }
//!     fn failed(&mut self, _: SessionId, why: Failure) {
//!         eprintln!("session failed: {why}");
//!     }
//! }
//!
//! // Two devices back to back, a stack on each.
//! let (left, right) = Loopback::pair(1500, 64);
//! let (left_ip, right_ip) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
//! let mut alice = Stack::new(StackConfig::new(1).with_rud(4791));
//! let mut bob = Stack::new(StackConfig::new(2).with_rud(4791));
//! alice.add_port(left, PortConfig::new(left_ip, 24, 1500))?;
//! bob.add_port(right, PortConfig::new(right_ip, 24, 1500))?;
//!
//! // The values that a rendezvous would have agreed on: a tag for each direction, addresses, ports.
//! let now = Instant::ZERO;
//! let to_bob = SessionParams {
//!     local_tag: 0x1111,
//!     remote_tag: 0x2222,
//!     local_ip: left_ip.into(),
//!     remote_ip: right_ip.into(),
//!     local_ports: [50_000].into(),
//!     remote_port: 4791,
//!     max_datagram: alice.max_rud_datagram(right_ip)?,
//!     seal: None,
//! };
//! let to_alice = SessionParams {
//!     local_tag: 0x2222,
//!     remote_tag: 0x1111,
//!     local_ip: right_ip.into(),
//!     remote_ip: left_ip.into(),
//!     ..to_bob.clone()
//! };
//! let session = alice.rud_mut().open(now, to_bob)?;
//! bob.rud_mut().open(now, to_alice)?;
//!
//! // The message is sent from where it is, and stays as it is until its token is released.
//! let region = Region::from_static(b"a gradient, say");
//! alice.rud_mut().send(session, b"offset 0", region.extent(0, 15), MessageToken(7))?;
//!
//! let (mut at_alice, mut at_bob) = (Inbox::default(), Inbox::default());
//! for micros in 0..1000 {
//!     let now = now + Duration::from_micros(micros);
//!     alice.poll_with(now, &mut at_alice);
//!     bob.poll_with(now, &mut at_bob);
//! }
//! assert_eq!(at_bob.messages, [b"a gradient, say"]);
//! assert_eq!(at_alice.released, [MessageToken(7)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Not supported
//!
//! **Cutting datagrams into fragments (they are put together), IP options, IPv6 autoconfiguration and detection of duplicate
//! addresses, multicast but for neighbour discovery (no MLD), broadcast, ICMP redirects, DHCP.** A host on an Ethernet
//! switch that snoops MLD needs that switch to flood neighbour solicitations.
#![deny(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod cc;
mod counters;
#[cfg(feature = "rud")]
pub mod crc;
pub mod device;
pub mod ip;
pub mod region;
pub mod rss;
#[cfg(feature = "rud")]
pub mod rud;
#[cfg(not(feature = "rud"))]
#[path = "rud/absent.rs"]
mod rud;
mod scratch;
pub mod sim;
pub mod stack;
pub mod tcp;
pub mod time;
pub mod udp;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod wheel;
pub mod wire;
