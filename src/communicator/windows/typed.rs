//! Windows of elements, whose memory they own.

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::windows::WindowAction;

use super::super::Group;
use super::super::element::{Buffer, Element, from_slice, with_bytes};
use super::super::lent::Owned;
use crate::error::Error;

/// How an access changes the target's elements with those that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Reduces them into those; every reduction that the type has but `avg`.
    Reduce(ReduceOp),
    /// Writes them.
    Replace,
    /// Changes nothing.
    Keep,
}

impl From<ReduceOp> for Update {
    fn from(op: ReduceOp) -> Self {
        Self::Reduce(op)
    }
}

/// Memory of every rank of a group that all of them access, from [`Group::window`]. It owns this rank's part.
///
/// Accesses of one rank to one target take effect in the order in which they were made, reads among them, and each element is accessed
/// atomically. A call returns when its memory may be changed: a put or an accumulate that was copied may take effect later, and
/// [`flush`](Self::flush) waits for that.
///
/// A window that is dropped and not [freed](Self::free) takes this rank's memory out of it: accesses of others that come then fail.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shouter::config::{Builder, Environment};
/// use shouter::ReduceOp;
///
/// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
/// # let group = shouter::init(config)?;
/// // Rank 0 has a counter; every rank takes a ticket.
/// let window = group.window(if group.rank() == 0 { vec![0u64] } else { vec![] })?;
/// let mut ticket = [0u64];
/// window.fetch_and_op(&[1], &mut ticket, 0, 0, ReduceOp::Sum)?;
/// assert!(ticket[0] < u64::from(group.size()));
/// window.fence()?;
/// // The first one to come sets it back.
/// let size = u64::from(group.size());
/// let was_first = window.compare_and_swap(size, 0, 0, 0)? == size;
/// // Plain reads and writes, too, and additions without an answer.
/// window.put(&[0], 0, 0)?;
/// window.accumulate(&[5], 0, 0, ReduceOp::Max)?;
/// window.flush(Some(0))?;
/// window.get(&mut ticket, 0, 0)?;
/// let memory = window.free()?;
/// # assert!(was_first && memory == [5] && ticket == [5]);
/// # Ok(())
/// # }
/// ```
pub struct Window<'g, T: Element, M: WindowMemory<Element = T> = Vec<T>> {
    group: &'g Group,
    id: u32,
    /// There until it is freed, or dropped.
    memory: Option<M>,
}

/// Memory that a rank gives to a [window](Group::window): a `Vec`, a `Box`, or a [`Tensor`](crate::Tensor), which the host's other ranks access
/// without messages.
pub trait WindowMemory: Owned {}

impl<M: Owned> WindowMemory for M {}

impl<T: Element, M: WindowMemory<Element = T>> std::fmt::Debug for Window<'_, T, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<T: Element, M: WindowMemory<Element = T>> Window<'_, T, M> {
    /// Writes `data` to the elements from `offset` on of rank `target`'s part.
    ///
    /// # Errors
    /// The group goes on after [`Error::Argument`] (no such rank, a range that is not within its part), [`Error::Mismatch`] (the target has
    /// freed its part, or has another than it has announced) and [`Error::Deadline`] (the target did not serve it
    /// within the key `deadline`; it may take effect later). [`Error::PeerFailed`] and [`Error::Closed`] where it has
    /// ended. Where the access was copied, all but the first and the last are errors of the next
    /// [`flush`](Self::flush).
    pub fn put(&self, data: &[T], target: u32, offset: u64) -> Result<(), Error> {
        self.run(WindowAction::Put, (from_slice(data), Buffer::empty()), target, offset)
    }

    /// Reads the elements from `offset` on of rank `target`'s part.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get(&self, into: &mut [T], target: u32, offset: u64) -> Result<(), Error> {
        self.run(WindowAction::Get, (Buffer::empty(), with_bytes(into, |into| into)), target, offset)
    }

    /// Changes the elements from `offset` on of rank `target`'s part with those of `data`.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Argument`] for an average, and for a reduction that the type does not have.
    pub fn accumulate(
        &self,
        data: &[T],
        target: u32,
        offset: u64,
        update: impl Into<Update>,
    ) -> Result<(), Error> {
        let action = match update.into() {
            Update::Reduce(op) => WindowAction::Accumulate(op),
            Update::Replace => WindowAction::Put,
            Update::Keep => return self.get(&mut data.to_vec(), target, offset),
        };
        self.run(action, (from_slice(data), Buffer::empty()), target, offset)
    }

    /// The same, and reads the elements' former values to `before`, which is as long. The data of [`Update::Keep`] is
    /// not looked at.
    ///
    /// # Errors
    /// As [`accumulate`](Self::accumulate); [`Error::Argument`] for slices of different lengths.
    pub fn fetch_and_op(
        &self,
        data: &[T],
        before: &mut [T],
        target: u32,
        offset: u64,
        update: impl Into<Update>,
    ) -> Result<(), Error> {
        let action = match update.into() {
            Update::Reduce(op) => WindowAction::FetchAndOp(op),
            Update::Replace => WindowAction::Swap,
            Update::Keep => return self.get(before, target, offset),
        };
        self.run(action, (from_slice(data), with_bytes(before, |before| before)), target, offset)
    }

    /// Writes `new` to an element of rank `target`'s part if it has the bits of `expected`; returns its former value.
    /// Only integers and truth values have it.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Argument`] for floats and complex numbers.
    pub fn compare_and_swap(&self, expected: T, new: T, target: u32, offset: u64) -> Result<T, Error> {
        let (data, mut before) = ([expected, new], [expected]);
        let into = with_bytes(&mut before, |before| before);
        self.run(WindowAction::CompareAndSwap, (from_slice(&data), into), target, offset)?;
        Ok(before[0])
    }

    /// Waits until all accesses of this rank to rank `target`'s part have taken effect there, or to those of all ranks.
    ///
    /// # Errors
    /// How one of them has failed, as [`put`](Self::put) says; the first of each target, one at a time.
    pub fn flush(&self, target: Option<u32>) -> Result<(), Error> {
        self.group.flush_window(self.id, target)
    }

    /// Waits until all accesses of all ranks have taken effect. Every rank calls it.
    ///
    /// # Errors
    /// As [`flush`](Self::flush) and [`Group::barrier`].
    pub fn fence(&self) -> Result<(), Error> {
        self.group.fence_window(self.id)
    }

    /// Ends the window, together with all ranks, when all accesses have taken effect; this rank's memory is its own again.
    ///
    /// # Errors
    /// As [`fence`](Self::fence); the window is gone then, and its memory, too.
    pub fn free(mut self) -> Result<M, Error> {
        let (memory, (is_closed, closed)) = (self.memory.take(), self.group.end_window(self.id));
        match memory {
            Some(memory) if is_closed => closed.map(|()| memory),
            memory => {
                // The engine, or another rank, may still access it.
                std::mem::forget(memory);
                closed.and(Err(Error::Internal("a window was freed twice".into())))
            }
        }
    }

    fn run(
        &self,
        action: WindowAction,
        (data, into): (Buffer, Buffer),
        target: u32,
        offset: u64,
    ) -> Result<(), Error> {
        let request = self.group.access_of(self.id, action, (target, offset), T::DTYPE, (data, into), true);
        self.group.run_access(request)
    }
}

impl<T: Element, M: WindowMemory<Element = T>> Drop for Window<'_, T, M> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && self.group.drop_window(self.id).is_err()
        {
            // The engine, or another rank, may still access it.
            std::mem::forget(memory);
        }
    }
}

impl Group {
    /// Makes a window: each rank gives memory, as much as it likes, for all to access. Every rank calls it, as it would a collective, with
    /// elements of one type.
    ///
    /// The ranks of a host access a [`Tensor`](crate::Tensor) of [`alloc`](Self::alloc), of the group of all, by themselves: its owner takes no
    /// part. Of other memory, and of elements of 16 bytes, accesses are messages, and so are those of other hosts' ranks. A rank serves them
    /// whenever its engine is driven: all the time with `mode = "dedicated"`, else while it calls the group, and by the helper thread
    /// every 0.5 ms to 5 ms between.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a rank gives elements of another type, or the ranks' windows are not in the same order; else as
    /// [`all_gather`](Self::all_gather).
    pub fn window<T: Element, M: WindowMemory<Element = T>>(
        &self,
        mut memory: M,
    ) -> Result<Window<'_, T, M>, Error> {
        let part = with_bytes(memory.elements(), |part| part);
        let id = self.make_window(part, T::DTYPE)?;
        Ok(Window { group: self, id, memory: Some(memory) })
    }
}
