//! What the examples share: a port that is opened and addressed from the command line, and a thread for each shard.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use shouter::net::{Net, net};
use shouter::runtime::LocalReactor;
use shouter_netstack::cc::Algorithm;
use shouter_netstack::device::dpdk::{DeviceSpec, DpdkDevice, Eal, EalConfig, Port, PortConfig, PortError};
use shouter_netstack::device::{Steered, steer};
use shouter_netstack::rss::{Rss, SYMMETRIC_KEY};
use shouter_netstack::stack::{Ipv6Config, PortConfig as Addresses, Stack, StackConfig};

/// How long to wait for the other side of an embedded link.
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

/// The port and its addresses.
#[derive(Args, Clone, Debug)]
pub(crate) struct PortArgs {
    /// The port: af_packet:INTERFACE, af_xdp:INTERFACE, tap:NAME, virtio:SOCKET, vhost:SOCKET or pci:ADDRESS
    #[arg(long)]
    pub(crate) device: DeviceSpec,
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
    #[arg(long, default_value = "cubic", value_parser = algorithm)]
    pub(crate) congestion: Algorithm,
    /// Shards, a thread each; a port with one queue is steered in software
    #[arg(long, default_value_t = 1)]
    pub(crate) shards: u16,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    match name {
        "newreno" => Ok(Algorithm::NewReno),
        "cubic" => Ok(Algorithm::Cubic),
        "dctcp" => Ok(Algorithm::Dctcp),
        "bbr" => Ok(Algorithm::Bbr),
        _ => Err(format!("'{name}' is none of newreno, cubic, dctcp and bbr")),
    }
}

/// Opens the port and runs `each` on every shard; returns when all are done.
pub(crate) fn run<F, R>(args: &PortArgs, each: F) -> Result<(), Box<dyn Error>>
where
    F: Fn(u16, Net) -> R + Clone + Send + 'static,
    R: Future<Output = io::Result<()>> + 'static,
{
    let pci = match &args.device {
        DeviceSpec::Pci(address) => vec![address.clone()],
        _ => vec![],
    };
    let eal = Eal::init(&EalConfig { pci, ..EalConfig::default() })?;
    let device = open(eal, args)?;
    let rss = Rss::new(&SYMMETRIC_KEY, args.shards);
    let threads: Vec<_> = (0u16..)
        .zip(steer(device, rss.clone(), args.shards))
        .map(|(shard, share)| {
            let (args, rss, each) = (args.clone(), rss.clone(), each.clone());
            std::thread::Builder::new().name(format!("shard-{shard}")).spawn(move || {
                let stack = stack(share, &args, (rss, shard)).map_err(io::Error::other)?;
                let (net, poller) = net(stack);
                LocalReactor::new(poller).block_on(each(shard, net))
            })
        })
        .collect::<Result<_, _>>()?;
    for thread in threads {
        thread.join().map_err(|_| "a shard panicked")??;
    }
    Ok(())
}

fn open(eal: &'static Eal, args: &PortArgs) -> Result<DpdkDevice, Box<dyn Error>> {
    let mut config = PortConfig::new(args.device.clone());
    config.mtu = args.mtu;
    config.offload = true;
    let begin = Instant::now();
    loop {
        match Port::try_open(eal, &config) {
            Ok(port) => return Ok(port.into_devices().into_iter().next().ok_or("a port without queues")?),
            Err(PortError::NotYet { .. }) if begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(why) => return Err(why.into()),
        }
    }
}

fn stack(
    device: Steered<DpdkDevice>,
    args: &PortArgs,
    rss: (Rss, u16),
) -> Result<Stack<Steered<DpdkDevice>>, Box<dyn Error + Send + Sync>> {
    let mut key = [0; 32];
    getrandom(&mut key)?;
    let seed = u64::from_le_bytes(*key.first_chunk().ok_or("a key of 32 bytes")?);
    let mut config = StackConfig::new(4790, seed);
    config.tcp.key = key;
    config.tcp.options.congestion = args.congestion;
    // DCTCP lives on marks.
    config.tcp.options.ecn = args.congestion == Algorithm::Dctcp;
    config.rss = (args.shards > 1).then_some(rss);
    let mut stack = Stack::new(config);
    let mut addresses = Addresses::new(args.address.address, args.address.prefix_len, args.mtu);
    if let Some(IpAddr::V4(gateway)) = args.gateway {
        addresses.gateway = Some(gateway);
    }
    addresses.ipv6 = args.address6.map(|Cidr { address, prefix_len }| {
        let mut ipv6 = Ipv6Config::new(address, prefix_len);
        if let Some(IpAddr::V6(gateway)) = args.gateway {
            ipv6.gateway = Some(gateway);
        }
        ipv6
    });
    stack.add_port(device, addresses)?;
    Ok(stack)
}

/// Randomness from the system.
fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}
