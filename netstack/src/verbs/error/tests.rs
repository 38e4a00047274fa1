use super::*;

const STATUS: &str = "Name:\tx\nVmLck:\t       0 kB\nVmPin:\t      64 kB\nCapEff:\t0000000000000000\n";

#[test]
fn the_limit_of_locked_memory_is_read_from_the_process() {
    let of = |status: &str| LockedMemory::of(Some(65536), status);
    assert_eq!(of(STATUS), LockedMemory { limit: Some(65536), pinned: 65536, privileged: false });
    let privileged = STATUS.replace("0000000000000000", "0000000000004000");
    assert!(of(&privileged).privileged);
    assert_eq!(of(""), LockedMemory { limit: Some(65536), pinned: 0, privileged: false });
}

#[test]
fn the_limit_of_locked_memory_is_distinguished_from_no_memory() {
    let enomem = Errno(libc::ENOMEM);
    let with = |limit, pinned, privileged, errno| {
        VerbsError::registration_with("rxe0", 4096, errno, LockedMemory { limit, pinned, privileged })
    };
    let limited = with(Some(8192), 4097, false, enomem);
    assert!(
        matches!(limited, VerbsError::MemoryLock { len: 4096, limit: 8192, pinned: 4097, .. }),
        "{limited}"
    );
    let text = limited.to_string();
    for remedy in ["ulimit -l", "limits.d", "LimitMEMLOCK", "8192", "4096"] {
        assert!(text.contains(remedy), "{remedy} in: {text}");
    }
    assert!(matches!(with(Some(8192), 4096, false, enomem), VerbsError::OutOfMemory { .. }));
    assert!(matches!(with(Some(0), 0, true, enomem), VerbsError::OutOfMemory { .. }));
    assert!(matches!(with(None, 1 << 40, false, enomem), VerbsError::OutOfMemory { .. }));
    assert!(matches!(with(Some(0), 0, false, Errno(libc::EFAULT)), VerbsError::Call { .. }));
}

#[test]
fn each_way_to_have_no_device_names_its_remedy() {
    let device = "mlx5_0".to_owned();
    let remedies = [
        (VerbsError::NoDevice, "rdma link add"),
        (VerbsError::NoProvider { device: device.clone() }, "ibverbs-providers"),
        (VerbsError::DmabufLibrary { device: device.clone() }, "rdma-core"),
        (VerbsError::dmabuf(&device, 4096, DmabufError::Library), "nvidia_peermem"),
        (VerbsError::dmabuf(&device, 4096, DmabufError::Call(Errno(libc::EOPNOTSUPP))), "Linux 5.12"),
        (VerbsError::peer_memory(&device, 4096, Errno(libc::EFAULT)), "modprobe nvidia_peermem"),
        (VerbsError::NoUverbs { device }, "modprobe ib_uverbs"),
        (VerbsError::Permission { path: "/dev/infiniband/uverbs0".to_owned() }, "udev"),
        (VerbsError::Permission { path: "/dev/infiniband/uverbs0".to_owned() }, "/dev/infiniband/uverbs0"),
    ];
    for (error, remedy) in remedies {
        assert!(error.to_string().contains(remedy), "{remedy} in: {error}");
    }
}
