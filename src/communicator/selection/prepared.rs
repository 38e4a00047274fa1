//! Channels of a selection: ports and devices are opened, then the channels over them.

use shouter_reducer::grid::{Grid, Rank};

use super::preflight::{self, OverPorts};
use super::{Peer, Selection, TransportKind, rdma, route};
use crate::channel::rud::{RudChannel, rud_config};
use crate::channel::stream::{KernelChannel, KernelStreams, Settings, StackStreams, TcpChannel};
use crate::channel::up::{Channel, PeerAddress, UpChannels};
use crate::channel::{descriptors, port};
use crate::communicator::costs::Link;
use crate::config::{Config, Mode, TransportChoice};
use crate::error::Error;
use crate::group::rendezvous::Roster;
use crate::key::Key;
use crate::runtime::Clock;

/// Channels that are about to be opened: ports and devices are open, memory is registered.
pub(in crate::communicator) struct Prepared {
    selection: Selection,
    ports: Option<port::Ports>,
    rdma: Option<rdma::Prepared>,
}

impl Selection {
    /// Opens ports and devices and registers memory, as far as peers need them.
    pub(in crate::communicator) fn prepare(self, config: &Config, grid: &Grid) -> Result<Prepared, Error> {
        let takes = |kinds: &[TransportKind]| self.peers.iter().any(|peer| kinds.contains(&peer.transport));
        if config.shards > 1
            && let Some(other) = self
                .peers
                .iter()
                .find(|peer| !matches!(peer.transport, TransportKind::Rud | TransportKind::Tcp))
        {
            return Err(Error::Config(format!(
                "shards = {}: {} to {} is not spread over shards, rud and tcp are; give ports and transport = \"rud\" or \"tcp\", or \
                 shards = 1",
                config.shards,
                other.transport.name(),
                other.rank
            )));
        }
        descriptors::reserve(self.sockets(config)).map_err(|why| Error::Config(why.to_string()))?;
        let ports = match takes(&[TransportKind::Rud, TransportKind::Tcp]) {
            true => {
                let peers = self.peers.iter().filter(|peer| peer.transport == TransportKind::Rud).count();
                Some(port::open(config, rud_config(config.heartbeat_timeout, peers))?)
            }
            false => None,
        };
        let peers: Vec<&rdma::Reachable> = self
            .peers
            .iter()
            .filter(|peer| peer.transport == TransportKind::Verbs)
            .map(|peer| &peer.advertised.rdma)
            .collect();
        let rdma = match peers.is_empty() {
            true => None,
            false => Some(rdma::Prepared::new(config, grid, &self.local.rdma, &peers)?),
        };
        Ok(Prepared { selection: self, ports, rdma })
    }

    /// Sockets of the kernel's that the channels to all peers need when all are in use. The listening ones are open already.
    fn sockets(&self, config: &Config) -> u64 {
        let of = |peer: &Peer| match peer.transport {
            // One more for control messages.
            TransportKind::Kernel => u64::from(TransportKind::Kernel.connections(config)) + 1,
            TransportKind::Verbs => 1,
            TransportKind::Rud | TransportKind::Tcp => 0,
        };
        self.peers.iter().map(of).sum()
    }
}

impl Prepared {
    /// The kind of the ports or the RDMA device, for people.
    pub(in crate::communicator) fn device(&self) -> Option<&'static str> {
        let rdma = self.rdma.as_ref().map(|_| "rdma");
        rdma.or(self.ports.as_ref().map(|ports| ports.kind))
    }

    /// Why each transport was selected.
    pub(in crate::communicator) fn reasons(&self) -> Vec<String> {
        self.selection.reasons.clone()
    }

    /// The channels' names, each once, the best first.
    pub(in crate::communicator) fn names(&self) -> Vec<&'static str> {
        let taken = |kind: &&TransportKind| self.selection.peers.iter().any(|peer| peer.transport == **kind);
        TransportKind::ALL.iter().filter(taken).map(|kind| kind.name()).collect()
    }

    /// The link that is used first, and the first leader that it reaches.
    pub(in crate::communicator) fn link(&self, config: &Config) -> Option<Link> {
        let peers = &self.selection.peers;
        let first = peers.iter().min_by_key(|peer| (peer.transport, peer.rank))?;
        let mut details = vec![];
        match first.transport {
            TransportKind::Kernel => {
                let is_loopback = first.advertised.kernel.is_some_and(|address| address.ip().is_loopback());
                details.push(if is_loopback { "loopback".to_owned() } else { "sockets".to_owned() });
            }
            _ => details.extend(self.device().map(str::to_owned)),
        }
        if matches!(first.transport, TransportKind::Rud | TransportKind::Tcp) {
            details.push(format!("MTU {}", self.selection.mtu));
        }
        details.push(format!("{} connections", first.transport.connections(config)));
        if config.rud_seal && first.transport == TransportKind::Rud {
            details.push("sealed".to_owned());
        }
        if !config.crc {
            details.push("crc off".to_owned());
        }
        if config.mode == Mode::Dedicated {
            details.push("dedicated".to_owned());
        }
        Some(Link { transport: first.transport.name(), details: details.join(", "), leader: first.rank })
    }

    /// Opens the channels, those of each shard; all leaders do it at the same time. Also returns the fault of the path to the
    /// peers, if there is one.
    pub(in crate::communicator) fn connect(
        self,
        config: &Config,
        roster: &Roster,
    ) -> Result<(Vec<UpChannels>, Result<(), String>), Error> {
        let Self { selection: Selection { local, peers, mtu, .. }, ports, rdma } = self;
        let (rank, secret) = (Rank(config.rank), &roster.session_secret);
        let joined = |why: &dyn std::fmt::Display| Error::join(why.to_string());
        let of = |kinds: &[TransportKind]| -> Vec<&Peer> {
            peers.iter().filter(|peer| kinds.contains(&peer.transport)).collect()
        };
        let mut channels: Vec<(Box<dyn Channel + Send>, _)> = vec![];
        let (mut over_ports, mut led) = (vec![], vec![]);
        if let Some(ports) = ports {
            let lead = of(&[TransportKind::Rud, TransportKind::Tcp]).into_iter().filter_map(|peer| {
                let (local_ip, ip) = route(config, &peer.advertised.ports)?;
                Some(PeerAddress { rank: peer.rank, ip, port: config.data_port, local_ip })
            });
            let lead = lead.collect::<Vec<_>>();
            // A sealed datagram is a copy. All shards have queues of the same ports, with which memory is registered once.
            let mut memory = ports.memory.filter(|_| !config.rud_seal);
            for (stack, shard) in ports.stacks.into_iter().zip(0u32..) {
                // What one shard sends, no other one takes.
                let secret = match shard {
                    0 => secret.clone(),
                    _ => secret.derive("shouter shard", &[&shard.to_le_bytes()]),
                };
                let channel: Box<dyn OverPorts + Send> = if config.transport == TransportChoice::Tcp {
                    let settings = settings(config, &secret, TransportKind::Tcp.connections(config))?;
                    let streams = StackStreams::new(stack, config.data_port, config.heartbeat_timeout);
                    let channel = TcpChannel::open(streams, rank, &lead, settings, Clock.now());
                    Box::new(channel.map_err(|why| joined(&why))?)
                } else {
                    let wire = (TransportKind::Rud.connections(config), config.data_port, mtu);
                    let channel = RudChannel::open(stack, rank, &lead, (&secret, config.rud_seal), wire);
                    Box::new(channel.map_err(|why| joined(&why))?.with_memory(memory.take()))
                };
                over_ports.push(channel);
            }
            led = lead;
        }
        let lead: Vec<PeerAddress> = of(&[TransportKind::Kernel])
            .iter()
            .filter_map(|peer| peer.listening(peer.advertised.kernel))
            .collect();
        if let (Some(streams), false) = (local.kernel, lead.is_empty()) {
            let (channel, ranks) =
                sockets(config, secret, &lead, streams, TransportKind::Kernel.connections(config))?;
            channels.push((Box::new(channel), ranks));
        }
        if let (Some(streams), Some(rdma)) = (local.control, rdma) {
            let lead: Vec<PeerAddress> = of(&[TransportKind::Verbs])
                .iter()
                .filter_map(|peer| peer.listening(peer.advertised.control))
                .collect();
            let (control, ranks) = sockets(config, secret, &lead, streams, 0)?;
            channels.push((Box::new(rdma.connect(config, control, &ranks)), ranks));
        }
        // All channels are open by now.
        let reached = match over_ports.is_empty() {
            true => Ok(()),
            false => preflight::check(&mut over_ports, config, &led, mtu),
        };
        let ranks: Vec<Rank> = led.iter().map(|peer| peer.rank).collect();
        let mut over_ports =
            over_ports.into_iter().map(|channel| (channel as Box<dyn Channel + Send>, ranks.clone()));
        // The first shard has the other channels, too.
        let first = UpChannels::new(over_ports.next().into_iter().chain(channels).collect());
        let others = over_ports.map(|channel| UpChannels::new(vec![channel]));
        let names = config.ports.iter().map(|port| (port.address.ip.into(), port.device.as_str().into()));
        let names: Vec<_> = names.collect();
        let ups = std::iter::once(first).chain(others).map(|up| up.with_ports(names.clone()));
        Ok((ups.collect(), reached))
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
