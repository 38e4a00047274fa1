//! `shouter check`, end to end: jobs of real ranks under `shouter run`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_shouter");
/// The time limit of a job on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// A factor that no pair exceeds, even on a busy machine.
const ANY: &str = "1e9";

/// The command of a program outside of any job.
fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    let foreign = ["SHOUTER_", "SLURM_", "PMI", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "JOB_"];
    for (name, _) in std::env::vars_os() {
        if foreign.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// A job whose ranks all run `shouter check`; it is killed when it takes longer than [`LIMIT`].
struct Job {
    launcher: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    home: PathBuf,
    pids: Vec<u32>,
    /// The ranks' output: rank, stream, line.
    printed: Vec<(u64, String, String)>,
}

impl Job {
    fn start(test: &str, ranks: u32, hosts: &str, args: &[&str]) -> Self {
        let home = std::env::temp_dir().join(format!("shouter-check-{test}-{}", std::process::id()));
        std::fs::create_dir(&home).unwrap();
        let mut command = clean(PROGRAM);
        command.args(["run", "--json", "-n", &ranks.to_string(), "--hosts", hosts]);
        if !cfg!(feature = "dpdk") && hosts != "1" {
            command.args(["--transport", "kernel"]);
        }
        command.args(["--", PROGRAM, "check"]).args(args);
        command.env("XDG_RUNTIME_DIR", &home).env("TMPDIR", &home).env("SHOUTER_LOG", "info");
        command.env("SHOUTER_HEARTBEAT_TIMEOUT", "30s");
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
        let (pid, begun) = (launcher.id(), Instant::now());
        let path = home.clone();
        std::thread::spawn(move || {
            // The folder exists as long as the job runs.
            while path.is_dir() && begun.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(50));
            }
            if path.is_dir() {
                kill(pid, "TERM");
            }
        });
        Self { launcher, lines, home, pids: vec![0; ranks as usize], printed: vec![] }
    }

    /// Reads the launcher's next event; `None` at its end.
    fn read(&mut self) -> Option<()> {
        let event: Value = serde_json::from_str(&self.lines.next()?.unwrap()).unwrap();
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        match (event["event"].as_str(), event["rank"].as_u64()) {
            (Some("started"), Some(rank)) => self.pids[rank as usize] = event["pid"].as_u64().unwrap() as u32,
            (Some("output"), Some(rank)) => self.printed.push((rank, text("stream"), text("line"))),
            _ => {}
        }
        Some(())
    }

    fn count(&self, part: &str) -> usize {
        self.printed.iter().filter(|(.., line)| line.contains(part)).count()
    }

    /// The output of a rank on this stream.
    fn of(&self, rank: u64, stream: &str) -> String {
        let lines = self.printed.iter().filter(|(of, on, _)| *of == rank && on == stream);
        lines.map(|(.., line)| line.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Waits for the end; returns the launcher's exit status.
    fn finish(&mut self) -> Option<i32> {
        while self.read().is_some() {}
        self.launcher.wait().unwrap().code()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
        if let Ok(None) = self.launcher.try_wait() {
            kill(self.launcher.id(), "TERM");
            let _ = self.launcher.wait();
        }
    }
}

fn kill(pid: u32, signal: &str) {
    let _ = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status();
}

/// Whether the text has a row that begins with `word` and has `more` further words.
fn has_row(text: &str, word: &str, more: usize) -> bool {
    let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.any(|words| words.first() == Some(&word) && words.len() == more + 1)
}

#[test]
fn a_job_that_is_well_gets_its_transport_and_a_figure_for_every_pair() {
    let mut job = Job::start("well", 4, "2", &["--seconds", "0.02", "--factor", ANY]);
    let status = job.finish();
    let text = job.of(0, "stdout");
    assert_eq!(status, Some(0), "{:?}", job.printed);
    let channel = if cfg!(feature = "dpdk") { "shm+rud" } else { "shm+kernel" };
    assert!(text.starts_with(&format!("Transport: {channel}\n")), "{text}");
    // The reasons of the first rank of the host.
    assert!(text.contains("  shm: the 2 ranks of this host share memory\n"), "{text}");
    assert!(text.lines().any(|line| line.starts_with(&format!("  {} to rank 2: ", &channel[4..]))), "{text}");
    assert!(!cfg!(feature = "dpdk") || text.contains("  MTU: 9000 bytes, "), "{text}");
    let version = env!("CARGO_PKG_VERSION");
    for ranks in ["0-1", "2-3"] {
        assert!(text.contains(&format!("  ranks {ranks}  shouter {version}\n")), "{text}");
    }
    assert!(text.contains("  host 0-1  locked memory: "), "{text}");
    for rank in ["0", "1", "2", "3"] {
        assert!(has_row(&text, rank, 4), "{text}");
    }
    assert!(has_row(&text, "3", 3), "the clock of rank 3: {text}");
    assert!(text.contains("All is well"), "{text}");
    assert!((1..4).all(|rank| job.of(rank, "stdout").is_empty()), "{:?}", job.printed);
}

#[test]
fn json_has_every_pair_and_its_exit_status_says_that_one_is_slow() {
    // Some of six figures and more are worse than their median.
    let args = ["--seconds", "0.02", "--bandwidth-bytes", "64Ki", "--factor", "1", "--json"];
    let mut job = Job::start("json", 3, "2,1", &args);
    assert_eq!(job.finish(), Some(3), "{:?}", job.printed);
    let report: Value = serde_json::from_str(&job.of(0, "stdout")).unwrap();
    assert_eq!((&report["ok"], &report["size"]), (&Value::from(false), &Value::from(3)));
    let pairs: BTreeSet<_> = report["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
            assert!(
                positive(&pair["latency_us"]) && pair["gbytes"].as_array().unwrap().iter().all(positive),
                "{pair}"
            );
            (pair["ranks"].to_string(), pair["same_host"].as_bool().unwrap())
        })
        .collect();
    let due = [("[0,1]", true), ("[0,2]", false), ("[1,2]", false)];
    assert_eq!(pairs, due.map(|(ranks, same)| (ranks.to_owned(), same)).into());
    let hosts = report["hosts"].as_array().unwrap();
    let ranks: Vec<_> = hosts.iter().map(|host| host["ranks"].to_string()).collect();
    assert_eq!(ranks, ["[0,1]", "[2]"]);
    for host in hosts {
        assert!(!host["name"].as_str().unwrap().is_empty() && !host["channels"].as_str().unwrap().is_empty());
        assert!(
            !host["reasons"].as_array().unwrap().is_empty() && !host["memory"].as_array().unwrap().is_empty()
        );
    }
    for (clock, rank) in report["clocks"].as_array().unwrap().iter().zip(1..) {
        assert_eq!((&clock["rank"], &clock["is_off"]), (&Value::from(rank), &Value::from(false)));
        // One machine has one clock: the measured offset is within the stated error, except for the time between two
        // readings.
        let (offset, within) =
            (clock["offset_us"].as_f64().unwrap(), clock["uncertainty_us"].as_f64().unwrap());
        assert!(offset.abs() <= within + 1000.0, "{clock}");
    }
    let slow = report["slow"].as_array().unwrap();
    assert!(slow.iter().all(|slow| slow["times"].as_f64().unwrap() > 1.0) && !slow.is_empty(), "{report}");
}

#[test]
fn one_rank_alone_is_well() {
    let mut job = Job::start("alone", 1, "1", &[]);
    assert_eq!(job.finish(), Some(0), "{:?}", job.printed);
    let text = job.of(0, "stdout");
    assert!(text.starts_with("Transport: local\n  local: the group has one rank\n"), "{text}");
    assert!(text.ends_with("All is well: the job has one rank, and there is nothing to measure"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_and_outside_a_job_the_way_to_start_one_is_said() {
    for args in [&["--factor", "0"][..], &["--seconds", "nan"], &["--bandwidth-bytes", "8"], &["--pairs"]] {
        let output = clean(PROGRAM).arg("check").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    }
    let of_one = |command: &mut Command| {
        let output = command.arg("check").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, errors) = of_one(&mut clean(PROGRAM));
    assert!(status == Some(1) && errors.contains("shouter run -n 2 -- shouter check"), "{errors}");
    // Where a job is described, starting one is no remedy.
    let mut wrong = clean(PROGRAM);
    wrong.envs([("SHOUTER_RANK", "0"), ("SHOUTER_SIZE", "1"), ("SHOUTER_CHANNEL_NUM", "many")]);
    let (status, errors) = of_one(&mut wrong);
    assert!(status == Some(1) && errors.contains("SHOUTER_CHANNEL_NUM"), "{errors}");
    assert!(!errors.contains("shouter run"), "{errors}");
    let mut hasty = clean(PROGRAM);
    hasty.envs([("SHOUTER_RANK", "0"), ("SHOUTER_SIZE", "1"), ("SHOUTER_DEADLINE", "100ms")]);
    let (status, errors) = of_one(&mut hasty);
    assert!(status == Some(2) && errors.contains("--seconds 0.2 is more than half"), "{errors}");
}

#[test]
fn json_has_the_error_where_there_is_no_report() {
    let here = [("SHOUTER_RANK", "0"), ("SHOUTER_SIZE", "1")];
    for (variables, code, says) in [
        (&[][..], 1, "`size`"),
        (&[here[0], here[1], ("SHOUTER_CHANNEL_NUM", "many")], 1, "SHOUTER_CHANNEL_NUM"),
        (&[here[0], here[1], ("SHOUTER_DEADLINE", "100ms")], 2, "--seconds 0.2"),
    ] {
        let output =
            clean(PROGRAM).args(["check", "--json"]).envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed["ok"], false, "{printed}");
        assert!(printed["error"].as_str().unwrap().contains(says), "{printed}");
    }
}

#[test]
fn a_rank_that_is_killed_while_pairs_are_measured_is_named() {
    let mut job = Job::start("killed", 4, "2", &["--seconds", "60"]);
    while job.count("the group has come together") < 4 {
        job.read().unwrap_or_else(|| panic!("the job has ended: {:?}", job.printed));
    }
    kill(job.pids[3], "KILL");
    assert_eq!(job.finish(), Some(128 + 9), "{:?}", job.printed);
    for rank in 0..3 {
        let errors = job.of(rank, "stderr");
        let said = errors.lines().find(|line| line.starts_with(&format!("shouter check: rank {rank}: ")));
        assert!(said.is_some_and(|said| said.matches("rank 3").count() > 0), "rank {rank}: {errors}");
        assert_eq!(job.of(rank, "stdout"), "");
    }
}

/// Four network namespaces with cables to a switch in a fifth one.
struct Network(Vec<String>);

impl Network {
    const HOSTS: usize = 4;

    /// A network that limits the sending rate of host `slow`; `None` if it cannot be made.
    fn new(slow: usize) -> Option<Self> {
        let name = |part: &str| format!("shouter-check-{}-{part}", std::process::id());
        let switch = name("switch");
        if !ran("ip", &format!("netns add {switch}")) {
            println!("skipped: no network namespaces can be made here");
            return None;
        }
        let mut network = Self(vec![switch.clone()]);
        assert!(ran("ip", &format!("-n {switch} link add switch type bridge")));
        assert!(ran("ip", &format!("-n {switch} link set switch up")));
        for number in 0..Self::HOSTS {
            let host = name(&number.to_string());
            assert!(ran("ip", &format!("netns add {host}")));
            network.0.push(host.clone());
            for words in [
                format!("-n {switch} link add port{number} type veth peer name eth0 netns {host}"),
                format!("-n {switch} link set port{number} master switch up"),
                format!("-n {host} address add 10.78.0.{}/24 dev eth0", number + 1),
                format!("-n {host} link set eth0 up"),
                format!("-n {host} link set lo up"),
            ] {
                assert!(ran("ip", &words), "ip {words} has failed");
            }
        }
        let limit = "qdisc add dev eth0 root tbf rate 4mbit burst 32kb limit 1mb";
        if !ran("tc", &format!("-n {} {limit}", name(&slow.to_string()))) {
            println!("skipped: this kernel, or tc, cannot limit what an interface sends");
            return None;
        }
        Some(network)
    }

    /// `shouter check` as the only rank of this host.
    fn rank(&self, rank: usize) -> Command {
        let mut command = clean("ip");
        command.args(["netns", "exec", &self.0[rank + 1], PROGRAM, "check"]);
        command.args(["--seconds", "0.1", "--bandwidth-bytes", "64Ki", "--json"]);
        for (key, value) in [
            ("RANK", rank.to_string().as_str()),
            ("SIZE", &Self::HOSTS.to_string()),
            ("LOCAL_RANK", "0"),
            ("LOCAL_SIZE", "1"),
            ("ADDR", "10.78.0.1"),
            ("PORT", "29500"),
            ("KEY", "0123456789abcdef0123456789abcdef"),
            ("TRANSPORT", "kernel"),
            ("HEARTBEAT_TIMEOUT", "30s"),
            ("DEADLINE", "40s"),
        ] {
            command.env(format!("SHOUTER_{key}"), value);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| {
            ran("ip", &format!("netns delete {name}"));
        });
    }
}

/// Whether a program exists and succeeds.
fn ran(program: &str, words: &str) -> bool {
    Command::new(program).args(words.split_whitespace()).output().is_ok_and(|done| done.status.success())
}

#[test]
fn a_host_whose_network_is_limited_is_slow_towards_every_other_one() {
    const SLOW: usize = 2;
    let Some(network) = Network::new(SLOW) else { return };
    let ranks: Vec<_> = (0..Network::HOSTS).map(|rank| network.rank(rank).spawn().unwrap()).collect();
    let ended: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let codes: Vec<_> = ended.iter().map(|output| output.status.code()).collect();
    assert_eq!(codes, [Some(3), Some(0), Some(0), Some(0)], "{ended:?}");
    let report: Value = serde_json::from_slice(&ended[0].stdout).unwrap();
    // On a busy machine other pairs may be slow as well.
    for other in (0..Network::HOSTS).filter(|other| *other != SLOW) {
        let is_named =
            |slow: &Value| slow["figure"] == "bandwidth" && slow["ranks"] == Value::from(vec![SLOW, other]);
        assert!(report["slow"].as_array().unwrap().iter().any(is_named), "to rank {other}: {report}");
    }
}
