//! The results of NVRTC for the program's text, where it can be loaded; no device is needed for that.

use std::path::{Path, PathBuf};

use super::*;
use crate::cuda::kernel::compile::compile_source;
use crate::cuda::kernel::nvrtc::{Nvrtc, Output};
use crate::cuda::kernel::{Architecture, CompileError, Origin, compile_with_cache, source};

/// The compiler; `None` after a message where it cannot be loaded.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Whether this is the simulated one of scripts/lib/cuda-sim, which says so in its assembly.
fn simulated(nvrtc: Nvrtc) -> bool {
    let options = ["--gpu-architecture=compute_80".to_owned()];
    let image = nvrtc.compile("__global__ void nothing() {}", "nothing.cu", &options, Output::Ptx).unwrap();
    let simulated = String::from_utf8_lossy(&image).contains("Simulated PTX");
    if simulated {
        println!("skipped: this NVRTC is simulated and makes no code for GPUs");
    }
    simulated
}

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-kernels-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

/// The only entry of a folder, beside the lock file.
fn only_entry(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries: Vec<_> = entries.filter(|path| path.extension().is_none()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Every kernel is in what NVRTC makes for a generation, or the error names that and the compiler's version.
fn compiles_every_kernel(major: u32, minor: u32) {
    let Some(nvrtc) = nvrtc() else { return };
    if simulated(nvrtc) {
        return;
    }
    let known = nvrtc.architectures().unwrap();
    let version = nvrtc.version().unwrap();
    let architecture = Architecture { major, minor };
    let image = match compile_with_cache(architecture, None) {
        Err(error) => {
            assert!(known.iter().all(|&k| k > 10 * major), "{error}");
            return assert_eq!(error, CompileError::Architecture { architecture, version });
        }
        Ok(image) => image,
    };
    assert_eq!(image.origin(), Origin::Compiled);
    let machine_code = image.bytes().starts_with(b"\x7fELF");
    assert_eq!(machine_code, known.contains(&(10 * major + minor)), "{architecture}");
    for kernel in Kernel::all() {
        let name = kernel.name();
        let found = image.bytes().windows(name.len()).any(|w| w == name.as_bytes());
        assert!(found, "{name} is missing for {architecture}");
    }
    println!("{architecture}: {} bytes", image.bytes().len());
}

/// A test for each generation, so that they share the cores. Each takes ten seconds of a core or more: by default only one runs.
macro_rules! nvrtc_compiles_every_kernel {
    ($($name:ident: $major:literal, $minor:literal, $always:literal;)*) => {$(
        #[test]
        fn $name() {
            if !$always && std::env::var_os("SHOUTER_TEST_LONG").is_none() {
                return println!("skipped: SHOUTER_TEST_LONG=1 compiles the kernels for every generation");
            }
            compiles_every_kernel($major, $minor);
        }
    )*};
}

nvrtc_compiles_every_kernel! {
    a_generation_that_is_too_old_is_refused_or_compiled: 3, 0, true;
    nvrtc_compiles_every_kernel_for_generation_7: 7, 0, false;
    nvrtc_compiles_every_kernel_for_generation_8: 8, 0, true;
    nvrtc_compiles_every_kernel_for_generation_9: 9, 0, false;
    nvrtc_compiles_every_kernel_for_a_generation_to_come: 99, 9, false;
}

/// The text of one kernel's body.
fn body<'a>(ptx: &'a str, name: &str) -> &'a str {
    let start = ptx.find(&format!(".entry {name}(")).unwrap_or_else(|| panic!("no {name}"));
    let end = ptx[start..].find("\n}").expect("every body ends");
    &ptx[start..start + end]
}

#[test]
fn the_assembly_neither_contracts_nor_flushes_and_reads_16_bytes_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    if simulated(nvrtc) {
        return;
    }
    let version = nvrtc.version().unwrap();
    let target = "--gpu-architecture=compute_80".to_owned();
    let image = compile_source(nvrtc, version, source::PROGRAM, target, Output::Ptx, None).unwrap();
    let ptx = std::str::from_utf8(image.bytes()).unwrap().trim_end_matches('\0');
    assert!(!ptx.contains(".ftz"), "subnormals are flushed");
    assert!(!ptx.contains(".local"), "something is spilled to local memory");
    for fold in Kernel::all() {
        let Kernel::Fold(_, dtype, divided) = fold else { continue };
        let kernel = fold.name();
        let body = body(ptx, &kernel);
        if !divided {
            assert!(!body.contains("fma."), "{kernel} contracts into FMA");
            let wide = |what: &str| {
                body.lines()
                    .filter(|l| l.contains(what) && (l.contains(".v4.") || l.contains(".v2.")))
                    .count()
            };
            // Two sources, two vectors of each; and four of many.
            assert!(wide("ld.global") >= 8, "{kernel} has {} wide loads", wide("ld.global"));
            // Of two, and of many to the first destination and to the others.
            assert!(wide("st.global") >= 4, "{kernel} has {} wide stores", wide("st.global"));
        }
        if divided && is_float(dtype) {
            assert!(body.contains("div.rn"), "{kernel} does not divide as IEEE 754 has it");
        }
    }
}

#[test]
fn images_are_kept_and_damaged_ones_are_not_taken() {
    let Some(nvrtc) = nvrtc() else { return };
    let version = nvrtc.version().unwrap();
    let folder = Folder::new("kept");
    let directory = folder.0.join("deep/shouter");
    let text = "extern \"C\" __global__ void nothing(int *p) { *p = 1; }";
    let compile = |text: &str, directory: Option<&Path>| {
        let target = "--gpu-architecture=compute_80".to_owned();
        compile_source(nvrtc, version, text, target, Output::Ptx, directory).unwrap()
    };
    let first = compile(text, Some(&directory));
    assert_eq!(first.origin(), Origin::Compiled);
    let again = compile(text, Some(&directory));
    assert_eq!((again.origin(), again.bytes()), (Origin::Cached, first.bytes()));
    assert_eq!(compile(&format!("{text}\n"), None).origin(), Origin::Compiled, "another text");

    let entry = only_entry(&directory);
    let whole = std::fs::read(&entry).unwrap();
    for damaged in
        [&whole[..20], &whole[..whole.len() - 1], &[&whole[..99], b"?", &whole[100..]].concat(), &[]]
    {
        std::fs::write(&entry, damaged).unwrap();
        let rebuilt = compile(text, Some(&directory));
        assert_eq!((rebuilt.origin(), rebuilt.bytes()), (Origin::Compiled, first.bytes()));
        assert_eq!(std::fs::read(&entry).unwrap(), whole, "mended");
    }
    // No folder can be made below a file.
    let nowhere = entry.join("below");
    assert_eq!(compile(text, Some(&nowhere)).origin(), Origin::Compiled);
}

/// Ranks of a host begin at the same time.
#[test]
fn of_several_that_want_the_same_image_one_compiles() {
    let Some(nvrtc) = nvrtc() else { return };
    let version = nvrtc.version().unwrap();
    let folder = Folder::new("lock");
    let text = "extern \"C\" __global__ void nothing(int *p) { *p = 2; }";
    let compile = || {
        let target = "--gpu-architecture=compute_80".to_owned();
        compile_source(nvrtc, version, text, target, Output::Ptx, Some(&folder.0)).unwrap().origin()
    };
    let origins: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(compile)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(origins.iter().filter(|origin| **origin == Origin::Compiled).count(), 1, "{origins:?}");
}

#[test]
fn a_refused_text_gives_the_compilers_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let version = nvrtc.version().unwrap();
    let target = "--gpu-architecture=compute_80".to_owned();
    let wrong = "__global__ void wrong() { undeclared = 1; }";
    let error = compile_source(nvrtc, version, wrong, target, Output::Ptx, None).unwrap_err();
    let CompileError::Failed { log } = &error else { panic!("{error}") };
    assert!(log.contains("undeclared") && log.contains("shouter.cu"), "{log}");
}
