//! The common part of the examples: a port that the command line opens and addresses, and a shard per queue.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
#[cfg(feature = "dpdk")]
use std::time::Duration;

use clap::Args;
use shouter::net::{Addresses, Congestion, Device, Interface, Ipv6Addresses, Net, Tap};
#[cfg(feature = "dpdk")]
use shouter::net::{DeviceSpec, open};
use shouter::runtime::ShardsBuilder;

/// The time limit for the other side of an embedded link.
#[cfg(feature = "dpdk")]
const PATIENCE: Duration = Duration::from_secs(30);

/// An address and the length of its prefix: `10.0.0.2/24`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cidr<A> {
    pub(crate) address: A,
    pub(crate) prefix_len: u8,
}

impl<A: FromStr> FromStr for Cidr<A> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once('/')
            .and_then(|(address, len)| {
                Some(Self { address: address.parse().ok()?, prefix_len: len.parse().ok()? })
            })
            .ok_or_else(|| format!("'{text}' is not an address with a prefix length, such as 10.0.0.2/24"))
    }
}

/// What carries the frames.
#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    /// A TAP interface; the kernel is at its other end.
    Tap(String),
    /// A port of DPDK's.
    #[cfg(feature = "dpdk")]
    Dpdk(DeviceSpec),
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("tap:") {
            Some(name) => Ok(Self::Tap(name.to_owned())),
            #[cfg(feature = "dpdk")]
            None => text.parse().map(Self::Dpdk).map_err(|why| format!("{why}")),
            #[cfg(not(feature = "dpdk"))]
            None => Err(format!("'{text}' is not tap:NAME; build with the feature dpdk for other devices")),
        }
    }
}

/// The port and its addresses.
#[derive(Args, Clone, Debug)]
pub(crate) struct PortArgs {
    /// The port: tap:NAME, an interface of the kernel's without DPDK; or of DPDK, if it is built in, af_packet:INTERFACE,
    /// af_xdp:INTERFACE, virtio:SOCKET, vhost:SOCKET or pci:ADDRESS
    #[arg(long)]
    pub(crate) device: Carrier,
    /// Our IPv4 address on it, with the prefix length: 10.0.0.2/24
    #[arg(long)]
    pub(crate) address: Cidr<Ipv4Addr>,
    /// Our IPv6 address on it, with the prefix length: fd00::2/64
    #[arg(long)]
    pub(crate) address6: Option<Cidr<Ipv6Addr>>,
    /// The router for everything else
    #[arg(long)]
    pub(crate) gateway: Option<IpAddr>,
    /// Largest IP packet in bytes
    #[arg(long, default_value_t = 1500)]
    pub(crate) mtu: u16,
    /// Congestion control of what we send: newreno, cubic, dctcp or bbr
    #[arg(long, default_value = "cubic", value_parser = congestion)]
    pub(crate) congestion: Congestion,
    /// Shards, a thread each, pinned to a core where there are more cores than shards; the port's frames are dealt out in software
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) shards: u16,
}

fn congestion(name: &str) -> Result<Congestion, String> {
    match name {
        "newreno" => Ok(Congestion::NewReno),
        "cubic" => Ok(Congestion::Cubic),
        "dctcp" => Ok(Congestion::Dctcp),
        "bbr" => Ok(Congestion::Bbr),
        _ => Err(format!("'{name}' is none of newreno, cubic, dctcp and bbr")),
    }
}

/// Opens the port, runs `each` on every shard's thread, and returns when all are done. SIGINT and SIGTERM ask the
/// shards to end.
pub(crate) fn run<F, R>(name: &str, args: &PortArgs, each: F) -> Result<(), Box<dyn Error>>
where
    F: Fn(Net) -> R + Clone + Send + 'static,
    R: Future<Output = io::Result<()>> + 'static,
{
    match &args.device {
        Carrier::Tap(interface) => serve(name, args, Tap::open(interface)?, each),
        #[cfg(feature = "dpdk")]
        Carrier::Dpdk(spec) => serve(name, args, open(spec, args.mtu, PATIENCE)?, each),
    }
}

fn serve<D, F, R>(name: &str, args: &PortArgs, device: D, each: F) -> Result<(), Box<dyn Error>>
where
    D: Device + Send + 'static,
    F: Fn(Net) -> R + Clone + Send + 'static,
    R: Future<Output = io::Result<()>> + 'static,
{
    let shards = ShardsBuilder::new().name(name).stop_on_signals().start(
        interface(args).queues(device, args.shards),
        move |queue| {
            let (net, poller) = queue.open()?;
            Ok((poller, each(net)))
        },
    )?;
    shards.join()?;
    Ok(())
}

fn interface(args: &PortArgs) -> Interface {
    let mut addresses = Addresses::new(args.address.address, args.address.prefix_len, args.mtu);
    if let Some(IpAddr::V4(gateway)) = args.gateway {
        addresses.gateway = Some(gateway);
    }
    addresses.ipv6 = args.address6.map(|Cidr { address, prefix_len }| {
        let mut ipv6 = Ipv6Addresses::new(address, prefix_len);
        if let Some(IpAddr::V6(gateway)) = args.gateway {
            ipv6.gateway = Some(gateway);
        }
        ipv6
    });
    let mut interface = Interface::new(addresses);
    interface.tcp.congestion = args.congestion;
    // DCTCP needs ECN marks.
    interface.tcp.ecn = args.congestion == Congestion::Dctcp;
    interface
}
