//! Jobs under other launchers: Open MPI's mpirun, MPICH's mpiexec, Slurm's srun, and torchrun's variables.
//!
//! They start this test's own executable, which then plays [`rank_body`].

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::ranks::{BODY, end, scenario, tell, test_of};
use shouter::{Error, ReduceOp};

const RANKS: u32 = 4;
/// The time limit of a job on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

/// The body of a rank: joins as its launcher says, and sums.
#[test]
fn rank_body() {
    let Some(scenario) = scenario() else { return };
    // A process may join again, through the same launcher.
    let joins = if scenario == "twice" { 2 } else { 1 };
    end((0..joins).try_for_each(|_| sum()));
}

fn sum() -> Result<(), Error> {
    let group = crate::ranks::join()?;
    let mut data = vec![group.rank() as f32 + 1.0; 1000];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    let (rank, size, local_rank, local_size) =
        (group.rank(), group.size(), group.local_rank(), group.local_size());
    group.finalize()?;
    tell(format_args!("rank {rank} of {size}, {local_rank} of {local_size}, sum {}", data[999]));
    Ok(())
}

/// Whether a program is installed; prints that the test is skipped if not.
fn there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !there {
        println!("skipped: there is no {program}");
    }
    there
}

/// This executable as the command of a rank, behind `inside` (the command that enters a namespace).
fn rank(inside: &[&str]) -> Vec<String> {
    let own = std::env::current_exe().unwrap();
    let body = test_of(module_path!(), BODY);
    let own = [own.to_str().unwrap(), &body, "--exact", "--nocapture"];
    inside.iter().chain(&own).map(|word| (*word).to_owned()).collect()
}

/// A launcher with the variables of its ranks.
fn launcher(program: &str, scenario: &str) -> Command {
    let mut command = Command::new(program);
    let foreign = ["SHOUTER_", "SLURM_", "PMI", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_"];
    for (name, _) in std::env::vars_os() {
        if foreign.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("SHOUTER_TEST_SCENARIO", scenario);
    // Both launchers of MPI refuse root otherwise. A rank that waits long for a core is not dead.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("SHOUTER_HEARTBEAT_TIMEOUT", "30s").stdin(Stdio::null());
    command
}

/// Runs the command to its end, or kills it after [`LIMIT`].
fn run(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Checks that each rank has printed its place, `joins` times, and the sum; ranks fill hosts of `per_host`.
fn check(output: &Output, per_host: u32, joins: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    let sum = RANKS * (RANKS + 1) / 2;
    for rank in 0..RANKS {
        let line = format!("rank {rank} of {RANKS}, {} of {per_host}, sum {sum}", rank % per_host);
        assert_eq!(
            text.matches(&line).count(),
            joins,
            "{line:?} is not there {joins} times: {text}\n{errors}"
        );
    }
}

/// Two network namespaces with a cable between them. Both have the same address on their default route, as virtual
/// machines behind NAT have.
struct TwoHosts([String; 2]);

impl TwoHosts {
    /// `None` if this user cannot make them.
    fn new(test: &str) -> Option<Self> {
        let names = ["a", "b"].map(|end| format!("shl-{test}-{}-{end}", std::process::id()));
        let ip = |words: &str| {
            let done = Command::new("ip").args(words.split_whitespace()).output();
            done.is_ok_and(|done| done.status.success())
        };
        let [a, b] = &names;
        if !there("ip") || !ip(&format!("netns add {a}")) {
            println!("skipped: no network namespaces can be made here");
            return None;
        }
        let hosts = Self(names.clone());
        let all = [
            format!("netns add {b}"),
            format!("-n {a} link add eth0 type veth peer name eth0 netns {b}"),
            format!("-n {a} address add 10.79.0.1/24 dev eth0"),
            format!("-n {b} address add 10.79.0.2/24 dev eth0"),
            format!("-n {a} link set eth0 up"),
            format!("-n {b} link set eth0 up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        let nat = names.iter().flat_map(|name| {
            [
                "link add nat type veth peer name gateway",
                "address add 10.0.2.15/24 dev nat",
                "link set gateway up",
                "link set nat up",
                "route add default via 10.0.2.2",
            ]
            .map(|words| format!("-n {name} {words}"))
        });
        let all = all.into_iter().chain(nat);
        for words in all {
            assert!(ip(&words), "ip {words} has failed");
        }
        Some(hosts)
    }

    /// The command of the ranks on one of them.
    fn rank(&self, host: usize) -> Vec<String> {
        rank(&["ip", "netns", "exec", &self.0[host]])
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

#[test]
fn ranks_of_open_mpi_meet_through_pmix() {
    if !there("mpirun.openmpi") {
        return;
    }
    let mut command = launcher("mpirun.openmpi", "twice");
    command.args(["--oversubscribe", "--bind-to", "none", "-n", "4"]).args(rank(&[]));
    check(&run(command), 4, 2);
}

#[test]
fn ranks_of_mpich_meet_through_pmi_1() {
    if !there("mpiexec.hydra") {
        return;
    }
    let mut command = launcher("mpiexec.hydra", "twice");
    command.args(["-n", "4"]).args(rank(&[]));
    check(&run(command), 4, 2);
}

/// The ranks are those of the launcher within, though they inherit the variables of the rank of `shouter run`.
#[test]
fn the_innermost_of_nested_launchers_counts() {
    let launchers = [
        ("mpirun.openmpi", &["--oversubscribe", "--bind-to", "none", "-n", "4"][..]),
        ("mpiexec.hydra", &["-n", "4"]),
    ];
    for (program, options) in launchers.into_iter().filter(|(program, _)| there(program)) {
        let mut command = launcher(env!("CARGO_BIN_EXE_shouter"), "sum");
        command.args(["run", "-n", "1", "--", program]).args(options).args(rank(&[]));
        check(&run(command), 4, 1);
        // And the other way round.
        let mut command = launcher(program, "sum");
        command.args(&options[..options.len() - 1]).args(["1", env!("CARGO_BIN_EXE_shouter")]);
        command.args(["run", "-n", "4", "--"]).args(rank(&[]));
        check(&run(command), 4, 1);
    }
}

#[test]
fn ranks_of_mpich_in_two_network_namespaces_are_on_two_hosts() {
    if !there("mpiexec.hydra") {
        return;
    }
    let Some(hosts) = TwoHosts::new("mpich") else { return };
    let mut command = launcher("mpiexec.hydra", "sum");
    command.args(["-n", "2"]).args(hosts.rank(0)).args([":", "-n", "2"]).args(hosts.rank(1));
    check(&run(command), 2, 1);
}

/// `srun` on a Slurm of one machine, started for this job alone.
fn srun(scenario: &str, mpi: &str, words: Vec<String>) -> Option<Output> {
    if !["slurmctld", "slurmd", "munged", "srun"].into_iter().all(there) {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a Slurm of one's own needs root");
        return None;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/lib/with-slurm");
    let mut command = launcher(script.to_str().unwrap(), scenario);
    command.args(["srun", &format!("--mpi={mpi}"), "-n", "4", "-O"]).args(words);
    Some(run(command))
}

#[test]
fn ranks_of_slurm_meet_through_pmi_2_in_two_network_namespaces() {
    let Some(hosts) = TwoHosts::new("slurm") else { return };
    let [a, b] = [0, 1].map(|host| hosts.rank(host).join(" "));
    let choose = format!("if [ $SLURM_PROCID -lt 2 ]; then exec {a}; else exec {b}; fi");
    let words = ["sh", "-c", &choose].map(str::to_owned).to_vec();
    let Some(output) = srun("sum", "pmi2", words) else { return };
    check(&output, 2, 1);
}

#[test]
fn ranks_of_slurm_meet_through_pmix() {
    let Some(output) = srun("twice", "pmix", rank(&[])) else { return };
    check(&output, 4, 2);
}

#[test]
fn ranks_of_slurm_without_pmi_need_a_key_and_say_so() {
    let own = rank(&[]).join(" ");
    // First without a key, where every rank fails; then with it.
    let both = format!("{own} | grep -q 'srun --mpi=pmi2' && SHOUTER_KEY=$SHOUTER_TEST_KEY exec {own}");
    let words = ["sh", "-c", &format!("SHOUTER_TEST_KEY=0123456789abcdef0123456789abcdef; {both}")];
    let Some(output) = srun("sum", "none", words.map(str::to_owned).to_vec()) else { return };
    check(&output, 4, 1);
}

#[test]
fn ranks_by_the_variables_of_torchrun_meet_with_a_key() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // The port above must be free as well; below the range of other connections no process takes it by chance.
    let port = 10_000 + port % 10_000;
    let start = |rank_number: u32| {
        let words = rank(&[]);
        let mut command = launcher(&words[0], "sum");
        command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("RANK", rank_number.to_string()).env("WORLD_SIZE", "4");
        command.env("LOCAL_RANK", rank_number.to_string()).env("LOCAL_WORLD_SIZE", "4");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("TORCHELASTIC_RUN_ID", "job").env("TORCHELASTIC_RESTART_COUNT", "1");
        command.env("SHOUTER_KEY", "0123456789abcdef0123456789abcdef");
        command.spawn().unwrap()
    };
    let all: Vec<_> = (0..RANKS).map(start).collect();
    let mut text = Vec::new();
    let mut status = None;
    for rank in all {
        let output = rank.wait_with_output().unwrap();
        text.extend(output.stdout);
        status = Some(output.status).filter(|new| status.is_none() || !new.success()).or(status);
    }
    check(&Output { status: status.unwrap(), stdout: text, stderr: vec![] }, 4, 1);
}
