//! The measurements between the ranks of a job, pair by pair, in rounds in which every rank has at most one partner.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shouter::{Error, Exchange, Group};

use crate::bench::report::{median, percentiles_us};
use crate::failure::CommandError;

/// Bytes of the messages whose latency is measured.
pub(super) const LATENCY_BYTES: usize = size_of::<u64>();
/// Messages in flight at once where bandwidth is measured.
const WINDOW: usize = 2;
/// The shares of a pair's time: for bandwidth, in each of two directions; for latency; and for clocks.
const BANDWIDTH_SHARE: f64 = 0.375;
const LATENCY_SHARE: f64 = 0.2;
const CLOCK_SHARE: f64 = 0.05;
/// First round trips that warm up; at most half of them.
const WARM_UP: usize = 50;
/// The largest number of figures per pair, which bounds memory: measuring ends early at this number.
const MOST: usize = 1 << 20;

/// The tags of the messages.
const PING: u32 = 1;
const CONTROL: u32 = 2;
const DATA: u32 = 3;

/// The values by which a rank announces another message, or the end.
const MORE: u64 = 0;
const LAST: u64 = 1;

/// One rank's measurements with another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) peer: u32,
    /// Median of half of a round trip, in microseconds; the lower rank of a pair has it.
    pub(super) latency_us: Option<f64>,
    /// The bandwidth from this rank to the peer, in 1e9 bytes a second.
    pub(super) gbytes: f64,
    /// The offset of the peer's clock; only rank 0 has it.
    pub(super) clock: Option<Offset>,
}

/// The offset of a rank's wall clock from rank 0's, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Offset {
    /// Positive if the rank's clock is ahead.
    pub(super) offset_us: f64,
    /// Half of the round trip that measured it.
    pub(super) uncertainty_us: f64,
}

/// The rounds in which every rank of `size` meets every other one once.
pub(super) fn rounds(size: u32) -> u32 {
    match size {
        0 | 1 => 0,
        _ => size.next_multiple_of(2) - 1,
    }
}

/// The partner of `rank` in this round; `None` where the number of ranks is odd and this rank waits in this round. The
/// circle method: one place is fixed, and the ranks of the others rotate.
pub(super) fn partner(rank: u32, round: u32, size: u32) -> Option<u32> {
    let circle = u64::from(rounds(size));
    let (own, round) = (u64::from(rank), u64::from(round));
    let other = if own == circle {
        // The rank in the fixed place meets the rank that would meet itself: twice that rank's number is the round's.
        // `circle` is odd, so half of `circle` + 1 is the inverse of 2.
        round * circle.div_ceil(2) % circle
    } else {
        match (round + circle - own) % circle {
            other if other == own => circle,
            other => other,
        }
    };
    u32::try_from(other).ok().filter(|other| *other < size)
}

/// The parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The time for each pair, in seconds.
    pub(super) seconds: f64,
    /// Bytes of the messages whose bandwidth is measured.
    pub(super) bytes: usize,
}

/// Measures this rank's pairs; calls `begun` for each round, with the number of rounds.
pub(super) fn run(
    group: &Group,
    plan: Plan,
    mut begun: impl FnMut(u32, u32),
) -> Result<Vec<Seen>, CommandError> {
    let (rank, rounds) = (group.rank(), rounds(group.size()));
    let share = |share: f64| Duration::from_secs_f64(plan.seconds * share);
    let bytes = if rounds > 0 { plan.bytes } else { 0 };
    // Written before any clock runs, so that no page fault is measured.
    let mut own = vec![1u8; bytes];
    let mut theirs = [(); WINDOW].map(|()| vec![1u8; bytes]);
    let mut all = vec![];
    for round in 0..rounds {
        begun(round, rounds);
        let peer = partner(rank, round, group.size());
        let mut seen = peer.map(|peer| Seen { peer, latency_us: None, gbytes: 0.0, clock: None });
        group.barrier()?;
        if let Some(seen) = &mut seen {
            seen.latency_us = latency(group, seen.peer, share(LATENCY_SHARE))?;
            seen.clock = match (rank, seen.peer) {
                (0, peer) => Some(offset(group, peer, share(CLOCK_SHARE))?),
                (_, 0) => tell_clock(group).map(|()| None)?,
                _ => None,
            };
        }
        for lower_sends in [true, false] {
            // All pairs send at the same time, after all have measured their latencies.
            group.barrier()?;
            match &mut seen {
                Some(seen) if (rank < seen.peer) == lower_sends => {
                    seen.gbytes = send(group, seen.peer, share(BANDWIDTH_SHARE), &mut own)?;
                }
                Some(seen) => receive(group, seen.peer, &mut theirs)?,
                None => {}
            }
        }
        all.extend(seen);
    }
    Ok(all)
}

/// Sends messages there and back; the lower rank takes the time.
fn latency(group: &Group, peer: u32, limit: Duration) -> Result<Option<f64>, Error> {
    let mut word = [MORE];
    if group.rank() > peer {
        while word[0] != LAST {
            group.receive(&mut word, peer, PING)?;
            group.send(&word, peer, PING)?;
        }
        return Ok(None);
    }
    let mut halves = vec![];
    let begun = Instant::now();
    while word[0] != LAST {
        let is_last = begun.elapsed() >= limit || halves.len() + 1 >= MOST;
        word[0] = if is_last { LAST } else { MORE };
        let sent = Instant::now();
        group.send(&word, peer, PING)?;
        group.receive(&mut word, peer, PING)?;
        halves.push(sent.elapsed().as_nanos() as u64 / 2);
    }
    let skipped = WARM_UP.min(halves.len() / 2);
    Ok(Some(percentiles_us(&mut halves[skipped..]).0))
}

/// This host's wall clock, in nanoseconds since 1970.
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The offset of the peer's wall clock (RFC 5905, section 8), from the round trip with the least delay.
fn offset(group: &Group, peer: u32, limit: Duration) -> Result<Offset, Error> {
    let begun = Instant::now();
    let mut best: Option<(i64, i64)> = None;
    for trips in 1.. {
        let is_last = begun.elapsed() >= limit || trips >= MOST;
        let mut told = [0u64; 2];
        let t1 = wall();
        group.send(&[if is_last { LAST } else { MORE }], peer, CONTROL)?;
        group.receive(&mut told, peer, CONTROL)?;
        let t4 = wall();
        let [t2, t3] = told;
        let (delay, twice_the_offset) = trip([t1, t2, t3, t4]);
        if best.is_none_or(|(least, _)| delay < least) {
            best = Some((delay, twice_the_offset));
        }
        if is_last {
            break;
        }
    }
    let (delay, twice_the_offset) = best.unwrap_or_default();
    Ok(Offset { offset_us: twice_the_offset as f64 / 2e3, uncertainty_us: delay.max(0) as f64 / 2e3 })
}

/// Delay of a round trip, and twice the clock offset, in nanoseconds. The four times: request sent, request received,
/// answer sent, answer received.
fn trip([t1, t2, t3, t4]: [u64; 4]) -> (i64, i64) {
    let less = |a: u64, b: u64| a.wrapping_sub(b) as i64;
    (less(t4, t1).wrapping_sub(less(t3, t2)), less(t2, t1).wrapping_add(less(t3, t4)))
}

/// Answers rank 0's requests with this rank's clock.
fn tell_clock(group: &Group) -> Result<(), Error> {
    let mut word = [MORE];
    while word[0] != LAST {
        group.receive(&mut word, 0, CONTROL)?;
        let received = wall();
        group.send(&[received, wall()], 0, CONTROL)?;
    }
    Ok(())
}

/// Sends windows of messages that the peer confirms; returns their median bandwidth, in 1e9 bytes a second.
fn send(group: &Group, peer: u32, limit: Duration, own: &mut [u8]) -> Result<f64, Error> {
    let mut rates = vec![];
    let begun = Instant::now();
    while rates.is_empty() || (begun.elapsed() < limit && rates.len() < MOST) {
        mark(own, rates.len());
        group.send(&[MORE], peer, CONTROL)?;
        let sent = Instant::now();
        let mut messages = [(); WINDOW].map(|()| Exchange::send(own, peer, DATA));
        group.batch(&mut messages).into_iter().collect::<Result<Vec<_>, _>>()?;
        group.receive(&mut [0u64], peer, CONTROL)?;
        rates.push((WINDOW * own.len()) as f64 / sent.elapsed().as_secs_f64().max(1e-9) / 1e9);
    }
    group.send(&[LAST], peer, CONTROL)?;
    if rates.len() > 1 {
        // The first window warms up.
        rates.remove(0);
    }
    Ok(median(&mut rates))
}

/// Receives and confirms the windows of [`send`], and checks the ends of each message.
fn receive(group: &Group, peer: u32, theirs: &mut [Vec<u8>; WINDOW]) -> Result<(), CommandError> {
    for window in 0.. {
        let mut word = [MORE];
        group.receive(&mut word, peer, CONTROL)?;
        if word[0] == LAST {
            break;
        }
        let mut messages = theirs.each_mut().map(|into| Exchange::receive(into, peer, DATA));
        let ended = group.batch(&mut messages).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut due = [0u8; 2];
        mark(&mut due, window);
        for (status, came) in ended.iter().zip(&*theirs) {
            let ends = [came.first().copied(), came.last().copied()];
            if status.count != came.len() as u64 || ends != due.map(Some) {
                return Err(CommandError::Failed(format!(
                    "a message of {} bytes from rank {peer} came wrong: {} bytes, with {ends:?} at its ends where {due:?} was due",
                    came.len(),
                    status.count
                )));
            }
        }
        group.send(&[MORE], peer, CONTROL)?;
    }
    Ok(())
}

/// Writes the first and the last byte of this window's messages.
fn mark(bytes: &mut [u8], window: usize) {
    if let Some(first) = bytes.first_mut() {
        *first = window as u8;
    }
    if let Some(last) = bytes.last_mut() {
        *last = window as u8 ^ 0x5a;
    }
}

#[cfg(test)]
mod tests;
