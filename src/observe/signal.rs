//! A dump when a signal comes.
//!
//! The handler is signal-hook's: it notes the signal, calls the handler that was there before, and wakes a thread that waits for
//! nothing else. So a dump is written even while the engine hangs.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use signal_hook::iterator::{Handle, Signals};

use super::flight::Flight;
use crate::log;
use crate::runtime::fork_generation;

/// Writes a dump for each signal that comes while this lives.
pub(crate) struct OnSignal {
    forks: u32,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl OnSignal {
    /// Listens for the signal with this number and name.
    pub(crate) fn listen((signal, name): (c_int, &'static str), flight: Arc<Flight>) -> io::Result<Self> {
        let mut signals = Signals::new([signal])?;
        let handle = signals.handle();
        let body = move || {
            for _ in signals.forever() {
                match flight.dump(&format!("the signal {name} came")) {
                    Ok(path) => tracing::warn!(?path, "the last events of this rank were written"),
                    Err(why) => tracing::warn!(%why, "the last events of this rank could not be written"),
                }
            }
        };
        Ok(Self { forks: fork_generation(), handle, thread: Some(log::spawn("shouter-dump", body)?) })
    }
}

impl Drop for OnSignal {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().filter(|_| fork_generation() == self.forks) else {
            // The thread is the parent's.
            return;
        };
        self.handle.close();
        // It has no panic of its own to report.
        let _ = thread.join();
    }
}
