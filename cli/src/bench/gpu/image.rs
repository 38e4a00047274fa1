//! The sources of the kernels: a folder that was filled elsewhere, the user's cache, or NVRTC.

use std::fs;

use shouter_reducer::cuda::DeviceInfo;
use shouter_reducer::cuda::kernel::{Architecture, Image, compile, compile_with_cache};

use super::GpuArgs;
use crate::failure::CommandError;
use crate::stdout;

/// The kernels for a device, or why there are none.
pub(super) fn find(args: &GpuArgs, device: &DeviceInfo) -> Result<Image, String> {
    let (major, minor) = device.capability;
    let architecture = Architecture { major, minor };
    let given = args.kernels.as_ref().and_then(|folder| Image::from_folder(folder, architecture));
    given.map_or_else(|| compile(architecture), Ok).map_err(|why| why.to_string())
}

/// Compiles the kernels for every capability of `--compile` into the folder.
pub(super) fn compile_all(args: &GpuArgs) -> Result<(), CommandError> {
    let Some(folder) = &args.kernels else {
        return Err(CommandError::Usage("--compile wants --kernels DIR".into()));
    };
    fs::create_dir_all(folder)?;
    for number in &args.compile {
        let architecture = Architecture { major: number / 10, minor: number % 10 };
        let image =
            compile_with_cache(architecture, None).map_err(|why| CommandError::Failed(why.to_string()))?;
        let file = Image::place(folder, architecture);
        fs::write(&file, image.bytes())?;
        stdout::print(&format!("{}: {} bytes\n", file.display(), image.bytes().len()))?;
    }
    Ok(())
}
