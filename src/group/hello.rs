//! The hello: a rank's facts about itself, sent on arrival.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::system::uname;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shouter_reducer::plan::field_text;

use super::error::JoinError;
use crate::key::TAG_LEN;
use crate::wire;

/// The largest hello, in bytes.
pub const MAX_HELLO: usize = 64 * 1024;

/// The entry of a plan that says whether sessions are sealed.
pub(crate) const SEALS: &str = "rud_seal";

/// The most entries of a plan.
const MAX_PLAN: usize = 1024;

/// A rank's own view of the job, and its channels' data for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// This rank.
    pub rank: u32,
    /// The number of ranks, by this rank's configuration.
    pub size: u32,
    /// This rank's number on its host.
    pub local_rank: u32,
    /// The number of ranks on its host.
    pub local_size: u32,
    /// The host's number, where it was given.
    pub node: Option<u32>,
    /// Values that could differ between ranks and must not, by name: schedules, slices, channels.
    #[serde(deserialize_with = "wire::at_most::<MAX_PLAN, _, _>")]
    pub plan: Vec<(String, u64)>,
    /// The tensor table, where it is known already; opaque here.
    #[serde(with = "serde_bytes")]
    pub table: Vec<u8>,
    /// Data of this rank's channels for the others, such as addresses; opaque here.
    #[serde(with = "serde_bytes")]
    pub blob: Vec<u8>,
    /// The TCP port on which this rank would pass the roster on.
    pub relay: Option<u16>,
    machine: [u8; TAG_LEN],
}

impl Hello {
    /// A hello of a rank in its place, without any blob.
    ///
    /// # Errors
    /// [`JoinError::System`]: the machine does not say which one it is.
    pub fn new(rank: u32, size: u32, local_rank: u32, local_size: u32) -> Result<Self, JoinError> {
        Ok(Self {
            rank,
            size,
            local_rank,
            local_size,
            node: None,
            plan: Vec::new(),
            table: Vec::new(),
            blob: Vec::new(),
            relay: None,
            machine: machine_tag().map_err(|why| JoinError::System {
                what: "reading what tells this host from others (/proc/sys/kernel, /proc/self/ns/net)",
                why: why.to_string(),
            })?,
        })
    }

    /// An opaque tag of the machine and network namespace that the rank runs in.
    pub(super) fn machine(&self) -> &[u8; TAG_LEN] {
        &self.machine
    }

    /// The first thing on which this plan and another differ: its name, and both values.
    pub(super) fn differing(&self, other: &Self) -> Option<(String, String, String)> {
        let view = |hello: &Self, key: &str| {
            let found = hello.plan.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
            // As the configuration has it.
            match (key, found) {
                (SEALS, Some(0)) => "off".to_owned(),
                (SEALS, Some(_)) => "on".to_owned(),
                _ => field_text(key, found),
            }
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
}

/// This machine and network namespace, as an opaque tag: ranks that share memory must agree on it.
///
/// # Errors
/// The system's: no two hosts may seem to be one because neither could say which it is.
fn machine_tag() -> io::Result<[u8; TAG_LEN]> {
    let mut digest = Sha256::new_with_prefix(b"shouter machine v1\0");
    // Where the boot id is hidden, hosts are distinguished by their names.
    match fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(boot_id) => digest.update(boot_id),
        Err(_) => digest.update(uname().nodename().to_bytes()),
    }
    let namespace = match fs::metadata("/proc/self/ns/net") {
        Ok(file) => file.ino(),
        // A kernel without namespaces.
        Err(why) if why.kind() == io::ErrorKind::NotFound => 0,
        Err(why) => return Err(why),
    };
    digest.update(namespace.to_be_bytes());
    Ok(digest.finalize().into())
}
