//! Which channel leads to which host, and the channels themselves.
//!
//! Every leader tells what it has: DPDK ports, RDMA ports, a socket of the kernel's. Each then looks which of them lead to each
//! of the others and tells that too; what leads there and back can be taken. An explicit `transport` must be among it;
//! `auto` takes the best, pair by pair: verbs, RUD over DPDK, the kernel's sockets.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

use serde::{Deserialize, Serialize};
use shouter_reducer::grid::{Grid, Rank};

use crate::channel::port;
use crate::channel::rud::{RudChannel, rud_config};
use crate::channel::stream::{KernelChannel, KernelStreams, Settings, StackStreams, TcpChannel};
use crate::channel::up::{Channel, PeerAddress, UpChannels};
use crate::config::{Config, TransportChoice};
use crate::error::Error;
use crate::group::rendezvous::{self, ControlLink, RendezvousConfig, Roster};
use crate::key::Key;
use crate::runtime::Clock;
use crate::wire;

use super::transport::named;
use preflight::OverPorts;

#[cfg(not(feature = "verbs"))]
mod no_rdma;
mod preflight;
#[cfg(feature = "verbs")]
mod rdma;
#[cfg(not(feature = "verbs"))]
use no_rdma as rdma;

/// A channel between two leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Verbs,
    Rud,
    Tcp,
    Kernel,
}

impl Way {
    const ALL: [Self; 4] = [Self::Verbs, Self::Rud, Self::Tcp, Self::Kernel];

    /// As in the configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Rud => "rud",
            Self::Tcp => "tcp",
            Self::Kernel => "kernel",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Those that a choice allows, the best first. TCP is never taken by itself.
    fn allowed(choice: TransportChoice) -> &'static [Self] {
        match choice {
            TransportChoice::Auto | TransportChoice::Shm => &[Self::Verbs, Self::Rud, Self::Kernel],
            TransportChoice::Rud => &[Self::Rud],
            TransportChoice::Tcp => &[Self::Tcp],
            TransportChoice::Verbs => &[Self::Verbs],
            TransportChoice::Kernel => &[Self::Kernel],
        }
    }
}

/// What a leader tells about itself, opaque to the rendezvous.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    /// The transport that it is told to use.
    transport: TransportChoice,
    /// Whether its frames and fragments carry a CRC, where the channel leaves that open.
    crc: bool,
    /// Its addresses on the data network, each with the peers that it leads to (all, if there are none).
    ports: Vec<(Ipv4Addr, Vec<Ipv4Addr>)>,
    /// The data network's MTU in bytes.
    mtu: u16,
    /// Where a socket of its kernel listens for the channel `kernel`.
    kernel: Option<SocketAddrV4>,
    /// The same for the connections beside verbs' lanes.
    control: Option<SocketAddrV4>,
    /// Its RDMA ports.
    rdma: rdma::Reachable,
}

/// What this rank has, and has told.
pub(super) struct Means {
    told: Told,
    kernel: Option<KernelStreams>,
    control: Option<KernelStreams>,
    rdma: rdma::PortSurvey,
}

impl Means {
    /// Looks around, and listens where that may be needed.
    pub(super) fn of(config: &Config, leads: bool) -> Result<Self, Error> {
        let allowed = if leads { Way::allowed(config.transport) } else { &[] };
        let rdma = match allowed.contains(&Way::Verbs) {
            true => rdma::survey(&config.rdma_device),
            false => rdma::PortSurvey::default(),
        };
        let listen = |wanted: bool| if wanted { listen(config).map(Some) } else { Ok(None) };
        let kernel = listen(allowed.contains(&Way::Kernel))?;
        let control = listen(!rdma.ports.is_empty())?;
        let mtu = config.ports.iter().map(|port| port::mtu_of(config, port)).min();
        let told = Told {
            transport: config.transport,
            crc: config.crc,
            ports: config.ports.iter().map(|port| (port.address.ip, port.peers.clone())).collect(),
            mtu: mtu.unwrap_or(port::DEFAULT_MTU),
            kernel: kernel.as_ref().and_then(address),
            control: control.as_ref().and_then(address),
            rdma: rdma.reachable(),
        };
        Ok(Self { told, kernel, control, rdma })
    }

    /// For the rendezvous.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        wire::encode(&self.told)
    }
}

fn address(streams: &KernelStreams) -> Option<SocketAddrV4> {
    match streams.local_addr() {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    }
}

/// A socket at the address by which this rank and rank 0 see each other.
fn listen(config: &Config) -> Result<KernelStreams, Error> {
    let ip = match config.kernel_address {
        Some(ip) => ip,
        None => meeting_address(config)?,
    };
    KernelStreams::bind((ip, 0).into(), config.heartbeat_timeout)
        .map_err(|why| Error::Device(format!("{why}; name another with the key kernel_address")))
}

/// The address by which this host talks to rank 0's; on that host, the one that rank 0 listens on.
fn meeting_address(config: &Config) -> Result<Ipv4Addr, Error> {
    let (host, port) = (config.meeting.host.as_str(), config.meeting.port);
    let unclear = |why: String| {
        Error::Config(format!(
            "which address of this host the other leaders should connect to is not clear from {host}:{port}: {why}; set \
             kernel_address"
        ))
    };
    let all = rendezvous::resolve(&RendezvousConfig::of(config)?)?;
    let remote =
        all.into_iter().find(SocketAddr::is_ipv4).ok_or_else(|| unclear("it has no IPv4 address".into()))?;
    // A datagram socket that is connected sends nothing; it only makes the kernel choose its own address.
    let chosen = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(remote).and_then(|()| socket.local_addr()))
        .map_err(|why| unclear(why.to_string()))?;
    match chosen.ip() {
        IpAddr::V4(ip) => Ok(ip),
        IpAddr::V6(ip) => Err(unclear(format!("the kernel chose {ip}"))),
    }
}

/// What two leaders must have alike.
fn check_same((a, ours): (Rank, &Told), (b, theirs): (Rank, &Told)) -> Result<(), Error> {
    if ours.transport != theirs.transport {
        return Err(Error::Config(format!(
            "{a} has transport = \"{}\" and {b} has \"{}\"; give all ranks the same transport",
            ours.transport.name(),
            theirs.transport.name()
        )));
    }
    let on = |crc| if crc { "on" } else { "off" };
    // RUD always has one.
    if ours.crc != theirs.crc && ours.transport != TransportChoice::Rud {
        return Err(Error::Config(format!(
            "{a} has crc = \"{}\" and {b} has \"{}\"; give all ranks the same",
            on(ours.crc),
            on(theirs.crc)
        )));
    }
    for (ours, theirs) in [(ours.kernel, theirs.kernel), (ours.control, theirs.control)] {
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && ours.ip().is_loopback() != theirs.ip().is_loopback()
        {
            return Err(Error::Config(format!(
                "{a} would listen on {} and {b} on {}, and a loopback address cannot be reached from another host; set \
                 kernel_address to the host's address on the common network",
                ours.ip(),
                theirs.ip()
            )));
        }
    }
    Ok(())
}

/// No two hosts may have one address on the data network.
fn check_addresses(leaders: &[(Rank, Told)]) -> Result<(), Error> {
    let mut owners = HashMap::new();
    for (rank, told) in leaders.iter().filter(|(_, told)| told.transport != TransportChoice::Kernel) {
        for (ip, _) in &told.ports {
            if let Some(other) = owners.insert(*ip, *rank)
                && other != *rank
            {
                return Err(Error::Config(format!(
                    "ports of {other} and {rank} have the same address, {ip}; give every port an address of its own"
                )));
            }
        }
    }
    Ok(())
}

/// A peer and the channel that leads to it.
struct Peer {
    rank: Rank,
    told: Told,
    way: Way,
}

impl Peer {
    /// Where one of its kernel's sockets listens.
    fn listening(&self, remote: Option<SocketAddrV4>) -> Option<PeerAddress> {
        let remote = remote?;
        // The kernel chooses the address on this side.
        let local_ip = Ipv4Addr::UNSPECIFIED;
        Some(PeerAddress { rank: self.rank, ip: *remote.ip(), port: remote.port(), local_ip })
    }
}

/// The ways from this rank, decided, with what is needed to open them.
pub(super) struct Ways {
    means: Means,
    peers: Vec<Peer>,
    mtu: u16,
    reasons: Vec<String>,
}

/// Decides with all ranks which channel leads where; every rank takes part. `None` for ranks that lead no host.
pub(super) fn agree(
    config: &Config,
    grid: &Grid,
    means: Means,
    roster: &Roster,
    control: &mut ControlLink,
) -> Result<Option<Ways>, Error> {
    let own = Rank(config.rank);
    let leads = grid.nodes() > 1 && grid.is_leader(own);
    if leads {
        // Now, when the others hear of it before they wait for the port's other side.
        port::check_free(config)?;
    }
    let mut leaders = vec![];
    for node in 0..if leads { grid.nodes() } else { 0 } {
        let rank = grid.leader_of(node);
        let blob = roster.members.get(rank.0 as usize).map(|member| member.blob.as_slice());
        let told: Told = wire::decode(blob.unwrap_or_default())
            .map_err(|why| Error::join_without(rank.0, format!("what {rank} told: {why}")))?;
        leaders.push((rank, told));
    }
    check_addresses(&leaders)?;
    // One byte a host: what leads there from here.
    let ours: Vec<u8> = leaders
        .iter()
        .map(|(rank, told)| if *rank == own { 0 } else { possible(config, &means, told) })
        .collect();
    let all = control.all_gather("ways", &ours, config.rendezvous_deadline)?;
    if !leads {
        return Ok(None);
    }
    let here = grid.node_of(own) as usize;
    let mtu = leaders.iter().map(|(_, told)| told.mtu).min().unwrap_or(port::DEFAULT_MTU);
    let (mut peers, mut choices) = (vec![], Choices::new());
    for ((rank, told), there) in leaders.into_iter().zip(&ours).filter(|((rank, _), _)| *rank != own) {
        check_same((own, &means.told), (rank, &told))?;
        let back = all.get(rank.0 as usize).and_then(|ways| ways.get(here)).copied().unwrap_or(0);
        let allowed = Way::allowed(config.transport);
        let Some(way) = allowed.iter().copied().find(|way| there & back & way.bit() != 0) else {
            return Err(Error::Config(no_way(config, &means, (own, rank), &told, (*there, back))));
        };
        let why = match config.transport {
            TransportChoice::Auto | TransportChoice::Shm => {
                passed_over(config, &means, allowed, way, (&told, *there, back))
            }
            asked => format!("transport = \"{}\"", asked.name()),
        };
        choices.entry((way, why)).or_default().push(rank);
        peers.push(Peer { rank, told, way });
    }
    let reasons = choices.iter().map(|((way, why), ranks)| {
        let peers = named(ranks);
        tracing::info!(peers, transport = way.name(), why, "a channel was chosen");
        format!("{} to {peers}: {why}", way.name())
    });
    let reasons = reasons.collect();
    Ok(Some(Ways { means, peers, mtu, reasons }))
}

/// The ranks to which each way leads for the same reason.
type Choices = BTreeMap<(Way, String), Vec<Rank>>;

/// The ways that lead to a peer, as far as this rank can tell.
fn possible(config: &Config, means: &Means, theirs: &Told) -> u8 {
    let leads = |way: &Way| match way {
        Way::Verbs => theirs.control.is_some() && means.rdma.way(&theirs.rdma).is_some(),
        Way::Rud | Way::Tcp => route(config, &theirs.ports).is_some(),
        Way::Kernel => means.kernel.is_some() && theirs.kernel.is_some(),
    };
    Way::ALL.iter().filter(|way| leads(way)).map(|way| way.bit()).sum()
}

/// Why no better way was taken, and which ports cannot be used.
fn passed_over(
    config: &Config,
    means: &Means,
    allowed: &[Way],
    taken: Way,
    (theirs, there, back): (&Told, u8, u8),
) -> String {
    let problems = means.rdma.problems.join("; ");
    let no_way = |way: &Way| {
        let why = match way {
            _ if there & way.bit() != 0 && back & way.bit() == 0 => {
                "this rank could reach it so, but it not this rank; its log says more".into()
            }
            Way::Verbs if !problems.is_empty() => problems.clone(),
            Way::Verbs => "no RDMA port with a route there".into(),
            _ if config.ports.is_empty() => "the key ports names no port of this host".into(),
            _ if theirs.ports.is_empty() => "the other host names no ports".into(),
            _ => "no port of this host leads there".to_owned(),
        };
        format!("no {}: {why}", way.name())
    };
    let mut all: Vec<String> = allowed.iter().take_while(|way| **way != taken).map(no_way).collect();
    if all.is_empty() {
        all.push("it is the best there is".into());
    }
    if taken == Way::Verbs && !problems.is_empty() {
        all.push(format!("other RDMA ports cannot be used: {problems}"));
    }
    all.join("; ")
}

/// The error where the transport that must be taken leads nowhere.
fn no_way(
    config: &Config,
    means: &Means,
    (own, rank): (Rank, Rank),
    theirs: &Told,
    (there, back): (u8, u8),
) -> String {
    let name = config.transport.name();
    match config.transport {
        TransportChoice::Verbs if there & Way::Verbs.bit() != 0 && back & Way::Verbs.bit() == 0 => {
            format!(
                "transport = \"{name}\": an RDMA route leads from {own} to {rank} and none back; see the log of {rank}"
            )
        }
        TransportChoice::Verbs if !means.rdma.problems.is_empty() => {
            format!(
                "transport = \"{name}\": {own} has no RDMA port for {rank}: {}",
                means.rdma.problems.join("; ")
            )
        }
        TransportChoice::Verbs => format!(
            "transport = \"{name}\": no RDMA port of {own} ({}) has a route to one of {rank} ({}); look at `rdma link` and \
             `ip route get` on both hosts, or use transport = \"auto\"",
            means.told.rdma, theirs.rdma
        ),
        _ if means.told.ports.is_empty() => format!(
            "{own} has no port to {rank}; name its ports in the configuration (ports = [{{ device = \"...\", address = \
             \"...\" }}]), or start the job with `shouter run --hosts`"
        ),
        _ => format!(
            "no port of {own} leads to {rank}, whose addresses are {:?}; add it to a port's peers",
            theirs.ports.iter().map(|port| port.0).collect::<Vec<_>>()
        ),
    }
}

/// Channels that are about to be opened: everything that takes its time is done.
pub(super) struct Prepared {
    ways: Ways,
    ports: Option<port::Ports>,
    rdma: Option<rdma::Prepared>,
}

impl Ways {
    /// Opens ports and devices and registers memory, as far as peers need them.
    pub(super) fn prepare(self, config: &Config, grid: &Grid) -> Result<Prepared, Error> {
        let takes = |ways: &[Way]| self.peers.iter().any(|peer| ways.contains(&peer.way));
        let ports = match takes(&[Way::Rud, Way::Tcp]) {
            true => {
                let peers = self.peers.iter().filter(|peer| peer.way == Way::Rud).count();
                Some(port::open(config, rud_config(config.heartbeat_timeout, peers))?)
            }
            false => None,
        };
        let peers: Vec<&rdma::Reachable> =
            self.peers.iter().filter(|peer| peer.way == Way::Verbs).map(|peer| &peer.told.rdma).collect();
        let rdma = match peers.is_empty() {
            true => None,
            false => Some(rdma::Prepared::new(config, grid, &self.means.rdma, &peers)?),
        };
        Ok(Prepared { ways: self, ports, rdma })
    }
}

impl Prepared {
    /// The kind of the ports or the RDMA device, for people.
    pub(super) fn device(&self) -> Option<&'static str> {
        let rdma = self.rdma.as_ref().map(|_| "rdma");
        rdma.or(self.ports.as_ref().map(|ports| ports.kind))
    }

    /// Why each channel was taken.
    pub(super) fn reasons(&self) -> Vec<String> {
        self.ways.reasons.clone()
    }

    /// The channels' names, each once, the best first.
    pub(super) fn names(&self) -> Vec<&'static str> {
        let taken = |way: &&Way| self.ways.peers.iter().any(|peer| peer.way == **way);
        Way::ALL.iter().filter(taken).map(|way| way.name()).collect()
    }

    /// Opens the channels; all leaders do it at the same time. With them comes what is wrong with the way to peers, if anything
    /// is.
    pub(super) fn connect(
        self,
        config: &Config,
        roster: &Roster,
    ) -> Result<(UpChannels, Result<(), String>), Error> {
        let Self { ways: Ways { means, peers, mtu, .. }, ports, rdma } = self;
        let (rank, secret) = (Rank(config.rank), &roster.session_secret);
        let connections = config.channel_num.min(u32::from(u16::MAX)) as u16;
        let joined = |why: &dyn std::fmt::Display| Error::join(why.to_string());
        let of =
            |ways: &[Way]| -> Vec<&Peer> { peers.iter().filter(|peer| ways.contains(&peer.way)).collect() };
        let mut channels: Vec<(Box<dyn Channel + Send>, _)> = vec![];
        let mut over_ports: Option<(Box<dyn OverPorts + Send>, Vec<PeerAddress>)> = None;
        if let Some(ports) = ports {
            let lead = of(&[Way::Rud, Way::Tcp]).into_iter().filter_map(|peer| {
                let (local_ip, ip) = route(config, &peer.told.ports)?;
                Some(PeerAddress { rank: peer.rank, ip, port: port::TCP_PORT, local_ip })
            });
            let lead = lead.collect::<Vec<_>>();
            let channel: Box<dyn OverPorts + Send> = if config.transport == TransportChoice::Tcp {
                let settings = settings(config, secret, connections)?;
                let streams = StackStreams::new(ports.stack, port::TCP_PORT, config.heartbeat_timeout);
                let channel = TcpChannel::open(streams, rank, &lead, settings, Clock.now());
                Box::new(channel.map_err(|why| joined(&why))?)
            } else {
                let wire = (connections, port::RUD_PORT, mtu);
                let channel = RudChannel::open(ports.stack, rank, &lead, secret, wire, Clock.now());
                Box::new(channel.map_err(|why| joined(&why))?)
            };
            over_ports = Some((channel, lead));
        }
        let lead: Vec<PeerAddress> =
            of(&[Way::Kernel]).iter().filter_map(|peer| peer.listening(peer.told.kernel)).collect();
        if let (Some(streams), false) = (means.kernel, lead.is_empty()) {
            let (channel, ranks) = sockets(config, secret, &lead, streams, connections)?;
            channels.push((Box::new(channel), ranks));
        }
        if let (Some(streams), Some(rdma)) = (means.control, rdma) {
            let lead: Vec<PeerAddress> =
                of(&[Way::Verbs]).iter().filter_map(|peer| peer.listening(peer.told.control)).collect();
            let (control, ranks) = sockets(config, secret, &lead, streams, 0)?;
            channels.push((Box::new(rdma.connect(config, control, &ranks)), ranks));
        }
        // All channels are open by now.
        let mut reached = Ok(());
        if let Some((mut channel, lead)) = over_ports {
            reached = preflight::check(&mut *channel, config, &lead, mtu);
            channels.insert(0, (channel, lead.iter().map(|peer| peer.rank).collect()));
        }
        Ok((UpChannels::new(channels), reached))
    }
}

/// A channel of the kernel's sockets to these peers, and their ranks.
fn sockets(
    config: &Config,
    secret: &Key,
    peers: &[PeerAddress],
    streams: KernelStreams,
    connections: u16,
) -> Result<(KernelChannel, Vec<Rank>), Error> {
    let settings = settings(config, secret, connections)?;
    let channel = KernelChannel::open(streams, Rank(config.rank), peers, settings, Clock.now());
    let channel = channel.map_err(|why| Error::join(why.to_string()))?;
    Ok((channel, peers.iter().map(|peer| peer.rank).collect()))
}

fn settings(config: &Config, secret: &Key, connections: u16) -> Result<Settings, Error> {
    let salt = Key::from_secret(port::randomness()?);
    Ok(Settings {
        secret: secret.clone(),
        salt,
        connections,
        dead_after: config.heartbeat_timeout,
        crc: config.crc,
    })
}

/// Our address and theirs on a link that leads from here to there: one that a port names, else one in its network.
fn route(config: &Config, theirs: &[(Ipv4Addr, Vec<Ipv4Addr>)]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let addresses = || theirs.iter().map(|port| port.0);
    let named = config
        .ports
        .iter()
        .find_map(|port| addresses().find(|ip| port.peers.contains(ip)).map(|ip| (port.address.ip, ip)));
    named.or_else(|| {
        config.ports.iter().filter(|port| port.peers.is_empty()).find_map(|port| {
            let mask = u32::MAX.checked_shl(32 - u32::from(port.address.prefix_len)).unwrap_or(0);
            let near = |ip: &Ipv4Addr| (ip.to_bits() ^ port.address.ip.to_bits()) & mask == 0;
            addresses().find(|ip| near(ip) || port.gateway.is_some()).map(|ip| (port.address.ip, ip))
        })
    })
}

#[cfg(test)]
mod tests;
