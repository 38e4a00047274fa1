//! Path MTUs: how long packets to a host may be, where that is less than the port's own MTU.
//!
//! The cache does not verify its input: a caller that receives a "packet too big" message (anyone can forge one) checks
//! first that it was sent, by a sequence number for instance. Entries expire after ten minutes, for the path may have
//! changed for the better.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::time::{Instant, earliest};
use crate::wire::ipv6;

/// Paths remembered; one more displaces the oldest.
const CAPACITY: usize = 1024;

//= RFC 1191 section 6.3: an estimate that was lowered is tried again after ten minutes, not after less than five.
//= RFC 8201 section 5.3: likewise.
const LIFETIME: Duration = Duration::from_secs(600);

/// The least MTU accepted for an IPv4 path. Links with less exist on paper only; packets so short are an attack.
pub const MIN_IPV4: u16 = 552;

//= RFC 1191 section 7.1: common MTUs, to guess from where a router does not say its own.
const PLATEAUS: [u16; 10] = [65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296];

#[derive(Clone, Copy, Debug)]
struct Entry {
    mtu: u16,
    until: Instant,
}

/// The paths whose MTU is known to be less than their port's.
#[derive(Debug, Default)]
pub struct PathMtus {
    entries: BTreeMap<IpAddr, Entry>,
    deadline: Option<Instant>,
}

impl PathMtus {
    /// No path is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// The largest packet to `remote`, if the path is known to be narrower than the port.
    pub fn get(&self, remote: IpAddr) -> Option<u16> {
        self.entries.get(&remote).map(|entry| entry.mtu)
    }

    /// Notes that packets to `remote` longer than `mtu` do not get through, where `current` ones were tried. True if
    /// that is news.
    pub fn reduce(&mut self, now: Instant, remote: IpAddr, mtu: u16, current: u16) -> bool {
        let floor = match remote {
            IpAddr::V4(_) => MIN_IPV4,
            //= RFC 8201 section 4: an MTU below the least that IPv6 requires is not believed.
            IpAddr::V6(_) => ipv6::MIN_MTU,
        };
        let mtu = mtu.max(floor);
        //= RFC 8201 section 4: a packet too big message never raises the estimate.
        if mtu >= current || self.get(remote).is_some_and(|known| mtu >= known) {
            return false;
        }
        if self.entries.len() >= CAPACITY && !self.entries.contains_key(&remote) {
            let oldest = self.entries.iter().map(|(&remote, entry)| (entry.until, remote)).min();
            if let Some((_, oldest)) = oldest {
                self.entries.remove(&oldest);
            }
        }
        let until = now + LIFETIME;
        self.entries.insert(remote, Entry { mtu, until });
        self.deadline = earliest(self.deadline, Some(until));
        true
    }

    /// When to call [`PathMtus::poll`] next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Removes expired entries. True if there were any.
    pub fn poll(&mut self, now: Instant) -> bool {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return false;
        }
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.until > now);
        self.deadline = self.entries.values().map(|entry| entry.until).min();
        self.entries.len() < before
    }
}

/// The MTU to try after a packet of `len` bytes was too big for a router that does not say its MTU.
pub fn plateau_below(len: u16) -> u16 {
    //= RFC 1191 section 5: the greatest plateau that is less than the length of the packet that was returned.
    PLATEAUS.into_iter().find(|&plateau| plateau < len).unwrap_or(68)
}

#[cfg(test)]
mod tests;
