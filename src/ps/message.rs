//! Messages between actors: a header, and behind it the elements. Between clients and servers more than [`INLINE`] bytes of elements are a
//! message of the group of their own, so that they go from and to the memory where they are used.
//!
//! ```text
//! bytes 0..4    "SHPS"
//! bytes 4..8    length of the header that follows, little endian
//! bytes 8..     the header: postcard, of `Head`
//! zeroes up to a multiple of 64
//! the elements: those of the whole tensor in C's order, or the indices of rows as u64 and then the rows
//! ```

use std::sync::Arc;

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use shouter_reducer::dtype::DType;

use crate::communicator::{Element, Group, Tensor};
use crate::wire;

const MAGIC: [u8; 4] = *b"SHPS";
/// Before the header.
const PREFIX: usize = 8;
/// The elements begin at a multiple of this.
const ALIGN: usize = 64;
/// The most bytes of a header.
const LONGEST_HEADER: usize = 64 << 10;
/// The most bytes of elements that go in one message with their header, between clients and servers.
pub(super) const INLINE: usize = 64 << 10;
/// The most bytes of a header with such elements.
pub(super) const LONGEST_INLINE: usize = PREFIX + LONGEST_HEADER + ALIGN + INLINE;
/// The most dimensions of a tensor.
pub(super) const MOST_DIMENSIONS: usize = 16;
/// The most bytes of a tensor's name.
pub(super) const LONGEST_NAME: usize = 1024;

/// What a message says of its elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The tensor's name.
    pub name: String,
    /// The elements' type.
    pub dtype: DType,
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// Which elements of it there are.
    pub layout: Layout,
    /// The sender's step.
    pub step: u64,
}

/// Which elements of a tensor a message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Layout {
    /// All, in C's order.
    Dense,
    /// So many rows (of the first dimension), behind their indices.
    Rows(u64),
    /// So many rows that sender and receiver agree on: a server's shard.
    Shard(u64),
}

impl Meta {
    /// The bytes of one row; `None` where memory has no room for so many.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        let row = self.shape.get(1..).unwrap_or(&[]);
        row.iter()
            .try_fold(self.dtype.size(), |bytes, length| bytes.checked_mul(usize::try_from(*length).ok()?))
    }

    /// The bytes of the elements, of indices too; `None` where memory has no room for so many.
    pub(super) fn data_bytes(&self) -> Option<usize> {
        let bytes = match self.layout {
            Layout::Dense => usize::try_from(self.rows()).ok()?.checked_mul(self.row_bytes()?)?,
            Layout::Rows(rows) => {
                usize::try_from(rows).ok()?.checked_mul(self.row_bytes()?.checked_add(8)?)?
            }
            Layout::Shard(rows) => usize::try_from(rows).ok()?.checked_mul(self.row_bytes()?)?,
        };
        isize::try_from(bytes).is_ok().then_some(bytes)
    }

    pub(super) fn too_large(&self) -> super::Error {
        super::Error::Plan(format!("'{}' of {:?} does not fit in memory", self.name, self.shape))
    }

    /// The rows of the whole tensor: its first dimension; one, of a single element, where it has none.
    pub(super) fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    fn check(&self) -> Result<(), String> {
        if self.name.len() > LONGEST_NAME || self.shape.len() > MOST_DIMENSIONS {
            return Err(format!(
                "a name of {} bytes and a shape of {} dimensions; {LONGEST_NAME} and {MOST_DIMENSIONS} can be",
                self.name.len(),
                self.shape.len()
            ));
        }
        if matches!(self.layout, Layout::Rows(_)) && self.shape.is_empty() {
            return Err("rows of a tensor without dimensions".into());
        }
        Ok(())
    }
}

/// The header: what the elements are, and what the message is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head<B> {
    pub(super) meta: Meta,
    pub(super) body: B,
}

impl<B> Head<B> {
    /// The bytes of the elements.
    ///
    /// # Errors
    /// [`Error::Plan`](super::Error::Plan) where memory has no room for so many.
    pub(super) fn data_bytes(&self) -> Result<usize, super::Error> {
        self.meta.data_bytes().ok_or_else(|| self.meta.too_large())
    }
}

/// Bytes of a message, in memory that the host shares where that is to be had: the receiver reads them there.
pub(super) struct Slab {
    memory: Memory,
    len: usize,
}

enum Memory {
    Shared(Tensor<u64>),
    Own(Vec<u64>),
}

/// Where messages get their memory: of this group, or of the process where no group outlives all messages.
pub(super) type Home = Option<Arc<Group>>;

/// Memory of the process.
pub(super) fn zeroes(words: usize) -> Result<Vec<u64>, crate::Error> {
    let mut own = vec![];
    own.try_reserve_exact(words).map_err(|_| no_memory(words * 8))?;
    own.resize(words, 0);
    Ok(own)
}

/// As [`Group::alloc`] has it.
pub(super) fn no_memory(bytes: usize) -> crate::Error {
    crate::Error::Argument(format!("there is no memory for {bytes} bytes"))
}

impl Slab {
    pub(super) fn new(home: &Home, len: usize) -> Result<Self, crate::Error> {
        let words = len.div_ceil(8);
        if let Some(group) = home {
            return Ok(Self { memory: Memory::Shared(group.alloc(words)?), len });
        }
        Ok(Self { memory: Memory::Own(zeroes(words)?), len })
    }

    /// The same bytes in other memory.
    pub(super) fn copied(&self, home: &Home) -> Result<Self, crate::Error> {
        let mut copy = super::protocol::memory(home, || None, self.len)?;
        copy.bytes_mut().copy_from_slice(self.bytes());
        Ok(copy)
    }

    /// The same memory, of another length, if there is enough.
    pub(super) fn resized(mut self, home: &Home, len: usize) -> Result<Self, crate::Error> {
        if self.capacity() < len {
            return Self::new(home, len);
        }
        self.len = len;
        Ok(self)
    }

    fn words(&self) -> &[u64] {
        match &self.memory {
            Memory::Shared(words) => words,
            Memory::Own(words) => words,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.words().len() * 8
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(self.words())[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let words: &mut [u64] = match &mut self.memory {
            Memory::Shared(words) => words,
            Memory::Own(words) => words,
        };
        &mut bytemuck::cast_slice_mut(words)[..self.len]
    }
}

/// Where the elements begin behind a header of this length.
fn data_at(header: usize) -> usize {
    (PREFIX + header).next_multiple_of(ALIGN)
}

/// A message to be filled.
pub(super) struct Envelope {
    slab: Slab,
    data: usize,
}

impl Envelope {
    /// A message with this header and room for its elements.
    pub(super) fn new<B: Serialize>(home: &Home, head: &Head<B>) -> Result<Self, super::Error> {
        Self::with_room(home, head, head.data_bytes()?)
    }

    /// A message with this header and these elements, or without them where they are to be a message of their own.
    pub(super) fn about<B: Serialize>(head: &Head<B>, elements: &[u8]) -> Result<Self, super::Error> {
        let inline = if elements.len() > INLINE { &[] } else { elements };
        let mut envelope = Self::with_room(&None, head, inline.len())?;
        envelope.data_mut().copy_from_slice(inline);
        Ok(envelope)
    }

    fn with_room<B: Serialize>(home: &Home, head: &Head<B>, room: usize) -> Result<Self, super::Error> {
        head.meta.check().map_err(super::Error::Plan)?;
        let header = wire::encode(head).map_err(|why| super::Error::Plan(why.to_string()))?;
        if header.len() > LONGEST_HEADER {
            return Err(super::Error::Plan(format!(
                "a header of {} bytes; {LONGEST_HEADER} can be",
                header.len()
            )));
        }
        let data = data_at(header.len());
        let len = data.checked_add(room).ok_or_else(|| head.meta.too_large())?;
        let mut slab = super::protocol::memory(home, || None, len)?;
        let front = &mut slab.bytes_mut()[..data];
        front[..4].copy_from_slice(&MAGIC);
        front[4..PREFIX].copy_from_slice(&((data - PREFIX) as u32).to_le_bytes());
        front[PREFIX..PREFIX + header.len()].copy_from_slice(&header);
        front[PREFIX + header.len()..].fill(0);
        Ok(Self { slab, data })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.slab.bytes()
    }

    pub(super) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.slab.bytes_mut()[self.data..]
    }
}

/// A message that has come, checked; its elements may be still to come.
pub(super) struct Arrived<B> {
    pub(super) head: Head<B>,
    slab: Slab,
    data: usize,
}

impl<B: for<'a> Deserialize<'a>> Arrived<B> {
    /// A message with its elements.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(super) fn open(slab: Slab) -> Result<Self, String> {
        let arrived = Self::of_client_or_server(slab)?;
        match arrived.missing() {
            0 => Ok(arrived),
            due => Err(format!("0 bytes of elements where its header says {due}")),
        }
    }

    /// A message whose elements may be one of their own behind it.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(super) fn of_client_or_server(slab: Slab) -> Result<Self, String> {
        let (head, data) = parse(slab.bytes())?;
        let found = slab.bytes().len() - data;
        match head.meta.data_bytes() {
            Some(due) if due == found || found == 0 && due > INLINE => Ok(Self { head, slab, data }),
            due => Err(format!(
                "{found} bytes of elements where its header says {}",
                due.map_or("more than fit in memory".into(), |bytes| bytes.to_string())
            )),
        }
    }
}

/// The header of a message, and where its elements begin.
fn parse<B: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<(Head<B>, usize), String> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(format!("{} bytes are no message", bytes.len()));
    };
    let (magic, length) = prefix.split_at(4);
    if magic != MAGIC {
        return Err("it is none of an actor's".into());
    }
    let length = u32::from_le_bytes(length.try_into().map_err(|_| "no length")?) as usize;
    let header = rest.get(..length).ok_or("its header is cut off")?;
    let data = PREFIX + length;
    if length > LONGEST_HEADER + ALIGN || !data.is_multiple_of(ALIGN) {
        return Err(format!("a header of {length} bytes"));
    }
    let (head, padding): (Head<B>, _) =
        postcard::take_from_bytes(header).map_err(|why| format!("its header has no meaning ({why})"))?;
    if padding.iter().any(|byte| *byte != 0) {
        return Err("its header has bytes left over".into());
    }
    head.meta.check()?;
    Ok((head, data))
}

impl<B> Arrived<B> {
    /// The bytes of elements that are still to come.
    pub(super) fn missing(&self) -> usize {
        self.head.meta.data_bytes().unwrap_or(0) - self.data().len()
    }

    /// The same message with the elements that were missing.
    pub(super) fn complete(self, elements: Slab) -> Self {
        Self { slab: elements, data: 0, ..self }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.slab.bytes()[self.data..]
    }

    /// The indices of the rows, and the bytes of their elements.
    pub(super) fn rows(&self) -> (&[u64], &[u8]) {
        let rows = match self.head.meta.layout {
            Layout::Rows(rows) => rows as usize,
            Layout::Dense | Layout::Shard(_) => 0,
        };
        let (indices, values) = self.data().split_at(rows * 8);
        (bytemuck::cast_slice(indices), values)
    }

    pub(super) fn into_slab(self) -> Slab {
        self.slab
    }
}

/// A tensor that is given: elements in C's order.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(super) dtype: DType,
    pub(super) shape: &'a [u64],
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The elements of a slice, with this shape.
    ///
    /// # Errors
    /// [`Error::Plan`](super::Error::Plan) for a shape of another number of elements.
    pub fn new<T: Element + Pod>(elements: &'a [T], shape: &'a [u64]) -> Result<Self, super::Error> {
        Self::from_bytes(bytemuck::cast_slice(elements), T::DTYPE, shape)
    }

    /// The elements in these bytes.
    ///
    /// # Errors
    /// [`Error::Plan`](super::Error::Plan) for a shape of another number of elements.
    pub fn from_bytes(bytes: &'a [u8], dtype: DType, shape: &'a [u64]) -> Result<Self, super::Error> {
        let meta = Meta { name: String::new(), dtype, shape: shape.to_vec(), layout: Layout::Dense, step: 0 };
        if shape.len() > MOST_DIMENSIONS || meta.data_bytes() != Some(bytes.len()) {
            return Err(super::Error::Plan(format!(
                "{} bytes are no array of {dtype} with the shape {shape:?}; give the shape of the elements, with at most \
                 {MOST_DIMENSIONS} dimensions",
                bytes.len()
            )));
        }
        Ok(Self { dtype, shape, bytes })
    }
}

#[cfg(test)]
mod tests;
