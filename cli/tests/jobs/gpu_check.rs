//! `shouter bench gpu` and `scripts/gpu-check`, end to end: without a driver, with the simulated one, and from a packed folder.
#![cfg(feature = "cuda")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use sha2::{Digest, Sha256};

const SHOUTER: &str = env!("CARGO_BIN_EXE_shouter");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Options that are small enough for any machine; the all-reduces need no DPDK.
const SMALL: [&str; 7] = ["--json", "--elements", "300", "--samples", "1", "--bytes", "64Ki"];

/// Two faults in the simulated compiler's kernels: 16-bit floats are widened to a number that is 1 more, and checksums
/// have a bit flipped.
const WRONG: &str = "
#define __uint_as_float(x) (__uint_as_float(x) + 1.0f)
#define atomicXor(p, value) atomicXor(p, (value) ^ 1u)
";
/// The rows that must detect the faults.
const FOUND: [&str; 7] = ["sum", "min", "max", "prod", "avg", "float64 reference", "crc32c"];

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-gpu-check-{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The simulated driver in a folder; `None`, with the reason printed, if it cannot be built.
fn simulated(folder: &Path) -> Option<PathBuf> {
    if Command::new("g++").arg("--version").output().is_err() {
        println!("skipped: the simulated driver needs g++");
        return None;
    }
    // Built once, by the first test or process, where scripts/test has it too; each test has a copy to itself.
    let (built, sim) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join("../cuda-sim"), folder.join("sim"));
    let build =
        Command::new(Path::new(ROOT).join("scripts/lib/cuda-sim/build")).arg(&built).output().unwrap();
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    fs::create_dir(&sim).unwrap();
    for name in ["libcuda.so.1", "libnvrtc.so.12", "shim.h"] {
        fs::copy(built.join(name), sim.join(name)).unwrap();
    }
    Some(sim)
}

/// `shouter bench gpu` with these libraries. Tests share the compiled kernels of the same simulated compiler.
fn bench(libraries: &Path) -> Command {
    let mut hash = Sha256::new();
    for name in ["libnvrtc.so.12", "shim.h"] {
        hash.update(fs::read(libraries.join(name)).unwrap_or_default());
    }
    let made_by: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-cache-{made_by}"));
    let mut command = Command::new(SHOUTER);
    command.args(["bench", "gpu"]).env("LD_LIBRARY_PATH", libraries);
    command.env("XDG_CACHE_HOME", cache).env_remove("CUDA_SIM");
    command
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!rows.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    rows
}

fn row<'a>(rows: &'a [Value], name: &str) -> &'a Value {
    rows.iter().find(|row| row["row"] == name).unwrap_or_else(|| panic!("no row {name}: {rows:?}"))
}

#[test]
fn without_a_device_every_row_is_skipped_and_nothing_fails() {
    let folder = Folder::new("none");
    let mut command = bench(Path::new(""));
    if let Some(sim) = simulated(&folder.0) {
        command.env("LD_LIBRARY_PATH", sim).env("CUDA_SIM", "devices=0");
    }
    let output = command.arg("--json").output().unwrap();
    let rows = rows(&output);
    if rows[0]["verdict"] != "skipped" {
        return println!("skipped: here is a device");
    }
    assert!(output.status.success() && rows.len() == 27, "{output:?}");
    for row in &rows {
        assert_eq!((&row["verdict"], &row["note"]), (&"skipped".into(), &"no CUDA device".into()), "{row}");
    }
}

#[test]
fn a_simulated_device_has_the_right_bits_and_no_judged_times() {
    let folder = Folder::new("sim");
    let Some(sim) = simulated(&folder.0) else { return };
    let output = bench(&sim).args(SMALL).args(["--only", "bits,speed,sanitizer"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output);
    let logic = ["band", "bor", "bxor", "land", "lor", "lxor"];
    for name in FOUND.into_iter().chain(logic).chain(["pack and unpack"]) {
        assert_eq!(row(&rows, name)["verdict"], "met", "{}", row(&rows, name));
    }
    for name in ["copy on the device", "copy from the device", "sum f16", "sum f32 of 8", "crc32c speed"] {
        let row = row(&rows, name);
        assert!(row["verdict"].is_null() && row["simulated"] == true, "{row}");
        assert!(row["measured"].as_f64().unwrap() >= 0.0, "{row}");
    }
    assert_eq!(row(&rows, "compute-sanitizer")["verdict"], "skipped");
}

#[test]
fn two_processes_reduce_on_one_simulated_device() {
    let folder = Folder::new("staged");
    let Some(sim) = simulated(&folder.0) else { return };
    let output =
        bench(&sim).args(SMALL).args(["--only", "staged", "--staged-bytes", "64Ki"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for row in rows(&output) {
        assert!(row["measured"].as_f64().unwrap() > 0.0 && row["ceiling"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn four_ranks_reduce_on_one_simulated_device_in_four_processes_and_in_one() {
    let folder = Folder::new("ipc");
    let Some(sim) = simulated(&folder.0) else { return };
    let output = bench(&sim).args(SMALL).args(["--only", "ipc", "--ipc-bytes", "128Ki"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output);
    let names = ["all-reduce, 4 processes", "all-reduce, 4 ranks in one process"];
    assert_eq!(rows.iter().map(|row| row["row"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for (row, aim) in rows.iter().zip([">= 0.60", ">= 0.80"]) {
        assert!(row["measured"].as_f64().unwrap() > 0.0 && row["ceiling"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["fraction"].is_f64() && row["aim"] == aim, "{row}");
        assert!(row["verdict"].is_null() && row["simulated"] == true, "{row}");
        assert!(row["note"].as_str().unwrap().starts_with("131072 bytes a rank, in place:"), "{row}");
    }
}

/// If the GPU has no room for the tensors, shorter ones are measured.
#[test]
fn tensors_of_four_ranks_are_as_long_as_there_is_room() {
    let folder = Folder::new("room");
    let Some(sim) = simulated(&folder.0) else { return };
    let mut command = bench(&sim);
    command.args(SMALL).args(["--only", "ipc", "--ipc-bytes", "1Mi"]).env("CUDA_SIM", "memory_mb=4");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for row in rows(&output) {
        assert!(row["note"].as_str().unwrap().starts_with("524288 bytes a rank"), "{row}");
    }
}

/// The check detects kernels that are compiled wrongly.
#[test]
fn wrong_kernels_are_found() {
    let folder = Folder::new("wrong");
    let Some(sim) = simulated(&folder.0) else { return };
    let shim = fs::read_to_string(sim.join("shim.h")).unwrap();
    fs::write(sim.join("shim.h"), shim + WRONG).unwrap();
    let output = bench(&sim).args(SMALL).args(["--only", "bits", "--seed", "7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let rows = rows(&output);
    for name in FOUND {
        let row = row(&rows, name);
        assert_eq!(row["verdict"], "failed", "{row}");
        assert!(row["note"].as_str().unwrap().contains("--seed 7"), "{row}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("failed; see the notes"), "{output:?}");
}

/// Nothing is built for an option that there is not: no cargo is on the PATH.
#[test]
fn the_script_knows_the_options_of_the_program() {
    let script = |args: &[&str]| {
        let mut command = Command::new("/bin/bash");
        command
            .arg(Path::new(ROOT).join("scripts/gpu-check"))
            .args(args)
            .env("PATH", "/nowhere")
            .output()
            .unwrap()
    };
    let refused = script(&["--bogus-option"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--bogus-option is no option"), "{refused:?}");
    let help = Command::new(SHOUTER).args(["bench", "gpu", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let options: Vec<&str> = help
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("--"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(options.len() >= 11, "{options:?}");
    for option in options {
        let taken = script(&[option, "1", "--bogus-option"]);
        assert!(
            String::from_utf8_lossy(&taken.stderr).contains("--bogus-option is no option"),
            "{option}: {taken:?}"
        );
    }
}

#[test]
fn a_packed_folder_runs_elsewhere() {
    let folder = Folder::new("pack");
    let script = Path::new(ROOT).join("scripts/gpu-check");
    let packed = folder.0.join("packed");
    let mut command = Command::new(&script);
    command.args(["--pack", packed.to_str().unwrap(), "--arch", "90", "--binary", SHOUTER]);
    let sim = simulated(&folder.0);
    if let Some(sim) = &sim {
        command.env("LD_LIBRARY_PATH", sim);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let again = Command::new(&script).args(["--pack", packed.to_str().unwrap()]).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "a folder that is not empty");
    let moved = folder.0.join("moved");
    fs::rename(&packed, &moved).unwrap();
    for library in fs::read_dir(moved.join("lib")).unwrap() {
        let name = library.unwrap().file_name().into_string().unwrap();
        for system in ["libc.so", "ld-linux", "libm.so", "libcuda"] {
            assert!(!name.starts_with(system), "{name}");
        }
    }
    // The environment has only the folder: no cargo, no PATH. Of the simulated driver only libcuda, not its compiler.
    let driver = folder.0.join("driver");
    fs::create_dir(&driver).unwrap();
    if let Some(sim) = &sim {
        fs::copy(sim.join("libcuda.so.1"), driver.join("libcuda.so.1")).unwrap();
    }
    let output = Command::new("/bin/bash")
        .arg(moved.join("gpu-check"))
        .args(SMALL)
        .args(["--only", "bits"])
        .env_clear()
        .env("LD_LIBRARY_PATH", &driver)
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    if sim.is_some() {
        let rows = rows(&output);
        assert!(rows.len() == 14 && rows.iter().all(|row| row["verdict"] == "met"), "{rows:?}");
    }
}
