//! What the engine writes to the timeline: what operations are made of, and what went wrong on the wire.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Executor, Passed, Phase, Trace};
use shouter_reducer::grid::Rank;

use crate::channel::up::UpChannels;
use crate::observe::{Category, Event, Timeline};
use crate::runtime::Clock;

/// Puts the phases of operations on the timeline.
#[derive(Debug)]
struct Phases(Arc<Timeline>);

impl Trace for Phases {
    fn now(&self) -> Duration {
        super::executor_time(Clock.now())
    }

    fn passed(&mut self, passed: Passed) {
        let (name, category) = match passed.phase {
            Phase::Credit => ("wait for credit", Category::Network),
            Phase::Send => ("send", Category::Network),
            Phase::Receive => ("receive", Category::Network),
            Phase::Fold => ("fold", Category::Kernel),
            Phase::Copy => ("copy", Category::Kernel),
        };
        self.0.engine(Event {
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
}

/// Looks at a channel's counts after each turn.
#[derive(Debug)]
pub(super) struct Watch {
    timeline: Arc<Timeline>,
    counted: Counted,
}

impl Watch {
    /// Makes the executor tell its phases, too.
    pub(super) fn new(timeline: Arc<Timeline>, executor: &mut Executor) -> Self {
        executor.attach_trace(Box::new(Phases(timeline.clone())));
        Self { timeline, counted: Counted::default() }
    }

    /// Puts on the timeline what has been counted since the last look.
    pub(super) fn look(&mut self, now: Instant, up: &UpChannels, executor: &Executor) {
        let counted = Counted { lost: up.lost(), resent: up.resent(), damaged: up.crc_dropped() };
        let before = std::mem::replace(&mut self.counted, counted);
        if counted == before {
            return;
        }
        let last = up.last_resent();
        let (peer, token) = last.unzip();
        let about = executor.on_the_wire(token);
        let (tensor, step) = about.unzip();
        let kinds = [
            ("lost", counted.lost, before.lost, true),
            ("resend", counted.resent, before.resent, true),
            ("damaged", counted.damaged, before.damaged, false),
        ];
        for (name, count, before, ours) in kinds {
            // A connection that ends may take some of its count with it.
            let count = count.saturating_sub(before);
            if count > 0 {
                self.timeline.engine(Event {
                    name,
                    category: Category::Network,
                    start: now,
                    tensor: tensor.clone().filter(|_| ours),
                    step: step.unwrap_or(0),
                    peer: peer.map(|rank: Rank| rank.0).filter(|_| ours),
                    count: Some(count),
                    ..Event::default()
                });
            }
        }
    }

    /// A leader was given up.
    pub(super) fn lost(&self, now: Instant, peer: Rank) {
        let category = Category::Network;
        self.timeline.engine(Event {
            name: "peer lost",
            category,
            start: now,
            peer: Some(peer.0),
            ..Event::default()
        });
    }
}
