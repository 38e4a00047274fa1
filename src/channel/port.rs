//! This host's ports, as the configuration names them: opened, addressed, and put under one stack.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use shouter_netstack::device::{Device, Fault, FaultConfig, Spread, spread};
use shouter_netstack::ip::{Prefix, Route};
use shouter_netstack::rss::{Rss, SYMMETRIC_KEY};
use shouter_netstack::rud;
use shouter_netstack::stack::{PortConfig as StackPort, Stack, StackConfig};

use super::sys::interface_mtu;
use super::up::Registry;
use crate::config::{Config, PortConfig, TransportChoice};
use crate::error::Error;
use crate::key;
use crate::runtime::Clock;

/// The MTU of a data network for which none is configured: that of embedded links.
pub(crate) const DEFAULT_MTU: u16 = 9_000;

/// The queue that RUD aims at where all ports are links to other processes. There is no switch in between whose buffer
/// could overflow: a full ring stops its sender. An apparent queue is a peer that computes.
const EMBEDDED_QUEUE: Duration = Duration::from_millis(1);

/// Drivers of such links.
const EMBEDDED: [&str; 4] = ["vhost", "virtio", "memif-server", "memif-client"];

/// A port with its faults (none, unless they were configured).
#[cfg(feature = "dpdk")]
pub type PortDevice = Fault<Spread<shouter_netstack::device::dpdk::DpdkDevice>>;
/// A port of a build without DPDK; there is none to open.
#[cfg(not(feature = "dpdk"))]
pub type PortDevice = Fault<Spread<shouter_netstack::device::Loopback>>;

/// Ports under stacks: each queue of the ports is that of one stack, over all of them.
pub struct Ports {
    /// The stack of each shard.
    pub stacks: Vec<Stack<PortDevice>>,
    /// The kind of the first port.
    pub kind: &'static str,
    /// The memory that NICs among the ports read where it lies.
    pub memory: Option<Box<dyn Registry + Send>>,
}

/// Opens every port of the configuration and waits until its other side is there.
///
/// # Errors
/// [`Error::Config`] or [`Error::Device`], with the remedy.
pub fn open(config: &Config, rud: rud::Config) -> Result<Ports, Error> {
    let rud = match config.ports.iter().all(is_embedded) {
        true => rud::Config { queue_delay: EMBEDDED_QUEUE, ..rud },
        false => rud,
    };
    // The same on all hosts: a shard's packets then arrive at the shard of the same number.
    let rss = (config.shards > 1 && config.ports.iter().any(is_nic))
        .then(|| Rss::new(&SYMMETRIC_KEY, config.shards as u16));
    let stack = |shard: u32| {
        let seed = Clock.now().as_nanos() ^ u64::from(std::process::id()) << 40 ^ u64::from(shard) << 32;
        let mut stack_config = StackConfig::new(seed).with_rud(config.data_port);
        stack_config.rud = rud.clone();
        stack_config.tcp.key = randomness()?;
        stack_config.rss = rss.clone().zip(u16::try_from(shard).ok());
        Ok::<_, Error>(Stack::new(stack_config))
    };
    let mut stacks = (0..config.shards).map(stack).collect::<Result<Vec<_>, _>>()?;
    if let Some((first, others)) = stacks.split_first_mut() {
        others.iter_mut().for_each(|other| other.rud_mut().share_network_with(first.rud()));
    }
    let (mut kind, mut memory) = ("none", vec![]);
    let until = Clock.now() + config.rendezvous_deadline;
    for (index, port) in config.ports.iter().enumerate() {
        check_address(config, port)?;
        let (devices, of_port) = device::open(config, port, until)?;
        memory.extend(of_port.filter(|_| is_nic(port)));
        let mtu = mtu_of(config, port);
        if let Some(configured) = port.mtu.or(config.mtu).filter(|configured| *configured > mtu) {
            tracing::warn!(
                port = port.device,
                configured,
                mtu,
                "the interface takes no longer packets than its own MTU"
            );
        }
        let devices = spread(devices, rss.as_ref().filter(|_| is_nic(port)));
        for ((device, stack), queue) in devices.into_iter().zip(&mut stacks).zip(0u64..) {
            kind = device.capabilities().kind;
            let faults = FaultConfig {
                seed: config
                    .faults
                    .seed
                    .wrapping_add(u64::from(config.rank) << 32 | queue << 16 | index as u64),
                loss: config.faults.loss,
                corrupt: config.faults.corrupt,
                ..FaultConfig::default()
            };
            let device = Fault::new(device, faults).map_err(|why| Error::Config(why.to_string()))?;
            stack
                .add_port(device, addressing(port, mtu))
                .map_err(|why| Error::Config(format!("port {}: {why}", port.device)))?;
        }
    }
    Ok(Ports { stacks, kind, memory: device::registry(memory) })
}

/// Whether a port is a NIC.
fn is_nic(port: &PortConfig) -> bool {
    port.device.starts_with("pci:")
}

/// Whether a port is a link to another process.
fn is_embedded(port: &PortConfig) -> bool {
    port.device.split_once(':').is_some_and(|(driver, _)| EMBEDDED.contains(&driver))
}

/// Fails where another group of this process has one of the ports that this one may open.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn check_free(config: &Config) -> Result<(), Error> {
    let takes_ports =
        matches!(config.transport, TransportChoice::Auto | TransportChoice::Rud | TransportChoice::Tcp);
    let mut ports = config.ports.iter().filter(|_| takes_ports);
    ports.try_for_each(device::check_free)
}

/// Unpredictable random bytes.
pub(crate) fn randomness() -> Result<[u8; 32], Error> {
    key::random().map_err(|why| Error::Internal(why.to_string()))
}

/// The MTU of a port in bytes: the configured one, or less where an interface of the kernel's takes less.
pub fn mtu_of(config: &Config, port: &PortConfig) -> u16 {
    let configured = port.mtu.or(config.mtu).unwrap_or(DEFAULT_MTU);
    let most = match port.device.split_once(':') {
        Some(("af_packet" | "af_xdp" | "tap", name)) => interface_mtu(name),
        _ => None,
    };
    most.and_then(|most| u16::try_from(most).ok()).map_or(configured, |most| most.min(configured))
}

/// Our TCP cannot share an address with the kernel's, which sees the same packets and answers them with resets.
fn check_address(config: &Config, port: &PortConfig) -> Result<(), Error> {
    let ip = port.address.ip;
    let shares = config.transport == TransportChoice::Tcp && port.device.starts_with("af_packet:");
    // Where programs may bind addresses that the host does not have, the check proves nothing.
    let anything = fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind");
    let tells = anything.is_ok_and(|value| value.trim() == "0");
    if shares && tells && UdpSocket::bind((ip, 0)).is_ok() {
        return Err(Error::Config(format!(
            "port {}: {ip} is an address of this host's kernel, which would reset our TCP connections; give the port another              address of the same network, which no interface has (`ip address`), or use transport = \"rud\"",
            port.device
        )));
    }
    Ok(())
}

/// A port's addresses for the stack: hosts that are named have a route of their own.
fn addressing(port: &PortConfig, mtu: u16) -> StackPort {
    let mut stack_port = StackPort::new(port.address.ip, port.address.prefix_len, mtu);
    stack_port.gateway = port.gateway;
    stack_port.routes = port.peers.iter().filter_map(|peer| host_route(*peer)).collect();
    stack_port
}

fn host_route(peer: Ipv4Addr) -> Option<Route> {
    Some(Route { prefix: Prefix::new(peer, 32)?, gateway: None })
}

#[cfg(feature = "dpdk")]
mod device {
    use std::fs;
    use std::sync::Mutex;

    use shouter_netstack::device::dpdk::{
        DeviceSpec, DpdkDevice, DpdkPortConfig, Eal, EalConfig, Layout, Port, PortError, PortMemory,
    };
    use shouter_netstack::time::Instant;

    use super::{Config, Error, Registry, mtu_of};
    use crate::channel::rud::memory::NicMemory;
    use crate::config::{Hugepages, to_cores};
    use crate::runtime::{Clock, CoreAllowance};

    /// Fails where this process has the port open.
    pub(super) fn check_free(port: &crate::config::PortConfig) -> Result<(), Error> {
        match port.device.parse() {
            // A device that is none is an error when it is to be opened.
            Ok(device) if Port::is_open(&device) => {
                Err(Error::Device(PortError::Open { device }.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// The registry of memory of the process's own that ports read.
    pub(super) fn registry(ports: Vec<PortMemory>) -> Option<Box<dyn Registry + Send>> {
        Some(Box::new(NicMemory::new(ports)?))
    }

    /// Opens one port, waiting for its other side: a device for each queue, of which each shard has one, and a handle for memory that it may read.
    pub(super) fn open(
        config: &Config,
        port: &crate::config::PortConfig,
        until: Instant,
    ) -> Result<(Vec<DpdkDevice>, Option<PortMemory>), Error> {
        let spec: DeviceSpec =
            port.device.parse().map_err(|why| Error::Config(format!("port {}: {why}", port.device)))?;
        let eal = eal(config)?;
        let mut port_config = DpdkPortConfig::new(spec);
        port_config.mtu = mtu_of(config, port);
        port_config.offload = config.offload;
        port_config.queues = config.shards as u16;
        let opened = Port::open(eal, &port_config, until.saturating_since(Clock.now())).map_err(|why| {
            Error::Device(match why {
                PortError::Memory { .. } => format!("{why}; the key is dpdk_memory_mb"),
                PortError::Spread { .. } => format!("{why}; the key is shards, the same on all ranks"),
                why => why.to_string(),
            })
        })?;
        report(config, &port.device, &opened.layout());
        let memory = opened.memory();
        let devices = opened.into_devices();
        match devices.len() == config.shards as usize {
            true => Ok((devices, Some(memory))),
            false => Err(Error::Internal(format!(
                "port {}: {} queues for {} shards",
                port.device,
                devices.len(),
                config.shards
            ))),
        }
    }

    /// Says how a port was set up, and warns where a NIC's memory or this rank's cores are far from it.
    fn report(config: &Config, port: &str, layout: &Layout) {
        let Layout { rings: (receive, transmit), buffers, room, node, is_near } = *layout;
        tracing::info!(port, receive, transmit, buffers, room, ?node, "a port is open");
        let Some(node) = node else { return };
        if !is_near {
            tracing::warn!(
                port,
                node,
                "too few hugepages are free on the NIC's NUMA node, so its buffers are on another one; reserve dpdk_memory_mb there \
                 (`scripts/hugepages reserve PAGES --node NODE`)"
            );
        }
        let cores = match config.cores.is_empty() {
            true => CoreAllowance::detect().cores,
            false => config.cores.clone(),
        };
        let near =
            fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
        if are_far(&cores, near.trim()) {
            tracing::warn!(
                port,
                node,
                near = near.trim(),
                ?cores,
                "all of this rank's cores are on other NUMA nodes than the NIC, and all that it receives or sends goes from one to the \
                 other; give the rank cores of that node (the key cores, or the launcher's binding), or another NIC"
            );
        }
    }

    /// Whether none of the cores is among those `near`, a list as the kernel writes it; not where nothing is known of them.
    pub(super) fn are_far(cores: &[usize], near: &str) -> bool {
        let near = to_cores(near).unwrap_or_default();
        !near.is_empty() && !cores.is_empty() && !cores.iter().any(|core| near.contains(core))
    }

    /// DPDK, started once in the process's life.
    fn eal(config: &Config) -> Result<&'static Eal, Error> {
        static STARTED: Mutex<Option<&'static Eal>> = Mutex::new(None);
        let mut started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(eal) = *started {
            return Ok(eal);
        }
        let pci = config.ports.iter().filter_map(|port| match port.device.parse() {
            Ok(DeviceSpec::Pci(address)) => Some(address.to_string()),
            _ => None,
        });
        let eal_config = EalConfig {
            memory_mb: config.dpdk_memory_mb,
            hugepages: config.hugepages == Hugepages::On,
            pci: pci.collect(),
            ..EalConfig::default()
        };
        let eal = Eal::init(&eal_config).map_err(|why| Error::Device(why.to_string()))?;
        Ok(started.insert(eal))
    }
}

#[cfg(not(feature = "dpdk"))]
mod device {
    use shouter_netstack::device::Loopback;
    use shouter_netstack::time::Instant;

    use super::{Config, Error, Registry};

    /// There is none to be taken.
    pub(super) fn check_free(_: &crate::config::PortConfig) -> Result<(), Error> {
        Ok(())
    }

    /// Nothing is read where it lies.
    pub(super) fn registry(_: Vec<std::convert::Infallible>) -> Option<Box<dyn Registry + Send>> {
        None
    }

    /// There is nothing to open.
    pub(super) fn open(
        _: &Config,
        port: &crate::config::PortConfig,
        _: Instant,
    ) -> Result<(Vec<Loopback>, Option<std::convert::Infallible>), Error> {
        Err(Error::Device(format!(
            "port {}: this build has no DPDK; build with the feature 'dpdk'",
            port.device
        )))
    }
}

#[cfg(all(test, feature = "dpdk"))]
mod tests;
