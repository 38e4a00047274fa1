//! All-reduces between ranks, each job by `shouter bench allreduce` in processes that are ended where they hang.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::device::Left;
use crate::bench::output_within;
use crate::bench::report::ReportLine;
use crate::failure::CommandError;

/// All sizes of a job.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs a job with these options, which checks its results, and gives its lines, by size.
pub(super) fn allreduce<const N: usize>(
    left: &Left,
    options: &[&str],
    sizes: [u64; N],
) -> Result<[ReportLine; N], CommandError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "allreduce", "--json"]).args(options);
    command.args(["--bytes", &sizes.map(|size| size.to_string()).join(",")]);
    command.args(["--seconds", if left.simulated { "0.05" } else { "1" }]).stdin(Stdio::null());
    if let Some(folder) = &left.kernels {
        command.env("SHOUTER_GPU_KERNELS", folder);
    }
    // Ranks take the GPU of their number on their host, of those that they see.
    if !left.alone {
        command.env("CUDA_VISIBLE_DEVICES", &left.name);
    }
    let output = output_within(&mut command, PATIENCE)?;
    if !output.status.success() {
        return Err(CommandError::Failed(format!("`shouter bench allreduce {}` failed", options.join(" "))));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Result<Vec<ReportLine>, _> = text.lines().map(serde_json::from_str).collect();
    let lines: Result<[ReportLine; N], _> = lines.map_err(io::Error::from)?.try_into();
    lines.map_err(|lines| CommandError::Failed(format!("{} lines instead of {N}: {text}", lines.len())))
}
