//! Operations with names, for TensorFlow's graphs: executors of the ranks submit them in any order, and no submission waits for another.
//!
//! Each group of named operations has a thread, and a table of the names that its ranks have agreed on. While something is submitted, the
//! ranks compare what there is: each gives a bit for each name of the table, and one all-reduce of these bits yields the names that all
//! ranks have submitted (their operations start, in the order of the table) and those that only some have. The first of those is the target: a rank
//! takes part in the next round when it has submitted that, or after [`GRACE`]. So rounds are few, and none is needed
//! while nothing is submitted. Names that are new to the table are exchanged first, and are appended in the order of ranks, so the table is the
//! same everywhere. The group must have no other operations: the order of these is the table's.
//!
//! What is not met within the deadline fails where it was submitted. The ranks that had not submitted it note that, and each has the same error from its own use of
//! the name, so the next uses meet ([`missed`]). With an operation of a function's run, the whole run fails: what else of it waits, and what it submits later.
//!
//! What a rank refuses begins no round, for others may never submit it. It takes part in those that operations begin, and where all ranks have met
//! it, the others' operation fails; a refusal that is not met within the deadline is withdrawn. What is refused in a function, while it is traced or
//! run, stands for a whole run: a rank offers nothing of later runs while such a refusal waits. So no operation of a run that fails with a refusal
//! meets one of the refusing rank's next run, and the next runs meet. Eager operations do not wait for refusals. A rank that has joined
//! takes part in every round, and changes none of its bits. Only where a round's flags say that there is either, the ranks tell each other
//! about what they have met before they start it.
//!
//! A wake-up of a thread costs more than a small operation. So a thread that submits goes on with the rounds itself where no other does: as long as
//! its operation is under way if it waits for that, else for [`PATIENCE`], for an executor's threads are few, and another rank's may be
//! waiting for what comes after. The group's thread goes on with what is left.
#![allow(
    unsafe_code,
    reason = "buffers of TensorFlow, which its kernels keep until their operation has ended"
)]

mod meeting;
mod missed;
mod rounds;
mod state;
mod table;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rounds::{Ended, Rounds};
use shouter::{Collective, Error, Group, Reason};
use state::{Operation, State, Submitted, What};

use crate::call::{self, Call, Counts};
use crate::wait::aside_as;

/// How long a rank that has not submitted the target waits for it before it takes part in a round: its peers hear of deadlines, and it of
/// their ends.
const GRACE: Duration = Duration::from_millis(20);

/// How long a thread that submits, and does not wait for the operation's end, goes on with the rounds.
const PATIENCE: Duration = Duration::from_micros(200);

thread_local! {
    /// This thread tells a kernel of its operation's end.
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

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
    /// Whether the trainer has given the name: it is one thing, as long as it is in the table.
    is_fixed: bool,
    /// Whether the submitting thread then waits for the operation's end, and for nothing else.
    is_awaited: bool,
    /// Tells a run of a function from all others of the process; of no meaning where the thread waits.
    run: i64,
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
    let end = End { done: Some(done), context };
    // SAFETY: the caller's promises.
    let (submission, is_awaited) = unsafe { (read(&*request), (*request).is_awaited) };
    let named = lock(&GROUPS).get(&group).and_then(Weak::upgrade).ok_or_else(|| {
        let text = "the group of this function is closed; trace the function anew, in the group that shouter.init has made since";
        Failure::new(FAILED_PRECONDITION, text)
    });
    let refused = match (named, submission) {
        (Err(why), _) => why,
        (_, Err(why)) => Failure::of(&why, ""),
        (Ok(named), Ok(Read { name, view, call, run })) => {
            named.submit(name, view, Operation { call, end, run }, is_awaited);
            return;
        }
    };
    end.call(&Err(refused));
}

/// The address of [`refuse`].
pub(crate) fn address_of_refusal() -> usize {
    refuse as *const () as usize
}

/// A kernel refuses its inputs: the other ranks' operation of this name fails, too.
///
/// # Safety
/// The strings can be read during the call.
unsafe extern "C" fn refuse(group: i64, name: *const c_char, why: *const c_char, is_awaited: bool, run: i64) {
    // SAFETY: the caller's promise.
    let [name, why] = [name, why].map(|at| unsafe { CStr::from_ptr(at) }.to_string_lossy());
    refuse_in(group, &name, &why, (!is_awaited).then_some(run), !is_awaited);
}

fn refuse_in(group: i64, name: &str, why: &str, run: Option<i64>, is_of_run: bool) {
    // Where the group is closed, its operations say so.
    let named = lock(&GROUPS).get(&group).and_then(Weak::upgrade);
    let Some(named) = named else { return };
    lock(&named.state).refuse(name, why, run, is_of_run);
    named.wake.notify_one();
}

/// What a request asks for.
struct Read {
    name: String,
    view: String,
    call: Call,
    run: Option<i64>,
}

/// A request's name, what it is for people, and the library's call.
///
/// # Safety
/// As for [`submit`].
unsafe fn read(request: &Request) -> Result<Read, Error> {
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
    let kind = call::kind(text(request.kind)?)?;
    let (op, dtype) = (call::op(text(request.op)?)?, call::dtype(text(request.dtype)?)?);
    let (root, output) = (request.root, (request.output as usize, request.output_bytes));
    let is_broadcast = kind == Collective::Broadcast;
    // A broadcast has one tensor, the output.
    let input = if is_broadcast { (0, 0) } else { (request.input as usize, request.input_bytes) };
    let counts = Counts {
        given: counts(request.given, request.given_count),
        taken: counts(request.taken, request.taken_count),
    };
    let view = if request.is_fixed {
        let more = match kind {
            Collective::Broadcast => format!(" from rank {root}"),
            Collective::AllReduce | Collective::ReduceScatter | Collective::ReduceScatterV => {
                format!(", {op}")
            }
            _ => String::new(),
        };
        format!("{kind} of {} x {dtype}{more}", request.input_bytes / dtype.size())
    } else {
        UNNAMED.to_owned()
    };
    let call = Call { kind, input, output, dtype, op, root, factor: None, counts, stream: None };
    let run = (!request.is_awaited).then_some(request.run);
    Ok(Read { name: name.to_owned(), view, call, run })
}

/// Puts names that `shouter.tensorflow` has made into the table in this order when its ranks next agree.
#[pyfunction]
pub(crate) fn named_declare(group: i64, names: Vec<String>) {
    // Where the group is closed, its operations say so.
    let named = lock(&GROUPS).get(&group).and_then(Weak::upgrade);
    let Some(named) = named else { return };
    lock(&named.state).declared.extend(names.into_iter().map(|name| (name, UNNAMED.to_owned())));
}

/// A call refuses its arguments before it submits anything: the other ranks' operation of this name fails, too, and the run that it is of where the call
/// is of a function.
#[pyfunction]
pub(crate) fn named_refuse(group: i64, name: &str, why: &str, is_of_run: bool) {
    refuse_in(group, name, why, None, is_of_run);
}

/// Takes part with zeroes in what the other ranks reduce, until all ranks have joined; returns the rank that was the last.
#[pyfunction]
pub(crate) fn named_join(py: Python<'_>, group: i64) -> PyResult<u32> {
    let named = lock(&GROUPS).get(&group).and_then(Weak::upgrade);
    let named = named.ok_or_else(|| crate::error::closed(py))?;
    aside_as(
        py,
        move || named.join(),
        |py, why| {
            let error = why.error.clone().unwrap_or_else(|| Error::Argument(why.text.clone()));
            crate::error::raised(py, &error)
        },
    )
}

/// The end of a kernel's operation, which is told once: where it is dropped untold, as an error.
struct End {
    /// None once the kernel was told.
    done: Option<Done>,
    context: *mut c_void,
}

// SAFETY: the kernel's callback may run on any thread.
unsafe impl Send for End {}

impl End {
    /// What tells the kernel's operation from all others until its end.
    fn kernel(&self) -> usize {
        self.context as usize
    }

    fn call(mut self, result: &Result<(), Failure>) {
        self.tell(result);
    }

    fn tell(&mut self, result: &Result<(), Failure>) {
        let Some(done) = self.done.take() else { return };
        let (code, text) = match result {
            Ok(()) => (0, CString::default()),
            Err(Failure { code, text, .. }) => {
                (*code, CString::new(text.replace('\0', " ")).unwrap_or_default())
            }
        };
        let outer = TELLS.replace(true);
        // SAFETY: it is called once, with the context that came with it.
        unsafe { done(self.context, code, text.as_ptr()) };
        TELLS.set(outer);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Its kernel would wait for ever.
        self.tell(&Err(Failure::new(
            INTERNAL,
            "the operation was dropped before it ended; report this error",
        )));
    }
}

/// An error as a status of TensorFlow, with the codes of absl's.
#[derive(Clone)]
struct Failure {
    code: i32,
    text: String,
    /// The library's own.
    error: Option<Error>,
}

const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const FAILED_PRECONDITION: i32 = 9;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

impl Failure {
    fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), error: None }
    }

    /// An error of the library, with words before it.
    fn of(error: &Error, before: &str) -> Self {
        let code = match error {
            Error::Argument(_) | Error::Mismatch { .. } => INVALID_ARGUMENT,
            Error::Deadline { .. } => DEADLINE_EXCEEDED,
            Error::PeerFailed { .. } => UNAVAILABLE,
            // The same, whether the group has ended during an operation of the library or between two.
            Error::Closed { reason: Some(Reason::Diverged), .. } => INVALID_ARGUMENT,
            Error::Closed { reason: Some(_), .. } => UNAVAILABLE,
            Error::Closed { .. } => FAILED_PRECONDITION,
            _ => INTERNAL,
        };
        Self { code, text: format!("{before}{error}"), error: Some(error.clone()) }
    }
}

/// A group of named operations.
pub(crate) struct Named {
    state: Mutex<State>,
    /// There is something to do for the group's thread.
    wake: Condvar,
    /// All ranks have joined, or nothing goes on.
    left: Condvar,
    group: Weak<Group>,
    rank: u32,
    size: u32,
    /// Operations that wait longer for other ranks fail.
    deadline: Duration,
}

/// A thread's part in the rounds.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// The operation with whose end it is over.
    own: Option<usize>,
    /// When it is over.
    until: Option<Instant>,
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
            state: Mutex::new(State::new()),
            wake: Condvar::new(),
            left: Condvar::new(),
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
        self.0.finish(&Failure::new(FAILED_PRECONDITION, "the group was closed"));
    }
}

impl Named {
    fn submit(&self, name: String, view: String, operation: Operation, is_awaited: bool) {
        let since = Instant::now();
        let turn = Turn { own: Some(operation.end.kernel()), until: (!is_awaited).then(|| since + PATIENCE) };
        let submitted = Submitted { name, view, since, what: What::Operation(operation) };
        let mut state = lock(&self.state);
        let refused = match state.failed_before(&submitted) {
            // The others have failed with it before.
            Some(why) => Some(why),
            None => state.refusal(&submitted, (self.rank, self.size)).inspect(|why| {
                let run = submitted.run();
                state.refuse(&submitted.name, &why.text, run, run.is_some());
            }),
        };
        if let Some(why) = refused {
            drop(state);
            self.wake.notify_one();
            if let What::Operation(operation) = submitted.what {
                operation.end.call(&Err(why));
            }
            return;
        }
        state.keep(submitted);
        // What a kernel does when it is told must not delay other kernels.
        let may_go_on = is_awaited || !TELLS.get();
        let rounds = match &state.rounds {
            Some(rounds) if may_go_on && (rounds.are_under_way() || state.is_due(rounds)) => {
                state.rounds.take()
            }
            _ => None,
        };
        drop(state);
        match rounds {
            Some(rounds) => self.go_on(rounds, turn),
            // A thread that goes on with the rounds sees it.
            None => self.wake.notify_one(),
        }
    }

    /// Nothing goes on: all that was submitted fails.
    fn finish(&self, why: &Failure) {
        let mut state = lock(&self.state);
        let why = state.over.get_or_insert_with(|| why.clone()).clone();
        let submitted = state.take();
        drop(state);
        self.wake.notify_one();
        self.left.notify_all();
        for Submitted { name, what, .. } in submitted {
            if let What::Operation(operation) = what {
                let text = format!("'{name}': {}", why.text);
                operation.end.call(&Err(Failure { text, ..why.clone() }));
            }
        }
    }

    /// Waits until all ranks have joined; returns the last.
    fn join(&self) -> Result<u32, Failure> {
        let mut state = lock(&self.state);
        if let Some(Submitted { name, .. }) = state.operations().next() {
            let text = format!("join(): '{name}' was submitted, and has not started; wait for it before");
            return Err(Failure::new(INVALID_ARGUMENT, text));
        }
        state.joined = Some(0);
        self.wake.notify_one();
        while state.over.is_none() && state.joined.is_some() {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.over.clone().map_or(Ok(state.last), Err)
    }

    fn run(&self) {
        while let Some(rounds) = self.next() {
            self.go_on(rounds, Turn::default());
        }
    }

    /// Waits until there is something to do; none if nothing will be.
    fn next(&self) -> Option<Rounds> {
        let mut state = lock(&self.state);
        let mut until = None;
        loop {
            let is_idle = state.is_idle();
            let State { rounds: Some(rounds), over, .. } = &mut *state else {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if rounds.are_under_way() {
                return state.rounds.take();
            }
            if over.is_some() {
                return None;
            }
            if is_idle {
                until = None;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            let until = *until.get_or_insert(now + GRACE);
            if until <= now {
                rounds.target = None;
            }
            if state.rounds.as_ref().is_some_and(|rounds| state.is_due(rounds)) {
                return state.rounds.take();
            }
            state = self.wake.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Goes on with the rounds until there is nothing to do, or the thread's turn is over.
    fn go_on(&self, mut rounds: Rounds, turn: Turn) {
        loop {
            let (ended, failure) = match self.step(&mut rounds, turn.until) {
                Ok(Some(ended)) if ended.is_empty() => continue,
                Ok(Some(ended)) => (ended, None),
                Ok(None) => {
                    self.give_back(rounds);
                    return;
                }
                Err(why) => {
                    let ended = rounds.stop();
                    let failure = self.explained(&why);
                    // No other thread begins a round.
                    lock(&self.state).over.get_or_insert_with(|| failure.clone());
                    (ended, Some(failure))
                }
            };
            // Kernels are told without the rounds: what they do then may take long, or submit more.
            self.give_back(rounds);
            let is_over = turn.own.is_some_and(|own| ended.iter().any(|ended| ended.is_of(own)));
            ended.into_iter().for_each(Ended::tell);
            if let Some(failure) = failure {
                self.finish(&failure);
                return;
            }
            if is_over {
                return;
            }
            // Another thread may have them now.
            match lock(&self.state).rounds.take() {
                Some(taken) => rounds = taken,
                None => return,
            }
        }
    }

    /// Leaves the rounds to other threads.
    fn give_back(&self, rounds: Rounds) {
        let mut state = lock(&self.state);
        let is_left = rounds.are_under_way() || !state.is_idle() || state.over.is_some();
        state.rounds = Some(rounds);
        drop(state);
        if is_left {
            self.wake.notify_one();
        }
    }

    /// The end of the group under a round.
    fn explained(&self, why: &Error) -> Failure {
        let state = lock(&self.state);
        let mut names: Vec<&str> = state.operations().map(|submitted| &*submitted.name).collect();
        let more = if names.len() > 8 { format!(" and {} more", names.len() - 8) } else { String::new() };
        names.truncate(8);
        let missing: Vec<String> = why.missing().iter().map(u32::to_string).collect();
        if missing.is_empty() || names.is_empty() && state.joined.is_none() {
            return Failure::of(why, "");
        }
        if state.joined.is_some() {
            let late = missing.join(", ");
            let before =
                format!("this rank has joined, and rank {late} neither joined nor reduced anything: ");
            return Failure::of(why, &before);
        }
        let before = format!(
            "'{}'{more} submitted here, and nothing by rank {}: ",
            names.join("', '"),
            missing.join(", ")
        );
        Failure::of(why, &before)
    }
}
