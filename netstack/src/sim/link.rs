//! One direction of a link: a queue, a line of some rate, a delay, and faults.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::time::Instant;

/// A packet on a link.
pub trait Packet: Clone {
    /// Bytes that it takes on the line, preamble and gap included.
    fn line_len(&self) -> u64;

    /// Marks that it met congestion (RFC 3168). False where it must not be marked.
    fn mark(&mut self) -> bool {
        false
    }

    /// Flips some of its bits.
    fn corrupt(&mut self, _rng: &mut SmallRng) {}
}

/// A link in one direction. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second; 0 for no limit.
    pub bits_per_second: u64,
    /// Propagation time.
    pub delay: Duration,
    /// Packets that may be in the queue and on the line. Further ones are dropped, or refused where the sender is a device.
    pub queue_frames: usize,
    /// Bytes that may be in the queue and on the line, counted as on the line. They stand for a port's buffer.
    pub queue_bytes: usize,
    /// Packets in the queue above which further ones are marked.
    pub mark_above: usize,
    /// Bytes in the queue above which further ones are marked.
    pub mark_above_bytes: usize,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet comes twice.
    pub duplicate: f64,
    /// Probability that a packet is held up, and overtaken.
    pub reorder: f64,
    /// For how long it is held up at most.
    pub reorder_by: Duration,
    /// The most that a packet may take longer on the line, by chance; packets stay in order. It breaks the lockstep in
    /// which flows of a simulation without chance would stay.
    pub jitter: Duration,
    /// Probability that bits of a packet are flipped.
    pub corrupt: f64,
}

impl Default for LinkConfig {
    /// 100 Gb/s, 1 us, 256 packets, no fault.
    fn default() -> Self {
        Self {
            bits_per_second: 100_000_000_000,
            delay: Duration::from_micros(1),
            queue_frames: 256,
            queue_bytes: usize::MAX,
            mark_above: usize::MAX,
            mark_above_bytes: usize::MAX,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            jitter: Duration::ZERO,
            corrupt: 0.0,
        }
    }
}

impl LinkConfig {
    /// How long the line is busy with `bytes`.
    fn line_time(&self, bytes: u64) -> Duration {
        if self.bits_per_second == 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos((u128::from(bytes) * 8_000_000_000 / u128::from(self.bits_per_second)) as u64)
    }
}

/// Statistics of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that were handed over.
    pub sent: u64,
    /// Packets lost at random, or by a [`Rule`].
    pub lost: u64,
    /// Packets dropped because the link was cut.
    pub cut_drops: u64,
    /// Packets dropped because the queue was full.
    pub queue_drops: u64,
    /// The most packets that were ever in the queue and on the line.
    pub deepest_queue: usize,
    /// Packets that were marked.
    pub marked: u64,
    /// Packets that were held up.
    pub reordered: u64,
    /// Packets with flipped bits.
    pub corrupted: u64,
}

/// Decides about a packet before anything else does: false loses it.
pub type Rule<P> = Box<dyn FnMut(Instant, &P) -> bool + Send>;

/// One direction of a link.
pub struct Link<P> {
    /// Its configuration; it may be changed at any time.
    pub config: LinkConfig,
    /// Whether it loses everything.
    pub cut: bool,
    /// The rule by which it loses packets, beside those that it loses at random.
    pub rule: Option<Rule<P>>,
    counters: LinkCounters,
    rng: SmallRng,
    free_at: Instant,
    /// When each packet in the queue and on the line has left it, and its bytes on the line; oldest first.
    leaving: VecDeque<(Instant, usize)>,
    /// The sum of those bytes.
    queued_bytes: usize,
    arrivals: BTreeMap<(Instant, u64), P>,
    order: u64,
}

impl<P> fmt::Debug for Link<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("config", &self.config)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<P: Packet> Link<P> {
    /// An idle link. Everything random on it comes from `seed`.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            config,
            cut: false,
            rule: None,
            counters: LinkCounters::default(),
            rng: SmallRng::seed_from_u64(seed),
            free_at: Instant::ZERO,
            leaving: VecDeque::new(),
            queued_bytes: 0,
            arrivals: BTreeMap::new(),
            order: 0,
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random::<f64>() < probability
    }

    /// Whether the queue has room at `now`.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.queued_bytes(now) < self.config.queue_bytes && self.leaving.len() < self.config.queue_frames
    }

    /// Bytes in the queue and on the line at `now`.
    pub fn queued_bytes(&mut self, now: Instant) -> usize {
        while let Some((_, bytes)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.queued_bytes -= bytes;
            self.leaving.pop_front();
        }
        self.queued_bytes
    }

    /// When a full queue has room again.
    pub fn room_at(&self, now: Instant) -> Option<Instant> {
        let full =
            self.leaving.len() >= self.config.queue_frames || self.queued_bytes >= self.config.queue_bytes;
        self.leaving.iter().map(|(at, _)| *at).find(|at| *at > now).filter(|_| full)
    }

    /// Sends a packet, which arrives later, or not at all.
    pub fn send(&mut self, now: Instant, packet: P) {
        let fits =
            self.queued_bytes(now).saturating_add(packet.line_len() as usize) <= self.config.queue_bytes;
        let has_room = fits && self.has_room(now);
        self.carry(now, packet, has_room);
    }

    /// The same from a sender that has asked [`Link::has_room`] for several packets at once: all of them find room.
    pub(super) fn send_unlimited(&mut self, now: Instant, packet: P) {
        self.carry(now, packet, true);
    }

    fn carry(&mut self, now: Instant, mut packet: P, has_room: bool) {
        self.counters.sent += 1;
        if self.cut {
            self.counters.cut_drops += 1;
            return;
        }
        if self.rule.as_mut().is_some_and(|rule| !rule(now, &packet)) || self.happens(self.config.loss) {
            self.counters.lost += 1;
            return;
        }
        if !has_room {
            self.counters.queue_drops += 1;
            return;
        }
        let deep =
            self.leaving.len() > self.config.mark_above || self.queued_bytes > self.config.mark_above_bytes;
        if deep && packet.mark() {
            self.counters.marked += 1;
        }
        self.free_at = self.free_at.max(now) + self.config.line_time(packet.line_len());
        if !self.config.jitter.is_zero() {
            self.free_at += self.config.jitter.mul_f64(self.rng.random());
        }
        self.leaving.push_back((self.free_at, packet.line_len() as usize));
        self.queued_bytes += packet.line_len() as usize;
        self.counters.deepest_queue = self.counters.deepest_queue.max(self.leaving.len());
        if self.happens(self.config.duplicate) {
            self.put(packet.clone());
        }
        if self.happens(self.config.corrupt) {
            self.counters.corrupted += 1;
            packet.corrupt(&mut self.rng);
        }
        self.put(packet);
    }

    /// Lets a packet that has left the line arrive.
    fn put(&mut self, packet: P) {
        let mut at = self.free_at + self.config.delay;
        if self.happens(self.config.reorder) {
            self.counters.reordered += 1;
            at += self.config.reorder_by.mul_f64(self.rng.random());
        }
        self.order += 1;
        self.arrivals.insert((at, self.order), packet);
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.arrivals.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next packet that has arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<P> {
        let first = self.arrivals.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Loses those packets in flight for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&P) -> bool) {
        self.arrivals.retain(|_, packet| keep(packet));
    }

    /// The counters so far.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }
}
