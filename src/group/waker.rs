//! What wakes the thread that serves the control connections, and the state that it reads while it waits.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::error::{Ending, GroupEnd};
use super::message::AbortText;

/// What the thread that serves the connections shares with the callers.
pub(super) struct Shared {
    pub(super) ended: OnceLock<GroupEnd>,
    /// Why a rank has given up.
    pub(super) abort_text: OnceLock<AbortText>,
    /// The others have been sent the end, or that this rank leaves.
    pub(super) notified: AtomicBool,
    /// This rank leaves, after so many operations.
    pub(super) leaving: OnceLock<u64>,
    pub(super) stop: AtomicBool,
    pub(super) wake_tx: UnixStream,
}

impl Shared {
    pub(super) fn wake(&self) {
        // A full buffer wakes already.
        let _ = (&self.wake_tx).write(&[1]);
    }
}

/// Wakes the thread, and holds the state it reads while it waits.
#[derive(Clone)]
pub(super) struct Waker {
    pub(super) shared: Arc<Shared>,
    pub(super) wake_rx: Arc<UnixStream>,
}

impl Waker {
    /// Readable once the thread is woken.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake_rx.as_fd()
    }

    /// Empties the pipe until the next wake.
    pub(super) fn drain(&self) {
        let mut rung = [0; 64];
        while matches!((&*self.wake_rx).read(&mut rung), Ok(read) if read == rung.len()) {}
    }

    /// Why an exchange cannot go on.
    pub(super) fn ended(&self) -> Option<Ending> {
        match self.shared.ended.get() {
            Some(end) => Some(Ending::Group(end.clone())),
            None if self.shared.stop.load(Ordering::Acquire) => Some(Ending::Leaving),
            None => None,
        }
    }
}
