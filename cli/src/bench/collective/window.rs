//! `shouter bench window`: accesses of rank 0 to the window of rank 1, each until it has taken effect there.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use clap::Args;
use shouter::{Config, Group, ReduceOp, Window, WindowMemory};

use super::placement::HOST_PLACEMENTS;
use super::{JobArgs, Measured, check_job, measure, refuses};
use crate::bench::pin;
use crate::bench::report::ReportLine;
use crate::bench::sizes::Sizes;
use crate::failure::CommandError;

/// Accesses that warm up caches; not measured.
const WARM_UP: i64 = 50;
/// Most measured accesses of a size.
const MOST: usize = 200_000;
/// The actions that are measured.
const ACTIONS: [&str; 4] = ["put", "get", "accumulate", "fetch_and_op"];

/// Arguments of `shouter bench window`.
#[derive(Args, Clone, Debug)]
#[command(mut_args(refuses(&["ranks", "threads"])))]
pub(crate) struct WindowArgs {
    #[command(flatten)]
    job: JobArgs,
    /// What is done with 64-bit integers there: they are written, read, or added to, and in the last case read before
    #[arg(long, default_value = "put", value_parser = ACTIONS)]
    action: String,
    /// Sizes in bytes, multiples of 8: 8..4Mi runs in powers of four; lists are separated by commas
    #[arg(long, default_value = "8,4Ki,1Mi")]
    bytes: Sizes,
    /// Where our windows lie: in memory that the ranks of a host share (shouter_alloc), which they access themselves, or in the process's own,
    /// which they access by messages; each of a list is measured
    #[arg(long, default_value = "shared", value_delimiter = ',', value_parser = HOST_PLACEMENTS)]
    memory: Vec<String>,
    /// The target computes, and makes no call, while it is accessed; else it waits in a barrier, as the peers' does
    #[arg(long)]
    busy: bool,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct WindowWorkerArgs {
    #[arg(long)]
    action: String,
    #[arg(long)]
    bytes: Sizes,
    #[arg(long, value_delimiter = ',')]
    memory: Vec<String>,
    #[arg(long)]
    busy: bool,
    #[arg(long)]
    seconds: f64,
}

/// Runs our two ranks, then the peers.
pub(crate) fn main(args: &WindowArgs) -> Result<(), CommandError> {
    let WindowArgs { job, action, bytes: Sizes(sizes), memory, busy } = args;
    check_job(job)?;
    if job.ranks != 2 || job.threads {
        return Err(CommandError::Usage(
            "a window is measured between two processes; leave out -n and --threads".into(),
        ));
    }
    if let Some(bytes) = sizes.iter().find(|bytes| *bytes % 8 != 0) {
        return Err(CommandError::Usage(format!("--bytes {bytes} is no multiple of 8, as elements are")));
    }
    let listed: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let (listed, memory) = (listed.join(","), memory.join(","));
    let mut data = vec!["--bytes", &listed, "--memory", &memory];
    data.extend(busy.then_some("--busy"));
    let worker = ["window-worker", "--action", action];
    let what = Measured { name: action, worker: &worker, kernel: None };
    measure(&what, job, &data, sizes)
}

/// The body of one rank.
pub(crate) fn worker(args: &WindowWorkerArgs) -> Result<(), CommandError> {
    let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
    pin(&config);
    let group = shouter::init(config)?;
    for &bytes in &args.bytes.0 {
        let count = bytes as usize / 8;
        for memory in &args.memory {
            match memory.as_str() {
                "shared" => measure_size(&group, ("shouter", count), group.alloc(count)?, args)?,
                _ => measure_size(&group, ("shouter-messages", count), vec![0i64; count], args)?,
            }
        }
    }
    group.finalize()?;
    Ok(())
}

/// Measures one size.
fn measure_size(
    group: &Group,
    (who, count): (&str, usize),
    memory: impl WindowMemory<Element = i64>,
    args: &WindowWorkerArgs,
) -> Result<(), CommandError> {
    let window = group.window(memory)?;
    let time = Duration::from_secs_f64(args.seconds);
    let (mut due, mut into, mut nanos) = (0i64, vec![0; count], Vec::with_capacity(MOST));
    group.barrier()?;
    let begin = Instant::now();
    if group.rank() == 1 {
        while args.busy && begin.elapsed() < time {
            spin_loop();
        }
    } else {
        let mut round = 0;
        while nanos.is_empty() || begin.elapsed() < time && nanos.len() < MOST {
            round += 1;
            let took = once(&window, &args.action, &vec![round; count], &mut into)?;
            if round > WARM_UP {
                nanos.push(took);
            }
            due = match args.action.as_str() {
                "put" => round,
                "get" => 0,
                _ => due.wrapping_add(round),
            };
        }
    }
    window.fence()?;
    if group.rank() == 0 {
        window.get(&mut into, 1, 0)?;
        if into.iter().any(|element| *element != due) {
            return Err(CommandError::Failed(format!(
                "{} of {count} elements: {} is there in the end, {due} was due",
                args.action, into[0]
            )));
        }
        let mut line = ReportLine::accesses(&args.action, who, group.nodes(), count as u64 * 8, &mut nanos);
        line.transport = Some(group.transport().channels.clone());
        line.print()?;
    }
    window.free()?;
    Ok(())
}

/// One access until it has taken effect; in nanoseconds.
fn once<M: WindowMemory<Element = i64>>(
    window: &Window<'_, i64, M>,
    action: &str,
    data: &[i64],
    into: &mut [i64],
) -> Result<u64, CommandError> {
    let begin = Instant::now();
    match action {
        "put" => {
            window.put(data, 1, 0)?;
            window.flush(Some(1))?;
        }
        "get" => window.get(into, 1, 0)?,
        "accumulate" => {
            window.accumulate(data, 1, 0, ReduceOp::Sum)?;
            window.flush(Some(1))?;
        }
        _ => window.fetch_and_op(data, into, 1, 0, ReduceOp::Sum)?,
    }
    Ok(begin.elapsed().as_nanos() as u64)
}
