//! Messages between shards: one single-producer ring for each ordered pair, and [`submit_to`] on top of them.
//!
//! ```text
//!   shard 0                               shard 1
//!   submit_to(1, f) --- Call(token, f) --> run f
//!   future ready   <-- Reply(token, r) --- put the result in the same box
//! ```
//!
//! A call is one allocation: the box that carries the closure there carries its result back. When a ring is full,
//! messages queue up in order at the sender, which tries again at the end of every poll.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crossbeam::sync::Parker;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::shared::Shared;
use super::{ShardId, context, panic_message};

/// One shard's endpoint of a [`mesh`]: its ends of the rings. To be given to a reactor.
pub(super) struct Endpoint {
    pub(super) presence: Presence,
    pub(super) parker: Parker,
    pub(super) links: Links,
    pub(super) inbound: Vec<Inbound>,
}

impl Endpoint {
    /// A shard without peers.
    pub(super) fn alone() -> Self {
        mesh(1, 1).swap_remove(0)
    }

    /// The shard that this makes.
    pub(super) fn id(&self) -> ShardId {
        self.presence.id
    }

    /// The part of each shard that other threads may touch.
    pub(super) fn all(&self) -> &Arc<[Arc<Shared>]> {
        &self.presence.all
    }
}

/// Joins `shards` shards, each ordered pair by a ring of `depth` messages (24 bytes each).
pub(super) fn mesh(shards: usize, depth: usize) -> Vec<Endpoint> {
    let parkers: Vec<Parker> = (0..shards).map(|_| Parker::new()).collect();
    let all: Arc<[Arc<Shared>]> =
        parkers.iter().enumerate().map(|(id, parker)| Shared::new(ShardId(id), parker)).collect();
    let mut endpoints: Vec<Endpoint> = parkers
        .into_iter()
        .enumerate()
        .map(|(id, parker)| Endpoint {
            presence: Presence { id: ShardId(id), all: all.clone() },
            parker,
            links: Links { all: all.clone(), outbound: Vec::with_capacity(shards), dirty: false },
            inbound: Vec::with_capacity(shards.saturating_sub(1)),
        })
        .collect();
    for from in 0..shards {
        for to in 0..shards {
            let link = (from != to).then(|| {
                let (ring, from_ring) = RingBuffer::new(depth.max(1));
                endpoints[to].inbound.push(Inbound { from: ShardId(from), ring: from_ring });
                Link { ring, overflow: VecDeque::new(), fresh: false }
            });
            endpoints[from].links.outbound.push(link);
        }
    }
    endpoints
}

/// As long as this exists, the shard answers. Dropping it tells the peers that it will not any more.
pub(super) struct Presence {
    id: ShardId,
    all: Arc<[Arc<Shared>]>,
}

impl Presence {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.all[self.id.0]
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared().mark_stopped();
        for peer in self.all.iter().filter(|peer| peer.id != self.id) {
            peer.raise();
        }
    }
}

/// The receiving end of a ring.
pub(super) struct Inbound {
    pub(super) from: ShardId,
    pub(super) ring: Consumer<ShardMessage>,
}

/// A message in a ring.
pub(super) enum ShardMessage {
    Call(CallToken, Box<dyn Work>),
    Reply(CallToken, Box<dyn Work>),
}

/// The sending end of a ring.
pub(super) struct Link {
    ring: Producer<ShardMessage>,
    overflow: VecDeque<ShardMessage>,
    /// Something was sent since the peer was last woken.
    fresh: bool,
}

impl Link {
    fn send(&mut self, message: ShardMessage) {
        self.fresh = true;
        if !self.overflow.is_empty() {
            self.overflow.push_back(message);
        } else if let Err(PushError::Full(message)) = self.ring.push(message) {
            self.overflow.push_back(message);
        }
    }

    /// Moves messages that waited for room. Returns whether any moved.
    fn flush(&mut self) -> bool {
        let before = self.overflow.len();
        while let Some(message) = self.overflow.pop_front() {
            if let Err(PushError::Full(message)) = self.ring.push(message) {
                self.overflow.push_front(message);
                break;
            }
        }
        let moved = self.overflow.len() != before;
        self.fresh |= moved;
        moved
    }
}

/// One shard's links to all others.
pub(super) struct Links {
    all: Arc<[Arc<Shared>]>,
    outbound: Vec<Option<Link>>,
    /// Some link is fresh or has overflow.
    dirty: bool,
}

/// The outcome of [`Links::flush`].
#[derive(Default)]
pub(super) struct Flushed {
    /// Messages moved into a ring.
    pub(super) moved: bool,
    /// Messages to shards that are gone, to be dropped outside of the context.
    pub(super) discarded: Vec<ShardMessage>,
}

impl Links {
    fn send(&mut self, to: ShardId, message: ShardMessage) {
        if let Some(Some(link)) = self.outbound.get_mut(to.0) {
            link.send(message);
            self.dirty = true;
        }
    }

    /// At the end of a poll: moves the waiting messages, and wakes their receivers.
    #[inline]
    pub(super) fn flush(&mut self) -> Flushed {
        if self.dirty { self.flush_all() } else { Flushed::default() }
    }

    fn flush_all(&mut self) -> Flushed {
        let mut flushed = Flushed::default();
        self.dirty = false;
        for (link, peer) in self.outbound.iter_mut().zip(self.all.iter()) {
            let Some(link) = link else { continue };
            if peer.is_stopped() {
                // Calls among them have been failed; their replies are not read.
                flushed.discarded.extend(link.overflow.drain(..));
            }
            flushed.moved |= link.flush();
            self.dirty |= !link.overflow.is_empty();
            if std::mem::take(&mut link.fresh) {
                peer.wake();
            }
        }
        flushed
    }

    /// Whether messages wait for room in a ring, or peers have not been woken for some.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty
    }

    fn peer(&self, id: ShardId) -> Option<&Arc<Shared>> {
        self.all.get(id.0)
    }
}

/// A closure on its way there, its result on its way back.
pub(super) trait Work: Send {
    /// Runs the closure and keeps the result.
    fn run(&mut self);
    /// Moves the result into `slot`, which is the caller's `Option<Result<R, String>>`.
    fn take(&mut self, slot: &mut dyn Any);
}

struct WorkItem<F, R> {
    f: Option<F>,
    result: Option<Result<R, String>>,
}

impl<F: FnOnce() -> R + Send, R: Send + 'static> Work for WorkItem<F, R> {
    fn run(&mut self) {
        if let Some(f) = self.f.take() {
            self.result = Some(catch_unwind(AssertUnwindSafe(f)).map_err(|p| panic_message(&*p)));
        }
    }

    fn take(&mut self, slot: &mut dyn Any) {
        if let Some(slot) = slot.downcast_mut() {
            *slot = self.result.take();
        }
    }
}

/// Names an outstanding call. The generation tells a reused slot from the original one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallToken {
    index: u32,
    generation: u32,
}

enum CallOutcome {
    Waiting(Option<Waker>),
    Done(Box<dyn Work>),
    Gone,
}

struct RemoteCall {
    generation: u32,
    to: ShardId,
    /// `None`: the slot is free.
    outcome: Option<CallOutcome>,
}

/// The calls of one shard that have not been collected.
#[derive(Default)]
pub(super) struct Calls {
    slots: Vec<RemoteCall>,
    free: Vec<u32>,
}

impl Calls {
    fn begin(&mut self, to: ShardId) -> CallToken {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RemoteCall { generation: 0, to, outcome: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 calls at once")
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.to = to;
        slot.outcome = Some(CallOutcome::Waiting(None));
        CallToken { index, generation: slot.generation }
    }

    fn get(&mut self, token: CallToken) -> Option<&mut CallOutcome> {
        let slot = self.slots.get_mut(token.index as usize)?;
        if slot.generation == token.generation { slot.outcome.as_mut() } else { None }
    }

    /// Frees the slot. Its content must be dropped outside of the context.
    fn end(&mut self, token: CallToken) -> Option<CallOutcome> {
        let slot = self.slots.get_mut(token.index as usize)?;
        if slot.generation != token.generation {
            return None;
        }
        let outcome = slot.outcome.take()?;
        self.free.push(token.index);
        Some(outcome)
    }
}

/// Handles a message that came out of the ring from `from`.
pub(super) fn receive(from: ShardId, message: ShardMessage) {
    match message {
        ShardMessage::Call(token, mut work) => {
            work.run();
            context::with(|context| context.links.send(from, ShardMessage::Reply(token, work)));
        }
        ShardMessage::Reply(token, work) => {
            let previous = context::with(|context| match context.calls.get(token) {
                Some(outcome) => Ok(std::mem::replace(outcome, CallOutcome::Done(work))),
                None => Err(work), // The caller has dropped its future.
            });
            if let Some(Ok(CallOutcome::Waiting(Some(waker)))) = previous {
                waker.wake();
            }
        }
    }
}

/// Fails the calls to shards that have stopped. Call only after their rings were emptied: a reply may be in there.
pub(super) fn fail_calls_to_the_gone() {
    let wakers: Vec<Option<Waker>> = context::with(|context| {
        let all = context.links.all.clone();
        let gone = |to: ShardId| all.get(to.0).is_some_and(|peer| peer.is_stopped());
        let waiting = context.calls.slots.iter_mut().filter(|call| gone(call.to));
        waiting
            .filter_map(|call| match &mut call.outcome {
                Some(outcome @ CallOutcome::Waiting(_)) => {
                    match std::mem::replace(outcome, CallOutcome::Gone) {
                        CallOutcome::Waiting(waker) => Some(waker),
                        _ => None,
                    }
                }
                _ => None,
            })
            .collect()
    })
    .unwrap_or_default();
    wakers.into_iter().flatten().for_each(Waker::wake);
}

/// The shards of the mesh that the current one belongs to, itself among them; none outside of a shard.
pub fn all_shards() -> impl Iterator<Item = ShardId> {
    let count = context::with(|context| context.links.all.len()).unwrap_or(0);
    (0..count).map(ShardId)
}

/// Why [`submit_to`] gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is no such shard.
    #[error("there is no {0} in this mesh; ask for one below its size")]
    NoSuchShard(ShardId),
    /// The shard stopped before it answered; whether the closure ran is not known.
    #[error("{0} stopped before it answered; look for its error")]
    Stopped(ShardId),
    /// The closure panicked.
    #[error("the closure submitted to {to} panicked: {message}")]
    Panicked {
        /// The shard that it ran on.
        to: ShardId,
        /// The panic's message.
        message: String,
    },
    /// Not called from a shard of a mesh, or awaited on another than the calling one.
    #[error("submit_to belongs in a task of a shard, and its future stays there")]
    NotOnShard,
}

enum Stage<R> {
    Outstanding { uid: u64, token: CallToken },
    Known(Option<Result<R, SubmitError>>),
}

/// The future of [`submit_to`]. Dropping it does not recall the closure.
#[must_use = "the closure runs anyway, but its result and its failure are lost"]
pub struct Submit<R> {
    to: ShardId,
    stage: Stage<R>,
    /// It belongs to the shard that called.
    _local: PhantomData<*const ()>,
}

impl<R> std::fmt::Debug for Submit<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submit").field("to", &self.to).finish_non_exhaustive()
    }
}

/// Runs `f` on shard `to` and brings its result back. The message leaves at once, not when first polled, so several may be
/// under way. Messages to one shard arrive in order. To the calling shard itself it is a plain call.
///
/// ```
/// use shouter::runtime::{ShardId, ShardsBuilder, SubmitError, current_shard, submit_to};
///
/// let shards = ShardsBuilder::new().start(0..2, |_| {
///     Ok::<_, SubmitError>(((), async { submit_to(ShardId(1), current_shard).await }))
/// })?;
/// assert_eq!(shards.join()?, [Some(ShardId(1)); 2]);
/// # Ok::<(), shouter::runtime::ShardError>(())
/// ```
pub fn submit_to<R, F>(to: ShardId, f: F) -> Submit<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let known = |result| Submit { to, stage: Stage::Known(Some(result)), _local: PhantomData };
    let place = context::with(|context| match context.links.peer(to) {
        None => Err(SubmitError::NoSuchShard(to)),
        Some(peer) if peer.is_stopped() => Err(SubmitError::Stopped(to)),
        Some(_) if to == context.shared.id => Ok(None),
        Some(_) => Ok(Some((context.uid, context.calls.begin(to)))),
    });
    match place {
        None => known(Err(SubmitError::NotOnShard)),
        Some(Err(error)) => known(Err(error)),
        Some(Ok(None)) => known(
            catch_unwind(AssertUnwindSafe(f))
                .map_err(|payload| SubmitError::Panicked { to, message: panic_message(&*payload) }),
        ),
        Some(Ok(Some((uid, token)))) => {
            let work = Box::new(WorkItem { f: Some(f), result: None });
            context::with(|context| context.links.send(to, ShardMessage::Call(token, work)));
            Submit { to, stage: Stage::Outstanding { uid, token }, _local: PhantomData }
        }
    }
}

impl<R> Unpin for Submit<R> {}

impl<R: 'static> Future for Submit<R> {
    type Output = Result<R, SubmitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let to = self.to;
        let (uid, token) = match &mut self.stage {
            Stage::Known(result) => {
                return Poll::Ready(result.take().unwrap_or(Err(SubmitError::NotOnShard)));
            }
            Stage::Outstanding { uid, token } => (*uid, *token),
        };
        let waker = cx.waker().clone();
        let looked = context::with_uid(uid, |context| match context.calls.get(token) {
            Some(CallOutcome::Waiting(place)) => Err(place.replace(waker)),
            _ => Ok((context.calls.end(token), waker)),
        });
        let result = match looked {
            None => Err(SubmitError::NotOnShard),
            Some(Err(_previous_waker)) => return Poll::Pending,
            Some(Ok((Some(CallOutcome::Done(mut work)), _))) => {
                let mut slot: Option<Result<R, String>> = None;
                work.take(&mut slot);
                match slot {
                    Some(result) => result.map_err(|message| SubmitError::Panicked { to, message }),
                    None => Err(SubmitError::Stopped(to)),
                }
            }
            Some(Ok(_)) => Err(SubmitError::Stopped(to)),
        };
        self.stage = Stage::Known(None);
        Poll::Ready(result)
    }
}

impl<R> Drop for Submit<R> {
    fn drop(&mut self) {
        if let Stage::Outstanding { uid, token } = self.stage {
            let outcome = context::with_uid(uid, |context| context.calls.end(token));
            drop(outcome);
        }
    }
}
