//! The host's GPUs, and the handling of tensors in their memory: the answer to "is it CUDA-aware?".
//!
//! The driver is loaded and queried; no context is made, so nothing runs on a GPU and no GPU memory is taken.

use std::path::Path;

use super::Item;

/// The driver, its devices, their access to each other, and the features that use them.
#[cfg(feature = "cuda")]
pub(super) fn items(root: &Path) -> Vec<Item> {
    found::items(root)
}

/// The item that this build has no CUDA.
#[cfg(not(feature = "cuda"))]
pub(super) fn items(_: &Path) -> Vec<Item> {
    vec![Item::not_built_in(
        "cuda-aware",
        "no: this build takes no tensors in GPU memory",
        "build with the feature `cuda`, which is on by default",
    )]
}

#[cfg(feature = "cuda")]
pub(super) mod found {
    use std::fs;

    use shouter_reducer::cuda::kernel::compiler_version;
    use shouter_reducer::cuda::{Absent, ComputeMode, Cuda, CudaError, DeviceInfo};

    use super::super::ItemState;
    use super::*;

    /// The driver's answers.
    pub(in super::super) struct Found {
        /// CUDA's version, as reported by the driver.
        pub(in super::super) version: (u32, u32),
        pub(in super::super) devices: Vec<DeviceInfo>,
        /// Whether the device of the row can access the memory of the device of the column.
        pub(in super::super) reach: Vec<Vec<bool>>,
    }

    pub(super) fn items(root: &Path) -> Vec<Item> {
        let asked = match Cuda::probe() {
            Ok(cuda) => ask(cuda),
            Err(why) => return absent(&why),
        };
        let mut items = match asked {
            Ok(found) => describe(root, &found),
            Err(why) => return vec![item_of(ItemState::Wrong, "cuda-aware", &format!("no: {why}"))],
        };
        items.push(kernels());
        items
    }

    fn ask(cuda: &Cuda) -> Result<Found, CudaError> {
        let devices = cuda.devices()?;
        let reach = devices
            .iter()
            .map(|a| devices.iter().map(|b| cuda.peer_access(a.ordinal, b.ordinal)).collect())
            .collect::<Result<_, _>>()?;
        Ok(Found { version: cuda.version(), devices, reach })
    }

    /// An item from an error's text: the problem, a semicolon, and the remedy.
    fn item_of(state: ItemState, item: &str, text: &str) -> Item {
        let (detail, remedy) = text.split_once("; ").unwrap_or((text, "see `nvidia-smi`"));
        Item::not_ok(state, item, detail, remedy)
    }

    /// The reason why no GPU can be used.
    pub(in super::super) fn absent(why: &Absent) -> Vec<Item> {
        let state = match why {
            Absent::NoDriver | Absent::NoDevice => ItemState::Missing,
            _ => ItemState::Wrong,
        };
        vec![item_of(state, "cuda-aware", &format!("built in, but not usable here: {why}"))]
    }

    /// All items of a driver and its devices.
    pub(in super::super) fn describe(root: &Path, found: &Found) -> Vec<Item> {
        let (major, minor) = found.version;
        let driver = match super::super::host::line(&root.join("sys/module/nvidia/version")) {
            version if version.is_empty() => "the NVIDIA driver".into(),
            version => format!("NVIDIA driver {version}"),
        };
        let mut items = vec![Item::ok("gpu driver", format!("{driver}, CUDA {major}.{minor}"))];
        for (device, reach) in found.devices.iter().zip(&found.reach) {
            items.push(identity(device));
            items.extend(abilities(root, device));
            if found.devices.len() > 1 {
                items.push(peers(device, reach));
            }
        }
        items.push(verdict(&found.devices));
        items
    }

    fn identity(device: &DeviceInfo) -> Item {
        let DeviceInfo { ordinal, name, capability: (major, minor), pci, .. } = device;
        let uuid: String = device.uuid_text().chars().take("GPU-01234567".len()).collect();
        let mode = match device.compute_mode {
            ComputeMode::Default => "default",
            ComputeMode::Prohibited => "prohibited",
            ComputeMode::ExclusiveProcess => "exclusive process",
        };
        let detail = format!(
            "{name}, {uuid}, compute capability {major}.{minor}, {} MiB, PCI {}, compute mode {mode}, MIG {}",
            device.memory >> 20,
            if pci.is_empty() { "unknown" } else { pci },
            if device.mig { "yes" } else { "no" },
        );
        let item = format!("gpu {ordinal}");
        match device.compute_mode {
            ComputeMode::Prohibited => Item::not_ok(
                ItemState::Wrong,
                item,
                detail,
                format!("nobody may use it; as root: `nvidia-smi -i {ordinal} -c DEFAULT`"),
            ),
            _ => Item::ok(item, detail),
        }
    }

    /// The relevant abilities of a device, an item each.
    fn abilities(root: &Path, device: &DeviceInfo) -> Vec<Item> {
        let item = |what: &str| format!("gpu {} {what}", device.ordinal);
        let ability = |is: bool, what: &str, yes: &str, no: &str, remedy: &str| match is {
            true => Item::ok(item(what), yes),
            false => Item::missing(item(what), no, remedy),
        };
        vec![
            Item::ok(item("pinned staging"), "yes: copies of page-locked memory, both ways at once; in use"),
            ability(
                device.ipc,
                "cuda ipc",
                if device.mig {
                    "yes, within this MIG instance; not in use yet"
                } else {
                    "yes; not in use yet"
                },
                "no",
                "nothing has to be done: ranks of a host meet in page-locked memory",
            ),
            ability(
                device.wait_value,
                "stream wait-value",
                "yes; not in use yet",
                "no",
                "nothing has to be done: order comes from events",
            ),
            ability(
                device.dmabuf,
                "dmabuf",
                "yes; in use where an RDMA device takes it",
                "no: the driver exports none",
                "only GPUDirect RDMA would want it: NVIDIA's open kernel modules, Linux 5.12 or later",
            ),
            direct(root, device, item("gpudirect rdma")),
        ]
    }

    /// Whether a NIC could access the device's memory, and the obstacle if not.
    fn direct(root: &Path, device: &DeviceInfo, item: String) -> Item {
        let peermem =
            ["nvidia_peermem", "nv_peer_mem"].iter().any(|m| root.join("sys/module").join(m).exists());
        let nics =
            fs::read_dir(root.join("sys/class/infiniband")).is_ok_and(|mut nics| nics.next().is_some());
        let no = |why: &str, remedy: &str| {
            Item::missing(item.clone(), format!("no: {why}"), format!("{remedy}; staging works without"))
        };
        match (device.gpu_direct_rdma, device.dmabuf || peermem, nics) {
            (false, ..) => no("the device or its driver does not offer it", "it takes a data-center GPU"),
            (_, false, _) => no(
                "neither dmabuf nor nvidia-peermem",
                "as root: `modprobe nvidia-peermem`, or NVIDIA's open kernel modules",
            ),
            (.., false) => no("the host has no RDMA device", "it takes an RDMA NIC"),
            _ => Item::ok(
                item,
                format!(
                    "an RDMA device can register its memory, by {}: with gpu_direct = \"on\", where a rank is alone on its host; it \
                     has run over soft-RoCE and a simulated driver only",
                    match (device.dmabuf, peermem) {
                        (true, true) => "dmabuf or nvidia-peermem",
                        (true, false) => "dmabuf",
                        _ => "nvidia-peermem",
                    }
                ),
            ),
        }
    }

    /// A row of the matrix of access between devices.
    fn peers(device: &DeviceInfo, reach: &[bool]) -> Item {
        let words = reach.iter().enumerate().filter(|(peer, _)| *peer != device.ordinal as usize);
        let words = words.map(|(peer, can)| format!("{peer} {}", if *can { "yes" } else { "no" }));
        Item::ok(format!("gpu {} peer access", device.ordinal), words.collect::<Vec<_>>().join(", "))
    }

    fn verdict(devices: &[DeviceInfo]) -> Item {
        if devices.iter().all(|device| device.compute_mode == ComputeMode::Prohibited) {
            return Item::not_ok(
                ItemState::Wrong,
                "cuda-aware",
                "built in, but every GPU is in compute mode prohibited",
                "as root: `nvidia-smi -c DEFAULT`",
            );
        }
        Item::ok(
            "cuda-aware",
            "yes: tensors in device and managed memory are taken as they are, with the trainer's stream; GPUs of a host reduce in each \
             other's memory (key gpu_peers), and between hosts they are staged, or go straight to the NIC (key gpu_direct)",
        )
    }

    /// The compiler of kernels. Without it tensors are staged, and the CPU reduces.
    fn kernels() -> Item {
        match compiler_version() {
            Ok((major, minor)) => Item::ok("gpu kernels", format!("NVRTC {major}.{minor} compiles them")),
            Err(why) => {
                let item = item_of(ItemState::Missing, "gpu kernels", &why.to_string());
                let remedy = item.remedy.as_deref().unwrap_or_default();
                Item {
                    remedy: Some(format!("without it tensors are staged, and the CPU reduces; {remedy}")),
                    ..item
                }
            }
        }
    }
}
