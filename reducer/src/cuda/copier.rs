//! Copies between device and host that the executor starts and polls. Nothing here blocks, and a copy allocates nothing.
//!
//! Each direction has a stream of ours, so that the two overlap, and numbers its copies: a [`CopyFence`] is such a number. A ring
//! of events follows them. A stream keeps its order, so an event that was reused for a later copy still serves an
//! earlier one: it completes a little late, never too early.
#![allow(unsafe_code)]

use super::{Context, CudaError, CudaEvent, Entered, PointerKind, Stream};
use crate::memory::{MemoryKind, Span};
use crate::transport::StreamEvent;

/// Copies of one direction whose completion is tracked separately.
const RING: usize = 256;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyDirection {
    /// From the device, to the host or within the device.
    In,
    /// From the host to the device.
    Out,
}

/// The completion of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct CopyFence {
    direction: CopyDirection,
    number: u64,
}

/// One direction: copies are numbered from 1.
#[derive(Debug)]
struct CopyStream {
    stream: Stream,
    ring: Vec<CudaEvent>,
    issued: u64,
    /// The last copy known to have ended.
    done: u64,
}

impl CopyStream {
    fn new(context: &Context) -> Result<Self, CudaError> {
        let ring = (0..RING).map(|_| CudaEvent::new(context)).collect::<Result<_, _>>()?;
        Ok(Self { stream: Stream::new(context)?, ring, issued: 0, done: 0 })
    }

    /// The number of the copy that stands for `number` in the ring: itself, or the oldest that is left.
    fn kept(&self, number: u64) -> u64 {
        number.max((self.issued + 1).saturating_sub(RING as u64))
    }

    fn event(&self, number: u64) -> &CudaEvent {
        &self.ring[(number % RING as u64) as usize]
    }

    fn is_done(&mut self, entered: &Entered<'_>, number: u64) -> Result<bool, CudaError> {
        if number > self.done {
            let kept = self.kept(number);
            if !self.event(kept).is_done_in(entered)? {
                return Ok(false);
            }
            self.done = kept;
        }
        Ok(true)
    }
}

/// Copies for one context, for one thread at a time.
#[derive(Debug)]
pub struct Copier {
    context: Context,
    /// By direction.
    streams: [CopyStream; 2],
    /// The events of [`StreamEvent`]s, by number, and those that are free.
    stream_events: Vec<Option<CudaEvent>>,
    free: Vec<CudaEvent>,
}

impl Copier {
    /// Makes the streams and events.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            context: context.clone(),
            streams: [CopyStream::new(context)?, CopyStream::new(context)?],
            stream_events: vec![],
            free: vec![],
        })
    }

    /// An event to be recorded in the trainer's stream and then handed to [`Self::expect`]; without this value, for the
    /// driver may make the thread that records wait for room in the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn event(&mut self) -> Result<CudaEvent, CudaError> {
        self.free.pop().map_or_else(|| CudaEvent::new(&self.context), Ok)
    }

    /// The [`StreamEvent`] of a recorded event, valid until [`is_reached`](Self::is_reached) has returned true.
    pub fn expect(&mut self, event: CudaEvent) -> StreamEvent {
        let at = self.stream_events.iter().position(Option::is_none).unwrap_or(self.stream_events.len());
        match self.stream_events.get_mut(at) {
            Some(place) => *place = Some(event),
            None => self.stream_events.push(Some(event)),
        }
        StreamEvent(at as u64)
    }

    /// The context of its streams.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Our stream of one direction, for kernels and waits that belong between copies.
    pub fn stream(&self, direction: CopyDirection) -> &Stream {
        &self.streams[direction as usize].stream
    }

    /// The context and one direction's stream, for calls that change it.
    fn parts(&mut self, direction: CopyDirection) -> (&Context, &mut CopyStream) {
        (&self.context, &mut self.streams[direction as usize])
    }

    /// Starts a copy between two ranges of one length, of which at least one is on the device. A host range is of kind
    /// `Pinned`, or the driver is asked whether it is page-locked.
    ///
    /// Ranges were checked against their regions, whose promise covers the copy: its operation is not reported complete before
    /// the fence is done.
    ///
    /// # Errors
    /// The lengths differ, the host range is not page-locked, or the driver's.
    pub fn copy_span(&mut self, dst: Span, src: Span) -> Result<CopyFence, CudaError> {
        let bytes = src.len();
        if dst.len() != bytes {
            return Err(CudaError::Range {
                address: dst.as_ptr() as u64,
                bytes: bytes as u64,
                base: dst.as_ptr() as u64,
                size: dst.len() as u64,
            });
        }
        for side in [&dst, &src] {
            let address = side.as_ptr() as u64;
            if bytes > 0
                && !matches!(side.region().kind(), MemoryKind::Pinned | MemoryKind::Device)
                && self.context.cuda().classify(address)?.kind == PointerKind::Unknown
            {
                return Err(CudaError::NotPinned { address });
            }
        }
        let direction = match src.region().kind() {
            MemoryKind::Device => CopyDirection::In,
            _ => CopyDirection::Out,
        };
        // SAFETY: the ranges were checked when the spans were made, and their memory is valid, and kept from others by the
        // schedule, for as long as an operation names it: the promise of `TensorRegion::from_raw_parts`.
        unsafe { self.enqueue(direction, dst.as_ptr() as u64, src.as_ptr() as u64, bytes) }
    }

    /// # Safety
    /// Both ranges are valid, do not overlap, and stay so until the fence is done; until then nothing but the copy writes the
    /// source or accesses the destination. Host memory is page-locked.
    unsafe fn enqueue(
        &mut self,
        direction: CopyDirection,
        dst: u64,
        src: u64,
        bytes: usize,
    ) -> Result<CopyFence, CudaError> {
        let (context, queue) = self.parts(direction);
        let entered = context.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { queue.stream.copy_in(&entered, dst, src, bytes) }?;
        Self::mark(&entered, direction, queue)
    }

    /// A fence for what has been enqueued in our stream of one direction so far: kernels, waits, copies.
    ///
    /// # Errors
    /// The driver's; nothing was recorded.
    pub fn fence(&mut self, direction: CopyDirection) -> Result<CopyFence, CudaError> {
        let (context, queue) = self.parts(direction);
        Self::mark(&context.enter()?, direction, queue)
    }

    fn mark(
        entered: &Entered<'_>,
        direction: CopyDirection,
        queue: &mut CopyStream,
    ) -> Result<CopyFence, CudaError> {
        let number = queue.issued + 1;
        // If this fails the event stands for the copy it had before, and the number is not given out.
        queue.event(number).record_in(entered, &queue.stream)?;
        queue.issued = number;
        Ok(CopyFence { direction, number })
    }

    /// Whether a copy has ended. Its bytes are then visible to the host.
    ///
    /// # Errors
    /// The driver's: the copy, or work before it, has failed.
    pub fn is_done(&mut self, fence: CopyFence) -> Result<bool, CudaError> {
        let (context, queue) = self.parts(fence.direction);
        if fence.number <= queue.done {
            return Ok(true);
        }
        queue.is_done(&context.enter()?, fence.number)
    }

    /// How many copies are not known to have ended; asks about the last ones first.
    ///
    /// # Errors
    /// As [`is_done`](Self::is_done).
    pub fn pending(&mut self) -> Result<u64, CudaError> {
        let mut pending = 0;
        for queue in &mut self.streams {
            if !queue.is_done(&self.context.enter()?, queue.issued)? {
                pending += queue.issued - queue.done;
            } else if !queue.stream.is_done()? {
                // Something whose event could not be recorded.
                pending += 1;
            }
        }
        Ok(pending)
    }
}

impl CopyFence {
    /// As one number.
    pub(super) fn to_word(self) -> u64 {
        self.number << 1 | u64::from(self.direction == CopyDirection::Out)
    }

    /// The fence of a number from [`to_word`](Self::to_word).
    pub(super) fn from_word(word: u64) -> Self {
        let direction = if word & 1 == 1 { CopyDirection::Out } else { CopyDirection::In };
        Self { direction, number: word >> 1 }
    }
}

impl Copier {
    /// Whether the work before an event has ended. Polled until it returns true, once, or an error.
    ///
    /// # Errors
    /// The driver's: work before the event has failed.
    pub fn is_reached(&mut self, event: StreamEvent) -> Result<bool, CudaError> {
        let Some(place) = self.stream_events.get_mut(event.0 as usize) else { return Ok(true) };
        if let Some(recorded) = place
            && !recorded.is_done()?
        {
            return Ok(false);
        }
        self.free.extend(place.take());
        Ok(true)
    }
}
