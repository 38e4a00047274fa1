//! What the ranks tell each other beside the bits of a round: new names, who lacks what was submitted for too long, and what a rank has refused
//! or, where it has joined, takes part in with zeroes.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use shouter::{Collective, DType, Error, ReduceOp};

use super::missed::{Run, parts_of};
use super::rounds::{Ended, Rounds, Started, bits, numbers, own_call};
use super::state::{Operation, State, Submitted, What};
use super::{DEADLINE_EXCEEDED, Failure, INVALID_ARGUMENT, Named, lock};
use crate::call::{self, Call, Counts};

/// A rank's part in an operation that all have met: it has submitted it, refuses it, or has joined.
const SUBMITTED: u8 = b's';
const REFUSED: u8 = b'r';
const JOINED: u8 = b'j';

impl Named {
    /// The bytes of every rank, by rank.
    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mine = [own.len() as u64];
        let mut lengths = vec![0u64; self.size as usize];
        let input = (mine.as_ptr() as usize, 8);
        let output = (lengths.as_mut_ptr() as usize, 8 * lengths.len());
        self.run_own(&own_call(
            Collective::AllGather,
            input,
            output,
            DType::U64,
            ReduceOp::Sum,
            Counts::default(),
        ))?;
        let taken: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
        let mut every = vec![0u8; taken.iter().sum()];
        let (input, output) =
            ((own.as_ptr() as usize, own.len()), (every.as_mut_ptr() as usize, every.len()));
        let counts = Counts { given: vec![own.len()], taken: taken.clone() };
        self.run_own(&own_call(Collective::AllGatherV, input, output, DType::U8, ReduceOp::Sum, counts))?;
        let mut rest = &every[..];
        Ok(taken.into_iter().map(|length| rest.split_off(..length).unwrap_or_default().to_vec()).collect())
    }

    /// Appends to the table the names that ranks have submitted and it has not. Of a name that is two things, all operations fail.
    pub(super) fn exchange(&self, target: &mut Option<usize>, ended: &mut Vec<Ended>) -> Result<(), Error> {
        let own = {
            let mut state = lock(&self.state);
            let mut declared = std::mem::take(&mut state.declared);
            declared.retain(|(name, _)| state.table.id(name).is_none());
            let declared = declared.iter().map(|(name, view)| (name, view, None));
            let fresh =
                state.fresh.iter().map(|submitted| (&submitted.name, &submitted.view, submitted.run()));
            let mut own = vec![];
            for (name, view, run) in declared.chain(fresh) {
                put(&mut own, name.as_bytes());
                put(&mut own, view.as_bytes());
                put(&mut own, run.map(i64::to_le_bytes).as_ref().map_or(&[], |run| &run[..]));
            }
            own
        };
        let by_rank = self.gather(&own)?;
        let mut added: Vec<(String, String)> = vec![];
        let mut places: HashMap<String, (usize, usize)> = HashMap::new();
        let mut differing: HashMap<String, String> = HashMap::new();
        let mut uses: Vec<(String, Run)> = vec![];
        for (rank, bytes) in by_rank.iter().enumerate() {
            let mut texts = parts(bytes);
            while let (Some(name), Some(view), Some(run)) = (texts.next(), texts.next(), texts.next()) {
                let [name, view] = [name, view].map(|text| String::from_utf8_lossy(text).into_owned());
                uses.push((name.clone(), run.first_chunk().map(|run| (rank, i64::from_le_bytes(*run)))));
                let Some((at, first)) = places.get_mut(&name) else {
                    places.insert(name.clone(), (added.len(), rank));
                    added.push((name, view));
                    continue;
                };
                let theirs = &mut added[*at].1;
                if theirs.is_empty() {
                    // It was refused there.
                    (*first, *theirs) = (rank, view);
                } else if !view.is_empty() && *theirs != view {
                    let why = format!(
                        "'{name}': rank {rank} has {view}, rank {first} has {theirs}; submit the same tensors on every rank"
                    );
                    differing.entry(name).or_insert(why);
                }
            }
        }
        let mut state = lock(&self.state);
        added.retain(|(name, view)| !differing.contains_key(name) && state.table.is_new(name, view));
        if let Some(moved) = state.table.add(added) {
            *target = target.and_then(|id| moved[id]);
            let mut back = vec![];
            for (id, queue) in std::mem::take(&mut state.pending) {
                match moved[id] {
                    Some(id) => drop(state.pending.insert(id, queue)),
                    // The name is new again.
                    None => back.extend(queue),
                }
            }
            // What was submitted first under a name stays first.
            back.append(&mut state.fresh);
            state.fresh = back;
        }
        let fresh = std::mem::take(&mut state.fresh);
        if state.joined.is_none() {
            let mut missed = differing.clone();
            missed.retain(|name, _| fresh.iter().all(|submitted| submitted.name != *name));
            let missed = missed.into_iter().map(|(name, why)| (name, Failure::new(INVALID_ARGUMENT, why)));
            let of_own_runs = fresh.iter().filter(|submitted| submitted.is_of_run());
            let of_own_runs = of_own_runs.map(|submitted| submitted.name.clone()).collect();
            uses.retain(|(name, _)| differing.contains_key(name));
            state.missed.add(missed.collect(), parts_of(uses), &of_own_runs);
        }
        for submitted in fresh {
            let id = state.table.id(&submitted.name);
            let why = match (differing.get(&submitted.name), id) {
                (Some(why), _) => Failure::new(INVALID_ARGUMENT, why.clone()),
                // Another rank may have given the name another meaning while this one submitted it.
                (None, Some(id)) if !submitted.is_refused() => match state.contradiction(id, &submitted) {
                    Some(why) => {
                        let run = submitted.run();
                        state.refuse(&submitted.name, &why.text, run, run.is_some());
                        why
                    }
                    None => {
                        state.keep(submitted);
                        continue;
                    }
                },
                _ => {
                    state.keep(submitted);
                    continue;
                }
            };
            if let What::Operation(Operation { end, run, .. }) = submitted.what {
                state.missed.fail(run, &why);
                ended.push(Ended::failed(end, why));
            }
        }
        Ok(())
    }

    fn is_late(&self, first: &Submitted, refused_since: Option<Instant>) -> bool {
        !first.is_refused() && !first.is_held(refused_since) && first.since.elapsed() > self.deadline
    }

    /// Whether an operation waits for longer than the deadline, or in vain.
    pub(super) fn has_late(&self, state: &State) -> bool {
        let since = state.refused_since();
        let mut first = state.pending.values().filter_map(|queue| queue.front());
        first.any(|first| self.is_late(first, since) || state.is_in_vain(first))
    }

    /// The operations that wait for longer than the deadline, with all of the same runs, and which these are; and those of a run that has failed.
    fn late(&self, state: &State) -> (Vec<(usize, Option<i64>)>, Vec<usize>) {
        let since = state.refused_since();
        let first = state.pending.iter().filter_map(|(id, queue)| Some((*id, queue.front()?)));
        let (vain, others): (Vec<_>, Vec<_>) = first.partition(|(_, first)| state.is_in_vain(first));
        let late = others.iter().filter(|(_, first)| self.is_late(first, since));
        let runs: HashSet<i64> = late.filter_map(|(_, first)| first.run()).collect();
        let of_late = |first: &Submitted| first.run().is_some_and(|run| runs.contains(&run));
        let late = others.iter().filter(|(_, first)| self.is_late(first, since) || of_late(first));
        (late.map(|(id, first)| (*id, first.run())).collect(), vain.into_iter().map(|(id, _)| id).collect())
    }

    /// Fails what only some ranks have submitted, and waits on one of them for longer than the deadline, or in vain; returns which. The ranks that lack
    /// what is late have missed it; what waits in vain fails only where it does, for all ranks' runs have failed.
    pub(super) fn give_up(&self, partly: &[u64], ended: &mut Vec<Ended>) -> Result<Vec<u64>, Error> {
        let width = partly.len();
        let own = {
            let state = lock(&self.state);
            let submitted = match state.joined {
                Some(_) => vec![u64::MAX; width],
                None => {
                    let since = state.refused_since();
                    let is_held = |id| state.first(id).is_some_and(|first| first.is_held(since));
                    bits(state.pending.keys().filter(|id| **id < 64 * width && !is_held(**id)), width)
                }
            };
            let (late, vain) = self.late(&state);
            let vain = bits(vain.iter().filter(|id| **id < 64 * width), width);
            let late = late.into_iter().flat_map(|(id, run)| {
                [id as u64, u64::from(run.is_some()), run.unwrap_or_default().cast_unsigned()]
            });
            submitted.into_iter().chain(vain).chain(late).collect::<Vec<_>>()
        };
        let bytes: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).collect();
        let by_rank: Vec<Vec<u64>> = self.gather(&bytes)?.iter().map(|bytes| words_of(bytes)).collect();
        let mut state = lock(&self.state);
        let (mut late, mut failed) = (vec![0; width], vec![0; width]);
        let mut uses: Vec<(String, Run)> = vec![];
        for (rank, words) in by_rank.iter().enumerate() {
            let (vain, of_late) = words[width..].split_at(width);
            failed.iter_mut().zip(vain).for_each(|(failed, vain)| *failed |= vain);
            for [id, is_of_run, run] in of_late.as_chunks().0 {
                let (at, bit) = (*id as usize / 64, 1 << (id % 64));
                if partly.get(at).is_some_and(|partly| partly & bit != 0) {
                    late[at] |= bit;
                    let run = (*is_of_run == 1).then_some((rank, run.cast_signed()));
                    uses.push((state.table.name(*id as usize).0.to_owned(), run));
                }
            }
        }
        for (at, failed) in failed.iter_mut().enumerate() {
            *failed = partly[at] & (*failed | late[at]);
        }
        let since = state.refused_since();
        let (mut missed, mut of_own_runs) = (HashMap::new(), HashSet::new());
        for id in numbers(&failed) {
            let is_late = late[id / 64] >> (id % 64) & 1 == 1;
            match state.first(id) {
                Some(first) if state.is_in_vain(first) => {}
                // This rank's is of a run that goes on, or of a later one than the others'.
                Some(first) if !is_late || first.is_held(since) => continue,
                None if !is_late => continue,
                _ => {}
            }
            let name = state.table.name(id).0.to_owned();
            let without =
                by_rank.iter().enumerate().filter(|(_, words)| words[id / 64] >> (id % 64) & 1 == 0);
            let ranks: Vec<usize> = without.map(|(rank, _)| rank).collect();
            let text = format!(
                "'{name}': not submitted by {} within {:?} (the key deadline); submit the same names on every rank",
                list(&ranks),
                self.deadline
            );
            let why = Failure::new(DEADLINE_EXCEEDED, text);
            let first = state.pop(id);
            if first.as_ref().is_some_and(Submitted::is_of_run) {
                of_own_runs.insert(name.clone());
            }
            match first.map(|first| first.what) {
                Some(What::Operation(operation)) => {
                    let of_run = state.missed.of_failed(&name, operation.run);
                    state.missed.fail(operation.run, &why);
                    ended.push(Ended::failed(operation.end, of_run.unwrap_or(why)));
                }
                Some(What::Refused { .. }) => {}
                None if state.joined.is_none() => drop(missed.insert(name, why)),
                None => {}
            }
        }
        state.missed.add(missed, parts_of(uses), &of_own_runs);
        Ok(failed)
    }

    /// Starts what all ranks have met, and fails what one refuses, or those that have joined cannot take part in.
    pub(super) fn settle(&self, met: &[usize], rounds: &mut Rounds) -> Result<(), Error> {
        let mut own = vec![];
        let is_joined = {
            let state = lock(&self.state);
            for id in met {
                // It stays there until the ranks have told each other: where one fails meanwhile, the end of the group is that of all operations.
                let (part, text) = match state.first(*id).map(|submitted| &submitted.what) {
                    Some(What::Operation(operation)) => (SUBMITTED, about(&operation.call)),
                    Some(What::Refused { why, .. }) => (REFUSED, why.clone()),
                    None => (JOINED, String::new()),
                };
                put(&mut own, &[&[part], text.as_bytes()].concat());
            }
            state.joined.is_some()
        };
        let every = self.gather(&own)?;
        let mut by_rank: Vec<_> = every.iter().map(|bytes| parts(bytes)).collect();
        for id in met {
            let first = lock(&self.state).pop(*id);
            let told: Vec<(u8, String)> = by_rank
                .iter_mut()
                .filter_map(|parts| parts.next()?.split_first())
                .map(|(part, text)| (*part, String::from_utf8_lossy(text).into_owned()))
                .collect();
            let of = |wanted: u8| told.iter().enumerate().filter(move |(_, (part, _))| *part == wanted);
            let joined: Vec<usize> = of(JOINED).map(|(rank, _)| rank).collect();
            let about = of(SUBMITTED).next().map(|(_, (_, about))| &**about);
            let joint = about.filter(|_| !joined.is_empty()).and_then(like);
            let why = if let Some((rank, (_, why))) = of(REFUSED).next() {
                Some(format!("rank {rank} refuses its part: {why}"))
            } else if !joined.is_empty() && joint.is_none() {
                Some(format!("{}; until all ranks have, {STILL}", have_joined(&joined)))
            } else {
                None
            };
            match (first, why) {
                (Some(Submitted { name, what: What::Operation(operation), .. }), Some(why)) => {
                    let why = Failure::new(INVALID_ARGUMENT, format!("'{name}': {why}"));
                    lock(&self.state).missed.fail(operation.run, &why);
                    rounds.ended.push(Ended::failed(operation.end, why));
                }
                (Some(Submitted { name, what: What::Operation(operation), .. }), None) => {
                    match self.begin(&operation.call, &name) {
                        Ok(work) => rounds.started.push(Started::of(work, name, operation.end)),
                        Err(why) => rounds.ended.push(Ended::of(operation.end, &name, Err(why))),
                    }
                }
                (None, None) if is_joined => {
                    let Some((call, bytes)) = joint else { continue };
                    let mut memory = zeroes(bytes)?;
                    let span = (memory.as_mut_ptr() as usize, bytes);
                    let work = self.begin(&Call { input: span, output: span, ..call }, "zeroes")?;
                    rounds.started.push(Started::of_zeroes(work, memory));
                }
                // Its kernel was told before.
                _ => {}
            }
        }
        Ok(())
    }

    /// All ranks have joined: the last is the one with the least rounds since then.
    pub(super) fn leave(&self) -> Result<(), Error> {
        let age = lock(&self.state).joined.unwrap_or_default();
        let ages: Vec<u64> =
            self.gather(&age.to_le_bytes())?.iter().flat_map(|bytes| words_of(bytes)).collect();
        let least = ages.iter().min();
        let last = ages.iter().rposition(|age| Some(age) == least).unwrap_or_default();
        let mut state = lock(&self.state);
        (state.joined, state.last) = (None, last as u32);
        // Refusals from before the join: nothing of before it can meet them any more.
        state.pending.clear();
        state.fresh.clear();
        state.missed.clear();
        self.left.notify_all();
        Ok(())
    }
}

const STILL: &str =
    "only allreduce by Average or Sum of dense tensors, what is made of it, and barrier go on";

/// An operation as other ranks are told of it, in words that [`like`] reads.
fn about(call: &Call) -> String {
    let elements = call.input.1 / call.dtype.size();
    format!("{} {} {} {elements}", call.kind.name(), call.op, crate::element::name(call.dtype))
}

/// An all-reduce as another rank tells of its own, without memory; none where zeroes would change the result.
fn like(about: &str) -> Option<(Call, usize)> {
    let words: Vec<&str> = about.split(' ').collect();
    let [kind, op, dtype, elements] = words[..] else { return None };
    let (kind, op, dtype) = (call::kind(kind).ok()?, call::op(op).ok()?, call::dtype(dtype).ok()?);
    if kind != Collective::AllReduce || !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        return None;
    }
    let bytes = elements.parse::<usize>().ok()?.checked_mul(dtype.size())?;
    Some((own_call(kind, (0, 0), (0, 0), dtype, op, Counts::default()), bytes))
}

fn zeroes(bytes: usize) -> Result<Vec<u64>, Error> {
    let mut memory = vec![];
    let made = memory.try_reserve_exact(bytes.div_ceil(8));
    made.map_err(|why| Error::Device(format!("{bytes} bytes of zeroes of a rank that has joined: {why}")))?;
    memory.resize(bytes.div_ceil(8), 0);
    Ok(memory)
}

fn list(ranks: &[usize]) -> String {
    let each: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if each.len() == 1 { "" } else { "s" }, each.join(", "))
}

fn have_joined(ranks: &[usize]) -> String {
    format!("{} {} joined", list(ranks), if ranks.len() == 1 { "has" } else { "have" })
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// Appends bytes behind their length.
fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend(bytes);
}

/// Bytes that [`put`] has appended.
fn parts(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        bytes = rest;
        Some(part)
    })
}
