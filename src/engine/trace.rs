//! The engine's events for the timeline and the flight recorder: phases of operations, and network faults.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Executor, Phase, PhaseRecord, Trace};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::recorder::{Record, RecordKind};
use shouter_reducer::transport::SendToken;

use super::members::Members;
use crate::channel::Links;
use crate::channel::up::UpChannels;
use crate::observe::{Category, Row, Timeline, TraceEvent};
use crate::runtime::Clock;

/// Between two looks at what a channel has counted: they cost a look at each peer.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Between two warnings of links: one may come up and go down all the time.
const TELL_LINKS_EVERY: Duration = Duration::from_secs(10);

/// What to do about a link that is down.
pub(super) const LINK_REMEDY: &str =
    "look at the cable and the switch, or, for an embedded link, at the process at the other end";

/// Warns of links that have gone down, or have come up.
#[cold]
fn report_links(before: Links, now: Links, ports_down: Option<String>) {
    match ports_down {
        Some(ports) => tracing::warn!(ports, losses = now.losses, "a port's link is down: {LINK_REMEDY}"),
        None if before.down == 0 => {
            tracing::warn!(losses = now.losses, "a port's link was down for a moment: {LINK_REMEDY}");
        }
        None => tracing::warn!(losses = now.losses, "the links of all ports are up again"),
    }
}

/// Puts the phases of a group's operations on the timeline.
#[derive(Debug)]
pub(super) struct Phases {
    timeline: Arc<Timeline>,
    /// Which rank of the job is on which host.
    job: Grid,
    /// This rank of the job.
    own: Rank,
    /// The members of the group, where that is not all ranks.
    members: Option<Arc<Members>>,
}

impl Phases {
    /// The phases of a group of some ranks.
    pub(super) fn of_some(timeline: Arc<Timeline>, job: Grid, members: Arc<Members>) -> Self {
        let own = members.own_in_job();
        Self { timeline, job, own, members: Some(members) }
    }

    /// The rank of the job that the group knows by this number.
    fn in_job(&self, rank: Rank) -> Rank {
        self.members.as_ref().map_or(rank, |members| members.named(rank).0)
    }
}

impl Trace for Phases {
    fn now(&self) -> Duration {
        super::executor_time(Clock.now())
    }

    fn leaves_host(&self, peer: Rank) -> bool {
        self.job.node_of(self.in_job(peer)) != self.job.node_of(self.own)
    }

    fn record(&mut self, passed: PhaseRecord) {
        let operation = passed.collective.name();
        let (row, name, category) = match passed.phase {
            Phase::Queue => (Row::Queue, operation, Category::Operation),
            Phase::Wire => (Row::Wire, operation, Category::Network),
            Phase::Fold => (Row::Fold, operation, Category::Kernel),
            Phase::Credit => (Row::Engine, "wait for credit", Category::Network),
            Phase::Send => (Row::Engine, "send", Category::Network),
            Phase::Receive => (Row::Engine, "receive", Category::Network),
            Phase::Copy => (Row::Engine, "copy", Category::Kernel),
        };
        let bytes = passed.phase != Phase::Queue;
        let event = TraceEvent {
            name,
            category,
            start: Instant::ZERO + passed.start,
            duration_ns: Some(passed.end.saturating_sub(passed.start).as_nanos() as u64),
            tensor: Some(passed.name),
            step: passed.step,
            peer: passed.peer.map(|rank| self.in_job(rank).0),
            bytes: bytes.then_some(passed.bytes as u64),
            count: None,
            error: None,
        };
        self.timeline.record(row, event);
    }
}

/// The counts of the channel to other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    lost: u64,
    resent: u64,
    damaged: u64,
    reconnected: u64,
    links: Links,
}

/// Looks at a channel's counts: after each poll for a timeline, else now and then.
#[derive(Debug)]
pub(super) struct Watch {
    timeline: Option<Arc<Timeline>>,
    counted: Counted,
    next: Instant,
    /// Another engine of this rank, whose channels have the same ports, warns of their links.
    is_silent_on_links: bool,
    /// The links as they were told last, and when they may be told again.
    told: Links,
    tell_links: Instant,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            timeline: None,
            counted: Counted::default(),
            next: now,
            is_silent_on_links: false,
            told: Links::default(),
            tell_links: now,
        }
    }

    /// Puts counts on the timeline, too, and makes the executor report its phases.
    pub(super) fn draw(&mut self, timeline: Arc<Timeline>, executor: &mut Executor) {
        let (job, own) = (executor.config().grid, executor.config().rank);
        let phases = Phases { timeline: timeline.clone(), job, own, members: None };
        executor.attach_trace(Box::new(phases));
        self.timeline = Some(timeline);
    }

    /// Where that is put, if anywhere.
    pub(super) fn timeline(&self) -> Option<&Arc<Timeline>> {
        self.timeline.as_ref()
    }

    /// From now on it does not warn of links.
    pub(super) fn leave_links_to_another(&mut self) {
        self.is_silent_on_links = true;
    }

    /// Keeps the counts since the last look. While ranks are `departing`, the processes at the other ends of embedded links may go.
    #[inline]
    pub(super) fn look(&mut self, now: Instant, up: &UpChannels, executor: &mut Executor, departing: bool) {
        if now < self.next && self.timeline.is_none() {
            return;
        }
        self.next = now + LOOK_EVERY;
        let counted = Counted {
            lost: up.lost(),
            resent: up.resent(),
            damaged: up.crc_dropped(),
            reconnected: up.reconnected(),
            links: up.links(),
        };
        if counted != self.counted {
            let before = std::mem::replace(&mut self.counted, counted);
            self.record_counts(now, before, up.last_resent(), executor);
        }
        let links = self.counted.links;
        if links != self.told && now >= self.tell_links && !departing && !self.is_silent_on_links {
            report_links(self.told, links, up.ports_down());
            self.told = links;
            self.tell_links = now + TELL_LINKS_EVERY;
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
            (RecordKind::LinkLost, counted.links.losses, before.links.losses, false),
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
            timeline.record(Row::Engine, TraceEvent { category: Category::Network, ..event });
        }
    }
}
