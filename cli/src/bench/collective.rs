//! `shouter bench allreduce` and the other collectives: our own ranks under the launcher, then the peers, on the same
//! cores.

mod beside;
mod callback;
#[cfg(feature = "cuda")]
mod gpu;
mod incast;
mod making;
mod numbers;
mod placement;
mod sendrecv;
mod spin;
mod step;
mod window;
mod worker;

use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::{Arg, Args};
use shouter::{Collective, Group, ReduceOp};

use super::kernel::PeerWorkload;
use super::peers::{self, Peer};
use super::report::{Report, ReportLine, Rounds};
use super::sizes::Sizes;
use super::{kernel, patience, ranks_output, workload};
use crate::failure::CommandError;
use crate::hosts::Hosts;
pub(crate) use beside::{BesideArgs, BesideWorkerArgs, main as beside, worker as beside_worker};
pub(crate) use callback::{CallbackArgs, CallbackWorkerArgs, main as callback, worker as callback_worker};
pub(crate) use incast::{IncastArgs, IncastWorkerArgs, main as incast, worker as incast_worker};
pub(crate) use making::{GroupArgs, GroupWorkerArgs, main as make_group, worker as make_group_worker};
use numbers::{DTYPES, exact, whole};
use placement::BUFFER_PLACEMENTS;
pub(crate) use sendrecv::{
    SendReceiveArgs, SendReceiveWorkerArgs, main as send_receive, worker as send_receive_worker,
};
pub(crate) use step::{StepArgs, StepWorkerArgs, main as step, worker as step_worker};
pub(crate) use window::{WindowArgs, WindowWorkerArgs, main as window, worker as window_worker};
pub(crate) use worker::{WorkerArgs, worker};

/// How many rounds take about `seconds`, after so many since `begun`: the same on all ranks.
fn rounds(
    group: &Group,
    (begun, warm_up): (Instant, u64),
    seconds: f64,
    within: RangeInclusive<u64>,
) -> Result<u64, CommandError> {
    let each = begun.elapsed().as_secs_f64() / warm_up as f64;
    let wanted = (seconds / each.max(1e-8)) as u64;
    let mut wanted = [wanted.clamp(*within.start(), *within.end())];
    group.all_reduce(&mut wanted, ReduceOp::Min)?;
    Ok(wanted[0])
}

/// The largest size that is measured by default.
const USUAL_LARGEST: u64 = 64 << 20;

/// Arguments of every collective.
#[derive(Args, Clone, Debug)]
pub(crate) struct JobArgs {
    /// How many ranks
    #[arg(short = 'n', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// How many emulated hosts they fill
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    hosts: u32,
    /// Make the ranks threads of one process, each with a group of its own, instead of processes (one host)
    #[arg(long)]
    threads: bool,
    /// The channel that must carry the data: auto, shm (one host), rud (a host for each rank),
    /// or tcp, verbs, kernel (several hosts)
    #[arg(long, default_value = "auto", value_parser = ["auto", "shm", "rud", "tcp", "verbs", "kernel"])]
    transport: String,
    /// The RDMA device of each host, such as rxe1,rxe2
    #[arg(long, value_name = "DEVICES")]
    rdma_device: Option<String>,
    /// The drivers that join two hosts: virtio (vhost-user and virtio-user) or memif
    #[arg(long, default_value = "virtio", value_parser = ["virtio", "memif"])]
    device: String,
    /// Let each rank have so many threads that drive the network (mode = dedicated), over which large all-reduces are spread
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    shards: Option<u32>,
    /// The MTU of the links between hosts, in bytes
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// About how long each size is measured in a round, in seconds
    #[arg(long, default_value_t = 0.5, value_parser = super::seconds)]
    seconds: f64,
    /// How often all take their turns, so that a busy minute of the machine hits all of them; figures are medians over the rounds [default:
    /// 3 beside peers, else 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=101))]
    rounds: Option<u32>,
    /// Peers to run in the same call: openmpi, mpich, gloo, kernel (allreduce and incast), spin (a bare loop that computes for as long as our
    /// operation takes: its p99 is the machine's); a measurement that a peer lacks is said to be unavailable; Gloo is that of the first Python that has PyTorch: python3 of PATH, the environment of
    /// scripts/lib/venv torch 2.15, /usr/bin/python3
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    against: Vec<Peer>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Takes those of [`JobArgs`] that a bench refuses out of its help.
fn refuses(options: &[&str]) -> impl Fn(Arg) -> Arg {
    move |option| match options.contains(&option.get_id().as_str()) {
        true => option.hide(true),
        false => option,
    }
}

/// Further arguments of every collective but the barrier.
#[derive(Args, Clone, Debug)]
struct DataArgs {
    /// Sizes in bytes, whole numbers of elements: 4..64Mi runs in powers of four; lists are separated by commas [default:
    /// 4..64Mi; of reduce_scatter and reduce_scatter_v, from 4 for each rank on]
    #[arg(long)]
    bytes: Option<Sizes>,
    /// The elements' type; u8 goes with any size, from 1 byte on (the peers of --against have f32)
    #[arg(long, default_value = "f32", value_parser = DTYPES)]
    dtype: String,
    /// Where our tensors lie: in memory that the ranks of a host share (shouter_alloc), in the process's own, or on a GPU
    /// (allreduce only); a list such as gpu,private goes round the ranks
    #[arg(long, default_value = "shared", value_delimiter = ',', value_parser = BUFFER_PLACEMENTS)]
    memory: Vec<String>,
}

/// A collective that moves elements.
#[derive(Args, Clone, Debug)]
pub(crate) struct CollectiveArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    data: DataArgs,
}

impl DataArgs {
    fn sizes(&self, collective: Collective, ranks: u32) -> Sizes {
        self.bytes.clone().unwrap_or_else(|| {
            let first = 4 * u64::from(workload::blocks_counted(collective, ranks));
            Sizes(
                std::iter::successors(Some(first), |s| Some(s * 4))
                    .take_while(|s| *s <= USUAL_LARGEST)
                    .collect(),
            )
        })
    }
}

/// Refuses options that exclude each other.
fn check_job(job: &JobArgs) -> Result<(), CommandError> {
    Hosts::Number(job.hosts).fill(Some(job.ranks)).map_err(CommandError::Usage)?;
    let fits = match job.transport.as_str() {
        "shm" => job.hosts == 1,
        "rud" => job.hosts == job.ranks,
        "tcp" | "verbs" | "kernel" => job.hosts > 1,
        _ => true,
    };
    if !fits {
        return Err(CommandError::Usage(format!(
            "--transport {} does not carry {} ranks on {} hosts: shm wants --hosts 1, rud as many hosts as ranks, \
             tcp, verbs and kernel several hosts",
            job.transport, job.ranks, job.hosts
        )));
    }
    if job.threads && job.hosts != 1 {
        return Err(CommandError::Usage(format!(
            "the threads of one process are on one host: leave out --threads or --hosts {}",
            job.hosts
        )));
    }
    Ok(())
}

/// Checks a collective with elements in the same way; returns its sizes.
fn check(
    collective: Collective,
    CollectiveArgs { job, data }: &CollectiveArgs,
) -> Result<Sizes, CommandError> {
    check_job(job)?;
    if !job.against.is_empty() && data.dtype != "f32" {
        return Err(CommandError::Usage(format!(
            "the peers of --against have f32, which cannot be compared with --dtype {}; leave one of the two out",
            data.dtype
        )));
    }
    if collective != Collective::AllReduce && data.memory.iter().any(|word| word == "gpu") {
        return Err(CommandError::Usage(
            "--memory gpu goes with allreduce only; give shared or private".into(),
        ));
    }
    if collective.reduces() {
        exact(job.ranks, &data.dtype)?;
    }
    let sizes = data.sizes(collective, job.ranks);
    whole(&sizes, &data.dtype, workload::blocks_counted(collective, job.ranks))?;
    Ok(sizes)
}

/// Runs `shouter bench` for a collective that moves elements.
pub(crate) fn main(collective: Collective, args: &CollectiveArgs) -> Result<(), CommandError> {
    let sizes = check(collective, args)?;
    let listed: Vec<String> = sizes.0.iter().map(ToString::to_string).collect();
    let (listed, memory) = (listed.join(","), args.data.memory.join(","));
    let data = ["--bytes", &listed, "--dtype", &args.data.dtype, "--memory", &memory];
    measure_collective(collective, &args.job, &data, &sizes.0)
}

/// Runs `shouter bench barrier`.
pub(crate) fn barrier(job: &JobArgs) -> Result<(), CommandError> {
    check_job(job)?;
    measure_collective(Collective::Barrier, job, &[], &[])
}

/// A bench and the worker that measures it.
struct Measured<'a> {
    /// The name of the bench.
    name: &'a str,
    /// The subcommand of our ranks, with its arguments.
    worker: &'a [&'a str],
    /// What the kernel has of it.
    kernel: Option<PeerWorkload>,
}

fn measure_collective(
    collective: Collective,
    job: &JobArgs,
    data: &[&str],
    sizes: &[u64],
) -> Result<(), CommandError> {
    let processes = if job.threads { 1 } else { job.ranks };
    let (name, threads) = (workload::name(collective), (job.ranks / processes).to_string());
    let worker = ["collective-worker", "--collective", name, "--one-clock", "--threads", &threads];
    let kernel = (collective == Collective::AllReduce).then_some(PeerWorkload::Allreduce);
    measure(&Measured { name, worker: &worker, kernel }, job, data, sizes)
}

/// The launcher's command line, up to this program's own name.
fn launcher(job: &JobArgs) -> Result<Command, CommandError> {
    let exe = std::env::current_exe()?;
    let mut command = Command::new(&exe);
    let processes = if job.threads { 1 } else { job.ranks };
    command.args(["run", "--json", "-n", &processes.to_string(), "--hosts", &job.hosts.to_string()]);
    command.args(["--link", &job.device, "--mtu", &job.mtu.to_string(), "--transport", &job.transport]);
    if let Some(devices) = &job.rdma_device {
        command.args(["--rdma-device", devices]);
    }
    if let Some(shards) = job.shards {
        command.env("SHOUTER_MODE", "dedicated").env("SHOUTER_SHARDS", shards.to_string());
    }
    if job.threads || job.shards.is_some_and(|shards| shards > 1) {
        // Else all threads are pinned to the process's one core.
        command.args(["--cores", "none"]);
    }
    command.arg("--").arg(&exe);
    Ok(command)
}

/// Rounds beside peers, unless the command line says how many.
const USUAL_ROUNDS: u32 = 3;

/// Runs our ranks with these options of the worker, then the peers, and so on for all rounds.
fn measure(what: &Measured<'_>, job: &JobArgs, data: &[&str], sizes: &[u64]) -> Result<(), CommandError> {
    let mut report = Report::new(job.json);
    let usual = if job.against.is_empty() { 1 } else { USUAL_ROUNDS };
    let rounds = job.rounds.unwrap_or(usual);
    let mut gathered = Rounds::default();
    let mut absent = Vec::new();
    for number in 1..=rounds {
        if rounds > 1 && !job.json {
            eprintln!("round {number} of {rounds}");
        }
        if let Err(why) = round(what, job, data, sizes, (&mut gathered, &mut absent)) {
            if number > 1 {
                report.extend(gathered.medians())?;
                report.finish()?;
            }
            return Err(why);
        }
    }
    report.extend(gathered.medians())?;
    Ok(report.finish()?)
}

/// One round. Peers that turn out to have nothing to measure are added to `absent`, and left out from then on.
fn round(
    what: &Measured<'_>,
    job: &JobArgs,
    data: &[&str],
    sizes: &[u64],
    (gathered, absent): (&mut Rounds, &mut Vec<Peer>),
) -> Result<(), CommandError> {
    let mut command = launcher(job)?;
    // The series, sizes and medians of this round.
    let mut ours: Vec<(String, Option<u64>, f64)> = vec![];
    command.arg("bench").args(what.worker);
    command.args(["--seconds", &job.seconds.to_string()]).args(data).stdin(Stdio::null());
    for mut line in ranks_output(&mut command, patience(sizes.len().max(1), job.seconds))? {
        let link = job.hosts > 1 && !matches!(job.transport.as_str(), "verbs" | "kernel");
        line.device = link.then(|| job.device.clone());
        line.mtu = link.then_some(job.mtu.into());
        ours.extend(line.p50_us.map(|p50| (line.series(), line.bytes, p50)));
        gathered.push(line);
    }
    for peer in job.against.iter().filter(|peer| !absent.contains(peer)).copied().collect::<Vec<_>>() {
        let lines = match (peer, what.kernel) {
            (Peer::Kernel, Some(kind)) => kernel::run(&kernel::Job {
                kind,
                ranks: job.ranks,
                sizes,
                seconds: job.seconds,
                // Its times are of single operations.
                passes: 1,
                duplex: false,
                mtu: job.mtu.into(),
            })?,
            (Peer::Spin, _) => {
                let is_one = ours.iter().all(|(series, ..)| *series == ours[0].0);
                let of = |(series, bytes, p50): &(String, _, _)| {
                    let who = if is_one { "spin".into() } else { format!("spin as {series}") };
                    let line = spin::measure(what.name, (job.ranks, job.hosts), *p50, job.seconds);
                    ReportLine { who, bytes: *bytes, ..line }
                };
                ours.iter().map(of).collect()
            }
            (peer, _) => peers::run(
                peer,
                &peers::Job {
                    bench: what.name,
                    ranks: job.ranks,
                    hosts: job.hosts,
                    sizes,
                    seconds: job.seconds,
                },
            )?,
        };
        if lines.is_empty() {
            absent.push(peer);
        }
        lines.into_iter().for_each(|line| gathered.push(line));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
