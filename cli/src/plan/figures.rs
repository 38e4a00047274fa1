//! The figures of the cost model for a prediction: a file that is named, else what was measured on this host, else those to begin with.

use std::path::{Path, PathBuf};

use shouter::config::{CostCache, CostTable, Environment, MeasuredFor};
use shouter_reducer::cost::Costs;
use shouter_reducer::grid::Grid;

use super::PlanArgs;
use crate::failure::CommandError;

/// Where figures are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A file that `shouter plan --measure` has written.
    Table(PathBuf),
    /// What jobs have measured while they joined.
    Jobs(PathBuf),
    /// The library.
    BuiltIn,
}

impl Source {
    /// What the heading of a prediction says.
    pub(super) fn text(&self) -> &'static str {
        match self {
            Self::Table(_) => "measured figures",
            Self::Jobs(_) => "figures that a job has measured",
            Self::BuiltIn => "figures to begin with",
        }
    }

    /// The variables by which a job has the same figures.
    pub(super) fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let measures = |whether: &str| ("SHOUTER_MEASURE_COSTS", PathBuf::from(whether));
        match self {
            Self::Table(path) => vec![("SHOUTER_COSTS", path.clone())],
            Self::Jobs(path) => vec![("SHOUTER_COSTS_CACHE", path.clone()), measures("on")],
            Self::BuiltIn => vec![measures("off")],
        }
    }
}

/// Figures, and where they are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) costs: Costs,
    pub(super) source: Source,
}

/// The file that `--measure` writes: the one that is named, else the usual one.
pub(super) fn table_path(args: &PlanArgs, environment: &Environment) -> Option<PathBuf> {
    args.costs.clone().or_else(|| CostTable::usual_path(environment))
}

/// The table in a file.
pub(super) fn table(path: &Path) -> Result<CostTable, CommandError> {
    CostTable::read(path).map_err(|why| CommandError::Failed(why.to_string()))
}

/// The figures for a grid and a transport.
pub(super) fn of(
    args: &PlanArgs,
    grid: &Grid,
    transport: &str,
    environment: &Environment,
) -> Result<Figures, CommandError> {
    let like = MeasuredFor::here(grid, transport, "");
    if let Some(path) = &args.costs {
        if let Ok(cache) = CostCache::read(path)
            && path.exists()
        {
            let costs = cache.like(&like).ok_or_else(|| {
                let (path, hosts) = (path.display(), &like.hosts);
                CommandError::Failed(format!(
                    "{path}: no job of {hosts} ranks over {transport} has measured figures"
                ))
            })?;
            return Ok(Figures { costs, source: Source::Jobs(path.clone()) });
        }
        let table = table(path)?;
        if !table.has(transport) {
            return Err(CommandError::Failed(format!(
                "{}: it has no figures for {transport}; measure them with `shouter plan --measure --transport {between} --costs {}`, \
                 or leave out --costs",
                path.display(),
                path.display(),
                between = args.transport
            )));
        }
        return Ok(Figures { costs: table.of(transport), source: Source::Table(path.clone()) });
    }
    if let Some(path) = CostTable::usual_path(environment).filter(|path| path.exists()) {
        let table = table(&path)?;
        if table.has(transport) {
            return Ok(Figures { costs: table.of(transport), source: Source::Table(path) });
        }
    }
    // A file that is damaged is of no use, and the next job writes it anew.
    let usual = CostCache::usual_path(environment);
    if let Some(path) = usual
        && let Some(costs) = CostCache::read(&path).ok().and_then(|cache| cache.like(&like))
    {
        return Ok(Figures { costs, source: Source::Jobs(path) });
    }
    Ok(Figures { costs: Costs::of_transport(transport), source: Source::BuiltIn })
}

#[cfg(test)]
mod tests;
