//! A queue pair as a [`Device`].

use std::sync::Arc;

use super::port::Shared;
use super::sys::{BURST, Queue};
use crate::device::{Capabilities, Device, DeviceCounters, RxFrame, TxBatch};
use crate::time::Instant;

/// Payload of this many bytes and more is chained where the driver allows it, shorter payload is copied: about where
/// the two cost the same (see [`Payload`](super::Payload)).
const CHAIN_FROM: usize = 2560;

/// One queue pair of a [`Port`](super::Port), driven by one thread at a time.
///
/// Nothing here waits: `transmit` takes what the ring has room for, `receive` what is there.
#[derive(Debug)]
pub struct DpdkDevice {
    // Dropped before the port that it belongs to.
    queue: Queue,
    shared: Arc<Shared>,
    capabilities: Capabilities,
    counters: DeviceCounters,
}

impl DpdkDevice {
    pub(super) fn new(shared: &Arc<Shared>, index: u16) -> Option<Self> {
        let capabilities = Capabilities {
            tx_ipv4_checksum: shared.tx_ipv4_checksum,
            ..Capabilities::plain(shared.config.device.kind(), shared.config.mtu, BURST as u16)
        };
        let queue = shared.queue(index)?;
        Some(Self { queue, shared: shared.clone(), capabilities, counters: DeviceCounters::default() })
    }

    /// Whether payload is chained behind headers rather than copied.
    pub fn chains_payload(&self) -> bool {
        self.shared.chains
    }
}

impl Device for DpdkDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        self.shared.mac
    }

    /// May make a system call: ask now and then, not per burst.
    fn link_up(&mut self) -> bool {
        self.queue.port().link_up()
    }

    #[inline]
    fn transmit(&mut self, _now: Instant, batch: &mut TxBatch) -> usize {
        let mut total = 0;
        loop {
            let frames = batch.frames();
            if frames.is_empty() {
                self.queue.flush();
                break;
            }
            let taken = if self.shared.chains {
                self.queue.send_chained(frames, CHAIN_FROM)
            } else {
                self.queue.send_copied(frames)
            };
            if taken == 0 {
                break;
            }
            let bytes: usize = frames[..taken].iter().map(|f| f.len()).sum();
            self.counters.tx_bytes += bytes as u64;
            batch.consume(taken);
            total += taken;
        }
        self.counters.tx_frames += total as u64;
        total
    }

    #[inline]
    fn receive(&mut self, _now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        // What was taken and found no room goes out even if the stack has nothing more to send.
        self.queue.flush();
        let mut total = 0;
        while total < budget {
            let want = (budget - total).min(BURST);
            let (frames, bytes, more) = self.queue.receive(want, sink);
            total += frames;
            self.counters.rx_bytes += bytes as u64;
            if !more {
                break;
            }
        }
        self.counters.rx_frames += total as u64;
        total
    }

    /// Asks the driver for what it lost: not for the hot path. Losses of a port of several queues are counted with
    /// each of them.
    fn counters(&self) -> DeviceCounters {
        let dropped = self.queue.oversized + self.queue.port().missed();
        DeviceCounters { dropped, ..self.counters }
    }
}
