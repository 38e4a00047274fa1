//! The observability of a job: its log, the chosen transport, its timeline, its last events.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::ranks::{LIMIT, end, job, names_only, parameter, scenario, tell};
use serde_json::Value;
use shouter::config::{Builder, ConfigError};
use shouter::{Collective, Config, DType, Error, Group, ReduceOp, TensorSpec, UnevenCall};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The body of a rank; as a test of its own it does nothing.
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
            "tracks" => tracks(&group)?,
            "labels of groups" => labels_of_groups(&group)?,
            "failed" => return failed(&group),
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

/// The launcher's configuration; without ports on the rank `BARE`.
fn configured() -> Result<Config, ConfigError> {
    let builder = Builder::from_process()?;
    match parameter("BARE").is_some_and(|bare| std::env::var("SHOUTER_RANK") == Ok(bare)) {
        true => builder.set("ports", "[]")?.build(),
        false => builder.build(),
    }
}

static HEARD: AtomicUsize = AtomicUsize::new(0);

/// A Rust program's own subscriber, which counts.
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

/// Some steps, a dump, and another dump after the signal.
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

/// The file in an error's text.
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

/// The delay with which rank 1 starts the operation that the queue of rank 0 waits for.
const LATE: Duration = Duration::from_millis(50);

/// Pushed tensors, one of which is behind an operation that rank 1 starts late, and blocking calls; and their timeline.
fn tracks(group: &Group) -> Result<(), Error> {
    let spec = |name: &str, count, op| TensorSpec::all_reduce(name, DType::F32, count, op);
    // Different reductions are not fused.
    let ids = group.register(&[
        spec("trunk", 1 << 20, ReduceOp::Sum),
        spec("head", 2_000, ReduceOp::Max),
        spec("behind", 2_000, ReduceOp::Min),
    ])?;
    let (mut trunk, mut head, mut behind) = (vec![1f32; 1 << 20], vec![1f32; 2_000], vec![1f32; 2_000]);
    // SAFETY: the registered number of elements each, left alone until the waits below.
    let works = unsafe {
        [group.push(ids[0], trunk.as_mut_ptr().cast())?, group.push(ids[1], head.as_mut_ptr().cast())?]
    };
    works.iter().try_for_each(|work| work.wait(None))?;
    group.set_step(1);
    group.set_label("tokens");
    if group.rank() == 1 {
        group.receive(&mut [0u8], 0, 7)?;
        std::thread::sleep(LATE);
    }
    let ranks = group.size() as usize;
    let (given, mut taken) = (vec![3u32; ranks], vec![0u32; ranks]);
    let call = UnevenCall {
        collective: Collective::AllToAllV,
        input: given.as_ptr().cast(),
        output: taken.as_mut_ptr().cast(),
        given: &vec![1; ranks],
        taken: &vec![1; ranks],
        dtype: DType::U32,
        op: ReduceOp::Sum,
        root: 0,
    };
    // SAFETY: as many elements as the counts and the table say, left alone until the waits below.
    let (tokens, work) =
        unsafe { (group.start_uneven(&call)?, group.push(ids[2], behind.as_mut_ptr().cast())?) };
    if group.rank() == 0 {
        group.send(&[0u8], 1, 7)?;
    }
    work.wait(None)?;
    tokens.wait(None)?;
    assert_eq!(taken, given);
    group.set_step(2);
    group.set_label("loss");
    group.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum)?;
    group.set_label("");
    group.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum)?;
    let folder = PathBuf::from(parameter("FOLDER").unwrap());
    group.write_timeline(&folder.join(format!("{}.json", group.rank())))
}

/// Rank 0 has pushed what rank 1 does not push: an operation of each fails; and its timeline.
fn failed(group: &Group) -> Result<(), Error> {
    let ids = group.register(&[TensorSpec::all_reduce("trunk", DType::F32, 1 << 20, ReduceOp::Sum)])?;
    group.set_step(3);
    let mut tensor = vec![1f32; 1 << 20];
    let result = match group.rank() {
        // SAFETY: the registered number of elements, left alone until the wait.
        0 => unsafe { group.push(ids[0], tensor.as_mut_ptr().cast()) }?.wait(None),
        _ => {
            group.set_label("loss");
            group.all_reduce(&mut tensor[..100_000], ReduceOp::Sum)
        }
    };
    assert_eq!(result.unwrap_err().code(), 5);
    group.write_timeline(&PathBuf::from(parameter("FOLDER").unwrap()).join(format!("{}.json", group.rank())))
}

/// Operations with labels, one of them of a registered tensor, in groups of two: on different hosts, and on one.
fn labels_of_groups(group: &Group) -> Result<(), Error> {
    let across = group.split(Some(group.rank() % 2), 0)?.unwrap();
    let beside = group.split(Some(group.rank() / 2), 0)?.unwrap();
    across.set_label("experts");
    beside.set_label("slices");
    for group in [&across, &beside] {
        group.all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum)?;
    }
    let mut gate = vec![1f32; 50_000];
    let ids = across.register(&[TensorSpec::all_reduce("gate", DType::F32, 50_000, ReduceOp::Sum)])?;
    // SAFETY: the registered number of elements, left alone until the wait.
    unsafe { across.push(ids[0], gate.as_mut_ptr().cast()) }?.wait(None)?;
    tell(format_args!("dump {}", group.dump()?.display()));
    let folder = PathBuf::from(parameter("FOLDER").unwrap());
    group.write_timeline(&folder.join(format!("{}.json", group.rank())))?;
    [across, beside].into_iter().try_for_each(Group::finalize)
}

/// The lines of the log in a job's output, behind rank and time.
fn logged(state: &crate::ranks::State) -> Vec<String> {
    let text = state.to_string();
    let said =
        text.lines().filter_map(|line| line.split_once("Z ").map(|(_, said)| said.trim_start().to_owned()));
    said.filter(|said| ["INFO ", "WARN ", "ERROR "].iter().any(|level| said.starts_with(level))).collect()
}

#[test]
fn every_rank_says_which_transport_was_chosen_and_why() {
    let state = job!(4, 2, "say").env("SHOUTER_LOG", "info").run();
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
    let state = job!(2, 2, "say").with("BARE", 1).env("SHOUTER_LOG", "info").run();
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
    let state = job!(2, 2, "say").args(&["--transport", "kernel"]).run();
    state.assert_success();
    assert_eq!(state.ranks[0].told[..2], ["kernel", "kernel to rank 1: transport = \"kernel\""]);
}

#[test]
fn a_program_with_a_subscriber_of_its_own_keeps_it() {
    let state = job!(2, 1, "own subscriber").env("SHOUTER_LOG", "info").run();
    state.assert_success();
    assert_eq!(logged(&state), [""; 0], "{state}");
    for rank in &state.ranks {
        let heard = rank.told.iter().find_map(|line| line.strip_prefix("events ")).unwrap();
        assert!(heard.parse::<usize>().unwrap() >= 1, "{state}");
    }
}

#[test]
fn without_the_variable_nothing_is_said() {
    let state = job!(2, 1, "say").run();
    state.assert_success();
    assert_eq!(logged(&state), [""; 0], "{state}");
}

/// The timeline has the parts of operations and the events of the network, by tensor; the merged file has all ranks.
#[test]
fn the_timeline_shows_what_the_network_did_to_each_tensor() {
    let folder = std::env::temp_dir().join(format!("shouter-observe-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = job!(4, 2, "timeline")
        .args(&["--loss", "1%", "--corrupt", "0.5%"])
        .with("FOLDER", folder.display())
        .env("SHOUTER_TIMELINE", folder.join("left").display())
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
    // As where the file to write is left out, and a pattern of the shell names the ranks' files.
    let of_rank_0 = std::fs::read(folder.join("0.json")).unwrap();
    let refused = merge("0.json", &["1", "2"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is there already"), "{refused:?}");
    assert_eq!(std::fs::read(folder.join("0.json")).unwrap(), of_rank_0);
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
        for name in ["wait for credit", "send", "receive", "copy", "all-reduce"] {
            let found = of(rank, name, "trunk");
            assert!(!found.is_empty(), "rank {rank}: no {name}");
            assert!(found.iter().all(|event| event["dur"].as_f64() >= Some(0.0)), "{found:?}");
        }
        for name in ["send", "receive"] {
            assert!(!of(rank, name, "head").is_empty(), "rank {rank}: no {name} of the small tensor");
            assert!(of(rank, name, "").iter().all(|event| event["args"]["peer"] == peer));
            // Half of the tensor is sent each way in the reduction, and half in the distribution of the sums.
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
    // Ranks that are not leaders have no track `wire`.
    for rank in [1, 3] {
        assert!(of(rank, "send", "").is_empty() && !of(rank, "copy", "trunk").is_empty());
        let is_on =
            |track: &str| spans(&trace).iter().any(|span| (span.rank, span.track) == (rank.into(), track));
        assert!(is_on("fold") && is_on("queue") && !is_on("wire"));
    }
    let times: Vec<f64> = events.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "merged, and not in order");
    // What the ranks wrote when they left has the barrier at the end, too.
    let left = left_timelines(&folder.join("left"));
    assert_eq!(left.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (rank, path) in left {
        let (left, before) = (self::trace(&path), self::trace(&folder.join(format!("{rank}.json"))));
        let calls = |of: &Value, name: &str| named(of, name).len();
        assert_eq!(calls(&left, "all-reduce"), calls(&before, "all-reduce"), "rank {rank}");
        assert!(calls(&left, "barrier") > calls(&before, "barrier"), "rank {rank}");
    }
    let twice = merge("twice.json", &["0", "0"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("both of rank 0"), "{twice:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The files that ranks wrote into a folder when they left the job, by rank.
fn left_timelines(folder: &Path) -> BTreeMap<u32, PathBuf> {
    let mut found = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("timeline-run-") && name.ends_with(".json"), "{name}");
        let rank = name.split("-rank").nth(1).and_then(|rest| rest.split('-').next()).unwrap();
        let other = found.insert(rank.parse().unwrap(), path.clone());
        assert!(other.is_none(), "two files of rank {rank}");
    }
    found
}

/// An operation that has failed is on the timeline, with the error.
#[test]
fn the_timeline_has_operations_that_have_failed() {
    for hosts in [1, 2] {
        let folder = Folder::new(&format!("failed-{hosts}"));
        let state = job!(2, hosts, "failed")
            .with("FOLDER", folder.0.display())
            .env("SHOUTER_TIMELINE", folder.0.join("left").display())
            .run();
        state.assert_success();
        // What was pushed may have failed before rank 0 waits for it.
        for (rank, track, name, tensor) in [
            (0, "calls", "all-reduce", "trunk"),
            (1, "calls", "all-reduce", "loss"),
            (1, "wait", "loss", "loss"),
        ] {
            let left = left_timelines(&folder.0.join("left"));
            for path in [&folder.0.join(format!("{rank}.json")), &left[&rank]] {
                let trace = trace(path);
                let spans = spans(&trace);
                let of: Vec<_> = spans.iter().filter(|span| span.track == track).collect();
                let [one] = of[..] else { panic!("{} spans of {track}, {hosts} hosts", of.len()) };
                assert_eq!((one.name, one.tensor, one.step), (name, tensor, 3));
                assert!(one.error.contains("run the same operations in the same order"), "{}", one.error);
            }
        }
    }
}

/// A span of a merged timeline.
struct Span<'a> {
    /// The track's name without the number for overlapping spans.
    track: &'a str,
    rank: u64,
    name: &'a str,
    tensor: &'a str,
    step: u64,
    /// Why it has failed, or nothing.
    error: &'a str,
    start: f64,
    end: f64,
}

/// All spans of a file.
fn spans(trace: &Value) -> Vec<Span<'_>> {
    let events = || trace["traceEvents"].as_array().unwrap().iter();
    let place = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let tracks: BTreeMap<_, _> = events()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| (place(event), event["args"]["name"].as_str().unwrap()))
        .collect();
    let lasting = events().filter(|event| event["ph"] == "X");
    let span = |event| {
        let track = tracks[&place(event)];
        let args = &event["args"];
        let start = event["ts"].as_f64().unwrap();
        Span {
            track: track.split_once(" (overlap").map_or(track, |(track, _)| track),
            rank: place(event).0,
            name: event["name"].as_str().unwrap(),
            tensor: args["tensor"].as_str().unwrap(),
            step: args["step"].as_u64().unwrap(),
            error: args["why"].as_str().unwrap_or_default(),
            start,
            end: start + event["dur"].as_f64().unwrap(),
        }
    };
    lasting.map(span).collect()
}

/// The merged timeline of a job of two ranks that plays "tracks".
fn merged_tracks(folder: &Folder, hosts: u32, args: &[&str]) -> Value {
    let path = |name: &str| folder.0.join(format!("{hosts}-{name}"));
    let state = job!(2, hosts, "tracks")
        .args(args)
        .with("FOLDER", folder.0.display())
        .env("SHOUTER_TIMELINE", path("left").display())
        .run();
    state.assert_success();
    let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
    command.args(["timeline", "merge"]).arg(path("all.json"));
    let merged = command.args(["0.json", "1.json"].map(|name| folder.0.join(name))).output().unwrap();
    assert!(merged.status.success(), "{merged:?}");
    trace(&path("all.json"))
}

/// The largest rounding error of a sum of two times, in microseconds.
const ROUNDED: f64 = 0.01;

#[test]
fn what_tensors_wait_for_is_on_tracks_of_its_own() {
    let folder = Folder::new("tracks");
    let trace = merged_tracks(&folder, 2, &["--transport", "kernel"]);
    let spans = spans(&trace);
    for rank in 0..2 {
        let of = |track, name| {
            let same = |span: &&Span<'_>| (span.rank, span.track, span.name) == (rank, track, name);
            spans.iter().filter(same).collect::<Vec<_>>()
        };
        let one = |track, name| {
            let found = of(track, name);
            assert_eq!(found.len(), 1, "rank {rank}: {track} of {name}");
            found[0]
        };
        let tracks: BTreeSet<_> =
            spans.iter().filter(|span| span.rank == rank).map(|span| span.track).collect();
        assert_eq!(tracks, ["calls", "engine", "fold", "queue", "wait", "wire"].into(), "rank {rank}");
        let calls: Vec<_> = spans.iter().filter(|span| (span.rank, span.track) == (rank, "calls")).collect();
        for span in spans.iter().filter(|span| span.rank == rank && span.track != "calls") {
            let is_named = ["engine", "calls"].contains(&span.track) || span.name == span.tensor;
            assert!(is_named || (span.name, span.tensor) == ("all-reduce", "ad hoc"), "{}", span.name);
            let around = calls.iter().find(|call| {
                (call.tensor, call.step) == (span.tensor, span.step)
                    && call.start <= span.start + ROUNDED
                    // A waiting call may end later than the operation.
                    && (span.track == "wait" || span.track == "engine" || span.end <= call.end + ROUNDED)
            });
            assert!(around.is_some(), "rank {rank}: {} of {} at {}", span.track, span.name, span.start);
        }
        for name in ["trunk", "head", "behind", "loss", "all-reduce"] {
            let (queue, wire) = (one("queue", name), one("wire", name));
            assert!(queue.start < queue.end && wire.start < wire.end, "rank {rank}: {name}");
            assert!(queue.end <= wire.start + ROUNDED, "rank {rank}: {name} is on the wire before its start");
        }
        assert!(!of("queue", "tokens").is_empty() && !of("wire", "tokens").is_empty());
        for name in ["trunk", "loss", "all-reduce"] {
            let (folds, wire) = (of("fold", name), one("wire", name));
            assert!(!folds.is_empty(), "rank {rank}: no fold of {name}");
            assert!(folds.iter().all(|fold| fold.start >= wire.start - ROUNDED), "rank {rank}: {name}");
        }
        let call = calls.iter().find(|call| call.tensor == "loss").unwrap();
        let wait = one("wait", "loss");
        assert_eq!((wait.start, wait.end), (call.start, call.end));
    }
    // The tensor pushed by rank 0 is behind an operation that its peer starts later.
    let late = LATE.as_micros() as f64;
    let (of, lasted) = (
        |track, name| spans.iter().find(move |span| (span.rank, span.track, span.name) == (0, track, name)),
        |span: &Span<'_>| span.end - span.start,
    );
    assert!(lasted(of("queue", "behind").unwrap()) >= late && lasted(of("wait", "behind").unwrap()) >= late);
    let before = spans.iter().filter(|span| (span.rank, span.track, span.name) == (0, "wire", "tokens"));
    let counts = before.map(|span| span.end).fold(f64::INFINITY, f64::min);
    assert!(of("queue", "behind").unwrap().end >= counts, "it was started before what it waited for");
}

#[test]
fn a_track_that_nothing_is_on_is_not_there() {
    let folder = Folder::new("no-wire");
    let trace = merged_tracks(&folder, 1, &[]);
    let tracks: BTreeSet<_> = named(&trace, "thread_name")
        .into_iter()
        .map(|track| track["args"]["name"].as_str().unwrap().split(" (").next().unwrap())
        .collect();
    assert_eq!(tracks, ["calls", "engine", "fold", "queue", "wait"].into());
}

#[test]
fn operations_of_groups_of_some_ranks_have_their_labels() {
    let folder = Folder::new("groups");
    let state = job!(4, 2, "labels of groups")
        .env("SHOUTER_DUMP_FOLDER", folder.0.display())
        .with("FOLDER", folder.0.display())
        .env("SHOUTER_TIMELINE", folder.0.join("left").display())
        .run();
    state.assert_success();
    for (rank, told) in (0u32..).zip(&state.ranks) {
        let peers = BTreeMap::from([("experts", rank ^ 2), ("gate", rank ^ 2), ("slices", rank ^ 1)]);
        let timeline = trace(&folder.0.join(format!("{rank}.json")));
        let of = |track| {
            let spans = spans(&timeline).into_iter().filter(move |span| span.track == track);
            let named = spans.filter(|span| peers.contains_key(span.tensor));
            named.map(|span| if track == "calls" { span.tensor } else { span.name }).collect::<BTreeSet<_>>()
        };
        for track in ["calls", "queue", "fold", "wait"] {
            assert_eq!(of(track), peers.keys().copied().collect(), "rank {rank}: {track}");
        }
        assert_eq!(of("wire"), ["experts", "gate"].into(), "rank {rank}: what stays on the host");
        for event in named(&timeline, "send").into_iter().chain(named(&timeline, "receive")) {
            let tensor = event["args"]["tensor"].as_str().unwrap();
            assert!(peers.get(tensor).is_none_or(|peer| event["args"]["peer"] == *peer), "{event}");
        }
        let dump = told.told.iter().find_map(|line| line.strip_prefix("dump ")).unwrap();
        let dump = trace(dump.as_ref());
        let operations =
            named(&dump, "operation").into_iter().filter(|event| event["args"]["group"].is_u64());
        let (mut numbers, mut sent) = (BTreeMap::new(), 0);
        for event in operations {
            if let Some(name) = event["args"]["tensor"].as_str() {
                numbers.insert(
                    (event["args"]["group"].as_u64().unwrap(), event["args"]["seq"].as_u64().unwrap()),
                    name,
                );
            }
        }
        // The exchange of a registration has the label as well.
        let labelled: BTreeSet<_> = numbers.values().copied().collect();
        assert_eq!(labelled, peers.keys().copied().collect(), "{numbers:?}");
        for event in named(&dump, "first fragment sent") {
            let Some(group) = event["args"]["group"].as_u64() else { continue };
            if let Some(name) = numbers.get(&(group, event["args"]["seq"].as_u64().unwrap())) {
                assert_eq!(event["args"]["peer"], peers[name], "{event}");
                sent += 1;
            }
        }
        assert!(sent >= 3, "{sent}");
    }
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

/// Every survivor writes its last events. Its error names the file, and the events show the operation and the culprit.
#[test]
fn the_error_of_a_group_names_a_file_with_the_last_events() {
    for (ranks, hosts, victim, scenario) in [(3, 1, 1, "steps"), (3, 1, 2, "small steps"), (4, 2, 2, "steps")]
    {
        let folder = Folder::new("killed");
        let job = job!(ranks, hosts, scenario).env("SHOUTER_DUMP_FOLDER", folder.0.display()).start();
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
            // A small operation may fail at its start.
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
    let job = job!(2, 1, "dump")
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
        // The program's own handler was called each time, and still exists after the group.
        assert!(rank.told.contains(&"signals 2".into()), "{state}");
    }
    assert_eq!(folder.files(), 4, "a group that ends in good order writes nothing");
}

#[test]
fn a_folder_that_cannot_be_written_to_hides_no_error() {
    let job = job!(2, 1, "steps").env("SHOUTER_DUMP_FOLDER", "/proc").env("SHOUTER_LOG", "warn").start();
    job.until("steps are made", LIMIT, |state| state.all_told("steps"));
    job.signal(1, "KILL");
    let state = job.finish();
    let error = state.ranks[0].error();
    assert!(names_only(error, 1) && dump_of(error).is_none(), "{state}");
    let said = logged(&state);
    let warned = |line: &String| line.contains("could not be written") && line.contains("/proc/shouter-run-");
    assert!(said.iter().any(warned), "{state}");
}
