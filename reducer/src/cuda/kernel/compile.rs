//! The program for one architecture, from the cache or from the compiler.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::nvrtc::{Nvrtc, Output};
use super::{cache, source};

/// The options that bits depend on, whatever the architecture: no contraction into FMA, subnormals are kept, division
/// is IEEE's.
const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true"];

/// Why there are no kernels for a device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CompileError {
    /// No NVRTC library was found.
    #[error(
        "NVRTC (libnvrtc.so) was not found; install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and name its lib folder in LD_LIBRARY_PATH"
    )]
    Absent,
    /// The library lacks a function.
    #[error("the NVRTC that was found lacks {symbol}; install that of CUDA 11.2 or later")]
    TooOld {
        /// The function.
        symbol: &'static str,
    },
    /// The library compiles for later devices only.
    #[error("NVRTC {}.{} does not compile for {architecture}; install the CUDA toolkit of an earlier major version", version.0, version.1)]
    Architecture {
        /// The device's.
        architecture: Architecture,
        /// The library's version, major and minor.
        version: (u32, u32),
    },
    /// The compiler refused the program: a defect, for the program is fixed.
    #[error("NVRTC does not compile the kernels; please report this with the log:\n{log}")]
    Failed {
        /// The compiler's log.
        log: String,
    },
    /// Another call of the library failed.
    #[error("{call} failed: {why}; is the installation of NVRTC whole (libnvrtc-builtins beside libnvrtc)?")]
    Nvrtc {
        /// The function.
        call: &'static str,
        /// The library's description of the error.
        why: String,
    },
}

/// A device's compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl Architecture {
    /// As NVRTC counts: 90 for 9.0.
    fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.number())
    }
}

/// Where an image comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was compiled just now, which takes seconds.
    Compiled,
    /// It was found on disk.
    Cached,
    /// The caller brought it.
    Given,
}

/// The compiled program, as the driver loads it.
#[derive(Clone)]
pub struct Image {
    bytes: Vec<u8>,
    origin: Origin,
}

impl Image {
    /// An image that [`bytes`](Self::bytes) gave elsewhere, by this version of this crate. The driver refuses what is
    /// none, or one of another architecture.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, origin: Origin::Given }
    }

    /// Where a folder of images has that of an architecture.
    pub fn place(folder: &Path, architecture: Architecture) -> PathBuf {
        folder.join(format!("{architecture}.cubin"))
    }

    /// The image of an architecture in a folder that was filled elsewhere, if it is there.
    pub fn from_folder(folder: &Path, architecture: Architecture) -> Option<Self> {
        std::fs::read(Self::place(folder, architecture)).ok().map(Self::from_bytes)
    }

    /// Machine code (an ELF file), or the text of portable assembly.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("len", &self.bytes.len()).field("origin", &self.origin).finish()
    }
}

/// The version of NVRTC that [`compile`] would use, major and minor; loads it.
///
/// # Errors
/// NVRTC cannot be loaded.
pub fn compiler_version() -> Result<(u32, u32), CompileError> {
    Nvrtc::load()?.version()
}

/// The kernels for `architecture`, from the user's cache (`$XDG_CACHE_HOME/shouter`, else `~/.cache/shouter`) if they
/// have been compiled before. A device later than the compiler gets the portable assembly of the latest that it knows.
///
/// # Errors
/// NVRTC cannot be loaded, does not know the architecture, or reports faults in the kernels.
pub fn compile(architecture: Architecture) -> Result<Image, CompileError> {
    compile_with_cache(architecture, cache::directory().as_deref())
}

/// As [`compile`], with this folder for a cache, or none.
///
/// # Errors
/// As [`compile`]. A cache that cannot be read or written is no error.
pub fn compile_with_cache(
    architecture: Architecture,
    directory: Option<&Path>,
) -> Result<Image, CompileError> {
    let nvrtc = Nvrtc::load()?;
    let version = nvrtc.version()?;
    let wanted = architecture.number();
    let known = nvrtc.architectures()?;
    let latest = known.iter().copied().filter(|&known| known <= wanted).max();
    let latest = latest.ok_or(CompileError::Architecture { architecture, version })?;
    let (target, output) = if latest == wanted {
        (format!("--gpu-architecture=sm_{wanted}"), Output::Cubin)
    } else {
        (format!("--gpu-architecture=compute_{latest}"), Output::Ptx)
    };
    compile_source(nvrtc, version, source::PROGRAM, target, output, directory)
}

/// Compiles `text`, or finds it compiled.
pub(super) fn compile_source(
    nvrtc: Nvrtc,
    version: (u32, u32),
    text: &str,
    target: String,
    output: Output,
    directory: Option<&Path>,
) -> Result<Image, CompileError> {
    let options: Vec<String> = OPTIONS.iter().map(|&o| o.to_owned()).chain([target]).collect();
    let key = cache::key(&[
        text.as_bytes(),
        options.join(" ").as_bytes(),
        format!("{}.{}", version.0, version.1).as_bytes(),
    ]);
    let cached = || directory.and_then(|directory| cache::read(directory, &key));
    if let Some(bytes) = cached() {
        return Ok(Image { bytes, origin: Origin::Cached });
    }
    // Of the ranks of a host one compiles, and the others wait for that.
    let _lock = directory.and_then(|directory| cache::lock(directory, &key));
    if let Some(bytes) = cached() {
        return Ok(Image { bytes, origin: Origin::Cached });
    }
    let bytes = nvrtc.compile(text, source::NAME, &options, output)?;
    if let Some(directory) = directory {
        cache::write(directory, &key, &bytes);
    }
    Ok(Image { bytes, origin: Origin::Compiled })
}
