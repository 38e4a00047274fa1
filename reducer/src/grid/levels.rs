//! The levels of the up grid: how nodes are grouped, and who is a root.
//!
//! The *units* of level 0 are the nodes. At each level, as many units that follow one another as the level's size form a group, which is a
//! unit of the next level; the last group may be smaller. The units of the last level's groups form one group of all. So `[8, 4]` is groups
//! of 8 nodes (the hosts under one switch, say), groups of 4 of those (a pod), and the pods.
//!
//! A slice of a tensor is cut at each level into as many as the level's size. One node of each unit stands for it in the matter of a
//! slice: the unit's *root*. The slices that were chosen on the way, one for each level, are the slice's *path*.

use super::Grid;
use core::fmt;
use core::ops::Range;
use core::str::FromStr;
use thiserror::Error;

/// Units in a group of each level, innermost first. Behind the last level there are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Levels([u32; Self::MOST]);

/// Why numbers are no levels.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LevelsError {
    /// A group of no units.
    #[error("a group of level {level} (counted from 0) would have no members; use 1 or more")]
    Empty {
        /// Which.
        level: usize,
    },
    /// More than there can be.
    #[error("{levels} levels are too many; give {} at most", Levels::MOST)]
    TooMany {
        /// Levels.
        levels: usize,
    },
    /// No number.
    #[error("\"{0}\" is no size of a group; give whole numbers from 1, innermost first, such as 8,4")]
    Number(String),
}

impl Levels {
    /// The most levels.
    pub const MOST: usize = 4;

    /// No levels: all nodes are one group.
    pub const NONE: Self = Self([0; Self::MOST]);

    /// Levels of these sizes, innermost first. Groups of one are none: sizes of 1 are left out.
    ///
    /// # Errors
    /// A size is 0, or there are more than [`MOST`](Self::MOST).
    pub fn new(sizes: &[u32]) -> Result<Self, LevelsError> {
        if let Some(level) = sizes.iter().position(|&size| size == 0) {
            return Err(LevelsError::Empty { level });
        }
        let sizes: Vec<_> = sizes.iter().copied().filter(|&size| size > 1).collect();
        let mut levels = Self::NONE;
        match levels.0.get_mut(..sizes.len()) {
            Some(places) => places.copy_from_slice(&sizes),
            None => return Err(LevelsError::TooMany { levels: sizes.len() }),
        }
        Ok(levels)
    }

    /// Units in a full group of each level, innermost first.
    pub fn sizes(&self) -> &[u32] {
        let count = self.0.iter().take_while(|&&size| size > 0).count();
        &self.0[..count]
    }

    /// Units in a full group by level, 0 where there is no such level.
    pub fn all(&self) -> [u32; Self::MOST] {
        self.0
    }

    /// Those that matter among so many nodes: no group is larger than all, and where one has all there is none above.
    pub(super) fn among(self, nodes: u32) -> Self {
        let mut units = nodes;
        Self(self.0.map(|size| {
            let size = size.min(units);
            units = units.div_ceil(size.max(1));
            if size > 1 { size } else { 0 }
        }))
    }
}

impl Default for Levels {
    /// Groups of 8 nodes.
    fn default() -> Self {
        Self([8, 0, 0, 0])
    }
}

impl FromStr for Levels {
    type Err = LevelsError;

    /// Reads `8,4`; spaces do not matter, and 1 stands for no levels.
    fn from_str(text: &str) -> Result<Self, LevelsError> {
        let size = |part: &str| part.trim().parse().map_err(|_| LevelsError::Number(part.trim().to_owned()));
        Self::new(&text.split(',').map(size).collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sizes() {
            [] => f.write_str("1"),
            sizes => f.write_str(&sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl Grid {
    /// The grid of the same ranks with other levels.
    #[must_use]
    pub fn with_levels(self, levels: Levels) -> Self {
        Self { levels: levels.among(self.nodes()), ..self }
    }

    /// Units in a full group of each level, innermost first; those that matter among the nodes.
    pub fn levels(&self) -> &[u32] {
        self.levels.sizes()
    }

    /// Nodes in a full unit of a level.
    pub fn unit_size(&self, level: usize) -> u32 {
        self.levels().iter().take(level).fold(1, |nodes, &size| nodes.saturating_mul(size))
    }

    /// The unit of a level that a node belongs to.
    pub fn unit_of(&self, level: usize, node: u32) -> u32 {
        node / self.unit_size(level)
    }

    /// The units of a level that form one unit of the next: a group. Above the last level there is one group, of all units.
    pub fn group(&self, level: usize, group: u32) -> Range<u32> {
        let all = self.nodes().div_ceil(self.unit_size(level));
        let size = self.levels().get(level).copied().unwrap_or(all);
        let start = group.saturating_mul(size).min(all);
        start..start.saturating_add(size).min(all)
    }

    /// Groups of a level.
    pub fn groups(&self, level: usize) -> u32 {
        if level < self.levels().len() { self.nodes().div_ceil(self.unit_size(level + 1)) } else { 1 }
    }

    /// The first level that has one group.
    pub fn top(&self) -> usize {
        let levels = self.levels().len();
        (0..levels).find(|&level| self.groups(level) == 1).unwrap_or(levels)
    }

    /// The group of a level that a node belongs to, by number. Above the last level there is one.
    pub fn group_of(&self, level: usize, node: u32) -> u32 {
        if level < self.levels().len() { self.unit_of(level + 1, node) } else { 0 }
    }

    /// The node that stands for a unit in the matter of a slice: its root. The slice's path has an entry for each level below the unit's.
    pub fn root(&self, unit: u32, path: &[u32]) -> u32 {
        (0..path.len()).rev().zip(path.iter().rev()).fold(unit, |unit, (level, slice)| {
            let below = self.group(level, unit);
            below.start + slice % (below.end - below.start).max(1)
        })
    }
}

#[cfg(test)]
mod tests;
