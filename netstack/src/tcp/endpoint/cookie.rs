//! SYN cookies: a SYN flood costs no memory, because the state of a SYN travels in the SYN-ACK's sequence number and
//! timestamp and comes back with the ACK (RFC 4987 section 3.6).
//!
//! ```text
//!   sequence number   | 2 bits: period | 3 bits: MSS class | 27 bits: keyed hash |   exclusive-or a keyed mask
//!   timestamp value   | clock, coarser by 64 ms | ECN | SACK | 4 bits: window scale, 15: none |
//! ```
//!
//! The losses: the MSS is rounded down to one of eight; without timestamps in the SYN there is no window scaling, no
//! SACK and no ECN (there is no room for them); data in the SYN and a user timeout option are not taken. A SYN-ACK is
//! sent once per SYN, as there is nothing to repeat it from.

use core::net::SocketAddr;

use super::super::connection::CookieOptions;
use super::secret::{Purpose, Secret};
use crate::time::Instant;
use crate::wire::tcp::{Header, SeqNumber};

#[cfg(test)]
mod tests;

/// How long a period is; a cookie is good in its own and the next.
const PERIOD_SECONDS: u64 = 64;

/// How long cookies may come back after the last was sent, in seconds.
pub(super) const LIFETIME_SECONDS: u64 = 2 * PERIOD_SECONDS;

/// The MSS classes: the least that must work, common tunnels, Ethernet, jumbo frames.
const MSS: [u16; 8] = [88, 536, 1220, 1360, 1400, 1440, 1460, 8940];

const HASH_BITS: u32 = 27;
const HASH_MASK: u32 = (1 << HASH_BITS) - 1;

/// The low bits of a timestamp that carry options.
const OPTION_BITS: u32 = 6;
const SCALE_NONE: u32 = 15;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

fn period(now: Instant) -> u64 {
    now.as_nanos() / 1_000_000_000 / PERIOD_SECONDS
}

fn mask(secret: &Secret, local: &SocketAddr, remote: &SocketAddr, peer: SeqNumber) -> u32 {
    secret.value(Purpose::CookieMask, local, remote, u64::from(peer.0)) as u32
}

fn hash(
    secret: &Secret,
    local: &SocketAddr,
    remote: &SocketAddr,
    peer: SeqNumber,
    period: u64,
    class: u32,
) -> u32 {
    // The period's number would need more than 29 bits after a thousand years.
    let more = u64::from(peer.0) << 32 | (period << 3 | u64::from(class)) & 0xffff_ffff;
    secret.value(Purpose::Cookie, local, remote, more) as u32 & HASH_MASK
}

/// The sequence number to answer a SYN with; `peer` is the SYN's.
pub(super) fn make(
    secret: &Secret,
    now: Instant,
    local: &SocketAddr,
    remote: &SocketAddr,
    peer: SeqNumber,
    mss: u16,
) -> SeqNumber {
    let class = MSS.iter().rposition(|least| *least <= mss).unwrap_or(0) as u32;
    let period = period(now);
    let cookie =
        (period as u32 & 3) << 30 | class << HASH_BITS | hash(secret, local, remote, peer, period, class);
    SeqNumber(cookie ^ mask(secret, local, remote, peer))
}

/// The timestamp to send with a cookie: never later than `clock`, with the options of `syn` in its low bits.
pub(super) fn timestamp(clock: u32, syn: &Header, sack: bool, ecn: bool, scaling: bool) -> u32 {
    let scale = syn.options.window_scale.filter(|_| scaling).map_or(SCALE_NONE, |s| u32::from(s.min(14)));
    let sack = if sack && syn.options.sack_permitted { SACK } else { 0 };
    let ecn = if ecn { ECN } else { 0 };
    let value = clock & !((1 << OPTION_BITS) - 1) | scale | sack | ecn;
    // It must not lie ahead of the clock: the next one would then go back.
    if (value.wrapping_sub(clock) as i32) > 0 { value.wrapping_sub(1 << OPTION_BITS) } else { value }
}

/// The SYN's options, if the ACK acknowledges a cookie of ours that is not too old.
pub(super) fn open(
    secret: &Secret,
    now: Instant,
    local: &SocketAddr,
    remote: &SocketAddr,
    ack: &Header,
) -> Option<CookieOptions> {
    let (cookie, peer) = (ack.ack - 1, ack.seq - 1);
    let plain = cookie.0 ^ mask(secret, local, remote, peer);
    let class = plain >> HASH_BITS & 7;
    let this = period(now);
    let made =
        (0..=1).filter_map(|age| this.checked_sub(age)).find(|period| *period as u32 & 3 == plain >> 30)?;
    if hash(secret, local, remote, peer, made, class) != plain & HASH_MASK {
        return None;
    }
    let mss = MSS.get(class as usize).copied()?;
    Some(match ack.options.timestamps {
        None => CookieOptions { mss, window_scale: None, sack: false, ecn: false, timestamps: false },
        Some(stamps) => {
            let scale = stamps.echo & 15;
            CookieOptions {
                mss,
                window_scale: if scale == SCALE_NONE { None } else { Some(scale as u8) },
                sack: stamps.echo & SACK != 0,
                ecn: stamps.echo & ECN != 0,
                timestamps: true,
            }
        }
    })
}
