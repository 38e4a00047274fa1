//! The rounds in which the ranks compare what they have submitted, and start what all have.

use std::time::{Duration, Instant};

use shouter::{Collective, DType, Error, ReduceOp, Work};

use super::state::{Operation, Submitted, What};
use super::{End, Failure, Named, lock};
use crate::call::{Call, Counts};
use crate::sys;

/// How long the thread waits for what it has started before it looks for new submissions.
const ATTENDED: Duration = Duration::from_micros(100);

/// An operation under way.
pub(super) struct Started {
    work: Work,
    name: String,
    /// None where a rank that has joined gives zeroes.
    end: Option<End>,
    /// These zeroes.
    _memory: Vec<u64>,
}

impl Started {
    pub(super) fn of(work: Work, name: String, end: End) -> Self {
        Self { work, name, end: Some(end), _memory: vec![] }
    }

    pub(super) fn of_zeroes(work: Work, memory: Vec<u64>) -> Self {
        Self { work, name: String::new(), end: None, _memory: memory }
    }

    /// Its end, if a kernel is to be told.
    fn ended(self, result: Result<(), Error>) -> Option<Ended> {
        let Self { name, end, .. } = self;
        end.map(|end| Ended::of(end, &name, result))
    }
}

/// An operation that has ended, whose kernel is to be told.
pub(super) struct Ended {
    end: End,
    result: Result<(), Failure>,
}

impl Ended {
    pub(super) fn of(end: End, name: &str, result: Result<(), Error>) -> Self {
        Self { end, result: result.map_err(|why| Failure::of(&why, &format!("'{name}': "))) }
    }

    pub(super) fn failed(end: End, why: Failure) -> Self {
        Self { end, result: Err(why) }
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
    /// What all ranks have met in the last round, and one has refused, or has joined.
    met: Vec<usize>,
    /// All ranks have joined.
    is_left: bool,
    pub(super) started: Vec<Started>,
    /// What has ended while the ranks do what the last round asks for.
    pub(super) ended: Vec<Ended>,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            target: None,
            comparing: None,
            flags: u64::MAX,
            partly: vec![],
            met: vec![],
            is_left: false,
            started: vec![],
            ended: vec![],
        }
    }
}

impl Rounds {
    /// Whether there is something to wait for or to do.
    pub(super) fn are_under_way(&self) -> bool {
        self.comparing.is_some() || self.asks_for_more() || !self.started.is_empty()
    }

    fn asks_for_more(&self) -> bool {
        self.flags & (HAS_FRESH | HAS_LATE) != HAS_FRESH | HAS_LATE || !self.met.is_empty() || self.is_left
    }

    /// Nothing is compared any more; what has started ends. Returns what has ended.
    pub(super) fn stop(&mut self) -> Vec<Ended> {
        let ended = std::mem::take(&mut self.ended);
        *self = Self { started: std::mem::take(&mut self.started), ..Self::default() };
        ended
    }
}

/// Bits of the names of the table.
pub(super) fn bits<'a>(of: impl IntoIterator<Item = &'a usize>, words: usize) -> Vec<u64> {
    let mut bits = vec![0; words];
    for id in of {
        bits[id / 64] |= 1 << (id % 64);
    }
    bits
}

/// The numbers whose bits are set.
pub(super) fn numbers(words: &[u64]) -> impl Iterator<Item = usize> {
    words
        .iter()
        .enumerate()
        .flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * at + bit))
}

/// Flags of a round, at zero where a rank has them.
const HAS_FRESH: u64 = 1;
const HAS_LATE: u64 = 2;
const HAS_REFUSED: u64 = 4;
const HAS_JOINED: u64 = 8;
const GOES_ON: u64 = 16;

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
                let started = rounds.started.remove(at - usize::from(rounds.comparing.is_some()));
                let result = started.work.wait(None);
                Ok(Some(started.ended(result).into_iter().collect()))
            }
            Err(Error::Timeout { .. }) => Ok(until.is_none().then(Vec::new)),
            // The engine is of no more use.
            Err(why) => {
                rounds.comparing = None;
                let started = std::mem::take(&mut rounds.started).into_iter();
                Ok(Some(started.filter_map(|each| each.ended(Err(why.clone()))).collect()))
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
            if self.has_late(&state) {
                flags &= !HAS_LATE;
            }
            if state.pending.values().any(|queue| queue.front().is_some_and(Submitted::is_refused)) {
                flags &= !HAS_REFUSED;
            }
            flags &= if state.joined.is_some() { !HAS_JOINED } else { !GOES_ON };
            let (own, lacking) = match state.joined {
                // It has everything that others have, and nothing else.
                Some(_) => (vec![u64::MAX; width], vec![u64::MAX; width]),
                None => {
                    // What it only refuses, it has where others have it, too.
                    let own = bits(state.offered(), width);
                    let lacking = bits(state.submitted(), width).iter().map(|word| !word).collect();
                    (own, lacking)
                }
            };
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
        if rounds.flags & GOES_ON != 0 {
            rounds.is_left = true;
            return Ok(vec![]);
        }
        rounds.partly = common.iter().zip(lacking).map(|(common, lacking)| !lacking & !common).collect();
        rounds.target = numbers(&rounds.partly).next();
        {
            let mut state = lock(&self.state);
            state.table.see(numbers(common), numbers(&rounds.partly));
            state.joined = state.joined.map(|rounds| rounds + 1);
            if rounds.flags & HAS_REFUSED == 0 {
                state.withdraw(common, self.deadline);
            }
        }
        if rounds.flags & (HAS_REFUSED | HAS_JOINED) != HAS_REFUSED | HAS_JOINED {
            rounds.met = numbers(common).collect();
            return Ok(vec![]);
        }
        let mut refused = vec![];
        for id in numbers(common) {
            let Some(Submitted { name, what: What::Operation(Operation { call, end, .. }), .. }) =
                lock(&self.state).pop(id)
            else {
                continue;
            };
            match self.begin(&call, &name) {
                Ok(work) => rounds.started.push(Started::of(work, name, end)),
                Err(why) => refused.push(Ended::of(end, &name, Err(why))),
            }
        }
        Ok(refused)
    }

    /// What the last round asks for.
    fn do_more(&self, rounds: &mut Rounds) -> Result<Vec<Ended>, Error> {
        let flags = std::mem::replace(&mut rounds.flags, u64::MAX);
        if std::mem::take(&mut rounds.is_left) {
            self.leave()?;
            return Ok(vec![]);
        }
        let met = std::mem::take(&mut rounds.met);
        if !met.is_empty() {
            self.settle(&met, rounds)?;
        }
        if flags & HAS_LATE == 0 {
            let failed = self.give_up(&rounds.partly, &mut rounds.ended)?;
            rounds.partly.iter_mut().zip(failed).for_each(|(word, failed)| *word &= !failed);
            rounds.target = numbers(&rounds.partly).next();
        }
        // It may change the numbers of names.
        if flags & HAS_FRESH == 0 {
            self.exchange(&mut rounds.target, &mut rounds.ended)?;
        }
        Ok(std::mem::take(&mut rounds.ended))
    }

    /// Starts an operation when there is room for one more.
    pub(super) fn begin(&self, call: &Call, name: &str) -> Result<Work, Error> {
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
    pub(super) fn run_own(&self, call: &Call) -> Result<(), Error> {
        self.begin(call, "names")?.wait(None)
    }
}

pub(super) fn own_call(
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
