use super::*;

#[test]
fn access_has_the_numbers_of_the_interface() {
    use rdma_sys::ibv_access_flags as raw;
    assert_eq!(Access::LOCAL_READ.bits(), 0);
    assert_eq!(Access::LOCAL_WRITE.bits(), raw::IBV_ACCESS_LOCAL_WRITE.0);
    assert_eq!(Access::REMOTE_READ.bits(), raw::IBV_ACCESS_REMOTE_READ.0);
    // The device may write where peers may: the kernel refuses the one without the other.
    let remote_write = raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_LOCAL_WRITE;
    assert_eq!(Access::REMOTE_WRITE.bits(), remote_write.0);
    assert_eq!((Access::REMOTE_WRITE | Access::REMOTE_READ).bits(), 7);
}

#[test]
fn access_prints_its_names() {
    assert_eq!(
        format!("{:?}", Access::REMOTE_READ | Access::LOCAL_WRITE),
        r#"{"LOCAL_WRITE", "REMOTE_READ"}"#
    );
}
