//! The hosts that connections or sessions lead to: their neighbours are needed.

use core::net::IpAddr;
use std::collections::BTreeMap;

/// Hosts, and how often each is counted.
#[derive(Debug, Default)]
pub(crate) struct Peers(BTreeMap<IpAddr, u32>);

impl Peers {
    /// One more leads to `host`.
    pub(crate) fn add(&mut self, host: IpAddr) {
        *self.0.entry(host).or_default() += 1;
    }

    /// One of those that were added is over.
    pub(crate) fn remove(&mut self, host: IpAddr) {
        if let Some(count) = self.0.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&host);
            }
        }
    }

    /// Whether one leads to `host`.
    pub(crate) fn has(&self, host: IpAddr) -> bool {
        self.0.contains_key(&host)
    }
}
