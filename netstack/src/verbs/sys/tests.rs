use core::mem::{offset_of, size_of};

use super::Errno;
use super::queue_pair::taken;

#[test]
fn a_chain_is_taken_up_to_the_bad_request() {
    let mut chain = [0_u64; 4];
    let first = chain.as_mut_ptr();
    assert_eq!(taken(0, first, core::ptr::null_mut(), 4), Ok(()));
    assert_eq!(taken(12, first, first, 4), Err((0, Errno(12))));
    assert_eq!(taken(12, first, first.wrapping_add(3), 4), Err((3, Errno(12))));
    assert_eq!(taken(-22, first, core::ptr::null_mut(), 4), Err((4, Errno(22))), "queued, but not announced");
}

/// rdma-sys writes these structures down by hand, as they have unions. The numbers are those of a C compiler on x86-64 and any
/// other host with 64-bit pointers, from <infiniband/verbs.h> of rdma-core 44.
#[test]
#[cfg(target_pointer_width = "64")]
fn structures_are_laid_out_as_in_c() {
    use rdma_sys::{ibv_ah_attr, ibv_global_route, ibv_send_wr, ibv_wc};
    assert_eq!(size_of::<ibv_send_wr>(), 128);
    assert_eq!(offset_of!(ibv_send_wr, opcode), 28);
    assert_eq!(offset_of!(ibv_send_wr, imm_data_invalidated_rkey_union), 36);
    assert_eq!(offset_of!(ibv_send_wr, wr), 40);
    assert_eq!(offset_of!(ibv_send_wr, qp_type), 72);
    assert_eq!(size_of::<ibv_wc>(), 48);
    assert_eq!(offset_of!(ibv_wc, imm_data_invalidated_rkey_union), 24);
    assert_eq!(offset_of!(ibv_wc, wc_flags), 36);
    assert_eq!(size_of::<ibv_ah_attr>(), 32);
    assert_eq!(offset_of!(ibv_ah_attr, dlid), 24);
    assert_eq!(size_of::<ibv_global_route>(), 24);
    assert_eq!(size_of::<super::ffi::AsyncEvent>(), 16);
    assert_eq!(size_of::<rdma_sys::ibv_gid_entry>(), 32);
}
