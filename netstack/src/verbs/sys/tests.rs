use core::mem::{offset_of, size_of};

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
