//! `shouter bench gpu`: compares the kernels on a GPU with the host's, bit by bit, and times them and all-reduces
//! beside ceilings that are measured in the same call. `scripts/gpu-check` runs it.

#[cfg(feature = "cuda")]
mod bits;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod float;
#[cfg(feature = "cuda")]
mod gather;
#[cfg(feature = "cuda")]
mod image;
#[cfg(feature = "cuda")]
mod ipc;
#[cfg(feature = "cuda")]
mod jobs;
#[cfg(feature = "cuda")]
mod reference;
#[cfg(feature = "cuda")]
mod sanitizer;
#[cfg(feature = "cuda")]
mod speed;
#[cfg(feature = "cuda")]
mod staged;
// Without CUDA every row is skipped, and nothing fills one in.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod table;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use shouter::ReduceOp;

use super::sizes;
use crate::failure::CommandError;
use table::{Row, RowVerdict, Table};

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The kernels' results
    Bits,
    /// The kernels again, under compute-sanitizer
    Sanitizer,
    /// The kernels' speed, and that of copies
    Speed,
    /// All-reduces of two processes on the GPU
    Staged,
    /// All-reduces of four ranks of one host on the GPU
    Ipc,
}

/// The two rows of the staged all-reduce; their sizes are options.
const STAGED: [(&str, &str); 2] = [("all-reduce, large", ">= 0.85"), ("all-reduce, small", "<= 1.00")];

/// The two rows of ranks that share a host and its GPU, by their number of processes.
const IPC: [(&str, &str); 2] =
    [("all-reduce, 4 processes", ">= 0.60"), ("all-reduce, 4 ranks in one process", ">= 0.80")];

/// Checks a GPU.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Checks the kernels on a GPU against the host's, bit by bit and with fresh random inputs, and measures them with the \
        device's own clock: medians, of tensors larger than its cache, in rotation. Every figure stands beside its ceiling, \
        which is measured in the same call: copies on the device, copies of page-locked memory, and the all-reduce of \
        tensors in host memory. That of four ranks on one GPU is what copies on the device allow where each rank's tensor is \
        read once and written once. A simulated driver is recognised, and its figures are called that.",
    after_help = "Examples:\n  \
        shouter bench gpu\n  \
        shouter bench gpu --only bits --seed 7\n  \
        shouter bench gpu --bytes 256Mi --json\n\n\
        With --json each line is {\"row\", \"measured\", \"unit\", \"ceiling\", \"fraction\", \"aim\", \"verdict\", \"simulated\",\n\
        \"note\"}; the verdict is `met`, `missed`, `failed`, `skipped`, or null for a ceiling\n\
        and for times of a simulated driver.\n\n\
        Exit status: 0 done, also where there is no device or an aim is missed; 1 wrong bits, or a row failed; 2 a wrong\n\
        command line."
)]
pub(crate) struct GpuArgs {
    /// The GPU, by its number
    #[arg(long, default_value_t = 0, value_name = "N")]
    device: u16,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Length of the tensors that are timed, in bytes; less where the GPU has no room for ten [default: 1Gi, simulated 256Ki]
    #[arg(long, value_parser = sizes::one)]
    bytes: Option<u64>,
    /// Length of the large staged all-reduce, in bytes [default: 256Mi, simulated 256Ki]
    #[arg(long, value_parser = sizes::one)]
    staged_bytes: Option<u64>,
    /// Length of the tensors of four ranks on one GPU, in bytes; less where it has no room for six. Each rank has as much
    /// page-locked memory, for input and check [default: 256Mi, simulated 256Ki]
    #[arg(long, value_parser = sizes::one)]
    ipc_bytes: Option<u64>,
    /// Elements of the longest tensor whose bits are checked [default: 70001, simulated 3001]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    elements: Option<u32>,
    /// How often each row is timed; the median counts [default: 21, simulated 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: Option<u32>,
    /// The seed of the random inputs [default: a fresh one]
    #[arg(long)]
    seed: Option<u64>,
    /// A folder with compiled kernels, for hosts without NVRTC
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,
    /// Compile the kernels for compute capabilities such as 80,90 into the folder of --kernels, and do nothing else
    #[arg(long, value_delimiter = ',', value_name = "LIST", requires = "kernels")]
    compile: Vec<u32>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

impl GpuArgs {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The names of a part's rows, with their aims.
    fn rows(&self, part: Part) -> Vec<(&'static str, &'static str)> {
        const BITS: &str = "the host's bits";
        match part {
            part if !self.wants(part) => vec![],
            Part::Bits => {
                let others = [
                    ("float64 reference", "within rounding"),
                    ("pack and unpack", "the same bytes"),
                    ("crc32c", BITS),
                ];
                ReduceOp::ALL.iter().map(|op| (op.name(), BITS)).chain(others).collect()
            }
            Part::Sanitizer => vec![("compute-sanitizer", "no error")],
            Part::Speed => vec![
                ("copy on the device", ""),
                ("copy to the device", ""),
                ("copy from the device", ""),
                ("sum f32", ">= 0.90"),
                ("sum f16", ">= 0.90"),
                ("sum bf16", ">= 0.90"),
                ("sum f32 of 8", ">= 0.85"),
                ("crc32c speed", ">= 0.40"),
            ],
            Part::Staged => STAGED.to_vec(),
            Part::Ipc => IPC.to_vec(),
        }
    }
}

const PARTS: [Part; 5] = [Part::Bits, Part::Sanitizer, Part::Speed, Part::Staged, Part::Ipc];

/// Runs `shouter bench gpu`.
pub(crate) fn main(args: &GpuArgs) -> Result<(), CommandError> {
    let mut table = Table::new(args.json);
    run(args, &mut table)?;
    table.finish()
}

/// Skips every row of these parts, for one reason.
fn skip(args: &GpuArgs, parts: &[Part], why: &str, table: &mut Table) -> Result<(), CommandError> {
    for (row, aim) in parts.iter().flat_map(|part| args.rows(*part)) {
        table.push(Row {
            verdict: Some(RowVerdict::Skipped),
            note: Some(why.into()),
            ..Row::new(row, aim)
        })?;
    }
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn run(args: &GpuArgs, table: &mut Table) -> Result<(), CommandError> {
    if !args.compile.is_empty() {
        return Err(CommandError::Usage(
            "this build has no CUDA; build it with the feature cuda, which is on by default".into(),
        ));
    }
    skip(args, &PARTS, "this build has no CUDA (feature cuda)", table)
}

#[cfg(feature = "cuda")]
fn run(args: &GpuArgs, table: &mut Table) -> Result<(), CommandError> {
    use shouter_reducer::cuda::Cuda;

    if !args.compile.is_empty() {
        return image::compile_all(args);
    }
    let cuda = match Cuda::probe() {
        Ok(cuda) => cuda,
        Err(why) => {
            table.say(&why.to_string());
            return skip(args, &PARTS, "no CUDA device", table);
        }
    };
    let device = device::Device::open(cuda, args)?;
    table.describe(&device.description(), device.simulated);
    match &device.kernels {
        Ok(kernels) => bits::run(args, &device, kernels, table)?,
        Err(why) => skip(args, &[Part::Bits], why, table)?,
    }
    sanitizer::run(args, &device, table)?;
    let rates = speed::run(args, &device, table)?;
    let room = ipc::room(args, &device);
    // The jobs have the GPU's memory to themselves.
    let left = device.free(args);
    staged::run(args, &left, rates.pinned, table)?;
    ipc::run(args, &left, room, rates.copied, table)
}

#[cfg(test)]
mod tests;
