//! Ranks that are some small operations apart, and ranks that have run different ones.

use std::cell::Cell;
use std::time::Duration;

use shouter_reducer::executor::{AbortReason, Divergence, Tally, Vote};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::View;

use super::{Cells, SmallCall, cause, diverged};
use crate::channel::shm::unpack_small;
use crate::communicator::Group;
use crate::engine::divergence::{VERDICT, VIEWS, instead_of_small, started_instead};
use crate::error::Error;
use crate::runtime::{Activity, Backoff, Clock};

/// Rounds of waiting between two checks of everything else: the engine, the end of the group, the deadline.
const LOOK_EVERY: u32 = 256;

/// After this wait the rank checks which operation the other one runs instead.
const SLOW: Duration = Duration::from_millis(50);

/// How long ranks are waited for that have not published an operation in which others differ, where no majority is known without them: a
/// rank that waits for a core on a busy machine counts as well.
const LATE_VIEWS: Duration = Duration::from_secs(2);

/// How far the tags of each other rank were found to be the same as this rank's.
pub(super) struct Compared {
    through: Box<[Cell<u64>]>,
    /// All ranks at least through this operation.
    pub(super) all: Cell<u64>,
}

impl Compared {
    pub(super) fn new(ranks: u32) -> Self {
        Self { through: (0..ranks).map(|_| Cell::new(0)).collect(), all: Cell::new(0) }
    }

    /// A rank's operations through this one are the same. Returns the last one before that was known to be.
    #[inline]
    pub(super) fn set(&self, local: u32, through: u64) -> u64 {
        self.through.get(local as usize).map_or(through, |compared| compared.replace(through))
    }

    #[inline]
    pub(super) fn of(&self, local: u32) -> u64 {
        self.through.get(local as usize).map_or(u64::MAX, Cell::get)
    }
}

impl Cells {
    /// Waits until something is found in a rank's cell, driving the engine now and then.
    #[inline]
    pub(super) fn until<R>(
        &self,
        call: &SmallCall<'_>,
        (local, number): (u32, u64),
        find: impl Fn() -> Option<R>,
    ) -> Result<R, Error> {
        let mut idle = Backoff::new(self.idle);
        let mut rounds = 0u32;
        loop {
            if let Some(found) = find() {
                return Ok(found);
            }
            rounds = rounds.wrapping_add(1);
            let parked = idle.wait(Activity::Idle, None);
            if (parked || rounds.is_multiple_of(LOOK_EVERY))
                && let Err(error) = self.look_around(call, (local, number))
                // An input published in the meantime counts, though its rank may have left since.
                && !self.segment.cell(local, number).is_published()
            {
                return Err(error);
            }
        }
    }

    #[cold]
    fn look_around(&self, call: &SmallCall<'_>, (local, number): (u32, u64)) -> Result<(), Error> {
        let &SmallCall { group, step, .. } = call;
        let begin = call.begin();
        group.drive.poll()?;
        let waited = Clock.now() - begin;
        if self.segment.has_left(local) && !self.segment.cell(local, number).is_published() {
            // It will not publish: all name it.
            self.segment.set_abort(local, AbortReason::Aborted.code() as u8);
        }
        let aborted = self.segment.abort();
        if waited > SLOW || aborted.is_some() {
            let segment = self.segment.clone();
            let differs = group.drive.with(move |engine| {
                let found = instead_of_small(&segment, local, number, engine.started()).is_some();
                if found {
                    engine.diverge(engine.started(), Rank(local));
                }
                found
            })?;
            if differs || aborted.is_some_and(|abort| abort.reason == diverged()) {
                return Err(self.disagree(call, number));
            }
        }
        if let Some(abort) = aborted {
            return Err(group.outcomes.aborted(&cause(group, &self.segment, abort), &call.view(), step));
        }
        if waited > group.deadline {
            // Else the others would name this rank, which leaves, as the cause.
            self.segment.set_abort(local, AbortReason::Late.code() as u8);
            return Err(group.outcomes.late(Rank(local), waited, &call.view(), step));
        }
        Ok(())
    }

    /// Waits until all ranks have published the operations through this one, and compares them; at once with those behind it that a rank has
    /// published.
    #[cold]
    pub(super) fn compare_all(&self, call: &SmallCall<'_>, through: u64) -> Result<(), Error> {
        let mut least = through.max(call.number.saturating_sub(1));
        let me = self.segment.local();
        for local in (0..self.segment.ranks()).filter(|local| *local != me) {
            self.compare(call, local, through)?;
            while call.compared.of(local) + 1 < call.number
                && self.segment.cell(local, call.compared.of(local) + 1).is_published()
            {
                self.compare(call, local, call.compared.of(local) + 1)?;
            }
            least = least.min(call.compared.of(local));
        }
        call.compared.all.set(least);
        Ok(())
    }

    /// Compares the operations of another rank through this one with those of this rank, and waits for them. They are the first that are not
    /// compared yet, so that their cells are intact on both.
    #[cold]
    pub(super) fn compare(&self, call: &SmallCall<'_>, local: u32, through: u64) -> Result<(), Error> {
        for number in call.compared.of(local).saturating_add(1)..=through {
            let theirs = self.segment.cell(local, number);
            let tag = self.until(call, (local, number), || theirs.tag())?;
            if Some(tag) != self.segment.cell(self.segment.local(), number).tag() {
                return Err(self.disagree(call, number));
            }
            call.compared.set(local, number);
        }
        Ok(())
    }

    /// Ranks run different operations in the place of small operation `number`: waits until the differing rank is known.
    #[cold]
    pub(super) fn disagree(&self, call: &SmallCall<'_>, number: u64) -> Error {
        let &SmallCall { group, step, .. } = call;
        let view = &call.view();
        let begin = Clock.now();
        let mut idle = Backoff::new(self.idle);
        loop {
            let waited = Clock.now() - begin;
            if let Some(divergence) = self.segment.verdict() {
                return self.diverged(group, divergence, view, step);
            }
            // Where an operation of the engine is in dispute, its votes give the verdict.
            let is_small = self.segment.dispute().is_none();
            let is_known = waited > LATE_VIEWS
                || self.have_all_published(number)
                || waited > VIEWS && self.is_majority_known(number);
            if is_small
                && is_known
                && let Some(divergence) = self.judge(group, number, self.own_view(number).unwrap_or(*view))
            {
                self.segment.set_verdict(&divergence);
                self.segment.set_abort(divergence.rank.0, diverged());
                continue;
            }
            if waited > if is_small { LATE_VIEWS + VERDICT } else { VERDICT } {
                return group.outcomes.diverged(None, view, *view, step);
            }
            if let Err(error) = group.drive.poll() {
                return error;
            }
            idle.wait(Activity::Idle, None);
        }
    }

    /// The error of a verdict for a rank that runs `view`.
    #[cold]
    pub(super) fn diverged(&self, group: &Group, divergence: Divergence, view: &View, step: u64) -> Error {
        // An operation in dispute has another number than those of cells.
        let is_small = self.segment.dispute().is_none();
        let own = if is_small { self.own_view(divergence.seq + 1) } else { None };
        group.outcomes.diverged(Some(divergence), view, own.unwrap_or(*view), step)
    }

    /// This rank's small operation `number`, one of the last.
    fn own_view(&self, number: u64) -> Option<View> {
        unpack_small(self.segment.cell(self.segment.local(), number).tag()?.operation)
    }

    /// The next small operation of another rank, if it has begun that and this rank has not, and no thread of this rank is in one.
    #[cold]
    pub(in super::super) fn begun_by(&self, rank: Rank) -> Option<View> {
        let number = self.state.try_lock().ok()?.number + 1;
        unpack_small(self.segment.cell(rank.0, number).tag()?.operation)
    }

    /// Whether all ranks have published their small operation `number`, but for those that are gone.
    fn have_all_published(&self, number: u64) -> bool {
        let segment = &self.segment;
        (0..segment.ranks()).all(|local| {
            segment.cell(local, number).tag().is_some() || segment.has_left(local) || segment.is_gone(local)
        })
    }

    /// Whether more than half of all ranks have published the same small operation `number`.
    fn is_majority_known(&self, number: u64) -> bool {
        let ranks = self.segment.ranks();
        let tags: Vec<_> = (0..ranks).filter_map(|local| self.segment.cell(local, number).tag()).collect();
        tags.iter().any(|tag| 2 * tags.iter().filter(|other| *other == tag).count() > ranks as usize)
    }

    /// The differing rank among those that have published small operation `number`: it calls another one, or has started fewer of them
    /// before, or more.
    fn judge(&self, group: &Group, number: u64, own: View) -> Option<Divergence> {
        let segment = &self.segment;
        let tags: Vec<_> = (0..segment.ranks()).map(|local| segment.cell(local, number).tag()).collect();
        let fewest = tags.iter().flatten().map(|tag| tag.started).min()?;
        let large = group.drive.with(|engine| engine.started()).unwrap_or(0);
        let mut votes: Vec<Vote> = Vec::new();
        for (local, tag) in (0..).zip(tags) {
            let Some(tag) = tag else { continue };
            let started =
                if tag.started == fewest { None } else { started_instead(segment, local, number, large) };
            let Some(view) = started.or_else(|| unpack_small(tag.operation)) else { continue };
            match votes.iter_mut().find(|vote| vote.view == view) {
                Some(vote) => vote.ranks += 1,
                None => votes.push(Vote { view, rank: Rank(local), ranks: 1 }),
            }
        }
        let mut tally = Tally::new(number - 1);
        tally.cast(0, votes);
        tally.judge(Some(own))
    }
}
