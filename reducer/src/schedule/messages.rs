//! The messages of a schedule, by node and round.

use super::{ScheduleError, StepId};
use crate::grid::{Grid, Rank};

/// No step.
const NONE: u32 = u32::MAX;

/// The messages to or from one node: a range of the flat table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rounds {
    first: u32,
    len: u32,
}

/// The steps that send, or those that receive, by peer and round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageTable {
    /// By node: the place of its rounds among the steps.
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
        let mut nodes = vec![Rounds::default(); grid.nodes() as usize];
        let of = |rank: Rank| grid.node_of(rank) as usize;
        for (_, peer, round) in messages.clone() {
            let rounds = &mut nodes[of(peer)];
            rounds.len = rounds.len.max(round + 1);
        }
        let mut total = 0u32;
        for rounds in &mut nodes {
            rounds.first = total;
            total = total.checked_add(rounds.len).ok_or_else(&too_large)?;
        }
        let mut steps = vec![NONE; total as usize];
        for (step, peer, round) in messages {
            steps[(nodes[of(peer)].first + round) as usize] = step.0;
        }
        Ok(Self { nodes, steps })
    }

    /// The step of this message.
    #[inline]
    pub(super) fn step(&self, grid: &Grid, peer: Rank, round: u32) -> Option<StepId> {
        if !grid.is_leader(peer) {
            return None;
        }
        let rounds = self.nodes.get(grid.node_of(peer) as usize)?;
        if round >= rounds.len {
            return None;
        }
        let step = *self.steps.get((rounds.first + round) as usize)?;
        (step != NONE).then_some(StepId(step))
    }

    /// The nodes that there are messages with.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.nodes).filter(|(_, rounds)| rounds.len > 0).map(|(node, _)| node)
    }
}
