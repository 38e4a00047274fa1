//! How a device gets addresses and becomes a queue for each shard.

use std::io;

use rand::TryRngCore;
use rand::rngs::OsRng;
use shouter_netstack::device::{Device, Steered, steer};
use shouter_netstack::rss::{Rss, SYMMETRIC_KEY};
use shouter_netstack::stack::{PortConfig as Addresses, Stack, StackConfig};
use shouter_netstack::tcp::Options as TcpOptions;

use super::shard_stack::{Net, NetPoller, net};

/// Settings that the stacks on a device share: its addresses, and the options that TCP connections begin with.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Addresses, routes and MTU.
    pub addresses: Addresses,
    /// The options of connections that are given no others.
    pub tcp: TcpOptions,
}

impl Interface {
    /// With the default options.
    pub fn new(addresses: Addresses) -> Self {
        Self { addresses, tcp: TcpOptions::default() }
    }

    /// A queue pair of the device for each of so many shards (at least one).
    ///
    /// The device's single queue is polled by shard 0, which hands the frames of other shards' connections to them: a
    /// hash of addresses and ports gives a connection's shard, so all of its frames come to one shard, and a connection
    /// that a shard opens leaves from a port whose answers come back there. Frames are handed over, not accepted
    /// connections: the state of a connection belongs to its shard's stack.
    pub fn queues<D: Device>(&self, device: D, shards: u16) -> Vec<Queue<D>> {
        let shards = shards.max(1);
        let rss = Rss::new(&SYMMETRIC_KEY, shards);
        steer(device, rss.clone(), shards)
            .into_iter()
            .zip(0..)
            .map(|(device, shard)| Queue {
                interface: self.clone(),
                device,
                rss: (shards > 1).then(|| (rss.clone(), shard)),
            })
            .collect()
    }
}

/// A shard's queue pair, on its way to the shard's thread.
#[derive(Debug)]
pub struct Queue<D> {
    interface: Interface,
    device: Steered<D>,
    /// How flows are dealt out, and which shard this is.
    rss: Option<(Rss, u16)>,
}

impl<D: Device + 'static> Queue<D> {
    /// The shard that it belongs to.
    pub fn shard(&self) -> u16 {
        self.rss.as_ref().map_or(0, |(_, shard)| *shard)
    }

    /// Puts a stack on it: returns the handle for the shard's tasks, and the poller for the shard.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for addresses that no host can have; and if the system gives no randomness.
    pub fn open(self) -> io::Result<(Net, NetPoller<Steered<D>>)> {
        let mut key = [0; 32];
        OsRng.try_fill_bytes(&mut key).map_err(io::Error::other)?;
        let mut config = StackConfig::new(OsRng.try_next_u64().map_err(io::Error::other)?);
        config.tcp.key = key;
        config.tcp.options = self.interface.tcp;
        config.rss = self.rss;
        let mut stack = Stack::new(config);
        stack
            .add_port(self.device, self.interface.addresses)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(net(stack))
    }
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::io;
    use std::time::Duration;

    use shouter_netstack::device::dpdk::{DeviceSpec, DpdkDevice, DpdkPortConfig, Eal, EalConfig, Port};

    /// Opens a device through DPDK, with checksums and segmentation left to it where it can; frames carry IP packets of `mtu`
    /// bytes at most. Waits at most `patience` for the other side of an embedded link. The process's first call starts DPDK,
    /// with this PCI device if it is one.
    ///
    /// # Errors
    /// DPDK's error, with the remedy.
    pub fn open(device: &DeviceSpec, mtu: u16, patience: Duration) -> io::Result<DpdkDevice> {
        let pci = match device {
            DeviceSpec::Pci(address) => vec![address.clone()],
            _ => vec![],
        };
        let eal = Eal::init(&EalConfig { pci, ..EalConfig::default() }).map_err(io::Error::other)?;
        let mut config = DpdkPortConfig::new(device.clone());
        config.mtu = mtu;
        config.offload = true;
        let port = Port::open(eal, &config, patience).map_err(io::Error::other)?;
        port.into_devices().into_iter().next().ok_or_else(|| io::Error::other("a port without queues"))
    }
}

#[cfg(feature = "dpdk")]
pub use dpdk::open;
