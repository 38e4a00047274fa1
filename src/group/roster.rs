//! The members of the group: the same list on every rank.

use serde::{Deserialize, Serialize};

use super::error::Refusal;
use super::hello::Hello;
use super::message::Message;
use crate::key::{Key, TAG_LEN};

/// One rank of the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number in the group; its index in the roster.
    #[serde(skip)]
    pub rank: u32,
    /// Its number on its node.
    pub local_rank: u32,
    /// The number of ranks on its node.
    pub local_size: u32,
    /// Its node's number, counted from 0 in the order of ranks.
    pub node: u32,
    /// Its tensor table, as its hello had it.
    #[serde(with = "serde_bytes")]
    pub table: Vec<u8>,
    /// The blob of its channels, as its hello had it.
    #[serde(with = "serde_bytes")]
    pub blob: Vec<u8>,
}

/// The group's members, and the secret that only they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The members in the order of their ranks.
    pub members: Vec<Member>,
    /// The version of the membership, counted from 1.
    pub epoch: u64,
    /// The job's name.
    pub job: String,
    /// A secret of this start of the job: HMAC of the key over randomness that rank 0 chose. It never crosses the wire.
    pub session_secret: Key,
}

impl Roster {
    /// The number of nodes.
    pub fn nodes(&self) -> u32 {
        self.members.last().map_or(0, |member| member.node + 1)
    }

    /// The number of ranks on each node.
    pub fn hosts(&self) -> Vec<u32> {
        let same = |one: &Member, next: &Member| one.node == next.node;
        self.members.chunk_by(same).map(|members| members.len() as u32).collect()
    }

    /// Puts the hellos, given in the order of ranks, in their places: ranks fill nodes in blocks.
    pub(super) fn assemble(
        hellos: &[Hello],
        job: &str,
        key: &Key,
        nonce: &[u8; TAG_LEN],
    ) -> Result<Self, Refusal> {
        let wrong = |rank: usize, what: String| Err(Refusal::Place { rank: rank as u32, what });
        let mut members = Vec::with_capacity(hellos.len());
        let (mut base, mut node) = (0, 0);
        while base < hellos.len() {
            let first = &hellos[base];
            let local_size = first.local_size as usize;
            if first.local_rank != 0 {
                let what = format!("it begins a host and has local rank {}", first.local_rank);
                return wrong(base, what);
            }
            let Some(block) = base.checked_add(local_size).and_then(|end| hellos.get(base..end)) else {
                return wrong(
                    base,
                    format!("{local_size} ranks on its host go beyond the job's {}", hellos.len()),
                );
            };
            if block.is_empty() {
                return wrong(base, "its host has no ranks".into());
            }
            for (local, hello) in block.iter().enumerate() {
                let rank = base + local;
                let place = (hello.local_rank as usize, hello.local_size as usize);
                if place != (local, local_size) {
                    return wrong(
                        rank,
                        format!(
                            "it says that it is local rank {} of {}, and beside rank {base}, which has {local_size} ranks on \
                             its host, it would be local rank {local}",
                            place.0, place.1
                        ),
                    );
                }
                if hello.machine() != first.machine() {
                    return wrong(
                        rank,
                        format!(
                            "it shares a host with rank {base} and runs on another machine (or network namespace)"
                        ),
                    );
                }
                if let Some(given) = hello.node.filter(|given| *given != node) {
                    return wrong(
                        rank,
                        format!("it says that its host is number {given}, and by rank it is {node}"),
                    );
                }
                members.push(Member {
                    rank: rank as u32,
                    local_rank: local as u32,
                    local_size: first.local_size,
                    node,
                    table: hello.table.clone(),
                    blob: hello.blob.clone(),
                });
            }
            base += local_size;
            node += 1;
        }
        Ok(Self { members, epoch: 1, job: job.to_owned(), session_secret: secret(job, key, nonce) })
    }

    /// The roster as it crosses the wire: with the nonce, without the secret.
    pub(super) fn message(&self, nonce: &[u8; TAG_LEN]) -> Message {
        Message::Roster { epoch: self.epoch, nonce: *nonce, members: self.members.clone() }
    }

    /// The roster made from its message.
    pub(super) fn received(
        epoch: u64,
        nonce: &[u8; TAG_LEN],
        mut members: Vec<Member>,
        job: &str,
        key: &Key,
    ) -> Self {
        (0..).zip(&mut members).for_each(|(rank, member)| member.rank = rank);
        Self { members, epoch, job: job.to_owned(), session_secret: secret(job, key, nonce) }
    }
}

fn secret(job: &str, key: &Key, nonce: &[u8; TAG_LEN]) -> Key {
    key.derive("shouter session v1", &[job.as_bytes(), nonce])
}

#[cfg(test)]
mod tests;
