use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use shouter::runtime::CoreAllowance;

#[cfg(feature = "cuda")]
use super::gpu::found;
use super::host;
use super::{Item, ItemState, lines, table};

/// A host made of files.
struct Host(PathBuf);

impl Host {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-test-info-{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    fn item(&self, name: &str) -> Item {
        let items = host::items(&self.0);
        let names: Vec<&str> = items.iter().map(|item| item.item.as_str()).collect();
        assert!(names.contains(&name), "no {name} among {names:?}");
        items.iter().find(|item| item.item == name).unwrap().clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_empty_host_lacks_everything_and_is_told_what_to_do() {
    let host = Host::new("empty");
    for name in ["hugepages", "locked memory", "nics", "vfio", "rdma devices", "cuda driver"] {
        let item = host.item(name);
        assert_eq!(item.state, ItemState::Missing, "{item:?}");
        assert!(item.remedy.is_some_and(|remedy| remedy.len() > 10), "{name}");
    }
}

#[test]
fn a_nic_is_ours_once_vfio_has_it() {
    let pci = "sys/bus/pci/devices";
    let host = Host::new("nics")
        .file(&format!("{pci}/0000:00:02.0/class"), "0x030000\n")
        .file(&format!("{pci}/0000:03:00.0/class"), "0x020000\n")
        .file(&format!("{pci}/0000:03:00.0/vendor"), "0x8086\n")
        .file(&format!("{pci}/0000:03:00.0/device"), "0x1592\n")
        .file(&format!("{pci}/0000:03:00.0/numa_node"), "1\n")
        .link(&format!("{pci}/0000:03:00.0/driver"), "../../../bus/pci/drivers/vfio-pci")
        .file(&format!("{pci}/0000:04:00.0/class"), "0x020000\n")
        .file(&format!("{pci}/0000:04:00.0/vendor"), "0x1af4\n")
        .file(&format!("{pci}/0000:04:00.0/device"), "0x1041\n")
        .file(&format!("{pci}/0000:04:00.0/numa_node"), "-1\n")
        .link(&format!("{pci}/0000:04:00.0/driver"), "../../../bus/pci/drivers/virtio-pci")
        .file(&format!("{pci}/0000:04:00.0/virtio1/net/eth0/mtu"), "1500\n");
    let ours = host.item("nic 0000:03:00.0");
    assert_eq!(ours.state, ItemState::Ok);
    assert_eq!(
        ours.detail,
        "8086:1592, driver vfio-pci, NUMA node 1; name it as device = \"pci:0000:03:00.0\""
    );
    let theirs = host.item("nic 0000:04:00.0");
    assert_eq!(theirs.state, ItemState::Missing);
    assert_eq!(theirs.detail, "1af4:1041, driver virtio-pci, interface eth0; the kernel has it");
    assert!(theirs.remedy.unwrap().contains("scripts/bind-nic bind 0000:04:00.0"));
    assert!(host::items(&host.0).iter().all(|item| !item.item.contains("00:02.0")), "a display is no NIC");
}

#[test]
fn hugepages_are_counted_by_size() {
    let pages = "sys/kernel/mm/hugepages";
    let host = Host::new("hugepages")
        .file(&format!("{pages}/hugepages-2048kB/nr_hugepages"), "8\n")
        .file(&format!("{pages}/hugepages-2048kB/free_hugepages"), "0\n")
        .file(&format!("{pages}/hugepages-1048576kB/nr_hugepages"), "2\n")
        .file(&format!("{pages}/hugepages-1048576kB/free_hugepages"), "1\n");
    let small = host.item("hugepages of 2 MiB");
    assert_eq!((small.state, small.detail.as_str()), (ItemState::Missing, "0 free of 8"));
    let large = host.item("hugepages of 1 GiB");
    assert_eq!((large.state, large.detail.as_str()), (ItemState::Ok, "1 free of 2"));
}

#[test]
fn limits_and_devices_are_read_from_their_files() {
    let limit = |soft: &str| {
        format!("Limit                     Soft Limit\nMax locked memory         {soft}  unlimited  bytes\n")
    };
    let host = Host::new("limits")
        .file("proc/self/limits", &limit("8388608"))
        .file("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
        .file("etc/ld.so.conf.d/gpu.conf", "# the driver\n/opt/gpu/lib\n")
        .file("opt/gpu/lib/libcuda.so.1", "")
        .file("dev/vfio/vfio", "")
        .file("sys/kernel/iommu_groups/0/type", "DMA\n");
    let memlock = host.item("locked memory");
    assert_eq!((memlock.state, memlock.detail.as_str()), (ItemState::Missing, "at most 8 MiB"));
    assert_eq!(host.item("rdma devices").detail, "mlx5_0");
    assert_eq!(host.item("cuda driver").detail, "/opt/gpu/lib/libcuda.so.1");
    assert_eq!(host.item("vfio").state, ItemState::Ok);
    let host = host.file("proc/self/limits", &limit("unlimited"));
    assert_eq!(host.item("locked memory").state, ItemState::Ok);
}

#[test]
fn cores_are_listed_as_the_kernel_does() {
    let detail = |cores: &[usize]| host::cores(&CoreAllowance { cores: cores.to_vec(), quota: None }).detail;
    assert!(detail(&[0, 1, 2, 5, 7, 8]).contains("6 in the affinity mask (0-2,5,7-8)"), "{}", detail(&[0]));
    assert_eq!(host::cores(&CoreAllowance { cores: vec![], quota: None }).state, ItemState::Missing);
}

#[test]
fn remedies_stand_below_what_they_are_for() {
    let items = vec![Item::ok("a", "there"), Item::not_ok(ItemState::Missing, "long", "gone", "get one")];
    let sections = [("Things", items)];
    assert_eq!(
        table(&sections).unwrap(),
        "Things\n  ok       a     there\n  missing  long  gone\n                 -> get one\n"
    );
    assert_eq!(
        lines(&sections).unwrap(),
        "{\"item\":\"a\",\"state\":\"ok\",\"detail\":\"there\",\"remedy\":null}\n\
         {\"item\":\"long\",\"state\":\"missing\",\"detail\":\"gone\",\"remedy\":\"get one\"}\n"
    );
}

#[test]
fn nothing_here_changes_the_host() {
    let host = Host::new("unchanged");
    host::items(&host.0);
    assert_eq!(fs::read_dir(Path::new(&host.0)).unwrap().count(), 0);
}

#[cfg(feature = "cuda")]
mod gpus {
    use shouter_reducer::cuda::{Absent, ComputeMode, DeviceInfo};

    use super::*;

    fn device(ordinal: i32) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            name: "NVIDIA T1".into(),
            uuid: [0xab; 16],
            capability: (9, 0),
            memory: 80 << 30,
            pci: "0000:3b:00.0".into(),
            compute_mode: ComputeMode::Default,
            mig: false,
            dmabuf: false,
            gpu_direct_rdma: true,
            ipc: true,
            wait_value: true,
            managed: true,
            integrated: false,
        }
    }

    fn named(host: &Host, devices: Vec<DeviceInfo>, name: &str) -> Item {
        let others = |a: i32| (0..devices.len() as i32).map(|b| a == b || b == 0).collect();
        let reach = (0..devices.len() as i32).map(others).collect();
        let items = found::describe(&host.0, &found::Found { version: (12, 4), devices, reach });
        items.into_iter().find(|item| item.item == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn a_device_says_who_it_is_and_what_it_can_do() {
        let host = Host::new("gpu").file("sys/module/nvidia/version", "550.54.14\n");
        let item = |name| named(&host, vec![device(0), device(1)], name);
        assert_eq!(item("gpu driver").detail, "NVIDIA driver 550.54.14, CUDA 12.4");
        let identity = "NVIDIA T1, GPU-abababab, compute capability 9.0, 81920 MiB, PCI 0000:3b:00.0, compute mode default, MIG no";
        assert_eq!(item("gpu 1").detail, identity);
        assert_eq!(item("gpu 1 peer access").detail, "0 yes");
        assert_eq!(item("gpu 0 peer access").detail, "1 no");
        assert_eq!(item("gpu 0 dmabuf").state, ItemState::Missing);
        let aware = item("cuda-aware");
        assert!(aware.state == ItemState::Ok && aware.detail.contains("staged"), "{aware:?}");
        assert!(aware.detail.contains("straight to the NIC (key gpu_direct)"), "{aware:?}");
    }

    #[test]
    fn what_is_in_the_way_of_a_nic_is_named() {
        let host = Host::new("gpudirect");
        let item = |host: &Host, device| named(host, vec![device], "gpu 0 gpudirect rdma");
        let none = item(&host, DeviceInfo { gpu_direct_rdma: false, ..device(0) });
        assert!(none.detail.contains("does not offer"), "{none:?}");
        assert!(item(&host, device(0)).remedy.unwrap().contains("modprobe nvidia-peermem"));
        let host = host.file("sys/module/nvidia_peermem/refcnt", "0");
        assert!(item(&host, device(0)).detail.contains("no RDMA device"));
        let host = host.file("sys/class/infiniband/mlx5_0/node_type", "1: CA");
        assert!(
            item(&host, device(0)).detail.contains("register its memory, by nvidia-peermem: with gpu_direct")
        );
        let dmabuf = item(&host, DeviceInfo { dmabuf: true, ..device(0) });
        assert!(dmabuf.state == ItemState::Ok && dmabuf.detail.contains("by dmabuf or nvidia-peermem"));
    }

    #[test]
    fn what_cannot_be_used_comes_with_a_remedy() {
        let absent = found::absent(&Absent::NoDriver);
        assert_eq!((absent.len(), absent[0].state), (1, ItemState::Missing));
        assert_eq!(absent[0].detail, "built in, but not usable here: no libcuda.so.1");
        assert!(absent[0].remedy.as_deref().unwrap().contains("--gpus all"));
        assert_eq!(
            found::absent(&Absent::TooOld { found: 11_080, needed: 12_000 })[0].state,
            ItemState::Wrong
        );
        let host = Host::new("prohibited");
        let prohibited = || vec![DeviceInfo { compute_mode: ComputeMode::Prohibited, ..device(0) }];
        assert_eq!(named(&host, prohibited(), "cuda-aware").state, ItemState::Wrong);
        assert!(named(&host, prohibited(), "gpu 0").remedy.unwrap().contains("-c DEFAULT"));
    }
}
