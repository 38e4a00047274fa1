//! The table for people, and the lines for machines.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;

/// The row of one size of a collective.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) collective: String,
    pub(super) bytes: u64,
    pub(super) ranks: u32,
    pub(super) hosts: u32,
    /// The sizes of the hosts' groups, innermost first.
    pub(super) levels: Vec<u32>,
    /// The way of the data: an algorithm, or the cells of a host's memory.
    pub(super) algorithm: &'static str,
    pub(super) predicted_us: Option<f64>,
    pub(super) bound_us: f64,
    /// The predicted time of each algorithm, or the reason why it has no schedule.
    pub(super) algorithms: Vec<(&'static str, Result<f64, String>)>,
    /// Those that are not chosen for this type and reduction, however fast: they fold in another order.
    pub(super) passed_over: Vec<&'static str>,
    pub(super) measured_us: Option<f64>,
}

impl Row {
    /// The predicted time over the measured one.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.predicted_us.zip(self.measured_us).map(|(predicted, measured)| predicted / measured)
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let round = |value: f64| (value * 1e3).round() / 1e3;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("collective", &self.collective)?;
        map.serialize_entry("bytes", &self.bytes)?;
        map.serialize_entry("ranks", &self.ranks)?;
        map.serialize_entry("hosts", &self.hosts)?;
        map.serialize_entry("levels", &self.levels)?;
        map.serialize_entry("algorithm", self.algorithm)?;
        map.serialize_entry("predicted_us", &self.predicted_us.map(round))?;
        map.serialize_entry("bound_us", &round(self.bound_us))?;
        let times: serde_json::Map<_, _> = self
            .algorithms
            .iter()
            .map(|(name, time)| ((*name).to_owned(), json!(time.as_ref().ok().copied().map(round))))
            .collect();
        map.serialize_entry("algorithms_us", &times)?;
        map.serialize_entry("passed_over", &self.passed_over)?;
        if let Some(measured) = self.measured_us {
            map.serialize_entry("measured_us", &measured)?;
            map.serialize_entry("ratio", &self.ratio().map(round))?;
        }
        map.end()
    }
}

/// A row for each size, a column for each algorithm.
pub(super) fn text(rows: &[Row]) -> String {
    let compared = rows.iter().any(|row| row.measured_us.is_some());
    let mut out = format!("{:>12}  {:<18}{:>14}{:>13}", "bytes", "algorithm", "predicted us", "bound us");
    if compared {
        out += &format!("{:>13}{:>8}", "measured us", "ratio");
    }
    let algorithms = rows.first().map(|row| &row.algorithms[..]).unwrap_or_default();
    // Two spaces before the longest name.
    let width = |name: &str| 14.max(name.len() + 2);
    for (name, _) in algorithms {
        out += &format!("{name:>width$}", width = width(name));
    }
    out.push('\n');
    for row in rows {
        let predicted = row.predicted_us.map_or("-".into(), time);
        out += &format!("{:>12}  {:<18}{predicted:>14}{:>13}", row.bytes, row.algorithm, time(row.bound_us));
        if compared {
            let measured = row.measured_us.map_or("-".into(), time);
            let ratio = row.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}"));
            out += &format!("{measured:>13}{ratio:>8}");
        }
        for (name, predicted) in &row.algorithms {
            let predicted = predicted.as_ref().map_or("none".into(), |&us| time(us));
            out += &format!("{predicted:>width$}", width = width(name));
        }
        out.push('\n');
    }
    let passed_over = rows.first().map(|row| row.passed_over.join(", ")).unwrap_or_default();
    if !passed_over.is_empty() {
        out += &format!(
            "not chosen, for they fold in another order than that of ranks, which changes the bits of this result: {passed_over}\n"
        );
    }
    out
}

fn time(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.2}"),
        us => format!("{us:.0}"),
    }
}
