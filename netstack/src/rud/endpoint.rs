//! The sessions of one shard: opens and closes them, and queues their messages. `endpoint/drive.rs` finds a datagram's session,
//! schedules sessions to send, and keeps the next deadline.

mod drive;
mod knowledge;
mod looks;

use core::cmp::Reverse;
use core::net::IpAddr;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::api::{
    Config, Counters, EndpointCounters, MAX_DATAGRAM, MAX_MESSAGE_HEADER, MOST_PATHS, MessageToken,
    OpenError, SendError, SessionId, SessionParams, Sink,
};
use super::deadlines::Deadlines;
use super::recovery::NEVER;
use super::seal::Seal;
use super::session::Session;
use super::table::TagTable;
use crate::device::FramesOut;
use crate::ip::peers::Peers;
use crate::region::Extent;
use crate::scratch::Bytes;
use crate::time::Instant;
use crate::wire::rud::{HEADER_LEN, Header};
use knowledge::Knowledge;
use looks::Looks;

#[derive(Debug)]
struct Entry {
    generation: u16,
    /// Whether the index is in `ready`.
    ready: bool,
    /// Whether the index is in `paced`.
    paced: bool,
    /// Whether the index is in `holding`.
    holds: bool,
    /// The session's deadline is not earlier.
    due: u64,
    /// Its time in `deadlines`, which most datagrams need not touch then; `NEVER` before it has one.
    armed: u64,
    session: Option<Box<Session>>,
    /// Of a session that begins with its first use.
    enlisted: Option<Box<SessionParams>>,
    /// Of a sealed session from its first use on, also when it [rests](Endpoint::rest): no number is used twice.
    seal: Option<Box<Seal>>,
}

impl Entry {
    const EMPTY: Self = Self {
        generation: 0,
        ready: false,
        paced: false,
        holds: false,
        due: NEVER,
        armed: NEVER,
        session: None,
        enlisted: None,
        seal: None,
    };

    /// The seal of a session with these parameters, if it has one.
    fn seal(seal: &mut Option<Box<Seal>>, params: &SessionParams) {
        if let (None, Some(secret)) = (&seal, &params.seal) {
            *seal = Some(Box::new(Seal::new(secret, params.remote_tag, params.local_tag)));
        }
    }
}

/// All RUD sessions of one shard.
///
/// The caller drives it: [`on_datagram`](Self::on_datagram) for each datagram that arrives,
/// [`on_timeout`](Self::on_timeout) once [`next_deadline`](Self::next_deadline) has come, then
/// [`transmit`](Self::transmit). It reads received datagrams before it looks at timers, so that its own pauses are not
/// taken for the peer's.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    entries: Vec<Entry>,
    free: Vec<u16>,
    tags: TagTable,
    peers: Peers,
    /// Sessions with something to send, in round-robin order. Each is in it at most once.
    ready: VecDeque<u16>,
    /// Sessions whose data waits for its time, with the time. Each is in it at most once.
    paced: BinaryHeap<Reverse<(u64, u16)>>,
    looks: Looks,
    /// Whether the network marks datagrams, as a session of this end or of a peer's has seen: it does so for all.
    network_marks: Knowledge,
    /// The time of the last poll, as far as it is known.
    latest: u64,
    /// No session is due before its time there. Deadlines move back with nearly every datagram: a time that comes before its
    /// session is due is put off then.
    deadlines: Deadlines,
    frames_out: FramesOut,
    /// The sessions with messages, or memory, that wait for frames. Each is in it at most once.
    holding: Vec<u16>,
    /// Of sessions that were closed, what frames may still refer to.
    left_behind: Vec<Bytes>,
    /// When peers' hosts sent a datagram with a tag of no session last: enough for a clue, and little work in a flood of such datagrams.
    unknown: BTreeMap<IpAddr, u64>,
    counters: EndpointCounters,
}

impl Endpoint {
    /// An endpoint without sessions. Values of `config` that are out of range are brought into it.
    pub fn new(config: Config) -> Self {
        let config = config.clamped();
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            tags: TagTable::new(config.max_sessions),
            peers: Peers::default(),
            ready: VecDeque::with_capacity(config.max_sessions),
            paced: BinaryHeap::new(),
            looks: Looks::default(),
            network_marks: Knowledge::default(),
            latest: 0,
            deadlines: Deadlines::default(),
            frames_out: FramesOut::None,
            holding: Vec::new(),
            left_behind: Vec::new(),
            unknown: BTreeMap::new(),
            counters: EndpointCounters::default(),
            config,
        }
    }

    /// Makes one host's ends know the same of its network: whether it marks datagrams (spec.md section 7.2).
    pub fn share_network_with(&mut self, other: &Self) {
        let known = core::mem::replace(&mut self.network_marks, other.network_marks.clone());
        self.network_marks.add(known.get());
    }

    /// Opens a session. Both ends open it on their own; there is no handshake.
    ///
    /// # Errors
    /// A parameter that cannot be, a tag of another session, or as many sessions as the configuration allows.
    pub fn open(&mut self, now: Instant, params: SessionParams) -> Result<SessionId, OpenError> {
        let index = self.enter(&params)?;
        Ok(self.begin(now.as_nanos(), index, &params))
    }

    /// Opens a session that begins with its first use: a message of either end, or [`announce`](Self::announce). Until then it has no
    /// state but its parameters, and sends nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn enlist(&mut self, params: SessionParams) -> Result<SessionId, OpenError> {
        let index = self.enter(&params)?;
        let entry = &mut self.entries[index as usize];
        entry.enlisted = Some(Box::new(params));
        Ok(SessionId::new(index, entry.generation))
    }

    /// Takes a place for a session.
    fn enter(&mut self, params: &SessionParams) -> Result<u16, OpenError> {
        //= rud/spec.md section 3.1, RUD-2
        if params.local_tag == 0 || params.remote_tag == 0 {
            return Err(OpenError::ZeroTag);
        }
        //= rud/spec.md section 10.3, RUD-96
        if params.seal.is_some() && params.local_tag == params.remote_tag {
            return Err(OpenError::SameTags);
        }
        if params.local_ip.is_ipv4() != params.remote_ip.is_ipv4() {
            return Err(OpenError::MixedFamilies { local: params.local_ip, remote: params.remote_ip });
        }
        let ports = &params.local_ports;
        //= rud/spec.md section 3.3
        let fits = (1..=MOST_PATHS).contains(&ports.len());
        if !fits || ports.contains(&0) || params.remote_port == 0 {
            return Err(OpenError::Ports { paths: ports.len() });
        }
        if params.max_datagram > MAX_DATAGRAM {
            return Err(OpenError::DatagramTooLong { asked: params.max_datagram, limit: MAX_DATAGRAM });
        }
        if self.tags.get(params.local_tag).is_some() {
            return Err(OpenError::TagInUse);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() < self.config.max_sessions => {
                self.entries.push(Entry::EMPTY);
                (self.entries.len() - 1) as u16
            }
            None => return Err(OpenError::TooMany { limit: self.config.max_sessions }),
        };
        self.tags.insert(params.local_tag, index);
        self.peers.add(params.remote_ip);
        Ok(index)
    }

    /// Makes the state of a session.
    fn begin(&mut self, now: u64, index: u16, params: &SessionParams) -> SessionId {
        let entry = &mut self.entries[index as usize];
        let id = SessionId::new(index, entry.generation);
        let session = Session::new(now, id, &self.config, params);
        Entry::seal(&mut entry.seal, params);
        entry.due = session.deadline();
        entry.session = Some(Box::new(session));
        Self::arm(&mut self.deadlines, entry, index);
        // The first heartbeat: it shows the peer that this side is alive.
        Self::make_ready(&mut self.ready, entry, index);
        id
    }

    /// Lets a session begin that was enlisted, if it has not.
    #[cold]
    fn begin_enlisted(&mut self, now: u64, id: SessionId) {
        let Some(entry) = self.entries.get_mut(id.index()) else { return };
        if entry.session.is_none()
            && SessionId::new(id.index() as u16, entry.generation) == id
            && let Some(params) = entry.enlisted.take()
        {
            self.begin(now, id.index() as u16, &params);
            self.entries[id.index()].enlisted = Some(params);
        }
    }

    /// Whether a session has begun, and was not closed.
    pub fn has_begun(&self, id: SessionId) -> bool {
        self.session(id).is_some()
    }

    /// An enlisted session that has carried no data in either direction is as before its first use again. It may do so at each end for itself:
    /// only heartbeats are lost.
    pub fn rest(&mut self, id: SessionId) {
        if let Some(entry) = self.entries.get_mut(id.index())
            && entry.enlisted.is_some()
            && entry.session.as_deref().is_some_and(|session| session.id() == id && session.is_unused())
        {
            //= rud/spec.md section 10.2, RUD-93
            (entry.session, entry.due) = (None, NEVER);
        }
    }

    /// Removes a session at once, with its unsent and unacknowledged messages; its tokens are not released, and
    /// acknowledgements that are held back are not sent.
    pub fn close(&mut self, id: SessionId) {
        let Some(entry) = self.entries.get(id.index()).filter(|entry| entry.generation == id.generation())
        else {
            return;
        };
        let enlisted = entry.enlisted.as_deref().map(|params| (params.local_tag, params.remote_ip));
        let begun = entry.session.as_deref().map(|session| (session.local_tag(), session.remote_ip()));
        if let Some((tag, peer)) = enlisted.or(begun) {
            self.tags.remove(tag);
            self.peers.remove(peer);
            if !self.peers.has(peer) {
                self.unknown.remove(&peer);
            }
            let entry = &mut self.entries[id.index()];
            let session = entry.session.take();
            if self.frames_out != FramesOut::None {
                self.left_behind.extend(session.into_iter().flat_map(|session| session.into_memory()));
            }
            (entry.enlisted, entry.seal) = (None, None);
            entry.due = NEVER;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(id.index() as u16);
        }
    }

    /// Queues a message: `header` (at most 64 bytes) is copied, `payload` is read when the datagram is sent, and
    /// sent again, until [`Sink::released`] gives `token` back. Messages of up to 255 bytes, header and payload, that wait at the same time
    /// share datagrams, and go before longer ones (spec.md sections 6.9 and 6.10).
    ///
    /// # Errors
    /// [`SendError::Full`]: try again after acknowledgements. A closed or failed session, or a header or payload that is too long.
    #[inline]
    pub fn send(
        &mut self,
        id: SessionId,
        header: &[u8],
        payload: Option<Extent>,
        token: MessageToken,
    ) -> Result<(), SendError> {
        self.push(id, header.len(), |body| body[..header.len()].copy_from_slice(header), payload, token)
    }

    /// As [`send`](Self::send), with a header of `N` bytes (at most 64, or it does not compile) that `write` puts into the
    /// datagram's own.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn send_with<const N: usize>(
        &mut self,
        id: SessionId,
        write: impl FnOnce(&mut [u8; N]),
        payload: Option<Extent>,
        token: MessageToken,
    ) -> Result<(), SendError> {
        const { assert!(N <= MAX_MESSAGE_HEADER, "a message header has at most 64 bytes") };
        let write = |body: &mut [u8; MAX_MESSAGE_HEADER]| body.first_chunk_mut().map_or((), write);
        self.push(id, N, write, payload, token)
    }

    /// `write` is called with at most [`MAX_MESSAGE_HEADER`] as `len`.
    #[inline]
    fn push(
        &mut self,
        id: SessionId,
        len: usize,
        write: impl FnOnce(&mut [u8; MAX_MESSAGE_HEADER]),
        payload: Option<Extent>,
        token: MessageToken,
    ) -> Result<(), SendError> {
        let mut entry = self.entries.get_mut(id.index()).ok_or(SendError::Closed)?;
        if entry.session.is_none() {
            self.begin_enlisted(self.latest, id);
            entry = &mut self.entries[id.index()];
        }
        let session = entry.session.as_deref_mut().filter(|s| s.id() == id).ok_or(SendError::Closed)?;
        session.push(len, write, payload, token)?;
        Self::make_ready(&mut self.ready, entry, id.index() as u16);
        Ok(())
    }

    /// The caller waits for the release of the message queued last: its acknowledgement is requested at once instead of
    /// with the next batch.
    #[inline]
    pub fn request_ack(&mut self, id: SessionId) {
        if let Some(session) = self.session_mut(id) {
            session.request_ack();
        }
    }

    /// Whether small messages that are queued from now on share datagrams, and go before large ones, as they do at first. One that has its own
    /// takes as much work as a large one.
    pub fn set_bundles(&mut self, id: SessionId, used: bool) {
        self.begin_enlisted(self.latest, id);
        if let Some(session) = self.session_mut(id) {
            session.set_bundles(used);
        }
    }

    /// Messages that [`send`](Self::send) would take now, of any length; zero for a session that was closed or has failed.
    #[inline]
    pub fn capacity(&self, id: SessionId) -> usize {
        let Some(entry) = self.entries.get(id.index()).filter(|entry| entry.generation == id.generation())
        else {
            return 0;
        };
        let unused = entry.enlisted.as_ref().map_or(0, |_| self.config.window_packets as usize);
        entry.session.as_deref().map_or(unused, Session::capacity)
    }

    /// Whether as many messages of more than [`SMALL_MESSAGE`](super::SMALL_MESSAGE) bytes are queued as leave in a round trip. Messages of one
    /// kind leave in the order in which they came: an upper layer that may have more urgent ones soon sends no more of these until that
    /// has changed (spec.md section 6.11).
    #[inline]
    pub fn is_ahead(&self, id: SessionId) -> bool {
        self.session(id).is_some_and(Session::is_ahead)
    }

    /// Payload bytes that go in one datagram to the peer, behind a message header of `message_header` bytes, as far as is known of the
    /// path now. A longer message, up to what the session may send, goes in pieces. Zero for a session that was closed.
    #[inline]
    pub fn payload_limit(&self, id: SessionId, message_header: usize) -> usize {
        let Some(entry) = self.entries.get(id.index()).filter(|entry| entry.generation == id.generation())
        else {
            return 0;
        };
        let unused = entry.enlisted.as_ref().map_or(0, |params| params.max_plain());
        let datagram = entry.session.as_deref().map_or(unused, Session::path_datagram);
        datagram.saturating_sub(HEADER_LEN + message_header)
    }

    /// Sends the peer a heartbeat with the next [`transmit`](Self::transmit), instead of when one is due.
    pub fn announce(&mut self, id: SessionId) {
        self.begin_enlisted(self.latest, id);
        if let Some(entry) = self.entries.get_mut(id.index())
            && let Some(session) = entry.session.as_deref_mut()
            && session.id() == id
        {
            session.announce();
            Self::make_ready(&mut self.ready, entry, id.index() as u16);
        }
    }

    /// Bundles that the session has memory for.
    #[cfg(test)]
    pub(super) fn bundles(&self, id: SessionId) -> usize {
        self.session(id).map_or(0, Session::bundles)
    }

    /// Drops all references of the session's messages to memory. The session goes on. Messages not yet acknowledged are
    /// sent as headers without payload: the upper layer must recognise them as given up. Tokens are released as ever.
    pub fn fence(&mut self, id: SessionId) {
        if let Some(session) = self.session_mut(id) {
            session.forget_payloads();
        }
    }

    /// The state of emitted frames, which may still be read; [`FramesOut::None`] until it is set.
    #[inline]
    pub fn frames_out(&self) -> FramesOut {
        self.frames_out
    }

    /// Sets the state of emitted frames that may still be read. [`release_held`](Self::release_held) sets it to none.
    pub fn set_frames_out(&mut self, out: FramesOut) {
        self.frames_out = out;
    }

    /// Whether acknowledged messages wait to be released until no frame refers to them.
    #[inline]
    pub fn awaits_frames(&self) -> bool {
        !self.holding.is_empty() || !self.left_behind.is_empty()
    }

    /// Releases the messages that waited for frames, none of which is out any more.
    pub fn release_held(&mut self, sink: &mut impl Sink) {
        self.frames_out = FramesOut::None;
        self.left_behind.clear();
        for index in self.holding.drain(..) {
            let entry = &mut self.entries[index as usize];
            entry.holds = false;
            if let Some(session) = entry.session.as_deref_mut() {
                session.release_held(sink);
            }
        }
    }

    /// Notes whether the session has messages, or memory, that wait for frames.
    #[cold]
    fn note_holding(&mut self, index: u16) {
        let entry = &mut self.entries[index as usize];
        let holds = entry.session.as_deref().is_some_and(Session::waits_for_frames);
        if holds && !core::mem::replace(&mut entry.holds, true) {
            self.holding.push(index);
        }
    }

    /// The seal of a session that has begun.
    #[cfg(test)]
    pub(super) fn seal_mut(&mut self, id: SessionId) -> &mut Seal {
        self.entries[id.index()].seal.as_deref_mut().unwrap()
    }

    /// Whether nothing is queued or unacknowledged; true for a session that has not begun, or was closed.
    pub fn is_idle(&self, id: SessionId) -> bool {
        self.session(id).is_none_or(Session::is_idle)
    }

    /// Whether a session leads to `host`.
    pub fn has_peer(&self, host: IpAddr) -> bool {
        self.peers.has(host)
    }

    /// The number of datagrams that the peer has acknowledged on the session of `udp_payload`: if it rises, datagrams
    /// sent to the peer arrive.
    pub fn acknowledged_to(&self, udp_payload: &[u8]) -> Option<u64> {
        let index = self.tags.get(Header::tag_of(udp_payload)?)?;
        self.entries.get(usize::from(index))?.session.as_deref().map(Session::acked)
    }

    /// Lets `deadlines` have a time that is no later than the session's.
    #[inline]
    fn arm(deadlines: &mut Deadlines, entry: &mut Entry, index: u16) {
        if entry.due < entry.armed {
            entry.armed = entry.due;
            deadlines.bring_forward(index, entry.due);
        }
    }

    /// Statistics of a session; all zero for a session that was closed.
    pub fn counters(&self, id: SessionId) -> Counters {
        self.session(id).map_or_else(Counters::default, Session::counters)
    }

    /// Statistics of datagrams of no session, and totals.
    pub fn endpoint_counters(&self) -> EndpointCounters {
        self.counters
    }

    #[inline]
    fn session(&self, id: SessionId) -> Option<&Session> {
        self.entries.get(id.index())?.session.as_deref().filter(|session| session.id() == id)
    }

    #[inline]
    fn session_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.entries.get_mut(id.index())?.session.as_deref_mut().filter(|session| session.id() == id)
    }

    #[inline]
    fn make_ready(ready: &mut VecDeque<u16>, entry: &mut Entry, index: u16) {
        if !entry.ready {
            entry.ready = true;
            ready.push_back(index);
        }
    }
}
