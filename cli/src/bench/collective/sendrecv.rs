//! `shouter bench sendrecv`: the latency of a message between two ranks, half of a round trip as in `osu_latency`.

use std::time::Instant;

use clap::Args;
use shouter::{Config, Group};

use super::placement::{BufferPlacement, HOST_PLACEMENTS};
use super::{JobArgs, Measured, check_job, measure, refuses, rounds};
use crate::bench::pin;
use crate::bench::report::ReportLine;
use crate::bench::sizes::Sizes;
use crate::failure::CommandError;

/// Round trips that warm up caches and windows; not measured.
const WARM_UP: u64 = 50;
/// Fewest measured round trips of a size.
const FEWEST: u64 = 21;
/// Most measured round trips of a size.
const MOST: u64 = 200_000;

/// Arguments of `shouter bench sendrecv`.
#[derive(Args, Clone, Debug)]
#[command(mut_args(refuses(&["ranks", "threads"])))]
pub(crate) struct SendReceiveArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Sizes in bytes, multiples of 4: 8..4Mi runs in powers of four; lists are separated by commas
    #[arg(long, default_value = "8,64,1Ki,16Ki,64Ki,1Mi")]
    bytes: Sizes,
    /// Where our messages lie: in memory that the ranks of a host share (shouter_alloc), or in the process's own
    #[arg(long, default_value = "shared", value_parser = HOST_PLACEMENTS)]
    memory: String,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct SendReceiveWorkerArgs {
    #[arg(long)]
    bytes: Sizes,
    #[arg(long)]
    memory: String,
    #[arg(long)]
    seconds: f64,
}

/// Runs our two ranks, then the peers.
pub(crate) fn main(args: &SendReceiveArgs) -> Result<(), CommandError> {
    let SendReceiveArgs { job, bytes: Sizes(sizes), memory } = args;
    check_job(job)?;
    if job.ranks != 2 || job.threads {
        return Err(CommandError::Usage(
            "sendrecv is measured between two processes; leave out -n and --threads".into(),
        ));
    }
    if let Some(bytes) = sizes.iter().find(|bytes| *bytes % 4 != 0) {
        return Err(CommandError::Usage(format!(
            "--bytes {bytes} is no multiple of 4, as the peers' sizes are"
        )));
    }
    let listed: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let what = Measured { name: "sendrecv", worker: &["sendrecv-worker"], kernel: None };
    measure(&what, job, &["--bytes", &listed.join(","), "--memory", memory], sizes)
}

/// The body of one rank.
pub(crate) fn worker(args: &SendReceiveWorkerArgs) -> Result<(), CommandError> {
    let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
    pin(&config);
    let group = shouter::init(config)?;
    for &bytes in &args.bytes.0 {
        let mut nanos = measure_size(&group, bytes as usize, args)?;
        if group.rank() == 0 {
            let mut line = ReportLine::half_round_trips("shouter", group.nodes(), bytes, &mut nanos);
            line.transport = Some(group.transport().channels.clone());
            line.print()?;
        }
    }
    group.finalize()?;
    Ok(())
}

/// Half of each round trip, in nanoseconds.
fn measure_size(group: &Group, bytes: usize, args: &SendReceiveWorkerArgs) -> Result<Vec<u64>, CommandError> {
    let place = || BufferPlacement::<u8>::new(&args.memory, group, bytes);
    let (mut own, mut theirs) = (place()?, place()?);
    let (own, theirs) = (own.host()?, theirs.host()?);
    group.barrier()?;
    let started = Instant::now();
    for round in 0..WARM_UP {
        once(group, own, theirs, round)?;
    }
    let wanted = rounds(group, (started, WARM_UP), args.seconds, FEWEST..=MOST)?;
    let mut nanos = Vec::with_capacity(wanted as usize);
    for round in 0..wanted {
        nanos.push(once(group, own, theirs, round)? / 2);
    }
    Ok(nanos)
}

/// One round trip; both ranks check the first and the last byte.
fn once(group: &Group, own: &mut [u8], theirs: &mut [u8], round: u64) -> Result<u64, CommandError> {
    let mark = round as u8 ^ 0x5a;
    if let (Some(first), true) = (own.first_mut(), group.rank() == 0) {
        *first = mark;
    }
    if let (Some(last), true) = (own.last_mut(), group.rank() == 0) {
        *last = mark;
    }
    let started = Instant::now();
    if group.rank() == 0 {
        group.send(own, 1, 1)?;
        group.receive(theirs, 1, 1)?;
    } else {
        group.receive(theirs, 0, 1)?;
        group.send(theirs, 0, 1)?;
    }
    let took = started.elapsed().as_nanos() as u64;
    if theirs.first() != Some(&mark) || theirs.last() != Some(&mark) {
        return Err(CommandError::Failed(format!("round {round} of {} bytes came back wrong", own.len())));
    }
    Ok(took)
}
