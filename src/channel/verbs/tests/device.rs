//! Payloads in a device's memory: here ordinary memory, read only by a fake device, which answers late.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::crc::crc32c;
use shouter_reducer::executor::{Disposition, Refusal};
use shouter_reducer::memory::{Span, TensorRegion};
use shouter_reducer::transport::AcceleratorError;

use super::super::digest::{CrcTicket, Digest};
use super::hub::{End, Hub, Wire, hub};
use super::*;

const BYTES: usize = 704;
const FRAGMENTS: usize = 5;
const MESSAGES: usize = 60;

/// The requests to the device.
#[derive(Default)]
struct Asked {
    open: HashMap<u64, Span>,
    next: u64,
    starts: usize,
    reads: usize,
    writes: usize,
    settled: usize,
    damaged: u64,
    /// Every request fails.
    broken: bool,
    /// No request is answered.
    hangs: bool,
}

struct Device {
    asked: Arc<Mutex<Asked>>,
    rng: SmallRng,
    /// Memory whose content is damaged at times when its CRC is requested, as if it had come so.
    fragile: Option<(TensorRegion, f64)>,
}

impl Device {
    fn asked(&self) -> Result<MutexGuard<'_, Asked>, AcceleratorError> {
        let asked = self.asked.lock().unwrap();
        if asked.broken { Err(AcceleratorError("it fell off the bus".into())) } else { Ok(asked) }
    }
}

/// The bytes, as the device sees them.
#[allow(unsafe_code)]
fn bytes(span: &Span) -> &'static mut [u8] {
    // SAFETY: the memory is leaked by `Side`, and all runs in one thread.
    unsafe { std::slice::from_raw_parts_mut(span.as_ptr().cast_mut(), span.len()) }
}

impl Digest for Device {
    fn start(&mut self, span: Span) -> Result<Option<CrcTicket>, AcceleratorError> {
        let mut asked = self.asked()?;
        // Room for few questions, so that some wait.
        if asked.open.len() >= 6 {
            return Ok(None);
        }
        asked.next += 1;
        asked.starts += 1;
        let number = asked.next;
        asked.open.insert(number, span);
        Ok(Some(CrcTicket(number)))
    }

    fn poll(&mut self, ticket: CrcTicket) -> Result<Option<u32>, AcceleratorError> {
        let (late, which) = (self.rng.random_bool(0.7), self.rng.random::<u32>() as usize);
        let hit = self.fragile.is_some_and(|(_, share)| self.rng.random_bool(share));
        let mut asked = self.asked()?;
        if late || asked.hangs {
            return Ok(None);
        }
        let span = asked.open.remove(&ticket.0).expect("it was asked, and is answered once");
        if let Some((region, _)) = self.fragile
            && hit
            && span.region().as_ptr() == region.as_ptr()
        {
            bytes(&span)[which % span.len()] ^= 0x10;
            asked.damaged += 1;
        }
        Ok(Some(crc32c(bytes(&span))))
    }

    fn forget(&mut self, ticket: CrcTicket) {
        self.asked.lock().unwrap().open.remove(&ticket.0).expect("it was asked");
    }

    fn settle_writes(&mut self) -> Result<(), AcceleratorError> {
        self.asked()?.settled += 1;
        Ok(())
    }

    fn read(&mut self, from: Span, into: &mut [u8]) -> Result<(), AcceleratorError> {
        self.asked()?.reads += 1;
        into.copy_from_slice(bytes(&from));
        Ok(())
    }

    fn write(&mut self, into: Span, from: &[u8]) -> Result<(), AcceleratorError> {
        self.asked()?.writes += 1;
        bytes(&into).copy_from_slice(from);
        Ok(())
    }
}

/// Stands for one end's executor: it has granted all messages, and notes those that come.
struct Mailbox {
    target: TensorRegion,
    /// (round, offset) that came.
    came: HashSet<(u32, u64)>,
    released: Vec<u64>,
    /// Refuses a share of them.
    refuses: f64,
    rng: SmallRng,
}

impl Inbox for Mailbox {
    fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        assert_eq!((header.kind, payload.len()), (MessageKind::Credit, 0), "data lands on the device");
        Disposition::Consumed
    }

    fn landing(&self, header: &Header) -> Option<Span> {
        let start = header.round as usize * BYTES * FRAGMENTS + header.offset as usize;
        // Perhaps a damaged header.
        self.target.span(start, header.len as usize).filter(|_| header.kind == MessageKind::Data)
    }

    fn placed(&mut self, header: &Header) -> Disposition {
        if self.rng.random_bool(self.refuses) {
            return Disposition::Refused(Refusal::NotReady);
        }
        assert!(self.came.insert((header.round, header.offset)), "{header:?} comes twice");
        Disposition::Consumed
    }

    fn released(&mut self, token: SendToken) {
        if token != SendToken::CONTROL {
            self.released.push(token.0);
        }
    }
}

struct Side<F: Fabric> {
    channel: VerbsChannel<F, Wire>,
    mailbox: Mailbox,
    source: TensorRegion,
    asked: Arc<Mutex<Asked>>,
    credited: u32,
    /// Fragments posted.
    posted: usize,
    released: usize,
}

pub(super) struct Both<F: Fabric> {
    hub: Rc<RefCell<Hub>>,
    sides: [Side<F>; 2],
    now: Instant,
}

/// Memory that stands for a device's: leaked, for a queue pair may refer to it for as long as anything does.
#[allow(unsafe_code)]
fn memory(kind: MemoryKind, byte: impl Fn(usize) -> u8) -> TensorRegion {
    let bytes: Vec<u8> = (0..MESSAGES * FRAGMENTS * BYTES).map(byte).collect();
    let bytes = Vec::leak(bytes);
    // SAFETY: never freed.
    unsafe { TensorRegion::from_raw_parts(kind, NonNull::from(&mut *bytes).cast(), bytes.len(), 0) }
}

fn value(rank: usize, at: usize) -> u8 {
    (at * 31 + at / 251 + rank * 77) as u8
}

/// Two ends; rank 0's payloads lie in memory of this kind, the rest of it on devices.
fn both(seed: u64, crc: bool, kind: MemoryKind) -> Both<End> {
    let (hub, ends) = hub(seed, CONNECTIONS.into(), SIZES);
    over(hub, ends, (seed, crc, kind, 0.0))
}

/// The same over other queue pairs; a share of the placed payloads is damaged.
#[allow(unsafe_code)]
pub(super) fn over<F: Fabric>(
    hub: Rc<RefCell<Hub>>,
    ends: [F; 2],
    (seed, crc, kind, damage): (u64, bool, MemoryKind, f64),
) -> Both<F> {
    let settings = Settings { crc, ..alike(true)[0] };
    let mut rank = 0;
    let sides = ends.map(|end| {
        let wire = Wire::new(&hub, rank);
        let peer = Rank(1 - rank as u32);
        let mut channel = VerbsChannel::new(end, wire, &[peer], settings, Instant::ZERO);
        let asked = Arc::new(Mutex::new(Asked::default()));
        let rng = || SmallRng::seed_from_u64(seed * 2 + rank as u64);
        let source = memory(if rank == 0 { kind } else { MemoryKind::Device }, |at| value(rank, at));
        let target = memory(MemoryKind::Device, |_| 0xa5);
        let fragile = (damage > 0.0).then_some((target, damage));
        channel.attach_digest(Box::new(Device { asked: asked.clone(), rng: rng(), fragile }));
        for region in [source, target] {
            if region.kind() == MemoryKind::Device {
                // SAFETY: never freed.
                unsafe { channel.register_device(region, None) }.unwrap();
            }
        }
        let mailbox = Mailbox { target, came: HashSet::new(), released: vec![], refuses: 0.0, rng: rng() };
        rank += 1;
        Side { channel, mailbox, source, asked, credited: 0, posted: 0, released: 0 }
    });
    Both { hub, sides, now: Instant::ZERO }
}

fn fragment(rank: usize, number: usize) -> Header {
    let (round, index) = (number / FRAGMENTS, number % FRAGMENTS);
    Header {
        kind: MessageKind::Data,
        src: Rank(rank as u32),
        round: round as u32,
        offset: (index * BYTES) as u64,
        granule: BYTES as u32,
        len: BYTES as u32,
        ..header()
    }
}

impl<F: Fabric> Side<F> {
    fn step(&mut self, rank: usize, now: Instant) -> Option<PeerLoss> {
        self.channel.receive(now, &mut self.mailbox);
        let lost = self.channel.take_lost();
        let peer = Rank(1 - rank as u32);
        // Credit for a few messages at a time.
        if self.credited < MESSAGES as u32 {
            let credit = Header { src: Rank(rank as u32), round: self.credited, len: 4, ..header() };
            let (message, start) = (BYTES * FRAGMENTS, self.credited as usize * BYTES * FRAGMENTS);
            let first = self.mailbox.target.span(start, message).unwrap();
            if self.channel.credit(peer, &credit, Some(Landing { first, stride: message })).is_ok() {
                self.credited += 4;
            }
        }
        for _ in 0..3 {
            if self.posted == MESSAGES * FRAGMENTS {
                break;
            }
            let span = self.source.span(self.posted * BYTES, BYTES).unwrap();
            let header = fragment(rank, self.posted);
            if self.channel.send(peer, &header, span, SendToken(self.posted as u64)).is_err() {
                break;
            }
            self.posted += 1;
        }
        self.channel.transmit(now, &mut self.mailbox);
        for token in self.mailbox.released.drain(..) {
            // The owner of the memory writes it now.
            self.released += 1;
            bytes(&self.source.span(token as usize * BYTES, BYTES).unwrap()).fill(0xee);
        }
        lost
    }

    fn is_done(&self) -> bool {
        let all = MESSAGES * FRAGMENTS;
        (self.mailbox.came.len(), self.released) == (all, all) && self.channel.is_drained()
    }
}

impl<F: Fabric> Both<F> {
    fn step(&mut self) -> Vec<PeerLoss> {
        self.now += Duration::from_micros(5);
        let (now, mut lost) = (self.now, vec![]);
        for (rank, side) in self.sides.iter_mut().enumerate() {
            lost.extend(side.step(rank, now));
        }
        lost
    }

    /// Steps until all has come and is released, and looks at it.
    fn complete(&mut self, seed: u64) {
        self.complete_with(seed, |_, _| {});
    }

    /// The same; something is done to the channels before each step.
    fn complete_with(&mut self, seed: u64, mut meddle: impl FnMut(Instant, [&mut VerbsChannel<F, Wire>; 2])) {
        for _ in 0..2_000_000 {
            let now = self.now;
            meddle(now, self.sides.each_mut().map(|side| &mut side.channel));
            assert_eq!(self.step().len(), 0, "seed {seed}");
            if self.sides.iter().all(|side| side.is_done()) {
                for (rank, side) in self.sides.iter().enumerate() {
                    let target = side.mailbox.target;
                    let found = bytes(&target.span(0, target.len()).unwrap());
                    let wrong = (0..found.len()).find(|at| found[*at] != value(1 - rank, *at));
                    assert_eq!(wrong, None, "seed {seed}: rank {rank} got something else");
                    assert!(side.asked.lock().unwrap().open.is_empty(), "seed {seed}: answers nobody took");
                }
                return;
            }
        }
        let state = self.sides.each_ref().map(|side| (side.posted, side.mailbox.came.len(), side.released));
        panic!("seed {seed}: posted, came, released: {state:?} after {:?}", self.now);
    }
}

#[test]
fn payloads_of_devices_are_sent_and_placed_without_the_host() {
    let mut both = both(1, true, MemoryKind::Device);
    both.complete(1);
    let all = MESSAGES * FRAGMENTS;
    for side in &both.sides {
        let asked = side.asked.lock().unwrap();
        assert_eq!(asked.reads, 0, "the host reads nothing");
        assert_eq!(side.channel.counts.zero_copy, all as u64);
        let placed = side.channel.counts.placed as usize;
        assert!(placed > all / 2, "{placed} were placed");
        // One question for each that is sent, and for each that was placed here.
        assert!(asked.starts > all + all / 2 && asked.writes < all / 2 && asked.settled > 0);
        assert_eq!(side.channel.crc_dropped() + side.channel.resent(), 0);
    }
}

#[test]
fn without_crcs_nothing_is_asked_and_writes_are_settled() {
    let mut both = both(2, false, MemoryKind::Device);
    both.complete(2);
    for side in &both.sides {
        let asked = side.asked.lock().unwrap();
        assert_eq!((asked.starts, asked.reads), (0, 0));
        assert!(asked.settled > 0);
    }
}

#[test]
fn damage_and_failures_cost_a_resend_and_nothing_comes_twice() {
    let (mut cut, mut damaged, mut found, mut resent) = (0, 0, 0, 0);
    for seed in 0..40 {
        let mut both = both(seed, true, MemoryKind::Device);
        both.hub.borrow_mut().damage = 0.02;
        both.hub.borrow_mut().cuts = 0.004;
        both.sides[1].mailbox.refuses = 0.05;
        both.complete(seed);
        let hub = both.hub.borrow();
        (cut, damaged) = (cut + hub.cut, damaged + hub.damaged);
        found += both.sides.iter().map(|side| side.channel.crc_dropped()).sum::<u64>();
        resent += both.sides.iter().map(|side| side.channel.resent()).sum::<u64>();
    }
    assert!(cut > 50 && damaged > 50 && found > 50 && found <= damaged, "{cut} {damaged} {found}");
    assert!(resent > found);
}

#[test]
fn what_comes_from_a_host_s_memory_is_copied_to_the_device() {
    let mut both = both(3, true, MemoryKind::Host);
    both.complete(3);
    let all = MESSAGES * FRAGMENTS;
    assert_eq!(both.sides[0].channel.counts.zero_copy, 0);
    assert_eq!(both.sides[1].asked.lock().unwrap().writes, all);
}

#[test]
fn a_device_that_fails_or_hangs_ends_the_group_and_its_own_rank_is_to_blame() {
    for hangs in [false, true] {
        let mut both = both(4, true, MemoryKind::Device);
        (0..60).for_each(|_| drop(both.step()));
        let mut asked = both.sides[0].asked.lock().unwrap();
        (asked.broken, asked.hangs) = (!hangs, hangs);
        drop(asked);
        let begin = both.now;
        let lost = loop {
            both.now += Duration::from_millis(if hangs { 10 } else { 0 });
            if let Some(lost) = both.step().pop() {
                break lost;
            }
            assert!(both.now - begin < Duration::from_secs(70), "nobody noticed");
        };
        assert_eq!(lost.why, Loss::Verbs(Fault::Accelerator));
        assert_eq!(both.now - begin >= Duration::from_secs(60), hangs);
    }
}

#[test]
fn after_a_fence_nothing_is_asked_of_the_device() {
    let mut both = both(5, true, MemoryKind::Device);
    while both.sides[0].asked.lock().unwrap().open.is_empty() || both.sides[0].mailbox.came.is_empty() {
        both.step();
    }
    let side = &mut both.sides[0];
    side.channel.fence();
    assert!(side.channel.is_drained());
    assert!(side.asked.lock().unwrap().open.is_empty());
    let (starts, came) = (side.asked.lock().unwrap().starts, side.mailbox.came.len());
    (0..200).for_each(|_| drop(both.step()));
    let side = &both.sides[0];
    assert_eq!((side.asked.lock().unwrap().starts, side.mailbox.came.len()), (starts, came));
}

/// Over real queue pairs: damage that the device finds, and queue pairs that fail in the middle.
pub(super) fn damaged_and_cut<F: Fabric>(mut both: Both<F>, begin: Instant) {
    both.now = begin;
    let (mut steps, mut cut) = (0, 0);
    both.complete_with(0, |now, mut channels| {
        steps += 1;
        let channel = &mut channels[cut % 2];
        let busy = |connection: &connections::Connection| {
            connection.link.is_up() && connection.sender.in_flight() > 0
        };
        if steps % 40 == 0
            && cut < 8
            && let Some(connection) = channel.connections.iter().position(busy)
        {
            channel.broken(now, connection, Fault::RetryExceeded);
            cut += 1;
        }
    });
    let damaged: u64 = both.sides.iter().map(|side| side.asked.lock().unwrap().damaged).sum();
    let found: u64 = both.sides.iter().map(|side| side.channel.crc_dropped()).sum();
    let placed: u64 = both.sides.iter().map(|side| side.channel.counts.placed).sum();
    assert!(cut > 0 && damaged > 0, "{cut} queue pairs were cut, {damaged} fragments damaged");
    // One that was damaged and came again by a slot before it was looked at counts only once.
    assert!(found <= damaged && found > 0, "{found} of {damaged} were found");
    assert!(placed as usize > MESSAGES * FRAGMENTS / 2, "{placed} fragments were placed");
}

#[test]
fn damage_in_a_device_s_memory_and_queue_pairs_that_fail_in_the_middle() {
    let (hub, ends) = hub(11, CONNECTIONS.into(), SIZES);
    damaged_and_cut(over(hub, ends, (11, true, MemoryKind::Device, 0.05)), Instant::ZERO);
}
