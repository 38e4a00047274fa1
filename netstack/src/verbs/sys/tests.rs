use core::mem::{offset_of, size_of};

use super::super::{Connection, Destination};
use super::Errno;
use super::queue_pair::{receiving, sending, taken};

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

#[test]
fn a_connection_fits_its_fields() {
    let destination = Destination::Roce { gid_index: 3, gid: [9; 16] };
    let connection = Connection {
        local_psn: u32::MAX,
        remote_psn: u32::MAX,
        timeout: 255,
        retry_cnt: 255,
        rnr_retry: 255,
        min_rnr_timer: 255,
        flow_label: u32::MAX,
        ..Connection::new(1, destination, 17)
    };
    let (receiving, sending) = (receiving(&connection, 5), sending(&connection));
    assert_eq!((sending.sq_psn, receiving.rq_psn), (0xff_ffff, 0xff_ffff));
    assert_eq!((sending.timeout, receiving.min_rnr_timer), (31, 31));
    assert_eq!((sending.retry_cnt, sending.rnr_retry, receiving.path_mtu), (7, 7, 5));
    let global = receiving.ah_attr.grh;
    // SAFETY: both variants of the union are sixteen plain bytes.
    let gid = unsafe { global.dgid.raw };
    assert_eq!((global.sgid_index, gid, global.flow_label), (3, [9; 16], 0xf_ffff));
    assert_eq!((global.hop_limit, receiving.ah_attr.dlid, receiving.ah_attr.is_global), (64, 0, 1));
}

#[test]
fn infiniband_goes_by_lid_alone() {
    let to = receiving(&Connection::new(1, Destination::InfiniBand { lid: 12 }, 17), 3).ah_attr;
    assert_eq!((to.dlid, to.is_global), (12, 0));
}
