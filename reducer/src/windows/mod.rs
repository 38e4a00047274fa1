//! Windows: memory of each rank that the others read and write without its taking part. A state machine without a thread, a clock or a
//! socket, as the [executor](crate::executor) is.
//!
//! ```text
//!   start ---> queues per target ---> requests (Transport) ---> on_message of the target: served in order
//!   take_ended, is_flushed <--- on_message <--- answers, counts of what was applied
//! ```
//!
//! **Requests.** An access is cut into pieces that fit a fragment, and each is a request of its own, numbered per pair of ranks. The target
//! serves the requests of a rank in the order of their numbers, whatever the network does: so accesses of one rank to one target take
//! effect in the order in which they were started, reads among them. Between different origins there is no order. One owner serves all
//! requests of a target, one after the other, so each element is accessed atomically; an access of many elements as a whole is not.
//!
//! **Shared parts.** To a part in memory that a host's ranks share, those make their accesses themselves (`direct`), beside this state
//! machine. The elements of such a part are accessed by atomic operations, here too (`part`).
//!
//! **Room.** Requests to one target, and their answers, take so many bytes at once ([`in_flight_bytes`](WindowsConfig::in_flight_bytes)).
//! A target keeps requests that overtake others within the same bound. It copies the elements that it is asked for to a pool, from where they
//! are sent: where the pool is used up, a rank's requests wait until answers were released. An origin always has room for an answer, so no
//! ranks wait in a circle.
//!
//! **Ends.** A request ends with its answer, or when the target has said that it was applied. The target says how many requests it has
//! applied, and how many of them it has denied: the origin counts denials, too, and takes no request for done whose denial may still be on
//! its way. Small accesses are copied and end at once for the caller; [`is_flushed`](Windows::is_flushed) says when all have taken effect.
//!
//! **Exactly once.** Requests have numbers, and fragments of answers a bit each: a repetition changes nothing. All fields of a message
//! are checked against the target's own window, whatever the origin has checked before.
//!
//! **Files.** Each part of the machine has one, which alone changes its fields: the memory that this rank exposes (`exposed`), its
//! accesses (`accesses`), which become requests to each target (`outbound`, all of them in `origin`), and the requests of others (`target`)
//! with their answers (`answers`).

mod accesses;
mod answers;
mod api;
mod check;
mod direct;
mod exposed;
mod origin;
mod outbound;
mod part;
mod slots;
mod target;
mod wire;

pub use self::api::{
    AccessError, AccessId, AccessRefused, AccessRequest, AccessSubject, Denial, WindowAction, WindowCounters,
    WindowId, WindowRefused, WindowsConfig,
};
pub use self::direct::{DirectAccess, DirectWindow};

use self::exposed::Exposed;
use self::origin::Origin;
use self::target::Target;
use crate::dtype::DType;
use crate::executor::{AbortCause, Disposition, Progress, Refusal};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::machine::{Ended, Machine};
use crate::memory::TensorRegion;
use crate::transport::{SendToken, Transport};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;

/// The cost of a request in the bytes in flight, beyond the bytes that it carries or asks for.
const OVERHEAD: usize = 256;

/// Requests to one target at once.
const REQUESTS: usize = 1024;

/// The outcome of a message.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// It was used.
    Taken,
    /// It had come before.
    Repeated,
    /// There is no room for it yet.
    NotReady,
    /// It makes no sense.
    Malformed,
}

/// The windows of one rank in one group, and all accesses by it and to it.
#[derive(Debug)]
pub struct Windows {
    config: WindowsConfig,
    counters: WindowCounters,
    exposed: Exposed,
    origin: Origin,
    target: Target,
    cause: Option<Arc<AbortCause>>,
    is_over: Arc<AtomicBool>,
}

impl Windows {
    /// Without windows and accesses; the state of a rank is made at its first use.
    ///
    /// # Safety
    /// As for [`Executor::new`](crate::executor::Executor::new): memory that it hands to a transport is not used any more when it is
    /// dropped, so the transport goes first.
    #[allow(unsafe_code)]
    pub unsafe fn new(config: WindowsConfig) -> Self {
        Self {
            config,
            counters: WindowCounters::default(),
            exposed: Exposed::new(),
            origin: Origin::new(config),
            target: Target::new(config),
            cause: None,
            is_over: Arc::default(),
        }
    }

    /// Becomes true when the group ends: for those who make [accesses](DirectWindow) without asking here.
    pub fn is_over(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_over)
    }

    /// Opens this rank's part of the group's next window: from now on others may access it. Its own accesses start once
    /// [`set_lengths`](Self::set_lengths) has said what the others have. The memory belongs to the window until [`close`](Self::close).
    ///
    /// # Errors
    /// [`WindowRefused`]; there is no window then, and the next one has its number.
    pub fn open(&mut self, memory: TensorRegion, dtype: DType) -> Result<WindowId, WindowRefused> {
        match &self.cause {
            Some(cause) => Err(WindowRefused::Aborted(Arc::clone(cause))),
            None => self.exposed.open(memory, dtype),
        }
    }

    /// Elements of each rank's part of a window.
    pub fn set_lengths(&mut self, window: WindowId, lengths: Box<[u64]>) {
        self.exposed.set_lengths(window, lengths);
    }

    /// Whether this rank's part of a window is open.
    pub fn has_window(&self, window: WindowId) -> bool {
        self.exposed.has(window)
    }

    /// Closes this rank's part of a window: nothing touches its memory any more, and accesses to it are denied. False if it is closed.
    pub fn close(&mut self, window: WindowId) -> bool {
        self.exposed.close(window)
    }

    /// Closes this rank's part of all windows.
    pub fn close_all(&mut self) {
        self.exposed.close_all();
    }

    /// Starts an access. It takes effect behind those that were started before it to the same target. The memory belongs to the windows
    /// until it has ended.
    ///
    /// # Errors
    /// [`AccessRefused`]; nothing was started then.
    pub fn start(&mut self, request: AccessRequest) -> Result<AccessId, AccessRefused> {
        if let Some(cause) = &self.cause {
            return Err(AccessRefused::Aborted(Arc::clone(cause)));
        }
        let WindowsConfig { rank, ranks, .. } = self.config;
        let piece = check::check(rank, ranks, self.exposed.extents(request.window), &request)?;
        self.origin.start(&request, piece)
    }

    /// Counts the outcome of a message; the answer to its transport.
    #[inline]
    fn disposition(&mut self, outcome: Outcome) -> Disposition {
        match outcome {
            Outcome::Taken => Disposition::Consumed,
            Outcome::Repeated => {
                self.counters.duplicates += 1;
                Disposition::Consumed
            }
            Outcome::NotReady => {
                self.counters.not_ready += 1;
                Disposition::Refused(Refusal::NotReady)
            }
            Outcome::Malformed => {
                self.counters.malformed += 1;
                Disposition::Refused(Refusal::Malformed)
            }
        }
    }

    /// Whether all accesses of this rank to a target, or to all, have ended.
    pub fn is_flushed(&self, window: WindowId, target: Option<Rank>) -> bool {
        self.origin.accesses().is_flushed(window, target)
    }

    /// How an access to this target (or any) of the window failed that nobody waited for; each first one of a target is told, once.
    pub fn take_late(&mut self, window: WindowId, target: Option<Rank>) -> Option<AccessError> {
        self.origin.accesses_mut().take_late(window, target)
    }

    /// The ranks that there were accesses to, or from.
    pub fn known(&self) -> impl Iterator<Item = Rank> {
        self.origin.known().chain(self.target.known())
    }

    /// Whether no transport refers to memory of an access or an answer, copies included.
    pub fn is_quiesced(&self) -> bool {
        self.origin.accesses().is_quiesced() && self.target.is_quiesced()
    }

    /// The counters since the start.
    pub fn counters(&self) -> WindowCounters {
        let WindowCounters { served, held, denied, .. } = self.target.counters();
        WindowCounters { served, held, denied, ..self.counters }
    }
}

impl Machine for Windows {
    type Id = AccessId;
    type Outcome = Result<(), AccessError>;

    fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        if let Some(why) = Refusal::of_key(&header.key, self.config.group, self.config.epoch) {
            return Disposition::Refused(why);
        }
        if header.src.0 >= self.config.ranks || header.src == self.config.rank {
            return self.disposition(Outcome::Malformed);
        }
        if self.cause.is_some() {
            return Disposition::Refused(Refusal::Aborted);
        }
        let outcome = match header.kind {
            MessageKind::Access => self.target.on_request(&self.exposed, header, payload),
            MessageKind::Answer => self.origin.on_answer(header, payload),
            MessageKind::Denied => self.origin.on_denied(header),
            MessageKind::Applied => self.origin.on_applied(header),
            _ => Outcome::Malformed,
        };
        self.disposition(outcome)
    }

    fn on_released(&mut self, token: SendToken) {
        if !token.is_window() {
            return;
        }
        match slots::is_answer(token) {
            true => self.target.on_released(token),
            false => self.origin.accesses_mut().released(token),
        }
    }

    fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> Progress {
        let Self { exposed, origin, target, .. } = self;
        let mut worked = origin.check_deadlines(now);
        worked |= target.resume(exposed);
        worked |= target.post_answers(transport);
        worked |= origin.post(transport, |piece, data, into| target.serve_own(exposed, piece, data, into));
        worked |= target.post_reports(transport);
        Progress { worked }
    }

    #[inline]
    fn take_ended(&mut self) -> Option<Ended<Self::Id, Self::Outcome>> {
        self.origin.accesses_mut().take_ended()
    }

    fn running(&self) -> usize {
        self.origin.accesses().len()
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.origin.has_work() || self.target.has_work()
    }

    fn next_deadline(&self) -> Option<Duration> {
        self.origin.accesses().next_deadline()
    }

    #[cold]
    fn awaited(&self, gone: impl Fn(Rank) -> bool) -> Option<Rank> {
        self.origin.accesses().targets().filter(|rank| gone(*rank)).min()
    }

    fn abort(&mut self, cause: &Arc<AbortCause>) {
        if self.cause.is_some() {
            return;
        }
        self.cause = Some(Arc::clone(cause));
        self.is_over.store(true, Ordering::Release);
        self.exposed.close_all();
        self.target.abort();
        self.origin.abort(cause);
    }

    fn fenced(&mut self) {
        self.origin.accesses_mut().fenced();
        self.target.fenced();
    }
}

#[cfg(test)]
mod tests;
