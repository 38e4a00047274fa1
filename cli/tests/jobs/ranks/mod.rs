//! Jobs of real ranks: `shouter run` starts the test's own executable again, once for each rank.
//!
//! A rank runs the test called `rank_body`, which does nothing unless [`scenario`] names a scenario. A rank reports to
//! the test with [`tell`], and its result is its exit status ([`end`]). A job that is dropped is killed: the launcher
//! by its own process id, its ranks by those that it has announced.

// Each test file uses only a part.
#![allow(dead_code)]

#[cfg(feature = "cuda")]
pub(crate) mod gpu;
pub(crate) mod values;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use shouter::{Config, Error, Group};

/// The prefix of a line for the test; libtest prints lines of its own.
const MARK: &str = "@@ ";
/// The exit status of a rank that ended with error `n` is `ERROR + n`.
pub(crate) const ERROR: i32 = 40;
pub(crate) const CONFIG: i32 = ERROR + 1;
pub(crate) const JOIN: i32 = ERROR + 2;
pub(crate) const DEVICE: i32 = ERROR + 3;
pub(crate) const ARGUMENT: i32 = ERROR + 4;
pub(crate) const MISMATCH: i32 = ERROR + 5;
pub(crate) const PEER_FAILED: i32 = ERROR + 6;
pub(crate) const DEADLINE: i32 = ERROR + 7;
pub(crate) const CLOSED: i32 = ERROR + 8;
pub(crate) const ACCELERATOR: i32 = ERROR + 11;
/// The exit statuses of ranks whose group was ended by another rank.
pub(crate) const LOST_GROUP: [i32; 2] = [PEER_FAILED, CLOSED];
/// The time after which a job counts as hanging, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The time-out of silent ranks in jobs that test it, see [`Plan::silence_is_found`].
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(2);
/// The signal on which a rank writes its last events: one that a process ignores by default.
const DUMP_SIGNAL: &str = "URG";
/// The time limit for the dumps of ranks that hang, and the number of events that a failed test shows.
const DUMP_LIMIT: Duration = Duration::from_secs(5);
const SHOWN_EVENTS: usize = 60;

/// The time limit for a death that needs no heartbeat: known within half a second on an idle machine.
const AT_ONCE: Duration = Duration::from_secs(4);
/// The sleep of the thread that measures how busy the machine is.
const NAP: Duration = Duration::from_millis(10);
/// The number of times that a process waits for a core, from a rank's failure until the test knows another one's error.
const HOPS: u32 = 10;

/// The scenario of this process; `None` if it is no rank but the test itself.
pub(crate) fn scenario() -> Option<String> {
    std::env::var("SHOUTER_TEST_SCENARIO").ok()
}

/// A parameter of the scenario.
pub(crate) fn parameter(name: &str) -> Option<String> {
    std::env::var(format!("SHOUTER_TEST_{name}")).ok()
}

/// Reports a line to the test.
pub(crate) fn tell(text: impl std::fmt::Display) {
    println!("{MARK}{text}");
}

/// Joins as the launcher says.
pub(crate) fn join() -> Result<Group, Error> {
    Config::from_env().map_err(|error| Error::Config(error.to_string())).and_then(shouter::init)
}

/// The body of a rank in a scenario.
pub(crate) type Play = fn(&Group) -> Result<(), Error>;

/// Plays the scenario if this process is a rank, and ends the process.
pub(crate) fn play(plays: &[(&str, Play)], join: impl FnOnce() -> Result<Group, Error>) {
    let Some(scenario) = scenario() else { return };
    let (_, play) = plays.iter().find(|(name, _)| *name == scenario).expect("a scenario of this file");
    end(join().and_then(|group| play(&group).and_then(|()| group.finalize())))
}

/// Ends a rank with status 0, or with its error printed and as its exit status.
pub(crate) fn end(result: Result<(), Error>) -> ! {
    match result {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            tell(format_args!("error {error}"));
            std::process::exit(ERROR + error.code())
        }
    }
}

/// A job to be started.
pub(crate) struct Plan {
    command: Command,
    home: PathBuf,
    dumps: PathBuf,
    ranks: u32,
    after: Vec<String>,
    /// The test that the ranks run.
    body: String,
}

/// A job of so many ranks on so many hosts, or on hosts with these numbers of ranks, that plays a scenario of this file.
macro_rules! job {
    ($ranks:expr, $hosts:expr, $scenario:expr $(,)?) => {
        $crate::ranks::job_of(module_path!(), $ranks, $hosts, $scenario)
    };
}
pub(crate) use job;

/// The test that a rank runs.
pub(crate) const BODY: &str = "rank_body";

/// The full name of a module's test.
pub(crate) fn test_of(module: &str, test: &str) -> String {
    module.split_once("::").map_or_else(|| test.to_owned(), |(_, module)| format!("{module}::{test}"))
}

/// See [`job`](job!).
pub(crate) fn job_of(module: &str, ranks: u32, hosts: impl ToString, scenario: &str) -> Plan {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let home = std::env::temp_dir().join(format!("shouter-ranks-{}-{number}", std::process::id()));
    let dumps = home.with_extension("dumps");
    [&home, &dumps].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHOUTER_")) {
        command.env_remove(name);
    }
    command.args(["run", "--json", "--grace", "40", "-n", &ranks.to_string(), "--hosts", &hosts.to_string()]);
    // A rank that waits for a core on a busy machine is not given up.
    command.env("SHOUTER_TEST_SCENARIO", scenario).env("SHOUTER_HEARTBEAT_TIMEOUT", "30s");
    command.env("SHOUTER_DUMP_FOLDER", &dumps).env("SHOUTER_DUMP_SIGNAL", DUMP_SIGNAL);
    // Which algorithms run does not depend on how busy the machine is.
    command.env("SHOUTER_MEASURE_COSTS", "off").env("SHOUTER_COSTS_CACHE", dumps.join("measured.toml"));
    command.env("XDG_RUNTIME_DIR", &home).env("TMPDIR", &home).stdin(Stdio::null());
    Plan { command, home, dumps, ranks, after: vec![], body: test_of(module, BODY) }
}

impl Plan {
    /// Sets a variable of every rank.
    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.command.env(name, value.to_string());
        self
    }

    /// Has a rank that is silent given up after [`HEARTBEAT`].
    pub(crate) fn silence_is_found(self) -> Self {
        self.env("SHOUTER_HEARTBEAT_TIMEOUT", format!("{}s", HEARTBEAT.as_secs()))
    }

    /// Sets a parameter of the scenario.
    pub(crate) fn with(self, name: &str, value: impl ToString) -> Self {
        self.env(&format!("SHOUTER_TEST_{name}"), value)
    }

    /// Adds arguments for the launcher.
    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.after.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    /// Runs the job in a network namespace of its own, set up by the shell's `commands`. See [`Job::in_namespace`].
    pub(crate) fn in_namespace(mut self, commands: &str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", &format!("{commands} && exec \"$0\" \"$@\"")]);
        command.arg(self.command.get_program()).args(self.command.get_args()).stdin(Stdio::null());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        self.command = command;
        self
    }

    /// Starts the job.
    pub(crate) fn start(mut self) -> Job {
        self.command.args(&self.after).arg("--").arg(std::env::current_exe().unwrap());
        self.command.args(["--exact", &self.body, "--nocapture", "--test-threads=1"]);
        let mut launcher = self.command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let shared = Arc::new((Mutex::new(State::new(self.ranks)), Condvar::new()));
        let (out, seen) = (launcher.stdout.take().unwrap(), shared.clone());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                state_of(&seen).note(&line);
                seen.1.notify_all();
            }
            state_of(&seen).closed = true;
            seen.1.notify_all();
        });
        let napper = shared.clone();
        std::thread::spawn(move || {
            while !state_of(&napper).closed {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                let late = begun.elapsed().saturating_sub(NAP);
                let mut state = state_of(&napper);
                state.stall = state.stall.max(late);
            }
        });
        Job {
            launcher,
            shared,
            reader: Some(reader),
            home: self.home,
            dumps: self.dumps,
            begun: Instant::now(),
        }
    }

    /// Runs the job to its end.
    pub(crate) fn run(self) -> State {
        self.start().finish()
    }
}

/// Runs jobs side by side to their ends, for jobs that wait most of the time.
pub(crate) fn run_all(plans: impl IntoIterator<Item = Plan>) -> Vec<State> {
    let jobs: Vec<_> = plans.into_iter().map(Plan::start).collect();
    jobs.into_iter().map(Job::finish).collect()
}

/// Plays the cases of a test side by side, for jobs that wait most of the time and are signalled meanwhile.
pub(crate) fn side_by_side<T: Send>(cases: impl IntoIterator<Item = T>, case: impl Fn(T) + Sync) {
    let case = &case;
    std::thread::scope(|scope| cases.into_iter().for_each(|one| drop(scope.spawn(move || case(one)))));
}

/// The state of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankState {
    /// Its process id.
    pub(crate) pid: Option<u32>,
    /// Its lines for the test.
    pub(crate) told: Vec<String>,
    /// Its end: exit status, or signal.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// The time of its end since the job's start.
    pub(crate) ended: Option<Duration>,
    /// The time at which it reported its error.
    failed: Option<Duration>,
}

impl RankState {
    /// The error with which it ended.
    pub(crate) fn error(&self) -> &str {
        self.told.iter().find_map(|line| line.strip_prefix("error ")).unwrap_or("")
    }

    /// Whether it ended because its group has: its operation was given up, or the group had ended before its next one.
    pub(crate) fn lost_its_group(&self) -> bool {
        self.code.is_some_and(|code| LOST_GROUP.contains(&code))
    }

    fn over(&self) -> bool {
        self.code.is_some() || self.signal.is_some()
    }
}

/// The state of a job.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) ranks: Vec<RankState>,
    /// The launcher's exit status.
    pub(crate) status: Option<i32>,
    /// The ranks' whole output, for people.
    transcript: Vec<String>,
    begun: Instant,
    closed: bool,
    /// The longest time that a thread waited for a core after a sleep.
    stall: Duration,
}

impl State {
    fn new(ranks: u32) -> Self {
        let ranks = vec![RankState::default(); ranks as usize];
        Self {
            ranks,
            status: None,
            transcript: vec![],
            begun: Instant::now(),
            closed: false,
            stall: Duration::ZERO,
        }
    }

    fn note(&mut self, line: &str) {
        let Ok(event) = serde_json::from_str::<Value>(line) else { return };
        let number = |key: &str| event[key].as_i64().map(|number| number as i32);
        let Some(rank) = event["rank"].as_u64().and_then(|rank| self.ranks.get_mut(rank as usize)) else {
            return;
        };
        match event["event"].as_str() {
            Some("started") => rank.pid = number("pid").map(|pid| pid as u32),
            Some("output") => {
                let line = event["line"].as_str().unwrap_or("");
                if let Some((_, told)) = line.split_once(MARK) {
                    rank.told.push(told.to_owned());
                    rank.failed = rank.failed.or(told.starts_with("error ").then(|| self.begun.elapsed()));
                }
                self.transcript.push(format!("{:?} [{}] {line}", self.begun.elapsed(), event["rank"]));
            }
            Some("ended") => {
                (rank.code, rank.signal) = (number("code"), number("signal"));
                rank.ended = Some(self.begun.elapsed());
                self.transcript.push(format!("{:?} {line}", self.begun.elapsed()));
            }
            _ => {}
        }
    }

    /// Whether every rank has printed a line with this prefix.
    pub(crate) fn all_told(&self, start: &str) -> bool {
        self.ranks.iter().all(|rank| rank.told.iter().any(|line| line.starts_with(start)))
    }

    /// Whether every rank but `except` has ended.
    pub(crate) fn all_over_but(&self, except: u32) -> bool {
        (0u32..).zip(&self.ranks).all(|(rank, state)| rank == except || state.over())
    }

    /// The ranks but `one`.
    pub(crate) fn others(&self, one: u32) -> impl Iterator<Item = &RankState> {
        (0u32..).zip(&self.ranks).filter(move |(rank, _)| *rank != one).map(|(_, state)| state)
    }

    /// The delay that a busy machine may add to the report of an event that takes several hops between processes.
    pub(crate) fn slack(&self) -> Duration {
        HOPS * self.stall
    }

    /// The time at which a rank reported its error, or ended without one, since the job's start.
    pub(crate) fn known(&self, rank: u32) -> Duration {
        let rank = &self.ranks[rank as usize];
        rank.failed.or(rank.ended).unwrap_or(Duration::MAX)
    }

    /// Checks that all ranks but `victim`, which was killed at that time, knew of it without waiting for a heartbeat.
    pub(crate) fn assert_known_at_once(&self, victim: u32, killed: Duration) {
        for rank in (0..self.ranks.len() as u32).filter(|rank| *rank != victim) {
            let after = self.known(rank).saturating_sub(killed);
            assert!(after < AT_ONCE + self.slack(), "rank {rank} after {after:?}\n{self}");
        }
    }

    /// Checks that every rank and the launcher ended with 0.
    pub(crate) fn assert_success(&self) {
        assert!(self.ranks.iter().all(|rank| rank.code == Some(0)) && self.status == Some(0), "{self}");
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "the launcher's status: {:?}; a thread has waited {:?} for a core",
            self.status, self.stall
        )?;
        self.transcript.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// A running job.
pub(crate) struct Job {
    launcher: Child,
    shared: Arc<(Mutex<State>, Condvar)>,
    reader: Option<std::thread::JoinHandle<()>>,
    home: PathBuf,
    /// The folder for the last events of ranks whose group ends in error.
    dumps: PathBuf,
    begun: Instant,
}

impl Job {
    /// Waits until `holds` is true of the job's state, and returns that state.
    pub(crate) fn until(&self, what: &str, limit: Duration, holds: impl Fn(&State) -> bool) -> State {
        let until = Instant::now() + limit;
        let mut state = state_of(&self.shared);
        while !holds(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.closed {
                drop(state);
                panic!("not so (within {limit:?}): {what}\n{}", self.explain());
            }
            state = self.shared.1.wait_timeout(state, left).unwrap().0;
        }
        state.clone()
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Sends a signal to a rank.
    pub(crate) fn signal(&self, rank: u32, name: &str) {
        let pid = state_of(&self.shared).ranks[rank as usize].pid.unwrap();
        assert!(kill(pid, name), "rank {rank} is gone");
    }

    /// Stops a rank, and waits until all of its threads are stopped: a signal has no effect at once.
    pub(crate) fn stop(&self, rank: u32) {
        self.signal(rank, "STOP");
        let pid = state_of(&self.shared).ranks[rank as usize].pid.unwrap();
        let begin = Instant::now();
        let is_stopped = || {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
            let stats =
                threads.map(|thread| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
            stats
                .into_iter()
                .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
        };
        while !is_stopped() {
            assert!(begin.elapsed() < LIMIT, "process {pid} goes on after SIGSTOP");
            std::thread::yield_now();
        }
    }

    /// Runs the shell's `commands` in the network namespace of this job.
    pub(crate) fn in_namespace(&self, commands: &str) {
        let pid = self.launcher.id().to_string();
        let done =
            Command::new("nsenter").args(["--target", &pid, "--net", "--", "sh", "-c", commands]).status();
        assert!(done.is_ok_and(|status| status.success()), "{commands}");
    }

    /// Waits for the end, and checks that nothing is left: no process, no socket, no file.
    pub(crate) fn finish(mut self) -> State {
        let until = Instant::now() + LIMIT;
        let status = loop {
            match self.launcher.try_wait().unwrap() {
                Some(status) => break status,
                None => {
                    assert!(Instant::now() <= until, "the job hangs\n{}", self.explain());
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        };
        self.reader.take().unwrap().join().unwrap();
        let mut state = state_of(&self.shared).clone();
        state.status = status.code();
        for rank in &state.ranks {
            let left = rank.pid.is_some_and(|pid| PathBuf::from(format!("/proc/{pid}")).exists());
            assert!(!left, "process {:?} is left behind\n{state}", rank.pid);
        }
        let left = self.left_behind();
        assert!(left.is_empty(), "left behind: {left:?}\n{state}");
        state
    }
}

impl Job {
    /// The state of the job, and the last events of the running ranks, which write them now.
    fn explain(&self) -> String {
        let state = state_of(&self.shared).clone();
        let running = || (0u32..).zip(&state.ranks).filter(|(_, rank)| !rank.over());
        let running: Vec<_> = running().filter_map(|(rank, state)| Some((rank, state.pid?))).collect();
        for (_, pid) in &running {
            kill(*pid, DUMP_SIGNAL);
        }
        let until = Instant::now() + DUMP_LIMIT;
        let mut text = state.to_string();
        for (rank, pid) in running {
            let events = loop {
                match self.dump_of(pid) {
                    None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                    events => break events,
                }
            };
            text += &format!("the last events of rank {rank}, in us:\n{}\n", events.unwrap_or("none".into()));
        }
        text
    }

    /// The last events in the dump of a process, one a line, if it is complete.
    fn dump_of(&self, pid: u32) -> Option<String> {
        let files = std::fs::read_dir(&self.dumps).ok()?.flatten();
        let ours = files
            .map(|file| file.path())
            .find(|path| path.to_string_lossy().contains(&format!("-{pid}.")))?;
        let dump: Value = serde_json::from_slice(&std::fs::read(ours).ok()?).ok()?;
        let events: Vec<_> =
            dump["traceEvents"].as_array()?.iter().filter(|event| event["ph"] != "M").collect();
        let line = |event: &&Value| format!("{} {} {}", event["ts"], event["name"], event["args"]);
        let shown = &events[events.len().saturating_sub(SHOWN_EVENTS)..];
        Some(shown.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    /// The job's leftovers on the host: files in its directory, its processes, sockets with a name.
    fn left_behind(&self) -> Vec<String> {
        let home = self.home.to_str().unwrap();
        let entries = |path: &std::path::Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let files = entries(&self.home).map(|entry| format!("file {}", entry.path().display()));
        // Every process of a job, in any session, has the job's directory in its environment. The closing zero tells
        // job 1 from job 10.
        let (variable, folder) = (format!("{home}\0"), format!("{home}/"));
        let ours = |path: &PathBuf| {
            let of_job =
                |path: PathBuf| std::fs::read(path).is_ok_and(|text| find(&text, variable.as_bytes()));
            path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
                && of_job(path.join("environ"))
        };
        let processes = entries("/proc".as_ref()).map(|entry| entry.path()).filter(ours);
        let processes = processes.map(|path| format!("process {}", path.display()));
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let sockets =
            sockets.lines().filter(|line| line.contains(&folder)).map(|line| format!("socket {line}"));
        // Segments are memfds, and DPDK's files have no name either; both go with their processes. A named file is an
        // error.
        let pids: Vec<_> = state_of(&self.shared).ranks.iter().filter_map(|rank| rank.pid).collect();
        let of_rank = |name: &str| {
            let mut numbers = name.split(|letter: char| !letter.is_ascii_digit());
            numbers.any(|number| number.parse().is_ok_and(|number| pids.contains(&number)))
        };
        let named = ["/dev/shm", "/var/run/dpdk"].into_iter().flat_map(|path| entries(path.as_ref()));
        let named = named.map(|entry| entry.path().display().to_string());
        let named = named.filter(|path| of_rank(path)).map(|path| format!("file {path}"));
        files.chain(processes).chain(sockets).chain(named).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The process ids of ranks that have ended may be in use by other processes: only running ranks are killed.
        if let Ok(None) = self.launcher.try_wait() {
            let state = state_of(&self.shared);
            for pid in state.ranks.iter().filter(|rank| !rank.over()).filter_map(|rank| rank.pid) {
                kill(pid, "KILL");
            }
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        let _ = [&self.home, &self.dumps].map(std::fs::remove_dir_all);
    }
}

fn find(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Whether a text names this rank, and no other.
pub(crate) fn names_only(text: &str, rank: u32) -> bool {
    let named = text.match_indices("rank ").map(|(at, word)| {
        let digits = text[at + word.len()..].chars().take_while(char::is_ascii_digit);
        digits.collect::<String>()
    });
    let named: Vec<_> = named.filter(|digits| !digits.is_empty()).collect();
    !named.is_empty() && named.iter().all(|name| *name == rank.to_string())
}

/// Files with which the test lets the ranks of a job go on; the job gets their folder as its parameter `GATES`.
pub(crate) struct Gates(PathBuf);

impl Gates {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shouter-gates-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn open(&self, name: &str) {
        std::fs::write(self.0.join(name), "").unwrap();
    }
}

impl std::fmt::Display for Gates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the test has opened a gate.
pub(crate) fn is_open(name: &str) -> bool {
    PathBuf::from(parameter("GATES").unwrap()).join(name).exists()
}

/// Opens a gate for the other ranks.
pub(crate) fn open_gate(name: &str) {
    std::fs::write(PathBuf::from(parameter("GATES").unwrap()).join(name), "").unwrap();
}

pub(crate) fn await_gate(name: &str) {
    while !is_open(name) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The state, also after a failed assertion.
fn state_of(shared: &(Mutex<State>, Condvar)) -> std::sync::MutexGuard<'_, State> {
    shared.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn kill(pid: u32, name: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status()
        .is_ok_and(|status| status.success())
}
