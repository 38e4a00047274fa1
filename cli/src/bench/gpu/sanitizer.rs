//! The kernels again under compute-sanitizer, where the CUDA toolkit has installed it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::device::Device;
use super::table::{Row, RowVerdict, Table};
use super::{GpuArgs, Part, skip};
use crate::bench::output_within;
use crate::failure::CommandError;

/// The time limit: every access is checked, which makes kernels many times slower.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The program, from `PATH` or from the toolkit's usual folders.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let homes = [std::env::var_os("CUDA_HOME"), Some(OsString::from("/usr/local/cuda"))];
    std::env::split_paths(&path)
        .chain(homes.into_iter().flatten().map(|home| PathBuf::from(home).join("bin")))
        .map(|folder| folder.join("compute-sanitizer"))
        .find(|program| program.is_file())
}

/// Runs the check of bits under compute-sanitizer, with short tensors.
pub(super) fn run(args: &GpuArgs, device: &Device, table: &mut Table) -> Result<(), CommandError> {
    let program = match find() {
        _ if !args.wants(Part::Sanitizer) => return Ok(()),
        _ if device.simulated => {
            return skip(args, &[Part::Sanitizer], "no instructions of a GPU run here", table);
        }
        None => return skip(args, &[Part::Sanitizer], "compute-sanitizer is not installed", table),
        Some(program) => program,
    };
    if let Err(why) = &device.kernels {
        return skip(args, &[Part::Sanitizer], why, table);
    }
    let mut command = Command::new(program);
    command.args(["--tool", "memcheck", "--error-exitcode", "9"]).arg(std::env::current_exe()?);
    command.args(["bench", "gpu", "--only", "bits", "--json", "--elements", "3001"]);
    command.args(["--device", &args.device.to_string()]).stdin(Stdio::null());
    if let Some(folder) = &args.kernels {
        command.arg("--kernels").arg(folder);
    }
    let said = output_within(&mut command, PATIENCE);
    for (row, aim) in args.rows(Part::Sanitizer) {
        let row = Row::new(row, aim);
        table.push(match &said {
            Ok(output) if output.status.success() => Row { verdict: Some(RowVerdict::Met), ..row },
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let errors: Vec<&str> =
                    text.lines().filter(|line| line.starts_with("=========")).take(8).collect();
                row.failed(&format!("ended with {}: {}", output.status, errors.join(" ")))
            }
            Err(why) => row.failed(why),
        })?;
    }
    Ok(())
}
