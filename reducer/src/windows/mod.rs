//! Windows: memory of each rank that the others read and write without its taking part. A state machine without a thread, a clock or a
//! socket, as the [executor](crate::executor) is.
//!
//! ```text
//!   start ---> queues per target ---> requests (Transport) ---> on_message of the target: held until its turn, then served
//!   take_ended, is_flushed <--- on_message <--- answers, counts of what was applied
//! ```
//!
//! **Requests.** An access is cut into pieces that fit a fragment, and each is a request of its own, numbered per pair of ranks. The target
//! serves the requests of a rank in the order of their numbers, whatever the network does: so accesses of one rank to one target take
//! effect in the order in which they were started, reads among them. Between different origins there is no order. One owner serves all
//! requests of a target, one after the other, so each element is accessed atomically; an access of many elements as a whole is not.
//!
//! **Room.** Requests to one target, and what they ask for, take so many bytes at once ([`in_flight_bytes`](WindowsConfig::in_flight_bytes)).
//! A target keeps what comes before its turn within the same bound, and copies what it is asked for to a pool, from where it is sent: where
//! that is used up, a rank's requests wait until answers were released. An origin always has room for an answer, so nobody waits in a circle.
//!
//! **Ends.** A request ends with its answer, or when the target has said that it was applied. The target says how many requests it has
//! applied, and how many of them it has denied: the origin counts denials, too, and believes no request to be done whose denial may still be on
//! its way. Small accesses are copied and end at once for the caller; [`is_flushed`](Windows::is_flushed) says when all have taken effect.
//!
//! **Exactly once.** Requests have numbers, and fragments of answers a bit each: what comes again changes nothing. Everything that a message
//! says is checked against the target's own window, whatever the origin has checked before.

mod api;
mod deadlines;
mod origin;
mod slots;
mod target;
mod wire;

pub use self::api::{
    AccessEnded, AccessError, AccessId, AccessRefused, AccessRequest, AccessSubject, Action, Denial,
    WindowCounters, WindowId, WindowRefused, WindowsConfig,
};

use self::origin::{Access, Outbound};
use self::slots::Slots;
use self::target::{Answer, Inbound};
use crate::dtype::DType;
use crate::executor::{AbortCause, Disposition, Progress, Refusal};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::kernel::Kernels;
use crate::memory::{MemoryKind, Pool, TensorRegion};
use crate::transport::{SendToken, Transport};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What a request costs of the bytes in flight, beyond those that it carries or asks for.
const OVERHEAD: usize = 256;

/// Requests to one target at once.
const REQUESTS: usize = 1024;

/// A window of this rank.
#[derive(Debug)]
struct Window {
    memory: TensorRegion,
    dtype: DType,
    /// Elements of each rank's part, once all have said so.
    lengths: Option<Box<[u64]>>,
}

/// The windows of one rank in one group, and all accesses by it and to it.
#[derive(Debug)]
pub struct Windows {
    config: WindowsConfig,
    kernels: Kernels,
    counters: WindowCounters,
    windows: BTreeMap<WindowId, Window>,
    next_window: u32,
    accesses: Slots<Access>,
    /// How many of them there are of each window and target.
    under_way: BTreeMap<(WindowId, Rank), usize>,
    answers: Slots<Answer>,
    /// Answers with fragments to post.
    answering: VecDeque<slots::Handle>,
    outbound: BTreeMap<Rank, Outbound>,
    inbound: BTreeMap<Rank, Inbound>,
    /// Targets that there may be something to post to.
    active: Vec<Rank>,
    /// Origins that are to be told what was applied.
    telling: Vec<Rank>,
    /// Origins whose next request waits for room for its answer.
    stalled: Vec<Rank>,
    /// Room for answers has come back.
    may_resume: bool,
    /// Denials to be posted.
    denials: VecDeque<(Rank, Header)>,
    ended: VecDeque<AccessEnded>,
    next: u64,
    /// No deadline is earlier.
    earliest: Duration,
    copies: Option<Pool>,
    answer_room: Option<Pool>,
    /// Buffers of held requests, for their next use.
    buffers: Vec<Vec<u8>>,
    cause: Option<Arc<AbortCause>>,
}

impl Windows {
    /// Without windows and accesses; what it keeps for a rank is made at the first use.
    ///
    /// # Safety
    /// As for [`Executor::new`](crate::executor::Executor::new): what it hands to a transport is not used any more when it is dropped, so
    /// the transport goes first.
    #[allow(unsafe_code)]
    pub unsafe fn new(config: WindowsConfig) -> Self {
        Self {
            config,
            kernels: Kernels::detect(),
            counters: WindowCounters::default(),
            windows: BTreeMap::new(),
            next_window: 0,
            accesses: Slots::default(),
            under_way: BTreeMap::new(),
            answers: Slots::default(),
            answering: VecDeque::new(),
            outbound: BTreeMap::new(),
            inbound: BTreeMap::new(),
            active: vec![],
            telling: vec![],
            stalled: vec![],
            may_resume: false,
            denials: VecDeque::new(),
            ended: VecDeque::new(),
            next: 0,
            earliest: Duration::MAX,
            copies: None,
            answer_room: None,
            buffers: vec![],
            cause: None,
        }
    }

    /// Opens this rank's part of the group's next window: from now on others may access it. Its own accesses start once
    /// [`set_lengths`](Self::set_lengths) has said what the others have. The memory belongs to the window until [`close`](Self::close).
    ///
    /// # Errors
    /// [`WindowRefused`]; there is no window then, and the next one has its number.
    pub fn open(&mut self, memory: TensorRegion, dtype: DType) -> Result<WindowId, WindowRefused> {
        if let Some(cause) = &self.cause {
            return Err(WindowRefused::Aborted(Arc::clone(cause)));
        }
        let (bytes, address) = (memory.len(), memory.as_ptr().addr());
        let is_whole = bytes.is_multiple_of(dtype.size());
        let is_aligned = bytes == 0 || address.is_multiple_of(dtype.align());
        if !is_whole || !is_aligned || memory.kind() == MemoryKind::Device && bytes > 0 {
            return Err(WindowRefused::Memory { bytes, address, dtype });
        }
        let id = WindowId(self.next_window);
        self.next_window = self.next_window.wrapping_add(1);
        self.windows.insert(id, Window { memory, dtype, lengths: None });
        Ok(id)
    }

    /// Elements of each rank's part of a window.
    pub fn set_lengths(&mut self, window: WindowId, lengths: Box<[u64]>) {
        if let Some(window) = self.windows.get_mut(&window) {
            window.lengths = Some(lengths);
        }
    }

    /// Whether this rank's part of a window is open.
    pub fn has_window(&self, window: WindowId) -> bool {
        self.windows.contains_key(&window)
    }

    /// Closes this rank's part of a window: nothing touches its memory any more, and accesses to it are denied. False if it is closed.
    pub fn close(&mut self, window: WindowId) -> bool {
        self.windows.remove(&window).is_some()
    }

    /// Closes this rank's part of all windows.
    pub fn close_all(&mut self) {
        self.windows.clear();
    }

    /// Takes a message of any kind of [`MessageKind::is_window`]. The payload is only borrowed.
    pub fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        if header.key.group != self.config.group {
            return Disposition::Refused(Refusal::OtherGroup);
        }
        if header.key.epoch != self.config.epoch {
            return Disposition::Refused(Refusal::OtherEpoch);
        }
        if header.src.0 >= self.config.ranks || header.src == self.config.rank {
            return self.malformed();
        }
        if self.cause.is_some() {
            return Disposition::Refused(Refusal::Aborted);
        }
        match header.kind {
            MessageKind::Access => self.on_request(header, payload),
            MessageKind::Answer => self.on_answer(header, payload),
            MessageKind::Denied => self.on_denied(header),
            MessageKind::Applied => self.on_applied(header),
            _ => self.malformed(),
        }
    }

    /// Posts what finds room, and ends what is late.
    pub fn poll<T: Transport>(&mut self, now: Duration, transport: &mut T) -> Progress {
        let mut worked = false;
        if now >= self.earliest {
            worked |= self.check_deadlines(now);
        }
        worked |= self.resume();
        worked |= self.post_answers(transport);
        worked |= self.post_requests(transport);
        worked |= self.tell(transport);
        Progress { worked }
    }

    /// Nothing refers any more to a fragment that was posted with this token.
    pub fn on_released(&mut self, token: SendToken) {
        if !token.is_window() {
            return;
        }
        if slots::is_answer(token) {
            if let Some(handle) = self.answers.handle_of(token) {
                self.answer_released(handle);
            }
        } else if let Some(handle) = self.accesses.handle_of(token) {
            self.request_released(handle);
        }
    }

    /// Takes a waited access that has ended.
    #[inline]
    pub fn take_ended(&mut self) -> Option<AccessEnded> {
        self.ended.pop_front()
    }

    /// Whether all accesses of this rank to a target, or to all, have ended.
    pub fn is_flushed(&self, window: WindowId, target: Option<Rank>) -> bool {
        let (first, last) = target.map_or((Rank(0), Rank(u32::MAX)), |target| (target, target));
        self.under_way.range((window, first)..=(window, last)).next().is_none()
    }

    /// How an access to this target (or any) of the window failed that nobody waited for; each first one of a target is told, once.
    pub fn take_late(&mut self, window: WindowId, target: Option<Rank>) -> Option<AccessError> {
        let wanted = |rank: &Rank| target.is_none_or(|target| target == *rank);
        let of = self.outbound.iter_mut().filter(|(rank, _)| wanted(rank));
        of.filter_map(|(_, out)| out.take_late(window)).next()
    }

    /// Accesses of this rank that have not ended.
    pub fn running(&self) -> usize {
        self.accesses.len()
    }

    /// Whether a poll may post something.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.active.is_empty()
            || !self.answering.is_empty()
            || !self.telling.is_empty()
            || !self.denials.is_empty()
            || self.may_resume && !self.stalled.is_empty()
    }

    /// When [`poll`](Self::poll) must be called at the latest. It may be earlier than needed.
    pub fn next_deadline(&self) -> Option<Duration> {
        (self.earliest < Duration::MAX).then_some(self.earliest)
    }

    /// The group ends: so does every access, as soon as no transport refers to its memory, and no window is served any more.
    pub fn abort(&mut self, cause: &Arc<AbortCause>) {
        if self.cause.is_some() {
            return;
        }
        self.cause = Some(Arc::clone(cause));
        self.windows.clear();
        self.inbound.clear();
        self.active.clear();
        self.telling.clear();
        self.stalled.clear();
        self.denials.clear();
        self.answering.clear();
        self.earliest = Duration::MAX;
        // Nobody takes the rest of what others have asked for.
        let answers: Vec<_> = self.answers.iter().map(|(handle, _)| handle).collect();
        for handle in answers {
            self.lose_answer(handle);
        }
        let accesses: Vec<_> = self.accesses.iter().map(|(handle, _)| handle).collect();
        for handle in accesses {
            self.fail(handle, |subject| AccessError::Aborted { subject, cause: Arc::clone(cause) });
        }
    }

    /// The transport refers to no memory any more, after the group has ended.
    pub fn fenced(&mut self) {
        let accesses: Vec<_> = self.accesses.iter().map(|(handle, _)| handle).collect();
        for handle in accesses {
            if let Some(access) = self.accesses.get(handle) {
                access.unreleased = 0;
            }
            self.end(handle);
        }
        self.answers = Slots::default();
    }

    /// The ranks that there were accesses to, or from.
    pub fn known(&self) -> impl Iterator<Item = Rank> {
        self.outbound.keys().chain(self.inbound.keys()).copied()
    }

    /// Whether no transport refers to memory of an access or an answer, copies included.
    pub fn is_quiesced(&self) -> bool {
        self.accesses.iter().all(|(_, access)| access.unreleased == 0)
            && self.answers.iter().all(|(_, answer)| answer.unreleased() == 0)
    }

    /// A rank of those that have `gone` which an access waits for.
    #[cold]
    pub fn awaited(&self, gone: impl Fn(Rank) -> bool) -> Option<Rank> {
        self.accesses.iter().map(|(_, access)| access.target).filter(|rank| gone(*rank)).min()
    }

    /// The counters since the start.
    pub fn counters(&self) -> WindowCounters {
        self.counters
    }

    fn malformed(&mut self) -> Disposition {
        self.counters.malformed += 1;
        Disposition::Refused(Refusal::Malformed)
    }

    fn not_ready(&mut self) -> Disposition {
        self.counters.not_ready += 1;
        Disposition::Refused(Refusal::NotReady)
    }

    fn repeated(&mut self) -> Disposition {
        self.counters.duplicates += 1;
        Disposition::Consumed
    }
}

#[cfg(test)]
mod tests;
