//! The results of a benchmark: one [`ReportLine`] per measured series, printed as JSON for machines, or for people as a
//! table with ratios to every peer.

use std::io;

use serde::{Deserialize, Serialize};
use shouter::Collective;

use super::workload;
use crate::stdout;
pub(crate) use rounds::Rounds;

pub(crate) mod incast;
mod rounds;

/// One measured series: the median over its passes. Fields that do not apply are left out of the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReportLine {
    /// The name of a collective, of an access to a window, or of a function that makes a group; `sendrecv`, `incast`, `callback`, `step`, `ps`, `stream`,
    /// `pingpong`, `connections` or `idle`.
    pub(crate) bench: String,
    /// `shouter`, or the peer's name.
    pub(crate) who: String,
    /// `raw`, `udp`, `rud` or `tcp`; only on lines of our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hosts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<String>,
    /// Whether ranks of a host reduced directly from each other's tensors; else they staged them, or had no need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_place: Option<bool>,
    /// Frames sent by this rank's ports whose payload was not copied into a buffer; between hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uncopied: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duplex: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// The element type; only on lines of our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) iterations: Option<u64>,
    /// The size below which tensors were fused, in a step; 0 for no fusion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fuse_below: Option<u64>,
    /// The priority of tensors in a step: needed first (`need`), or pushed first (`push`); of one beside another: registered `first` or `last`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<String>,
    /// The time of a whole step; its `p50_us` is the time until the first layer may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step_us: Option<f64>,
    /// Who drives the network (the key `mode`), where that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// The bytes of the operation that runs at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<u64>,
    /// How a rank hears of the end of an operation; its `p50_us` is the time since the start of the last rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heard_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// The same since the end of the operation on that rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since_end_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since_end_p99_us: Option<f64>,
    /// The time until the first all-reduce in a new group has ended; its `p50_us` is the time until the group is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) used_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) algbw_gbytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busbw_gbytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goodput_gbits: Option<f64>,
    /// The goodput of several senders as a share of one sender's, in an incast; its `p50_us` is the time until a message has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) share_of_one: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frames_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
    /// Frames that the ports of all ranks have sent in these iterations, and those of them that were sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections_per_second: Option<f64>,
    /// The number of established connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_connection: Option<f64>,
    /// The number of passes under the medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) passes: Option<u32>,
    /// The number of rounds under the medians, and the least and the greatest `p50_us` of them, where there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) greatest_p50_us: Option<f64>,
}

impl ReportLine {
    /// A line without figures yet.
    pub(crate) fn of(bench: &str, who: &str) -> Self {
        Self { bench: bench.into(), who: who.into(), ..Self::default() }
    }

    /// Prints the line as JSON.
    pub(crate) fn print(&self) -> io::Result<()> {
        stdout::print_json(self)
    }

    /// The figures of a collective over `ranks`, from the latencies of its iterations in nanoseconds. `bytes` counts as
    /// in [`workload`]; a barrier has none.
    pub(crate) fn collective(
        collective: Collective,
        who: &str,
        (ranks, hosts): (u32, u32),
        bytes: Option<u64>,
        nanos: &mut [u64],
    ) -> Self {
        let (p50, p99) = percentiles_us(nanos);
        let mut line = Self {
            ranks: Some(ranks),
            hosts: Some(hosts),
            bytes,
            iterations: Some(nanos.len() as u64),
            p50_us: Some(p50),
            p99_us: Some(p99),
            ..Self::of(workload::name(collective), who)
        };
        if let Some(bytes) = bytes
            && p50 > 0.0
            && ranks > 0
        {
            let (whole, share) = workload::traffic(collective, bytes, ranks);
            let algbw = whole / (p50 * 1e3);
            line.algbw_gbytes = Some(round4(algbw));
            line.busbw_gbytes = Some(round4(algbw * share));
        }
        line
    }

    /// The figures of messages of `bytes` between two ranks, from halves of round trips in nanoseconds.
    pub(crate) fn half_round_trips(who: &str, hosts: u32, bytes: u64, nanos: &mut [u64]) -> Self {
        Self::accesses("sendrecv", who, hosts, bytes, nanos)
    }

    /// The figures of accesses to `bytes` of one rank by another, from their times in nanoseconds.
    pub(crate) fn accesses(bench: &str, who: &str, hosts: u32, bytes: u64, nanos: &mut [u64]) -> Self {
        let (p50, p99) = percentiles_us(nanos);
        Self {
            ranks: Some(2),
            hosts: Some(hosts),
            bytes: Some(bytes),
            iterations: Some(nanos.len() as u64),
            p50_us: Some(p50),
            p99_us: Some(p99),
            algbw_gbytes: (p50 > 0.0).then(|| round4(bytes as f64 / (p50 * 1e3))),
            ..Self::of(bench, who)
        }
    }

    /// The series among those of the same size: program, and protocol or transport; or a step's fusion and priority; or the mode and how
    /// the end was heard of.
    pub(crate) fn series(&self) -> String {
        if let (Some(mode), Some(by)) = (&self.mode, &self.heard_by) {
            return format!("{mode}, by {by}");
        }
        if let Some(beside) = self.beside {
            let place = self.priority.as_ref().map(|place| format!(", {place}"));
            return format!("beside {beside}{}", place.unwrap_or_default());
        }
        if let (Some(below), Some(priority)) = (self.fuse_below, &self.priority) {
            return format!("{}, by {priority}", if below == 0 { "single" } else { "fused" });
        }
        match (&self.protocol, &self.transport) {
            (Some(protocol), _) => format!("{} {protocol}", self.who),
            (None, Some(transport)) if self.who == "shouter" => format!("{} {transport}", self.who),
            _ => self.who.clone(),
        }
    }

    /// The main figure, and whether less of it is better.
    fn headline(&self) -> Option<(f64, bool)> {
        let rate = self.messages_per_second.or(self.goodput_gbits).or(self.connections_per_second);
        let more = rate.map(|figure| (figure, false));
        let less = self.p50_us.or(self.bytes_per_connection).map(|figure| (figure, true));
        more.or(less)
    }
}

/// Median and 99th percentile in microseconds of latencies in nanoseconds (sorted in place).
pub(crate) fn percentiles_us(nanos: &mut [u64]) -> (f64, f64) {
    nanos.sort_unstable();
    let at = |q: f64| {
        let index = ((nanos.len().saturating_sub(1)) as f64 * q).round() as usize;
        nanos.get(index).map_or(0.0, |n| round4(*n as f64 / 1e3))
    };
    (at(0.50), at(0.99))
}

/// The median of a few figures (the mean of the middle two for an even count); zero for none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Rounds to four decimals, so that the JSON stays readable.
pub(crate) fn round4(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The output of lines: immediately as JSON, or as a table at the end.
pub(crate) struct Report {
    json: bool,
    lines: Vec<ReportLine>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, lines: Vec::new() }
    }

    /// Adds a line; with `--json` prints it at once.
    pub(crate) fn push(&mut self, line: ReportLine) -> io::Result<()> {
        if self.json {
            line.print()?;
        } else {
            eprint!(".");
        }
        self.lines.push(line);
        Ok(())
    }

    pub(crate) fn extend(&mut self, lines: Vec<ReportLine>) -> io::Result<()> {
        lines.into_iter().try_for_each(|line| self.push(line))
    }

    /// Prints the table for people, unless the lines went out as JSON.
    pub(crate) fn finish(self) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        eprintln!();
        stdout::print(&table(&self.lines))
    }
}

/// A row per size, a column per series, and after each peer our advantage over it; the same of the 99th percentiles of times, and what was
/// sent again.
fn table(lines: &[ReportLine]) -> String {
    let Some(first) = lines.first() else { return "no result\n".into() };
    let unit = match first {
        ReportLine { messages_per_second: Some(_), .. } => "messages/s",
        ReportLine { goodput_gbits: Some(_), .. } => "Gb/s",
        ReportLine { connections_per_second: Some(_), .. } => "connections/s",
        ReportLine { bytes_per_connection: Some(_), .. } => "bytes each",
        _ => "us p50",
    };
    let mut out = format!("{} ({unit}; x: how many times better the first column is)\n", first.bench);
    out += &rows(lines, ReportLine::headline);
    if unit == "us p50" && first.p99_us.is_some() {
        out += "\nus p99\n";
        out += &rows(lines, |line| line.p99_us.map(|figure| (figure, true)));
    }
    for line in lines {
        if let (Some(resent @ 1..), Some(sent)) = (line.resent, line.sent) {
            let bytes = line.bytes.map(|bytes| format!(" of {bytes} bytes")).unwrap_or_default();
            out += &format!("{}{bytes}: {resent} of {sent} frames sent again\n", line.series());
        }
    }
    out
}

/// The figures of all sizes and series, as a figure and whether less of it is better.
fn rows(lines: &[ReportLine], figure: impl Fn(&ReportLine) -> Option<(f64, bool)>) -> String {
    let mut series: Vec<String> = Vec::new();
    let mut sizes: Vec<Option<u64>> = Vec::new();
    for line in lines {
        if !series.contains(&line.series()) {
            series.push(line.series());
        }
        if !sizes.contains(&line.bytes) {
            sizes.push(line.bytes);
        }
    }
    sizes.sort_unstable();
    let mut out = format!("{:>12}", "bytes");
    for name in &series {
        out += &format!("{name:>26}");
    }
    out.push('\n');
    for size in sizes {
        out += &format!("{:>12}", size.map_or("-".into(), |s| s.to_string()));
        let cell = |name: &str| lines.iter().find(|l| l.bytes == size && l.series() == name);
        let base = series.first().and_then(|s| cell(s)).and_then(&figure);
        for (column, name) in series.iter().enumerate() {
            let text = match (cell(name).and_then(&figure), base) {
                (None, _) => "-".into(),
                (Some((value, _)), _) if column == 0 => format!("{value:.2}"),
                (Some((value, less)), Some((base, _))) if base > 0.0 && value > 0.0 => {
                    let ratio = if less { value / base } else { base / value };
                    format!("{value:.2} ({ratio:.2}x)")
                }
                (Some((value, _)), _) => format!("{value:.2}"),
            };
            out += &format!("{text:>26}");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests;
