//! All-reduces of two processes on one GPU, staged through page-locked memory, beside all-reduces of host memory.

use super::device::Left;
use super::table::{Row, Table};
use super::{GpuArgs, Part, jobs};
use crate::bench::report::ReportLine;
use crate::failure::CommandError;

/// Length of the small tensor, in bytes.
const SMALL: u64 = 4096;
/// The time that staging may add to a small all-reduce, in microseconds.
const ADDED: f64 = 40.0;

/// The transport between the two hosts: every byte crosses it.
const LINK: &str = if cfg!(feature = "dpdk") { "auto" } else { "kernel" };

/// The lines of the job with tensors in this placement, by size.
fn bench(left: &Left, memory: &str, sizes: [u64; 2]) -> Result<[ReportLine; 2], CommandError> {
    jobs::allreduce(left, &["--hosts", "2", "--ranks", "2", "--transport", LINK, "--memory", memory], sizes)
}

/// The rows of the two sizes from the lines of both placements; `pinned` is the rate of copies in bytes a second.
fn judge(rows: [Row; 2], gpu: &[ReportLine; 2], host: &[ReportLine; 2], pinned: f64) -> Option<[Row; 2]> {
    let [large, small] = rows;
    let rate = |line: &ReportLine| Some(line.bytes? as f64 / line.p50_us? / 1e3);
    let large = large.figure(rate(&gpu[1])?, "GB/s", rate(&host[1])?.min(pinned / 1e9));
    let small = small.figure(gpu[0].p50_us?, "us", host[0].p50_us? + ADDED);
    let note = |row: Row, gpu: &ReportLine, host: &ReportLine| {
        let link = gpu.transport.clone().unwrap_or_else(|| LINK.into());
        let [gpu_us, host_us] = [gpu, host].map(|line| line.p50_us.unwrap_or_default());
        let bytes = gpu.bytes.unwrap_or_default();
        let text = format!("{bytes} bytes over {link}: p50 {gpu_us} us, of host memory {host_us} us");
        Row { note: Some(text), ..row }
    };
    Some([note(large, &gpu[1], &host[1]), note(small, &gpu[0], &host[0])])
}

/// Measures both sizes.
pub(super) fn run(
    args: &GpuArgs,
    left: &Left,
    pinned: Option<f64>,
    table: &mut Table,
) -> Result<(), CommandError> {
    let rows: Vec<Row> = args.rows(Part::Staged).into_iter().map(|(row, aim)| Row::new(row, aim)).collect();
    let Ok(rows) = <[Row; 2]>::try_from(rows) else { return Ok(()) };
    let large = args.staged_bytes.unwrap_or(if left.simulated { 256 << 10 } else { 256 << 20 });
    let sizes = [SMALL, large.next_multiple_of(4)];
    let measured = bench(left, "gpu", sizes).and_then(|gpu| {
        let host = bench(left, "shared", sizes)?;
        let pinned = pinned.ok_or_else(|| CommandError::Failed("copies could not be timed".into()))?;
        let lines = judge(rows.clone(), &gpu, &host, pinned);
        lines.ok_or_else(|| CommandError::Failed("the bench gave no times".into()))
    });
    let rows = match measured {
        Ok(rows) => rows,
        Err(why) => rows.map(|row| row.failed(&why)),
    };
    rows.into_iter().try_for_each(|row| table.push(row))
}

#[cfg(test)]
mod tests;
