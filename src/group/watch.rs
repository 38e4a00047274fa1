//! The control connections between the exchanges: all ranks learn of the end of a process at once.
//!
//! A kernel closes the sockets of a process that ends, however it ends. So a connection that is closed in order,
//! without a leave message of the rank before, is taken for the end of its process: rank 0 sees that of every other
//! rank, and the others see that of rank 0. Ranks that learn it otherwise (from the process of a host's other rank)
//! report it to rank 0, which reports it to all. A connection that is reset or timed out proves nothing, as firewalls
//! do that too; then heartbeats decide, as if there had been none.
//!
//! A thread of its own sleeps until a socket is readable. Exchanges go through it, so a caller that waits in an exchange returns
//! when the group ends.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::{Ending, ExchangeError, GroupEnd};
use super::link::ControlLink;
pub use super::message::{AbortText, Departure};
use super::sys::Unshared;
use super::waker::{Shared, Waker};
use crate::error::Reason;
use crate::runtime::fork_generation;

/// Events of the control connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// The process of this rank has ended.
    Lost(u32),
    /// A rank has left in good order.
    Left(Departure),
    /// A rank has given up, with its reason.
    GaveUp(AbortText),
    /// The other ranks have been sent the end given to [`Notice::ended`].
    PeersNotified,
}

/// The engine's handle to announce the end of the group.
#[derive(Clone)]
pub struct Notice(Arc<Shared>);

impl Notice {
    /// The group has ended on this rank. A [lost](Reason::Lost) rank is announced to the others; other causes reach them with the data.
    /// Callers that wait in an exchange return.
    pub fn ended(&self, end: GroupEnd) {
        if self.0.ended.set(end).is_ok() {
            self.0.wake();
        }
    }

    /// A rank gives up, for this reason: call it ahead of [`ended`](Self::ended). The others learn it from that rank
    /// and from rank 0, which sends nothing more behind the end, and may have it by shared memory before that rank's
    /// message has come.
    pub fn gave_up(&self, rank: u32, text: &str) {
        let _ = self.0.abort_text.set(AbortText { rank, text: text.into() });
    }

    /// Whether the others have been sent the end, so that they do not take the end of this process for its cause.
    pub fn peers_notified(&self) -> bool {
        self.0.notified.load(Ordering::Acquire)
    }
}

/// One exchange.
struct Request {
    tag: String,
    bytes: Vec<u8>,
    deadline: Duration,
    reply: Sender<Result<Vec<Vec<u8>>, ExchangeError>>,
}

/// The connections after set-up, and the thread that listens to them. Dropping it closes them: unless [`leave`](Self::leave) or
/// [`Notice::ended`] came before, the other ranks take that for the end of this rank's process.
pub struct Control {
    shared: Arc<Shared>,
    requests: Sender<Request>,
    thread: Option<JoinHandle<()>>,
    forks: u32,
}

impl Control {
    /// Begins to listen; `report` is called on the thread.
    ///
    /// # Errors
    /// If the system has no thread or no descriptors.
    pub fn listen(mut link: ControlLink, report: impl Fn(MemberEvent) + Send + 'static) -> io::Result<Self> {
        let (wake_tx, wake_rx) = UnixStream::pair()?;
        wake_tx.set_nonblocking(true)?;
        wake_rx.set_nonblocking(true)?;
        let no = || AtomicBool::new(false);
        let (ended, abort_text, leaving) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let shared = Arc::new(Shared { ended, abort_text, notified: no(), leaving, stop: no(), wake_tx });
        link.attach(Waker { shared: shared.clone(), wake_rx: Arc::new(wake_rx) });
        let (requests, asked) = channel();
        let thread = std::thread::Builder::new().name("shouter-control".into());
        let unshared = Unshared::new(link.sockets());
        let listener = Listener { _unshared: unshared, link, shared: shared.clone(), lost_reported: false };
        let thread = thread.spawn(move || listener.run(&asked, &report))?;
        Ok(Self { shared, requests, thread: Some(thread), forks: fork_generation() })
    }

    /// As [`ControlLink::all_gather`]; returns also when the group ends.
    ///
    /// # Errors
    /// As there, and [`ExchangeError::Ended`].
    pub fn all_gather(
        &self,
        tag: &str,
        bytes: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let ended = |ending| Err(ExchangeError::Ended { tag: tag.into(), ending });
        if fork_generation() != self.forks {
            return ended(Ending::Forked);
        }
        let (reply, answer) = channel();
        let request = Request { tag: tag.into(), bytes: bytes.to_vec(), deadline, reply };
        let result = self.requests.send(request).ok().and_then(|()| {
            self.shared.wake();
            answer.recv().ok()
        });
        match (result, self.shared.ended.get()) {
            (Some(Ok(parts)), _) => Ok(parts),
            // The reason why the group ended counts for more than that of a broken connection.
            (_, Some(end)) => ended(Ending::Group(end.clone())),
            (Some(Err(error)), None) => Err(error),
            (None, None) => ended(Ending::Unserved),
        }
    }

    /// For the engine.
    pub fn notice(&self) -> Notice {
        Notice(self.shared.clone())
    }

    /// Announces to the others that this rank leaves in good order, after it has started so many operations, all of which have ended
    /// here; the end of its process is no failure then.
    pub fn leave(&self, started: u64) {
        let _ = self.shared.leaving.set(started);
        self.shared.wake();
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if fork_generation() != self.forks {
            // The thread is the parent's, and so is the other end of the pipe.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the control connections panicked");
        }
    }
}

/// The thread's side.
struct Listener {
    /// A child that outlives this process would hide its end. Goes before the sockets are closed.
    _unshared: Option<Unshared>,
    link: ControlLink,
    shared: Arc<Shared>,
    /// The end of a rank has been reported here.
    lost_reported: bool,
}

impl Listener {
    fn run(mut self, asked: &Receiver<Request>, report: &impl Fn(MemberEvent)) {
        let mut warned = Vec::new();
        loop {
            self.pass_on(report);
            for (rank, why) in
                self.link.broken().filter(|(rank, _)| !warned.contains(rank)).collect::<Vec<_>>()
            {
                tracing::warn!(
                    rank,
                    why,
                    "the control connection is gone; whether its process lives, heartbeats tell from now on"
                );
                warned.push(rank);
            }
            if self.shared.stop.load(Ordering::Acquire) {
                // The notice that this rank leaves may have been given just before.
                return self.pass_on(report);
            }
            while let Ok(Request { tag, bytes, deadline, reply }) = asked.try_recv() {
                let result = self.link.all_gather(&tag, &bytes, deadline);
                if result.is_err() {
                    self.pass_on(report);
                }
                // The requesting thread may have been cancelled by a panic.
                let _ = reply.send(result);
            }
            if let Err(error) = self.link.listen() {
                tracing::error!(%error, "the control connections cannot be waited for");
                return;
            }
        }
    }

    /// Reports the messages of the others to this process, and sends them its announcements.
    fn pass_on(&mut self, report: &impl Fn(MemberEvent)) {
        let leaving = self.shared.leaving.get().copied();
        for text in self.link.take_abort_texts() {
            report(MemberEvent::GaveUp(text));
        }
        for departure in self.link.take_left() {
            report(MemberEvent::Left(departure));
        }
        if !self.lost_reported
            && leaving.is_none()
            && let Some(rank) = self.link.lost()
        {
            self.lost_reported = true;
            self.link.announce_lost(rank);
            report(MemberEvent::Lost(rank));
        }
        let ended = self.shared.ended.get();
        if (leaving.is_some() || ended.is_some()) && !self.shared.notified.load(Ordering::Relaxed) {
            if let Some(end) = ended.filter(|end| end.reason == Reason::Lost) {
                self.link.announce_lost(end.rank);
            }
            if let Some(text) = self.shared.abort_text.get() {
                self.link.send_abort_text(text);
            }
            self.link.leave(leaving.filter(|_| ended.is_none()));
            self.shared.notified.store(true, Ordering::Release);
            report(MemberEvent::PeersNotified);
        }
    }
}

#[cfg(test)]
mod tests;
