//! DPDK's environment (EAL): started once per process, and kept for its life.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::{numa, sys};

/// Directory of the runtime files of root's DPDK programs.
const SYSTEM: &str = "/var/run/dpdk";

/// Least memory in MiB that DPDK starts with and a port still fits into.
const MEMORY_MB_MIN: u32 = 32;

/// How DPDK is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Memory for frame buffers, in MiB: of the NUMA nodes of the NICs, where they are known and have it. Without hugepages it is
    /// reserved, and used page by page as buffers are; with NICs on VFIO all of it is in use at once.
    pub memory_mb: u32,
    /// Takes the memory from hugepages of 2 MiB, which must be there.
    pub hugepages: bool,
    /// PCI addresses of the NICs to use (`0000:03:00.0`). With none, the PCI bus is left alone.
    pub pci: Vec<String>,
    /// Distinguishes this process's DPDK from others on the host. Empty: made from the process id.
    pub file_prefix: String,
    /// Copies DPDK's log to standard error. It is kept in memory for error messages in any case.
    pub echo_log: bool,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            memory_mb: 256,
            hugepages: false,
            pci: Vec::new(),
            file_prefix: String::new(),
            echo_log: false,
        }
    }
}

/// Why DPDK did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EalError {
    /// The configuration holds a value that DPDK cannot take.
    #[error("DPDK cannot start: {what} is `{value}`; {remedy}")]
    Config {
        /// The field.
        what: &'static str,
        /// Its value.
        value: String,
        /// The advice: a value that DPDK takes.
        remedy: &'static str,
    },
    /// Hugepages were requested, and too few are free.
    #[error(
        "DPDK cannot start: {needed} free hugepages of 2 MiB are needed and there are {free}; as root: \
         `sysctl vm.nr_hugepages={needed}`, or run without them (`hugepages` off)"
    )]
    Hugepages {
        /// Pages needed.
        needed: u32,
        /// Pages free now.
        free: u32,
    },
    /// The EAL runs already, started with another configuration.
    #[error("DPDK runs already in this process, with {running:?}; use the same configuration everywhere")]
    Running {
        /// The configuration that it was started with.
        running: Box<EalConfig>,
    },
    /// `rte_eal_init` failed. It cannot be tried again in this process.
    #[error(
        "DPDK did not start: {error}. Restart the process with another configuration. DPDK's log ends: {log}"
    )]
    Init {
        /// DPDK's error.
        error: sys::Errno,
        /// The last lines of its log.
        log: String,
    },
    /// The thread on which DPDK is started could not be made.
    #[error("DPDK did not start: no thread could be made ({0}); raise the limit on processes (ulimit -u)")]
    Thread(#[from] std::io::Error),
}

/// DPDK, running in this process. There is at most one, and it is never stopped.
#[derive(Debug)]
pub struct Eal {
    config: EalConfig,
    process: u32,
}

static EAL: Mutex<Option<&'static Eal>> = Mutex::new(None);

impl Eal {
    /// Starts DPDK, or returns the running instance if it was started with the same `config`.
    ///
    /// `rte_eal_init` changes the CPU affinity of its caller, so it is called on a thread made for it. Root is needed
    /// only for hugepages or PCI devices.
    ///
    /// # Errors
    /// DPDK runs with another configuration already, or does not start; the error has the end of its log.
    pub fn init(config: &EalConfig) -> Result<&'static Self, EalError> {
        let mut slot = EAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(eal) = *slot {
            if eal.config == *config {
                return Ok(eal);
            }
            return Err(EalError::Running { running: Box::new(eal.config.clone()) });
        }
        let nodes = numa::nodes(Path::new("/"), &config.pci);
        let arguments = arguments(config, &nodes)?;
        sys::capture_log(config.echo_log);
        // Without hugepages the memory is taken when a NIC is given access to all of it, which happens in here.
        let node = nodes.first().copied().filter(|first| nodes.iter().all(|node| node == first));
        let started = thread::Builder::new()
            .name("dpdk-init".into())
            .spawn(move || {
                if let Some(node) = node {
                    sys::prefer_node(node);
                }
                sys::eal_init(&arguments)
            })?
            .join()
            .unwrap_or(Err(sys::Errno::UNKNOWN));
        remove_runtime_directory(Path::new(&sys::runtime_directory()));
        started.map_err(|error| EalError::Init { error, log: sys::log_since(0) })?;
        let eal: &'static Self =
            Box::leak(Box::new(Self { config: config.clone(), process: std::process::id() }));
        *slot = Some(eal);
        Ok(eal)
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &EalConfig {
        &self.config
    }

    /// Whether this process is the one that started DPDK, and not a forked child, which must not touch it.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Lists DPDK's version and drivers and the host's hugepages. Does not start DPDK.
    pub fn describe() -> Description {
        Description {
            version: sys::version(),
            drivers: sys::DRIVERS,
            hugepages_total: hugepages("nr_hugepages"),
            hugepages_free: hugepages("free_hugepages"),
            running: EAL.lock().unwrap_or_else(PoisonError::into_inner).is_some(),
        }
    }
}

/// DPDK as built in, and the host's hugepages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// DPDK's name and version.
    pub version: String,
    /// Linked drivers, by DPDK's short names.
    pub drivers: &'static [&'static str],
    /// Hugepages of 2 MiB that the host has.
    pub hugepages_total: u32,
    /// Those of them that are free.
    pub hugepages_free: u32,
    /// Whether DPDK runs in this process.
    pub running: bool,
}

/// Removes the directory that DPDK has made and, without a shared configuration, does not use. An ordinary user's lies
/// in a directory `dpdk`, which DPDK made as well, for this user alone; root's is the system's, and stays. A directory
/// in use is not empty, and is not removed.
fn remove_runtime_directory(directory: &Path) {
    let _ = fs::remove_dir(directory);
    if let Some(parent) =
        directory.parent().filter(|parent| parent.ends_with("dpdk") && *parent != Path::new(SYSTEM))
    {
        let _ = fs::remove_dir(parent);
    }
}

/// A figure about hugepages of 2 MiB; 0 where the kernel has none.
fn hugepages(file: &str) -> u32 {
    fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// The CPUs that the calling thread may run on, as the kernel lists them (`0-3,8`).
fn allowed_cpus() -> String {
    fs::read_to_string("/proc/thread-self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(line.trim().to_owned())
        })
        .unwrap_or_else(|| "0".into())
}

/// The command line for `rte_eal_init`, with NICs on these NUMA nodes.
pub(super) fn arguments(config: &EalConfig, nodes: &[u32]) -> Result<Vec<String>, EalError> {
    if config.memory_mb < MEMORY_MB_MIN {
        return Err(EalError::Config {
            what: "memory_mb",
            value: config.memory_mb.to_string(),
            remedy: "give 32 or more; 256 serve a link or two",
        });
    }
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !plain(&config.file_prefix) {
        return Err(EalError::Config {
            what: "file_prefix",
            value: config.file_prefix.clone(),
            remedy: "use letters, digits and any of `._-`",
        });
    }
    let prefix = match config.file_prefix.as_str() {
        "" => format!("shouter-{}", std::process::id()),
        prefix => prefix.to_owned(),
    };
    // One logical core that may run on any of ours: nothing is pinned, and DPDK makes no worker threads.
    let mut arguments = vec![
        "shouter".to_owned(),
        "--lcores".into(),
        format!("0@({})", allowed_cpus()),
        "--no-telemetry".into(),
    ];
    // No other process attaches to this DPDK by name: no configuration file, no sockets.
    arguments.extend(["--no-shconf".into(), "--file-prefix".into(), prefix]);
    let shares = numa::shares(Path::new("/"), config.memory_mb, nodes).filter(|_| config.hugepages);
    match shares {
        Some(shares) => {
            let shares: Vec<String> = shares.iter().map(u32::to_string).collect();
            arguments.extend(["--socket-mem".into(), shares.join(",")]);
        }
        None => arguments.extend(["-m".into(), config.memory_mb.to_string()]),
    }
    if config.hugepages {
        let (needed, free) = (config.memory_mb.div_ceil(2), hugepages("free_hugepages"));
        if free < needed {
            return Err(EalError::Hugepages { needed, free });
        }
        // A vhost peer is passed one descriptor per segment, and takes eight at most. The pages come from memfd, so
        // that no hugetlbfs need be mounted.
        arguments.extend(["--in-memory".into(), "--single-file-segments".into()]);
    } else {
        arguments.push("--no-huge".into());
    }
    if config.pci.is_empty() {
        arguments.extend(["--no-pci".into(), "--iova-mode".into(), "va".into()]);
    }
    for address in &config.pci {
        let Ok(super::DeviceSpec::Pci(address)) = format!("pci:{address}").parse() else {
            return Err(EalError::Config {
                what: "pci",
                value: address.clone(),
                remedy: "write an address such as 0000:03:00.0; `lspci -D` lists them",
            });
        };
        arguments.extend(["-a".into(), address]);
    }
    Ok(arguments)
}
