//! The body of a process under the launcher: one rank, or several, of a collective's benchmark.

use std::time::Instant;

use clap::Args;
use shouter::config::{Builder, ConfigError};
use shouter::{Collective, Config, Group, ReduceOp};

use super::numbers::{DTYPES, Inputs, Number, measure_as, whole};
use super::placement::{BUFFER_PLACEMENTS, Buffers};
use super::rounds;
use crate::bench::report::ReportLine;
use crate::bench::sizes::Sizes;
use crate::bench::workload::{self, Origin, Part};
use crate::bench::{now, pin};
use crate::failure::CommandError;

/// Iterations that warm up caches, windows and plans; not measured.
const WARM_UP: usize = 8;
/// Fewest measured iterations of a size.
pub(super) const FEWEST: usize = 11;
/// Most measured iterations of a size.
pub(super) const MOST: usize = 50_000;
/// The largest number of iterations whose figures are reduced over the ranks at once.
const FIGURES: usize = 1 << 20;

/// The arguments of a process of one rank or several; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    #[arg(long, default_value = "allreduce", value_parser = workload::parse)]
    collective: Collective,
    /// The ranks of this process.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// The sizes; a barrier has none.
    #[arg(long)]
    bytes: Option<Sizes>,
    #[arg(long, default_value = "f32", value_parser = DTYPES)]
    pub(super) dtype: String,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value = "shared", value_delimiter = ',', value_parser = BUFFER_PLACEMENTS)]
    memory: Vec<String>,
    /// All ranks read the same monotonic clock: the times at which they enter and leave a barrier can be compared.
    #[arg(long)]
    one_clock: bool,
}

/// The body of a process: one rank as the launcher says, or all ranks of the group in threads.
pub(crate) fn worker(args: &WorkerArgs) -> Result<(), CommandError> {
    let usage = |why: ConfigError| CommandError::Usage(why.to_string());
    if args.threads == 1 {
        return rank(args, Config::from_env().map_err(usage)?);
    }
    // The job of the launcher has this one process: its key and meeting point serve all ranks.
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
            thread
                .join()
                .unwrap_or_else(|_| Err(CommandError::Failed("the thread of a rank panicked".into())))
        });
        // All threads are joined before the first error is returned.
        ends.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The body of one rank: measures every size and prints the lines on rank 0.
fn rank(args: &WorkerArgs, config: Config) -> Result<(), CommandError> {
    let sizes = match (&args.bytes, args.collective) {
        (_, Collective::Barrier) => vec![0],
        (Some(sizes), collective) => {
            whole(sizes, &args.dtype, workload::blocks_counted(collective, config.size))?;
            sizes.0.clone()
        }
        (None, _) => return Err(CommandError::Usage("--bytes is missing".into())),
    };
    pin(&config);
    let group = shouter::init(config)?;
    for bytes in sizes {
        let line = measure_as(&group, bytes, args)?;
        if group.rank() == 0 {
            line.print()?;
        }
    }
    group.finalize()?;
    Ok(())
}

/// One size of a collective, on this rank.
struct Run<'a, T: Number> {
    group: &'a Group,
    part: Part,
    buffers: Buffers<T>,
    figures: Figures,
}

/// Figures of each measured iteration.
#[derive(Default)]
struct Figures {
    /// How long it took, in nanoseconds.
    nanos: Vec<u64>,
    /// The time at which this rank entered the barrier, on the monotonic clock, in nanoseconds; only of barriers.
    entered: Vec<u64>,
    /// The time at which it left the barrier.
    left: Vec<u64>,
}

impl<T: Number> Run<'_, T> {
    /// An iteration: fresh input, a barrier, the timed call, and the check of its result. Roots take turns. No rank checks before all have
    /// returned: with more ranks than cores, a check would take the core from a rank that is still in the timed call.
    fn once(&mut self, round: usize) -> Result<(), CommandError> {
        let Part { collective, rank, ranks, count } = self.part;
        let root = (round % ranks as usize) as u32;
        let inputs = Inputs { summands: if collective.reduces() { ranks } else { 1 }, round };
        let input = self.buffers.input.as_mut().unwrap_or(&mut self.buffers.output);
        input.fill(|index| inputs.of(rank, index), round >= WARM_UP)?;
        self.group.barrier()?;
        let entered = (collective == Collective::Barrier).then(now);
        let started = Instant::now();
        self.buffers.run(self.group, collective, root)?;
        self.figures.nanos.push(started.elapsed().as_nanos() as u64);
        if let Some(entered) = entered {
            self.figures.entered.push(entered);
            self.figures.left.push(now());
        }
        if collective != Collective::Barrier {
            self.group.barrier()?;
        }
        if !self.part.has_result(root) {
            return Ok(());
        }
        let mut found = self.buffers.output.elements()?.iter();
        for (block, &length) in (0..).zip(&self.buffers.taken) {
            let (origin, from) = self.part.origin(root, block);
            for (index, value) in found.by_ref().take(length).enumerate() {
                let due: T = match origin {
                    Origin::Rank(of) => inputs.of(of, from + index),
                    Origin::Sum(ranks) => inputs.sum(ranks, from + index),
                };
                if *value != due {
                    return Err(CommandError::Failed(format!(
                        "{collective} with blocks of {count} elements: element {index} of block {block} is {value} on rank {rank}, \
                         {due} was due"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks that no rank left a barrier before all had entered it.
    fn check_barrier(&mut self) -> Result<(), CommandError> {
        let Figures { entered, left, .. } = &mut self.figures;
        for (entered, left) in entered.chunks_mut(FIGURES).zip(left.chunks_mut(FIGURES)) {
            self.group.all_reduce(entered, ReduceOp::Max)?;
            self.group.all_reduce(left, ReduceOp::Min)?;
            if let Some(early) = entered.iter().zip(left.iter()).position(|(entered, left)| left < entered) {
                return Err(CommandError::Failed(format!(
                    "a rank left barrier {early} before all had entered it"
                )));
            }
        }
        Ok(())
    }
}

/// Measures one size: every rank times an iteration from the end of a barrier to the return of the call, and the
/// slowest rank counts.
pub(super) fn measure<T: Number>(
    group: &Group,
    bytes: u64,
    args: &WorkerArgs,
) -> Result<ReportLine, CommandError> {
    let (rank, ranks, collective) = (group.rank(), group.size(), args.collective);
    let count = bytes as usize / size_of::<T>() / workload::blocks_counted(collective, ranks) as usize;
    let part = Part { collective, rank, ranks, count };
    let word = args.memory.get(rank as usize % args.memory.len().max(1)).map_or("shared", String::as_str);
    let buffers = Buffers::<T>::new(word, group, part)?;
    let mut run = Run { group, part, buffers, figures: Figures::default() };
    let started = Instant::now();
    for round in 0..WARM_UP {
        run.once(round)?;
    }
    let wanted = rounds(group, (started, WARM_UP as u64), args.seconds, FEWEST as u64..=MOST as u64)?;
    run.figures = Figures { nanos: Vec::with_capacity(wanted as usize), ..Figures::default() };
    let before = group.stats();
    for round in 0..wanted as usize {
        run.once(WARM_UP + round)?;
    }
    let after = group.stats();
    let in_place = after.in_place - before.in_place >= wanted;
    let mut frames = [after.frames_sent - before.frames_sent, after.resent - before.resent];
    group.all_reduce(&mut frames, ReduceOp::Sum)?;
    for chunk in run.figures.nanos.chunks_mut(FIGURES) {
        group.all_reduce(chunk, ReduceOp::Max)?;
    }
    let is_barrier = collective == Collective::Barrier;
    if is_barrier && args.one_clock {
        run.check_barrier()?;
    }
    let nanos = &mut run.figures.nanos;
    let bytes = (!is_barrier).then_some(bytes);
    let mut line = ReportLine::collective(collective, "shouter", (ranks, group.nodes()), bytes, nanos);
    line.transport = Some(group.transport().channels.clone());
    // The kernel's sockets and RDMA count no frames.
    if frames[0] > 0 {
        (line.sent, line.resent) = (Some(frames[0]), Some(frames[1]));
    }
    if !is_barrier {
        line.in_place = Some(in_place);
        let uncopied = after.frames_uncopied - before.frames_uncopied;
        line.uncopied = (group.nodes() > 1).then_some(uncopied);
        line.dtype = Some(args.dtype.clone());
    }
    Ok(line)
}
