//! The grid: ranks -> nodes -> leaf groups -> roots.
//!
//! Ranks fill nodes in blocks, so rank, node and local rank follow from one another by division. Rank 0 of each node
//! is its *leader* and owns the NIC. Leaders form the *up grid*, cut into *leaf groups* of `leaf_size` nodes (the
//! hosts under one switch, say); within it, roles such as *root* belong to a slice, never to a node.

use core::fmt;
use core::ops::Range;
use thiserror::Error;

/// A rank of the group, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Why numbers make no grid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GridError {
    /// There are no ranks, or none on a node.
    #[error("a group of {ranks} ranks with {per_node} on each node is empty; start at least one rank")]
    Empty {
        /// Ranks of the group.
        ranks: u32,
        /// Ranks on each node.
        per_node: u32,
    },
    /// The nodes would not be equally full.
    #[error(
        "{ranks} ranks do not fill nodes of {per_node} evenly ({rest} would be left over); start the same number \
         of ranks on every node"
    )]
    Uneven {
        /// Ranks of the group.
        ranks: u32,
        /// Ranks on each node.
        per_node: u32,
        /// Ranks on the last node.
        rest: u32,
    },
    /// Leaf groups of no nodes.
    #[error("leaf groups need at least one node; set the plan's leaf_size to 1 or more")]
    NoLeaf,
}

/// Who is where. The same value on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    ranks: u32,
    per_node: u32,
    leaf_size: u32,
}

impl Grid {
    /// A grid of `ranks` ranks, `per_node` on each node, and leaf groups of `leaf_size` nodes (the last may be
    /// smaller).
    pub fn new(ranks: u32, per_node: u32, leaf_size: u32) -> Result<Self, GridError> {
        if ranks == 0 || per_node == 0 {
            return Err(GridError::Empty { ranks, per_node });
        }
        if !ranks.is_multiple_of(per_node) {
            return Err(GridError::Uneven { ranks, per_node, rest: ranks % per_node });
        }
        if leaf_size == 0 {
            return Err(GridError::NoLeaf);
        }
        Ok(Self { ranks, per_node, leaf_size })
    }

    /// The same ranks with other leaf groups.
    pub fn with_leaf_size(self, leaf_size: u32) -> Result<Self, GridError> {
        Self::new(self.ranks, self.per_node, leaf_size)
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Ranks on each node.
    pub fn per_node(&self) -> u32 {
        self.per_node
    }

    /// Nodes.
    pub fn nodes(&self) -> u32 {
        self.ranks / self.per_node
    }

    /// Nodes in a full leaf group.
    pub fn leaf_size(&self) -> u32 {
        self.leaf_size.min(self.nodes())
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: Rank) -> u32 {
        rank.0 / self.per_node
    }

    /// The rank's number within its node.
    pub fn local_of(&self, rank: Rank) -> u32 {
        rank.0 % self.per_node
    }

    /// The rank with this number on this node.
    pub fn rank_at(&self, node: u32, local: u32) -> Rank {
        Rank(node * self.per_node + local)
    }

    /// The rank that owns the node's NIC.
    pub fn leader_of(&self, node: u32) -> Rank {
        Rank(node * self.per_node)
    }

    /// Whether the rank owns its node's NIC.
    pub fn is_leader(&self, rank: Rank) -> bool {
        self.local_of(rank) == 0
    }

    /// Leaf groups.
    pub fn leaf_groups(&self) -> u32 {
        self.nodes().div_ceil(self.leaf_size())
    }

    /// The leaf group of a node.
    pub fn leaf_group_of(&self, node: u32) -> u32 {
        node / self.leaf_size()
    }

    /// The nodes of a leaf group.
    pub fn leaf_group(&self, group: u32) -> Range<u32> {
        let start = group.saturating_mul(self.leaf_size()).min(self.nodes());
        start..start.saturating_add(self.leaf_size()).min(self.nodes())
    }

    /// The node that owns slice `slice` (one of [`leaf_size`](Self::leaf_size)) within a leaf group: its root.
    pub fn slice_root(&self, group: u32, slice: u32) -> u32 {
        let nodes = self.leaf_group(group);
        nodes.start + slice % (nodes.end - nodes.start).max(1)
    }

    /// Whether the rank belongs to the group.
    pub fn contains(&self, rank: Rank) -> bool {
        rank.0 < self.ranks
    }
}

#[cfg(test)]
mod tests;
