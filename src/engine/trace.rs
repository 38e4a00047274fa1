//! The engine's events for the timeline and the flight recorder: phases of operations, and network faults.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Executor, Phase, PhaseRecord, Trace};
use shouter_reducer::grid::Rank;
use shouter_reducer::recorder::{Record, RecordKind};
use shouter_reducer::transport::SendToken;

use crate::channel::up::UpChannels;
use crate::observe::{Category, Timeline, TraceEvent};
use crate::runtime::Clock;

/// Between two looks at what a channel has counted: they cost a look at each peer.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Puts the phases of operations on the timeline.
#[derive(Debug)]
struct Phases(Arc<Timeline>);

impl Trace for Phases {
    fn now(&self) -> Duration {
        super::executor_time(Clock.now())
    }

    fn record(&mut self, passed: PhaseRecord) {
        let (name, category) = match passed.phase {
            Phase::Credit => ("wait for credit", Category::Network),
            Phase::Send => ("send", Category::Network),
            Phase::Receive => ("receive", Category::Network),
            Phase::Fold => ("fold", Category::Kernel),
            Phase::Copy => ("copy", Category::Kernel),
        };
        self.0.engine(TraceEvent {
            name,
            category,
            start: Instant::ZERO + passed.start,
            duration_ns: Some(passed.end.saturating_sub(passed.start).as_nanos() as u64),
            tensor: Some(passed.name),
            step: passed.step,
            peer: passed.peer.map(|rank| rank.0),
            bytes: Some(passed.bytes as u64),
            count: None,
        });
    }
}

/// What the channel to other hosts has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    lost: u64,
    resent: u64,
    damaged: u64,
    reconnected: u64,
}

/// Looks at a channel's counts: after each turn for a timeline, else now and then.
#[derive(Debug)]
pub(super) struct Watch {
    timeline: Option<Arc<Timeline>>,
    counted: Counted,
    next: Instant,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self { timeline: None, counted: Counted::default(), next: now }
    }

    /// Puts what happens on the timeline, too, and makes the executor report its phases.
    pub(super) fn draw(&mut self, timeline: Arc<Timeline>, executor: &mut Executor) {
        executor.attach_trace(Box::new(Phases(timeline.clone())));
        self.timeline = Some(timeline);
    }

    /// Keeps what has been counted since the last look.
    #[inline]
    pub(super) fn look(&mut self, now: Instant, up: &UpChannels, executor: &mut Executor) {
        if now < self.next && self.timeline.is_none() {
            return;
        }
        self.next = now + LOOK_EVERY;
        let counted = Counted {
            lost: up.lost(),
            resent: up.resent(),
            damaged: up.crc_dropped(),
            reconnected: up.reconnected(),
        };
        if counted != self.counted {
            let before = std::mem::replace(&mut self.counted, counted);
            self.record_counts(now, before, up.last_resent(), executor);
        }
    }

    #[cold]
    fn record_counts(
        &self,
        now: Instant,
        before: Counted,
        last: Option<(Rank, SendToken)>,
        executor: &mut Executor,
    ) {
        let counted = self.counted;
        let (peer, token) = last.unzip();
        let (tensor, step) = executor.on_the_wire(token.filter(|token| token.owner() == 0)).unzip();
        let kinds = [
            (RecordKind::Lost, counted.lost, before.lost, true),
            (RecordKind::Resent, counted.resent, before.resent, true),
            (RecordKind::Damaged, counted.damaged, before.damaged, false),
            (RecordKind::Reconnected, counted.reconnected, before.reconnected, false),
        ];
        for (what, count, before, ours) in kinds {
            // A connection that ends may take some of its count with it.
            let value = count.saturating_sub(before);
            if value == 0 {
                continue;
            }
            let rank = peer.filter(|_| ours);
            executor.note(Record { rank, value, ..Record::of(what) });
            self.happened(TraceEvent {
                name: what.name(),
                start: now,
                tensor: tensor.clone().filter(|_| ours),
                step: step.unwrap_or(0),
                peer: rank.map(|rank| rank.0),
                count: Some(value),
                ..TraceEvent::default()
            });
        }
    }

    /// A leader was given up.
    pub(super) fn lost(&self, now: Instant, peer: Rank, executor: &mut Executor) {
        let what = RecordKind::PeerLost;
        executor.note(Record { rank: Some(peer), ..Record::of(what) });
        self.happened(TraceEvent {
            name: what.name(),
            start: now,
            peer: Some(peer.0),
            ..TraceEvent::default()
        });
    }

    fn happened(&self, event: TraceEvent) {
        if let Some(timeline) = &self.timeline {
            timeline.engine(TraceEvent { category: Category::Network, ..event });
        }
    }
}
