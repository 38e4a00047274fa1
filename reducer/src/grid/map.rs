//! Where ranks are, on nodes with different numbers of them.

use super::GridError;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Where ranks are, on nodes with different numbers of them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Map {
    /// By node: its first rank; behind the last one the number of ranks.
    pub(super) firsts: Box<[u32]>,
    /// By rank.
    pub(super) nodes: Box<[u32]>,
    /// The numbers of ranks that nodes have, in ascending order.
    pub(super) numbers: Box<[u32]>,
}

/// The maps of this process.
static MAPS: Mutex<BTreeSet<&'static Map>> = Mutex::new(BTreeSet::new());

impl Map {
    /// The one map of this list.
    ///
    /// # Errors
    /// A node has no ranks, or there are more ranks than numbers.
    pub(super) fn of(locals: &[u32]) -> Result<&'static Self, GridError> {
        let mut firsts = vec![0u32];
        for (node, &ranks) in locals.iter().enumerate() {
            if ranks == 0 {
                return Err(GridError::EmptyNode { node });
            }
            let end = firsts[node].checked_add(ranks).ok_or(GridError::TooMany { nodes: locals.len() })?;
            firsts.push(end);
        }
        let nodes = (0..).zip(locals).flat_map(|(node, &ranks)| (0..ranks).map(move |_| node)).collect();
        let numbers = locals.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let map = Self { firsts: firsts.into(), nodes, numbers };
        let mut maps = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = maps.get(&map) {
            return Ok(known);
        }
        let map = Box::leak(Box::new(map));
        maps.insert(map);
        Ok(map)
    }
}
