//! The layout of a local job: host, links and cores of each rank.
//!
//! Everything here is a pure function of the command line and of the machine's list of cores, so that a test can
//! examine a job of 32 hosts without starting one.
//!
//! Ranks fill hosts in blocks: on hosts of 3 and 2 ranks, ranks 0, 1, 2 are on host 0 and ranks 3, 4 on host 1. Every
//! pair of hosts has its own link. The host with the lower number is the link's server (vhost, or memif's server side)
//! and the other one its client. Every link is a network of its own (a /30: two stations), so that an address
//! identifies its port; both ends name the other as this port's peer, so a route is never guessed.

use std::net::Ipv4Addr;
use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;

/// The largest number of emulated hosts: a host of a full mesh needs a DPDK port to each of the others, and a process
/// has 32 (`RTE_MAX_ETHPORTS`).
pub(super) const MAX_HOSTS: u32 = 32;

/// The largest number of ranks of a job on one machine.
pub(super) const MAX_RANKS: u32 = 4096;

/// The driver pair that joins two emulated hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Link {
    /// vhost-user on one side, virtio-user on the other
    Virtio,
    /// memif on both
    Memif,
}

/// One port of an emulated host, in the spelling of the configuration's key `ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) address: String,
    pub(super) peers: Vec<String>,
    pub(super) mtu: u16,
}

/// The place of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) rank: u32,
    pub(super) host: u32,
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
}

/// The places of all ranks, which fill hosts of `locals` ranks in blocks.
pub(super) fn placements(locals: &[u32]) -> Vec<Placement> {
    let mut placements = Vec::new();
    for (host, &local_size) in (0..).zip(locals) {
        for local_rank in 0..local_size {
            placements.push(Placement { rank: placements.len() as u32, host, local_rank, local_size });
        }
    }
    placements
}

/// Leading bits that the two stations of a link share.
const LINK_PREFIX: u32 = 30;

/// The address of host `of` on its link to host `to`: the links take 10.77.0.0/30, 10.77.0.4/30 and so on, in the order
/// 0-1, 0-2, 1-2, 0-3 ..., and the host with the lower number is the first station of its network.
fn address(of: u32, to: u32) -> Ipv4Addr {
    let (low, high) = (of.min(to), of.max(to));
    let link = high * high.saturating_sub(1) / 2 + low;
    let station = if of < to { 1 } else { 2 };
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 0, 0)) + (link << (32 - LINK_PREFIX)) + station)
}

/// The ports of one host of a full mesh, in the order of the peer hosts.
pub(super) fn ports(dir: &Path, link: Link, hosts: u32, host: u32, mtu: u16) -> Vec<Port> {
    let toward = |peer: u32| {
        let socket = dir.join(socket_name(host.min(peer), host.max(peer)));
        let serves = host < peer;
        let kind = match (link, serves) {
            (Link::Virtio, true) => "vhost",
            (Link::Virtio, false) => "virtio",
            (Link::Memif, true) => "memif-server",
            (Link::Memif, false) => "memif-client",
        };
        Port {
            device: format!("{kind}:{}", socket.display()),
            address: format!("{}/{LINK_PREFIX}", address(host, peer)),
            peers: vec![address(peer, host).to_string()],
            mtu,
        }
    };
    (0..hosts).filter(|&peer| peer != host).map(toward).collect()
}

/// The file name of the socket that joins two hosts.
fn socket_name(low: u32, high: u32) -> String {
    format!("{low}-{high}.sock")
}

/// The longest socket path that a job of `hosts` hosts makes under `dir`, in bytes.
pub(super) fn longest_socket_path(dir: &Path, hosts: u32) -> usize {
    let last = hosts.saturating_sub(1);
    dir.join(socket_name(last.saturating_sub(1), last)).as_os_str().len()
}

/// One core for each rank, in order over `cores`; `None` if there are more ranks than cores: two pinned pollers on one
/// core would starve each other.
pub(super) fn cores_of_ranks(ranks: u32, cores: &[usize]) -> Option<Vec<usize>> {
    (ranks as usize <= cores.len()).then(|| cores[..ranks as usize].to_vec())
}

#[cfg(test)]
mod tests;
