//! The queue of control messages, the eager budget, and the attached trace and recorder.

use super::api::ExecutorConfig;
use super::budget::Budget;
use super::trace::{PhaseRecord, Trace};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::memory::Span;
use crate::recorder::{Record, Recorder};
use crate::transport::{Landing, SendError, SendToken, Transport};
use core::time::Duration;
use std::collections::VecDeque;

/// A control message (one without payload) that waits to be posted.
#[derive(Debug)]
struct ControlMessage {
    to: Rank,
    header: Header,
    /// The destination of the messages that it grants, if it is a credit and the transport is one-sided.
    landing: Option<Landing>,
}

/// The control queue of an executor, and the other state that its operations share.
#[derive(Debug)]
pub(super) struct Control {
    messages: VecDeque<ControlMessage>,
    one_sided: bool,
    pub(super) budget: Budget,
    trace: Option<Box<dyn Trace>>,
    /// The current poll's time, as set by [`set_time`](super::Executor::set_time).
    now: Duration,
    recorder: Option<Recorder>,
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

    /// Posts the messages that the transport takes; whether there were any.
    pub(super) fn flush<T: Transport>(&mut self, transport: &mut T) -> bool {
        let mut worked = false;
        while let Some(ControlMessage { to, header, landing }) = self.messages.front() {
            let posted = match header.kind {
                MessageKind::Credit => transport.credit(*to, header, *landing),
                _ => transport.send(*to, header, Span::empty(), SendToken::CONTROL),
            };
            match posted {
                Ok(()) => {}
                Err(SendError::Full) => break,
                // The transport reports the loss to its owner, which decides what becomes of the group.
                Err(SendError::PeerFailed) => {
                    self.messages.pop_front();
                    continue;
                }
            }
            self.messages.pop_front();
            worked = true;
        }
        worked
    }

    /// One more message, of no payload.
    pub(super) fn push(&mut self, to: Rank, header: Header) {
        self.messages.push_back(ControlMessage { to, header, landing: None });
    }

    /// Reports the phases of operations to this trace.
    pub(super) fn attach_trace(&mut self, trace: Box<dyn Trace>) {
        self.trace = Some(trace);
    }

    /// Keeps events in this recorder.
    pub(super) fn attach_recorder(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// The time of the events from now on.
    #[inline]
    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// The current poll's time.
    pub(super) fn time(&self) -> Duration {
        self.now
    }

    /// Whether phases are reported.
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// The time, if a trace is attached.
    #[inline]
    pub(super) fn now(&self) -> Option<Duration> {
        self.trace.as_ref().map(|trace| trace.now())
    }

    /// Whether messages to this rank leave the host, and a trace is attached.
    pub(super) fn leaves_host(&self, to: Rank) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.leaves_host(to))
    }

    /// Reports a phase, if a trace is attached.
    pub(super) fn report(&mut self, record: PhaseRecord) {
        if let Some(trace) = &mut self.trace {
            trace.record(record);
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
