//! The counters of a rank.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::drive::Drive;
use crate::observe::metrics::{Metric, MetricKind};
use crate::runtime::Instant;

/// The counters of a rank since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Collectives completed.
    pub ops: u64,
    /// Bytes of this rank's tensors that were reduced.
    pub bytes_reduced: u64,
    /// Nanoseconds from push to completion, summed over the operations.
    pub time_in_allreduce_ns: u64,
    /// Collectives that this host's ranks reduced straight from each other's tensors: in memory of [`alloc`](super::Group::alloc), or by
    /// GPUs. The tensors of others were staged.
    pub in_place: u64,
    /// Frames sent by this host's ports; zero on ranks that own none, as are the following.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Of the frames sent, those whose payload was not copied into a buffer of the driver: a NIC read it where it lay, or the driver of an embedded link did.
    pub frames_uncopied: u64,
    /// Bytes sent, Ethernet headers included.
    pub bytes_sent: u64,
    /// Bytes received, Ethernet headers included.
    pub bytes_received: u64,
    /// Datagrams sent again.
    pub resent: u64,
    /// Datagrams dropped because their CRC was wrong.
    pub crc_dropped: u64,
    /// Datagrams of sealed sessions dropped because they had come before: the network, or someone in it, has repeated them.
    pub replayed: u64,
    /// Paths of RUD left out at present, because they lose what the others to the same host deliver.
    pub paths_out: u64,
    /// Ports of this host whose link is down at present.
    pub links_down: u64,
    /// Times that the link of a port of this host went down after it was up.
    pub link_losses: u64,
    /// Leaders of other hosts that this rank has a channel to: one is opened at its first use.
    pub channels: u64,
}

impl Stats {
    /// The counters for Prometheus.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let kind = MetricKind::Counter;
        let metric = |name, help, value: u64| Metric { kind, name, help, value: value as f64 };
        let seconds = self.time_in_allreduce_ns as f64 / 1e9;
        vec![
            metric("operations_total", "Collectives completed.", self.ops),
            metric(
                "reduced_bytes_total",
                "Bytes of this rank's tensors that were reduced.",
                self.bytes_reduced,
            ),
            Metric {
                kind,
                name: "operation_seconds_total",
                help: "Time from start to completion, summed over the collectives.",
                value: seconds,
            },
            metric("in_place_total", "Collectives without staging on this host.", self.in_place),
            metric("sent_frames_total", "Frames sent by this rank's ports.", self.frames_sent),
            metric("received_frames_total", "Frames received by this rank's ports.", self.frames_received),
            metric(
                "uncopied_frames_total",
                "Frames sent whose payload was not copied into a buffer.",
                self.frames_uncopied,
            ),
            metric("sent_bytes_total", "Bytes sent, Ethernet headers included.", self.bytes_sent),
            metric("received_bytes_total", "Bytes received, Ethernet headers included.", self.bytes_received),
            metric("resent_total", "Datagrams sent again.", self.resent),
            metric("damaged_total", "Datagrams dropped because of a wrong CRC or seal.", self.crc_dropped),
            metric(
                "replayed_total",
                "Datagrams of sealed sessions dropped because they had come before.",
                self.replayed,
            ),
            Metric {
                kind: MetricKind::Gauge,
                ..metric(
                    "paths_out",
                    "Paths of RUD left out, because they lose what others deliver.",
                    self.paths_out,
                )
            },
            Metric {
                kind: MetricKind::Gauge,
                ..metric("links_down", "Ports of this host whose link is down.", self.links_down)
            },
            metric(
                "link_losses_total",
                "Times that the link of a port went down after it was up.",
                self.link_losses,
            ),
            Metric {
                kind: MetricKind::Gauge,
                ..metric("channels", "Leaders of other hosts that this rank has a channel to.", self.channels)
            },
        ]
    }
}

/// The running counts.
#[derive(Default)]
pub(super) struct Tally {
    ops: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    /// The same of small operations, of which one runs at a time: no exchange of words between cores, nor a locked instruction.
    small: [AtomicU64; 3],
}

impl Tally {
    /// A small operation has ended. By one thread at a time.
    #[inline]
    pub(super) fn finished_small(&self, begin: Instant, end: Instant, bytes: usize) {
        for (count, more) in self.small.iter().zip([1, bytes as u64, (end - begin).as_nanos() as u64]) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn finished(&self, begin: Instant, end: Instant, bytes: usize) {
        self.ops.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.nanos.fetch_add((end - begin).as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self, drive: &Drive) -> Stats {
        let [ops, bytes, nanos] = [(&self.ops, 0), (&self.bytes, 1), (&self.nanos, 2)].map(|(count, at)| {
            count.load(Ordering::Relaxed).wrapping_add(self.small[at].load(Ordering::Relaxed))
        });
        let mut stats = Stats { ops, bytes_reduced: bytes, time_in_allreduce_ns: nanos, ..Stats::default() };
        for drive in drive.all() {
            let counted = drive.with(|engine| {
                let up = engine.up();
                (
                    engine.counters().in_place,
                    up.device_counters(),
                    up.resent(),
                    up.crc_dropped(),
                    up.replayed(),
                    up.paths_out(),
                    up.links(),
                    up.used(),
                )
            });
            match counted {
                Ok((in_place, device, resent, crc_dropped, replayed, paths_out, links, channels)) => {
                    stats.in_place += in_place;
                    stats.frames_sent += device.tx_frames;
                    stats.frames_received += device.rx_frames;
                    stats.frames_uncopied += device.tx_uncopied;
                    stats.bytes_sent += device.tx_bytes;
                    stats.bytes_received += device.rx_bytes;
                    stats.resent += resent;
                    stats.crc_dropped += crc_dropped;
                    stats.replayed += replayed;
                    stats.paths_out += paths_out;
                    // The shards have queues of the same ports, and channels to the same leaders.
                    stats.links_down = stats.links_down.max(links.down);
                    stats.link_losses = stats.link_losses.max(links.losses);
                    stats.channels = stats.channels.max(channels as u64);
                }
                Err(error) => tracing::warn!(%error, "the engine's counters could not be read"),
            }
        }
        stats
    }
}
