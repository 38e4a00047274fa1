//! The same measurements, made several times in turns.

use super::{ReportLine, median, round4};

/// The lines of all rounds, in the order of the first.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Vec<Vec<ReportLine>>);

impl Rounds {
    /// Adds a line: of the next round, if there is one of the same bench, series and size already.
    pub(crate) fn push(&mut self, line: ReportLine) {
        let key = |line: &ReportLine| (line.bench.clone(), line.series(), line.bytes);
        let wanted = key(&line);
        match self.0.iter_mut().find(|lines| lines.first().is_some_and(|first| key(first) == wanted)) {
            Some(lines) => lines.push(line),
            None => self.0.push(vec![line]),
        }
    }

    /// A line for each series and size: the medians of its rounds.
    pub(crate) fn medians(self) -> Vec<ReportLine> {
        self.0.into_iter().filter_map(merge).collect()
    }
}

/// The figures that differ between rounds.
fn figures(line: &mut ReportLine) -> [&mut Option<f64>; 10] {
    [
        &mut line.step_us,
        &mut line.p50_us,
        &mut line.p99_us,
        &mut line.since_end_p50_us,
        &mut line.since_end_p99_us,
        &mut line.used_us,
        &mut line.algbw_gbytes,
        &mut line.busbw_gbytes,
        &mut line.goodput_gbits,
        &mut line.share_of_one,
    ]
}

fn merge(mut lines: Vec<ReportLine>) -> Option<ReportLine> {
    let mut merged = lines.first()?.clone();
    if lines.len() == 1 {
        return Some(merged);
    }
    let p50s: Vec<f64> = lines.iter().filter_map(|line| line.p50_us).collect();
    merged.rounds = Some(lines.len() as u32);
    merged.least_p50_us = p50s.iter().copied().reduce(f64::min);
    merged.greatest_p50_us = p50s.iter().copied().reduce(f64::max);
    merged.iterations = lines.iter().map(|line| line.iterations).sum();
    merged.sent = lines.iter().map(|line| line.sent).sum();
    merged.resent = lines.iter().map(|line| line.resent).sum();
    let all: Vec<_> = lines.iter_mut().map(|line| figures(line).map(|figure| *figure)).collect();
    for (index, figure) in figures(&mut merged).into_iter().enumerate() {
        let mut values: Vec<f64> = all.iter().filter_map(|line| line[index]).collect();
        *figure = figure.map(|_| round4(median(&mut values)));
    }
    Some(merged)
}
