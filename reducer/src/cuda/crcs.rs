//! CRC32Cs of device memory, computed on the device for ranges that NICs send from or write to, and small blocking
//! copies. **Not run on a GPU yet.**
//!
//! Ranges are queued, and computed together: one kernel for neighbours of one length, one copy of the results to the host, one event.
//! Nothing blocks but [`read`](CudaCrcs::read) and [`write`](CudaCrcs::write), and those no longer than their time-out.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::collections::VecDeque;
use std::sync::Arc;

use super::kernel::{CudaKernels, LaunchError};
use super::{Context, CudaError, CudaEvent, DeviceBuffer, Pinned, Stream};
use crate::memory::Span;
use core::time::Duration;

/// Questions that may be open at once.
const ROOM: usize = 1024;

/// Bytes that are copied at a time.
const BOUNCE: usize = 64 << 10;

/// The state of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Asked,
    /// The answer is not wanted any more.
    Forgotten,
}

/// Neighbours of one length (the last may be shorter), to be asked about by one kernel.
#[derive(Clone, Copy, Debug)]
struct Run {
    address: u64,
    bytes: u64,
    fragment: u64,
    first: usize,
    count: usize,
}

/// When work that is given to a device sees a NIC's earlier writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicWrites {
    /// When the NIC has said that it is done.
    Ordered,
    /// After a call that flushes.
    Flushed,
    /// Not known: NICs must not write there.
    Unknown,
}

/// CRC32Cs of one context's memory, for one thread at a time.
#[derive(Debug)]
pub struct CudaCrcs {
    stream: Stream,
    kernels: Arc<CudaKernels>,
    flushes: bool,
    results: DeviceBuffer,
    answers: Pinned,
    bounce: Pinned,
    states: Box<[SlotState]>,
    /// Questions so far; the first of them that no kernel was given; those that are answered.
    asked: u64,
    launched: u64,
    answered: u64,
    runs: Vec<Run>,
    /// The end of what each event stands for.
    batches: VecDeque<(u64, CudaEvent)>,
    events: Vec<CudaEvent>,
    /// A copy has missed its deadline.
    hangs: bool,
}

impl CudaCrcs {
    /// Of a context, by kernels of the same one.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context, kernels: Arc<CudaKernels>) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::new(context)?,
            kernels,
            flushes: context.nic_writes() == NicWrites::Flushed,
            results: DeviceBuffer::new(context, 4 * ROOM)?,
            answers: Pinned::new(context, 4 * ROOM)?,
            bounce: Pinned::new(context, BOUNCE)?,
            states: vec![SlotState::Free; ROOM].into(),
            asked: 0,
            launched: 0,
            answered: 0,
            runs: Vec::new(),
            batches: VecDeque::new(),
            events: Vec::new(),
            hangs: false,
        })
    }

    /// Notes a range whose CRC32C is wanted, and that stays as it is until it is known; returns the question's number, or `None` if there are
    /// too many open ones.
    pub fn ask(&mut self, span: &Span) -> Option<u64> {
        let at = place(self.asked);
        if self.states[at] != SlotState::Free || span.is_empty() {
            return None;
        }
        let (address, bytes) = (span.as_ptr() as u64, span.len() as u64);
        let joins = |run: &&mut Run| {
            run.address + run.bytes == address
                && run.bytes == run.fragment * run.count as u64
                && bytes <= run.fragment
                && run.first + run.count == at
        };
        match self.runs.last_mut().filter(joins) {
            Some(run) => (run.bytes, run.count) = (run.bytes + bytes, run.count + 1),
            None => self.runs.push(Run { address, bytes, fragment: bytes, first: at, count: 1 }),
        }
        self.states[at] = SlotState::Asked;
        self.asked += 1;
        Some(self.asked - 1)
    }

    /// The answer to a question, once, when it is there.
    ///
    /// # Errors
    /// The kernel cannot be started, or it or work before it has failed.
    pub fn answer(&mut self, question: u64) -> Result<Option<u32>, LaunchError> {
        if question >= self.launched {
            self.launch()?;
        }
        self.look()?;
        let at = place(question);
        if question >= self.answered || self.states[at] != SlotState::Asked {
            return Ok(None);
        }
        self.states[at] = SlotState::Free;
        // SAFETY: within the answers, aligned; the copy that wrote it has ended.
        Ok(Some(unsafe { self.answers.as_ptr().cast::<u32>().add(at).read_volatile() }))
    }

    /// The answer is no longer wanted.
    pub fn forget(&mut self, question: u64) {
        let state = if question < self.answered { SlotState::Free } else { SlotState::Forgotten };
        self.states[place(question)] = state;
    }

    /// Gives the device what was noted.
    fn launch(&mut self) -> Result<(), LaunchError> {
        let results = self.results.address();
        for run in self.runs.drain(..) {
            let into = results + 4 * run.first as u64;
            // SAFETY: the range lies in its region, which the caller keeps until the answer is there; results and answers are ours,
            // and kept while the stream works (see `Drop`).
            unsafe { self.kernels.crc32c(&self.stream, run.address, run.bytes, run.fragment, into) }?;
        }
        let (mut from, end) = (self.launched, self.asked);
        while from < end {
            // Up to where the places begin anew.
            let at = place(from);
            let count = ((end - from) as usize).min(ROOM - at);
            let (into, source) =
                (self.answers.as_ptr().as_ptr() as u64 + 4 * at as u64, results + 4 * at as u64);
            // SAFETY: both ranges are ours, and nothing reads these answers before the event.
            unsafe { self.stream.copy(into, source, 4 * count) }?;
            from += count as u64;
        }
        let event = self.events.pop().map_or_else(|| CudaEvent::new(self.stream.context()), Ok)?;
        event.record(&self.stream)?;
        self.launched = end;
        self.batches.push_back((end, event));
        Ok(())
    }

    /// Notes what is done.
    fn look(&mut self) -> Result<(), CudaError> {
        while let Some((end, event)) = self.batches.front() {
            if !event.is_done()? {
                break;
            }
            for question in self.answered..*end {
                let state = &mut self.states[place(question)];
                if *state == SlotState::Forgotten {
                    *state = SlotState::Free;
                }
            }
            self.answered = *end;
            self.events.extend(self.batches.pop_front().map(|(_, event)| event));
        }
        Ok(())
    }

    /// Whether the device reads nothing for a question any more.
    ///
    /// # Errors
    /// The driver's: a kernel has failed.
    pub fn is_idle(&mut self) -> Result<bool, CudaError> {
        self.look()?;
        Ok(self.batches.is_empty() && !self.hangs)
    }

    /// Makes what NICs have written visible to work that the device is given later.
    ///
    /// # Errors
    /// The driver's.
    pub fn settle_writes(&mut self) -> Result<(), CudaError> {
        if self.flushes { self.stream.context().flush_nic_writes() } else { Ok(()) }
    }

    /// Copies device memory to the host and waits for it, until `deadline` by the caller's clock.
    ///
    /// # Errors
    /// The driver's, or that the copy has not ended by the deadline: it may still be made.
    pub fn read(
        &mut self,
        from: &Span,
        into: &mut [u8],
        deadline: Duration,
        mut now: impl FnMut() -> Duration,
    ) -> Result<(), CudaError> {
        for (index, part) in into.chunks_mut(BOUNCE).enumerate() {
            let source = from.as_ptr() as u64 + (index * BOUNCE) as u64;
            let bounce = self.bounce.as_ptr();
            self.copy(bounce.as_ptr() as u64, source, part.len(), deadline, &mut now)?;
            // SAFETY: the copy has ended, and the bounce buffer has as many bytes.
            unsafe { part.as_mut_ptr().copy_from_nonoverlapping(bounce.as_ptr(), part.len()) };
        }
        Ok(())
    }

    /// Copies to device memory and waits for it, until `deadline` by the caller's clock.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(
        &mut self,
        into: &Span,
        from: &[u8],
        deadline: Duration,
        mut now: impl FnMut() -> Duration,
    ) -> Result<(), CudaError> {
        for (index, part) in from.chunks(BOUNCE).enumerate() {
            let target = into.as_ptr() as u64 + (index * BOUNCE) as u64;
            let bounce: NonNull<u8> = self.bounce.as_ptr();
            // SAFETY: no copy is under way there, and the bounce buffer has as many bytes.
            unsafe { bounce.as_ptr().copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            self.copy(target, bounce.as_ptr() as u64, part.len(), deadline, &mut now)?;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        into: u64,
        from: u64,
        bytes: usize,
        deadline: Duration,
        now: &mut impl FnMut() -> Duration,
    ) -> Result<(), CudaError> {
        if self.hangs {
            return Err(CudaError::Deadline { pending: 1 });
        }
        let event = self.events.pop().map_or_else(|| CudaEvent::new(self.stream.context()), Ok)?;
        // SAFETY: the device's range lies in its region, whose operation has not ended; the other is ours, of as many bytes.
        unsafe { self.stream.copy(into, from, bytes) }?;
        event.record(&self.stream)?;
        while !event.is_done()? {
            if now() >= deadline {
                self.hangs = true;
                return Err(CudaError::Deadline { pending: 1 });
            }
            core::hint::spin_loop();
        }
        self.events.push(event);
        Ok(())
    }
}

/// Where a question's answer lies.
fn place(question: u64) -> usize {
    (question % ROOM as u64) as usize
}
