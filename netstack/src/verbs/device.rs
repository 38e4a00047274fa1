//! RDMA devices and their ports.

use super::{Context, Gid, VerbsError, sys};

/// A device, as [`devices`] finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its ports.
    pub ports: Vec<PortInfo>,
    /// The most work requests that a queue holds. (How much can be sent inline shows only when a queue pair is made.)
    pub max_qp_wr: u32,
    /// The most scatter/gather elements of a request.
    pub max_sge: u32,
    /// The most entries of a completion queue.
    pub max_cqe: u32,
    /// The most RDMA reads that one queue pair may have under way, as the one that is read from.
    pub max_rd_atomic: u8,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number, counted from 1.
    pub number: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// The kind of network that it is plugged into.
    pub link_layer: LinkLayer,
    /// The local identifier that the subnet manager gave it; 0 on Ethernet.
    pub lid: u16,
    /// The largest payload of a packet now, in bytes: a path MTU must not be larger.
    pub active_mtu: u32,
    /// The valid entries of its GID table.
    pub gids: Vec<Gid>,
}

/// The logical state of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, not yet configured (InfiniBand: no subnet manager).
    Init,
    /// Configured, not yet active.
    Armed,
    /// It can be used.
    Active,
    /// Active, and the link was lost a moment ago.
    ActiveDefer,
    /// None of these.
    Unknown,
}

impl PortState {
    fn of(raw: u32) -> Self {
        match raw {
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => Self::Unknown,
        }
    }
}

/// The kind of network that a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// Ethernet: RoCE (or iWARP).
    Ethernet,
    /// InfiniBand; also if an old driver does not specify it.
    InfiniBand,
}

impl LinkLayer {
    /// IBV_LINK_LAYER_ETHERNET is 2; 0 (unspecified) means InfiniBand, as libibverbs defines it.
    fn of(raw: u8) -> Self {
        if raw == 2 { Self::Ethernet } else { Self::InfiniBand }
    }
}

/// All devices that can be opened.
///
/// # Errors
/// If there is none: [`VerbsError::NoDevice`], or why the first one cannot be opened
/// ([`Permission`](VerbsError::Permission), [`NoProvider`](VerbsError::NoProvider), [`NoUverbs`](VerbsError::NoUverbs)).
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let mut found = Vec::new();
    let mut first_error = None;
    for device in list()? {
        match Context::open(&device.name).and_then(|context| context.info()) {
            Ok(info) => found.push(info),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// The devices that libibverbs drives, or why there is none.
pub(super) fn list() -> Result<Vec<sys::ListedDevice>, VerbsError> {
    match sys::list() {
        Ok(list) if !list.is_empty() => Ok(list),
        // Without RDMA in the kernel libibverbs says ENOSYS, or lists nothing.
        _ => Err(why_none(&entries(KERNEL_DEVICES), &character_devices())),
    }
}

/// The kernel's list of RDMA devices, usable by programs or not.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";
/// The list of ib_uverbs' character devices.
const CHARACTER_DEVICES: &str = "/sys/class/infiniband_verbs";

fn entries(directory: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The devices behind the character devices.
fn character_devices() -> Vec<String> {
    let device = |entry: &String| std::fs::read_to_string(format!("{CHARACTER_DEVICES}/{entry}/ibdev")).ok();
    entries(CHARACTER_DEVICES).iter().filter_map(device).map(|name| name.trim().to_owned()).collect()
}

/// Why libibverbs lists no device: `kernel` has these, `reachable` are those with a character device.
fn why_none(kernel: &[String], reachable: &[String]) -> VerbsError {
    match kernel.first() {
        None => VerbsError::NoDevice,
        Some(device) if reachable.contains(device) => VerbsError::NoProvider { device: device.clone() },
        Some(device) => VerbsError::NoUverbs { device: device.clone() },
    }
}

impl Context {
    /// The present properties of the device and its ports.
    ///
    /// # Errors
    /// [`VerbsError::Call`] where the device does not answer.
    pub fn info(&self) -> Result<DeviceInfo, VerbsError> {
        let call = |call| move |errno| VerbsError::call(self.name(), call, errno);
        let limits = self.domain().limits().map_err(call("ibv_query_device"))?;
        let mut ports = Vec::new();
        for number in 1..=limits.phys_port_cnt {
            ports.push((number, self.domain().port(number).map_err(call("ibv_query_port"))?));
        }
        let count = ports.iter().map(|(_, port)| usize::try_from(port.gid_tbl_len).unwrap_or(0)).sum();
        let gids = self.domain().gids(count).map_err(call("ibv_query_gid_table"))?;
        let port = |(number, port): (u8, rdma_sys::ibv_port_attr)| PortInfo {
            number,
            state: PortState::of(port.state),
            link_layer: LinkLayer::of(port.link_layer),
            lid: port.lid,
            active_mtu: mtu_bytes(port.active_mtu),
            gids: gids
                .iter()
                .filter(|(port, _)| *port == u32::from(number))
                .map(|(_, gid)| gid.clone())
                .collect(),
        };
        let limit = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceInfo {
            name: self.name().to_owned(),
            ports: ports.into_iter().map(port).collect(),
            max_qp_wr: limit(limits.max_qp_wr),
            max_sge: limit(limits.max_sge),
            max_cqe: limit(limits.max_cqe),
            max_rd_atomic: u8::try_from(limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom)).unwrap_or(0),
        })
    }
}

/// Bytes of `enum ibv_mtu`: 1 is 256, 5 is 4096; 0 for other values.
fn mtu_bytes(raw: u32) -> u32 {
    if (1..=5).contains(&raw) { 128 << raw } else { 0 }
}

/// The number in `enum ibv_mtu` of a path MTU in bytes.
pub(super) fn mtu_number(bytes: u32) -> Option<u32> {
    (1..=5).find(|&raw| mtu_bytes(raw) == bytes)
}

#[cfg(test)]
mod tests;
