//! What a job says of itself: its log, the transport that it chose, its timeline.

#![allow(unsafe_code)]

mod ranks;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use ranks::{end, job, parameter, scenario, tell};
use serde_json::Value;
use shouter::config::{Builder, ConfigError};
use shouter::{Config, DType, Error, Group, ReduceOp, TensorSpec};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Not a test of its own: what a rank runs.
#[test]
fn rank_body() {
    let Some(scenario) = scenario() else { return };
    if scenario == "own subscriber" {
        tracing::subscriber::set_global_default(Counting).unwrap();
    }
    let config = configured().map_err(|error| Error::Config(error.to_string()));
    end(config.and_then(shouter::init).and_then(|group| {
        match scenario.as_str() {
            "timeline" => train(&group)?,
            _ => group.transport().to_string().lines().for_each(tell),
        }
        group.finalize()?;
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

/// Some steps with two tensors, one of them large, and the timeline of them.
fn train(group: &Group) -> Result<(), Error> {
    let spec =
        |name: &str, count| TensorSpec { name: name.into(), dtype: DType::F32, count, op: ReduceOp::Sum };
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
            group.wait(pending, None)?;
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
            "INFO rank {rank} shouter::communicator::ways: a channel was chosen peers=\"rank {peer}\""
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
    let state = job(2, 2, "say").env("SHOUTER_TEST_BARE", 1).env("SHOUTER_LOG", "info").run();
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
        .env("SHOUTER_TEST_FOLDER", folder.display())
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
