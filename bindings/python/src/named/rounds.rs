//! The rounds in which the ranks compare what they have submitted, and start what all have.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shouter::{Collective, DType, Error, ReduceOp, Work};

use super::{DEADLINE_EXCEEDED, End, Failure, INVALID_ARGUMENT, Named, State, Submitted, lock};
use crate::call::{Call, Counts};
use crate::sys;

/// How long the thread waits for what it has started before it looks for new submissions.
const ATTENDED: Duration = Duration::from_micros(100);

/// An operation under way.
struct Started {
    work: Work,
    name: String,
    end: End,
}

/// An operation that has ended, whose kernel is to be told.
pub(super) struct Ended {
    end: End,
    result: Result<(), Failure>,
}

impl Ended {
    fn of(end: End, name: &str, result: Result<(), Error>) -> Self {
        Self { end, result: result.map_err(|why| Failure::of(&why, &format!("'{name}': "))) }
    }

    pub(super) fn is_of(&self, kernel: usize) -> bool {
        self.end.kernel() == kernel
    }

    pub(super) fn tell(self) {
        self.end.call(&self.result);
    }
}

/// The comparison of a round, under way.
struct Comparing {
    /// The flags, the bits of the names of the table, and their complements; the operation's until it has ended.
    words: Vec<u64>,
    width: usize,
    work: Work,
}

impl Drop for Comparing {
    fn drop(&mut self) {
        // An error was told where the comparison was waited for.
        let _ = self.work.wait(None);
    }
}

/// What is under way in a group. One thread at a time has it, and goes on with it.
pub(super) struct Rounds {
    /// The first name that only some ranks have submitted: none begins a round without it.
    pub(super) target: Option<usize>,
    comparing: Option<Comparing>,
    /// The flags of the last round, if they ask for more.
    flags: u64,
    /// The names that only some ranks had submitted in the last round.
    partly: Vec<u64>,
    started: Vec<Started>,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { target: None, comparing: None, flags: u64::MAX, partly: vec![], started: vec![] }
    }
}

impl Rounds {
    /// Whether there is something to wait for or to do.
    pub(super) fn are_under_way(&self) -> bool {
        self.comparing.is_some() || self.asks_for_more() || !self.started.is_empty()
    }

    fn asks_for_more(&self) -> bool {
        self.flags & (HAS_FRESH | HAS_LATE) != HAS_FRESH | HAS_LATE
    }

    /// Nothing is compared any more; what has started ends.
    pub(super) fn stop(&mut self) {
        *self = Self { started: std::mem::take(&mut self.started), ..Self::default() };
    }
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
    /// Takes one step, and waits in it until the time `until` at most; returns what has ended, and nothing if there is nothing to do, or no
    /// time left. With a time, it does not exchange names: other ranks may be late.
    pub(super) fn step(
        &self,
        rounds: &mut Rounds,
        until: Option<Instant>,
    ) -> Result<Option<Vec<Ended>>, Error> {
        if rounds.asks_for_more() {
            return if until.is_some() { Ok(None) } else { self.do_more(rounds).map(Some) };
        }
        if rounds.comparing.is_none() && lock(&self.state).is_due(rounds) {
            rounds.comparing = Some(self.compare()?);
        }
        let comparing = rounds.comparing.iter().map(|comparing| &comparing.work);
        let works: Vec<Work> =
            comparing.chain(rounds.started.iter().map(|each| &each.work)).cloned().collect();
        if works.is_empty() {
            return Ok(None);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // While ranks compare, submissions wait for the next round.
        let longest = left.or(rounds.comparing.is_none().then_some(ATTENDED));
        match Work::wait_any(&works, longest) {
            Ok(at) => {
                if let Some(comparing) = rounds.comparing.take_if(|_| at == 0) {
                    return self.compared(comparing, rounds).map(Some);
                }
                let Started { work, name, end } =
                    rounds.started.remove(at - usize::from(rounds.comparing.is_some()));
                Ok(Some(vec![Ended::of(end, &name, work.wait(None))]))
            }
            Err(Error::Timeout { .. }) => Ok(until.is_none().then(Vec::new)),
            // The engine is of no more use.
            Err(why) => {
                rounds.comparing = None;
                let started = std::mem::take(&mut rounds.started).into_iter();
                Ok(Some(started.map(|each| Ended::of(each.end, &each.name, Err(why.clone()))).collect()))
            }
        }
    }

    /// Begins a round.
    fn compare(&self) -> Result<Comparing, Error> {
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
        let span = (words.as_mut_ptr() as usize, size_of_val(&*words));
        let call = own_call(Collective::AllReduce, span, span, DType::U64, ReduceOp::Band, Counts::default());
        let work = self.begin(&call, "names")?;
        Ok(Comparing { words, width, work })
    }

    /// Starts what all ranks have submitted, in the order of the table; returns what could not be started.
    fn compared(&self, comparing: Comparing, rounds: &mut Rounds) -> Result<Vec<Ended>, Error> {
        comparing.work.wait(None)?;
        let (words, width) = (&comparing.words, comparing.width);
        let (common, lacking) = (&words[1..=width], &words[1 + width..]);
        rounds.flags = words[0];
        rounds.partly = common.iter().zip(lacking).map(|(common, lacking)| !lacking & !common).collect();
        rounds.target = numbers(&rounds.partly).next();
        lock(&self.state).table.see(numbers(common), numbers(&rounds.partly));
        let mut refused = vec![];
        for id in numbers(common) {
            let Some(Submitted { name, call, end, .. }) = lock(&self.state).pending.remove(&id) else {
                continue;
            };
            match self.begin(&call, &name) {
                Ok(work) => rounds.started.push(Started { work, name, end }),
                Err(why) => refused.push(Ended::of(end, &name, Err(why))),
            }
        }
        Ok(refused)
    }

    /// What the flags of the last round ask for.
    fn do_more(&self, rounds: &mut Rounds) -> Result<Vec<Ended>, Error> {
        let flags = std::mem::replace(&mut rounds.flags, u64::MAX);
        let mut ended = vec![];
        if flags & HAS_LATE == 0 {
            let failed = self.give_up(&rounds.partly, &mut ended)?;
            rounds.partly.iter_mut().zip(failed).for_each(|(word, failed)| *word &= !failed);
            rounds.target = numbers(&rounds.partly).next();
        }
        // It may change the numbers of names.
        if flags & HAS_FRESH == 0 {
            self.exchange(&mut rounds.target, &mut ended)?;
        }
        Ok(ended)
    }

    /// Starts an operation when there is room for one more.
    fn begin(&self, call: &Call, name: &str) -> Result<Work, Error> {
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
    fn exchange(&self, target: &mut Option<usize>, ended: &mut Vec<Ended>) -> Result<(), Error> {
        let own = {
            let mut state = lock(&self.state);
            let mut declared = std::mem::take(&mut state.declared);
            declared.retain(|(name, _)| state.table.id(name).is_none());
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
        added.retain(|(name, _)| !differing.contains_key(name) && state.table.id(name).is_none());
        if let Some(moved) = state.table.add(added) {
            *target = target.and_then(|id| moved[id]);
            for (id, submitted) in std::mem::take(&mut state.pending) {
                match moved[id] {
                    Some(id) => drop(state.pending.insert(id, submitted)),
                    // The name is new again.
                    None => state.fresh.push(submitted),
                }
            }
        }
        for submitted in std::mem::take(&mut state.fresh) {
            match (differing.get(&submitted.name), state.table.id(&submitted.name)) {
                (Some(why), _) => {
                    let why = Failure { code: INVALID_ARGUMENT, text: why.clone() };
                    ended.push(Ended { end: submitted.end, result: Err(why) });
                }
                // Another rank may have given the name another meaning while this one submitted it.
                (None, Some(id)) => match state.contradiction(id, &submitted, (self.rank, self.size)) {
                    Some(why) => ended.push(Ended { end: submitted.end, result: Err(why) }),
                    None => drop(state.pending.insert(id, submitted)),
                },
                // It was submitted since.
                (None, None) => state.fresh.push(submitted),
            }
        }
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
    fn give_up(&self, partly: &[u64], ended: &mut Vec<Ended>) -> Result<Vec<u64>, Error> {
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
            ended.push(Ended { end: submitted.end, result: Err(Failure { code: DEADLINE_EXCEEDED, text }) });
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
