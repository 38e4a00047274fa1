//! The queue of control messages, the eager budget, and the attached trace and recorder.

use super::api::ExecutorConfig;
use super::budget::Budget;
use super::trace::Trace;
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::memory::Span;
use crate::recorder::{Record, Recorder};
use crate::transport::Landing;
use core::time::Duration;
use std::collections::VecDeque;

/// A control message (one without payload) that waits to be posted.
#[derive(Debug)]
pub(super) struct ControlMessage {
    pub(super) to: Rank,
    pub(super) header: Header,
    /// The destination of the messages that it grants, if it is a credit and the transport is one-sided.
    pub(super) landing: Option<Landing>,
}

/// The control queue of an executor, and what its operations share besides.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) messages: VecDeque<ControlMessage>,
    one_sided: bool,
    pub(super) budget: Budget,
    pub(super) trace: Option<Box<dyn Trace>>,
    /// The current poll's time, as set by [`set_time`](super::Executor::set_time).
    pub(super) now: Duration,
    pub(super) recorder: Option<Recorder>,
}

impl Control {
    /// How far back to look for a credit message that can be extended.
    const MERGE: usize = 16;

    pub(super) fn new(nodes: usize, config: &ExecutorConfig) -> Self {
        Self {
            messages: VecDeque::new(),
            one_sided: config.one_sided,
            budget: Budget::new(nodes, config.eager_pool_bytes),
            trace: None,
            now: Duration::ZERO,
            recorder: None,
        }
    }

    /// Keeps an event of the present poll, where there is a recorder.
    #[inline]
    pub(super) fn note(&mut self, record: Record) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(Record { at: self.now, ..record });
        }
    }

    /// Asks `to` for one more message, which goes `into` there; joins neighbours into one credit message.
    pub(super) fn grant(&mut self, to: Rank, template: &Header, round: u32, into: Option<Span>) {
        let into = into.filter(|_| self.one_sided);
        for ControlMessage { to: rank, header, landing } in self.messages.iter_mut().rev().take(Self::MERGE) {
            let same = *rank == to && header.kind == MessageKind::Credit && header.key == template.key;
            if same && header.round.checked_add(header.len) == Some(round) && joins(landing, header.len, into)
            {
                header.len += 1;
                return;
            }
        }
        let header = Header { kind: MessageKind::Credit, round, offset: 0, granule: 0, len: 1, ..*template };
        let landing = into.map(|first| Landing { first, stride: 0 });
        self.messages.push_back(ControlMessage { to, header, landing });
    }
}

/// Whether a message that goes `into` there can be one more of `count` that a landing describes, which it does then.
fn joins(landing: &mut Option<Landing>, count: u32, into: Option<Span>) -> bool {
    match (landing, into) {
        (None, None) => true,
        (Some(landing), Some(into)) => {
            let first = landing.first;
            let behind = into.as_ptr().addr().checked_sub(first.as_ptr().addr());
            let Some(behind) = behind.filter(|behind| *behind > 0) else { return false };
            let stride = if count == 1 { behind } else { landing.stride };
            let next = stride.checked_mul(count as usize) == Some(behind);
            let joins =
                next && into.len() == first.len() && into.region().as_ptr() == first.region().as_ptr();
            if joins {
                landing.stride = stride;
            }
            joins
        }
        _ => false,
    }
}
