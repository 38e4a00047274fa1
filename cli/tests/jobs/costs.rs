//! The figures of the cost model between real processes: measured at the join, the same on all ranks, kept for the next job; ranks that
//! end meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ranks::{JOIN, Plan, State, job, join, names_only, parameter, play, tell};
use shouter::{CostsFrom, Error, Group, ReduceOp};

/// The longest measurement: what is begun before its budget ends takes longer where a rank waits for a core.
const LONGEST: Duration = Duration::from_secs(2);

/// Jobs that are started until one has had the time to measure, on a busy machine.
const TRIES: u32 = 30;

/// The event of a join with which the measurement begins.
const BEGINS: &str = "the figures of the cost model are measured";

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let dies = parameter("DIES") == std::env::var("SHOUTER_RANK").ok() && parameter("DIES").is_some();
    if crate::ranks::scenario().is_some() {
        let hear = move |line: &shouter::log::Line<'_>| {
            if dies && line.text.contains(BEGINS) {
                std::process::abort();
            }
            if line.text.contains("figures") {
                tell(format_args!("log {}", line.text));
            }
        };
        shouter::log::set(Some("shouter=debug"), Some(Box::new(hear))).unwrap();
    }
    play(&[("figures", figures)], join);
}

/// Tells the figures, and uses them.
fn figures(group: &Group) -> Result<(), Error> {
    let values: Vec<_> = group.costs().values().map(|(name, value)| format!("{name} {value}")).collect();
    tell(format_args!("values {}", values.join(", ")));
    tell(format_args!("origin {}", group.costs().origin()));
    if let CostsFrom::Measured(took) = group.costs().origin() {
        tell(format_args!("took {}", took.as_micros()));
    }
    for count in [1usize, 5_000, 300_000] {
        let mut data = vec![group.rank() + 1; count];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert_eq!(data, vec![(1..=group.size()).sum::<u32>(); count]);
    }
    let pair = group.duplicate()?;
    assert_eq!(pair.costs(), group.costs());
    pair.barrier()
}

/// A folder of a test's own, for a file of figures.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("shouter-costs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("measured.toml")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a rank has told with this prefix.
fn told<'a>(state: &'a State, rank: usize, start: &str) -> Option<&'a str> {
    state.ranks[rank].told.iter().find_map(|line| line.strip_prefix(start))
}

/// The figures and their origin, which all ranks have told alike.
fn common(state: &State) -> (String, String) {
    state.assert_success();
    let of = |rank| ["values ", "origin "].map(|start| told(state, rank, start).unwrap().to_owned());
    let [values, origin] = of(0);
    for rank in 1..state.ranks.len() {
        assert_eq!(of(rank), [values.clone(), origin.clone()], "rank {rank}\n{state}");
    }
    (values, origin)
}

fn measuring(ranks: u32, hosts: impl ToString) -> Plan {
    // A file of figures that `shouter plan --measure` has left on this machine does not count.
    job!(ranks, hosts, "figures").env("SHOUTER_MEASURE_COSTS", "on").env("XDG_CACHE_HOME", "/nowhere")
}

fn with_file(ranks: u32, hosts: impl ToString, file: &Path) -> Plan {
    // Emulated hosts do not know that they share cores.
    let plan = measuring(ranks, hosts).env("SHOUTER_COSTS_CACHE", file.display());
    plan.env("SHOUTER_IDLE", "yield")
}

/// Runs such jobs until one has measured, and returns its state and figures; `None`, with the reason printed, where the machine is too busy.
fn measured(ranks: u32, hosts: &str, transport: &str, file: &Path) -> Option<(State, String)> {
    let before = std::fs::read(file).ok();
    for _ in 0..TRIES {
        let state = with_file(ranks, hosts, file).env("SHOUTER_TRANSPORT", transport).run();
        let (values, origin) = common(&state);
        if origin.starts_with("measured at the join in ") {
            assert_ne!(std::fs::read(file).ok(), before, "{state}");
            return Some((state, values));
        }
        // Else it says what it had no time for, or what varied, and nothing is kept.
        assert!(origin.starts_with("built in: nothing was measured: "), "{origin}\n{state}");
        assert_eq!(std::fs::read(file).ok(), before, "{state}");
    }
    println!("skipped: none of {TRIES} jobs could measure on a machine that is so busy");
    None
}

/// Measures, and then runs a job that finds what was measured.
fn check(ranks: u32, hosts: &str, transport: &str, name: &str) {
    let folder = Folder::new(name);
    let file = folder.file();
    let Some((state, values)) = measured(ranks, hosts, transport, &file) else { return };
    let took = Duration::from_micros(told(&state, 0, "took ").unwrap().parse().unwrap());
    assert!(took < LONGEST + state.slack(), "{took:?}\n{state}");
    assert!(told(&state, 0, "log ").unwrap().contains(BEGINS), "{state}");
    let written = std::fs::read(&file).unwrap();

    let second = with_file(ranks, hosts, &file).env("SHOUTER_TRANSPORT", transport).run();
    assert_eq!(common(&second), (values, "measured by an earlier job".into()), "{second}");
    assert!(!second.to_string().contains(BEGINS), "{second}");
    assert_eq!(std::fs::read(&file).unwrap(), written);
}

#[test]
fn ranks_of_a_host_measure_once() {
    check(2, "1", "auto", "host");
}

#[test]
fn leaders_measure_the_channel_between_them() {
    check(2, "2", "auto", "leaders");
    check(2, "2", "kernel", "kernel");
}

#[test]
fn hosts_of_several_ranks_measure_both() {
    check(4, "2", "auto", "both");
    check(3, "1,2", "kernel", "uneven");
}

/// Other hosts, or another link between them, are measured by themselves.
#[test]
fn figures_hold_for_the_same_hosts_and_transport() {
    let folder = Folder::new("same");
    let file = folder.file();
    for (ranks, hosts, transport) in [(2, "1", "auto"), (2, "2", "kernel"), (3, "3", "kernel")] {
        let Some(_) = measured(ranks, hosts, transport, &file) else { return };
    }
    for (ranks, hosts, transport) in [(2, "1", "shm"), (2, "2", "kernel"), (3, "3", "kernel")] {
        let state = with_file(ranks, hosts, &file).env("SHOUTER_TRANSPORT", transport).run();
        assert_eq!(common(&state).1, "measured by an earlier job", "{state}");
    }
}

#[test]
fn a_damaged_file_is_written_anew() {
    let folder = Folder::new("damaged");
    let file = folder.file();
    for text in ["[[measured]]\nhost", "[rud]\nlatency_ns = 1\n"] {
        std::fs::write(&file, text).unwrap();
        let Some((state, values)) = measured(2, "1", "auto", &file) else { return };
        let warned = |line: &String| line.contains("the figures of earlier jobs are not used");
        // The last of several jobs, if the others had no time.
        assert!(state.ranks[0].told.iter().any(warned), "{state}");
        assert!(!state.ranks[1].told.iter().any(warned), "{state}");
        let second = with_file(2, "1", &file).run();
        assert_eq!(common(&second), (values, "measured by an earlier job".into()));
    }
}

#[test]
fn what_is_configured_counts_for_more() {
    let folder = Folder::new("configured");
    let file = folder.file();
    let table = folder.0.join("costs.toml");
    std::fs::write(&table, "[shm]\nfold_mb_s = 12345\n").unwrap();
    // Rank 0's settings count; the others have the same here.
    let state = with_file(2, "1", &file).env("SHOUTER_COSTS", table.display()).run();
    let (values, origin) = common(&state);
    assert!(values.contains("fold_mb_s 12345"), "{values}");
    assert_eq!(origin, "from rank 0's file of figures");
    let state = with_file(2, "1", &file).env("SHOUTER_MEASURE_COSTS", "off").run();
    assert_eq!(common(&state).1, "built in: measure_costs is off");
    // Frames that are dropped on purpose say nothing of the network.
    let state = with_file(2, "2", &file).env("SHOUTER_TRANSPORT", "rud").args(&["--loss", "1%"]).run();
    assert_eq!(common(&state).1, "built in: faults are injected");
    assert!(!file.exists());
}

/// A rank that ends when the measurement begins is named by all others, whether it takes part or not.
#[test]
fn a_rank_that_ends_meanwhile_is_named() {
    for (ranks, hosts, transport) in [(2, "1", "auto"), (2, "2", "auto"), (4, "2", "kernel")] {
        for victim in 0..ranks {
            let plan = measuring(ranks, hosts).env("SHOUTER_TRANSPORT", transport);
            let running = plan.with("DIES", victim).start();
            let state = running.finish();
            assert!(state.ranks[victim as usize].signal.is_some(), "{state}");
            let died = state.ranks[victim as usize].ended.unwrap();
            for other in state.others(victim) {
                assert_eq!(other.code, Some(JOIN), "{state}");
                assert!(names_only(other.error(), victim), "rank {victim} in {:?}\n{state}", other.error());
            }
            state.assert_known_at_once(victim, died);
        }
    }
}
