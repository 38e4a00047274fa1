//! The link of a DPDK port is that of the kernel's interface that it stands on.

use std::thread;
use std::time::{Duration, Instant};

use shouter_netstack::device::Device;
use shouter_netstack::device::dpdk::{DpdkDevice, DpdkPortConfig, Eal, EalConfig, Port, PortError};

use super::run;

/// A port over a new veth; `None` if the namespace may not have such a port.
fn open(kind: &str) -> Option<DpdkDevice> {
    run("ip", "link add link0 type veth peer name link1");
    run("ip", "link set link0 up");
    run("ip", "link set link1 up");
    match port(&format!("{kind}:link0")) {
        Ok(device) => Some(device),
        Err(why @ (PortError::Attach { .. } | PortError::SetUp { .. })) if kind == "af_xdp" => {
            println!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn port(device: &str) -> Result<DpdkDevice, PortError> {
    let eal = Eal::init(&EalConfig::default()).expect("DPDK starts");
    let config = DpdkPortConfig { mtu: 1500, ..DpdkPortConfig::new(device.parse().unwrap()) };
    Ok(Port::try_open(eal, &config)?.into_devices().remove(0))
}

/// What the port says of its link to a thread that is in another network namespace.
fn from_elsewhere(device: &mut DpdkDevice) -> bool {
    let look = || {
        // SAFETY: it concerns this thread alone, which ends soon.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        device.link_up()
    };
    thread::scope(|scope| scope.spawn(look).join().unwrap())
}

/// Waits until the port says that its link is `up`, or not: the kernel takes note of a carrier within a second.
fn becomes(device: &mut DpdkDevice, up: bool, when: &str) {
    let begun = Instant::now();
    while device.link_up() != up {
        assert!(begun.elapsed() < Duration::from_secs(10), "{when}: up is {}", !up);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(from_elsewhere(device), up, "{when}");
}

fn follows_the_interface(kind: &str) {
    let Some(mut device) = open(kind) else { return };
    becomes(&mut device, true, "both ends are up");
    run("ip", "link set link1 down");
    becomes(&mut device, false, "there is no carrier");
    run("ip", "link set link1 up");
    becomes(&mut device, true, "there is a carrier again");
    run("ip", "link set link0 down");
    becomes(&mut device, false, "it is set down");
    run("ip", "link set link0 name other0");
    run("ip", "link set other0 up");
    becomes(&mut device, true, "it is up under another name");
    run("ip", "link delete other0");
    becomes(&mut device, false, "it is deleted");
    run("ip", "link add other0 type veth peer name link1");
    run("ip", "link set other0 up");
    run("ip", "link set link1 up");
    let mut other = port("af_packet:other0").expect("a port over the new interface");
    becomes(&mut other, true, "the new interface of that name is up");
    becomes(&mut device, false, "the new interface is another one");
}

#[test]
fn a_packet_sockets_is() {
    super::in_namespace("link::a_packet_sockets_is", true, || follows_the_interface("af_packet"));
}

#[test]
fn an_xdp_sockets_is() {
    super::in_namespace("link::an_xdp_sockets_is", true, || follows_the_interface("af_xdp"));
}
