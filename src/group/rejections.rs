//! Connections that were refused, each logged once.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// How many different addresses are logged and remembered; beyond it they are only counted.
const REMEMBERED: usize = 64;

/// Connections that were refused during a join.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    seen: HashMap<(IpAddr, &'static str), u32>,
    total: u64,
    last: Option<(SocketAddr, &'static str)>,
}

impl Rejections {
    /// Counts a refusal, and logs the first one of an address for a reason.
    pub(super) fn refuse(&mut self, address: SocketAddr, why: &'static str) {
        self.total += 1;
        self.last = Some((address, why));
        let key = (address.ip(), why);
        if let Some(count) = self.seen.get_mut(&key) {
            *count += 1;
        } else if self.seen.len() < REMEMBERED {
            self.seen.insert(key, 1);
            tracing::warn!(%address, why, "refused a connection to the rendezvous; the job goes on");
        }
    }

    /// The refused connections, as the end of a message; empty when there were none.
    pub(super) fn summary(&self) -> String {
        match self.last {
            None => String::new(),
            Some((address, why)) => {
                format!(" (connections refused meanwhile: {}, the last from {address}: {why})", self.total)
            }
        }
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.seen.len(), self.total)
    }
}

#[cfg(test)]
mod tests;
