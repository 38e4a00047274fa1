//! Queue pairs between two ends in one process: in order within each, damaged and cut when a test says so. A payload that
//! is sent zero-copy is read when it arrives, as late as a NIC might.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;
use std::rc::Rc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::memory::{MemoryKind, Span, TensorRegion};
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::super::Control;
use super::super::fabric::{
    Export, Fabric, FabricEvent, Fault, QueuePairAddress, Reach, RegisterError, Registered, Registering,
    Remote, Sizes, Source,
};
use crate::allocations::Pause;
use crate::channel::Inbox;
use crate::channel::loss::PeerLoss;
use crate::channel::sys::bytes_of;
use crate::channel::up::Channel;

struct Pair {
    end: usize,
    connection: usize,
    peer: Option<u32>,
    sound: bool,
}

/// A message on its way to an end.
enum Moving {
    Write {
        slot: u32,
        payload: Span,
        bytes: Vec<u8>,
    },
    /// To memory of that end.
    Place {
        payload: Span,
        bytes: Vec<u8>,
        into: Remote,
    },
    Immediate(u32),
}

/// The state that both ends share.
pub(super) struct Hub {
    pairs: HashMap<u32, Pair>,
    next: u32,
    /// The messages on their way to a queue pair.
    moving: HashMap<u32, VecDeque<Moving>>,
    side: [VecDeque<Vec<u8>>; 2],
    control: [VecDeque<Header>; 2],
    broken: [Vec<(usize, Fault)>; 2],
    pub(super) rng: SmallRng,
    /// The share of writes that arrive damaged.
    pub(super) damage: f64,
    /// The share of polls in which a queue pair fails.
    pub(super) cuts: f64,
    /// Nothing gets through.
    pub(super) dark: bool,
    pub(super) cut: u64,
    pub(super) damaged: u64,
    /// Calls of `register`, and the number that there is room for.
    pub(super) registrations: usize,
    pub(super) budget: usize,
}

/// One end's queue pairs.
pub(super) struct End {
    hub: Rc<RefCell<Hub>>,
    end: usize,
    sizes: Sizes,
    /// The queue pair of each connection.
    current: Vec<Option<u32>>,
    outgoing: Vec<Vec<u8>>,
    incoming: Vec<Vec<u8>>,
    queued: Vec<(usize, Moving)>,
    registered: Vec<Option<TensorRegion>>,
}

pub(super) fn hub(seed: u64, connections: usize, sizes: Sizes) -> (Rc<RefCell<Hub>>, [End; 2]) {
    let slots = || vec![vec![0; (sizes.window * sizes.slot_bytes) as usize]; connections];
    let hub = Rc::new(RefCell::new(Hub {
        pairs: HashMap::new(),
        next: 100,
        moving: HashMap::new(),
        side: Default::default(),
        control: Default::default(),
        broken: Default::default(),
        rng: SmallRng::seed_from_u64(seed),
        damage: 0.0,
        cuts: 0.0,
        dark: false,
        cut: 0,
        damaged: 0,
        registrations: 0,
        budget: usize::MAX,
    }));
    let end = |end| End {
        hub: hub.clone(),
        end,
        sizes,
        current: vec![None; connections],
        outgoing: slots(),
        incoming: slots(),
        queued: vec![],
        registered: vec![],
    };
    let ends = [end(0), end(1)];
    (hub, ends)
}

impl Hub {
    /// A queue pair fails; messages on their way may be lost, and one or both ends see it.
    fn fail(&mut self, number: u32, why: Fault) {
        let Some(pair) = self.pairs.get_mut(&number).filter(|pair| pair.sound) else { return };
        pair.sound = false;
        self.cut += 1;
        let (end, connection, peer) = (pair.end, pair.connection, pair.peer);
        self.broken[end].push((connection, why));
        // Messages that came whole may still be seen; the rest is lost.
        let keep = self.rng.random_range(0..4);
        self.moving.entry(number).or_default().truncate(keep);
        if let Some(peer) = peer {
            let keep = self.rng.random_range(0..4);
            self.moving.entry(peer).or_default().truncate(keep);
        }
    }
}

impl Hub {
    /// Perhaps damages arriving bytes.
    fn hurt(&mut self, bytes: &mut [u8]) {
        let damage = self.damage;
        if self.rng.random_bool(damage) {
            let at = self.rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << self.rng.random_range(0..8);
            self.damaged += 1;
        }
    }
}

/// Writes to registered memory, as a NIC does.
#[allow(unsafe_code)]
fn put(region: TensorRegion, address: u64, bytes: &[u8]) {
    let offset = address as usize - region.as_ptr().addr();
    assert!(offset + bytes.len() <= region.len(), "it lies in its registration");
    // SAFETY: the range lies in memory that its owner keeps while it is registered, and both ends run in this thread.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.as_ptr().add(offset), bytes.len()) };
}

impl Fabric for End {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn open(&mut self, connection: usize) -> Result<QueuePairAddress, Fault> {
        assert!(self.current[connection].is_none(), "the former one was closed");
        let mut hub = self.hub.borrow_mut();
        hub.next += 1;
        let number = hub.next;
        hub.pairs.insert(number, Pair { end: self.end, connection, peer: None, sound: true });
        self.current[connection] = Some(number);
        Ok(QueuePairAddress {
            queue_pair: number,
            psn: 0,
            gid: Ipv6Addr::LOCALHOST,
            lid: 0,
            mtu: 4096,
            slots: 0,
            rkey: 0,
        })
    }

    fn connect(&mut self, connection: usize, remote: &QueuePairAddress) -> Result<(), Fault> {
        let number = self.current[connection].expect("opened");
        let mut hub = self.hub.borrow_mut();
        hub.pairs.get_mut(&number).expect("there").peer = Some(remote.queue_pair);
        Ok(())
    }

    fn close(&mut self, connection: usize) {
        let mut hub = self.hub.borrow_mut();
        if let Some(number) = self.current[connection].take() {
            let peer = hub.pairs.remove(&number).and_then(|pair| pair.peer);
            hub.moving.remove(&number);
            // Bytes on the wire may arrive yet; the memory that they came from is read no more.
            for moving in peer.and_then(|peer| hub.moving.get_mut(&peer)).into_iter().flatten() {
                if let Moving::Write { payload, bytes, .. } | Moving::Place { payload, bytes, .. } = moving {
                    let read = std::mem::replace(payload, Span::empty());
                    bytes.splice(..0, bytes_of(&read).unwrap_or_default().iter().copied());
                }
            }
        }
        let end = self.end;
        hub.broken[end].retain(|(other, _)| *other != connection);
        self.queued.retain(|(other, _)| *other != connection);
    }

    fn outgoing(&mut self, connection: usize, slot: u32) -> &mut [u8] {
        let bytes = self.sizes.slot_bytes as usize;
        &mut self.outgoing[connection][slot as usize * bytes..][..bytes]
    }

    fn incoming(&self, connection: usize, slot: u32) -> &[u8] {
        let bytes = self.sizes.slot_bytes as usize;
        &self.incoming[connection][slot as usize * bytes..][..bytes]
    }

    fn has_room(&self, connection: usize, more: u32) -> bool {
        let queued = self.queued.iter().filter(|(other, _)| *other == connection).count();
        queued + more as usize <= 2 * self.sizes.window as usize
    }

    fn write(&mut self, connection: usize, slot: u32, len: u32) {
        let _pause = Pause::new();
        let bytes = self.outgoing(connection, slot)[..len as usize].to_vec();
        self.queued.push((connection, Moving::Write { slot, payload: Span::empty(), bytes }));
    }

    fn gather(&mut self, connection: usize, slot: u32, payload: Source, len: u32) {
        let _pause = Pause::new();
        let bytes = self.outgoing(connection, slot)[payload.len as usize..len as usize].to_vec();
        // The bytes of the slot that are not sent may hold anything.
        self.outgoing(connection, slot)[..payload.len as usize].fill(0xa5);
        let region = self.registered[payload.key].expect("what is sent from is registered");
        let payload = region.span(payload.offset, payload.len as usize).expect("it lies in its registration");
        self.queued.push((connection, Moving::Write { slot, payload, bytes }));
    }

    fn place(&mut self, connection: usize, slot: u32, payload: Source, into: Remote, len: u32) {
        let _pause = Pause::new();
        let trailer = self.outgoing(connection, slot)[payload.len as usize..len as usize].to_vec();
        self.outgoing(connection, slot)[..payload.len as usize].fill(0xa5);
        let region = self.registered[payload.key].expect("what is sent from is registered");
        let payload = region.span(payload.offset, payload.len as usize).expect("it lies in its registration");
        self.queued.push((connection, Moving::Place { payload, bytes: vec![], into }));
        self.queued.push((connection, Moving::Write { slot, payload: Span::empty(), bytes: trailer }));
    }

    fn remote(&self, range: Source) -> Option<Remote> {
        let region = (*self.registered.get(range.key)?)?;
        let span = region.span(range.offset, range.len as usize)?;
        Some(Remote { address: span.as_ptr().addr() as u64, rkey: range.key as u32 })
    }

    #[allow(unsafe_code)]
    unsafe fn registering(&self, memory: TensorRegion) -> Result<Registering, RegisterError> {
        self.hub.borrow_mut().registrations += 1;
        Ok(Box::new(move || Ok(Box::new(memory) as Registered)))
    }

    fn adopt(&mut self, memory: Registered) -> Result<usize, RegisterError> {
        let memory = *memory.downcast::<TensorRegion>().expect("it was made here");
        let (mut hub, bytes) = (self.hub.borrow_mut(), memory.len());
        hub.budget = hub.budget.checked_sub(bytes).ok_or(RegisterError::Budget { bytes })?;
        self.registered.push(Some(memory));
        Ok(self.registered.len() - 1)
    }

    #[allow(unsafe_code)]
    unsafe fn register_device(
        &mut self,
        memory: TensorRegion,
        _: Option<Export>,
    ) -> Result<(usize, Reach), RegisterError> {
        let base = std::ptr::NonNull::new(memory.as_ptr()).expect("there is memory");
        // SAFETY: host memory stands for a device's in tests.
        let memory = unsafe { TensorRegion::from_raw_parts(MemoryKind::Host, base, memory.len(), 0) };
        self.registered.push(Some(memory));
        Ok((self.registered.len() - 1, Reach::Address))
    }

    fn unregister(&mut self, key: usize) -> Option<Registered> {
        let memory = self.registered[key].take().expect("it is registered");
        self.hub.borrow_mut().budget += memory.len();
        Some(Box::new(memory))
    }

    fn send_immediate(&mut self, connection: usize, value: u32) {
        let _pause = Pause::new();
        self.queued.push((connection, Moving::Immediate(value)));
    }

    fn flush(&mut self) -> bool {
        let _pause = Pause::new();
        let any = !self.queued.is_empty();
        let mut hub = self.hub.borrow_mut();
        for (connection, moving) in self.queued.drain(..) {
            let Some(number) = self.current[connection] else { continue };
            let pair = &hub.pairs[&number];
            let there = pair.peer.and_then(|peer| hub.pairs.get(&peer).map(|other| (peer, other)));
            match there {
                // Not yet connected at the other end: the NIC tries again.
                Some((peer, other)) if pair.sound && other.sound && !hub.dark => {
                    assert!(other.peer.is_none_or(|back| back == number), "they belong together");
                    hub.moving.entry(peer).or_default().push_back(moving);
                }
                _ => hub.fail(number, Fault::RetryExceeded),
            }
        }
        any
    }

    fn poll(&mut self, events: &mut Vec<FabricEvent>) {
        let _pause = Pause::new();
        let mut hub = self.hub.borrow_mut();
        for connection in 0..self.current.len() {
            let Some(number) = self.current[connection] else { continue };
            if hub.pairs[&number].peer.is_some() && hub.cuts > 0.0 {
                let cuts = hub.cuts;
                if hub.rng.random_bool(cuts) {
                    hub.fail(number, Fault::RetryExceeded);
                }
            }
            if hub.pairs[&number].peer.is_none() {
                continue;
            }
            let count = hub.rng.random_range(0..4);
            for _ in 0..count {
                let Some(moving) = hub.moving.get_mut(&number).and_then(VecDeque::pop_front) else { break };
                events.push(match moving {
                    Moving::Immediate(value) => FabricEvent::Immediate { connection, value },
                    Moving::Place { payload, bytes: read, into } => {
                        let mut bytes = bytes_of(&payload).unwrap_or_default().to_vec();
                        bytes.extend(read);
                        hub.hurt(&mut bytes);
                        put(
                            self.registered[into.rkey as usize].expect("it is registered"),
                            into.address,
                            &bytes,
                        );
                        continue;
                    }
                    Moving::Write { slot, payload, bytes: rest } => {
                        let mut bytes = bytes_of(&payload).unwrap_or_default().to_vec();
                        bytes.extend(rest);
                        hub.hurt(&mut bytes);
                        let base = slot as usize * self.sizes.slot_bytes as usize;
                        self.incoming[connection][base..base + bytes.len()].copy_from_slice(&bytes);
                        FabricEvent::Written { connection, slot, len: bytes.len() as u32 }
                    }
                });
            }
        }
        let end = self.end;
        events.extend(
            hub.broken[end].drain(..).map(|(connection, why)| FabricEvent::Broken { connection, why }),
        );
    }
}

/// One end's control connection, which always works.
pub(super) struct Wire {
    hub: Rc<RefCell<Hub>>,
    end: usize,
}

impl Wire {
    pub(super) fn new(hub: &Rc<RefCell<Hub>>, end: usize) -> Self {
        Self { hub: hub.clone(), end }
    }
}

impl Transport for Wire {
    fn max_fragment(&self, _: Rank) -> usize {
        64
    }

    fn send(&mut self, _: Rank, header: &Header, _: PayloadRange, _: SendToken) -> Result<(), SendError> {
        self.hub.borrow_mut().control[1 - self.end].push_back(*header);
        Ok(())
    }
}

impl Channel for Wire {
    fn receive(&mut self, _: Instant, inbox: &mut dyn Inbox) -> bool {
        let headers = std::mem::take(&mut self.hub.borrow_mut().control[self.end]);
        for header in &headers {
            inbox.fragment(header, &[]);
        }
        !headers.is_empty()
    }

    fn transmit(&mut self, _: Instant, _: &mut dyn Inbox) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        None
    }

    fn acknowledged_by(&self, _: Rank) -> u64 {
        0
    }

    fn broadcast(&mut self, header: &Header) {
        self.hub.borrow_mut().control[1 - self.end].push_back(*header);
    }

    fn fence(&mut self) {}

    fn is_drained_to(&self, _: &dyn Fn(Rank) -> bool) -> bool {
        true
    }

    fn resent(&self) -> u64 {
        0
    }

    fn crc_dropped(&self) -> u64 {
        0
    }
}

impl Control for Wire {
    fn is_connected(&self, _: Rank) -> bool {
        true
    }

    fn send_side(&mut self, _: Rank, bytes: &[u8]) -> bool {
        let mut hub = self.hub.borrow_mut();
        // Now and then there is no room.
        let room = hub.rng.random_bool(0.5);
        if room {
            hub.side[1 - self.end].push_back(bytes.to_vec());
        }
        room
    }

    fn take_side(&mut self) -> Option<(Rank, Vec<u8>)> {
        let bytes = self.hub.borrow_mut().side[self.end].pop_front()?;
        Some((Rank(1 - self.end as u32), bytes))
    }
}
