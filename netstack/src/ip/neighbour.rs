//! The neighbour cache: which station has which address, learned by ARP (RFC 826) and neighbour
//! discovery (RFC 4861 section 7) or configured.
//!
//! ```text
//!             resolve()                 answer          second answer, or progress above
//!   (absent) ----------> incomplete ------------> delay ------------------------------> reachable
//!       ^  \                 | no answer          |  ^                                    |
//!       |   \ heard          v                    |  | resolve()      lifetime over       |
//!       |    \           unreachable              |  +----------- stale <-----------------+
//!       |     +----------------|------------------|--------------->
//!       |                      v later            v neither in time
//!       +----------------------+--- no answer --- probe ----- answer, or progress above --> reachable
//! ```
//!
//! The cache sends nothing itself: [`Cache::poll`] reports the requests that are due. Packets for an address that is
//! being resolved wait here, copied, in bounded queues.
//!
//! Anybody on the link can make this host resolve addresses, by packets that it answers, and can claim to have any
//! address. So there are budgets for each IP version, one of addresses being resolved and one of known stations.
//! Entries that [unauthenticated packets](Requester) cause are limited in rate and make room first; those that
//! connections and sessions need are neither refused nor evicted.
//!
//! ARP has no checksum, so a single packet is not trusted: a new answer is verified by another request after one
//! interval, and an answer that contradicts an entry only causes a request to all stations. A damaged packet thus does
//! harm for a second or two and not for a lifetime.

mod entry;

#[cfg(test)]
mod tests;

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::time::Instant;
use crate::wire::ethernet::Mac;
use entry::{Entry, EntryState, Family};

/// Stations that are examined to find one to evict. Those in use go to the back of the queue.
const LOOKS: usize = 8;

/// Limits and times of a cache. Budgets are those of one IP version.
#[derive(Clone, Debug)]
pub struct Config {
    /// Time between two requests for one address.
    pub request_interval: Duration,
    /// Requests without an answer after which an address is unreachable for one more interval.
    pub requests: u8,
    /// Lifetime of an answer before the station is verified again.
    pub lifetime: Duration,
    /// Stations that are known at a time; static ones, and those in use, come on top.
    pub capacity: usize,
    /// Addresses that are being resolved, or did not answer, at a time; those of connections and sessions come on top.
    pub incomplete: usize,
    /// Addresses resolved per second to answer packets of unauthenticated peers.
    pub unauthenticated_per_second: u32,
    /// Packets that wait for resolution, over all addresses; as many again of replies to unauthenticated peers.
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
            capacity: 4096,
            // More than unauthenticated peers can fill: each address stays for five intervals.
            incomplete: 512,
            unauthenticated_per_second: 64,
            pending: 64,
        }
    }
}

/// The cause of an address's resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// A reply to a packet whose source address is not verified.
    Unauthenticated,
    /// A program that sends datagrams.
    User,
    /// A connection or a session, whose number has limits of its own, or the route to a gateway.
    Session,
}

/// The result of resolving an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The station that has it.
    Station(Mac),
    /// Resolution is in progress.
    Pending,
    /// No answer came; requests begin again later.
    Unreachable,
    /// Too many addresses are being resolved; this one is not.
    Limited,
}

/// The effect of a sender's addresses in an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// New, or being resolved: packets that wait can go out.
    Learned,
    /// Known already; its lifetime starts again.
    Confirmed,
    /// Known as another station's; a request to all stations follows.
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
    /// The station to send it to, if it answered before; all stations otherwise.
    pub station: Option<Mac>,
}

/// Why waiting packets were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The queue was full.
    pub queue_full: u64,
    /// No answer came.
    pub unreachable: u64,
}

/// The neighbours of one port.
#[derive(Debug)]
pub struct Cache {
    config: Config,
    // Ordered, so that a simulation replays exactly.
    entries: BTreeMap<IpAddr, Entry>,
    /// When each entry changes by itself.
    due: BTreeSet<(Instant, IpAddr)>,
    deadline: Option<Instant>,
    ipv4: Family,
    ipv6: Family,
    /// Entries that progress above would prove, now or later.
    unsure: usize,
    /// Progress proves none of them before.
    proof_from: Instant,
    generation: u32,
    dropped: Dropped,
}

impl Cache {
    /// A cache that keeps the `fixed` neighbours for ever.
    pub fn new(config: Config, fixed: &[(IpAddr, Mac)]) -> Self {
        let entry = |mac| Entry {
            state: EntryState::Static(mac),
            requester: Requester::Session,
            since: Instant::ZERO,
            used: false,
            waiting: VecDeque::new(),
        };
        Self {
            entries: fixed.iter().map(|&(address, mac)| (address, entry(mac))).collect(),
            due: BTreeSet::new(),
            deadline: None,
            ipv4: Family::new(&config),
            ipv6: Family::new(&config),
            unsure: 0,
            proof_from: Instant::ZERO,
            generation: 0,
            dropped: Dropped::default(),
            config,
        }
    }

    /// Changes whenever the answer for some address may have changed; callers that cache answers compare it.
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

    /// The state of `address`; if it has none, resolution on behalf of `requester` begins with the next
    /// [`Cache::poll`], unless the answer is [`Resolution::Limited`].
    pub fn resolve(&mut self, now: Instant, address: impl Into<IpAddr>, requester: Requester) -> Resolution {
        let address = address.into();
        let Some(entry) = self.entries.get_mut(&address) else {
            return self.begin(now, address, requester);
        };
        match entry.state {
            EntryState::Static(mac) => Resolution::Station(mac),
            EntryState::Reachable { mac, .. }
            | EntryState::Delay { mac, .. }
            | EntryState::Probe { mac, .. } => {
                entry.used = true;
                Resolution::Station(mac)
            }
            EntryState::Stale(mac) => {
                //= RFC 4861 section 7.3.3: a stale entry is used, and verified after a delay for progress above.
                let until = now + self.config.request_interval;
                self.change(address, |entry| {
                    entry.state = EntryState::Delay { mac, until };
                    entry.requester = entry.requester.max(requester);
                    entry.used = true;
                });
                Resolution::Station(mac)
            }
            EntryState::Incomplete { .. } => {
                if entry.requester < requester {
                    self.change(address, |entry| entry.requester = requester);
                }
                Resolution::Pending
            }
            EntryState::Unreachable { until } if now < until => Resolution::Unreachable,
            EntryState::Unreachable { .. } => {
                self.forget(address);
                self.begin(now, address, requester)
            }
        }
    }

    /// Whether `address` is known, or being resolved.
    pub fn knows(&self, address: impl Into<IpAddr>) -> bool {
        self.entries.contains_key(&address.into())
    }

    /// Keeps a copy of a packet of `requester` until `address`, which is being resolved, is known.
    pub fn hold(&mut self, address: impl Into<IpAddr>, packet: Vec<u8>, requester: Requester) {
        let address = address.into();
        let (limit, answer) = (self.config.pending, requester == Requester::Unauthenticated);
        let Some(entry) = self.entries.get_mut(&address) else {
            self.dropped.queue_full += 1;
            return;
        };
        let held = &mut entry::family(&mut self.ipv4, &mut self.ipv6, address).held[usize::from(answer)];
        // Unauthenticated peers get a reply each, as long as there is room.
        let oldest = entry.waiting.iter().position(|(other, _)| *other == answer);
        if *held >= limit || (answer && oldest.is_some()) {
            //= RFC 1122 section 2.3.2.2: at least the latest packet for an unresolved address is kept.
            self.dropped.queue_full += 1;
            match oldest {
                Some(index) => drop(entry.waiting.remove(index)),
                None => return,
            }
            *held -= 1;
        }
        *held += 1;
        entry.waiting.push_back((answer, packet));
    }

    /// Takes the oldest packet that waits for `address`.
    pub fn release(&mut self, address: impl Into<IpAddr>) -> Option<Vec<u8>> {
        let address = address.into();
        let (answer, packet) = self.entries.get_mut(&address)?.waiting.pop_front()?;
        entry::family(&mut self.ipv4, &mut self.ipv6, address).held[usize::from(answer)] -= 1;
        Some(packet)
    }

    /// Notes that `mac` claims `address`, in a packet that was `for_us` (its target) or not. An unknown sender is added
    /// only in the first case. An address that is `in_use` is not evicted for it.
    pub fn observe(
        &mut self,
        now: Instant,
        address: impl Into<IpAddr>,
        mac: Mac,
        for_us: bool,
        in_use: &dyn Fn(IpAddr) -> bool,
    ) -> Observation {
        let address = address.into();
        let Config { request_interval, lifetime, requests, .. } = self.config;
        // To be verified soon, by a second answer that agrees.
        let learned = EntryState::Delay { mac, until: now + request_interval };
        let Some(entry) = self.entries.get(&address) else {
            //= RFC 826, Packet Reception: if we are the target, a new sender is added, for it will be answered.
            if !for_us || !self.room_for_heard(now, address, in_use) {
                return Observation::Ignored;
            }
            self.insert(now, address, EntryState::Stale(mac), Requester::Unauthenticated);
            return Observation::Learned;
        };
        let (since, requester) = (entry.since, entry.requester);
        match entry.state {
            EntryState::Static(known) if known == mac => Observation::Confirmed,
            EntryState::Static(_) => Observation::Conflict,
            EntryState::Incomplete { .. } | EntryState::Unreachable { .. } => {
                self.renew(now, address, learned);
                self.shrink(now, address, in_use);
                Observation::Learned
            }
            EntryState::Reachable { mac: known, .. }
            | EntryState::Stale(known)
            | EntryState::Delay { mac: known, .. }
            | EntryState::Probe { mac: known, .. }
                if known == mac =>
            {
                self.renew(now, address, EntryState::Reachable { mac, until: now + lifetime });
                Observation::Confirmed
            }
            //= RFC 826, Packet Reception: a pair that is known is updated with the sender's hardware address.
            EntryState::Probe { asked, .. } if for_us && asked > requests / 2 => {
                self.generation = self.generation.wrapping_add(1);
                self.renew(now, address, learned);
                Observation::Confirmed
            }
            EntryState::Probe { .. } => Observation::Doubted,
            EntryState::Reachable { mac: known, .. }
            | EntryState::Stale(known)
            | EntryState::Delay { mac: known, .. } => {
                if requester > Requester::Unauthenticated || self.family(address).unauthenticated.take(now) {
                    // At most one question per interval, however many packets contradict one another.
                    let next = now.max(since + request_interval);
                    let probe = EntryState::Probe { mac: known, asked: requests / 2, next };
                    self.change(address, |entry| entry.state = probe);
                }
                Observation::Doubted
            }
        }
    }

    /// The neighbour at that address, if [`Cache::confirm`] would change anything.
    #[inline(always)]
    pub fn awaits_proof(&self, now: Instant, address: impl FnOnce() -> Option<IpAddr>) -> Option<IpAddr> {
        // Nearly every packet gets no further than this.
        if self.unsure == 0 || now < self.proof_from {
            return None;
        }
        self.if_provable(now, address)
    }

    /// The address, if progress above would prove that the neighbour is there.
    #[cold]
    fn if_provable(&self, now: Instant, address: impl FnOnce() -> Option<IpAddr>) -> Option<IpAddr> {
        address().filter(|address| self.provable(now, *address).is_some())
    }

    /// The station of the neighbour at that address, if progress above would prove that it is there.
    fn provable(&self, now: Instant, address: IpAddr) -> Option<Mac> {
        let (mac, from) = self.entries.get(&address)?.provable(&self.config)?;
        (now >= from).then_some(mac)
    }

    /// A connection or a session over the neighbour `address` made progress: packets sent there arrive.
    pub fn confirm(&mut self, now: Instant, address: IpAddr) {
        //= RFC 4861 section 7.3.1: forward progress of a layer above confirms that a neighbour is reachable.
        let Some(mac) = self.provable(now, address) else { return };
        let until = now + self.config.lifetime;
        self.change(address, |entry| {
            (entry.state, entry.since) = (EntryState::Reachable { mac, until }, now);
            entry.requester = Requester::Session;
        });
    }

    /// Runs due timers and calls `ask` for every request that is to be sent.
    pub fn poll(&mut self, now: Instant, mut ask: impl FnMut(Request)) {
        let Config { request_interval, requests, .. } = self.config;
        let next = now + request_interval;
        while let Some(&(due, address)) = self.due.first()
            && due <= now
        {
            let Some(mut entry) = self.take(address) else { break };
            entry.state = match entry.state {
                EntryState::Incomplete { asked, .. } if asked >= requests => {
                    self.dropped.unreachable += self.drop_waiting(address, &mut entry);
                    EntryState::Unreachable { until: next }
                }
                EntryState::Incomplete { asked, .. } => {
                    ask(Request { address, station: None });
                    EntryState::Incomplete { asked: asked + 1, next }
                }
                // Its users resolve it again.
                EntryState::Reachable { mac, .. } => {
                    self.outdate(&mut entry);
                    EntryState::Stale(mac)
                }
                EntryState::Delay { mac, .. }
                    if entry.requester == Requester::Unauthenticated
                        && !self.family(address).unauthenticated.take(now) =>
                {
                    self.outdate(&mut entry);
                    EntryState::Stale(mac)
                }
                EntryState::Delay { mac, .. } => {
                    //= RFC 1122 section 2.3.2.1: unicast poll, a request to the station that had it.
                    ask(Request { address, station: Some(mac) });
                    EntryState::Probe { mac, asked: 1, next }
                }
                EntryState::Probe { mac, asked, .. } if asked < requests => {
                    // The station may have a new interface: the later requests go to all.
                    let station = (asked < requests / 2).then_some(mac);
                    ask(Request { address, station });
                    EntryState::Probe { mac, asked: asked + 1, next }
                }
                EntryState::Probe { .. } => {
                    self.outdate(&mut entry);
                    continue;
                }
                EntryState::Unreachable { .. } | EntryState::Static(_) | EntryState::Stale(_) => continue,
            };
            self.put(address, entry);
        }
    }

    /// Begins to resolve an address that there is no entry for.
    fn begin(&mut self, now: Instant, address: IpAddr, requester: Requester) -> Resolution {
        let limit = self.config.incomplete;
        let family = self.family(address);
        if requester == Requester::Unauthenticated && !family.unauthenticated.take(now) {
            return Resolution::Limited;
        }
        if requester < Requester::Session && family.incomplete.len() >= limit {
            match family.incomplete.first() {
                Some(&(other, _, oldest)) if other <= requester => self.forget(oldest),
                _ => return Resolution::Limited,
            }
        }
        self.insert(now, address, EntryState::Incomplete { asked: 0, next: now }, requester);
        Resolution::Pending
    }

    /// Whether there is room for a station that was not requested: others of its kind make room for it.
    fn room_for_heard(&mut self, now: Instant, address: IpAddr, in_use: &dyn Fn(IpAddr) -> bool) -> bool {
        let capacity = self.config.capacity;
        for _ in 0..LOOKS {
            let known = &self.family(address).known;
            if known.len() < capacity {
                return true;
            }
            match known.first() {
                Some(&(Requester::Unauthenticated, _, oldest)) => self.evict(now, oldest, in_use),
                _ => return false,
            }
        }
        false
    }

    /// Evicts stations above the budget.
    fn shrink(&mut self, now: Instant, address: IpAddr, in_use: &dyn Fn(IpAddr) -> bool) {
        let capacity = self.config.capacity;
        for _ in 0..LOOKS {
            let known = &self.family(address).known;
            match known.first() {
                Some(&(_, _, oldest)) if known.len() > capacity => self.evict(now, oldest, in_use),
                _ => return,
            }
        }
    }

    /// Evicts a station, or puts it to the back of the queue if it is in use.
    fn evict(&mut self, now: Instant, address: IpAddr, in_use: &dyn Fn(IpAddr) -> bool) {
        if in_use(address) {
            self.change(address, |entry| (entry.requester, entry.since) = (Requester::Session, now));
        } else {
            self.forget(address);
        }
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(mut entry) = self.take(address) {
            self.dropped.queue_full += self.drop_waiting(address, &mut entry);
            self.outdate(&mut entry);
        }
    }

    /// Makes the users that keep the entry's station resolve it again.
    fn outdate(&mut self, entry: &mut Entry) {
        if core::mem::take(&mut entry.used) {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Drops the packets that wait, and returns how many there were.
    fn drop_waiting(&mut self, address: IpAddr, entry: &mut Entry) -> u64 {
        let held = &mut self.family(address).held;
        entry.waiting.iter().for_each(|(answer, _)| held[usize::from(*answer)] -= 1);
        let count = entry.waiting.len() as u64;
        entry.waiting = VecDeque::new();
        count
    }

    fn insert(&mut self, now: Instant, address: IpAddr, state: EntryState, requester: Requester) {
        let entry = Entry { state, requester, since: now, used: false, waiting: VecDeque::new() };
        self.put(address, entry);
    }

    fn renew(&mut self, now: Instant, address: IpAddr, state: EntryState) {
        self.change(address, |entry| (entry.state, entry.since) = (state, now));
    }

    /// Changes an entry, and its places in all orders with it.
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.take(address) {
            change(&mut entry);
            self.put(address, entry);
        }
    }

    fn take(&mut self, address: IpAddr) -> Option<Entry> {
        let entry = self.entries.remove(&address)?;
        if let Some(due) = entry.due() {
            self.due.remove(&(due, address));
            self.deadline = self.due.first().map(|(due, _)| *due);
        }
        if let Some(budget) = entry.budget() {
            self.family(address).order(budget).remove(&(entry.requester, entry.since, address));
        }
        self.unsure -= usize::from(entry.provable(&self.config).is_some());
        Some(entry)
    }

    fn put(&mut self, address: IpAddr, entry: Entry) {
        if let Some(due) = entry.due() {
            self.due.insert((due, address));
            self.deadline = self.due.first().map(|(due, _)| *due);
        }
        if let Some(budget) = entry.budget() {
            self.family(address).order(budget).insert((entry.requester, entry.since, address));
        }
        if let Some((_, from)) = entry.provable(&self.config) {
            self.proof_from = if self.unsure == 0 { from } else { from.min(self.proof_from) };
            self.unsure += 1;
        }
        self.entries.insert(address, entry);
    }

    fn family(&mut self, address: IpAddr) -> &mut Family {
        entry::family(&mut self.ipv4, &mut self.ipv6, address)
    }
}
