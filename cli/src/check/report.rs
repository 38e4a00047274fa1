//! The report of rank 0, from the measurements of all ranks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shouter::{Group, Tag};

use super::judge::{Judgement, Pair, judge};
use super::measure::{LATENCY_BYTES, Offset, Seen};
use crate::failure::CommandError;
use crate::info::Item;

/// The tag of the ranks' reports.
const REPORT: u32 = 4;
/// The most bytes of a rank's report: a part of its own, and a part for each other rank.
const MOST_OWN: u64 = 64 << 10;
const MOST_EACH: u64 = 256;
/// The offset of a clock that is worth a warning, in microseconds.
pub(super) const CLOCK_WARNING_US: f64 = 100_000.0;

/// A rank's report.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OfRank {
    host: u32,
    /// Set by the first rank of each host.
    of_host: Option<OfHost>,
    seen: Vec<Seen>,
}

/// The part of the report that the first rank of a host adds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OfHost {
    pub(super) name: String,
    /// The version of Shouter there.
    pub(super) version: String,
    /// The chosen channels, and the reasons for the choice.
    pub(super) channels: String,
    pub(super) reasons: Vec<String>,
    /// Limits of memory.
    pub(super) memory: Vec<Item>,
}

impl OfRank {
    /// The report of this rank; the first rank of a host adds the host's part.
    pub(super) fn new(group: &Group, memory: Vec<Item>, seen: Vec<Seen>) -> Self {
        let transport = group.transport();
        let of_host = (group.local_rank() == 0).then(|| OfHost {
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            channels: transport.channels.clone(),
            reasons: transport.reasons.clone(),
            memory,
        });
        Self { host: group.node(), of_host, seen }
    }

    /// Whether this is a valid report of rank `own` of `size`.
    fn fits(&self, own: u32, size: u32) -> bool {
        let peers = (0..size).filter(|peer| *peer != own);
        let as_due = |seen: &Seen| {
            let of_lower = seen.latency_us.is_some() == (own < seen.peer);
            of_lower && seen.clock.is_some() == (own == 0)
        };
        self.host < size && self.seen.iter().map(|seen| seen.peer).eq(peers) && self.seen.iter().all(as_due)
    }

    /// The measurements of this rank, `own`, with `peer`.
    fn of(&self, own: u32, peer: u32) -> Option<&Seen> {
        self.seen.get(peer as usize - usize::from(peer > own))
    }
}

/// Gathers the reports of all ranks on rank 0, each within `limit`; the others get nothing.
pub(super) fn gather(
    group: &Group,
    mut own: OfRank,
    limit: Duration,
) -> Result<Option<Vec<OfRank>>, CommandError> {
    own.seen.sort_by_key(|seen| seen.peer);
    if group.rank() > 0 {
        group.send(&serde_json::to_vec(&own).map_err(std::io::Error::from)?, 0, REPORT)?;
        return Ok(None);
    }
    let mut all = vec![own];
    for rank in 1..group.size() {
        let failed = |why: String| CommandError::Failed(format!("what rank {rank} has measured: {why}"));
        let found = group.probe(rank, Tag::Is(REPORT), limit)?;
        let bytes = found.ok_or_else(|| failed(format!("nothing has come within {limit:?}")))?.bytes();
        let most = MOST_OWN + MOST_EACH * u64::from(group.size());
        if bytes > most {
            return Err(failed(format!("{bytes} bytes are more than the {most} that there can be")));
        }
        let mut told = vec![0u8; bytes as usize];
        group.receive(&mut told, rank, REPORT)?;
        let told: OfRank = serde_json::from_slice(&told).map_err(|why| failed(why.to_string()))?;
        if !told.fits(rank, group.size()) {
            return Err(failed(
                "it is not of this job's pairs; all ranks have to run the same version".into(),
            ));
        }
        all.push(told);
    }
    Ok(Some(all))
}

/// A host and its ranks.
#[derive(Debug, Serialize)]
pub(super) struct Host {
    pub(super) host: u32,
    pub(super) ranks: Vec<u32>,
    #[serde(flatten)]
    pub(super) of_host: OfHost,
}

/// A rank's wall clock against rank 0's.
#[derive(Debug, Serialize)]
pub(super) struct RankClock {
    pub(super) rank: u32,
    #[serde(flatten)]
    pub(super) offset: Offset,
    /// Whether the offset is worth a warning.
    pub(super) is_off: bool,
}

/// The report for people and programs.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Whether nothing is slow.
    pub(super) ok: bool,
    pub(super) size: u32,
    pub(super) latency_bytes: usize,
    pub(super) bandwidth_bytes: usize,
    pub(super) factor: f64,
    pub(super) hosts: Vec<Host>,
    pub(super) pairs: Vec<Pair>,
    pub(super) clocks: Vec<RankClock>,
    #[serde(flatten)]
    pub(super) judgement: Judgement,
}

impl Report {
    /// Makes the report from those of all ranks, in the order of ranks.
    pub(super) fn new(all: &[OfRank], bandwidth_bytes: usize, factor: f64) -> Result<Self, CommandError> {
        let size = all.len() as u32;
        let of_hosts: Vec<u32> = all.iter().map(|rank| rank.host).collect();
        let mut hosts = vec![];
        for told in all {
            let Some(of_host) = told.of_host.clone() else { continue };
            let ranks = (0..size).filter(|rank| of_hosts[*rank as usize] == told.host).collect();
            hosts.push(Host { host: told.host, ranks, of_host });
        }
        let mut pairs = Vec::with_capacity(all.len() * all.len().saturating_sub(1) / 2);
        for a in 0..size {
            for b in a + 1..size {
                pairs.push(pair(all, a, b).ok_or_else(|| {
                    CommandError::Failed(format!("rank {a} and rank {b} have told nothing of each other"))
                })?);
            }
        }
        let clocks = all.first().into_iter().flat_map(|zero| &zero.seen);
        let clocks = clocks.filter_map(|seen| Some((seen.peer, seen.clock?)));
        let clocks = clocks.map(|(rank, offset)| RankClock {
            rank,
            offset,
            is_off: offset.offset_us.abs() - offset.uncertainty_us > CLOCK_WARNING_US,
        });
        let clocks = clocks.collect();
        let judgement = judge(&of_hosts, &pairs, factor);
        Ok(Self {
            ok: judgement.slow.is_empty(),
            size,
            latency_bytes: LATENCY_BYTES,
            bandwidth_bytes,
            factor,
            hosts,
            pairs,
            clocks,
            judgement,
        })
    }
}

fn pair(all: &[OfRank], a: u32, b: u32) -> Option<Pair> {
    let (lower, upper) = (all.get(a as usize)?, all.get(b as usize)?);
    let (there, back) = (lower.of(a, b)?, upper.of(b, a)?);
    Some(Pair {
        ranks: [a, b],
        same_host: lower.host == upper.host,
        latency_us: there.latency_us?,
        gbytes: [there.gbytes, back.gbytes],
    })
}
