//! A device that throttles received frames, each TCP connection by itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_netstack::device::{Capabilities, Device, DeviceCounters, RxFrame, TxBatch};
use shouter_netstack::time::Instant;

/// Bytes that wait for a connection's share of the line; further ones are lost.
const QUEUE: usize = 256 << 10;

/// The offset of the port numbers in a frame without VLAN tag and IP options.
const PORTS: usize = 34;

/// One connection's line.
struct Line {
    free_at: Instant,
    waiting: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

/// The ports of the connections in the order in which either end of the link has seen them first, so that a connection has one rate at both.
pub(super) type Order = Arc<Mutex<Vec<u16>>>;

pub(super) struct Shaped<D> {
    inner: D,
    /// The port that both ends listen on.
    service: u16,
    /// Bytes per second of the connections, in their order.
    rates: Vec<u64>,
    order: Order,
    lines: Vec<Line>,
    pub(super) lost: u64,
}

impl<D: Device> Shaped<D> {
    pub(super) fn new(inner: D, service: u16, rates: &[u64], order: &Order) -> Self {
        Self { inner, service, rates: rates.to_vec(), order: order.clone(), lines: vec![], lost: 0 }
    }
}

// SAFETY: all frames are the inner device's, which keeps the promise.
#[allow(unsafe_code)]
unsafe impl<D: Device> Device for Shaped<D> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn link_up(&mut self) -> bool {
        self.inner.link_up()
    }

    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        self.inner.transmit(now, batch)
    }

    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let Self { inner, service, rates, order, lines, lost } = self;
        let mut passed = 0;
        inner.receive(now, budget, &mut |frame| {
            let bytes = frame.head();
            let is_tcp = bytes.get(12..14) == Some(&[8, 0]) && bytes.get(23) == Some(&6);
            let Some([a, b, c, d]) = bytes.get(PORTS..PORTS + 4).filter(|_| is_tcp) else {
                passed += 1;
                return sink(frame);
            };
            let (from, to) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
            let port = if from == *service { to } else { from };
            let mut order = order.lock().unwrap();
            let at = order.iter().position(|other| *other == port).unwrap_or_else(|| {
                order.push(port);
                order.len() - 1
            });
            while lines.len() <= at {
                lines.push(Line { free_at: now, waiting: VecDeque::new(), bytes: 0 });
            }
            let line = &mut lines[at];
            if line.bytes + bytes.len() > QUEUE {
                *lost += 1;
                return;
            }
            let takes = Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / rates[at]);
            line.free_at = line.free_at.max(now) + takes;
            line.bytes += bytes.len();
            line.waiting.push_back((line.free_at, bytes.to_vec()));
        });
        for line in lines {
            while line.waiting.front().is_some_and(|(due, _)| *due <= now) {
                let (_, bytes) = line.waiting.pop_front().unwrap();
                line.bytes -= bytes.len();
                passed += 1;
                sink(RxFrame::new(&bytes));
            }
        }
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        let own = self.lines.iter().filter_map(|line| line.waiting.front().map(|(due, _)| *due)).min();
        [own, self.inner.next_deadline()].into_iter().flatten().min()
    }

    fn drop_waiting(&mut self) {
        self.inner.drop_waiting();
    }

    fn holds_extents(&self) -> bool {
        self.inner.holds_extents()
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
