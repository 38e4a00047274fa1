//! The errors of RDMA devices, and their remedies.

use super::sys::{DmabufError, Errno};

/// Why a device, a registration or a queue could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// The kernel has no RDMA device.
    #[error(
        "no RDMA device; load the adapter's driver (mlx5_ib, irdma, ...) and ib_uverbs, or, on any Ethernet interface, \
         `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE`"
    )]
    NoDevice,
    /// The kernel has the device, libibverbs has no driver for it.
    #[error(
        "libibverbs has no driver for RDMA device {device}; install ibverbs-providers, or what the adapter's vendor offers"
    )]
    NoProvider {
        /// The device's name.
        device: String,
    },
    /// The kernel has the device, programs cannot reach it.
    #[error(
        "RDMA device {device} has no character device in /dev/infiniband; `modprobe ib_uverbs`, and in a container pass \
         /dev/infiniband in (`--device=/dev/infiniband`)"
    )]
    NoUverbs {
        /// The device's name.
        device: String,
    },
    /// There are devices, but none of that name.
    #[error("no RDMA device is called {name}; there are: {known}")]
    UnknownDevice {
        /// The name requested.
        name: String,
        /// The names there are, with a space between.
        known: String,
    },
    /// This user may not open the device.
    #[error(
        "no permission to open {path}; the kernel makes it readable and writable for everyone, so a udev rule (`udevadm test`) or \
         a container took that back: add this user to the file's group, or allow the device (`--device=/dev/infiniband`)"
    )]
    Permission {
        /// The character device.
        path: String,
    },
    /// The limit of locked memory is too low for a registration or a queue.
    #[error(
        "{device}: {len} bytes cannot be locked: the limit (RLIMIT_MEMLOCK) is {limit} bytes, of which {pinned} are used; raise \
         it with `ulimit -l unlimited`, in /etc/security/limits.d (memlock), by LimitMEMLOCK=infinity of the systemd unit, or \
         by `--ulimit memlock=-1` of the container"
    )]
    MemoryLock {
        /// The device's name.
        device: String,
        /// Bytes requested.
        len: usize,
        /// The limit in bytes.
        limit: u64,
        /// Bytes that this process has pinned already.
        pinned: u64,
    },
    /// The kernel or the device is out of memory, or of memory regions; or the caller's range is not mapped, which the
    /// kernel may not distinguish from that.
    #[error(
        "{device}: no memory to register {len} bytes; free memory, or register fewer and larger ranges (and see that the range \
         is mapped)"
    )]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Bytes requested.
        len: usize,
    },
    /// A registration of no bytes.
    #[error("{device}: no bytes to register; give a range of at least one byte")]
    Empty {
        /// The device's name.
        device: String,
    },
    /// libibverbs is too old for dma-bufs.
    #[error(
        "{device}: libibverbs has no ibv_reg_dmabuf_mr; install rdma-core 34 or later, or load nvidia_peermem"
    )]
    DmabufLibrary {
        /// The device's name.
        device: String,
    },
    /// The kernel or the device's driver takes no dma-bufs, or not this one.
    #[error(
        "{device}: a dma-buf of {len} bytes was not registered ({errno}); that needs Linux 5.12 or later, a NIC whose driver takes \
         dma-bufs (mlx5, irdma) and the GPU's open kernel modules; without them load nvidia_peermem"
    )]
    Dmabuf {
        /// The device's name.
        device: String,
        /// Bytes of the range.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel does not recognise a range of another device's memory.
    #[error(
        "{device}: {len} bytes of a GPU's memory were not registered by their address ({errno}); `modprobe nvidia_peermem` on this \
         host, and see that the NIC's driver was there before it"
    )]
    PeerMemory {
        /// The device's name.
        device: String,
        /// Bytes of the range.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A path MTU that InfiniBand does not have.
    #[error("{bytes} bytes are no path MTU; it is one of 256, 512, 1024, 2048 and 4096")]
    PathMtu {
        /// The size given.
        bytes: u32,
    },
    /// The peer's address has no neighbour on the link.
    #[error(
        "{device}: the peer's address could not be resolved ({errno}); check that both ends are up and in one network, with \
         `ping` from interface to interface"
    )]
    Unreachable {
        /// The device's name.
        device: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel's routes could not be queried.
    #[error("the kernel's routes cannot be asked over netlink: {errno}; allow AF_NETLINK sockets")]
    Routing {
        /// The kernel's error.
        errno: Errno,
    },
    /// Another call failed.
    #[error("{device}: {call}: {errno}; the kernel's log may say more (`dmesg`)")]
    Call {
        /// The device's name, or "RDMA" where no device is meant.
        device: String,
        /// The function of libibverbs and its purpose.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl VerbsError {
    pub(super) fn call(device: &str, call: &'static str, errno: Errno) -> Self {
        Self::Call { device: device.to_owned(), call, errno }
    }

    /// A registration of `len` bytes that failed with `errno`.
    pub(super) fn registration(device: &str, len: usize, errno: Errno) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::registration_with(
            device,
            len,
            errno,
            LockedMemory::of(super::sys::memory_lock_limit(), &status),
        )
    }

    /// A registration of a dma-buf that failed. Limits of locked memory do not count there.
    pub(super) fn dmabuf(device: &str, len: usize, error: DmabufError) -> Self {
        let device = device.to_owned();
        match error {
            DmabufError::Library => Self::DmabufLibrary { device },
            DmabufError::Call(errno) if errno.0 == libc::ENOMEM => Self::OutOfMemory { device, len },
            DmabufError::Call(errno) => Self::Dmabuf { device, len, errno },
        }
    }

    /// A registration of another device's memory, by its address, that failed.
    pub(super) fn peer_memory(device: &str, len: usize, errno: Errno) -> Self {
        match errno.0 {
            libc::ENOMEM => Self::registration(device, len, errno),
            _ => Self::PeerMemory { device: device.to_owned(), len, errno },
        }
    }

    fn registration_with(device: &str, len: usize, errno: Errno, locked: LockedMemory) -> Self {
        let device = device.to_owned();
        if errno.0 != libc::ENOMEM {
            return Self::Call { device, call: "ibv_reg_mr", errno };
        }
        match locked {
            LockedMemory { limit: Some(limit), pinned, privileged: false }
                if pinned.saturating_add(len as u64) > limit =>
            {
                Self::MemoryLock { device, len, limit, pinned }
            }
            _ => Self::OutOfMemory { device, len },
        }
    }
}

/// How much memory this process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LockedMemory {
    /// RLIMIT_MEMLOCK in bytes; `None`: no limit.
    limit: Option<u64>,
    /// Bytes pinned by devices.
    pinned: u64,
    /// Whether the process has CAP_IPC_LOCK, so that the limit does not count.
    privileged: bool,
}

impl LockedMemory {
    /// CAP_IPC_LOCK of capability.h.
    const CAP_IPC_LOCK: u32 = 14;

    /// From the limit and the text of /proc/self/status (proc(5)).
    fn of(limit: Option<u64>, status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()
        };
        let pinned = field("VmPin").and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
        let capabilities = field("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        Self {
            limit,
            pinned: pinned.saturating_mul(1024),
            privileged: capabilities >> Self::CAP_IPC_LOCK & 1 == 1,
        }
    }
}

#[cfg(test)]
mod tests;
