//! Operations with names, for TensorFlow's graphs: executors of the ranks submit them in any order, and no submission waits.
//!
//! Each group of named operations has a thread, and a table of the names that its ranks have agreed on. While something is submitted, the
//! threads compare what there is: each gives a bit for each name of the table, and one all-reduce of these bits yields the names that all
//! ranks have submitted (their operations start, in the order of the table) and those that only some have. The first of those is the target: a rank
//! takes part in the next round when it has submitted that, or after [`GRACE`]. So rounds are few, and none is needed
//! while nothing is submitted. Names that are new to the table are exchanged first, and are appended in the order of ranks, so the table is the
//! same everywhere. The group must have no other operations: the order of these is the table's.
#![allow(
    unsafe_code,
    reason = "buffers of TensorFlow, which its kernels keep until their operation has ended"
)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use shouter::{Collective, DType, Error, Group, ReduceOp};

use crate::call::{self, Call, Counts};
use crate::sys;

/// How long a rank that has not submitted the target waits for it before it takes part in a round: its peers hear of deadlines, and it of
/// their ends.
const GRACE: Duration = Duration::from_millis(20);

/// How long the thread waits for what it has started before it looks for new submissions.
const ATTENDED: Duration = Duration::from_micros(100);

/// What an operation is whose name was made: anything, for the library itself finds where ranks differ, and the group ends.
const UNNAMED: &str = "a name that was made";

/// The groups of named operations, by number.
static GROUPS: Mutex<BTreeMap<i64, Weak<Named>>> = Mutex::new(BTreeMap::new());

/// The address of [`submit`].
pub(crate) fn address() -> usize {
    submit as *const () as usize
}

/// What a kernel of TensorFlow submits, as kernels.cc has it.
#[repr(C)]
pub(crate) struct Request {
    name: *const c_char,
    kind: *const c_char,
    op: *const c_char,
    dtype: *const c_char,
    root: u32,
    /// Whether the trainer has given the name: it is one thing for ever.
    is_fixed: bool,
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    given: *const u64,
    given_count: usize,
    taken: *const u64,
    taken_count: usize,
}

/// Tells a kernel of its operation's end: the code of TensorFlow's status, 0 if it ended well, and the reason.
type Done = unsafe extern "C" fn(context: *mut c_void, code: i32, text: *const c_char);

/// Submits a collective with a name to a group of named operations. `done` is called once, when it has ended, on any thread, this one included.
///
/// # Safety
/// The request's strings and counts can be read during the call; its input can be read and its output written until `done` is called.
unsafe extern "C" fn submit(group: i64, request: *const Request, done: Done, context: *mut c_void) {
    let end = End { done, context };
    // SAFETY: the caller's promises.
    let submission = unsafe { read(&*request) };
    let named = lock(&GROUPS).get(&group).and_then(Weak::upgrade).ok_or_else(|| {
        let text = "the group of this function is closed; trace the function anew, in the group that shouter.init has made since";
        Failure { code: FAILED_PRECONDITION, text: text.into() }
    });
    let refused = match (named, submission) {
        (Err(why), _) => why,
        (_, Err(why)) => Failure::of(&why, ""),
        (Ok(named), Ok((name, view, call))) => {
            named.submit(Submitted { name, view, call, since: Instant::now(), end });
            return;
        }
    };
    end.call(&Err(refused));
}

/// A request's name, what it is for people, and the library's call.
///
/// # Safety
/// As for [`submit`].
unsafe fn read(request: &Request) -> Result<(String, String, Call), Error> {
    let text = |at: *const c_char| {
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(at) }.to_str().map_err(|why| Error::Argument(why.to_string()))
    };
    let counts = |at: *const u64, count: usize| -> Vec<usize> {
        if count == 0 {
            return vec![];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, count) }.iter().map(|count| *count as usize).collect()
    };
    let name = text(request.name)?;
    let (kind, op, dtype) =
        (call::kind(text(request.kind)?)?, call::op(text(request.op)?)?, call::dtype(text(request.dtype)?)?);
    let (root, output) = (request.root, (request.output as usize, request.output_bytes));
    let is_broadcast = kind == Collective::Broadcast;
    // A broadcast has one tensor, the output.
    let input = if is_broadcast { (0, 0) } else { (request.input as usize, request.input_bytes) };
    let counts = Counts {
        given: counts(request.given, request.given_count),
        taken: counts(request.taken, request.taken_count),
    };
    let more = match kind {
        Collective::Broadcast => format!(" from rank {root}"),
        Collective::AllReduce | Collective::ReduceScatter => format!(", {op}"),
        _ => String::new(),
    };
    let view = match request.is_fixed {
        true => format!("{kind} of {} x {dtype}{more}", request.input_bytes / dtype.size()),
        false => UNNAMED.to_owned(),
    };
    let call = Call { kind, input, output, dtype, op, root, factor: None, counts, stream: None };
    Ok((name.to_owned(), view, call))
}

/// Puts names that `shouter.tensorflow` has made into the table in this order when its ranks next agree.
#[pyfunction]
pub(crate) fn named_declare(group: i64, names: Vec<String>) {
    // Where the group is closed, its operations say so.
    if let Some(named) = lock(&GROUPS).get(&group).and_then(Weak::upgrade) {
        lock(&named.state).declared.extend(names.into_iter().map(|name| (name, UNNAMED.to_owned())));
    }
}

/// The end of a kernel's operation.
struct End {
    done: Done,
    context: *mut c_void,
}

// SAFETY: the kernel's callback may run on any thread.
unsafe impl Send for End {}

impl End {
    fn call_named(self, name: &str, result: Result<(), Error>) {
        self.call(&result.map_err(|why| Failure::of(&why, &format!("'{name}': "))));
    }

    fn call(self, result: &Result<(), Failure>) {
        let (code, text) = match result {
            Ok(()) => (0, CString::default()),
            Err(Failure { code, text }) => (*code, CString::new(text.replace('\0', " ")).unwrap_or_default()),
        };
        // SAFETY: it is called once, with the context that came with it.
        unsafe { (self.done)(self.context, code, text.as_ptr()) };
    }
}

/// An operation under way.
struct Started {
    work: shouter::Work,
    name: String,
    end: End,
}

/// An error as a status of TensorFlow, with the codes of absl's.
#[derive(Clone)]
struct Failure {
    code: i32,
    text: String,
}

const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const FAILED_PRECONDITION: i32 = 9;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

impl Failure {
    /// An error of the library, with words before it.
    fn of(error: &Error, before: &str) -> Self {
        let code = match error {
            Error::Argument(_) | Error::Mismatch { .. } => INVALID_ARGUMENT,
            Error::Deadline { .. } => DEADLINE_EXCEEDED,
            Error::PeerFailed { .. } => UNAVAILABLE,
            Error::Closed { .. } => FAILED_PRECONDITION,
            _ => INTERNAL,
        };
        Self { code, text: format!("{before}{error}") }
    }
}

struct Submitted {
    name: String,
    /// What it is, for people and for comparison.
    view: String,
    call: Call,
    since: Instant,
    end: End,
}

/// A group of named operations.
pub(crate) struct Named {
    state: Mutex<State>,
    /// Something was submitted, or the group is left.
    wake: Condvar,
    group: Weak<Group>,
    rank: u32,
    size: u32,
    /// Operations that wait longer for other ranks fail.
    deadline: Duration,
}

#[derive(Default)]
struct State {
    /// The names that all ranks know, and what they are.
    table: Vec<(String, String)>,
    ids: HashMap<String, usize>,
    /// What was submitted and is not started, by its number in the table.
    pending: BTreeMap<usize, Submitted>,
    /// Of names that are not in the table.
    fresh: Vec<Submitted>,
    /// Names, and what they are, that are to come before those.
    declared: Vec<(String, String)>,
    /// Why nothing can be submitted any more.
    over: Option<Failure>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the operations of a group going; when it is dropped, they end.
pub(crate) struct Agreement(Arc<Named>);

impl Agreement {
    /// From now on the group has named operations only, which find it by this number.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no thread.
    pub(crate) fn open(number: i64, group: &Arc<Group>) -> Result<Self, Error> {
        let named = Arc::new(Named {
            state: Mutex::default(),
            wake: Condvar::new(),
            group: Arc::downgrade(group),
            rank: group.rank(),
            size: group.size(),
            deadline: group.deadline(),
        });
        let of_thread = named.clone();
        let started = thread::Builder::new().name("shouter-named".into()).spawn(move || of_thread.run());
        started.map_err(|why| {
            Error::Device(format!("no thread for named operations: {why}; look at the pids limit"))
        })?;
        let mut groups = lock(&GROUPS);
        groups.retain(|_, named| named.strong_count() > 0);
        groups.insert(number, Arc::downgrade(&named));
        Ok(Self(named))
    }
}

impl Drop for Agreement {
    fn drop(&mut self) {
        self.0.finish(&Failure { code: FAILED_PRECONDITION, text: "the group was closed".into() });
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
    fn submit(&self, submitted: Submitted) {
        let mut state = lock(&self.state);
        match state.refusal(&submitted, (self.rank, self.size)) {
            Some(why) => {
                drop(state);
                submitted.end.call(&Err(why));
            }
            None => {
                match state.ids.get(&submitted.name).copied() {
                    Some(id) => drop(state.pending.insert(id, submitted)),
                    None => state.fresh.push(submitted),
                }
                drop(state);
                self.wake.notify_one();
            }
        }
    }

    /// Nothing goes on: all that was submitted fails.
    fn finish(&self, why: &Failure) {
        let mut state = lock(&self.state);
        let why = state.over.get_or_insert_with(|| why.clone()).clone();
        let submitted = state.take();
        drop(state);
        self.wake.notify_one();
        for submitted in submitted {
            let text = format!("'{}': {}", submitted.name, why.text);
            submitted.end.call(&Err(Failure { code: why.code, text }));
        }
    }

    fn run(&self) {
        let mut target = None;
        while self.is_due(target) {
            match self.round() {
                Ok(next) => target = next,
                Err(why) => {
                    let failure = self.explained(&why);
                    self.finish(&failure);
                    return;
                }
            }
        }
    }

    /// Waits for the next round; false if there will be none.
    fn is_due(&self, target: Option<usize>) -> bool {
        let mut state = lock(&self.state);
        let mut until = None;
        loop {
            if state.over.is_some() {
                return false;
            }
            if state.is_empty() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            let until = *until.get_or_insert(now + GRACE);
            if target.is_none_or(|target| state.pending.contains_key(&target)) || until <= now {
                return true;
            }
            state = self.wake.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Compares with the other ranks what was submitted, and starts what all have; returns the next target.
    fn round(&self) -> Result<Option<usize>, Error> {
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

    /// The end of the group under a round.
    fn explained(&self, why: &Error) -> Failure {
        let state = lock(&self.state);
        let mut names: Vec<&str> = state.pending.keys().map(|id| &*state.table[*id].0).collect();
        names.extend(state.fresh.iter().map(|submitted| &*submitted.name));
        let more = if names.len() > 8 { format!(" and {} more", names.len() - 8) } else { String::new() };
        names.truncate(8);
        let missing: Vec<String> = why.missing().iter().map(u32::to_string).collect();
        if missing.is_empty() {
            return Failure::of(why, "");
        }
        let before = format!(
            "'{}'{more} submitted here, and nothing by rank {}: ",
            names.join("', '"),
            missing.join(", ")
        );
        Failure::of(why, &before)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.fresh.is_empty()
    }

    fn take(&mut self) -> Vec<Submitted> {
        let pending = std::mem::take(&mut self.pending).into_values();
        pending.chain(std::mem::take(&mut self.fresh)).collect()
    }

    /// Why this cannot be submitted.
    fn refusal(&self, submitted: &Submitted, of: (u32, u32)) -> Option<Failure> {
        let Submitted { name, .. } = submitted;
        let invalid = |text| Some(Failure { code: INVALID_ARGUMENT, text });
        if let Some(why) = &self.over {
            return Some(Failure { code: why.code, text: format!("'{name}': {}", why.text) });
        }
        let id = self.ids.get(name);
        if id.is_some_and(|id| self.pending.contains_key(id))
            || self.fresh.iter().any(|other| other.name == *name)
        {
            return invalid(format!(
                "'{name}' was submitted before, and has not started; give each tensor a name of its own"
            ));
        }
        match id {
            Some(id) => self.contradiction(*id, submitted, of),
            None => check(submitted, of),
        }
    }

    /// Why a name of the table cannot be used for this.
    fn contradiction(&self, id: usize, submitted: &Submitted, of: (u32, u32)) -> Option<Failure> {
        let (name, known) = &self.table[id];
        if *known != submitted.view {
            let text =
                format!("'{name}' is known as {known}, and this is {}; give it another name", submitted.view);
            return Some(Failure { code: INVALID_ARGUMENT, text });
        }
        check(submitted, of)
    }
}

/// What the library would refuse when it starts, where the other ranks have started theirs.
fn check(submitted: &Submitted, (rank, size): (u32, u32)) -> Option<Failure> {
    let call = &submitted.call;
    let checked =
        if call.kind.has_counts() { call.uneven().map(drop) } else { call.checked(rank, size).map(drop) };
    checked.err().map(|why| Failure::of(&why, &format!("'{}': ", submitted.name)))
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
