use super::*;

#[test]
fn a_path_mtu_has_a_number_or_is_refused() {
    let connection = Connection::new(1, Destination::InfiniBand { lid: 12 }, 17);
    assert_eq!(Connection { path_mtu: 4096, ..connection }.mtu_number(), Ok(5));
    let odd = Connection { path_mtu: 1500, ..connection };
    assert_eq!(odd.mtu_number(), Err(VerbsError::PathMtu { bytes: 1500 }));
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
