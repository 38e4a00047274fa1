//! What a rank says about itself when it arrives.

use std::fs;
use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};

use super::codec::{Malformed, Reader, Writer};
use crate::key::TAG_LEN;

/// The largest hello, in bytes.
pub const MAX_HELLO: usize = 64 * 1024;

/// On the wire, a node that was not given.
const NO_NODE: u32 = u32::MAX;

/// A rank's own view of the job, and what its channels want the others to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// This rank.
    pub rank: u32,
    /// The number of ranks, as this rank was told.
    pub size: u32,
    /// This rank's number on its host.
    pub local_rank: u32,
    /// The number of ranks on its host.
    pub local_size: u32,
    /// The host's number, where it was given.
    pub node: Option<u32>,
    /// What could differ between ranks and must not, by name: schedules, slices, channels.
    pub plan: Vec<(String, u64)>,
    /// The tensor table, where it is known already; opaque here.
    pub table: Vec<u8>,
    /// What the channels of this rank want the others to know, such as addresses; opaque here.
    pub blob: Vec<u8>,
    machine: [u8; TAG_LEN],
}

impl Hello {
    /// A hello of a rank in its place, with nothing to tell beyond it.
    pub fn new(rank: u32, size: u32, local_rank: u32, local_size: u32) -> Self {
        Self {
            rank,
            size,
            local_rank,
            local_size,
            node: None,
            plan: Vec::new(),
            table: Vec::new(),
            blob: Vec::new(),
            machine: machine_tag(),
        }
    }

    /// An opaque tag of the machine and network namespace that the rank runs in.
    pub(super) fn machine(&self) -> &[u8; TAG_LEN] {
        &self.machine
    }

    /// The first thing on which this plan and another differ: its name, and both values.
    pub(super) fn differing(&self, other: &Self) -> Option<(String, String, String)> {
        let view = |hello: &Self, key: &str| {
            let found = hello.plan.iter().find(|(name, _)| name == key);
            found.map_or_else(|| "none".to_owned(), |(_, value)| value.to_string())
        };
        let keys = other.plan.iter().chain(&self.plan).map(|(key, _)| key);
        let mut views = keys.map(|key| (key.clone(), view(self, key), view(other, key)));
        views.find(|(_, ours, theirs)| ours != theirs)
    }

    #[cfg(test)]
    pub(super) fn on_machine(mut self, machine: u8) -> Self {
        self.machine = [machine; TAG_LEN];
        self
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.rank).u32(self.size).u32(self.local_rank).u32(self.local_size);
        writer.u32(self.node.unwrap_or(NO_NODE)).array(&self.machine).u32(self.plan.len() as u32);
        for (name, value) in &self.plan {
            writer.bytes(name.as_bytes()).u64(*value);
        }
        writer.bytes(&self.table).bytes(&self.blob);
        writer.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let hello = Self {
            rank: reader.u32()?,
            size: reader.u32()?,
            local_rank: reader.u32()?,
            local_size: reader.u32()?,
            node: Some(reader.u32()?).filter(|node| *node != NO_NODE),
            machine: reader.array()?,
            plan: (0..reader.count(12)?)
                .map(|_| Ok((reader.text()?.to_owned(), reader.u64()?)))
                .collect::<Result<_, _>>()?,
            table: reader.bytes()?.to_vec(),
            blob: reader.bytes()?.to_vec(),
        };
        reader.end()?;
        Ok(hello)
    }
}

/// This machine and network namespace, as an opaque tag: ranks that share memory must agree on it.
fn machine_tag() -> [u8; TAG_LEN] {
    let mut digest = Sha256::new_with_prefix(b"shouter machine v1\0");
    digest.update(fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    let namespace = fs::metadata("/proc/self/ns/net").map(|m| m.ino()).unwrap_or_default();
    digest.update(namespace.to_be_bytes());
    digest.finalize().into()
}
