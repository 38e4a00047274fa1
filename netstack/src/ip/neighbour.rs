//! The neighbour cache: which station has which address, learned by ARP (RFC 826) and neighbour
//! discovery (RFC 4861 section 7) or configured.
//!
//! ```text
//!             resolve()                 answer
//!   (absent) ----------> incomplete ------------> reachable <---------+
//!       ^                    | no answer              | lifetime over | answer
//!       |                    v                        v               |
//!       +---- later ---- unreachable <---------- probing -------------+
//!                                     no answer   (address still used)
//! ```
//!
//! The cache sends nothing itself: [`Cache::poll`] says whom to ask. Packets for an address that is being asked for
//! wait here, copied, in a bounded queue.
//!
//! ARP has no checksum, so a single packet is not taken at its word: a new answer is asked for once more after one
//! interval, and one that contradicts what is known only makes the cache ask everybody. A damaged packet thus does
//! harm for a second or two and not for a lifetime.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crate::time::Instant;
use crate::wire::ethernet::Mac;

/// Limits and times of a cache.
#[derive(Clone, Debug)]
pub struct Config {
    /// Time between two requests for one address.
    pub request_interval: Duration,
    /// Requests without an answer after which an address is unreachable for one more interval.
    pub requests: u8,
    /// How long an answer counts before the station is asked again.
    pub lifetime: Duration,
    /// Addresses learned or asked for at a time; static ones come on top.
    pub capacity: usize,
    /// Packets that wait for answers, over all addresses.
    pub pending: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            //= RFC 1122 section 2.3.2.1: at most one request per second and destination is the recommended rate.
            request_interval: Duration::from_secs(1),
            requests: 4,
            //= RFC 1122 section 2.3.2.1: a timeout of the order of a minute.
            lifetime: Duration::from_secs(60),
            capacity: 1024,
            pending: 64,
        }
    }
}

/// What is known about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The station that has it.
    Station(Mac),
    /// It is being asked for.
    Pending,
    /// Nobody answered; it will be asked for again later.
    Unreachable,
}

/// What became of a sender's addresses in an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Not known before, or being asked for: packets that wait can go out.
    Learned,
    /// Known already; its lifetime starts again.
    Confirmed,
    /// Known as another station's; all stations will be asked.
    Doubted,
    /// Not of interest.
    Ignored,
    /// It contradicts a configured neighbour, which stays.
    Conflict,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address in question.
    pub address: IpAddr,
    /// The station to ask alone, if it answered before; all stations otherwise.
    pub station: Option<Mac>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Static(Mac),
    Incomplete { asked: u8, next: Instant },
    Reachable { mac: Mac, since: Instant, until: Instant },
    Probing { mac: Mac, asked: u8, next: Instant },
    Unreachable { until: Instant },
}

impl State {
    fn due(&self) -> Option<Instant> {
        match *self {
            Self::Static(_) => None,
            Self::Incomplete { next, .. } | Self::Probing { next, .. } => Some(next),
            Self::Reachable { until, .. } | Self::Unreachable { until } => Some(until),
        }
    }
}

/// Why waiting packets were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The queue was full.
    pub queue_full: u64,
    /// Nobody answered.
    pub unreachable: u64,
}

/// The neighbours of one port.
#[derive(Debug)]
pub struct Cache {
    config: Config,
    // Ordered, so that a simulation replays exactly.
    entries: BTreeMap<IpAddr, State>,
    pending: VecDeque<(IpAddr, Vec<u8>)>,
    learned: usize,
    generation: u32,
    deadline: Option<Instant>,
    dropped: Dropped,
}

impl Cache {
    /// A cache that knows the `fixed` neighbours for ever.
    pub fn new(config: Config, fixed: &[(IpAddr, Mac)]) -> Self {
        Self {
            entries: fixed.iter().map(|&(address, mac)| (address, State::Static(mac))).collect(),
            pending: VecDeque::with_capacity(config.pending),
            config,
            learned: 0,
            generation: 0,
            deadline: None,
            dropped: Dropped::default(),
        }
    }

    /// Changes whenever the answer for some address may have changed; whoever keeps answers compares it.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// When to call [`Cache::poll`] next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Packets that were dropped while they waited.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// What is known about `address`; if nothing is, asking begins with the next [`Cache::poll`].
    pub fn resolve(&mut self, now: Instant, address: impl Into<IpAddr>) -> Resolution {
        let address = address.into();
        match self.entries.get(&address) {
            Some(&(State::Static(mac) | State::Reachable { mac, .. } | State::Probing { mac, .. })) => {
                Resolution::Station(mac)
            }
            Some(State::Incomplete { .. }) => Resolution::Pending,
            Some(&State::Unreachable { until }) if now < until => Resolution::Unreachable,
            Some(_) => {
                self.set(address, State::Incomplete { asked: 0, next: now });
                Resolution::Pending
            }
            None => {
                if self.learned >= self.config.capacity && !self.evict() {
                    return Resolution::Unreachable;
                }
                self.learned += 1;
                self.set(address, State::Incomplete { asked: 0, next: now });
                Resolution::Pending
            }
        }
    }

    /// Whether `address` is known, or being asked for.
    pub fn knows(&self, address: impl Into<IpAddr>) -> bool {
        self.entries.contains_key(&address.into())
    }

    /// Keeps a copy of a packet until `address` is known.
    pub fn hold(&mut self, address: impl Into<IpAddr>, packet: Vec<u8>) {
        let address = address.into();
        if self.pending.len() >= self.config.pending {
            //= RFC 1122 section 2.3.2.2: at least the latest packet for an unresolved address is kept.
            let oldest = self.pending.iter().position(|(waiting, _)| *waiting == address);
            self.dropped.queue_full += 1;
            match oldest {
                Some(index) => drop(self.pending.remove(index)),
                None => return,
            }
        }
        self.pending.push_back((address, packet));
    }

    /// Takes the oldest packet that waits for `address`.
    pub fn release(&mut self, address: impl Into<IpAddr>) -> Option<Vec<u8>> {
        let address = address.into();
        let index = self.pending.iter().position(|(waiting, _)| *waiting == address)?;
        self.pending.remove(index).map(|(_, packet)| packet)
    }

    /// Notes that `mac` says it has `address`, in a packet that was `for_us` (its target) or not. An unknown sender
    /// is remembered only in the first case.
    pub fn observe(
        &mut self,
        now: Instant,
        address: impl Into<IpAddr>,
        mac: Mac,
        for_us: bool,
    ) -> Observation {
        let address = address.into();
        let Config { request_interval, lifetime, requests, .. } = self.config;
        // To be asked for again soon, until a second packet says the same.
        let learned = State::Reachable { mac, since: now, until: now + request_interval };
        match self.entries.get(&address).copied() {
            Some(State::Static(known)) if known == mac => Observation::Confirmed,
            Some(State::Static(_)) => Observation::Conflict,
            Some(State::Reachable { mac: known, .. } | State::Probing { mac: known, .. }) if known == mac => {
                self.set(address, State::Reachable { mac, since: now, until: now + lifetime });
                Observation::Confirmed
            }
            Some(State::Reachable { mac: known, since, .. }) => {
                // At most one question per interval, however many packets contradict one another.
                let next = now.max(since + request_interval);
                self.set(address, State::Probing { mac: known, asked: requests / 2, next });
                Observation::Doubted
            }
            //= RFC 826, Packet Reception: a pair that is known is updated with the sender's hardware address.
            Some(State::Probing { asked, .. }) if for_us && asked > requests / 2 => {
                self.generation = self.generation.wrapping_add(1);
                self.set(address, learned);
                Observation::Confirmed
            }
            Some(State::Probing { .. }) => Observation::Doubted,
            Some(State::Incomplete { .. } | State::Unreachable { .. }) => {
                self.set(address, learned);
                Observation::Learned
            }
            //= RFC 826, Packet Reception: if we are the target, a new sender is added, for it will be answered.
            None if for_us && self.learned < self.config.capacity => {
                self.learned += 1;
                self.set(address, learned);
                Observation::Learned
            }
            None => Observation::Ignored,
        }
    }

    /// Works off what is due and calls `ask` for every request that is to be sent.
    pub fn poll(&mut self, now: Instant, mut ask: impl FnMut(Request)) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let interval = self.config.request_interval;
        let limit = self.config.requests;
        let mut gave_up = Vec::new();
        let mut forgotten = false;
        self.entries.retain(|&address, state| {
            if state.due().is_none_or(|due| due > now) {
                return true;
            }
            match *state {
                State::Static(_) => {}
                State::Incomplete { asked, .. } if asked >= limit => {
                    gave_up.push(address);
                    *state = State::Unreachable { until: now + interval };
                }
                State::Incomplete { asked, .. } => {
                    ask(Request { address, station: None });
                    *state = State::Incomplete { asked: asked + 1, next: now + interval };
                }
                State::Reachable { mac, .. } => {
                    //= RFC 1122 section 2.3.2.1: unicast poll, a request to the station that had it.
                    ask(Request { address, station: Some(mac) });
                    *state = State::Probing { mac, asked: 1, next: now + interval };
                }
                State::Probing { asked, .. } if asked >= limit => {
                    forgotten = true;
                    return false;
                }
                State::Probing { mac, asked, .. } => {
                    // The station may have a new interface: the later requests go to all.
                    let station = (asked < limit / 2).then_some(mac);
                    ask(Request { address, station });
                    *state = State::Probing { mac, asked: asked + 1, next: now + interval };
                }
                State::Unreachable { .. } => return false,
            }
            true
        });
        if forgotten {
            self.generation = self.generation.wrapping_add(1);
        }
        let before = self.pending.len();
        self.pending.retain(|(address, _)| !gave_up.contains(address));
        self.dropped.unreachable += (before - self.pending.len()) as u64;
        self.learned = self.entries.values().filter(|state| !matches!(state, State::Static(_))).count();
        self.deadline = self.entries.values().filter_map(State::due).min();
    }

    fn set(&mut self, address: IpAddr, state: State) {
        // May leave an earlier deadline behind: one poll too many, which sets it right.
        if let Some(due) = state.due() {
            self.deadline = Some(self.deadline.map_or(due, |deadline| deadline.min(due)));
        }
        self.entries.insert(address, state);
    }

    /// Makes room for one more: forgets the station whose lifetime ends first. False if all are being asked for.
    fn evict(&mut self) -> bool {
        let oldest = self
            .entries
            .iter()
            .filter_map(|(&address, state)| match *state {
                State::Reachable { until, .. } | State::Unreachable { until } => Some((until, address)),
                _ => None,
            })
            .min();
        let Some((_, address)) = oldest else {
            return false;
        };
        self.entries.remove(&address);
        self.learned -= 1;
        self.generation = self.generation.wrapping_add(1);
        true
    }
}
