//! The names that all ranks know, by number. It is the same on every rank: all change it in the same rounds, by what these have told all.
//!
//! A round sends bits for each name, so names that are no longer in use give their numbers back: where there are more than a limit, those that
//! were submitted longest ago are forgotten. The limit is twice the number of those in use; one that was too low shows in names that come back.

use std::collections::{HashMap, HashSet};

/// The least limit of names.
const LEAST: usize = 1024;

/// So many forgotten names are known when they come back.
const REMEMBERED: usize = 16 * LEAST;

struct Entry {
    name: String,
    /// What it is, for people and for comparison; empty where all that was submitted is refused.
    view: String,
    /// The last round in which a rank had submitted it.
    seen: u64,
    /// How often it was started since names were last forgotten.
    starts: usize,
}

pub(super) struct Table {
    entries: Vec<Entry>,
    ids: HashMap<String, usize>,
    round: u64,
    limit: usize,
    forgotten: HashSet<String>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { entries: vec![], ids: HashMap::new(), round: 0, limit: LEAST, forgotten: HashSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn id(&self, name: &str) -> Option<usize> {
        self.ids.get(name).copied()
    }

    /// A name, and what it is.
    pub(super) fn name(&self, id: usize) -> (&str, &str) {
        let Entry { name, view, .. } = &self.entries[id];
        (name, view)
    }

    /// Whether it is known what a name is.
    pub(super) fn is_known(&self, id: usize) -> bool {
        !self.entries[id].view.is_empty()
    }

    /// Whether a name is to be added, or what it is.
    pub(super) fn is_new(&self, name: &str, view: &str) -> bool {
        self.id(name).is_none_or(|id| !self.is_known(id) && !view.is_empty())
    }

    /// A round has found that all ranks have submitted these, which start, and that some ranks have submitted those.
    pub(super) fn see(&mut self, common: impl Iterator<Item = usize>, partly: impl Iterator<Item = usize>) {
        self.round += 1;
        for id in common {
            self.entries[id].seen = self.round;
            self.entries[id].starts += 1;
        }
        for id in partly {
            self.entries[id].seen = self.round;
        }
    }

    /// Appends names, and what they are. Where it forgets others before, it returns the new number of each old one, or none.
    pub(super) fn add(&mut self, mut names: Vec<(String, String)>) -> Option<Vec<Option<usize>>> {
        names.retain_mut(|(name, view)| match self.id(name) {
            Some(id) => {
                self.entries[id].view = std::mem::take(view);
                false
            }
            None => true,
        });
        let back = names.iter().filter(|(name, _)| self.forgotten.remove(name)).count();
        self.limit += 2 * back;
        let moved = (self.len() + names.len() > self.limit).then(|| self.forget(names.len()));
        for (name, view) in names {
            self.ids.insert(name.clone(), self.entries.len());
            self.entries.push(Entry { name, view, seen: self.round, starts: 0 });
        }
        moved
    }

    /// Makes room for so many names.
    fn forget(&mut self, room: usize) -> Vec<Option<usize>> {
        let in_use = self.entries.iter().filter(|entry| entry.starts > 1).count();
        self.limit = LEAST.max(2 * in_use).max(2 * room);
        let mut last: Vec<usize> = (0..self.len()).collect();
        last.sort_by_key(|id| (std::cmp::Reverse(self.entries[*id].seen), *id));
        let kept: HashSet<usize> = last.into_iter().take(self.limit / 2).collect();
        let mut moved = vec![None; self.len()];
        for (id, mut entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            if kept.contains(&id) {
                moved[id] = Some(self.entries.len());
                entry.starts = 0;
                self.ids.insert(entry.name.clone(), self.entries.len());
                self.entries.push(entry);
                continue;
            }
            self.ids.remove(&entry.name);
            if self.forgotten.len() == REMEMBERED {
                self.forgotten.clear();
            }
            self.forgotten.insert(entry.name);
        }
        moved
    }
}
