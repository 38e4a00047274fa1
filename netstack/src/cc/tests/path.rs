//! Flows that share one bottleneck: packets, a queue, a rate and a delay. Loss is reported to the controllers as a
//! sender would report it: three packets later, once per window; and a time-out if nothing comes back.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cc::{AckSample, Algorithm, Congestion, Controller, Parameters, RateSample};
use crate::time::Instant;

pub(super) const MSS: u64 = 1000;
const TIMEOUT: u64 = 200_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bottleneck {
    pub(super) bytes_per_second: u64,
    pub(super) rtt: Duration,
    /// Bytes that may wait.
    pub(super) queue: u64,
    /// Bytes above which packets are marked.
    pub(super) mark_above: Option<u64>,
    pub(super) loss: f64,
}

impl Bottleneck {
    /// 100 packets of rate times delay, and as many in the queue.
    pub(super) fn small() -> Self {
        Self {
            bytes_per_second: 10_000_000,
            rtt: Duration::from_millis(10),
            queue: 100 * MSS,
            mark_above: None,
            loss: 0.0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    sent: u64,
    delivered: u64,
    delivered_at: u64,
    first_sent: u64,
    in_flight: u64,
    lost: u64,
    app_limited: bool,
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) controller: Box<dyn Controller>,
    /// When it begins, and from when to when it has nothing to send.
    pub(super) begins: u64,
    pub(super) pause: Option<(u64, u64)>,
    /// At most so many bytes at a time: an application that sends little.
    pub(super) app_window: u64,
    out: BTreeMap<u64, Packet>,
    next: u64,
    in_flight: u64,
    pub(super) delivered: u64,
    delivered_at: u64,
    first_sent: u64,
    lost: u64,
    in_recovery: bool,
    /// Losses of packets before this one have been answered.
    recovery_until: u64,
    marked_until: u64,
    next_send: u64,
    /// The wake-up that has been asked for.
    waking_at: u64,
    srtt: Option<f64>,
    min_rtt: Option<u64>,
    last_ack: u64,
    pub(super) losses: u64,
    pub(super) events: u64,
    pub(super) timeouts: u64,
    pub(super) marks: u64,
    pub(super) most_in_flight: u64,
}

impl Flow {
    pub(super) fn new(controller: Box<dyn Controller>) -> Self {
        Self {
            controller,
            begins: 0,
            pause: None,
            app_window: u64::MAX,
            out: BTreeMap::new(),
            next: 0,
            in_flight: 0,
            delivered: 0,
            delivered_at: 0,
            first_sent: 0,
            lost: 0,
            in_recovery: false,
            recovery_until: 0,
            marked_until: 0,
            next_send: 0,
            waking_at: 0,
            srtt: None,
            min_rtt: None,
            last_ack: 0,
            losses: 0,
            events: 0,
            timeouts: 0,
            marks: 0,
            most_in_flight: 0,
        }
    }

    fn wants(&self, now: u64) -> bool {
        let paused = self.pause.is_some_and(|(from, to)| (from..to).contains(&now));
        now >= self.begins && !paused && self.in_flight + MSS <= self.controller.window().min(self.app_window)
    }

    /// Takes the acknowledgement of packet `id` in.
    fn on_ack(&mut self, now: u64, id: u64, marked: bool) {
        let Some(packet) = self.out.remove(&id) else { return };
        let rtt = now - packet.sent;
        self.srtt = Some(self.srtt.map_or(rtt as f64, |srtt| srtt * 0.875 + rtt as f64 * 0.125));
        self.min_rtt = Some(self.min_rtt.map_or(rtt, |least| least.min(rtt)));
        self.last_ack = now;
        let prior_in_flight = self.in_flight;
        self.in_flight -= MSS;
        self.delivered += MSS;
        self.delivered_at = now;
        self.first_sent = packet.sent;

        // Three later packets have come.
        let gone: Vec<u64> = self.out.range(..id.saturating_sub(2)).map(|(id, _)| *id).collect();
        for id in &gone {
            self.out.remove(id);
        }
        let newly_lost = gone.len() as u64 * MSS;
        self.in_flight -= newly_lost;
        self.lost += newly_lost;
        self.losses += gone.len() as u64;
        if self.in_recovery && id >= self.recovery_until {
            self.in_recovery = false;
            self.controller.on_recovery_end(Instant::from_nanos(now));
        }
        if !self.in_recovery && gone.iter().any(|lost| *lost >= self.recovery_until) {
            self.in_recovery = true;
            self.recovery_until = self.next;
            self.events += 1;
            self.controller.on_congestion(Instant::from_nanos(now), Congestion::Loss, prior_in_flight);
        }
        let interval = (now - packet.delivered_at).max(packet.sent - packet.first_sent);
        let window = self.controller.window().min(self.app_window);
        let sample = AckSample {
            now: Instant::from_nanos(now),
            acked: MSS,
            delivered: MSS,
            prior_in_flight,
            in_flight: self.in_flight,
            rtt: Some(Duration::from_nanos(rtt)),
            srtt: self.srtt.map(|srtt| Duration::from_nanos(srtt as u64)),
            min_rtt: self.min_rtt.map(Duration::from_nanos),
            rate: Some(RateSample {
                delivered: self.delivered - packet.delivered,
                interval: Duration::from_nanos(interval),
                prior_delivered: packet.delivered,
                total_delivered: self.delivered,
                app_limited: packet.app_limited,
                in_flight_at_send: packet.in_flight,
                lost_since_send: self.lost - packet.lost,
            }),
            marked: u64::from(marked) * MSS,
            lost: newly_lost,
            in_recovery: self.in_recovery,
            window_limited: self.app_window >= self.controller.window() && prior_in_flight + MSS > window,
        };
        self.controller.on_ack(&sample);
        if marked {
            self.marks += 1;
            if id >= self.marked_until {
                self.marked_until = self.next;
                self.controller.on_congestion(Instant::from_nanos(now), Congestion::Ecn, prior_in_flight);
            }
        }
    }

    fn on_timeout(&mut self, now: u64) {
        self.timeouts += 1;
        self.controller.on_congestion(Instant::from_nanos(now), Congestion::Timeout, self.in_flight);
        self.lost += self.in_flight;
        self.in_flight = 0;
        self.out.clear();
        self.in_recovery = false;
        self.recovery_until = self.next;
        self.last_ack = now;
        self.delivered_at = now;
        self.first_sent = now;
    }
}

/// The acknowledgement of a flow's packet, marked or not, or nothing but time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Ack(usize, u64, bool),
    Wake,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) path: Bottleneck,
    pub(super) flows: Vec<Flow>,
    pub(super) now: u64,
    free_at: u64,
    events: BinaryHeap<Reverse<(u64, u64, What)>>,
    order: u64,
    rng: SmallRng,
}

impl World {
    pub(super) fn new(path: Bottleneck, controllers: Vec<Box<dyn Controller>>, seed: u64) -> Self {
        let mut world = Self {
            path,
            flows: controllers.into_iter().map(Flow::new).collect(),
            now: 0,
            free_at: 0,
            events: BinaryHeap::new(),
            order: 0,
            rng: SmallRng::seed_from_u64(seed),
        };
        world.push(0, What::Wake);
        world
    }

    pub(super) fn one(path: Bottleneck, algorithm: Algorithm, seed: u64) -> Self {
        Self::new(path, vec![algorithm.build(&parameters())], seed)
    }

    fn push(&mut self, at: u64, what: What) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, what)));
    }

    /// Bytes that wait at the bottleneck.
    pub(super) fn backlog(&self) -> u64 {
        self.free_at.saturating_sub(self.now) * self.path.bytes_per_second / 1_000_000_000
    }

    fn send(&mut self, index: usize) {
        let (path, now) = (self.path, self.now);
        while self.flows[index].wants(now) {
            let flow = &mut self.flows[index];
            if now < flow.next_send {
                if flow.waking_at != flow.next_send {
                    flow.waking_at = flow.next_send;
                    let at = flow.next_send;
                    self.push(at, What::Wake);
                }
                return;
            }
            if let Some(rate) = flow.controller.pacing_rate() {
                flow.next_send = now + MSS * 1_000_000_000 / rate.max(1);
            }
            let app_limited = flow.app_window < flow.controller.window();
            flow.controller.on_sent(Instant::from_nanos(now), MSS, flow.in_flight, flow.in_flight == 0);
            if flow.in_flight == 0 {
                (flow.first_sent, flow.delivered_at, flow.last_ack) = (now, now, now);
            }
            let flow = &mut self.flows[index];
            flow.in_flight += MSS;
            flow.most_in_flight = flow.most_in_flight.max(flow.in_flight);
            let id = flow.next;
            flow.next += 1;
            flow.out.insert(
                id,
                Packet {
                    sent: now,
                    delivered: flow.delivered,
                    delivered_at: flow.delivered_at,
                    first_sent: flow.first_sent,
                    in_flight: flow.in_flight,
                    lost: flow.lost,
                    app_limited,
                },
            );
            let backlog = self.backlog();
            if backlog + MSS > path.queue || (path.loss > 0.0 && self.rng.random::<f64>() < path.loss) {
                continue;
            }
            self.free_at = self.free_at.max(now) + MSS * 1_000_000_000 / path.bytes_per_second;
            let marked = path.mark_above.is_some_and(|above| backlog > above);
            self.push(self.free_at + path.rtt.as_nanos() as u64, What::Ack(index, id, marked));
        }
    }

    /// Runs until `until`, which must be later.
    pub(super) fn run(&mut self, until: Duration) {
        let until = until.as_nanos() as u64;
        for index in 0..self.flows.len() {
            let at = self.flows[index].begins.max(self.now);
            self.push(at, What::Wake);
            if let Some((_, at)) = self.flows[index].pause {
                self.push(at.max(self.now), What::Wake);
            }
        }
        self.push(until, What::Wake);
        while let Some(Reverse((at, order, what))) = self.events.pop() {
            if at > until {
                self.events.push(Reverse((at, order, what)));
                break;
            }
            self.now = at;
            if let What::Ack(index, id, marked) = what {
                self.flows[index].on_ack(at, id, marked);
            }
            for index in 0..self.flows.len() {
                let flow = &mut self.flows[index];
                if flow.in_flight > 0 && at >= flow.last_ack + TIMEOUT {
                    flow.on_timeout(at);
                }
                self.send(index);
            }
            // Nothing in flight, and nothing due: everything was lost.
            if self.events.is_empty()
                && let Some(at) =
                    self.flows.iter().filter(|flow| flow.in_flight > 0).map(|flow| flow.last_ack).min()
            {
                self.push(at + TIMEOUT, What::Wake);
            }
        }
        self.now = until;
    }
}

pub(super) fn parameters() -> Parameters {
    Parameters { mss: MSS as u32, initial_window: 10 }
}
