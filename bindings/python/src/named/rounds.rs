//! The rounds in which the ranks compare what they have submitted, and start what all have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter::{Collective, DType, Error, ReduceOp};

use super::{DEADLINE_EXCEEDED, End, Failure, INVALID_ARGUMENT, Named, State, Submitted, lock};
use crate::call::{Call, Counts};
use crate::sys;

/// How long the thread waits for what it has started before it looks for new submissions.
const ATTENDED: Duration = Duration::from_micros(100);

/// An operation under way.
struct Started {
    work: shouter::Work,
    name: String,
    end: End,
}

/// Bits of the names of the table.
fn bits<'a>(of: impl IntoIterator<Item = &'a usize>, words: usize) -> Vec<u64> {
    let mut bits = vec![0; words];
    for id in of {
        bits[id / 64] |= 1 << (id % 64);
    }
    bits
}

/// The numbers whose bits are set.
fn numbers(words: &[u64]) -> impl Iterator<Item = usize> {
    words
        .iter()
        .enumerate()
        .flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * at + bit))
}

/// Flags of a round, at zero where a rank has them.
const HAS_FRESH: u64 = 1;
const HAS_LATE: u64 = 2;

impl Named {
    /// Compares with the other ranks what was submitted, and starts what all have; returns the next target.
    pub(super) fn round(&self) -> Result<Option<usize>, Error> {
        let (mut words, width) = {
            let state = lock(&self.state);
            let width = state.table.len().div_ceil(64);
            let mut flags = u64::MAX;
            if !state.fresh.is_empty() || !state.declared.is_empty() {
                flags &= !HAS_FRESH;
            }
            if self.late(&state).next().is_some() {
                flags &= !HAS_LATE;
            }
            let own = bits(state.pending.keys(), width);
            let lacking: Vec<u64> = own.iter().map(|word| !word).collect();
            ([vec![flags], own, lacking].concat(), width)
        };
        self.all_and(&mut words)?;
        let (flags, common, lacking) = (words[0], &words[1..=width], &words[1 + width..]);
        let mut partly: Vec<u64> =
            common.iter().zip(lacking).map(|(common, lacking)| !lacking & !common).collect();
        let started = self.start(common);
        if flags & HAS_FRESH == 0 {
            self.exchange()?;
        }
        if flags & HAS_LATE == 0 {
            let failed = self.give_up(&partly)?;
            partly.iter_mut().zip(failed).for_each(|(word, failed)| *word &= !failed);
        }
        self.attend(started);
        Ok(numbers(&partly).next())
    }

    /// Starts what all ranks have submitted, in the order of the table.
    fn start(&self, common: &[u64]) -> Vec<Started> {
        let mut started = vec![];
        for id in numbers(common) {
            let Some(Submitted { name, call, end, .. }) = lock(&self.state).pending.remove(&id) else {
                continue;
            };
            match self.begin(&call, &name) {
                Ok(work) => started.push(Started { work, name, end }),
                Err(why) => end.call_named(&name, Err(why)),
            }
        }
        started
    }

    /// Waits for started operations, as long as nothing else is submitted: that ends them sooner than a callback. Those that are left then have one.
    fn attend(&self, mut started: Vec<Started>) {
        while !started.is_empty() && lock(&self.state).is_empty() {
            let works: Vec<_> = started.iter().map(|each| each.work.clone()).collect();
            match shouter::Work::wait_any(&works, Some(ATTENDED)) {
                Ok(at) => {
                    let Started { work, name, end } = started.remove(at);
                    end.call_named(&name, work.wait(None));
                }
                Err(Error::Timeout { .. }) => {}
                Err(_) => break,
            }
        }
        for Started { work, name, end } in started {
            let end = Arc::new(Mutex::new(Some(end)));
            let of_callback = (end.clone(), name.clone());
            let told = work.on_done(move |result| {
                let (end, name) = of_callback;
                if let Some(end) = lock(&end).take() {
                    end.call_named(&name, result);
                }
            });
            // There is no thread for callbacks.
            if told.is_err() {
                let result = work.wait(None);
                if let Some(end) = lock(&end).take() {
                    end.call_named(&name, result);
                }
            }
        }
    }

    /// Starts an operation when there is room for one more.
    fn begin(&self, call: &Call, name: &str) -> Result<shouter::Work, Error> {
        loop {
            let Some(group) = self.group.upgrade() else { return Err(closed()) };
            group.set_label(name);
            match sys::start(&group, call) {
                Err(Error::WouldBlock { .. }) => {}
                started => return started,
            }
        }
    }

    /// Runs an operation of the agreement itself. The group is not held meanwhile: another thread that leaves it ends the operation.
    fn run_own(&self, call: &Call) -> Result<(), Error> {
        self.begin(call, "names")?.wait(None)
    }

    fn all_and(&self, words: &mut [u64]) -> Result<(), Error> {
        let span = (words.as_mut_ptr() as usize, size_of_val(words));
        self.run_own(&own_call(
            Collective::AllReduce,
            span,
            span,
            DType::U64,
            ReduceOp::Band,
            Counts::default(),
        ))
    }

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
    fn exchange(&self) -> Result<(), Error> {
        let own = {
            let mut state = lock(&self.state);
            let mut declared = std::mem::take(&mut state.declared);
            declared.retain(|(name, _)| !state.ids.contains_key(name));
            let declared = declared.iter().map(|(name, view)| (name, view));
            let fresh = state.fresh.iter().map(|submitted| (&submitted.name, &submitted.view));
            let mut own = vec![];
            for text in declared.chain(fresh).flat_map(|(name, view)| [name, view]) {
                own.extend((text.len() as u32).to_le_bytes());
                own.extend(text.as_bytes());
            }
            own
        };
        let by_rank = self.gather(&own)?;
        let mut added: Vec<(String, String)> = vec![];
        let mut places: HashMap<String, (usize, usize)> = HashMap::new();
        let mut differing: HashMap<String, String> = HashMap::new();
        for (rank, bytes) in by_rank.iter().enumerate() {
            let mut texts = texts(bytes).into_iter();
            while let (Some(name), Some(view)) = (texts.next(), texts.next()) {
                let Some(&(at, first)) = places.get(&name) else {
                    places.insert(name.clone(), (added.len(), rank));
                    added.push((name, view));
                    continue;
                };
                let theirs = &added[at].1;
                if *theirs != view {
                    let why = format!(
                        "'{name}': rank {rank} has {view}, rank {first} has {theirs}; submit the same tensors on every rank"
                    );
                    differing.entry(name).or_insert(why);
                }
            }
        }
        let mut state = lock(&self.state);
        for (name, view) in added {
            if !differing.contains_key(&name) && !state.ids.contains_key(&name) {
                let id = state.table.len();
                state.ids.insert(name.clone(), id);
                state.table.push((name, view));
            }
        }
        let mut failed = vec![];
        for submitted in std::mem::take(&mut state.fresh) {
            match (differing.get(&submitted.name), state.ids.get(&submitted.name).copied()) {
                (Some(why), _) => {
                    failed.push((submitted, Failure { code: INVALID_ARGUMENT, text: why.clone() }))
                }
                // Another rank may have given the name another meaning while this one submitted it.
                (None, Some(id)) => match state.contradiction(id, &submitted, (self.rank, self.size)) {
                    Some(why) => failed.push((submitted, why)),
                    None => drop(state.pending.insert(id, submitted)),
                },
                // It was submitted since.
                (None, None) => state.fresh.push(submitted),
            }
        }
        drop(state);
        failed.into_iter().for_each(|(submitted, why)| submitted.end.call(&Err(why)));
        Ok(())
    }

    /// What waits for longer than the deadline.
    fn late<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a usize> {
        state
            .pending
            .iter()
            .filter(|(_, submitted)| submitted.since.elapsed() > self.deadline)
            .map(|(id, _)| id)
    }

    /// Fails what only some ranks have submitted, and waits for longer than the deadline on one of them; returns which.
    fn give_up(&self, partly: &[u64]) -> Result<Vec<u64>, Error> {
        let width = partly.len();
        let own = {
            let state = lock(&self.state);
            [
                bits(state.pending.keys().filter(|id| **id < 64 * width), width),
                bits(self.late(&state).filter(|id| **id < 64 * width), width),
            ]
            .concat()
        };
        let bytes: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).collect();
        let by_rank: Vec<Vec<u64>> = self.gather(&bytes)?.iter().map(|bytes| words_of(bytes)).collect();
        let mut failed = vec![0; width];
        for (at, word) in failed.iter_mut().enumerate() {
            *word = partly[at] & by_rank.iter().fold(0, |late, words| late | words[width + at]);
        }
        for id in numbers(&failed) {
            let Some(submitted) = lock(&self.state).pending.remove(&id) else { continue };
            let without =
                by_rank.iter().enumerate().filter(|(_, words)| words[id / 64] >> (id % 64) & 1 == 0);
            let ranks: Vec<String> = without.map(|(rank, _)| rank.to_string()).collect();
            let text = format!(
                "'{}': not submitted by rank{} {} within {:?} (the key deadline); submit the same names on every rank",
                submitted.name,
                if ranks.len() == 1 { "" } else { "s" },
                ranks.join(", "),
                self.deadline
            );
            submitted.end.call(&Err(Failure { code: DEADLINE_EXCEEDED, text }));
        }
        Ok(failed)
    }
}

fn own_call(
    kind: Collective,
    input: (usize, usize),
    output: (usize, usize),
    dtype: DType,
    op: ReduceOp,
    counts: Counts,
) -> Call {
    Call { kind, input, output, dtype, op, root: 0, factor: None, counts, stream: None }
}

fn closed() -> Error {
    Error::Argument("the group is closed; call shouter.init".into())
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// Texts, each behind its length.
fn texts(mut bytes: &[u8]) -> Vec<String> {
    let mut texts = vec![];
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let Some((text, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        texts.push(String::from_utf8_lossy(text).into_owned());
        bytes = rest;
    }
    texts
}
