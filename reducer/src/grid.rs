//! The grid: ranks -> nodes -> groups of each level -> roots.
//!
//! Ranks fill nodes in blocks. Where all nodes have the same number of ranks, rank, node and local rank follow from one another by
//! division; else by a map. Rank 0 of each node
//! is its *leader* and owns the NIC. Leaders form the *up grid*, which is cut into groups, groups of groups, and so on ([`Levels`]);
//! within it, roles such as *root* belong to a slice, never to a node.
//!
//! A grid is a number of bytes that every schedule and message path copies. So maps are interned: the process keeps one for each
//! list of hosts that it has seen, for good.

use core::fmt;
use map::Map;
use thiserror::Error;

pub use levels::{Levels, LevelsError};

mod levels;
mod map;

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
    /// A node without ranks.
    #[error("host {node} has no ranks; leave it out, or start at least one rank there")]
    EmptyNode {
        /// Which.
        node: usize,
    },
    /// More ranks than numbers.
    #[error("{nodes} hosts have more than {} ranks in all", u32::MAX)]
    TooMany {
        /// Nodes.
        nodes: usize,
    },
}

/// The ranks of each node, and the nodes of each group. The same value on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    ranks: u32,
    /// Ranks on each node; where there is a map, on the fullest one.
    per_node: u32,
    /// Those that matter among the nodes.
    levels: Levels,
    /// Where nodes have different numbers of ranks.
    map: Option<&'static Map>,
}

impl Grid {
    /// A grid of `ranks` ranks, `per_node` on each node, without levels.
    ///
    /// # Errors
    /// There are no ranks, they do not fill the nodes, or a number is beyond its limit.
    pub fn new(ranks: u32, per_node: u32) -> Result<Self, GridError> {
        if ranks == 0 || per_node == 0 {
            return Err(GridError::Empty { ranks, per_node });
        }
        if !ranks.is_multiple_of(per_node) {
            return Err(GridError::Uneven { ranks, per_node, rest: ranks % per_node });
        }
        Ok(Self { ranks, per_node, levels: Levels::NONE, map: None })
    }

    /// A grid of nodes with so many ranks each, in the order of ranks, without levels.
    ///
    /// # Errors
    /// There are no nodes, one has no ranks, or a number is beyond its limit.
    pub fn of_hosts(locals: &[u32]) -> Result<Self, GridError> {
        let Some(&first) = locals.first() else { return Err(GridError::Empty { ranks: 0, per_node: 0 }) };
        if locals.iter().all(|&ranks| ranks == first) {
            let nodes = u32::try_from(locals.len()).ok();
            let ranks = nodes.and_then(|nodes| nodes.checked_mul(first));
            return Self::new(ranks.ok_or(GridError::TooMany { nodes: locals.len() })?, first);
        }
        let map = Map::of(locals)?;
        let most = map.numbers.last().copied().unwrap_or(first);
        Ok(Self { ranks: map.nodes.len() as u32, per_node: most, levels: Levels::NONE, map: Some(map) })
    }

    /// Whether the ranks are on the same nodes, whatever the levels.
    #[inline]
    pub fn has_nodes_of(&self, other: &Self) -> bool {
        let same_map = match (self.map, other.map) {
            // There is one map for each list of nodes.
            (Some(map), Some(of_other)) => core::ptr::eq(map, of_other),
            (None, None) => true,
            _ => false,
        };
        same_map && (self.ranks, self.per_node) == (other.ranks, other.per_node)
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether all nodes have the same number of ranks.
    #[inline]
    pub fn is_even(&self) -> bool {
        self.map.is_none()
    }

    /// Ranks on the fullest node: on each, where the grid [is even](Self::is_even).
    #[inline]
    pub fn most_locals(&self) -> u32 {
        self.per_node
    }

    /// The numbers of ranks that nodes have, each once.
    pub fn numbers_of_locals(&self) -> impl Iterator<Item = u32> + use<> {
        let (one, more) = match self.map {
            None => (Some(self.per_node), &[][..]),
            Some(map) => (None, &map.numbers[..]),
        };
        one.into_iter().chain(more.iter().copied())
    }

    /// Ranks on a node of the grid.
    #[inline]
    pub fn locals(&self, node: u32) -> u32 {
        match self.map {
            None => self.per_node,
            Some(_) => self.leader_of(node + 1).0 - self.leader_of(node).0,
        }
    }

    /// Nodes.
    #[inline]
    pub fn nodes(&self) -> u32 {
        match self.map {
            None => self.ranks / self.per_node,
            Some(map) => map.firsts.len() as u32 - 1,
        }
    }

    /// The node of a rank; of one that is not of the grid, none of its nodes.
    #[inline]
    pub fn node_of(&self, rank: Rank) -> u32 {
        match self.map {
            None => rank.0 / self.per_node,
            Some(map) => map.nodes.get(rank.0 as usize).copied().unwrap_or(self.nodes()),
        }
    }

    /// The rank's number within its node.
    #[inline]
    pub fn local_of(&self, rank: Rank) -> u32 {
        match self.map {
            None => rank.0 % self.per_node,
            Some(_) => rank.0 - self.leader_of(self.node_of(rank)).0,
        }
    }

    /// The rank with this number on this node.
    #[inline]
    pub fn rank_at(&self, node: u32, local: u32) -> Rank {
        Rank(self.leader_of(node).0 + local)
    }

    /// The rank that owns the node's NIC; behind the last node, the number of ranks.
    #[inline]
    pub fn leader_of(&self, node: u32) -> Rank {
        match self.map {
            None => Rank(node * self.per_node),
            Some(map) => Rank(map.firsts.get(node as usize).copied().unwrap_or(self.ranks)),
        }
    }

    /// The ranks of a node.
    pub fn ranks_on(&self, node: u32) -> impl Iterator<Item = Rank> + Clone + use<> {
        let first = self.leader_of(node).0;
        (first..first + self.locals(node)).map(Rank)
    }

    /// Whether the rank owns its node's NIC.
    #[inline]
    pub fn is_leader(&self, rank: Rank) -> bool {
        self.local_of(rank) == 0
    }

    /// Whether the rank belongs to the group.
    pub fn contains(&self, rank: Rank) -> bool {
        rank.0 < self.ranks
    }
}

#[cfg(test)]
pub(crate) mod tests;
