//! The lcore id of a queue, and with it the queue's caches of frame buffers, for the thread that drives the queue.
//!
//! A memory pool has a cache for each lcore id of the EAL, which a thread has while it is registered. The thread that
//! drives a queue changes: any thread of a trainer may wait for a result, and there may be more of them than ids. So a
//! queue has the id, and the thread that moves its frames has it for as long as that takes. Caches then
//! stay with the queue: there is one for each, and it is warm for the next thread.

use super::Errno;

/// "No id": `LCORE_ID_ANY`.
const NONE: u32 = u32::MAX;

/// Queues that can have an id at a time. The EAL's own thread has one.
pub(in super::super) const MAX_QUEUES: u32 = dpdk_sys::RTE_MAX_LCORE - 1;

/// An lcore id that no other queue and no thread has. Given back when dropped.
#[derive(Debug)]
pub(in super::super) struct Lcore {
    id: u32,
}

impl Lcore {
    /// Takes an id; an error if all are taken.
    pub(in super::super) fn take() -> Result<Self, Errno> {
        // SAFETY: no id.
        let lcore = unsafe { BorrowedLcore::new(NONE) };
        // SAFETY: needs the EAL only, to which each open port holds a reference.
        let result = Errno::check(unsafe { dpdk_sys::rte_thread_register() });
        // SAFETY: the thread gives the id away, and keeps none.
        let id = unsafe { dpdk_sys::shouter_dpdk_lcore_swap(NONE) };
        drop(lcore);
        result.map(|()| Self { id })
    }

    /// The id, for the thread that moves the queue's frames.
    pub(super) fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Lcore {
    fn drop(&mut self) {
        // SAFETY: the queue that the id belonged to has gone. Unregistering gives back the calling thread's id, which is
        // this one now; the EAL keeps nothing else of a thread.
        unsafe {
            let _lcore = BorrowedLcore::new(self.id);
            dpdk_sys::rte_thread_unregister();
        }
    }
}

/// The calling thread has a queue's id until this is dropped. These nest.
#[derive(Debug)]
pub(super) struct BorrowedLcore {
    own: u32,
}

impl BorrowedLcore {
    /// Gives the calling thread the id `id`.
    ///
    /// # Safety
    /// No other thread uses DPDK under this id until this is dropped. Values are dropped in reverse order.
    #[inline]
    pub(super) unsafe fn new(id: u32) -> Self {
        // SAFETY: by contract, no two threads use DPDK under one id.
        Self { own: unsafe { dpdk_sys::shouter_dpdk_lcore_swap(id) } }
    }
}

impl Drop for BorrowedLcore {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the thread's own id, or that of a value around this one.
        unsafe { dpdk_sys::shouter_dpdk_lcore_swap(self.own) };
    }
}
