//! Messages that are sent from memory which goes with them.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::message::Envelope;
use crate::communicator::{Exchange, Group, Work};

/// A send with its bytes.
pub(super) struct OwnedSend {
    work: Work,
    /// Present until it is dropped.
    envelope: Option<Envelope>,
    /// The operation refers to its memory while the group lives: both stay until it has ended.
    group: Arc<Group>,
}

impl OwnedSend {
    pub(super) fn start(
        group: &Arc<Group>,
        envelope: Envelope,
        to: u32,
        tag: u32,
    ) -> Result<Self, crate::Error> {
        // SAFETY: the bytes are in memory of `envelope`, which does not move with it, has no other reference, and is not touched before the
        // operation has ended: `drop` sees to that.
        let work = unsafe { group.start_message(Exchange::send(envelope.bytes(), to, tag)) }?;
        Ok(Self { work, envelope: Some(envelope), group: group.clone() })
    }

    pub(super) fn work(&self) -> &Work {
        &self.work
    }
}

impl Drop for OwnedSend {
    fn drop(&mut self) {
        let kept = (self.envelope.take(), self.group.clone());
        match self.work.test() {
            // Nothing says whether it is still in use.
            Some(Err(crate::Error::Internal(_))) => std::mem::forget(kept),
            Some(_) => {}
            None => {
                let kept = std::mem::ManuallyDrop::new(kept);
                let end = move |_| drop(std::mem::ManuallyDrop::into_inner(kept));
                // Where there can be no callback, the memory stays for ever.
                let _ = self.work.on_done(end);
            }
        }
    }
}
