//! Raw FFI to DPDK 22.11.
//!
//! bindgen makes the bindings at build time from Debian's `libdpdk-dev`; DPDK itself is linked statically, from the
//! explicit list in `libraries.txt`, each archive whole, since a driver is reached only through the constructor that
//! registers it. Names are DPDK's own; its [API reference](https://doc.dpdk.org/api-22.11/) documents them.
//!
//! Static inline functions (`rte_eth_rx_burst` and the like) are called through out-of-line copies: about a
//! nanosecond per call, paid once a burst.
//!
//! A C shim has the functions that cannot be bound directly: `shouter_dpdk_errno` for the thread-local `rte_errno`,
//! `shouter_dpdk_lcore_swap` for the thread-local lcore id, and `shouter_dpdk_log_*`, which keeps DPDK's log lines in
//! memory so that an error can quote them.
//!
//! For crates that depend on this one directly, the build script publishes `DEP_DPDK_ARCHIVES` (paths of the
//! archives, in link order, separated by `;`), `DEP_DPDK_SYSTEM_LIBS` (names, likewise) and `DEP_DPDK_SHIM` (the
//! archive with the shim and the out-of-line copies).

// Generated code, and identifiers that are DPDK's.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

include!(concat!(env!("OUT_DIR"), "/linked.rs"));
