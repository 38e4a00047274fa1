//! One shard's stack: ports, the protocols above them, and the poll.
//!
//! ```text
//!            RUD endpoint          UDP sockets      echo
//!                 |  \                 |             |
//!   transmit:     |   `-- receive <----+-------------+
//!   template + patch          demultiplexing
//!                 |                 ^
//!   ARP --> TxBatch per port        |   burst per port
//!                 |                 |
//!              device (loopback, fault, pcap, tap, dpdk, simulated)
//! ```
//!
//! [`Stack::poll`] works as follows: frames are received from each port, a turn's at most, and handed to the protocols, timers fire, and
//! the protocols' frames go to the devices until they take no more, RUD's data a turn's at most. Frames that a device does not take stay in the
//! port's batch; back pressure is not loss.

mod addresses;
mod api;
mod counters;
mod destination;
mod icmp;
mod ipv4;
mod ipv6;
#[cfg(feature = "rud")]
mod messages;
mod offload;
mod port;
mod receive;
mod tcp;
mod turn;
mod udp;

#[cfg(test)]
mod tests;

use core::net::IpAddr;
use core::time::Duration;

pub use crate::ip::{ConfigError, Ipv6Config, PortConfig};
pub use api::{PortId, Progress, ReceivedEcho, SendError, StackConfig};
pub use counters::Counters;

use crate::device::{Announce, Device, DeviceCounters, FramesOut, Wakes};
use crate::ip::neighbour::{Requester, Resolution};
use crate::rud;
use crate::time::{Instant, earliest};
use crate::udp::any_like;
use crate::wire::ethernet::Mac;
use crate::wire::icmp::{Echo, EchoKind, ErrorKind};
use destination::{Destinations, Emitter, ResolvedRoute, ip_udp_len};
use icmp::{About, SendIcmpError};
use port::{Interface, Port, Sizes};
use receive::{Protocols, Receiver};
use turn::Turn;

/// Rounds of filling and flushing the batches within one poll.
const TX_ROUNDS: usize = 4;

/// The longest time between two checks whether releases still have to wait for frames.
const RELEASE_CHECK: Duration = Duration::from_micros(10);

/// Ports with one kind of device, and the protocols above them.
#[derive(Debug)]
pub struct Stack<D> {
    ports: Vec<Port<D>>,
    destinations: Destinations,
    protocols: Protocols,
    /// Whether the last poll has left frames with a device.
    more: bool,
    /// When it is checked next whether releases still have to wait for frames.
    release_at: Instant,
    /// When `transmit` had something to do last.
    transmitted_at: Instant,
}

impl<D: Device> Stack<D> {
    /// A stack without ports.
    pub fn new(config: StackConfig) -> Self {
        Self {
            ports: Vec::new(),
            destinations: Destinations::new(),
            protocols: Protocols::new(config),
            more: false,
            release_at: Instant::ZERO,
            transmitted_at: Instant::ZERO,
        }
    }

    /// Adds a port.
    ///
    /// # Errors
    /// [`ConfigError`] names the fault in `config` and its remedy.
    pub fn add_port(&mut self, device: D, config: PortConfig) -> Result<PortId, ConfigError> {
        let capabilities = device.capabilities();
        let checked = config.check(capabilities.kind, capabilities.mtu)?;
        let sizes = Sizes {
            tx_frames: self.protocols.config.tx_frames,
            rx_budget: self.protocols.config.rx_budget,
            scratch_slots: self.protocols.config.scratch_slots,
        };
        let mac = Mac(device.mac());
        let iface = Interface::new(checked, mac, self.protocols.config.neighbours.clone(), &sizes);
        let taken = |address: &IpAddr| self.ports.iter().any(|port| port.iface.addresses.has(*address));
        if let Some(address) = iface.addresses.all().find(taken) {
            return Err(ConfigError::AddressInUse { address });
        }
        for address in iface.addresses.all() {
            self.protocols.tcp.add_address(address, iface.mtu);
            self.protocols.sockets.add_address(address);
        }
        self.ports.push(Port { device, iface });
        self.destinations.clear();
        Ok(PortId(self.ports.len() - 1))
    }

    /// One poll: receive a turn of frames from each port, run the protocols and their timers, transmit as much as devices take, and of RUD a
    /// turn.
    /// A stack with RUD sessions is polled with their sink (`poll_with`): here messages are refused, so that their senders send them
    /// again, and who waits for the ends of messages and sessions does not hear of them.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Progress {
        Progress { frames_in: self.receive(now), frames_out: self.transmit(now) }
    }

    /// The first half of a poll: receives, runs the protocols and their timers, sends nothing yet. For a caller whose
    /// answers shall leave in the same poll. Returns how many frames came.
    #[inline]
    pub fn receive(&mut self, now: Instant) -> usize {
        self.take_in(now, &mut rud::NoSink)
    }

    #[inline]
    fn take_in(&mut self, now: Instant, sink: &mut impl rud::Sink) -> usize {
        if self.protocols.rud.frames_out() != FramesOut::None {
            self.release_held(now, sink);
        }
        self.protocols.rud.on_poll(now, self.more);
        self.more = false;
        let mut frames_in = 0;
        for (port, Port { device, iface }) in self.ports.iter_mut().enumerate() {
            let budget = iface.rx_budget;
            let protocols = &mut self.protocols;
            let mut receiver = Receiver { now, iface, port, station: Mac::default(), protocols, sink };
            let frames = device.receive(now, budget, &mut |frame| receiver.on_frame(frame));
            self.more |= frames >= budget;
            frames_in += frames;
        }
        if self.protocols.rud.is_due(now, self.more) {
            self.protocols.rud.on_timeout(now, sink);
        }
        if self.ip_deadline().is_some_and(|deadline| deadline <= now) {
            self.poll_ip_timers(now);
        }
        if self.protocols.tcp.is_due(now) {
            self.protocols.tcp.on_timeout(now);
        }
        frames_in
    }

    #[inline]
    fn ip_deadline(&self) -> Option<Instant> {
        earliest(self.protocols.reassembly.next_deadline(), self.destinations.next_deadline())
    }

    /// Gives up datagrams whose fragments did not come, and path MTUs that are too old.
    #[cold]
    fn poll_ip_timers(&mut self, now: Instant) {
        self.destinations.poll(now);
        while let Some(expired) = self.protocols.reassembly.poll(now) {
            self.protocols.counters.rx_fragment_timeout += 1;
            //= RFC 8200 section 4.5: an error is sent if the first fragment came; RFC 1122 section 3.3.2 likewise.
            let (Some(packet), Some(port)) = (expired.packet, self.ports.get_mut(expired.key.port)) else {
                continue;
            };
            let about = About {
                source: expired.key.source,
                destination: expired.key.destination,
                to_group: expired.key.destination.is_multicast(),
                packet: &packet,
            };
            let kind = ErrorKind::TimeExceeded { code: 1 };
            icmp::send_error(
                now,
                &mut port.iface,
                &mut self.protocols.icmp_limit,
                &about,
                kind,
                &mut self.protocols.counters,
            );
        }
    }

    /// Transmits the protocols' frames without receiving: for a caller that has just posted messages and wants them on
    /// the wire before its next poll. Returns how many frames devices took.
    #[inline]
    pub fn transmit(&mut self, now: Instant) -> usize {
        if !self.protocols.rud.wants_transmit()
            && !self.protocols.tcp.wants_transmit()
            && self.ports.iter().all(|port| port.is_idle(now))
        {
            if self.protocols.tcp.awaits_frames() && self.ports.iter().all(Port::is_clear) {
                self.protocols.tcp.on_frames_released();
            }
            return 0;
        }
        self.transmit_now(now)
    }

    /// The same, as there is something to do.
    #[inline(never)]
    fn transmit_now(&mut self, now: Instant) -> usize {
        let mut frames_out = 0;
        let mut clear = true;
        self.transmitted_at = now;
        // What RUD has beyond a turn waits for the next poll, which begins with what has come meanwhile.
        let mut turn = Turn::WHOLE;
        let mut rud_sends = self.protocols.rud.wants_transmit();
        if rud_sends {
            turn = self.ports.iter().map(|port| port.iface.turn()).max().unwrap_or(turn);
        }
        for _ in 0..TX_ROUNDS {
            let mut taken = 0;
            if rud_sends || self.protocols.tcp.wants_transmit() {
                let mut emitter = Emitter {
                    now,
                    ports: &mut self.ports,
                    destinations: &mut self.destinations,
                    counters: &mut self.protocols.counters,
                    alone: !self.protocols.rud.wants_transmit() && self.protocols.tcp.has_one_ready(),
                    taken: 0,
                    turn,
                };
                if rud_sends {
                    emitter.transmit_rud(&mut self.protocols.rud);
                }
                self.protocols.tcp.transmit(now, &mut emitter);
                (taken, turn) = (emitter.taken, emitter.turn);
            }
            clear = true;
            for port in &mut self.ports {
                // Neighbours that were requested above are resolved in the same poll.
                port.poll_timers(now, &mut self.protocols.counters);
                taken += port.flush(now);
                clear &= port.is_clear();
            }
            frames_out += taken;
            rud_sends = self.protocols.rud.wants_transmit();
            if taken == 0 || !(rud_sends && !turn.is_over() || self.protocols.tcp.wants_transmit()) {
                break;
            }
        }
        if !clear {
            clear = self.note_frames_out() == FramesOut::None;
        }
        if self.protocols.tcp.awaits_frames() {
            match clear {
                true => self.protocols.tcp.on_frames_released(),
                false => self.mark_frames(),
            }
        }
        frames_out
    }

    /// If the frames of the last mark have left, memory that rested since before it comes back, and there is a new mark.
    #[cold]
    fn mark_frames(&mut self) {
        if self.ports.iter().all(Port::is_past_mark) {
            self.protocols.tcp.on_mark();
            self.ports.iter_mut().for_each(|port| port.iface.set_mark());
        }
    }

    /// Informs the protocols if frames refer to memory of their users. [`release_held`](Self::release_held) informs
    /// them that none does any more, and releases the memory that waited for that.
    #[cold]
    fn note_frames_out(&mut self) -> FramesOut {
        let out = self.frames_out();
        if out != FramesOut::None {
            self.protocols.rud.set_frames_out(out);
            self.protocols.tcp.set_frames_out();
        }
        out
    }

    fn frames_out(&self) -> FramesOut {
        self.ports.iter().map(Port::frames_out).max().unwrap_or_default()
    }

    /// Releases the memory that waits for frames, if none refers to it any more.
    #[cold]
    fn release_held(&mut self, now: Instant, sink: &mut impl rud::Sink) {
        if self.note_frames_out() == FramesOut::None {
            self.protocols.rud.release_held(sink);
            self.protocols.tcp.release_held();
        }
        self.release_at = now + RELEASE_CHECK;
    }

    /// When [`Stack::poll`] has to be called although nothing arrives. Frames that wait for a device have no deadline
    /// of their own, unless something is released when they have left: while [`Stack::is_backlogged`], poll again soon.
    pub fn next_deadline(&self) -> Option<Instant> {
        let awaited = self.protocols.rud.awaits_frames() || self.protocols.tcp.awaits_releases();
        let protocols = earliest(self.protocols.rud.next_deadline(), self.protocols.tcp.next_deadline());
        let own = earliest(protocols, self.ip_deadline());
        let own = earliest(own, awaited.then_some(self.release_at));
        // Datagrams beyond a turn.
        let is_left = self.protocols.rud.wants_transmit() && !self.is_backlogged();
        let own = earliest(own, is_left.then_some(self.transmitted_at));
        self.ports.iter().map(Port::next_deadline).fold(own, earliest)
    }

    /// A thread is about to wait for this stack's ports: frames that arrive are announced from now on; see [`Device::arm`]. Poll once more before the wait,
    /// which ends at [`Stack::next_deadline`], and now and then for links that go down.
    pub fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let armed = self.ports.iter_mut().map(|port| port.device.arm(announce)).reduce(Wakes::and);
        let wakes = armed.unwrap_or_default();
        // Nothing announces that a device takes frames again.
        let waits = self.is_backlogged()
            || self.protocols.rud.wants_transmit()
            || self.protocols.tcp.wants_transmit();
        if waits { wakes.with_polling() } else { wakes }
    }

    /// The wait is over.
    pub fn disarm(&mut self) {
        self.ports.iter_mut().for_each(|port| port.device.disarm());
    }

    /// Whether frames that were sent may still refer to extents. RUD and TCP release extents only when no frame refers
    /// to them; this is for the extents of [`udp_send_to`](Self::udp_send_to), and for those of sessions that were
    /// closed.
    pub fn holds_extents(&self) -> bool {
        self.frames_out() != FramesOut::None
    }

    /// Drops all frames that wait, as if they were lost in transit: afterwards none refers to memory of the stack's users.
    pub fn drop_waiting(&mut self) {
        for port in &mut self.ports {
            port.drop_waiting();
        }
    }

    /// Whether frames wait for a device that takes no more at present.
    pub fn is_backlogged(&self) -> bool {
        self.ports.iter().any(|port| port.iface.is_backlogged())
    }

    /// Sends an ICMP echo request; the answer will be [`Stack::next_echo_reply`]'s.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Full`] it can be tried again later.
    pub fn ping(
        &mut self,
        now: Instant,
        remote: impl Into<IpAddr>,
        identifier: u16,
        sequence: u16,
        data: &[u8],
    ) -> Result<(), SendError> {
        let remote = remote.into();
        let ResolvedRoute { port, source, next_hop } =
            destination::route(&self.ports, any_like(remote), remote)?;
        let Some(Port { iface, .. }) = self.ports.get_mut(port) else {
            return Err(SendError::NoRoute { remote });
        };
        let limit = usize::from(iface.mtu).saturating_sub(ip_udp_len(&remote));
        let echo = Echo { kind: EchoKind::Request, identifier, sequence, data };
        let sent =
            icmp::send_echo(now, iface, source, remote, &echo, Requester::User, &mut self.protocols.counters);
        sent.map_err(|error| match error {
            SendIcmpError::NoRoute => SendError::NoRoute { remote },
            SendIcmpError::Unreachable | SendIcmpError::Limited => {
                SendError::Unreachable { remote, next_hop }
            }
            SendIcmpError::TooLong => SendError::TooLong { len: data.len(), limit },
            SendIcmpError::Full => SendError::Full,
        })
    }

    /// The next hop towards `remote`, itself or a router, and the state of its resolution.
    ///
    /// # Errors
    /// [`SendError::NoRoute`] or [`SendError::NotUnicast`].
    pub fn neighbour(
        &mut self,
        now: Instant,
        remote: impl Into<IpAddr>,
    ) -> Result<(IpAddr, Resolution), SendError> {
        let remote = remote.into();
        let ResolvedRoute { port, next_hop, .. } = destination::route(&self.ports, any_like(remote), remote)?;
        let port = self.ports.get_mut(port).ok_or(SendError::NoRoute { remote })?;
        Ok((next_hop, port.iface.neighbours.resolve(now, next_hop, Requester::Session)))
    }

    /// Takes the oldest answer to a [`Stack::ping`].
    pub fn next_echo_reply(&mut self) -> Option<ReceivedEcho> {
        self.protocols.echo_replies.pop_front()
    }

    /// Takes the oldest echo request of another host; it has been answered. The last 64 are kept.
    pub fn next_echo_request(&mut self) -> Option<ReceivedEcho> {
        self.protocols.echo_requests.pop_front()
    }

    /// Counters of the protocols, with the reasons for dropped frames.
    pub fn counters(&self) -> Counters {
        let held: u64 = self.ports.iter().map(|port| port.iface.neighbours.dropped().queue_full).sum();
        Counters {
            tx_held_overflow: held,
            rx_fragment_evicted: self.protocols.reassembly.evicted(),
            ..self.protocols.counters
        }
    }

    /// Counters of a port's device; all zero for a port of another stack.
    pub fn device_counters(&self, port: PortId) -> DeviceCounters {
        self.ports.get(port.0).map_or_else(DeviceCounters::default, |port| port.device.counters())
    }

    /// A port's device, to be driven past the stack: a bench of the bare link does.
    pub fn device_mut(&mut self, port: PortId) -> Option<&mut D> {
        self.ports.get_mut(port.0).map(|port| &mut port.device)
    }

    /// A port's device.
    pub fn device(&self, port: PortId) -> Option<&D> {
        self.ports.get(port.0).map(|port| &port.device)
    }

    /// The ports' addresses, in the order that the ports were added; of each port IPv4 first and link-local ones last.
    pub fn addresses(&self) -> impl Iterator<Item = (PortId, IpAddr)> {
        let all = |(index, port): (usize, &Port<D>)| {
            port.iface.addresses.all().map(move |address| (PortId(index), address))
        };
        self.ports.iter().enumerate().flat_map(all)
    }

    /// Ports whose link is down, as it was found last: ports look every 100 ms at a link that is up, and every 10 ms at one that is down.
    pub fn links_down(&self) -> impl Iterator<Item = PortId> {
        let down = self.ports.iter().enumerate().filter(|(_, port)| !port.iface.is_link_up());
        down.map(|(index, _)| PortId(index))
    }

    /// The ports, in the order that they were added.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<D> {
        (0..self.ports.len()).map(PortId)
    }

    /// The largest IP packet in bytes that can be sent to `remote`: the port's MTU, or less if the path is known to be
    /// narrower.
    ///
    /// # Errors
    /// [`SendError::NoRoute`] or [`SendError::NotUnicast`].
    pub fn path_mtu(&self, remote: impl Into<IpAddr>) -> Result<u16, SendError> {
        let remote = remote.into();
        let way = destination::route(&self.ports, any_like(remote), remote)?;
        let mtu = self.ports.get(way.port).map_or(0, |port| port.iface.mtu);
        Ok(self.destinations.path_mtu(remote).map_or(mtu, |path| path.min(mtu)))
    }

    /// Notes that packets to `remote` longer than `mtu` bytes do not get through. Anybody can claim so in an ICMP
    /// message: the caller has to make sure that the message is about a packet that was sent. True if that is news.
    /// It expires after ten minutes. TCP finds the MTU of its paths itself, and RUD's datagrams keep the size that
    /// their session was opened with: this is for UDP.
    ///
    /// ```
    /// # use shouter_netstack::device::Loopback;
    /// # use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
    /// # use shouter_netstack::time::Instant;
    /// # let (device, _peer) = Loopback::pair(1500, 64);
    /// # let mut stack = Stack::new(StackConfig::new(1));
    /// # stack.add_port(device, PortConfig::new([10, 0, 0, 1].into(), 24, 1500))?;
    /// assert_eq!(stack.path_mtu([10, 0, 0, 2])?, 1500);
    /// assert!(stack.path_mtu_reduce(Instant::ZERO, [10, 0, 0, 2], 1400));
    /// assert_eq!(stack.path_mtu([10, 0, 0, 2])?, 1400);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path_mtu_reduce(&mut self, now: Instant, remote: impl Into<IpAddr>, mtu: u16) -> bool {
        let remote = remote.into();
        let current = self.path_mtu(remote).unwrap_or(0);
        self.destinations.reduce_path_mtu(now, remote, mtu, current)
    }
}
