//! What other ranks have failed with before this rank submitted it. Uses of a name are counted so: this rank's use fails, too, and the next ones meet.
//!
//! A run of a function that has failed submits the rest of its operations or does not, as its executor happens to be scheduled. So a run counts as a
//! whole: what fails together elsewhere is one run's, one of its names takes all of it here, and the rest of this run fails by itself.

use std::collections::{HashMap, VecDeque};

use super::Failure;

/// So many failures are kept at most: a rank may never submit such a name.
const MOST: usize = 1024;

#[derive(Default)]
pub(super) struct Missed {
    /// By name, what has failed at one time; the oldest first.
    failures: VecDeque<HashMap<String, Failure>>,
    /// The last of this rank's runs in which an operation has failed, and how.
    failed: Option<(i64, Failure)>,
}

impl Missed {
    /// The others have failed with these.
    pub(super) fn add(&mut self, names: HashMap<String, Failure>) {
        if names.is_empty() {
            return;
        }
        if self.failures.len() == MOST {
            self.failures.pop_front();
        }
        self.failures.push_back(names);
    }

    /// An operation of this run has failed.
    pub(super) fn fail(&mut self, run: Option<i64>, why: &Failure) {
        if let Some(run) = run
            && !self.has_failed(Some(run))
        {
            self.failed = Some((run, why.clone()));
        }
    }

    /// Whether an operation of this run has failed.
    pub(super) fn has_failed(&self, run: Option<i64>) -> bool {
        run.is_some() && self.failed.as_ref().map(|(failed, _)| *failed) == run
    }

    /// How an operation of this run fails with it, if it has failed.
    pub(super) fn of_failed(&self, name: &str, run: Option<i64>) -> Option<Failure> {
        let (_, why) = self.failed.as_ref().filter(|_| self.has_failed(run))?;
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
