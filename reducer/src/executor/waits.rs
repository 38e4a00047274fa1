//! Steps that wait for flags of the node's ranks. A poll looks at the flags of each lane rather than at each operation: those of one lane
//! wait for it to be free one behind the other, and only the first of them can be next.

use super::ring::Ring;
use crate::transport::{LaneFlag, NodeMemory};
use std::collections::VecDeque;

/// The local ranks whose flags a step waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// The flag of one local rank.
    Rank(u32),
    /// The flags of all local ranks but this one.
    Others,
    /// The flags of all local ranks.
    All,
}

/// The local ranks of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Locals {
    /// How many there are.
    pub(super) count: u32,
    /// This rank's number among them.
    pub(super) own: u32,
}

/// Flags of a lane that are to reach a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneWait {
    pub(super) lane: u32,
    pub(super) flag: LaneFlag,
    pub(super) number: u64,
    pub(super) of: Awaited,
}

impl LaneWait {
    /// Whether they have reached it.
    #[inline]
    pub(super) fn is_reached<N: NodeMemory>(&self, node: &N, locals: Locals) -> bool {
        let has_reached = |local| node.observe(local, self.lane, self.flag) >= self.number;
        match self.of {
            Awaited::Rank(local) => has_reached(local),
            Awaited::Others => (0..locals.count).all(|local| local == locals.own || has_reached(local)),
            Awaited::All => (0..locals.count).all(has_reached),
        }
    }
}

/// A step that is ready when its wait is over.
#[derive(Debug)]
struct Waiting {
    seq: u64,
    step: u32,
    wait: LaneWait,
}

/// The steps that wait for the flags of one lane.
#[derive(Debug, Default)]
struct Lane {
    /// This rank's own number of what it has consumed.
    consumed: u64,
    /// For all ranks to have consumed what was there, the lowest number first.
    to_be_free: VecDeque<Waiting>,
    /// For other flags: only operations that have the lane.
    others: Vec<Waiting>,
}

/// The steps that wait for flags.
#[derive(Debug, Default)]
pub(super) struct LaneWaits {
    lanes: Vec<Lane>,
}

impl LaneWaits {
    /// There are so many lanes, for so many operations at once.
    pub(super) fn attach(&mut self, lanes: u32, operations: usize) {
        let lane = || Lane {
            to_be_free: VecDeque::with_capacity(operations),
            others: Vec::with_capacity(operations),
            ..Lane::default()
        };
        self.lanes = (0..lanes).map(|_| lane()).collect();
    }

    /// A step of an operation waits, and is not ready until then; `false` if there is no such lane.
    pub(super) fn add(&mut self, seq: u64, step: u32, wait: LaneWait) -> bool {
        let Some(Lane { to_be_free, others, .. }) = self.lanes.get_mut(wait.lane as usize) else {
            return false;
        };
        let waiting = Waiting { seq, step, wait };
        match (wait.flag, wait.of) {
            (LaneFlag::Consumed, Awaited::All) => {
                let at = to_be_free.partition_point(|other| other.wait.number <= wait.number);
                to_be_free.insert(at, waiting);
            }
            _ => others.push(waiting),
        }
        true
    }

    /// This rank has consumed what was in a lane.
    #[inline]
    pub(super) fn consumed(&mut self, lane: u32, number: u64) {
        if let Some(lane) = self.lanes.get_mut(lane as usize) {
            lane.consumed = number;
        }
    }

    /// Makes the steps ready whose waits are over; whether there was one. Those of operations that have ended are forgotten then.
    #[inline]
    pub(super) fn wake<N: NodeMemory>(&mut self, ring: &mut Ring, node: &N, locals: Locals) -> bool {
        let mut any = false;
        let mut is_over = |Waiting { seq, step, wait }: &Waiting| {
            if !wait.is_reached(node, locals) {
                return false;
            }
            if ring.op(*seq).runs(*seq) {
                ring.edit(*seq, |op| op.wake(*step));
                any = true;
            }
            true
        };
        for Lane { consumed, to_be_free, others } in &mut self.lanes {
            // The numbers of all ranks only grow: a step that waits for a higher one waits for this one, too.
            while to_be_free.front().is_some_and(|first| first.wait.number <= *consumed && is_over(first)) {
                to_be_free.pop_front();
            }
            let mut at = 0;
            while let Some(waiting) = others.get(at) {
                if is_over(waiting) {
                    others.remove(at);
                } else {
                    at += 1;
                }
            }
        }
        any
    }
}
