//! The kernel as a peer: plain TCP sockets, one pinned process per rank, over loopback or (as root, between two ranks)
//! over a veth pair between two network namespaces. Sockets are non-blocking and polled, the fastest use of the kernel.

mod connections;
mod incast;
mod messages;
mod namespaces;
mod wire;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use shouter::Collective;

use super::report::{ReportLine, median, percentiles_us, round4};
use super::sizes::Sizes;
use super::word;
use crate::ports::Port;
use namespaces::Namespaces;
use wire::{Ring, float};

/// The workload of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerWorkload {
    Allreduce,
    Stream,
    Pingpong,
    Messages,
    Connections,
    Incast,
}

/// The arguments of one peer process; started by the bench itself.
#[derive(Args, Clone, Debug)]
pub(crate) struct PeerArgs {
    #[arg(value_enum)]
    kind: PeerWorkload,
    #[arg(long)]
    rank: usize,
    /// One address per rank.
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<SocketAddr>,
    #[arg(long)]
    bytes: Sizes,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    passes: u32,
    #[arg(long)]
    duplex: bool,
    #[arg(long)]
    who: String,
}

/// A job of the kernel's peer.
pub(crate) struct Job<'a> {
    pub(crate) kind: PeerWorkload,
    pub(crate) ranks: u32,
    pub(crate) sizes: &'a [u64],
    pub(crate) seconds: f64,
    /// Passes of a rate, over which the median is taken.
    pub(crate) passes: u32,
    pub(crate) duplex: bool,
    pub(crate) mtu: u32,
}

/// Runs the job over loopback, and two ranks also over a veth pair; prints on standard error why that is not possible.
pub(crate) fn run(job: &Job<'_>) -> io::Result<Vec<ReportLine>> {
    // They are this job's until it has ended.
    let ports = (0..job.ranks).map(|_| Port::reserve()).collect::<io::Result<Vec<_>>>()?;
    let loopback: Vec<SocketAddr> =
        ports.iter().map(|port| (Ipv4Addr::LOCALHOST, port.number()).into()).collect();
    let mut lines = launch(job, "kernel", &loopback, None)?;
    if job.ranks == 2 {
        match Namespaces::create(job.mtu) {
            Ok(namespaces) => {
                let addresses = namespaces.addresses();
                lines.extend(launch(job, "kernel-veth", &addresses, Some(&namespaces))?);
            }
            Err(why) => eprintln!("kernel-veth is absent: {why}"),
        }
    }
    Ok(lines)
}

/// Starts a process per rank and reads the lines of rank 0.
fn launch(
    job: &Job<'_>,
    who: &str,
    addresses: &[SocketAddr],
    namespaces: Option<&Namespaces>,
) -> io::Result<Vec<ReportLine>> {
    let exe = std::env::current_exe()?;
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let kind = word(&job.kind);
    let mut children = vec![];
    for rank in (0..job.ranks as usize).rev() {
        let mut command = match namespaces {
            Some(namespaces) => namespaces.command(rank, &exe),
            None => Command::new(&exe),
        };
        command.args(["bench", "kernel-peer", &kind, "--rank", &rank.to_string(), "--who", who]);
        command.args(["--addresses", &addresses.join(","), "--seconds", &job.seconds.to_string()]);
        let sizes: Vec<String> = job.sizes.iter().map(ToString::to_string).collect();
        command.args(["--bytes", &sizes.join(","), "--passes", &job.passes.to_string()]);
        if job.duplex {
            command.arg("--duplex");
        }
        command.stdin(Stdio::null()).stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
        children.push(command.spawn()?);
    }
    let mut lines = vec![];
    let mut failed = None;
    for child in children.into_iter().rev() {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            failed = Some(output.status);
        }
        for text in String::from_utf8_lossy(&output.stdout).lines() {
            lines.push(serde_json::from_str(text).map_err(io::Error::other)?);
        }
    }
    match failed {
        Some(status) => Err(io::Error::other(format!("a process of the peer '{who}' ended with {status}"))),
        None => Ok(lines),
    }
}

/// The body of one peer process.
pub(crate) fn peer(args: &PeerArgs) -> io::Result<()> {
    if args.rank >= args.addresses.len() {
        return Err(io::Error::other("the rank lies outside the list of addresses"));
    }
    pin(args.rank);
    let mut ring = Ring::connect(args.rank, &args.addresses, Duration::from_secs(20))?;
    for &bytes in &args.bytes.0 {
        let line = match args.kind {
            PeerWorkload::Allreduce => allreduce(args, &mut ring, bytes)?,
            PeerWorkload::Pingpong => pingpong(args, &mut ring, bytes)?,
            PeerWorkload::Stream => stream(args, &mut ring, bytes)?,
            PeerWorkload::Messages => messages::measure(args, &mut ring, bytes as usize)?,
            PeerWorkload::Connections => connections::measure(args, &mut ring)?,
            PeerWorkload::Incast => incast::measure(args, &mut ring, bytes as usize)?,
        };
        if args.rank == 0 {
            line.print()?;
        }
    }
    Ok(())
}

/// Pins a rank to a core, round robin; a rank that cannot be pinned runs unpinned.
pub(crate) fn pin(rank: usize) {
    if let Some(cores) = core_affinity::get_core_ids()
        && let Some(core) = cores.get(rank % cores.len().max(1))
        && !core_affinity::set_for_current(*core)
    {
        eprintln!("rank {rank} could not be pinned to core {}", core.id);
    }
}

/// Agrees on iterations that fill about `seconds`: rank 0 times a few and sends the count around the ring.
fn agree_iterations(
    ring: &mut Ring,
    rank: usize,
    seconds: f64,
    mut once: impl FnMut(&mut Ring) -> io::Result<()>,
) -> io::Result<usize> {
    once(ring)?;
    let started = Instant::now();
    for _ in 0..3 {
        once(ring)?;
    }
    let each = started.elapsed().as_secs_f64() / 3.0;
    let mut count = (((seconds / each.max(1e-7)) as u64).clamp(5, 100_000)).to_le_bytes();
    ring.broadcast(rank, &mut count)?;
    Ok(u64::from_le_bytes(count) as usize)
}

fn allreduce(args: &PeerArgs, ring: &mut Ring, bytes: u64) -> io::Result<ReportLine> {
    let ranks = args.addresses.len();
    let count = (bytes / 4).max(1) as usize;
    let fresh = (args.rank as f32 + 1.0).to_le_bytes().repeat(count);
    let mut data = fresh.clone();
    let mut scratch = vec![0u8; count.div_ceil(ranks) * 4];
    ring.allreduce(args.rank, &mut data, &mut scratch)?;
    let expected = (ranks * (ranks + 1) / 2) as f32;
    if let Some(wrong) = data.chunks_exact(4).map(float).find(|v| *v != expected) {
        return Err(io::Error::other(format!("the kernel peer summed {wrong} where {expected} was due")));
    }
    let iterations = agree_iterations(ring, args.rank, args.seconds, |ring| {
        data.copy_from_slice(&fresh);
        ring.allreduce(args.rank, &mut data, &mut scratch)
    })?;
    let mut nanos = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        data.copy_from_slice(&fresh);
        let started = Instant::now();
        ring.allreduce(args.rank, &mut data, &mut scratch)?;
        nanos.push(started.elapsed().as_nanos() as u64);
    }
    let mut line =
        ReportLine::collective(Collective::AllReduce, &args.who, (ranks as u32, 1), Some(bytes), &mut nanos);
    line.transport = Some("tcp".into());
    Ok(line)
}

fn pingpong(args: &PeerArgs, ring: &mut Ring, bytes: u64) -> io::Result<ReportLine> {
    let mut message = vec![7u8; bytes as usize];
    let mut round = |ring: &mut Ring| -> io::Result<()> {
        if args.rank == 0 {
            ring.send(&message)?;
            ring.receive(&mut message)
        } else {
            ring.receive(&mut message)?;
            ring.send(&message)
        }
    };
    let iterations = agree_iterations(ring, args.rank, args.seconds, &mut round)?;
    let mut nanos = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let started = Instant::now();
        round(ring)?;
        nanos.push(started.elapsed().as_nanos() as u64);
    }
    let (p50, p99) = percentiles_us(&mut nanos);
    Ok(ReportLine {
        transport: Some("tcp".into()),
        bytes: Some(bytes),
        iterations: Some(nanos.len() as u64),
        p50_us: Some(p50),
        p99_us: Some(p99),
        ..ReportLine::of("pingpong", &args.who)
    })
}

/// Bytes that a stream writes between two readings of the clock.
const STREAM_CHUNK: usize = 1 << 20;

fn stream(args: &PeerArgs, ring: &mut Ring, bytes: u64) -> io::Result<ReportLine> {
    let out = vec![3u8; STREAM_CHUNK];
    let mut input = vec![0u8; STREAM_CHUNK];
    let mut one = |ring: &mut Ring| -> io::Result<()> {
        match (args.duplex, args.rank) {
            (true, _) => ring.both(&out, &mut input),
            (false, 0) => ring.send(&out),
            (false, _) => ring.receive(&mut input),
        }
    };
    let iterations = agree_iterations(ring, args.rank, args.seconds, &mut one)?;
    let mut rates = vec![];
    for _ in 0..args.passes {
        let started = Instant::now();
        for _ in 0..iterations {
            one(ring)?;
        }
        let mut done = [0u8; 1];
        ring.broadcast_back(args.rank, &mut done)?;
        rates.push((iterations * STREAM_CHUNK) as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9);
    }
    Ok(ReportLine {
        transport: Some("tcp".into()),
        duplex: args.duplex.then_some(true),
        bytes: Some(bytes),
        goodput_gbits: Some(round4(median(&mut rates))),
        passes: Some(args.passes),
        ..ReportLine::of("stream", &args.who)
    })
}
