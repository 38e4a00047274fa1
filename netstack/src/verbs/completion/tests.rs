use super::*;

/// The numbers of libibverbs, by name.
#[test]
fn statuses_have_the_numbers_of_the_interface() {
    use rdma_sys::ibv_wc_status as raw;
    let named = [
        (raw::IBV_WC_SUCCESS, Status::Success),
        (raw::IBV_WC_LOC_LEN_ERR, Status::LocalLength),
        (raw::IBV_WC_LOC_QP_OP_ERR, Status::LocalOperation),
        (raw::IBV_WC_LOC_EEC_OP_ERR, Status::LocalEndToEndContext),
        (raw::IBV_WC_LOC_PROT_ERR, Status::LocalProtection),
        (raw::IBV_WC_WR_FLUSH_ERR, Status::Flushed),
        (raw::IBV_WC_MW_BIND_ERR, Status::MemoryWindowBind),
        (raw::IBV_WC_BAD_RESP_ERR, Status::BadResponse),
        (raw::IBV_WC_LOC_ACCESS_ERR, Status::LocalAccess),
        (raw::IBV_WC_REM_INV_REQ_ERR, Status::RemoteInvalidRequest),
        (raw::IBV_WC_REM_ACCESS_ERR, Status::RemoteAccess),
        (raw::IBV_WC_REM_OP_ERR, Status::RemoteOperation),
        (raw::IBV_WC_RETRY_EXC_ERR, Status::RetryExceeded),
        (raw::IBV_WC_RNR_RETRY_EXC_ERR, Status::RnrRetryExceeded),
        (raw::IBV_WC_LOC_RDD_VIOL_ERR, Status::LocalDomainViolation),
        (raw::IBV_WC_REM_INV_RD_REQ_ERR, Status::RemoteInvalidReadRequest),
        (raw::IBV_WC_REM_ABORT_ERR, Status::RemoteAborted),
        (raw::IBV_WC_INV_EECN_ERR, Status::InvalidContextNumber),
        (raw::IBV_WC_INV_EEC_STATE_ERR, Status::InvalidContextState),
        (raw::IBV_WC_FATAL_ERR, Status::Fatal),
        (raw::IBV_WC_RESP_TIMEOUT_ERR, Status::ResponseTimeout),
        (raw::IBV_WC_GENERAL_ERR, Status::General),
        (raw::IBV_WC_TM_ERR, Status::TagMatching),
        (raw::IBV_WC_TM_RNDV_INCOMPLETE, Status::RendezvousIncomplete),
    ];
    assert_eq!(named.len(), Status::ALL.len());
    for (number, status) in named {
        assert_eq!(Status::of(number), status, "number {number}");
    }
    assert_eq!(Status::of(24), Status::Unknown(24));
}

#[test]
fn every_status_says_what_it_means_and_what_to_do() {
    for status in Status::ALL.into_iter().chain([Status::Unknown(99)]) {
        let text = status.to_string();
        assert_eq!(text.contains("; "), status != Status::Success, "{status:?}: {text}");
    }
    assert!(Status::Unknown(99).to_string().contains("99"));
    assert!(Status::RetryExceeded.to_string().contains("acknowledge"));
}

#[test]
fn a_failure_tells_no_opcode_and_no_value() {
    let failed = Completion::failed(7, 17, 12, 0x81);
    assert_eq!(failed.status, Status::RetryExceeded);
    assert_eq!((failed.wr_id, failed.qp, failed.vendor_error), (7, 17, 0x81));
    assert_eq!((failed.opcode, failed.imm, failed.byte_len), (None, None, 0));
    assert!(!failed.is_ok());
}

#[test]
fn opcodes_are_those_of_the_interface() {
    let opcodes = [
        (0, Some(Opcode::Send)),
        (1, Some(Opcode::Write)),
        (2, Some(Opcode::Read)),
        (3, None),
        (128, Some(Opcode::Recv)),
        (129, Some(Opcode::RecvImm)),
    ];
    for (raw, opcode) in opcodes {
        assert_eq!(Completion::done(1, 2, raw, None, 3).opcode, opcode, "number {raw}");
    }
}

#[test]
fn only_what_is_received_has_a_value() {
    assert_eq!(Completion::done(1, 2, 129, Some(7), 3).imm, Some(7));
    assert_eq!(Completion::done(1, 2, 128, Some(7), 3).imm, Some(7));
    assert_eq!(Completion::done(1, 2, 1, Some(7), 3).imm, None);
}
