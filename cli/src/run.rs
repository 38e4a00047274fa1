//! `shouter run`: a job of several ranks on this machine.
//!
//! The launcher makes a directory for the job, a secret key, and one process per rank. With `--hosts` it emulates
//! several hosts: ranks of one emulated host meet in shared memory as on any host, and the hosts are joined by DPDK
//! links over UNIX sockets, so every byte between them takes the network path.
//!
//! The launcher is two processes, so that the job also ends when one of them is killed with SIGKILL: the started
//! process passes signals on and waits ([`front`]), and its child runs the job. Each adopts the orphans among its
//! descendants, in any session, and ends them.

use std::io::{self, IsTerminal};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::TryRngCore;
use rand::rngs::OsRng;

use crate::hosts::Hosts;
use crate::ports::Port;
use crate::status::Status;
use job::{Job, end_children, exit_status};
use output::{LauncherEvent, Style};
use plan::{Link, MAX_HOSTS, MAX_RANKS, Placement};
use sys::{Half, Signals};
pub(crate) use workdir::WorkDir;

mod job;
mod output;
mod plan;
mod sys;
mod workdir;

/// A UNIX socket's path holds 108 bytes with its closing zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// Start a job of several ranks on this machine, as one host or as several emulated ones
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Starts RANKS copies of COMMAND on this machine, tells each its rank, and passes their output on line by \
        line with the rank in front, a line of more than 64 KiB as several. A job whose output nobody reads any more (`| head`) goes on, and the launcher says so; output that cannot be written \
        for another reason, such as a full disk, is an error when the job has ended. INT, TERM and HUP (but under nohup) go to every rank and end the job; USR1, USR2, QUIT, CONT and WINCH go to every rank. When one rank dies, the launcher says which and how, \
        gives the others time to report their own errors, and ends them. What ranks have started ends with the job, also \
        when the launcher is killed.\n\n\
        With --hosts 2 the ranks are spread in blocks over two emulated hosts, with --hosts 4,2 as listed: ranks of one host meet in shared memory, \
        hosts are joined by DPDK links over UNIX sockets, or by the kernel's sockets (--transport kernel). It needs no root, \
        no hugepages and no NIC.",
    after_help = "Examples:\n  \
        shouter run -n 4 -- ./trainer                        four ranks on one host, in shared memory\n  \
        shouter run -n 4 --hosts 2 -- ./trainer --epochs 3   two hosts of two ranks, joined by a DPDK link\n  \
        shouter run --hosts 3,1 -- ./trainer                 a host of three ranks and one of one\n  \
        shouter run -n 4 --hosts 2 --transport kernel -- ./trainer\n                                                       \
        the same over the kernel's sockets, without DPDK\n  \
        shouter run -n 2 --hosts 2 --loss 1% --corrupt 0.1% -- ./trainer\n                                                       \
        the same with faults injected on the wire\n  \
        shouter run -n 2 --json -- ./trainer | jq .          one JSON object a line\n\n\
        Every rank is given SHOUTER_RANK, SHOUTER_SIZE, SHOUTER_LOCAL_RANK, SHOUTER_LOCAL_SIZE, SHOUTER_NODE, SHOUTER_ADDR,\n\
        SHOUTER_PORT, SHOUTER_JOB and SHOUTER_KEY_FILE, and, where they apply, SHOUTER_CORES or SHOUTER_IDLE, SHOUTER_PORTS, SHOUTER_LOSS,\n\
        SHOUTER_CORRUPT and SHOUTER_FAULT_SEED; SHOUTER_RUN, by which ranks of a launcher that COMMAND starts are known as that one's;\n\
        and PyTorch's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.\n\n\
        Exit status: 0 when every rank exits with 0; else that of the rank that failed first, 128 + n when signal n\n\
        killed it; 2 a wrong command line; 126 COMMAND cannot be executed; 127 COMMAND does not exist."
)]
pub(crate) struct Args {
    /// How many ranks
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// How many emulated hosts, which ranks fill in blocks; or the ranks of each, such as 4,2
    #[arg(long, value_name = "HOSTS", default_value = "1")]
    hosts: Hosts,
    /// Lose this share of the frames between hosts, for example 1%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    loss: Option<String>,
    /// Flip a bit in this share of the frames between hosts, for example 0.1%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    corrupt: Option<String>,
    /// The seed of the faults: the same one loses the same frames
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// The transport between ranks: auto, shm, rud, tcp, or verbs or kernel, which need no links (default: as
    /// SHOUTER_TRANSPORT or the configuration says)
    #[arg(long, value_parser = ["auto", "shm", "rud", "tcp", "verbs", "kernel"])]
    transport: Option<String>,
    /// The RDMA device of each emulated host, or one for all, such as rxe1,rxe2 (default: none, so that auto takes a link)
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    rdma_device: Vec<String>,
    /// The drivers that join two hosts
    #[arg(long, value_enum, default_value_t = Link::Virtio)]
    link: Link,
    /// The MTU of the links between hosts, in bytes
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// The cores to pin ranks to, one each, such as 0,2-5; or `none` (default: those this process may use, when they are enough)
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    cores: Option<Cores>,
    /// How long the others may go on after a rank has failed, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    grace: Duration,
    /// Print one JSON object a line on standard output
    #[arg(long)]
    json: bool,
    /// The program that every rank runs, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

impl Args {
    /// Whether the hosts are joined by DPDK links; RDMA and the kernel's sockets need none.
    fn has_links(&self) -> bool {
        let transport = self.transport.clone().or_else(|| std::env::var("SHOUTER_TRANSPORT").ok());
        !transport.is_some_and(|transport| ["verbs", "kernel"].contains(&transport.as_str()))
    }
}

/// The cores that `--cores` names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cores {
    None,
    List(Vec<usize>),
}

/// Runs the job and returns its exit status.
pub(crate) fn main(args: &Args) -> Status {
    let style = Style {
        json: args.json,
        colour: [io::stdout().is_terminal(), io::stderr().is_terminal()]
            .map(|tty| tty && std::env::var_os("NO_COLOR").is_none()),
    };
    let split = || {
        // Signals are blocked before the fork, so that none is lost between the two processes.
        let signals = Signals::new()?;
        Ok((signals, sys::split()?))
    };
    let result = match split() {
        Ok((signals, Half::Front { keeper })) => match front(&signals, keeper) {
            // The child has printed everything.
            Ok(Ended::WithStatus(status)) => return status,
            Ok(Ended::Killed(error)) => Err(error),
            Err(error) => Err(LaunchError::system("lost track of the job", &error)),
        },
        Ok((_, Half::Keeper { front })) => launch(args, style, front),
        Err(error) => Err(LaunchError::system("cannot start the process that runs the job", &error)),
    };
    let status = result.unwrap_or_else(|error| {
        style.note(&error.text);
        error.status
    });
    style.event(&LauncherEvent::Finished { status: status.0 });
    status
}

/// The end of the process that ran the job.
enum Ended {
    /// It exited.
    WithStatus(Status),
    /// A signal killed it; its children were ended too.
    Killed(LaunchError),
}

/// Passes signals on to the process that runs the job, until it has ended.
fn front(signals: &Signals, keeper: u32) -> io::Result<Ended> {
    let ended = loop {
        match signals.wait(None)? {
            None | Some(libc::SIGCHLD) => {}
            // Not passed on: that process would take it for the death of this one.
            Some(sys::FRONT_DIED) => {}
            Some(signal) => sys::signal(keeper, signal),
        }
        if let Some(ended) = sys::reap(keeper)? {
            break ended;
        }
    };
    let status = exit_status(ended);
    let Some(signal) = ended.signal() else { return Ok(Ended::WithStatus(status)) };
    // The ranks died with it; their remaining children are now this process's.
    end_children(signals);
    let name = sys::signal_name(signal);
    let text = format!(
        "the process that ran the job (pid {keeper}) was killed by signal {signal} ({name}); every rank was killed"
    );
    Ok(Ended::Killed(LaunchError { status, text }))
}

/// The reason why a job did not start.
struct LaunchError {
    status: Status,
    text: String,
}

impl LaunchError {
    fn usage(text: impl Into<String>) -> Self {
        Self { status: Status::USAGE, text: text.into() }
    }

    fn system(what: &str, error: &io::Error) -> Self {
        Self { status: Status::FAILED, text: format!("{what}: {error}") }
    }
}

/// Runs the job, until it has ended or the process `front` has.
fn launch(args: &Args, style: Style, front: u32) -> Result<Status, LaunchError> {
    let locals = args.hosts.fill(args.ranks).map_err(LaunchError::usage)?;
    let faults = [("SHOUTER_LOSS", &args.loss), ("SHOUTER_CORRUPT", &args.corrupt)];
    let faults = [fault(faults[0])?, fault(faults[1])?];
    let any = faults.iter().any(|(_, rate)| rate.is_some());
    let (ranks, hosts) = (locals.iter().sum::<u32>(), locals.len() as u32);
    if hosts > MAX_HOSTS || ranks > MAX_RANKS {
        return Err(LaunchError::usage(format!(
            "{ranks} ranks on {hosts} hosts: one machine runs at most {MAX_RANKS} on {MAX_HOSTS}"
        )));
    }
    if hosts == 1 && any {
        return Err(LaunchError::usage(
            "--loss and --corrupt (SHOUTER_LOSS, SHOUTER_CORRUPT) act on the links between hosts, and there is one host: add --hosts 2",
        ));
    }
    if args.rdma_device.len() > 1 && args.rdma_device.len() != locals.len() {
        return Err(LaunchError::usage(format!(
            "--rdma-device names {} devices for {} hosts: name one, or one for each host",
            args.rdma_device.len(),
            hosts
        )));
    }
    if !args.has_links() && any {
        return Err(LaunchError::usage(
            "--loss and --corrupt (SHOUTER_LOSS, SHOUTER_CORRUPT) act on the links between hosts, and the transports verbs and kernel have none: leave them out, or use \
             --transport tcp",
        ));
    }
    let cores = cores_of_ranks(args, ranks)?;
    let mut parent = workdir::parent();
    // Every job's directory has sixteen hexadecimal digits.
    let sample = parent.join("shouter-run-0123456789abcdef");
    if plan::longest_socket_path(&sample, hosts) > LONGEST_SOCKET_PATH {
        parent = "/tmp".into();
    }
    let dir = WorkDir::create(&parent).map_err(|error| {
        let what = format!("cannot make the job's directory in {}", parent.display());
        LaunchError::system(&what, &error)
    })?;
    let mut random = [0u8; 48];
    OsRng
        .try_fill_bytes(&mut random)
        .map_err(|error| LaunchError::system("no randomness", &io::Error::other(error)))?;
    let job_name = format!("run-{}", hex::encode(&random[32..40]));
    let key_file = dir
        .write_private("key", &hex::encode(&random[..32]))
        .map_err(|error| LaunchError::system("cannot write the key file", &error))?;
    let reserve =
        || Port::reserve().map_err(|error| LaunchError::system("no free TCP port on 127.0.0.1", &error));
    // They are this job's until it has ended.
    let reserved = [reserve()?, reserve()?];
    let ports = reserved.each_ref().map(Port::number);

    // Ranks of other emulated hosts share a rank's cores as well, which the rank does not know.
    let crowded = std::thread::available_parallelism().is_ok_and(|cores| ranks as usize > cores.get());
    let mut job = Job::new(front, style, args.grace)
        .map_err(|error| LaunchError::system("cannot receive signals", &error))?;
    for placement in plan::placements(&locals) {
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]);
        for (name, rate) in &faults {
            match rate {
                Some(rate) => command.env(name, rate),
                None => command.env_remove(name),
            };
        }
        if let Err(error) = describe(&mut command, args, (&placement, ranks, hosts), dir.path(), ports) {
            job.kill();
            return Err(error);
        }
        command.env("SHOUTER_JOB", &job_name).env("SHOUTER_KEY_FILE", &key_file);
        if let Some(cores) = &cores {
            command.env("SHOUTER_CORES", cores[placement.rank as usize].to_string());
        } else if crowded && std::env::var_os("SHOUTER_IDLE").is_none() {
            command.env("SHOUTER_IDLE", "yield");
        }
        if let Err(error) = job.start(placement.rank, placement.host, command) {
            job.kill();
            return Err(cannot_start(&args.command[0], &error));
        }
    }
    job.wait().map_err(|error| LaunchError::system("lost track of the ranks", &error))
}

/// A share of frames to hit: that of the command line, else of the environment. Ranks of an outer job have its shares there, which are not meant.
fn fault<'a>((name, given): (&'a str, &Option<String>)) -> Result<(&'a str, Option<String>), LaunchError> {
    let outer = std::env::var_os(shouter::config::OF_RUN).is_some();
    let of_environment = || std::env::var(name).ok().filter(|rate| !outer && !rate.is_empty());
    let rate = given.clone().or_else(of_environment).map(|rate| percent(&rate)).transpose();
    Ok((name, rate.map_err(|why| LaunchError::usage(format!("{name}: {why}")))?))
}

/// Sets a rank's environment: its place in the job, its devices and its ports.
fn describe(
    command: &mut Command,
    args: &Args,
    (placement, ranks, hosts): (&Placement, u32, u32),
    dir: &Path,
    [port, port_of_pytorch]: [u16; 2],
) -> Result<(), LaunchError> {
    // Settings of another launcher, or of an outer run of this one, do not apply here.
    let ours = ["SHOUTER_KEY", "SHOUTER_CORES", "SHOUTER_PORTS"];
    let of_torchrun = [
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
    ];
    for name in ours.into_iter().chain(of_torchrun).chain(shouter::config::OF_OTHERS) {
        command.env_remove(name);
    }
    command
        .env(shouter::config::OF_RUN, "1")
        .env("SHOUTER_RANK", placement.rank.to_string())
        .env("SHOUTER_SIZE", ranks.to_string())
        .env("SHOUTER_LOCAL_RANK", placement.local_rank.to_string())
        .env("SHOUTER_LOCAL_SIZE", placement.local_size.to_string())
        .env("SHOUTER_NODE", placement.host.to_string())
        .env("SHOUTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
        .env("SHOUTER_PORT", port.to_string())
        // As torchrun sets them: for scripts that read them, and for PyTorch with any backend.
        .env("RANK", placement.rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", placement.local_rank.to_string())
        .env("LOCAL_WORLD_SIZE", placement.local_size.to_string())
        .env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
        .env("MASTER_PORT", port_of_pytorch.to_string());
    if let Some(seed) = args.seed {
        command.env("SHOUTER_FAULT_SEED", seed.to_string());
    }
    if let Some(transport) = &args.transport {
        command.env("SHOUTER_TRANSPORT", transport);
    }
    let device = args.rdma_device.get(placement.host as usize).or(args.rdma_device.first());
    match device {
        Some(device) => drop(command.env("SHOUTER_RDMA_DEVICE", device)),
        // Emulated hosts are joined by links, unless the environment names a device.
        None if std::env::var_os("SHOUTER_RDMA_DEVICE").is_none() && args.has_links() => {
            command.env("SHOUTER_RDMA_DEVICE", "none");
        }
        None => {}
    }
    if placement.local_rank == 0 && hosts > 1 && args.has_links() {
        let ports = plan::ports(dir, args.link, hosts, placement.host, args.mtu);
        let ports = serde_json::to_string(&ports)
            .map_err(|why| LaunchError::system("a rank's ports cannot be written down", &why.into()))?;
        command.env("SHOUTER_PORTS", ports);
    }
    // Rank 0 may read a pipe or a file; a terminal stays with the launcher.
    if placement.rank != 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    Ok(())
}

fn cores_of_ranks(args: &Args, ranks: u32) -> Result<Option<Vec<usize>>, LaunchError> {
    let mut usable: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
    usable.sort_unstable();
    match &args.cores {
        None => Ok(plan::cores_of_ranks(ranks, &usable)),
        Some(Cores::None) => Ok(None),
        Some(Cores::List(named)) => {
            if let Some(core) = named.iter().find(|core| !usable.contains(core)) {
                return Err(LaunchError::usage(format!(
                    "--cores: this process may not use core {core}; it may use {usable:?}"
                )));
            }
            plan::cores_of_ranks(ranks, named).map(Some).ok_or_else(|| {
                LaunchError::usage(format!(
                    "--cores names {} cores for {} ranks: name one for each, or use --cores none",
                    named.len(),
                    ranks
                ))
            })
        }
    }
}

fn cannot_start(program: &std::ffi::OsStr, error: &io::Error) -> LaunchError {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => LaunchError {
            status: Status(127),
            text: match program.to_string().contains('/') {
                true => format!("{program}: no such command"),
                false => format!("{program}: no such command; give its path (./{program}) or put it on PATH"),
            },
        },
        io::ErrorKind::PermissionDenied => {
            LaunchError { status: Status(126), text: format!("{program}: not executable: {error}") }
        }
        _ => LaunchError::system(&format!("cannot start {program}"), error),
    }
}

/// A share such as `1%`, kept as text for the rank's own configuration.
fn percent(text: &str) -> Result<String, String> {
    let number = text.strip_suffix('%').and_then(|digits| digits.trim().parse::<f64>().ok());
    match number {
        Some(number) if (0.0..100.0).contains(&number) => Ok(text.to_owned()),
        _ => Err("a percentage from 0% to below 100%, such as 1% or 0.1%".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=86_400.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0 to 86400".into())
}

fn core_list(text: &str) -> Result<Cores, String> {
    if text == "none" {
        return Ok(Cores::None);
    }
    let mut cores = Vec::new();
    for part in text.split(',') {
        match shouter::config::to_cores(part) {
            Some(of_part) => cores.extend(of_part),
            None => {
                return Err(format!(
                    "`{part}` is no core: give a list such as 0,2-5, of numbers from 0 to 4095, or none"
                ));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    match cores.iter().find(|core| !seen.insert(**core)) {
        Some(twice) => Err(format!("core {twice} is named twice")),
        None => Ok(Cores::List(cores)),
    }
}

#[cfg(test)]
mod tests;
