//! What a rank has submitted to a group of named operations, and not started.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::missed::Missed;
use super::rounds::Rounds;
use super::table::Table;
use super::{End, FAILED_PRECONDITION, Failure, INVALID_ARGUMENT};
use crate::call::Call;

pub(super) struct Submitted {
    pub(super) name: String,
    /// What it is, for people and for comparison; empty where it is refused.
    pub(super) view: String,
    pub(super) since: Instant,
    pub(super) what: What,
}

pub(super) enum What {
    Operation(Operation),
    /// Why this rank takes no part: that of the others, which meets it, fails.
    Refused {
        why: String,
        /// It stands for a function's run: later runs wait until it was met.
        is_of_run: bool,
    },
}

pub(super) struct Operation {
    pub(super) call: Call,
    pub(super) end: End,
    /// The function's run that it is of; none for an eager call.
    pub(super) run: Option<i64>,
}

impl Submitted {
    fn refused(name: &str, why: &str, is_of_run: bool) -> Self {
        let what = What::Refused { why: why.to_owned(), is_of_run };
        Self { name: name.to_owned(), view: String::new(), since: Instant::now(), what }
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self.what, What::Refused { .. })
    }

    pub(super) fn run(&self) -> Option<i64> {
        match &self.what {
            What::Operation(operation) => operation.run,
            What::Refused { .. } => None,
        }
    }

    /// Whether it is of a function's run, or stands for one.
    pub(super) fn is_of_run(&self) -> bool {
        self.run().is_some() || matches!(self.what, What::Refused { is_of_run: true, .. })
    }

    /// Whether it is an operation of a run that waits for a refusal, which was there first.
    pub(super) fn is_held(&self, refused_since: Option<Instant>) -> bool {
        self.run().is_some() && refused_since.is_some_and(|since| since <= self.since)
    }
}

/// So many refusals of a name wait at most: a loop that tries again makes any number.
const MOST_REFUSED: usize = 16;

pub(super) struct State {
    /// None while a thread goes on with them.
    pub(super) rounds: Option<Rounds>,
    pub(super) table: Table,
    /// By its number in the table: at most one operation of a name, and before or behind it those that were refused.
    pub(super) pending: BTreeMap<usize, VecDeque<Submitted>>,
    /// Of names that are not in the table, or of which it does not know what they are.
    pub(super) fresh: Vec<Submitted>,
    /// Names, and what they are, that are to come before those.
    pub(super) declared: Vec<(String, String)>,
    /// What the others have failed with before this rank submitted it.
    pub(super) missed: Missed,
    /// Why nothing can be submitted any more.
    pub(super) over: Option<Failure>,
    /// This rank has joined: it takes part with zeroes. The number of rounds since then.
    pub(super) joined: Option<u64>,
    /// The rank that has joined last, when all had.
    pub(super) last: u32,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            rounds: Some(Rounds::default()),
            table: Table::new(),
            pending: BTreeMap::new(),
            fresh: vec![],
            declared: vec![],
            missed: Missed::default(),
            over: None,
            joined: None,
            last: 0,
        }
    }

    /// Whether the next round begins at once.
    pub(super) fn is_due(&self, rounds: &Rounds) -> bool {
        let is_there = |target| self.first(target).is_some_and(|first| !first.is_held(self.refused_since()));
        let has_target = rounds.target.is_none_or(is_there);
        self.over.is_none() && !self.is_idle() && (self.joined.is_some() || has_target)
    }

    /// Whether there is nothing to begin a round for. Refusals begin none: where no other rank submits such a name, none would answer.
    pub(super) fn is_idle(&self) -> bool {
        self.operations().next().is_none() && self.joined.is_none()
    }

    /// The names of the table under which operations wait.
    pub(super) fn submitted(&self) -> impl Iterator<Item = &usize> {
        let waits = |queue: &VecDeque<Submitted>| queue.iter().any(|submitted| !submitted.is_refused());
        self.pending.iter().filter(move |(_, queue)| waits(queue)).map(|(id, _)| id)
    }

    /// The names of the table under which something waits that can be met: an operation of a run that has failed cannot, nor one that is held.
    pub(super) fn offered(&self) -> impl Iterator<Item = &usize> {
        let since = self.refused_since();
        let can_be = move |first: &Submitted| !self.is_in_vain(first) && !first.is_held(since);
        let first = self.pending.iter().filter_map(|(id, queue)| Some((id, queue.front()?)));
        first.filter(move |(_, first)| can_be(first)).map(|(id, _)| id)
    }

    /// Since when a refusal waits that stands for a function's run.
    pub(super) fn refused_since(&self) -> Option<Instant> {
        let of_runs = |submitted: &&Submitted| submitted.is_refused() && submitted.is_of_run();
        self.pending.values().flatten().chain(&self.fresh).filter(of_runs).map(|refused| refused.since).min()
    }

    /// Whether an operation of the same run has failed.
    pub(super) fn is_in_vain(&self, submitted: &Submitted) -> bool {
        self.missed.has_failed(submitted.run())
    }

    /// Drops the refusals that wait for longer than the deadline, and which this round's ranks have not met.
    pub(super) fn withdraw(&mut self, common: &[u64], deadline: Duration) {
        self.pending.retain(|id, queue| {
            let is_met = common.get(id / 64).is_some_and(|word| word >> (id % 64) & 1 == 1);
            let is_over = |first: &Submitted| first.is_refused() && first.since.elapsed() > deadline;
            while !is_met && queue.front().is_some_and(is_over) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
    }

    /// What has been submitted, and can still start.
    pub(super) fn operations(&self) -> impl Iterator<Item = &Submitted> {
        self.pending.values().flatten().chain(&self.fresh).filter(|submitted| !submitted.is_refused())
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = Submitted> + use<> {
        let pending = std::mem::take(&mut self.pending).into_values().flatten();
        pending.chain(std::mem::take(&mut self.fresh))
    }

    /// Keeps what was submitted until all ranks have it.
    pub(super) fn keep(&mut self, submitted: Submitted) {
        // One that is behind another of its name stays there.
        let is_fresh = self.fresh.iter().any(|other| other.name == submitted.name);
        match self.table.id(&submitted.name) {
            Some(id) if !is_fresh && (submitted.is_refused() || self.table.is_known(id)) => {
                self.pending.entry(id).or_default().push_back(submitted);
            }
            _ => self.fresh.push(submitted),
        }
    }

    /// The other ranks' operation of this name fails, too. It is refused in a run, or before one that it stands for, or as an eager call.
    pub(super) fn refuse(&mut self, name: &str, why: &str, run: Option<i64>, is_of_run: bool) {
        if self.over.is_some() || self.joined.is_some() || self.missed.take(name, run, is_of_run).is_some() {
            return;
        }
        self.missed.fail(run, &Failure::new(INVALID_ARGUMENT, why));
        // Behind an operation that waits, one stands for all tries: the other ranks' next use fails, and no more.
        let queue = self.table.id(name).and_then(|id| self.pending.get(&id)).into_iter().flatten();
        let fresh = self.fresh.iter().filter(|submitted| submitted.name == name);
        let (most, refused) = queue.chain(fresh).fold((MOST_REFUSED, 0), |(most, refused), submitted| {
            if submitted.is_refused() { (most, refused + 1) } else { (1, 0) }
        });
        if refused < most {
            self.keep(Submitted::refused(name, why, is_of_run));
        }
    }

    /// The first that was submitted under a name.
    pub(super) fn first(&self, id: usize) -> Option<&Submitted> {
        self.pending.get(&id)?.front()
    }

    /// Takes the first that was submitted under a name.
    pub(super) fn pop(&mut self, id: usize) -> Option<Submitted> {
        let queue = self.pending.get_mut(&id)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.pending.remove(&id);
        }
        first
    }

    /// How the others have failed with this before, if they have.
    pub(super) fn failed_before(&mut self, submitted: &Submitted) -> Option<Failure> {
        let can_start = self.over.is_none() && self.joined.is_none();
        let run = submitted.run();
        can_start.then(|| self.missed.take(&submitted.name, run, run.is_some())).flatten()
    }

    /// Why this cannot be submitted.
    pub(super) fn refusal(&self, submitted: &Submitted, of: (u32, u32)) -> Option<Failure> {
        let Submitted { name, .. } = submitted;
        if let Some(why) = &self.over {
            return Some(Failure::new(why.code, format!("'{name}': {}", why.text)));
        }
        if self.joined.is_some() {
            let text = format!("'{name}': this rank has joined; wait until join() has returned");
            return Some(Failure::new(FAILED_PRECONDITION, text));
        }
        if self.operations().any(|other| other.name == *name) {
            let text = format!(
                "'{name}' was submitted before, and has not started; give each tensor a name of its own"
            );
            return Some(Failure::new(INVALID_ARGUMENT, text));
        }
        let contradiction = self.table.id(name).and_then(|id| self.contradiction(id, submitted));
        contradiction.or_else(|| check(submitted, of))
    }

    /// Why a name of the table cannot be used for this.
    pub(super) fn contradiction(&self, id: usize, submitted: &Submitted) -> Option<Failure> {
        let (name, known) = self.table.name(id);
        if !self.table.is_known(id) || known == submitted.view {
            return None;
        }
        let text =
            format!("'{name}' is known as {known}, and this is {}; give it another name", submitted.view);
        Some(Failure::new(INVALID_ARGUMENT, text))
    }
}

/// What the library would refuse when it starts, where the other ranks have started theirs.
fn check(submitted: &Submitted, (rank, size): (u32, u32)) -> Option<Failure> {
    let What::Operation(Operation { call, .. }) = &submitted.what else { return None };
    let checked =
        if call.kind.has_counts() { call.uneven().map(drop) } else { call.checked(rank, size).map(drop) };
    checked.err().map(|why| Failure::of(&why, &format!("'{}': ", submitted.name)))
}
