//! What a job says of itself: its log, the transport that it chose, its timeline, its last events.

#![allow(unsafe_code)]

mod ranks;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ranks::{LIMIT, end, job, names_only, parameter, scenario, tell};
use serde_json::Value;
use shouter::config::{Builder, ConfigError};
use shouter::{Config, DType, Error, Group, ReduceOp, TensorSpec};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Not a test of its own: what a rank runs.
#[test]
fn rank_body() {
    let Some(scenario) = scenario() else { return };
    if scenario == "dump" {
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGUSR2, count_signal as *const () as libc::sighandler_t) };
    }
    if scenario == "own subscriber" {
        tracing::subscriber::set_global_default(Counting).unwrap();
    }
    let config = configured().map_err(|error| Error::Config(error.to_string()));
    end(config.and_then(shouter::init).and_then(|group| {
        match scenario.as_str() {
            "timeline" => train(&group)?,
            "steps" => steps(&group)?,
            "small steps" => small_steps(&group)?,
            "dump" => dump(&group)?,
            _ => group.transport().to_string().lines().for_each(tell),
        }
        group.finalize()?;
        if scenario == "dump" {
            // SAFETY: there is a handler.
            unsafe { libc::raise(libc::SIGUSR2) };
            tell(format_args!("signals {}", SIGNALS.load(Ordering::Relaxed)));
        }
        tell(format_args!("events {}", HEARD.load(Ordering::Relaxed)));
        Ok(())
    }));
}

/// As the launcher says, but that the rank `BARE` names no ports.
fn configured() -> Result<Config, ConfigError> {
    let builder = Builder::from_process()?;
    match parameter("BARE").is_some_and(|bare| std::env::var("SHOUTER_RANK") == Ok(bare)) {
        true => builder.set("ports", "[]")?.build(),
        false => builder.build(),
    }
}

static HEARD: AtomicUsize = AtomicUsize::new(0);

/// A Rust program's own subscriber: it counts.
struct Counting;

impl Subscriber for Counting {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if event.metadata().target().starts_with("shouter") {
            HEARD.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: i32) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Steps with a large tensor until a rank fails.
fn steps(group: &Group) -> Result<(), Error> {
    let spec = TensorSpec::all_reduce("trunk", DType::F32, 1 << 20, ReduceOp::Sum);
    let ids = group.register(&[spec])?;
    let mut tensor = vec![0f32; 1 << 20];
    for step in 0.. {
        group.set_step(step);
        // SAFETY: the registered number of elements, left alone until the wait.
        unsafe { group.push(ids[0], tensor.as_mut_ptr().cast()) }?.wait(None)?;
        if step == 2 {
            tell("steps");
        }
    }
    Ok(())
}

/// Steps with a small tensor until a rank fails; the first error is the last call's as well.
fn small_steps(group: &Group) -> Result<(), Error> {
    for step in 0.. {
        group.set_step(step);
        let failed = group.all_reduce(&mut [1f32; 8], ReduceOp::Sum).err();
        if let Some(first) = failed {
            let then = group.barrier().unwrap_err();
            assert_eq!(dump_of(&first.to_string()), dump_of(&then.to_string()));
            return Err(first);
        }
        if step == 2 {
            tell("steps");
        }
    }
    Ok(())
}

/// Some steps, a dump, and another one when the signal has come.
fn dump(group: &Group) -> Result<(), Error> {
    for _ in 0..3 {
        group.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum)?;
        group.all_reduce(&mut [1f32; 8], ReduceOp::Sum)?;
    }
    let path = group.dump()?;
    tell(format_args!("dump {}", path.display()));
    let second = path.with_file_name(format!("{}-2.json", path.file_stem().unwrap().to_str().unwrap()));
    let until = Instant::now() + LIMIT;
    while std::fs::read(&second).map_or(true, |text| !text.ends_with(b"\n")) {
        assert!(Instant::now() < until, "no dump after the signal");
        std::thread::sleep(Duration::from_millis(5));
    }
    tell(format_args!("dump {}", second.display()));
    group.barrier()
}

/// The file that an error names.
fn dump_of(error: &str) -> Option<PathBuf> {
    let (_, path) = error.split_once("; the last 4096 events of this rank are in ")?;
    Some(path.into())
}

/// Some steps with two tensors, one of them large, and the timeline of them.
fn train(group: &Group) -> Result<(), Error> {
    let spec = |name: &str, count| TensorSpec::all_reduce(name, DType::F32, count, ReduceOp::Sum);
    let counts = [1 << 20, 2_000];
    let ids = group.register(&[spec("trunk", counts[0]), spec("head", counts[1])])?;
    for step in 0..8 {
        group.set_step(step);
        let mut tensors = counts.map(|count| vec![1f32; count as usize]);
        let mut pending = vec![];
        for (id, tensor) in ids.iter().zip(&mut tensors) {
            // SAFETY: the registered number of elements, left alone until the wait below.
            pending.push(unsafe { group.push(*id, tensor.as_mut_ptr().cast()) }?);
        }
        for pending in pending {
            pending.wait(None)?;
        }
        assert!(tensors.iter().flatten().all(|sum| *sum == group.size() as f32));
    }
    let folder = PathBuf::from(parameter("FOLDER").unwrap());
    group.write_timeline(&folder.join(format!("{}.json", group.rank())))
}

/// The lines of the log in a job's output, behind rank and time.
fn logged(state: &ranks::State) -> Vec<String> {
    let text = state.to_string();
    let said =
        text.lines().filter_map(|line| line.split_once("Z ").map(|(_, said)| said.trim_start().to_owned()));
    said.filter(|said| ["INFO ", "WARN ", "ERROR "].iter().any(|level| said.starts_with(level))).collect()
}

#[test]
fn every_rank_says_which_transport_was_chosen_and_why() {
    let state = job(4, 2, "say").env("SHOUTER_LOG", "info").run();
    state.assert_success();
    let lines = logged(&state);
    for (rank, peer) in [(0, 2), (2, 0)] {
        let start = format!(
            "INFO rank {rank} shouter::communicator::selection: a channel was chosen peers=\"rank {peer}\""
        );
        let line = lines.iter().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{lines:#?}"));
        assert!(line.contains("transport=\"rud\"") && line.contains("no verbs: "), "{line}");
        let told = &state.ranks[rank].told;
        assert_eq!(told[0], "shm+rud");
        assert!(
            told.iter().any(|line| line.starts_with(&format!("rud to rank {peer}: no verbs: "))),
            "{told:?}"
        );
    }
    for rank in [1, 3] {
        let told = &state.ranks[rank].told;
        assert_eq!(told[0], "shm+rud");
        assert!(told.iter().any(|line| line.contains(&format!("chosen by rank {}", rank - 1))), "{told:?}");
        let joined = format!(
            "INFO rank {rank} shouter::communicator::init: the group has come together size=4 hosts=2"
        );
        assert!(lines.iter().any(|line| line.starts_with(&joined)), "{lines:#?}");
    }
    assert!(!state.to_string().contains('\u{1b}'), "colour goes into a pipe");
}

#[test]
fn a_fall_back_to_the_kernels_sockets_says_what_was_missing() {
    let state = job(2, 2, "say").with("BARE", 1).env("SHOUTER_LOG", "info").run();
    state.assert_success();
    let lines = logged(&state);
    let missing =
        ["no rud: the other host names no ports", "no rud: the key ports names no port of this host"];
    for (rank, why) in missing.into_iter().enumerate() {
        let said =
            lines.iter().any(|line| line.starts_with(&format!("INFO rank {rank} ")) && line.contains(why));
        assert!(said, "{lines:#?}");
        let told = &state.ranks[rank].told;
        assert_eq!(told[0], "kernel");
        assert!(told.iter().any(|line| line.contains(why)), "{told:?}");
    }
}

#[test]
fn a_transport_that_was_asked_for_is_the_reason() {
    let state = job(2, 2, "say").args(&["--transport", "kernel"]).run();
    state.assert_success();
    assert_eq!(state.ranks[0].told[..2], ["kernel", "kernel to rank 1: transport = \"kernel\""]);
}

#[test]
fn a_program_with_a_subscriber_of_its_own_keeps_it() {
    let state = job(2, 1, "own subscriber").env("SHOUTER_LOG", "info").run();
    state.assert_success();
    assert_eq!(logged(&state), [""; 0], "{state}");
    for rank in &state.ranks {
        let heard = rank.told.iter().find_map(|line| line.strip_prefix("events ")).unwrap();
        assert!(heard.parse::<usize>().unwrap() >= 1, "{state}");
    }
}

#[test]
fn without_the_variable_nothing_is_said() {
    let state = job(2, 1, "say").run();
    state.assert_success();
    assert_eq!(logged(&state), [""; 0], "{state}");
}

/// What operations are made of, and what the network did to them, by tensor; and all ranks in one file.
#[test]
fn the_timeline_shows_what_the_network_did_to_each_tensor() {
    let folder = std::env::temp_dir().join(format!("shouter-observe-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = job(4, 2, "timeline")
        .args(&["--loss", "1%", "--corrupt", "0.5%"])
        .with("FOLDER", folder.display())
        .env("SHOUTER_TIMELINE", folder.join("unused").display())
        .run();
    state.assert_success();
    let merge = |out: &str, ranks: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
        command.args(["timeline", "merge"]).arg(folder.join(out));
        command.args(ranks.iter().map(|rank| folder.join(format!("{rank}.json")))).output().unwrap()
    };
    let merged = merge("all.json", &["3", "0", "2", "1"]);
    assert!(merged.status.success(), "{merged:?}");
    assert!(String::from_utf8_lossy(&merged.stdout).contains("events of 4 ranks"), "{merged:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(folder.join("all.json")).unwrap()).unwrap();
    let events: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] != "M").collect();
    let of = |rank: u32, name: &str, tensor: &str| {
        let same = |event: &&&Value| {
            event["pid"] == rank
                && event["name"] == name
                && (tensor.is_empty() || event["args"]["tensor"] == tensor)
        };
        events.iter().filter(same).copied().collect::<Vec<_>>()
    };
    for (rank, peer) in [(0, 2), (2, 0)] {
        for name in ["wait for credit", "send", "receive", "fold", "copy", "all-reduce"] {
            let found = of(rank, name, "trunk");
            assert!(!found.is_empty(), "rank {rank}: no {name}");
            assert!(found.iter().all(|event| event["dur"].as_f64() >= Some(0.0)), "{found:?}");
        }
        for name in ["send", "receive"] {
            assert!(!of(rank, name, "head").is_empty(), "rank {rank}: no {name} of the small tensor");
            assert!(of(rank, name, "").iter().all(|event| event["args"]["peer"] == peer));
            // Half of the tensor goes each way in a reduction, and half in what spreads the sums.
            let bytes: u64 =
                of(rank, name, "trunk").iter().map(|event| event["args"]["bytes"].as_u64().unwrap()).sum();
            assert_eq!(bytes, 8 * (4 << 20), "rank {rank}: {name}");
        }
        let steps: BTreeSet<u64> =
            of(rank, "send", "trunk").iter().map(|event| event["args"]["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (0..8).collect(), "rank {rank}");
        for name in ["resend", "lost"] {
            let found = of(rank, name, "trunk");
            assert!(!found.is_empty(), "rank {rank}: no {name} though 1% of the frames were dropped");
            assert!(
                found
                    .iter()
                    .all(|event| event["args"]["peer"] == peer && event["args"]["count"].as_u64() >= Some(1))
            );
        }
        assert!(!of(rank, "damaged", "").is_empty(), "rank {rank}: no damage though bits were flipped");
    }
    // Ranks that lead no host have no wire.
    for rank in [1, 3] {
        assert!(of(rank, "send", "").is_empty() && !of(rank, "fold", "trunk").is_empty());
    }
    let times: Vec<f64> = events.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "merged, and not in order");
    let twice = merge("twice.json", &["0", "0"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("both of rank 0"), "{twice:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-observe-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn trace(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The events of a trace that have this name.
fn named<'a>(trace: &'a Value, name: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == name).collect()
}

/// Every survivor writes its last events, its error says where, and they show the operation and the culprit.
#[test]
fn the_error_of_a_group_names_a_file_with_the_last_events() {
    for (ranks, hosts, victim, scenario) in [(3, 1, 1, "steps"), (3, 1, 2, "small steps"), (4, 2, 2, "steps")]
    {
        let folder = Folder::new("killed");
        let job = job(ranks, hosts, scenario).env("SHOUTER_DUMP_FOLDER", folder.0.display()).start();
        job.until("steps are made", LIMIT, |state| state.all_told("steps"));
        job.signal(victim, "KILL");
        let state = job.finish();
        let mut dumps = vec![];
        for (rank, survivor) in (0u32..).zip(&state.ranks).filter(|(rank, _)| *rank != victim) {
            let error = survivor.error();
            let path = dump_of(error).unwrap_or_else(|| panic!("{error}\n{state}"));
            let name = path.file_name().unwrap().to_str().unwrap();
            // The launcher names the job.
            assert!(path.parent() == Some(&folder.0) && name.starts_with("shouter-run-"), "{path:?}");
            assert!(name.ends_with(&format!("-rank{rank}-{}.json", survivor.pid.unwrap())), "{state}");
            let trace = trace(&path);
            let cause = trace["otherData"]["cause"].as_str().unwrap();
            assert!(error.contains(cause) && names_only(cause, victim), "{cause}\n{state}");
            let failed = named(&trace, "failed");
            let [failed] = failed[..] else { panic!("{failed:?}\n{state}") };
            let bytes = if scenario == "steps" { 4 << 20 } else { 32 };
            assert_eq!(failed["args"]["culprit"], victim, "{failed}\n{state}");
            // A small operation may fail as it starts.
            assert!(failed["args"]["bytes"] == bytes || failed["dur"] == Value::Null, "{failed}\n{state}");
            if scenario == "steps" {
                let ended = named(&trace, "group ended");
                assert!(ended.len() == 1 && ended[0]["args"]["culprit"] == victim, "{ended:?}\n{state}");
                assert!(!named(&trace, "operation").is_empty());
            }
            if hosts > 1 && rank % 2 == 0 {
                let sent = named(&trace, "first fragment sent");
                assert!(sent.iter().any(|event| event["args"]["peer"] == 2 - rank), "{state}");
            }
            dumps.push(path);
        }
        assert_eq!(folder.files(), dumps.len(), "the ranks write one file each");
        let out = folder.0.join("all.json");
        let merged = Command::new(env!("CARGO_BIN_EXE_shouter"))
            .args(["timeline", "merge"])
            .arg(&out)
            .args(&dumps)
            .output()
            .unwrap();
        assert!(merged.status.success(), "{merged:?}");
        assert_eq!(named(&trace(&out), "failed").len(), dumps.len());
        let explained = |json: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
            let output = command.arg("explain").args(json).args(&dumps).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let text = explained(&[]);
        assert!(text.starts_with(&format!("Rank {victim} ended the job")), "{text}\n{state}");
        let found: Value = serde_json::from_str(&explained(&["--json"])).unwrap();
        assert_eq!((&found["culprits"][0], &found["silent"][0]), (&victim.into(), &victim.into()), "{found}");
    }
}

#[test]
fn dumps_are_written_on_request_and_on_a_signal_which_others_may_use_too() {
    let folder = Folder::new("asked");
    let job = job(2, 1, "dump")
        .env("SHOUTER_DUMP_FOLDER", folder.0.display())
        .env("SHOUTER_DUMP_SIGNAL", "SIGUSR2")
        .start();
    job.until("a dump is written", LIMIT, |state| state.all_told("dump"));
    (0..2).for_each(|rank| job.signal(rank, "USR2"));
    let state = job.finish();
    state.assert_success();
    for rank in &state.ranks {
        let paths = rank.told.iter().filter_map(|line| line.strip_prefix("dump "));
        let causes = ["asked for by the program", "the signal USR2 came"];
        for (path, cause) in paths.zip(causes) {
            let trace = trace(path.as_ref());
            assert_eq!(trace["otherData"]["cause"], cause, "{state}");
            assert_eq!(named(&trace, "operation").len(), 3, "{state}");
        }
        // The program's own handler was called each time, and is still there after the group.
        assert!(rank.told.contains(&"signals 2".into()), "{state}");
    }
    assert_eq!(folder.files(), 4, "a group that ends in good order writes nothing");
}

#[test]
fn a_folder_that_cannot_be_written_to_hides_no_error() {
    let job = job(2, 1, "steps").env("SHOUTER_DUMP_FOLDER", "/proc").env("SHOUTER_LOG", "warn").start();
    job.until("steps are made", LIMIT, |state| state.all_told("steps"));
    job.signal(1, "KILL");
    let state = job.finish();
    let error = state.ranks[0].error();
    assert!(names_only(error, 1) && dump_of(error).is_none(), "{state}");
    let said = logged(&state);
    let warned = |line: &String| line.contains("could not be written") && line.contains("/proc/shouter-run-");
    assert!(said.iter().any(warned), "{state}");
}
