//! What the state machines of messages and windows have in common: both post messages, and have requests that end.

use crate::executor::{AbortCause, Disposition, Progress};
use crate::grid::Rank;
use crate::header::Header;
use crate::transport::{SendToken, Transport};
use core::time::Duration;
use std::sync::Arc;

/// A request that has ended: its memory is the caller's again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended<I, O> {
    /// Which.
    pub id: I,
    /// How.
    pub result: O,
}

/// A state machine that posts messages, and whose requests end.
pub trait Machine {
    /// Names a request.
    type Id: Copy + Ord;
    /// How a request has ended.
    type Outcome;

    /// Takes a message of a kind of this machine. The payload is only borrowed.
    fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition;

    /// Nothing refers any more to a fragment that was posted with this token.
    fn on_released(&mut self, token: SendToken);

    /// Posts the messages that find room, and ends requests that are late.
    fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> Progress;

    /// Takes a request that has ended; of accesses only those that are waited for.
    fn take_ended(&mut self) -> Option<Ended<Self::Id, Self::Outcome>>;

    /// Requests that have not ended.
    fn running(&self) -> usize;

    /// Whether a poll may post something.
    fn has_work(&self) -> bool;

    /// When [`poll`](Self::poll) must be called at the latest. It may be earlier than needed.
    fn next_deadline(&self) -> Option<Duration>;

    /// A rank of those that have `gone` which a request waits for: one of any rank only where all others have gone.
    fn awaited(&self, gone: impl Fn(Rank) -> bool) -> Option<Rank>;

    /// The group ends: so does everything that has not ended, as soon as no transport refers to its memory.
    fn abort(&mut self, cause: &Arc<AbortCause>);

    /// The transport refers to no memory any more, after the group has ended.
    fn fenced(&mut self);
}
