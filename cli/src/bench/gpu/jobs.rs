//! All-reduces between ranks: jobs of `shouter bench allreduce`, whose processes are killed if they hang.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::device::Left;
use crate::bench::output_within;
use crate::bench::report::ReportLine;
use crate::failure::CommandError;

/// The time limit of a job with all its sizes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs a job with these options, which checks its results; returns its lines by size.
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
    // A rank takes the visible GPU with its local number.
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
