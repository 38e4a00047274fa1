//! The Linux kernel as a peer, in a network namespace of each test's own: two of our stacks may agree on a mistake.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code, missing_docs)]

mod flood;
mod link;
mod peer;
mod tap;

use std::process::Command;

use shouter_netstack::device::dpdk::{DpdkDevice, DpdkPortConfig, Eal, EalConfig, Port};

/// Set in the process that lives in the namespace.
const CHILD: &str = "SHOUTER_TEST_IN_NAMESPACE";

/// Runs `test`, which is called `name`, as root of a network namespace without interfaces, if the host can and `has`
/// all that it needs.
fn in_namespace(name: &str, has: bool, test: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return test();
    }
    let unshare = |as_root: &[&str], program: &std::path::Path| {
        let mut command = Command::new("unshare");
        command.args(as_root).args(["--net", "--"]).arg(program);
        command
    };
    let works = |as_root: &&&[&str]| unshare(as_root, "true".as_ref()).status().is_ok_and(|s| s.success());
    // The host's root may lock memory, which XDP sockets need.
    let ways: [&[&str]; 2] = [&[], &["--map-root-user"]];
    let Some(as_root) = ways.iter().find(works).filter(|_| has) else {
        println!("skipped: no network namespace, /dev/net/tun or ethtool here");
        return;
    };
    let mut child = unshare(as_root, &std::env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wrong}");
    println!("{said}");
}

/// Whether there are TAP interfaces.
fn has_tun() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_ok()
}

fn run(program: &str, arguments: &str) {
    let done = Command::new(program).args(arguments.split(' ')).output().expect("the program is there");
    assert!(done.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A DPDK device over an interface of the namespace.
fn device(name: &str) -> DpdkDevice {
    let eal = Eal::init(&EalConfig::default()).expect("DPDK starts");
    let config = DpdkPortConfig { mtu: 1500, ..DpdkPortConfig::new(name.parse().unwrap()) };
    Port::try_open(eal, &config).unwrap_or_else(|why| panic!("{why}")).into_devices().remove(0)
}
