//! Ports: attached, set up, started, taken down.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::os::fd::RawFd;

use super::external::External;
use super::memory::{Mapped, Readable};
use super::{Errno, Lcore, Pool};

/// A device that was attached to its bus, and has a port number. Detached when dropped.
#[derive(Debug)]
pub(in super::super) struct Attached {
    bus: CString,
    name: CString,
    port: u16,
}

impl Attached {
    /// Attaches device `name` to `bus`, or finds it where the bus attached it at start.
    pub(in super::super) fn new(bus: &str, name: &str, arguments: &str) -> Result<Self, Errno> {
        let text = |t: &str| CString::new(t).map_err(|_| Errno(22));
        let (bus, name, arguments) = (text(bus)?, text(name)?, text(arguments)?);
        let find = || {
            let mut port = 0_u16;
            // SAFETY: a terminated string, and room for the answer.
            let result = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) };
            (result == 0).then_some(port)
        };
        let port = match find() {
            Some(port) => port,
            None => {
                // SAFETY: three terminated strings, copied by the callee.
                let result =
                    unsafe { dpdk_sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) };
                Errno::check(result)?;
                find().ok_or(Errno::NO_DEVICE)?
            }
        };
        Ok(Self { bus, name, port })
    }

    /// The port's capabilities and limits.
    pub(in super::super) fn info(&self) -> Result<Info, Errno> {
        let mut info = MaybeUninit::<dpdk_sys::rte_eth_dev_info>::zeroed();
        // SAFETY: the port exists; the callee clears and fills the structure.
        Errno::check(unsafe { dpdk_sys::rte_eth_dev_info_get(self.port, info.as_mut_ptr()) })?;
        // SAFETY: filled above; all-zero was valid before.
        let raw = unsafe { info.assume_init() };
        Ok(Info { raw })
    }

    /// Descriptors of a receive ring and of a transmit ring, `asked` for, within the driver's limits.
    pub(in super::super) fn rings(&self, asked: u16) -> Result<(u16, u16), Errno> {
        let (mut receive, mut transmit) = (asked, asked);
        // SAFETY: the port exists; the two numbers are written in place.
        let result =
            unsafe { dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.port, &mut receive, &mut transmit) };
        Errno::check(result).map(|()| (receive, transmit))
    }

    /// The NUMA node of the device, where it is known.
    pub(in super::super) fn node(&self) -> Option<u32> {
        // SAFETY: the port exists.
        u32::try_from(unsafe { dpdk_sys::rte_eth_dev_socket_id(self.port) }).ok()
    }

    /// Configures queues, one for each of `lcores`, and starts the port.
    pub(in super::super) fn start(
        self,
        pool: Pool,
        lcores: Vec<Lcore>,
        setup: &Setup,
    ) -> Result<StartedPort, (&'static str, Errno)> {
        // Dropped in reverse if a step fails: the port gives its buffers back before the pool goes.
        let (pool, attached) = (pool, self);
        let at = |step| move |e| (step, e);
        let device = attached.info().map_err(at("asking what it can do"))?.raw.device;
        // A driver may offer interrupts and have no vectors for them, say; then the port is polled.
        let armable = setup.is_on_vfio && attached.set_up(&pool, setup, true).is_ok();
        if !armable {
            attached.set_up(&pool, setup, false)?;
        }
        // Dropped, and so stopped before the pool goes, if the last step fails.
        let mut started = StartedPort {
            attached: Some(attached),
            device,
            pool,
            external: lcores.iter().map(|_| External::new()).collect(),
            lcores,
            taken: AtomicU64::new(0),
            close_on_interrupt_thread: setup.close_on_interrupt_thread,
            is_in_container: setup.is_on_vfio,
            mapped: Mapped::default(),
            interrupts: vec![],
        };
        if let Some(spread) = &setup.spread {
            started.deal(&spread.table).map_err(at("setting its table of receive queues"))?;
        }
        if armable {
            started.interrupts = started.find_interrupts();
        }
        Ok(started)
    }

    /// Configures the port and its queues, with receive interrupts if it is to have `interrupts`, and starts it.
    fn set_up(&self, pool: &Pool, setup: &Setup, interrupts: bool) -> Result<(), (&'static str, Errno)> {
        let at = |step| move |e| (step, e);
        // SAFETY: all-zero is DPDK's default configuration.
        let mut conf: dpdk_sys::rte_eth_conf = unsafe { MaybeUninit::zeroed().assume_init() };
        conf.rxmode.mtu = setup.mtu.map_or(0, u32::from);
        conf.rxmode.offloads = setup.rx_offloads;
        conf.rxmode.max_lro_pkt_size = setup.max_lro;
        conf.txmode.offloads = setup.tx_offloads;
        let mut spread = setup.spread.clone();
        if let Some(spread) = &mut spread {
            conf.rxmode.mq_mode = dpdk_sys::RTE_ETH_MQ_RX_RSS;
            conf.rx_adv_conf.rss_conf = dpdk_sys::rte_eth_rss_conf {
                rss_key: spread.key.as_mut_ptr(),
                // 255 at most: of the driver's own size, or 40.
                rss_key_len: spread.key.len() as u8,
                rss_hf: spread.flows,
            };
        }
        conf.intr_conf.set_rxq(u32::from(interrupts));
        let port = self.port;
        // SAFETY: the port exists and is not started; `conf` is copied by the callee, and the key, which outlives it, by the driver.
        let result = unsafe { dpdk_sys::rte_eth_dev_configure(port, setup.queues, setup.queues, &conf) };
        Errno::check(result).map_err(at("configuring it"))?;

        let (receive, transmit) = setup.rings;
        let info = self.info().map_err(at("asking what it can do"))?;
        let mut transmit_conf = info.raw.default_txconf;
        transmit_conf.offloads = setup.tx_offloads;
        if let Some(threshold) = setup.tx_free_threshold {
            transmit_conf.tx_free_thresh = threshold.min(transmit.saturating_sub(4));
        }
        let mut receive_conf = info.raw.default_rxconf;
        receive_conf.offloads = setup.rx_offloads;
        // SAFETY: the port exists.
        let socket = unsafe { dpdk_sys::rte_eth_dev_socket_id(port) } as u32;
        for queue in 0..setup.queues {
            // SAFETY: the queue lies within those configured; the pool outlives the port, since StartedPort owns it.
            let result = unsafe {
                dpdk_sys::rte_eth_rx_queue_setup(port, queue, receive, socket, &receive_conf, pool.as_ptr())
            };
            Errno::check(result).map_err(at("setting up a receive queue"))?;
            // SAFETY: as above.
            let result =
                unsafe { dpdk_sys::rte_eth_tx_queue_setup(port, queue, transmit, socket, &transmit_conf) };
            Errno::check(result).map_err(at("setting up a transmit queue"))?;
        }
        if let Some(mac) = setup.mac {
            let mut address = dpdk_sys::rte_ether_addr { addr_bytes: mac };
            // SAFETY: the port exists; the address is copied.
            let result = unsafe { dpdk_sys::rte_eth_dev_default_mac_addr_set(port, &mut address) };
            match Errno::check(result) {
                Err(Errno::NOT_SUPPORTED) if setup.mac_in_software => {}
                other => other.map_err(at("setting its MAC address"))?,
            }
        }
        // SAFETY: the port is configured and its queues are set up.
        Errno::check(unsafe { dpdk_sys::rte_eth_dev_start(port) }).map_err(at("starting it"))
    }

    fn detach(&self) {
        // SAFETY: the device was attached under these names; detaching closes its port.
        let _: c_int = unsafe { dpdk_sys::rte_eal_hotplug_remove(self.bus.as_ptr(), self.name.as_ptr()) };
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.detach();
    }
}

/// How a port is to be set up.
#[derive(Clone, Debug)]
pub(in super::super) struct Setup {
    /// Largest IP packet; `None` where the driver refuses to set it.
    pub(in super::super) mtu: Option<u16>,
    /// Queue pairs.
    pub(in super::super) queues: u16,
    /// How a NIC of several deals flows out to them.
    pub(in super::super) spread: Option<Spread>,
    /// Descriptors of a receive ring and of a transmit ring.
    pub(in super::super) rings: (u16, u16),
    /// Free transmit descriptors below which the driver reclaims sent buffers; its default if `None`.
    pub(in super::super) tx_free_threshold: Option<u16>,
    /// `RTE_ETH_RX_OFFLOAD_*`.
    pub(in super::super) rx_offloads: u64,
    /// Largest frame that the driver may merge segments into; 0 where it merges none, or has no limit of its own.
    pub(in super::super) max_lro: u32,
    /// `RTE_ETH_TX_OFFLOAD_*`.
    pub(in super::super) tx_offloads: u64,
    /// The MAC address to take.
    pub(in super::super) mac: Option<[u8; 6]>,
    /// The driver's interrupt handler takes the port apart by itself when the peer hangs up.
    pub(in super::super) close_on_interrupt_thread: bool,
    /// A driver that cannot set its MAC address is no error.
    pub(in super::super) mac_in_software: bool,
    /// It is a NIC on vfio-pci: those of a process share what is mapped for them, and queues have receive interrupts, if the driver offers them.
    pub(in super::super) is_on_vfio: bool,
}

/// Receive-side scaling as a driver is told it.
#[derive(Clone, Debug)]
pub(in super::super) struct Spread {
    /// As long as the driver wants it, 40 bytes at least.
    pub(in super::super) key: Vec<u8>,
    /// `RTE_ETH_RSS_*`: the packets that are hashed.
    pub(in super::super) flows: u64,
    /// The queue of each entry of the driver's table: a multiple of 64 entries.
    pub(in super::super) table: Vec<u16>,
}

/// A set of `RTE_ETH_TX_OFFLOAD_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct TxOffloads(pub(in super::super) u64);

/// A set of `RTE_ETH_RX_OFFLOAD_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct RxOffloads(pub(in super::super) u64);

impl TxOffloads {
    pub(in super::super) const TCP_CHECKSUM: Self = Self(dpdk_sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM as u64);
    pub(in super::super) const UDP_CHECKSUM: Self = Self(dpdk_sys::RTE_ETH_TX_OFFLOAD_UDP_CKSUM as u64);
    pub(in super::super) const TCP_SPLIT: Self = Self(dpdk_sys::RTE_ETH_TX_OFFLOAD_TCP_TSO as u64);
    pub(in super::super) const MULTI_SEGMENT: Self = Self(dpdk_sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS as u64);

    /// Whether all of `other` are in the set.
    pub(in super::super) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub(in super::super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl RxOffloads {
    pub(in super::super) const CHECKSUMS: Self =
        Self((dpdk_sys::RTE_ETH_RX_OFFLOAD_TCP_CKSUM | dpdk_sys::RTE_ETH_RX_OFFLOAD_UDP_CKSUM) as u64);
    pub(in super::super) const MERGE: Self = Self(dpdk_sys::RTE_ETH_RX_OFFLOAD_TCP_LRO as u64);
    pub(in super::super) const SCATTER: Self = Self(dpdk_sys::RTE_ETH_RX_OFFLOAD_SCATTER as u64);

    /// Whether all of `other` are in the set.
    pub(in super::super) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub(in super::super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Capabilities and limits of a port.
pub(in super::super) struct Info {
    raw: dpdk_sys::rte_eth_dev_info,
}

impl Info {
    /// Largest IP packet that it takes.
    pub(in super::super) fn max_mtu(&self) -> u16 {
        let by_length = self.raw.max_rx_pktlen.saturating_sub(dpdk_sys::RTE_ETHER_HDR_LEN);
        u32::from(self.raw.max_mtu).min(by_length).min(u32::from(u16::MAX)) as u16
    }

    /// Longest frame on the wire, in bytes.
    pub(in super::super) fn max_frame(&self) -> u32 {
        self.raw.max_rx_pktlen
    }

    /// Queue pairs that it can have.
    pub(in super::super) fn max_queues(&self) -> u16 {
        self.raw.max_rx_queues.min(self.raw.max_tx_queues)
    }

    /// The hashes of TCP's and UDP's ports over IPv4, if it has both.
    pub(in super::super) fn port_hashes(&self) -> Option<u64> {
        const WANTED: u64 =
            dpdk_sys::RTE_ETH_RSS_NONFRAG_IPV4_TCP as u64 | dpdk_sys::RTE_ETH_RSS_NONFRAG_IPV4_UDP as u64;
        (self.raw.flow_type_rss_offloads & WANTED == WANTED).then_some(WANTED)
    }

    /// Entries of its table from hashes to queues; 0: it has none, or does not show it.
    pub(in super::super) fn table_entries(&self) -> u16 {
        self.raw.reta_size
    }

    /// Bytes of the hash's key; 0: it does not say.
    pub(in super::super) fn key_len(&self) -> u8 {
        self.raw.hash_key_size
    }

    /// It fills in IPv4 header checksums.
    pub(in super::super) fn tx_ipv4_checksum(&self) -> Option<u64> {
        self.tx_offload(u64::from(dpdk_sys::RTE_ETH_TX_OFFLOAD_IPV4_CKSUM))
    }

    /// Segments that a frame may have.
    pub(in super::super) fn max_segments(&self) -> u16 {
        self.raw.tx_desc_lim.nb_seg_max.min(self.raw.tx_desc_lim.nb_mtu_seg_max)
    }

    /// It sends frames of several segments.
    pub(in super::super) fn tx_multi_segment(&self) -> Option<u64> {
        self.tx_offload(u64::from(dpdk_sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS))
    }

    /// It frees sent buffers in bulk, if all come from one pool and nobody else refers to them.
    pub(in super::super) fn tx_fast_free(&self) -> Option<u64> {
        self.tx_offload(u64::from(dpdk_sys::RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE))
    }

    /// Those of the transmit offloads `wanted` that it has.
    pub(in super::super) fn tx_offloads(&self, wanted: TxOffloads) -> TxOffloads {
        TxOffloads(self.raw.tx_offload_capa & wanted.0)
    }

    /// Those of the receive offloads `wanted` that it has.
    pub(in super::super) fn rx_offloads(&self, wanted: RxOffloads) -> RxOffloads {
        RxOffloads(self.raw.rx_offload_capa & wanted.0)
    }

    /// Largest frame that it merges segments into.
    pub(in super::super) fn max_lro(&self) -> u32 {
        self.raw.max_lro_pkt_size
    }

    fn tx_offload(&self, bit: u64) -> Option<u64> {
        (self.raw.tx_offload_capa & bit != 0).then_some(bit)
    }

    /// It spreads a frame over several buffers if it must.
    pub(in super::super) fn rx_scatter(&self) -> Option<u64> {
        let bit = u64::from(dpdk_sys::RTE_ETH_RX_OFFLOAD_SCATTER);
        (self.raw.rx_offload_capa & bit != 0).then_some(bit)
    }
}

/// A port that runs. Stopped, closed and detached when dropped; its pool goes last.
#[derive(Debug)]
pub(in super::super) struct StartedPort {
    /// None once the port was abandoned to the process that owns it.
    attached: Option<Attached>,
    /// There as long as the port is attached.
    pub(super) device: *mut dpdk_sys::rte_device,
    pool: Pool,
    /// One for each queue: buffers in its ring refer to it.
    external: Vec<External>,
    /// One for each queue.
    lcores: Vec<Lcore>,
    /// A bit per queue that was handed out.
    taken: AtomicU64,
    close_on_interrupt_thread: bool,
    pub(super) is_in_container: bool,
    pub(super) mapped: Mapped,
    /// The descriptor of each queue's receive interrupt; none at all where the port is only polled.
    pub(super) interrupts: Vec<RawFd>,
}

// SAFETY: DPDK's control calls, which alone take `device`, are made from any thread; those of memory have locks of their own. All else is Send.
unsafe impl Send for StartedPort {}
// SAFETY: as above.
unsafe impl Sync for StartedPort {}

impl StartedPort {
    pub(super) fn number(&self) -> u16 {
        self.attached.as_ref().map_or(u16::MAX, |a| a.port)
    }

    /// Tells the driver the queue of each entry of its table, whose entries are as many.
    fn deal(&self, table: &[u16]) -> Result<(), Errno> {
        let mut groups: Vec<_> = table
            .chunks_exact(dpdk_sys::RTE_ETH_RETA_GROUP_SIZE as usize)
            .map(|queues| {
                let mut group = dpdk_sys::rte_eth_rss_reta_entry64 { mask: u64::MAX, ..Default::default() };
                group.reta.copy_from_slice(queues);
                group
            })
            .collect();
        // SAFETY: the port exists and is started; as many groups of 64 entries as its table has.
        Errno::check(unsafe {
            dpdk_sys::rte_eth_dev_rss_reta_update(self.number(), groups.as_mut_ptr(), table.len() as u16)
        })
    }

    /// How many queue pairs it has.
    pub(super) fn queues(&self) -> usize {
        self.lcores.len()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The memory that it may read where it lies; `None` if there is none, or it is being changed.
    #[inline]
    pub(in super::super) fn readable(&self) -> Option<Readable<'_>> {
        self.mapped.read()
    }

    /// The count of queue `index`'s external buffers.
    pub(super) fn external(&self, index: u16) -> Option<*mut dpdk_sys::rte_mbuf_ext_shared_info> {
        self.external.get(usize::from(index)).map(External::as_ptr)
    }

    /// The lcore id of queue `index`, if there is such a queue and it is handed out for the first time.
    pub(super) fn take_queue(&self, index: u16) -> Option<u32> {
        let bit = 1_u64.checked_shl(u32::from(index))?;
        let lcore = self.lcores.get(usize::from(index))?;
        (self.taken.fetch_or(bit, Ordering::Relaxed) & bit == 0).then(|| lcore.id())
    }

    /// The MAC address that the driver has.
    pub(in super::super) fn mac(&self) -> [u8; 6] {
        let mut address = dpdk_sys::rte_ether_addr::default();
        // SAFETY: the port exists; room for the answer.
        unsafe { dpdk_sys::rte_eth_macaddr_get(self.number(), &mut address) };
        address.addr_bytes
    }

    /// Whether the link is up.
    pub(in super::super) fn link_up(&self) -> bool {
        // SAFETY: all-zero is a link that is down.
        let mut link: dpdk_sys::rte_eth_link = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the port exists; room for the answer.
        let result = unsafe { dpdk_sys::rte_eth_link_get_nowait(self.number(), &mut link) };
        result == 0 && link.link_status() != 0
    }

    /// Whether the client of a vhost port takes super-segments: `VIRTIO_NET_F_GUEST_TSO4` and `_TSO6` of the virtio
    /// specification (section 5.1.3), and `VIRTIO_NET_F_MRG_RXBUF`, without which they would not fit its buffers.
    pub(in super::super) fn client_takes_super_segments(&self) -> bool {
        const WANTED: u64 = 1 << 7 | 1 << 8 | 1 << 15;
        let mut features = 0_u64;
        // SAFETY: the port exists and is a vhost port's, as others have no client; room for the answer.
        let result = unsafe { dpdk_sys::shouter_dpdk_vhost_features(self.number(), &mut features) };
        result == 0 && features & WANTED == WANTED
    }

    /// Received frames that the port itself dropped.
    pub(in super::super) fn missed(&self) -> u64 {
        // SAFETY: all-zero is valid.
        let mut stats: dpdk_sys::rte_eth_stats = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the port exists; room for the answer.
        let result = unsafe { dpdk_sys::rte_eth_stats_get(self.number(), &mut stats) };
        if result == 0 {
            stats.imissed.saturating_add(stats.ierrors).saturating_add(stats.rx_nombuf)
        } else {
            0
        }
    }

    /// Drops the handle without touching the port: in a forked child it is the parent's.
    pub(in super::super) fn abandon(&mut self) {
        if let Some(attached) = self.attached.take() {
            core::mem::forget(attached);
        }
        self.pool.abandon();
        core::mem::forget(core::mem::take(&mut self.lcores));
        core::mem::forget(core::mem::take(&mut self.external));
    }
}

impl Drop for StartedPort {
    fn drop(&mut self) {
        if let Some(attached) = self.attached.take() {
            // SAFETY: the port is started, and no queue refers to it any more (each holds a reference to self).
            unsafe {
                if self.close_on_interrupt_thread
                    && dpdk_sys::shouter_dpdk_close_on_interrupt_thread(attached.port) == 0
                {
                    return;
                }
                dpdk_sys::rte_eth_dev_stop(attached.port);
            }
            // It reads nothing any more, and its device is still there.
            self.unmap_all();
            // SAFETY: as above.
            unsafe { dpdk_sys::rte_eth_dev_close(attached.port) };
        }
    }
}
