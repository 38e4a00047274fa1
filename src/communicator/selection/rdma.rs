//! RDMA's part in the selection: the port that reaches most peers, and memory for the queue pairs.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::verbs::{Context, Gid, LinkLayer};
use shouter_reducer::grid::{Grid, Rank};

use super::TransportKind;
use crate::channel::port::randomness;
use crate::channel::stream::KernelChannel;
use crate::channel::verbs::{self, OverRdma, Port, Rdma, Settings, Sizes, VerbsChannel};
use crate::config::Config;
use crate::error::Error;
use crate::runtime::Clock;

pub(super) use crate::channel::verbs::{PortSurvey, Reachable, survey};

/// Slots of a connection, at least and at most.
const WINDOW: std::ops::RangeInclusive<usize> = 4..=32;

/// A device that is open, with its memory.
pub(in crate::communicator) struct Prepared {
    rdma: Rdma,
}

impl Prepared {
    /// Opens the port that leads to all of these peers, and registers slots for connections to them.
    pub(super) fn new(
        config: &Config,
        grid: &Grid,
        found: &PortSurvey,
        peers: &[&Reachable],
    ) -> Result<Self, Error> {
        let failed = |why: &dyn std::fmt::Display| Error::Device(format!("verbs: {why}"));
        let routes: Option<Vec<(usize, Gid)>> = peers.iter().map(|peer| found.way(peer)).collect();
        let routes = routes.filter(|routes| routes.windows(2).all(|pair| pair[0].0 == pair[1].0)).ok_or_else(|| {
            failed(&"the peers are not all reached through one RDMA port; name the port to use with the key rdma_device")
        })?;
        let (name, info) = routes
            .first()
            .and_then(|(at, _)| found.ports.get(*at))
            .ok_or_else(|| failed(&"there is no port"))?;
        let port = Port {
            number: info.number,
            lid: info.lid,
            mtu: info.active_mtu,
            ethernet: info.link_layer == LinkLayer::Ethernet,
            gids: routes.into_iter().map(|(_, gid)| gid).collect(),
        };
        let context = Context::open(name).map_err(|why| failed(&why))?;
        let sizes = sizes(config, grid)?;
        let seed = SmallRng::from_seed(randomness()?).random();
        let queue_pairs = usize::from(TransportKind::Verbs.connections(config));
        let slots = 2 * peers.len() * queue_pairs * sizes.window as usize * sizes.slot_bytes as usize;
        let more = ((config.rdma_memory_mb as usize) << 20).saturating_sub(slots);
        let rng = SmallRng::seed_from_u64(seed);
        let rdma = Rdma::new(context, port, (peers.len(), queue_pairs), sizes, more, rng);
        Ok(Self { rdma: rdma.map_err(|why| failed(&why))? })
    }

    /// The channel to these ranks. Queue pairs are exchanged with all of them at once, so the control connections are made at once, too.
    pub(super) fn connect(self, config: &Config, mut control: KernelChannel, peers: &[Rank]) -> OverRdma {
        control.meet_all();
        let settings = Settings {
            connections: TransportKind::Verbs.connections(config),
            crc: config.crc,
            dead_after: config.heartbeat_timeout,
            zero_copy_from: verbs::ZERO_COPY_FROM,
        };
        VerbsChannel::new(self.rdma, control, peers, settings, Clock.now())
    }
}

/// Slots as large as the fragments that go well, and as many as the budget allows: the same on all ranks of a job.
fn sizes(config: &Config, grid: &Grid) -> Result<Sizes, Error> {
    let slot_bytes = verbs::SLOT_BYTES;
    let queue_pairs = usize::from(TransportKind::Verbs.connections(config)) * (grid.nodes() as usize - 1);
    let budget = (config.rdma_memory_mb as usize) << 20;
    let window = (budget / (2 * queue_pairs * slot_bytes as usize)).min(*WINDOW.end());
    if window < *WINDOW.start() {
        return Err(Error::Config(format!(
            "rdma_memory_mb = {} is too little for {queue_pairs} queue pairs; raise it to {}, or lower channel_num",
            config.rdma_memory_mb,
            (2 * queue_pairs * slot_bytes as usize * WINDOW.start()).div_ceil(1 << 20)
        )));
    }
    Ok(Sizes { window: window as u32, slot_bytes })
}
