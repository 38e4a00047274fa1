//! Which rank this process is, and where the ranks meet: from our own keys, else from torchrun's variables.

use super::error::{ConfigError, Source};
use super::layers::{Environment, Layers, Located, Raw};
use super::{Meeting, value};

/// The most ranks that a job may have.
pub(super) const MAX_RANKS: u64 = 65_536;

/// A rank's place in the job.
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
    pub(super) node: Option<u32>,
    pub(super) meeting: Meeting,
}

/// A number and where it came from, for messages that set two of them against each other.
#[derive(Debug, Clone)]
pub(super) struct Number {
    pub(super) value: u32,
    pub(super) source: Option<Source>,
}

impl Number {
    fn shown(&self, key: &str) -> String {
        match &self.source {
            Some(source) => format!("{key} {} ({source})", self.value),
            None => format!("{key} {}", self.value),
        }
    }
}

/// A key of ours, else the variable of torchrun that means the same.
pub(super) fn number(
    layers: &Layers,
    environment: &Environment,
    key: &'static str,
    torchrun: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<Number>, ConfigError> {
    if let Some(value) = value::integer(layers, key, range.clone())? {
        let source = layers.get(key).map(|value| value.source.clone());
        return Ok(Some(Number { value: value as u32, source }));
    }
    let Some(text) = environment.get(torchrun) else { return Ok(None) };
    let source = Source::Environment(torchrun.to_owned());
    match text.trim().parse::<u64>().ok().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(Number { value: number as u32, source: Some(source) })),
        None => Err(value::wrong(key, &Located { raw: Raw::Text(text.to_owned()), source })),
    }
}

/// The place by environment and file.
pub(super) fn place(layers: &Layers, environment: &Environment) -> Result<Place, ConfigError> {
    let missing = |key: &str, ours: &str, torchrun: &str| ConfigError::Missing {
        key: key.into(),
        remedy: format!(
            "neither {ours} nor torchrun's {torchrun} is set; start the job with `shouter run` or torchrun, or set it"
        ),
    };
    let size = number(layers, environment, "size", "WORLD_SIZE", 1..=MAX_RANKS)?
        .ok_or_else(|| missing("size", "SHOUTER_SIZE", "WORLD_SIZE"))?;
    let rank = number(layers, environment, "rank", "RANK", 0..=MAX_RANKS - 1)?
        .ok_or_else(|| missing("rank", "SHOUTER_RANK", "RANK"))?;
    let local_size = number(layers, environment, "local_size", "LOCAL_WORLD_SIZE", 1..=MAX_RANKS)?;
    let local_size = match local_size {
        Some(local_size) => local_size,
        None if size.value == 1 => Number { value: 1, source: None },
        None => return Err(missing("local_size", "SHOUTER_LOCAL_SIZE", "LOCAL_WORLD_SIZE")),
    };
    let local_rank = number(layers, environment, "local_rank", "LOCAL_RANK", 0..=MAX_RANKS - 1)?
        .unwrap_or(Number { value: rank.value % local_size.value, source: None });
    check(&rank, &size, &local_rank, &local_size)?;
    let node = value::integer(layers, "node", 0..=MAX_RANKS - 1)?.map(|node| node as u32);
    let on_one_host = local_size.value == size.value;
    let meeting = meeting(layers, environment, size.value, on_one_host)?;
    Ok(Place {
        rank: rank.value,
        size: size.value,
        local_rank: local_rank.value,
        local_size: local_size.value,
        node,
        meeting,
    })
}

/// The four numbers must be able to hold together: ranks fill hosts in blocks.
fn check(rank: &Number, size: &Number, local_rank: &Number, local_size: &Number) -> Result<(), ConfigError> {
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

/// Where rank 0 listens. torchrun's own store owns MASTER_PORT, so ours is the one above.
fn meeting(
    layers: &Layers,
    environment: &Environment,
    size: u32,
    on_one_host: bool,
) -> Result<Meeting, ConfigError> {
    let valid = |host: &str| !host.is_empty() && !host.contains(char::is_whitespace);
    let host = value::text(layers, "addr", valid)?
        .or_else(|| environment.get("MASTER_ADDR").filter(|host| valid(host)).map(str::to_owned))
        .or_else(|| on_one_host.then(|| "127.0.0.1".to_owned()));
    let given = value::integer(layers, "port", 1..=65_535)?.map(|port| port as u16);
    let port = match (given, environment.get("MASTER_PORT")) {
        (Some(port), _) => Some(port),
        (None, None) => None,
        (None, Some(text)) => {
            let port = text.trim().parse::<u16>().ok().and_then(|port| port.checked_add(1));
            Some(port.ok_or_else(|| ConfigError::Value {
                key: "port".into(),
                source_of: Source::Environment("MASTER_PORT".into()),
                found: format!("one more than {text:?}"),
                allowed: "a TCP port, from 1 to 65535; set SHOUTER_PORT".into(),
            })?)
        }
    };
    match (host, port) {
        (Some(host), Some(port)) => Ok(Meeting { host, port, listener: None }),
        // A job of one rank meets nobody.
        (host, port) if size == 1 => {
            Ok(Meeting { host: host.unwrap_or_else(|| "127.0.0.1".into()), port: port.unwrap_or(0), listener: None })
        }
        (None, _) => Err(ConfigError::Missing {
            key: "addr".into(),
            remedy: "set SHOUTER_ADDR (or torchrun's MASTER_ADDR) to the address of rank 0's host".into(),
        }),
        (_, None) => Err(ConfigError::Missing {
            key: "port".into(),
            remedy: "set SHOUTER_PORT to a free TCP port of rank 0's host, the same on every rank (with torchrun it is \
                     MASTER_PORT + 1)"
                .into(),
        }),
    }
}
