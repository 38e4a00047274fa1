//! What other ranks have failed with before this rank submitted it. Uses of a name are counted so: this rank's use fails, too, and the next ones meet.
//!
//! A run of a function that has failed submits the rest of its operations or does not, as its executor happens to be scheduled. So a run counts as a
//! whole: of what fails together elsewhere, the names of one run are one use. One of them takes all of it here, and the rest of this run fails by
//! itself. Where a run of this rank fails at the same time, with one of these names, it is this rank's use, and nothing was missed.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Failure;

/// So many failures are kept at most: a rank may never submit such a name.
const MOST: usize = 1024;

/// So many failed runs are kept at most; few go on at the same time.
const MOST_RUNS: usize = 64;

/// A rank, and a run there; none for an eager call.
pub(super) type Run = Option<(usize, i64)>;

/// Names that fail together, and the runs that they are of.
#[derive(Default)]
struct Part {
    names: HashSet<String>,
    runs: HashSet<(usize, i64)>,
}

/// Names that have failed at one time, in parts: those of each run are in one.
pub(super) fn parts_of(uses: impl IntoIterator<Item = (String, Run)>) -> Vec<HashSet<String>> {
    let mut parts: Vec<Part> = vec![];
    for (name, run) in uses {
        let has_either =
            |part: &mut Part| part.names.contains(&name) || run.is_some_and(|run| part.runs.contains(&run));
        let joined = parts.extract_if(.., has_either).reduce(|mut joined, part| {
            joined.names.extend(part.names);
            joined.runs.extend(part.runs);
            joined
        });
        let mut part = joined.unwrap_or_default();
        part.names.insert(name);
        part.runs.extend(run);
        parts.push(part);
    }
    parts.into_iter().map(|part| part.names).collect()
}

#[derive(Default)]
pub(super) struct Missed {
    /// By name, what has failed at one time as a part of one run; the oldest first.
    failures: VecDeque<HashMap<String, Failure>>,
    /// This rank's runs in which an operation has failed, and how; the oldest first.
    failed: VecDeque<(i64, Failure)>,
}

impl Missed {
    /// The others have failed with these names in these parts. One of which a run of this rank has failed at the same time is that run's.
    pub(super) fn add(
        &mut self,
        mut names: HashMap<String, Failure>,
        parts: Vec<HashSet<String>>,
        of_own_runs: &HashSet<String>,
    ) {
        for part in parts.into_iter().filter(|part| part.is_disjoint(of_own_runs)) {
            let part: HashMap<_, _> = part.iter().filter_map(|name| names.remove_entry(name)).collect();
            if part.is_empty() {
                continue;
            }
            if self.failures.len() == MOST {
                self.failures.pop_front();
            }
            self.failures.push_back(part);
        }
    }

    /// An operation of this run has failed.
    pub(super) fn fail(&mut self, run: Option<i64>, why: &Failure) {
        if let Some(run) = run
            && !self.has_failed(Some(run))
        {
            if self.failed.len() == MOST_RUNS {
                self.failed.pop_front();
            }
            self.failed.push_back((run, why.clone()));
        }
    }

    fn failure_of(&self, run: Option<i64>) -> Option<&Failure> {
        self.failed.iter().find(|(failed, _)| Some(*failed) == run).map(|(_, why)| why)
    }

    /// Whether an operation of this run has failed.
    pub(super) fn has_failed(&self, run: Option<i64>) -> bool {
        self.failure_of(run).is_some()
    }

    /// How an operation of this run fails with it, if it has failed.
    pub(super) fn of_failed(&self, name: &str, run: Option<i64>) -> Option<Failure> {
        let why = self.failure_of(run)?;
        let text = format!("'{name}': the run of its function has failed: {}", why.text);
        Some(Failure { text, ..why.clone() })
    }

    /// How what is submitted under a name has failed before, if it has; with a use in a run, all of that run was missed.
    pub(super) fn take(&mut self, name: &str, run: Option<i64>, is_of_run: bool) -> Option<Failure> {
        if let Some(why) = self.of_failed(name, run) {
            return Some(why);
        }
        let at = self.failures.iter().position(|names| names.contains_key(name))?;
        let why = self.failures[at].remove(name)?;
        if is_of_run || self.failures[at].is_empty() {
            self.failures.remove(at);
        }
        self.fail(run, &why);
        Some(why)
    }

    /// All ranks begin anew.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
