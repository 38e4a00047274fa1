//! A port's offloads, and their negotiation with the driver.

use super::sys::{Info, RxOffloads, TxOffloads};
use super::{DeviceSpec, DpdkPortConfig};

/// A port's offloads, as negotiated with driver and peer.
///
/// | from, to | super-segments | checksums |
/// |---|---|---|
/// | virtio to vhost | whole, if vhost offers it | left out |
/// | vhost to virtio | whole, if virtio takes it | left out |
/// | NIC | split by it, if it can | filled in and checked by it |
/// | memif, af_packet, af_xdp, tap, ring, null | cut in software | in software |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums of TCP are filled in.
    pub tcp_checksum: bool,
    /// Checksums of UDP are filled in.
    pub udp_checksum: bool,
    /// Super-segments are split, or passed whole. Of vhost it depends on the client.
    pub split: bool,
    /// Checksums of received frames are checked.
    pub rx_checksum: bool,
    /// Frames longer than the MTU may arrive.
    pub merge: bool,
}

/// The offloads that the port is configured with, as flags and as a value; `None` if frames pass as they are.
pub(super) fn negotiate(config: &DpdkPortConfig, info: &Info) -> Option<(RxOffloads, TxOffloads, Offloads)> {
    let is_vhost = matches!(config.device, DeviceSpec::Vhost(_));
    if !config.leaves_work() {
        return None;
    }
    // vhost has neither bit: it passes on the frames that its client takes.
    let tx = TxOffloads::TCP_CHECKSUM.and(TxOffloads::UDP_CHECKSUM).and(TxOffloads::TCP_SPLIT);
    let tx = info.tx_offloads(tx.and(TxOffloads::MULTI_SEGMENT));
    let rx = info.rx_offloads(RxOffloads::CHECKSUMS.and(RxOffloads::MERGE).and(RxOffloads::SCATTER));
    let offloads = Offloads {
        tcp_checksum: tx.has(TxOffloads::TCP_CHECKSUM),
        udp_checksum: tx.has(TxOffloads::UDP_CHECKSUM),
        split: is_vhost || tx.has(TxOffloads::TCP_SPLIT.and(TxOffloads::MULTI_SEGMENT)),
        rx_checksum: rx.has(RxOffloads::CHECKSUMS),
        merge: is_vhost || rx.has(RxOffloads::MERGE),
    };
    Some((rx, tx, offloads))
}
