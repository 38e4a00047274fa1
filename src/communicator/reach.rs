//! The way to the leaders of the other hosts: what each tells about itself before the ranks meet, what follows from that,
//! and the channel that is opened then.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use serde::{Deserialize, Serialize};
use shouter_reducer::grid::{Grid, Rank};

use crate::channel::port;
use crate::channel::rud::{RudChannel, rud_config};
use crate::channel::stream::{KernelChannel, KernelStreams, Settings, StackStreams, TcpChannel};
use crate::channel::up::{PeerAddress, UpChannel};
use crate::config::{Config, TransportChoice};
use crate::error::Error;
use crate::group::rendezvous::Roster;
use crate::runtime::Clock;

/// What a rank tells the others about its network: opaque to the rendezvous.
#[derive(Serialize, Deserialize)]
pub(super) struct Reachable {
    /// Its addresses on the data network, each with the peers that it leads to (all, if there are none).
    ports: Vec<(Ipv4Addr, Vec<Ipv4Addr>)>,
    /// The data network's MTU in bytes.
    mtu: u16,
    /// What carries its bytes to other hosts.
    transport: String,
    /// Whether its frames on byte streams carry a CRC.
    crc: bool,
    /// Where its kernel listens, for the transport that uses it.
    listens: Option<(Ipv4Addr, u16)>,
}

impl Reachable {
    /// What this rank tells.
    pub(super) fn of(config: &Config, sockets: Option<&KernelStreams>) -> Self {
        let listens = sockets.map(KernelStreams::local_addr).and_then(|local| match local.ip() {
            IpAddr::V4(ip) => Some((ip, local.port())),
            IpAddr::V6(_) => None,
        });
        Self {
            ports: config.ports.iter().map(|port| (port.address.ip, port.peers.clone())).collect(),
            mtu: config
                .ports
                .iter()
                .map(|port| port::mtu_of(config, port))
                .min()
                .unwrap_or(port::DEFAULT_MTU),
            transport: between_hosts(config.transport).into(),
            crc: config.crc,
            listens,
        }
    }
}

/// The transport that carries bytes between hosts under a choice.
pub(super) fn between_hosts(choice: TransportChoice) -> &'static str {
    match choice {
        TransportChoice::Tcp => "tcp",
        TransportChoice::Kernel => "kernel",
        TransportChoice::Shm => "shm",
        TransportChoice::Auto | TransportChoice::Rud => "rud",
    }
}

/// Opens the socket that other leaders connect to, where the kernel carries the bytes and this rank leads a host of
/// several. Before the ranks meet: its port is among what they tell each other.
///
/// # Errors
/// [`Error::Config`] or [`Error::Device`], with the remedy.
pub(super) fn listen(config: &Config, grid: &Grid) -> Result<Option<KernelStreams>, Error> {
    let wanted =
        config.transport == TransportChoice::Kernel && grid.nodes() > 1 && grid.is_leader(Rank(config.rank));
    if !wanted {
        return Ok(None);
    }
    let ip = match config.kernel_address {
        Some(ip) => ip,
        None => own_address(config)?,
    };
    let streams = KernelStreams::bind(SocketAddr::from((ip, 0)), config.heartbeat_timeout);
    streams.map(Some).map_err(|why| Error::Device(why.to_string()))
}

/// The address by which this host talks to rank 0's; on that host, the one that rank 0 listens on.
fn own_address(config: &Config) -> Result<Ipv4Addr, Error> {
    let (host, port) = (config.meeting.host.as_str(), config.meeting.port);
    let unclear = |why: String| {
        Error::Config(format!(
            "which address of this host the other leaders should connect to is not clear from {host}:{port}: {why}; set \
             kernel_address"
        ))
    };
    let all = (host, port).to_socket_addrs().map_err(|why| unclear(why.to_string()))?;
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

/// What carries the bytes to other hosts, opened.
enum Provider {
    Ports(port::Ports),
    Sockets(Box<KernelStreams>),
}

/// The provider, and where the other leaders are.
pub(super) struct Reached {
    provider: Provider,
    peers: Vec<PeerAddress>,
    /// The data network's MTU in bytes: the least of all leaders'.
    mtu: u16,
}

impl Reached {
    /// The kind of what carries the bytes.
    pub(super) fn kind(&self) -> &'static str {
        match &self.provider {
            Provider::Ports(ports) => ports.kind,
            Provider::Sockets(_) => "kernel",
        }
    }
}

/// Finds the way to the leader of every other host and opens this host's ports, if it uses some.
///
/// # Errors
/// [`Error::Config`] names the ranks that do not go together; [`Error::Device`] the port that cannot be opened.
pub(super) fn reach(
    config: &Config,
    grid: &Grid,
    roster: &Roster,
    sockets: Option<KernelStreams>,
) -> Result<Reached, Error> {
    let own = Rank(config.rank);
    let ours = Reachable::of(config, sockets.as_ref());
    let mut mtu = u16::MAX;
    let mut peers = vec![];
    for node in 0..grid.nodes() {
        let rank = grid.leader_of(node);
        let theirs = told(roster, rank)?;
        mtu = mtu.min(theirs.mtu);
        if rank == own {
            continue;
        }
        check_same((own, &ours), (rank, &theirs))?;
        let peer = match (ours.listens, theirs.listens) {
            (Some((local_ip, _)), Some((ip, port))) => PeerAddress { rank, ip, port, local_ip },
            _ if config.ports.is_empty() => {
                return Err(Error::Config(format!(
                    "the job has {} hosts and this one has no port; name its ports in the configuration (ports = [{{ device \
                     = \"...\", address = \"...\" }}]), use the kernel's sockets (transport = \"kernel\"), or start the job \
                     with `shouter run --hosts`",
                    grid.nodes()
                )));
            }
            _ => {
                let (local_ip, ip) = route(config, &theirs).ok_or_else(|| {
                    Error::Config(format!(
                        "no port of {own} leads to {rank}, whose addresses are {:?}; add it to a port's peers",
                        theirs.ports.iter().map(|port| port.0).collect::<Vec<_>>()
                    ))
                })?;
                PeerAddress { rank, ip, port: port::TCP_PORT, local_ip }
            }
        };
        peers.push(peer);
    }
    let provider = match sockets {
        Some(sockets) => Provider::Sockets(Box::new(sockets)),
        None => Provider::Ports(port::open(config, rud_config(config.heartbeat_timeout))?),
    };
    Ok(Reached { provider, peers, mtu })
}

/// What a rank has told.
fn told(roster: &Roster, rank: Rank) -> Result<Reachable, Error> {
    let member = roster.members.get(rank.0 as usize);
    let blob = member.map(|member| member.blob.as_slice()).unwrap_or_default();
    serde_json::from_slice(blob).map_err(|why| Error::Join(format!("what {rank} told: {why}")))
}

/// What two leaders must have alike.
fn check_same((a, ours): (Rank, &Reachable), (b, theirs): (Rank, &Reachable)) -> Result<(), Error> {
    if ours.transport != theirs.transport {
        return Err(Error::Config(format!(
            "{a} has {} between hosts and {b} has {}; give all ranks the same transport",
            ours.transport, theirs.transport
        )));
    }
    let on = |crc| if crc { "on" } else { "off" };
    // RUD always has one.
    if ours.crc != theirs.crc && ours.transport != "rud" {
        return Err(Error::Config(format!(
            "{a} has crc = \"{}\" and {b} has \"{}\"; give all ranks the same",
            on(ours.crc),
            on(theirs.crc)
        )));
    }
    if let (Some((ip, _)), Some((other, _))) = (ours.listens, theirs.listens)
        && ip.is_loopback() != other.is_loopback()
    {
        return Err(Error::Config(format!(
            "{a} would listen on {ip} and {b} on {other}, and a loopback address cannot be reached from another host; set \
             kernel_address to the host's address on the common network"
        )));
    }
    Ok(())
}

/// Opens the channel to the leader of every other host.
///
/// # Errors
/// [`Error::Join`] if it cannot be opened.
pub(super) fn connect(
    config: &Config,
    reached: Reached,
    roster: &Roster,
) -> Result<UpChannel<port::PortDevice>, Error> {
    let Reached { provider, peers, mtu } = reached;
    let (rank, secret, now) = (Rank(config.rank), roster.session_secret, Clock.now());
    let connections = config.channel_num.min(u32::from(u16::MAX)) as u16;
    let dead_after = config.heartbeat_timeout;
    let settings = || {
        Ok::<_, Error>(Settings {
            secret,
            salt: port::randomness()?,
            connections,
            dead_after,
            crc: config.crc,
        })
    };
    let join = |why: &dyn std::fmt::Display| Error::Join(why.to_string());
    match provider {
        Provider::Sockets(streams) => KernelChannel::open(*streams, rank, &peers, settings()?, now)
            .map(UpChannel::from)
            .map_err(|why| join(&why)),
        Provider::Ports(ports) if config.transport == TransportChoice::Tcp => {
            let streams = StackStreams::new(ports.stack, port::TCP_PORT, dead_after);
            TcpChannel::open(streams, rank, &peers, settings()?, now)
                .map(UpChannel::from)
                .map_err(|why| join(&why))
        }
        Provider::Ports(ports) => {
            let wire = (connections, port::RUD_PORT, mtu);
            RudChannel::open(ports.stack, rank, &peers, &secret, wire, now)
                .map(UpChannel::from)
                .map_err(|why| join(&why))
        }
    }
}

/// Our address and theirs on a link that leads from here to there: one that a port names, else one in its network.
fn route(config: &Config, theirs: &Reachable) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let addresses = || theirs.ports.iter().map(|port| port.0);
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
