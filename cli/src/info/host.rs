//! The facts of this host, as files report them.
//!
//! Every path is looked up below a root, so that tests can supply a host of their own.

use std::fs;
use std::path::{Path, PathBuf};

use shouter::runtime::CoreAllowance;

use super::Item;

/// Class 0x02 of PCI: network controllers; 0x0200 is Ethernet (PCI Code and ID Assignment, section 1.3).
const PCI_ETHERNET: &str = "0x0200";

/// The least locked memory that a NIC's process needs, in bytes: DPDK's own by default.
const MEMLOCK_FOR_NICS: u64 = 512 << 20;

/// All items of the host below `root`.
pub(super) fn items(root: &Path) -> Vec<Item> {
    let mut items = vec![cores(&CoreAllowance::detect())];
    items.extend(memory(root, true));
    items.extend(nics(root));
    items.push(vfio(root));
    items.push(rdma(root));
    items.push(cuda(root));
    items
}

/// The limits of memory for devices, on the host below `root`.
pub(crate) fn memory(root: &Path, uses_hugepages: bool) -> Vec<Item> {
    let pages = if uses_hugepages { hugepages(root) } else { vec![] };
    pages.into_iter().chain([memlock(root)]).collect()
}

/// The cores that may be kept busy.
pub(super) fn cores(allowance: &CoreAllowance) -> Item {
    let CoreAllowance { cores, quota } = allowance;
    let limit = match quota {
        Some(quota) => format!("cgroup quota of {} CPUs", quota.millicores as f64 / 1e3),
        None => "no cgroup quota".into(),
    };
    let detail = format!("{} in the affinity mask ({}); {limit}", cores.len(), ranges(cores));
    if allowance.whole_cores() == 0 {
        return Item::missing(
            "cores",
            detail,
            "not one whole CPU: raise the quota (cpu.max), or ranks wait for each other's turn",
        );
    }
    Item::ok("cores", detail)
}

/// Ascending numbers as the kernel lists them: `0-3,8`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

/// One item per size of page.
fn hugepages(root: &Path) -> Vec<Item> {
    const WHO: &str = "NICs and embedded links work without them, with more TLB misses";
    let mut items = vec![];
    for path in entries(&root.join("sys/kernel/mm/hugepages")) {
        let Some(kib) = name_of(&path)
            .strip_prefix("hugepages-")
            .and_then(|rest| rest.strip_suffix("kB"))
            .and_then(|size| size.parse::<u64>().ok())
        else {
            continue;
        };
        let pages = |file: &str| number(&path.join(file)).unwrap_or(0);
        let (total, free) = (pages("nr_hugepages"), pages("free_hugepages"));
        // DPDK is configured for pages of 2 MiB; other sizes are shown if the host has any.
        if kib != 2048 && total == 0 {
            continue;
        }
        let item = format!("hugepages of {}", binary(kib << 10));
        let detail = format!("{free} free of {total}");
        items.push(match free {
            0 if kib == 2048 => Item::missing(
                item,
                detail,
                format!(
                    "{WHO}; to use them, as root: `sysctl vm.nr_hugepages=256`, and set SHOUTER_HUGEPAGES=on"
                ),
            ),
            _ => Item::ok(item, detail),
        });
    }
    if items.is_empty() {
        items.push(Item::missing(
            "hugepages",
            "this kernel offers none, or /sys is not mounted",
            format!("{WHO}; nothing has to be done"),
        ));
    }
    items
}

/// How much memory the process may lock.
fn memlock(root: &Path) -> Item {
    let limits = fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|rest| rest.split_ascii_whitespace().next());
    match soft {
        Some("unlimited") => Item::ok("locked memory", "unlimited"),
        Some(text) => match text.parse::<u64>() {
            Ok(bytes) if bytes >= MEMLOCK_FOR_NICS => Item::ok("locked memory", binary(bytes)),
            Ok(bytes) => Item::missing(
                "locked memory",
                format!("at most {}", binary(bytes)),
                "only NICs need more: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or \
                 `--ulimit memlock=-1` for a container",
            ),
            Err(_) => Item::ok("locked memory", text),
        },
        None => Item::missing(
            "locked memory",
            "the limit is not known: /proc is not mounted",
            "mount /proc; only NICs need locked memory",
        ),
    }
}

/// One item per Ethernet controller on the PCI bus.
fn nics(root: &Path) -> Vec<Item> {
    let mut items = vec![];
    for path in entries(&root.join("sys/bus/pci/devices")) {
        if !line(&path.join("class")).starts_with(PCI_ETHERNET) {
            continue;
        }
        let address = name_of(&path);
        let id = |file: &str| line(&path.join(file)).trim_start_matches("0x").to_owned();
        let driver = fs::read_link(path.join("driver")).map(|link| name_of(&link));
        let interfaces = interfaces(&path);
        let mut detail = format!("{}:{}", id("vendor"), id("device"));
        match &driver {
            Ok(driver) => detail += &format!(", driver {driver}"),
            Err(_) => detail += ", no driver",
        }
        // -1: the kernel knows none.
        if let Some(node) = number(&path.join("numa_node")) {
            detail += &format!(", NUMA node {node}");
        }
        if !interfaces.is_empty() {
            detail += &format!(", interface {}", interfaces.join(" "));
        }
        let item = format!("nic {address}");
        items.push(match driver.as_deref() {
            Ok("vfio-pci") => Item::ok(item, format!("{detail}; name it as device = \"pci:{address}\"")),
            _ => Item::missing(
                item,
                format!("{detail}; the kernel has it"),
                format!(
                    "to give it to shouter, as root: `scripts/bind-nic bind {address}`; it is then gone for the \
                     kernel, so never the one that you are logged in over"
                ),
            ),
        });
    }
    if items.is_empty() {
        items.push(Item::missing(
            "nics",
            "no Ethernet controller on the PCI bus",
            "on one machine none is needed: `shouter run --hosts` joins emulated hosts; between machines use a NIC, or an \
             interface of the kernel as device = \"af_packet:INTERFACE\"",
        ));
    }
    items
}

/// The kernel's interfaces on a PCI device; those of virtio sit one level lower.
fn interfaces(device: &Path) -> Vec<String> {
    let mut found: Vec<String> = entries(&device.join("net")).iter().map(|path| name_of(path)).collect();
    for below in entries(device).iter().filter(|path| name_of(path).starts_with("virtio")) {
        found.extend(entries(&below.join("net")).iter().map(|path| name_of(path)));
    }
    found
}

/// Whether a process can use a PCI device directly.
fn vfio(root: &Path) -> Item {
    let groups = entries(&root.join("sys/kernel/iommu_groups")).len();
    let module = root.join("dev/vfio/vfio").exists();
    match (module, groups) {
        (true, 1..) => Item::ok("vfio", format!("/dev/vfio/vfio, {groups} IOMMU groups")),
        (true, 0) => Item::missing(
            "vfio",
            "/dev/vfio/vfio, but no IOMMU group",
            "only NICs need it: switch the IOMMU on in the firmware and boot with intel_iommu=on or amd_iommu=on",
        ),
        (false, _) => Item::missing(
            "vfio",
            format!("no /dev/vfio/vfio; {groups} IOMMU groups"),
            "only NICs need it; as root: `modprobe vfio-pci`, and pass /dev/vfio into a container",
        ),
    }
}

/// The kernel's RDMA devices; the channels report the state of their ports.
fn rdma(root: &Path) -> Item {
    let devices: Vec<String> =
        entries(&root.join("sys/class/infiniband")).iter().map(|path| name_of(path)).collect();
    if devices.is_empty() {
        return Item::missing(
            "rdma devices",
            "none",
            "none is needed; an RDMA adapter's driver makes one, or, on any Ethernet interface, as root: `modprobe rdma_rxe && rdma \
             link add rxe0 type rxe netdev INTERFACE`",
        );
    }
    Item::ok("rdma devices", devices.join(" "))
}

/// The path of CUDA's driver library. Its version is reported with the GPUs.
fn cuda(root: &Path) -> Item {
    let found =
        library_directories(root).into_iter().map(|dir| dir.join("libcuda.so.1")).find(|path| path.exists());
    match found {
        Some(path) => {
            let path = path.strip_prefix(root).unwrap_or(&path);
            Item::ok("cuda driver", format!("/{}", path.display()))
        }
        None => Item::missing(
            "cuda driver",
            "no libcuda.so.1 where the dynamic linker looks",
            "only GPUs need it: install NVIDIA's driver; in a container, `--gpus all` brings it",
        ),
    }
}

/// The dynamic linker's directories: ld.so.conf and its includes, then the usual ones.
fn library_directories(root: &Path) -> Vec<PathBuf> {
    let mut files = vec![root.join("etc/ld.so.conf")];
    files.extend(entries(&root.join("etc/ld.so.conf.d")));
    let mut dirs = vec![];
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        let named = text.lines().map(str::trim).filter_map(|line| line.strip_prefix('/'));
        dirs.extend(named.map(|dir| root.join(dir)));
    }
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    for dir in ["usr/lib", "usr/lib64", "usr/local/lib", "usr/lib/wsl/lib", "lib", "lib64"] {
        dirs.push(root.join(dir).join(&multiarch));
        dirs.push(root.join(dir));
    }
    dirs
}

/// The entries of a directory, by name; none if it does not exist.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file's only line; empty if it cannot be read.
pub(super) fn line(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn number(path: &Path) -> Option<u64> {
    line(path).parse().ok()
}

/// Bytes in the largest binary unit that divides them.
fn binary(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = units.iter().find(|(shift, _)| bytes >> shift != 0 && bytes.trailing_zeros() >= *shift);
    fits.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}
