//! Meeting the other ranks: the rendezvous, the memory of the host, the channels to other hosts, and that all have them.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::plan::Plan;

use super::costs::{self, Offer, Offered};
use super::selection::{self, LocalCapabilities, Prepared};
use crate::channel::shm::pass::{self, PassError};
use crate::channel::shm::{NodeSegment, SegmentShape};
use crate::channel::up::UpChannels;
use crate::config::Config;
use crate::error::Error;
use crate::group::hello::SEALS;
use crate::group::rendezvous::{self, ControlLink, Hello, RendezvousConfig, Roster, Traffic};
use crate::log;
use crate::wire;

/// The most that a rank's shared tensors may take: addresses, of which only used pages become memory. Where address
/// space is limited (RLIMIT_AS) they get less.
const ARENA_BYTES: usize = 64 << 30;

/// Duplicates of the group of all that have lanes at a time, where all ranks are on one host. (Jobs of several hosts have a part for each further
/// shard.)
const PARTS: u32 = 4;

/// The interval of the checks whether a rank has ended, while others of its host are waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The result of the rendezvous.
pub(super) struct Joined {
    roster: Roster,
    control: ControlLink,
    local: LocalCapabilities,
}

impl Joined {
    /// Tells the other ranks why this one does not go on.
    pub(super) fn give_up(&mut self, why: &Error) {
        self.control.give_up(why.rank(), &why.to_string());
    }
}

pub(super) fn join(config: &Config, plan: &Plan) -> Result<Joined, Error> {
    config.check_before_join()?;
    let leads = config.local_size < config.size && config.local_rank == 0;
    let local = LocalCapabilities::of(config, leads)?;
    let mut hello = Hello::of(config)?;
    hello.plan = plan.fields();
    // Of what ranks must have in common, what performance does not depend on.
    hello.plan.push((SEALS.to_owned(), config.rud_seal.into()));
    hello.plan.push(("shards".to_owned(), config.shards.into()));
    if leads {
        hello.blob = local.to_bytes()?;
    }
    let meeting = RendezvousConfig::of(config)?;
    let (roster, control) = rendezvous::join(&meeting, hello)?;
    Ok(Joined { roster, control, local })
}

/// Maps the memory of this node.
pub(super) fn meet(
    config: &Config,
    grid: &Grid,
    plan: &Plan,
    joined: &mut Joined,
) -> Result<NodeSegment, Error> {
    let shape = SegmentShape {
        ranks: grid.locals(grid.node_of(Rank(config.rank))),
        lanes: plan.lanes,
        lane_bytes: plan.lane_bytes as usize,
        arena_bytes: ARENA_BYTES,
        parts: if grid.nodes() == 1 { PARTS } else { config.shards - 1 },
    };
    let rank = Rank(config.rank);
    let (node, local) = (grid.node_of(rank), grid.local_of(rank));
    let Joined { roster, control, .. } = joined;
    let mut next = Instant::now();
    let mut check = || match Instant::now() {
        now if now < next => Ok(()),
        now => {
            next = now + LOOK_EVERY;
            control.check("the shared memory of hosts")
        }
    };
    let segment =
        pass::meet(&roster.session_secret, node, local, shape, config.rendezvous_deadline, &mut check);
    segment.map_err(|why| match why {
        PassError::First { why } => {
            let leader = grid.leader_of(node);
            Error::join_without(leader.0, format!("{leader} made no shared memory for its host: {why}"))
        }
        PassError::Ended(why) => why.into(),
        why => match why.rank() {
            Some(rank) => Error::join_without(rank, why.to_string()),
            None => Error::join(why.to_string()),
        },
    })
}

/// The channels to the other hosts, and the control connections.
#[derive(Default)]
pub(super) struct Reached {
    /// On a leader, where there are other hosts.
    pub(super) up: UpChannels,
    /// Those of the further shards, as many on each rank.
    pub(super) siblings: Vec<UpChannels>,
    /// The kind of the leader's ports.
    pub(super) device: Option<&'static str>,
    /// The names of the channels that this host's leader uses.
    pub(super) channels: String,
    /// The reasons for these, on a leader.
    pub(super) reasons: Vec<String>,
    /// Rank 0's decision about the figures of the cost model.
    pub(super) offered: Offered,
    pub(super) control: Option<ControlLink>,
    /// The fault of the path to peers.
    pub(super) unreached: Option<String>,
}

/// Selects the transports between hosts, and opens the channels.
pub(super) fn reach(config: &Config, grid: &Grid, joined: Joined) -> Result<Reached, Error> {
    let Joined { roster, mut control, local } = joined;
    let reached = connect(config, grid, local, &roster, &mut control);
    let reached = reached.inspect_err(|why| control.give_up(why.rank(), &why.to_string()))?;
    Ok(Reached { control: Some(control), ..reached })
}

fn connect(
    config: &Config,
    grid: &Grid,
    local: LocalCapabilities,
    roster: &Roster,
    control: &mut ControlLink,
) -> Result<Reached, Error> {
    let selection = selection::agree(config, grid, local, roster, control)?;
    let prepared = selection.map(|selection| selection.prepare(config, grid)).transpose()?;
    let names = prepared.as_ref().map(|prepared| prepared.names().join("+")).unwrap_or_default();
    let link = prepared.as_ref().and_then(|prepared| prepared.link(config));
    let (offer, decided) = (config.rank == 0).then(|| costs::offer(config, grid, link.as_ref())).unzip();
    let own = PortsOpen { channels: names, costs: offer };
    // Opening ports takes long. From here on every rank sends heartbeats and expects them.
    let all = control.all_gather("ports are open", &wire::encode(&own)?, config.rendezvous_deadline)?;
    let of = |rank: Rank| -> Result<PortsOpen, Error> {
        let bytes = all.get(rank.0 as usize).map(Vec::as_slice).unwrap_or_default();
        wire::decode(bytes)
            .map_err(|why| Error::join_without(rank.0, format!("the channels of {rank}: {why}")))
    };
    let PortsOpen { channels, .. } = of(grid.leader_of(grid.node_of(Rank(config.rank))))?;
    let offered = match (decided, of(Rank(0))?.costs) {
        (Some(decided), _) => decided,
        (None, Some(offer)) => offer.taken()?,
        (None, None) => return Err(Error::join_without(0, "rank 0 has sent no figures of costs")),
    };
    let device = prepared.as_ref().and_then(Prepared::device);
    let reasons = prepared.as_ref().map(Prepared::reasons).unwrap_or_default();
    let (up, reached) = prepared.map(|prepared| prepared.connect(config, roster)).transpose()?.unzip();
    let mut all = up.unwrap_or_default().into_iter();
    let up = all.next().unwrap_or_default();
    let none = std::iter::repeat_with(UpChannels::default);
    let siblings = all.chain(none).take(config.shards as usize - 1).collect();
    let unreached = reached.and_then(Result::err);
    Ok(Reached { up, siblings, device, channels, reasons, offered, control: None, unreached })
}

/// A rank's message when its ports are open.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct PortsOpen {
    /// The names of its channels, on a leader.
    channels: String,
    /// The figures of the cost model; from rank 0 alone.
    costs: Option<Offer>,
}

/// Waits until all ranks are connected: none goes on before.
///
/// # Errors
/// [`Error::Join`] with the rank that does not reach its peers, has another plan, or did not answer.
pub(super) fn all_connected(
    control: &mut ControlLink,
    unreached: Option<String>,
    plan: &Plan,
    within: Duration,
) -> Result<(), Error> {
    let own = Connected { unreached, plan: plan.digest() };
    let all = control.all_gather("connected", &wire::encode(&own)?, within)?;
    own.compare(&all)?;
    let Traffic { sent, received } = control.traffic();
    tracing::debug!(sent, received, "bytes over the control connections until all were connected");
    Ok(())
}

/// A rank's message when its channels are open.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Connected {
    /// The fault of the path to peers.
    unreached: Option<String>,
    /// The digest of the plan in force.
    plan: [u8; 32],
}

impl Connected {
    /// Whether all ranks reach their peers and have this one's plan.
    fn compare(self, all: &[Vec<u8>]) -> Result<(), Error> {
        if let Some(why) = self.unreached {
            return Err(Error::join(why));
        }
        for (rank, bytes) in all.iter().zip(0..).map(|(bytes, rank)| (Rank(rank), bytes)) {
            let of_peer = |why: String| Error::join_without(rank.0, why);
            let said: Self =
                wire::decode(bytes).map_err(|why| of_peer(format!("what {rank} says: {why}")))?;
            if let Some(why) = said.unreached {
                return Err(of_peer(format!("{rank} does not reach its peers: {why}")));
            }
            if said.plan != self.plan {
                let what = "the figures of its cost model are others than rank 0 has sent";
                return Err(of_peer(format!(
                    "{rank} has another plan: {what}; run the same build on all ranks"
                )));
            }
        }
        Ok(())
    }
}

/// The grid of the job, by its roster. A rank that is alone has none.
pub(super) fn grid(config: &Config, joined: Option<&Joined>) -> Result<Grid, Error> {
    let hosts = joined.map_or_else(|| vec![1], |joined| joined.roster.hosts());
    let grid = Grid::of_hosts(&hosts).map_err(|why| Error::join(why.to_string()))?;
    let rank = Rank(config.rank);
    let place = (grid.ranks(), grid.local_of(rank), grid.locals(grid.node_of(rank)));
    if !grid.contains(rank) || place != (config.size, config.local_rank, config.local_size) {
        let why = format!("rank 0's list of ranks has {rank} elsewhere: {hosts:?} ranks on the hosts");
        return Err(Error::join_without(0, why));
    }
    Ok(grid)
}

/// Meets the other ranks and opens the channel to those of other hosts, for a measurement of it: the channels that a
/// [`Group`](super::Group) drives otherwise.
///
/// # Errors
/// As [`init`](super::init()).
pub fn leaders(config: &Config) -> Result<(UpChannels, ControlLink), Error> {
    log::speak_for(config.rank);
    let plan = Plan::default();
    let joined = join(config, &plan)?;
    let grid = grid(config, Some(&joined))?;
    let reached = reach(config, &grid, joined)?;
    if let Some(why) = reached.unreached {
        return Err(Error::join(why));
    }
    match reached.control {
        Some(control) if !reached.up.is_empty() => Ok((reached.up, control)),
        _ => Err(Error::Config("a channel is measured between two ranks, each on a host of its own".into())),
    }
}

#[cfg(test)]
mod tests;
