//! Drills: failures of a rank or of the network, at each stage of a job of real processes, on each transport. A table
//! shows the expected and the seen outcome; the process fails if they differ anywhere.
//!
//! The rule: if a job cannot go on, each survivor has its error within the heartbeat's time-out and a second (while it
//! joins: the rendezvous's deadline and a second), and names the culprit only; otherwise every rank ends well with
//! right sums. No process, socket, segment or directory is left. On a busy machine the limit grows by the test's own
//! waits for a core (`State::slack`).
//!
//! `scripts/drill` runs it. Arguments: `--long` for all drills instead of a slice, and words that a drill's name must
//! contain.

#![allow(unsafe_code)]

#[path = "jobs/ranks/mod.rs"]
mod ranks;

use std::panic::AssertUnwindSafe;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ranks::{
    DEVICE, Gates, HEARTBEAT, JOIN, Job, RankState, State, await_gate, end, is_open, job, names_only,
    parameter, scenario, tell,
};
use shouter::config::{Builder, ConfigError};
use shouter::{DType, Error, Group, ReduceOp, TensorSpec};

/// The time for which ranks wait for others that never join.
const RENDEZVOUS: Duration = Duration::from_secs(5);
/// The margin that the promise adds to either.
const MORE: Duration = Duration::from_secs(1);

/// Elements of the tensors: one small message, several chunks.
const COUNTS: [usize; 2] = [1000, 300_000];

/// The two ends of a wire that can be pulled, instead of the launcher's links.
const WIRE: &str = "ip link set lo up && ip link add wire0 mtu 9000 type veth peer name wire1 mtu 9000 \
                    && ip link set wire0 up && ip link set wire1 up";
const PULL: &str = "ip link set wire1 down";
/// The kernel's sockets use the loopback interface, which then drops every packet.
const LOOPBACK: &str = "ip link set lo up";
const SILENCE: &str = "nft add table ip cut && nft add chain ip cut silence '{ type filter hook input priority 0; policy drop; }'";

/// The failure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, for ever.
    Stop,
    /// SIGSTOP, and SIGCONT after the others have given the rank up.
    Resume,
    /// SIGSTOP, and SIGCONT within half of the heartbeat's time-out.
    Pause,
    /// The network between the hosts fails.
    Cut,
    /// The rank arrives after the heartbeat's time-out.
    Late,
    /// The rank's process ends with status 0.
    Exit,
    /// The rank ends its group with an error of its own; its process stays.
    Abort,
}

const ACTS: [(Act, &str); 8] = [
    (Act::Kill, "kill"),
    (Act::Stop, "stop"),
    (Act::Resume, "resume"),
    (Act::Pause, "pause"),
    (Act::Cut, "cut"),
    (Act::Late, "late"),
    (Act::Exit, "exit"),
    (Act::Abort, "abort"),
];

const STAGES: [&str; 6] = ["join", "register", "push", "mid-operation", "wait", "finalize"];

const TRANSPORTS: [&str; 4] = ["shm", "rud", "tcp", "kernel"];

fn main() -> ExitCode {
    if scenario().is_some() {
        end(play())
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (options, words): (Vec<_>, Vec<_>) = arguments.into_iter().partition(|word| word.starts_with("--"));
    if let Some(other) = options.iter().find(|option| *option != "--long") {
        eprintln!("error: unknown argument {other}; see scripts/drill --help");
        return ExitCode::from(2);
    }
    let drills: Vec<_> = drills(!options.is_empty())
        .into_iter()
        .filter(|drill| words.iter().all(|word| drill.name().split([' ', ',']).any(|part| part == word)))
        .collect();
    println!("{:<58} | {:<40} | {:<48} | seconds", "drill", "expected", "seen");
    let (next, counts) = (AtomicUsize::new(0), Mutex::new([0; 3]));
    std::thread::scope(|scope| {
        for _ in 0..at_once() {
            scope.spawn(|| {
                while let Some(drill) = drills.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = drill.row();
                    counts.lock().unwrap()[verdict as usize] += 1;
                }
            });
        }
    });
    let [passed, failed, skipped] = counts.into_inner().unwrap();
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 || drills.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The number of concurrent drills: a drill mostly waits for time-outs, but its ranks must not starve.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4))
}

/// The outcome of a drill.
#[derive(Clone, Copy)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// The first line of a panic's message; the panic itself printed the rest.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.and_then(|text| text.lines().next()).unwrap_or("a panic").to_owned()
}

/// All drills, or a slice in which every act meets every transport, at stages that all occur.
fn drills(long: bool) -> Vec<Drill> {
    let mut drills = vec![];
    for (number, (act, _)) in ACTS.into_iter().enumerate() {
        for (place, transport) in TRANSPORTS.into_iter().enumerate() {
            for (stage_number, stage) in STAGES.into_iter().enumerate() {
                // Survivors name each other, and each host has all its ranks.
                let (ranks, hosts) = match (transport, (number + stage_number + place) % 2) {
                    ("shm", _) => (3, 1),
                    (_, 0) => (2, 2),
                    _ => (4, 2),
                };
                let victim = (number + 2 * stage_number + place) as u32 % ranks;
                if long || (number + 2 * place + number / 6) % STAGES.len() == stage_number {
                    drills.push(Drill { act, stage, transport, ranks, hosts, victim });
                }
            }
        }
    }
    drills
}

/// Whether the shell can run the commands here, in a network namespace of its own.
fn possible(commands: &str) -> bool {
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", commands]);
    command.output().is_ok_and(|output| output.status.success())
}

/// A failure of one rank at a stage of a job.
#[derive(Clone, Copy)]
struct Drill {
    act: Act,
    stage: &'static str,
    transport: &'static str,
    ranks: u32,
    hosts: u32,
    victim: u32,
}

impl Drill {
    fn name(&self) -> String {
        let Self { stage, transport, ranks, hosts, victim, .. } = self;
        let hosts = if *hosts == 1 { "1 host".into() } else { format!("{hosts} hosts") };
        format!("{} at {stage} over {transport}, rank {victim} of {ranks} on {hosts}", self.act_name())
    }

    fn act_name(&self) -> &'static str {
        ACTS.into_iter().find(|(act, _)| *act == self.act).map_or("", |(_, name)| name)
    }

    /// The reason why this drill cannot run here.
    fn impossible(&self) -> Option<&'static str> {
        if !cfg!(feature = "dpdk") && ["rud", "tcp"].contains(&self.transport) {
            return Some("built without dpdk");
        }
        match (self.act, self.transport) {
            (Act::Cut, "shm") => Some("one host has no network in between"),
            (Act::Cut, "kernel") if !possible(&format!("{LOOPBACK} && {SILENCE}")) => {
                Some("no network namespace or no nft here (root can)")
            }
            (Act::Cut, "rud" | "tcp") if !possible(WIRE) => Some("no network namespace here (root can)"),
            _ => None,
        }
    }

    /// Whether the job goes on.
    fn harmless(&self) -> bool {
        matches!(self.act, Act::Pause | Act::Late)
    }

    /// The time within which survivors detect it.
    fn bound(&self) -> Duration {
        MORE + if self.stage == "join" { RENDEZVOUS } else { HEARTBEAT }
    }

    fn expected(&self) -> String {
        if self.harmless() {
            return "right sums on every rank".into();
        }
        let bound = self.bound().as_secs();
        match self.act {
            Act::Cut if self.stage == "finalize" => format!("an error on the other host within {bound} s"),
            Act::Cut => format!("an error on every rank within {bound} s"),
            Act::Resume => format!("errors name rank {}, within {bound} s; it says so", self.victim),
            _ => format!("errors name rank {}, within {bound} s", self.victim),
        }
    }

    /// Runs the drill, or gives the reason why not, and prints its row of the table.
    fn row(&self) -> Verdict {
        let begun = Instant::now();
        let (verdict, expected, seen) = match self.impossible() {
            Some(why) => (Verdict::Skipped, String::new(), format!("skipped: {why}")),
            None => {
                let seen = std::panic::catch_unwind(AssertUnwindSafe(|| self.run()));
                match seen.unwrap_or_else(|panic| Err(said(&*panic))) {
                    Ok(seen) => (Verdict::Passed, self.expected(), seen),
                    Err(wrong) => (Verdict::Failed, self.expected(), format!("FAILED: {wrong}")),
                }
            }
        };
        println!("{:<58} | {expected:<40} | {seen:<48} | {:.1}", self.name(), begun.elapsed().as_secs_f64());
        verdict
    }

    fn run(&self) -> Result<String, String> {
        let gates = Gates::new();
        let job = self.start(&gates);
        let reached =
            |state: &State| state.ranks[self.victim as usize].told.iter().any(|line| line == "reached");
        job.until("the stage is reached", ranks::LIMIT, reached);
        // The others reach their wait for the rank; the moment within the operation differs between drills.
        let moment = if self.stage == "mid-operation" { 3 * self.victim + self.ranks } else { 150 };
        std::thread::sleep(Duration::from_millis(moment.into()));
        let begun = job.elapsed();
        match self.act {
            Act::Kill => job.signal(self.victim, "KILL"),
            Act::Stop | Act::Resume | Act::Pause => job.signal(self.victim, "STOP"),
            Act::Cut => job.in_namespace(if self.transport == "kernel" { SILENCE } else { PULL }),
            Act::Late => std::thread::sleep(HEARTBEAT + MORE),
            Act::Exit | Act::Abort => {}
        }
        if self.act == Act::Pause {
            std::thread::sleep(HEARTBEAT / 2);
            job.signal(self.victim, "CONT");
        }
        gates.open("go");
        if matches!(self.act, Act::Stop | Act::Resume | Act::Abort) {
            job.until("the survivors have ended", ranks::LIMIT, |state| state.all_over_but(self.victim));
        }
        let resumed = job.elapsed();
        match self.act {
            Act::Stop => job.signal(self.victim, "KILL"),
            Act::Resume => job.signal(self.victim, "CONT"),
            Act::Abort => gates.open("end"),
            _ => {}
        }
        let state = job.finish();
        self.judge(&state, begun, resumed).map_err(|wrong| {
            eprintln!("{}: {wrong}\n{state}", self.name());
            wrong
        })
    }

    fn start(&self, gates: &Gates) -> Job {
        let Self { stage, transport, ranks, hosts, victim, .. } = self;
        let mut plan = job!(*ranks, *hosts, "drill").silence_is_found().env("SHOUTER_DEADLINE", "50s");
        plan = match *transport {
            // A host's ranks use shared memory, and RUD over the launcher's links.
            "shm" | "rud" => plan,
            other => plan.args(&["--transport", other]),
        };
        if *stage == "join" && !self.harmless() {
            plan = plan.env("SHOUTER_RENDEZVOUS_DEADLINE", format!("{}s", RENDEZVOUS.as_secs()));
        }
        for (name, value) in [("ACT", self.act_name()), ("STAGE", stage)] {
            plan = plan.env(&format!("SHOUTER_TEST_{name}"), value);
        }
        plan = plan.with("VICTIM", victim).with("GATES", gates);
        match (self.act, *transport) {
            (Act::Cut, "kernel") => plan.in_namespace(LOOPBACK).start(),
            (Act::Cut, _) => plan.in_namespace(WIRE).start(),
            _ => plan.start(),
        }
    }

    /// The outcome, or its error.
    fn judge(&self, state: &State, begun: Duration, resumed: Duration) -> Result<String, String> {
        if let Some(wrong) =
            state.ranks.iter().flat_map(|rank| &rank.told).find(|line| line.starts_with("wrong"))
        {
            return Err(wrong.clone());
        }
        if self.harmless() {
            let bad = (0..).zip(&state.ranks).find(|(_, rank)| rank.code != Some(0));
            return match bad {
                Some((number, rank)) => Err(format!("rank {number}: {}", ending(rank))),
                None => Ok("right sums on every rank".into()),
            };
        }
        let mut last = Duration::ZERO;
        for (number, rank) in (0..).zip(&state.ranks) {
            let (from, what) = match (number == self.victim, self.act) {
                (true, Act::Resume) => (resumed, "the resumed rank"),
                (true, Act::Kill | Act::Stop | Act::Exit | Act::Abort) => continue,
                _ => (begun, "rank"),
            };
            let after = state.known(number).saturating_sub(from);
            let wrong =
                |why: &str| Err(format!("{what} {number}: {why}: {} after {after:.1?}", ending(rank)));
            let joining = self.stage == "join" && matches!(rank.code, Some(JOIN | DEVICE));
            // All others had announced that they finalize. The victim's host cannot know whether it reaches them.
            let host = |rank: u32| rank / (self.ranks / self.hosts);
            let leaves =
                self.act == Act::Cut && self.stage == "finalize" && host(number) == host(self.victim);
            if leaves && rank.code == Some(0) {
                continue;
            }
            if !joining && !rank.lost_its_group() {
                return wrong("another end");
            }
            if after > self.bound() + state.slack() {
                return wrong("too late");
            }
            if !self.is_named_by(number, rank.error()) {
                return wrong("another culprit");
            }
            if number != self.victim || self.act == Act::Cut {
                last = last.max(after);
            }
        }
        Ok(match self.act {
            Act::Cut if self.stage == "finalize" => {
                format!("an error on the other host, the last after {:.1} s", last.as_secs_f64())
            }
            Act::Cut => format!("an error on every rank, the last after {:.1} s", last.as_secs_f64()),
            _ => format!("errors name rank {}, the last after {:.1} s", self.victim, last.as_secs_f64()),
        })
    }

    /// Whether the error of rank `teller` names the culprit and the failure.
    fn is_named_by(&self, teller: u32, error: &str) -> bool {
        match self.act {
            // Each side sees the other fail; either report may come first. A rank, or the port, is named.
            Act::Cut => error.contains("rank ") || error.contains("port "),
            // A rank that was stopped while it joined cannot know that it was given up itself.
            Act::Resume if teller == self.victim && self.stage == "join" => !error.is_empty(),
            Act::Resume if teller == self.victim => {
                names_only(error, self.victim) && error.contains("was stopped")
            }
            // While joining, an error names the rank that was waited for, and last the one that this rank waited for.
            _ if self.stage == "join" => last_named(error) == Some(self.victim),
            _ => names_only(error, self.victim),
        }
    }
}

/// The last rank that the error names.
fn last_named(error: &str) -> Option<u32> {
    let named = error.rsplit("rank ").next().filter(|rest| rest.len() < error.len())?;
    named.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

fn ending(rank: &RankState) -> String {
    match (rank.error(), rank.code, rank.signal) {
        ("", Some(code), _) => format!("status {code}"),
        ("", _, signal) => format!("signal {signal:?}"),
        (error, ..) => error.to_owned(),
    }
}

/// Exits at the gate, in any state of the rank.
fn exit_at_the_gate() {
    std::thread::spawn(|| {
        await_gate("go");
        std::process::exit(0)
    });
}

fn own_rank() -> u32 {
    std::env::var("SHOUTER_RANK").unwrap().parse().unwrap()
}

fn size() -> u32 {
    std::env::var("SHOUTER_SIZE").unwrap().parse().unwrap()
}

fn victim() -> u32 {
    parameter("VICTIM").unwrap().parse().unwrap()
}

fn acts(name: &str) -> bool {
    parameter("ACT").unwrap() == name
}

/// Whether this is the drill's stage, and this rank its victim.
fn is_hit(stage: &str) -> bool {
    parameter("STAGE").unwrap() == stage && own_rank() == victim()
}

/// The error with which the victim ends its group.
fn own_error() -> Error {
    Error::Argument("this rank's own error".into())
}

/// At the drill's stage, the victim reports, waits for the gate, and exits or fails itself.
fn reach(stage: &str) -> Result<(), Error> {
    if is_hit(stage) {
        tell("reached");
        await_gate("go");
        if acts("exit") {
            std::process::exit(0);
        }
        if acts("abort") {
            return Err(own_error());
        }
    }
    Ok(())
}

/// The body of a rank.
fn play() -> Result<(), Error> {
    let result = join().and_then(steps);
    if own_rank() == victim() && acts("abort") {
        // The others learn of it while its process still exists.
        await_gate("end");
    }
    result
}

fn join() -> Result<Group, Error> {
    let wrong = |why: ConfigError| Error::Config(why.to_string());
    let mut builder = Builder::from_process().map_err(wrong)?;
    if acts("cut") && std::env::var_os("SHOUTER_PORTS").is_some() {
        let host: u32 = std::env::var("SHOUTER_NODE").unwrap().parse().unwrap();
        let ports = format!("[{{device = \"af_packet:wire{host}\", address = \"10.81.0.{}/24\"}}]", host + 1);
        builder = builder.set("ports", &ports).map_err(wrong)?;
    }
    if is_hit("join") {
        if acts("late") || acts("abort") {
            reach("join")?;
        } else {
            tell("reached");
        }
        if acts("exit") {
            exit_at_the_gate();
        }
    } else if parameter("STAGE").unwrap() == "join" && own_rank() == (victim() + 1) % size() {
        // No rank has joined before the victim is hit.
        await_gate("go");
    }
    shouter::init(builder.build().map_err(wrong)?)
}

/// Sums of two tensors, repeated, with the drill's stages in between.
fn steps(group: Group) -> Result<(), Error> {
    reach("register")?;
    let specs = COUNTS.map(|count| {
        TensorSpec::all_reduce(format!("layer.{count}"), DType::F32, count as u64, ReduceOp::Sum)
    });
    let ids = group.register(&specs)?;
    let mut tensors = COUNTS.map(|count| vec![0f32; count]);
    // A rank that fails with operations in progress drops its group while the tensors still exist.
    let group = group;
    let sum: f32 = (1..=group.size()).map(|rank| rank as f32).sum();
    for step in 0..4 {
        tensors.iter_mut().for_each(|tensor| tensor.fill(group.rank() as f32 + 1.0));
        if step == 3 {
            reach("push")?;
        }
        let mut pending = vec![];
        for (id, tensor) in ids.iter().zip(&mut tensors) {
            // SAFETY: the tensor is touched again only after `wait` has returned, and lives for longer than the group.
            pending.push(unsafe { group.push(*id, tensor.as_mut_ptr().cast()) }?);
        }
        if step == 3 {
            reach("wait")?;
        }
        pending.into_iter().try_for_each(|pending| pending.wait(None))?;
        if tensors.iter().flatten().any(|&x| x != sum) {
            tell("wrong sums");
        }
    }
    if parameter("STAGE").unwrap() == "mid-operation" {
        mid_operation(&group, sum)?;
    }
    let mut one = [1f32];
    group.all_reduce(&mut one, ReduceOp::Sum)?;
    if one != [group.size() as f32] {
        tell("wrong sums");
    }
    reach("finalize")?;
    group.finalize()
}

/// A series of operations of 4 MiB, so that the failure hits one of them.
fn mid_operation(group: &Group, sum: f32) -> Result<(), Error> {
    let harmless = acts("pause") || acts("late");
    let mut tensor = vec![0f32; 1 << 20];
    for step in 0..if harmless { 60 } else { usize::MAX } {
        if step == 3 && is_hit("mid-operation") {
            tell("reached");
            if acts("late") {
                await_gate("go");
            } else if acts("exit") {
                exit_at_the_gate();
            }
        }
        if is_hit("mid-operation") && acts("abort") && is_open("go") {
            return Err(own_error());
        }
        tensor.fill(group.rank() as f32 + 1.0);
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
        if tensor.iter().any(|&x| x != sum) {
            tell("wrong sums");
        }
    }
    Ok(())
}
