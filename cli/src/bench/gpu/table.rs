//! The rows of the check: JSON lines for machines, a table for people.

use serde::Serialize;

use crate::bench::report::round4;
use crate::failure::CommandError;
use crate::stdout;

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RowVerdict {
    /// The figure reaches the aim.
    Met,
    /// The figure misses the aim.
    Missed,
    /// It could not be measured, or the bits are wrong.
    Failed,
    /// The row was not measured.
    Skipped,
}

impl RowVerdict {
    fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) row: &'static str,
    pub(super) measured: Option<f64>,
    /// The unit of the figure and of its ceiling: `GB/s` (10^9 bytes a second), `us` or `cases`.
    pub(super) unit: &'static str,
    pub(super) ceiling: Option<f64>,
    /// The figure over the ceiling.
    pub(super) fraction: Option<f64>,
    pub(super) aim: &'static str,
    /// None for rows that are only ceilings of others, and for times of a simulated driver.
    pub(super) verdict: Option<RowVerdict>,
    /// The driver is simulated: its times say nothing about a GPU.
    pub(super) simulated: bool,
    pub(super) note: Option<String>,
}

impl Row {
    /// A row without a figure yet.
    pub(super) fn new(row: &'static str, aim: &'static str) -> Self {
        Self {
            row,
            measured: None,
            unit: "",
            ceiling: None,
            fraction: None,
            aim,
            verdict: None,
            simulated: false,
            note: None,
        }
    }

    /// A figure with its ceiling, judged by the aim: `>= F` or `<= F` of the ceiling.
    pub(super) fn figure(mut self, measured: f64, unit: &'static str, ceiling: f64) -> Self {
        let fraction = measured / ceiling;
        let number = |sign: &str| self.aim.strip_prefix(sign).and_then(|text| text.parse::<f64>().ok());
        let met = match (number(">= "), number("<= ")) {
            (Some(least), _) => fraction >= least,
            (_, Some(most)) => fraction <= most,
            _ => false,
        };
        self.measured = Some(round4(measured));
        self.unit = unit;
        self.ceiling = Some(round4(ceiling));
        self.fraction = Some(round4(fraction));
        self.verdict = Some(if met { RowVerdict::Met } else { RowVerdict::Missed });
        self
    }

    /// Sets the number of cases; the row is met unless one of them is wrong.
    pub(super) fn cases(mut self, cases: u64, wrong: Option<String>) -> Self {
        self.measured = Some(cases as f64);
        self.unit = "cases";
        self.verdict = Some(if wrong.is_none() { RowVerdict::Met } else { RowVerdict::Failed });
        self.note = wrong;
        self
    }

    /// Marks the row as failed.
    pub(super) fn failed(mut self, why: &dyn std::fmt::Display) -> Self {
        self.verdict = Some(RowVerdict::Failed);
        self.note = Some(why.to_string());
        self
    }

    fn columns(&self) -> [String; 6] {
        if self.verdict == Some(RowVerdict::Skipped) {
            let why = self.note.as_deref().unwrap_or_default();
            return [self.row.into(), format!("skipped: {why}"), "".into(), "".into(), "".into(), "".into()];
        }
        let figure = |value: Option<f64>| match value {
            Some(value) if self.unit == "cases" => format!("{value} cases"),
            Some(value) => format!("{value:.1} {}", self.unit),
            None => "-".into(),
        };
        let aim = if self.aim.is_empty() { "-" } else { self.aim };
        let verdict = match (self.verdict, self.simulated) {
            (Some(verdict), true) => format!("{} (simulated)", verdict.name()),
            (Some(verdict), false) => verdict.name().into(),
            (None, true) => "simulated".into(),
            (None, false) => "ceiling".into(),
        };
        [
            self.row.into(),
            figure(self.measured),
            figure(self.ceiling),
            self.fraction.map_or("-".into(), |fraction| format!("{fraction:.2}")),
            aim.into(),
            verdict,
        ]
    }
}

/// The rows so far.
pub(super) struct Table {
    json: bool,
    simulated: bool,
    head: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    pub(super) fn new(json: bool) -> Self {
        Self { json, simulated: false, head: vec![], rows: vec![] }
    }

    /// Adds a line for people, above the table.
    pub(super) fn say(&mut self, line: &str) {
        self.head.push(line.into());
    }

    /// Adds the description of the device.
    pub(super) fn describe(&mut self, device: &str, simulated: bool) {
        self.say(device);
        self.simulated = simulated;
        if simulated {
            self.say("The driver is simulated: bits count, times do not, and no fraction is a claim.");
        }
    }

    /// Adds a row; with JSON it is printed now. Times of a simulated driver are not judged.
    pub(super) fn push(&mut self, mut row: Row) -> Result<(), CommandError> {
        row.simulated = self.simulated;
        if row.simulated && row.fraction.is_some() {
            row.verdict = None;
        }
        if self.json {
            stdout::print_json(&row)?;
        } else {
            eprint!(".");
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints the table, unless the rows were printed as JSON. A row that failed is an error.
    pub(super) fn finish(self) -> Result<(), CommandError> {
        if self.json {
            self.head.iter().for_each(|line| eprintln!("{line}"));
        } else {
            eprintln!();
            stdout::print(&self.text())?;
        }
        let failed: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| row.verdict == Some(RowVerdict::Failed))
            .map(|row| row.row)
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        Err(CommandError::Failed(format!("{} failed; see the notes", failed.join(", "))))
    }

    fn text(&self) -> String {
        let titles = ["row", "measured", "ceiling", "fraction", "aim", "verdict"].map(String::from);
        let lines: Vec<[String; 6]> =
            std::iter::once(titles).chain(self.rows.iter().map(Row::columns)).collect();
        // A reason in place of a figure may extend to the right.
        let fits = |line: &[String; 6], column: usize| match line[5].is_empty() && column > 0 {
            true => 0,
            false => line[column].len(),
        };
        let widths: Vec<usize> =
            (0..6).map(|column| lines.iter().map(|line| fits(line, column)).max().unwrap_or(0)).collect();
        let mut text: String = self.head.iter().map(|line| format!("{line}\n")).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        for row in self.rows.iter().filter(|row| row.verdict != Some(RowVerdict::Skipped)) {
            if let Some(note) = &row.note {
                text += &format!("{}: {note}\n", row.row);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
