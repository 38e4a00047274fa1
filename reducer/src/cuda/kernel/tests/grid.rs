//! The kernels as a library of the host, built by its C++ compiler with scripts/lib/cuda-sim/shim.h in front.

use std::ffi::{OsString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;

use super::super::call::THREADS;
use super::super::{cache, source};
use super::Call;

/// Undefined behaviour traps, and with it misaligned accesses, which a device does not allow either.
const FLAGS: [&str; 12] = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fsanitize=undefined",
    "-fsanitize-undefined-trap-on-error",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
];

/// A kernel's launcher: it takes the dimensions of the grid and of a block, and the kernel's arguments.
type Launch = unsafe extern "C" fn(*const u32, *const u32, *mut *mut c_void);

/// The loaded library.
pub(super) struct Grid(Library);

impl Grid {
    /// Builds and loads it, or says why not. It is kept beside the test's program, by the hash of what it is made of.
    pub(super) fn get() -> Option<Self> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            println!("skipped: no C++ compiler (install g++, or name one in CXX)");
            return None;
        }
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/lib/cuda-sim/shim.h");
        let header = std::fs::read(&shim).expect("the shim is part of the source");
        let name = compiler.clone().into_encoded_bytes();
        let key = cache::key(&[&header, source::PROGRAM.as_bytes(), FLAGS.join(" ").as_bytes(), &name]);
        let program = std::env::current_exe().expect("a test has a program");
        let path = program.with_file_name(format!("cuda-{key}.so"));
        if !path.exists() {
            // Each test is a process, and several begin at the same time: one builds, the others wait for it.
            let _lock = cache::lock(path.parent()?, &key);
            if !path.exists() {
                build(&compiler, &shim, &path);
            }
        }
        // SAFETY: the library was built from our own source, and its initialisers do nothing of note.
        Some(Self(unsafe { Library::new(&path) }.expect("the library was just built")))
    }

    /// Runs a call to its end; `None` does nothing, as on a device.
    ///
    /// # Safety
    ///
    /// As the kernel's, with host memory for the device's.
    pub(super) unsafe fn run<A>(&self, call: Option<Call<A>>) {
        let Some(mut call) = call else { return };
        let symbol = format!("shim_launch_{}", call.kernel.name());
        let grid = [call.grid[0], call.grid[1], 1];
        let block = [THREADS, 1, 1];
        let mut params: [*mut c_void; 1] = [(&raw mut call.args).cast()];
        // SAFETY: the symbol is of this type, and the kernel takes one argument of this layout.
        unsafe {
            let launch = self.0.get::<Launch>(symbol.as_bytes()).expect("every kernel has its launcher");
            launch(grid.as_ptr(), block.as_ptr(), params.as_mut_ptr());
        }
    }
}

/// A process that has waited for the others for too long builds, too: each under its own name, and the last to rename wins.
fn build(compiler: &OsString, shim: &Path, path: &PathBuf) {
    let own = |extension: &str| path.with_extension(format!("{}.{extension}", std::process::id()));
    let (text, library) = (own("cu"), own("so"));
    std::fs::write(&text, source::PROGRAM).expect("the target folder can be written");
    let output = Command::new(compiler)
        .args(FLAGS)
        .arg("-include")
        .arg(shim)
        .args(["-x", "c++"])
        .arg(&text)
        .arg("-o")
        .arg(&library)
        .output()
        .expect("the compiler was there just now");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&library, path).expect("both are in one folder");
    let _ = std::fs::remove_file(&text);
}
