//! Launchers, whose variables say which rank this process is, in the order in which they are tried.
//!
//! torchrun (`RANK` with `LOCAL_RANK`), Open MPI, PMI-1 (MPICH, `srun --mpi=pmi2`), Slurm, Kubernetes, and at last `RANK` alone, which
//! PyTorchJob and people set. docs/launchers.md has a table of the variables.
//!
//! Keys of ours come before all of them, each on its own; not those of a `shouter run` around a launcher, which are for the process that
//! has started it ([`innermost`]).

use super::error::{ConfigError, Source};
use super::layers::Environment;

mod slurm;

/// A store of a launcher's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LauncherStore {
    /// PMI-1 over a socket: its descriptor.
    Pmi1(i32),
    /// PMIx.
    Pmix,
}

impl LauncherStore {
    /// What to do where it cannot be used.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::Pmi1(_) => {
                "PMI_RANK, PMI_SIZE and PMI_FD are for ranks that mpiexec or `srun --mpi=pmi2` has started: let it start this process, with \
                 nothing between them that closes the descriptor, unset them, or set SHOUTER_ADDR, SHOUTER_PORT and SHOUTER_KEY, by which the \
                 ranks meet without the launcher"
            }
            Self::Pmix => {
                "PMIX_NAMESPACE and PMIX_RANK are for ranks that mpirun or `srun --mpi=pmix` has started: let it start this process, unset them, \
                 or set SHOUTER_ADDR, SHOUTER_PORT and SHOUTER_KEY, by which the ranks meet without the launcher"
            }
        }
    }
}

/// The launcher that started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    OpenMpi,
    Pmi1,
    Slurm,
    Kubernetes,
    Torch,
}

/// The variable by which a rank of `shouter run` is known; the ranks of a launcher that it starts inherit it.
pub const OF_RUN: &str = "SHOUTER_RUN";

/// Variables that launchers set for each of their ranks. `shouter run` takes them away from its own: a process that has [`OF_RUN`] and one
/// of these was started by that launcher within a rank of `shouter run`.
pub const OF_OTHERS: [&str; 5] = [TORCHRUN, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// The one of torchrun.
const TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// A rank's place as `shouter run` gives it: in variables of ours, and in torchrun's.
const PLACE: [&str; 9] = [
    "SHOUTER_RANK",
    "SHOUTER_SIZE",
    "SHOUTER_LOCAL_RANK",
    "SHOUTER_LOCAL_SIZE",
    "SHOUTER_NODE",
    "SHOUTER_ADDR",
    "SHOUTER_PORT",
    "SHOUTER_PORTS",
    "SHOUTER_JOB",
];
const PLACE_OF_TORCHRUN: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// The variables without the place that an outer `shouter run` has given, where another launcher has started this process within it.
pub(super) fn innermost(environment: Environment) -> Environment {
    let has = |name: &str| environment.get(name).is_some();
    if !has(OF_RUN) || !OF_OTHERS.into_iter().any(has) {
        return environment;
    }
    let of_torchrun = if has(TORCHRUN) { &[][..] } else { &PLACE_OF_TORCHRUN };
    PLACE.iter().chain(of_torchrun).fold(environment, |rest, name| rest.without(name))
}

/// Where the ranks of an indexed Job meet by default: a pod has all ports to itself.
const KUBERNETES_PORT: u16 = 29_511;

/// Names of the variables for rank, size, local rank and local size.
type Names = [&'static str; 4];

impl Launcher {
    /// The first launcher whose variables are set; else torchrun, whose variables people set by hand.
    pub(super) fn of(environment: &Environment) -> Self {
        let has = |name| environment.get(name).is_some();
        // Before all others: torchrun may be a rank of theirs, from which it has made several.
        if has("RANK") && has("LOCAL_RANK") {
            Self::Torch
        } else if has("OMPI_COMM_WORLD_RANK") {
            Self::OpenMpi
        } else if has("PMI_RANK") && has("PMI_SIZE") {
            Self::Pmi1
        } else if has("SLURM_PROCID") && has("SLURM_STEP_NUM_TASKS") && !has("RANK") {
            Self::Slurm
        } else if has("JOB_COMPLETION_INDEX") && !has("RANK") {
            Self::Kubernetes
        } else {
            Self::Torch
        }
    }

    pub(super) fn names(self) -> Names {
        match self {
            Self::OpenMpi => [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            Self::Pmi1 => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
            Self::Slurm => {
                ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]
            }
            Self::Kubernetes => ["JOB_COMPLETION_INDEX", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
            Self::Torch => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        }
    }

    /// The number of ranks on this host, where the launcher gives it in another form than a number.
    pub(super) fn ranks_here(self, environment: &Environment) -> Option<u32> {
        match self {
            Self::Slurm => slurm::tasks_here(environment),
            // A pod is a host.
            Self::Kubernetes | Self::Torch => {
                let is_pod = environment.get("KUBERNETES_SERVICE_HOST").is_some();
                (is_pod && environment.get("LOCAL_WORLD_SIZE").is_none()).then_some(1)
            }
            // Slurm's PMI has no variables for it.
            Self::Pmi1 if environment.get("MPI_LOCALNRANKS").is_none() => slurm::tasks_here(environment),
            Self::OpenMpi | Self::Pmi1 => None,
        }
    }

    /// The store through which its ranks can meet.
    pub(super) fn store(self, environment: &Environment) -> Option<LauncherStore> {
        match self {
            Self::OpenMpi | Self::Slurm => {
                let there =
                    environment.get("PMIX_NAMESPACE").is_some() && environment.get("PMIX_RANK").is_some();
                there.then_some(LauncherStore::Pmix)
            }
            Self::Pmi1 => Some(LauncherStore::Pmi1(environment.get("PMI_FD")?.parse().ok()?)),
            Self::Kubernetes | Self::Torch => None,
        }
    }

    /// Rank 0's host, and the variable that says it.
    pub(super) fn host(self, environment: &Environment) -> Option<(&'static str, String)> {
        match self {
            Self::Slurm => slurm::first_host(environment),
            Self::Kubernetes | Self::Torch => {
                environment.get("MASTER_ADDR").map(|host| ("MASTER_ADDR", host.to_owned()))
            }
            Self::OpenMpi | Self::Pmi1 => None,
        }
    }

    /// The port on which rank 0 listens. MASTER_PORT is that of torch's own store, so ours is the one above.
    pub(super) fn port(self, environment: &Environment) -> Result<Option<u16>, ConfigError> {
        match (self, environment.get("MASTER_PORT")) {
            (Self::Slurm, _) => Ok(slurm::port(environment)),
            (Self::Kubernetes, None) => Ok(Some(KUBERNETES_PORT)),
            (Self::Kubernetes | Self::Torch, Some(text)) => {
                let port = text.trim().parse::<u16>().ok().filter(|port| *port > 0);
                let port = port.and_then(|port| port.checked_add(1));
                Ok(Some(port.ok_or_else(|| ConfigError::Value {
                    key: "port".into(),
                    source_of: Source::Environment("MASTER_PORT".into()),
                    found: format!("one more than {text:?}"),
                    allowed: "a TCP port above another one, from 2 to 65535; set SHOUTER_PORT".into(),
                })?))
            }
            _ => Ok(None),
        }
    }

    /// The job's name. Ranks that an earlier attempt of torchrun's has left behind belong to another job.
    pub(super) fn job(self, environment: &Environment) -> Option<String> {
        match self {
            Self::Torch => {
                let id = environment.get("TORCHELASTIC_RUN_ID")?;
                let attempt = environment.get("TORCHELASTIC_RESTART_COUNT").filter(|count| *count != "0");
                Some(attempt.map_or(id.to_owned(), |count| format!("{id}.{count}")))
            }
            Self::Slurm => slurm::job(environment),
            Self::OpenMpi | Self::Pmi1 | Self::Kubernetes => None,
        }
    }

    /// How a user of this launcher gives missing values.
    pub(super) fn remedy(self) -> Option<&'static str> {
        match self {
            Self::OpenMpi => Some(
                "mpirun offers no PMIx here (PMIX_NAMESPACE is not set), through which the ranks would meet without these",
            ),
            Self::Pmi1 => Some(
                "the launcher offers no PMI-1 here (PMI_FD is not set), through which the ranks would meet without these",
            ),
            Self::Slurm => {
                Some("or start the ranks by `srun --mpi=pmi2`, through which they meet without these")
            }
            Self::Kubernetes => Some(
                "in a Job: SHOUTER_SIZE is its completions, SHOUTER_ADDR its pod 0 as the headless service names it, and SHOUTER_KEY_FILE \
                 a mounted Secret",
            ),
            Self::Torch => None,
        }
    }
}

#[cfg(test)]
mod tests;
