//! Which rank this process is, from a list of addresses and ports.
//!
//! Ranks that share an address share a host. A process without a configured rank claims the first entry whose address is
//! this host's and whose port it can open; the open port is its claim, so that two processes started at once never take
//! the same entry.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use super::RendezvousAddress;
use super::error::{ConfigError, Source};
use super::layers::{Environment, Layers};
use super::placement::{MAX_RANKS, RankPlacement, SourcedNumber, number};

pub(super) fn place(
    layers: &Layers,
    environment: &Environment,
    iplist: &[IpAddr],
    ports: &[u16],
) -> Result<RankPlacement, ConfigError> {
    let entries = entries(iplist, ports)?;
    let size = entries.len() as u32;
    let wanted = number(layers, environment, "size", "WORLD_SIZE", 1..=MAX_RANKS)?;
    if let Some(SourcedNumber { value, source: Some(source) }) = wanted
        && value != size
    {
        return Err(ConfigError::Conflict {
            what: format!("iplist names {size} ranks and {source} says {value}"),
            remedy: "give one address per rank".into(),
        });
    }
    let given = number(layers, environment, "rank", "RANK", 0..=MAX_RANKS - 1)?;
    let (rank, listener) = match given {
        Some(SourcedNumber { value: rank, source }) if rank >= size => {
            return Err(ConfigError::Conflict {
                what: format!(
                    "rank {rank} ({}) is not among the {size} of iplist",
                    source.unwrap_or(Source::Call)
                ),
                remedy: "ranks count from 0 to the length of iplist - 1".into(),
            });
        }
        // Rank 0 opens the port when the ranks meet, as without lists.
        Some(SourcedNumber { value: rank, .. }) => (rank, None),
        None => claim(&entries).map(|(rank, listener)| (rank, Some(Arc::new(listener))))?,
    };
    let host = entries[rank as usize].ip();
    let on_host = |entry: &SocketAddr| entry.ip() == host;
    let local_size = entries.iter().filter(|entry| on_host(entry)).count() as u32;
    let local_rank = entries[..rank as usize].iter().filter(|entry| on_host(entry)).count() as u32;
    let node = hosts_before(&entries, rank);
    if let Some(given) = number(layers, environment, "node", "", 0..=MAX_RANKS - 1)?
        && given.value != node
    {
        return Err(ConfigError::Conflict {
            what: format!("iplist has rank {rank} on host {node}, and {}", given.shown("node")),
            remedy: "leave node out".into(),
        });
    }
    let first = entries[0];
    Ok(RankPlacement {
        rank,
        size,
        local_rank,
        local_size,
        node: Some(node),
        rendezvous: RendezvousAddress { host: first.ip().to_string(), port: first.port(), listener },
        store: None,
        launcher_store: None,
    })
}

/// One address and port per rank; ranks of one host must follow each other.
fn entries(iplist: &[IpAddr], ports: &[u16]) -> Result<Vec<SocketAddr>, ConfigError> {
    let value = |key: &str, found: String, allowed: &str| ConfigError::Value {
        key: key.into(),
        source_of: Source::Call,
        found,
        allowed: allowed.into(),
    };
    if iplist.is_empty() || iplist.len() as u64 > MAX_RANKS {
        return Err(value(
            "iplist",
            format!("of {} addresses", iplist.len()),
            "a list of 1 to 65536 addresses, one per rank",
        ));
    }
    if ports.len() != iplist.len() && ports.len() != 1 {
        let found = format!("of {} ports beside {} addresses", ports.len(), iplist.len());
        return Err(value("ports", found, "a list with one port per rank, or one port for all"));
    }
    if ports.contains(&0) {
        return Err(value("ports", "0".into(), "a list of TCP ports, from 1 to 65535"));
    }
    let all: Vec<SocketAddr> = iplist
        .iter()
        .enumerate()
        .map(|(rank, ip)| SocketAddr::new(*ip, *ports.get(rank).unwrap_or(&ports[0])))
        .collect();
    let mut seen = std::collections::BTreeMap::new();
    let mut hosts = std::collections::BTreeSet::new();
    for (rank, entry) in all.iter().enumerate() {
        if let Some(other) = seen.insert(*entry, rank) {
            return Err(ConfigError::Conflict {
                what: format!("ranks {other} and {rank} both have {entry}"),
                remedy: "give ranks of one host different ports".into(),
            });
        }
        let continues = rank > 0 && all[rank - 1].ip() == entry.ip();
        if !hosts.insert(entry.ip()) && !continues {
            return Err(ConfigError::Conflict {
                what: format!(
                    "rank {rank} is on {}, as an earlier rank, with another host between them",
                    entry.ip()
                ),
                remedy: "ranks fill hosts in blocks: let the ranks of a host follow each other in iplist"
                    .into(),
            });
        }
    }
    Ok(all)
}

fn hosts_before(entries: &[SocketAddr], rank: u32) -> u32 {
    entries[..=rank as usize].windows(2).filter(|pair| pair[0].ip() != pair[1].ip()).count() as u32
}

/// Takes the first entry of this host whose port is free.
fn claim(entries: &[SocketAddr]) -> Result<(u32, TcpListener), ConfigError> {
    let mut ours = Vec::new();
    for (rank, entry) in entries.iter().enumerate() {
        // Only an address of this host can be bound; a port of 0 asks for any.
        if UdpSocket::bind((entry.ip(), 0)).is_err() {
            continue;
        }
        ours.push(entry.to_string());
        if let Ok(listener) = TcpListener::bind(entry) {
            return Ok((rank as u32, listener));
        }
    }
    let what = if ours.is_empty() {
        "none of the addresses of iplist is this host's".to_owned()
    } else {
        format!("every entry of this host is taken already ({})", ours.join(", "))
    };
    Err(ConfigError::Conflict {
        what,
        remedy: "check iplist and ports, or say which rank this process is with SHOUTER_RANK".into(),
    })
}
