//! Which rank this process is, and the rendezvous address: from our own keys, else from a launcher's variables.

use std::net::Ipv6Addr;

use super::error::{ConfigError, Source};
use super::launcher::{Launcher, LauncherStore};
use super::layers::{Environment, Layers, Located, Raw};
use super::{RendezvousAddress, value};

/// The most ranks that a job may have.
pub const MAX_RANKS: u64 = 65_536;

/// A rank's placement in the job.
pub(super) struct RankPlacement {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
    pub(super) node: Option<u32>,
    pub(super) rendezvous: RendezvousAddress,
    /// The placement that the ranks look up in a store, where they meet through one.
    pub(super) store: Option<StorePlacement>,
    /// The launcher's store, where it is that one.
    pub(super) launcher_store: Option<LauncherStore>,
}

/// The placement that the ranks find out through a store, besides the meeting point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorePlacement {
    /// The ranks that share each host.
    Found,
    /// Nothing: each rank was given its place on its host.
    Given,
}

/// A number and where it came from, for messages that set two of them against each other.
#[derive(Debug, Clone)]
pub(super) struct SourcedNumber {
    pub(super) value: u32,
    pub(super) source: Option<Source>,
}

impl SourcedNumber {
    pub(super) fn shown(&self, key: &str) -> String {
        match &self.source {
            Some(source) => format!("{key} {} ({source})", self.value),
            None => format!("{key} {}", self.value),
        }
    }
}

/// A key of ours, else the launcher's variable that means the same.
pub(super) fn number(
    layers: &Layers,
    environment: &Environment,
    key: &'static str,
    variable: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<SourcedNumber>, ConfigError> {
    if let Some(value) = value::integer(layers, key, range.clone())? {
        let source = layers.get(key).map(|value| value.source.clone());
        return Ok(Some(SourcedNumber { value: value as u32, source }));
    }
    let Some(text) = environment.get(variable) else { return Ok(None) };
    let source = Source::Environment(variable.to_owned());
    match text.trim().parse::<u64>().ok().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(SourcedNumber { value: number as u32, source: Some(source) })),
        None => Err(value::wrong(key, &Located { raw: Raw::Text(text.to_owned()), source })),
    }
}

/// How a job's secret is given.
pub(super) const GIVE_KEY: &str = "set SHOUTER_KEY to the same text on every rank (`openssl rand -hex 32` makes one), or \
     SHOUTER_KEY_FILE to a file that holds it, by which the ranks of a job prove to each other that they belong to it; \
     `shouter run` does it by itself";

/// The place by environment and file.
pub(super) fn place(layers: &Layers, environment: &Environment) -> Result<RankPlacement, ConfigError> {
    let launcher = Launcher::of(environment);
    if let Some(store) = launcher.store(environment).filter(|_| leaves_meeting_open(layers)) {
        let place = place_through(layers, environment)?;
        return Ok(RankPlacement { launcher_store: (place.size > 1).then_some(store), ..place });
    }
    let [rank_name, size_name, local_rank_name, local_size_name] = launcher.names();
    let size = number(layers, environment, "size", size_name, 1..=MAX_RANKS)?;
    let rank = number(layers, environment, "rank", rank_name, 0..=MAX_RANKS - 1)?;
    let alone = size.as_ref().is_some_and(|size| size.value == 1);
    let local_size = match launcher.ranks_here(environment).filter(|_| layers.get("local_size").is_none()) {
        Some(value) => {
            Some(SourcedNumber { value, source: Some(Source::Environment(local_size_name.into())) })
        }
        None if launcher == Launcher::Slurm => number(layers, environment, "local_size", "", 1..=MAX_RANKS)?,
        None => number(layers, environment, "local_size", local_size_name, 1..=MAX_RANKS)?,
    }
    .or(alone.then_some(SourcedNumber { value: 1, source: None }));
    let local_rank = number(layers, environment, "local_rank", local_rank_name, 0..=MAX_RANKS - 1)?;
    let local_rank = match (&rank, &size, &local_size) {
        (Some(rank), Some(size), Some(local_size)) => {
            let derived = SourcedNumber { value: rank.value % local_size.value, source: None };
            let local_rank = local_rank.unwrap_or(derived);
            check(rank, size, &local_rank, local_size)?;
            Some(local_rank)
        }
        _ => None,
    };
    let values = [&size, &local_size].map(|number| number.as_ref().map(|number| number.value));
    let on_one_host = alone || values[0].is_some() && values[0] == values[1];
    // A job of one rank has no rendezvous.
    let host = match given_host(layers)? {
        None if !alone => launchers_host(launcher, environment)?,
        given => given,
    };
    let host = host.or_else(|| on_one_host.then(|| "127.0.0.1".to_owned()));
    let port = match given_port(layers)? {
        Some(port) => Some(port),
        None => launcher.port(environment)?.or(alone.then_some(0)),
    };
    let has_key = alone || ["key", "key_file"].iter().any(|key| layers.get(key).is_some());
    let (Some(size), Some(rank), Some(local_size), Some(local_rank), Some(host), Some(port), true) =
        (&size, &rank, &local_size, &local_rank, &host, port, has_key)
    else {
        return Err(missing(
            launcher.remedy(),
            &[
                ("size", size.is_some(), "set SHOUTER_SIZE (torchrun: WORLD_SIZE) to the number of ranks"),
                (
                    "rank",
                    rank.is_some(),
                    "set SHOUTER_RANK (torchrun: RANK) to this process's number, from 0",
                ),
                (
                    "local_size",
                    local_size.is_some(),
                    "set SHOUTER_LOCAL_SIZE (torchrun: LOCAL_WORLD_SIZE) to the number of ranks on this host",
                ),
                (
                    "addr",
                    host.is_some(),
                    "set SHOUTER_ADDR (torchrun: MASTER_ADDR) to the address of rank 0's host, unless all ranks are on one",
                ),
                (
                    "port",
                    port.is_some(),
                    "set SHOUTER_PORT to a free TCP port of rank 0's host, the same on every rank (torchrun: MASTER_PORT + 1)",
                ),
                ("key", has_key, GIVE_KEY),
            ],
        ));
    };
    Ok(RankPlacement {
        rank: rank.value,
        size: size.value,
        local_rank: local_rank.value,
        local_size: local_size.value,
        node: node(layers, rank, local_rank)?,
        rendezvous: RendezvousAddress { host: host.clone(), port, listener: None },
        store: None,
        launcher_store: None,
    })
}

/// The placement of a rank that meets the others through a store: rank and size must be given, the rest may be set by
/// keys. The launcher's figures for this host do not count: ranks that it puts together may be in several network
/// namespaces.
pub(super) fn place_through(
    layers: &Layers,
    environment: &Environment,
) -> Result<RankPlacement, ConfigError> {
    let [rank_name, size_name, ..] = Launcher::of(environment).names();
    let size = number(layers, environment, "size", size_name, 1..=MAX_RANKS)?;
    let rank = number(layers, environment, "rank", rank_name, 0..=MAX_RANKS - 1)?;
    let (Some(size), Some(rank)) = (&size, &rank) else {
        return Err(missing(
            None,
            &[
                ("size", size.is_some(), "give the number of ranks"),
                ("rank", rank.is_some(), "give this process's number, from 0"),
            ],
        ));
    };
    let range = 1..=MAX_RANKS;
    let given = |key| Ok::<_, ConfigError>(value::integer(layers, key, range.clone())?.map(|n| n as u32));
    let local_size = given("local_size")?;
    let store = if local_size.is_some() { StorePlacement::Given } else { StorePlacement::Found };
    let local_size = local_size.unwrap_or(1);
    let local_rank = match (store, value::integer(layers, "local_rank", 0..=MAX_RANKS - 1)?) {
        (StorePlacement::Given, Some(number)) => number as u32,
        _ => rank.value % local_size,
    };
    let shown = |key, value| {
        let source = layers.get(key).map(|value| value.source.clone());
        SourcedNumber { value, source }
    };
    let local_rank = shown("local_rank", local_rank);
    check(rank, size, &local_rank, &shown("local_size", local_size))?;
    Ok(RankPlacement {
        rank: rank.value,
        size: size.value,
        local_rank: local_rank.value,
        local_size,
        node: node(layers, rank, &local_rank)?,
        rendezvous: RendezvousAddress {
            host: given_host(layers)?.unwrap_or_default(),
            port: given_port(layers)?.unwrap_or_default(),
            listener: None,
        },
        store: Some(store),
        launcher_store: None,
    })
}

/// The keys that say where a rank of the job that was started is, and where its ranks meet; the levels are those of its hosts.
const OF_PLACE: [&str; 6] = ["local_rank", "local_size", "node", "addr", "port", "levels"];

/// The values that hold for ranks that meet through a store. Where the program's call gives another rank or size than the launcher, its group has
/// some of the job's ranks, or the same ones in another order: what file and environment say of this rank's place is said of the job then.
pub(super) fn of_group(layers: &Layers, environment: &Environment) -> Layers {
    let [launchers_rank, launchers_size, ..] = Launcher::of(environment).names();
    let is_called = |key: &str| layers.get(key).is_some_and(|value| value.source == Source::Call);
    let differs = |key: &str, ours: &str, launchers: &str| {
        let started = environment.get(ours).or_else(|| environment.get(launchers));
        let started = started.and_then(|text| text.trim().parse::<u64>().ok());
        let called = value::integer(layers, key, 0..=MAX_RANKS).ok().flatten();
        is_called(key) && started.is_some() && called != started
    };
    let mut held = layers.clone();
    if differs("rank", "SHOUTER_RANK", launchers_rank) || differs("size", "SHOUTER_SIZE", launchers_size) {
        OF_PLACE.iter().filter(|key| !is_called(key)).for_each(|key| held.remove(key));
    }
    held
}

/// Whether the keys give neither rank and size nor the meeting point's port and key.
fn leaves_meeting_open(layers: &Layers) -> bool {
    let given = |keys: &[&str]| keys.iter().all(|key| layers.get(key).is_some());
    let has_key = given(&["key"]) || given(&["key_file"]);
    !(given(&["rank", "size"]) || given(&["port"]) && has_key)
}

/// This host's number, where a key gives it. Each host before this one has a rank at least, so it is at most the number of the host's first
/// rank; where ranks meet, they compare it with the number of hosts before this one.
fn node(
    layers: &Layers,
    rank: &SourcedNumber,
    local_rank: &SourcedNumber,
) -> Result<Option<u32>, ConfigError> {
    let Some(node) = number(layers, &Environment::default(), "node", "", 0..=MAX_RANKS - 1)? else {
        return Ok(None);
    };
    if node.value > rank.value.saturating_sub(local_rank.value) {
        return Err(ConfigError::Conflict {
            what: format!("{} does not go with {}", node.shown("node"), rank.shown("rank")),
            remedy: "hosts count from 0 in the order of their ranks, so rank 0's is 0, and none before this one is without a rank; \
                     leave node out"
                .into(),
        });
    }
    Ok(Some(node.value))
}

/// The error for needed values that were not given. Each has its key, whether it was given, and how to give it.
fn missing(launcher: Option<&str>, needed: &[(&str, bool, &str)]) -> ConfigError {
    let lacking = || needed.iter().filter(|(_, given, _)| !given);
    let mut remedy: Vec<&str> = lacking().map(|(.., how)| *how).collect();
    if lacking().any(|(key, ..)| ["size", "rank", "local_size"].contains(key)) {
        remedy.insert(0, "start the job with `shouter run` or torchrun, or give it by hand");
    }
    if lacking().any(|(key, ..)| *key == "size") {
        remedy.push("a job of one rank needs SHOUTER_SIZE=1 and SHOUTER_RANK=0 alone");
    }
    remedy.extend(launcher);
    ConfigError::Missing {
        keys: lacking().map(|(key, ..)| (*key).to_owned()).collect(),
        remedy: remedy.join("; "),
    }
}

/// The four numbers must be able to hold together: ranks fill hosts in blocks.
fn check(
    rank: &SourcedNumber,
    size: &SourcedNumber,
    local_rank: &SourcedNumber,
    local_size: &SourcedNumber,
) -> Result<(), ConfigError> {
    let conflict = |a: String, b: String, remedy: &str| {
        Err(ConfigError::Conflict { what: format!("{a} does not go with {b}"), remedy: remedy.into() })
    };
    if rank.value >= size.value {
        return conflict(rank.shown("rank"), size.shown("size"), "ranks count from 0 to size - 1");
    }
    if local_size.value > size.value {
        return conflict(
            local_size.shown("local_size"),
            size.shown("size"),
            "a host cannot have more ranks than the job",
        );
    }
    if local_rank.value >= local_size.value {
        let remedy = "local ranks count from 0 to local_size - 1";
        return conflict(local_rank.shown("local_rank"), local_size.shown("local_size"), remedy);
    }
    let fits =
        rank.value >= local_rank.value && (rank.value - local_rank.value) + local_size.value <= size.value;
    if !fits {
        let remedy = "ranks fill hosts in blocks: the ranks of a host follow each other, in the order of their local ranks";
        return conflict(local_rank.shown("local_rank"), rank.shown("rank"), remedy);
    }
    Ok(())
}

/// The host on which rank 0 listens, where a key gives it.
fn given_host(layers: &Layers) -> Result<Option<String>, ConfigError> {
    value::text(layers, "addr", is_host)
}

/// The host on which rank 0 listens, where the launcher's variables give it.
fn launchers_host(launcher: Launcher, environment: &Environment) -> Result<Option<String>, ConfigError> {
    match launcher.host(environment) {
        Some((variable, host)) if !is_host(&host) => {
            let source = Source::Environment(variable.into());
            Err(value::wrong("addr", &Located { raw: Raw::Text(host), source }))
        }
        given => Ok(given.map(|(_, host)| host)),
    }
}

/// Addresses and names, which resolvers take without a port, a path or brackets.
fn is_host(text: &str) -> bool {
    let is_one = |part: &str| {
        let address = part.split_once('%').map_or(part, |(address, _zone)| address);
        address.parse::<Ipv6Addr>().is_ok() || !part.contains([':', '[', ']', '/', '%'])
    };
    !text.is_empty() && !text.contains(char::is_whitespace) && text.split(',').all(is_one)
}

fn given_port(layers: &Layers) -> Result<Option<u16>, ConfigError> {
    Ok(value::integer(layers, "port", 1..=65_535)?.map(|port| port as u16))
}
