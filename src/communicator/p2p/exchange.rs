//! One message, as requested.
#![allow(unsafe_code)]

use shouter_reducer::dtype::DType;
use shouter_reducer::layout::Layout;

use super::{Source, Tag};
use crate::communicator::Group;
use crate::communicator::element::{Buffer, Element, from_slice, with_bytes};
use crate::communicator::staging::{Staged, stage_message};
use crate::communicator::strided::{Strided, StridedMut};
use crate::error::{Call, Error, Operation};

/// One message of a [`Group::batch`](crate::Group::batch), or to be [started](crate::Group::start_message).
#[derive(Debug)]
pub struct Exchange<'a> {
    message: Message,
    /// The blocks of its elements, if they do not lie one behind the other.
    strided: Option<ElementBlocks>,
    /// Of memory on a GPU: the stream that it is ordered with.
    cuda_stream: Option<u64>,
    buffer: std::marker::PhantomData<&'a mut [u8]>,
}

/// Elements in blocks.
#[derive(Clone, Copy, Debug)]
struct ElementBlocks {
    address: *mut u8,
    layout: Layout,
    dtype: DType,
}

/// A send or a receive, by address.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) enum Message {
    Send { data: Buffer, dtype: DType, to: u32, tag: u32, synchronous: bool },
    Receive { into: Buffer, dtype: DType, from: Source, tag: Tag },
}

impl<'a> Exchange<'a> {
    /// Sends `data` to rank `to`.
    pub fn send<T: Element>(data: &'a [T], to: u32, tag: u32) -> Self {
        let message = Message::Send { data: from_slice(data), dtype: T::DTYPE, to, tag, synchronous: false };
        Self::of(message)
    }

    /// Receives into `into`.
    pub fn receive<T: Element>(into: &'a mut [T], from: impl Into<Source>, tag: impl Into<Tag>) -> Self {
        let into = with_bytes(into, |into| into);
        let message = Message::Receive { into, dtype: T::DTYPE, from: from.into(), tag: tag.into() };
        Self::of(message)
    }

    fn of(message: Message) -> Self {
        Self { message, strided: None, cuda_stream: None, buffer: std::marker::PhantomData }
    }

    /// Sends elements in blocks to rank `to`. They are packed when the message is started, which takes as much memory again; the receive
    /// may have as many elements in other blocks, or one behind the other.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shouter::config::{Builder, Environment};
    /// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
    /// # let group = shouter::init(config)?;
    /// use shouter::{Exchange, Layout, Strided, StridedMut};
    ///
    /// let column = Layout { count: 3, block: 1, stride: 2 };
    /// let (matrix, mut other) = ([1f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0f32; 6]);
    /// let send = Exchange::send_strided(Strided::new(&matrix, column)?, 0, 7);
    /// let receive = Exchange::receive_strided(StridedMut::new(&mut other, column)?, 0, 7);
    /// for ended in group.batch(&mut [send, receive]) {
    ///     ended?;
    /// }
    /// assert_eq!(other, [1.0, 0.0, 3.0, 0.0, 5.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_strided<T: Element>(data: impl Into<Strided<'a, T>>, to: u32, tag: u32) -> Self {
        let (address, layout) = data.into().parts();
        let blocks = ElementBlocks { address: address.cast_mut(), layout, dtype: T::DTYPE };
        Self { strided: Some(blocks), ..Self::send::<T>(&[], to, tag) }
    }

    /// Receives into blocks, the first ones if the message is shorter; they are written when the message has come, and stay as they are where
    /// it does not.
    pub fn receive_strided<T: Element>(
        into: impl Into<StridedMut<'a, T>>,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Self {
        let (address, layout) = into.into().parts();
        let blocks = ElementBlocks { address, layout, dtype: T::DTYPE };
        Self { strided: Some(blocks), ..Self::receive::<T>(&mut [], from, tag) }
    }

    /// The same with the elements in blocks, from the address that was given on; as many as were given.
    ///
    /// # Errors
    /// [`Error::Argument`] for blocks of nothing, blocks that overlap, a layout that does not fit in memory, and one of another number of
    /// elements.
    ///
    /// # Safety
    /// The promises about the buffer hold for the blocks; the gaps between them are not accessed.
    pub unsafe fn strided_raw(mut self, layout: Layout) -> Result<Self, Error> {
        let (data, dtype) = self.message.buffer();
        let count = data.len() / dtype.size();
        layout.check(count, dtype.size()).map_err(|why| Error::Argument(why.to_string()))?;
        self.strided = Some(ElementBlocks { address: data.as_ptr().cast_mut(), layout, dtype });
        Ok(self)
    }

    /// The same send, ended only when a receive has taken the message: a failure is its own error. (A receive is as it
    /// is.)
    #[must_use]
    pub fn synchronous(mut self) -> Self {
        if let Message::Send { synchronous, .. } = &mut self.message {
            *synchronous = true;
        }
        self
    }

    /// The same, of an address in the memory of an NVIDIA GPU: a sent message is read, and a received one is written,
    /// after the work that `stream` (a `cudaStream_t`; 0 is the default stream) holds when the message is started. When
    /// it has ended the elements are there for any stream.
    ///
    /// ```no_run
    /// # fn example(group: &shouter::Group, tokens: *const u8, count: usize, stream: u64) -> Result<(), shouter::Error> {
    /// use shouter::{DType, Exchange};
    ///
    /// // SAFETY: the address of so many elements on the GPU, which nothing writes before the message has ended.
    /// let work = unsafe {
    ///     group.start_message(Exchange::send_raw(tokens, count, DType::Bf16, 1, 0)?.on_cuda(stream))
    /// }?;
    /// work.wait(None)
    /// # }
    /// ```
    ///
    /// # Safety
    /// The promises about the buffer hold from what `stream` holds at the start on. The stream is not destroyed during
    /// the start, and the context lives until the group is dropped.
    #[must_use]
    pub unsafe fn on_cuda(self, stream: u64) -> Self {
        Self { cuda_stream: Some(stream), ..self }
    }

    /// As [`send`](Self::send), of `count` elements at `data`, an address that is aligned to them.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that cannot be one.
    ///
    /// # Safety
    /// `data` is valid for reads of `count` elements, which nobody writes for as long as it is in use.
    pub unsafe fn send_raw(
        data: *const u8,
        count: usize,
        dtype: DType,
        to: u32,
        tag: u32,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise; it is only read.
        let data = unsafe { Buffer::from_raw(data.cast_mut(), count, dtype) }?;
        let message = Message::Send { data, dtype, to, tag, synchronous: false };
        Ok(Self::of(message))
    }

    /// As [`receive`](Self::receive), of up to `count` elements at `into`, an address that is aligned to them.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that cannot be one.
    ///
    /// # Safety
    /// `into` is valid for reads and writes of `count` elements, which nobody else touches for as long as it is in use.
    pub unsafe fn receive_raw(
        into: *mut u8,
        count: usize,
        dtype: DType,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let into = unsafe { Buffer::from_raw(into, count, dtype) }?;
        let message = Message::Receive { into, dtype, from: from.into(), tag: tag.into() };
        Ok(Self::of(message))
    }
}

/// Refuses a receive into memory that another of these messages sends or receives. Blocks of elements have copies of their own.
pub(super) fn check_apart(messages: &[Exchange<'_>]) -> Result<(), Error> {
    if messages.len() < 2 {
        return Ok(());
    }
    let mut ranges: Vec<_> = messages
        .iter()
        .filter(|one| one.strided.is_none() && one.message.bytes() > 0)
        .map(|Exchange { message, .. }| {
            let start = message.buffer().0.as_ptr().addr();
            (start, start + message.bytes(), message.operation() == Operation::Receive)
        })
        .collect();
    ranges.sort_unstable();
    // How far those before reach, and how far the receives among them.
    let (mut used, mut written) = (0, 0);
    for (start, end, is_written) in ranges {
        if start < if is_written { used } else { written } {
            return Err(Error::Argument(
                "a receive of these messages is into memory that another one of them sends or receives; give memory that is apart".into(),
            ));
        }
        used = used.max(end);
        written = written.max(if is_written { end } else { 0 });
    }
    Ok(())
}

impl Exchange<'_> {
    /// The message, by the address that was given.
    pub(super) fn message(&self) -> &Message {
        &self.message
    }

    /// Whether its elements lie there, one behind the other.
    pub(super) fn is_plain(&self) -> bool {
        self.strided.is_none() && self.cuda_stream.is_none()
    }

    /// Whether its elements are on a GPU.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.cuda_stream.is_some()
    }

    /// The message, of memory of its own where its elements lie in blocks, or on a GPU.
    pub(super) fn staged(&self, group: &Group, step: u64) -> Result<(Message, Option<Staged>), Error> {
        let mut message = self.message;
        if let Some(stream) = self.cuda_stream {
            if self.strided.is_some() {
                return Err(Error::Argument(
                    "a message in memory of a GPU has no layout; pack the elements on their stream".into(),
                ));
            }
            let call = Call { operation: message.operation(), tensor: None, step };
            // SAFETY: the promises of `on_cuda`, and of who starts it.
            let (buffer, staged) = unsafe { group.stage_message_on_gpu(&message, stream, call) }?;
            message.set_buffer(buffer);
            return Ok((message, staged));
        }
        let Some(ElementBlocks { address, layout, dtype }) = self.strided else { return Ok((message, None)) };
        let is_sent = message.operation() == Operation::Send;
        // SAFETY: the borrow of the blocks, or the promise of `strided_raw` and `start_message`, lasts until the message has ended.
        let (staged, buffer) = unsafe { stage_message(address, layout, dtype, is_sent) }?;
        message.set_buffer(buffer);
        Ok((message, Some(staged)))
    }
}

impl Message {
    /// Bytes of its elements.
    pub(super) fn bytes(&self) -> usize {
        self.buffer().0.len()
    }

    fn set_buffer(&mut self, buffer: Buffer) {
        match self {
            Self::Send { data, .. } => *data = buffer,
            Self::Receive { into, .. } => *into = buffer,
        }
    }

    pub(in crate::communicator) fn buffer(&self) -> (Buffer, DType) {
        match *self {
            Self::Send { data, dtype, .. } => (data, dtype),
            Self::Receive { into, dtype, .. } => (into, dtype),
        }
    }

    pub(in crate::communicator) fn operation(&self) -> Operation {
        match self {
            Self::Send { .. } => Operation::Send,
            Self::Receive { .. } => Operation::Receive,
        }
    }
}

#[cfg(test)]
mod tests;
