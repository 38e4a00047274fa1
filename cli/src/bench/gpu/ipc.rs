//! All-reduces of four ranks of one host on one GPU, in four processes and in one, beside its memory bandwidth.

use super::device::{Device, Left};
use super::table::{Row, Table};
use super::{GpuArgs, Part, jobs};
use crate::bench::report::{ReportLine, round4};
use crate::failure::CommandError;

/// Ranks of a job.
const RANKS: f64 = 4.0;
/// Tensors that must fit at once: one a rank, and half as much again for the contexts of four processes.
const ROOM: usize = 6;
/// The job's options: one host with four ranks on a GPU.
const JOB: [&str; 6] = ["--hosts", "1", "--ranks", "4", "--memory", "gpu"];

/// Length of the tensors, in bytes: as given, or less where the GPU has no room. 0 if this part is not selected.
pub(super) fn room(args: &GpuArgs, device: &Device) -> Result<u64, CommandError> {
    if !args.wants(Part::Ipc) {
        return Ok(0);
    }
    let wanted = args.ipc_bytes.unwrap_or(if device.simulated { 256 << 10 } else { 256 << 20 });
    Ok(device.buffers(ROOM, wanted)?.1)
}

/// The row of a job from its line. `copied` is the rate at which a copy on the device reads, in bytes a second; it
/// writes as much. An all-reduce has to read each rank's tensor once, and to write it once.
fn judge(row: Row, line: &ReportLine, copied: f64) -> Option<Row> {
    let (bytes, p50_us) = (line.bytes?, line.p50_us?);
    let moved = 2.0 * RANKS * bytes as f64;
    let bound_us = round4(moved / (2.0 * copied) * 1e6);
    let how = if line.in_place == Some(true) { "in place" } else { "staged in host memory" };
    let note = format!("{bytes} bytes a rank, {how}: p50 {p50_us} us, by memory traffic {bound_us} us");
    let row = row.figure(moved / p50_us / 1e3, "GB/s", 2.0 * copied / 1e9);
    Some(Row { note: Some(note), ..row })
}

/// Measures both jobs with tensors of `room` bytes.
pub(super) fn run(
    args: &GpuArgs,
    left: &Left,
    room: Result<u64, CommandError>,
    copied: Option<f64>,
    table: &mut Table,
) -> Result<(), CommandError> {
    let rows = args.rows(Part::Ipc).into_iter().map(|(row, aim)| Row::new(row, aim));
    for (row, threads) in rows.zip([&[][..], &["--threads"]]) {
        let measured = match &room {
            Ok(bytes) => jobs::allreduce(left, &[&JOB, threads].concat(), [*bytes]),
            Err(why) => Err(CommandError::Failed(why.to_string())),
        };
        let judged = measured.and_then(|[line]| {
            let copied = copied.ok_or_else(|| CommandError::Failed("copies could not be timed".into()))?;
            let judged = judge(row.clone(), &line, copied);
            judged.ok_or_else(|| CommandError::Failed("the bench gave no times".into()))
        });
        table.push(judged.unwrap_or_else(|why| row.failed(&why)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
