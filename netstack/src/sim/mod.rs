//! A network in one thread, in virtual time, from one seed: hosts, links, a switch, and faults.
//!
//! ```text
//!   node 0 -- SimDevice --uplink--\            /--downlink-- SimDevice -- node 1
//!                                  >-- switch <
//!   node 2 -- SimDevice --uplink--/            \--downlink-- SimDevice -- node 3
//! ```
//!
//! Every link has a bandwidth, a delay, a queue and faults: loss, duplicates, reordering, flipped bits. A [`Link`] can be used
//! alone, to test a protocol without frames; the repository's `netstack/tests/fabric` joins many of them to a fat tree of switches.
//! The same seed gives the same run, to the bit, so a failure that a test names by its seed can be repeated. The nodes are the caller's: a [`Node`] polls a stack and returns when it is to be polled
//! next, so sinks, reducers and traffic generators live in it.
//!
//! ```
//! use core::time::Duration;
//! use shouter_netstack::sim::{LinkConfig, Node, Sim};
//! use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
//! use shouter_netstack::time::Instant;
//!
//! struct Host(Stack<shouter_netstack::sim::SimDevice>);
//! impl Node for Host {
//!     fn poll(&mut self, now: Instant) -> Option<Instant> {
//!         self.0.poll(now);
//!         self.0.next_deadline()
//!     }
//! }
//!
//! // A poll takes 5 us of virtual time.
//! let mut sim = Sim::new(7).with_poll_interval(Duration::from_micros(5));
//! let mut hosts = Vec::new();
//! for host in 1..=2u8 {
//!     let device = sim.network().attach(1500, LinkConfig::default()).with_offloads();
//!     let mut stack = Stack::new(StackConfig::new(7));
//!     stack.add_port(device, PortConfig::new([10, 0, 0, host].into(), 24, 1500))?;
//!     hosts.push(Host(stack));
//! }
//! hosts[0].0.ping(sim.now(), [10, 0, 0, 2], 1, 1, b"hello").unwrap();
//! let limit = Instant::ZERO + Duration::from_secs(1);
//! let mut reply = None;
//! assert!(sim.run_until(&mut hosts, limit, |hosts| {
//!     reply = hosts[0].0.next_echo_reply();
//!     reply.is_some()
//! }));
//! assert_eq!(reply.unwrap().len, 5);
//!
//! // Nothing comes from a host whose link is cut.
//! sim.network().set_cut(1, true);
//! hosts[0].0.ping(sim.now(), [10, 0, 0, 2], 1, 2, b"hello").unwrap();
//! assert!(!sim.run_until(&mut hosts, limit, |hosts| hosts[0].0.next_echo_reply().is_some()));
//! # Ok::<(), shouter_netstack::stack::ConfigError>(())
//! ```

mod link;
mod network;
pub mod tcp;

#[cfg(test)]
pub(crate) mod tests;

use core::time::Duration;

pub use link::{Link, LinkConfig, LinkCounters, Packet, Rule};
pub use network::{Network, SimDevice};

use crate::time::{Instant, earliest};

/// Something that runs on a simulated host.
pub trait Node {
    /// One poll at `now`. Returns when the next one is due at the latest, if nothing arrives before.
    fn poll(&mut self, now: Instant) -> Option<Instant>;
}

impl<N: Node + ?Sized> Node for &mut N {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        (**self).poll(now)
    }
}

impl<N: Node + ?Sized> Node for Box<N> {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        (**self).poll(now)
    }
}

/// Virtual time and the network in it.
#[derive(Debug)]
pub struct Sim {
    network: Network,
    now: Instant,
    poll_interval: Duration,
}

impl Sim {
    /// A simulation that begins at [`Instant::ZERO`]. Everything random in the network comes from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { network: Network::new(seed), now: Instant::ZERO, poll_interval: Duration::from_micros(1) }
    }

    /// The same with another poll interval: the least time between two polls of a node, 1 us unless set. It is the time
    /// of one poll on a real host, and longer intervals simulate faster.
    #[must_use]
    pub fn with_poll_interval(mut self, poll_interval: Duration) -> Self {
        self.poll_interval = poll_interval.max(Duration::from_nanos(1));
        self
    }

    /// The network, to attach hosts to.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Polls all nodes, and advances time to the next event, until `done` says so. False if `limit` came first, or if
    /// nothing would ever happen again.
    pub fn run_until<N: Node>(
        &mut self,
        nodes: &mut [N],
        limit: Instant,
        mut done: impl FnMut(&mut [N]) -> bool,
    ) -> bool {
        loop {
            let mut wake: Option<Instant> = None;
            for node in nodes.iter_mut() {
                wake = earliest(wake, node.poll(self.now));
            }
            if done(nodes) {
                return true;
            }
            let event = self.network.next_event(self.now);
            let Some(next) = [wake, event].into_iter().flatten().min() else {
                return false;
            };
            let next = next.max(self.now + self.poll_interval);
            if next > limit {
                self.now = self.now.max(limit);
                return false;
            }
            self.now = next;
        }
    }
}
