//! `shouter bench allreduce`: our own ranks under the launcher, then the peers, in one call on the same cores.

#[cfg(feature = "cuda")]
mod gpu;
mod numbers;
mod placement;

use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use shouter::config::{Builder, ConfigError};
use shouter::{Config, Group, ReduceOp};

use super::peers::{self, Peer};
use super::report::{Report, ReportLine};
use super::sizes::Sizes;
use super::{BenchError, kernel, patience, ranks_output};
use numbers::{DTYPES, Number, exact, expected, input, measure_as, whole};
use placement::{BUFFER_PLACEMENTS, BufferPlacement};

/// Iterations that warm caches, windows and plans up; not measured.
const WARM_UP: usize = 8;
/// Fewest measured iterations of a size.
const FEWEST: usize = 11;
/// Most measured iterations of a size.
const MOST: usize = 50_000;

/// All-reduce of sums.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Measures all-reduce of sums by size, of float32 unless --dtype says otherwise. With as many hosts as ranks every byte takes the DPDK \
        path between emulated hosts; with one host all meet in shared memory. An iteration is timed on every rank from \
        the end of a barrier to the return of the all-reduce, the slowest rank counts, the input is fresh and every \
        result is checked; the peers are measured the same way.",
    after_help = "Examples:\n  \
        shouter bench allreduce --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
        shouter bench allreduce --hosts 1 --ranks 2 --transport shm --bytes 4,64Ki,1Mi --against openmpi --json\n  \
        shouter bench allreduce --hosts 2 --ranks 2 --transport tcp --bytes 64Mi\n  \
        shouter bench allreduce --hosts 2 --ranks 2 --dtype u8 --bytes 1..4Mi\n  \
        shouter bench allreduce --hosts 2 --ranks 2 --dtype bf16 --bytes 2,64Ki,16Mi\n  \
        shouter bench allreduce --ranks 4 --threads --memory gpu --bytes 1Gi"
)]
pub(crate) struct AllreduceArgs {
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
    /// Sizes in bytes, whole numbers of elements: 4..64Mi runs in powers of four; lists are separated by commas
    #[arg(long, default_value = "4..64Mi")]
    bytes: Sizes,
    /// What is summed; u8 goes with any size, from 1 byte on (the peers of --against sum f32)
    #[arg(long, default_value = "f32", value_parser = DTYPES)]
    dtype: String,
    /// Where our tensors lie: in memory that the ranks of a host share (shouter_alloc), in the process's own, or on a GPU; a
    /// list such as gpu,private goes round the ranks
    #[arg(long, default_value = "shared", value_delimiter = ',', value_parser = BUFFER_PLACEMENTS)]
    memory: Vec<String>,
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

/// Refuses what does not go together.
fn check(args: &AllreduceArgs) -> Result<(), BenchError> {
    let fits = match args.transport.as_str() {
        "shm" => args.hosts == 1,
        "rud" => args.hosts == args.ranks,
        "tcp" | "verbs" | "kernel" => args.hosts > 1,
        _ => true,
    };
    if !fits {
        return Err(BenchError::Usage(format!(
            "--transport {} does not carry {} ranks on {} hosts: shm wants --hosts 1, rud as many hosts as ranks, \
             tcp, verbs and kernel several hosts",
            args.transport, args.ranks, args.hosts
        )));
    }
    if args.threads && args.hosts != 1 {
        return Err(BenchError::Usage(format!(
            "the threads of one process are on one host: leave out --threads or --hosts {}",
            args.hosts
        )));
    }
    if !args.against.is_empty() && args.dtype != "f32" {
        return Err(BenchError::Usage(format!(
            "the peers of --against sum f32, which cannot be compared with --dtype {}; leave one of the two out",
            args.dtype
        )));
    }
    exact(args.ranks, &args.dtype)?;
    whole(&args.bytes, &args.dtype)
}

/// Runs `shouter bench allreduce`.
pub(crate) fn main(args: &AllreduceArgs) -> Result<(), BenchError> {
    check(args)?;
    let mut report = Report::new(args.json);
    let exe = std::env::current_exe()?;
    let sizes: Vec<String> = args.bytes.0.iter().map(ToString::to_string).collect();
    let mut command = Command::new(&exe);
    let processes = if args.threads { 1 } else { args.ranks };
    command.args(["run", "--json", "-n", &processes.to_string(), "--hosts", &args.hosts.to_string()]);
    command.args(["--link", &args.device, "--mtu", &args.mtu.to_string(), "--transport", &args.transport]);
    if let Some(devices) = &args.rdma_device {
        command.args(["--rdma-device", devices]);
    }
    if args.threads {
        // Else all of them are pinned to the process's one core.
        command.args(["--cores", "none"]);
    }
    command.arg("--").arg(&exe);
    command.args(["bench", "allreduce-worker", "--threads", &(args.ranks / processes).to_string()]);
    command.args(["--bytes", &sizes.join(","), "--dtype", &args.dtype]);
    command
        .args(["--seconds", &args.seconds.to_string(), "--memory", &args.memory.join(",")])
        .stdin(Stdio::null());
    for mut line in ranks_output(&mut command, patience(args.bytes.0.len(), args.seconds))? {
        let link = args.hosts > 1 && !matches!(args.transport.as_str(), "verbs" | "kernel");
        line.device = link.then(|| args.device.clone());
        line.mtu = link.then_some(args.mtu.into());
        report.push(line)?;
    }
    for peer in &args.against {
        let lines = match peer {
            Peer::Kernel => kernel::run(&kernel::Job {
                kind: kernel::PeerWorkload::Allreduce,
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

/// The arguments of a process of one rank or several; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    /// The ranks of this process.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    #[arg(long)]
    bytes: Sizes,
    #[arg(long, default_value = "f32", value_parser = DTYPES)]
    dtype: String,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value = "shared", value_delimiter = ',', value_parser = BUFFER_PLACEMENTS)]
    memory: Vec<String>,
}

/// The body of a process: one rank where the launcher says, or a whole group of ranks in threads.
pub(crate) fn worker(args: &WorkerArgs) -> Result<(), BenchError> {
    whole(&args.bytes, &args.dtype)?;
    let usage = |why: ConfigError| BenchError::Usage(why.to_string());
    if args.threads == 1 {
        return rank(args, Config::from_env().map_err(usage)?);
    }
    // The launcher has made a job of this one process: its key and its place to meet do for all of them.
    let ranks: Result<Vec<Config>, ConfigError> = (0..args.threads)
        .map(|rank| {
            let (rank, size) = (rank.to_string(), args.threads.to_string());
            let job = Builder::from_process()?.set("rank", &rank)?.set("size", &size)?;
            job.set("local_rank", &rank)?.set("local_size", &size)?.build()
        })
        .collect();
    let ranks = ranks.map_err(usage)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ranks.into_iter().map(|config| scope.spawn(move || rank(args, config))).collect();
        let ends = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(BenchError::Failed("the thread of a rank panicked".into())))
        });
        // All are waited for.
        ends.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The body of one rank: measures every size and prints the lines on rank 0.
///
/// An iteration is timed on every rank from the end of a barrier to the return of the all-reduce, and the slowest
/// rank counts. Its input is fresh and its result is checked outside of the timed part.
fn rank(args: &WorkerArgs, config: Config) -> Result<(), BenchError> {
    if let Some(core) = config.cores.first()
        && !core_affinity::set_for_current(core_affinity::CoreId { id: *core })
    {
        eprintln!("rank {} could not be pinned to core {core}", config.rank);
    }
    let group = shouter::init(config)?;
    for &bytes in &args.bytes.0 {
        let line = measure_as(&group, bytes, args)?;
        if group.rank() == 0 {
            println!("{}", serde_json::to_string(&line).map_err(io::Error::other)?);
        }
    }
    group.finalize()?;
    Ok(())
}

/// Measures one size.
fn measure<T: Number>(group: &Group, bytes: u64, args: &WorkerArgs) -> Result<ReportLine, BenchError> {
    let count = bytes as usize / size_of::<T>();
    let (rank, ranks) = (group.rank(), group.size());
    let word = args.memory.get(rank as usize % args.memory.len().max(1)).map_or("shared", String::as_str);
    let mut data = BufferPlacement::<T>::new(word, group, count)?;
    let mut once = |round: usize, nanos: &mut Vec<u64>| -> Result<(), BenchError> {
        data.fill(|index| input((rank, ranks), round, index), round >= WARM_UP)?;
        group.barrier()?;
        let started = Instant::now();
        data.reduce(group)?;
        nanos.push(started.elapsed().as_nanos() as u64);
        for (index, value) in data.elements()?.iter().enumerate() {
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
    let before = group.stats().in_place;
    for round in 0..wanted[0] as usize {
        once(WARM_UP + round, &mut nanos)?;
    }
    let in_place = group.stats().in_place - before >= wanted[0];
    for chunk in nanos.chunks_mut(1 << 20) {
        group.all_reduce(chunk, ReduceOp::Max)?;
    }
    let mut line = ReportLine::allreduce("shouter", ranks, group.nodes(), bytes, &mut nanos);
    line.transport = Some(group.transport().channels.clone());
    line.in_place = Some(in_place);
    line.dtype = Some(args.dtype.clone());
    Ok(line)
}

#[cfg(test)]
mod tests;
