//! The messages of a schedule, by node and round.

use super::{ScheduleError, StepId};
use crate::grid::{Grid, Rank};
use core::cmp::Reverse;

/// No step.
const NONE: u32 = u32::MAX;

/// The messages to or from one node: a range of the flat table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rounds {
    node: u32,
    first: u32,
    len: u32,
}

/// The steps that send, or those that receive, by peer and round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageTable {
    /// The places of rounds among the steps, ordered by node: only of nodes that there are messages with, for a rank of a tree has few peers
    /// among many nodes.
    nodes: Vec<Rounds>,
    steps: Vec<u32>,
}

impl MessageTable {
    /// The table of these messages: their steps, peers and rounds.
    pub(super) fn new(
        grid: &Grid,
        messages: impl Iterator<Item = (StepId, Rank, u32)> + Clone,
        too_large: impl Fn() -> ScheduleError,
    ) -> Result<Self, ScheduleError> {
        let of = |(_, peer, round)| Rounds { node: grid.node_of(peer), first: 0, len: round + 1 };
        let mut nodes: Vec<Rounds> = messages.clone().map(of).collect();
        nodes.sort_unstable_by_key(|rounds| (rounds.node, Reverse(rounds.len)));
        // The longest of each node stays.
        nodes.dedup_by_key(|rounds| rounds.node);
        nodes.shrink_to_fit();
        let mut total = 0u32;
        for rounds in &mut nodes {
            rounds.first = total;
            total = total.checked_add(rounds.len).ok_or_else(&too_large)?;
        }
        let mut steps = vec![NONE; total as usize];
        let mut table = Self { nodes, steps: Vec::new() };
        for (step, peer, round) in messages {
            if let Some(rounds) = table.rounds(grid.node_of(peer)) {
                steps[(rounds.first + round) as usize] = step.0;
            }
        }
        table.steps = steps;
        Ok(table)
    }

    #[inline]
    fn rounds(&self, node: u32) -> Option<Rounds> {
        let place = self.nodes.binary_search_by_key(&node, |rounds| rounds.node).ok()?;
        self.nodes.get(place).copied()
    }

    /// The step of this message.
    #[inline]
    pub(super) fn step(&self, grid: &Grid, peer: Rank, round: u32) -> Option<StepId> {
        if !grid.is_leader(peer) {
            return None;
        }
        let rounds = self.rounds(grid.node_of(peer))?;
        if round >= rounds.len {
            return None;
        }
        let step = *self.steps.get((rounds.first + round) as usize)?;
        (step != NONE).then_some(StepId(step))
    }

    /// The nodes that there are messages with.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().map(|rounds| rounds.node)
    }
}

#[cfg(test)]
mod tests;
