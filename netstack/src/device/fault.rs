//! A device that misbehaves on purpose: loss, bit flips, duplicates, reordering and delay, from one seed.
//!
//! ```text
//!   batch -> lose? -> flip bits? -> duplicate? -> hold back? --no--> staging -> inner device
//!                                                     |                ^
//!                                                     +-> held ---due--+
//! ```
//!
//! Faults act on the transmit path, in the caller's time. Frames that pass unharmed are not copied; a frame that is
//! altered or held back is copied first, as a device may not touch the sender's memory or keep it past its release.
//!
//! Unless it is harmless the device offers no offloads, even if the inner one does: faults are to hit frames as they
//! are on a wire, with their checksums filled in.

use core::time::Duration;
use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Announce, Capabilities, Device, DeviceCounters, Frame, MAX_EXTENTS, RxFrame, TxBatch, Wakes};
use crate::scratch::{Scratch, Slot};
use crate::time::{Instant, earliest};

#[cfg(test)]
mod tests;

/// Kinds and rates of faults. All rates are probabilities per frame, from 0 to 1; the default is no fault.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultConfig {
    /// Same seed, same frames and times: same faults.
    pub seed: u64,
    /// The frame vanishes.
    pub loss: f64,
    /// One to three bits of the frame are inverted, anywhere in it.
    pub corrupt: f64,
    /// The frame is sent twice.
    pub duplicate: f64,
    /// The frame is held back for up to [`FaultConfig::reorder_delay`], so that later ones overtake it.
    pub reorder: f64,
    /// The longest that a reordered frame is held back.
    pub reorder_delay: Duration,
    /// Every frame is late by this much.
    pub delay: Duration,
    /// How many frames can be held back or altered at a time; beyond it the device takes no more frames.
    pub held_frames: u16,
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            loss: 0.0,
            corrupt: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::from_micros(100),
            delay: Duration::ZERO,
            held_frames: 256,
        }
    }
}

/// Why a [`FaultConfig`] was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultConfigError {
    /// A rate is not a probability.
    #[error("fault device: {name} is {value}, but a rate is a probability: give a number from 0 to 1")]
    Rate {
        /// The rate's name.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// No room for altered frames.
    #[error("fault device: held_frames is 0, but altered frames need room: give at least 2")]
    NoRoom,
}

impl FaultConfig {
    /// Whether no fault would ever happen.
    pub fn is_harmless(&self) -> bool {
        self.loss == 0.0
            && self.corrupt == 0.0
            && self.duplicate == 0.0
            && self.reorder == 0.0
            && self.delay.is_zero()
    }

    /// Checks the rates.
    ///
    /// # Errors
    /// [`FaultConfigError`] names the first value that is out of range.
    pub fn validate(&self) -> Result<(), FaultConfigError> {
        let rates = [
            ("loss", self.loss),
            ("corrupt", self.corrupt),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ];
        for (name, value) in rates {
            if !(0.0..=1.0).contains(&value) {
                return Err(FaultConfigError::Rate { name, value });
            }
        }
        if self.held_frames < 2 { Err(FaultConfigError::NoRoom) } else { Ok(()) }
    }
}

/// Counts of the faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Frames that vanished.
    pub lost: u64,
    /// Frames with inverted bits.
    pub corrupted: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back so that others overtake them.
    pub reordered: u64,
    /// Frames delayed.
    pub delayed: u64,
}

/// Wraps a device and makes its transmit path unreliable.
///
/// ```
/// use shouter_netstack::device::{Fault, FaultConfig, Loopback};
/// use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
/// use shouter_netstack::time::Instant;
///
/// let (device, _peer) = Loopback::pair(1500, 64);
/// let device = Fault::new(device, FaultConfig { loss: 1.0, ..FaultConfig::default() })?;
/// let mut stack = Stack::new(StackConfig::new(1));
/// let port = stack.add_port(device, PortConfig::new([10, 0, 0, 1].into(), 24, 1500))?;
/// stack.ping(Instant::ZERO, [10, 0, 0, 2], 1, 1, b"hello")?;
/// stack.poll(Instant::ZERO);
/// assert!(stack.device(port).unwrap().fault_counters().lost > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Fault<D> {
    // Dropped before `scratch`, whose memory it may refer to.
    inner: D,
    capabilities: Capabilities,
    config: FaultConfig,
    harmless: bool,
    rng: SmallRng,
    /// In transit to the inner device.
    staging: TxBatch,
    /// Frames that wait for their time: by time, then by arrival.
    held: BTreeMap<(Instant, u64), (Frame, Option<Slot>)>,
    /// Slots of frames in `staging` or in the inner device.
    in_flight: Vec<Slot>,
    scratch: Scratch,
    order: u64,
    counters: FaultCounters,
}

impl<D: Device> Fault<D> {
    /// Wraps `inner`.
    ///
    /// # Errors
    /// [`FaultConfigError`] if a rate is not a probability.
    pub fn new(inner: D, config: FaultConfig) -> Result<Self, FaultConfigError> {
        config.validate()?;
        let harmless = config.is_harmless();
        let slot_len = usize::from(inner.capabilities().mtu) + 64;
        let slots = if harmless { 0 } else { config.held_frames };
        let offered = inner.capabilities();
        let capabilities = if harmless {
            offered.clone()
        } else {
            Capabilities {
                tx_ipv4_checksum: offered.tx_ipv4_checksum,
                max_extents: offered.max_extents,
                // Offloads of reception are the inner device's own.
                rx_checksum: offered.rx_checksum,
                lro: offered.lro,
                ..Capabilities::plain(offered.kind, offered.mtu, offered.burst)
            }
        };
        Ok(Self {
            capabilities,
            rng: SmallRng::seed_from_u64(config.seed),
            staging: TxBatch::with_capacity(usize::from(slots.max(64))),
            held: BTreeMap::new(),
            in_flight: Vec::with_capacity(usize::from(slots)),
            scratch: Scratch::new(slots, slot_len),
            inner,
            config,
            harmless,
            order: 0,
            counters: FaultCounters::default(),
        })
    }

    /// Counts of the faults so far.
    pub fn fault_counters(&self) -> FaultCounters {
        self.counters
    }

    /// The wrapped device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Moves due frames on, and gives back slots that nothing refers to any more.
    fn advance(&mut self, now: Instant) {
        while self.staging.room() > 0
            && let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now)
        {
            let (frame, slot) = first.remove();
            self.in_flight.extend(slot);
            self.staging.push(frame);
        }
        if !self.staging.is_empty() {
            self.inner.transmit(now, &mut self.staging);
        }
        if !self.in_flight.is_empty() && self.staging.is_empty() && !self.inner.holds_extents() {
            for slot in self.in_flight.drain(..) {
                self.scratch.release(slot);
            }
        }
    }

    fn roll(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random::<f64>() < probability
    }

    /// A copy of `frame` that may be kept and altered. The caller has made sure that a slot is free.
    fn copy(&mut self, frame: &Frame) -> Option<(Frame, Option<Slot>)> {
        if frame.extents().is_empty() {
            return Some((*frame, None));
        }
        let mut parts: [&[u8]; MAX_EXTENTS] = [&[]; MAX_EXTENTS];
        for (part, extent) in parts.iter_mut().zip(frame.extents()) {
            *part = extent.as_bytes();
        }
        let (slot, extent) = self.scratch.store(&parts)?;
        Some((Frame::with_extents(&[frame.header()], &[extent], frame.offload())?, Some(slot)))
    }

    fn flip_bits(&mut self, frame: &mut Frame, slot: Option<&Slot>) {
        for _ in 0..self.rng.random_range(1..=3) {
            let bit = self.rng.random_range(0..frame.len().max(1) * 8);
            match frame.header_mut().get_mut(bit / 8) {
                Some(byte) => *byte ^= 1 << (bit % 8),
                None => {
                    let header_bits = frame.header().len() * 8;
                    if let Some(slot) = slot {
                        self.scratch.flip_bit(slot, bit - header_bits);
                    }
                }
            }
        }
    }

    /// Sends one frame through the faults.
    fn inject(&mut self, now: Instant, frame: &Frame) {
        if self.roll(self.config.loss) {
            self.counters.lost += 1;
            return;
        }
        let corrupt = self.roll(self.config.corrupt);
        let copies = if self.roll(self.config.duplicate) { 2 } else { 1 };
        self.counters.duplicated += copies - 1;
        for copy in 0..copies {
            let mut due = now + self.config.delay;
            if self.roll(self.config.reorder) {
                self.counters.reordered += 1;
                let longest = u64::try_from(self.config.reorder_delay.as_nanos()).unwrap_or(u64::MAX);
                due += Duration::from_nanos(self.rng.random_range(0..=longest));
            }
            let corrupt = corrupt && copy == 0;
            if due <= now && !corrupt {
                // It may be sent twice, and be overtaken.
                self.staging.push(frame.keep());
                continue;
            }
            let Some((mut frame, slot)) = self.copy(frame) else {
                self.counters.lost += 1;
                continue;
            };
            if corrupt {
                self.counters.corrupted += 1;
                self.flip_bits(&mut frame, slot.as_ref());
            }
            if due <= now {
                self.in_flight.extend(slot);
                self.staging.push(frame);
            } else {
                self.counters.delayed += 1;
                self.order += 1;
                self.held.insert((due, self.order), (frame, slot));
            }
        }
    }
}

// SAFETY: frames that wait here are copies; all others are the inner device's.
#[allow(unsafe_code)]
unsafe impl<D: Device> Device for Fault<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn link_up(&mut self) -> bool {
        self.inner.link_up()
    }

    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        if self.harmless {
            return self.inner.transmit(now, batch);
        }
        self.advance(now);
        let mut taken = 0;
        // A frame and its duplicate need at most two places each.
        while self.staging.room() >= 2
            && self.scratch.available() >= 2
            && self.held.len() + 2 <= usize::from(self.config.held_frames)
        {
            let Some(frame) = batch.frames().get(taken).copied() else {
                break;
            };
            self.inject(now, &frame);
            taken += 1;
        }
        batch.consume(taken);
        self.advance(now);
        taken
    }

    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        if !self.harmless {
            self.advance(now);
        }
        self.inner.receive(now, budget, sink)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let held = self.held.first_key_value().map(|(&(due, _), _)| due);
        earliest(held, self.inner.next_deadline())
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let wakes = self.inner.arm(announce);
        // Frames that the inner device has not taken have no deadline.
        if self.staging.is_empty() { wakes } else { wakes.with_polling() }
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn drop_waiting(&mut self) {
        self.staging.consume(usize::MAX);
        self.inner.drop_waiting();
    }

    fn holds_extents(&self) -> bool {
        !self.staging.is_empty() || self.inner.holds_extents()
    }

    fn counters(&self) -> DeviceCounters {
        let mut counters = self.inner.counters();
        counters.dropped += self.counters.lost;
        counters
    }
}
