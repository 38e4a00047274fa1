//! Pairwise communication of a group, besides its collectives: messages between two of its ranks, and accesses of one to a window of another. The
//! group of all ranks has it, and so has each group of some of them.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, Disposition};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::machine::Machine;
use shouter_reducer::p2p::{Messenger, MessengerConfig};
use shouter_reducer::transport::{SendToken, Transport};
use shouter_reducer::windows::{Windows, WindowsConfig};

use super::requests::Requests;

/// The messages and the windows of one rank in one group.
pub(super) struct Pairwise {
    pub(super) messages: Requests<Messenger>,
    pub(super) windows: Requests<Windows>,
}

impl Pairwise {
    /// Those of one of `ranks` ranks, in the group that has the number `group` in this process. An engine holds them, and drops its
    /// channels before them.
    #[allow(unsafe_code)]
    pub(super) fn new(group: u32, rank: Rank, ranks: u32) -> Self {
        let messages = MessengerConfig { group, ..MessengerConfig::new(rank, ranks) };
        let windows = WindowsConfig { group, ..WindowsConfig::new(rank, ranks) };
        // SAFETY: it is in an engine, behind the channels, which alone are given what these post.
        let (messages, windows) = unsafe { (Messenger::new(messages), Windows::new(windows)) };
        Self { messages: Requests::new(messages), windows: Requests::new(windows) }
    }

    /// Whether a message is for it, and not for the executor.
    #[inline]
    pub(super) fn takes(header: &Header) -> bool {
        header.kind.is_p2p() || header.kind.is_window()
    }

    /// Whether it has posted the message with this token, and not the executor.
    #[inline]
    pub(super) fn has_posted(token: SendToken) -> bool {
        token.is_p2p() || token.is_window()
    }

    /// Takes a message that it [takes](Self::takes).
    #[inline]
    pub(super) fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        match header.kind.is_p2p() {
            true => self.messages.on_message(header, payload),
            false => self.windows.on_message(header, payload),
        }
    }

    /// Nothing refers any more to the message that it [has posted](Self::has_posted) with this token.
    #[inline]
    pub(super) fn on_released(&mut self, token: SendToken) {
        match token.is_p2p() {
            true => self.messages.on_released(token),
            false => self.windows.on_released(token),
        }
    }

    /// Posts messages that find room, and notes ends; whether there was anything.
    #[inline]
    pub(super) fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> bool {
        self.messages.poll(now, transport) | self.windows.poll(now, transport)
    }

    /// Whether something was started that has not ended, or a callback was not called yet.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.messages.are_running() || self.windows.are_running()
    }

    /// Whether something was started that has not ended.
    #[inline]
    pub(super) fn has_unended(&self) -> bool {
        self.messages.machine.running() != 0 || self.windows.machine.running() != 0
    }

    /// Whether something waits for one of these ranks.
    #[cold]
    pub(super) fn waits_for(&self, ranks: impl Fn(Rank) -> bool + Copy) -> bool {
        self.messages.wait_for(ranks) || self.windows.wait_for(ranks)
    }

    /// A rank among these that something waits for.
    #[cold]
    pub(super) fn awaited(&self, among: impl Fn(Rank) -> bool + Copy) -> Option<Rank> {
        self.messages.machine.awaited(among).or_else(|| self.windows.machine.awaited(among))
    }

    /// Whether there is something to post.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.messages.has_work() || self.windows.has_work()
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        [self.messages.next_deadline(), self.windows.next_deadline()].into_iter().flatten().min()
    }

    /// A rank has left in good order.
    pub(super) fn left(&mut self, rank: Rank) {
        self.messages.left(rank);
        self.windows.left(rank);
    }

    /// A rank that has left, and that something waits for in vain; see [`Requests::awaited_departed`].
    #[cold]
    pub(super) fn awaited_departed(
        &mut self,
        now: Instant,
        behind: impl Fn(Rank, Rank) -> bool + Copy,
    ) -> Option<Rank> {
        self.messages.awaited_departed(now, behind).or_else(|| self.windows.awaited_departed(now, behind))
    }

    /// The ranks that there were messages or accesses with.
    pub(super) fn known(&self) -> impl Iterator<Item = Rank> {
        self.messages.machine.known().chain(self.windows.machine.known())
    }

    /// The group ends: sends, receives and accesses that have not ended do so when nothing refers to their memory.
    pub(super) fn abort(&mut self, cause: &Arc<AbortCause>) {
        self.messages.abort(cause);
        self.windows.abort(cause);
    }

    /// No channel refers to any memory any more.
    pub(super) fn fenced(&mut self) {
        self.messages.fenced();
        self.windows.fenced();
    }

    /// Whether no channel refers to memory of messages and windows, that of copies and answers included.
    pub(super) fn is_quiesced(&self) -> bool {
        self.messages.machine.is_quiesced() && self.windows.machine.is_quiesced()
    }
}
