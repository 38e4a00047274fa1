//! `shouter bench allreduce`: our own ranks under the launcher, then the peers, in one call on the same cores.

use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use shouter::{Config, Group, ReduceOp};

use super::peers::{self, Peer};
use super::report::{Line, Report};
use super::sizes::Sizes;
use super::{BenchError, kernel, patience, ranks_output};

/// Iterations that warm caches, windows and plans up; not measured.
const WARM_UP: usize = 8;
/// Fewest measured iterations of a size.
const FEWEST: usize = 11;
/// Most measured iterations of a size.
const MOST: usize = 50_000;

/// All-reduce of float32 sums.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Measures all-reduce of float32 sums by size. With as many hosts as ranks every byte takes the DPDK \
        path between emulated hosts; with one host all meet in shared memory. An iteration is timed on every rank from \
        the end of a barrier to the return of the all-reduce, the slowest rank counts, the input is fresh and every \
        result is checked; the peers are measured the same way.",
    after_help = "Examples:\n  \
        shouter bench allreduce --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
        shouter bench allreduce --hosts 1 --ranks 2 --transport shm --bytes 4,64Ki,1Mi --against openmpi --json\n  \
        shouter bench allreduce --hosts 2 --ranks 2 --transport tcp --bytes 64Mi"
)]
pub(crate) struct AllreduceArgs {
    /// How many ranks
    #[arg(short = 'n', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// How many emulated hosts they fill
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    hosts: u32,
    /// The channel that must carry the data: auto, shm (one host), rud (a host for each rank), tcp or kernel (several
    /// hosts)
    #[arg(long, default_value = "auto", value_parser = ["auto", "shm", "rud", "tcp", "kernel"])]
    transport: String,
    /// Sizes in bytes: 4..64Mi runs in powers of four; lists are separated by commas
    #[arg(long, default_value = "4..64Mi")]
    bytes: Sizes,
    /// Where our tensors lie: in memory that the ranks of a host share (shouter_alloc), or in the process's own
    #[arg(long, default_value = "shared", value_parser = ["shared", "private"])]
    memory: String,
    /// The drivers that join two hosts: virtio (vhost-user and virtio-user) or memif
    #[arg(long, default_value = "virtio", value_parser = ["virtio", "memif"])]
    device: String,
    /// The MTU of the links between hosts, in bytes
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// About how long each size is measured, in seconds
    #[arg(long, default_value_t = 0.5, value_parser = super::seconds)]
    seconds: f64,
    /// Peers to run in the same call: openmpi, mpich, gloo, kernel
    #[arg(long, value_delimiter = ',', value_name = "PEERS")]
    against: Vec<Peer>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs `shouter bench allreduce`.
pub(crate) fn main(args: &AllreduceArgs) -> Result<(), BenchError> {
    let fits = match args.transport.as_str() {
        "shm" => args.hosts == 1,
        "rud" => args.hosts == args.ranks,
        "tcp" | "kernel" => args.hosts > 1,
        _ => true,
    };
    if !fits {
        return Err(BenchError::Usage(format!(
            "--transport {} does not carry {} ranks on {} hosts: shm wants --hosts 1, rud as many hosts as ranks, \
             tcp and kernel several hosts",
            args.transport, args.ranks, args.hosts
        )));
    }
    let mut report = Report::new(args.json);
    let exe = std::env::current_exe()?;
    let sizes: Vec<String> = args.bytes.0.iter().map(ToString::to_string).collect();
    let mut command = Command::new(&exe);
    command.args(["run", "--json", "-n", &args.ranks.to_string(), "--hosts", &args.hosts.to_string()]);
    command.args(["--link", &args.device, "--mtu", &args.mtu.to_string(), "--"]).arg(&exe);
    command.args(["bench", "allreduce-worker", "--bytes", &sizes.join(",")]);
    command.args(["--seconds", &args.seconds.to_string(), "--memory", &args.memory]).stdin(Stdio::null());
    command.env("SHOUTER_TRANSPORT", &args.transport);
    for mut line in ranks_output(&mut command, patience(args.bytes.0.len(), args.seconds))? {
        let links = args.hosts > 1 && args.transport != "kernel";
        line.device = links.then(|| args.device.clone());
        line.mtu = links.then_some(args.mtu.into());
        report.push(line)?;
    }
    for peer in &args.against {
        let lines = match peer {
            Peer::Kernel => kernel::run(&kernel::Job {
                kind: kernel::Kind::Allreduce,
                ranks: args.ranks,
                sizes: &args.bytes.0,
                seconds: args.seconds,
                duplex: false,
                mtu: args.mtu.into(),
            })?,
            peer => {
                let job = peers::Job {
                    ranks: args.ranks,
                    hosts: args.hosts,
                    sizes: &args.bytes.0,
                    seconds: args.seconds,
                };
                peers::allreduce(*peer, &job)?
            }
        };
        for line in lines {
            report.push(line)?;
        }
    }
    Ok(report.finish()?)
}

/// The arguments of one rank's process; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    bytes: Sizes,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value = "shared")]
    memory: String,
}

/// The body of one rank: measures every size and prints the lines on rank 0.
///
/// An iteration is timed on every rank from the end of a barrier to the return of the all-reduce, and the slowest
/// rank counts. Its input is fresh and its result is checked outside of the timed part.
pub(crate) fn worker(args: &WorkerArgs) -> Result<(), BenchError> {
    let config = Config::from_env().map_err(|why| BenchError::Usage(why.to_string()))?;
    if let Some(core) = config.cores.first()
        && !core_affinity::set_for_current(core_affinity::CoreId { id: *core })
    {
        eprintln!("rank {} could not be pinned to core {core}", config.rank);
    }
    let group = shouter::init(config)?;
    for &bytes in &args.bytes.0 {
        let line = measure(&group, bytes, args)?;
        if group.rank() == 0 {
            println!("{}", serde_json::to_string(&line).map_err(io::Error::other)?);
        }
    }
    group.finalize()?;
    Ok(())
}

/// The value of element `index` in iteration `round` on `rank`: small integers, so that sums are exact.
fn input(rank: u32, round: usize, index: usize) -> f32 {
    ((index * 7 + round * 3 + rank as usize * 5) % 1021) as f32
}

/// What the ranks' inputs add up to.
fn expected(ranks: u32, round: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| input(rank, round, index)).sum()
}

fn measure(group: &Group, bytes: u64, args: &WorkerArgs) -> Result<Line, BenchError> {
    let count = (bytes / 4).max(1) as usize;
    let (rank, ranks) = (group.rank(), group.size());
    let (mut shared, mut private) = match args.memory.as_str() {
        "private" => (None, vec![0.0f32; count]),
        _ => (Some(group.alloc::<f32>(count)?), vec![]),
    };
    let data: &mut [f32] = shared.as_deref_mut().unwrap_or(&mut private);
    let mut once = |round: usize, nanos: &mut Vec<u64>| -> Result<(), BenchError> {
        for (index, value) in data.iter_mut().enumerate() {
            *value = input(rank, round, index);
        }
        group.barrier()?;
        let started = Instant::now();
        group.all_reduce(data, ReduceOp::Sum)?;
        nanos.push(started.elapsed().as_nanos() as u64);
        for (index, value) in data.iter().enumerate() {
            let due = expected(ranks, round, index);
            if *value != due {
                return Err(BenchError::Failed(format!(
                    "all-reduce of {bytes} bytes: element {index} is {value} on rank {rank}, {due} was due"
                )));
            }
        }
        Ok(())
    };
    let mut warm = Vec::with_capacity(WARM_UP);
    let started = Instant::now();
    for round in 0..WARM_UP {
        once(round, &mut warm)?;
    }
    let each = started.elapsed().as_secs_f64() / WARM_UP as f64;
    let mut wanted = [((args.seconds / each.max(1e-7)) as u64).clamp(FEWEST as u64, MOST as u64)];
    group.all_reduce(&mut wanted, ReduceOp::Min)?;
    let mut nanos = Vec::with_capacity(wanted[0] as usize);
    for round in 0..wanted[0] as usize {
        once(WARM_UP + round, &mut nanos)?;
    }
    for chunk in nanos.chunks_mut(1 << 20) {
        group.all_reduce(chunk, ReduceOp::Max)?;
    }
    let mut line = Line::allreduce("shouter", ranks, group.nodes(), bytes, &mut nanos);
    line.transport = Some(group.transport().into());
    Ok(line)
}
