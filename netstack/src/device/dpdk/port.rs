//! A port: attached to the EAL, set up, started; and everything undone in reverse when it is dropped.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, mem, thread};

use super::error::PortError;
use super::memory::PortMemory;
use super::offload::{Offloads, negotiate};
use super::sizes::{
    CACHE, LINK_HEADER, Layout, PACKET_RING, frame_room, packet_slot, pool_mb, pool_size, ring,
};
use super::socket::{close_client, is_served, is_taken, not_yet, remove_stale_socket, serve_at_once};
use super::sys::{self, Duties, Setup, StartedPort};
use super::{DeviceSpec, DpdkDevice, Eal, spread};
use crate::device::interface::{self, Interface};

/// The pause between two attempts to open a port whose other side is not there, and between two looks at it.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// Largest IP packet on an embedded link.
const EMBEDDED_MTU_MAX: u16 = 9000;

/// How payload gets from its region into the device.
///
/// Chaining spares a copy and costs a second buffer. Time to send a frame, copying over chaining, on one core whose
/// peer reads at once: 1.0 at 1500 bytes, 1.2 at 3000 and 1.6 at 9000 with the payload in cache; 0.8, 1.05 and 1.1
/// with the payload cold (walking through 64 MiB), where memory sets the pace. The same for vhost and for memif.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PayloadMode {
    /// Chained where the driver can read any address (vhost, memif, af_packet), or the device memory that is registered with it (NICs), else copied.
    #[default]
    Auto,
    /// Copied behind the header.
    Copy,
}

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct DpdkPortConfig {
    /// The device to open.
    pub device: DeviceSpec,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Queue pairs. Both ends of an embedded link must have as many. A NIC deals flows out to several by
    /// [`Rss::new`](crate::rss::Rss::new) of [`SYMMETRIC_KEY`](crate::rss::SYMMETRIC_KEY), and gives queue 0 all else.
    pub queues: u16,
    /// Descriptors of each ring: a power of two, adjusted to the driver's limits. 0: on a NIC 1,024 to 4,096, for
    /// 0.5 to 0.7 ms of frames at 100 Gb/s; on other ports as many as keep the ring's buffers
    /// well inside a processor's second-level cache; data that falls out of it costs twice (at MTU 9000, payload in
    /// cache, a ring of 64 moved twice the frames of one of 256, and four times those of 1024).
    pub ring_size: u16,
    /// MAC address; the driver's own if `None`.
    pub mac: Option<[u8; 6]>,
    /// How payload is handed over.
    pub payload: PayloadMode,
    /// Whether checksums and splitting are left to the device, and frames may be longer than the MTU: for TCP. Costs a few
    /// nanoseconds per frame, and a virtio port its vectorised receive path, so RUD's links go without. Both ends of an
    /// embedded link need it to get super-segments across; one alone works, with less. See [`Offloads`].
    pub offload: bool,
}

impl DpdkPortConfig {
    /// The defaults for `device`: MTU 9000 on embedded links and 1500 on others, one queue pair.
    pub fn new(device: DeviceSpec) -> Self {
        let mtu = if device.is_point_to_point() { EMBEDDED_MTU_MAX } else { 1500 };
        Self { device, mtu, queues: 1, ring_size: 0, mac: None, payload: PayloadMode::Auto, offload: false }
    }

    /// Whether checksums and splitting are left to the device; never to devices of the kernel and memif.
    pub(super) fn leaves_work(&self) -> bool {
        self.offload
            && matches!(self.device, DeviceSpec::Vhost(_) | DeviceSpec::Virtio(_) | DeviceSpec::Pci(_))
    }
}

/// DPDK's control path is not thread-safe: one port is opened or closed at a time.
static CONTROL: Mutex<()> = Mutex::new(());

fn control() -> MutexGuard<'static, ()> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers devices and pools: DPDK refuses a name twice.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The embedded links that this process has open.
static OPEN: Mutex<Vec<DeviceSpec>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<DeviceSpec>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of an embedded link, for one port at a time.
#[derive(Debug)]
struct Claim(DeviceSpec);

impl Claim {
    /// Takes a link's end; none is needed for other devices.
    fn take(device: &DeviceSpec) -> Result<Option<Self>, PortError> {
        if device.served_socket().is_none() && device.awaited_socket().is_none() {
            return Ok(None);
        }
        let mut open = open();
        if open.contains(device) {
            return Err(PortError::Open { device: device.clone() });
        }
        open.push(device.clone());
        Ok(Some(Self(device.clone())))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        open().retain(|device| *device != self.0);
    }
}

/// A port that runs.
#[derive(Debug)]
pub struct Port {
    shared: Arc<Shared>,
}

/// State that the queues of a port share; the last one takes the port down.
#[derive(Debug)]
pub(super) struct Shared {
    eal: &'static Eal,
    /// None only while it is being dropped.
    started: Option<Arc<StartedPort>>,
    pub(super) config: DpdkPortConfig,
    pub(super) mac: [u8; 6],
    pub(super) tx_ipv4_checksum: bool,
    pub(super) chains: bool,
    /// The driver sends payload from where it lies, if the device may read memory there.
    pub(super) lends: bool,
    /// None on a port that takes frames as they are.
    pub(super) offloads: Option<Offloads>,
    layout: Layout,
    /// The kernel's interface whose link is the port's, if there is one.
    interface: Option<Interface>,
    /// Goes when the port is taken down.
    _claim: Option<Claim>,
}

impl Port {
    /// Whether this process has this end of an embedded link open.
    pub fn is_open(device: &DeviceSpec) -> bool {
        open().contains(device)
    }

    /// Opens a port, or says at once that the other side is not there yet ([`PortError::NotYet`]).
    ///
    /// A socket that a dead process has left is removed. Connecting to a socket whose server accepts and then says
    /// nothing (a stopped process) blocks: vhost-user has no time-out.
    ///
    /// # Errors
    /// [`PortError::NotYet`]: try again later. The others say what the configuration, the system or the driver refuses.
    pub fn try_open(eal: &'static Eal, config: &DpdkPortConfig) -> Result<Self, PortError> {
        let device = &config.device;
        let _control = control();
        let mark = sys::log_position();
        check_limit(device, "queues", config.queues, 1, 64)?;
        check_limit(device, "ring_size", ring(config), 32, 32768)?;
        check_limit(device, "mtu", config.mtu, 68, u16::MAX - LINK_HEADER - 1024)?;
        let claim = Claim::take(device)?;
        if let Some(path) = device.served_socket() {
            remove_stale_socket(device, path)?;
        }
        if let Some(path) = device.awaited_socket() {
            fs::metadata(path).map_err(|e| not_yet(device, e))?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (bus, name, arguments) = device_arguments(config, number);
        let attach = |error| PortError::Attach { device: device.clone(), error, log: sys::log_since(mark) };
        let attached = sys::Attached::new(bus, &name, &arguments).map_err(|error| {
            // A server is refusing between its bind and its listen, and may listen by the time we look again.
            if device.awaited_socket().is_some() && sys::log_since(mark).contains("Connection refused") {
                return not_yet(device, io::ErrorKind::ConnectionRefused.into());
            }
            // Only now: a server takes each connection for a client, and is slow with one that hangs up.
            match device.awaited_socket().map(is_served) {
                Some(Err(source)) => not_yet(device, source),
                _ => attach(error),
            }
        })?;
        let interface = device.interface().and_then(interface::name).map(Interface::named).transpose();
        let interface = interface.map_err(|why| attach(sys::Errno(why.raw_os_error())))?;
        let info = attached.info().map_err(attach)?;
        let rings = attached.rings(ring(config)).map_err(attach)?;
        let spread = spread::negotiate(config, &info)?;
        check_limit(device, "queues", config.queues, 1, info.max_queues())?;
        // memif's largest frame is its `bsize`, regardless of the MTU that it reports, which it refuses to set.
        let is_memif = matches!(device, DeviceSpec::MemifServer(_) | DeviceSpec::MemifClient(_));
        // A packet socket's is a slot of its ring, while the driver reports 1514 bytes and refuses more.
        let fixed_mtu =
            is_memif || matches!(device, DeviceSpec::AfPacket(_) | DeviceSpec::Ring | DeviceSpec::Null);
        if !fixed_mtu {
            check_limit(device, "mtu", config.mtu, 68, info.max_mtu())?;
        }
        let chains = config.payload == PayloadMode::Auto && device.reads_any_address();
        let is_pci = matches!(device, DeviceSpec::Pci(_));
        let checksum = if is_pci { info.tx_ipv4_checksum() } else { None };
        let mut tx_offloads = checksum.unwrap_or(0);
        let mut rx_offloads = if is_pci { info.rx_scatter().unwrap_or(0) } else { 0 };
        let wanted = negotiate(config, &info);
        if let Some((rx, tx, _)) = wanted {
            tx_offloads |= tx.0;
            rx_offloads |= rx.0;
        }
        let offloads = wanted.map(|(_, _, offloads)| offloads);
        // The header in a buffer, and the payload where it lies.
        let segments = info.tx_multi_segment().filter(|_| info.max_segments() >= 2);
        let lends = config.payload == PayloadMode::Auto
            && offloads.is_none()
            && device.reads_registered_memory()
            && segments.is_some();
        if chains || lends {
            tx_offloads |= segments.unwrap_or(0);
        } else if offloads.is_none() {
            tx_offloads |= info.tx_fast_free().unwrap_or(0);
        }
        let setup = Setup {
            mtu: (!fixed_mtu).then_some(config.mtu),
            queues: config.queues,
            spread,
            rings,
            // Sent buffers come back early, so that a few that are warm in the cache serve for all.
            tx_free_threshold: matches!(device, DeviceSpec::Virtio(_))
                .then(|| ring(config).saturating_sub(if config.leaves_work() { 8 } else { 64 })),
            rx_offloads,
            max_lro: if offloads.is_some_and(|o| o.merge) { info.max_lro() } else { 0 },
            tx_offloads,
            mac: config.mac,
            close_on_interrupt_thread: is_memif,
            mac_in_software: device.is_point_to_point(),
            is_on_vfio: device.is_on_vfio(),
        };
        let room = frame_room(config, info.max_frame());
        let buffers = pool_size(config, rings, room, lends);
        // Other ports' memory is the process's own, and lies where its threads run.
        let node = if is_pci { attached.node() } else { None };
        let pool = |node| sys::Pool::new(&format!("shouter{number}"), buffers, CACHE, room, node);
        let (pool, is_near) = match pool(node) {
            Err(_) if node.is_some() => (pool(None), false),
            pool => (pool, true),
        };
        let pool = pool.map_err(|error| PortError::Memory {
            device: device.clone(),
            buffers,
            room,
            needed_mb: pool_mb(buffers, room),
            memory_mb: eal.config().memory_mb,
            error,
        })?;
        let layout = Layout { rings, buffers, room, node, is_near };
        let lcores = (0..config.queues).map(|_| sys::Lcore::take()).collect::<Result<_, _>>();
        let lcores = lcores.map_err(|error| PortError::TooManyQueues { device: device.clone(), error })?;
        let refused = || not_yet(device, io::ErrorKind::ConnectionRefused.into());
        let started = attached.start(pool, lcores, &setup).map_err(|(step, error)| {
            let log = sys::log_since(mark);
            // A memif client connects only now: its server's socket was left over, or does not listen yet.
            match matches!(device, DeviceSpec::MemifClient(_)) && log.contains("Failed to connect socket") {
                true => refused(),
                false => PortError::SetUp { device: device.clone(), step, error, log },
            }
        })?;
        if let DeviceSpec::Vhost(path) = device {
            serve_at_once(path);
        }
        if let DeviceSpec::MemifClient(path) = device
            && !is_taken(&started)
        {
            close_client(started, path);
            return Err(refused());
        }
        let mac = config.mac.unwrap_or_else(|| started.mac());
        let started = Some(Arc::new(started));
        let config = config.clone();
        let tx_ipv4_checksum = checksum.is_some();
        let shared = Shared {
            eal,
            started,
            config,
            mac,
            tx_ipv4_checksum,
            chains,
            lends,
            offloads,
            layout,
            interface,
            _claim: claim,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// [`try_open`](Self::try_open) until the other side is there, for at most `patience`.
    ///
    /// # Errors
    /// As `try_open`: [`PortError::NotYet`] if the other side did not come.
    pub fn open(eal: &'static Eal, config: &DpdkPortConfig, patience: Duration) -> Result<Self, PortError> {
        let begin = Instant::now();
        loop {
            match Self::try_open(eal, config) {
                Err(PortError::NotYet { .. }) if begin.elapsed() < patience => thread::sleep(PAUSE),
                other => return other,
            }
        }
    }

    /// The sizes that it was opened with, and where its memory is.
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// A handle for memory that the port is to read where it lies.
    pub fn memory(&self) -> PortMemory {
        PortMemory::of(&self.shared)
    }

    /// One device per queue pair. The port is taken down when the last of them is dropped.
    pub fn into_devices(self) -> Vec<DpdkDevice> {
        (0..self.shared.config.queues).filter_map(|index| DpdkDevice::new(&self.shared, index)).collect()
    }
}

impl Shared {
    #[inline]
    pub(super) fn started(&self) -> Option<&StartedPort> {
        self.started.as_deref()
    }

    /// Whether this process opened it, and is no forked child of the one that did.
    pub(super) fn is_ours(&self) -> bool {
        self.eal.is_ours()
    }

    /// Whether the link is up.
    pub(super) fn link_up(&self) -> bool {
        self.started().is_some_and(StartedPort::link_up)
            && self.interface.as_ref().is_none_or(Interface::is_up)
    }

    pub(super) fn queue(&self, index: u16) -> Option<sys::Queue> {
        let duties = Duties {
            ipv4_checksum: self.tx_ipv4_checksum,
            offloads: self.offloads.is_some(),
            prepares: self.offloads.is_some() && matches!(self.config.device, DeviceSpec::Pci(_)),
        };
        sys::Queue::new(self.started.as_ref()?, index, duties)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The queues have gone before (each holds a reference to self), so this is the last reference.
        let Some(mut started) = self.started.take().and_then(Arc::into_inner) else { return };
        if !self.eal.is_ours() {
            // A forked child: port, socket and pool are the parent's.
            started.abandon();
            return;
        }
        let _control = control();
        match self.config.device.awaited_socket() {
            Some(path) => close_client(started, path),
            None => mem::drop(started),
        }
        if let Some(path) = self.config.device.served_socket() {
            // The driver removes it as a rule, so it may be absent.
            let _ = fs::remove_file(path);
        }
    }
}

fn check_limit(
    device: &DeviceSpec,
    what: &'static str,
    asked: u16,
    least: u16,
    most: u16,
) -> Result<(), PortError> {
    if (least..=most).contains(&asked) {
        return Ok(());
    }
    Err(PortError::Limit { device: device.clone(), what, asked, least, most })
}

/// Bus, device name and device arguments for `rte_eal_hotplug_add`.
fn device_arguments(config: &DpdkPortConfig, number: u32) -> (&'static str, String, String) {
    let queues = config.queues;
    let ring = ring(config);
    let mac = |mac: [u8; 6]| {
        let [a, b, c, d, e, f] = mac;
        format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    };
    let with_mac = config.mac.map_or(String::new(), |m| format!(",mac={}", mac(m)));
    let memif = |role: &str, path: &Path| {
        let log2_ring = ring.trailing_zeros().min(14);
        let bsize = frame_room(config, u32::MAX).next_multiple_of(256);
        format!(
            "role={role},id=0,socket={},socket-abstract=no,bsize={bsize},rsize={log2_ring}{with_mac}",
            path.display()
        )
    };
    let (name, arguments) = match &config.device {
        DeviceSpec::Vhost(path) => {
            let split = if config.offload { ",tso=1" } else { "" };
            ("net_vhost", format!("iface={},queues={queues}{split}", path.display()))
        }
        DeviceSpec::Virtio(path) => {
            // The vectorised receive path supports neither offloads nor frames in several buffers.
            let way =
                if config.offload { "mrg_rxbuf=1,in_order=0" } else { "mrg_rxbuf=0,in_order=0,vectorized=1" };
            (
                "net_virtio_user",
                format!("path={},queues={queues},queue_size={ring},{way}{with_mac}", path.display()),
            )
        }
        DeviceSpec::MemifServer(path) => ("net_memif", memif("server", path)),
        DeviceSpec::MemifClient(path) => ("net_memif", memif("client", path)),
        DeviceSpec::AfPacket(interface) => {
            let frame = packet_slot(config);
            let block = frame.max(4096) * 4;
            // As much as a peer may have in flight to us, with a thread that is not always running.
            let frames = (PACKET_RING / frame).clamp(512, 2048);
            (
                "net_af_packet",
                format!(
                    "iface={interface},qpairs={queues},blocksz={block},framesz={frame},framecnt={frames}"
                ),
            )
        }
        DeviceSpec::AfXdp(interface) => {
            ("net_af_xdp", format!("iface={interface},start_queue=0,queue_count={queues}"))
        }
        DeviceSpec::Tap(interface) => ("net_tap", format!("iface={interface}{with_mac}")),
        DeviceSpec::Ring => ("net_ring", String::new()),
        DeviceSpec::Null => ("net_null", "size=64".into()),
        DeviceSpec::Pci(address) => return ("pci", address.clone(), String::new()),
    };
    ("vdev", format!("{name}{number}"), arguments)
}
