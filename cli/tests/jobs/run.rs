//! `shouter run`, end to end: real processes, observed from outside.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory of a test's own, in which the launcher makes its job directories; removed at the end.
pub(crate) struct Home(pub(crate) PathBuf);

impl Home {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-test-{test}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn launcher(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shouter"));
        command.arg("run").args(args).env("XDG_RUNTIME_DIR", &self.0).stdin(Stdio::null());
        for name in ["SHOUTER_KEY", "SHOUTER_CONFIG", "SHOUTER_PORTS", "SHOUTER_CORES"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.launcher(args).output().unwrap()
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Whether a process runs, and is no zombie.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn start(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

/// Reads `count` lines of the form `[rank] pid`.
fn pids(out: &mut impl BufRead, count: usize) -> Vec<u32> {
    let mut pids = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        pids.push(line.split_whitespace().nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap());
    }
    pids
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap();
    assert!(status.success());
}

#[test]
fn every_rank_learns_its_place() {
    let home = Home::new("place");
    let show = "echo $SHOUTER_RANK/$SHOUTER_SIZE $SHOUTER_LOCAL_RANK/$SHOUTER_LOCAL_SIZE host $SHOUTER_NODE $SHOUTER_ADDR";
    let output = home.run(&["-n", "4", "--hosts", "2", "--", "sh", "-c", show]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        lines(&output.stdout),
        [
            "[0] 0/4 0/2 host 0 127.0.0.1",
            "[1] 1/4 1/2 host 0 127.0.0.1",
            "[2] 2/4 0/2 host 1 127.0.0.1",
            "[3] 3/4 1/2 host 1 127.0.0.1"
        ]
    );
    for args in [&["-n", "3", "--hosts", "2"][..], &["--hosts", "2,1"]] {
        let output = home.run(&[args, &["--", "sh", "-c", show]].concat());
        assert_eq!(
            lines(&output.stdout),
            ["[0] 0/3 0/2 host 0 127.0.0.1", "[1] 1/3 1/2 host 0 127.0.0.1", "[2] 2/3 0/1 host 1 127.0.0.1"]
        );
    }
    let wrong = home.run(&["-n", "4", "--hosts", "2,1", "--", "true"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("lists 3 ranks"), "{wrong:?}");
    assert_eq!(home.entries(), 0, "the job's directory is still there");
}

#[test]
fn every_rank_has_the_variables_of_pytorch() {
    let home = Home::new("pytorch");
    let show = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR; [ $MASTER_PORT -ne $SHOUTER_PORT ] && [ -z \"$TORCHELASTIC_USE_AGENT_STORE$TORCHELASTIC_RUN_ID$PMI_RANK\" ]";
    let mut command = home.launcher(&["-n", "3", "--hosts", "2", "--", "sh", "-c", show]);
    // Of a torchrun and an mpiexec around it.
    let outer =
        [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RUN_ID", "outer"), ("PMI_RANK", "7")];
    let output = command.env("RANK", "7").envs(outer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        lines(&output.stdout),
        ["[0] 0/3 0/2 127.0.0.1", "[1] 1/3 1/2 127.0.0.1", "[2] 2/3 0/1 127.0.0.1"]
    );
}

#[test]
fn the_key_is_in_a_private_file_and_not_in_the_environment() {
    let home = Home::new("key");
    let show = "stat -c %a $SHOUTER_KEY_FILE $(dirname $SHOUTER_KEY_FILE); wc -c <$SHOUTER_KEY_FILE; echo key:$SHOUTER_KEY";
    let output = home
        .launcher(&["-n", "1", "--", "sh", "-c", show])
        .env("SHOUTER_KEY", "of an outer job")
        .output()
        .unwrap();
    assert_eq!(lines(&output.stdout), ["[0] 600", "[0] 64", "[0] 700", "[0] key:"]);
}

#[test]
fn the_first_rank_of_each_host_gets_the_links_and_the_faults() {
    let home = Home::new("links");
    let args = ["-n", "4", "--hosts", "2", "--loss", "1%", "--corrupt", "0.1%", "--mtu", "1500", "--"];
    let show = ["sh", "-c", "echo \"$SHOUTER_LOSS $SHOUTER_CORRUPT ${SHOUTER_PORTS:-none}\""];
    let output = home.run(&[&args[..], &show[..]].concat());
    let lines = lines(&output.stdout);
    assert_eq!(lines.len(), 4, "{output:?}");
    assert!(lines.iter().all(|line| line[4..].starts_with("1% 0.1% ")), "{lines:?}");
    for (rank, kind, own, peer) in
        [(0, "vhost", "10.77.0.1/30", "10.77.0.2"), (2, "virtio", "10.77.0.2/30", "10.77.0.1")]
    {
        let ports: serde_json::Value = serde_json::from_str(&lines[rank][12..]).unwrap();
        let port = &ports[0];
        assert!(port["device"].as_str().unwrap().starts_with(&format!("{kind}:/")), "{port}");
        assert!(port["device"].as_str().unwrap().ends_with("/0-1.sock"), "{port}");
        assert_eq!(
            (&port["address"], &port["peers"][0], &port["mtu"]),
            (&own.into(), &peer.into(), &1500.into())
        );
    }
    assert!(lines[1].ends_with(" none") && lines[3].ends_with(" none"), "{lines:?}");
}

/// Every link is a network of its own; without that, three hosts could not even start. The bench checks each result.
#[test]
fn three_and_four_hosts_reduce_over_a_link_for_each_pair() {
    let home = Home::new("mesh");
    for (ranks, hosts) in [("3", "3"), ("4", "4"), ("6", "3")] {
        let output = Command::new(env!("CARGO_BIN_EXE_shouter"))
            .args(["bench", "allreduce", "--ranks", ranks, "--hosts", hosts])
            .args(["--bytes", "4,64Ki", "--seconds", "0.05", "--json"])
            .env("XDG_RUNTIME_DIR", &home.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{ranks} ranks on {hosts} hosts: {output:?}");
        let rows = lines(&output.stdout);
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert!(rows.iter().all(|row| row.contains(&format!("\"hosts\":{hosts}"))), "{rows:?}");
    }
}

/// Hosts that are joined by the kernel's sockets have no links, and the ranks need no DPDK.
#[test]
fn three_hosts_reduce_over_the_kernels_sockets() {
    let home = Home::new("sockets");
    for (ranks, hosts) in [("2", "2"), ("6", "3")] {
        let output = Command::new(env!("CARGO_BIN_EXE_shouter"))
            .args(["bench", "allreduce", "--ranks", ranks, "--hosts", hosts, "--transport", "kernel"])
            .args(["--bytes", "4,64Ki", "--seconds", "0.05", "--json"])
            .env("XDG_RUNTIME_DIR", &home.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{ranks} ranks on {hosts} hosts: {output:?}");
        let rows = lines(&output.stdout);
        assert_eq!(rows.len(), 2, "{rows:?}");
        let transport = if ranks == hosts { "\"kernel\"" } else { "\"shm+kernel\"" };
        assert!(rows.iter().all(|row| row.contains(transport)), "{rows:?}");
    }
    let told = home.run(&[
        "-n",
        "2",
        "--hosts",
        "2",
        "--transport",
        "kernel",
        "--",
        "sh",
        "-c",
        "echo ${SHOUTER_PORTS-none}",
    ]);
    assert!(lines(&told.stdout).iter().all(|line| line.ends_with(" none")), "{told:?}");
    let faults =
        home.run(&["-n", "2", "--hosts", "2", "--transport", "kernel", "--loss", "1%", "--", "true"]);
    assert_eq!(faults.status.code(), Some(2), "{faults:?}");
}

#[test]
fn the_first_failure_is_named_and_the_rest_is_ended() {
    let home = Home::new("failure");
    let work = "if [ $SHOUTER_RANK = 1 ]; then exit 7; fi; exec sleep 600";
    let begun = Instant::now();
    let output = home.run(&["-n", "3", "--grace", "0.3", "--", "sh", "-c", work]);
    assert_eq!(output.status.code(), Some(7));
    assert!(begun.elapsed() < Duration::from_secs(60));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rank 1 (pid ") && said.contains("exited with status 7"), "{said}");
    assert_eq!(home.entries(), 0);
}

#[test]
fn the_others_have_time_to_report() {
    let home = Home::new("grace");
    let work = "if [ $SHOUTER_RANK = 0 ]; then kill -KILL $$; fi; sleep 0.3; echo rank 0 is missing; exit 5";
    let output = home.run(&["-n", "2", "--grace", "20", "--", "sh", "-c", work]);
    assert_eq!(output.status.code(), Some(128 + 9), "the first failure decides");
    assert_eq!(lines(&output.stdout), ["[1] rank 0 is missing"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("was killed by signal 9 (SIGKILL)"), "{said}");
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let home = Home::new("stubborn");
    let work = "ready=$(dirname $SHOUTER_KEY_FILE)/ready
        if [ $SHOUTER_RANK = 0 ]; then while [ ! -e $ready ]; do sleep 0.01; done; exit 3; fi
        trap '' TERM; touch $ready; while :; do sleep 1; done";
    let output = home.run(&["-n", "2", "--grace", "0", "--", "sh", "-c", work]);
    assert_eq!(output.status.code(), Some(3), "the first failure decides");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rank 1 (pid ") && said.contains("was killed by signal 9 (SIGKILL)"), "{said}");
}

#[test]
fn signals_reach_every_rank() {
    let home = Home::new("signals");
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let work = format!("trap 'echo got {name}; exit 9' {name}; echo $$; while :; do sleep 0.05; done");
        let (mut child, mut out) = start(home.launcher(&["-n", "2", "--", "sh", "-c", &work]));
        pids(&mut out, 2);
        signal(child.id(), name);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let got = [format!("[0] got {name}"), format!("[1] got {name}")];
        assert_eq!(lines(rest.as_bytes()), got, "signal {number}");
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
    assert_eq!(home.entries(), 0);
}

#[test]
fn signals_of_the_ranks_own_reach_them_and_end_nothing() {
    let home = Home::new("own-signals");
    let names = ["USR1", "USR2", "QUIT", "CONT", "WINCH"];
    let traps: Vec<String> = names.iter().map(|name| format!("trap 'echo got {name}' {name};")).collect();
    let work = format!("{} trap 'exit 9' TERM; echo $$; while :; do sleep 0.05; done", traps.concat());
    let (mut child, mut out) = start(home.launcher(&["-n", "2", "--", "sh", "-c", &work]));
    pids(&mut out, 2);
    for name in names {
        signal(child.id(), name);
        let mut got = [String::new(), String::new()];
        for line in &mut got {
            out.read_line(line).unwrap();
        }
        got.sort();
        assert_eq!(got, [format!("[0] got {name}\n"), format!("[1] got {name}\n")]);
    }
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_hangup_is_not_heard_under_nohup() {
    let home = Home::new("nohup");
    let work = "trap 'exit 9' TERM; echo $$; while :; do sleep 0.05; done";
    let launcher = home.launcher(&["-n", "2", "--", "sh", "-c", work]);
    let mut command = Command::new("nohup");
    command.arg(launcher.get_program()).args(launcher.get_args()).stdin(Stdio::null());
    for (name, value) in launcher.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (mut child, mut out) = start(command);
    pids(&mut out, 2);
    signal(child.id(), "HUP");
    // A second signal that ends the job would kill its ranks.
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let home = Home::new("full");
    for args in [&["-n", "1"][..], &["-n", "1", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = home.launcher(&[args, &["--", "echo", "lost"]].concat());
        let output = command.stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("could not be written") && said.contains("No space left"), "{said}");
    }
}

#[test]
fn a_reader_that_closes_the_output_is_named_once_and_ends_nothing() {
    let home = Home::new("unread");
    for args in [&["-n", "2"][..], &["-n", "2", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let program = ["--", "sh", "-c", "echo a; echo b; echo went on >&2; exit 7"];
        let output = home.launcher(&[args, &program].concat()).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "the ranks' own status: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches("the reader of standard output has closed it").count(), 1, "{said}");
    }
}

#[test]
fn faults_in_the_environment_are_checked_as_those_of_the_command_line() {
    let home = Home::new("faults");
    let of = |transport: &str, rate: &str| {
        let args =
            ["-n", "2", "--hosts", "2", "--transport", transport, "--", "sh", "-c", "echo $SHOUTER_LOSS"];
        home.launcher(&args).env("SHOUTER_LOSS", rate).output().unwrap()
    };
    let given = of("rud", "1%");
    assert_eq!(lines(&given.stdout), ["[0] 1%", "[1] 1%"], "{given:?}");
    for (transport, rate) in [("kernel", "1%"), ("rud", "most")] {
        let refused = of(transport, rate);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("SHOUTER_LOSS"), "{refused:?}");
    }
}

#[test]
fn a_job_gets_a_session_of_its_own_only_from_a_terminal() {
    let home = Home::new("session");
    let show = "cut -d ' ' -f 6 /proc/self/stat"; // proc_pid_stat(5): the session's id
    let job = format!("{show}; {} run -n 1 -- {show}", env!("CARGO_BIN_EXE_shouter"));
    let sessions = |command: &mut Command| {
        let output = command.env("XDG_RUNTIME_DIR", &home.0).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let ids: Vec<u32> =
            said.lines().map(|line| line.split_whitespace().last().unwrap().parse().unwrap()).collect();
        <[u32; 2]>::try_from(ids).unwrap()
    };
    let [launcher, rank] = sessions(Command::new("setsid").args(["--wait", "sh", "-c", &job]));
    assert_eq!(launcher, rank);
    let [launcher, rank] = sessions(Command::new("script").args(["-q", "-e", "-c", &job, "/dev/null"]));
    assert_ne!(launcher, rank);
}

/// The children of a process, as listed by the kernel.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Ranks as started by a trainer's wrapper: each prints two processes, of which one has left its rank's group.
const WRAPPED: &str = "setsid sh -c 'echo $$; exec sleep 600' & sh -c 'echo $$; exec sleep 600'; :";

#[test]
fn whole_trees_end_with_a_launcher_that_is_killed() {
    let home = Home::new("orphans");
    let (mut child, mut out) = start(home.launcher(&["-n", "2", "--", "sh", "-c", WRAPPED]));
    let pids = pids(&mut out, 4);
    child.kill().unwrap();
    child.wait().unwrap();
    for pid in pids {
        eventually("what a rank has started outlives the launcher", || !runs(pid));
    }
    eventually("the job's directory is still there", || home.entries() == 0);
}

#[test]
fn whole_trees_end_when_the_process_that_runs_the_job_is_killed() {
    let home = Home::new("keeper");
    let (mut child, mut out) = start(home.launcher(&["-n", "2", "--", "sh", "-c", WRAPPED]));
    let pids = pids(&mut out, 4);
    for keeper in children(child.id()) {
        signal(keeper, "KILL");
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9), "{said}");
    assert!(said.contains("killed by signal 9 (SIGKILL)"), "{said}");
    assert!(pids.into_iter().all(|pid| !runs(pid)), "what a rank has started is left");
    assert_eq!(home.entries(), 1, "nobody could remove it");
    assert!(home.run(&["-n", "1", "--", "true"]).status.success());
    assert_eq!(home.entries(), 0, "the next launcher removes what the dead one left");
}

#[test]
fn what_has_left_its_ranks_group_ends_with_the_job() {
    let home = Home::new("daemons");
    let work = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' & sleep 0.5";
    let output = home.run(&["-n", "2", "--", "sh", "-c", work]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for pid in pids(&mut &output.stdout[..], 2) {
        assert!(!runs(pid), "what a rank has started outlives the job");
    }
}

/// DPDK makes a directory in an ordinary user's runtime folder for as long as a program runs.
#[cfg(feature = "dpdk")]
#[test]
fn an_ordinary_users_job_leaves_nothing_behind_and_a_second_user_can_run() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    /// nobody, and another one without an entry anywhere.
    const USERS: [u32; 2] = [65_534, 64_321];
    let home = Home::new("user");
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    // An ordinary user may not look into the directory of this build.
    let program = home.0.join("shouter");
    std::fs::copy(env!("CARGO_BIN_EXE_shouter"), &program).unwrap();
    let shared = home.0.join("tmp");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let job = |user: u32| {
        let mut command = Command::new(&program);
        command.args([
            "bench",
            "allreduce",
            "--ranks",
            "2",
            "--hosts",
            "2",
            "--bytes",
            "4",
            "--seconds",
            "0.05",
        ]);
        command
            .env("XDG_RUNTIME_DIR", &shared)
            .env("HOME", &shared)
            // Else the home directory keeps what was measured.
            .env("SHOUTER_MEASURE_COSTS", "off")
            .current_dir(&shared)
            .stdin(Stdio::null());
        if is_root {
            command.uid(user).gid(user);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "user {user}: {output:?}");
    };
    job(USERS[0]);
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 0, "something is left behind");
    if is_root {
        // The directory is now in use by another program of the first user.
        let theirs = shared.join("dpdk");
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("in use"), "").unwrap();
        std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(USERS[0]), Some(USERS[0])).unwrap();
        job(USERS[1]);
        assert!(theirs.join("in use").exists());
    }
}

#[test]
fn what_a_rank_started_goes_with_it() {
    let home = Home::new("grandchildren");
    let output = home.run(&["-n", "1", "--", "sh", "-c", "sleep 600 & echo $!"]);
    assert_eq!(output.status.code(), Some(0));
    let pid = pids(&mut &output.stdout[..], 1)[0];
    eventually("the rank's child outlives it", || !runs(pid));
}

#[test]
fn json_prints_one_object_a_line() {
    let home = Home::new("json");
    let output = home.run(&["-n", "2", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 4"]);
    assert_eq!(output.status.code(), Some(4));
    let events: Vec<serde_json::Value> = output
        .stdout
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    let count = |event: &str| events.iter().filter(|e| e["event"] == event).count();
    assert_eq!(
        (count("started"), count("output"), count("ended"), count("finished")),
        (2, 4, 2, 1),
        "{events:?}"
    );
    assert_eq!(events.last().unwrap()["status"], 4);
    assert!(events.iter().any(|e| e["stream"] == "stderr" && e["line"] == "err"));
}

#[test]
fn a_wrong_command_line_is_status_2_and_says_what_would_do() {
    let home = Home::new("usage");
    let wrong: [(&[&str], &str); 10] = [
        (&["-n", "2"], "COMMAND"),
        (&["--", "true"], "--ranks"),
        (&["-n", "0", "--", "true"], "1..=4096"),
        (&["-n", "x", "--", "true"], "invalid digit"),
        (&["-n", "2", "--hosts", "3", "--", "true"], "2 ranks cannot fill 3 hosts"),
        (&["-n", "2", "--loss", "1%", "--", "true"], "add --hosts 2"),
        (&["-n", "2", "--hosts", "2", "--loss", "1", "--", "true"], "such as 1%"),
        (&["-n", "2", "--hosts", "2", "--link", "wet-string", "--", "true"], "virtio"),
        (&["-n", "1", "--cores", "4000", "--", "true"], "may not use core 4000"),
        (&["-n", "2", "--mtu", "12", "--", "true"], "576..=9000"),
    ];
    for (args, says) in wrong {
        let output = home.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126() {
    let home = Home::new("missing");
    let output = home.run(&["-n", "2", "--", "no-such-trainer"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no such command"));
    let output = home.run(&["-n", "2", "--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126));
    assert_eq!(home.entries(), 0);
}

#[test]
fn help_shows_examples() {
    let home = Home::new("help");
    for args in [&["--help"][..], &["-h"]] {
        let output = home.run(args);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains("shouter run -n 4 --hosts 2"));
    }
}
