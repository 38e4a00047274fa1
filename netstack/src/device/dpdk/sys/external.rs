//! Payload that buffers refer to where it lies (DPDK's external buffers).

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr;

use dpdk_sys::{rte_mbuf, rte_mbuf_ext_shared_info};

use crate::region::Extent;

/// The count that DPDK keeps with external buffers, for all of a queue's. Buffers in a NIC's ring refer to it, so the port owns it, and
/// frees it when it is closed.
#[derive(Debug)]
pub(super) struct External(Box<UnsafeCell<rte_mbuf_ext_shared_info>>);

// SAFETY: it is changed by whoever frees a buffer of the queue: the one thread that drives the queue, or the one that closes the port when there
// is no queue any more.
unsafe impl Send for External {}
// SAFETY: as above.
unsafe impl Sync for External {}

impl External {
    pub(super) fn new() -> Self {
        let info = Box::new(UnsafeCell::new(rte_mbuf_ext_shared_info {
            free_cb: Some(on_read),
            fcb_opaque: ptr::null_mut(),
            refcnt: 1,
        }));
        // SAFETY: nobody else refers to it yet.
        unsafe { (*info.get()).fcb_opaque = info.get().cast() };
        Self(info)
    }

    pub(super) fn as_ptr(&self) -> *mut rte_mbuf_ext_shared_info {
        self.0.get()
    }
}

/// Called when a buffer with external payload is freed: makes the count 1 again, the state in which DPDK need not count atomically, and in
/// which each buffer frees for itself. Who lent the payload learns by other means that it was read.
///
/// # Safety
/// `shared` is a queue's `rte_mbuf_ext_shared_info`.
unsafe extern "C" fn on_read(_address: *mut c_void, shared: *mut c_void) {
    // SAFETY: by contract.
    unsafe { (*shared.cast::<rte_mbuf_ext_shared_info>()).refcnt = 1 };
}

/// Makes `len` bytes from `offset` of an extent, which has them, the content of `mbuf`. Devices read it by its virtual address: with the
/// processor, or on the bus where DPDK uses virtual addresses there, the only mode in which memory is [registered](super::StartedPort::map).
///
/// # Safety
/// `mbuf` is a fresh buffer that we own, and `shared` that of the queue that it is sent on. The bytes stay readable until the driver has read them.
#[inline]
pub(super) unsafe fn attach(
    mbuf: *mut rte_mbuf,
    shared: *mut rte_mbuf_ext_shared_info,
    extent: &Extent,
    offset: usize,
    len: u16,
) {
    let address = extent.as_ptr().wrapping_add(offset);
    // SAFETY: by contract.
    unsafe {
        dpdk_sys::rte_pktmbuf_attach_extbuf(
            mbuf,
            address.cast_mut().cast::<c_void>(),
            address.addr() as u64,
            len,
            shared,
        );
        (*mbuf).data_len = len;
    }
}
