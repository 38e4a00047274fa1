//! Queue pairs over libibverbs, with the slots of all connections in two registered buffers, and other registered memory to send
//! from.

mod completions;
mod fault;
mod look;
mod pairs;
mod slots;
mod work_request_id;

use std::net::Ipv6Addr;

use rand::Rng;
use rand::rngs::SmallRng;
use shouter_netstack::verbs::{
    Access, BATCH, Completion, Connection, Context, Destination, Gid, Opcode, Operation, QpConfig, QueuePair,
    Sges, VerbsError, WorkRequest,
};
use shouter_reducer::memory::TensorRegion;

use super::fabric::{
    Export, Fabric, FabricEvent, Fault, QueuePairAddress, Reach, RegisterError, Registered, Registering,
    Remote, Sizes, Source,
};
use super::registrations::Registrations;
use completions::{BURST, Completions};
use fault::{fault, setup};
use pairs::{Pair, Pairs};
use slots::Slots;
use work_request_id::{RECEIVE, WorkRequestId};

/// The interval of the checks for the device's events, in polls.
const LOOK_EVERY: u32 = 4096;

/// Data that a request carries along, at most.
const INLINE: u32 = 256;

/// An acknowledgement is waited for 4.096 us x 2^TIMEOUT = 134 ms, and a packet sent again so often: a queue pair fails after
/// a second or, as devices may wait up to four times as long, four.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 6;

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

/// Queue pairs and slots of all connections of a rank.
pub struct Rdma {
    // In the order in which they may go.
    pairs: Pairs,
    completions: Completions,
    slots: Slots,
    registrations: Registrations,
    context: Context,
    port: Port,
    connections_per_peer: usize,
    queued: Vec<(usize, Queued)>,
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
        let slots = Slots::register(&context, all, sizes)?;
        // Every receive completes, and every so many sends.
        let depth = (all as u32).saturating_mul(receives(sizes) + sends(sizes)).clamp(1, info.max_cqe);
        let queue = context.create_completion_queue(depth)?;
        Ok(Self {
            pairs: Pairs::new(all),
            completions: Completions::new(queue),
            slots,
            registrations: Registrations::new(more),
            context,
            port,
            connections_per_peer: connections.max(1),
            queued: Vec::with_capacity(256),
            needs_recv_refill: Vec::with_capacity(all),
            refused: vec![],
            rng,
            polls: 0,
            port_is_down: false,
            gone: false,
        })
    }

    fn gid(&self, connection: usize) -> Option<&Gid> {
        self.port.gids.get(connection / self.connections_per_peer)
    }

    /// Posts so many receives for a connection.
    fn feed(&mut self, connection: usize, count: u32) -> bool {
        let generation = self.pairs.generation(connection);
        let Some(pair) = self.pairs.get_mut(connection) else { return true };
        let number = WorkRequestId { connection, generation, count: RECEIVE }.encode();
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
        let WorkRequestId { connection, generation, count } = WorkRequestId::decode(done.wr_id);
        if !self.pairs.is_current(connection, generation) {
            return;
        }
        let Some(pair) = self.pairs.get_mut(connection) else { return };
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
        if pair.receives + self.slots.sizes().window / 2 == receives(self.slots.sizes()) {
            self.needs_recv_refill.push(connection);
        }
    }

    /// Queues a request of a connection.
    #[inline]
    fn queue(&mut self, connection: usize, request: Queued) {
        self.queued.push((connection, request));
        if let Some(pair) = self.pairs.get_mut(connection) {
            pair.sends += 1;
        }
    }
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
        self.slots.sizes()
    }

    fn open(&mut self, connection: usize) -> Result<QueuePairAddress, Fault> {
        if self.gone {
            return Err(Fault::DeviceGone);
        }
        let gid = self.gid(connection).map_or([0; 16], |gid| gid.raw);
        let sizes = self.slots.sizes();
        let config =
            QpConfig { max_send: sends(sizes), max_recv: receives(sizes), max_inline_wanted: INLINE };
        let pair = self.context.create_rc(self.completions.queue(), config).map_err(|error| setup(&error))?;
        let access = Access::REMOTE_WRITE;
        pair.init(self.port.number, access).map_err(|error| setup(&error))?;
        let (number, psn) = (pair.number(), self.rng.random::<u32>() >> 8);
        let new = Pair { pair, psn, remote: None, receives: 0, sends: 0, unsignaled: 0, broken: false };
        self.pairs.put(connection, new);
        if !self.feed(connection, receives(sizes)) {
            return Err(Fault::Local);
        }
        let (slots, rkey) = self.slots.remote(connection);
        Ok(QueuePairAddress {
            queue_pair: number,
            psn,
            gid: Ipv6Addr::from(gid),
            lid: self.port.lid,
            mtu: self.port.mtu as u16,
            slots,
            rkey,
        })
    }

    fn connect(&mut self, connection: usize, remote: &QueuePairAddress) -> Result<(), Fault> {
        self.find_gid(connection)?;
        let destination = match self.gid(connection) {
            Some(gid) if self.port.ethernet => Destination::roce(gid, remote.gid.octets()),
            _ => Destination::InfiniBand { lid: remote.lid },
        };
        let Some(pair) = self.pairs.get_mut(connection) else { return Err(Fault::Local) };
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
        let generation = self.pairs.generation(connection);
        let Some(pair) = self.pairs.take(connection) else { return };
        if let Err(error) = pair.pair.to_error() {
            tracing::debug!(%error, "a queue pair does not take the way to the error state; it is destroyed all the same");
        }
        // All posted requests are flushed.
        let left = self.completions.drain(connection, generation, pair.receives);
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
        self.slots.outgoing(connection, slot)
    }

    fn incoming(&self, connection: usize, slot: u32) -> &[u8] {
        self.slots.incoming(connection, slot)
    }

    #[inline]
    fn has_room(&self, connection: usize, more: u32) -> bool {
        let Some(pair) = self.pairs.get(connection) else { return false };
        pair.sends + more <= sends(self.slots.sizes())
    }

    #[inline]
    fn write(&mut self, connection: usize, slot: u32, len: u32) {
        self.queue(connection, Queued::Write { slot, len });
    }

    #[inline]
    fn gather(&mut self, connection: usize, slot: u32, payload: Source, len: u32) {
        self.queue(connection, Queued::Gather { slot, payload, len });
    }

    #[inline]
    fn place(&mut self, connection: usize, slot: u32, payload: Source, into: Remote, len: u32) {
        self.queue(connection, Queued::Place { payload, into });
        self.queue(connection, Queued::Trailer { slot, behind: payload.len, len });
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
        self.queue(connection, Queued::Immediate(value));
    }

    fn flush(&mut self) -> bool {
        if self.queued.is_empty() {
            return false;
        }
        let mut queued = std::mem::take(&mut self.queued);
        // Stable: the order within a connection is kept.
        queued.sort_by_key(|(connection, _)| *connection);
        let sizes = self.slots.sizes();
        let quarter = sends(sizes) / 4;
        // One chain for each run of the same connection.
        for run in queued.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(&(connection, _)) = run.first() else { continue };
            let generation = self.pairs.generation(connection);
            let Some(pair) = self.pairs.get_mut(connection) else { continue };
            let Some(remote) = pair.remote else { continue };
            let mut unsignaled = pair.unsignaled;
            let mut request = |queued: &Queued| {
                unsignaled += 1;
                // One signaled request completes those before it.
                let count = if unsignaled >= quarter { std::mem::take(&mut unsignaled) as u16 } else { 0 };
                let number = WorkRequestId { connection, generation, count }.encode();
                let slot_of = |slot: u32| Operation::WriteImm {
                    remote: remote.slots + u64::from(slot) * u64::from(sizes.slot_bytes),
                    rkey: remote.rkey,
                    imm: slot,
                };
                let request = match *queued {
                    Queued::Immediate(imm) => {
                        WorkRequest::new(number, Operation::SendImm { imm }, Sges::NONE)
                    }
                    Queued::Write { slot, len } => {
                        let sge = self.slots.sge(connection, slot, 0, len as usize)?;
                        let request = WorkRequest::new(number, slot_of(slot), sge);
                        if len <= pair.pair.max_inline() { request.inline() } else { request }
                    }
                    Queued::Gather { slot, payload, len } => {
                        let behind = payload.len as usize;
                        let rest = (len as usize).saturating_sub(behind);
                        let trailer = self.slots.sge(connection, slot, behind, rest)?;
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
                        let trailer = self.slots.sge(connection, slot, behind, end.saturating_sub(behind))?;
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
        while let Some(done) = self.completions.pop_early() {
            self.complete(&done, events);
        }
        let (done, count) = self.completions.look();
        match count {
            Ok(count) => done.iter().take(count).for_each(|done| self.complete(done, events)),
            Err(error) => {
                tracing::error!(%error, "the completion queue is broken");
                self.gone = true;
                self.all_broken(Fault::DeviceGone, events);
            }
        }
        self.completions.keep(done);
        while let Some(connection) = self.needs_recv_refill.pop() {
            let Some(pair) = self.pairs.get(connection) else { continue };
            let missing = receives(self.slots.sizes()).saturating_sub(pair.receives);
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
