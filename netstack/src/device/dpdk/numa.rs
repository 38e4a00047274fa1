//! NUMA nodes of NICs, as sysfs has them before DPDK runs.

use std::fs;
use std::path::Path;

/// Nodes that DPDK knows: `RTE_MAX_NUMA_NODES` of its configuration.
const NODES: u32 = 32;

/// The nodes of these PCI devices, below the root `root`; none for a device of which the system knows none, as on a host of one node.
pub(super) fn nodes(root: &Path, pci: &[String]) -> Vec<u32> {
    let node = |address: &String| {
        let path = root.join("sys/bus/pci/devices").join(address.to_ascii_lowercase()).join("numa_node");
        // -1: not known.
        fs::read_to_string(path).ok()?.trim().parse().ok().filter(|node| *node < NODES)
    };
    pci.iter().filter_map(node).collect()
}

/// MiB of hugepages to take from each node, from node 0 on: `memory_mb` in all, dealt out by the NICs' `nodes`. `None` if these are not known, or one
/// of them has too few free pages, or none for this process.
pub(super) fn shares(root: &Path, memory_mb: u32, nodes: &[u32]) -> Option<Vec<u32>> {
    let most = usize::try_from(*nodes.iter().max()?).ok()?;
    let mut shares = vec![0; most + 1];
    for (node, share) in (0..).zip(&mut shares) {
        let nics = nodes.iter().filter(|of_nic| **of_nic == node).count() as u64;
        // In pages of 2 MiB.
        let megabytes = (u64::from(memory_mb) * nics).div_ceil(nodes.len() as u64).next_multiple_of(2);
        *share = u32::try_from(megabytes).ok()?;
        if nics > 0 && (megabytes / 2 > free_pages(root, node) || !is_allowed(root, node)) {
            return None;
        }
    }
    Some(shares)
}

/// Whether this process may use a node's memory, which a cpuset or `numactl --membind` can forbid.
fn is_allowed(root: &Path, node: u32) -> bool {
    let Ok(status) = fs::read_to_string(root.join("proc/self/status")) else { return true };
    let Some(list) = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")) else {
        return true;
    };
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>(), last.parse::<u32>());
        first.is_ok_and(|first| first <= node) && last.is_ok_and(|last| node <= last)
    })
}

/// Free hugepages of 2 MiB of a node.
fn free_pages(root: &Path, node: u32) -> u64 {
    let file = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages");
    fs::read_to_string(root.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
