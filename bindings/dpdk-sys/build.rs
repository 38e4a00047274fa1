//! Binds and links DPDK: bindgen into OUT_DIR, the C shim, and the archives named in libraries.txt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, panic};

/// The bound functions and constants. Types follow from them.
const FUNCTIONS: &[&str] = &[
    "shouter_dpdk_.*",
    "rte_eal_(init|cleanup|get_runtime_dir|has_hugepages|has_pci|hotplug_add|hotplug_remove|iova_mode|process_type)",
    "rte_eth_(add|remove)_.*",
    "rte_eth_dev_(adjust_nb_rx_tx_desc|close|configure|count_avail|get_mtu|get_name_by_port|get_port_by_name)",
    "rte_eth_dev_(info_get|is_valid_port|set_mtu|socket_id|start|stop|owner_.*)",
    "rte_eth_(link_get_nowait|macaddr_get|promiscuous_enable|allmulticast_enable|stats_get|stats_reset)",
    "rte_eth_dev_(default_mac_addr_set|rss_reta_update)",
    "rte_eth_dev_rx_intr_(ctl_q_get_fd|disable|enable)",
    "rte_eth_(rx|tx)_(burst|queue_setup|queue_info_get)",
    "rte_eth_tx_prepare",
    "rte_eth_find_next",
    "rte_pktmbuf_(alloc|alloc_bulk|attach_extbuf|free|free_bulk|pool_create|pool_create_by_ops|reset)",
    "rte_mempool_(avail_count|free|in_use_count|lookup|mem_iter|obj_iter)",
    "rte_thread_(register|unregister)",
    "rte_lcore_(count|id)",
    "rte_socket_(count|id)",
    "rte_log_(set_global_level|set_level|set_level_pattern|set_level_regexp|get_global_level|dump)",
    "rte_openlog_stream",
    "rte_strerror",
    "rte_version",
    "rte_malloc_get_socket_stats",
    "rte_extmem_(register|unregister|attach|detach)",
    "rte_dev_(dma_map|dma_unmap|probe|remove)",
];
const CONSTANTS: &[&str] = &[
    "RTE_ETH_(RX|TX)_OFFLOAD_.*",
    "RTE_ETH_LINK_.*",
    "RTE_ETH_(MQ|RETA)_.*",
    "RTE_ETH_RSS_NONFRAG_IPV4_(TCP|UDP)",
    "RTE_ETHER_(ADDR_LEN|CRC_LEN|HDR_LEN|MAX_JUMBO_FRAME_LEN|MAX_LEN|MTU)",
    "RTE_LOG_.*",
    "RTE_LOGTYPE_(EAL|PMD)",
    "RTE_MAX_(ETHPORTS|LCORE)",
    "RTE_MBUF_F_(TX|RX)_(IP|L4|LRO|IPV4|IPV6|UDP|TCP).*",
    "RTE_MEMPOOL_CACHE_MAX_SIZE",
    "RTE_PKTMBUF_HEADROOM",
    "RTE_BAD_IOVA",
];
/// Structures with packed or aligned members that bindgen cannot lay out; nothing here accesses their fields.
const OPAQUE: &[&str] = &[
    "rte_arp_.*",
    "rte_ether_hdr",
    "rte_flow_.*",
    "rte_geneve_.*",
    "rte_gtp_.*",
    "rte_ipv6_.*",
    "rte_l2tpv2_.*",
    "rte_vxlan_.*",
];

/// One line of libraries.txt.
struct Library {
    kind: String,
    name: String,
    package: String,
}

fn main() {
    println!("cargo:rerun-if-changed=libraries.txt");
    println!("cargo:rerun-if-changed=src/shim.h");
    println!("cargo:rerun-if-changed=src/shim.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let dpdk = pkg_config::Config::new().cargo_metadata(false).atleast_version("22.11").probe("libdpdk");
    let dpdk = match dpdk {
        Ok(dpdk) => dpdk,
        Err(e) => fail(&format!(
            "DPDK 22.11 or later was not found by pkg-config. On Debian and Ubuntu:\n\
             \n    apt-get install libdpdk-dev pkg-config\n\n\
             or build without DPDK: --no-default-features.\n\npkg-config said: {e}"
        )),
    };
    let cflags = pkg_config_flags();
    bind(&out, &cflags);
    compile_shim(&out, &cflags);
    link(&out, &dpdk.link_paths);
}

/// The compiler flags of DPDK: include paths, its configuration header, its minimum instruction set.
fn pkg_config_flags() -> Vec<String> {
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = match Command::new(&tool).args(["--cflags", "libdpdk"]).output() {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => fail(&format!("{tool} --cflags libdpdk: {}", String::from_utf8_lossy(&output.stderr))),
        Err(e) => fail(&format!("{tool} cannot be run ({e}); apt-get install pkg-config")),
    };
    String::from_utf8_lossy(&output).split_whitespace().map(str::to_owned).collect()
}

fn bind(out: &Path, cflags: &[String]) {
    let mut builder = bindgen::Builder::default()
        .header("src/shim.h")
        .clang_args(cflags)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join("inlined"))
        // Without it, constants defined through RTE_BIT64(...) are silently missing.
        .clang_macro_fallback()
        .clang_macro_fallback_build_dir(out)
        .wrap_unsafe_ops(true)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false);
    for pattern in FUNCTIONS {
        builder = builder.allowlist_function(pattern);
    }
    for pattern in CONSTANTS {
        builder = builder.allowlist_var(pattern);
    }
    for pattern in OPAQUE {
        builder = builder.opaque_type(pattern);
    }
    // bindgen panics, rather than returning, when libclang is absent.
    match panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate())) {
        Ok(Ok(bindings)) => {
            if let Err(e) = bindings.write_to_file(out.join("bindings.rs")) {
                fail(&format!("{}: {e}", out.display()));
            }
        }
        Ok(Err(e)) => fail(&format!("DPDK's headers could not be read: {e}")),
        Err(_) => {
            fail("libclang was not found (see above). On Debian and Ubuntu: apt-get install libclang-dev")
        }
    }
}

fn compile_shim(out: &Path, cflags: &[String]) {
    let mut build = cc::Build::new();
    build.file("src/shim.c").file(out.join("inlined.c")).include(".").opt_level(3).warnings(false);
    for flag in cflags {
        build.flag(flag);
    }
    // rustc links it after the archives, and it refers to them: ld needs cargo's order (this first).
    build.compile("shouter_dpdk_shim");
    println!("cargo:shim={}", out.join("libshouter_dpdk_shim.a").display());
}

fn link(out: &Path, link_paths: &[PathBuf]) {
    let libraries = libraries();
    let mut archives = Vec::new();
    for directory in link_paths {
        println!("cargo:rustc-link-search=native={}", directory.display());
    }
    for library in libraries.iter().filter(|l| l.kind != "system") {
        let file = format!("lib{}.a", library.name);
        let Some(path) = link_paths.iter().map(|d| d.join(&file)).find(|p| p.exists()) else {
            fail(&format!("{file} was not found in {link_paths:?}; apt-get install {}", library.package));
        };
        archives.push(path.display().to_string());
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={}", library.name);
    }
    let system: Vec<&str> =
        libraries.iter().filter(|l| l.kind == "system").map(|l| l.name.as_str()).collect();
    for library in libraries.iter().filter(|l| l.kind == "system") {
        let file = format!("lib{}.so", library.name);
        if !link_paths.iter().chain([&PathBuf::from("/usr/lib")]).any(|d| d.join(&file).exists()) {
            println!(
                "cargo:warning={file} was not found; if linking fails: apt-get install {}",
                library.package
            );
        }
        println!("cargo:rustc-link-lib=dylib={}", library.name);
    }
    println!("cargo:archives={}", archives.join(";"));
    println!("cargo:system_libs={}", system.join(";"));

    let drivers: Vec<&str> = libraries
        .iter()
        .filter(|l| l.kind == "driver")
        .map(|l| l.name.strip_prefix("rte_net_").unwrap_or(&l.name))
        .collect();
    let text = format!(
        "/// Drivers that are linked, by DPDK's short names (`virtio`, `ixgbe`...).\n\
         pub const DRIVERS: &[&str] = &{drivers:?};\n"
    );
    if let Err(e) = fs::write(out.join("linked.rs"), text) {
        fail(&format!("{}: {e}", out.display()));
    }
}

/// The lines of libraries.txt, without those of disabled features.
fn libraries() -> Vec<Library> {
    let text = match fs::read_to_string("libraries.txt") {
        Ok(text) => text,
        Err(e) => fail(&format!("libraries.txt: {e}")),
    };
    let mut libraries = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind @ ("archive" | "driver" | "system"), name, package, feature @ ..] = words.as_slice() else {
            fail(&format!("libraries.txt: `{line}` is not KIND NAME PACKAGE [feature=FEATURE]"));
        };
        let wanted = feature.iter().all(|f| {
            let name = f.strip_prefix("feature=").unwrap_or(f).to_uppercase();
            env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
        });
        if wanted {
            libraries.push(Library {
                kind: (*kind).to_owned(),
                name: (*name).to_owned(),
                package: (*package).to_owned(),
            });
        }
    }
    libraries
}

/// Ends the build with a message for people.
fn fail(message: &str) -> ! {
    eprintln!("\nshouter-dpdk-sys: {message}\n");
    std::process::exit(1);
}
