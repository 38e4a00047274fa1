//! `shouter bench ps`: pushes and pulls of a parameter, beside sends and receives of the same bytes between the same processes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use shouter::ps::{Actors, Array, Client, Mode, Optimizer, Plan, Server};
use shouter::{Config, Element, Exchange, Group, ReduceOp, Tensor};

use super::report::{Report, ReportLine, percentiles_us, round4};
use super::{patience, pin, ranks_output, sizes};
use crate::failure::CommandError;
use crate::hosts::Hosts;

/// Passes that warm up memory; not measured.
const WARM_UP: u32 = 2;

/// Pushes and pulls of a parameter, beside sends and receives of the same bytes.
#[derive(Args, Clone, Debug)]
pub(crate) struct PsArgs {
    /// Servers, each with a run of the parameter's rows
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    servers: u32,
    /// Trainers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    trainers: u32,
    /// Emulated hosts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    hosts: u32,
    /// The transport between hosts
    #[arg(long, default_value = "auto")]
    transport: String,
    #[command(flatten)]
    worker: PsWorkerArgs,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// What a rank measures; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct PsWorkerArgs {
    /// Bytes of the parameter, of float32: a multiple of 4
    #[arg(long, default_value = "64Mi", value_parser = sizes::one)]
    bytes: u64,
    /// Where gradients, pulled parameters and messages lie: in the process's own memory, or in memory that the ranks of a host share
    #[arg(long, default_value = "private", value_parser = ["private", "shared"])]
    memory: String,
    /// When gradients take effect
    #[arg(long, default_value = "synchronous", value_parser = ["synchronous", "asynchronous"])]
    mode: String,
    /// Passes that the medians are taken over
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1001))]
    passes: u32,
}

/// Starts the ranks, and shows their figures.
pub(crate) fn main(args: &PsArgs) -> Result<(), CommandError> {
    let PsArgs { servers, trainers, hosts, transport, worker, json } = args;
    if worker.bytes == 0 || worker.bytes % 4 != 0 {
        return Err(CommandError::Usage(format!("--bytes {} is no multiple of 4 above 0", worker.bytes)));
    }
    let ranks = servers + trainers;
    Hosts::Number(*hosts).fill(Some(ranks)).map_err(CommandError::Usage)?;
    let exe = std::env::current_exe()?;
    let mut command = Command::new(&exe);
    command.args(["run", "--json", "-n", &ranks.to_string(), "--hosts", &hosts.to_string()]);
    command.args(["--transport", transport]).stdin(Stdio::null());
    command.arg("--").arg(&exe).args(["bench", "ps-worker", "--servers", &servers.to_string()]);
    command.args(["--bytes", &worker.bytes.to_string(), "--memory", &worker.memory, "--mode", &worker.mode]);
    command.args(["--passes", &worker.passes.to_string()]);
    let mut report = Report::new(*json);
    report.extend(ranks_output(&mut command, patience(2, f64::from(worker.passes)))?)?;
    Ok(report.finish()?)
}

/// The arguments of one rank.
#[derive(Args, Clone, Debug)]
pub(crate) struct PsRankArgs {
    #[arg(long)]
    servers: u32,
    #[command(flatten)]
    worker: PsWorkerArgs,
}

/// Elements where the measurement has them.
enum Memory<T: Element> {
    Own(Vec<T>),
    Shared(Tensor<T>),
}

impl<T: Element + Default> Memory<T> {
    fn new(group: &Group, place: &str, count: usize) -> Result<Self, CommandError> {
        Ok(match place {
            "shared" => Self::Shared(group.alloc(count)?),
            _ => Self::Own(vec![T::default(); count]),
        })
    }

    fn all(&mut self) -> &mut [T] {
        match self {
            Self::Own(elements) => elements,
            Self::Shared(elements) => elements,
        }
    }
}

fn failed(error: shouter::ps::Error) -> CommandError {
    CommandError::Failed(error.to_string())
}

/// The body of one rank.
pub(crate) fn worker(args: &PsRankArgs) -> Result<(), CommandError> {
    let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
    pin(&config);
    let group = shouter::init(config)?;
    let PsRankArgs { servers, worker } = args;
    let name =
        |rank| if rank < *servers { format!("server{rank}") } else { format!("trainer{}", rank - servers) };
    let names: Vec<_> = (0..group.size()).map(name).collect();
    let (serving, training) = names.split_at(*servers as usize);
    let mut plan = Plan::new(serving, training);
    plan.mode = if worker.mode == "asynchronous" { Mode::Asynchronous } else { Mode::Synchronous };
    plan.deadline = Duration::from_secs(120);
    let actors = Actors::meet(&group, &names[group.rank() as usize]).map_err(failed)?;
    let count = worker.bytes as usize / 4;
    if group.rank() < *servers {
        let server = Server::connect(&actors, plan).map_err(failed)?;
        let served = std::thread::spawn(move || server.serve());
        // The messages beside go from and to this thread.
        measure(&group, *servers, worker, None, count)?;
        let served = served.join().map_err(|_| CommandError::Failed("the server panicked".into()))?;
        served.map_err(failed)?;
    } else {
        let mut client = Client::connect(&actors, plan).map_err(failed)?;
        let shape = [count as u64];
        if group.rank() == *servers {
            let zeroes = vec![0f32; count];
            client
                .set("p", Array::new(&zeroes, &shape).map_err(failed)?, Optimizer::Sgd { rate: 0.5 })
                .map_err(failed)?;
        }
        client.wait_for_all().map_err(failed)?;
        measure(&group, *servers, worker, Some(&mut client), count)?;
        client.leave().map_err(failed)?;
    }
    group.finalize()?;
    Ok(())
}

/// All passes: messages, then the parameter server, in turn. Rank 0 prints the figures.
fn measure(
    group: &Group,
    servers: u32,
    args: &PsWorkerArgs,
    mut client: Option<&mut Client>,
    count: usize,
) -> Result<(), CommandError> {
    let mut gradient = Memory::<f32>::new(group, &args.memory, count)?;
    // In a server: a place for the part of each trainer.
    let taken = match client {
        Some(_) => count,
        None => count.div_ceil(servers as usize) * (group.size() - servers) as usize,
    };
    let mut pulled = Memory::<f32>::new(group, &args.memory, taken)?;
    gradient.all().fill(-1.0);
    let (mut of_messages, mut of_server) = (vec![], vec![]);
    for pass in 0..WARM_UP + args.passes {
        group.barrier()?;
        let begun = Instant::now();
        messages(group, servers, gradient.all(), pulled.all())?;
        let by_messages = slowest(group, begun)?;
        group.barrier()?;
        let begun = Instant::now();
        if let Some(client) = &mut client {
            let given = gradient.all();
            let shape = [given.len() as u64];
            client.push("p", Array::new(given, &shape).map_err(failed)?).map_err(failed)?;
            client.pull("p", pulled.all()).map_err(failed)?;
        }
        let by_server = slowest(group, begun)?;
        check(client.is_some(), args, pass, (group.size() - servers) as f32, pulled.all())?;
        if pass >= WARM_UP {
            of_messages.push(by_messages);
            of_server.push(by_server);
        }
    }
    if group.rank() > 0 {
        return Ok(());
    }
    for (who, mut nanos) in [("shouter", of_server), ("send-receive", of_messages)] {
        let (p50, p99) = percentiles_us(&mut nanos);
        let line = ReportLine {
            ranks: Some(group.size()),
            hosts: Some(group.nodes()),
            transport: Some(group.transport().channels.clone()),
            bytes: Some(args.bytes),
            dtype: Some("f32".into()),
            iterations: Some(nanos.len() as u64),
            p50_us: Some(round4(p50)),
            p99_us: Some(round4(p99)),
            // There and back.
            algbw_gbytes: Some(round4(2.0 * args.bytes as f64 / p50 / 1e3)),
            ..ReportLine::of("ps", who)
        };
        line.print()?;
    }
    Ok(())
}

/// The same bytes as a push and a pull: each trainer sends each server its part, and gets it back.
fn messages(group: &Group, servers: u32, given: &mut [f32], taken: &mut [f32]) -> Result<(), CommandError> {
    let part = given.len().div_ceil(servers as usize).max(1);
    let all = |ended: Vec<Result<shouter::Status, shouter::Error>>| {
        ended.into_iter().try_for_each(|one| one.map(drop))
    };
    if group.rank() >= servers {
        let mut sends: Vec<_> =
            (0..servers).zip(given.chunks(part)).map(|(to, part)| Exchange::send(part, to, 1)).collect();
        all(group.batch(&mut sends))?;
        let mut receives: Vec<_> = (0..servers)
            .zip(taken.chunks_mut(part))
            .map(|(from, part)| Exchange::receive(part, from, 2))
            .collect();
        return Ok(all(group.batch(&mut receives))?);
    }
    let own = given.chunks(part).nth(group.rank() as usize).map_or(0, <[f32]>::len);
    if own == 0 {
        return Ok(());
    }
    // Each trainer's part has a place of its own, as in a server.
    let mut receives: Vec<_> = (servers..group.size())
        .zip(taken.chunks_mut(part))
        .map(|(from, place)| Exchange::receive(&mut place[..own], from, 1))
        .collect();
    all(group.batch(&mut receives))?;
    let mut sends: Vec<_> = (servers..group.size()).map(|to| Exchange::send(&given[..own], to, 2)).collect();
    Ok(all(group.batch(&mut sends))?)
}

/// Nanoseconds since then, of the slowest rank.
fn slowest(group: &Group, begun: Instant) -> Result<u64, CommandError> {
    let mut nanos = [begun.elapsed().as_nanos() as u64];
    group.all_reduce(&mut nanos, ReduceOp::Max)?;
    Ok(nanos[0])
}

/// Every gradient has taken effect: of each trainer's -1 an average of half a unit a pass, at a rate of a half; asynchronous ones add up.
fn check(
    is_client: bool,
    args: &PsWorkerArgs,
    pass: u32,
    trainers: f32,
    pulled: &[f32],
) -> Result<(), CommandError> {
    let passes = (pass + 1) as f32;
    let range = match args.mode.as_str() {
        "asynchronous" => 0.5 * (passes + (passes - 1.0) * (trainers - 1.0))..=0.5 * passes * trainers,
        _ => 0.5 * passes..=0.5 * passes,
    };
    match pulled.iter().find(|value| is_client && !range.contains(value)) {
        None => Ok(()),
        Some(wrong) => {
            Err(CommandError::Failed(format!("pass {pass}: a parameter is {wrong}, and {range:?} is due")))
        }
    }
}
