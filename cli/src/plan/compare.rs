//! The measurements of `shouter bench` beside the predictions.

use std::process::{Command, Stdio};

use shouter::Collective;
use shouter::config::Levels;
use shouter_reducer::grid::Grid;
use shouter_reducer::plan;
use shouter_reducer::schedule::Algorithm;

use super::PlanArgs;
use super::figures::Source;
use super::table::Row;
use crate::bench::report::ReportLine;
use crate::bench::{output_within, patience, workload};
use crate::failure::CommandError;

/// Measures the size of each row.
pub(super) fn measure(
    rows: &mut [Row],
    collective: Collective,
    (grid, levels): (&Grid, Levels),
    args: &PlanArgs,
    source: &Source,
) -> Result<(), CommandError> {
    if !grid.is_even() {
        let why = "--compare measures hosts with the same number of ranks: give --ranks and a number of --hosts that divides it";
        return Err(CommandError::Usage(why.into()));
    }
    let sizes: Vec<u64> = rows.iter().map(|row| row.bytes).collect();
    let job = Job {
        ranks: grid.ranks(),
        hosts: grid.nodes(),
        transport: &args.transport,
        dtype: args.dtype.name(),
        levels,
        seconds: args.seconds,
        algorithm: None,
        source,
    };
    for (bytes, us) in job.run(collective, &sizes)? {
        rows.iter_mut().filter(|row| row.bytes == bytes).for_each(|row| row.measured_us = Some(us));
    }
    Ok(())
}

/// The rows whose prediction is more than `times` times too long or too short, as text.
pub(super) fn beyond(rows: &[Row], times: Option<f64>) -> Vec<String> {
    let Some(times) = times else { return Vec::new() };
    let far = |row: &&Row| row.ratio().is_some_and(|ratio| ratio > times || ratio < 1.0 / times);
    let words = |row: &Row| {
        format!("{} of {} B: {:.2} times", row.collective, row.bytes, row.ratio().unwrap_or_default())
    };
    rows.iter().filter(far).map(words).collect()
}

/// A job of ranks on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) ranks: u32,
    pub(super) hosts: u32,
    /// The transport between hosts.
    pub(super) transport: &'a str,
    pub(super) dtype: &'a str,
    pub(super) levels: Levels,
    pub(super) seconds: f64,
    /// The algorithm to use; `None` for the plan's choice.
    pub(super) algorithm: Option<Algorithm>,
    /// Where its figures are from.
    pub(super) source: &'a Source,
}

impl Job<'_> {
    /// Runs `shouter bench`; returns sizes and medians in microseconds. A barrier has size 0. Tensors are staged.
    pub(super) fn run(self, collective: Collective, sizes: &[u64]) -> Result<Vec<(u64, f64)>, CommandError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", workload::name(collective), "--json"]);
        command.args(["--ranks", &self.ranks.to_string(), "--hosts", &self.hosts.to_string()]);
        command.args(["--seconds", &self.seconds.to_string()]).stdin(Stdio::null());
        if let Some(algorithm) = self.algorithm {
            let schedule = format!("{}:{}", plan::word(collective), algorithm.name());
            command.env("SHOUTER_SCHEDULE", schedule);
        }
        command.env("SHOUTER_LEVELS", self.levels.to_string()).envs(self.source.variables());
        // `bench` takes `--transport rud` only for hosts of one rank each; elsewhere `auto` includes RUD.
        match self.transport {
            "rud" => {}
            other if self.hosts > 1 => drop(command.args(["--transport", other])),
            _ => {}
        }
        if collective != Collective::Barrier {
            let listed: Vec<String> = sizes.iter().map(ToString::to_string).collect();
            command.args(["--bytes", &listed.join(","), "--dtype", self.dtype, "--memory", "private"]);
        }
        let output = output_within(&mut command, patience(sizes.len().max(1), self.seconds))?;
        if !output.status.success() {
            return Err(CommandError::Failed(format!(
                "shouter bench {} ended with {}",
                workload::name(collective),
                output.status
            )));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().filter_map(|line| serde_json::from_str::<ReportLine>(line).ok());
        Ok(lines.filter_map(|line| Some((line.bytes.unwrap_or(0), line.p50_us?))).collect())
    }
}
