//! The algorithms by name, which collective each serves, and a bound for what it sends.

use super::{MESSAGE_COST, Problem, scan};
use crate::grid::Grid;
use crate::header::Collective;

coded_enum! {
    /// How the leaders exchange what a collective needs.
    ///
    /// The order in which contributions are folded is part of an algorithm. Direct, Hierarchical, Bruck, and the Binomial reduce have one
    /// order; RecursiveDoubling and HalvingDoubling have another; Ring, Chain and DoubleTree each have their own. The ones that fold partial
    /// sums round f16 and bf16 once for each of them.
    pub enum Algorithm {
        /// One round: every node sends each other one what that one needs, and each folds in rank order. For few nodes, or small tensors.
        Direct = 1, "direct";
        /// Blocks or partial sums go around a ring of all nodes. All-reduce, all-gather, reduce-scatter.
        Ring = 2, "ring";
        /// Reduce-scatter within the node, within the group of each level, across the groups of the last, and back. All-reduce and reduce of
        /// large tensors; and scans of those, which pass along all nodes.
        Hierarchical = 3, "hierarchical";
        /// Pairs of nodes exchange and fold all they have, at twice the distance in each round. All-reduce of small tensors.
        RecursiveDoubling = 4, "recursive_doubling";
        /// The same with half of what is left in each round, then back. All-reduce of large tensors.
        HalvingDoubling = 5, "halving_doubling";
        /// A tree of depth log2(nodes), in which the root sends to or receives from log2(nodes) others. Collectives with a root.
        Binomial = 6, "binomial";
        /// Nodes in a line, through which chunks follow one another. Broadcast and reduce of large tensors.
        Chain = 7, "chain";
        /// Two binary trees, each for half of a chunk; a node has children in one of them only. Broadcast and all-reduce of large tensors.
        DoubleTree = 8, "double_tree";
        /// Blocks are forwarded in log2(nodes) rounds, which reach twice as far each. Small all-gathers, all-to-alls and all-reduces.
        Bruck = 9, "bruck";
        /// One partner at a time, another one in each round. All-to-all.
        Pairwise = 10, "pairwise";
        /// In each of log2(nodes) rounds a node sends to one twice as far away, after it has received in the rounds before. Barrier.
        Dissemination = 11, "dissemination";
    }
}

impl Algorithm {
    /// Whether the algorithm serves a collective; where blocks may differ, only Direct does. [`build`](super::build) takes the collective's
    /// [general](Self::general) one in place of one that does not.
    pub fn applies_to(self, collective: Collective) -> bool {
        use Collective::*;
        match self {
            Self::Direct => true,
            Self::Ring => matches!(collective, AllReduce | AllGather | ReduceScatter),
            Self::Hierarchical => matches!(collective, AllReduce | Reduce | Scan | ExScan),
            Self::RecursiveDoubling | Self::HalvingDoubling => collective == AllReduce,
            Self::Binomial => matches!(collective, Broadcast | Reduce | Gather | Scatter),
            Self::Chain => matches!(collective, Broadcast | Reduce),
            Self::DoubleTree => matches!(collective, Broadcast | AllReduce),
            Self::Bruck => matches!(collective, AllReduce | AllGather | AllToAll),
            Self::Pairwise => collective == AllToAll,
            Self::Dissemination => collective == Barrier,
        }
    }

    /// Whether it serves a collective on a grid. Of blocks that they forward, Ring, Bruck and Binomial need as many from each host.
    pub fn serves(self, collective: Collective, grid: &Grid) -> bool {
        let forwards = matches!(self, Self::Ring | Self::Bruck | Self::Binomial) && collective.is_blocked();
        self.applies_to(collective) && (grid.is_even() || !forwards)
    }

    /// The algorithm that serves a collective at any size and on any grid.
    pub fn general(collective: Collective) -> Self {
        match collective {
            Collective::AllReduce | Collective::Reduce | Collective::Scan | Collective::ExScan => {
                Self::Hierarchical
            }
            Collective::Broadcast => Self::Binomial,
            _ => Self::Direct,
        }
    }

    /// Whether all hosts do the same at the same time in a collective, but for a root: then the cost model lets one stand for the others.
    /// Of those that are not, each host has few steps.
    pub(crate) fn is_uniform(self, collective: Collective, nodes: u32) -> bool {
        match self {
            Self::Direct => !collective.is_scan(),
            Self::Ring | Self::Bruck | Self::Pairwise | Self::Dissemination => true,
            Self::Hierarchical => matches!(collective, Collective::AllReduce | Collective::Reduce),
            // Else some hosts represent others.
            Self::RecursiveDoubling | Self::HalvingDoubling => nodes.is_power_of_two(),
            Self::Binomial | Self::Chain | Self::DoubleTree => false,
        }
    }

    /// Whether it folds an element over the ranks of a host, then over the hosts of a group, then over the groups of each level, each in
    /// rank order: all that do give the same bits, whatever the type.
    pub fn keeps_order(self) -> bool {
        matches!(self, Self::Direct | Self::Hierarchical | Self::Binomial | Self::Bruck)
    }

    /// This one, or what serves the problem in its place. Ranks meet over nothing as well, and all of them see who runs something else.
    pub(super) fn serving(self, problem: &Problem) -> Self {
        let (collective, count) = (problem.shape.collective, problem.shape.count);
        match self {
            _ if collective.reduces() && count == 0 => Self::Direct,
            // Each tree has a part of the chunk.
            Self::DoubleTree if count == 0 => Self::general(collective),
            _ if self.serves(collective, &problem.grid) => self,
            _ => Self::general(collective),
        }
    }

    /// Whether the leader folds what its node's ranks have, all at once, and does all that comes then: a round of flags less.
    pub(super) fn is_for_small(self) -> bool {
        matches!(self, Self::Direct | Self::RecursiveDoubling | Self::Bruck | Self::Dissemination)
    }
}

/// An upper bound for what a rank sends to another one: its bytes, and [`MESSAGE_COST`] for each message.
pub(super) fn cost(algorithm: Algorithm, problem: &Problem, chunks: u32) -> u64 {
    use Algorithm::*;
    let Problem { grid, shape, .. } = *problem;
    let (locals, block) = (u64::from(grid.most_locals()), problem.block_bytes());
    let nodes = u64::from(grid.nodes());
    let half = nodes.div_ceil(2);
    // The largest subtree below the root.
    let subtree = nodes.next_power_of_two() / 2;
    let node_block = locals.saturating_mul(block);
    let (bytes, messages) = match (shape.collective.base(), algorithm) {
        (Collective::AllToAll, _) if problem.counts.is_some() => (locals.saturating_mul(block), locals),
        // All that a rank could have.
        (collective, _) if collective.is_blocked() && problem.counts.is_some() => (block, 1),
        (collective, _) if collective.is_scan() => match scan::is_raw(algorithm, problem) {
            true => (node_block, locals),
            false => (block, 1),
        },
        (Collective::AllToAll, Bruck) => (half.saturating_mul(locals).saturating_mul(node_block), 1),
        (Collective::AllToAll, _) => (locals.saturating_mul(node_block), locals),
        (Collective::AllGather, Bruck) => (half.saturating_mul(node_block), 1),
        (Collective::AllGather | Collective::ReduceScatter, Ring) => {
            ((nodes - 1).saturating_mul(node_block), nodes - 1)
        }
        (Collective::Gather | Collective::Scatter, Binomial) => (subtree.saturating_mul(node_block), 1),
        (collective, _) if collective.is_blocked() => (node_block, 1),
        (Collective::Broadcast, DoubleTree) => (block, 2),
        (Collective::Broadcast | Collective::Barrier, _) | (_, Direct) => (block, 1),
        (Collective::Reduce, Binomial) => (subtree.saturating_mul(block), 1),
        (Collective::Reduce, Chain) | (_, RecursiveDoubling) => (block, 1),
        (Collective::Reduce, _) => (2 * block, 2),
        (_, HalvingDoubling) => (block, 2),
        (_, Bruck) => (half.saturating_mul(block), 1),
        (_, DoubleTree) => (2 * block, 4),
        // There and back, in as many slices.
        (_, Ring) => (2 * block, 2 * nodes),
        // Two hosts speak at one level, each way in as many slices at most as that has.
        (_, _) => (2 * block, 2 * u64::from(grid.levels().iter().copied().max().unwrap_or(1))),
    };
    bytes.saturating_add((MESSAGE_COST as u64).saturating_mul(messages).saturating_mul(chunks.into()))
}
