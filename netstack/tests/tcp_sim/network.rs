//! Links as the tests of this folder have them.

use core::time::Duration;

use shouter_netstack::sim::LinkConfig;
use shouter_netstack::tcp::Path;

/// A clean link of 256 packets.
pub(crate) fn clean(bits_per_second: u64, delay: Duration) -> LinkConfig {
    LinkConfig { bits_per_second, delay, ..LinkConfig::default() }
}

/// Ethernet with a device that cuts super-segments of up to so many bytes.
pub(crate) fn ethernet(super_segment: u32) -> Path {
    Path { mtu: 1500, max_payload: super_segment, max_extents: 4, max_segments: u32::MAX }
}
