//! The peers in common use, run in the same call on the same cores: Open MPI, MPICH, and Gloo under PyTorch; and bare rings.
//!
//! Their small programs are part of this binary and are compiled or interpreted at run time. For a peer that is not
//! installed, a line on standard error names the package that has it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::str::FromStr;

use super::report::ReportLine;
use super::{output_within, patience};
use crate::failure::CommandError;
use crate::run::WorkDir;

const MPI_PROGRAM: &str = include_str!("../../../benches/peers/mpi_collectives.c");
const RINGS_PROGRAM: &str = include_str!("../../../benches/peers/rings.c");
const GLOO_PROGRAM: &str = include_str!("../../../benches/peers/gloo_collectives.py");

/// A peer as named after `--against`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    OpenMpi,
    Mpich,
    Gloo,
    Kernel,
    Perftest,
    Rings,
    Spin,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "openmpi" => Ok(Self::OpenMpi),
            "mpich" => Ok(Self::Mpich),
            "gloo" => Ok(Self::Gloo),
            "kernel" => Ok(Self::Kernel),
            "perftest" => Ok(Self::Perftest),
            "rings" => Ok(Self::Rings),
            "spin" => Ok(Self::Spin),
            other => Err(format!(
                "unknown peer '{other}'; there are openmpi, mpich, gloo, kernel, perftest, rings and spin"
            )),
        }
    }
}

/// The exit status of a peer's program for a collective that the peer lacks (`EX_UNAVAILABLE` of sysexits).
const UNAVAILABLE: i32 = 69;

/// What Gloo does not offer under PyTorch: it refuses blocks that differ in these, and has no scans and no windows;
/// its groups are another library's.
const GLOO_LACKS: [&str; 14] = [
    "sendrecv",
    "incast",
    "scan",
    "exscan",
    "allgather_v",
    "gather_v",
    "scatter_v",
    "put",
    "get",
    "accumulate",
    "fetch_and_op",
    "split",
    "group",
    "duplicate",
];

/// A collective, `sendrecv`, `incast`, an access to a window, or a function that makes a group, for a peer to run.
pub(crate) struct Job<'a> {
    pub(crate) bench: &'a str,
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    /// Empty for a barrier and for groups.
    pub(crate) sizes: &'a [u64],
    pub(crate) seconds: f64,
}

/// Runs the collective with `peer`; prints on standard error if the peer lacks it, as the kernel and perftest do.
pub(crate) fn run(peer: Peer, job: &Job<'_>) -> io::Result<Vec<ReportLine>> {
    let folder = WorkDir::create(&std::env::temp_dir())?;
    match peer {
        Peer::OpenMpi => {
            let Some(program) = compile_mpi(folder.path(), "mpicc.openmpi", "openmpi-bin and libopenmpi-dev")
            else {
                return Ok(vec![]);
            };
            let mut lines = vec![];
            for (who, network) in [
                ("openmpi-shm", &["--mca", "btl", "self,vader"][..]),
                ("openmpi-tcp", &["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"][..]),
            ] {
                let mut command = Command::new("mpirun.openmpi");
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                command.args(["--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1"]).args(network);
                lines.extend(measure(&mut command, Some(&program), who, job)?);
            }
            Ok(lines)
        }
        Peer::Mpich => {
            let Some(program) = compile_mpi(folder.path(), "mpicc.mpich", "mpich and libmpich-dev") else {
                return Ok(vec![]);
            };
            measure(&mut Command::new("mpirun.mpich"), Some(&program), "mpich", job)
        }
        Peer::Gloo if GLOO_LACKS.contains(&job.bench) => Ok(unavailable("gloo", job)),
        Peer::Gloo => {
            let Some(python) = pythons().into_iter().find(|python| has_gloo(python)) else {
                absent(
                    "gloo",
                    "PyTorch with scripts/lib/venv torch 2.15, or Debian's package python3-torch,",
                );
                return Ok(vec![]);
            };
            let program = folder.path().join("gloo_collectives.py");
            fs::write(&program, GLOO_PROGRAM)?;
            eprintln!("gloo: the PyTorch of {}", python.display());
            let mut command = Command::new(python);
            command.arg(&program);
            measure(&mut command, None, "gloo", job)
        }
        Peer::Kernel => Ok(unavailable("kernel", job)),
        Peer::Perftest => Ok(unavailable("perftest", job)),
        Peer::Rings => Ok(unavailable("rings", job)),
        Peer::Spin => Ok(unavailable("spin", job)),
    }
}

/// The interpreters that may have PyTorch: that of `PATH`, such as an active environment's, that of `scripts/lib/venv torch 2.15`, and
/// Debian's, which has the package python3-torch.
fn pythons() -> Vec<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let made = cache.map(|cache| cache.join("shouter/torch/2.15/bin/python"));
    [Some("python3".into()), made, Some("/usr/bin/python3".into())].into_iter().flatten().collect()
}

/// Whether this interpreter has PyTorch with Gloo.
fn has_gloo(python: &Path) -> bool {
    let found = Command::new(python)
        .args(["-c", "import torch.distributed as d; assert d.is_gloo_available()"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

fn unavailable(who: &str, job: &Job<'_>) -> Vec<ReportLine> {
    eprintln!("{who}: {} is unavailable", job.bench);
    vec![]
}

fn absent(who: &str, remedy: &str) {
    eprintln!("{who} is absent: install {remedy} to measure against it");
}

/// Compiles the MPI program with an MPI's compiler wrapper; `None`, with a line on standard error, if there is none.
fn compile_mpi(folder: &Path, wrapper: &str, packages: &str) -> Option<PathBuf> {
    let name = wrapper.replace("mpicc", "mpi_collectives");
    let compiled = compile(folder, &name, MPI_PROGRAM, Command::new(wrapper).args(["-std=gnu99", "-O2"]));
    match compiled {
        Ok(Ok(program)) => Some(program),
        Ok(Err(status)) => {
            absent(wrapper, &format!("{packages} ({wrapper} ended with {status})"));
            None
        }
        Err(_) => {
            absent(wrapper.trim_start_matches("mpicc."), &format!("Debian's packages {packages}"));
            None
        }
    }
}

/// Compiles a program in C; the compiler's status if it refuses.
fn compile(
    folder: &Path,
    name: &str,
    text: &str,
    compiler: &mut Command,
) -> io::Result<Result<PathBuf, ExitStatus>> {
    let program = folder.join(name);
    let source = folder.join(format!("{name}.c"));
    fs::write(&source, text)?;
    let status = compiler.arg(&source).arg("-o").arg(&program).status()?;
    Ok(if status.success() { Ok(program) } else { Err(status) })
}

/// Measures frames of so many bytes through rings in shared memory and nothing else, the ceiling of any link between two processes.
pub(crate) fn rings(
    frame: u64,
    duplex: bool,
    seconds: f64,
    passes: u32,
) -> Result<Vec<ReportLine>, CommandError> {
    let folder = WorkDir::create(&std::env::temp_dir())?;
    let options = ["-std=gnu11", "-O3", "-march=native"];
    let program = match compile(folder.path(), "rings", RINGS_PROGRAM, Command::new("cc").args(options)) {
        Ok(Ok(program)) => program,
        Ok(Err(status)) => return Err(CommandError::Failed(format!("rings: cc ended with {status}"))),
        Err(_) => {
            absent("rings", "a compiler for C, Debian's package gcc,");
            return Ok(vec![]);
        }
    };
    let mut command = Command::new(&program);
    command.args(["--frame", &frame.to_string(), "--seconds", &seconds.to_string()]);
    command.args(["--passes", &passes.to_string()]).args(duplex.then_some("--duplex"));
    let series = passes as usize * 3;
    let output =
        output_within(command.stdin(Stdio::null()).stderr(Stdio::inherit()), patience(series, seconds))?;
    if !output.status.success() {
        return Err(CommandError::Failed(format!("rings ended with {}", output.status)));
    }
    Ok(printed(&output)?)
}

/// Runs the launcher (with `program` for MPI) and reads its lines.
fn measure(
    command: &mut Command,
    program: Option<&Path>,
    who: &str,
    job: &Job<'_>,
) -> io::Result<Vec<ReportLine>> {
    let sizes: Vec<String> = job.sizes.iter().map(ToString::to_string).collect();
    let ranks = job.ranks.to_string();
    match program {
        Some(program) => command.args(["-n", &ranks]).arg(program).args(["--who", who]),
        None => command.args(["--ranks", &ranks]),
    };
    if !sizes.is_empty() {
        command.args(["--bytes", &sizes.join(",")]);
    }
    command.args(["--collective", job.bench, "--seconds", &job.seconds.to_string()]);
    command.args(["--hosts", &job.hosts.to_string()]);
    let name = command.get_program().to_os_string();
    let limit = patience(job.sizes.len().max(1), job.seconds);
    let output = output_within(command.stdin(Stdio::null()).stderr(Stdio::inherit()), limit);
    let output =
        output.map_err(|e| io::Error::new(e.kind(), format!("'{}' does not run: {e}", show(&name))))?;
    if output.status.code() == Some(UNAVAILABLE) {
        return Ok(unavailable(who, job));
    }
    if !output.status.success() {
        eprintln!("{who} failed: '{}' ended with {}; its figures are left out", show(&name), output.status);
        return Ok(vec![]);
    }
    printed(&output)
}

/// The lines of a peer's program that are results.
fn printed(output: &Output) -> io::Result<Vec<ReportLine>> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).map_err(io::Error::other))
        .collect()
}

fn show(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}
