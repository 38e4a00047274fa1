//! Completion queues.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::sync::Arc;

use super::super::Completion;
use super::{Domain, Errno};

/// Completions fetched per call into the driver.
const BATCH: usize = 16;

/// A completion queue. Destroyed when dropped.
#[derive(Debug)]
pub(in super::super) struct Queue {
    cq: NonNull<rdma_sys::ibv_cq>,
    pub(super) domain: Arc<Domain>,
}

// SAFETY: libibverbs lets any thread poll a completion queue, several at a time too.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A queue of at least `depth` entries.
    pub(in super::super) fn new(domain: &Arc<Domain>, depth: u32) -> Result<Self, Errno> {
        let depth = c_int::try_from(depth).map_err(|_| Errno(libc::EINVAL))?;
        let null = core::ptr::null_mut();
        // SAFETY: an open context; no cookie, no channel, the first vector.
        let cq = unsafe { rdma_sys::ibv_create_cq(domain.context(), depth, null, core::ptr::null_mut(), 0) };
        let cq = NonNull::new(cq).ok_or_else(Errno::last)?;
        Ok(Self { cq, domain: Arc::clone(domain) })
    }

    pub(super) fn cq(&self) -> *mut rdma_sys::ibv_cq {
        self.cq.as_ptr()
    }

    /// Whether it was made on `domain`.
    pub(in super::super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// Fills `into` from its start; returns how many.
    #[inline]
    pub(in super::super) fn poll(&self, into: &mut [Completion]) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < into.len() {
            let mut raw = [const { MaybeUninit::<rdma_sys::ibv_wc>::uninit() }; BATCH];
            let room = BATCH.min(into.len() - filled);
            // SAFETY: a live queue, and room for `room` (at most 16) completions.
            let count = unsafe { rdma_sys::ibv_poll_cq(self.cq(), room as c_int, raw.as_mut_ptr().cast()) };
            if count < 0 {
                return Err(Errno(count.saturating_neg()));
            }
            let count = (count as usize).min(room);
            for (to, from) in into[filled..].iter_mut().zip(&raw[..count]) {
                // SAFETY: the first `count` were filled in. A field that a driver may leave out is read only where the status and
                // the opcode say that it is there.
                *to = completion(unsafe { &*from.as_ptr() });
            }
            filled += count;
            if count < room {
                break;
            }
        }
        Ok(filled)
    }
}

#[inline]
fn completion(raw: &rdma_sys::ibv_wc) -> Completion {
    if raw.status != rdma_sys::ibv_wc_status::IBV_WC_SUCCESS {
        return Completion::failed(raw.wr_id, raw.qp_num, raw.status, raw.vendor_err);
    }
    let with_imm = raw.wc_flags & rdma_sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    // SAFETY: both variants of the union are plain numbers of four bytes; the flag says which it is.
    let imm = with_imm.then(|| u32::from_be(unsafe { raw.imm_data_invalidated_rkey_union.imm_data }));
    Completion::done(raw.wr_id, raw.qp_num, raw.opcode, imm, raw.byte_len)
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A failure leaves the kernel to clean up when the process ends.
        // SAFETY: every queue pair that reports here held the queue, so none is left.
        unsafe { rdma_sys::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}
