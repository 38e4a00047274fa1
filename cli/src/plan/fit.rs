//! Finds the figures with which the model predicts the measurements best.

use shouter_reducer::cost::Costs;
use shouter_reducer::grid::Grid;
use shouter_reducer::header::Shape;
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::Algorithm;

use super::in_cells;

/// The measured time of an operation.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) grid: Grid,
    pub(super) shape: Shape,
    /// The algorithm, if the operation went through a schedule.
    pub(super) algorithm: Algorithm,
    pub(super) us: f64,
}

/// The figures that affect operations within one host.
pub(super) const HOST: [&str; 5] = ["call_ns", "step_ns", "flag_ns", "copy_mb_s", "fold_mb_s"];
/// The figures that affect operations between hosts. Emulated hosts have no wire: only a core's rate limits bytes.
pub(super) const NETWORK: [&str; 3] = ["latency_ns", "message_ns", "core_mb_s"];

/// Factors by which a figure is changed, one after another, each until it helps no more.
const STEPS: [f64; 5] = [2.0, 1.4, 1.15, 1.05, 1.02];
/// The largest number of rounds over all figures for a factor.
const ROUNDS: usize = 40;

/// Starts from `costs` and changes the named figures; also returns the largest error of a prediction, as a ratio.
pub(super) fn fit(costs: Costs, names: &[&str], points: &[Point]) -> (Costs, f64) {
    let (mut best, mut least) = (costs, error(&costs, points));
    for step in STEPS {
        for _ in 0..ROUNDS {
            let before = least;
            for name in names {
                for factor in [step, 1.0 / step] {
                    let mut tried = best;
                    let range = if name.ends_with("_ns") { Costs::NANOSECONDS } else { Costs::RATES };
                    if let Some(field) = tried.field_mut(name) {
                        let scaled = (f64::from((*field).max(1)) * factor).round();
                        *field = (scaled as u32).clamp(*range.start(), *range.end());
                    }
                    let found = error(&tried, points);
                    if found < least {
                        (best, least) = (tried, found);
                    }
                }
            }
            if least >= before {
                break;
            }
        }
    }
    let off = points.iter().map(|point| ratio(&best, point).ln().abs()).fold(0.0, f64::max).exp();
    (best, off)
}

/// The sum of the squares of the logarithms: twice as long counts the same as half as long.
fn error(costs: &Costs, points: &[Point]) -> f64 {
    points.iter().map(|point| ratio(costs, point).ln().powi(2)).sum()
}

/// The predicted time over the measured one.
fn ratio(costs: &Costs, point: &Point) -> f64 {
    let plan = Plan { costs: *costs, ..Plan::default() };
    let (model, Point { grid, shape, algorithm, us }) = (plan.model(), point);
    let time = in_cells(&model, grid, shape).or_else(|| model.predict(*algorithm, grid, shape).ok());
    time.map_or(1.0, |time| time.as_micros().max(1e-3) / us.max(1e-3))
}
