//! Schedules of operations outside the table, kept for their next use: the last ones.

use std::collections::HashMap;
use std::sync::Arc;

use shouter_reducer::grid::Rank;
use shouter_reducer::header::Shape;
use shouter_reducer::schedule::{Access, Placement, Schedule};

/// Schedules that are kept. One of a tensor of 16 MiB takes about 70 KB.
const KEPT: usize = 64;

/// What a rank's schedule depends on, in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScheduleKey {
    pub(super) shape: Shape,
    pub(super) root: Rank,
    pub(super) access: Access,
    pub(super) placement: Placement,
}

/// Schedules by what they depend on.
#[derive(Default)]
pub(super) struct Schedules {
    kept: HashMap<ScheduleKey, Kept>,
    uses: u64,
}

struct Kept {
    schedule: Arc<Schedule>,
    last_use: u64,
}

impl Schedules {
    /// The schedule, if it is kept.
    pub(super) fn get(&mut self, key: &ScheduleKey) -> Option<Arc<Schedule>> {
        self.uses += 1;
        let kept = self.kept.get_mut(key)?;
        kept.last_use = self.uses;
        Some(kept.schedule.clone())
    }

    /// Keeps a schedule, and forgets the one that was used least lately where there are too many.
    pub(super) fn insert(&mut self, key: ScheduleKey, schedule: Arc<Schedule>) {
        if self.kept.len() >= KEPT
            && let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.last_use).map(|(key, _)| *key)
        {
            self.kept.remove(&oldest);
        }
        self.kept.insert(key, Kept { schedule, last_use: self.uses });
    }
}

#[cfg(test)]
mod tests;
