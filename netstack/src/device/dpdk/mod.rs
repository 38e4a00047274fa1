//! Ethernet ports through DPDK: NICs without the kernel, and links between processes that behave like NICs.
//!
//! Three steps. [`Eal::init`] starts DPDK, once per process. [`Port::open`] creates a port from a
//! [`DeviceSpec`] such as `vhost:/run/link.sock`, and takes it down when it is dropped. [`Port::into_devices`]
//! gives one [`DpdkDevice`] per queue pair, the [`Device`](crate::device::Device) that a shard's stack drives.
//!
//! ```no_run
//! use shouter_netstack::device::dpdk::{Eal, EalConfig, Port, DpdkPortConfig};
//! use std::time::Duration;
//!
//! let eal = Eal::init(&EalConfig::default())?;
//! let config = DpdkPortConfig::new("virtio:/tmp/link.sock".parse()?);
//! let port = Port::open(eal, &config, Duration::from_secs(10))?; // waits until the other side serves the socket
//! let mut device = port.into_devices().remove(0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The embedded link is vhost-user on one side and virtio-user on the other, joined by a UNIX socket: no root, no
//! hugepages, no kernel in the data path. Either side survives the death of the other.
//!
//! Threads need not be registered with DPDK. Each queue has a cache of buffers of its own, which any thread that drives the
//! queue uses; so a queue may go from thread to thread.
//!
//! # Copies
//!
//! A frame that is sent is copied into a DPDK buffer: `virtio_user` shares DPDK's own heap with its peer and nothing
//! else. Drivers that copy at transmit time themselves (vhost, memif, af_packet) can read any address, so there the
//! payload may be chained behind the header as an external buffer instead; see [`PayloadMode`]. A NIC reads payload where it lies in memory that is registered
//! with its port ([`PortMemory::register`]), behind an IOMMU that translates the process's addresses; but only payload that is *lent*, which RUD's
//! datagrams are when they are sent for the first time: see [`Device`](crate::device::Device) for when the sender may write there again.
//!
//! # Offloads
//!
//! A port that was opened with [`DpdkPortConfig::offload`] takes frames that leave their transport checksum out and
//! super-segments of TCP, and hands over frames of up to 64 KiB, in pieces, that its peer or a NIC merged; [`Offloads`]
//! lists each device's abilities. On an embedded link nothing is cut or summed at all: a super-segment crosses as one
//! frame, and its receiver learns that the checksum was left out. Such a port gives up the vectorised receive path of
//! virtio and uses larger buffers, so links that carry RUD alone are opened without. Offloads of NICs follow from their
//! drivers' announcements, and have been tried on QEMU's e1000 and virtio-net alone.
//!
//! # Several queues
//!
//! Queue k of an embedded link leads to queue k of its other end. A NIC deals out what it receives by the hash of
//! [`crate::rss`], and [`spread`](crate::device::spread()) sees to the frames that it does not hash. A NIC whose driver does not
//! take key and table has one queue. Tried on QEMU's virtio-net alone.
//!
//! All unsafe code is in `sys`.

mod eal;
mod error;
mod memory;
mod numa;
mod offload;
mod port;
mod queue;
mod sizes;
mod socket;
mod spec;
mod spread;
mod sys;
#[cfg(test)]
mod tests;

pub use eal::{Description, Eal, EalConfig, EalError};
pub use error::PortError;
pub use memory::{MemoryError, PortMemory, PortRegistration};
pub use offload::Offloads;
pub use port::{DpdkPortConfig, PayloadMode, Port};
pub use queue::DpdkDevice;
pub use sizes::Layout;
pub use spec::{DeviceSpec, SpecError};
