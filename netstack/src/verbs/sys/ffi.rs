//! What rdma-sys 0.3 lacks, or gives a type that would not be sound.

use core::ffi::{c_int, c_void};

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
