//! Within rank 0's host: how long a flag takes from core to core, and how fast a core copies and folds. Two ranks take turns with a
//! chunk of a staged all-reduce; a rank that is alone on its host copies and folds by itself.

use std::ops::RangeInclusive;
use std::time::Duration;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::transport::NodeMemory;

use super::samples::{MEMORY_RATES, Samples, plausible, rate, steady};
use crate::channel::shm::{NodeSegment, Round, Task};
use crate::runtime::{Activity, Backoff, Clock, IdlePolicy, Instant};

/// For flags, and for bytes.
const FLAGS_TIME: Duration = Duration::from_millis(4);
const BYTES_TIME: Duration = Duration::from_millis(10);

/// Samples that are taken at most, and that are needed.
const FLAGS: usize = 32;
const FLAGS_NEEDED: usize = 8;
const CHUNKS: usize = 16;
const CHUNKS_NEEDED: usize = 4;

/// Rounds in a sample of flags: a clock takes as long to read as a tenth of one.
const ROUNDS: u64 = 8;

/// Nanoseconds that a flag may take from one core to another. It takes longer only where a rank has lost its core.
const FLAG: RangeInclusive<u64> = 5..=5_000;

/// Bytes of a chunk.
const CHUNK: usize = 256 << 10;

/// Bytes that a rank which is alone walks through in each of three places: more than a core's own caches hold.
const ALONE: usize = 8 << 20;

/// Looks for the other rank between two of the clock, and of what may have ended it.
const LOOKS: u32 = 64;

/// What was found.
pub(super) struct Within {
    /// Where there was another rank.
    pub(super) flag_ns: Option<u32>,
    pub(super) copy_mb_s: u32,
    pub(super) fold_mb_s: u32,
}

/// Measures on rank 0; `node` where its host has several ranks, of which the second [serves](serve).
///
/// # Errors
/// What was not found.
pub(super) fn measure(
    node: Option<&NodeSegment>,
    kernels: Kernels,
    idle: IdlePolicy,
    until: Instant,
) -> Result<Within, String> {
    let Some(node) = node else { return alone(kernels, until) };
    let mut caller = Caller { node, idle, number: 0, until };
    let (flags, bytes) = (caller.flags(), caller.bytes(kernels));
    caller.number += 1;
    node.publish_round(Round { number: caller.number, task: Task::End });
    let [copies, folds] = bytes;
    steady([("a flag's time", &flags), ("the time of copying", &copies), ("the time of folding", &folds)])?;
    let len = chunk(node) as u64;
    Ok(Within {
        flag_ns: Some(plausible(("a flag's time", "ns"), flags.low(FLAGS_NEEDED), FLAG)?),
        copy_mb_s: rate("the rate of copying", copies.low(CHUNKS_NEEDED), 2 * len, MEMORY_RATES)?,
        fold_mb_s: rate("the rate of folding", folds.low(CHUNKS_NEEDED), len, MEMORY_RATES)?,
    })
}

/// Bytes of a chunk of this host: whole numbers in each half.
fn chunk(node: &NodeSegment) -> usize {
    CHUNK.min(node.lane_bytes()) / 64 * 64
}

/// Rank 0's side.
struct Caller<'a> {
    node: &'a NodeSegment,
    idle: IdlePolicy,
    number: u64,
    until: Instant,
}

impl Caller<'_> {
    /// Publishes a round and waits until the other rank has done its part; `None` where it has not in time.
    fn round(&mut self, task: Task) -> Option<()> {
        self.number += 1;
        self.node.publish_round(Round { number: self.number, task });
        let (mut idle, mut looks) = (Backoff::new(self.idle), 0u32);
        while self.node.round_of(1).number != self.number {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && (Clock.now() >= self.until || self.node.is_gone(1)) {
                return None;
            }
            idle.wait(Activity::Idle, Some(self.until));
        }
        Some(())
    }

    /// Nanoseconds of a flag, one way.
    fn flags(&mut self) -> Samples {
        let mut samples = Samples::default();
        let until = self.until.min(Clock.now() + FLAGS_TIME);
        // The other rank may still be on its way.
        let mut met = self.round(Task::Answer);
        while met.is_some() && samples.len() < FLAGS && (Clock.now() < until || samples.len() < FLAGS_NEEDED)
        {
            let begin = Clock.now();
            met = (0..ROUNDS).try_for_each(|_| self.round(Task::Answer));
            samples.push_part(begin, 2 * ROUNDS);
        }
        samples
    }

    /// Nanoseconds of a chunk's two copies, and of the fold of half of it.
    fn bytes(&mut self, kernels: Kernels) -> [Samples; 2] {
        let [mut copies, mut folds] = [Samples::default(), Samples::default()];
        let until = self.until.min(Clock.now() + BYTES_TIME);
        let len = chunk(self.node);
        let (own, mut out) = (vec![1u8; len], vec![1u8; len]);
        while copies.len() < CHUNKS && Clock.now() < until {
            let Some(()) = self.round(Task::Fill) else { break };
            let times = [Clock.now(), {
                self.node.fill_stage(&own);
                Clock.now()
            }];
            self.node.fold_staged(&kernels, 0..len / 2);
            let folded = Clock.now();
            let Some(()) = self.round(Task::Fold) else { break };
            let begin = Clock.now();
            self.node.take_folded(&mut out);
            copies.push(times[1].saturating_since(times[0]) + Clock.now().saturating_since(begin));
            folds.push(folded.saturating_since(times[1]));
        }
        [copies, folds]
    }
}

/// The second rank's side, until rank 0 has published the last round, `is_over`, or the deadline has come.
pub(super) fn serve(
    node: &NodeSegment,
    kernels: Kernels,
    idle: IdlePolicy,
    deadline: Instant,
    is_over: impl Fn() -> bool,
) {
    let len = chunk(node);
    let own = vec![1u8; len];
    let mut done = 0;
    loop {
        let (mut waiting, mut looks) = (Backoff::new(idle), 0u32);
        let round = loop {
            let round = node.round_of(0);
            if round.number > done {
                break round;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && (Clock.now() >= deadline || is_over()) {
                return;
            }
            waiting.wait(Activity::Idle, Some(deadline));
        };
        match round.task {
            Task::Answer => {}
            Task::Fill => drop(node.fill_stage(&own)),
            Task::Fold => drop(node.fold_staged(&kernels, len / 2..len)),
            Task::End => return,
        }
        done = round.number;
        node.publish_round(round);
    }
}

/// Copies and folds in this rank's own memory.
fn alone(kernels: Kernels, until: Instant) -> Result<Within, String> {
    let [mut copies, mut folds] = [Samples::default(), Samples::default()];
    // Written once, so that all of it is memory.
    let (first, second, mut out) = (vec![1u8; ALONE], vec![1u8; ALONE], vec![1u8; ALONE]);
    let until = until.min(Clock.now() + BYTES_TIME);
    let mut at = (0..ALONE / CHUNK).map(|number| number * CHUNK..(number + 1) * CHUNK).cycle();
    while copies.len() < 4 * CHUNKS && Clock.now() < until {
        let Some(part) = at.next() else { break };
        let begin = Clock.now();
        out[part.clone()].copy_from_slice(&first[part.clone()]);
        let copied = Clock.now();
        let sources = [&first[part.clone()], &second[part.clone()]];
        kernels.fold(DType::F32, ReduceOp::Sum, &mut out[part], &sources);
        copies.push(copied.saturating_since(begin));
        folds.push(Clock.now().saturating_since(copied));
    }
    std::hint::black_box(&out);
    steady([("the time of copying", &copies), ("the time of folding", &folds)])?;
    Ok(Within {
        flag_ns: None,
        copy_mb_s: rate("the rate of copying", copies.low(CHUNKS_NEEDED), CHUNK as u64, MEMORY_RATES)?,
        fold_mb_s: rate("the rate of folding", folds.low(CHUNKS_NEEDED), 2 * CHUNK as u64, MEMORY_RATES)?,
    })
}
