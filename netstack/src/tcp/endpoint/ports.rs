//! Local ports of connections that are opened from here (RFC 6056).

use core::net::SocketAddr;
use core::ops::RangeInclusive;

use super::secret::{Purpose, Secret};

/// Ports to choose from: RFC 6056 section 3.2 recommends as many as possible; those below are left to servers.
pub(super) const RANGE: RangeInclusive<u16> = 16_384..=65_535;

/// Counters that destinations share by their hash, a power of two.
const COUNTERS: usize = 64;

/// Chooses ports by the double-hash algorithm: unpredictable from outside, and as far apart in time as can be towards
/// one destination.
#[derive(Debug)]
pub(super) struct Ports {
    counters: [u16; COUNTERS],
}

impl Ports {
    /// A placeholder while the real ones are in use.
    pub(super) fn none() -> Self {
        Self { counters: [0; COUNTERS] }
    }

    pub(super) fn new(secret: &Secret) -> Self {
        Self { counters: core::array::from_fn(|at| secret.seed(1000 + at as u64) as u16) }
    }

    /// The first port that `suits`, for a connection from `local` (whose port does not count) to `remote`; `None` if
    /// none does.
    pub(super) fn choose(
        &mut self,
        secret: &Secret,
        local: SocketAddr,
        remote: SocketAddr,
        mut suits: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let local = SocketAddr::new(local.ip(), 0);
        let count = u64::from(*RANGE.end() - *RANGE.start()) + 1;
        //= RFC 6056 section 3.3.4: an offset by one hash of the destination, a counter by another.
        let offset = secret.value(Purpose::PortOffset, &local, &remote, 0);
        let index = secret.value(Purpose::PortCounter, &local, &remote, 0) as usize % COUNTERS;
        let counter = self.counters.get_mut(index)?;
        for _ in RANGE {
            let port = RANGE.start() + (offset.wrapping_add(u64::from(*counter)) % count) as u16;
            *counter = counter.wrapping_add(1);
            if suits(port) {
                return Some(port);
            }
        }
        None
    }
}
