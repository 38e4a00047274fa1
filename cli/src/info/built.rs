//! The features of this program, on any host.

use shouter_reducer::kernel::{Kernels, Level};

use super::Item;

/// Every feature, built in or not.
pub(super) fn items() -> Vec<Item> {
    let mut items = vec![Item::ok("shouter", format!("{} for {}", env!("CARGO_PKG_VERSION"), target()))];
    items.extend(dpdk());
    items.push(if cfg!(feature = "verbs") {
        Item::ok("verbs", "RDMA (RoCEv2; InfiniBand never run) through the host's libibverbs")
    } else {
        Item::not_built_in(
            "verbs",
            "this build has no RDMA (RoCEv2, InfiniBand)",
            "install libibverbs-dev and librdmacm-dev and build with the feature `verbs`, which is on by default",
        )
    });
    items.push(if cfg!(feature = "cuda") {
        Item::ok("cuda", "tensors in GPU memory, through the host's NVIDIA driver; see GPUs")
    } else {
        Item::not_built_in(
            "cuda",
            "this build takes no tensors in GPU memory",
            "build with the feature `cuda`, which is on by default",
        )
    });
    items.push(kernels(Kernels::detect().level()));
    items
}

fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

#[cfg(feature = "dpdk")]
fn dpdk() -> Vec<Item> {
    use shouter_netstack::device::dpdk::Eal;

    let description = Eal::describe();
    let has = |names: &[&str]| names.iter().all(|name| description.drivers.contains(name));
    let links: Vec<&str> = [("vhost with virtio", has(&["vhost", "virtio"])), ("memif", has(&["memif"]))]
        .into_iter()
        .filter_map(|(link, there)| there.then_some(link))
        .collect();
    vec![
        Item::ok("dpdk", format!("{}, linked statically", description.version)),
        Item::ok("dpdk drivers", description.drivers.join(" ")),
        if links.is_empty() {
            Item::not_built_in(
                "embedded links",
                "neither vhost with virtio nor memif is linked",
                "add the drivers to bindings/dpdk-sys/libraries.txt and build again",
            )
        } else {
            Item::ok(
                "embedded links",
                format!("{}; over UNIX sockets, without root or hugepages", links.join(", ")),
            )
        },
    ]
}

#[cfg(not(feature = "dpdk"))]
fn dpdk() -> Vec<Item> {
    vec![Item::not_built_in(
        "dpdk",
        "this build has no DPDK: its ranks can meet on one host only",
        "install libdpdk-dev and build with the feature `dpdk`, which is on by default",
    )]
}

/// The instructions that reductions use on this CPU.
fn kernels(level: Level) -> Item {
    match level {
        Level::Avx512 => Item::ok("reduction kernels", "AVX-512 (F, BW, DQ, VL)"),
        Level::Avx2 => Item::ok("reduction kernels", "AVX2 with F16C"),
        Level::Portable if cfg!(target_arch = "x86_64") => Item::missing(
            "reduction kernels",
            "portable; this CPU offers neither AVX-512 nor AVX2 with F16C",
            "nothing has to be done; in a virtual machine, pass the host's CPU through",
        ),
        Level::Portable => Item::ok("reduction kernels", "portable, as the compiler vectorises them"),
    }
}
