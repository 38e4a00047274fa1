//! The receiving side: matches a message to its operation and step, and reduces or writes its bytes.

use super::Executor;
use super::api::{AbortReason, Disposition, Refusal};
use super::control::Control;
use super::op::{FragmentState, Op, OpState};
use super::park::{ParkClass, Payload};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::memory::{self, Span};
use crate::recorder::{Record, RecordKind};
use crate::schedule::{Action, StepId};

/// The result of delivering a message to an operation.
enum DeliveryOutcome {
    Consumed,
    Duplicate,
    /// The step is not ready, or the steps are not chosen.
    Early,
    Differs,
    Malformed,
}

impl Executor {
    /// Takes a message of any kind. The payload is only borrowed: it is reduced, placed or copied before the call
    /// returns.
    pub fn on_fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        self.on_message(header, Payload::Bytes(payload))
    }

    /// Takes a fragment whose bytes the peer has written to where they belong, the [`landing`](Self::landing), and whose
    /// CRC was found right there.
    pub fn on_placed(&mut self, header: &Header) -> Disposition {
        if header.kind != MessageKind::Data || header.len == 0 {
            return self.malformed();
        }
        self.on_message(header, Payload::Placed)
    }

    /// The destination of a fragment that is only placed; `None` if it is no such fragment, or its message is
    /// complete, or its operation has ended. The range holds the fragment only once the peer has reported it.
    pub fn landing(&self, header: &Header) -> Option<Span> {
        let op = self.ring.op(header.key.seq);
        let ours = op.template();
        let same = (header.kind, header.key, header.identity, header.shape)
            == (ours.kind, ours.key, ours.identity, ours.shape);
        if self.ended.is_over() || op.state() != OpState::Running || op.is_undecided() || !same {
            return None;
        }
        let schedule = op.schedule()?;
        let StepId(index) = schedule.receive(header.src, header.round)?;
        if op.steps.of(index)?.done {
            return None;
        }
        let step = schedule.steps.get(index as usize)?;
        let Action::Receive { into, len, .. } = step.action else { return None };
        let whole = op.buffers.landing(into, step.chunk, len)?;
        whole.part(usize::try_from(header.offset).ok()?, header.len as usize)
    }

    fn on_message(&mut self, header: &Header, payload: Payload<'_>) -> Disposition {
        if let Some(why) = Refusal::of_key(&header.key, self.config.group, self.config.epoch) {
            return Disposition::Refused(why);
        }
        let grid = self.config.grid;
        if !grid.contains(header.src) || header.src == self.config.rank {
            return self.malformed();
        }
        if header.kind == MessageKind::Vote && grid.is_leader(header.src) {
            self.on_vote(header);
            return Disposition::Consumed;
        }
        if self.ended.is_over() {
            return Disposition::Refused(Refusal::Aborted);
        }
        if header.kind == MessageKind::Abort {
            let culprit = Rank(header.round);
            if !grid.contains(culprit) {
                return self.malformed();
            }
            let value = header.len.into();
            self.control.note(Record {
                rank: Some(header.src),
                value,
                ..Record::of(RecordKind::AbortReceived)
            });
            match AbortReason::from_code(header.len) {
                AbortReason::Diverged(_) => self.diverge(header.key.seq, culprit),
                AbortReason::GaveUp(_) if self.config.group == 0 => self.ended.on_gave_up(culprit),
                why => self.abort(culprit, why),
            }
            return Disposition::Consumed;
        }
        if !grid.is_leader(header.src) || matches!(header.kind, MessageKind::Relay | MessageKind::Relayed) {
            return self.malformed();
        }
        if header.kind == MessageKind::Floor {
            return self.on_floor(header);
        }
        self.control.budget.on_message_from(grid.node_of(header.src));
        let seq = header.key.seq;
        if self.agreement.is_disputed(seq) {
            return Disposition::Refused(Refusal::Mismatch);
        }
        if seq >= self.ring.next_seq() {
            if self.ring.is_beyond_reach(seq) {
                return self.not_ready();
            }
            return self.park(header, payload);
        }
        if !self.ring.op(seq).runs(seq) {
            // This rank may have completed an operation in whose place the sender runs another one.
            if self.own_view(seq).is_some_and(|own| own != header.view()) {
                self.differs(header);
                return Disposition::Refused(Refusal::Mismatch);
            }
            self.counters.duplicates += 1;
            return Disposition::Consumed;
        }
        let (outcome, is_done) = self.deliver(header, payload);
        let disposition = match outcome {
            DeliveryOutcome::Consumed => Disposition::Consumed,
            DeliveryOutcome::Duplicate => {
                self.counters.duplicates += 1;
                Disposition::Consumed
            }
            DeliveryOutcome::Early => self.park(header, payload),
            DeliveryOutcome::Differs => {
                self.differs(header);
                Disposition::Refused(Refusal::Mismatch)
            }
            DeliveryOutcome::Malformed => self.malformed(),
        };
        if is_done {
            self.succeed(seq);
        }
        disposition
    }

    fn malformed(&mut self) -> Disposition {
        self.counters.malformed += 1;
        Disposition::Refused(Refusal::Malformed)
    }

    fn not_ready(&mut self) -> Disposition {
        self.counters.not_ready += 1;
        Disposition::Refused(Refusal::NotReady)
    }

    fn park(&mut self, header: &Header, payload: Payload<'_>) -> Disposition {
        if header.kind == MessageKind::Data && !payload.fits(header) {
            return self.malformed();
        }
        if self.ring.op(header.key.seq).early.has(header) {
            self.counters.duplicates += 1;
            return Disposition::Consumed;
        }
        let node = self.config.grid.node_of(header.src);
        let bytes = header.shape.count.saturating_mul(header.shape.dtype.size() as u64);
        let class = match header.kind {
            MessageKind::Data if bytes <= self.config.eager_bytes as u64 => ParkClass::Eager,
            MessageKind::Data => ParkClass::Granted,
            _ => ParkClass::Control,
        };
        match self.parking.park((node, class), header, payload) {
            Some(parked) => {
                self.ring.edit(header.key.seq, |op| op.early.keep(parked));
                self.counters.parked += 1;
                Disposition::Consumed
            }
            None => self.not_ready(),
        }
    }

    /// An operation has ended: messages that are parked for it can only be repetitions.
    pub(super) fn drop_parked(&mut self, seq: u64) {
        while let Some(parked) = self.ring.edit(seq, |op| op.early.take_of(seq)) {
            self.parking.release(self.config.grid.node_of(parked.header.src), parked);
        }
    }

    /// Delivers again the parked messages that an operation's start, or a ready step, may have made acceptable.
    pub(super) fn replay(&mut self, seq: u64) {
        self.ring.edit(seq, |op| op.early.looked_at());
        let mut index = 0;
        while let Some(of) = self.ring.op(seq).early.seq_at(index) {
            if !self.ring.op(seq).runs(of) {
                index += 1;
                continue;
            }
            let parked = self.ring.edit(seq, |op| op.early.take(index));
            let (outcome, _) = self.deliver(&parked.header, parked.payload());
            match outcome {
                DeliveryOutcome::Consumed => {}
                DeliveryOutcome::Duplicate => self.counters.duplicates += 1,
                DeliveryOutcome::Early => {
                    self.ring.edit(seq, |op| op.early.put_back(index, parked));
                    index += 1;
                    continue;
                }
                DeliveryOutcome::Differs => self.differs(&parked.header),
                DeliveryOutcome::Malformed => self.counters.malformed += 1,
            }
            let node = self.config.grid.node_of(parked.header.src);
            self.parking.release(node, parked);
        }
    }

    /// Delivers a message to its operation, which runs; whether all of its steps are done then.
    #[inline]
    fn deliver(&mut self, header: &Header, payload: Payload<'_>) -> (DeliveryOutcome, bool) {
        let (kernels, control, counters) = (self.config.kernels, &mut self.control, &mut self.counters);
        self.ring.edit(header.key.seq, |op| {
            if header.identity != op.template().identity || header.shape != op.template().shape {
                return (DeliveryOutcome::Differs, false);
            }
            if op.is_undecided() {
                return (DeliveryOutcome::Early, false);
            }
            let outcome = match header.kind {
                MessageKind::Data => {
                    let outcome = data(op, kernels, header, payload, control);
                    if let (DeliveryOutcome::Consumed, step) = outcome {
                        counters.fragments += 1;
                        if let Some(step) = step {
                            op.done(step, control);
                        }
                    }
                    outcome.0
                }
                MessageKind::Credit => credit(op, header, control),
                _ => DeliveryOutcome::Malformed,
            };
            (outcome, op.steps.are_done())
        })
    }
}

/// Marks the messages that the receiver has granted.
fn credit(op: &mut Op, header: &Header, control: &mut Control) -> DeliveryOutcome {
    let Some(schedule) = op.schedule().cloned() else { return DeliveryOutcome::Duplicate };
    for round in header.round..header.round.saturating_add(header.len) {
        let Some(StepId(step)) = schedule.send(header.src, round) else { return DeliveryOutcome::Malformed };
        op.credited(&schedule, step, control);
    }
    DeliveryOutcome::Consumed
}

/// Reduces or places one fragment; with `Consumed`, the step that it was the last one of.
#[inline]
fn data(
    op: &mut Op,
    kernels: crate::kernel::Kernels,
    header: &Header,
    payload: Payload<'_>,
    control: &mut Control,
) -> (DeliveryOutcome, Option<u32>) {
    let Some(schedule) = op.schedule() else { return (DeliveryOutcome::Duplicate, None) };
    let Some(StepId(step)) = schedule.receive(header.src, header.round) else {
        return (DeliveryOutcome::Malformed, None);
    };
    let plan = &schedule.steps[step as usize];
    let (into, total, reduce) = match plan.action {
        Action::Receive { into, len, .. } => (into, len, false),
        Action::ReceiveReduce { into, len, .. } => (into, len, true),
        _ => return (DeliveryOutcome::Malformed, None),
    };
    // A fragment lies inside its message, and is full unless it is the last.
    let rest = (total as u64).checked_sub(header.offset);
    let expected = rest.map(|rest| rest.min(u64::from(header.granule)));
    let fits = expected == Some(u64::from(header.len)) && payload.fits(header);
    if !fits || (header.len == 0 && total > 0) {
        return (DeliveryOutcome::Malformed, None);
    }
    let chunk = plan.chunk;
    let new = match op.steps.expects(step, total, header) {
        FragmentState::New(new) => new,
        FragmentState::Duplicate => return (DeliveryOutcome::Duplicate, None),
        FragmentState::Early => return (DeliveryOutcome::Early, None),
        FragmentState::Malformed => return (DeliveryOutcome::Malformed, None),
    };
    let Some((region, base)) = op.buffers.resolve(into, chunk) else {
        return (DeliveryOutcome::Malformed, None);
    };
    let place = (region, base + header.offset as usize);
    let begin = control.now();
    let used = match payload {
        Payload::Bytes(bytes) if reduce => {
            memory::accumulate(kernels, op.dtype(), op.reduction(), place, bytes)
        }
        Payload::Bytes(bytes) => memory::write(place, bytes),
        Payload::Placed => (!reduce).then_some(()),
    };
    if used.is_none() {
        return (DeliveryOutcome::Malformed, None);
    }
    let last = op.steps.received(step, new, header.len, total);
    if new.is_first {
        let (rank, seq, bytes) = (Some(header.src), header.key.seq, total as u64);
        control.note(Record { rank, seq, bytes, ..Record::of(RecordKind::Received) });
    }
    if begin.is_some() {
        op.came(step, begin, (new.is_first, reduce, last), control);
    }
    (DeliveryOutcome::Consumed, last.then_some(step))
}
