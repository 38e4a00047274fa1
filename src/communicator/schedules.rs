//! Schedules, kept for their next use: the last ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use shouter_reducer::counts::Counts;
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::Shape;
use shouter_reducer::schedule::{Access, Placement, Schedule};

/// Schedules that are kept. One of a tensor of 16 MiB takes about 70 KB.
const KEPT: usize = 64;

/// The same for blocks that differ: counts that change in each step must not drive the others out.
const KEPT_UNEVEN: usize = 8;

/// The parameters of a rank's schedule, beside the plan, which all groups of a job have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScheduleKey {
    pub(super) grid: Grid,
    pub(super) rank: Rank,
    pub(super) shape: Shape,
    pub(super) root: Rank,
    pub(super) access: Access,
    pub(super) placement: Placement,
    pub(super) counts: Option<Arc<Counts>>,
}

/// Schedules that the groups of a rank's job have built: a new group finds those of an earlier one with as many ranks. Each group keeps its own
/// beside them, so that groups do not drive each other's out.
pub(super) type Known = Arc<Mutex<Schedules>>;

/// Schedules by their parameters.
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
        let is_uneven = key.counts.is_some();
        let alike = self.kept.iter().filter(|(key, _)| key.counts.is_some() == is_uneven);
        if alike.clone().count() >= if is_uneven { KEPT_UNEVEN } else { KEPT }
            && let Some(oldest) = alike.min_by_key(|(_, kept)| kept.last_use).map(|(key, _)| key.clone())
        {
            self.kept.remove(&oldest);
        }
        self.kept.insert(key, Kept { schedule, last_use: self.uses });
    }
}

#[cfg(test)]
mod tests;
