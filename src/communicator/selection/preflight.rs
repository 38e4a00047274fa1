//! Whether the leaders reach each other over their ports: checked when they join, with the fault where they do not.
//!
//! Every leader sends each of the others a heartbeat on the channel itself (over TCP: makes a connection for a moment), and asks it to echo packets of the job's
//! MTU. Nothing of it stays: channels are opened at their first use. The channel's own traffic decides. Echoes show the fault: the link, ARP, the address, the MTU, or the port.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use shouter_netstack::ip::neighbour::Resolution;
use shouter_netstack::stack::{ReceivedEcho, Stack};
use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Disposition, Refusal};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::transport::SendToken;

use crate::channel::Inbox;
use crate::channel::port::PortDevice;
use crate::channel::rud::RudChannel;
use crate::channel::stream::TcpChannel;
use crate::channel::up::{Channel, PeerAddress};
use crate::config::{Config, TransportChoice};
use crate::runtime::Clock;

/// For how long the others are tried.
const PATIENCE: Duration = Duration::from_secs(3);

/// For how long a peer that asks for no echo holds up the longer packets.
const IN_STEP: Duration = Duration::from_millis(1500);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Lengths of the packets that are tried before those of the full MTU, in bytes: the least MTU that can be configured, IPv6's,
/// Ethernet's, and those to which jumbo frames are often cut. They are tried one after the other, and not before the
/// channel has heard the peer: a veth that refuses a packet as too long holds up all that an af_packet port has behind
/// it. Packets that the peers wait for are part of that, so no packet is tried before every peer has asked for the echo
/// of one as long as the last that passed: the answer to it is in front of the longer packet.
const SMALLER: [u16; 5] = [576, 1280, 1500, 4000, 8000];

/// Bytes of an IPv4 and an ICMP header in front of the data of an echo request (RFC 791 section 3.1, RFC 792).
const ECHO_HEADERS: u16 = 28;

/// The bytes that are echoed.
static FILLER: [u8; u16::MAX as usize] = [0; u16::MAX as usize];

/// A channel over this host's ports.
pub(super) trait OverPorts: Channel {
    /// The stack over the ports.
    fn stack_mut(&mut self) -> &mut Stack<PortDevice>;

    /// Lets every peer hear of this one with the next poll.
    fn announce(&mut self);

    /// Whether a peer has been heard from.
    fn has_heard_from(&self, rank: Rank) -> bool;
}

impl OverPorts for RudChannel<PortDevice> {
    fn stack_mut(&mut self) -> &mut Stack<PortDevice> {
        self.stack_mut()
    }

    fn announce(&mut self) {
        self.announce();
    }

    fn has_heard_from(&self, rank: Rank) -> bool {
        self.has_heard_from(rank)
    }
}

impl OverPorts for TcpChannel<PortDevice> {
    fn stack_mut(&mut self) -> &mut Stack<PortDevice> {
        self.stack_mut()
    }

    /// A connection of its own for each trial; those for messages are made at their first use.
    fn announce(&mut self) {
        self.try_all();
    }

    fn has_heard_from(&self, rank: Rank) -> bool {
        self.has_heard_from(rank)
    }
}

/// The state of the path to a peer.
struct Probe<'a> {
    peer: &'a PeerAddress,
    /// The channel has heard from it.
    heard: bool,
    /// The longest packet that was echoed, in bytes; 0: none.
    passed: u16,
    /// The longest packet that the peer has asked the echo of, in bytes; 0: none.
    asked: u16,
    /// When to ask for the next echo.
    next: Instant,
}

impl Probe<'_> {
    /// Whether an echo message is the peer's.
    fn is_of(&self, echo: &ReceivedEcho) -> bool {
        IpAddr::V4(self.peer.ip) == echo.from
    }

    /// The packet to try next, in bytes, if there is one.
    fn wanted(&self, mtu: u16) -> Option<u16> {
        let mut all = SMALLER.into_iter().filter(|len| *len < mtu).chain([mtu]);
        all.find(|len| *len > self.passed).filter(|_| self.heard || self.passed == 0)
    }
}

/// Nothing is sent before all have joined.
struct Nothing;

impl Inbox for Nothing {
    fn fragment(&mut self, _: &Header, _: &[u8]) -> Disposition {
        Disposition::Refused(Refusal::NotReady)
    }

    fn released(&mut self, _: SendToken) {}
}

/// The paths of one channel to all peers.
struct Trial<'a> {
    probes: Vec<Probe<'a>>,
    /// When to let the peers hear of this leader again.
    next: Instant,
}

impl<'a> Trial<'a> {
    fn new(peers: &'a [PeerAddress], now: Instant) -> Self {
        let probe = |peer| Probe { peer, heard: false, passed: 0, asked: 0, next: now };
        Self { probes: peers.iter().map(probe).collect(), next: now }
    }

    /// Takes what has come, and asks for the echoes that are due of packets up to `mtu` bytes, if any are wanted; whether there was
    /// anything to do.
    fn turn(&mut self, up: &mut dyn OverPorts, now: Instant, mtu: Option<u16>, in_step: bool) -> bool {
        let Self { probes, next } = self;
        let mut any = up.receive(now, &mut Nothing);
        any |= take_echoes(up.stack_mut(), now, probes);
        let mut is_first_contact = false;
        for probe in probes.iter_mut().filter(|probe| !probe.heard) {
            if up.has_heard_from(probe.peer.rank) {
                (probe.heard, probe.next, is_first_contact) = (true, now, true);
            }
        }
        // Late ranks have not received the earlier messages.
        if *next <= now || is_first_contact {
            *next = now + PAUSE;
            up.announce();
        }
        if let Some(mtu) = mtu {
            ask(up.stack_mut(), now, probes, mtu, in_step);
        }
        any | up.transmit(now, &mut Nothing)
    }

    fn is_complete(&self, mtu: u16) -> bool {
        self.probes.iter().all(|probe| probe.heard && probe.passed >= mtu)
    }
}

/// Probes the path to each of `peers` for packets of up to `mtu` bytes, and answers them. Every shard's channel is to hear from its peers,
/// side by side: a peer may be ahead on one of them. Echoes are the first shard's alone: the ports are the same, and a NIC gives its
/// first queue all answers.
///
/// # Errors
/// The faults of the paths to some of them, with the remedy.
pub(super) fn check(
    ups: &mut [Box<dyn OverPorts + Send>],
    config: &Config,
    peers: &[PeerAddress],
    mtu: u16,
) -> Result<(), String> {
    let begun = Clock.now();
    let mut trials: Vec<_> = ups.iter().map(|_| Trial::new(peers, begun)).collect();
    loop {
        let now = Clock.now();
        let in_step = now.saturating_since(begun) < IN_STEP;
        let mut any = false;
        for (shard, (up, trial)) in ups.iter_mut().zip(&mut trials).enumerate() {
            any |= trial.turn(&mut **up, now, (shard == 0).then_some(mtu), in_step);
        }
        if let Some((first, further)) = trials.split_first_mut() {
            for trial in further {
                trial.probes.iter_mut().zip(&first.probes).for_each(|(probe, its)| probe.passed = its.passed);
            }
        }
        let is_complete = trials.iter().all(|trial| trial.is_complete(mtu));
        if is_complete || now.saturating_since(begun) >= PATIENCE {
            if !is_complete {
                let mut both = ups.iter_mut().zip(&trials);
                both.try_for_each(|(up, trial)| judge(&mut **up, now, config, &trial.probes, mtu))?;
            }
            report_strays(ups, config);
            return Ok(());
        }
        if !any {
            std::thread::yield_now();
        }
    }
}

/// Warns of NICs that do not deal flows out as they were told.
fn report_strays(ups: &mut [Box<dyn OverPorts + Send>], config: &Config) {
    let Some(up) = ups.first_mut() else { return };
    let stack = up.stack_mut();
    let ports: Vec<_> = stack.addresses().collect();
    for (port, address) in ports {
        let strayed = stack.device_mut(port).map_or(0, |device| device.inner().strayed());
        if strayed > 0 {
            let name = config.ports.iter().find(|port| IpAddr::V4(port.address.ip) == address);
            tracing::warn!(
                port = name.map_or("", |port| port.device.as_str()),
                strayed,
                "the NIC gives its first queue packets of other queues' flows, and the first shard hands them on: several shards \
                 gain little"
            );
        }
    }
}

/// Notes the echoes that came back, and those that the peers have asked for; true if there were any.
fn take_echoes(stack: &mut Stack<PortDevice>, now: Instant, probes: &mut [Probe<'_>]) -> bool {
    let mut any = false;
    while let Some(reply) = stack.next_echo_reply() {
        any = true;
        let len = packet_len(&reply);
        for probe in probes.iter_mut().filter(|probe| probe.is_of(&reply) && probe.passed < len) {
            (probe.passed, probe.next) = (len, now);
        }
    }
    while let Some(request) = stack.next_echo_request() {
        any = true;
        let len = packet_len(&request);
        for probe in probes.iter_mut().filter(|probe| probe.is_of(&request) && probe.asked < len) {
            probe.asked = len;
        }
    }
    any
}

/// Bytes of the packet that carried an echo message.
fn packet_len(echo: &ReceivedEcho) -> u16 {
    u16::try_from(echo.len + usize::from(ECHO_HEADERS)).unwrap_or(u16::MAX)
}

/// Asks for echoes that are due, if `in_step` not before the peers have asked for the earlier ones. A request that
/// finds no room is made again next time.
fn ask(stack: &mut Stack<PortDevice>, now: Instant, probes: &mut [Probe<'_>], mtu: u16, in_step: bool) {
    let limit = probes.iter().map(|probe| probe.asked).min().filter(|_| in_step).unwrap_or(u16::MAX);
    for probe in probes.iter_mut().filter(|probe| probe.next <= now && probe.passed <= limit) {
        let Some(len) = probe.wanted(mtu) else { continue };
        probe.next = now + PAUSE;
        let data = &FILLER[..usize::from(len.saturating_sub(ECHO_HEADERS))];
        if let Err(why) = stack.ping(now, probe.peer.ip, 0, len, data) {
            tracing::trace!(rank = %probe.peer.rank, %why, "an echo was not asked for");
        }
    }
}

/// The error with the faults that the probes have found.
fn judge(
    up: &mut dyn OverPorts,
    now: Instant,
    config: &Config,
    probes: &[Probe<'_>],
    mtu: u16,
) -> Result<(), String> {
    let mut text = String::new();
    for Probe { peer, heard, passed, .. } in probes {
        let PeerAddress { rank, ip, local_ip, .. } = peer;
        let why = match (heard, passed) {
            (true, 0) => {
                tracing::warn!(%rank, %ip, "no echo came back, so the path was not probed with packets of the full MTU");
                continue;
            }
            (true, passed) if *passed >= mtu => continue,
            (true, passed) => format!(
                "MTU: packets of {mtu} bytes do not get through, and those of {passed} do; set mtu = {passed} on all hosts, \
                 or raise the MTU of the interfaces and switches in between"
            ),
            (false, passed) => unheard(up, now, config, peer, *passed),
        };
        let device = device_of(config, peer).map_or("", |port| port.device.as_str());
        let between = if text.is_empty() { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ =
            write!(text, "{between}{rank} at {ip} is not reached from {local_ip} on port {device}: {why}");
    }
    if text.is_empty() { Ok(()) } else { Err(text) }
}

/// Why nothing was heard from a peer.
fn unheard(up: &mut dyn OverPorts, now: Instant, config: &Config, peer: &PeerAddress, passed: u16) -> String {
    let (rank, ip) = (peer.rank, peer.ip);
    let (name, protocol) = match config.transport {
        TransportChoice::Tcp => ("tcp", "TCP"),
        _ => ("rud", "UDP"),
    };
    let stack = up.stack_mut();
    let port = stack.addresses().find(|(_, own)| *own == IpAddr::V4(peer.local_ip)).map(|(port, _)| port);
    let is_up =
        port.and_then(|port| stack.device_mut(port)).is_none_or(shouter_netstack::device::Device::link_up);
    if !is_up {
        return "link: it is down; look at the cable, the switch, and the interface (`ip link`), or, for an embedded link, at \
                the process at the other end"
            .to_owned();
    }
    match stack.neighbour(now, ip) {
        Ok((_, Resolution::Station(mac))) if passed > 0 => format!(
            "port: station {mac} answers echo requests, and nothing comes by {name}; see that nothing in between filters \
             {protocol} port {}, and that {ip} belongs to {rank} alone",
            config.data_port
        ),
        Ok((hop, Resolution::Station(mac))) => format!(
            "address: station {mac} answers ARP for {hop}, and neither echo requests nor {name} for {ip}; see that {ip} is \
             {rank}'s address and no other station's, and that nothing in between filters {protocol} port {}",
            config.data_port
        ),
        Ok((hop, _)) => format!(
            "ARP: nobody answers for {hop}; see that it is the right address, and that both ports are on one network (VLAN, \
             bridge, cabling)"
        ),
        Err(why) => format!("address: {why}"),
    }
}

/// The port that leads to a peer.
fn device_of<'a>(config: &'a Config, peer: &PeerAddress) -> Option<&'a crate::config::PortConfig> {
    config.ports.iter().find(|port| port.address.ip == peer.local_ip)
}
