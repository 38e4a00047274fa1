//! What was going on: the last operations and notable events, kept for the moment when something fails.
//!
//! As on an aeroplane, the recorder always runs, keeps little, and is read after the accident. It answers the first
//! questions of whoever looks at a job that hung: which operation, how far had it come, and whom did it wait for.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use shouter_netstack::time::Instant;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OpState {
    /// Handed over by the caller.
    Posted,
    /// Its schedule runs.
    Running,
    /// The result is in place, the buffers are still in use.
    Ready,
    /// Done: the caller has its buffers back.
    Free,
    /// It failed.
    Failed,
}

impl fmt::Display for OpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Posted => "posted",
            Self::Running => "running",
            Self::Ready => "ready",
            Self::Free => "free",
            Self::Failed => "FAILED",
        })
    }
}

/// One operation as the recorder remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// What it is: `allreduce`, `broadcast`...
    pub what: &'static str,
    /// The group it runs in.
    pub group: u32,
    /// The group's membership version.
    pub epoch: u32,
    /// Its number in the group.
    pub seq: u64,
    /// The registered tensor, if it is for one.
    pub tensor: Option<u32>,
    /// The trainer's step.
    pub step: u64,
    /// Bytes of the tensor.
    pub bytes: u64,
}

/// Names an operation in the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Something worth remembering: a resend, a refused datagram, a peer that fell silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What happened.
    pub what: &'static str,
    /// The rank it concerns, if one.
    pub peer: Option<u32>,
    /// A number that says more: a count, an offset, a PSN.
    pub value: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flown {
    operation: Operation,
    state: OpState,
    posted: Instant,
    changed: Instant,
    done_bytes: u64,
    waiting_for: Option<u32>,
}

/// Keeps the last operations and notes of a rank. One writer; nothing is allocated after it was made.
#[derive(Clone, Debug)]
pub struct FlightRecorder {
    depth: usize,
    operations: VecDeque<Flown>,
    /// The ticket of the oldest operation kept.
    oldest: u64,
    notes: VecDeque<(Instant, Note)>,
    notes_lost: u64,
}

impl FlightRecorder {
    /// Remembers the last `depth` operations, and as many notes.
    pub fn new(depth: usize) -> Self {
        let depth = depth.max(1);
        Self {
            depth,
            operations: VecDeque::with_capacity(depth),
            oldest: 0,
            notes: VecDeque::with_capacity(depth),
            notes_lost: 0,
        }
    }

    /// An operation was handed over.
    #[inline]
    pub fn post(&mut self, now: Instant, operation: Operation) -> Ticket {
        if self.operations.len() == self.depth {
            self.operations.pop_front();
            self.oldest += 1;
        }
        self.operations.push_back(Flown {
            operation,
            state: OpState::Posted,
            posted: now,
            changed: now,
            done_bytes: 0,
            waiting_for: None,
        });
        Ticket(self.oldest + self.operations.len() as u64 - 1)
    }

    /// The operation reached another state. Forgotten operations are ignored.
    #[inline]
    pub fn advance(&mut self, now: Instant, ticket: Ticket, state: OpState) {
        if let Some(flown) = self.find(ticket) {
            flown.state = state;
            flown.changed = now;
            if matches!(state, OpState::Ready | OpState::Free) {
                flown.done_bytes = flown.operation.bytes;
                flown.waiting_for = None;
            }
        }
    }

    /// How much of the operation is done, and which rank it waits for, if one is known.
    #[inline]
    pub fn progress(&mut self, now: Instant, ticket: Ticket, done_bytes: u64, waiting_for: Option<u32>) {
        if let Some(flown) = self.find(ticket) {
            flown.state = OpState::Running;
            flown.changed = now;
            flown.done_bytes = done_bytes;
            flown.waiting_for = waiting_for;
        }
    }

    /// Something worth remembering happened.
    #[inline]
    pub fn note(&mut self, now: Instant, note: Note) {
        if self.notes.len() == self.depth {
            self.notes.pop_front();
            self.notes_lost += 1;
        }
        self.notes.push_back((now, note));
    }

    #[inline]
    fn find(&mut self, ticket: Ticket) -> Option<&mut Flown> {
        let index = usize::try_from(ticket.0.checked_sub(self.oldest)?).ok()?;
        self.operations.get_mut(index)
    }

    /// Copies what is remembered, to be shown ([`fmt::Display`]) or serialised.
    ///
    /// ```
    /// use shouter::observe::{FlightRecorder, Operation};
    /// use shouter::runtime::Instant;
    ///
    /// let mut flight = FlightRecorder::new(64);
    /// let now = Instant::from_nanos(5_000);
    /// let operation =
    ///     Operation { what: "allreduce", group: 0, epoch: 1, seq: 9, tensor: Some(4), step: 2, bytes: 1024 };
    /// let ticket = flight.post(now, operation);
    /// flight.progress(now, ticket, 512, Some(3));
    /// let dump = flight.dump(1, now, "rank 3 sent no heartbeat for 10 s");
    /// assert!(dump.to_string().contains("waits for rank 3"));
    /// ```
    pub fn dump(&self, rank: u32, now: Instant, reason: impl Into<String>) -> FlightDump {
        let ago = |then: Instant| now.saturating_since(then).as_nanos() as f64 / 1e3;
        FlightDump {
            rank,
            reason: reason.into(),
            now_ns: now.as_nanos(),
            operations_before: self.oldest,
            operations: self
                .operations
                .iter()
                .map(|flown| OperationLine {
                    operation: flown.operation,
                    state: flown.state,
                    posted_us_ago: ago(flown.posted),
                    changed_us_ago: ago(flown.changed),
                    done_bytes: flown.done_bytes,
                    waiting_for: flown.waiting_for,
                })
                .collect(),
            notes_before: self.notes_lost,
            notes: self.notes.iter().map(|(at, note)| NoteLine { note: *note, us_ago: ago(*at) }).collect(),
        }
    }
}

/// What a [`FlightRecorder`] remembered at one moment; oldest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlightDump {
    rank: u32,
    reason: String,
    now_ns: u64,
    operations_before: u64,
    operations: Vec<OperationLine>,
    notes_before: u64,
    notes: Vec<NoteLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct OperationLine {
    #[serde(flatten)]
    operation: Operation,
    state: OpState,
    posted_us_ago: f64,
    changed_us_ago: f64,
    done_bytes: u64,
    waiting_for: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct NoteLine {
    #[serde(flatten)]
    note: Note,
    us_ago: f64,
}

impl FlightDump {
    /// As one line of JSON.
    pub fn to_json(&self) -> String {
        // String keys and finite numbers only, so this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// `1.5 ms` for 1500.
fn human(micros: f64) -> String {
    format!("{:.1?}", Duration::from_secs_f64((micros / 1e6).max(0.0)))
}

impl fmt::Display for FlightDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rank {}: {}", self.rank, self.reason)?;
        writeln!(f, "last operations ({} before them), oldest first:", self.operations_before)?;
        for line in &self.operations {
            let Operation { what, group, epoch, seq, tensor, step, bytes } = line.operation;
            write!(f, "  {:7} {what} group {group} epoch {epoch} seq {seq} step {step}", line.state)?;
            if let Some(tensor) = tensor {
                write!(f, " tensor {tensor}")?;
            }
            write!(f, ": {} of {bytes} bytes, posted {} ago", line.done_bytes, human(line.posted_us_ago))?;
            write!(f, ", last change {} ago", human(line.changed_us_ago))?;
            if let Some(rank) = line.waiting_for {
                write!(f, ", waits for rank {rank}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "last notes ({} before them), oldest first:", self.notes_before)?;
        for line in &self.notes {
            write!(f, "  {} ago: {} ({})", human(line.us_ago), line.note.what, line.note.value)?;
            if let Some(rank) = line.note.peer {
                write!(f, ", rank {rank}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
