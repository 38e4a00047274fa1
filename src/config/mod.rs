//! Configuration: defaults, then a file, then the environment, then the program's own call.
//!
//! The file is TOML and named by `SHOUTER_CONFIG`; every key can be overridden as `SHOUTER_<KEY>`. Ranks come from our own
//! variables or from a launcher's (torchrun, mpirun, srun). The rows of [`keys::KEYS`] say what each key is.
//!
//! ```toml
//! # shouter.toml
//! transport = "rud"
//! deadline = "90s"
//! heartbeat_timeout = "10s"
//! ports = [{ device = "pci:0000:3b:00.0", address = "192.168.7.11/24", gateway = "192.168.7.1" }]
//! ```
//!
//! A value that cannot be used is an error that names the key, the line or the variable, the value and those allowed.
//! Nothing is guessed from a misspelt key.
//!
//! ```
//! use shouter::config::{Builder, ConfigError, Environment, TransportChoice};
//! use std::time::Duration;
//!
//! // A job of one rank needs no key; `Builder::from_process` begins with this process's variables.
//! let config = Builder::from_environment(Environment::default())?
//!     .set("size", "1")?
//!     .set("rank", "0")?
//!     .set("transport", "kernel")?
//!     .set("deadline", "90s")?
//!     .build()?;
//! assert_eq!(config.transport, TransportChoice::Kernel);
//! assert_eq!(config.deadline, Duration::from_secs(90));
//!
//! let misspelt = Builder::from_environment(Environment::default())?.set("dedline", "90s");
//! assert!(misspelt.unwrap_err().to_string().contains("deadline"));
//! # Ok::<(), ConfigError>(())
//! ```

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::observe::MetricsTarget;

pub use costs::{CostCache, CostTable, MeasuredFor};
pub use error::{ConfigError, Source};
pub(crate) use launcher::LauncherStore;
pub use launcher::{OF_OTHERS, OF_RUN};
pub use layers::Environment;
pub use placement::MAX_RANKS;
pub(crate) use placement::StorePlacement;
pub use shouter_reducer::grid::Levels;
pub use shouter_reducer::plan::Overrides;

mod check;
mod costs;
mod error;
pub mod keys;
mod launcher;
mod layers;
mod lists;
mod placement;
mod value;

#[doc(hidden)]
pub use value::to_cores;

use layers::Layers;

/// The port at which leaders reach each other unless `data_port` is set: no protocol has it or could get it (RFC 6335
/// section 6), and it is above those that Linux gives to its own sockets.
pub(crate) const DATA_PORT: u16 = 61_790;

/// The longest time that a key, a deadline or a wait may have: the sum of it and a time must not overflow.
pub const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// The transport between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TransportChoice {
    /// Shared memory within a host; between hosts, pair by pair, verbs, else RUD, else the kernel's sockets.
    Auto,
    /// Shared memory; all ranks must be on one host.
    Shm,
    /// RUD between all hosts.
    Rud,
    /// Shared memory within a host, TCP between hosts: for networks where RUD's datagrams do not get through.
    Tcp,
    /// Shared memory within a host, RDMA verbs between hosts.
    Verbs,
    /// Shared memory within a host, sockets of the kernel between hosts: for hosts with neither RDMA nor DPDK.
    Kernel,
}

impl TransportChoice {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Rud => "rud",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
            Self::Kernel => "kernel",
        }
    }
}

/// The thread that drives the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The thread that waits for an operation.
    Caller,
    /// A pinned thread of its own.
    Dedicated,
}

/// How a rank waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// It spins: it has a core to itself.
    Spin,
    /// It gives up the core: ranks share it.
    Yield,
}

/// Whether DPDK uses hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hugepages {
    /// The library chooses; at present it does without them.
    Auto,
    /// Always; it is an error when there are none.
    On,
    /// Never.
    Off,
}

/// An IPv4 address and the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The port's own address.
    pub ip: Ipv4Addr,
    /// The number of bits that its network shares, 0 to 32.
    pub prefix_len: u8,
}

impl Address {
    /// Reads `10.77.0.1/24`; `None` for other text, and for addresses that no host can have.
    ///
    /// ```
    /// use shouter::config::Address;
    ///
    /// assert_eq!(Address::parse("10.77.0.1/24").unwrap().prefix_len, 24);
    /// assert_eq!(Address::parse("224.0.0.1/24"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, prefix_len) = text.split_once('/')?;
        let (ip, prefix_len) = (ip.parse::<Ipv4Addr>().ok()?, prefix_len.parse::<u8>().ok()?);
        let usable = prefix_len <= 32 && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
        usable.then_some(Self { ip, prefix_len })
    }
}

/// An Ethernet port of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// The driver and its argument, such as `vhost:/run/a.sock` or `pci:0000:3b:00.0`.
    pub device: String,
    /// The port's address.
    pub address: Address,
    /// The router to hosts outside the address's network.
    pub gateway: Option<Ipv4Addr>,
    /// The hosts that this port leads to; with none given, every host of its network.
    pub peers: Vec<Ipv4Addr>,
    /// The port's MTU in bytes; `None`: the key `mtu`, else 9000.
    pub mtu: Option<u16>,
}

/// Faults to inject on receipt, as fractions of frames from 0 to below 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Frames that are dropped.
    pub loss: f64,
    /// Frames in which a bit is flipped.
    pub corrupt: f64,
    /// The seed: the same one hits the same frames.
    pub seed: u64,
}

impl Faults {
    /// Whether any fault is to be injected.
    pub fn any(&self) -> bool {
        self.loss > 0.0 || self.corrupt > 0.0
    }
}

/// The address of the rendezvous.
#[derive(Debug, Clone)]
pub struct RendezvousAddress {
    /// The host of rank 0: an address or a name.
    pub host: String,
    /// The TCP port on which rank 0 listens.
    pub port: u16,
    /// This rank's own port, already open, where explicit lists name one. It is held so that no other rank of this
    /// host takes the same entry; rank 0 listens on it.
    pub listener: Option<Arc<TcpListener>>,
}

/// The configuration of one rank. The rows of [`keys::KEYS`] have the range and the default of each field.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// This process's number in the job, below `size`.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// This process's number on its host, below `local_size`.
    pub local_rank: u32,
    /// The number of ranks on this host.
    pub local_size: u32,
    /// Whether `shouter run` has started the ranks, so that all its hosts are this machine.
    pub(crate) on_one_machine: bool,
    /// This host's number, where it was given. The roster's is the one that counts.
    pub node: Option<u32>,
    /// The address of the rendezvous.
    pub rendezvous: RendezvousAddress,
    /// The placement that the ranks find out through a store before they meet, where they use one.
    pub(crate) store: Option<StorePlacement>,
    /// The launcher's store, where it is that one.
    pub(crate) launcher_store: Option<LauncherStore>,
    /// The job's key; a job of one rank needs none.
    pub key: Option<Key>,
    /// The job's name.
    pub job: String,
    /// Connections within one channel: RUD paths, TCP connections, queue pairs; `None`: as many as the transport does best with.
    pub channel_num: Option<u32>,
    /// The UDP or TCP port of leaders over DPDK ports.
    pub data_port: u16,
    /// The transport between ranks.
    pub transport: TransportChoice,
    /// The thread that drives the network.
    pub mode: Mode,
    /// How to wait; `None`: as ranks and cores of the host suggest.
    pub idle: Option<Idle>,
    /// The cores that this rank's threads may be pinned to; empty: no pinning.
    pub cores: Vec<usize>,
    /// Threads that drive the network in dedicated mode.
    pub shards: u32,
    /// A process that is silent for this long is taken for dead.
    pub heartbeat_timeout: Duration,
    /// How long one operation may take.
    pub deadline: Duration,
    /// How long to wait for all ranks at the start.
    pub rendezvous_deadline: Duration,
    /// The ports of this host; only its first rank has any.
    pub ports: Vec<PortConfig>,
    /// The MTU of ports that name none, in bytes.
    pub mtu: Option<u16>,
    /// Memory for DPDK without hugepages, in MiB.
    pub dpdk_memory_mb: u32,
    /// Whether DPDK uses hugepages.
    pub hugepages: Hugepages,
    /// Whether ports fill in checksums and split long segments.
    pub offload: bool,
    /// Whether the frames of byte streams, and fragments over verbs, carry a CRC32C.
    pub crc: bool,
    /// Whether RUD's sessions are sealed, and hosts talk over nothing else.
    pub rud_seal: bool,
    /// Whether RDMA NICs may read and write tensors on a GPU themselves, where they can.
    pub gpu_direct: bool,
    /// The RDMA device to use: its name, with `/` and a port's number if need be; `auto`, or `none`.
    pub rdma_device: String,
    /// Memory to register, in MiB: for the slots of all queue pairs, and what it leaves for tensors that are sent from where
    /// they lie.
    pub rdma_memory_mb: u32,
    /// The address at which sockets of the kernel listen; `None`: the one by which rank 0 is reached.
    pub kernel_address: Option<Ipv4Addr>,
    /// Whether GPUs of a host reduce straight from each other's memory.
    pub gpu_peers: bool,
    /// A folder with compiled kernels for GPUs.
    pub gpu_kernels: Option<PathBuf>,
    /// The algorithms that collectives use whatever the cost model says.
    pub schedule: Overrides,
    /// How reductions group hosts.
    pub levels: Levels,
    /// Registered all-reduces below so many bytes are fused with others; 0: none.
    pub fuse_below: u64,
    /// The most that is fused, in bytes.
    pub fuse_bytes: u64,
    /// The measured figures of the cost model; empty but on rank 0, whose figures all ranks use.
    pub costs: CostTable,
    /// Whether figures that no file has are measured at the join, or taken from an earlier one's; rank 0's counts.
    pub measure_costs: bool,
    /// The file that keeps what is measured at the join; `None`: nothing does.
    pub costs_cache: Option<PathBuf>,
    /// Faults to inject.
    pub faults: Faults,
    /// The folder for the rank's timeline; `None`: none is recorded.
    pub timeline: Option<PathBuf>,
    /// The folder for the rank's last events; `None`: the system's folder for temporary files.
    pub dump_folder: Option<PathBuf>,
    /// The signal on which the last events are written: its number and name.
    pub dump_signal: Option<(i32, &'static str)>,
    /// Where the rank's counters go.
    pub metrics: Option<MetricsTarget>,
}

impl Config {
    /// The configuration of this process: from `SHOUTER_CONFIG`'s file, our own variables, and torchrun's.
    ///
    /// # Errors
    /// [`ConfigError`] says which value of which source cannot be used, or what is missing.
    pub fn from_env() -> Result<Self, ConfigError> {
        Builder::from_process()?.build()
    }

    /// The configuration by explicit lists: one address per rank, and one port per rank (or one for all). The own rank is
    /// the one that `SHOUTER_RANK` or `RANK` gives, else the first entry whose address is this host's and whose port
    /// is free; the port is then held. Rank 0's entry is where the ranks meet. Everything else comes from the file and
    /// the environment, as in [`Config::from_env`], and so does `channel_num` where it is `None`.
    ///
    /// # Errors
    /// As [`Config::from_env`], and for lists of other lengths, or without an entry for this host.
    pub fn from_lists(
        iplist: &[IpAddr],
        ports: &[u16],
        channel_num: Option<u32>,
    ) -> Result<Self, ConfigError> {
        let builder = Builder::from_process()?.lists(iplist, ports);
        match channel_num {
            Some(number) => builder.set("channel_num", &number.to_string())?.build(),
            None => builder.build(),
        }
    }
}

/// A configuration in the making.
#[derive(Debug, Clone)]
pub struct Builder {
    environment: Environment,
    layers: Layers,
    lists: Option<(Vec<IpAddr>, Vec<u16>)>,
    through_store: bool,
}

impl Builder {
    /// Begins with this process's environment and the file that it names.
    ///
    /// # Errors
    /// [`ConfigError`] for a file that cannot be read, and for keys that there are not.
    pub fn from_process() -> Result<Self, ConfigError> {
        // Before the join: values may be taken with a warning.
        crate::log::start_if_asked();
        Self::from_environment(Environment::of_process())
    }

    /// Begins with the given variables and the file that they name.
    ///
    /// # Errors
    /// As [`Builder::from_process`].
    pub fn from_environment(environment: Environment) -> Result<Self, ConfigError> {
        let environment = launcher::innermost(environment);
        let layers = Layers::read(&environment)?;
        Ok(Self { environment, layers, lists: None, through_store: false })
    }

    /// Sets a key, over the file and the environment. The value is written as in an environment variable; an empty one takes
    /// away what both give.
    ///
    /// # Errors
    /// [`ConfigError`] for a key that there is not, and for a time in the file or the environment that cannot be used, though this one is in
    /// its place; other values are checked by [`Builder::build`].
    pub fn set(mut self, key: &str, value: &str) -> Result<Self, ConfigError> {
        if keys::KEYS.iter().any(|spec| spec.name == key && spec.allowed == keys::DURATION) {
            value::duration(&self.layers, key)?;
        }
        self.layers.set(key, layers::parse_text(key, value, &Source::Call), Source::Call)?;
        if value.is_empty() {
            self.layers.remove(key);
        }
        Ok(self)
    }

    /// The same without what was given of these keys.
    #[must_use]
    pub fn without(mut self, keys: &[&str]) -> Self {
        keys.iter().for_each(|key| self.layers.remove(key));
        self
    }

    /// A key's value as it was given, and where; `None` where its default holds. The job's key is not shown.
    pub fn in_force(&self, key: &str) -> Option<(String, &Source)> {
        let value = self.layers.get(key)?;
        let shown = if key == "key" { "hidden".into() } else { value.written() };
        Some((shown, &value.source))
    }

    /// How reductions group hosts ([`Config::levels`]), in a program that starts no rank.
    ///
    /// # Errors
    /// [`ConfigError`] for a value that is no list of sizes; nothing else is checked.
    pub fn levels(&self) -> Result<Levels, ConfigError> {
        value::levels(&self.layers, "levels")
    }

    /// Gives the ranks by explicit lists; see [`Config::from_lists`].
    #[must_use]
    pub fn lists(mut self, iplist: &[IpAddr], ports: &[u16]) -> Self {
        self.lists = Some((iplist.to_vec(), ports.to_vec()));
        self
    }

    /// Leaves the meeting point, the job's key and the ranks of each host to a store: see
    /// [`init_through`](crate::init_through).
    #[must_use]
    pub(crate) fn through_store(mut self) -> Self {
        self.through_store = true;
        self.layers = placement::of_group(&self.layers, &self.environment);
        self
    }

    /// Checks everything and returns the configuration.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn build(self) -> Result<Config, ConfigError> {
        let Self { environment, layers, lists, through_store } = &self;
        let place = match lists {
            _ if *through_store => placement::place_through(layers, environment)?,
            Some((iplist, ports)) => lists::place(layers, environment, iplist, ports)?,
            None => placement::place(layers, environment)?,
        };
        let needs_key = place.size > 1 && place.store.is_none();
        let key = job_key(layers, needs_key)?;
        let transports = [
            TransportChoice::Auto,
            TransportChoice::Shm,
            TransportChoice::Rud,
            TransportChoice::Tcp,
            TransportChoice::Verbs,
            TransportChoice::Kernel,
        ]
        .map(|choice| (choice.name(), choice));
        let idles = [("auto", None), ("spin", Some(Idle::Spin)), ("yield", Some(Idle::Yield))];
        let modes = [("caller", Mode::Caller), ("dedicated", Mode::Dedicated)];
        let hugepages = [("auto", Hugepages::Auto), ("on", Hugepages::On), ("off", Hugepages::Off)];
        let number = |key, range, default| {
            value::integer(layers, key, range).map(|number| number.map_or(default, |n| n as u32))
        };
        let time =
            |key, default| value::duration(layers, key).map(|d| d.unwrap_or(Duration::from_secs(default)));
        let transport = value::word(layers, "transport", &transports)?.unwrap_or(TransportChoice::Auto);
        let rud_seal = value::seal(layers, transport, key.as_ref())?;
        Ok(Config {
            rank: place.rank,
            size: place.size,
            local_rank: place.local_rank,
            local_size: place.local_size,
            on_one_machine: environment.get(OF_RUN).is_some(),
            node: place.node,
            rendezvous: place.rendezvous,
            store: place.store,
            launcher_store: place.launcher_store,
            key,
            job: job_name(layers, environment)?,
            channel_num: value::integer(layers, "channel_num", 1..=256)?.map(|number| number as u32),
            data_port: number("data_port", 1..=65_000, DATA_PORT.into())? as u16,
            transport,
            idle: value::word(layers, "idle", &idles)?.unwrap_or(None),
            mode: value::word(layers, "mode", &modes)?.unwrap_or(Mode::Caller),
            cores: value::cores(layers, "cores")?.unwrap_or_default(),
            shards: number("shards", 1..=16, 1)?,
            heartbeat_timeout: time("heartbeat_timeout", 10)?,
            deadline: time("deadline", 30 * 60)?,
            rendezvous_deadline: time("rendezvous_deadline", 60)?,
            ports: value::ports(layers)?,
            mtu: value::integer(layers, "mtu", 576..=9000)?.map(|mtu| mtu as u16),
            dpdk_memory_mb: number("dpdk_memory_mb", 64..=1 << 20, 512)?,
            hugepages: value::word(layers, "hugepages", &hugepages)?.unwrap_or(Hugepages::Auto),
            offload: value::word(layers, "offload", &[("on", true), ("off", false)])?.unwrap_or(false),
            crc: value::word(layers, "crc", &[("on", true), ("off", false)])?.unwrap_or(true),
            rud_seal,
            gpu_direct: value::word(layers, "gpu_direct", &[("on", true), ("off", false)])?.unwrap_or(false),
            rdma_device: value::text(layers, "rdma_device", |name| !name.is_empty())?
                .unwrap_or_else(|| "auto".into()),
            rdma_memory_mb: number("rdma_memory_mb", 1..=1 << 20, 256)?,
            kernel_address: value::ipv4(layers, "kernel_address")?,
            gpu_peers: value::word(layers, "gpu_peers", &[("auto", true), ("off", false)])?.unwrap_or(true),
            gpu_kernels: value::path(layers, "gpu_kernels")?,
            faults: Faults {
                loss: value::percent(layers, "loss")?.unwrap_or(0.0),
                corrupt: value::percent(layers, "corrupt")?.unwrap_or(0.0),
                seed: value::integer(layers, "fault_seed", 0..=u64::MAX)?.unwrap_or(1),
            },
            schedule: value::overrides(layers, "schedule")?,
            levels: self.levels()?,
            fuse_below: value::integer(layers, "fuse_below", 0..=1 << 30)?.unwrap_or(0),
            fuse_bytes: value::integer(layers, "fuse_bytes", 1..=1 << 30)?.unwrap_or(64 << 10),
            costs: costs::of(layers, environment, place.rank)?,
            measure_costs: value::word(layers, "measure_costs", &[("on", true), ("off", false)])?
                .unwrap_or(true),
            costs_cache: costs::cache_of(layers, environment)?,
            timeline: value::text(layers, "timeline", |_| true)?
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            dump_folder: value::path(layers, "dump_folder")?,
            dump_signal: value::signal(layers, "dump_signal")?,
            metrics: value::metrics(layers, "metrics")?,
        })
    }
}

/// The job's key, from the key itself or from its file.
fn job_key(layers: &Layers, is_needed: bool) -> Result<Option<Key>, ConfigError> {
    let text = value::text(layers, "key", |_| true)?;
    let file = value::path(layers, "key_file")?;
    let source = |key| layers.get(key).map_or(Source::Call, |value| value.source.clone());
    match (text, file) {
        (Some(_), Some(_)) => Err(ConfigError::Conflict {
            what: format!("both `key` ({}) and `key_file` ({}) are given", source("key"), source("key_file")),
            remedy: "give one of them".into(),
        }),
        (Some(text), None) => Key::from_text(&text)
            .map(Some)
            .map_err(|error| ConfigError::Key { source_of: source("key"), error }),
        (None, Some(path)) => Key::from_file(&path)
            .map(Some)
            .map_err(|error| ConfigError::Key { source_of: source("key_file"), error }),
        (None, None) if !is_needed => Ok(None),
        (None, None) => {
            Err(ConfigError::Missing { keys: vec!["key".into()], remedy: placement::GIVE_KEY.into() })
        }
    }
}

fn job_name(layers: &Layers, environment: &Environment) -> Result<String, ConfigError> {
    let valid = |name: &str| {
        (1..=64).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
    };
    let given = value::text(layers, "job", valid)?;
    let of_launcher = || launcher::Launcher::of(environment).job(environment).filter(|name| valid(name));
    Ok(given.or_else(of_launcher).unwrap_or_else(|| "default".into()))
}

#[cfg(test)]
mod tests;
