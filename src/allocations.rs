//! Counts the allocations of a test's own thread.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static PAUSED: Cell<u32> = const { Cell::new(0) };
}

/// The system's allocator, which counts.
struct Counting;

// SAFETY: all calls go to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if PAUSED.get() == 0 {
            COUNT.set(COUNT.get() + 1);
        }
        BYTES.set(BYTES.get() + layout.size() as i64);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as i64);
        // SAFETY: `memory` came from `System.alloc` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far.
pub(crate) fn count() -> u64 {
    COUNT.get()
}

/// Whether rounds of starts allocate nothing after the second. A driver lets go of an operation a moment after its end is known; a start in
/// that moment gets memory of its own, which it leaves to later ones. Three rounds of ten may meet that, starts that always allocate would
/// in all.
pub(crate) fn settle(counted: &[u64]) -> bool {
    let rounds = &counted[2..];
    rounds.iter().filter(|count| **count == 0).count() * 10 >= rounds.len() * 7
}

/// Bytes that this thread has allocated and not freed; bytes that it frees for others count against it.
pub(crate) fn bytes() -> i64 {
    BYTES.get()
}

/// While this lives, nothing is counted on its thread.
pub(crate) struct Pause;

impl Pause {
    pub(crate) fn new() -> Self {
        PAUSED.set(PAUSED.get() + 1);
        Self
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        PAUSED.set(PAUSED.get() - 1);
    }
}
