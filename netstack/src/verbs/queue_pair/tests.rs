use super::*;

#[test]
fn a_connection_is_refused_or_fits_its_fields() {
    let destination = Destination::Roce { gid_index: 3, gid: [9; 16] };
    let connection = Connection {
        local_psn: u32::MAX,
        remote_psn: u32::MAX,
        timeout: 255,
        retry_cnt: 255,
        rnr_retry: 255,
        min_rnr_timer: 255,
        flow_label: u32::MAX,
        path_mtu: 4096,
        ..Connection::new(1, destination, 17)
    };
    let target = connection.target().unwrap();
    assert_eq!((target.local_psn, target.remote_psn), (0xff_ffff, 0xff_ffff));
    assert_eq!((target.timeout, target.min_rnr_timer), (31, 31));
    assert_eq!((target.retry_cnt, target.rnr_retry, target.path_mtu), (7, 7, 5));
    let global = target.global.unwrap();
    assert_eq!((global.gid_index, global.gid, global.flow_label), (3, [9; 16], 0xf_ffff));
    assert_eq!((global.hop_limit, target.lid), (64, 0));

    let odd = Connection { path_mtu: 1500, ..connection };
    assert_eq!(odd.target().err(), Some(VerbsError::PathMtu { bytes: 1500 }));
}

#[test]
fn infiniband_goes_by_lid_alone() {
    let target = Connection::new(1, Destination::InfiniBand { lid: 12 }, 17).target().unwrap();
    assert_eq!(target.lid, 12);
    assert!(target.global.is_none());
}

#[test]
fn states_have_the_numbers_of_the_interface() {
    use rdma_sys::ibv_qp_state as raw;
    assert_eq!(QpState::of(raw::IBV_QPS_RESET), QpState::Reset);
    assert_eq!(QpState::of(raw::IBV_QPS_INIT), QpState::Init);
    assert_eq!(QpState::of(raw::IBV_QPS_RTR), QpState::ReadyToReceive);
    assert_eq!(QpState::of(raw::IBV_QPS_RTS), QpState::ReadyToSend);
    assert_eq!(QpState::of(raw::IBV_QPS_SQD), QpState::SendQueueDrained);
    assert_eq!(QpState::of(raw::IBV_QPS_SQE), QpState::SendQueueError);
    assert_eq!(QpState::of(raw::IBV_QPS_ERR), QpState::Error);
    assert_eq!(QpState::of(raw::IBV_QPS_UNKNOWN), QpState::Unknown);
}

#[test]
fn what_does_not_fit_one_chain_is_posted_in_several() {
    let numbers: Vec<usize> = (0..40).collect();
    let mut chains = Vec::new();
    assert_eq!(
        chunked(&numbers, |chain| {
            chains.push(chain.len());
            Ok(())
        }),
        Ok(())
    );
    assert_eq!(chains, [16, 16, 8]);
    let full = Errno(libc::ENOMEM);
    let error = chunked(&numbers, |chain| if chain[0] == 16 { Err((5, full)) } else { Ok(()) }).unwrap_err();
    assert_eq!((error.posted, error.is_full()), (21, true));
}

#[test]
fn inline_data_has_to_fit_and_to_be_sent() {
    let write = Operation::Write { remote: 0, rkey: 0 };
    let request = WorkRequest::new(1, write, Sges::NONE).inline();
    assert!(request.is_fit(0));
    let read = Operation::Read { remote: 0, rkey: 0 };
    assert!(!WorkRequest::new(1, read, Sges::NONE).inline().is_fit(64));
    assert!(WorkRequest::new(1, read, Sges::NONE).is_fit(0));
}
