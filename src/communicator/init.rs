//! How a rank becomes a member: rendezvous, shared memory with its node, sessions to the other nodes, the engine.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde::{Deserialize, Serialize};
use shouter_reducer::executor::{Executor, ExecutorConfig};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::plan::Plan;

use super::Group;
use super::drive::Drive;
use super::small::Cells;
use super::stats::Tally;
use super::table::Tables;
use crate::channel::port;
use crate::channel::rud::{RudChannel, rud_config};
use crate::channel::shm::{ANNOUNCEMENTS, NodeSegment, Shape, pass};
use crate::channel::stream::{Settings, StackStreams, TcpChannel};
use crate::channel::up::{PeerAddress, UpChannel};
use crate::config::{Config, Idle, Mode, TransportChoice};
use crate::engine::{Engine, Parts};
use crate::error::Error;
use crate::group::rendezvous::{self, ControlLink, Hello, RendezvousConfig, Roster};
use crate::observe::Timeline;
use crate::runtime::{Clock, CoreAllowance, DriverOptions, IdlePolicy};

/// Operations that a timeline keeps: the last ones.
const TIMELINE_EVENTS: usize = 1 << 16;

/// Operations that a rank may have under way; the node segment keeps as many announcements, twice.
const MAX_OPERATIONS: usize = ANNOUNCEMENTS / 2;

/// The most that a rank's shared tensors may take: addresses, of which only what is used becomes memory.
const ARENA_BYTES: usize = 64 << 30;

/// What a rank tells the others about its ports: opaque to the rendezvous.
#[derive(Serialize, Deserialize)]
struct Reachable {
    /// Its addresses on the data network, each with the peers that it leads to (all, if there are none).
    ports: Vec<(Ipv4Addr, Vec<Ipv4Addr>)>,
    /// The data network's MTU in bytes.
    mtu: u16,
    /// It uses TCP on it.
    #[serde(default)]
    tcp: bool,
}

/// Joins the group that the configuration describes, and returns when all its ranks are there and connected.
///
/// # Errors
/// [`Error::Config`], [`Error::Join`] or [`Error::Device`], each with what to do.
pub fn init(config: Config) -> Result<Group, Error> {
    let plan = Plan { channel_num: config.channel_num, ..Plan::default() };
    let grid = Grid::new(config.size, config.local_size, plan.leaf_size)
        .map_err(|why| Error::Config(why.to_string()))?;
    let rank = Rank(config.rank);
    check_transport(&config, &grid)?;
    let joined = match config.size {
        1 => None,
        _ => Some(join(&config, &plan)?),
    };
    let node = match &joined {
        Some((roster, _)) if grid.per_node() > 1 => Some(Arc::new(meet(&config, &grid, &plan, roster)?)),
        _ => None,
    };
    let ports = match &joined {
        Some((roster, _)) if grid.nodes() > 1 && grid.is_leader(rank) => Some(reach(&config, &grid, roster)?),
        _ => None,
    };
    let (roster, mut control) = joined.unzip();
    if let Some(control) = &mut control {
        // Opening ports takes its time. From here on everybody shows signs of life, and expects them.
        control
            .all_gather("ports are open", &[], config.rendezvous_deadline)
            .map_err(|why| Error::Join(why.to_string()))?;
    }
    let (up, device) = match (ports, &roster) {
        (Some(reached), Some(roster)) => {
            let kind = reached.ports.kind;
            (Some(connect(&config, reached, roster)?), Some(kind))
        }
        _ => (None, None),
    };
    let kernels = Kernels::detect();
    let mut executor_config = ExecutorConfig::new(rank, grid, kernels);
    executor_config.eager_bytes = plan.eager_bytes as usize;
    executor_config.max_operations = MAX_OPERATIONS;
    let internal = |why: &dyn std::fmt::Display| Error::Internal(why.to_string());
    let mut executor = Executor::new(executor_config).map_err(|why| internal(&why))?;
    if let Some(node) = &node {
        executor.attach_node(&**node).map_err(|why| internal(&why))?;
    }
    let idle = idle_policy(&config);
    let cells = match (&node, grid.nodes()) {
        (Some(node), 1) => Some(Cells::new(node.clone(), kernels, idle)),
        _ => None,
    };
    let (dead_after, shared) = (config.heartbeat_timeout, node.clone());
    let engine =
        Engine::new(Parts { executor, rank, per_node: grid.per_node(), up, node, dead_after }, Clock.now());
    let options = DriverOptions { idle, ..DriverOptions::default() };
    let dedicated = (config.mode == Mode::Dedicated).then(|| config.cores.first().copied());
    let drive = Drive::new(engine, options, dedicated)?;
    if let Some(control) = &mut control {
        // Nobody goes on before everybody is connected.
        control
            .all_gather("connected", &[], config.rendezvous_deadline)
            .map_err(|why| Error::Join(why.to_string()))?;
    }
    Ok(Group {
        rank,
        grid,
        drive,
        cells,
        node: shared,
        tables: Tables::new(rank, grid, plan, control),
        deadline: config.deadline,
        step: AtomicU64::new(0),
        tally: Tally::default(),
        timeline: config
            .timeline
            .as_ref()
            .map(|_| Timeline::new(rank.0, grid.node_of(rank).to_string(), TIMELINE_EVENTS)),
        ad_hoc: Arc::from("ad hoc"),
        device,
        tcp: config.transport == TransportChoice::Tcp,
    })
}

/// The explicit choice of a transport must be able to carry the group.
fn check_transport(config: &Config, grid: &Grid) -> Result<(), Error> {
    match config.transport {
        TransportChoice::Shm if grid.nodes() > 1 => Err(Error::Config(format!(
            "transport = \"shm\" serves one host, and the job has {}; use transport = \"auto\"",
            grid.nodes()
        ))),
        TransportChoice::Rud if grid.per_node() > 1 => Err(Error::Config(format!(
            "transport = \"rud\" alone serves one rank on each host, and the job has {}; use transport = \"auto\"",
            grid.per_node()
        ))),
        TransportChoice::Tcp if grid.nodes() == 1 && grid.per_node() > 1 => Err(Error::Config(
            "transport = \"tcp\" goes between hosts, and the job has one; use transport = \"auto\"".into(),
        )),
        _ => Ok(()),
    }
}

/// Spins where every rank of the host has a core of its own, yields where not.
fn idle_policy(config: &Config) -> IdlePolicy {
    match config.idle {
        Some(Idle::Spin) => IdlePolicy::EXCLUSIVE,
        Some(Idle::Yield) => IdlePolicy::SHARED,
        None if config.cores.is_empty() => IdlePolicy::detect(config.local_size as usize),
        None => IdlePolicy::for_ranks(1, CoreAllowance::detect().whole_cores()),
    }
}

fn join(config: &Config, plan: &Plan) -> Result<(Roster, ControlLink), Error> {
    let mut hello = Hello::of(config);
    hello.plan_digest = plan.digest();
    let reachable = Reachable {
        ports: config.ports.iter().map(|port| (port.address.ip, port.peers.clone())).collect(),
        mtu: config.ports.iter().map(|port| port::mtu_of(config, port)).min().unwrap_or(port::DEFAULT_MTU),
        tcp: config.transport == TransportChoice::Tcp,
    };
    hello.blob = serde_json::to_vec(&reachable).map_err(|why| Error::Internal(why.to_string()))?;
    let meeting = RendezvousConfig::of(config).map_err(|why| Error::Join(why.to_string()))?;
    rendezvous::join(&meeting, hello).map_err(|why| Error::Join(why.to_string()))
}

/// Maps the memory of this node.
fn meet(config: &Config, grid: &Grid, plan: &Plan, roster: &Roster) -> Result<NodeSegment, Error> {
    let shape = Shape {
        ranks: grid.per_node(),
        lanes: plan.lanes,
        lane_bytes: plan.lane_bytes as usize,
        arena_bytes: ARENA_BYTES,
    };
    let rank = Rank(config.rank);
    let (node, local) = (grid.node_of(rank), grid.local_of(rank));
    pass::meet(&roster.session_secret, node, local, shape, config.rendezvous_deadline)
        .map_err(|why| Error::Join(why.to_string()))
}

/// This host's ports, and where the other leaders are.
struct Reached {
    ports: port::Ports,
    peers: Vec<PeerAddress>,
    /// The data network's MTU in bytes: the least of all leaders'.
    mtu: u16,
}

/// Finds the way to the leader of every other host and opens this host's ports.
fn reach(config: &Config, grid: &Grid, roster: &Roster) -> Result<Reached, Error> {
    if config.ports.is_empty() {
        return Err(Error::Config(format!(
            "the job has {} hosts and this one has no port; name its ports in the configuration (ports = [{{ device = \
             \"...\", address = \"...\" }}]), or start the job with `shouter run --hosts`",
            grid.nodes()
        )));
    }
    let leader = |node: u32| {
        let rank = grid.leader_of(node);
        let member = roster.members.get(rank.0 as usize);
        let blob = member.map(|member| member.blob.as_slice()).unwrap_or_default();
        let reachable = serde_json::from_slice::<Reachable>(blob);
        reachable
            .map(|reachable| (rank, reachable))
            .map_err(|why| Error::Join(format!("what {rank} told: {why}")))
    };
    let own = Rank(config.rank);
    let mut mtu = u16::MAX;
    let mut peers = vec![];
    for node in 0..grid.nodes() {
        let (rank, theirs) = leader(node)?;
        mtu = mtu.min(theirs.mtu);
        if rank == own {
            continue;
        }
        if theirs.tcp != (config.transport == TransportChoice::Tcp) {
            let (tcp, rud) = if theirs.tcp { (rank, own) } else { (own, rank) };
            return Err(Error::Config(format!(
                "{tcp} has transport = \"tcp\" and {rud} has not; give all ranks the same transport"
            )));
        }
        let (local_ip, ip) = route(config, &theirs).ok_or_else(|| {
            Error::Config(format!(
                "no port of {own} leads to {rank}, whose addresses are {:?}; add it to a port's peers",
                theirs.ports.iter().map(|port| port.0).collect::<Vec<_>>()
            ))
        })?;
        peers.push(PeerAddress { rank, ip, port: port::TCP_PORT, local_ip });
    }
    let ports = port::open(config, rud_config(config.heartbeat_timeout))?;
    Ok(Reached { ports, peers, mtu })
}

/// Opens the channel to the leader of every other host.
fn connect(config: &Config, reached: Reached, roster: &Roster) -> Result<UpChannel<port::PortDevice>, Error> {
    let Reached { ports, peers, mtu } = reached;
    let (rank, secret) = (Rank(config.rank), roster.session_secret);
    let connections = config.channel_num.min(u32::from(u16::MAX)) as u16;
    if config.transport == TransportChoice::Tcp {
        let salt = port::randomness()?;
        let dead_after = config.heartbeat_timeout;
        let settings = Settings { secret, salt, connections, dead_after, crc: config.crc };
        let streams = StackStreams::new(ports.stack, port::TCP_PORT, dead_after);
        return TcpChannel::open(streams, rank, &peers, settings, Clock.now())
            .map(UpChannel::from)
            .map_err(|why| Error::Join(why.to_string()));
    }
    let wire = (connections, port::RUD_PORT, mtu);
    RudChannel::open(ports.stack, rank, &peers, &secret, wire, Clock.now())
        .map(UpChannel::from)
        .map_err(|why| Error::Join(why.to_string()))
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
