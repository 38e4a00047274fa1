//! Controllers, one event at a time. Tests of their behaviour on a path are in tests/tcp_sim.

mod behaviour;

use core::time::Duration;

use super::{AckSample, Algorithm, Parameters};
use crate::time::Instant;

const ALL: [Algorithm; 4] = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp, Algorithm::Bbr];
const MS: Duration = Duration::from_millis(1);
const MSS: u64 = 1000;

fn parameters() -> Parameters {
    Parameters { mss: MSS as u32, initial_window: 10 }
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// An acknowledgement of `delivered` bytes at `ms` with a round-trip time of 10 ms, the window in use.
fn ack(ms: u64, delivered: u64, in_flight: u64) -> AckSample {
    AckSample {
        now: at(ms),
        acked: delivered,
        delivered,
        prior_in_flight: in_flight + delivered,
        in_flight,
        rtt: Some(10 * MS),
        srtt: Some(10 * MS),
        min_rtt: Some(10 * MS),
        rate: None,
        marked: 0,
        lost: 0,
        in_recovery: false,
        window_limited: true,
    }
}
