//! Declarations that rdma-sys 0.3 lacks, or whose types there would not be sound, and functions that a libibverbs may
//! lack.

use core::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// `struct ibv_async_event`. In rdma-sys its type is a Rust enum, which a newer kernel may overstep.
#[repr(C)]
pub(super) struct AsyncEvent {
    /// A union of pointers and a port number (an int).
    pub(super) element: *mut c_void,
    pub(super) event_type: c_int,
}

// `ibv_query_gid_table` is a static inline over the first; the other two take the structure above.
// SAFETY: as declared in <infiniband/verbs.h> of rdma-core 44, exported by libibverbs.so.1.
unsafe extern "C" {
    pub(super) fn _ibv_query_gid_table(
        context: *mut rdma_sys::ibv_context,
        entries: *mut rdma_sys::ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
    pub(super) fn ibv_get_async_event(context: *mut rdma_sys::ibv_context, event: *mut AsyncEvent) -> c_int;
    pub(super) fn ibv_ack_async_event(event: *mut AsyncEvent);
}

/// `ibv_reg_dmabuf_mr` of <infiniband/verbs.h>.
pub(super) type RegDmabufMr = unsafe extern "C" fn(
    pd: *mut rdma_sys::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut rdma_sys::ibv_mr;

/// `ibv_reg_dmabuf_mr`, which came with rdma-core 34: a program that links it does not start with an older libibverbs.
pub(super) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    static FOUND: OnceLock<Option<RegDmabufMr>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the name ends with NUL; libibverbs is linked, so it is among the libraries that are searched.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ibv_reg_dmabuf_mr".as_ptr()) };
        // SAFETY: the type is that of <infiniband/verbs.h>, and a null pointer is `None`.
        unsafe { core::mem::transmute::<*mut c_void, Option<RegDmabufMr>>(symbol) }
    })
}
