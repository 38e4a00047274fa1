//! The handles that C holds. Each names a value in a table, so that one that was freed, or never was a handle, is an error and no crash.
//!
//! A handle is no address, and is never followed. Its highest byte is its table's kind, which no address of a process has there; then come
//! the slot's generation and its number. Looking one up takes two loads and no lock; handing out and freeing take one.
#![allow(
    unsafe_code,
    reason = "values in slots are reached without a lock; the caller promises that none is freed meanwhile"
)]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{iter, ptr};

use shouter::Error;

const NUMBER_BITS: u32 = 24;
const KIND_BITS: u32 = 8;
/// Slots of the first chunk; each chunk has twice as many as the one before it.
const FIRST: usize = 64;
const CHUNKS: usize = 18;
/// The most live handles of one kind.
const LIMIT: u32 = ((FIRST << CHUNKS) - FIRST) as u32;

const _: () = assert!(usize::BITS == 64 && LIMIT < 1 << NUMBER_BITS);

/// The values of one kind of handle.
pub(crate) struct Table<T> {
    kind: u8,
    /// What an error says of a handle that is none, or none any more.
    unknown: &'static str,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    vacant: Mutex<Vacant>,
}

/// The slots without a value: those that had one, and all from `unused` on.
struct Vacant {
    freed: Vec<u32>,
    unused: u32,
}

struct Slot<T> {
    /// How many of its handles have been freed. Of the last generation none is handed out, so that no handle is ever another's.
    generation: AtomicU32,
    /// From `Box::into_raw`; null where the slot is vacant.
    value: AtomicPtr<T>,
}

/// A slot for a handle that is still to be handed out; it is given back where none is.
pub(crate) struct Vacancy<'a, T: Send + Sync> {
    table: &'a Table<T>,
    slot: &'a Slot<T>,
    number: u32,
}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: u8, unknown: &'static str) -> Self {
        assert!(kind >= 1 << (KIND_BITS - 1), "that of an address is lower");
        let vacant = Mutex::new(Vacant { freed: Vec::new(), unused: 0 });
        Self { kind, unknown, chunks: [const { OnceLock::new() }; CHUNKS], vacant }
    }

    /// A slot for one more handle.
    pub(crate) fn vacancy(&self) -> Result<Vacancy<'_, T>, Error> {
        let mut vacant = self.vacant();
        let number = match vacant.freed.pop() {
            Some(number) => number,
            None if vacant.unused < LIMIT => {
                vacant.unused += 1;
                vacant.unused - 1
            }
            None => {
                return Err(Error::Argument(format!(
                    "{LIMIT} handles are live; free those of operations that have ended"
                )));
            }
        };
        let (chunk, index) = place(number);
        let slots =
            self.chunks[chunk].get_or_init(|| iter::repeat_with(Slot::new).take(FIRST << chunk).collect());
        Ok(Vacancy { table: self, slot: &slots[index], number })
    }

    /// The value of a handle.
    ///
    /// # Safety
    /// No other thread frees the handle while the value is borrowed.
    pub(crate) unsafe fn get(&self, handle: *const T) -> Result<&T, Error> {
        let value = self.find(handle).map_or(ptr::null_mut(), |(slot, _)| slot.value.load(Ordering::Acquire));
        // SAFETY: a value stays where it is until its handle is freed, which the caller excludes.
        unsafe { value.as_ref() }.ok_or_else(|| self.unknown())
    }

    /// Frees a handle; its value is the caller's.
    pub(crate) fn take(&self, handle: *const T) -> Result<Box<T>, Error> {
        let (slot, number) = self.find(handle).ok_or_else(|| self.unknown())?;
        let generation = generation_of(handle);
        // Where several threads free the handle, one of them does.
        let freed =
            slot.generation.compare_exchange(generation, generation + 1, Ordering::AcqRel, Ordering::Acquire);
        let value = freed.map_or(ptr::null_mut(), |_| slot.value.swap(ptr::null_mut(), Ordering::AcqRel));
        if value.is_null() {
            return Err(self.unknown());
        }
        if generation + 1 < u32::MAX {
            self.vacant().freed.push(number);
        }
        // SAFETY: from Box::into_raw in `fill`, and of all calls only this one has got it.
        Ok(unsafe { Box::from_raw(value) })
    }

    /// The slot that a handle names, where it is in the handle's generation, and its number.
    fn find(&self, handle: *const T) -> Option<(&Slot<T>, u32)> {
        let bits = handle.addr() as u64;
        let number = bits as u32 & ((1 << NUMBER_BITS) - 1);
        if bits >> (u64::BITS - KIND_BITS) != u64::from(self.kind) || number >= LIMIT {
            return None;
        }
        let (chunk, index) = place(number);
        let slot = self.chunks[chunk].get()?.get(index)?;
        (slot.generation.load(Ordering::Acquire) == generation_of(handle)).then_some((slot, number))
    }

    fn vacant(&self) -> MutexGuard<'_, Vacant> {
        self.vacant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn unknown(&self) -> Error {
        Error::Argument(self.unknown.into())
    }
}

impl<T: Send + Sync> Vacancy<'_, T> {
    /// The handle of a value.
    pub(crate) fn fill(self, value: T) -> *mut T {
        // The slot is not vacant any more.
        let Self { table, slot, number } = *ManuallyDrop::new(self);
        let generation = slot.generation.load(Ordering::Acquire);
        slot.value.store(Box::into_raw(Box::new(value)), Ordering::Release);
        let kind = u64::from(table.kind) << (u64::BITS - KIND_BITS);
        let bits = kind | u64::from(generation) << NUMBER_BITS | u64::from(number);
        ptr::without_provenance_mut(bits as usize)
    }
}

impl<T: Send + Sync> Drop for Vacancy<'_, T> {
    fn drop(&mut self) {
        self.table.vacant().freed.push(self.number);
    }
}

impl<T> Slot<T> {
    const fn new() -> Self {
        Self { generation: AtomicU32::new(0), value: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// The generation that a handle has in its middle bits.
fn generation_of<T>(handle: *const T) -> u32 {
    (handle.addr() as u64 >> NUMBER_BITS) as u32
}

/// The chunk of a slot, and its index there.
fn place(number: u32) -> (usize, usize) {
    let place = number as usize + FIRST;
    let chunk = (place.ilog2() - FIRST.ilog2()) as usize;
    (chunk, place - (FIRST << chunk))
}

#[cfg(test)]
mod tests;
