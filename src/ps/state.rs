//! A server's parameters, who has pushed how often, and who waits for whom.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use shouter_reducer::dtype::DType;

use super::Error;
use super::message::{Home, LONGEST_NAME, Layout, Meta};
use super::optimizer::Optimizer;
use super::parameter::{Gradient, Parameter, check_rows};
use super::plan::{Mode, Plan};
use super::protocol::{Seen, left};
use super::server::{Own, Served};
use super::shard::Shard;
use crate::runtime::lock;

/// Who asks.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    pub(super) name: &'a str,
    /// Its place among the plan's trainers.
    pub(super) trainer: Option<usize>,
}

/// What a server holds.
pub(super) struct Shards {
    plan: Arc<Plan>,
    pub(super) own: Own,
    home: Home,
    state: Mutex<State>,
    /// Something has come that a wait may be for.
    changed: Condvar,
}

/// A trainer that takes part, has left, or was dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    There,
    Left,
    Dropped,
}

struct State {
    entries: BTreeMap<String, Entry>,
    /// By the trainers' places.
    members: Vec<Member>,
    /// How often each has waited for all.
    waits: Vec<u64>,
    shut_down_by: Option<String>,
    /// Why the service ends.
    failure: Option<Error>,
    /// The last parameter's generation.
    generation: u64,
}

struct Entry {
    /// Tells it from those of the same name before it: clients say which one they mean.
    generation: u64,
    parameter: Arc<RwLock<Parameter>>,
    meta: Meta,
    /// Pushes of each trainer.
    pushes: Vec<u64>,
    /// The gradients that a synchronous update waits with.
    pending: Vec<Option<Gradient>>,
    /// Whether a synchronous update is being made.
    updating: bool,
    shard: Arc<Shard>,
}

impl State {
    /// The fewest of these among the trainers that take part.
    fn slowest(&self, counts: &[u64]) -> Option<u64> {
        let there = counts.iter().zip(&self.members).filter(|(_, member)| **member == Member::There);
        there.map(|(count, _)| *count).min()
    }

    /// The parameter of this name, if it is still the one that the client knows.
    fn entry(&self, name: &str, generation: u64) -> Option<&Entry> {
        self.entries.get(name).filter(|entry| entry.generation == generation)
    }

    fn ahead(&self, counts: &[u64], own: u64) -> u64 {
        own.saturating_sub(self.slowest(counts).unwrap_or(own))
    }
}

impl Shards {
    pub(super) fn new(plan: Arc<Plan>, own: Own, home: Home) -> Self {
        let trainers = plan.trainers.len();
        let state = State {
            entries: BTreeMap::new(),
            members: vec![Member::There; trainers],
            waits: vec![0; trainers],
            shut_down_by: None,
            failure: None,
            generation: 0,
        };
        Self { plan, own, home, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn not_set(&self, name: &str, step: u64) -> Error {
        Error::NotSet { parameter: name.to_owned(), server: self.own.name.clone(), step }
    }

    /// When a request that comes now has to be answered: all its waits share the plan's deadline.
    fn end(&self) -> Instant {
        Instant::now() + self.plan.deadline
    }

    /// Waits until `ready` says how; `late` has the error at `end`.
    fn wait_until<'a, R>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        (step, end): (u64, Instant),
        mut ready: impl FnMut(&mut State) -> Result<Option<R>, Error>,
        late: impl FnOnce(&State) -> Error,
    ) -> Result<(MutexGuard<'a, State>, R), Error> {
        loop {
            if let Some(by) = &state.shut_down_by {
                return Err(Error::ShutDown { by: by.clone(), step });
            }
            if let Some(result) = ready(&mut state)? {
                return Ok((state, result));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let left = left(end);
            if left.is_zero() {
                return Err(late(&state));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn stale(
        &self,
        state: &State,
        sender: Sender<'_>,
        about: (&str, u64),
        counts: &[u64],
        own: u64,
        limit: u64,
    ) -> Error {
        let is_behind =
            |at: &usize| state.members[*at] == Member::There && own.saturating_sub(counts[*at]) > limit;
        let behind = (0..counts.len()).filter(is_behind).map(|at| self.plan.trainers[at].clone());
        Error::Stale {
            parameter: about.0.to_owned(),
            trainer: sender.name.to_owned(),
            ahead: state.ahead(counts, own),
            limit,
            behind: behind.collect(),
            after: self.plan.deadline,
            step: about.1,
        }
    }

    /// Refuses what a trainer has asked before it was dropped.
    fn check_there(&self, state: &State, sender: Sender<'_>) -> Result<(), Error> {
        match sender.trainer.map(|trainer| state.members[trainer]) {
            None | Some(Member::There) => Ok(()),
            Some(Member::Left | Member::Dropped) => Err(Error::Plan(format!(
                "{} has left {}, or was dropped, and takes part no more",
                sender.name, self.own.name
            ))),
        }
    }

    /// The state once a trainer that takes part is not too far ahead for another push to, or pull of, this generation of a parameter.
    fn gate<'a>(
        &'a self,
        sender: Sender<'_>,
        (name, step): (&str, u64),
        generation: u64,
        end: Instant,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let limit = self.plan.mode.limit();
        let ready = |state: &mut State| {
            self.check_there(state, sender)?;
            let entry = state.entry(name, generation).ok_or_else(|| self.not_set(name, step))?;
            let Some(trainer) = sender.trainer else { return Ok(Some(())) };
            let own = entry.pushes[trainer];
            let is_near = state.ahead(&entry.pushes, own) <= limit;
            let is_updated =
                self.plan.mode != Mode::Synchronous || entry.pending[trainer].is_none() && !entry.updating;
            Ok((is_near && is_updated).then_some(()))
        };
        let late = |state: &State| match (state.entries.get(name), sender.trainer) {
            (Some(entry), Some(trainer)) => {
                let own = entry.pushes[trainer];
                self.stale(state, sender, (name, step), &entry.pushes, own, limit)
            }
            _ => self.not_set(name, step),
        };
        Ok(self.wait_until(self.lock(), (step, end), ready, late)?.0)
    }

    /// The parameter that this meta asks for, when the mode permits to pull it, and the memory of gradients that have been used.
    pub(super) fn pulled(
        &self,
        sender: Sender<'_>,
        meta: &Meta,
        generation: u64,
    ) -> Result<(Arc<RwLock<Parameter>>, Vec<Gradient>), Error> {
        let end = self.end();
        let used = self.update(self.lock(), &meta.name, end)?;
        let state = self.gate(sender, (&meta.name, meta.step), generation, end)?;
        let entry = state.entries.get(&meta.name).ok_or_else(|| self.not_set(&meta.name, meta.step))?;
        Ok((entry.parameter.clone(), used))
    }

    pub(super) fn describe(&self, sender: Sender<'_>, meta: &Meta) -> Result<(Meta, Seen), Error> {
        let state = self.lock();
        let entry = state.entries.get(&meta.name).ok_or_else(|| self.not_set(&meta.name, meta.step))?;
        let pushes = sender.trainer.map_or(0, |trainer| entry.pushes[trainer]);
        Ok((entry.meta.clone(), Seen { generation: entry.generation, pushes }))
    }

    /// Sets a parameter: a new one, or another value of one with this type and shape.
    pub(super) fn set(&self, meta: &Meta, optimizer: Optimizer, value: &[u8]) -> Result<(), Error> {
        optimizer.check().map_err(Error::Plan)?;
        check_new(meta)?;
        let shard = Arc::new(self.plan.sharding.shard(meta.rows(), self.own.server, self.own.servers));
        if meta.layout != Layout::Shard(shard.len() as u64) {
            return Err(Error::Plan(format!(
                "'{}' of {:?} comes with {:?}, and {} owns {} rows",
                meta.name,
                meta.shape,
                meta.layout,
                self.own.name,
                shard.len()
            )));
        }
        if let Some(by) = &self.lock().shut_down_by {
            return Err(Error::ShutDown { by: by.clone(), step: meta.step });
        }
        let parameter = Parameter::new(&self.home, meta.clone(), optimizer, shard, value)?;
        self.put(meta, parameter)
    }

    /// Takes a parameter in place of the former one, whose gradients and counts of pushes go with it.
    pub(super) fn put(&self, meta: &Meta, parameter: Parameter) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(entry) = state.entries.get(&meta.name) {
            check_same(&entry.meta, meta, "the value")?;
        }
        state.generation += 1;
        let trainers = self.plan.trainers.len();
        let entry = Entry {
            generation: state.generation,
            meta: parameter.meta().clone(),
            pushes: vec![0; trainers],
            pending: (0..trainers).map(|_| None).collect(),
            updating: false,
            shard: parameter.shard.clone(),
            parameter: Arc::new(RwLock::new(parameter)),
        };
        let former = state.entries.insert(meta.name.clone(), entry);
        // Those that wait for the former one hear that it is there no more.
        self.changed.notify_all();
        drop(state);
        drop(former);
        Ok(())
    }

    /// Takes a gradient. Returns the memory of those that have been used.
    pub(super) fn push(
        &self,
        sender: Sender<'_>,
        Seen { generation, pushes }: Seen,
        gradient: Gradient,
    ) -> Result<Vec<Gradient>, Error> {
        let meta = gradient.head.meta.clone();
        let Some(trainer) = sender.trainer else {
            return Err(Error::Plan(format!("{} is no trainer of the plan, and cannot push", sender.name)));
        };
        let not_set = || self.not_set(&meta.name, meta.step);
        check_gradient(self.lock().entry(&meta.name, generation).ok_or_else(not_set)?, &meta, &gradient)?;
        let end = self.end();
        let mut used = self.update(self.lock(), &meta.name, end)?;
        let mut state = self.gate(sender, (&meta.name, meta.step), generation, end)?;
        let entry = state.entries.get_mut(&meta.name).ok_or_else(not_set)?;
        match pushes.cmp(&entry.pushes[trainer]) {
            // A trainer repeats a push that another server has refused.
            std::cmp::Ordering::Less => {
                used.push(gradient);
                return Ok(used);
            }
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => {
                return Err(Error::Plan(format!(
                    "push {pushes} of {} to '{}' where {} have come",
                    sender.name, meta.name, entry.pushes[trainer]
                )));
            }
        }
        if self.plan.mode == Mode::Synchronous {
            entry.pending[trainer] = Some(gradient);
            entry.pushes[trainer] += 1;
            used.extend(self.update(state, &meta.name, end)?);
            return Ok(used);
        }
        let parameter = entry.parameter.clone();
        drop(state);
        let used = [gradient];
        parameter.write().unwrap_or_else(PoisonError::into_inner).update(&used, false, left(end))?;
        let mut state = self.lock();
        if let Some(entry) =
            state.entries.get_mut(&meta.name).filter(|entry| Arc::ptr_eq(&entry.parameter, &parameter))
        {
            entry.pushes[trainer] += 1;
        }
        self.changed.notify_all();
        Ok(used.into())
    }

    /// Makes the synchronous update of a parameter if all gradients for it are there, and returns those. Where it cannot be made they stay, and
    /// the next push or pull of any trainer tries again.
    fn update<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        name: &str,
        end: Instant,
    ) -> Result<Vec<Gradient>, Error> {
        let State { entries, members, .. } = &mut *state;
        let is_there = |at: &usize| members[*at] == Member::There;
        let Some(entry) = entries.get_mut(name) else { return Ok(vec![]) };
        let mut there = (0..members.len()).filter(is_there).peekable();
        if entry.updating || there.peek().is_none() || there.any(|at| entry.pending[at].is_none()) {
            return Ok(vec![]);
        }
        // While it is being made, the next pushes of these trainers wait.
        let (places, gradients): (Vec<_>, Vec<_>) = (entry.pending.iter_mut().enumerate())
            .filter_map(|(at, pending)| Some((at, pending.take()?)))
            .unzip();
        entry.updating = true;
        let parameter = entry.parameter.clone();
        drop(state);
        let updated = {
            let mut parameter = parameter.write().unwrap_or_else(PoisonError::into_inner);
            parameter.update(&gradients, self.plan.average, left(end))
        };
        let mut state = self.lock();
        let State { entries, members, .. } = &mut *state;
        let entry = entries.get_mut(name).filter(|entry| Arc::ptr_eq(&entry.parameter, &parameter));
        let outcome = match (updated, entry) {
            (Ok(()), entry) => {
                entry.into_iter().for_each(|entry| entry.updating = false);
                Ok(gradients)
            }
            // It has been set anew.
            (Err(_), None) => Ok(gradients),
            (Err(error), Some(entry)) => {
                entry.updating = false;
                for (at, gradient) in places.into_iter().zip(gradients) {
                    entry.pending[at] = Some(gradient).filter(|_| members[at] != Member::Dropped);
                }
                Err(error)
            }
        };
        self.changed.notify_all();
        outcome
    }

    /// Waits until all trainers have called it as often as this one.
    pub(super) fn wait(&self, sender: Sender<'_>, step: u64) -> Result<(), Error> {
        let Some(trainer) = sender.trainer else {
            return Err(Error::Plan(format!(
                "{} is no trainer of the plan, and cannot wait with them",
                sender.name
            )));
        };
        let mut state = self.lock();
        state.waits[trainer] += 1;
        let own = state.waits[trainer];
        self.changed.notify_all();
        let ready = |state: &mut State| {
            self.check_there(state, sender)?;
            Ok((state.ahead(&state.waits, own) == 0).then_some(()))
        };
        let late = |state: &State| self.stale(state, sender, ("", step), &state.waits, own, 0);
        let waited = self.wait_until(state, (step, self.end()), ready, late).map(drop);
        if waited.is_err() {
            self.lock().waits[trainer] -= 1;
        }
        waited
    }

    /// Forgets all parameters; those that wait for one hear that it is not set.
    pub(super) fn reset(&self, step: u64) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(by) = &state.shut_down_by {
            return Err(Error::ShutDown { by: by.clone(), step });
        }
        state.entries.clear();
        self.changed.notify_all();
        Ok(())
    }

    /// A client is there no more. Returns the memory of gradients that were used, or dropped with it.
    pub(super) fn leave(&self, trainer: Option<usize>, is_dropped: bool) -> Vec<Gradient> {
        let Some(trainer) = trainer else { return vec![] };
        let mut state = self.lock();
        state.members[trainer] = if is_dropped { Member::Dropped } else { Member::Left };
        let names: Vec<_> = state.entries.keys().cloned().collect();
        // A trainer that leaves in order has pushed all that it means to; the gradients of one that is lost may be a part of a step.
        let mut used: Vec<_> = match is_dropped {
            true => state.entries.values_mut().filter_map(|entry| entry.pending[trainer].take()).collect(),
            false => vec![],
        };
        self.changed.notify_all();
        drop(state);
        for name in names {
            match self.update(self.lock(), &name, self.end()) {
                Ok(gradients) => used.extend(gradients),
                Err(error) => tracing::error!("'{name}' was not updated without a trainer: {error}"),
            }
        }
        used
    }

    pub(super) fn shut_down(&self, by: &str) {
        self.lock().shut_down_by.get_or_insert_with(|| by.to_owned());
        self.changed.notify_all();
    }

    /// Ends the service and all waits, with the first such error.
    pub(super) fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Which trainers take part.
    pub(super) fn members(&self) -> Vec<bool> {
        self.lock().members.iter().map(|member| *member == Member::There).collect()
    }

    /// How the service has ended.
    pub(super) fn served(&self) -> Result<Served, Error> {
        let state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let dropped =
            self.plan.trainers.iter().zip(&state.members).filter(|(_, member)| **member == Member::Dropped);
        Ok(Served {
            shut_down_by: state.shut_down_by.clone(),
            dropped: dropped.map(|(name, _)| name.clone()).collect(),
        })
    }

    /// All parameters, by name.
    pub(super) fn all(&self) -> Vec<(String, Arc<RwLock<Parameter>>)> {
        self.lock().entries.iter().map(|(name, entry)| (name.clone(), entry.parameter.clone())).collect()
    }

    pub(super) fn home(&self) -> &Home {
        &self.home
    }
}

/// The most rows where a row has no bytes: what they are to cost does not bound them.
const MOST_EMPTY_ROWS: u64 = 1 << 20;

/// Refuses a parameter that there cannot be.
pub(super) fn check_new(meta: &Meta) -> Result<(), Error> {
    if !matches!(meta.dtype, DType::F32 | DType::F64) {
        return Err(Error::Type {
            parameter: meta.name.clone(),
            what: "the value".into(),
            expected: DType::F32,
            found: meta.dtype,
            step: meta.step,
        });
    }
    if meta.name.is_empty() || meta.name.len() > LONGEST_NAME {
        return Err(Error::Plan(format!(
            "a parameter's name of {} bytes; give 1 to {LONGEST_NAME}",
            meta.name.len()
        )));
    }
    if meta.row_bytes() == Some(0) && meta.rows() > MOST_EMPTY_ROWS {
        return Err(Error::Plan(format!(
            "'{}' of {:?} has {} rows without elements; {MOST_EMPTY_ROWS} can be",
            meta.name,
            meta.shape,
            meta.rows()
        )));
    }
    Ok(())
}

/// Refuses another type or shape than the parameter's: the rule of clients and servers.
pub(super) fn check_same(parameter: &Meta, given: &Meta, what: &str) -> Result<(), Error> {
    let (name, what, step) = (given.name.clone(), what.to_owned(), given.step);
    if parameter.dtype != given.dtype {
        return Err(Error::Type {
            parameter: name,
            what,
            expected: parameter.dtype,
            found: given.dtype,
            step,
        });
    }
    if parameter.shape != given.shape {
        let (expected, found) = (parameter.shape.clone(), given.shape.clone());
        return Err(Error::Shape { parameter: name, what, expected, found, step });
    }
    Ok(())
}

fn check_gradient(entry: &Entry, meta: &Meta, gradient: &Gradient) -> Result<(), Error> {
    check_same(&entry.meta, meta, "the gradient")?;
    match meta.layout {
        layout if layout == entry.meta.layout => Ok(()),
        Layout::Rows(_) => {
            let (indices, _) = gradient.rows();
            check_rows(meta, indices)?;
            match indices.iter().position(|row| entry.shard.place(*row).is_none()) {
                None => Ok(()),
                Some(at) => Err(Error::Rows {
                    parameter: meta.name.clone(),
                    at: at as u64,
                    row: indices[at],
                    why: "the row is another server's; all ranks have to run the same release".into(),
                    step: meta.step,
                }),
            }
        }
        other => Err(Error::Plan(format!("a gradient for '{}' comes with {other:?}", meta.name))),
    }
}

#[cfg(test)]
mod tests;
