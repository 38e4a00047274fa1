//! `shouter bench`: our own figures and the peers', in one call, on the same cores.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use shouter::{Collective, Config};

use crate::failure::CommandError;
use crate::status::Status;
use report::ReportLine;

mod collective;
mod gpu;
mod kernel;
mod link;
mod peers;
mod ps;
pub(crate) mod report;
pub(crate) mod sizes;
pub(crate) mod workload;

/// Arguments of `shouter bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shouter bench allreduce --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo,kernel\n  \
    shouter bench allgather --hosts 1 --ranks 2 --bytes 64Ki --against openmpi,mpich,gloo\n  \
    shouter bench barrier --hosts 1 --ranks 2 --against openmpi\n  \
    shouter bench stream --protocol raw,udp,rud --mtu 1500 --seconds 3 --json\n  \
    shouter bench pingpong --protocol raw,rud,tcp --bytes 64 --json\n  \
    shouter bench messages --protocol raw,udp,rud --bytes 32 --against kernel\n  \
    shouter bench incast -n 5 --hosts 5 --transport rud --bytes 64Ki,1Mi\n  \
    shouter bench connections --against kernel\n  \
    shouter bench ps --servers 2 --trainers 2 --bytes 64Mi\n  \
    shouter bench gpu\n\n\
    Times on shared machines are not stable; the ratios within one call are what counts.\n\n\
    Exit status: 0 done (peers that are absent, and collectives that one of them lacks, are named on standard error), \
    1 a measurement failed, 2 a wrong command line.")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// All-reduce of sums: latency and bandwidth by size
    #[command(
        alias = "all_reduce",
        long_about = "Measures all-reduce of sums by size, of float32 unless --dtype says otherwise. With as many hosts as ranks every byte \
            takes the DPDK path between emulated hosts; with one host all meet in shared memory. An iteration is timed on every rank \
            from the end of a barrier to the return of the all-reduce, the slowest rank counts, the input is fresh and every result \
            is checked; the peers are measured the same way.",
        after_help = "Examples:\n  \
            shouter bench allreduce --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench allreduce --hosts 1 --ranks 2 --transport shm --bytes 4,64Ki,1Mi --against openmpi --json\n  \
            shouter bench allreduce --hosts 2 --ranks 2 --transport tcp --bytes 64Mi\n  \
            shouter bench allreduce --hosts 2 --ranks 2 --dtype u8 --bytes 1..4Mi\n  \
            shouter bench allreduce --hosts 2 --ranks 2 --dtype bf16 --bytes 2,64Ki,16Mi\n  \
            shouter bench allreduce --ranks 4 --threads --memory gpu --bytes 1Gi"
    )]
    Allreduce(collective::CollectiveArgs),
    /// Reduce of sums to one rank
    #[command(
        long_about = measured("Measures reduce of sums to one rank; roots take turns. Bytes are those of the tensor."),
        after_help = "Examples:\n  \
            shouter bench reduce --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench reduce --hosts 1 --ranks 2 --transport shm --bytes 4,64Ki,1Mi --json"
    )]
    Reduce(collective::CollectiveArgs),
    /// Broadcast from one rank
    #[command(
        long_about = measured("Measures broadcast; roots take turns. Bytes are those of the tensor."),
        after_help = "Examples:\n  \
            shouter bench broadcast --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench broadcast --hosts 1 --ranks 2 --transport shm --bytes 4,64Ki,1Mi --json"
    )]
    Broadcast(collective::CollectiveArgs),
    /// All-gather: every rank gets the blocks of all
    #[command(
        alias = "all_gather",
        long_about = measured("Measures all-gather. Bytes are those of one rank's block."),
        after_help = "Examples:\n  \
            shouter bench allgather --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench allgather --hosts 1 --ranks 2 --memory private --bytes 64Ki"
    )]
    Allgather(collective::CollectiveArgs),
    /// Gather: one rank gets the blocks of all
    #[command(
        long_about = measured("Measures gather to one rank; roots take turns. Bytes are those of one rank's block."),
        after_help = "Examples:\n  \
            shouter bench gather --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench gather --hosts 1 --ranks 2 --memory private --bytes 64Ki"
    )]
    Gather(collective::CollectiveArgs),
    /// Scatter: every rank gets its block of one rank's
    #[command(
        long_about = measured("Measures scatter from one rank; roots take turns. Bytes are those of one rank's block."),
        after_help = "Examples:\n  \
            shouter bench scatter --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench scatter --hosts 1 --ranks 2 --memory private --bytes 64Ki"
    )]
    Scatter(collective::CollectiveArgs),
    /// Reduce-scatter of sums: every rank gets its block of the sum
    #[command(
        name = "reduce_scatter",
        long_about = measured("Measures reduce-scatter of sums. Bytes are those of a rank's whole input, which has a block for each rank."),
        after_help = "Examples:\n  \
            shouter bench reduce_scatter --hosts 2 --ranks 2 --bytes 8..64Mi --against openmpi,mpich\n  \
            shouter bench reduce_scatter --hosts 1 --ranks 4 --bytes 16,64Ki,1Mi --json"
    )]
    ReduceScatter(collective::CollectiveArgs),
    /// All-to-all: every rank gets a block from each
    #[command(
        alias = "all_to_all",
        long_about = measured("Measures all-to-all. Bytes are those of the block from one rank to one rank."),
        after_help = "Examples:\n  \
            shouter bench alltoall --hosts 2 --ranks 2 --bytes 4..64Mi --against openmpi,gloo\n  \
            shouter bench alltoall --hosts 1 --ranks 4 --dtype u8 --bytes 1..1Mi"
    )]
    Alltoall(collective::CollectiveArgs),
    /// Scan: every rank gets the sum over the ranks up to itself
    #[command(
        name = "scan",
        long_about = measured("Measures scan of sums. Bytes are those of the tensor."),
        after_help = "Examples:\n  \
            shouter bench scan --hosts 1 --ranks 2 --bytes 4,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench scan --hosts 2 --ranks 2 --memory private --json"
    )]
    Scan(collective::CollectiveArgs),
    /// Exscan: every rank gets the sum over the ranks before itself
    #[command(
        name = "exscan",
        long_about = measured("Measures exscan of sums; rank 0 has no result. Bytes are those of the tensor."),
        after_help = "Examples:\n  \
            shouter bench exscan --hosts 1 --ranks 2 --bytes 4,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench exscan --hosts 2 --ranks 2 --memory private --json"
    )]
    Exscan(collective::CollectiveArgs),
    /// All-gather of blocks that differ
    #[command(
        name = "allgather_v",
        alias = "all_gather_v",
        long_about = uneven("Measures all-gather of blocks that differ. Bytes are those of the average block."),
        after_help = "Examples:\n  \
            shouter bench allgather_v --hosts 1 --ranks 2 --bytes 4,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench allgather_v --hosts 2 --ranks 2 --memory private --json"
    )]
    AllgatherV(collective::CollectiveArgs),
    /// Gather of blocks that differ
    #[command(
        name = "gather_v",
        long_about = uneven("Measures gather of blocks that differ to one rank, which alone has the counts of all; roots take turns. Bytes are those of the average block. A round exchanges the counts first; MPI is given them on both sides."),
        after_help = "Examples:\n  \
            shouter bench gather_v --hosts 1 --ranks 2 --bytes 4,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench gather_v --hosts 2 --ranks 2 --memory private --json"
    )]
    GatherV(collective::CollectiveArgs),
    /// Scatter of blocks that differ
    #[command(
        name = "scatter_v",
        long_about = uneven("Measures scatter of blocks that differ from one rank, which alone has the counts of all; roots take turns. Bytes are those of the average block. A round exchanges the counts first; MPI is given them on both sides."),
        after_help = "Examples:\n  \
            shouter bench scatter_v --hosts 1 --ranks 2 --bytes 4,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench scatter_v --hosts 2 --ranks 2 --memory private --json"
    )]
    ScatterV(collective::CollectiveArgs),
    /// Reduce-scatter of sums of blocks that differ
    #[command(
        name = "reduce_scatter_v",
        long_about = uneven("Measures reduce-scatter of sums with blocks that differ. Bytes are those of a rank's whole input."),
        after_help = "Examples:\n  \
            shouter bench reduce_scatter_v --hosts 1 --ranks 2 --bytes 8,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench reduce_scatter_v --hosts 2 --ranks 2 --memory private --json"
    )]
    ReduceScatterV(collective::CollectiveArgs),
    /// All-to-all of blocks that differ
    #[command(
        name = "alltoall_v",
        alias = "all_to_all_v",
        long_about = uneven("Measures all-to-all of blocks that differ: those that a rank gives have one length, those that it takes have different ones. Bytes are those of the average block from one rank to one rank. A round exchanges the counts first; MPI is given them on both sides."),
        after_help = "Examples:\n  \
            shouter bench alltoall_v --hosts 1 --ranks 2 --bytes 4,64Ki,1Mi --against openmpi,mpich\n  \
            shouter bench alltoall_v --hosts 2 --ranks 2 --memory private --json"
    )]
    AlltoallV(collective::CollectiveArgs),
    /// Barrier: no rank continues before all have come
    #[command(
        long_about = measured_with(
            "Measures the barrier: the time from the end of one to the end of the next. It has no bytes.",
            "no rank may leave before all have entered"
        ),
        after_help = "Examples:\n  \
            shouter bench barrier --hosts 1 --ranks 2 --against openmpi,mpich,gloo\n  \
            shouter bench barrier --hosts 2 --ranks 2 --json"
    )]
    Barrier(collective::JobArgs),
    /// A message between two ranks, half of there and back
    #[command(
        long_about = "Measures send and receive between two ranks: half of the time that a message takes there and back, as osu_latency \
            counts it. Its first and last bytes are checked.",
        after_help = "Examples:\n  \
            shouter bench sendrecv --hosts 1 --bytes 8,64Ki --against openmpi,mpich\n  \
            shouter bench sendrecv --hosts 2 --bytes 64 --json"
    )]
    Sendrecv(collective::SendReceiveArgs),
    /// Messages of several ranks to one at the same time
    #[command(
        long_about = "Measures messages that all other ranks send to rank 0 at the same time, in turn with such rounds of one sender alone. Gb/s is \
            the rate at which the bytes of a round have come, as a median, and 'of one' that rate as a share of one sender's: 1 where a full link is \
            shared without loss. The times are those from the start of the first sender until rank 0 has a message whole, of all messages; with \
            more ranks than cores, that includes the time for which the other senders wait for a core. resent counts the datagrams that all ranks \
            have sent again (RUD, TCP). The first and last byte of each message are checked. The peers do the same; of the kernel, each sender has \
            a connection of TCP over loopback to a receiver that polls.",
        after_help = "Examples:\n  \
            shouter bench incast -n 5 --hosts 5 --transport rud\n  \
            shouter bench incast -n 5 --hosts 5 --transport kernel --bytes 64Ki --against openmpi,kernel --json\n  \
            shouter bench incast -n 9 --hosts 9 --transport tcp --mtu 1500 --bytes 16Ki,1Mi"
    )]
    Incast(collective::IncastArgs),
    /// An access to the window of another rank, until it has taken effect there
    #[command(
        long_about = "Measures accesses of one rank to the window of another, each from the call until it has taken effect there: a put or an \
            accumulate with the flush behind it. The target's elements are checked in the end. Of the peers the target waits in a barrier.",
        after_help = "Examples:\n  \
            shouter bench window --action fetch_and_op --bytes 8 --memory shared,private --busy\n  \
            shouter bench window --action put --bytes 8,64Ki,1Mi --against openmpi\n  \
            shouter bench window --action get --hosts 2 --json"
    )]
    Window(collective::WindowArgs),
    /// How soon a rank that computes hears of the end of an operation
    #[command(
        long_about = "Measures how soon rank 0 hears of the end of an all-reduce of maxima that it has started, while its own thread \
            spins. Rank 1 sleeps, starts the operation --late-us after rank 0 was ready, and waits for it. Two figures: since the last \
            start is the time from the call with which rank 1 starts, on the clock that all processes of a machine read, until rank 0 \
            has heard of the end; the operation itself is in it, and what the way of hearing costs is the difference from --by wait. \
            Since the end is the time from the end of the operation in the engine of rank 0, as Stats counts it, and leaves out how \
            long the engine took to see that the last data had come; it is too long by what passes in the call of rank 0 before the \
            engine counts. Only the threads that drive in mode dedicated are pinned. A core has to be \
            there for the thread that computes, and one for each thread that drives. Every result is checked.",
        after_help = "Examples:\n  \
            shouter bench callback --hosts 1\n  \
            shouter bench callback --hosts 2 --mode dedicated --by callback,wait --json\n  \
            SHOUTER_IDLE=yield shouter bench callback --mode dedicated --peer-mode dedicated"
    )]
    Callback(collective::CallbackArgs),
    /// How long a small all-reduce takes while a large one runs
    #[command(
        long_about = "Measures how long a small all-reduce takes that starts while a large one runs, from the call until it returns, on rank 0: a \
            round starts the large one, runs four small ones, and waits for the large one. Those count that start before its end. With --registered both are \
            tensors of the table, whose order is their priority. All results are checked.",
        after_help = "Examples:\n  \
            shouter bench beside --hosts 2 --mtu 9000\n  \
            shouter bench beside --hosts 2 --mtu 9000 --bytes 4Mi --registered first,last\n  \
            shouter bench beside --hosts 2 --bytes 8,4Ki --large 8,1Mi,64Mi --json"
    )]
    Beside(collective::BesideArgs),
    /// Making a group of two ranks
    #[command(
        long_about = "Measures how long two ranks take to make a group of theirs, over connections that are warm: from the end of a barrier \
            until the function returns, of the slowest rank, and (used_us) until the first all-reduce in the new group has ended. Its sum \
            is checked, and the group is dropped outside of the timed part. The peers make and free a communicator in the same way.",
        after_help = "Examples:\n  \
            shouter bench group --hosts 1 --against openmpi,mpich\n  \
            shouter bench group --how split --hosts 2 --json\n  \
            shouter bench group --how duplicate --hosts 2 --against openmpi"
    )]
    Group(collective::GroupArgs),
    /// A training step with a model's tensors: when the next forward pass may start
    #[command(
        long_about = "Measures a training step: the gradients of a model (161 tensors of a ResNet-50) are pushed in the order of the backward \
            pass and waited for in that of the forward pass, and computation is a spin for each layer's share. The figure is the time from \
            the last push until the first layer may start, of the slowest rank: with and without fusion of small tensors, and with the \
            priority of the table by need (the first layer first) or by push (what was pushed first). The ends of every result are checked.",
        after_help = "Examples:\n  \
            shouter bench step --hosts 2 --seconds 3\n  \
            shouter bench step --hosts 2 --transport kernel --fuse-below 64Ki --fuse-bytes 256Ki --json"
    )]
    Step(collective::StepArgs),
    /// How many bytes a second one link carries
    Stream(link::StreamArgs),
    /// How many small messages a second one link carries
    Messages(link::MessagesArgs),
    /// How long a message takes there and back
    Pingpong(link::PingpongArgs),
    /// How many TCP connections a second are opened and closed, or what idle ones cost
    Connections(link::ConnectionsArgs),
    /// Pushes and pulls of a parameter server, beside sends and receives of the same bytes
    #[command(
        long_about = "Measures a push and a pull of a whole parameter by all trainers at once, and in turn with that sends and receives of the \
            same bytes between the same processes, from and to memory of the same kind. The slowest trainer counts; algbw counts the bytes there \
            and back. Every pulled parameter is checked.",
        after_help = "Examples:\n  \
            shouter bench ps --servers 2 --trainers 2 --bytes 64Mi\n  \
            shouter bench ps --hosts 2 --transport kernel --bytes 16Mi --json"
    )]
    Ps(ps::PsArgs),
    /// Check the kernels on a GPU, and time them and all-reduces beside copies
    Gpu(gpu::GpuArgs),
    #[command(hide = true)]
    CollectiveWorker(collective::WorkerArgs),
    #[command(hide = true)]
    SendrecvWorker(collective::SendReceiveWorkerArgs),
    #[command(hide = true)]
    IncastWorker(collective::IncastWorkerArgs),
    #[command(hide = true)]
    WindowWorker(collective::WindowWorkerArgs),
    #[command(hide = true)]
    BesideWorker(collective::BesideWorkerArgs),
    #[command(hide = true)]
    CallbackWorker(collective::CallbackWorkerArgs),
    #[command(hide = true)]
    GroupWorker(collective::GroupWorkerArgs),
    #[command(hide = true)]
    StepWorker(collective::StepWorkerArgs),
    #[command(hide = true)]
    PsWorker(ps::PsRankArgs),
    #[command(hide = true)]
    LinkWorker(link::WorkerArgs),
    #[command(hide = true)]
    KernelPeer(kernel::PeerArgs),
}

/// The help of a collective whose results are checked.
fn measured(what: &str) -> String {
    measured_with(what, "the input is fresh and every result is checked")
}

/// The help of a collective whose blocks differ.
fn uneven(what: &str) -> String {
    measured(&format!("{what} Rank r's block has a share of r + 1."))
}

/// The help of a collective: its definition, measurement and check.
fn measured_with(what: &str, check: &str) -> String {
    format!(
        "{what} An iteration is timed on every rank from the end of a barrier to the return of the call, the slowest rank \
         counts, and {check}; the peers are measured the same way."
    )
}

/// Runs the bench and returns the exit status.
pub(crate) fn main(args: &BenchArgs) -> Status {
    let outcome = match &args.bench {
        Bench::Allreduce(args) => collective::main(Collective::AllReduce, args),
        Bench::Reduce(args) => collective::main(Collective::Reduce, args),
        Bench::Broadcast(args) => collective::main(Collective::Broadcast, args),
        Bench::Allgather(args) => collective::main(Collective::AllGather, args),
        Bench::Gather(args) => collective::main(Collective::Gather, args),
        Bench::Scatter(args) => collective::main(Collective::Scatter, args),
        Bench::ReduceScatter(args) => collective::main(Collective::ReduceScatter, args),
        Bench::Alltoall(args) => collective::main(Collective::AllToAll, args),
        Bench::Scan(args) => collective::main(Collective::Scan, args),
        Bench::Exscan(args) => collective::main(Collective::ExScan, args),
        Bench::AllgatherV(args) => collective::main(Collective::AllGatherV, args),
        Bench::GatherV(args) => collective::main(Collective::GatherV, args),
        Bench::ScatterV(args) => collective::main(Collective::ScatterV, args),
        Bench::ReduceScatterV(args) => collective::main(Collective::ReduceScatterV, args),
        Bench::AlltoallV(args) => collective::main(Collective::AllToAllV, args),
        Bench::Barrier(args) => collective::barrier(args),
        Bench::Sendrecv(args) => collective::send_receive(args),
        Bench::SendrecvWorker(args) => collective::send_receive_worker(args),
        Bench::Incast(args) => collective::incast(args),
        Bench::IncastWorker(args) => collective::incast_worker(args),
        Bench::Window(args) => collective::window(args),
        Bench::WindowWorker(args) => collective::window_worker(args),
        Bench::Beside(args) => collective::beside(args),
        Bench::BesideWorker(args) => collective::beside_worker(args),
        Bench::Callback(args) => collective::callback(args),
        Bench::CallbackWorker(args) => collective::callback_worker(args),
        Bench::Group(args) => collective::make_group(args),
        Bench::GroupWorker(args) => collective::make_group_worker(args),
        Bench::Step(args) => collective::step(args),
        Bench::StepWorker(args) => collective::step_worker(args),
        Bench::Stream(args) => link::stream(args),
        Bench::Messages(args) => link::messages(args),
        Bench::Pingpong(args) => link::pingpong(args),
        Bench::Connections(args) => link::connections(args),
        Bench::Ps(args) => ps::main(args),
        Bench::PsWorker(args) => ps::worker(args),
        Bench::Gpu(args) => gpu::main(args),
        Bench::CollectiveWorker(args) => collective::worker(args),
        Bench::LinkWorker(args) => link::worker(args),
        Bench::KernelPeer(args) => kernel::peer(args).map_err(CommandError::from),
    };
    Status::of("bench", outcome.map(|()| Status::OK))
}

/// Runs the launcher with `--json` and gathers the ranks' lines of JSON; their other output goes to standard error.
fn ranks_output(command: &mut Command, limit: Duration) -> Result<Vec<ReportLine>, CommandError> {
    let output = output_within(command.stderr(Stdio::inherit()), limit)?;
    let (mut lines, mut is_started) = (vec![], false);
    for text in String::from_utf8_lossy(&output.stdout).lines() {
        let event: serde_json::Value = serde_json::from_str(text).map_err(io::Error::other)?;
        is_started |= event.get("event").is_some_and(|event| event == "started");
        let Some(line) = event.get("line").and_then(|line| line.as_str()) else { continue };
        match serde_json::from_str(line) {
            Ok(line) => lines.push(line),
            Err(_) => eprintln!("[{}] {line}", event.get("rank").unwrap_or(&serde_json::Value::Null)),
        }
    }
    if output.status.success() {
        return Ok(lines);
    }
    if !is_started && output.status.code() == Some(Status::USAGE.0.into()) {
        return Err(CommandError::Usage("the launcher refuses this job, as it says above".into()));
    }
    Err(CommandError::Failed(format!("the ranks ended with {}", output.status)))
}

/// Runs a command to its end and returns its output; a command that takes longer than `limit` is killed.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let until = Instant::now() + limit;
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut printed = Vec::new();
        pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut printed)).map(|_| printed)
    });
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() > until => {
                child.kill()?;
                child.wait()?;
                let name = command.get_program().display();
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "'{name}' did not end within {} s and was ended; try fewer sizes",
                        limit.as_secs()
                    ),
                ));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let stdout = reader.join().map_err(|_| io::Error::other("reading a process's output failed"))??;
    Ok(Output { status, stdout, stderr: vec![] })
}

/// A generous limit for measuring `series` series for about `seconds` each.
pub(crate) fn patience(series: usize, seconds: f64) -> Duration {
    Duration::from_secs_f64(120.0 + 30.0 * seconds * series as f64)
}

/// Pins the calling thread to the first core of this rank's; not where several shards have the cores, which may run on this thread's alone.
fn pin(config: &Config) {
    if config.shards == 1
        && let Some(core) = config.cores.first()
        && !core_affinity::set_for_current(core_affinity::CoreId { id: *core })
    {
        eprintln!("rank {} could not be pinned to core {core}", config.rank);
    }
}

/// The time on the monotonic clock, which all processes of the machine read, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A value as the command line has it.
fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
}

/// A positive number of seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|s| (0.001..=3600.0).contains(s));
    number.ok_or_else(|| "a number of seconds from 0.001 to 3600".into())
}

#[cfg(test)]
mod tests;
