//! `shouter bench step`: a training step with the tensors of a model. Gradients are pushed in the order of the backward
//! pass and waited for in that of the forward pass, with and without fusion, and with and without priority.
//!
//! A layer's computation is a spin for its share of the step, by its multiplications: two thirds of the time backwards,
//! one third forwards. Priority is the order of the table: by need, the first layer comes first; by push, the tensor
//! that is pushed first.

mod resnet50;

use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use shouter::{Config, DType, Group, ReduceOp, Tensor, TensorId, TensorSpec};

use super::{JobArgs, check_job, launcher, refuses, rounds};
use crate::bench::report::{ReportLine, median, percentiles_us};
use crate::bench::sizes::Sizes;
use crate::bench::{patience, pin, ranks_output};
use crate::failure::CommandError;
use crate::stdout;
use resnet50::Layer;

/// Steps that warm up; not measured.
const WARM_UP: usize = 3;
/// Fewest measured steps of a pass.
const FEWEST: usize = 5;
/// Runs of the job for each setting of fusion; the settings take turns.
const PASSES: usize = 3;

/// Arguments of `shouter bench step`.
#[derive(Args, Clone, Debug)]
#[command(mut_args(refuses(&["threads", "against", "rounds"])))]
pub(crate) struct StepArgs {
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Tensors below so many bytes are fused in the second half of the figures (the key fuse_below)
    #[arg(long, default_value = "16Ki")]
    fuse_below: Sizes,
    /// The most that is fused (the key fuse_bytes)
    #[arg(long, default_value = "64Ki")]
    fuse_bytes: Sizes,
}

/// Arguments that describe a step's computation.
#[derive(Args, Clone, Debug)]
struct ModelArgs {
    /// The model whose tensors are reduced
    #[arg(long, default_value = "resnet50", value_parser = ["resnet50"])]
    model: String,
    /// Duration of a step's computation, in milliseconds
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    compute_ms: u64,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct StepWorkerArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[arg(long)]
    fuse_below: u64,
    #[arg(long)]
    seconds: f64,
}

/// Runs the job in each setting.
pub(crate) fn main(args: &StepArgs) -> Result<(), CommandError> {
    let StepArgs { job, model, fuse_below: Sizes(below), fuse_bytes: Sizes(bytes) } = args;
    check_job(job)?;
    if job.threads || !job.against.is_empty() || job.rounds.is_some() {
        return Err(CommandError::Usage(
            "a step is measured between processes, of shouter alone, and once; leave out --threads, --against and --rounds".into(),
        ));
    }
    let (&[below], &[bytes]) = (&below[..], &bytes[..]) else {
        return Err(CommandError::Usage("--fuse-below and --fuse-bytes are one size each".into()));
    };
    let mut lines: Vec<ReportLine> = vec![];
    for _ in 0..PASSES {
        for fuse_below in [0, below] {
            let (below, compute) = (fuse_below.to_string(), model.compute_ms.to_string());
            let mut command = launcher(job)?;
            command.env("SHOUTER_FUSE_BELOW", &below).env("SHOUTER_FUSE_BYTES", bytes.to_string());
            command.args(["bench", "step-worker", "--model", &model.model, "--compute-ms", &compute]);
            command.args(["--fuse-below", &below, "--seconds", &job.seconds.to_string()]);
            lines.extend(ranks_output(command.stdin(Stdio::null()), patience(2, job.seconds))?);
        }
    }
    let mut table =
        String::from("step (ms, medians)   until the first layer may start   p99    whole step\n");
    while let Some(first) = lines.first().cloned() {
        let (of, rest) = lines.into_iter().partition(|line: &ReportLine| line.series() == first.series());
        lines = rest;
        let line = middle(&of, first);
        let ms = |us: Option<f64>| us.unwrap_or(0.0) / 1e3;
        let figures = (ms(line.p50_us), ms(line.p99_us), ms(line.step_us));
        table += &format!("{:<28}{:>24.2}{:>7.2}{:>14.2}\n", line.series(), figures.0, figures.1, figures.2);
        if job.json {
            line.print()?;
        }
    }
    if !job.json {
        stdout::print(&table)?;
    }
    Ok(())
}

/// The medians of all figures over the passes.
fn middle(lines: &[ReportLine], first: ReportLine) -> ReportLine {
    let of = |figure: fn(&ReportLine) -> Option<f64>| {
        Some(median(&mut lines.iter().filter_map(figure).collect::<Vec<_>>()))
    };
    ReportLine {
        p50_us: of(|line| line.p50_us),
        p99_us: of(|line| line.p99_us),
        step_us: of(|line| line.step_us),
        passes: Some(lines.len() as u32),
        ..first
    }
}

/// The body of one rank.
pub(crate) fn worker(args: &StepWorkerArgs) -> Result<(), CommandError> {
    let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
    pin(&config);
    let group = shouter::init(config)?;
    let mut trainer = Trainer::new(&group, resnet50::layers(), Duration::from_millis(args.model.compute_ms))?;
    for order in ["push", "need"] {
        let mut figures = trainer.measure(order == "need", args.seconds)?;
        let (p50, p99) = percentiles_us(&mut figures.first);
        let (step, _) = percentiles_us(&mut figures.steps);
        let line = ReportLine {
            ranks: Some(group.size()),
            hosts: Some(group.nodes()),
            transport: Some(group.transport().channels.clone()),
            bytes: Some(trainer.data.len() as u64 * 4),
            iterations: Some(figures.first.len() as u64),
            fuse_below: Some(args.fuse_below),
            priority: Some(order.into()),
            p50_us: Some(p50),
            p99_us: Some(p99),
            step_us: Some(step),
            ..ReportLine::of("step", "shouter")
        };
        if group.rank() == 0 {
            line.print()?;
        }
    }
    group.finalize()?;
    Ok(())
}

/// Nanoseconds of each step: until the first layer may start, and of the whole step.
#[derive(Default)]
struct Figures {
    first: Vec<u64>,
    steps: Vec<u64>,
}

/// A rank with its model.
struct Trainer<'a> {
    group: &'a Group,
    layers: Vec<Layer>,
    compute: Duration,
    work: u64,
    /// All tensors, one behind the other.
    data: Tensor<f32>,
    /// For each layer its tensors: start, elements, and numbers in the tables by push and by need.
    tensors: Vec<Vec<LayerTensor>>,
}

#[derive(Clone, Copy)]
struct LayerTensor {
    start: usize,
    count: usize,
    ids: [TensorId; 2],
}

impl<'a> Trainer<'a> {
    fn new(group: &'a Group, layers: Vec<Layer>, compute: Duration) -> Result<Self, CommandError> {
        let spec =
            |(name, count): &(String, u64)| TensorSpec::all_reduce(name, DType::F32, *count, ReduceOp::Sum);
        let mut specs: Vec<TensorSpec> = layers.iter().flat_map(|layer| &layer.tensors).map(spec).collect();
        let need = group.register(&specs)?;
        specs.reverse();
        let push = group.register(&specs)?;
        let mut ids = push.into_iter().rev().zip(need).map(|(push, need)| [push, need]);
        let mut start = 0;
        let mut place = |&(_, count): &(String, u64)| {
            let (count, at) = (count as usize, start);
            start += count;
            ids.next().map(|ids| LayerTensor { start: at, count, ids })
        };
        let tensors =
            layers.iter().map(|layer| layer.tensors.iter().filter_map(&mut place).collect()).collect();
        let work = layers.iter().map(|layer| layer.work).sum();
        let data = group.alloc(start)?;
        Ok(Self { group, layers, compute, work, data, tensors })
    }

    /// Steps for about `seconds`; each figure is that of the slowest rank.
    fn measure(&mut self, by_need: bool, seconds: f64) -> Result<Figures, CommandError> {
        let begun = Instant::now();
        for _ in 0..WARM_UP {
            self.step(by_need)?;
        }
        let wanted = rounds(self.group, (begun, WARM_UP as u64), seconds, FEWEST as u64..=u64::MAX)?;
        let mut figures = Figures::default();
        for _ in 0..wanted {
            let (first, step) = self.step(by_need)?;
            figures.first.push(first);
            figures.steps.push(step);
        }
        self.group.all_reduce(&mut figures.first, ReduceOp::Max)?;
        self.group.all_reduce(&mut figures.steps, ReduceOp::Max)?;
        Ok(figures)
    }

    /// Runs one step; returns both its figures.
    #[allow(unsafe_code)]
    fn step(&mut self, by_need: bool) -> Result<(u64, u64), CommandError> {
        let Self { group, layers, compute, work, data, tensors } = self;
        let mark = (group.rank() + 1) as f32;
        for place in tensors.iter().flatten() {
            data[place.start] = mark;
            data[place.start + place.count - 1] = mark;
        }
        let share = |layer: &Layer, part: f64| compute.mul_f64(part * layer.work as f64 / *work as f64);
        let base = data.as_mut_ptr();
        let mut works: Vec<Vec<_>> = Vec::with_capacity(layers.len());
        group.barrier()?;
        let begun = Instant::now();
        for (layer, places) in layers.iter().zip(&*tensors).rev() {
            spin(share(layer, 2.0 / 3.0));
            let mut pushed = Vec::with_capacity(places.len());
            for place in places.iter().rev() {
                // SAFETY: elements of `data`, which is left alone until all have been waited for.
                let work =
                    unsafe { group.push(place.ids[usize::from(by_need)], base.add(place.start).cast()) }?;
                pushed.push(work);
            }
            works.push(pushed);
        }
        let pushed = Instant::now();
        let mut first = None;
        for (layer, works) in layers.iter().zip(works.iter().rev()) {
            works.iter().try_for_each(|work| work.wait(None))?;
            first.get_or_insert_with(|| pushed.elapsed());
            spin(share(layer, 1.0 / 3.0));
        }
        let step = begun.elapsed();
        let sum = (group.size() * (group.size() + 1) / 2) as f32;
        for place in tensors.iter().flatten() {
            if [data[place.start], data[place.start + place.count - 1]] != [sum; 2] {
                return Err(CommandError::Failed(format!("tensor {} has a wrong sum", place.ids[0].0)));
            }
        }
        Ok((first.unwrap_or_default().as_nanos() as u64, step.as_nanos() as u64))
    }
}

/// Spins for `time`.
fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}
