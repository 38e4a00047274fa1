//! The stack on its virtual clock.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use shouter_netstack::ip::{Prefix, Route};
use shouter_netstack::stack::{Ipv6Config, PortConfig, PortId, Stack, StackConfig};
use shouter_netstack::tcp::Endpoint;
use shouter_netstack::time::Instant;

use crate::flags::Setup;
use crate::wire::{ROUTER, Sent, Wire};

/// The router's addresses, which no script uses: a dummy one (RFC 7600 section 4.8) and a link-local one.
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The most polls of the stack at one time; packets of one time need a few.
const MAX_POLLS: usize = 10_000;

/// The smallest step of time, for a timer that is due already.
const LEAST_STEP: Duration = Duration::from_micros(1);

/// The stack, its device, and the time.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) stack: Stack<Wire>,
    /// Virtual time.
    pub(crate) now: Instant,
    pub(crate) setup: Setup,
    port: PortId,
    /// Whether packets or events moved since the last query.
    moved: bool,
}

impl Net {
    /// A stack with this setup.
    pub(crate) fn new(setup: Setup) -> Result<Self, String> {
        let mut config = StackConfig::new(1);
        config.tcp.options = setup.options.clone();
        let mut port = PortConfig::new(setup.ipv4, 32, setup.mtu);
        port.routes.extend(Prefix::new(ROUTER_V4, 32).map(|prefix| Route { prefix, gateway: None }));
        port.gateway = Some(ROUTER_V4);
        port.neighbours.push((ROUTER_V4, ROUTER));
        // A narrower link cannot carry IPv6 (RFC 8200 section 5).
        if setup.mtu >= 1280 {
            let mut ipv6 = Ipv6Config::new(setup.ipv6, 128);
            ipv6.gateway = Some(ROUTER_V6);
            ipv6.neighbours.push((ROUTER_V6, ROUTER));
            port.ipv6 = Some(ipv6);
        }
        let mut stack = Stack::new(config);
        let port = stack.add_port(Wire::new(setup.mtu), port).map_err(|error| error.to_string())?;
        Ok(Self { stack, now: Instant::ZERO, setup, port, moved: false })
    }

    pub(crate) fn tcp(&mut self) -> &mut Endpoint {
        self.stack.tcp_mut()
    }

    /// Whether a socket can be bound to an address.
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        address.is_unspecified() || self.stack.addresses().any(|(_, own)| own == address)
    }

    /// Gives the stack a packet; false if it is no IP packet.
    pub(crate) fn inject(&mut self, packet: &[u8]) -> bool {
        let taken = self.stack.device_mut(self.port).is_some_and(|wire| wire.inject(packet));
        self.run();
        taken
    }

    /// Takes the oldest packet that left.
    pub(crate) fn take(&mut self) -> Option<Sent> {
        self.stack.device_mut(self.port)?.take()
    }

    /// Runs the stack at the present time until nothing moves.
    pub(crate) fn run(&mut self) {
        for _ in 0..MAX_POLLS {
            let progress = self.stack.poll(self.now);
            // Sockets look at the connections themselves.
            while self.tcp().next_event().is_some() {
                self.moved = true;
            }
            if progress.is_idle() {
                return;
            }
            self.moved = true;
        }
    }

    /// Whether anything moved since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        core::mem::take(&mut self.moved)
    }

    /// The time of the next timer.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.stack.next_deadline()
    }

    /// Moves time to `to`, or to the first timer before that, and runs everything due.
    pub(crate) fn step(&mut self, to: Instant) {
        let due = self.next_deadline().filter(|due| *due < to);
        let next = match due {
            // The timer has fired, or should have, and is set to the same time again.
            Some(due) if due <= self.now => (self.now + LEAST_STEP).min(to),
            Some(due) => due,
            None => to,
        };
        self.now = self.now.max(next);
        self.run();
    }
}
