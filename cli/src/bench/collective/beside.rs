//! `shouter bench beside`: how long a small all-reduce takes while a large one runs.

use std::process::Stdio;
use std::time::Instant;

use clap::{Args, ValueEnum};
use shouter::{Collective, CollectiveCall, DType, Group, ReduceOp, TensorId, TensorSpec};

use super::{JobArgs, check_job, launcher, refuses};
use crate::bench::now;
use crate::bench::report::{Report, ReportLine, percentiles_us};
use crate::bench::sizes::Sizes;
use crate::bench::{patience, ranks_output, word};
use crate::failure::CommandError;

/// Rounds that warm up caches and plans; not measured.
const WARM_UP: u64 = 2;
/// Small all-reduces in a round, all of which begin while the large one may still run.
const SMALL: usize = 4;

/// Arguments of `shouter bench beside`.
#[derive(Args, Clone, Debug)]
#[command(mut_args(refuses(&["threads", "against", "rounds"])))]
pub(crate) struct BesideArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Sizes of the small all-reduce in bytes, multiples of 8; lists are separated by commas
    #[arg(long, default_value = "8")]
    bytes: Sizes,
    /// Size of the large one in bytes, a multiple of 8; each of a list is measured
    #[arg(long, default_value = "64Mi")]
    large: Sizes,
    /// The order in which the two are registered as tensors, which is their priority: the small one first, or last; without it neither is one
    #[arg(long, value_delimiter = ',')]
    registered: Vec<Place>,
}

/// The place of the small all-reduce in the table of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    First,
    Last,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct BesideWorkerArgs {
    #[arg(long)]
    bytes: Sizes,
    #[arg(long)]
    large: Sizes,
    #[arg(long, value_delimiter = ',')]
    registered: Vec<Place>,
    #[arg(long)]
    seconds: f64,
}

/// Runs the ranks.
pub(crate) fn main(args: &BesideArgs) -> Result<(), CommandError> {
    let BesideArgs { job, bytes: Sizes(sizes), large: Sizes(large), registered } = args;
    check_job(job)?;
    if job.threads || !job.against.is_empty() || job.rounds.is_some() {
        return Err(CommandError::Usage(
            "all-reduces beside others are measured between processes, of shouter alone, and once; leave out --threads, --against and --rounds".into(),
        ));
    }
    if let Some(bytes) = sizes.iter().chain(large).find(|bytes| **bytes == 0 || **bytes % 8 != 0) {
        return Err(CommandError::Usage(format!("{bytes} bytes are no multiple of 8, as elements are")));
    }
    let list = |sizes: &[u64]| sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut command = launcher(job)?;
    command.args(["bench", "beside-worker", "--bytes", &list(sizes), "--large", &list(large)]);
    command.args(["--seconds", &job.seconds.to_string()]);
    for place in registered {
        command.args(["--registered", &word(place)]);
    }
    let mut report = Report::new(job.json);
    report.extend(ranks_output(
        command.stdin(Stdio::null()),
        patience(sizes.len() * large.len() * registered.len().max(1), job.seconds),
    )?)?;
    Ok(report.finish()?)
}

/// The body of one rank.
pub(crate) fn worker(args: &BesideWorkerArgs) -> Result<(), CommandError> {
    let group =
        shouter::init(shouter::Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?)?;
    let places: Vec<_> = match &args.registered[..] {
        [] => vec![None],
        places => places.iter().copied().map(Some).collect(),
    };
    for &large in &args.large.0 {
        for &bytes in &args.bytes.0 {
            for &place in &places {
                let sizes = [bytes, large].map(|bytes| bytes as usize / 8);
                let mut nanos = measure(&group, sizes, place, args.seconds)?;
                if group.rank() != 0 {
                    continue;
                }
                if nanos.is_empty() {
                    return Err(CommandError::Failed(format!(
                        "an all-reduce of {large} bytes ends before one of {bytes} begins; take a larger --large"
                    )));
                }
                let (p50, p99) = percentiles_us(&mut nanos);
                let line = ReportLine {
                    ranks: Some(group.size()),
                    hosts: Some(group.nodes()),
                    transport: Some(group.transport().channels.clone()),
                    bytes: Some(bytes),
                    beside: Some(large),
                    priority: place.map(|place| word(&place)),
                    iterations: Some(nanos.len() as u64),
                    p50_us: Some(p50),
                    p99_us: Some(p99),
                    ..ReportLine::of("beside", "shouter")
                };
                line.print()?;
            }
        }
    }
    group.finalize()?;
    Ok(())
}

/// Times of the small all-reduces, in nanoseconds, that were started beside a large one.
fn measure(
    group: &Group,
    [small, large]: [usize; 2],
    place: Option<Place>,
    seconds: f64,
) -> Result<Vec<u64>, CommandError> {
    let spec = |name: &str, count| TensorSpec::all_reduce(name, DType::U64, count as u64, ReduceOp::Sum);
    let (first, second) = (spec("small", small), spec("large", large));
    let tensors = match place {
        None => None,
        Some(Place::First) => Some(group.register(&[first, second])?),
        Some(Place::Last) => {
            let mut tensors = group.register(&[second, first])?;
            tensors.reverse();
            Some(tensors)
        }
    };
    let tensors = tensors.as_deref();
    let mut data = vec![0u64; large];
    let mut nanos = vec![];
    let begun = Instant::now();
    for round in 0.. {
        let times = once(group, &mut data, small, tensors, round)?;
        if round >= WARM_UP {
            nanos.extend(times);
        }
        let mut over = [u64::from(begun.elapsed().as_secs_f64() >= seconds && round > WARM_UP)];
        group.all_reduce(&mut over, ReduceOp::Max)?;
        if over[0] != 0 {
            break;
        }
    }
    Ok(nanos)
}

/// Starts the large all-reduce, and runs small ones beside it; the times of those that were started before its end. They are the
/// `tensors` of the table, the small one and the large one, if there are any.
#[allow(unsafe_code)]
fn once(
    group: &Group,
    data: &mut [u64],
    small: usize,
    tensors: Option<&[TensorId]>,
    round: u64,
) -> Result<Vec<u64>, CommandError> {
    let wrong = || CommandError::Failed(format!("round {round} beside {} elements is wrong", small));
    data.fill(round);
    group.barrier()?;
    let call = CollectiveCall {
        collective: Collective::AllReduce,
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
        count: data.len(),
        dtype: DType::U64,
        op: ReduceOp::Sum,
        root: 0,
    };
    let work = match tensors {
        // SAFETY: the elements of `data` are left alone until the wait below.
        Some(&[_, large]) => unsafe { group.push(large, data.as_mut_ptr().cast()) }?,
        // SAFETY: as above.
        _ => unsafe { group.start(&call) }?,
    };
    let mut times = vec![];
    let mut ended = Ok(());
    for number in 0..SMALL as u64 {
        let mut values = vec![round + number; small];
        let is_beside = work.test().is_none();
        let start = now();
        ended = match tensors {
            // SAFETY: the wait ends before anything else is done with the values.
            Some(&[small, _]) => unsafe { group.push(small, values.as_mut_ptr().cast()) }
                .and_then(|work| work.wait(None))
                .map_err(CommandError::from),
            _ => group.all_reduce(&mut values, ReduceOp::Sum).map_err(CommandError::from),
        };
        if ended.is_err() {
            break;
        }
        if is_beside {
            times.push(now() - start);
        }
        if values.iter().any(|value| *value != (round + number) * u64::from(group.size())) {
            ended = Err(wrong());
        }
    }
    work.wait(None)?;
    ended?;
    match data.iter().all(|value| *value == round * u64::from(group.size())) {
        true => Ok(times),
        false => Err(wrong()),
    }
}
