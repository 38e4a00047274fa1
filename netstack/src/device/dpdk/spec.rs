//! A port's device as text: `kind:argument`.

use core::fmt;
use core::str::FromStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest path of a UNIX socket in bytes: `sun_path` of `sockaddr_un` less its terminator (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// Longest name of a network interface in bytes: IFNAMSIZ less its terminator (netdevice(7)).
const INTERFACE_NAME_MAX: usize = 15;

/// A device, as named in a configuration or on the command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceSpec {
    /// `vhost:PATH`: serves an embedded link at a UNIX socket.
    Vhost(PathBuf),
    /// `virtio:PATH`: connects to an embedded link.
    Virtio(PathBuf),
    /// `memif-server:PATH`: serves a shared-memory interface at a UNIX socket.
    MemifServer(PathBuf),
    /// `memif-client:PATH`: connects to one.
    MemifClient(PathBuf),
    /// `af_packet:INTERFACE`: a kernel interface through a packet socket.
    AfPacket(String),
    /// `af_xdp:INTERFACE`: a kernel interface through XDP sockets.
    AfXdp(String),
    /// `tap:NAME`: a TAP interface that is created for the port; the kernel is the peer.
    Tap(String),
    /// `ring`: every frame sent comes back.
    Ring,
    /// `null`: frames sent vanish; empty frames of 64 bytes arrive at every receive.
    Null,
    /// `pci:DDDD:BB:DD.F`: a NIC bound to vfio-pci (or uio).
    Pci(String),
}

/// Why a text is no [`DeviceSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The part before the colon is unknown.
    #[error(
        "device `{0}`: no such kind; write vhost:PATH, virtio:PATH, memif-server:PATH, memif-client:PATH, \
         af_packet:INTERFACE, af_xdp:INTERFACE, tap:NAME, ring, null or pci:0000:03:00.0"
    )]
    Kind(String),
    /// The part after the colon is missing, or not wanted.
    #[error("device `{0}`: write `{1}`")]
    Argument(String, &'static str),
    /// The path does not fit a socket address, or holds a character that DPDK's arguments cannot carry.
    #[error(
        "device `{0}`: a socket path has 1 to {SOCKET_PATH_MAX} bytes, without comma, equals sign, quote, bracket, \
         blank or control character; choose another, such as /tmp/shouter.sock"
    )]
    Path(String),
    /// Not the name of a network interface.
    #[error(
        "device `{0}`: an interface name has 1 to {INTERFACE_NAME_MAX} letters, digits or any of `._-`; \
         `ip link` lists those there are"
    )]
    Interface(String),
    /// Not a PCI address.
    #[error("device `{0}`: a PCI address is written 0000:03:00.0; `lspci -D` lists them")]
    PciAddress(String),
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (text, None),
        };
        let owned = || text.to_owned();
        let path = |form| {
            let argument = argument.ok_or(SpecError::Argument(owned(), form))?;
            let fits = (1..=SOCKET_PATH_MAX).contains(&argument.len());
            let plain = !argument.chars().any(|c| ",='\"[]() ".contains(c) || c.is_control());
            if fits && plain { Ok(PathBuf::from(argument)) } else { Err(SpecError::Path(owned())) }
        };
        let interface = |form| {
            let name = argument.ok_or(SpecError::Argument(owned(), form))?;
            let fits = (1..=INTERFACE_NAME_MAX).contains(&name.len());
            let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            if fits && plain { Ok(name.to_owned()) } else { Err(SpecError::Interface(owned())) }
        };
        let bare = |spec, form| {
            if argument.is_none() { Ok(spec) } else { Err(SpecError::Argument(owned(), form)) }
        };
        match kind {
            "vhost" => Ok(Self::Vhost(path("vhost:PATH")?)),
            "virtio" => Ok(Self::Virtio(path("virtio:PATH")?)),
            "memif-server" => Ok(Self::MemifServer(path("memif-server:PATH")?)),
            "memif-client" => Ok(Self::MemifClient(path("memif-client:PATH")?)),
            "af_packet" => Ok(Self::AfPacket(interface("af_packet:INTERFACE")?)),
            "af_xdp" => Ok(Self::AfXdp(interface("af_xdp:INTERFACE")?)),
            "tap" => Ok(Self::Tap(interface("tap:NAME")?)),
            "ring" => bare(Self::Ring, "ring"),
            "null" => bare(Self::Null, "null"),
            "pci" => {
                let address = argument.ok_or(SpecError::Argument(owned(), "pci:0000:03:00.0"))?;
                if is_pci_address(address) {
                    Ok(Self::Pci(address.to_ascii_lowercase()))
                } else {
                    Err(SpecError::PciAddress(owned()))
                }
            }
            _ => Err(SpecError::Kind(owned())),
        }
    }
}

/// `DDDD:BB:DD.F` in hexadecimal; the function is 0 to 7.
fn is_pci_address(text: &str) -> bool {
    let pattern = b"hhhh:hh:hh.f";
    text.len() == pattern.len()
        && text.bytes().zip(pattern).all(|(byte, &p)| match p {
            b'h' => byte.is_ascii_hexdigit(),
            b'f' => (b'0'..=b'7').contains(&byte),
            _ => byte == p,
        })
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vhost(p) | Self::Virtio(p) | Self::MemifServer(p) | Self::MemifClient(p) => {
                write!(f, "{}:{}", self.prefix(), p.display())
            }
            Self::AfPacket(name) | Self::AfXdp(name) | Self::Tap(name) | Self::Pci(name) => {
                write!(f, "{}:{name}", self.prefix())
            }
            Self::Ring | Self::Null => f.write_str(self.prefix()),
        }
    }
}

impl DeviceSpec {
    /// The part before the colon.
    fn prefix(&self) -> &'static str {
        match self {
            Self::MemifServer(_) => "memif-server",
            Self::MemifClient(_) => "memif-client",
            other => other.kind(),
        }
    }

    /// A short name for people, as in [`Capabilities::kind`](crate::device::Capabilities).
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Vhost(_) => "vhost",
            Self::Virtio(_) => "virtio",
            Self::MemifServer(_) | Self::MemifClient(_) => "memif",
            Self::AfPacket(_) => "af_packet",
            Self::AfXdp(_) => "af_xdp",
            Self::Tap(_) => "tap",
            Self::Ring => "ring",
            Self::Null => "null",
            Self::Pci(_) => "pci",
        }
    }

    /// The socket that this side creates and removes.
    pub(super) fn served_socket(&self) -> Option<&Path> {
        match self {
            Self::Vhost(path) | Self::MemifServer(path) => Some(path),
            _ => None,
        }
    }

    /// The socket that the other side creates.
    pub(super) fn awaited_socket(&self) -> Option<&Path> {
        match self {
            Self::Virtio(path) | Self::MemifClient(path) => Some(path),
            _ => None,
        }
    }

    /// The interface of the kernel's whose link is the port's, where the driver reports a link that is always up.
    pub(super) fn interface(&self) -> Option<&str> {
        match self {
            Self::AfPacket(name) | Self::AfXdp(name) => Some(name),
            _ => None,
        }
    }

    /// Whether the driver reads the payload at transmit time with the processor, so that it may lie anywhere.
    pub(super) fn reads_any_address(&self) -> bool {
        matches!(self, Self::Vhost(_) | Self::MemifServer(_) | Self::MemifClient(_) | Self::AfPacket(_))
    }

    /// Whether the device reads memory where it lies once that is [registered](super::PortMemory::register) with it.
    pub(super) fn reads_registered_memory(&self) -> bool {
        matches!(self, Self::Pci(_) | Self::Ring)
    }

    /// Whether it is a NIC that vfio-pci has.
    pub(super) fn is_on_vfio(&self) -> bool {
        let Self::Pci(address) = self else { return false };
        fs::read_link(format!("/sys/bus/pci/devices/{address}/driver"))
            .is_ok_and(|driver| driver.file_name().is_some_and(|name| name == "vfio-pci"))
    }

    /// Whether the driver keeps buffers in its rings, which then have to be counted into the pool.
    pub(super) fn keeps_buffers(&self) -> bool {
        !self.reads_any_address()
    }

    /// Whether the only station at the other end is the peer, so that no MAC filter needs our address.
    pub(super) fn is_point_to_point(&self) -> bool {
        matches!(
            self,
            Self::Vhost(_)
                | Self::Virtio(_)
                | Self::MemifServer(_)
                | Self::MemifClient(_)
                | Self::Ring
                | Self::Null
        )
    }

    /// Advice for the most common cause of a failure to attach this kind of device.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Vhost(_) | Self::MemifServer(_) => "check that the socket's directory can be written",
            Self::Virtio(_) | Self::MemifClient(_) => {
                "check that a shouter process of the same version serves that socket, and try again"
            }
            Self::AfPacket(_) => "the interface must exist (`ip link`), and packet sockets need CAP_NET_RAW",
            Self::AfXdp(_) => {
                "the interface must exist (`ip link`); XDP sockets need CAP_NET_ADMIN, CAP_BPF and kernel 5.4 or later"
            }
            Self::Tap(_) => {
                "TAP interfaces need CAP_NET_ADMIN and /dev/net/tun, and a name that is not taken"
            }
            Self::Pci(_) => {
                "bind the NIC to vfio-pci (scripts/bind-nic bind ADDRESS), and name it in EalConfig::pci"
            }
            Self::Ring | Self::Null => "raise EalConfig::memory_mb",
        }
    }
}
