//! How a rank becomes a member: rendezvous, shared memory with its node, sessions to the other nodes, the engine.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shouter_reducer::executor::{Executor, ExecutorConfig};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::plan::Plan;

use super::Group;
use super::drive::Drive;
use super::reach::{Reachable, between_hosts, connect, listen, reach};
use super::small::Cells;
use super::stats::Tally;
use super::table::Tables;
use crate::channel::shm::{ANNOUNCEMENTS, NodeSegment, Shape, pass};
use crate::channel::stream::KernelStreams;
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
    let sockets = listen(&config, &grid)?;
    let joined = match config.size {
        1 => None,
        _ => Some(join(&config, &plan, sockets.as_ref())?),
    };
    let node = match &joined {
        Some((roster, _)) if grid.per_node() > 1 => Some(Arc::new(meet(&config, &grid, &plan, roster)?)),
        _ => None,
    };
    let reached = match &joined {
        Some((roster, _)) if grid.nodes() > 1 && grid.is_leader(rank) => {
            Some(reach(&config, &grid, roster, sockets)?)
        }
        _ => None,
    };
    let (roster, mut control) = joined.unzip();
    if let Some(control) = &mut control {
        // Opening ports takes its time. From here on everybody shows signs of life, and expects them.
        control
            .all_gather("ports are open", &[], config.rendezvous_deadline)
            .map_err(|why| Error::Join(why.to_string()))?;
    }
    let (up, device) = match (reached, &roster) {
        (Some(reached), Some(roster)) => {
            let kind = reached.kind();
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
        between_hosts: between_hosts(config.transport),
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
        TransportChoice::Kernel if grid.nodes() == 1 && grid.per_node() > 1 => Err(Error::Config(
            "transport = \"kernel\" goes between hosts, and the job has one; use transport = \"auto\"".into(),
        )),
        TransportChoice::Kernel if config.faults.any() => Err(Error::Config(
            "loss and corrupt act on ports, and transport = \"kernel\" uses none; leave them out, or use transport = \"tcp\""
                .into(),
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

fn join(
    config: &Config,
    plan: &Plan,
    sockets: Option<&KernelStreams>,
) -> Result<(Roster, ControlLink), Error> {
    let mut hello = Hello::of(config);
    hello.plan_digest = plan.digest();
    let reachable = Reachable::of(config, sockets);
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
