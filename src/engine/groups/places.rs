//! The places of groups, and those that a poll visits: it costs nothing that groups exist in which nothing is under way.
//!
//! ```text
//!   made, a message, a call, an end -----> listed --poll: nothing is left to do--> timed, if it has a deadline
//!   queues of started operations: marks ----^  ^---------- the deadline ----------'
//! ```
//!
//! Whoever changes a group gets it by [`Places::at`] or [`Places::each`], which list it. What other threads put into a group's queue sets a
//! [mark](Marks). A group that a poll has found [at rest](Subgroup::is_active) is not listed any more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use shouter_netstack::time::Instant;

use super::MAX_GROUPS;
use super::subgroup::Subgroup;
use crate::engine::submitted::marks::{Mark, Marks};

/// A place for a group.
#[derive(Default)]
struct Place {
    /// Groups that were there.
    uses: u32,
    group: Option<Box<Subgroup>>,
    /// The next poll visits it.
    is_listed: bool,
    /// Its deadline among those of all places.
    timed: Option<Instant>,
    /// Visits of its groups so far.
    #[cfg(test)]
    visits: u64,
}

/// The places of groups.
pub(super) struct Places {
    all: Vec<Place>,
    /// Indices of places without a group, the one that was left first in front.
    free: VecDeque<u32>,
    /// Places with a group.
    alive: usize,
    /// Indices of places that the next poll visits.
    listed: Vec<u32>,
    /// Deadlines of places that are not listed, and their indices. One of a place that is listed by now may be too early.
    timed: BTreeSet<(Instant, u32)>,
    /// Places whose queues other threads have put something into.
    marks: Arc<Marks>,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            all: vec![],
            free: VecDeque::new(),
            alive: 0,
            listed: vec![],
            timed: BTreeSet::new(),
            marks: Arc::new(Marks::new(MAX_GROUPS)),
        }
    }

    /// Takes a place; its index, and how many groups were there. `None` if there are too many.
    pub(super) fn take(&mut self) -> Option<(u32, u32)> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.all.len() < MAX_GROUPS => {
                self.all.push(Place::default());
                self.all.len() as u32 - 1
            }
            None => return None,
        };
        let place = self.all.get_mut(index as usize)?;
        place.uses = place.uses.wrapping_add(1);
        Some((index, place.uses.wrapping_sub(1)))
    }

    /// A place that was taken stays without a group.
    pub(super) fn give_back(&mut self, index: u32) {
        self.free.push_back(index);
    }

    /// Puts a group into a place that was taken.
    pub(super) fn put(&mut self, index: u32, group: Subgroup) {
        let Some(place) = self.all.get_mut(index as usize) else { return };
        place.group = Some(Box::new(group));
        self.alive += 1;
        self.at(index as usize);
    }

    /// What the queue of a place's group sets when something is put into it.
    pub(super) fn mark(&self, index: u32) -> Mark {
        Mark::new(self.marks.clone(), index)
    }

    /// Whether there is no group.
    #[inline]
    pub(super) fn are_empty(&self) -> bool {
        self.alive == 0
    }

    /// Whether the next poll visits a group.
    #[inline]
    pub(super) fn have_work(&self) -> bool {
        !self.listed.is_empty() || !self.marks.are_none()
    }

    /// The group of a place, to look at.
    #[inline]
    pub(super) fn look(&self, index: usize) -> Option<&Subgroup> {
        self.all.get(index)?.group.as_deref()
    }

    /// The group of a place, which may be changed: the next poll visits it.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> Option<&mut Subgroup> {
        let place = self.all.get_mut(index)?;
        let group = place.group.as_deref_mut()?;
        if !place.is_listed {
            place.is_listed = true;
            self.listed.push(index as u32);
        }
        Some(group)
    }

    /// Changes all groups, which the next poll visits.
    pub(super) fn each(&mut self, mut change: impl FnMut(&mut Subgroup)) {
        for index in 0..self.all.len() {
            self.at(index).into_iter().for_each(&mut change);
        }
    }

    /// The groups in which something may be under way, but what other threads have put into queues.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Subgroup> {
        self.listed.iter().filter_map(|index| self.look(*index as usize))
    }

    /// Whether nothing is under way in any group.
    pub(super) fn are_idle(&self) -> bool {
        self.marks.are_none() && self.listed().all(Subgroup::is_idle)
    }

    /// When the next poll is needed although nothing may arrive.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let timed = self.timed.first().map(|(deadline, _)| *deadline);
        self.listed().filter_map(Subgroup::next_deadline).chain(timed).min()
    }

    /// One poll, which visits the groups that have something to do; `visit` says whether the group can go.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant, visit: impl FnMut(&mut Subgroup) -> bool) {
        let is_due = self.timed.first().is_some_and(|(deadline, _)| *deadline <= now);
        if is_due || self.have_work() {
            self.visit(now, visit);
        }
    }

    fn visit(&mut self, now: Instant, mut visit: impl FnMut(&mut Subgroup) -> bool) {
        let marks = self.marks.clone();
        marks.take(|index| {
            self.at(index as usize);
        });
        while let Some((_, index)) = self.timed.first().filter(|(deadline, _)| *deadline <= now).copied() {
            self.set_deadline(index, None);
            self.at(index as usize);
        }
        // In the order of their places: one that rests now and then would else come behind one that never does, which takes all room to send.
        self.listed.sort_unstable();
        let mut listed = std::mem::take(&mut self.listed);
        listed.retain(|&index| {
            let Some(place) = self.all.get_mut(index as usize) else { return false };
            let Some(group) = place.group.as_deref_mut() else {
                place.is_listed = false;
                return false;
            };
            #[cfg(test)]
            {
                place.visits += 1;
            }
            let (can_go, is_active) = (visit(group), group.is_active(now));
            if !can_go && is_active {
                return true;
            }
            let deadline = if can_go { None } else { group.next_deadline() };
            place.is_listed = false;
            if can_go {
                place.group = None;
                self.free.push_back(index);
                self.alive -= 1;
            }
            self.set_deadline(index, deadline);
            false
        });
        self.listed = listed;
    }

    /// From now on this is a place's deadline.
    fn set_deadline(&mut self, index: u32, deadline: Option<Instant>) {
        let Some(place) = self.all.get_mut(index as usize) else { return };
        if place.timed == deadline {
            return;
        }
        if let Some(before) = std::mem::replace(&mut place.timed, deadline) {
            self.timed.remove(&(before, index));
        }
        self.timed.extend(deadline.map(|deadline| (deadline, index)));
    }

    /// Places that were in use at a time.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Visits of the groups of a place so far.
    #[cfg(test)]
    pub(super) fn visits(&self, index: usize) -> u64 {
        self.all.get(index).map_or(0, |place| place.visits)
    }
}
