//! Queue pairs over libibverbs, with the slots of all connections in two registered buffers, and other registered memory to send
//! from.

mod fault;
mod look;
mod ticket;

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use shouter_netstack::verbs::{
    Access, BATCH, Buffer, Completion, CompletionQueue, Connection, Context, Destination, Gid, Opcode,
    Operation, QpConfig, QueuePair, Sges, VerbsError, WorkRequest,
};
use shouter_reducer::memory::TensorRegion;

use super::fabric::{
    Export, Fabric, FabricEvent, Fault, QueuePairAddress, Reach, RegisterError, Registered, Registering,
    Remote, Sizes, Source,
};
use super::registrations::Registrations;
use crate::runtime::Clock;
use fault::{fault, setup};
use ticket::{RECEIVE, Ticket};

/// Completions taken from the queue at a time.
const BURST: usize = 64;

/// The interval of the checks for the device's events, in polls.
const LOOK_EVERY: u32 = 4096;

/// Data that a request carries along, at most.
const INLINE: u32 = 256;

/// An acknowledgement is waited for 4.096 us x 2^TIMEOUT = 134 ms, and a packet sent again so often: a queue pair fails after
/// a second or, as devices may wait up to four times as long, four.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 6;

/// How long a queue pair that was closed is given to flush its receives.
const DRAIN: Duration = Duration::from_millis(50);

/// The port through which all connections go.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its number.
    pub number: u8,
    /// Its LID, on InfiniBand proper; 0 on Ethernet.
    pub lid: u16,
    /// Its active MTU in bytes.
    pub mtu: u32,
    /// Whether it is on Ethernet.
    pub ethernet: bool,
    /// The GID of each peer's connections, by the peer's index.
    pub gids: Vec<Gid>,
}

/// A request that is queued for a connection and not yet posted.
#[derive(Clone, Copy)]
enum Queued {
    Write {
        slot: u32,
        len: u32,
    },
    Gather {
        slot: u32,
        payload: Source,
        len: u32,
    },
    /// A payload to where it belongs; its trailer follows.
    Place {
        payload: Source,
        into: Remote,
    },
    Trailer {
        slot: u32,
        behind: u32,
        len: u32,
    },
    Immediate(u32),
}

/// One connection's queue pair.
struct Pair {
    pair: QueuePair,
    psn: u32,
    remote: Option<QueuePairAddress>,
    /// Receives posted.
    receives: u32,
    /// Places of the send queue in use, as far as completions report, and the unsignaled ones since the last signaled one.
    sends: u32,
    unsignaled: u32,
    broken: bool,
}

/// Queue pairs and slots of all connections of a rank.
pub struct Rdma {
    // In the order in which they may go.
    pairs: Vec<Option<Pair>>,
    queue: CompletionQueue,
    outgoing: Buffer,
    incoming: Buffer,
    registrations: Registrations,
    context: Context,
    port: Port,
    sizes: Sizes,
    connections_per_peer: usize,
    /// Counts a connection's queue pairs, so that completions of former ones are recognised.
    generations: Vec<u16>,
    queued: Vec<(usize, Queued)>,
    /// Room for the completions of a look.
    done: Box<[Completion]>,
    /// Completions that were met while another connection was closed.
    early: VecDeque<Completion>,
    /// Connections that need receives.
    needs_recv_refill: Vec<usize>,
    /// Connections whose requests could not be posted.
    refused: Vec<usize>,
    rng: SmallRng,
    polls: u32,
    port_is_down: bool,
    gone: bool,
}

impl Rdma {
    /// Slots for `peers` times `connections` connections on an opened device; `more` bytes may be registered beside them.
    ///
    /// # Errors
    /// [`VerbsError`] where the memory cannot be registered or the device has no such queues.
    pub fn new(
        context: Context,
        port: Port,
        (peers, connections): (usize, usize),
        sizes: Sizes,
        more: usize,
        rng: SmallRng,
    ) -> Result<Self, VerbsError> {
        let all = peers * connections;
        let info = context.info()?;
        let bytes = all * sizes.window as usize * sizes.slot_bytes as usize;
        let outgoing = context.register_owned(bytes, Access::LOCAL_READ)?;
        let incoming = context.register_owned(bytes, Access::REMOTE_WRITE)?;
        // Every receive completes, and every so many sends.
        let depth = (all as u32).saturating_mul(receives(sizes) + sends(sizes)).clamp(1, info.max_cqe);
        let queue = context.create_completion_queue(depth)?;
        Ok(Self {
            pairs: (0..all).map(|_| None).collect(),
            queue,
            outgoing,
            incoming,
            registrations: Registrations::new(more),
            context,
            port,
            sizes,
            connections_per_peer: connections.max(1),
            generations: vec![0; all],
            queued: Vec::with_capacity(256),
            done: vec![Completion::default(); BURST].into(),
            early: VecDeque::new(),
            needs_recv_refill: Vec::with_capacity(all),
            refused: vec![],
            rng,
            polls: 0,
            port_is_down: false,
            gone: false,
        })
    }

    fn offset(&self, connection: usize, slot: u32) -> usize {
        offset(self.sizes, connection, slot)
    }

    fn gid(&self, connection: usize) -> Option<&Gid> {
        self.port.gids.get(connection / self.connections_per_peer)
    }

    /// Posts so many receives for a connection.
    fn feed(&mut self, connection: usize, count: u32) -> bool {
        let generation = self.generations.get(connection).copied().unwrap_or(0);
        let Some(Some(pair)) = self.pairs.get_mut(connection) else { return true };
        let number = Ticket { connection, generation, count: RECEIVE }.encode();
        let numbers = [number; BURST];
        let mut left = count as usize;
        while left > 0 {
            let some = left.min(numbers.len());
            if pair.pair.post_recv(numbers.get(..some).unwrap_or_default()).is_err() {
                return false;
            }
            pair.receives += some as u32;
            left -= some;
        }
        true
    }

    /// Handles a completion.
    fn complete(&mut self, done: &Completion, events: &mut Vec<FabricEvent>) {
        let Ticket { connection, generation, count } = Ticket::decode(done.wr_id);
        if self.generations.get(connection) != Some(&generation) {
            return;
        }
        let Some(Some(pair)) = self.pairs.get_mut(connection) else { return };
        if !done.is_ok() {
            if !pair.broken {
                tracing::debug!(connection, status = ?done.status, "a request failed");
                // The device may have an event with the cause.
                self.look(events);
                self.break_pair(connection, fault(done.status, self.port_is_down, self.gone), events);
            }
            return;
        }
        match (done.opcode, done.imm) {
            (Some(Opcode::RecvImm), Some(slot)) => {
                events.push(FabricEvent::Written { connection, slot, len: done.byte_len });
            }
            (Some(Opcode::Recv), Some(value)) => events.push(FabricEvent::Immediate { connection, value }),
            _ => {
                pair.sends = pair.sends.saturating_sub(count.into());
                return;
            }
        }
        pair.receives = pair.receives.saturating_sub(1);
        // In batches; the rest is enough for a full window of fragments and of SENDs.
        if pair.receives + self.sizes.window / 2 == receives(self.sizes) {
            self.needs_recv_refill.push(connection);
        }
    }
}

/// The offset of a slot in the buffer of all.
fn offset(sizes: Sizes, connection: usize, slot: u32) -> usize {
    (connection * sizes.window as usize + slot as usize) * sizes.slot_bytes as usize
}

/// Receives posted for a connection: for the peer's fragments, and for as many acknowledgements and refusals each.
fn receives(sizes: Sizes) -> u32 {
    3 * sizes.window + 8
}

/// Places of a connection's send queue.
fn sends(sizes: Sizes) -> u32 {
    4 * sizes.window + 8
}

/// Posts requests as one chain; false, which is logged, if the queue pair does not take them.
#[inline]
fn post(pair: &QueuePair, requests: &[WorkRequest<'_>]) -> bool {
    let posted = pair.post_send(requests);
    if let Err(error) = &posted {
        tracing::debug!(%error, qp = pair.number(), "a queue pair takes no more");
    }
    posted.is_ok()
}

impl Fabric for Rdma {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn open(&mut self, connection: usize) -> Result<QueuePairAddress, Fault> {
        if self.gone {
            return Err(Fault::DeviceGone);
        }
        let gid = self.gid(connection).map_or([0; 16], |gid| gid.raw);
        let config = QpConfig {
            max_send: sends(self.sizes),
            max_recv: receives(self.sizes),
            max_inline_wanted: INLINE,
        };
        let pair = self.context.create_rc(&self.queue, config).map_err(|error| setup(&error))?;
        let access = Access::REMOTE_WRITE;
        pair.init(self.port.number, access).map_err(|error| setup(&error))?;
        let (number, psn) = (pair.number(), self.rng.random::<u32>() >> 8);
        let new = Pair { pair, psn, remote: None, receives: 0, sends: 0, unsignaled: 0, broken: false };
        if let (Some(place), Some(generation)) =
            (self.pairs.get_mut(connection), self.generations.get_mut(connection))
        {
            *place = Some(new);
            *generation = generation.wrapping_add(1);
        }
        if !self.feed(connection, receives(self.sizes)) {
            return Err(Fault::Local);
        }
        Ok(QueuePairAddress {
            queue_pair: number,
            psn,
            gid: Ipv6Addr::from(gid),
            lid: self.port.lid,
            mtu: self.port.mtu as u16,
            slots: self.incoming.region().address() + self.offset(connection, 0) as u64,
            rkey: self.incoming.region().rkey(),
        })
    }

    fn connect(&mut self, connection: usize, remote: &QueuePairAddress) -> Result<(), Fault> {
        self.find_gid(connection)?;
        let destination = match self.gid(connection) {
            Some(gid) if self.port.ethernet => Destination::roce(gid, remote.gid.octets()),
            _ => Destination::InfiniBand { lid: remote.lid },
        };
        let Some(Some(pair)) = self.pairs.get_mut(connection) else { return Err(Fault::Local) };
        let connection = Connection {
            local_psn: pair.psn,
            remote_psn: remote.psn,
            path_mtu: self.port.mtu.min(remote.mtu.into()),
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: 6,
            ..Connection::new(self.port.number, destination, remote.queue_pair)
        };
        pair.pair.connect(&connection).map_err(|error| setup(&error))?;
        pair.remote = Some(*remote);
        Ok(())
    }

    fn close(&mut self, connection: usize) {
        self.queued.retain(|(other, _)| *other != connection);
        let Some(pair) = self.pairs.get_mut(connection).and_then(Option::take) else { return };
        let generation = self.generations.get(connection).copied().unwrap_or(0);
        if let Err(error) = pair.pair.to_error() {
            tracing::debug!(%error, "a queue pair does not take the way to the error state; it is destroyed all the same");
        }
        // All posted requests are flushed. Receives complete one by one, so their number shows when that is done.
        // (Fragments that had arrived whole count as not taken, and are sent again.)
        let mut left = pair.receives;
        let until = Clock.now() + DRAIN;
        let mut done = [Completion::default(); BURST];
        let mut others = VecDeque::new();
        let mut sort = |done: &Completion| {
            let ticket = Ticket::decode(done.wr_id);
            if (ticket.connection, ticket.generation) != (connection, generation) {
                others.push_back(*done);
            } else if ticket.count == RECEIVE {
                left = left.saturating_sub(1);
            }
            left
        };
        let mut go_on = self.early.drain(..).fold(true, |_, done| sort(&done) > 0);
        while go_on && Clock.now() < until {
            let Ok(count) = self.queue.poll(&mut done) else { break };
            go_on = done.iter().take(count).fold(true, |_, done| sort(done) > 0);
        }
        self.early = others;
        if left > 0 {
            tracing::debug!(
                connection,
                left,
                "a queue pair was destroyed before all its receives were flushed"
            );
        }
        self.needs_recv_refill.retain(|other| *other != connection);
        // Dropped here: the device touches nothing of it afterwards.
    }

    fn outgoing(&mut self, connection: usize, slot: u32) -> &mut [u8] {
        let (offset, len) = (self.offset(connection, slot), self.sizes.slot_bytes as usize);
        self.outgoing.bytes_mut(offset, len).unwrap_or_default()
    }

    fn incoming(&self, connection: usize, slot: u32) -> &[u8] {
        let (offset, len) = (self.offset(connection, slot), self.sizes.slot_bytes as usize);
        let slot = (slot < self.sizes.window).then(|| self.incoming.bytes(offset, len));
        slot.flatten().unwrap_or_default()
    }

    #[inline]
    fn has_room(&self, connection: usize, more: u32) -> bool {
        let Some(Some(pair)) = self.pairs.get(connection) else { return false };
        pair.sends + more <= sends(self.sizes)
    }

    #[inline]
    fn write(&mut self, connection: usize, slot: u32, len: u32) {
        self.queued.push((connection, Queued::Write { slot, len }));
        if let Some(Some(pair)) = self.pairs.get_mut(connection) {
            pair.sends += 1;
        }
    }

    #[inline]
    fn gather(&mut self, connection: usize, slot: u32, payload: Source, len: u32) {
        self.queued.push((connection, Queued::Gather { slot, payload, len }));
        if let Some(Some(pair)) = self.pairs.get_mut(connection) {
            pair.sends += 1;
        }
    }

    #[inline]
    fn place(&mut self, connection: usize, slot: u32, payload: Source, into: Remote, len: u32) {
        self.queued.push((connection, Queued::Place { payload, into }));
        self.queued.push((connection, Queued::Trailer { slot, behind: payload.len, len }));
        if let Some(Some(pair)) = self.pairs.get_mut(connection) {
            pair.sends += 2;
        }
    }

    fn remote(&self, range: Source) -> Option<Remote> {
        self.registrations.remote(range)
    }

    #[allow(unsafe_code)]
    unsafe fn registering(&self, memory: TensorRegion) -> Result<Registering, RegisterError> {
        // SAFETY: passed on to the caller.
        unsafe { self.registrations.registering(&self.context, memory) }
    }

    fn adopt(&mut self, memory: Registered) -> Result<usize, RegisterError> {
        self.registrations.adopt(memory)
    }

    #[allow(unsafe_code)]
    unsafe fn register_device(
        &mut self,
        memory: TensorRegion,
        export: Option<Export>,
    ) -> Result<(usize, Reach), RegisterError> {
        // SAFETY: passed on to the caller.
        unsafe { self.registrations.add_device(&self.context, memory, export) }
    }

    fn unregister(&mut self, key: usize) -> Option<Registered> {
        self.registrations.remove(key)
    }

    #[inline]
    fn send_immediate(&mut self, connection: usize, value: u32) {
        self.queued.push((connection, Queued::Immediate(value)));
        if let Some(Some(pair)) = self.pairs.get_mut(connection) {
            pair.sends += 1;
        }
    }

    fn flush(&mut self) -> bool {
        if self.queued.is_empty() {
            return false;
        }
        let mut queued = std::mem::take(&mut self.queued);
        // Stable: the order within a connection is kept.
        queued.sort_by_key(|(connection, _)| *connection);
        let quarter = sends(self.sizes) / 4;
        // One chain for each run of the same connection.
        for run in queued.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(&(connection, _)) = run.first() else { continue };
            let generation = self.generations.get(connection).copied().unwrap_or(0);
            let Some(Some(pair)) = self.pairs.get_mut(connection) else { continue };
            let Some(remote) = pair.remote else { continue };
            let mut unsignaled = pair.unsignaled;
            let mut request = |queued: &Queued| {
                unsignaled += 1;
                // One signaled request completes those before it.
                let count = if unsignaled >= quarter { std::mem::take(&mut unsignaled) as u16 } else { 0 };
                let number = Ticket { connection, generation, count }.encode();
                let slot_of = |slot: u32| Operation::WriteImm {
                    remote: remote.slots + u64::from(slot) * u64::from(self.sizes.slot_bytes),
                    rkey: remote.rkey,
                    imm: slot,
                };
                let request = match *queued {
                    Queued::Immediate(imm) => {
                        WorkRequest::new(number, Operation::SendImm { imm }, Sges::NONE)
                    }
                    Queued::Write { slot, len } => {
                        let sge = self.outgoing.sge(offset(self.sizes, connection, slot), len as usize)?;
                        let request = WorkRequest::new(number, slot_of(slot), sge);
                        if len <= pair.pair.max_inline() { request.inline() } else { request }
                    }
                    Queued::Gather { slot, payload, len } => {
                        let behind = payload.len as usize;
                        let rest = (len as usize).saturating_sub(behind);
                        let trailer =
                            self.outgoing.sge(offset(self.sizes, connection, slot) + behind, rest)?;
                        // None, if it was taken back while it was sent from.
                        let payload = self.registrations.sge(payload)?;
                        WorkRequest::new(number, slot_of(slot), [payload, trailer])
                    }
                    Queued::Place { payload, into: Remote { address: remote, rkey } } => {
                        let payload = self.registrations.sge(payload)?;
                        WorkRequest::new(number, Operation::Write { remote, rkey }, payload)
                    }
                    Queued::Trailer { slot, behind, len } => {
                        let (behind, end) = (behind as usize, len as usize);
                        let place = offset(self.sizes, connection, slot) + behind;
                        let trailer = self.outgoing.sge(place, end.saturating_sub(behind))?;
                        let fits = trailer.len() <= pair.pair.max_inline();
                        let request = WorkRequest::new(number, slot_of(slot), trailer);
                        if fits { request.inline() } else { request }
                    }
                };
                Some(if count > 0 { request } else { request.unsignalled() })
            };
            let posted = run.chunks(BATCH).all(|batch| match batch {
                // The usual case for small messages, for which a chain would be much to set up.
                [(_, only)] => request(only).is_some_and(|request| post(&pair.pair, &[request])),
                batch => {
                    let none = WorkRequest::new(0, Operation::SendImm { imm: 0 }, Sges::NONE);
                    let mut chain = [none; BATCH];
                    let made = chain.iter_mut().zip(batch).all(|(place, (_, queued))| {
                        request(queued).map(|request| *place = request).is_some()
                    });
                    made && post(&pair.pair, chain.get(..batch.len()).unwrap_or_default())
                }
            });
            pair.unsignaled = unsignaled;
            if !posted {
                // Fragments in flight are sent again over the next queue pair, by its slots.
                self.refused.push(connection);
            }
        }
        self.queued = queued;
        self.queued.clear();
        true
    }

    fn poll(&mut self, events: &mut Vec<FabricEvent>) {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY) {
            self.look(events);
        }
        while let Some(done) = self.early.pop_front() {
            self.complete(&done, events);
        }
        // It is kept: to clear it in every poll would take longer than the look.
        let mut done = std::mem::take(&mut self.done);
        match self.queue.poll(&mut done) {
            Ok(count) => done.iter().take(count).for_each(|done| self.complete(done, events)),
            Err(error) => {
                tracing::error!(%error, "the completion queue is broken");
                self.gone = true;
                self.all_broken(Fault::DeviceGone, events);
            }
        }
        self.done = done;
        while let Some(connection) = self.needs_recv_refill.pop() {
            let Some(Some(pair)) = self.pairs.get(connection) else { continue };
            let missing = receives(self.sizes).saturating_sub(pair.receives);
            if !self.feed(connection, missing) {
                self.refused.push(connection);
            }
        }
        while let Some(connection) = self.refused.pop() {
            self.look(events);
            self.break_pair(connection, Fault::Local, events);
        }
    }
}
