use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use shouter::runtime::CoreAllowance;

use super::host;
use super::{Item, State, lines, table};

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
        assert_eq!(item.state, State::Missing, "{item:?}");
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
        .link(&format!("{pci}/0000:03:00.0/driver"), "../../../bus/pci/drivers/vfio-pci")
        .file(&format!("{pci}/0000:04:00.0/class"), "0x020000\n")
        .file(&format!("{pci}/0000:04:00.0/vendor"), "0x1af4\n")
        .file(&format!("{pci}/0000:04:00.0/device"), "0x1041\n")
        .link(&format!("{pci}/0000:04:00.0/driver"), "../../../bus/pci/drivers/virtio-pci")
        .file(&format!("{pci}/0000:04:00.0/virtio1/net/eth0/mtu"), "1500\n");
    let ours = host.item("nic 0000:03:00.0");
    assert_eq!(ours.state, State::Ok);
    assert_eq!(ours.detail, "8086:1592, driver vfio-pci; name it as device = \"pci:0000:03:00.0\"");
    let theirs = host.item("nic 0000:04:00.0");
    assert_eq!(theirs.state, State::Missing);
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
    assert_eq!((small.state, small.detail.as_str()), (State::Missing, "0 free of 8"));
    let large = host.item("hugepages of 1 GiB");
    assert_eq!((large.state, large.detail.as_str()), (State::Ok, "1 free of 2"));
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
    assert_eq!((memlock.state, memlock.detail.as_str()), (State::Missing, "at most 8 MiB"));
    assert_eq!(host.item("rdma devices").detail, "mlx5_0");
    assert_eq!(
        host.item("cuda driver").detail,
        "/opt/gpu/lib/libcuda.so.1 (not used: CUDA is not built in yet)"
    );
    assert_eq!(host.item("vfio").state, State::Ok);
    let host = host.file("proc/self/limits", &limit("unlimited"));
    assert_eq!(host.item("locked memory").state, State::Ok);
}

#[test]
fn cores_are_listed_as_the_kernel_does() {
    let detail = |cores: &[usize]| host::cores(&CoreAllowance { cores: cores.to_vec(), quota: None }).detail;
    assert!(detail(&[0, 1, 2, 5, 7, 8]).contains("6 in the affinity mask (0-2,5,7-8)"), "{}", detail(&[0]));
    assert_eq!(host::cores(&CoreAllowance { cores: vec![], quota: None }).state, State::Missing);
}

#[test]
fn remedies_stand_below_what_they_are_for() {
    let items = vec![Item::ok("a", "there"), Item::not_ok(State::Missing, "long", "gone", "get one")];
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
