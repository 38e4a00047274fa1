//! Selection of the transport between each pair of hosts, and set-up of the channels.
//!
//! Every leader advertises its capabilities: DPDK ports, RDMA ports, a listening kernel socket. Each leader then computes which
//! transports reach each other leader and sends the result to all. A transport is usable if both directions work. An explicit
//! `transport` must be usable; `auto` takes the best usable one of each pair: verbs, RUD over DPDK, kernel sockets.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

use serde::{Deserialize, Serialize};
use shouter_reducer::grid::{Grid, Rank};

use crate::channel::port;
use crate::channel::stream::KernelStreams;
use crate::channel::up::PeerAddress;
use crate::config::{Config, TransportChoice};
use crate::error::Error;
use crate::group::rendezvous::{self, ControlLink, RendezvousConfig, Roster};
use crate::wire;

use super::transport::named;
pub(super) use prepared::Prepared;

#[cfg(not(feature = "verbs"))]
mod no_rdma;
mod preflight;
mod prepared;
#[cfg(feature = "verbs")]
mod rdma;
#[cfg(not(feature = "verbs"))]
use no_rdma as rdma;

/// The transport of a channel between two leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TransportKind {
    Verbs,
    Rud,
    Tcp,
    Kernel,
}

impl TransportKind {
    const ALL: [Self; 4] = [Self::Verbs, Self::Rud, Self::Tcp, Self::Kernel];

    /// The name in the configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Rud => "rud",
            Self::Tcp => "tcp",
            Self::Kernel => "kernel",
        }
    }

    /// The connections in a channel over it.
    fn connections(self, config: &Config) -> u16 {
        // A path of RUD is a source port and a few bytes, and many spread evenly over the links of a network of several levels. A connection of
        // the others has buffers, or is an open file, or memory that a device has registered.
        let usual = if self == Self::Rud { 64 } else { 10 };
        config.channel_num.map_or(usual, |number| number.min(u16::MAX.into()) as u16)
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The transports that a choice allows, the best first. `auto` never takes TCP; where sessions are sealed, it takes what can be.
    fn allowed(choice: TransportChoice, seals: bool) -> &'static [Self] {
        match choice {
            TransportChoice::Auto | TransportChoice::Shm if seals => &[Self::Rud],
            TransportChoice::Auto | TransportChoice::Shm => &[Self::Verbs, Self::Rud, Self::Kernel],
            TransportChoice::Rud => &[Self::Rud],
            TransportChoice::Tcp => &[Self::Tcp],
            TransportChoice::Verbs => &[Self::Verbs],
            TransportChoice::Kernel => &[Self::Kernel],
        }
    }
}

/// A leader's message to the others about itself; opaque to the rendezvous.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Advertisement {
    /// The transport that it is configured to use.
    transport: TransportChoice,
    /// Whether its frames and fragments carry a CRC, where the channel leaves that open.
    crc: bool,
    /// Its addresses on the data network, each with the peers that it leads to (all, if there are none).
    ports: Vec<(Ipv4Addr, Vec<Ipv4Addr>)>,
    /// The data network's MTU in bytes.
    mtu: u16,
    /// The UDP or TCP port at which its ports are reached.
    data_port: u16,
    /// The address at which a socket of its kernel listens for the channel `kernel`.
    kernel: Option<SocketAddrV4>,
    /// The same for the control connections beside verbs' queue pairs.
    control: Option<SocketAddrV4>,
    /// Its RDMA ports.
    rdma: rdma::Reachable,
}

/// The ports and sockets of this rank, and its advertisement.
pub(super) struct LocalCapabilities {
    advertised: Advertisement,
    kernel: Option<KernelStreams>,
    control: Option<KernelStreams>,
    rdma: rdma::PortSurvey,
}

impl LocalCapabilities {
    /// Surveys the devices, and opens the listening sockets that may be needed.
    pub(super) fn of(config: &Config, leads: bool) -> Result<Self, Error> {
        let allowed = if leads { TransportKind::allowed(config.transport, config.rud_seal) } else { &[] };
        let rdma = match allowed.contains(&TransportKind::Verbs) {
            true => rdma::survey(&config.rdma_device),
            false => rdma::PortSurvey::default(),
        };
        let listen = |wanted: bool| if wanted { listen(config).map(Some) } else { Ok(None) };
        let kernel = listen(allowed.contains(&TransportKind::Kernel))?;
        let control = listen(!rdma.ports.is_empty())?;
        let mtu = config.ports.iter().map(|port| port::mtu_of(config, port)).min();
        let advertised = Advertisement {
            transport: config.transport,
            crc: config.crc,
            ports: config.ports.iter().map(|port| (port.address.ip, port.peers.clone())).collect(),
            mtu: mtu.unwrap_or(port::DEFAULT_MTU),
            data_port: config.data_port,
            kernel: kernel.as_ref().and_then(address),
            control: control.as_ref().and_then(address),
            rdma: rdma.reachable(),
        };
        Ok(Self { advertised, kernel, control, rdma })
    }

    /// The advertisement, encoded for the rendezvous.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        Ok(wire::encode(&self.advertised)?)
    }
}

fn address(streams: &KernelStreams) -> Option<SocketAddrV4> {
    match streams.local_addr() {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    }
}

/// A socket at the address by which this rank and rank 0 see each other; at all addresses, where it is not known yet by which.
fn listen(config: &Config) -> Result<KernelStreams, Error> {
    let ip = match config.kernel_address {
        Some(ip) => ip,
        None => rendezvous_address(config)?,
    };
    KernelStreams::bind((ip, 0).into(), config.heartbeat_timeout)
        .map_err(|why| Error::Device(format!("{why}; name another with the key kernel_address")))
}

/// The address by which this host talks to rank 0's; on that host, the one that rank 0 listens on. Unspecified where rank 0 has several.
fn rendezvous_address(config: &Config) -> Result<Ipv4Addr, Error> {
    let (host, port) = (config.rendezvous.host.as_str(), config.rendezvous.port);
    let unclear = |why: String| {
        Error::Config(format!(
            "which address of this host the other leaders should connect to is not clear from {host}:{port}: {why}; set \
             kernel_address"
        ))
    };
    let mut all = rendezvous::resolve(&RendezvousConfig::of(config)?)?;
    all.retain(SocketAddr::is_ipv4);
    let Some(&remote) = all.first() else { return Err(unclear("it has no IPv4 address".into())) };
    if all.iter().any(|other| *other != remote) {
        // The one that answers decides: see `found_in_joining`.
        return Ok(Ipv4Addr::UNSPECIFIED);
    }
    // A datagram socket that is connected sends nothing; it only makes the kernel choose its own address.
    let chosen = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(remote).and_then(|()| socket.local_addr()))
        .map_err(|why| unclear(why.to_string()))?;
    match chosen.ip() {
        IpAddr::V4(ip) => Ok(ip),
        IpAddr::V6(ip) => Err(unclear(format!("the kernel chose {ip}"))),
    }
}

/// Checks the settings that must be equal on two leaders.
fn check_same((a, ours): (Rank, &Advertisement), (b, theirs): (Rank, &Advertisement)) -> Result<(), Error> {
    if ours.transport != theirs.transport {
        return Err(Error::Config(format!(
            "{a} has transport = \"{}\" and {b} has \"{}\"; give all ranks the same transport",
            ours.transport.name(),
            theirs.transport.name()
        )));
    }
    if ours.data_port != theirs.data_port && !ours.ports.is_empty() && !theirs.ports.is_empty() {
        return Err(Error::Config(format!(
            "{a} has data_port = {} and {b} has {}; give all ranks the same",
            ours.data_port, theirs.data_port
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
            && !ours.ip().is_unspecified()
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

/// Fills in the addresses that leaders could not know before the join: those by which they and rank 0 have met.
fn found_in_joining(
    config: &Config,
    leaders: &mut [(Rank, Advertisement)],
    control: &mut ControlLink,
) -> Result<(), Error> {
    fn open(advertised: &mut Advertisement) -> impl Iterator<Item = &mut SocketAddrV4> {
        let listening = [&mut advertised.kernel, &mut advertised.control];
        listening.into_iter().flatten().filter(|address| address.ip().is_unspecified())
    }
    // All ranks see the same, so all make the exchange or none.
    if !leaders.iter_mut().any(|(_, advertised)| open(advertised).next().is_some()) {
        return Ok(());
    }
    let v4 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    };
    let (near, far) = control.ends().map(|(near, far)| (v4(near), v4(far))).unwrap_or_default();
    let all = control.all_gather("addresses", &wire::encode(&near)?, config.rendezvous_deadline)?;
    for (rank, advertised) in leaders.iter_mut().filter(|(rank, _)| rank.0 != config.rank) {
        let said = all.get(rank.0 as usize).map(Vec::as_slice).unwrap_or_default();
        let said: Option<Ipv4Addr> = wire::decode(said)
            .map_err(|why| Error::join_without(rank.0, format!("what {rank} says of its address: {why}")))?;
        let found = if rank.0 == 0 { far } else { said };
        for address in open(advertised) {
            let Some(ip) = found else {
                return Err(Error::Config(format!(
                    "{rank} has several addresses, and none of IPv4 by which the ranks have met; set kernel_address there"
                )));
            };
            address.set_ip(ip);
        }
    }
    Ok(())
}

/// No two hosts may have one address on the data network.
fn check_addresses(leaders: &[(Rank, Advertisement)]) -> Result<(), Error> {
    let mut owners = HashMap::new();
    for (rank, advertised) in
        leaders.iter().filter(|(_, advertised)| advertised.transport != TransportChoice::Kernel)
    {
        for (ip, _) in &advertised.ports {
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

/// A peer and the transport to it.
struct Peer {
    rank: Rank,
    advertised: Advertisement,
    transport: TransportKind,
}

impl Peer {
    /// The address at which one of its kernel's sockets listens.
    fn listening(&self, remote: Option<SocketAddrV4>) -> Option<PeerAddress> {
        let remote = remote?;
        // The kernel chooses the address on this side.
        let local_ip = Ipv4Addr::UNSPECIFIED;
        Some(PeerAddress { rank: self.rank, ip: *remote.ip(), port: remote.port(), local_ip })
    }
}

/// The selected transports from this rank, and the state to open them.
pub(super) struct Selection {
    local: LocalCapabilities,
    peers: Vec<Peer>,
    mtu: u16,
    reasons: Vec<String>,
}

/// Selects the transport to every other leader; every rank takes part in the exchange. `None` on ranks that are no leader.
pub(super) fn agree(
    config: &Config,
    grid: &Grid,
    local: LocalCapabilities,
    roster: &Roster,
    control: &mut ControlLink,
) -> Result<Option<Selection>, Error> {
    let own = Rank(config.rank);
    let leads = grid.nodes() > 1 && grid.is_leader(own);
    if leads {
        // Checked here, so that the other ranks learn of the failure before they wait for this port.
        port::check_free(config)?;
    }
    let mut leaders = vec![];
    for node in 0..if grid.nodes() > 1 { grid.nodes() } else { 0 } {
        let rank = grid.leader_of(node);
        let blob = roster.members.get(rank.0 as usize).map(|member| member.blob.as_slice());
        let advertised: Advertisement = wire::decode(blob.unwrap_or_default())
            .map_err(|why| Error::join_without(rank.0, format!("the capabilities of {rank}: {why}")))?;
        leaders.push((rank, advertised));
    }
    check_addresses(&leaders)?;
    found_in_joining(config, &mut leaders, control)?;
    // One byte per host: the transports that reach it from here.
    let mut ours: Vec<u8> = leaders
        .iter()
        .filter(|_| leads)
        .map(|(rank, advertised)| if *rank == own { 0 } else { usable(config, &local, advertised) })
        .collect();
    let here = grid.node_of(own) as usize;
    // The entry of a host for itself is not used, and rows of hosts that are alike are to be equal.
    let neighbour = ours.get(here.wrapping_sub(1)).or(ours.get(here + 1)).copied();
    if let (Some(own), Some(neighbour)) = (ours.get_mut(here), neighbour) {
        *own = neighbour;
    }
    let back = control.transpose("transports", &ours, config.rendezvous_deadline)?;
    if !leads {
        return Ok(None);
    }
    let mtu = leaders.iter().map(|(_, advertised)| advertised.mtu).min().unwrap_or(port::DEFAULT_MTU);
    let (mut peers, mut choices) = (vec![], Choices::new());
    let both = ours.iter().zip(back.iter().copied().chain(std::iter::repeat(0)));
    for ((rank, advertised), (there, back)) in
        leaders.into_iter().zip(both).filter(|((rank, _), _)| *rank != own)
    {
        check_same((own, &local.advertised), (rank, &advertised))?;
        let allowed = TransportKind::allowed(config.transport, config.rud_seal);
        let Some(kind) = allowed.iter().copied().find(|kind| there & back & kind.bit() != 0) else {
            return Err(Error::Config(no_transport(
                config,
                &local,
                (own, rank),
                &advertised,
                (*there, back),
            )));
        };
        let why = match config.transport {
            TransportChoice::Auto | TransportChoice::Shm if config.rud_seal => "rud_seal = \"on\"".to_owned(),
            TransportChoice::Auto | TransportChoice::Shm => {
                selection_reason(config, &local, allowed, kind, (&advertised, *there, back))
            }
            asked => format!("transport = \"{}\"", asked.name()),
        };
        choices.entry((kind, why)).or_default().push(rank);
        peers.push(Peer { rank, advertised, transport: kind });
    }
    let reasons = choices.iter().map(|((kind, why), ranks)| {
        let peers = named(ranks);
        tracing::info!(peers, transport = kind.name(), why, "a channel was chosen");
        format!("{} to {peers}: {why}", kind.name())
    });
    let mut reasons: Vec<String> = reasons.collect();
    if peers.iter().any(|peer| matches!(peer.transport, TransportKind::Rud | TransportKind::Tcp)) {
        reasons.push(format!("MTU: {mtu} bytes, the smallest of all hosts' ports"));
    }
    Ok(Some(Selection { local, peers, mtu, reasons }))
}

/// The ranks by transport and reason of its selection.
type Choices = BTreeMap<(TransportKind, String), Vec<Rank>>;

/// The transports that reach a peer, as far as this rank can tell.
fn usable(config: &Config, local: &LocalCapabilities, theirs: &Advertisement) -> u8 {
    let leads = |kind: &TransportKind| match kind {
        TransportKind::Verbs => theirs.control.is_some() && local.rdma.way(&theirs.rdma).is_some(),
        TransportKind::Rud | TransportKind::Tcp => route(config, &theirs.ports).is_some(),
        TransportKind::Kernel => local.kernel.is_some() && theirs.kernel.is_some(),
    };
    TransportKind::ALL.iter().filter(|kind| leads(kind)).map(|kind| kind.bit()).sum()
}

/// Why no better transport was selected, and which ports cannot be used.
fn selection_reason(
    config: &Config,
    local: &LocalCapabilities,
    allowed: &[TransportKind],
    taken: TransportKind,
    (theirs, there, back): (&Advertisement, u8, u8),
) -> String {
    let problems = local.rdma.problems.join("; ");
    let unavailable = |kind: &TransportKind| {
        let why = match kind {
            _ if there & kind.bit() != 0 && back & kind.bit() == 0 => {
                "this rank could reach it so, but it not this rank; its log says more".into()
            }
            TransportKind::Verbs if !problems.is_empty() => problems.clone(),
            TransportKind::Verbs => "no RDMA port with a route there".into(),
            _ if config.ports.is_empty() => "the key ports names no port of this host".into(),
            _ if theirs.ports.is_empty() => "the other host names no ports".into(),
            _ => "no port of this host leads there".to_owned(),
        };
        format!("no {}: {why}", kind.name())
    };
    let mut all: Vec<String> = allowed.iter().take_while(|kind| **kind != taken).map(unavailable).collect();
    if all.is_empty() {
        all.push("it is the best there is".into());
    }
    if taken == TransportKind::Verbs && !problems.is_empty() {
        all.push(format!("other RDMA ports cannot be used: {problems}"));
    }
    all.join("; ")
}

/// Why a pair of hosts needs a port, where that does not go without saying.
fn because(config: &Config) -> &'static str {
    match config.rud_seal {
        true => "rud_seal = \"on\", so hosts talk over RUD alone: ",
        false => "",
    }
}

/// The error text where a required transport does not reach the peer.
fn no_transport(
    config: &Config,
    local: &LocalCapabilities,
    (own, rank): (Rank, Rank),
    theirs: &Advertisement,
    (there, back): (u8, u8),
) -> String {
    let name = config.transport.name();
    match config.transport {
        TransportChoice::Verbs
            if there & TransportKind::Verbs.bit() != 0 && back & TransportKind::Verbs.bit() == 0 =>
        {
            format!(
                "transport = \"{name}\": an RDMA route leads from {own} to {rank} and none back; see the log of {rank}"
            )
        }
        TransportChoice::Verbs if !local.rdma.problems.is_empty() => {
            format!(
                "transport = \"{name}\": {own} has no RDMA port for {rank}: {}",
                local.rdma.problems.join("; ")
            )
        }
        TransportChoice::Verbs => format!(
            "transport = \"{name}\": no RDMA port of {own} ({}) has a route to one of {rank} ({}); look at `rdma link` and \
             `ip route get` on both hosts, or use transport = \"auto\"",
            local.advertised.rdma, theirs.rdma
        ),
        _ if local.advertised.ports.is_empty() => config.without_port(&rank.to_string()).to_string(),
        _ => format!(
            "{}no port of {own} leads to {rank}, whose addresses are {:?}; add it to a port's peers",
            because(config),
            theirs.ports.iter().map(|port| port.0).collect::<Vec<_>>()
        ),
    }
}

/// Our address and theirs on a link to the peer: one that a port names, else one in the port's network.
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
