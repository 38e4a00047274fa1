//! Which server owns which rows of a parameter.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How the rows of a parameter (its first dimension) are dealt out to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Sharding {
    /// A run of rows for each server, as even as can be.
    Contiguous,
    /// Each row by the hash of its index: even where a few neighbouring rows take most of the gradients.
    Hashed,
}

/// The rows of one server, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shard {
    Run(Range<u64>),
    List(Vec<u64>),
}

impl Sharding {
    /// The rows that server `server` of `servers` owns.
    pub(super) fn shard(self, rows: u64, server: usize, servers: usize) -> Shard {
        let edge = |server: usize| (u128::from(rows) * server as u128 / servers as u128) as u64;
        match self {
            // One server has all in either case.
            Self::Hashed if servers > 1 => {
                Shard::List((0..rows).filter(|row| owner(*row, servers) == server).collect())
            }
            _ => Shard::Run(edge(server)..edge(server + 1)),
        }
    }
}

/// By SplitMix64's mix (Steele, Lea and Flood, OOPSLA 2014), so that neighbours go to different servers.
fn owner(row: u64, servers: usize) -> usize {
    let mut mixed = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) % servers as u64) as usize
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Run(run) => (run.end - run.start) as usize,
            Self::List(rows) => rows.len(),
        }
    }

    /// The place of a row in the shard.
    pub(super) fn place(&self, row: u64) -> Option<usize> {
        match self {
            Self::Run(run) => run.contains(&row).then(|| (row - run.start) as usize),
            Self::List(rows) => rows.binary_search(&row).ok(),
        }
    }

    /// Where the shard lies in the whole tensor, in bytes, if it is one piece of it.
    pub(super) fn run(&self, row_bytes: usize) -> Option<Range<usize>> {
        match self {
            Self::Run(run) => Some(run.start as usize * row_bytes..run.end as usize * row_bytes),
            Self::List(_) => None,
        }
    }

    /// Copies the shard's rows out of those of the whole tensor.
    pub(super) fn gather(&self, whole: &[u8], row_bytes: usize, shard: &mut [u8]) {
        match self {
            Self::Run(run) => {
                shard.copy_from_slice(&whole[run.start as usize * row_bytes..run.end as usize * row_bytes]);
            }
            Self::List(_) if row_bytes == 0 => {}
            Self::List(rows) => {
                for (row, to) in rows.iter().zip(shard.chunks_exact_mut(row_bytes)) {
                    to.copy_from_slice(&whole[*row as usize * row_bytes..][..row_bytes]);
                }
            }
        }
    }

    /// Copies the shard's rows to their places in the whole tensor.
    pub(super) fn scatter(&self, shard: &[u8], row_bytes: usize, whole: &mut [u8]) {
        match self {
            Self::Run(run) => {
                whole[run.start as usize * row_bytes..run.end as usize * row_bytes].copy_from_slice(shard);
            }
            Self::List(_) if row_bytes == 0 => {}
            Self::List(rows) => {
                for (row, from) in rows.iter().zip(shard.chunks_exact(row_bytes)) {
                    whole[*row as usize * row_bytes..][..row_bytes].copy_from_slice(from);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
